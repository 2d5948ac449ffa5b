"""How an engine fills its iterations: the shipped schedulers, a row each with the name of its function in
``archsim.serving.schedulers``, and ``scheduler:`` of a serve file. A user's own is ``package.module:function``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.errors import did_you_mean
from archsim.base.fields import KeyProblem, check_parameters
from archsim.base.own_code import import_function
from archsim.base.quantities import count
from archsim.specs.rules import Parameter
from archsim.specs.serving_terms import TERMS, ServingSpec

BY_HASHES = ("prefix_aware", "cache_aware", "session")  # choices of a rank that look at shared prefixes
JOIN = "join_decodes"  # left open where a file does not give it: a version of SGLang decides
ARGUMENTS = 4  # that a user's function gets by position: state, rank, time in ns, limits


class ShippedScheduler(NamedTuple):
    """A shipped scheduler."""

    meaning: str  # in words
    parameters: Mapping[str, Parameter] = MappingProxyType({})  # name → parameter
    chunked: bool = True  # splits prompts, unless a file says otherwise
    preempts: bool = True  # may compute a request anew, with its output
    by_length: bool = False  # its attention takes a chunk of one token for a decode


SCHEDULERS: Mapping[str, ShippedScheduler] = MappingProxyType(
    {
        "vllm_v1": ShippedScheduler(
            "decodes and chunks of prompts in one budget; a prompt is admitted when all of it fits; preemption by "
            "recomputation",
            MappingProxyType(
                {"reserve_full_isl": Parameter(1, 0, 1, "admit a prompt when all of it fits, not its first chunk")}
            ),
            by_length=True,
        ),
        "sglang": ShippedScheduler(
            "prompts go before decodes and are not mixed with them; an admission keeps room for output still to come",
            MappingProxyType(
                {
                    "poll_every": Parameter(1, 1, 10_000, "decodes between two looks (--scheduler-recv-interval)"),
                    "kept_share": Parameter(0.7, 0, 1, "of the output still to come (its new_token_ratio)", float),
                    JOIN: Parameter(1, 0, 1, "requests with their KV join decodes at once (v0.5.10; 0: before)"),
                }
            ),
        ),
        "trtllm": ShippedScheduler(
            "as vllm_v1, but an admission reserves the blocks of its whole output, so that nothing is preempted "
            "(GUARANTEED_NO_EVICT); takes prompts whole unless `chunked_prefill: true`",
            chunked=False,
            preempts=False,
        ),
    }
)
OWN = ShippedScheduler("a user's own function", by_length=True)


def is_function(name: str) -> bool:
    return ":" in name


def row_of(name: str) -> ShippedScheduler:
    return OWN if is_function(name) else SCHEDULERS[name]


class SchedulerSpec(ServingSpec):
    """How an engine fills its iterations (docs/serving.md). In YAML: a name, or a mapping with the scheduler's own
    parameters among these keys.
    """

    # vllm_v1, sglang, trtllm, or your own package.module:function
    name: str = "vllm_v1"
    max_num_seqs: Annotated[int, count(1, 65536)] = 256  # requests of an iteration of a rank
    max_num_batched_tokens: Annotated[int, count(1, 10_000_000)] = 8192  # tokens of an iteration of a rank
    # null: as the engine does by itself; trtllm takes prompts whole.
    chunked_prefill: bool | None = Field(None, validate_default=True)
    prefix_caching: bool = True  # whether KV of equal beginnings is reused
    block_tokens: Annotated[int, count(1, 4096)] = 16  # tokens of a block of KV
    # Which rank of which engine a request goes to. By hash ids: prefix_aware (Dynamo's router: blocks to compute and
    # in use), cache_aware (SGLang's: the most of the prompt), session (later turns go where the first one went).
    balance: Literal["round_robin", "least_loaded", "prefix_aware", "cache_aware", "session"] = "least_loaded"
    # When ranks of data-parallel attention, which wait for each other, compute prompts. free: whenever they have one;
    # spaced: in every n-th iteration of their engine (`prefill_every`); together: when all have one, or in the n-th.
    prefill: Literal["free", "spaced", "together"] = "free"
    prefill_every: Annotated[int, count(1, 100_000)] = 16  # iterations, for prefill: spaced
    # Which requests wait in front: arrival; priority: of requests.classes, the least first (vLLM's --scheduling-policy
    # priority), whose KV is also taken last; deadline: arrival and the ttft limit of the class, the earliest first.
    order: Literal["arrival", "priority", "deadline"] = "arrival"
    # The scheduler's own; sglang: poll_every (iterations of decodes between two looks for new requests), kept_share,
    # join_decodes (0: requests with their KV hold up the decodes of their rank for an iteration).
    params: dict[str, Any] = Field(default_factory=dict, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given}
        if not isinstance(given, dict) or "params" in given:
            return given
        own = {key: value for key, value in given.items() if key not in cls.model_fields}
        return {key: value for key, value in given.items() if key not in own} | {"params": own}

    @model_serializer(mode="wrap")
    def _flat(self, serialized: Any) -> dict[str, Any]:
        found = serialized(self)
        return found | found.pop("params")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if is_function(name):
            import_function(name)
        elif name not in SCHEDULERS:
            raise ValueError(
                f"unknown scheduler {name!r}{did_you_mean(name, SCHEDULERS)} (known: {', '.join(SCHEDULERS)}; or your "
                "own function as package.module:function)"
            )
        return name

    @field_validator("chunked_prefill")
    @classmethod
    def _default_chunked(cls, given: bool | None, info: ValidationInfo) -> bool:
        return row_of(info.data.get("name", "vllm_v1")).chunked if given is None else given

    @field_validator("params")
    @classmethod
    def _own(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is None:  # refused itself
            return {}
        if is_function(name):
            check_parameters(name, import_function(name), ARGUMENTS, given)
            _refuse_no_numbers(given)
            return given
        known = SCHEDULERS[name].parameters
        for key in given:
            if key not in known:
                raise ValueError(f"unknown key {key!r} of scheduler {name}{_whose(key, [*cls.model_fields, *known])}")
        return {key: _read(each, key, given) for key, each in known.items() if key in given or key != JOIN}


# What is no key of a scheduler → what to write.
_WAYS = {**TERMS, "policy": "write scheduler.order: arrival, priority or deadline"}


def _whose(key: str, known: list[str]) -> str:
    others = [name for name, row in SCHEDULERS.items() if key in row.parameters]
    if not others and (way := _WAYS.get(key, "")):
        return f"; {way}"
    return f": it is one of {' and '.join(others)}" if others else did_you_mean(key, known)


def _read(parameter: Parameter, key: str, given: Mapping[str, Any]) -> int | float | None:
    if key not in given:
        return parameter.default
    try:
        found = parameter.read(given[key])
    except ValueError as error:
        raise KeyProblem((key,), str(error)) from None
    assert not isinstance(found, str), "parameters of schedulers have no words"
    return found


def _refuse_no_numbers(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KeyProblem((key,), f"schedulers are compiled, so a parameter must be a number, not {value!r}")

"""The workload: a routing trace (or synthetic traffic), batch sizes and decode steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from archsim.base.config_files import named_files
from archsim.base.errors import did_you_mean
from archsim.base.fields import KeyProblem, Spec, refuse_duplicates
from archsim.base.quantities import count, number
from archsim.base.sums import sum

# Iterations are int16 in traces; iteration 0 is the prefill.
DecodeSteps = Annotated[int, count(1, 32766)]
BatchSize = Annotated[int, count(1, 10_000_000)]
Skew = Annotated[float, number(0, 10)]
Seed = Annotated[int, count(0, 2**63 - 1)]
# Of a generated request that does not say; small because a prefill is one step whatever its length.
PROMPT_TOKENS = 16
OF_MODEL = "model"  # `like: model`: the preset with the name of each model


def known_preset(like: str | None) -> str | None:
    """Return ``like`` unchanged. Raises ValueError for what is no traffic preset, file or `model`."""
    known = named_files("traffic")
    if like not in (None, OF_MODEL) and not like.endswith((".yaml", ".yml")) and like not in known:
        raise ValueError(
            f"unknown traffic preset {like!r}{did_you_mean(like, known)} (known: {', '.join(known)}; "
            f"{OF_MODEL}, for the preset of each model's name; or the path of a YAML file)"
        )
    return like


_Ratio = Annotated[float, number(1, 1e6)]
Level = _Ratio | Annotated[tuple[_Ratio, ...], Field(min_length=1)] | None


class ImbalanceSpec(Spec):
    """A published imbalance that generated traffic is to have: one of four figures. Several values: of parts of the
    model of equal depth, the first MoE layers first. Experts lie contiguously on the ranks.
    """

    # Pairs of the busiest rank over the mean.
    max_over_mean: Level = None
    # Pairs of the busiest rank over those of the least busy one.
    max_over_min: Level = None
    # Pairs of the busiest expert over the mean.
    hottest_expert: Level = None
    # Pairs of the busiest rank over those of the busiest after EPLB, placed by the same loads, with `slots`.
    eplb_gain: Level = None
    # Ranks of expert parallelism; not of hottest_expert.
    ranks: Annotated[int | None, count(2, 100_000, none=True)] = None
    # Further slots of a rank that EPLB fills.
    slots: Annotated[int, count(0, 1024)] = 0

    @model_validator(mode="after")
    def _one(self) -> "ImbalanceSpec":
        given = [name for name in _LEVELS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of {', '.join(_LEVELS)}; not {len(given)}")
        if (self.ranks is None) != (given == ["hottest_expert"]):
            raise KeyProblem(("ranks",), "is of the other three, not of hottest_expert" if self.ranks else "is missing")
        if self.slots and given != ["eplb_gain"]:
            raise KeyProblem(("slots",), "are those of eplb_gain")
        return self

    @property
    def level(self) -> tuple[str, tuple[float, ...]]:
        """The figure's name, and its value for each part of the model."""
        name = next(name for name in _LEVELS if getattr(self, name) is not None)
        value = getattr(self, name)
        return name, value if isinstance(value, tuple) else (value,)

    def __str__(self) -> str:
        name, values = self.level
        of = f"/{self.ranks}" if self.ranks else ""
        return f"{name}{of}={'/'.join(f'{each:g}' for each in values)}{f' slots={self.slots}' if self.slots else ''}"


_LEVELS = ("max_over_mean", "max_over_min", "hottest_expert", "eplb_gain")


class SyntheticSpec(Spec):
    """Generated routing, from a traffic preset (``like``) or from a few numbers.

    Presets: archsim.traffic.generative. The numbers, and the recorded routing from which their
    defaults were measured: archsim.traffic.synthetic.
    """

    # A preset of configs/traffic, the path of one (archsim trace fit), or `model`: for each model the preset of its own
    # name. Null: the numbers below.
    like: Annotated[Annotated[str, Field(min_length=1)] | None, AfterValidator(known_preset)] = None
    # With like: tasks and their weights; null: those of the preset. An unknown task is like a subject of the preset, or
    # has its task `other`, or gets shares derived from its name.
    mix: dict[Annotated[str, Field(min_length=1)], Annotated[float, number(0, 1e9)]] | None = None
    # With like, the first decode step of a run: settled, where loads are stationary; start, where answers begin,
    # perhaps with a template.
    phase: Literal["settled", "start"] = "settled"
    # Number of requests; null: as many as the largest batch needs.
    requests: Annotated[int | None, count(1, 10_000_000, none=True)] = None
    # Prompt tokens of every request: the prefill, iteration 0. 0: no prefill. Null: 16, or with like the lengths of the
    # preset, so that every request begins with a prefill.
    prompt_tokens: Annotated[int | None, count(0, 1_000_000, none=True)] = None
    # Decode steps of every request; null: as many as the workload requests, or with like the preset's.
    decode_steps: Annotated[int | None, count(1, 32766, none=True)] = None
    seed: Seed = 0  # of the draws
    # Standard deviation of the log popularity of a layer's experts; 0: all equal. Several: of parts of equal depth, the
    # first MoE layers first.
    popularity_skew: Skew | Annotated[tuple[Skew, ...], Field(min_length=1)] = 0.7
    # In place of popularity_skew: what the traffic is to measure; every layer's skew is fitted to it, for this seed.
    imbalance: ImbalanceSpec | None = None
    # Probability that a request rejects an expert it does not prefer; 0: requests are equal.
    request_taste: Annotated[float, number(0, 1)] = 0.75
    # Probability that a token keeps an expert of the previous token.
    stickiness: Annotated[float, number(0, 1)] = 0.15
    # By how much popularity drifts per decode step, in radians: its correlation with that of n steps before is
    # cos(drift * n).
    drift: Annotated[float, number(0, 1)] = 0
    # The decode step with which every request changes its subject: other popular experts, other tastes; null: none.
    switch_step: Annotated[int | None, count(1, 32766, none=True)] = None
    # Decode steps stand for chunks of prompts: so many consecutive requests of a batch are the tokens of one prompt,
    # another one in every step. Null: every request decodes its own token.
    chunk_tokens: Annotated[int | None, count(1, 1_000_000, none=True)] = None

    def preset_of(self, model: str) -> str | None:
        """The preset for a model of this name: a name or path; None: the three numbers."""
        return model if self.like == OF_MODEL else self.like

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what says nothing, so that runs of before it existed keep their names."""
        found: dict[str, Any] = handler(self)
        if found.get("phase") == "settled":
            del found["phase"]
        if self.chunk_tokens is None:
            found.pop("chunk_tokens", None)
        if self.imbalance is not None:
            found.pop("popularity_skew", None)  # what is written is read again, by the process of a run
        return found

    @model_validator(mode="after")
    def _of_one_kind(self) -> "SyntheticSpec":
        if self.like is None:
            if self.mix is not None:
                raise KeyProblem(("mix",), "needs the tasks of a preset. Give `like`")
            if self.phase != "settled":
                raise KeyProblem(("phase",), "needs the start of a preset's answers. Give `like`")
            if self.imbalance is not None and "popularity_skew" in self.model_fields_set:
                raise KeyProblem(("popularity_skew",), "`imbalance` already determines it. Give one of them")
            if self.chunk_tokens is not None and (self.prompt_tokens != 0 or self.requests is not None):
                raise KeyProblem(("chunk_tokens",), "decode steps are prompts, as many as the batch holds. Give "
                                 "prompt_tokens: 0, and no requests")  # fmt: skip
            return self
        for key in ("popularity_skew", "imbalance", "request_taste", "stickiness", "drift", "switch_step",
                    "chunk_tokens"):  # fmt: skip
            if getattr(self, key) != type(self).model_fields[key].default:
                raise KeyProblem((key,), f"has no effect on traffic like {self.like!r}: the preset has its own")
        if self.mix is not None and not sum(self.mix.values()) > 0:
            raise KeyProblem(("mix",), "needs at least one task with a weight above 0")
        return self


class SyntheticTrace(Spec):
    """``trace: {synthetic: {...}}``."""

    synthetic: SyntheticSpec


def _kind_of_trace(value: Any) -> str | None:
    if isinstance(value, str):
        return "<path>"
    return "<synthetic>" if isinstance(value, dict | SyntheticTrace) else None


class WorkloadSpec(Spec):
    """Which requests are served, and how many together."""

    WHOLE: ClassVar[bool] = True  # terms are whole keys, and no words of longer ones
    # What is no key → what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        term: way
        for terms, way in (
            (
                "seq_len sequence_length context_len kv_len history",
                "write context, the tokens that each request has in the KV cache",
            ),
            ("tokens batches concurrency requests users", "write batch, the requests of a decode step: [4096, 8192]"),
            ("steps iterations output_len output output_tokens osl", "write decode_steps"),
            (
                "prompt prompt_tokens input_len input isl",
                "write trace: {synthetic: {like: model, prompt_tokens: 512}}; a recorded trace has its prompts",
            ),
            (
                "traffic routing dataset like synthetic phase mix",
                "write trace: {synthetic: {like: model}}, or trace: FILE, of recorded routing",
            ),
            ("skew imbalance popularity_skew", "write trace: {synthetic: {popularity_skew: 0.7}}"),
            (
                "rate qps rps arrivals load",
                "requests that arrive over time are a deployment, which `archsim serve` takes",
            ),
        )
        for term in terms.split()
    }

    # The path of a trace, or synthetic traffic.
    trace: Annotated[
        Annotated[str, Field(min_length=1), Tag("<path>")] | Annotated[SyntheticTrace, Tag("<synthetic>")],
        Discriminator(
            _kind_of_trace,
            custom_error_type="expected",
            custom_error_message="expected the path of a trace, or {synthetic: {...}}",
        ),
    ]
    # A user's own trace format, package.module:function; null: one of the shipped formats.
    reader: Annotated[str, Field(min_length=1)] | None = None
    # Batch N: the first N requests in file order; if a recorded trace has fewer, see `extend`.
    batch: tuple[BatchSize, ...] = Field(min_length=1)
    # Requests beyond the recorded ones (docs/traces.md).
    extend: Literal["redraw", "shifted", "fitted"] = "redraw"
    # Maximum; requests that end earlier stop contributing. 127 after the prefill, as in the published simulator.
    decode_steps: DecodeSteps = 127
    # Of these, the first that run but are not counted, nor is the prefill before them: caches and copies fill up.
    warmup_steps: Annotated[int, count(0, 32765)] = 0
    # Number of MoE layers that run, those that represent all of them; times are scaled, and their standard error is
    # stated; null: all.
    layers: Annotated[int | None, count(1, 10_000, none=True)] = None
    # Seed of the draw with replacement.
    seed: Seed = 0
    # Tokens of KV cache that a request holds, under `memory: all`; 0 leaves the cache out. Null: docs/assumptions.md.
    context: Annotated[int | None, count(0, 100_000_000, none=True)] = None
    # Attention, dense layers, routers and embeddings: all of them on every die (data-parallel attention), or a share.
    attention_weights: Literal["replicated", "sharded"] = "replicated"

    @model_validator(mode="after")
    def _keys_belong(self) -> "WorkloadSpec":
        if self.reader is not None and not isinstance(self.trace, str):
            raise KeyProblem(("reader",), "needs a recorded trace; generated traffic needs no reader")
        if self.extend != "redraw" and not isinstance(self.trace, str):
            raise KeyProblem(("extend",), "needs a recorded trace; generated traffic has as many requests as requested")
        if self.warmup_steps >= self.decode_steps:
            raise KeyProblem(
                ("warmup_steps",),
                f"leaves none of the {self.decode_steps} decode steps to count; expected at most "
                f"{self.decode_steps - 1}",
            )
        return self

    @field_validator("batch", mode="wrap")
    @classmethod
    def _one_or_several(cls, given: Any, handler: ValidatorFunctionWrapHandler) -> tuple[int, ...]:
        batch: tuple[int, ...] = handler(given if isinstance(given, list | tuple) else (given,))
        refuse_duplicates("batch", list(batch))
        return batch

    @property
    def has_prompts(self) -> bool:
        return isinstance(self.trace, str) or self.trace.synthetic.prompt_tokens != 0

    def drawn(self, at: int) -> "WorkloadSpec":
        """The workload with the ``at``-th draw of its traffic, or of a recorded trace's requests; 0 is its own draw."""
        if not at:
            return self
        changes: dict[str, Any] = {"seed": self.seed + at}
        if not isinstance(self.trace, str):
            synthetic = self.trace.synthetic.model_copy(update={"seed": self.trace.synthetic.seed + at})
            changes["trace"] = self.trace.model_copy(update={"synthetic": synthetic})
        return self.model_copy(update=changes)

    @property
    def context_tokens(self) -> int | None:
        """`context`, else prompt and decode steps of generated requests: what they hold at their end. None if neither
        says: requests without prompts, or of lengths that a preset or a recorded trace decides.
        """
        if self.context is not None or isinstance(self.trace, str):
            return self.context
        synthetic = self.trace.synthetic
        if synthetic.like is not None or synthetic.prompt_tokens == 0:
            return None
        prompt = PROMPT_TOKENS if synthetic.prompt_tokens is None else synthetic.prompt_tokens
        return prompt + min(self.decode_steps, synthetic.decode_steps or self.decode_steps)


def trace_label(workload: WorkloadSpec) -> str:
    """A recorded trace in the results: the last two names of its path, independent of the working directory."""
    assert isinstance(workload.trace, str)
    return "/".join(Path(workload.trace).absolute().resolve().parts[-2:])

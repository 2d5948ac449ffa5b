"""Policies: each part (placement, allocation, prediction, rebalancing, routing, replication, shared) a named rule with
parameters.

A rule is one of the names below, or a user's own function ``package.module:function``, which gets the parameters as
given. :data:`PRESETS` names the five policies of the published simulator, allocation as the paper's text describes
it, a linear programme, and the published balancers.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.errors import did_you_mean
from archsim.base.fields import FRACTION, KeyProblem, Name, Spec, describe, parse_quantity
from archsim.base.own_code import import_function

# ---- rules
# A rule of a policy by name: what it does, and its parameters with defaults, ranges and meanings.


class Parameter(NamedTuple):
    """A parameter of a rule: default (None: absent unless given), range and meaning."""

    default: int | float | None
    low: float
    high: float
    meaning: str
    kind: type = int

    def read(self, value: Any) -> int | float:
        if self.kind is float and isinstance(value, str):
            value = float(parse_quantity(value, FRACTION))
        whole = "an integer" if self.kind is int else "a number"
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or self.kind(value) != value
        ):
            raise ValueError(f"expected {whole}, not {describe(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is out of range; expected {self.low:g} to {self.high:g}")
        return self.kind(value)


class NamedChoice(NamedTuple):
    """A parameter that is one of several names; ``default`` None: absent unless given."""

    default: str | None
    names: tuple[str, ...]
    meaning: str

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            hint = did_you_mean(value, self.names) if isinstance(value, str) else ""
            raise ValueError(f"expected {' or '.join(self.names)}, not {describe(value)}{hint}")
        return value


class Text(NamedTuple):
    """A parameter that is text, such as the path of a file."""

    default: str | None
    meaning: str

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"expected text, not {describe(value)}")
        return value


class Rule(NamedTuple):
    """A rule shipped with archsim: its meaning and parameters."""

    meaning: str
    parameters: Mapping[str, Parameter | NamedChoice | Text] = MappingProxyType({})


# ---- balancers
# Rules and presets of the published balancers: EPLB, CRAFT, Lina, Libra, HarMoEny, LPLB, Waterfill, capacity-aware
# routing, Remap and Dup.
#
# A row here and a function in ``archsim.policies`` is all that a balancer needs (``archsim.policies.registry``).

# ruff: noqa: E501  (one row a rule: a table is read across)


_NEEDS = {
    "needs": NamedChoice(
        None,
        ("speeds",),
        "what it asks beside loads: the speed of every die, and the links between them; null: nothing",
    )
}
_SEED = Parameter(0, 0, 2**31 - 1, "seed of its draws")
_SLOTS = "slots of a die beyond its share of the experts"


def _called(every: int, window: int) -> dict[str, Parameter]:
    """When a rebalancing is called."""
    return {
        "first_steps": Parameter(1, 1, 1e6, "iterations before the first call; 1: after the prefill"),
        "every_steps": Parameter(every, 0, 1e6, "iterations between later calls; 0: no later call"),
        "window_steps": Parameter(window, 1, 1e6, "latest iterations whose loads count"),
    }


PLACEMENT: Mapping[str, Rule] = {
    "redundant": Rule(
        "slot i holds expert i mod E, what engines start from: `slots` replicas a die in every layer",
        {"slots": Parameter(1, 0, 1024, _SLOTS)},
    ),
    "from_file": Rule(
        "as a file says: of `archsim place`, or SGLang's, vLLM's or TensorRT-LLM's, with a rank for every die",
        {"file": Text(None, "a folder or placement.json of `archsim place`, or an engine's file")},
    ),
}
ALLOCATION: Mapping[str, Rule] = {
    "even": Rule(
        "an expert's tokens are divided evenly among its holders; with `needs: speeds` by their speeds", _NEEDS
    ),
    "hashed": Rule("every token takes a holder of its expert by a hash: even, but for chance"),
    "nearest": Rule("every die's tokens go to the nearest holder by hops"),
    "static": Rule("every die uses one fixed holder of an expert: itself, else one of the nearest, spread over dies"),
    "lplb": Rule("shares among holders that minimise the load of the fullest die, exact, rounded (LPLB)", _NEEDS),
    "libra": Rule(
        "tokens run where they live if that die holds the expert, else at home; overloaded dies shard the rest (Libra)",
        {
            "epsilon": Parameter(0.01, 0, 10, "overload that is tolerated, of the mean load", float),
            "rule": NamedChoice("literal", ("literal", "restart"), "as printed, or sorted again after each move"),
        },
    ),
    "harmoeny": Rule(
        "overloaded dies pass tokens to the least loaded, which fetch the expert (HarMoEny)",
        {
            "threshold": Parameter(150, 0, 1e9, "fewest tokens for which an expert is fetched"),
            "rule": NamedChoice("released", ("released", "paper"), "the published code, or Algorithm 2"),
        },
    ),
}
REBALANCING: Mapping[str, Rule] = {
    "eplb": Rule(
        "replicas to the largest load per instance, instances to the least loaded die (EPLB); slots stay as placed",
        {
            **_called(64, 64),
            "groups": Parameter(1, 1, 4096, "expert groups of the hierarchical rule"),
            "nodes": Parameter(1, 1, 4096, "nodes of the hierarchical rule; 1: global"),
            **_NEEDS,
        },
    ),
    "craft": Rule(
        "replicas to the layers that gain most (CRAFT)",
        {
            **_called(0, 64),
            "replicas": Parameter(8, 0, 4096, "replicas a die, over all layers together"),
            "nodes": Parameter(1, 1, 4096, "nodes over which experts spread"),
            **_NEEDS,
        },
    ),
    "remap": Rule("experts by cost to the least loaded die, without replicas (Remap)", _called(0, 64)),
    "dup": Rule(
        "contiguous experts, and replicas where they lower the largest load most (Dup)",
        {**_called(0, 64), "slots": Parameter(1, 0, 1024, "replicas a die in every layer")},
    ),
}
_PASS = Parameter(8192, 1, 1e9, "most tokens of a forward pass, to which the capacity applies")
_GAMMA = Parameter(1.5, 0, 1e6, "capacity of an expert, of its mean number of tokens", float)
ROUTING: Mapping[str, Rule] = {
    "as_chosen": Rule("every chosen pair of token and expert is executed"),
    "drop": Rule(
        "an expert drops its tokens above a capacity (Token Drop)",
        {
            "gamma": _GAMMA,
            "keep": NamedChoice("score", ("score", "order", "reverse_order", "random"), "which tokens are kept"),
            "pass_tokens": _PASS,
            "seed": _SEED,
        },
    ),
    "reroute": Rule(
        "tokens that an expert rejects choose again among the others (Token Reroute)",
        {"gamma": _GAMMA, "rounds": Parameter(2, 1, 100, "rounds of choosing"), "pass_tokens": _PASS, "seed": _SEED},
    ),
    "expert_drop": Rule(
        "the least loaded experts are not executed (Expert Drop)",
        {
            "share": Parameter(0.1, 0, 1, "share of the experts that is dropped, rounded down", float),
            "pass_tokens": _PASS,
            "seed": _SEED,
        },
    ),
}
REPLICATION: Mapping[str, Rule] = {
    "none": Rule("a layer runs on the holders that the placement gives"),
    "libra": Rule(
        "every die fetches experts for the next layer, predicted by a look-ahead of stated accuracy (Libra)",
        {
            "slots": Parameter(8, 1, 1024, "experts that a die fetches for a layer; two sets of slots take turns"),
            "local_share": Parameter(0.5, 0, 1, "share of the slots for the die's own tokens (alpha)", float),
            "accuracy": Parameter(0.87, 0, 1, "share of pairs that the look-ahead predicts rightly", float),
            "rule": NamedChoice("literal", ("literal", "prose"), "Algorithm 1 as printed, or section 3.2"),
            "host_ns": Parameter(
                0,
                0,
                1e9,
                "ns of broadcasting, metadata and sharding of a layer, which run beside a die's local experts",
                float,
            ),
            "local_pair_ns": Parameter(
                0, 0, 1e6, "ns that local experts take for a pair of token and expert, and hide of `host_ns`", float
            ),
            "seed": _SEED,
        },
    ),
    "lina": Rule(
        "every die fetches experts for the next layer, predicted from the paths of tokens so far (Lina)",
        {
            "slots": Parameter(8, 1, 1024, "experts that a die fetches for a layer; two sets of slots take turns"),
            "path_length": Parameter(4, 1, 16, "layers of a path"),
            "sample_tokens": Parameter(4096, 1, 1e6, "most tokens of an iteration that are counted and predicted"),
            "accuracy": Parameter(0, 0, 1, "share of pairs predicted rightly, in place of paths; 0: by paths", float),
            "pair_ns": Parameter(
                0,
                0,
                1e6,
                "ns that a layer waits for prediction, sharding and planning, for every pair of token and expert of a rank",
                float,
            ),
            "seed": _SEED,
        },
    ),
}
SHARED: Mapping[str, Rule] = {
    "local": Rule("every die runs the shared expert for its own tokens"),
    "waterfill": Rule(
        "tokens' shared experts fill the less loaded dies up to a common waterline (Waterfill)",
        {"least_tokens": Parameter(64, 0, 1e9, "with fewer tokens on a die they stay local")},
    ),
}
BALANCER_PRESETS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "eplb",
        "EPLB: redundant slots, filled anew by recent loads; tokens divided evenly among replicas",
        {"placement": "redundant", "allocation": "even", "rebalancing": "eplb"},
    ),
    (
        "lplb",
        "LPLB: redundant slots as they are; the best shares among replicas",
        {"placement": "redundant", "allocation": "lplb"},
    ),
    (
        "eplb+lplb",
        "EPLB's replicas with LPLB's shares",
        {"placement": "redundant", "allocation": "lplb", "rebalancing": "eplb"},
    ),
    ("waterfill", "expert parallelism; shared experts fill less loaded dies", {"shared": "waterfill"}),
    (
        "eplb+waterfill",
        "EPLB, and shared experts fill less loaded dies",
        {"placement": "redundant", "allocation": "even", "rebalancing": "eplb", "shared": "waterfill"},
    ),
    ("craft", "CRAFT: a few replicas, for the layers that gain most", {"allocation": "even", "rebalancing": "craft"}),
    (
        "lina",
        "Lina: the next layer's popular experts replicated, predicted from paths",
        {"allocation": "even", "replication": "lina"},
    ),
    (
        "libra",
        "Libra: the next layer's experts replicated by look-ahead, remote tokens sharded",
        {"allocation": "libra", "replication": "libra"},
    ),
    ("harmoeny", "HarMoEny: overloaded dies pass tokens on, which fetch the expert", {"allocation": "harmoeny"}),
    ("capacity_drop", "capacity-aware: an expert drops tokens above its capacity", {"routing": "drop"}),
    ("capacity_reroute", "capacity-aware: tokens above an expert's capacity choose others", {"routing": "reroute"}),
    ("expert_drop", "capacity-aware: the least loaded experts are not executed", {"routing": "expert_drop"}),
    ("remap", "Remap: experts placed by the prefill's loads, once", {"rebalancing": "remap"}),
    ("dup", "Dup: replicas placed by the prefill's loads, once", {"allocation": "even", "rebalancing": "dup"}),
)
"""Name, meaning, parts; the others are those of expert parallelism."""


# ---- policies

# ruff: noqa: E501  (one row a rule: a table is read across)


_BLOCK = "tokens per block; experts with more are split, the remainder joins the last block"
RULES: Mapping[str, Mapping[str, Rule]] = {
    "placement": {
        "linear": Rule("⌊E/D⌋ experts per die in order of id, the rest one each; the same in every layer"),
        "balanced": Rule("expert e on die ⌊e·D/E⌋: contiguous, and die counts differ by at most one"),
        "padded": Rule("as balanced, and every die has ⌈E/D⌉ slots in every layer, of which those over are empty"),
        **PLACEMENT,
    },
    "allocation": {
        "first_seen": Rule("experts in order of first appearance in the demand, the i-th on die (i + offset) mod D", {
            "offset": Parameter(7, 0, 1e6, "die of the first expert"),
        }),
        "home": Rule("every expert on its home die (expert parallelism)"),
        "isca26": Rule("published simulator: a block goes where the larger of the executor's and the data source's time grows least", {
            "block_tokens": Parameter(512, 1, 1e9, _BLOCK),
            "candidates": Parameter(5, 1, 4096, "minimum number of dies considered: holders of the expert and neighbours of its home"),
            **_NEEDS,
        }),
        "paper": Rule("paper's text: blocks of an expert go to the least loaded die near a holder", {
            "block_tokens": Parameter(50, 1, 1e9, _BLOCK),
            "distance": Parameter(1, 0, 126, "most hops from a holder at which another die may run the expert"),
            **_NEEDS,
        }),
        "copy_aware": Rule("blocks of an expert go to dies that hold it or a copy; to another only if those finish late", {
            "block_tokens": Parameter(128, 1, 1e9, _BLOCK),
            "slack": Parameter(0.05, 0, 100, "how much later than the mean die a holder may finish", float),
            **_NEEDS,
        }),
        "lp": Rule("shares of experts by linear programming, rounded; shows the remaining gain and its cost", _NEEDS),
        **ALLOCATION,
    },
    "prediction": {
        "none": Rule("no copies"),
        "heatmap": Rule("experts that most often followed those that a die runs now; give top_fraction or top_n", {
            "top_fraction": Parameter(0.2, 1e-6, 1, "share of experts per row of the heatmap", float),
            "top_n": Parameter(None, 1, 32767, "number of experts per row of the heatmap"),
            "admission": NamedChoice(None, ("reread",), "which predicted experts are copied; reread: those that save a read for their write before they are evicted; all, if not given"),
        }),
    },
    "rebalancing": {"none": Rule("experts stay where the placement put them"), **REBALANCING},
    "routing": ROUTING,
    "replication": REPLICATION,
    "shared": SHARED,
}  # fmt: skip
RULE_TYPES = tuple(RULES)
# Parameter of a user's own rebalancing that the loop consumes: iterations between two calls.
EVERY_STEPS = "every_steps"
# How many arguments a user's own function of each kind gets by position; parameters that the loop takes before it.
_ARGUMENTS = MappingProxyType(
    {"placement": 2, "allocation": 1, "prediction": 3, "rebalancing": 2, "routing": 1, "replication": 1, "shared": 2}
)
NEEDS = "needs"  # parameter of a rule, also of a user's own: what it is given beside loads
_CONSUMED = MappingProxyType(
    {
        "allocation": (NEEDS,),
        "rebalancing": (EVERY_STEPS, NEEDS),
        "routing": ("pass_tokens",),
        "replication": ("slots",),
    }
)
PATHS = ("path_length", "sample_tokens")  # parameters of replication by paths that the demand consumes
_USE_ORIGINS = ("nearest", "static", "libra", "harmoeny")  # allocations that ask where tokens live
_EXCLUSIVE = ("top_fraction", "top_n")

NEUTRAL: Mapping[str, str] = {
    "placement": "linear", "allocation": "home", "prediction": "none", "rebalancing": "none", "routing": "as_chosen",
    "replication": "none", "shared": "local",
}  # fmt: skip
"""The rule of each part that a preset leaves out: expert parallelism."""

_PRESETS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "base",
        "baseline of the paper: dies take experts in order of appearance, wherever their weights are",
        {"allocation": "first_seen"},
    ),
    ("ep", "expert parallelism: every expert runs on its home die", {}),
    (
        "allo",
        "allocation of the paper: blocks of tokens go to holders or neighbours that finish earliest (its code)",
        {"allocation": "isca26"},
    ),
    ("allo-paper", "allocation as the paper's text has it", {"allocation": "paper"}),
    ("allo-lp", "allocation by linear programming", {"allocation": "lp"}),
    (
        "pred",
        "base, and dies keep copies of experts that a heatmap predicts to follow",
        {"allocation": "first_seen", "prediction": "heatmap"},
    ),
    ("allo+pred", "allo, with the copies of pred", {"allocation": "isca26", "prediction": "heatmap"}),
    *BALANCER_PRESETS,
)
PRESETS: Mapping[str, Mapping[str, Any]] = {name: {**NEUTRAL, **parts} for name, _, parts in _PRESETS}
PRESET_MEANINGS: Mapping[str, str] = {name: meaning for name, meaning, _ in _PRESETS}


class RuleSpec(Spec):
    """A rule by name, with all its parameters. In YAML: a name, or ``{name: ..., parameter: value, ...}``."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, dict) and (info.context or "params" not in given):
            named = {"name": given["name"]} if "name" in given else {}
            return named | {"params": {key: value for key, value in given.items() if key != "name"}}
        return given

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.params}

    @property
    def is_function(self) -> bool:
        """Whether the rule is a user's own ``package.module:function``."""
        return ":" in self.name


class PolicySpec(Spec):
    """A policy: where experts live, which die runs which of their tokens, which copies are made, when experts move,
    which of the router's choices are executed, what is replicated for one layer, and where shared experts run.
    """

    name: Name
    placement: RuleSpec = RuleSpec(name="linear")
    allocation: RuleSpec
    prediction: RuleSpec = RuleSpec(name="none")
    rebalancing: RuleSpec = RuleSpec(name="none")
    routing: RuleSpec = RuleSpec(name="as_chosen")
    replication: RuleSpec = RuleSpec(name="none")
    shared: RuleSpec = RuleSpec(name="local")

    @property
    def needs_origins(self) -> bool:
        """Whether a rule asks where tokens live; a user's own does not have them unless an assumption does."""
        return self.allocation.name in _USE_ORIGINS or self.replication.name == "libra" or self.shared.name != "local"

    def needs_speeds(self, part: str) -> bool:
        """Whether the rule of a part asks for the speeds of dies and links."""
        return getattr(self, part).params.get(NEEDS) == "speeds"

    @property
    def predicts(self) -> bool:
        """Whether it predicts experts, for which dies keep cached copies."""
        return self.prediction.name != NEUTRAL["prediction"]

    @property
    def moves_experts(self) -> bool:
        """Whether weights move between steps: by rebalancing, or as replicas for one layer."""
        return any(getattr(self, part).name != NEUTRAL[part] for part in ("rebalancing", "replication"))

    @property
    def shapes_demand(self) -> bool:
        """Whether the demand depends on the policy: pairs that are not executed, or loads predicted from paths."""
        return self.routing.name != NEUTRAL["routing"] or self.replication.name == "lina"

    @field_validator(*RULE_TYPES)
    @classmethod
    def _known_rule(cls, rule: RuleSpec, info: ValidationInfo) -> RuleSpec:
        rule_type = str(info.field_name)
        if rule.is_function:
            if info.context:
                _check_function(rule_type, rule)
            every = rule.params.get(EVERY_STEPS)
            if rule_type == "rebalancing" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
                raise KeyProblem(
                    (EVERY_STEPS,),
                    f"expected the number of iterations between two calls, 1 or more, not {describe(every)}",
                )
            if NEEDS in rule.params and rule_type in ("allocation", "rebalancing"):
                try:
                    _NEEDS[NEEDS].read(rule.params[NEEDS])
                except ValueError as error:
                    raise KeyProblem((NEEDS,), str(error)) from None
            return rule
        rules = RULES[rule_type]
        if rule.name not in rules:
            raise KeyProblem(
                ("name",),
                f"unknown {rule_type} {rule.name!r}{did_you_mean(rule.name, rules)} "
                f"(known: {', '.join(rules)}; or your own function as package.module:function)",
            )
        return rule.model_copy(update={"params": _complete(rules[rule.name], rule.params)})


def _check_function(rule_type: str, rule: RuleSpec) -> None:
    try:
        function = import_function(rule.name)
    except ValueError as error:
        raise KeyProblem(("name",), str(error)) from None
    consumed = _CONSUMED.get(rule_type, ())
    arguments = arguments_of(rule_type, function, rule.params)
    check_parameters(rule.name, function, arguments, {key for key in rule.params if key not in consumed})


def arguments_of(rule_type: str, function: Callable[..., Any], params: Mapping[str, Any]) -> int:
    """How many arguments a user's own function gets by position. A prediction with one gets what is seen of a layer,
    and with three the heatmap of all layers.
    """
    if rule_type == "prediction":
        with suppress(TypeError, ValueError):  # of a function without Python code
            parameters = inspect.signature(function).parameters.values()
            needed = [each for each in parameters if each.default is each.empty and each.name not in params]
            if [each.kind for each in needed] in (
                [inspect.Parameter.POSITIONAL_ONLY],
                [inspect.Parameter.POSITIONAL_OR_KEYWORD],
            ):
                return 1
    return _ARGUMENTS[rule_type]


def _complete(rule: Rule, given: dict[str, Any]) -> dict[str, int | float | str]:
    """The given parameters, checked, with defaults for the others."""
    for key in given:
        if key not in rule.parameters:
            raise KeyProblem((key,), f"unknown parameter{did_you_mean(key, rule.parameters)}")
    if all(key in given for key in _EXCLUSIVE):
        raise KeyProblem((_EXCLUSIVE[1],), f"give either {_EXCLUSIVE[0]} or {_EXCLUSIVE[1]}, not both")
    complete: dict[str, int | float | str] = {}
    for key, parameter in rule.parameters.items():
        if key in given:
            try:
                complete[key] = parameter.read(given[key])
            except ValueError as error:
                raise KeyProblem((key,), str(error)) from None
        elif parameter.default is not None and not (key in _EXCLUSIVE and any(other in given for other in _EXCLUSIVE)):
            complete[key] = parameter.default
    return complete


def check_parameters(target: str, function: Callable[..., Any], arguments: int, given: Iterable[str]) -> None:
    """Raise KeyProblem for a parameter that a user's function does not have, or needs and does not get.

    arguments: how many it gets by position.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a function without Python code
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    by_position = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    known = [each.name for each in by_name if each not in by_position[:arguments]]
    for key in given:
        if key not in known:
            listed = f"; it has {', '.join(known)}" if known else "; it has none"
            raise KeyProblem((key,), f"unknown parameter of {target}{did_you_mean(key, known) or listed}")
    for each in by_name:
        if each.name in known and each.default is each.empty and each.name not in given:
            raise KeyProblem(("name",), f"{target} needs a parameter {each.name!r}")

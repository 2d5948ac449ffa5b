"""Policies: each part (placement, allocation, prediction, rebalancing, routing, replication, shared) a named rule with
parameters.

A rule is one of the names below, or a user's own function ``package.module:function``, which gets the parameters as
given. :data:`PRESETS` names the five policies of the published simulator, allocation as the paper's text describes
it, a linear programme, and the published balancers.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base import errors, fields, own_code, quantities
from archsim.base.fields import check_parameters
from archsim.specs import balancer_presets, balancers
from archsim.specs.rules import NamedChoice, Parameter, Rule

# ruff: noqa: E501  (one row a rule: a table is read across)


# ruff: noqa: E501  (one row a rule: a table is read across)


_BLOCK = "tokens per block; experts with more are split, the remainder joins the last block"
RULES: Mapping[str, Mapping[str, Rule]] = {
    "placement": {
        "linear": Rule("⌊E/D⌋ experts per die in order of id, the rest one each; the same in every layer"),
        "balanced": Rule("expert e on die ⌊e·D/E⌋: contiguous, and die counts differ by at most one"),
        "padded": Rule("as balanced, and every die has ⌈E/D⌉ slots in every layer, of which those over are empty"),
        **balancers.PLACEMENT,
    },
    "allocation": {
        "first_seen": Rule("experts in order of first appearance in the demand, the i-th on die (i + offset) mod D", {
            "offset": Parameter(7, 0, 1e6, "die of the first expert"),
        }),
        "home": Rule("every expert on its home die (expert parallelism)"),
        "isca26": Rule("published simulator: a block goes where the larger of the executor's and the data source's time grows least", {
            "block_tokens": Parameter(512, 1, 1e9, _BLOCK),
            "candidates": Parameter(5, 1, 4096, "minimum number of dies considered: holders of the expert and neighbours of its home"),
            **balancers.NEEDS_SPEEDS,
        }),
        "paper": Rule("paper's text: blocks of an expert go to the least loaded die near a holder", {
            "block_tokens": Parameter(50, 1, 1e9, _BLOCK),
            "distance": Parameter(1, 0, 126, "most hops from a holder at which another die may run the expert"),
            "max_split_num": Parameter(None, 1, 4096, "dies kept of these, the least loaded; blocks: one for each block; all, if not given", words=("blocks",)),
            **balancers.NEEDS_SPEEDS,
        }),
        "copy_aware": Rule("blocks of an expert go to dies that hold it or a copy; to another only if those finish late", {
            "block_tokens": Parameter(128, 1, 1e9, _BLOCK),
            "slack": Parameter(0.05, 0, 100, "how much later than the mean die a holder may finish", float),
            **balancers.NEEDS_SPEEDS,
        }),
        "lp": Rule("shares of experts by linear programming, rounded; shows the remaining gain and its cost", balancers.NEEDS_SPEEDS),
        **balancers.ALLOCATION,
    },
    "prediction": {
        "none": Rule("no copies"),
        "heatmap": Rule("experts that most often followed those that a die runs now; give top_fraction or top_n", {
            "top_fraction": Parameter(0.2, 1e-6, 1, "share of experts per row of the heatmap", float),
            "top_n": Parameter(None, 1, 32767, "number of experts per row of the heatmap"),
            "admission": NamedChoice(None, ("reread",), "which predicted experts are copied; reread: those that save a read for their write before they are evicted; all, if not given"),
        }),
    },
    "rebalancing": {"none": Rule("experts stay where the placement put them"), **balancers.REBALANCING},
    "routing": balancers.ROUTING,
    "replication": balancers.REPLICATION,
    "shared": balancers.SHARED,
}  # fmt: skip
RULE_TYPES = tuple(RULES)
# Parameter of a user's own rebalancing that the loop consumes: iterations between two calls.
EVERY_STEPS = "every_steps"
# How many arguments a user's own function of each kind gets by position; parameters that the loop takes before it.
_ARGUMENTS = MappingProxyType(
    {"placement": 2, "allocation": 1, "prediction": 3, "rebalancing": 2, "routing": 1, "replication": 1, "shared": 2}
)
# What a user's own rule may ask for beside loads; one of them, or a list.
_OWN_NEEDS = NamedChoice(None, ("speeds", "routing"), "what it is given beside loads")
NEEDS = "needs"  # parameter of a rule, also of a user's own: what it is given beside loads
_CONSUMED = MappingProxyType(
    {
        "allocation": (NEEDS,),
        "rebalancing": (EVERY_STEPS, NEEDS),
        "routing": ("pass_tokens",),
        "replication": ("slots",),
    }
)
PHASE = "phase"  # parameter of a rule that acts in prompts alone, or in decode
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
    *balancer_presets.BALANCER_PRESETS,
)
PRESETS: Mapping[str, Mapping[str, Any]] = {name: {**NEUTRAL, **parts} for name, _, parts in _PRESETS}
PRESET_MEANINGS: Mapping[str, str] = {name: meaning for name, meaning, _ in _PRESETS}


class RuleSpec(fields.Spec):
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


class PolicySpec(fields.Spec):
    """A policy: where experts live, which die runs which of their tokens, which copies are made, when experts move,
    which of the router's choices are executed, what is replicated for one layer, and where shared experts run.
    """

    name: fields.Name  # of the policy
    placement: RuleSpec = RuleSpec(name="linear")  # where experts live
    allocation: RuleSpec  # which die runs which of their tokens
    prediction: RuleSpec = RuleSpec(name="none")  # which copies are made
    rebalancing: RuleSpec = RuleSpec(name="none")  # when experts move
    routing: RuleSpec = RuleSpec(name="as_chosen")  # which of the router's choices are executed
    replication: RuleSpec = RuleSpec(name="none")  # what is replicated for one layer
    shared: RuleSpec = RuleSpec(name="local")  # where shared experts run

    @property
    def needs_origins(self) -> bool:
        """Whether a rule asks where tokens live; a user's own does not have them unless an assumption does."""
        return self.allocation.name in _USE_ORIGINS or self.replication.name == "libra" or self.shared.name != "local"

    def needs_speeds(self, part: str) -> bool:
        """Whether the rule of a part asks for the speeds of dies and links."""
        return "speeds" in self._needs(part)

    def needs_routing(self, part: str) -> bool:
        """Whether the rule of a part asks for single tokens (`archsim.policies.seen_routing`)."""
        return "routing" in self._needs(part)

    @property
    def sees_routing(self) -> bool:
        """Whether any rule does: a run's demand keeps single tokens for it."""
        return any(self.needs_routing(part) for part in ("allocation", "rebalancing"))

    def _needs(self, part: str) -> tuple[str, ...]:
        given = getattr(self, part).params.get(NEEDS) or ()
        return (given,) if isinstance(given, str) else tuple(given)

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
                raise fields.KeyProblem(
                    (EVERY_STEPS,),
                    f"expected the number of iterations between two calls, 1 or more, not {quantities.describe(every)}",
                )
            if NEEDS in rule.params and rule_type in ("allocation", "rebalancing"):
                asked = rule.params[NEEDS]
                for each in asked if isinstance(asked, list | tuple) else [asked]:
                    try:
                        _OWN_NEEDS.read(each)
                    except ValueError as error:
                        raise fields.KeyProblem((NEEDS,), str(error)) from None
            return rule
        rules = RULES[rule_type]
        if rule.name not in rules:
            raise fields.KeyProblem(
                ("name",),
                f"unknown {rule_type} {rule.name!r}{errors.did_you_mean(rule.name, rules)} "
                f"(known: {', '.join(rules)}; or your own function as package.module:function)",
            )
        return rule.model_copy(update={"params": _complete(rules[rule.name], rule.params)})


def _check_function(rule_type: str, rule: RuleSpec) -> None:
    try:
        function = own_code.import_function(rule.name)
    except ValueError as error:
        raise fields.KeyProblem(("name",), str(error)) from None
    consumed = _CONSUMED.get(rule_type, ())
    arguments = arguments_of(rule_type, function, rule.params)
    check_parameters(rule.name, function, arguments, {key for key in rule.params if key not in consumed})


def arguments_of(rule_type: str, function: Callable[..., Any], params: Mapping[str, Any]) -> int:
    """How many arguments a user's function gets by position. A prediction with one gets what is seen of a layer, with
    three the heatmap of all layers.
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
    for key in given:
        if key not in rule.parameters:
            raise fields.KeyProblem((key,), f"unknown parameter{errors.did_you_mean(key, rule.parameters)}")
    if all(key in given for key in _EXCLUSIVE):
        raise fields.KeyProblem((_EXCLUSIVE[1],), f"give either {_EXCLUSIVE[0]} or {_EXCLUSIVE[1]}, not both")
    complete: dict[str, int | float | str] = {}
    for key, parameter in rule.parameters.items():
        if key in given:
            try:
                complete[key] = parameter.read(given[key])
            except ValueError as error:
                raise fields.KeyProblem((key,), str(error)) from None
        elif parameter.default is not None and not (key in _EXCLUSIVE and any(other in given for other in _EXCLUSIVE)):
            complete[key] = parameter.default
    return complete

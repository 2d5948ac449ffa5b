"""Policies: placement × allocation × prediction × rebalancing, each a named rule with parameters.

A rule is one of the names below, or a user's own function ``package.module:function``, which gets the parameters as
given. :data:`PRESETS` names the five policies of the published simulator, allocation as the paper's text describes
it, and a linear programme.
"""

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.nearest import did_you_mean
from archsim.specs.text.fields import KeyProblem, Name, Spec
from archsim.specs.text.quantities import FRACTION, describe, parse_quantity


@dataclass(frozen=True)
class Parameter:
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


@dataclass(frozen=True)
class Choice:
    """A parameter of a rule that is itself a named rule; absent unless given. ``values``: name → meaning."""

    values: Mapping[str, str]
    meaning: str
    default: None = None

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.values:
            unknown = f"unknown {value!r}{did_you_mean(value, self.values)}" if isinstance(value, str) else "not a name"
            raise ValueError(f"{unknown} (known: {', '.join(self.values)})")
        return value


@dataclass(frozen=True)
class Rule:
    """A rule shipped with archsim: its meaning and parameters."""

    meaning: str
    parameters: Mapping[str, Parameter | Choice] = field(default_factory=dict)


_BLOCK = "tokens per block; experts with more are split, the remainder joins the last block"
RULES: MappingProxyType[str, MappingProxyType[str, Rule]] = MappingProxyType(
    {
        "placement": MappingProxyType(
            {
                "linear": Rule("⌊E/D⌋ experts per die in order of id, the rest one each; the same in every layer"),
                "balanced": Rule("expert e on die ⌊e·D/E⌋: contiguous, and die counts differ by at most one"),
            }
        ),
        "allocation": MappingProxyType(
            {
                "first_seen": Rule(
                    "experts in order of first appearance in the demand, the i-th on die (i + offset) mod D",
                    MappingProxyType({"offset": Parameter(7, 0, 1e6, "die of the first expert")}),
                ),
                "home": Rule("every expert on its home die (expert parallelism)"),
                "isca26": Rule(
                    "published simulator: a block goes where the larger of the executor's and the data source's time "
                    "grows least",
                    MappingProxyType(
                        {
                            "block_tokens": Parameter(512, 1, 1e9, _BLOCK),
                            "candidates": Parameter(
                                5,
                                1,
                                4096,
                                "minimum number of dies considered: holders of the expert and neighbours of its home",
                            ),
                        }
                    ),
                ),
                "paper": Rule(
                    "paper's text: blocks of an expert go to the least loaded die near a holder",
                    MappingProxyType(
                        {
                            "block_tokens": Parameter(50, 1, 1e9, _BLOCK),
                            "distance": Parameter(
                                1, 0, 126, "most hops from a holder at which another die may run the expert"
                            ),
                        }
                    ),
                ),
                "copy_aware": Rule(
                    "blocks of an expert go to dies that hold it or a copy; to another only if those finish late",
                    MappingProxyType(
                        {
                            "block_tokens": Parameter(128, 1, 1e9, _BLOCK),
                            "slack": Parameter(
                                0.05, 0, 100, "how much later than the mean die a holder may finish", float
                            ),
                        }
                    ),
                ),
                "lp": Rule("shares of experts by linear programming, rounded; shows the remaining gain and its cost"),
            }
        ),
        "prediction": MappingProxyType(
            {
                "none": Rule("no copies"),
                "heatmap": Rule(
                    "experts that most often followed those that a die runs now; give top_fraction or top_n",
                    MappingProxyType(
                        {
                            "top_fraction": Parameter(
                                0.2, 1e-6, 1, "share of experts per row of the heatmap", float
                            ),
                            "top_n": Parameter(None, 1, 32767, "number of experts per row of the heatmap"),
                            "admission": Choice(
                                MappingProxyType({"reread": "expected to be read at least once for every write"}),
                                "which predicted experts are copied; reread: those that save a read for their write "
                                "before they are evicted; all, if not given",
                            ),
                        }
                    ),
                ),
            }
        ),
        "rebalancing": MappingProxyType({"none": Rule("experts stay where the placement put them")}),
    }
)
RULE_TYPES = tuple(RULES)
EVERY_STEPS = (
    "every_steps"  # parameter of a user's own rebalancing that the loop consumes: iterations between two calls
)
_EXCLUSIVE = ("top_fraction", "top_n")

PRESETS: MappingProxyType[str, MappingProxyType[str, Any]] = MappingProxyType(
    {
        name: MappingProxyType(
            {"placement": "linear", "allocation": allocation, "prediction": prediction, "rebalancing": "none"}
        )
        for name, allocation, prediction in (
            ("base", "first_seen", "none"),
            ("ep", "home", "none"),
            ("allo", "isca26", "none"),
            ("allo-paper", "paper", "none"),
            ("allo-lp", "lp", "none"),
            ("pred", "first_seen", "heatmap"),
            ("allo+pred", "isca26", "heatmap"),
        )
    }
)


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
    """A policy: where experts live, which die runs which of their tokens, which copies are made, and when experts
    move.
    """

    name: Name
    placement: RuleSpec = RuleSpec(name="linear")
    allocation: RuleSpec
    prediction: RuleSpec = RuleSpec(name="none")
    rebalancing: RuleSpec = RuleSpec(name="none")

    @field_validator(*RULE_TYPES)
    @classmethod
    def _known_rule(cls, rule: RuleSpec, info: ValidationInfo) -> RuleSpec:
        rule_type = str(info.field_name)
        if rule.is_function:
            if info.context:
                try:
                    import_function(rule.name)
                except ValueError as error:
                    raise KeyProblem(("name",), str(error)) from None
            if rule_type == "rebalancing":
                _check_every_steps(rule.params.get(EVERY_STEPS))
            return rule
        rules = RULES[rule_type]
        if rule.name not in rules:
            raise KeyProblem(
                ("name",),
                f"unknown {rule_type} {rule.name!r}{did_you_mean(rule.name, rules)} "
                f"(known: {', '.join(rules)}; or your own function as package.module:function)",
            )
        return rule.model_copy(update={"params": _complete(rules[rule.name], rule.params)})


def _check_every_steps(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KeyProblem(
            (EVERY_STEPS,), f"expected the number of iterations between two calls, 1 or more, not {describe(value)}"
        )


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


def import_function(target: str) -> Callable[..., Any]:
    """Import the function ``package.module:function``; the current directory is searched, too.

    Raises ValueError that says whether the module or the function is missing.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{target!r} does not name a function; expected package.module:function")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        raise ValueError(f"cannot import module {module_name!r}: {type(error).__name__}: {error}") from None
    function = getattr(module, attribute, None)
    if function is None:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"module {module_name!r} has no function {attribute!r}{did_you_mean(attribute, names)}")
    if not callable(function):
        raise ValueError(f"{target!r} is not a function but {type(function).__name__}")
    return function

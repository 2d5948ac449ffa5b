"""``explore:`` of an experiment with a ``sweep:``: what to optimise over its points.

::

    explore:
      objectives: [throughput, energy, cost]     # or expressions, throughput / area; budgets optimise the first
      where: [throughput >= 20000]               # checked on results; `sweep.where` is checked before anything runs
      budgets: [cost <= 40000, power <= 2000]    # the best design within each is reported, with its YAML
      event_runs: 15 %                           # of the points, or a number of runs; 0: the analytical engine alone
      analytical_runs: 20000                     # at most; a larger space is screened, or optuna chooses which
      samples: 64                                # worlds, for objectives such as throughput.p10
      screened_runs: 1000                        # of a screened space: points near its front that are run whole
      coefficients: {hbm_usd_per_gb: 20}         # for energy, area and price: `archsim hardware cost FILE --sources`
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from archsim.base import errors, fields, quantities
from archsim.specs.constraints import Constraint, parse_constraint, parse_expression

EXPLORE_KEY = "explore"


class Objective(NamedTuple):
    """A column of the results (``archsim.runs.columns``), and its sense: ``max`` or ``min``."""

    column: str
    sense: str


OBJECTIVES: MappingProxyType[str, Objective] = MappingProxyType(
    {
        "throughput": Objective("tokens_per_s", "max"),
        "time": Objective("decode_ns", "min"),
        "energy": Objective("energy_per_token_j", "min"),
        "power": Objective("power_w", "min"),
        "area": Objective("silicon_mm2", "min"),
        "cost": Objective("cost_usd", "min"),
    }
)
_OPPOSITE = {"max": "min", "min": "max"}


class Risk(NamedTuple):
    """An objective over many worlds: a ``quantile`` (0 to 1) of ``name``, or the probability that it is on one side of
    a ``bound``, in its base unit.
    """

    name: str
    quantile: float | None
    above: bool = True
    bound: float = 0.0

    def of(self, values: Any) -> float:
        """The objective's value, from that of ``name`` in every sample, float64[sample]. A probability counts half a
        sample more on either side, so that none of few samples says never.
        """
        import numpy as np

        if self.quantile is not None:
            return float(np.quantile(values, self.quantile))
        kept = np.count_nonzero(values >= self.bound if self.above else values <= self.bound)
        return (kept + 0.5) / (len(values) + 1)


RISKY = ("throughput", "time")  # what is known in every world
_QUANTILE = re.compile(r"(\w+)\.p(\d{1,2})")
_PROBABILITY = re.compile(r"probability\(\s*(\w+)\s*(>=|<=)\s*([0-9.]+(?:e[+-]?\d+)?)\s*\)")


def risk_of(objective: str) -> Risk | None:
    """``throughput.p10`` or ``probability(throughput >= 40000)`` (tokens/s; time in ns); None for other objectives.
    Raises ValueError for one of these whose value is not sampled.
    """
    quantile, probability = _QUANTILE.fullmatch(objective.strip()), _PROBABILITY.fullmatch(objective.strip())
    name = (quantile or probability or {1: None})[1]
    if name is None:
        return None
    if name not in RISKY:
        hint = errors.did_you_mean(name, RISKY)
        raise ValueError(f"objective {objective!r}: {name!r} is not sampled{hint} (sampled: {', '.join(RISKY)})")
    if quantile:
        if not 1 <= int(quantile[2]) <= 99:
            raise ValueError(f"objective {objective!r}: expected a quantile from p1 to p99")
        return Risk(name, int(quantile[2]) / 100)
    assert probability is not None
    return Risk(name, None, probability[2] == ">=", float(probability[3]))


def sense_of(objective: str) -> str:
    """``max`` or ``min`` of a name of OBJECTIVES, an expression of them, or a risk (`risk_of`). Raises ValueError for
    unknown names, and where parts of an expression disagree, as in ``throughput * area``.
    """
    if objective in OBJECTIVES:
        return OBJECTIVES[objective].sense
    if (risk := risk_of(objective)) is not None:
        return OBJECTIVES[risk.name].sense if risk.quantile is not None else "max"
    try:
        found = parse_expression(objective)
    except ValueError as error:
        raise ValueError(f"unknown objective {objective!r}{_near(objective)}: {error}") from None
    for name in found.names:
        if name not in OBJECTIVES:
            raise ValueError(f"unknown objective {name!r}{_near(name)}")
    sense = _sense(found.tree, objective)
    if sense is None:
        raise ValueError(f"objective {objective!r} names no result{_near('')}")
    return sense


def with_expressions(values: Mapping[str, float], objectives: Iterable[str], slower: Any = None) -> dict[str, float]:
    """The values of OBJECTIVES, and of those objectives that are expressions of them, or risks. ``slower``:
    float64[sample], by what the time of each world is longer; None where it is not known, where a risk has the value of
    what it is a risk of, or 1 over it, so that better is better.
    """
    found: dict[str, float] = dict(values)
    for name in objectives:
        risk = risk_of(name) if name not in OBJECTIVES else None
        if risk is None:
            if name not in OBJECTIVES:
                found[name] = parse_expression(name).value(values.get)
        elif slower is not None:
            found[name] = risk.of(values[risk.name] * slower if risk.name == "time" else values[risk.name] / slower)
        else:
            value = values[risk.name]
            found[name] = value if risk.quantile is not None or risk.above else 1 / value
    return found


def _near(name: str) -> str:
    known = f"known: {', '.join(OBJECTIVES)}, and expressions such as throughput / area"
    return f"{errors.did_you_mean(name, OBJECTIVES)} ({known})"


def _sense(tree: tuple, text: str) -> str | None:
    """Of a tree of ``parse_expression``; None of numbers."""
    kind, *parts = tree
    if kind == "name":
        return OBJECTIVES[parts[0]].sense
    if kind in ("number", "text"):
        return None
    left, right = (_sense(part, text) for part in parts)
    if kind in ("-", "/") and right:
        right = _OPPOSITE[right]
    if left and right and left != right:
        raise ValueError(f"objective {text!r}: more of one part is better and of the other worse; neither is optimised")
    return left or right


_MOST_RUNS = 1_000_000


def _read_constraint(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"expected a constraint such as 'cost <= 40000', not {quantities.describe(text)}")
    for name in parse_constraint(text).names:
        if name not in OBJECTIVES:
            raise ValueError(
                f"unknown result {name!r}{errors.did_you_mean(name, OBJECTIVES)} (known: {', '.join(OBJECTIVES)})"
            )
    return text


class ExploreSpec(fields.Spec):
    """What ``archsim sweep --search`` optimises."""

    objectives: tuple[str, ...] = Field(min_length=1, max_length=4)  # measures or expressions to optimise
    where: tuple[str, ...] = ()  # constraints on results
    budgets: tuple[str, ...] = ()  # limits; the best design within each is reported
    # Maximum runs of the event engine: a share of the points, or a number.
    event_runs: float | int = 0.15
    # Maximum runs of the analytical engine; of more points, a screen or optuna decides. Twenty thousand take minutes.
    analytical_runs: Annotated[int, quantities.count(1, _MOST_RUNS)] = 20_000
    # Points of a screened space, on and nearest to its front, that the analytical engine runs whole.
    screened_runs: Annotated[int, quantities.count(1, _MOST_RUNS)] = 1000
    # Worlds in which an objective such as throughput.p10 is found (`archsim sure`), and how many designs are drawn.
    samples: Annotated[int, quantities.count(16, 4096)] = 64
    drawn_designs: Annotated[int, quantities.count(1, 10_000)] = 64  # designs that are drawn
    coefficients: dict[str, float] = Field(default_factory=dict)  # of energy, area and price
    seed: Annotated[int, quantities.count(0, 2**31)] = 0  # of the draws

    @field_validator("objectives")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for place, name in enumerate(names):
            try:
                sense_of(name)
            except ValueError as error:
                raise fields.KeyProblem((place,), str(error)) from None
        fields.refuse_duplicates("objective", list(names))
        return names

    @field_validator("where", "budgets", mode="before")
    @classmethod
    def _readable(cls, texts: Any) -> Any:
        if not isinstance(texts, list | tuple):
            raise ValueError(f"expected a list of constraints, not {quantities.describe(texts)}")
        for place, text in enumerate(texts):
            try:
                _read_constraint(text)
            except ValueError as error:
                raise fields.KeyProblem((place,), str(error)) from None
        return texts

    @field_validator("event_runs", mode="before")
    @classmethod
    def _share_or_number(cls, value: Any) -> float | int:
        expected = "expected a share of the points such as 15 %, or a number of runs"
        if isinstance(value, str) and value.strip().endswith("%"):
            try:
                value = float(value.strip()[:-1] if value.isascii() else "") / 100
            except ValueError:
                raise ValueError(f"{expected}, not {quantities.describe(value)}") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{expected}, not {quantities.describe(value)}")
        if isinstance(value, float) and not 0 < value <= 1:
            raise ValueError(f"{value!r}: a share must be above 0 and at most 1; {expected}")
        if isinstance(value, int) and not 0 <= value <= _MOST_RUNS:
            raise ValueError(f"{value!r}: {expected}")
        return value

    def most_runs(self, points: int) -> int:
        """The maximum number of event runs for this many points; of a share at least 1."""
        return self.event_runs if isinstance(self.event_runs, int) else max(1, round(self.event_runs * points))

    @property
    def senses(self) -> tuple[str, ...]:
        return tuple(map(sense_of, self.objectives))

    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(map(parse_constraint, self.where))

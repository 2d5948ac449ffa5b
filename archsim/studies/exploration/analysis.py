"""The result of an exploration: every point with its values, the engine behind them, and its bottleneck."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base import causes, quantities, sums, tables
from archsim.report.units import between, plain, signed_percent
from archsim.runs.notes import die_of, result_notes
from archsim.runs.results import Layers, layers_that_ran
from archsim.specs.constraints import parse_constraint
from archsim.specs.explore import OBJECTIVES, ExploreSpec, sense_of
from archsim.specs.model import ModelSpec
from archsim.specs.plan import Point, SweepPlan
from archsim.specs.unread import keys_of

if TYPE_CHECKING:
    import pandas


# ---- outcome


@dataclass(frozen=True)
class Candidate:
    """A point. index: in the sweep; axes: path → value as written, model, policy, … included if they differ.

    values: of every objective of ``OBJECTIVES``, by the engine named; cheap: by the analytical engine; limit: the
    bottleneck and its share of the critical path; band: of throughput, from the calibration's residuals, or None;
    ranges: of energy and power, objective → with all its coefficients low and high. model: designs of different models
    are on different fronts.
    """

    index: int
    axes: Mapping[str, str]
    values: Mapping[str, float]
    cheap: Mapping[str, float]
    engine: str
    front: bool
    allowed: bool
    limit: tuple[str, float]
    band: tuple[float, float] | None
    run: str
    model: str = ""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exploration(tables.Shown):
    """``points`` in the order of the sweep; ``stable``: no other point could be on the front given the observed errors.

    ``notes``: caveats of the calibrations behind them; ``layers``: which ran, see
    `archsim.runs.results.layers_that_ran`.
    """

    name: str
    spec: ExploreSpec
    points: tuple[Candidate, ...]
    combinations: int
    dropped: Mapping[str, int]
    budget: int
    stable: bool
    failures: tuple[str, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    layers: Mapping[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        ran = f"{len(self.known)} of {len(self.points):,} points on the event engine"
        return f"Exploration({self.name!r}, {len(self.front)} Pareto-optimal; {ran})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per point, in the order of the sweep.

        Columns: point, one column per axis (as written), every objective of `OBJECTIVES` by the engine named in
        ``engine`` (throughput in tokens/s, time in ns, energy in J/token, power in W, area in mm², cost in USD),
        front, allowed, limit (the bottleneck), limit_share, run.
        """
        import pandas

        rows = [
            {"point": each.index, **each.axes, **each.values, "engine": each.engine, "front": each.front}
            | {"allowed": each.allowed, "limit": each.limit[0], "limit_share": each.limit[1], "run": each.run}
            for each in self.points
        ]
        return pandas.DataFrame(rows)

    @cached_property
    def front(self) -> tuple[Candidate, ...]:
        """The Pareto-optimal points, by model, the best by the first objective first."""
        first, sense = self.spec.objectives[0], self.spec.senses[0]
        sign, place = -1 if sense == "max" else 1, {model: at for at, model in enumerate(self.models)}
        members = [point for point in self.points if point.front]
        return tuple(sorted(members, key=lambda point: (place[point.model], sign * point.values[first])))

    @cached_property
    def known(self) -> tuple[Candidate, ...]:
        """The points that the event engine ran."""
        return tuple(point for point in self.points if point.engine == "event")

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.points[0].axes) if self.points else ()

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names, in the order of the points."""
        return tuple(dict.fromkeys(point.model for point in self.points))

    def best(self, text: str | None, objective: str, model: str | None = None) -> Candidate | None:
        """The best known design by an objective, within a budget and of a model if one is given; of all points, by the
        analytical engine, where the event engine ran none of them.
        """
        budget = parse_constraint(text) if text else None
        sense = sense_of(objective)
        own = [point for point in self.points if model is None or point.model == model]
        inside = [
            point for point in [each for each in own if each.engine == "event"] or own
            if point.allowed and (budget is None or budget.holds(point.values.get))
            and np.isfinite(point.values[objective])
        ]  # fmt: skip
        return (max if sense == "max" else min)(inside, key=lambda point: point.values[objective], default=None)

    def errors(self, objective: str) -> np.ndarray:
        """Event over analytical value, less one, for every point that both engines ran: float64[point]."""
        ratios = [
            point.values[objective] / point.cheap[objective] - 1 for point in self.known if point.cheap[objective]
        ]
        return np.array([ratio for ratio in ratios if np.isfinite(ratio)])


def without_constants(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop axes with a single value, and axes that repeat another."""
    columns: dict[tuple[str, ...], str] = {}
    for axis in candidates[0].axes if candidates else ():
        values = tuple(each.axes[axis] for each in candidates)
        if len(set(values)) > 1:
            columns.setdefault(values, axis)
    kept = list(columns.values())
    return [replace(each, axes={axis: each.axes[axis] for axis in kept}) for each in candidates]


def limit_of(row: Mapping[str, Any]) -> tuple[str, float]:
    """The label of a run's bottleneck, and its share of the critical path."""
    name = row["bounded_by"]
    return (causes.label_of(name), row[f"bound_{name}"]) if name else ("–", 0.0)


def objectives_of(model: ModelSpec, row: Mapping[str, Any]) -> dict[str, float]:
    """Every objective of a run, NaN if it has none.

    All are for all MoE layers of the model, as throughput and energy per token are, so that throughput times energy is
    power. If fewer layers ran, the time of decode is for those, and is divided by their share.
    """
    values = {name: np.nan if row[column] is None else 1.0 * row[column] for name, (column, _) in OBJECTIVES.items()}
    return values | {"time": values["time"] / _share(model, row)}


def _share(model: ModelSpec, row: Mapping[str, Any]) -> float:
    """MoE layers that ran over those of the model; 1 in rows of older versions, which lack the column."""
    every = len(model.moe_layer_ids)
    return (row.get("layers") or every) / every


def band_of(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Throughput of all MoE layers at the ends of the calibration's interval."""
    low, high, rate = row.get("decode_ns_low"), row.get("decode_ns_high"), row.get("tokens_per_s")
    if not low or not high or not rate:
        return None
    return rate * row["decode_ns"] / high, rate * row["decode_ns"] / low


def ranges_of(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Objectives that have a range in a row of results, energy and power: low and high."""
    ends = {name: (row.get(f"{column}_low"), row.get(f"{column}_high")) for name, (column, _) in OBJECTIVES.items()}
    return {name: (low, high) for name, (low, high) in ends.items() if low is not None and high is not None}


# ---- answers
# What was asked, and the design that answers it; designs that have the same values, and what differs among them.

DIGITS = 9  # of values that are the same


@dataclass(frozen=True)
class EqualDesigns:
    """Designs of one model with the same value of every objective. ``point``: the first of them; ``axes``: those in
    which the others differ from it, which matter to no objective.
    """

    point: Candidate
    others: tuple[Candidate, ...]
    axes: tuple[str, ...]

    @property
    def told(self) -> str:
        """``points 8, 12 (llc.capacity)``; empty for a design without equal ones."""
        if not self.others:
            return ""
        numbers = ", ".join(str(each.index) for each in self.others[:6]) + (", …" if len(self.others) > 6 else "")
        return f"{'point' if len(self.others) == 1 else 'points'} {numbers} ({', '.join(self.axes)})"


def collapsed(points: Sequence[Candidate], objectives: Sequence[str]) -> list[EqualDesigns]:
    """The points, those with the same values as one; in the order of their first."""
    groups: dict[tuple, list[Candidate]] = {}
    for point in points:
        values = tuple(f"{point.values[name]:.{DIGITS}g}" for name in objectives)
        groups.setdefault((point.model, *values), []).append(point)
    return [_alike(group) for group in groups.values()]


def collapse_told(points: Sequence[Candidate], objectives: Sequence[str]) -> str:
    """How many distinct designs these are, and which axes change none of them; empty if all are distinct."""
    groups = collapsed(points, objectives)
    several = [group for group in groups if group.others]
    if not several:
        return ""
    axes = list(dict.fromkeys(axis for group in several for axis in group.axes))
    return (
        f"{len(points)} designs on the front have {len(groups)} different values: the others differ in "
        f"{', '.join(axes)}, which changes nothing there. They are listed with the first of each"
    )


def wanted(found: Exploration) -> dict[str, Candidate]:
    """Heading → design: within each budget the best by the first objective, then the best by every objective; with
    several models, of each.
    """
    first = found.spec.objectives[0]
    named: dict[str, Candidate | None] = {}
    for model in found.models:
        of = f", {model}" if len(found.models) > 1 else ""
        named |= {f"{budget_of(first, text)}{of}": found.best(text, first, model) for text in found.spec.budgets}
        named |= {f"best {name}{of}": found.best(None, name, model) for name in found.spec.objectives}
    return {heading: point for heading, point in named.items() if point is not None}


def budget_of(objective: str, text: str) -> str:
    """The heading of the best design within a budget."""
    return f"best {objective} with {text}"


def _alike(group: Sequence[Candidate]) -> EqualDesigns:
    first, *others = group
    differing = tuple(axis for axis in first.axes if any(each.axes[axis] != first.axes[axis] for each in others))
    return EqualDesigns(first, tuple(others), differing)


# ---- levels
# Levels of an axis, sampled values in bins, and their effect on an objective with its error.

MOST_LEVELS = 12  # more values of an axis, if they are quantities, go into BINS bins of about as many designs each
BINS = 5
MODEL = "model"  # an axis that is no choice: models of different size are not compared


class AxisLevel(NamedTuple):
    """``members``: bool[point]."""

    name: str
    members: np.ndarray


class AxisEffect(NamedTuple):
    """What an axis does to an objective: its level with the lowest geometric mean over that of all points, and the one
    with the highest. ``error``: standard error of their ratio, as a factor less 1; of sampled points it includes what
    the other axes do, which vary beside it; infinite where every level has one design.
    """

    axis: str
    least: str
    below: float
    most: str
    above: float
    error: float

    @property
    def shown(self) -> bool:
        """Whether the effect exceeds twice its error."""
        return self.above / self.below > (1 + self.error) ** 2


def levels_of_axis(points: Sequence[Candidate], axis: str) -> list[AxisLevel]:
    """The levels of an axis, in the order of their values if these are quantities, else in order of appearance."""
    written = np.array([point.axes[axis] for point in points])
    names = list(dict.fromkeys(written.tolist()))
    found = _quantities(names)
    if found is None:
        return [AxisLevel(name, written == name) for name in names]
    values = {name: each.number * each.worth for name, each in found.items()}
    if len(names) <= MOST_LEVELS:
        return [AxisLevel(name, written == name) for name in sorted(names, key=values.__getitem__)]
    numbers = np.array([values[name] for name in written.tolist()])
    edges = np.quantile(numbers, np.linspace(0, 1, BINS + 1))
    at = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, BINS - 1)
    largest = found[max(names, key=values.__getitem__)]
    bins = [(float(low) / largest.worth, float(high) / largest.worth) for low, high in pairwise(edges)]
    labels = [f"{_short(low)} to {_short(high)} {largest.unit}".strip() for low, high in bins]
    return [AxisLevel(label, at == number) for number, label in enumerate(labels) if (at == number).any()]


def effects(points: Sequence[Candidate], objective: str) -> list[AxisEffect]:
    """The effects of every axis whose levels differ, the widest first. With several models, each is relative to its own
    mean.
    """
    logs = np.array([np.log(value) if (value := point.values[objective]) > 0 else np.nan for point in points])
    known = np.isfinite(logs)
    if not known.any():
        return []
    models = np.array([point.model for point in points])
    for model in np.unique(models[known]):
        logs[models == model] -= logs[known & (models == model)].mean()
    found = []
    for axis in [axis for axis in points[0].axes if axis != MODEL]:
        own = {level.name: logs[known & level.members] for level in levels_of_axis(points, axis)}
        own = {name: each for name, each in own.items() if len(each)}
        means = {name: float(each.mean()) for name, each in own.items()}
        least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        if least != most:
            error = np.hypot(_standard_error(own[least], own.values()), _standard_error(own[most], own.values()))
            below, above = (float(np.exp(means[name])) for name in (least, most))
            found.append(AxisEffect(axis, least, below, most, above, float(np.expm1(error))))
    return sorted(found, key=lambda each: each.below / each.above)


def _standard_error(logs: np.ndarray, levels: Iterable[np.ndarray]) -> float:
    """Of the mean of a level. One design has the variance within all ``levels``, infinite if none has two designs."""
    if len(logs) > 1:
        return float(logs.std(ddof=1) / np.sqrt(len(logs)))
    several = [each for each in levels if len(each) > 1]
    if not several:
        return np.inf
    squares, freedom = sums.sum(each.var() * len(each) for each in several), sums.sum(len(each) - 1 for each in several)
    return float(np.sqrt(squares / freedom))


def _quantities(names: Sequence[str]) -> dict[str, quantities.WrittenNumber] | None:
    """Level → what is written there; None unless all are quantities of one dimension."""
    found = {name: each for name in names if (each := quantities.as_written(name.replace(",", ""))) is not None}
    return found if len(found) == len(names) and len({each.dimension.name for each in found.values()}) == 1 else None


def _short(value: float) -> str:
    return plain(float(f"{value:.2g}"))


# ---- break_evens
# Where a step of an axis pays: the next level of it, in designs that are equal otherwise, by yield over price.
#
# A step pays where the first objective gets better by a larger factor than the machine's price grows. All values are
# the analytical engine's, which runs every design. An objective that has area, power or price in it is taken as it is.

PRICED = ("throughput", "time")  # objectives that are held against the price
NOTHING = 1e-3  # gains over price below this share are none
SAID = 3  # axes in the sentence on what matters


class DesignPair(NamedTuple):
    """Two designs that differ in one axis. ``gain``: of the objective; ``price``: of the machine; as shares."""

    before: Candidate
    after: Candidate
    gain: float
    price: float

    @property
    def pays(self) -> bool:
        return (1 + self.gain) / (1 + self.price) - 1 > NOTHING


@dataclass(frozen=True)
class BreakEven:
    """The step of an axis from ``before`` to ``after``; ``told``: where it pays."""

    axis: str
    before: str
    after: str
    told: str
    pairs: tuple[DesignPair, ...]

    @property
    def paying(self) -> int:
        return sums.sum(pair.pays for pair in self.pairs)


def break_evens(found: Exploration) -> list[BreakEven]:
    """The break-evens of every step of every axis for which there are pairs of designs that differ in it alone."""
    first = found.spec.objectives[0]
    said = []
    for axis in [axis for axis in found.axes if axis != MODEL]:
        levels = [level.name for level in levels_of_axis(found.points, axis)]
        if len(levels) <= MOST_LEVELS:
            for before, after in pairwise(levels):
                if pairs := _pairs(found.points, axis, before, after, first):
                    said.append(BreakEven(axis, before, after, _told(pairs, found, axis), tuple(pairs)))
    return said


def what_matters(found: Exploration) -> str:
    """The axes by their effect on the first objective, in words; empty without any."""
    every = effects([point for point in found.points if point.allowed], found.spec.objectives[0])
    if not every:
        return ""
    best = sense_of(found.spec.objectives[0]) == "max"
    parts = [
        f"{each.axis} ({each.above / each.below:.2f}× between {each.least} and {each.most})"
        if best else f"{each.axis} ({each.above / each.below:.2f}× between {each.most} and {each.least})"
        for each in every[:SAID] if each.shown
    ]  # fmt: skip
    small = [each.axis for each in every if each.above / each.below < 1 + 10 * NOTHING]
    nothing = f"; {', '.join(small)} changes less than 1 %" if small else ""
    matters = ", then ".join(parts) or "no axis beyond its error"
    return f"What matters most for {found.spec.objectives[0]}: {matters}{nothing}"


def what_pays(steps: Sequence[BreakEven]) -> str:
    """The steps with a named break-even, then those that pay nowhere, in words; empty without any."""
    named = [step for step in steps if step.told.startswith(("pays above", "pays below", "pays with"))]
    never = [step for step in steps if not step.paying]
    parts = [(each, each.told.partition(" (")[0]) for each in named[:SAID]]
    parts += [(each, "pays nowhere") for each in never[: SAID - len(parts)]]
    return ". ".join(f"Changing {each.axis} from {each.before} to {each.after} {told}" for each, told in parts)


def _pairs(points: Sequence[Candidate], axis: str, before: str, after: str, objective: str) -> list[DesignPair]:
    rest = {(point.model, *_others(point, axis)): point for point in points if point.axes[axis] == before}
    pairs = []
    for point in points:
        other = rest.get((point.model, *_others(point, axis))) if point.axes[axis] == after else None
        old, new = (each.cheap.get(objective, 0.0) if each else 0.0 for each in (other, point))
        if other is not None and old > 0 and new > 0:  # not of failed runs, whose values are NaN
            ratio = new / old if sense_of(objective) == "max" else old / new
            price = point.cheap["cost"] / other.cheap["cost"] - 1 if objective in PRICED else 0.0
            pairs.append(DesignPair(other, point, ratio - 1, price))
    return pairs


def _others(point: Candidate, axis: str) -> Iterator[str]:
    return (level for name, level in point.axes.items() if name != axis)


def _told(pairs: Sequence[DesignPair], found: Exploration, axis: str) -> str:
    """``pays in 27 of 81 pairs of designs: with hbm.bandwidth from 4 TB/s; …``."""
    gains, prices = ([getattr(pair, name) for pair in pairs] for name in ("gain", "price"))
    objective = found.spec.objectives[0]
    name = objective if objective in OBJECTIVES else f"({objective})"
    better = "" if sense_of(objective) == "max" else " better by"
    numbers = f"{name}{better} {_between(gains)}{f' for price {_between(prices)}' if any(prices) else ''}"
    paying = sums.sum(pair.pays for pair in pairs)
    if paying in (0, len(pairs)):
        return f"pays {'everywhere' if paying else 'nowhere'}: {numbers}"
    where = next(
        filter(None, (_threshold(pairs, other, found) for other in found.axes if other not in (axis, MODEL))), ""
    )
    return f"pays {f'{where} ' if where else ''}({paying} of {len(pairs)} pairs of designs): {numbers}"


def _threshold(pairs: Sequence[DesignPair], axis: str, found: Exploration) -> str:
    """``above hbm.bandwidth 2 TB/s``, ``with topology torus``: the level of another axis that parts pairs that pay from
    those that do not; empty if none does.
    """
    levels = [level.name for level in levels_of_axis(found.points, axis)]
    pays = {level: {pair.pays for pair in pairs if pair.before.axes[axis] == level} for level in levels}
    if any(len(each) != 1 for each in pays.values()):
        return ""
    yes = [level for level in levels if True in pays[level]]
    values = list({point.axes[axis] for point in found.points})
    ordered = len(levels) > 2 and _quantities(values) is not None
    if ordered and len(levels) > len(yes) > 0 and yes == levels[-len(yes) :]:
        return f"above {axis} {levels[-len(yes) - 1]}, from {yes[0]}"
    if ordered and len(levels) > len(yes) > 0 and yes == levels[: len(yes)]:
        return f"below {axis} {levels[len(yes)]}, up to {yes[-1]}"
    return f"with {axis} {' or '.join(yes)}" if yes else ""


def _between(shares: Sequence[float]) -> str:
    return between(shares, lambda share: signed_percent(share) if abs(share) >= NOTHING / 10 else "0")


# ---- front
# Pareto fronts and the volume that they dominate. All objectives are minimised; see :func:`as_costs`.

LARGEST_BLOCK = 128  # points compared with all others at once, to bound memory
PIVOTS = 32  # of many points: good ones that are held against all others first


def as_costs(values: np.ndarray, senses: Sequence[str]) -> np.ndarray:
    """``values: float64[point, objective]`` with objectives to maximise negated.

    NaN becomes infinite: never on a front.
    """
    sign = np.array([1.0 if sense == "min" else -1.0 for sense in senses])
    costs = np.asarray(values, np.float64) * sign
    return np.where(np.isnan(costs), np.inf, costs)


def pareto(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal; of equal points, all or none are.

    ``costs: float64[point, objective]``. A point with an infinite cost is never on the front. Takes n log n for up to
    three objectives that differ (Kung, Luccio, Preparata: On Finding the Maxima of a Set of Vectors, JACM 22(4), 1975).
    """
    front = np.zeros(len(costs), bool)
    finite = np.flatnonzero(every_is_finite(costs))
    if not len(finite):
        return front
    own = costs.T[:, finite]
    order = np.lexsort(own[::-1])  # only earlier points can dominate a point
    ranked = own[:, order]
    ranked = ranked[[(each != each[0]).any() for each in ranked]]  # a cost that is equal for all tells none apart
    fresh = np.ones(len(order), bool)
    fresh[1:] = _any(each[1:] != each[:-1] for each in ranked)
    front[finite[order]] = _front_of(ranked[:, fresh])[np.cumsum(fresh) - 1]
    return front


def every_is_finite(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether all costs of a point are finite. ``costs: float64[point, objective]``."""
    return ~_any(~np.isfinite(each) for each in costs.T)


def _any(conditions: Iterable[np.ndarray]) -> Any:
    """bool[point]: whether any condition holds; numpy takes several times as long along a short axis."""
    return reduce(or_, conditions, False)


def _front_of(costs: np.ndarray) -> np.ndarray:
    """bool[point]: `pareto` of points that are all different and ordered by their costs, the first cost first.

    ``costs: float64[objective, point]``.
    """
    objectives, count = costs.shape
    if objectives < 2:
        return np.arange(count) == 0
    front = _sure(costs)
    if objectives == 2 or front.all():
        return front
    left = np.arange(count)
    if count > LARGEST_BLOCK:
        rank = sums.sum(np.argsort(np.argsort(own)) for own in costs)
        for pivot in np.argpartition(rank, PIVOTS)[:PIVOTS]:
            left = left[_any(own[left] < own[pivot] for own in costs) | (left == pivot)]
    front[left[_recursive(costs[:, left])]] = True
    return front


def _sure(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether a cost but the first is below that of all earlier points, which nothing then beats."""
    sure = np.ones(costs.shape[1], bool)
    sure[1:] = _any(own[1:] < np.minimum.accumulate(own)[:-1] for own in costs[1:])
    return sure


def _recursive(costs: np.ndarray) -> np.ndarray:
    """Indices of the front: that of the first half, and of what it leaves of the second half."""
    count = costs.shape[1]
    if count <= LARGEST_BLOCK:
        beaten = np.tri(count, k=-1, dtype=bool)  # by earlier points, if the other costs are not higher
        for own in costs[1:]:
            beaten &= own <= own[:, None]
        return np.flatnonzero(~beaten.any(axis=1))
    half = count // 2
    first = _recursive(costs[:, :half])
    rest = half + np.flatnonzero(~_covered(costs[:, half:], costs[:, first]))
    return np.concatenate([first, rest[_recursive(costs[:, rest])]])


def _covered(costs: np.ndarray, by: np.ndarray) -> np.ndarray:
    """bool[point]: whether any of ``by``, which all precede these points in their order, is nowhere worse."""
    if len(costs) == 3:
        order = np.argsort(by[1], kind="stable")
        least = np.concatenate([[np.inf], np.minimum.accumulate(by[2, order])])
        return least[np.searchsorted(by[1, order], costs[1], side="right")] <= costs[2]
    count, others = costs.shape[1], by.shape[1]
    found = np.zeros(count, bool)
    for begin in range(0, others, LARGEST_BLOCK):
        left = np.flatnonzero(~found)
        theirs = by[1:, begin : begin + LARGEST_BLOCK]
        for at in range(0, len(left), LARGEST_BLOCK):
            own = left[at : at + LARGEST_BLOCK]
            beaten = np.ones((len(own), theirs.shape[1]), bool)
            for mine, other in zip(costs[1:, own], theirs, strict=True):
                beaten &= other <= mine[:, None]
            found[own] = beaten.any(axis=1)
    return found


def fronts(costs: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal among those of its group, such as its model."""
    front, own = np.zeros(len(costs), bool), np.array(groups)
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(own == group)
        front[members] = pareto(costs[members])
    return front


def hypervolume(costs: np.ndarray, reference: np.ndarray) -> float:
    """Volume between a front and ``reference: float64[objective]``, which only counted points dominate.

    Slices along the last objective, recursively: exact, for fronts of up to some hundred points and four objectives.
    While, Hingston, Barone, Huband: A Faster Algorithm for Calculating Hypervolume, IEEE TEVC 10(1), 2006.
    """
    inside = costs[(costs < reference).all(axis=1)]
    return _volume(inside[pareto(inside)], reference) if len(inside) else 0.0


def _volume(costs: np.ndarray, reference: np.ndarray) -> float:
    if costs.shape[1] == 1:
        return float(reference[0] - costs[:, 0].min())
    order = np.argsort(costs[:, -1], kind="stable")
    costs, total = costs[order], 0.0
    ends = np.append(costs[1:, -1], reference[-1])
    for count, depth in enumerate(ends - costs[:, -1], 1):
        if depth > 0:
            slab = costs[:count, :-1]
            total += depth * _volume(slab[pareto(slab)], reference[:-1])
    return total


# ---- sweep_view
# The points of a sweep on one engine, viewed as an exploration: the front by that engine.

SHOWN = ExploreSpec(objectives=("throughput", "energy", "cost"))


def view_of(
    plan: SweepPlan, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int], spec: ExploreSpec = SHOWN
) -> Exploration:
    """``rows``: rows of results.parquet, with ``point``."""
    rows = list(rows)
    at = [plan.point(row["point"]) for row in rows]
    seen = [candidate_of(plan, point, row) for point, row in zip(at, rows, strict=True)]
    values = np.array([[each.values[name] for name in spec.objectives] for each in seen]).reshape(
        len(seen), len(spec.objectives)
    )
    front = fronts(as_costs(values, spec.senses), [each.model for each in seen])
    points = without_constants([replace(each, front=bool(on)) for each, on in zip(seen, front, strict=True)])
    return Exploration(
        name=plan.experiment.name,
        spec=spec,
        points=tuple(points),
        combinations=plan.combinations,
        dropped=dropped,
        budget=0,
        stable=True,
        failures=(),
        assumptions=tuple(each.label for each in plan.experiment.assumptions),
        notes=(*notes_of(at, rows), *(unread := plan.experiment.unread), *idle_axes(plan, at, rows, unread)),
        layers=layers_of(at, rows),
    )


def notes_of(points: Iterable[Point], rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Caveats of the calibrations and batches behind some points; ``rows``: their results."""
    return tuple(result_notes(rows, [(point.system.name, die_of(point.system)) for point in points]))


SAME_NUMBERS = "every run has the same numbers with each of the values"


def idle_axes(
    plan: SweepPlan, points: Sequence[Point], rows: Sequence[Mapping[str, Any]], unread: Sequence[str] = ()
) -> Iterator[str]:
    """A sentence for every axis that changes no number of any run: what is written does something, or the page says
    that it does not. ``rows``: the results of the points; ``unread``: sentences that name axes and say why.
    """
    numbers = [tuple((name, each) for name, each in row.items() if isinstance(each, float)) for row in rows]
    for at, group in enumerate(plan.sweep.groups):
        others = [
            (*point.choice[:at], *point.choice[at + 1 :], row["policy"])
            for point, row in zip(points, rows, strict=True)
        ]
        if changes_nothing(others, numbers):
            names = " and ".join(axis.name for axis in group.axes)
            if {axis.name for axis in group.axes} <= keys_of(unread):
                continue
            yield f"{names} {'have' if ' and ' in names else 'has'} no effect here: {SAME_NUMBERS}"


def changes_nothing(others: Sequence[Hashable], results: Sequence[Hashable]) -> bool:
    """Whether several runs differ in one axis alone, and all such runs have equal results. ``others``: of each run, its
    values of all other axes.
    """
    alike: dict[Hashable, set[Hashable]] = {}
    for key, values in zip(others, results, strict=True):
        alike.setdefault(key, set()).add(values)
    return len(alike) < len(others) and all(len(each) == 1 for each in alike.values())


def layers_of(points: Iterable[Point], rows: Iterable[Mapping[str, Any]]) -> Layers:
    """Which MoE layers of the points' models ran; ``rows``: their results."""
    return layers_that_ran(rows, {point.model.name: len(point.model.moe_layer_ids) for point in points})


def candidate_of(plan: SweepPlan, point: Point, row: Mapping[str, Any]) -> Candidate:
    """A point with the values of its row, by the engine named there; not on a front yet."""
    values = objectives_of(point.model, row)
    return Candidate(
        index=point.index,
        axes=levels_of(plan, point),
        values=values,
        cheap=values,
        engine=row["engine"],
        front=False,
        allowed=True,
        limit=limit_of(row),
        band=band_of(row),
        run=row["run"],
        model=point.variants["model"].name,
        ranges=ranges_of(row),
    )


def levels_of(plan: SweepPlan, point: Point) -> dict[str, str]:
    """What distinguishes a point: the experiment's own lists, then the axes, as written."""
    shown = {kind: point.variants[kind].name for kind in ("model", "system", "policy")}
    shown |= {"batch": f"{point.batch}", "assumptions": point.assumptions.label}
    return shown | plan.shown(point)

"""Where a step of an axis pays: the next level of it in otherwise equal designs improves the first objective by a
larger factor than the price grows, on the analytical engine. An objective with area, power or price counts as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from archsim.base import sums
from archsim.questions.exploration.candidates import Candidate, Exploration
from archsim.questions.exploration.levels import MODEL, MOST_LEVELS, as_quantities, effects, levels_of_axis
from archsim.show.units import between, signed_percent
from archsim.specs.explore import OBJECTIVES, sense_of

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
    """A step of an axis, and where it pays."""

    axis: str  # its path
    before: str  # level
    after: str  # level
    sentence: str  # where it pays
    pairs: tuple[DesignPair, ...]  # designs that differ in this step alone

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
                    said.append(BreakEven(axis, before, after, _sentence(pairs, found, axis), tuple(pairs)))
    return said


WORTH = "is worth it"


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
    known = tuple(f"{WORTH} {where}" for where in ("above", "below", "with"))
    named = [step for step in steps if step.sentence.startswith(known)]
    never = [step for step in steps if not step.paying]
    parts = [(each, each.sentence.partition(" (")[0]) for each in named[:SAID]]
    parts += [(each, f"{WORTH} nowhere") for each in never[: SAID - len(parts)]]
    return ". ".join(f"Changing {each.axis} from {each.before} to {each.after} {where}" for each, where in parts)


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


def _sentence(pairs: Sequence[DesignPair], found: Exploration, axis: str) -> str:
    """``is worth it in 27 of 81 pairs of designs: with hbm.bandwidth from 4 TB/s; …``."""
    gains, prices = ([getattr(pair, name) for pair in pairs] for name in ("gain", "price"))
    objective = found.spec.objectives[0]
    name = objective if objective in OBJECTIVES else f"({objective})"
    better = "" if sense_of(objective) == "max" else " better by"
    numbers = f"{name}{better} {_between(gains)}{f' for price {_between(prices)}' if any(prices) else ''}"
    paying = sums.sum(pair.pays for pair in pairs)
    if paying in (0, len(pairs)):
        return f"{WORTH} {'everywhere' if paying else 'nowhere'}: {numbers}"
    where = next(
        filter(None, (_threshold(pairs, other, found) for other in found.axes if other not in (axis, MODEL))), ""
    )
    return f"{WORTH} {f'{where} ' if where else ''}({paying} of {len(pairs)} pairs of designs): {numbers}"


def _threshold(pairs: Sequence[DesignPair], axis: str, found: Exploration) -> str:
    """``above hbm.bandwidth 2 TB/s``: the level of another axis from which pairs pay; empty if none parts them."""
    levels = [level.name for level in levels_of_axis(found.points, axis)]
    pays = {level: {pair.pays for pair in pairs if pair.before.axes[axis] == level} for level in levels}
    if any(len(each) != 1 for each in pays.values()):
        return ""
    yes = [level for level in levels if True in pays[level]]
    values = list({point.axes[axis] for point in found.points})
    ordered = len(levels) > 2 and as_quantities(values) is not None
    if ordered and len(levels) > len(yes) > 0 and yes == levels[-len(yes) :]:
        return f"above {axis} {levels[-len(yes) - 1]}, from {yes[0]}"
    if ordered and len(levels) > len(yes) > 0 and yes == levels[: len(yes)]:
        return f"below {axis} {levels[len(yes)]}, up to {yes[-1]}"
    return f"with {axis} {' or '.join(yes)}" if yes else ""


def _between(shares: Sequence[float]) -> str:
    return between(shares, lambda share: signed_percent(share) if abs(share) >= NOTHING / 10 else "0")

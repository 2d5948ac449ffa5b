"""Levels of an axis, sampled values in bins, and their effect on an objective with its error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from archsim.base import quantities, sums
from archsim.questions.exploration.candidates import Candidate
from archsim.show.units import plain

MOST_LEVELS = 12  # more values of an axis, if they are quantities, go into BINS bins of about as many designs each
BINS = 5
MODEL = "model"  # an axis that is no choice: models of different size are not compared


class AxisLevel(NamedTuple):
    """``members``: bool[point]."""

    name: str
    members: np.ndarray


class AxisEffect(NamedTuple):
    """What an axis does to an objective: geometric means of its levels over that of all points."""

    axis: str  # its path
    least: str  # level with the lowest mean
    below: float  # its mean, as a factor
    most: str  # level with the highest mean
    above: float  # its mean, as a factor
    # standard error of their ratio, as a factor less 1; of sampled points with what other axes do; inf: 1 design a
    # level
    error: float

    @property
    def shown(self) -> bool:
        """Whether the effect exceeds twice its error."""
        return self.above / self.below > (1 + self.error) ** 2


def levels_of_axis(points: Sequence[Candidate], axis: str) -> list[AxisLevel]:
    """The levels of an axis, in the order of their values if these are quantities, else in order of appearance."""
    written = np.array([point.axes[axis] for point in points])
    names = list(dict.fromkeys(written.tolist()))
    found = as_quantities(names)
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
    """Effects of every axis whose levels differ, the widest first; of several models, each relative to its own mean."""
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


def as_quantities(names: Sequence[str]) -> dict[str, quantities.WrittenNumber] | None:
    """Level → what is written there; None unless all are quantities of one dimension."""
    found = {name: each for name in names if (each := quantities.as_written(name.replace(",", ""))) is not None}
    return found if len(found) == len(names) and len({each.dimension.name for each in found.values()}) == 1 else None


def _short(value: float) -> str:
    return plain(float(f"{value:.2g}"))

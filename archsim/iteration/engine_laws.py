"""The laws of an engine's kernels, with stand-ins for what was not measured; without an engine, the fastest of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from archsim.base import sums
from archsim.iteration.attention import AttentionTimes
from archsim.iteration.stand_ins import with_stand_ins
from archsim.iteration.times import IterationLaws, iteration_laws
from archsim.laws.tables import CalibrationSpec
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Parallelism, Precision


def engine_laws(
    library: str | None, model: ModelSpec, calibration: CalibrationSpec, parallel: Parallelism, precision: Precision,
    **more: Any,
) -> tuple[IterationLaws, tuple[str, ...]]:  # fmt: skip
    """The laws of one engine's iterations, and what stands in for what was not measured, in words. ``library``: the
    engine, or None on a die with kernels of its own; ``more``: as of `iteration_laws`, and ``kernel`` of experts, as of
    `with_stand_ins`. Raises SpecError, LawMissing.
    """
    found = with_stand_ins(calibration, model, precision.products, precision.experts, more.pop("kernel", ""))
    precision = precision._replace(products=found.products, experts=found.experts)
    laws = iteration_laws(model, found.calibration, parallel, precision, library=library, **more)
    return laws, (*found.notes, *laws.notes)


def fastest(each: Sequence[IterationLaws]) -> IterationLaws:
    """At every size the fastest kernel of each cause, of the same operators by several libraries."""
    first = each[0]
    by = {
        rows: {cause: np.minimum.reduce([laws.by[rows][cause] for laws in each]) for cause in causes}
        for rows, causes in first.by.items()
    }
    totals = {rows: [sums.sum(laws.by[rows].values()) for laws in each] for rows in by}
    outside = {
        rows: np.take_along_axis(
            np.stack([laws.outside[rows] for laws in each]), np.argmin(totals[rows], axis=0)[None], axis=0
        )[0] if rows in by else ns
        for rows, ns in first.outside.items()
    }  # fmt: skip
    attention = {
        phase: tuple(
            (FastestAttention(tuple({times.library: times for times, _ in same}.values())), same[0][1])
            for same in zip(*(laws.attention[phase] for laws in each), strict=True)
        )
        for phase in first.attention
    }
    sources = {
        cause: ", ".join(sorted({name for laws in each for name in laws.sources[cause].split(", ")}))
        for cause in first.sources
    }
    notes = tuple(dict.fromkeys(note for laws in each for note in laws.notes))
    return IterationLaws(first.model, first.parallel, attention, by, outside, sources, notes)


@dataclass(frozen=True, eq=False)
class FastestAttention:
    """``AttentionTimes`` of the fastest of some libraries, all of them with the same parts."""

    each: tuple[AttentionTimes, ...]

    @property
    def library(self) -> str:
        return ", ".join(times.library for times in self.each)

    @property
    def whole(self) -> bool:
        return self.each[0].whole

    @property
    def note(self) -> str:
        return self.each[0].note

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        return np.minimum.reduce([times.ns(requests, new, context) for times in self.each])

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return np.logical_and.reduce([times.outside(requests, context) for times in self.each])

"""The points of a sweep on one engine, viewed as an exploration: the front by that engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from archsim.questions.exploration import candidates
from archsim.questions.exploration.pareto import as_costs, fronts
from archsim.runs.calibration_notes import die_of
from archsim.runs.notes import SAME_NUMBERS, changes_nothing, result_notes
from archsim.runs.results import Layers, layers_that_ran
from archsim.specs.explore import ExploreSpec
from archsim.specs.plan import Point, SweepPlan
from archsim.specs.unread import keys_of

SHOWN = ExploreSpec(objectives=("throughput", "energy", "cost"))


def view_of(
    plan: SweepPlan, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int], spec: ExploreSpec = SHOWN
) -> candidates.Exploration:
    """``rows``: rows of results.parquet, with ``point``."""
    rows = list(rows)
    at = [plan.point(row["point"]) for row in rows]
    seen = [candidate_of(plan, point, row) for point, row in zip(at, rows, strict=True)]
    values = np.array([[each.values[name] for name in spec.objectives] for each in seen]).reshape(
        len(seen), len(spec.objectives)
    )
    front = fronts(as_costs(values, spec.senses), [each.model for each in seen])
    points = candidates.without_constants([replace(each, front=bool(on)) for each, on in zip(seen, front, strict=True)])
    return candidates.Exploration(
        name=plan.experiment.name, spec=spec, points=tuple(points), combinations=plan.combinations, dropped=dropped,
        budget=0, stable=True, failures=(), assumptions=tuple(each.label for each in plan.experiment.assumptions),
        notes=(*notes_of(at, rows), *(unread := plan.experiment.unread), *idle_axes(plan, at, rows, unread)),
        layers=layers_of(at, rows),
    )  # fmt: skip


def notes_of(points: Iterable[Point], rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Caveats of the calibrations and batches behind some points; ``rows``: their results."""
    return tuple(result_notes(rows, [(point.system.name, die_of(point.system)) for point in points]))


def idle_axes(
    plan: SweepPlan, points: Sequence[Point], rows: Sequence[Mapping[str, Any]], unread: Sequence[str] = ()
) -> Iterator[str]:
    """A sentence for every axis that changes no number of any run. ``unread``: sentences that name axes and say why."""
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


def layers_of(points: Iterable[Point], rows: Iterable[Mapping[str, Any]]) -> Layers:
    """Which MoE layers of the points' models ran; ``rows``: their results."""
    return layers_that_ran(rows, {point.model.name: len(point.model.moe_layer_ids) for point in points})


def candidate_of(plan: SweepPlan, point: Point, row: Mapping[str, Any]) -> candidates.Candidate:
    values = candidates.objectives_of(point.model, row)
    return candidates.Candidate(
        index=point.index, axes=levels_of(plan, point), values=values, cheap=values, engine=row["engine"], front=False,
        allowed=True, limit=candidates.limit_of(row), band=candidates.band_of(row), run=row["run"],
        model=point.variants["model"].name, ranges=candidates.ranges_of(row),
    )  # fmt: skip


def levels_of(plan: SweepPlan, point: Point) -> dict[str, str]:
    """What distinguishes a point: the experiment's own lists, then the axes, as written."""
    shown = {kind: point.variants[kind].name for kind in ("model", "system", "policy")}
    shown |= {"batch": f"{point.batch}", "assumptions": point.assumptions.label}
    return shown | plan.shown(point)

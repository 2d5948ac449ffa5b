"""The result of an exploration: every point with its values, the engine behind them, and its bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from archsim.base import causes, tables
from archsim.base.tables import DataFrame, frame_of
from archsim.model.spec import ModelSpec
from archsim.specs.constraints import parse_constraint
from archsim.specs.explore import OBJECTIVES, ExploreSpec, sense_of


@dataclass(frozen=True)
class Candidate:
    """A point of a sweep, as a search sees it."""

    index: int  # in the sweep
    axes: Mapping[str, str]  # path → value as written; model, policy and so on where they differ
    values: Mapping[str, float]  # of every objective of ``OBJECTIVES``, by `engine`
    cheap: Mapping[str, float]  # the same by the analytical engine
    engine: str  # that gave `values`
    front: bool  # whether no other point is better in every objective
    allowed: bool  # whether it keeps the limits of the search
    limit: tuple[str, float]  # the bottleneck and its share of the critical path
    band: tuple[float, float] | None  # throughput, low and high, from the calibration's residuals
    run: str  # name of its run, or empty
    model: str = ""  # designs of different models are on different fronts
    # energy, power → with all coefficients low, high
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exploration(tables.Shown):
    """All that a search found."""

    name: str  # of the experiment
    spec: ExploreSpec  # what was asked
    points: tuple[Candidate, ...]  # in the order of the sweep
    combinations: int  # points of the sweep before constraints
    dropped: Mapping[str, int]  # constraint → points that it dropped
    budget: int  # most runs of engines slower than the analytical one
    stable: bool  # no other point could be on the front, given the observed errors
    failures: tuple[str, ...]  # a line for each run that failed
    assumptions: tuple[str, ...]  # labels of the sets
    notes: tuple[str, ...] = ()  # caveats of the calibrations behind the points
    # which ran: `archsim.runs.results.layers_that_ran`
    layers: Mapping[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        ran = f"{len(self.known)} of {len(self.points):,} points on the event engine"
        return f"Exploration({self.name!r}, {len(self.front)} Pareto-optimal; {ran})"

    def to_pandas(self) -> DataFrame:
        """One row per point, in the order of the sweep.

        Columns: point, one column per axis (as written), every objective of `OBJECTIVES` by the engine named in
        ``engine`` (throughput in tokens/s, time in ns, energy in J/token, power in W, area in mm², cost in USD),
        front, allowed, limit (the bottleneck), limit_share, run.
        """
        rows = [
            {"point": each.index, **each.axes, **each.values, "engine": each.engine, "front": each.front}
            | {"allowed": each.allowed, "limit": each.limit[0], "limit_share": each.limit[1], "run": each.run}
            for each in self.points
        ]
        return frame_of(rows)

    @cached_property
    def front(self) -> tuple[Candidate, ...]:
        """The Pareto-optimal points, by model, the best by the first objective first."""
        first, sense = self.spec.objectives[0], self.spec.senses[0]
        sign, place = -1 if sense == "max" else 1, {model: at for at, model in enumerate(self.models)}
        members = [point for point in self.points if point.front]
        return tuple(sorted(members, key=lambda point: (place[point.model], sign * point.values[first])))

    @cached_property
    def known(self) -> tuple[Candidate, ...]:
        return tuple(point for point in self.points if point.engine == "event")

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.points[0].axes) if self.points else ()

    @cached_property
    def models(self) -> tuple[str, ...]:
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
    """Every objective of a run, NaN if none, for all MoE layers: decode time over the share of layers that ran."""
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
    ends = {name: (row.get(f"{column}_low"), row.get(f"{column}_high")) for name, (column, _) in OBJECTIVES.items()}
    return {name: (low, high) for name, (low, high) in ends.items() if low is not None and high is not None}

"""The points of a sweep simulated, a part of them at a time: memory does not grow with the sweep, and what has ended is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsim.base.cores import available_cores
from archsim.base.errors import ArchsimError, CapacityError
from archsim.base.files import sole_writer
from archsim.runs import run_cache
from archsim.runs.capacity import refuse_misroutes
from archsim.runs.point_measures import Measures
from archsim.runs.point_runs import PointRuns
from archsim.runs.point_store import PART_RUNS, PointStore
from archsim.runs.pool.dask_cluster import simulate_on_cluster
from archsim.runs.pool.processes import simulate_all
from archsim.runs.pool.worker import Failure
from archsim.runs.results import Record
from archsim.runs.run import Run
from archsim.runs.store import RunStore
from archsim.specs.sweeps.plan import Dropped, Point, SweepPlan

Simulate = Callable[[Sequence[Run]], Iterable[tuple[Run, Record | Failure]]]
# Runs that take less are kept with their part only: to write one to the disk takes as long.
KEPT_ALONE_S = 0.05
_MOST_SHOWN = 20  # failures that are told one by one


@dataclass(frozen=True)
class Selection:
    """The points that run: their numbers among all combinations, and what was left out."""

    kept: tuple[int, ...]
    dropped: Dropped


def select(plan: SweepPlan) -> Selection:
    """Ask the constraints of every point.

    Raises SpecError if they keep none; CapacityError and ArchsimError for points that could not run.
    """
    measures, dropped, kept = Measures(), Dropped(), []
    runs, misfits, asked = PointRuns(), [], set()
    for point in plan.points(measures.functions(), dropped):
        kept.append(point.index)
        if point.assumptions.capacity == "finite" and not measures.fits(point):
            misfits.append(point)
        alike = (point.system.mesh, str(point.system.topology), str(point.system.fabric), point.assumptions.label, point.model.name, point.workload.layers)
        if alike not in asked:
            asked.add(alike)
            refuse_misroutes([runs.run(point)])
    if misfits:
        first = misfits[0]
        raise CapacityError(
            f"{len(misfits):,} of {len(kept):,} points do not fit into the HBM of their dies, the first of them point {first.index} "
            f"({first.parts['model'].name} on {_shown(plan, first)}); drop them with where: [hbm_capacity fits], or set the assumption "
            "capacity: unbounded"
        )
    if not kept:
        said = ", ".join(f"{count:,} by `{text}`" for text, count in dropped.by_constraint.items())
        raise ArchsimError(f"no point is left of {plan.combinations:,}: dropped {said}")
    return Selection(tuple(kept), dropped)


def sweep_points(plan: SweepPlan, folder: Path, jobs: int | None, watcher, scheduler: str | None = None) -> tuple[Path, Selection]:
    """Simulate every point that is kept and not there yet; returns the file of the results, and which points they are.

    jobs: runs side by side (default: available cores); scheduler: address of a Dask cluster that does them instead. The results do
    not depend on either, or on what was kept. Raises what `select` does before anything runs; ArchsimError at
    the end if runs have failed: the others are kept.
    """
    selection = select(plan)
    makers = PointRuns()

    def simulate(runs: Sequence[Run]) -> Iterable[tuple[Run, Record | Failure]]:
        if scheduler is not None and runs:
            return simulate_on_cluster(runs, scheduler)
        return simulate_all(runs, jobs or available_cores(), makers.traces)

    with sole_writer(folder):
        store = PointStore(folder, plan)
        store.write_manifest(len(selection.kept), selection.dropped.by_constraint)
        watcher.begin(len(selection.kept), 0)
        failures: list[str] = []
        parts = 0
        for begin in range(0, len(selection.kept), PART_RUNS):
            part, parts = parts, parts + 1
            numbers = selection.kept[begin : begin + PART_RUNS]
            points = [plan.point(number) for number in numbers]
            runs = [makers.run(point) for point in points]
            if store.has_part(part, runs):
                watcher.kept(len(runs))
                continue
            store.outdate()
            records = complete(runs, simulate, store.runs, watcher, failures, kept_from_s=KEPT_ALONE_S)
            if len(records) == len(runs):
                rows = [_row(plan, point, records[run.key]) for point, run in zip(points, runs, strict=True)]
                store.write_part(part, runs, rows)
        run_cache.remove_oldest()
        if failures:
            shown = failures[:_MOST_SHOWN] + [f"and {len(failures) - _MOST_SHOWN} more"] * (len(failures) > _MOST_SHOWN)
            raise ArchsimError("\n".join([f"{len(failures)} of {len(selection.kept)} runs failed; the others are kept in {folder}", *shown]))
        return store.finish(parts), selection


def complete(
    runs: Sequence[Run], simulate: Simulate, store: RunStore, watcher, failures: list[str], kept_from_s: float = 0.0
) -> dict[str, Record]:
    """Records by key, without dies and links: of this folder, of the cache, or simulated now. Why others have none is added to ``failures``.

    What took at least ``kept_from_s`` is kept in the folder.
    """
    records = {run.key: record for run in runs if (record := store.load(run) or run_cache.find(run))}
    waiting = [run for run in runs if run.key not in records]
    watcher.kept(len(records))
    for run, reply in simulate(waiting):
        if isinstance(reply, Failure):
            failures.append(f"{run.name}: {reply.message}")
            watcher.failed(run, reply)
            continue
        reply = {**reply, "dies": {}, "links": {}}  # many times the row, and nobody asks for them
        if reply["host"]["wall_s"] >= kept_from_s:
            store.save(run, reply)
        run_cache.keep(run, reply)
        records[run.key] = reply
        watcher.finished(run, reply)
    return records


def _row(plan: SweepPlan, point: Point, record: Record) -> dict[str, Any]:
    return {"point": point.index} | plan.cells(point) | record["row"] | {"speedup_vs_base": None, "run": record["run"]}


def _shown(plan: SweepPlan, point: Point) -> str:
    return ", ".join(f"{path} {value}" for path, value in plan.shown(point).items())

"""``ar.run`` and ``ar.sweep``: one combination of an experiment, or all of them."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from archsim.api.loading import Experiment, experiment_of, planned_of
from archsim.base.errors import ArchsimError
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.sweeps.plan import SweepPlan

# Engines, tables and pages are imported where they are used, so that the names of this module load fast.
if TYPE_CHECKING:
    from archsim.runs.results import Results
    from archsim.runs.sweep import Watcher


def run(
    experiment: Experiment,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    step: int | None = None,
    layer: int | None = None,
    timeline: str | os.PathLike[str] | None = None,
) -> Results:
    """Simulate one combination of an experiment in this process: what is named, else the experiment's first.

    Returns `Results` with one row in ``.runs``, one row a die in ``.dies``, one row a link in ``.links``; times in ns,
    data in bytes (the suffix of a column's name tells). Nothing is written but the timeline.

    system, model, policy, assumptions: names in the experiment; batch: one of its batch sizes (requests).
    step, layer, timeline: write what every block does in iteration ``step`` (0: prefill) of MoE layer ``layer`` (the
    model's numbering) to the file ``timeline``, for https://ui.perfetto.dev; give all three or none.

    Raises ArchsimError for a name that the experiment does not have, or a step or layer that the run does not have;
    CapacityError where the weights do not fit; SpecError and TraceError for invalid files.
    """
    from archsim.base.files import refuse_unwritable
    from archsim.report.step_timeline import write_step_timeline
    from archsim.runs.capacity import refuse_misfits
    from archsim.runs.results import collect
    from archsim.runs.simulator import Simulator
    from archsim.runs.sweep import choose, prepare

    if len({step is None, layer is None, timeline is None}) > 1:
        raise ArchsimError("a timeline needs all of step, layer and timeline")
    if timeline is not None:
        refuse_unwritable(Path(timeline))
    whole = experiment_of(experiment)
    one = choose(whole, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    prepared = prepare(one)
    refuse_misfits(prepared.runs)
    first, simulator = prepared.runs[0], Simulator(prepared.traces)
    if timeline is not None and step is not None and layer is not None:
        write_step_timeline(simulator.engine(first), step, layer, Path(timeline), first.name)
    return collect([simulator.record(first)])


def simulate(experiment: Experiment, **chosen: Any) -> Results:
    """The former name of `run`."""
    return run(experiment, **chosen)


def sweep(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    scheduler: str | None = None,
) -> Results:
    """Simulate every combination of an experiment, or every point of its ``sweep:`` that the constraints keep.

    Returns `Results`: one row a run in ``.runs`` (of a ``sweep:`` also ``point`` and a column an axis, and then
    no rows in ``.dies``, ``.links`` and ``.timings``). The rows do not depend on ``jobs``, nor on what was kept.

    out: folder of the report: tables, manifest and page (``index.html``); runs kept there are not simulated again.
    None: nothing is written. jobs: processes side by side (default: available cores). watcher: is told of progress.
    scheduler: address of a Dask cluster that simulates instead, such as ``tcp://host:8786``.

    Raises SpecError, TraceError and CapacityError before anything is simulated; ArchsimError at the end if runs failed:
    with ``out`` the others are kept.
    """
    planned = planned_of(experiment)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return _swept(planned, Path(folder), jobs, watcher, scheduler, page=False)
    return _swept(planned, Path(out), jobs, watcher, scheduler, page=True)


def _swept(
    planned: ExperimentSpec | SweepPlan,
    folder: Path,
    jobs: int | None,
    watcher: Watcher | None,
    scheduler: str | None,
    page: bool,
) -> Results:
    """Runs in ``folder``; with the report's page, if it is wanted."""
    if isinstance(planned, SweepPlan):
        return _swept_points(planned, folder, jobs, watcher, scheduler, page)
    from archsim.report.page import write_report
    from archsim.runs.sweep import sweep as sweep_runs
    from archsim.studies.comparison.comparison import write_sample

    results = sweep_runs(planned, folder, jobs, watcher, scheduler)
    if page:
        write_sample(planned, folder)
        write_report(folder)
    return results


def _swept_points(
    plan: SweepPlan, folder: Path, jobs: int | None, watcher: Watcher | None, scheduler: str | None, page: bool
) -> Results:
    from archsim.runs.point_sweep import sweep_points
    from archsim.runs.sweep import Unwatched
    from archsim.studies.comparison.comparison import write_sample
    from archsim.studies.exploration.points_page import write_points_page

    file, selection = sweep_points(plan, folder, jobs, watcher or Unwatched(), scheduler)
    if page:
        write_sample(plan, folder, selection.kept)
        write_points_page(plan, file, selection.dropped.by_constraint, folder)
    return _results_of_points(plan, file)


def _results_of_points(plan: SweepPlan, file: Path) -> Results:
    """The columns of a point and its axes before those of its run."""
    from archsim.base.tables import INTEGER, Table, read_parquet
    from archsim.runs.results import DIE_COLUMNS, LINK_COLUMNS, RUN_COLUMNS, TIMING_COLUMNS, Results

    columns = {"point": INTEGER} | {column.name: column.kind for column in plan.columns} | dict(RUN_COLUMNS)
    dies, links, timings = (Table(each, ()) for each in (DIE_COLUMNS, LINK_COLUMNS, TIMING_COLUMNS))
    return Results(read_parquet(file, columns), dies, links, timings)

"""``ar.run`` and ``ar.sweep``: one combination of an experiment, or all of them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from archsim.api.loading import Experiment, Overrides, experiment_of, overridden, planned_of
from archsim.base.errors import ArchsimError

# Engines, tables and pages are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.runs.phase import PhaseTimes
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.runs.sweep import Watcher


def run(
    experiment: Experiment, *, system: str | None = None, model: str | None = None, policy: str | None = None,
    batch: int | None = None, assumptions: str | None = None, step: int | None = None, layer: int | None = None,
    timeline: str | os.PathLike[str] | None = None, overrides: Overrides = (),
) -> Results:
    """Simulate one combination of an experiment in this process: the named parts, else the experiment's first.

    Returns `Results` with one row in ``.runs``, one row per die in ``.dies``, one row per link in ``.links``; times in
    ns, data in bytes (see the suffix of a column's name). Writes only the timeline.

    system, model, policy, assumptions: names in the experiment; batch: one of its batch sizes (requests). step, layer,
    timeline: write the activity of every block in iteration ``step`` (0: prefill) of MoE layer ``layer`` (the model's
    numbering) to the file ``timeline``, for https://ui.perfetto.dev; give all three or none. overrides: as of `load`.

    Raises ArchsimError for a name that the experiment does not have, or a step or layer that the run does not have;
    CapacityError if the weights do not fit; SpecError and TraceError for invalid files.
    """
    from archsim.base.files import refuse_unwritable
    from archsim.report.step_timeline import write_step_timeline
    from archsim.runs.columns import columns_with, kinds_of
    from archsim.runs.plan import choose, select
    from archsim.runs.results import collect
    from archsim.runs.simulator import Simulator

    if len({step is None, layer is None, timeline is None}) > 1:
        raise ArchsimError("a timeline needs all of step, layer and timeline")
    if timeline is not None:
        refuse_unwritable(Path(timeline))
    whole = experiment_of(overridden(experiment, overrides))
    one = choose(whole, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    selection = select(one)
    (only,), simulator = selection.runs(), Simulator(selection.maker.traces)
    if timeline is not None and step is not None and layer is not None:
        write_step_timeline(simulator.replay(only), step, layer, Path(timeline), only.name)
    results = collect([simulator.record(only)], kinds_of(columns_with(one.all_columns)))
    return results.with_page(partial(_report, selection, 1))


def run_phase(
    experiment: Experiment, phase: str, *, law: str | None = None, system: str | None = None,
    model: str | None = None, policy: str | None = None, batch: int | None = None, assumptions: str | None = None,
    overrides: Overrides = (),
) -> PhaseTimes:
    """Simulate the dispatch or the combine of hidden vectors alone, for one combination of an experiment.

    Returns `PhaseTimes`: ``.to_pandas()`` has one row for each iteration and MoE layer: vectors and bytes between dies,
    the time that they take on the links (and ports of dies) of the fabric, as contention and arbitration say, and the
    time by an endpoint law.

    phase: ``dispatch`` or ``combine``. law: of a measured kernel, ``MACHINE/VERSION`` such as
    ``blackhole/replay-2026-09-11`` (MACHINE: name or file of a calibration of a fabric); None: no such time. The others
    as of `run`.

    Raises ArchsimError for an unknown phase or law, a law of another topology, and assumptions under which no hidden
    vectors move; else as `run`.
    """
    from archsim.runs.phase import time_phase
    from archsim.runs.plan import choose, select
    from archsim.runs.simulator import Simulator

    whole = experiment_of(overridden(experiment, overrides))
    one = choose(whole, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    selection = select(one)
    (only,) = selection.runs()
    return time_phase(Simulator(selection.maker.traces).replay(only), phase, law)


def sweep(
    experiment: Experiment, out: str | os.PathLike[str] | None = None, jobs: int | None = None,
    watcher: Watcher | None = None, scheduler: str | None = None, *, overrides: Overrides = (),
) -> Results:
    """Simulate every combination of an experiment, or every point of its ``sweep:`` that the constraints keep.

    Returns `Results`: one row per run in ``.runs`` (for a ``sweep:`` also ``point`` and one column per axis); ``.dies``
    and ``.links`` for few runs, or with ``details: kept``. With ``out``, a table is read on first access. The rows
    depend neither on ``jobs`` nor on runs kept from before.

    out: folder of the report: tables, manifest and page (``index.html``); runs kept there are not simulated again.
    None: nothing is written. jobs: parallel processes (default: available cores). watcher: receives progress.
    scheduler: address of a Dask cluster that simulates instead, such as ``tcp://host:8786``. overrides: as of `load`.

    Raises SpecError, TraceError and CapacityError before anything is simulated; ArchsimError at the end if runs failed;
    with ``out`` the others are kept.
    """
    from archsim.runs.plan import select
    from archsim.runs.sweep import Unwatched, sweep_selected
    from archsim.studies.sweep_page import failures_on_page, write_sweep_report

    watcher = watcher or Unwatched()
    selection = select(planned_of(overridden(experiment, overrides)), watcher.phase)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            results = sweep_selected(selection, Path(folder), jobs, watcher, scheduler).in_memory()
    else:
        with failures_on_page(selection.plan.experiment.name, Path(out)):
            results = sweep_selected(selection, Path(out), jobs, watcher, scheduler)
        write_sweep_report(selection, Path(out))
    return results.with_page(partial(_report, selection, jobs))


def _report(selection: Selection, jobs: int | None, folder: Path) -> Path:
    """Write the report of runs that the cache has, or that are simulated again."""
    from archsim.runs.sweep import Unwatched, sweep_selected
    from archsim.studies.sweep_page import write_sweep_report

    sweep_selected(selection, folder, jobs, Unwatched())
    return write_sweep_report(selection, folder).page

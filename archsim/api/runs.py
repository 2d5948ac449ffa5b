"""``ar.run``, ``ar.sweep``, ``ar.explore`` and what runs an experiment again: many runs, one answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from archsim.api import files
from archsim.base import verbs
from archsim.base.verbs import verb

if TYPE_CHECKING:
    from archsim.questions.ablation import Ablation
    from archsim.questions.comparison import Comparison
    from archsim.questions.exploration.candidates import Exploration
    from archsim.questions.optimum import Measured, Optimum
    from archsim.questions.verify import Verified
    from archsim.runs.phase import PhaseTimes
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.runs.sweep import Watcher

    Watching = Callable[[], AbstractContextManager[Watcher]]


# Engines, tables and pages are imported where they are used, so that importing this module is fast.


@verb(verbs.RUN)
def run(
    experiment: files.Experiment,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    step: int | None = None,
    layer: int | None = None,
    timeline: str | os.PathLike[str] | None = None,
    overrides: files.Overrides = (),
) -> Results:
    """Simulate one combination of an experiment in this process: the named parts, else the experiment's first.

    Returns `Results` with one row in ``.runs``, one row per die in ``.dies``, one row per link in ``.links``; times in
    ns, data in bytes (see the suffix of a column's name). Writes only the timeline.

    step, layer and timeline are given together: the activity of every block in that layer is for
    https://ui.perfetto.dev. overrides: as of `load`.

    Raises ArchsimError for a name that the experiment does not have, or a step or layer that the run does not have;
    CapacityError if the weights do not fit; SpecError and TraceError for invalid files.

    >>> (row,) = ar.run(ar.api.EXAMPLE, policy="ep").runs.rows
    >>> row["policy"], row["batch"], row["decode_ns"] > 0
    ('ep', 64, True)
    """
    from archsim.base.files import refuse_unwritable
    from archsim.runs.choice import choose
    from archsim.runs.columns import columns_with, kinds_of
    from archsim.runs.plan import select
    from archsim.runs.results import collect
    from archsim.runs.simulator import Simulator
    from archsim.show.timeline import refuse_part_of_timeline, write_step_timeline

    refuse_part_of_timeline({"step": step, "layer": layer, "timeline": timeline})
    if timeline is not None:
        refuse_unwritable(Path(timeline))
    whole = files.experiment_of(files.overridden(experiment, overrides))
    one = choose(whole, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    selection = select(one)
    (only,), simulator = selection.runs(), Simulator(selection.maker.traces)
    if timeline is not None and step is not None and layer is not None:
        write_step_timeline(simulator.replay(only), step, layer, Path(timeline), only.name)
    results = collect([simulator.record(only)], kinds_of(columns_with(one.all_columns)))
    return results.with_page(partial(_report, selection, 1))


def run_phase(
    experiment: files.Experiment,
    phase: str,
    *,
    law: str | None = None,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    overrides: files.Overrides = (),
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

    >>> ar.run_phase(ar.api.EXAMPLE, "dispatch", policy="ep").to_pandas().shape[0]  # iterations × MoE layers
    4
    """
    from archsim.runs.choice import choose
    from archsim.runs.phase import time_phase
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator

    whole = files.experiment_of(files.overridden(experiment, overrides))
    one = choose(whole, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    selection = select(one)
    (only,) = selection.runs()
    return time_phase(Simulator(selection.maker.traces).replay(only), phase, law)


@verb(verbs.SWEEP)
def sweep(
    experiment: files.Experiment,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    *,
    samples: int = 0,
    overrides: files.Overrides = (),
) -> Results:
    """Simulate every combination of an experiment, or every point of its ``sweep:`` that the constraints keep.

    Returns `Results`: one row per run in ``.runs`` (for a ``sweep:`` also ``point`` and one column per axis); ``.dies``
    and ``.links`` for few runs, or with ``details: kept``. With ``out``, a table is read on first access. The rows
    depend neither on ``jobs`` nor on runs kept from before.

    Runs kept in ``out`` are not simulated again; None: nothing is written. watcher: receives progress. samples: with
    ``out``, the runs that the first sentences of the page (``.answer``) name get a range in so many. overrides: as of
    `load`.

    Raises SpecError, TraceError and CapacityError before anything is simulated; ArchsimError at the end if runs failed;
    with ``out`` the others are kept.

    >>> [row["policy"] for row in ar.sweep(ar.api.EXAMPLE, jobs=1).runs.rows]
    ['base', 'ep']
    """
    from archsim.questions.comparison import failures_on_page, write_sweep_report
    from archsim.runs.plan import select
    from archsim.runs.sweep import Unwatched, sweep_selected

    watcher = watcher or Unwatched()
    selection = select(files.planned_of(files.overridden(experiment, overrides)), watcher.phase)
    answer = ""
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            results = sweep_selected(selection, Path(folder), jobs, watcher).in_memory()
    else:
        with failures_on_page(selection.plan.experiment.name, Path(out)):
            results = sweep_selected(selection, Path(out), jobs, watcher)
        answer = write_sweep_report(selection, Path(out), samples, jobs, watcher).answer
    return results.with_page(partial(_report, selection, jobs), answer)


def _report(selection: Selection, jobs: int | None, folder: Path) -> Path:
    """Write the report of runs that the cache has, or that are simulated again."""
    from archsim.questions.comparison import write_sweep_report
    from archsim.runs.sweep import Unwatched, sweep_selected

    sweep_selected(selection, folder, jobs, Unwatched())
    return write_sweep_report(selection, folder).page


@verb(verbs.ABLATE)
def ablate(
    experiment: files.Experiment,
    start: str = "published",
    end: str = "physical",
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Ablation:
    """Effect of each assumption: from one set to another, one field at a time and in a chain.

    Returns an `Ablation`: a waterfall of speed-ups over policy ``base`` for every other policy, system, model and
    batch; ``.to_pandas()`` has one row per effect; ``.closes``: the chain's end equals the set ``end`` bit for bit.

    Sets are of the experiment or shipped. out: of ``ablation.csv`` and the runs, too; None: nothing is written.

    Raises ArchsimError for an unknown set, equal sets, or an experiment without policy ``base``; otherwise as `sweep`.

    >>> ar.ablate("dojo").to_pandas()  # takes minutes  # doctest: +SKIP
    """
    from archsim.questions import ablation
    from archsim.questions.ablation_page import write_ablation

    whole = files.experiment_of(experiment)
    first, last = ablation.assumptions_named(whole, start), ablation.assumptions_named(whole, end)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return ablation.ablate(whole, first, last, folder, jobs, watcher)
    found = ablation.ablate(whole, first, last, Path(out), jobs, watcher)
    write_ablation(found, whole.name, Path(out), ablation.ablated_experiment(whole, first, last).unread)
    return found


@verb(verbs.EXPLORE)
def explore(
    experiment: files.Experiment,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watching: Watching | None = None,
    *,
    overrides: files.Overrides = (),
) -> Exploration:
    """Search the points of a ``sweep:`` for the Pareto-optimal designs by the objectives of ``explore:``.

    The analytical engine runs all points, the event engine those on and near the front. Returns an
    `Exploration`; ``.front`` has the Pareto-optimal points, ``.to_pandas()`` one row per point.

    out: of ``front.csv`` and a report for every recommended design, too; None: nothing is written. watching: returns a
    context manager that gives a watcher, called once per stage. overrides: as of `load`.

    Raises SpecError without ``sweep:`` or ``explore:``; otherwise as `sweep`.

    >>> ar.explore("explore_dojo", "report").front  # takes minutes  # doctest: +SKIP
    """
    from archsim.questions.exploration.explore import explore as explore_points
    from archsim.questions.exploration.explore import explore_to_report
    from archsim.runs.sweep import Unwatched

    asked = files.exploration_of(files.overridden(experiment, overrides))
    plan, watching = asked.plan.with_engine("analytical"), watching or (lambda: nullcontext(Unwatched()))
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return explore_points(plan, asked.spec, Path(folder), jobs, watching)
    return explore_to_report(plan, asked.spec, Path(out), jobs, watching)


@verb(verbs.BOUND)
def optimum(
    experiment: files.Experiment,
    out: str | os.PathLike[str] | None = None,
    steps: int = 200,
    report: Callable[[Measured], None] | None = None,
    *,
    jobs: int = 1,
    overrides: files.Overrides = (),
) -> Optimum:
    """How far every policy's steps are above a lower bound over all allocations.

    Returns an `Optimum`; ``.to_pandas()`` has one row per bounded step, times in ns, ``distance`` as a share (0.1: 10
    %).

    out: of ``optimum.csv``, too; None: nothing is written. report: called for every run, in their order. jobs: parallel
    processes.

    Raises ArchsimError for more than 128 dies, CapacityError if the weights do not fit.

    >>> bool((ar.optimum(ar.api.EXAMPLE).to_pandas()["distance"] >= 0).all())
    True
    """
    from archsim.questions.optimum import measure_optimum
    from archsim.questions.optimum_page import write_optimum

    whole = files.experiment_of(files.overridden(experiment, overrides))
    found = measure_optimum(whole, steps, report or (lambda _: None), jobs)
    if out is not None:
        write_optimum(list(found.runs), found.name, Path(out), whole.unread)
    return found


@verb(verbs.ENGINES)
def engines(
    experiment: files.Experiment, sample: int = 40, steps: int = 3, watcher: Watcher | None = None
) -> Comparison:
    """Run a sample of an experiment's runs, or of a sweep's points, on both engines.

    Returns a `Comparison`: ``.errors`` by assumption set; ``.to_pandas()`` has one row per run, decode times in ns, the
    error as a signed share of the event engine's time.

    The sample is always the same one. watcher: receives progress. Raises as `run`.

    >>> len(ar.engines(ar.api.EXAMPLE, sample=2, steps=1).to_pandas())
    2
    """
    from archsim.questions import comparison
    from archsim.runs.plan import select

    selection = select(files.planned_of(experiment), watcher.phase if watcher else lambda text: None)
    return comparison.compare(selection, sample, steps, watcher)


@verb(verbs.VERIFY)
def verify(report: str | os.PathLike[str], jobs: int | None = None, watching: Watching | None = None) -> Verified:
    """Run a report of ``sweep``, ``explore`` or ``serve_plan`` again from its manifest, without what is kept of it.

    Returns a `Verified`: ``.moved`` has a row per column that moved, or that only one side has; ``.made`` and ``.now``:
    version and code of both. Judged are all tables that a report of its kind has, whatever its manifest lists.

    watching: as of ``explore``.

    Raises ArchsimError for a manifest, result or own function that is not that of its digest, and for other traces.

    >>> ar.verify("report").moved  # of a report that was written  # doctest: +SKIP
    """
    from archsim.questions.verify import report_of
    from archsim.questions.verify import verify as verified
    from archsim.runs.sweep import Unwatched

    folder, watching = report_of(Path(report)), watching or (lambda: nullcontext(Unwatched()))
    return verified(folder, lambda file, out: _again(file, out, jobs, watching))


def _again(manifest: Path, out: Path, jobs: int | None, watching: Watching) -> None:
    """Run what a manifest holds, as the command that made it."""
    from archsim.api.serving import serve_plan
    from archsim.show.report import samples_in
    from archsim.specs.serving_files import Serving

    found = files.load(manifest)
    if isinstance(found, files.ExplorationPlan):
        explore(found, out, jobs, watching)
        return
    with watching() as watcher:
        if isinstance(found, Serving):
            serve_plan(manifest, out=out, around=False, watcher=watcher, jobs=jobs, samples=0)
        else:
            sweep(found, out, jobs, watcher, samples=samples_in(manifest.parent))

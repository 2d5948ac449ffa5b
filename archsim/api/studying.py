"""``ar.ablate``, ``explore``, ``optimum``, ``compare``, ``engines``, ``verify`` and ``why``: many runs, one answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from archsim.api.loading import Experiment, Overrides, experiment_of, exploration_of, overridden, planned_of

# Engines, studies and pages are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.runs.sweep import Watcher
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.loading.library import Source
    from archsim.studies.ablation.ablation import Ablation
    from archsim.studies.comparison.comparison import Comparison
    from archsim.studies.designs.compare import DesignComparison
    from archsim.studies.exploration.outcome import Exploration
    from archsim.studies.optimum.page import Measured
    from archsim.studies.optimum.study import Optimum
    from archsim.studies.verify import Verified
    from archsim.studies.why import Why

    Watching = Callable[[], AbstractContextManager[Watcher]]


def ablate(
    experiment: Experiment, start: str = "published", end: str = "physical", out: str | os.PathLike[str] | None = None,
    jobs: int | None = None, watcher: Watcher | None = None,
) -> Ablation:
    """Effect of each assumption: from one set to another, one field at a time and in a chain.

    Returns an `Ablation`: a waterfall of speed-ups over policy ``base`` for every other policy, system, model and
    batch; ``.to_pandas()`` has one row per effect; ``.closes``: the chain's end equals the set ``end`` bit for bit.

    start, end: labels of assumption sets, of the experiment or shipped. out: folder of the page, ``ablation.csv``
    and the runs; None: nothing is written. jobs: parallel processes (default: available cores).

    Raises ArchsimError for an unknown set, equal sets, or an experiment without policy ``base``; otherwise as `sweep`.
    """
    from archsim.studies.ablation import ablation
    from archsim.studies.ablation.page import write_ablation

    whole = experiment_of(experiment)
    first, last = ablation.assumptions_named(whole, start), ablation.assumptions_named(whole, end)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return ablation.ablate(whole, first, last, folder, jobs, watcher)
    found = ablation.ablate(whole, first, last, Path(out), jobs, watcher)
    write_ablation(found, whole.name, Path(out))
    return found


def explore(
    experiment: Experiment, out: str | os.PathLike[str] | None = None, jobs: int | None = None,
    watching: Watching | None = None, *, overrides: Overrides = (),
) -> Exploration:
    """Search the points of a ``sweep:`` for the Pareto-optimal designs by the objectives of ``explore:``.

    The analytical engine runs all points, the event engine those on and near the front. Returns an
    `Exploration`; ``.front`` has the Pareto-optimal points, ``.to_pandas()`` one row per point.

    out: folder of the page, ``front.csv``, and a report for every recommended design; None: nothing is written.
    jobs: parallel processes. watching: returns a context manager that gives a watcher, called once per stage.
    overrides: as of `load`.

    Raises SpecError without ``sweep:`` or ``explore:``; otherwise as `sweep`.
    """
    from archsim.runs.sweep import Unwatched
    from archsim.studies.exploration.explore import explore as explore_points
    from archsim.studies.exploration.study import explore_to_report

    asked = exploration_of(overridden(experiment, overrides))
    plan, watching = asked.plan.with_engine("analytical"), watching or (lambda: nullcontext(Unwatched()))
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return explore_points(plan, asked.spec, Path(folder), jobs, watching)
    return explore_to_report(plan, asked.spec, Path(out), jobs, watching)


def optimum(
    experiment: Experiment, out: str | os.PathLike[str] | None = None, steps: int = 200,
    told: Callable[[Measured], None] | None = None, *, overrides: Overrides = (),
) -> Optimum:
    """How far every policy's steps are above a lower bound over all allocations.

    Returns an `Optimum`; ``.to_pandas()`` has one row per bounded step, times in ns, ``distance`` as a share (0.1: 10
    %).

    out: folder of the page and ``optimum.csv``; None: nothing is written. steps: per run to bound, evenly
    spread. told: called for every finished run. overrides: as of `load`.

    Raises ArchsimError for more than 128 dies, CapacityError if the weights do not fit.
    """
    from archsim.studies.optimum.page import write_optimum
    from archsim.studies.optimum.study import measure_optimum

    found = measure_optimum(experiment_of(overridden(experiment, overrides)), steps, told or (lambda _: None))
    if out is not None:
        write_optimum(list(found.runs), found.name, Path(out))
    return found


def compare(
    a: Source | ExperimentSpec, b: Source | ExperimentSpec, *, inside: Source | ExperimentSpec | None = None,
    out: str | os.PathLike[str] | None = None, overrides: Sequence[str] = (), **chosen: Any,
) -> DesignComparison:
    """Two designs side by side: what differs in their specification, and in time by cause, traffic, energy and price.

    Returns a `DesignComparison`; ``.to_pandas()`` has one row per number, with the ratio of B over A.

    a, b: experiments (of each, the first combination), or with ``inside`` names of its policies or systems. chosen:
    ``policy``, ``system``, ``model``, ``batch``, ``assumptions``, as for `run`, of both. out: folder of the page and
    ``comparison.csv``; None: nothing is written. overrides: ``["workload.decode_steps=1"]``, of both.

    Raises ArchsimError for a name that is not there, or two equal designs; otherwise as `run`.
    """
    from archsim.studies.designs import compare as designs
    from archsim.studies.designs.page import write_comparison_page
    from archsim.studies.designs.sides import loaded, name_of, side_of

    whole = None if inside is None else loaded(inside, overrides)
    sides = [side_of(each, whole, overrides, chosen) for each in (a, b)]
    found = designs.compare_designs([name_of(each) for each in (a, b)], sides)
    if out is not None:
        write_comparison_page(found, Path(out))
    return found


def engines(experiment: Experiment, sample: int = 40, steps: int = 3, watcher: Watcher | None = None) -> Comparison:
    """Run a sample of an experiment's runs, or of a sweep's points, on both engines.

    Returns a `Comparison`: ``.errors`` by assumption set; ``.to_pandas()`` has one row per run, decode times in ns, the
    error as a signed share of the event engine's time.

    sample: runs drawn at random, always the same ones; steps: decode steps per run, at most. watcher: receives
    progress. Raises as `run`.
    """
    from archsim.runs.plan import select
    from archsim.studies.comparison import comparison

    selection = select(planned_of(experiment), watcher.phase if watcher else lambda text: None)
    return comparison.compare(selection, sample, steps, watcher)


def why(
    experiment: Experiment, overrides: Sequence[str] = (), *, step: int | None = None, layer: int | None = None,
    worst: int = 10, told: Callable[[str], None] = lambda text: None, **chosen: Any,
) -> Why:
    """What limits a step of one combination of an experiment, and what would help.

    Returns a `Why`: ``.rows`` has the slowest steps (columns of ``steps.parquet``), ``.lines()`` five lines of the
    first: cause, link, die, expert, and what would help by how much. The last is simulated if ``step`` or ``layer`` is
    given: the step with twice of what it waits for, and under the other policies of the experiment.

    experiment: also the folder of a report. step: iteration (0: prefill); layer: as the model numbers it; either alone:
    the slowest of it. told: gets what is tried next, in words. chosen: ``policy``, ``system``, ``model``, ``batch``,
    ``assumptions``, as for `run`.

    Raises ArchsimError for a step that the run does not have; otherwise as `run`.
    """
    from archsim.studies.why import explain

    return explain(experiment_of(overridden(experiment, overrides)), step, layer, worst, chosen, told)


def verify(report: str | os.PathLike[str], jobs: int | None = None, watching: Watching | None = None) -> Verified:
    """Run a report of ``sweep``, ``explore`` or ``serve_plan`` again from its manifest, without what is kept of it.

    Returns a `Verified`: ``.moved`` has a row per column that moved, or that only one side has; ``.made`` and ``.now``:
    version and code of both. Judged are all tables that a report of its kind has, whatever its manifest lists.

    report: its folder, or its ``manifest.yaml``. jobs: parallel processes. watching: as of ``explore``.

    Raises ArchsimError for a manifest, result or own function that is not that of its digest, and for other traces.
    """
    from archsim.runs.sweep import Unwatched
    from archsim.studies.verify import report_of
    from archsim.studies.verify import verify as verified

    folder, watching = report_of(Path(report)), watching or (lambda: nullcontext(Unwatched()))
    return verified(folder, lambda file, out: _again(file, out, jobs, watching))


def _again(manifest: Path, out: Path, jobs: int | None, watching: Watching) -> None:
    """Run what a manifest holds, as the command that made it."""
    from archsim.api.loading import ExplorationPlan, load
    from archsim.api.running import sweep
    from archsim.api.serving import serve_plan
    from archsim.specs.loading.serving import Serving

    found = load(manifest)
    if isinstance(found, ExplorationPlan):
        explore(found, out, jobs, watching)
        return
    with watching() as watcher:
        if isinstance(found, Serving):
            serve_plan(manifest, out=out, around=False, watcher=watcher)
        else:
            sweep(found, out, jobs, watcher)

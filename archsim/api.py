"""The public functions of ``import archsim as ar``; an experiment is a loaded one, a path, or a mapping.

Examples in docstrings run ``ar.api.EXAMPLE``, an experiment of milliseconds. Those that end in ``SKIP`` are not run by
tests, because they take long or need files of yours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from archsim.base.errors import ArchsimError, PlacementError, SpecError
from archsim.base.tables import Shown
from archsim.laws.tables import CalibrationSpec
from archsim.specs import library
from archsim.specs.assumptions import NamedSet
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import ExploreSpec
from archsim.specs.file_kinds import EXPERIMENT, SERVE, TRAFFIC
from archsim.specs.library import Source
from archsim.specs.model import ModelSpec
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec

if TYPE_CHECKING:
    from archsim.runs.phase import PhaseTimes
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.runs.sweep import Watcher
    from archsim.search.compare import OptionComparison
    from archsim.search.deployments import DeploymentComparison, ServedWhy
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.library import Source
    from archsim.studies.ablation import Ablation
    from archsim.studies.checking import Checked
    from archsim.studies.comparison import Comparison
    from archsim.studies.designs import DesignComparison
    from archsim.studies.exploration.candidates import Exploration
    from archsim.studies.optimum import Measured, Optimum
    from archsim.studies.serving.sure import ServedSure
    from archsim.studies.sure_answer import Sure
    from archsim.studies.verify import Verified
    from archsim.studies.why import Why
    from archsim.workload.subjects import SeveralSubjects
    from archsim.workload.traffic_model import TrafficModel

    Watching = Callable[[], AbstractContextManager[Watcher]]
    import pandas

    from archsim.serving.serving import Outcome
    from archsim.specs.fabric_calibrations import FabricCalibration
    from archsim.specs.model import ModelSpec
    from archsim.specs.serving_files import Serving
    from archsim.specs.system import SystemSpec
    from archsim.studies.block_worth import BlockWorth
    from archsim.studies.claims import Claims
    from archsim.studies.place import Placed
    from archsim.studies.serving.accuracy import ServedAccuracy
    from archsim.studies.serving.calibrate import FittedConstants
    from archsim.studies.serving.calibrate import ServingComparison as ServedComparison
    from archsim.studies.serving.page import ServedPlan
    from archsim.studies.serving.recommendation import Recommendation
    from archsim.studies.serving.results import Searched
    from archsim.studies.validation.mesh import MeshValidation
    from archsim.studies.validation.validation import Validation
    from archsim.studies.worth import Worth
    from calibration.fit.calibrate import FittedCalibration
    from calibration.measurements.datasheets import Nominal
    from calibration.measurements.reading import Measurements


# ``ar.load``: files and mappings as typed values.

EXAMPLE: Mapping[str, Any] = {
    "name": "example",
    "systems": [{
        "name": "die4", "source": "made up", "mesh": {"x": 2, "y": 2}, "launch": "local_cp",
        "hbm": {"bandwidth": "1 TB/s", "capacity": "80 GB"}, "d2d": {"bandwidth": "200 GB/s", "hop_latency": "200 ns"},
        "compute": {"peak": "200 TFLOP/s", "dtype": "fp8"},
    }],
    "models": [{
        "name": "toy", "source": "made up", "layers": 3, "moe_layers": {"first": 1, "last": 2}, "hidden": 512,
        "expert_ffn": 256, "experts": 16, "top_k": 2, "shared_experts": 1, "vocabulary": 1000, "dense_ffn": 512,
        "attention": {"heads": 8, "kv_heads": 2, "head_dim": 64},
    }],
    "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 64, "context": 0, "decode_steps": 2},
    "policies": ["base", "ep"], "assumptions": "physical",
}  # fmt: skip
"""Two policies of a made-up model on four made-up dies, for examples and first trials."""


Overrides = Sequence[str] | Mapping[str, Any]
"""``["workload.batch=[64]"]`` as after ``--set``, or ``{"workload.batch": [64]}``."""


@dataclass(frozen=True)
class ExplorationPlan:
    """A file with ``sweep:`` and ``explore:``: the points and the objectives."""

    plan: SweepPlan
    spec: ExploreSpec

    def __repr__(self) -> str:
        return f"ExplorationPlan({self.plan!r}, objectives: {', '.join(self.spec.objectives)})"


Experiment = Source | ExperimentSpec | SweepPlan | ExplorationPlan
"""What functions accept as an experiment: a loaded one, the path of a file, or a mapping."""
Loaded: TypeAlias = (
    "ExperimentSpec | SweepPlan | ExplorationPlan | SystemSpec | ModelSpec | NamedSet | CalibrationSpec | Serving | "
    "TrafficModel"
)


def load(source: Source, overrides: Overrides = ()) -> Any:
    """Load a YAML file or a mapping, with references resolved; its keys show which kind it is.

    Returns an ``ExperimentSpec``; a ``Serving`` for a file of ``archsim serve``; a ``SweepPlan`` for an experiment with
    ``sweep:``; an ``ExplorationPlan`` with ``explore:`` too; or the ``SystemSpec``, ``ModelSpec``, ``NamedSet``
    (assumptions), ``CalibrationSpec`` or ``TrafficModel`` of such a file (see `Loaded`). A report's folder, or its
    ``manifest.yaml``, gives the experiment it was made from; its results are ``ar.Results.load(folder)``.

    source: path, or mapping with the same keys; quantities are text with units (``"2 TB/s"``) as in the file.
    Names in a mapping are looked up in ``./configs``, then in the configurations that archsim ships.
    overrides: ``["systems.0.hbm.bandwidth=4 TB/s"]`` or ``{"workload.batch": [64]}``, applied before validation.

    Raises SpecError with one line per problem: where, what was found, what was expected.

    >>> ar.load(ar.api.EXAMPLE)
    ExperimentSpec('example', 2 runs of toy on die4 by base, ep)
    >>> ar.load(ar.api.EXAMPLE, ["workload.batch=[8, 16, 32]"]).runs
    6
    """
    changes = override_texts(overrides)
    kind = library.kind_of_file(source)
    if kind == TRAFFIC:
        return _traffic(source, changes)
    if kind == SERVE:
        from archsim.specs.serving_files import load_serving

        return load_serving(source, changes)
    if kind != EXPERIMENT:
        return library.check_file(source, changes)
    read = library.read_experiment(source, changes)
    if read.plan is None:
        return read.experiment
    return read.plan if read.explore is None else ExplorationPlan(read.plan, read.explore)


def check(source: Source, overrides: Overrides = (), say: Callable[[str], None] = lambda text: None) -> Checked:
    """What can be said of a file before anything is simulated, as ``archsim check`` prints it: a summary, what its runs
    take, the room for KV, what its machines are as built, ranges of their numbers, and notes.

    source, overrides: as in ``load``. say: hears of work that takes a while. Raises ArchsimError for a file that is not
    valid, and for runs that do not fit, have no traffic or no calibration.

    >>> print(str(ar.check(ar.api.EXAMPLE)).splitlines()[0].partition(". ")[0])
    ok, 1 system × 1 model × 1 batch × 2 policies × 1 assumption set = 2 runs
    """
    from archsim.studies import checking

    return checking.check(load(source, overrides), source, override_texts(overrides), say)


def figure(report: str | os.PathLike[str], name: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Draw a figure of a finished report for print, and return its path. ``name``: as ``archsim sweep --figure REPORT``
    lists them; ``out``: ends in .pdf, .png or .svg (default: NAME.pdf). Raises ArchsimError for a name that the report
    does not have.

    >>> ar.figure("report", "speedups", "speedups.pdf")  # of a report that was written  # doctest: +SKIP
    """
    from archsim.report.printed_figures import write_figure

    file = Path(out or f"{name}.pdf")
    write_figure(Path(report), name, file)
    return file


def overridden(source: Experiment, overrides: Overrides) -> Experiment:
    """The source, loaded with overrides if there are any. Raises SpecError for overrides of what is loaded."""
    if not overrides:
        return source
    if isinstance(source, ExperimentSpec | SweepPlan | ExplorationPlan):
        raise SpecError("overrides change a file, a name or a mapping. Give those of a loaded experiment to ar.load")
    loaded: Experiment = load(source, overrides)
    return loaded


def experiment_of(source: Experiment) -> ExperimentSpec:
    """The experiment (of a sweep or exploration: without its axes). Raises SpecError if it is none."""
    match source:
        case ExperimentSpec():
            return source
        case SweepPlan():
            return source.experiment
        case ExplorationPlan():
            return source.plan.experiment
    return library.load_experiment(source)


def planned_of(source: Experiment) -> ExperimentSpec | SweepPlan:
    """The experiment, with its sweep if it has one. Raises SpecError if it is none."""
    match source:
        case ExperimentSpec() | SweepPlan():
            return source
        case ExplorationPlan():
            return source.plan
    return library.load_planned(source)


def exploration_of(source: Experiment) -> ExplorationPlan:
    """Raises SpecError if there is no ``sweep:`` or no ``explore:``."""
    match source:
        case ExplorationPlan():
            return source
        case ExperimentSpec():
            raise SpecError(f"{source.name}: an exploration needs sweep: to say what varies")
        case SweepPlan():
            name = source.experiment.name
            raise SpecError(f"{name}: an exploration needs explore: {{objectives: [...]}}, such as [throughput, cost]")
    return ExplorationPlan(*library.load_exploration(source))


def override_texts(overrides: Overrides) -> list[str]:
    """Overrides as ``key.path=value``. Raises SpecError for a value that YAML cannot express."""
    if isinstance(overrides, str):
        raise SpecError(f"overrides {overrides!r}: expected a list of strings or a mapping, such as [{overrides!r}]")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    try:
        return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in overrides.items()]
    except TypeError as error:
        raise SpecError(f"overrides: {error}; expected numbers, strings, lists and mappings") from None


def _traffic(source: Source, changes: Sequence[str]) -> TrafficModel | SeveralSubjects:
    from archsim.workload.traffic_presets import load_traffic, model_of

    if isinstance(source, Mapping):
        raise SpecError("mapping: load a traffic preset from its file, as its tables are beside it")
    if changes:
        raise SpecError(f"--set {changes[0]}: not supported for a traffic preset")
    return load_traffic(str(source), library.load_model(model_of(str(source))))


# ``ar.run`` and ``ar.sweep``: one combination of an experiment, or all of them.

# Engines, tables and pages are imported where they are used, so that importing this module is fast.


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
    overrides: Overrides = (),
) -> Results:
    """Simulate one combination of an experiment in this process: the named parts, else the experiment's first.

    Returns `Results` with one row in ``.runs``, one row per die in ``.dies``, one row per link in ``.links``; times in
    ns, data in bytes (see the suffix of a column's name). Writes only the timeline.

    system, model, policy, assumptions: names in the experiment; batch: one of its batch sizes (requests). step, layer,
    timeline: write the activity of every block in iteration ``step`` (0: prefill) of MoE layer ``layer`` (the model's
    numbering) to the file ``timeline``, for https://ui.perfetto.dev; give all three or none. overrides: as of `load`.

    Raises ArchsimError for a name that the experiment does not have, or a step or layer that the run does not have;
    CapacityError if the weights do not fit; SpecError and TraceError for invalid files.

    >>> (row,) = ar.run(ar.api.EXAMPLE, policy="ep").runs.rows
    >>> row["policy"], row["batch"], row["decode_ns"] > 0
    ('ep', 64, True)
    """
    from archsim.base.files import refuse_unwritable
    from archsim.report.timeline import refuse_part_of_timeline, write_step_timeline
    from archsim.runs.columns import columns_with, kinds_of
    from archsim.runs.plan import choose, select
    from archsim.runs.results import collect
    from archsim.runs.simulator import Simulator

    refuse_part_of_timeline({"step": step, "layer": layer, "timeline": timeline})
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
    experiment: Experiment,
    phase: str,
    *,
    law: str | None = None,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
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

    >>> ar.run_phase(ar.api.EXAMPLE, "dispatch", policy="ep").to_pandas().shape[0]  # iterations × MoE layers
    4
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
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    *,
    samples: int = 0,
    overrides: Overrides = (),
) -> Results:
    """Simulate every combination of an experiment, or every point of its ``sweep:`` that the constraints keep.

    Returns `Results`: one row per run in ``.runs`` (for a ``sweep:`` also ``point`` and one column per axis); ``.dies``
    and ``.links`` for few runs, or with ``details: kept``. With ``out``, a table is read on first access. The rows
    depend neither on ``jobs`` nor on runs kept from before.

    out: folder of the report: tables, manifest and page (``index.html``); runs kept there are not simulated again.
    None: nothing is written. jobs: parallel processes (default: available cores). watcher: receives progress.
    samples: worlds in which the runs that the page's first sentences name get a range, with ``out``; the command has
    32. overrides: as of `load`.

    Raises SpecError, TraceError and CapacityError before anything is simulated; ArchsimError at the end if runs failed;
    with ``out`` the others are kept.

    >>> [row["policy"] for row in ar.sweep(ar.api.EXAMPLE, jobs=1).runs.rows]
    ['base', 'ep']
    """
    from archsim.runs.plan import select
    from archsim.runs.sweep import Unwatched, sweep_selected
    from archsim.studies.comparison import failures_on_page, write_sweep_report

    watcher = watcher or Unwatched()
    selection = select(planned_of(overridden(experiment, overrides)), watcher.phase)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            results = sweep_selected(selection, Path(folder), jobs, watcher).in_memory()
    else:
        with failures_on_page(selection.plan.experiment.name, Path(out)):
            results = sweep_selected(selection, Path(out), jobs, watcher)
        write_sweep_report(selection, Path(out), samples, jobs, watcher)
    return results.with_page(partial(_report, selection, jobs))


def _report(selection: Selection, jobs: int | None, folder: Path) -> Path:
    """Write the report of runs that the cache has, or that are simulated again."""
    from archsim.runs.sweep import Unwatched, sweep_selected
    from archsim.studies.comparison import write_sweep_report

    sweep_selected(selection, folder, jobs, Unwatched())
    return write_sweep_report(selection, folder).page


# ``ar.ablate``, ``explore``, ``optimum``, ``compare``, ``engines``, ``verify`` and ``why``: many runs, one answer.

# Engines, studies and pages are imported where they are used, so that importing this module is fast.


def ablate(
    experiment: Experiment,
    start: str = "published",
    end: str = "physical",
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Ablation:
    """Effect of each assumption: from one set to another, one field at a time and in a chain.

    Returns an `Ablation`: a waterfall of speed-ups over policy ``base`` for every other policy, system, model and
    batch; ``.to_pandas()`` has one row per effect; ``.closes``: the chain's end equals the set ``end`` bit for bit.

    start, end: labels of assumption sets, of the experiment or shipped. out: folder of the page, ``ablation.csv``
    and the runs; None: nothing is written. jobs: parallel processes (default: available cores).

    Raises ArchsimError for an unknown set, equal sets, or an experiment without policy ``base``; otherwise as `sweep`.

    >>> ar.ablate("dojo").to_pandas()  # takes minutes  # doctest: +SKIP
    """
    from archsim.studies import ablation
    from archsim.studies.ablation_page import write_ablation

    whole = experiment_of(experiment)
    first, last = ablation.assumptions_named(whole, start), ablation.assumptions_named(whole, end)
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return ablation.ablate(whole, first, last, folder, jobs, watcher)
    found = ablation.ablate(whole, first, last, Path(out), jobs, watcher)
    write_ablation(found, whole.name, Path(out), ablation.ablated_experiment(whole, first, last).unread)
    return found


def explore(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watching: Watching | None = None,
    *,
    overrides: Overrides = (),
) -> Exploration:
    """Search the points of a ``sweep:`` for the Pareto-optimal designs by the objectives of ``explore:``.

    The analytical engine runs all points, the event engine those on and near the front. Returns an
    `Exploration`; ``.front`` has the Pareto-optimal points, ``.to_pandas()`` one row per point.

    out: folder of the page, ``front.csv``, and a report for every recommended design; None: nothing is written.
    jobs: parallel processes. watching: returns a context manager that gives a watcher, called once per stage.
    overrides: as of `load`.

    Raises SpecError without ``sweep:`` or ``explore:``; otherwise as `sweep`.

    >>> ar.explore("explore_dojo", "report").front  # takes minutes  # doctest: +SKIP
    """
    from archsim.runs.sweep import Unwatched
    from archsim.studies.exploration.explore import explore as explore_points
    from archsim.studies.exploration.explore import explore_to_report

    asked = exploration_of(overridden(experiment, overrides))
    plan, watching = asked.plan.with_engine("analytical"), watching or (lambda: nullcontext(Unwatched()))
    if out is None:
        with TemporaryDirectory(prefix="archsim-") as folder:
            return explore_points(plan, asked.spec, Path(folder), jobs, watching)
    return explore_to_report(plan, asked.spec, Path(out), jobs, watching)


def sure(
    experiment: Experiment,
    samples: int = 256,
    out: str | os.PathLike[str] | None = None,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    overrides: Overrides = (),
    seed: int = 0,
) -> Sure | ServedSure:
    """How sure the answer of an experiment is: its runs in ``samples`` worlds, in which all numbers with a range are
    drawn, the same for all policies, batches and systems. Of a file of ``ar.serve``: as ``ar.serve_sure``.

    Returns a `Sure`: ``.sentence`` has the verdict, ``.places`` the pairs of options with the probability of their
    order, Sobol' indices and what to measure next; ``.to_pandas()`` has one row for each option with columns
    ``_p05``, ``_p50`` and ``_p95``. Times are in ns.

    samples: 16 or more. out: folder of ``sure.html``, ``sure.csv`` and ``sure.json``; runs kept there are not simulated
    again. system, model, policy, batch, assumptions: of the experiment; None: all of them. jobs: parallel processes
    (default: available cores). overrides: as of `load`. seed: which worlds are drawn.

    Raises ArchsimError for too few samples; otherwise as `sweep`.

    >>> print(ar.sure(ar.api.EXAMPLE, 16).sentence)  # takes seconds  # doctest: +SKIP
    """
    from archsim.runs.plan import select
    from archsim.runs.sweep import Unwatched
    from archsim.studies.sure import find_sure, sure_into
    from archsim.uncertainty.worlds import refuse_few

    refuse_few(samples)
    if _is_deployment(experiment):
        return serve_sure(cast("Source", experiment), samples, override_texts(overrides), out=out, watcher=watcher,
                          jobs=jobs)  # fmt: skip
    chosen = {"system": system, "model": model, "policy": policy, "batch": batch, "assumptions": assumptions}
    watcher = watcher or Unwatched()
    selection = select(only_chosen(planned_of(overridden(experiment, overrides)), chosen), watcher.phase)
    if out is None:
        return find_sure(selection, samples, None, jobs, watcher, seed)
    return sure_into(selection, samples, Path(out), jobs, watcher, seed)


def _is_deployment(source: Any) -> bool:
    """Whether a file or mapping is one of ``ar.serve``."""
    loaded = isinstance(source, ExperimentSpec | SweepPlan | ExplorationPlan)
    return not loaded and library.kind_of_file(source) == SERVE


def only_chosen(planned: ExperimentSpec | SweepPlan, chosen: Mapping[str, Any]) -> ExperimentSpec | SweepPlan:
    """The experiment with the named parts alone; all of those without a name. Raises ArchsimError for an unknown name,
    and for names with a ``sweep:``.
    """
    from archsim.runs.plan import choose

    wanted = {name: value for name, value in chosen.items() if value is not None}
    if not wanted:
        return planned
    if isinstance(planned, SweepPlan):
        raise ArchsimError(f"{', '.join(wanted)}: a file with sweep: has its own. Set them there")
    one, lists = choose(planned, **wanted), {"system": "systems", "model": "models", "policy": "policies"}
    changed: dict[str, Any] = {lists[name]: getattr(one, lists[name]) for name in wanted if name in lists}
    changed |= {"assumptions": one.assumptions} if "assumptions" in wanted else {}
    changed |= {"workload": one.workload} if "batch" in wanted else {}
    return planned.model_copy(update=changed)


def optimum(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    steps: int = 200,
    report: Callable[[Measured], None] | None = None,
    *,
    jobs: int = 1,
    overrides: Overrides = (),
) -> Optimum:
    """How far every policy's steps are above a lower bound over all allocations.

    Returns an `Optimum`; ``.to_pandas()`` has one row per bounded step, times in ns, ``distance`` as a share (0.1: 10
    %).

    out: folder of the page and ``optimum.csv``; None: nothing is written. steps: per run to bound, evenly
    spread. report: called for every run, in their order. jobs: parallel processes. overrides: as of `load`.

    Raises ArchsimError for more than 128 dies, CapacityError if the weights do not fit.

    >>> bool((ar.optimum(ar.api.EXAMPLE).to_pandas()["distance"] >= 0).all())
    True
    """
    from archsim.studies.optimum import measure_optimum
    from archsim.studies.optimum_page import write_optimum

    whole = experiment_of(overridden(experiment, overrides))
    found = measure_optimum(whole, steps, report or (lambda _: None), jobs)
    if out is not None:
        write_optimum(list(found.runs), found.name, Path(out), whole.unread)
    return found


def compare(
    *sides: Any,
    inside: Source | ExperimentSpec | None = None,
    out: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    equal: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    prices: Mapping[str, float] | None = None,
    samples: int | None = None,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
    **chosen: Any,
) -> DesignComparison | OptionComparison | DeploymentComparison:
    """Options side by side, each as well as it can be used; two designs at one batch; or deployments.

    sides: two experiments, or with ``inside`` two of its policies or systems, and nothing else asked: a
    `DesignComparison` of the first combination of each: what differs in its specification, and in time by cause,
    traffic, energy and price. Systems (``"gb200_nvl72:8"`` is eight), or experiments with limits: an
    `OptionComparison`, by whole iterations; replicas, sizes, policy and batch of a system are chosen. Files of
    ``ar.serve``: a `DeploymentComparison`, with the same requests, which a system beside one serves in sizes that are
    chosen. All have ``.sentence`` but the first, and ``.to_pandas()``.

    limits: ``{"tpot": "50ms", "ttft": "2s", "rate": 100}``. equal: machines, devices, usd, w or mm2. vary: key of the
    sides → values. input_tokens, output_tokens: of a request; prices: GPU → USD an hour; samples: worlds (None: 32 of
    machines, 16 of deployments; 0: none). chosen: ``policy``, ``system``, ``model``, ``batch``, ``assumptions``, as for
    `run`. out: folder of the page and its tables; None: nothing is written.

    Raises ArchsimError for a name that is not there, two equal designs, sides without a common model, limits that no
    side keeps, and a price that is not known; otherwise as `run`.

    >>> ar.compare("base", "ep", inside=ar.api.EXAMPLE).to_pandas().empty
    False
    >>> ar.compare("wafer.yaml", "gb200_nvl72:8", model="deepseek-v3", limits={"tpot": "50ms"})  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.search.door import Question, compare_options
    from archsim.search.options import side_of as read_side
    from archsim.specs.file_kinds import EXPERIMENT as OF_EXPERIMENT

    given, where = dict(limits or {}), None if out is None else Path(out)
    if unknown := sorted(set(given) - {"tpot", "ttft", "rate"}):
        raise SpecError(f"limits: unknown {unknown[0]!r} (known: tpot, ttft, rate)")
    question = Question(
        model=chosen.get("model"),
        tpot=given.get("tpot"),
        ttft=given.get("ttft"),
        rate=given.get("rate"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        equal=equal,
        vary=None if not vary else {key: tuple(values) for key, values in vary.items()},
        prices=prices,
        samples=samples,
    )
    if inside is not None and (question.asks or len(sides) != 2):
        raise SpecError("--in: policies and systems of an experiment are compared two at a time, at its own batch")
    read = [] if inside is not None else [read_side(each, question.model) for each in sides]
    if inside is None and (question.asks or len(sides) != 2 or any(each.kind != OF_EXPERIMENT for each in read)):
        found = compare_options(read, question, chosen, overrides, jobs or available_cores(), report, where)
        if where is not None:
            _write_options(found, where)
        return found
    from archsim.studies import designs
    from archsim.studies.designs_page import write_comparison_page
    from archsim.studies.sides import load_side, name_of, side_of

    whole = None if inside is None else load_side(inside, overrides)
    a, b = sides
    both = [side_of(each, whole, overrides, chosen) for each in (a, b)]
    compared = designs.compare_designs((name_of(a), name_of(b)), both)
    if where is not None:
        write_comparison_page(compared, where)
    return compared


def _write_options(found: OptionComparison | DeploymentComparison, folder: Path) -> None:
    from archsim.search.compare import OptionComparison

    if isinstance(found, OptionComparison):
        from archsim.search.page import write_options

        write_options(found, folder)
        return
    from archsim.search.deployments import write_deployments

    write_deployments(found, folder)


def engines(experiment: Experiment, sample: int = 40, steps: int = 3, watcher: Watcher | None = None) -> Comparison:
    """Run a sample of an experiment's runs, or of a sweep's points, on both engines.

    Returns a `Comparison`: ``.errors`` by assumption set; ``.to_pandas()`` has one row per run, decode times in ns, the
    error as a signed share of the event engine's time.

    sample: runs drawn at random, always the same ones; steps: decode steps per run, at most. watcher: receives
    progress. Raises as `run`.

    >>> len(ar.engines(ar.api.EXAMPLE, sample=2, steps=1).to_pandas())
    2
    """
    from archsim.runs.plan import select
    from archsim.studies import comparison

    selection = select(planned_of(experiment), watcher.phase if watcher else lambda text: None)
    return comparison.compare(selection, sample, steps, watcher)


def why(
    experiment: Experiment,
    overrides: Sequence[str] = (),
    *,
    step: int | None = None,
    layer: int | None = None,
    worst: int = 10,
    report: Callable[[str], None] = lambda text: None,
    **chosen: Any,
) -> Why | ServedWhy:
    """What limits a step of one combination of an experiment, and what would help. Of a file of ``ar.serve``, a
    `ServedWhy`: what its time goes to by cause, and what doubling each rate would change.

    Returns a `Why`: ``.rows`` has the slowest steps (columns of ``steps.parquet``), ``.lines()`` five lines of the
    first: cause, link, die, expert, and what would help by how much. The last is simulated:
    the step with twice of what it waits for, and under the other policies of the experiment.

    experiment: also the folder of a report. step: iteration (0: prefill); layer: as the model numbers it; either alone:
    the slowest of it. report: gets what is tried next, in words. chosen: ``policy``, ``system``, ``model``, ``batch``,
    ``assumptions``, as for `run`.

    Raises ArchsimError for a step that the run does not have; otherwise as `run`.

    >>> len(ar.why(ar.api.EXAMPLE, policy="ep", worst=3).rows)
    3
    """
    from archsim.studies.why import explain

    if _is_deployment(experiment):
        from archsim.search.deployments import why_deployment
        from archsim.specs.serving_files import load_serving

        source = cast("Source", experiment)
        name = "the deployment" if isinstance(source, Mapping) else Path(source).stem
        return why_deployment(load_serving(source, override_texts(overrides)), name, report)
    return explain(experiment_of(overridden(experiment, overrides)), step, layer, worst, chosen, report)


def verify(report: str | os.PathLike[str], jobs: int | None = None, watching: Watching | None = None) -> Verified:
    """Run a report of ``sweep``, ``explore`` or ``serve_plan`` again from its manifest, without what is kept of it.

    Returns a `Verified`: ``.moved`` has a row per column that moved, or that only one side has; ``.made`` and ``.now``:
    version and code of both. Judged are all tables that a report of its kind has, whatever its manifest lists.

    report: its folder, or its ``manifest.yaml``. jobs: parallel processes. watching: as of ``explore``.

    Raises ArchsimError for a manifest, result or own function that is not that of its digest, and for other traces.

    >>> ar.verify("report").moved  # of a report that was written  # doctest: +SKIP
    """
    from archsim.runs.sweep import Unwatched
    from archsim.studies.verify import report_of
    from archsim.studies.verify import verify as verified

    folder, watching = report_of(Path(report)), watching or (lambda: nullcontext(Unwatched()))
    return verified(folder, lambda file, out: _again(file, out, jobs, watching))


def _again(manifest: Path, out: Path, jobs: int | None, watching: Watching) -> None:
    """Run what a manifest holds, as the command that made it."""
    from archsim.report.report import samples_in
    from archsim.specs.serving_files import Serving

    found = load(manifest)
    if isinstance(found, ExplorationPlan):
        explore(found, out, jobs, watching)
        return
    with watching() as watcher:
        if isinstance(found, Serving):
            serve_plan(manifest, out=out, around=False, watcher=watcher, jobs=jobs, samples=0)
        else:
            sweep(found, out, jobs, watcher, samples=samples_in(manifest.parent))


# ``ar.place``, ``ar.worth`` and ``ar.block_worth``: a placement of experts, and whether it or a block pays.

# numpy and numba are imported where they are used, so that importing this module is fast.

HELD_OUT = 0.25


def place(
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | ModelSpec,
    system: str | SystemSpec,
    policy: str = "eplb",
    slots: int = 0,
    *,
    num_slots: int | None = None,
    ranks: int | None = None,
    tokens: int | None = None,
    held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
) -> Placed:
    """Choose the expert in every slot on the first part of recorded loads, and judge it on the last.

    Returns a `Placed`: ``.map`` (the expert in every slot), ``.rows`` (the engines' defaults and the placement on loads
    held out in time: largest over mean load of the ranks, expected time where a calibrated law exists), ``.cost``
    (HBM and moved experts), ``.gain``, ``.notes``; ``.to_pandas()`` has one row per placement.

    loads: what an engine recorded, a load matrix, a store or a trace (docs/traces.md); several paths: the files of all
    ranks. policy: ``none``, ``eplb``, ``craft``, ``remap`` or ``dup``. slots: of a layer beyond one an expert, all
    ranks together (SGLang's --ep-num-redundant-experts); num_slots: slots of a layer in all, instead. ranks: EP size;
    None: the dies of the system. tokens: of a step, to scale loads that are sums over many steps. held_out: share of
    the matrices, the last ones. out: folder of the engines' files and ``placement.json``, which is written last.

    Raises TraceError for loads that cannot be read or are of another model; PlacementError for slots that do not divide
    or are fewer than the experts, and unknown policies; CapacityError if the experts do not fit; SpecError.

    >>> import numpy as np
    >>> np.save("loads.npy", np.random.default_rng(0).integers(1, 99, (4, 16, 64)))  # matrix, layer, expert
    >>> ar.place("loads.npy", "olmoe-1b-7b", "h200_node", slots=8).to_pandas().empty
    False
    """
    from archsim.specs.library import load_model, load_system
    from archsim.studies.place import place_experts, write_placed
    from archsim.studies.recorded_loads import read_history
    from archsim.workload.placements import check_slots

    whose = load_model(model) if isinstance(model, str) else model
    machine = load_system(system) if isinstance(system, str) else system
    size = machine.dies if ranks is None else ranks
    given = ("slots", slots, 0), ("num_slots", num_slots, 1), ("ranks", size, 1), ("tokens", tokens, 1)
    for name, value, least in given:
        if value is not None and (type(value) is not int or value < least):
            raise PlacementError(f"{name} is {value!r}; expected a whole number from {least}")
    total = whose.experts + slots if num_slots is None else num_slots
    check_slots(f"{whose.name} on {machine.name}", total, whose.experts, size)
    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads)
    history = read_history([Path(source) for source in sources], whose)
    placed = place_experts(history, whose, machine, policy, total, size, held_out, tokens)
    return placed if out is None else write_placed(placed, Path(out))


def worth(
    policy: str,
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    deployment: Source,
    overrides: Sequence[str] = (),
    *,
    held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    jobs: int = 1,
) -> Worth:
    """Whether a balancer pays: its placements on the first part of recorded loads, served on tokens of the last.

    Returns a `Worth`: ``.answer`` (how many redundant experts, and their gain), ``.verdict``, ``.rows`` (without the
    balancer and by spare slots a rank: balance, time of the experts, TTFT, TPOT, goodput, KV blocks), ``.tpot``,
    ``.ttft`` and ``.goodput`` (range of the change over three draws), ``.break_even`` (decode iterations after which a
    rearrangement has paid), ``.placed``.

    policy, loads, held_out: as of ``place``; loads None: of the traffic that is known of the model. deployment: a file
    of ``archsim serve`` with one engine; its requests and limits are served. out: folder of the engines' files of the
    best placement. samples: ``.worlds`` is what it gains where what laws are off is drawn so often (None: 16, of the
    first requests; 0: none). jobs: parallel processes.

    Raises as ``place`` and ``serve``; PlacementError for loads of one matrix, which leave nothing to judge on.

    >>> ar.worth("eplb", "loads.npz", "serve_olmoe").verdict  # takes minutes  # doctest: +SKIP
    """
    from archsim.search.deployments import policies_sentence
    from archsim.studies.worth import worth as judged

    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads or ())
    target, paths = None if out is None else Path(out), [Path(source) for source in sources]
    return judged(policy, paths, deployment, overrides, held_out, target, samples, jobs, policies_sentence)


def block_worth(
    block: str,
    experiment: Experiment,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    samples: int | None = None,
) -> BlockWorth:
    """Whether a block of the decision hardware pays: time that its policies save beside its area, power and price.

    Returns a `BlockWorth`: ``.verdict``, ``.rows`` (every run of a policy that uses the block, beside that of the
    policy that differs in it alone), ``.costs`` (mm², W, USD with range, shares of the machine), ``.break_evens``.

    block: ``prediction`` or ``allocator``. experiment: also the folder of a report, whose runs are taken (one draw);
    otherwise its policies with and without the block are simulated on three draws of the traffic, and the block pays
    what it pays in every draw, by 1 % or more. jobs, watcher: as of ``sweep``. samples: 16 or more: ``.worlds`` is what
    every pair gains where all numbers with a range are drawn so often (`sure`).

    Raises SpecError for an unknown block, for an experiment with axes, for policies of which no two differ in it alone,
    and for systems whose GPUs decide; otherwise as `sweep`.

    >>> ar.block_worth("prediction", "dojo").verdict  # takes minutes  # doctest: +SKIP
    """
    from archsim.runs.results import Results
    from archsim.specs.library import MANIFEST
    from archsim.studies.block_worth import DRAWS, drawn, in_worlds, judge, pairs_of

    report = Path(experiment) if isinstance(experiment, str | os.PathLike) and Path(experiment).is_dir() else None
    whole = planned_of(experiment if report is None else report / MANIFEST)
    if isinstance(whole, SweepPlan):
        axes = ", ".join(axis.name for axis in whole.sweep.axes)
        what = f"a block is tested on one experiment, and this one has axes: {axes}. Give each value in a file without"
        raise SpecError(f"{whole.experiment.name}: {what}")
    names = {each.name for pair in pairs_of(block, whole.policies) for each in pair}
    if report is not None:
        found = judge(block, whole, Results.load(report).runs.rows)
    fewer = whole.model_copy(update={"policies": tuple(each for each in whole.policies if each.name in names)})
    if report is None:
        draws = [sweep(drawn(fewer, at), None, jobs, watcher).runs.rows for at in range(DRAWS)]
        found = judge(block, fewer, *draws)
    return (
        found if samples is None else in_worlds(found, cast("Sure", sure(fewer, samples, jobs=jobs, watcher=watcher)))
    )


# ``ar.serve``: requests over time on a deployment; a search of configurations; a measurement beside the simulation.

# numpy and numba are imported where they are used, so that importing this module is fast.


def serve(
    source: Source,
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    around: bool = True,
    timeline: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Serve the requests of a file (or mapping) on its deployment, under the first of its policies.

    Returns an `Outcome`: ``.measures`` (TTFT, TPOT, ITL, E2E in ms; requests, goodput and tokens a second; KV use),
    ``.served`` (times of every request), ``.notes``. out: folder, as of ``serve_plan``. around: for the page, also
    serve the file's ``loads``, or shares of the traffic. timeline: file for Perfetto, of iterations, requests and use
    of KV. Of a file with ``sweep:``, its first point is served.

    Raises SpecError, TraceError, CapacityError; LawMissing for what no calibration has.

    >>> ar.serve("serve_olmoe").measures  # takes seconds  # doctest: +SKIP
    """
    from archsim.report.serving_timeline import MOST_ITERATIONS
    from archsim.serving.serving import serve as served
    from archsim.specs.serving_files import load_serving

    serving = load_serving(source, overrides)
    if timeline is not None:
        found = served(serving, MOST_ITERATIONS)
        _draw(found, Path(timeline))
    if out is None:
        return found if timeline is not None else served(serving)
    return serve_plan(source, overrides, out=out, around=around, first=True, samples=0).outcomes[0]


def serve_policies(
    source: Source, overrides: Sequence[str] = (), *, out: str | os.PathLike[str] | None = None, around: bool = True
) -> list[Outcome]:
    """Serve the same requests under every policy of the file's ``policies:``. Files with axes are not supported.

    >>> [each.measures for each in ar.serve_policies("serve_olmoe")]  # takes seconds  # doctest: +SKIP
    """
    return list(serve_plan(source, overrides, out=out, around=around, samples=0).outcomes)


def serve_plan(
    source: Source,
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    around: bool = True,
    first: bool = False,
    watcher: Watcher | None = None,
    jobs: int | None = None,
    samples: int | None = None,
) -> ServedPlan:
    """Serve every point of a file's ``sweep:`` (or the file) under every policy.

    out: folder of ``manifest.yaml``, ``results.csv``, ``results.parquet`` and ``index.html``; of a file without axes
    also ``bench.json`` (keys of ``vllm bench serve``), ``requests.csv``, and a folder of these for every further
    policy. Runs that are kept there, or in the cache, are not served again. first: under the first policy alone, and
    the first point. watcher, jobs: as of ``ar.sweep``; without ``out``, runs are served one after the other. samples:
    as of ``serve_sure``, for the ranges of all runs (None: 16, of a file with axes of at most 8 runs; 0: none).
    ``.answer`` has the best point or policy with its range, or p99 of one and the rate that it sustains; ``.sampled``
    the `ServedSure`.

    Raises as ``serve``; points of a file with axes that cannot run are rows that say why.

    >>> ar.serve_plan("serve_olmoe", out="report").outcomes  # takes seconds  # doctest: +SKIP
    """
    from archsim.search.served_axes import serve_axes, serve_load
    from archsim.studies.serving.runs import serve_plan as planned

    plan, folder = planned(source, overrides, first=first), None if out is None else Path(out)
    if plan.has_axes:
        return serve_axes(plan, folder, samples, jobs, watcher)
    return serve_load(plan, folder, samples, jobs, watcher, around)


def serve_sure(
    source: Source,
    samples: int = 64,
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    watcher: Watcher | None = None,
    jobs: int | None = None,
) -> ServedSure:
    """How sure the numbers of a served file are: its runs in ``samples`` worlds, in which what its laws are off is
    drawn, the same for all policies and points.

    Returns a `ServedSure`: ``.sentence`` has the headlines with their intervals and the probability of the order;
    ``.to_pandas()`` one row for each run, with columns ``_p05``, ``_p50`` and ``_p95``.

    samples: 16 or more. out: folder of ``sure.html``, ``sure.csv`` and ``sure.json``; worlds kept there are not served
    again. watcher, jobs: as of ``ar.sweep``.

    Raises ArchsimError for too few samples; otherwise as ``serve``.

    >>> print(ar.serve_sure("serve_olmoe", 16).sentence)  # takes minutes  # doctest: +SKIP
    """
    from archsim.studies.serving.runs import serve_plan as planned
    from archsim.studies.serving.sure import find_sure, write_sure

    found = find_sure(planned(source, overrides), samples, None if out is None else Path(out), watcher, jobs)
    if out is not None:
        write_sure(found, Path(out))
    return found


def search_serving(
    source: Source, overrides: Sequence[str] = (), *, jobs: int = 1, report: Callable[[str], None] = lambda text: None
) -> Searched:
    """Parallel sizes and batch limits of a file's ``search:``, most goodput first. jobs: processes. report: how far it
    is. Raises as ``serve``.

    >>> ar.search_serving("serve_h200", jobs=2)  # takes minutes  # doctest: +SKIP
    """
    from archsim.specs.serving_files import load_serving
    from archsim.studies.serving.results import Searched
    from archsim.studies.serving.search import search

    return Searched(search(load_serving(source, overrides), report, jobs=jobs))


def recommend(
    model: Source,
    on: str | Sequence[str],
    *,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
    out: str | os.PathLike[str] | None = None,
    loads: Sequence[str | os.PathLike[str]] = (),
    **asked: Any,
) -> Recommendation:
    """What to serve a model with: engine, GPU, parallel sizes, precision, batch limits and pools.

    on: GPUs and how many there are, such as ``h200:32``; several are compared. Limits: ``ttft``, ``tpot``, ``e2e``
    (texts with units, such as ``50ms``). Traffic: ``input_tokens``, ``output_tokens`` (means; None: 1,024 and 512, or
    fewer for a model of few positions) and ``spread`` (coefficient of variation), or ``requests`` (a trace). Budget:
    ``usd_per_hour``, ``watts``; ``prices``: GPU → USD an hour. ``rate``: requests a second that must be served, by the
    cheapest GPUs. ``engines``, ``precisions``: that may be chosen. ``objective``: throughput, price or energy.
    ``pools``: also engines that only prefill or decode; ``stages``, ``context``, ``drafts`` (with ``acceptance``):
    numbers that are tried beside none. jobs: processes (None: all cores). out: folder of the files to start it with;
    loads: recorded loads of experts, for a placement.

    Returns a `Recommendation`: ``.best`` and ``.others`` (each with ``.choice``, ``.rate_per_s`` and its 80 % range,
    ``.probability`` that it is the best, ``.usd_per_million``, ``.upkeep``), ``.measures`` of the best under load,
    ``.started``; ``.to_pandas()`` has one row a configuration. Raises SpecError, also where nothing is within the
    limits.

    >>> ar.recommend("olmoe-1b-7b", "h200:8", tpot="20ms").best  # takes minutes  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.studies.serving.question import asked_of
    from archsim.studies.serving.recommend import recommend as recommended
    from archsim.studies.serving.recommendation import write_recommendation

    question = asked_of(model, [on] if isinstance(on, str) else on, **asked)
    found = recommended(question, report, jobs or available_cores())
    if out is not None:
        write_recommendation(found, Path(out), [Path(each) for each in loads])
    return found


def compare_serving(
    source: Source, measured: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> ServedComparison:
    """A JSON of ``vllm bench serve`` beside the simulation of a file. Raises as ``serve``.

    >>> ar.compare_serving("serve_olmoe", "bench.json")  # needs a measurement  # doctest: +SKIP
    """
    from archsim.specs.serving_files import load_serving
    from archsim.studies.serving.calibrate import compare_bench

    return compare_bench(load_serving(source, overrides), Path(measured))


def calibrate_serving(
    source: Source,
    measured: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    report: Callable[[str], None] = lambda text: None,
) -> FittedConstants:
    """The host's constants that a measured run implies (JSON of ``vllm bench serve``, AIPerf or InferenceX), and how
    far the half that was not fitted is off. report: which simulation is next. Raises as ``serve``.

    >>> ar.calibrate_serving("serve_olmoe", "bench.json")  # needs a measurement  # doctest: +SKIP
    """
    from archsim.specs.serving_files import load_serving
    from archsim.studies.serving.calibrate import calibrate_host

    return calibrate_host(load_serving(source, overrides), Path(measured), report)


def validate_served(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    deployment: Source | None = None,
    *,
    format: str | None = None,
    time_unit: str | None = None,
    most_clients: int | None = None,
    against: str | os.PathLike[str] | None = None,
    page: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> ServedAccuracy:
    """Results of InferenceX, AIPerf, GuideLLM, ``vllm bench serve`` or SGLang's bench_serving, each simulated.

    files: of results. deployment: a file (or mapping) of ``archsim serve`` on which they were measured, for results
    that do not say it. format: ``inferencex``, ``inferencex-json``, ``aiperf``, ``guidellm``, ``vllm`` or ``sglang``;
    None: known by their keys. time_unit: of their times, ``s``, ``ms``, ``us`` or ``ns``; None: that of the format.
    most_clients: leave closed loops of more out. against: table of an earlier ``page``. page: Markdown file to write,
    with a table (.csv) beside it. jobs: processes (None: all cores).

    Returns a `ServedAccuracy`: ``.judged`` (every point, measured and simulated), ``.cells`` (medians of errors by
    engine, GPU, model and precision), ``.refused``, ``.worsened``. Raises TraceError for files of no format, SpecError.

    >>> ar.validate_served("results", page="served.md").cells  # needs measurements  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.studies.serving.accuracy import validate_served as validated
    from archsim.studies.serving.accuracy import write_page

    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    found = validated(
        [Path(each) for each in paths], deployment, name=format, unit=time_unit, most_clients=most_clients,
        against=Path(against) if against else None, jobs=jobs or available_cores(), report=report,
    )  # fmt: skip
    if page is not None:
        write_page(found, Path(page))
    return found


def _draw(outcome: Outcome, path: Path) -> None:
    from archsim.report.serving_timeline import write_serving_timeline

    write_serving_timeline(outcome.served, path, f"{outcome.serving.model.name} on {outcome.serving.system.name}")


# ``ar.calibrate`` and ``ar.validate``: fit parameters to measurements of a GPU, and check how well they predict.

# pandas and the fits are imported where they are used, so that importing this module is fast.


@dataclass(frozen=True)
class Calibrations(Shown):
    """What `calibrate` fitted, by GPU."""

    fitted: tuple[FittedCalibration, ...]
    measurements: Measurements

    def __repr__(self) -> str:
        return f"Calibrations({', '.join(map(repr, self.fitted))})"

    def __getitem__(self, gpu: str) -> FittedCalibration:
        return {each.gpu: each for each in self.fitted}[gpu]

    def to_pandas(self) -> pandas.DataFrame:
        """One row per GPU: gpu, file (None if none was written), and the number of fitted tables of each section."""
        import pandas

        from archsim.laws.tables import SECTIONS

        rows = [(each.gpu, each.path, *(each.tables.get(kind, 0) for kind in SECTIONS)) for each in self.fitted]
        return pandas.DataFrame(rows, columns=["gpu", "file", *SECTIONS])


def calibrate(
    measurements: str | os.PathLike[str] | Measurements,
    out: str | os.PathLike[str] | None = None,
    *,
    gpu: str | None = None,
    peaks: Mapping[str, float | str] | None = None,
    hbm: float | str | None = None,
    report: Callable[[FittedCalibration], None] | None = None,
    only: Sequence[str] = (),
) -> Calibrations:
    """Fit the laws of GEMMs, fused MoE layers, transfers, HBM and launches to measurements.

    measurements: folder of CSV files, or one file. out: YAML file for one GPU (named after it), or a folder for one
    file per GPU; None: nothing is written. gpu: short name of the only GPU to fit, such as ``h100``.
    peaks: dtype → nominal peak in FLOP/s, or text such as ``"600 TFLOP/s"``; hbm: nominal bandwidth in bytes/s, or text
    such as ``"2.4 TB/s"``: both for a GPU without a datasheet here. report: called for every GPU once it is fitted.
    only: sections to fit, such as ``["moe"]``, in the files that there are; the others stay. Empty: all.

    Raises CalibrationError if no measurement can be used, or if one GPU must be chosen; SpecError for an invalid rate.

    >>> ar.calibrate("measurements", "h100.yaml", gpu="h100")  # needs measurements  # doctest: +SKIP
    """
    from archsim.laws.tables import SECTIONS
    from calibration.fit.calibrate import calibrate_gpus

    named = _nominal(peaks or {}, hbm)
    read, to = _to_fit(measurements, named, gpu), None if out is None else os.fspath(out)
    fitted = calibrate_gpus(read, to, gpu, named, report or (lambda _: None), only or SECTIONS)
    return Calibrations(fitted, read)


def validate(
    measurements: str | os.PathLike[str] | Measurements,
    calibration: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    quick: bool = False,
) -> Validation:
    """Compare a calibration with measurements, and fits with measurements held out of them.

    measurements: folder of CSV files, or one file. calibration: name or file. out: folder of the page and its tables;
    None: nothing is written. quick: only evaluate the calibration; no held-out fits.

    Raises CalibrationError if there are no measurements of the calibrated GPU; SpecError for an invalid file.

    >>> ar.validate("measurements", "h100", "page")  # needs measurements  # doctest: +SKIP
    """
    from archsim.studies.validation.validation import validate_calibration

    found = validate_calibration(os.fspath(calibration), _read(measurements), quick)
    if out is not None:
        found.write(Path(out))
    return found


def calibrate_meshes(
    *folders: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    report: Callable[[FabricCalibration, Path | None], None] | None = None,
) -> list[FabricCalibration]:
    """Fit the laws of measured meshes of chips: endpoints, links by packet size, latency of a hop.

    folders: of CSV files (docs/meshes.md). out: folder for one file per machine; None: none is written. report: called
    for every machine with its file, or None.

    Raises CalibrationError for a file that is not as expected; its message has the file, the line and the column.

    >>> ar.calibrate_meshes("measurements", out="fabrics")  # needs measurements  # doctest: +SKIP
    """
    from archsim.specs.fabric_calibrations import write_fabric_calibration
    from calibration.fit.mesh import fit_meshes
    from calibration.measurements.mesh import read_meshes

    found = fit_meshes(read_meshes(*(Path(each) for each in folders)))
    for fitted in found:
        path = None if out is None else Path(out) / f"{fitted.machine}.yaml"
        if path is not None:
            write_fabric_calibration(fitted, path)
        if report is not None:
            report(fitted, path)
    return found


def validate_meshes(
    *folders: str | os.PathLike[str], calibration: str | os.PathLike[str] | None = None
) -> MeshValidation:
    """Measured meshes of chips beside what calibrations of fabrics say, and beside null models, case by case.

    folders: of CSV files (docs/meshes.md); several count as one. calibration: of a fabric, by name or file; None: all
    shipped ones.

    Raises CalibrationError for a file that is not as expected, and for a case of a topology on which its law was not
    measured; SpecError for an unknown calibration.

    >>> ar.validate_meshes("measurements", calibration="blackhole")  # needs measurements  # doctest: +SKIP
    """
    from archsim.specs.fabric_calibrations import fabric_calibration
    from archsim.studies.validation import mesh

    known = None if calibration is None else [fabric_calibration(Path(calibration))]
    return mesh.validate_meshes(*map(Path, folders), fabrics=known)


def _to_fit(measurements: str | os.PathLike[str] | Measurements, named: Nominal, gpu: str | None) -> Measurements:
    from calibration.measurements.fittable import fittable
    from calibration.measurements.peaks import Peaks
    from calibration.measurements.reading import Measurements, read_measurements

    if isinstance(measurements, Measurements):
        return measurements
    return fittable(read_measurements(Path(measurements), Peaks(named, gpu)))


def _read(measurements: str | os.PathLike[str] | Measurements) -> Measurements:
    from calibration.measurements.reading import Measurements, read_measurements

    return measurements if isinstance(measurements, Measurements) else read_measurements(Path(measurements))


def _nominal(peaks: Mapping[str, float | str], hbm: float | str | None) -> Nominal:
    from calibration.measurements.datasheets import Nominal, hbm_named

    try:
        rates = {dtype: _peak(dtype, rate) for dtype, rate in peaks.items()}
        return Nominal(rates, hbm_named(hbm) if isinstance(hbm, str) else hbm)
    except ValueError as error:
        raise SpecError(str(error)) from None


def _peak(dtype: str, rate: float | str) -> float:
    from calibration.measurements.datasheets import peak_named

    return peak_named(f"{dtype}={rate}")[1] if isinstance(rate, str) else float(rate)


# ``ar.claims``: the published numbers of papers beside runs of their experiments.


def claims(
    papers: Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] = "reports/claims",
    jobs: int | None = None,
    watcher: Watcher | None = None,
    recorded: bool = False,
) -> list[Claims]:
    """Run what is missing of the papers' experiments, judge every row of their files, and write their pages.

    Returns a `Claims` a paper: ``.judged`` (published, null models, simulated under the paper's rules and under
    ``physical``, skill, verdict), ``.signs``, ``.answers``, ``.numbers``. papers: names of configs/papers, or paths;
    none: all of them, and then a page over all. out: folder of the pages and of ``recorded.json``, the values that were
    simulated; runs kept there are not simulated again. jobs: parallel processes. recorded: simulate nothing, and judge
    values that this code recorded, in ``out`` or as shipped (configs/papers/recorded.json); papers whose values other
    code computed are left out.

    Raises SpecError, TraceError and CapacityError before anything is simulated, and SpecError where all papers would be
    left out; FailedRuns at the end if runs failed.

    >>> [each.paper.paper for each in ar.claims(["wafer"], "claims")]  # doctest: +SKIP
    ['wafer']
    """
    from archsim.base.files import own_folder, write_text
    from archsim.runs.sweep import Unwatched
    from archsim.specs.papers import load_paper, paper_names, recorded_values
    from archsim.studies.claims import judge_paper, judge_recorded
    from archsim.studies.claims_page import write_claims, write_summary

    folder, found = Path(out), []
    own_folder(folder)
    read = [load_paper(each) for each in papers or paper_names()]
    kept = folder / "recorded.json"
    own: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for paper in read:
        if recorded:
            of_both = (each.get(paper.paper, {}) for each in (own, recorded_values()))
            judged = next(filter(None, (judge_recorded(paper, each) for each in of_both)), None)
        else:
            own_folder(folder / paper.paper)
            judged = judge_paper(paper, folder / paper.paper, jobs, watcher or Unwatched())
        if judged is not None:
            write_claims(judged, folder / paper.paper)
            found.append(judged)
    if not found:
        names = " ".join(each.paper for each in read)
        raise SpecError(f"other code computed what is recorded of {names}. Simulate: archsim compare --papers {names}")
    write_text(
        kept,
        json.dumps(own | {each.paper.paper: each.as_recorded() for each in found}, indent=1, sort_keys=True) + "\n",
    )
    if not papers:
        write_summary(found, folder)
    return found

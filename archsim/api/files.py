"""``ar.load``, ``ar.check``, ``ar.figure``: files and mappings as typed values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from archsim.base.errors import SpecError
from archsim.laws.tables import CalibrationSpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs import library
from archsim.specs.assumptions import NamedSet
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import ExploreSpec
from archsim.specs.file_kinds import EXPERIMENT, SERVE, TRAFFIC, guess_note, kind_of
from archsim.specs.library import Source
from archsim.specs.plan import SweepPlan

if TYPE_CHECKING:
    from archsim.questions.checking import Checked
    from archsim.specs.serving_files import Serving
    from archsim.traffic.subjects import SeveralSubjects
    from archsim.traffic.traffic_model import TrafficModel


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
    data = library.tree_of(source).data
    try:
        return _load_kind(kind_of(data), source, changes)
    except SpecError as error:
        if note := guess_note(library.label_of(source), data):
            raise SpecError(f"{error}{note}") from error
        raise


def _load_kind(kind: str, source: Source, changes: Sequence[str]) -> Any:
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
    from archsim.questions import checking

    return checking.check(load(source, overrides), source, override_texts(overrides), say)


def figure(report: str | os.PathLike[str], name: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Draw a figure of a finished report for print, and return its path. ``name``: as ``archsim sweep --figure REPORT``
    lists them; ``out``: ends in .pdf, .png or .svg (default: NAME.pdf). Raises ArchsimError for a name that the report
    does not have.

    >>> ar.figure("report", "speedups", "speedups.pdf")  # of a report that was written  # doctest: +SKIP
    """
    from archsim.show.printed_figures import write_figure

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
    from archsim.traffic.traffic_presets import load_traffic, model_of

    if isinstance(source, Mapping):
        raise SpecError("mapping: load a traffic preset from its file, as its tables are beside it")
    if changes:
        raise SpecError(f"--set {changes[0]}: not supported for a traffic preset")
    return load_traffic(str(source), library.load_model(model_of(str(source))))

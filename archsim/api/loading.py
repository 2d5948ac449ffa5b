"""``ar.load``: files and mappings as typed values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from archsim.base.errors import SpecError
from archsim.laws.tables import CalibrationSpec
from archsim.specs.assumptions import NamedSet
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.loading import library
from archsim.specs.loading.file_kinds import EXPERIMENT, SERVE, TRAFFIC, kind_of
from archsim.specs.loading.library import Source
from archsim.specs.loading.serving import Serving, load_serving
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.sweeps.explore import ExploreSpec
from archsim.specs.sweeps.plan import SweepPlan

if TYPE_CHECKING:
    from archsim.workload.generated.subjects import SeveralSubjects
    from archsim.workload.generated.traffic_model import TrafficModel

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
    """
    changes = override_texts(overrides)
    kind = kind_of(library.tree_of(source).data)
    if kind == TRAFFIC:
        return _traffic(source, changes)
    if kind == SERVE:
        return load_serving(source, changes)
    if kind != EXPERIMENT:
        return library.check_file(source, changes)
    read = library.read_experiment(source, changes)
    if read.plan is None:
        return read.experiment
    return read.plan if read.explore is None else ExplorationPlan(read.plan, read.explore)


def overridden(source: Experiment, overrides: Overrides) -> Experiment:
    """The source, loaded with overrides if there are any. Raises SpecError for overrides of what is loaded."""
    if not overrides:
        return source
    if isinstance(source, ExperimentSpec | SweepPlan | ExplorationPlan):
        raise SpecError("overrides are of a file, a name or a mapping; give those of a loaded experiment to ar.load")
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
    from archsim.workload.generated.traffic_presets import load_traffic, model_of

    if isinstance(source, Mapping):
        raise SpecError("mapping: load a traffic preset from its file, as its tables are beside it")
    if changes:
        raise SpecError(f"--set {changes[0]}: not supported for a traffic preset")
    return load_traffic(str(source), library.load_model(model_of(str(source))))

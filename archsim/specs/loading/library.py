"""Loads experiments, systems, models and assumption sets by name or path."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from archsim.base.errors import SpecError
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.loading.calibration_paths import find_calibrations
from archsim.specs.loading.file_kinds import EXPERIMENT_KEYS, SPECS, kind_of, refuse_other_kinds
from archsim.specs.loading.overrides import apply_overrides
from archsim.specs.loading.references import DEFAULT_ASSUMPTIONS, References, folders_around
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.sweeps.axes import SWEEP_KEY, Axis, SweepSpec, canonical, read_sweep
from archsim.specs.sweeps.explore import EXPLORE_KEY, ExploreSpec
from archsim.specs.sweeps.plan import SweepPlan
from archsim.specs.sweeps.variants import PLURAL
from archsim.specs.text.fields import Spec
from archsim.specs.text.validation import validate
from archsim.specs.text.yaml import Place, Tree, read_yaml

# The file of a report that holds its experiment, and the keys it records beside it, which are skipped here.
MANIFEST, MANIFEST_KEY = "manifest.yaml", "manifest"


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentSpec:
    """The experiment in a YAML file (or in a report's manifest), after ``key.path=value`` overrides.

    Raises SpecError with one line per problem.
    """
    return _read(path, overrides).experiment


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> SweepPlan | None:
    """The experiment in a file with its ``sweep:``, or None if it has none. Raises SpecError."""
    planned = load_planned(path, overrides)
    return planned if isinstance(planned, SweepPlan) else None


def load_planned(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentSpec | SweepPlan:
    """The experiment in a file, with its ``sweep:`` if it has one; the file is read once. Raises SpecError."""
    read = _read(path, overrides)
    return read.experiment if read.sweep is None else read.plan(path)


def load_exploration(path: str | Path, overrides: Sequence[str] = ()) -> tuple[SweepPlan, ExploreSpec]:
    """The experiment in a file with its ``sweep:`` and its ``explore:``. Raises SpecError, also if either is missing.
    """
    read = _read(path, overrides)
    if read.sweep is None or read.explore is None:
        missing = (
            f"{SWEEP_KEY}:, which lists what may vary"
            if read.sweep is None
            else f"{EXPLORE_KEY}: {{objectives: [throughput, cost]}}, or others"
        )
        raise SpecError(f"{path}: an exploration needs {missing}")
    return read.plan(path), read.explore


class _Read(NamedTuple):
    """An experiment file: its tree without sweep and exploration, with references expanded, and the two."""

    tree: Tree
    sweep: SweepSpec | None
    explore: ExploreSpec | None
    experiment: ExperimentSpec

    def plan(self, path: str | Path) -> SweepPlan:
        return SweepPlan(self.tree, self.sweep, self.experiment, Path(path).parent)


def _read(path: str | Path, overrides: Sequence[str]) -> _Read:
    """Raises SpecError that covers all references and keys.

    A list that an axis gives as a whole (systems, models, policies, batches) may be missing; its first value stands in.
    """
    tree = read_yaml(path)
    refuse_other_kinds(path, tree.data)
    _refuse_short_paths(overrides)
    tree.data.pop(MANIFEST_KEY, None)
    references = References(tree, Path(path).parent)
    apply_overrides(tree, overrides, references.expand)
    sweep = read_sweep(tree) if SWEEP_KEY in tree.data else None
    explore = validate(ExploreSpec, tree, (EXPLORE_KEY,)) if EXPLORE_KEY in tree.data else None
    tree.data.pop(SWEEP_KEY, None)
    tree.data.pop(EXPLORE_KEY, None)
    for axis in sweep.axes if sweep else ():
        _stand_in(tree, axis)
    return _Read(tree, sweep, explore, validate(ExperimentSpec, tree, problems=references.expand_all()))


def _refuse_short_paths(overrides: Sequence[str]) -> None:
    """Raise SpecError for an override whose path begins like that of an axis, not with a key of an experiment."""
    for text in overrides:
        path = text.partition("=")[0].strip()
        if path.split(".")[0] in EXPERIMENT_KEYS:
            continue
        try:
            root, *rest = canonical(path)
        except ValueError:
            continue  # reported when the tree is validated
        begin = f"{PLURAL[root]}.0" if root in PLURAL and root != "assumptions" else root
        raise SpecError(
            f"--set {text}: an experiment has no key {path.split('.')[0]!r}; did you mean {'.'.join([begin, *rest])!r}?"
        )


def _stand_in(tree: Tree, axis: Axis) -> None:
    if axis.path == ("workload", "batch") and isinstance(tree.find(("workload",)), dict):
        tree.data["workload"].setdefault("batch", axis.values[0])
    elif len(axis.path) == 1 and axis.path[0] in PLURAL:
        if tree.data.setdefault(PLURAL[axis.path[0]], [axis.values[0]]) == [axis.values[0]]:
            tree.places.setdefault((PLURAL[axis.path[0]], 0), axis.places[0])


def load_system(name: str) -> SystemSpec:
    """Load a system by name or path, as in an experiment's ``systems``. Raises SpecError."""
    tree = _reference("systems", name)
    return validate(SystemSpec, tree, ("systems", 0))


def load_model(name: str) -> ModelSpec:
    """Load a model by name or path, as in an experiment's ``models``. Raises SpecError."""
    tree = _reference("models", name)
    return validate(ModelSpec, tree, ("models", 0))


def load_assumptions(name: str = DEFAULT_ASSUMPTIONS, **changes: str) -> AssumptionsSpec:
    """Load a named assumption set with some fields changed. Raises SpecError."""
    tree = Tree({"assumptions": [{"set": name, **changes}]}, {(): Place("assumptions")})
    References(tree, None).expand_all()
    return validate(AssumptionsSpec, tree, ("assumptions", 0))


def check_file(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Load the spec in a file: an experiment, or the kind of ``archsim.specs.loading.file_kinds.SPECS`` that its keys
    indicate. Raises SpecError.
    """
    tree = read_yaml(path)
    kind = SPECS.get(kind_of(tree.data), ExperimentSpec)
    if kind is ExperimentSpec:
        return load_experiment(path, overrides)
    apply_overrides(tree, overrides, lambda keys: None)
    if kind is SystemSpec:
        find_calibrations(tree, (), folders_around(Path(path).parent))
    return validate(kind, tree)


def _reference(kind: str, name: str) -> Tree:
    keys = (kind, 0)
    tree = Tree({kind: [name]}, {(): Place(kind), keys: Place(name)})
    References(tree, None).expand(keys)
    return tree

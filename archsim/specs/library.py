"""Loading experiments, systems, models and assumption sets by name or path."""

from collections.abc import Sequence
from pathlib import Path

from archsim.specs.assumptions import AssumptionsSpec, NamedSet
from archsim.specs.base import Spec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.hardware import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.overrides import apply_overrides
from archsim.specs.references import DEFAULT_ASSUMPTIONS, References
from archsim.specs.validation import keys_of, validate
from archsim.specs.yaml_loader import Place, Tree, read_yaml

# What the manifest of a report records beside the experiment; read by whoever wrote it, skipped here.
MANIFEST_KEY = "manifest"


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentSpec:
    """The experiment in a YAML file (or in the manifest of a report), after ``key.path=value`` overrides.

    Raises SpecError; its message has one line for every problem.
    """
    tree = read_yaml(path)
    tree.data.pop(MANIFEST_KEY, None)
    references = References(tree, Path(path).parent)
    apply_overrides(tree, overrides, references.expand)
    references.expand_all()
    return validate(ExperimentSpec, tree)


def load_system(name: str) -> SystemSpec:
    """A system by name or path, as in an experiment's ``systems``. Raises SpecError."""
    tree = _reference("systems", name)
    return validate(SystemSpec, tree, ("systems", 0))


def load_model(name: str) -> ModelSpec:
    """A model by name or path, as in an experiment's ``models``. Raises SpecError."""
    tree = _reference("models", name)
    return validate(ModelSpec, tree, ("models", 0))


def load_assumptions(name: str = DEFAULT_ASSUMPTIONS, **changes: str) -> AssumptionsSpec:
    """A named assumption set with some fields changed. Raises SpecError."""
    tree = Tree({"assumptions": [{"set": name, **changes}]}, {(): Place("assumptions")})
    References(tree, None).expand_all()
    return validate(AssumptionsSpec, tree, ("assumptions", 0))


def check_file(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in a file of any kind: an experiment, or what its keys tell it to be. Raises SpecError."""
    tree = read_yaml(path)
    kinds = (ExperimentSpec, SystemSpec, ModelSpec, NamedSet)
    kind = max(kinds, key=lambda kind: len(set(tree.data) & set(keys_of(kind))))
    if kind is ExperimentSpec:
        return load_experiment(path, overrides)
    apply_overrides(tree, overrides, lambda keys: None)
    return validate(kind, tree)


def _reference(kind: str, name: str) -> Tree:
    keys = (kind, 0)
    tree = Tree({kind: [name]}, {(): Place(kind), keys: Place(name)})
    References(tree, None).expand(keys)
    return tree

"""Loads experiments, systems, models and assumption sets by name or path."""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from archsim.base import config_files, errors, fields, validation, yaml
from archsim.laws import calibration_sections
from archsim.laws.tables import CalibrationSpec
from archsim.machine.system import SystemSpec
from archsim.model import spec as model
from archsim.specs import assumptions, calibration_paths, variants
from archsim.specs.axes import SWEEP_KEY, Axis, canonical, first_parts, read_sweep, with_wafers
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import EXPLORE_KEY, ExploreSpec
from archsim.specs.file_kinds import EXPERIMENT_KEYS, SPECS, kind_of, refuse_other_kinds
from archsim.specs.overrides import apply_overrides
from archsim.specs.plan import SweepPlan, plan_without_axes
from archsim.specs.references import DEFAULT_ASSUMPTIONS, References, folders_around, is_path
from archsim.specs.unread import WrittenKeys, recorded_unread, unread_keys

# The file of a report that holds its experiment, and the keys it records beside it, which are skipped here.
MANIFEST, MANIFEST_KEY = "manifest.yaml", "manifest"
FIRST_RELEASE = "0.2.0"  # whose manifests are read
_MOST_INTEGER = 10**99  # as in YAML
_LONGEST_REPR = 60  # of a value in a message
Source = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a YAML file, the name of an experiment in configs, or a mapping with the keys that such a file has."""


def load_experiment(source: Source, overrides: Sequence[str] = ()) -> ExperimentSpec:
    """The experiment in a YAML file (or in the manifest of a report) or mapping, after ``key.path=value`` overrides.

    Of a file with ``sweep:``, the experiment without its axes, and ``unread`` says so. Raises SpecError with one line
    per problem.

    >>> ar.load_experiment("dojo").name
    'dojo'
    """
    read = read_experiment(source, overrides)
    if read.plan is not None:
        return with_unread(read.experiment, read.recorded, read.written, read.plan.sweep.axes)
    return read.experiment


def load_planned(source: Source, overrides: Sequence[str] = ()) -> ExperimentSpec | SweepPlan:
    """The experiment in a file, with its ``sweep:`` if it has one; the file is read once. Raises SpecError."""
    read = read_experiment(source, overrides)
    return read.experiment if read.plan is None else read.plan


def load_exploration(source: Source, overrides: Sequence[str] = ()) -> tuple[SweepPlan, ExploreSpec]:
    """The experiment in a file with its ``sweep:`` and its ``explore:``. Raises SpecError, also if it lacks either."""
    read = read_experiment(source, overrides)
    if read.plan is None:
        raise errors.SpecError(f"{label_of(source)}: an exploration needs {SWEEP_KEY}:, which says what may vary")
    if read.explore is None:
        needed = f"{EXPLORE_KEY}: {{objectives: [throughput, cost]}}, or others"
        raise errors.SpecError(f"{label_of(source)}: an exploration needs {needed}")
    return read.plan, read.explore


AXIS_UNREAD = "`archsim sweep` runs all values of an axis; here the file without its axes runs"


class ReadExperiment(NamedTuple):
    """An experiment's file, read."""

    experiment: ExperimentSpec  # without axes
    plan: SweepPlan | None  # of its ``sweep:``, where it has one
    explore: ExploreSpec | None  # its ``explore:``, where it has one
    written: WrittenKeys  # keys that its user gave a value to
    recorded: tuple[str, ...]  # sentences on unread keys that a manifest has


def read_experiment(source: Source, overrides: Sequence[str] = ()) -> ReadExperiment:
    """Raises SpecError for all references and keys together. What an axis gives as a whole (systems, models, policies,
    batches), the experiment need not: it has the first value.
    """
    with manifest_blamed(source):
        return _read_experiment(source, overrides)


def _read_experiment(source: Source, overrides: Sequence[str]) -> ReadExperiment:
    tree, folder = tree_of(source), folder_of(source)
    refuse_other_kinds(label_of(source), tree.data)
    _refuse_short_paths(overrides)
    made = take_facts(tree)
    references = References(tree, folder)
    apply_overrides(tree, overrides, references.expand)
    sweep = read_sweep(tree) if SWEEP_KEY in tree.data else None
    explore = validation.validate(ExploreSpec, tree, (EXPLORE_KEY,)) if EXPLORE_KEY in tree.data else None
    tree.data.pop(SWEEP_KEY, None)
    tree.data.pop(EXPLORE_KEY, None)
    written = WrittenKeys.of(tree, made is not None)
    for axis in sweep.axes if sweep else ():
        _stand_in(tree, axis)
    experiment = validation.validate(ExperimentSpec, tree, problems=references.expand_all())
    references.refuse_other_precisions(experiment.systems)
    sweep = with_wafers(sweep, experiment.systems, tree.place(("systems",)))
    plan = SweepPlan(tree, sweep, experiment, folder) if sweep else None
    written, recorded = written.with_files(tree), recorded_unread(made)
    unread = unread_keys(plan or plan_without_axes(experiment), written, "event" if explore is not None else None)
    experiment.__dict__["unread"] = tuple(dict.fromkeys((*recorded, *unread)))
    experiment.__dict__["written"] = written
    experiment.__dict__["limits_at"] = {
        (system.name, ""): f"{tree.place(('systems',))}.{number}" for number, system in enumerate(experiment.systems)
    } | {
        (system.name, f"{part}.{key}"): str(tree.place(("systems", number, part, key)))
        for number, system in enumerate(experiment.systems)
        for part in ("power", "cooling")
        for key in getattr(getattr(system, part), "LIMITS", ())
    }
    return ReadExperiment(experiment, plan, explore, written, recorded)


def with_unread(
    experiment: ExperimentSpec, recorded: Sequence[str], written: WrittenKeys, axes: Sequence[Axis] = ()
) -> ExperimentSpec:
    """A copy with the ``unread`` of its own runs. ``written``: keys that its user gave; ``axes``: of a sweep."""
    messages = [f"{axis.name} has no effect: {AXIS_UNREAD}" for axis in axes]
    unread = unread_keys(plan_without_axes(experiment), written)
    copy = experiment.model_copy()
    copy.__dict__["unread"] = tuple(dict.fromkeys((*recorded, *unread, *messages)))
    return copy


_INSTEAD = (
    ". Give the path of a YAML file, the folder of a report, or a name that `archsim list experiments` prints",
    f", or the folder of a report, which has {MANIFEST}",
)


def take_facts(tree: yaml.Tree) -> dict[str, Any] | None:
    """Removes from a manifest the facts of its report; None of other files. Raises SpecError for those of a version
    that this one does not read, as keys may mean something else there.
    """
    if MANIFEST_KEY not in tree.data:
        return None
    facts, place = tree.data.pop(MANIFEST_KEY), tree.place((MANIFEST_KEY, "version"))
    made, now = facts.get("version") if isinstance(facts, dict) else None, importlib.metadata.version("archsim")
    first, of, last = (tuple(map(int, re.findall(r"\d+", each))) for each in (FIRST_RELEASE, str(made), now))
    if not first <= of <= last:
        raise errors.SpecError(
            f"{place}: {'it is missing' if made is None else f'found {made!r}'}; expected {FIRST_RELEASE} to {now}, "
            f"whose reports archsim {now} reads. Use the archsim that made it, or make it again from its experiment"
        )
    return facts


def digest_of(experiment: Mapping[str, Any]) -> str:
    """SHA-256 of an experiment as read from YAML, whatever its layout and order of keys."""
    return hashlib.sha256(json.dumps(experiment, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def manifest_blamed(source: Source) -> Iterator[None]:
    """While the manifest of a report is read: a SpecError first says so where the manifest was cut off or changed."""
    try:
        yield
    except errors.SpecError as error:
        if not (damage := _damage(source, error)):
            raise
        raise errors.SpecError(damage) from None


def _damage(source: Source, error: errors.SpecError) -> str:
    """What is wrong with a report's manifest as a whole; '' if nothing is, and for other sources. ``error``: what is
    wrong with a part, which follows from a cut, but may be of interest after a change.
    """
    if isinstance(source, Mapping):
        return ""
    try:
        file = file_of(source)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""  # a pipe would be waited for
    except (errors.SpecError, OSError, ValueError):
        return ""
    if not text.startswith(f"{MANIFEST_KEY}:\n"):
        return ""
    again = "Copy the report again, or make it again from its experiment."
    if not text.endswith("\n"):
        return f"{file}: looks cut off, as its last line does not end: `{text.splitlines()[-1].strip()}`. {again}"
    try:
        data = dict(yaml.read_yaml(file).data)
    except errors.SpecError:
        return ""
    facts = data.pop(MANIFEST_KEY)
    if not isinstance(facts, dict) or facts.get("digest") in (None, digest_of(data)):
        return ""
    return f"{file}: the experiment is not that of its digest: it was cut off or changed afterwards. {again}\n{error}"


def tree_of(source: Source) -> yaml.Tree:
    """A file or named experiment, or a copy of a mapping (places ``mapping: key.path``). Raises SpecError."""
    if isinstance(source, Mapping):
        try:
            return yaml.Tree(_plain(source), {(): yaml.Place(label_of(source))})
        except RecursionError:
            raise errors.SpecError("mapping: contains itself, or is nested too deeply") from None
    file, given = file_of(source), os.fspath(source)
    if is_path(given) and file.name == MANIFEST:
        return yaml.read_yaml(file, str(file), _INSTEAD)  # also of a report by its folder
    return yaml.read_yaml(file, given if given == str(file) or is_path(given) else config_files.display(file), _INSTEAD)


# Ends of the names of shipped systems of a GPU, the smallest first.
OF_GPU = ("node", "cluster", "nvl72", "nvl144")


def machines_of_gpu(gpu: str) -> list[str]:
    known = config_files.named_files("systems")
    return [each for end in OF_GPU if (each := f"{gpu.lower()}_{end}") in known]


def smallest_machine(machines: Sequence[str], devices: int) -> str:
    """The first of these, smaller before larger, with so many devices; else the last."""
    return next((each for each in machines if load_system(each).dies >= devices), machines[-1])


def known_gpus() -> list[str]:
    named = [each.rpartition("_") for each in config_files.named_files("systems")]
    return list(dict.fromkeys(gpu for gpu, _, end in named if end in OF_GPU))


def kind_of_file(source: Source) -> str:
    """What a file, named experiment or mapping is (`archsim.specs.file_kinds`). Raises SpecError."""
    return kind_of(tree_of(source).data)


def file_of(source: str | os.PathLike[str]) -> Path:
    """The file at a path (of a report's folder: its manifest), or of the name of an experiment, else of a system, in
    ``./configs``, then in the shipped configs. Raises SpecError for a name that is neither, and for what is no path.
    """
    if not isinstance(source, str | os.PathLike):
        raise errors.SpecError(
            f"{_short(source)} is of type {type(source).__name__}; expected the path of a YAML file, the name of an "
            "experiment, a mapping with the keys of such a file, or an experiment from ar.load"
        )
    text = os.fspath(source)
    known = config_files.named_files("")
    if is_path(text) or os.path.exists(text):
        name = Path(text).stem
        if name in known and not Path(text).parent.is_dir():
            raise errors.SpecError(f"{text}: no such file; the experiment that ships under this name is `{name}`")
        report = Path(text, MANIFEST)
        return report if report.is_file() else Path(text)
    known = config_files.named_files("systems") | known
    if text not in known:
        other = next((kind for kind in ("models", "policies", "traffic") if text in config_files.named_files(kind)), "")
        hint = f"{errors.did_you_mean(text, known)} (`archsim list experiments` names those that ship)"
        hint = f"; it is one of `archsim list {other}`" if other else hint
        raise errors.SpecError(f"{text}: no such file, nor an experiment of this name{hint}")
    return known[text]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]} …"


def label_of(source: Source) -> str:
    return "mapping" if isinstance(source, Mapping) else str(source)


def folder_of(source: Source) -> Path | None:
    return None if isinstance(source, Mapping) else file_of(source).parent


def _plain(value: Any) -> Any:
    """Mappings, sequences and paths as YAML would give them. Raises SpecError for a key that is no text."""
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise errors.SpecError(f"mapping: key {wrong[0]!r}: a key must be text")
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not -_MOST_INTEGER < value < _MOST_INTEGER:
        raise errors.SpecError("mapping: an integer of over 99 digits; expected one that a spec has a use for")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _refuse_short_paths(overrides: Sequence[str]) -> None:
    """Raise SpecError for an override whose path begins like that of an axis, not with a key of an experiment."""
    for text in overrides:
        first, dot, below = text.partition("=")[0].strip().partition(".")
        meant = errors.nearest(first, [*EXPERIMENT_KEYS, *first_parts()])
        if meant is None or meant in EXPERIMENT_KEYS:
            continue  # reported when the tree is validated
        try:
            root, *rest = canonical(f"{meant}{dot}{below}")
        except ValueError:
            continue
        if root == "assumptions" and meant != first:
            continue  # a short word of another field may be near to one
        begin = f"{variants.PLURAL[root]}.0" if root in variants.PLURAL and root != "assumptions" else root
        raise errors.SpecError(
            f"--set {text}: an experiment has no key {first!r}; did you mean {'.'.join([begin, *rest])!r}?"
        )


def _stand_in(tree: yaml.Tree, axis: Axis) -> None:
    if axis.path == ("workload", "batch") and isinstance(tree.find(("workload",)), dict):
        tree.data["workload"].setdefault("batch", axis.values[0])
    elif len(axis.path) == 1 and axis.path[0] in variants.PLURAL:
        if tree.data.setdefault(variants.PLURAL[axis.path[0]], [axis.values[0]]) == [axis.values[0]]:
            tree.places.setdefault((variants.PLURAL[axis.path[0]], 0), axis.places[0])


def load_system(name: str | os.PathLike[str]) -> SystemSpec:
    """Load a system by name or path, as in an experiment's ``systems``. Raises SpecError.

    >>> ar.load_system("dojo").dies
    25
    """
    tree = _reference("systems", name)
    return validation.validate(SystemSpec, tree, ("systems", 0))


def load_model(name: str | os.PathLike[str]) -> model.ModelSpec:
    """Load a model by name or path, as in an experiment's ``models``. Raises SpecError.

    >>> ar.load_model("olmoe-1b-7b").experts
    64
    """
    tree = _reference("models", name)
    return validation.validate(model.ModelSpec, tree, ("models", 0))


def load_assumptions(name: str = DEFAULT_ASSUMPTIONS, **changes: str) -> assumptions.AssumptionsSpec:
    """Load a named assumption set with some fields changed. Raises SpecError.

    >>> ar.load_assumptions("physical").label
    'physical'
    """
    tree = yaml.Tree({"assumptions": [{"set": name, **changes}]}, {(): yaml.Place("assumptions")})
    References(tree, None).expand_all()
    return validation.validate(assumptions.AssumptionsSpec, tree, ("assumptions", 0))


def check_file(source: Source, overrides: Sequence[str] = ()) -> fields.Spec:
    """The spec in a file: an experiment, or what its keys say (``SPECS``). Raises SpecError."""
    tree = tree_of(source)
    kind = SPECS.get(kind_of(tree.data), ExperimentSpec)
    if kind is ExperimentSpec:
        return load_experiment(source, overrides)
    if kind is CalibrationSpec:
        calibration_sections.with_sections(tree, folder_of(source) or Path())
    if kind is SystemSpec:
        References(tree, folder_of(source)).complete_system(())
    apply_overrides(tree, overrides, lambda keys: None)
    if kind is SystemSpec:
        calibration_paths.find_calibrations(tree, (), folders_around(folder_of(source)))
    return validation.validate(kind, tree)


def _reference(kind: str, given: str | os.PathLike[str]) -> yaml.Tree:
    if not isinstance(given, str | os.PathLike):
        raise errors.SpecError(
            f"{_short(given)} is of type {type(given).__name__}; expected the name of one of `archsim list {kind}`, or "
            "the path of a YAML file"
        )
    name, keys = os.fspath(given), (kind, 0)
    tree = yaml.Tree({kind: [name]}, {(): yaml.Place(kind), keys: yaml.Place(name)})
    References(tree, None).expand(keys)
    return tree


# Commented files to start from: a system, a model, an experiment.

_FOLDER = Path(__file__).resolve().parent / "starting"


def starting_text(kind: str, name: str) -> str:
    """A commented file. kind: system, model or experiment. Raises SpecError for text that is no name."""
    try:
        TypeAdapter(fields.Name).validate_python(name)
    except ValidationError as error:
        raise errors.SpecError(str(error.errors()[0]["ctx"]["error"])) from None
    return (_FOLDER / f"{kind}.yaml").read_text(encoding="utf-8").replace("name: NAME\n", f"name: {name}\n", 1)


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises SpecError if it does, or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise errors.SpecError(f"{file}: exists already. Give another file with --out") from None
    except OSError as error:
        raise errors.SpecError(f"{file}: cannot be written: {error.strerror}") from None

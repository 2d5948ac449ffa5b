"""Expands names and paths in an experiment's raw tree before validation. A system or model is a name (in ``systems/``
or ``models/`` beside the experiment, then in ``./configs``, then shipped), a path, or an inline mapping; a system may
be ``{like: dojo, name: mine, ...}``, which takes missing keys from that one. A policy is a preset or a mapping; an
assumption set is a name, a path or a mapping. Messages name the file and line of a value.
"""

import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import Any

from archsim.base import errors, quantities, yaml
from archsim.base.config_files import display, named_files, searched_places
from archsim.machine.system import SystemSpec
from archsim.model.checkpoints import checkpoint_of, is_hub_id
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec, shipped_sets
from archsim.specs.calibration_paths import find_calibrations
from archsim.specs.policies import PRESETS, RULE_TYPES
from archsim.specs.policy_axes import spread_policies

DEFAULT_ASSUMPTIONS = "physical"
# A manifest is two folders below the one its paths are relative to: reports/<name>/manifest.yaml.
_PARENTS_SEARCHED = 2


def resolve(kind: str, value: Any, place: yaml.Place, folder: Path | None) -> yaml.Tree:
    """Expand one reference, at ``(kind, 0)`` of a separate tree. kind: systems, models, policies or assumptions. Raises
    SpecError; messages name ``place`` for values that are not in a file.
    """
    keys = (kind, 0)
    tree = yaml.Tree({kind: [deepcopy(value)]}, {(): place, (kind,): place, keys: place})
    References(tree, folder).complete(keys)
    return tree


def found_trace(path: str, place: yaml.Place, folder: Path | None) -> str:
    """A trace's path relative to the current directory. Raises SpecError if it does not exist."""
    tree = yaml.Tree({"workload": {"trace": path}}, {(): place, ("workload",): place, ("workload", "trace"): place})
    References(tree, folder).find_trace()
    return tree.data["workload"]["trace"]


def folders_around(folder: Path | None) -> list[Path]:
    """Folders searched for the files that an experiment names, after the current directory."""
    if folder is None:
        return []
    folder = folder.absolute()
    return [folder, *folder.parents[:_PARENTS_SEARCHED]]


class References:
    """Expands the references of one tree; ``folder`` is that of the experiment file (None: no file)."""

    def __init__(self, tree: yaml.Tree, folder: Path | None) -> None:
        self._tree = tree
        self._folder = folder
        self._checkpoints: list[tuple[yaml.Place, str, str]] = []  # of models: the place, the name, its precision

    def expand(self, keys: yaml.Keys) -> None:
        """Replace a reference at ``keys``, if there is one, by a mapping that paths can enter. Raises SpecError."""
        value = self._tree.get(keys)
        if keys[:1] == ("systems",) and len(keys) == 2:
            self.complete_system(keys)
        if not isinstance(value, str):
            return
        match keys:
            case ("systems" | "models" as kind, int()):
                self._tree.graft(keys, _read_file(kind, self._file(kind, value, keys)))
            case ("policies", int()):
                own = f"your own function is {{name: mine, allocation: '{value}'}}" if ":" in value else "or a mapping"
                self._check_known("policy", value, PRESETS, keys, own)
                self._tree.graft(
                    keys,
                    yaml.Tree(
                        {"name": value} | {rule_type: {"name": PRESETS[value][rule_type]} for rule_type in RULE_TYPES}
                    ),
                )
            case ("policies", int(), rule_type) if rule_type in RULE_TYPES:
                self._tree.graft(keys, yaml.Tree({"name": value}))
            case ("assumptions",) | ("assumptions", int()):
                self._expand_assumptions(keys, value)

    def expand_all(self) -> dict[yaml.Keys, str]:
        """Expand every reference and fill in what a preset, a set or a folder implies; returns problems by keys."""
        self._tree.data.setdefault("assumptions", DEFAULT_ASSUMPTIONS)
        listed: tuple[yaml.Keys, ...] = ("assumptions",), ("workload", "batch")
        for place in listed:
            if not isinstance(self._tree.find(place), list | NoneType):
                self._tree.wrap(place)
        problems: dict[yaml.Keys, str] = {}
        try:
            spread_policies(self._tree)
        except errors.SpecError as error:
            problems["policies",] = str(error)
        for kind in ("systems", "models", "policies", "assumptions"):
            items = self._tree.find((kind,))
            for keys in [(kind, index) for index in range(len(items) if isinstance(items, list) else 0)]:
                try:
                    self.complete(keys)
                except errors.SpecError as error:
                    problems[keys] = str(error)
        try:
            self.find_trace()
        except errors.SpecError as error:
            problems["workload", "trace"] = str(error)
        return problems

    def refuse_other_precisions(self, systems: Iterable[SystemSpec]) -> None:
        """Raise SpecError for a model whose name says another precision than a system computes in."""
        for place, name, precision in self._checkpoints:
            for system in systems:
                dtype = system.compute.dtype
                if not ("bf16" if dtype == "fp16" else dtype).startswith(precision):
                    raise errors.SpecError(
                        f"{place}: {name!r} is in {precision}, but experts of an experiment have the dtype of the "
                        f"system, and {system.name!r} computes in {dtype}. Leave the precision out of the name, or "
                        f"give a system compute: {{dtype: {precision}, peak: ...}}"
                    )

    def complete(self, keys: yaml.Keys) -> None:
        """Expand a reference and fill in what a preset or a set implies. Raises SpecError."""
        self.expand(keys)
        complete = {
            "policies": self._complete_policy,
            "assumptions": self._complete_assumptions,
            "systems": lambda keys: find_calibrations(self._tree, keys, folders_around(self._folder)),
        }.get(str(keys[0]))
        if complete is not None and isinstance(self._tree.get(keys), dict):
            complete(keys)

    def complete_system(self, keys: yaml.Keys, above: tuple[Path, ...] = ()) -> None:
        """Fill in keys from the system that it is ``like``, if any. ``above``: files like it. Raises SpecError."""
        like, given = (*keys, "like"), self._tree.get(keys)
        if not isinstance(given, dict) or "like" not in given:
            return
        if not isinstance(given["like"], str):
            raise self._tree.error(like, f"expected a name (system), not {quantities.describe(given['like'])}")
        if "name" not in given:
            raise self._tree.error(keys, f"needs its own name, as it changes system {given['like']!r}")
        file = self._file("systems", given["like"], like)
        if file.resolve() in above:
            raise self._tree.error(like, f"{given['like']!r} is like this system, directly or by others")
        del given["like"]
        self._tree.underlay(keys, _read_file("systems", file, above))

    def _file(self, kind: str, name: str, keys: yaml.Keys) -> Path:
        if kind == "models" and name.endswith((".json", ".onnx")):
            made = f"`archsim new --from {name} --out model.yaml` makes one"
            raise self._tree.error(keys, f"{name!r} is no model file, which is YAML. {made}; then give its path")
        if is_path(name) and not (kind == "models" and self._is_checkpoint(name)):
            candidates = [Path(name)] + ([self._folder / name] if self._folder else [])
            found = next((file for file in candidates if os.path.exists(file)), None)
            if found is None:
                raise self._tree.error(keys, f"no such file: {name!r}")
            if not found.is_file():
                raise self._tree.error(keys, f"not a file: {name!r}")
            return found
        files = named_files(kind, self._folder)
        if kind == "models" and name not in files:
            files |= self._checkpoint(name, keys, files)
        others = "or the path of a YAML file, or a mapping"
        if kind == "models" and is_hub_id(name):
            others += "; `archsim new --from config.json` makes the file of any other model"
        self._check_known(kind.removesuffix("s"), name, files, keys, others)
        return files[name]

    def _is_checkpoint(self, name: str) -> bool:
        """Whether a text with a slash is no file's path."""
        here = [Path(name), *([self._folder / name] if self._folder else [])]
        return is_hub_id(name) and not any(os.path.exists(each) for each in here)

    def _checkpoint(self, name: str, keys: yaml.Keys, files: Mapping[str, Path]) -> dict[str, Path]:
        """Name → file of a checkpoint's model, or of the one that goes on with a hyphen (``qwen3-235b``), or empty."""
        try:
            models, precision = checkpoint_of(name)
        except ValueError as error:
            raise self._tree.error(keys, f"{name!r}: {error}") from None
        known = [(each, file) for own, file in files.items() for each in (own.lower(), *_aliases(file))]
        asked = (name.lower(), *models)
        begun = {file for own, file in files.items() for each in asked if own.lower().startswith(f"{each}-")}
        for model in (*asked, *(next(iter(begun)).stem for _ in range(len(begun) == 1))):
            if found := next((file for each, file in known if each == model), None):
                if precision is not None:
                    self._checkpoints.append((self._tree.place(keys), name, precision))
                return {name: found}
        return {}

    def _check_known(self, kind: str, name: Any, known: Iterable[str], keys: yaml.Keys, otherwise: str) -> None:
        if not isinstance(name, str):
            raise self._tree.error(keys, f"expected a name ({kind}), not {quantities.describe(name)}")
        if name not in known:
            near = errors.did_you_mean(name.rpartition("/")[2].lower() if kind == "model" else name, known)
            of = {"systems": named_files("systems"), "models": named_files("models"), "policies": PRESETS}
            if other := next((key for key, names in of.items() if name in names), ""):
                near = f", which is one of the {other}"
            raise self._tree.error(keys, f"unknown {kind} {name!r}{near} (known: {', '.join(known)}; {otherwise})")

    def _expand_assumptions(self, keys: yaml.Keys, value: str) -> None:
        if is_path(value):
            self._tree.graft(keys, _read_file("assumptions", self._file("assumptions", value, keys)))
            given = self._tree.get(keys)
            given.setdefault("set", given.pop("name"))
            for key in ("name", "origin", "utilisation"):
                given.pop(key, None)
            return
        self._check_known("assumption set", value, shipped_sets(), keys, "or a mapping {set: ..., field: value}")
        self._tree.graft(keys, yaml.Tree({"set": value}))

    def _complete_policy(self, keys: yaml.Keys) -> None:
        """Fill in a mapping's missing rules from the preset that it names."""
        given = self._tree.get(keys)
        placement = given.get("placement")
        from_file = isinstance(placement, dict) and placement.get("name") == "from_file"
        if from_file and isinstance(placement.get("file"), str) and placement["file"]:
            find_file(self._tree, (*keys, "placement", "file"), self._folder, "; `archsim place` writes one")
        preset = given.pop("preset", None)
        if preset is None:
            return
        self._check_known("preset", preset, PRESETS, (*keys, "preset"), "or no preset")
        changed = [rule_type for rule_type in RULE_TYPES if rule_type in given]
        if "name" not in given and changed:
            raise self._tree.error(keys, f"needs its own name, as it changes {', '.join(changed)} of preset {preset!r}")
        given.setdefault("name", preset)
        for rule_type in RULE_TYPES:
            if isinstance(given.setdefault(rule_type, {}), dict):
                given[rule_type].setdefault("name", PRESETS[preset][rule_type])

    def _complete_assumptions(self, keys: yaml.Keys) -> None:
        given = self._tree.get(keys)
        name = given.setdefault("set", DEFAULT_ASSUMPTIONS)
        if isinstance(name, str) and name in shipped_sets():
            defaults = {field: getattr(shipped_sets()[name], field) for field in ASSUMPTIONS}
        else:
            fields = {field: AssumptionsSpec.model_fields[field] for field in ASSUMPTIONS}
            defaults = {field: its.default for field, its in fields.items() if not its.is_required()}
            missing = [field for field in ASSUMPTIONS if field not in given | defaults]
            if missing:
                otherwise = f"your own set must give every field without a default; missing: {', '.join(missing)}"
                self._check_known("assumption set", name, shipped_sets(), (*keys, "set"), otherwise)
        for field, value in defaults.items():
            given.setdefault(field, value)

    def find_trace(self) -> None:
        """Make a trace's or traffic file's path relative to the current directory: searched there, then by the file."""
        keys = ("workload", "trace")
        path = self._tree.find(keys)
        hint = "; for generated traffic, write {synthetic: {}}" if path == "synthetic" else ""
        if isinstance(path, str) and path:
            find_file(self._tree, keys, self._folder, hint)
        find_traffic(self._tree, (*keys, "synthetic", "like"), self._folder)


def _read_file(kind: str, file: Path, above: tuple[Path, ...] = ()) -> yaml.Tree:
    """The file of a system, a model or assumptions; of a system that is like another, with the keys of that."""
    tree = yaml.read_yaml(file, display(file))
    tree.data.setdefault("name", file.stem)
    find_calibrations(tree, (), [file.parent], all_found=False)
    if kind == "systems":
        References(tree, file.parent).complete_system((), (*above, file.resolve()))
    return tree


def find_traffic(tree: yaml.Tree, keys: yaml.Keys, folder: Path | None) -> None:
    """Like `find_file`, for a key that may be the name of a traffic preset."""
    like = tree.find(keys)
    if isinstance(like, str) and like.endswith((".yaml", ".yml")):
        hint = "; `archsim trace fit` writes such a file, and `archsim list traffic` lists the presets"
        find_file(tree, keys, folder, hint)


def find_file(tree: yaml.Tree, keys: yaml.Keys, folder: Path | None, hint: str = "") -> None:
    """Make the path of a file or directory at ``keys`` relative to the current directory; search there, then around
    ``folder``, that of the file that names it. Raises SpecError, with ``hint`` at the end, if it does not exist.
    """
    path = tree.get(keys)
    if os.path.exists(path):
        if not (os.path.isfile(path) or os.path.isdir(path)):
            raise tree.error(keys, f"neither a file nor a directory: {path!r}")
        return
    around = folders_around(folder)
    for each in around:
        if os.path.exists(each / path):  # unlike Path.exists, false for names that are too long
            tree.get(keys[:-1])[keys[-1]] = os.path.relpath(each / path)
            return
    raise tree.error(keys, f"no such file or directory: {path!r} (searched {searched_places(around)}){hint}")


def is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))


def _aliases(file: Path) -> list[str]:
    return [str(each).lower() for each in yaml.read_yaml(file, display(file)).data.get("aliases") or ()]

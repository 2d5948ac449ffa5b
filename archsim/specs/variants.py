"""Builds systems, models, policies, assumption sets and workloads with axis values set. A variant is named after its
original with a digest of its content, and validated as a whole, once per combination of the values that change it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from archsim.base import errors, quantities, validation, yaml
from archsim.model.checkpoints import precision_named
from archsim.specs.axes import KINDS, WAFER, Axis
from archsim.specs.calibration_paths import with_calibrations_found
from archsim.specs.policies import NEUTRAL, RULE_TYPES, RULES
from archsim.specs.references import folders_around, found_trace, resolve

PLURAL = {"system": "systems", "model": "models", "policy": "policies", "assumptions": "assumptions"}
NAMED = ("system", "model", "policy")
_DIGITS, _MOST_OF_NAME = 10, 69  # lengths of digest and name, which together form a name of at most 80
_VARIANT = re.compile(rf"\.[0-9a-f]{{{_DIGITS}}}$")
_SHORT_FORMS = ("topology", *RULE_TYPES)  # text in place of these mappings is their name


class Variant(NamedTuple):
    """spec: validated; name: its name before axes changed it; absent: axes that do not apply to it."""

    spec: Any
    name: str
    absent: frozenset[str]


def is_variant(name: str) -> bool:
    """Whether a name is one that a `Maker` gives: an original's, with a digest."""
    return _VARIANT.search(name) is not None


class Maker:
    """Makes the variants of one kind. raw: items; axes: that change them; groups: position of each axis in a choice."""

    def __init__(
        self,
        kind: str,
        raw: Sequence[dict],
        axes: Sequence[Axis],
        groups: Sequence[int],
        base: Sequence[Variant],
        folder: Path | None,
    ):
        order = sorted(range(len(axes)), key=lambda i: len(axes[i].path))
        self._kind, self._folder, self._raw, self._base = kind, folder, raw, base
        self._axes, self._groups = [axes[i] for i in order], [groups[i] for i in order]
        self._whole = bool(axes) and len(self._axes[0].path) == 1
        self._made: dict[tuple[int, ...], Variant] = {}
        self._specs: dict[str, Any] = {}
        self._references: dict[int, dict] = {}
        for axis in self._axes:
            self._check(axis)

    def __len__(self) -> int:
        """The number of items in the experiment; 1 if an axis gives them."""
        return 1 if self._whole else len(self._raw)

    def make(self, base: int, choice: tuple[int, ...]) -> Variant:
        """Item ``base`` of the experiment, or of an axis, with the values of a choice set. Raises SpecError."""
        if not self._axes:
            return self._base[base]
        chosen = (base, *[choice[group] for group in self._groups])
        variant = self._made.get(chosen)
        if variant is None:
            variant = self._made[chosen] = self._new(base, list(zip(self._axes, chosen[1:], strict=True)))
        return variant

    def _check(self, axis: Axis) -> None:
        """Check the telling values of an axis on each item. Raises SpecError with the value's place."""
        problems, variants = [], []
        seen: set[str] = set()
        for at in axis.telling:
            written = repr(axis.values[at])
            if written in seen:
                continue
            seen.add(written)
            try:
                variants += [
                    self._new(base, [(axis, at)]) for base in range(1 if len(axis.path) == 1 else len(self._raw))
                ]
            except errors.SpecError as error:
                problems.append(str(error))
        if problems:
            raise errors.SpecError("\n".join(dict.fromkeys(problems)))
        if variants and all(axis.name in variant.absent for variant in variants) and not self._whole:
            known = {key for variant in RULES.get(axis.path[1], {}).values() for key in variant.parameters}
            raise errors.SpecError(
                f"{axis.place}: no policy of the experiment has the parameter "
                f"{axis.path[-1]!r}{errors.did_you_mean(axis.path[-1], known)}"
            )

    def _new(self, base: int, changes: list[tuple[Axis, int]]) -> Variant:
        raw: dict[str, Any] = self._raw[base] if base < len(self._raw) else {}
        changed, absent = False, set()
        places: dict[tuple, yaml.Place] = {}
        for axis, at in changes:
            if len(axis.path) == 1:
                raw = self._reference(axis, at)
                continue
            if not self._applies(raw, axis.path[1:]):
                absent.add(axis.name)
                continue
            value = axis.values[at]
            if axis.path == ("workload", "trace") and isinstance(value, str):
                value = found_trace(value, axis.places[at], self._folder)
            elif self._kind == "system":
                value = with_calibrations_found(value, axis.path[1:], axis.places[at], folders_around(self._folder))
            raw = _put(raw, axis.path[1:], value, axis.places[at])
            places |= {axis.path[1 : depth + 1]: axis.places[at] for depth in range(1, len(axis.path))}
            changed = True
        name = str(raw.get("name", ""))
        if changed and self._kind in NAMED:
            content = json.dumps({key: value for key, value in raw.items() if key != "name"}, sort_keys=True)
            digest = hashlib.sha256(f"{name} {content}".encode()).hexdigest()[:_DIGITS]
            raw = raw | {"name": f"{name[:_MOST_OF_NAME]}.{digest}"}
            if self._kind == "model":
                raw["aliases"] = [*raw.get("aliases", []), name]  # traces use that name
        return Variant(self._spec(raw, places, changes[0][0].places[changes[0][1]]), name, frozenset(absent))

    def _reference(self, axis: Axis, at: int) -> dict:
        if at not in self._references:
            kind = PLURAL[self._kind]
            tree = resolve(kind, axis.values[at], axis.places[at], self._folder)
            if not isinstance(tree.get((kind, 0)), dict):
                raise errors.SpecError(
                    f"{axis.places[at]}: expected a name or a mapping, not {quantities.describe(axis.values[at])}"
                )
            name = tree.find((kind, 0, "name"))
            if kind == "models" and (precision := precision_named(axis.values[at], str(name))):
                raise errors.SpecError(
                    f"{axis.places[at]}: {axis.values[at]!r} is in {precision}, but experts of an experiment have the "
                    "dtype of the system (compute.dtype). Leave the precision out of the name"
                )
            validation.validate(KINDS[self._kind], tree, (kind, 0))
            self._references[at] = tree.get((kind, 0))
        return self._references[at]

    def _applies(self, raw: dict, path: tuple[str, ...]) -> bool:
        """Whether a policy's rule has the parameter of a path, and a system is drawn; all other paths apply."""
        if self._kind == "system" and path == WAFER[1:]:
            return isinstance(raw.get("drawn"), dict) and raw["drawn"].get("wafers", 1) != 1
        if self._kind != "policy" or len(path) != 2 or path[0] not in RULE_TYPES or path[1] == "name":
            return True
        given = raw.get(path[0], NEUTRAL[path[0]])
        name = given.get("name") if isinstance(given, dict) else given
        rule = RULES[path[0]].get(str(name))
        return rule is None or path[1] in rule.parameters

    def _spec(self, raw: dict, places: dict[tuple, yaml.Place], place: yaml.Place) -> Any:
        """The validated spec; equal data is validated once."""
        content = json.dumps(raw, sort_keys=True)
        spec = self._specs.get(content)
        if spec is None:
            try:
                spec = KINDS[self._kind].model_validate(raw, context={"from_yaml": True}, by_alias=True, by_name=False)
            except ValidationError:
                validation.validate(KINDS[self._kind], yaml.Tree(raw, {(): place} | places))
                raise
            self._specs[content] = spec
        return spec


def _put(raw: Any, path: tuple[str, ...], value: Any, place: yaml.Place) -> Any:
    """A copy with a value at a path; the rest is shared. Raises SpecError for a path through something without keys."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(raw, list):
        if not key.isdecimal() or int(key) >= len(raw):
            raise errors.SpecError(f"{place}: a list of {len(raw)} has no item {key!r}; items are numbered from 0")
        return [_put(each, rest, value, place) if index == int(key) else each for index, each in enumerate(raw)]
    if not isinstance(raw, dict):
        raise errors.SpecError(f"{place}: leads into {quantities.describe(raw)}, which has no key {key!r}")
    below = raw.get(key)
    if rest and (below is None or (isinstance(below, str) and key in _SHORT_FORMS)):
        below = {} if below is None else {"name": below}
    return {**raw, key: _put(below, rest, value, place)}


def written(value: Any) -> str:
    return value if isinstance(value, str) else yaml.dump_yaml([value], flow=True)[1:-1]


def in_words(value: Any) -> str:
    """Like `written`, but a mapping is its name and then its keys: ``mesh, vertical bandwidth 1 TB/s``."""
    if not isinstance(value, dict) or "name" not in value:
        return written(value)
    others = {key: each for key, each in value.items() if key != "name"}
    return ", ".join([written(value["name"]), *_keys_in_words(others)])


def _keys_in_words(value: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, each in value.items():
        words = f"{above}{key.replace('_', ' ')} "
        if isinstance(each, dict):
            yield from _keys_in_words(each, words)
        else:
            yield f"{words}{written(each)}"

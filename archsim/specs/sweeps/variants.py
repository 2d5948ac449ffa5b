"""The parts of a sweep's points: systems, models, policies, assumption sets and workloads with values put in by path.

Parts that axes have changed are named after what they were, with a digest of what they are: equal parts of any sweep have
equal names. A part is validated as a whole, once for every combination of the values that change it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.specs.loading.calibration_paths import with_calibrations_found
from archsim.specs.loading.references import folders_around, found_trace, resolve
from archsim.specs.policies import PARTS, RULES
from archsim.specs.sweeps.axes import KINDS, Axis
from archsim.specs.text.quantities import describe
from archsim.specs.text.validation import validate
from archsim.specs.text.yaml import Place, Tree

PLURAL = {"system": "systems", "model": "models", "policy": "policies", "assumptions": "assumptions"}
NAMED = ("system", "model", "policy")
_DIGITS, _MOST_OF_NAME = 10, 69  # of digest and name, which together are a name of at most 80
_SHORT_FORMS = ("topology", *PARTS)  # text in their place is the name of a mapping


class Part(NamedTuple):
    """spec: validated; name: what it was called before axes changed it; absent: axes that do not apply to it."""

    spec: Any
    name: str
    absent: frozenset[str]


class Maker:
    """Makes the parts of one kind. raw: those of the experiment; axes: that change them; groups: position of each in a choice."""

    def __init__(self, kind: str, raw: Sequence[dict], axes: Sequence[Axis], groups: Sequence[int], base: Sequence[Part], folder: Path | None):
        order = sorted(range(len(axes)), key=lambda i: len(axes[i].path))
        self._kind, self._folder, self._raw, self._base = kind, folder, raw, base
        self._axes, self._groups = [axes[i] for i in order], [groups[i] for i in order]
        self._whole = bool(axes) and len(self._axes[0].path) == 1
        self._made: dict[tuple[int, ...], Part] = {}
        self._specs: dict[str, Any] = {}
        self._references: dict[int, dict] = {}
        for axis in self._axes:
            self._check(axis)

    def __len__(self) -> int:
        """How many the experiment has; one, where an axis gives them."""
        return 1 if self._whole else len(self._raw)

    def make(self, base: int, choice: tuple[int, ...]) -> Part:
        """The part ``base`` of the experiment, or of an axis, with the values of a choice put in. Raises SpecError."""
        if not self._axes:
            return self._base[base]
        chosen = (base, *[choice[group] for group in self._groups])
        part = self._made.get(chosen)
        if part is None:
            part = self._made[chosen] = self._new(base, list(zip(self._axes, chosen[1:], strict=True)))
        return part

    def _check(self, axis: Axis) -> None:
        """Every value of an axis alone, put into each part of the experiment. Raises SpecError with the value's place."""
        problems, parts = [], []
        seen: set[str] = set()
        for at, value in enumerate(axis.values):
            written = repr(value)
            if written in seen:
                continue
            seen.add(written)
            try:
                parts += [self._new(base, [(axis, at)]) for base in range(1 if len(axis.path) == 1 else len(self._raw))]
            except SpecError as error:
                problems.append(str(error))
        if problems:
            raise SpecError("\n".join(dict.fromkeys(problems)))
        if parts and all(axis.name in part.absent for part in parts) and not self._whole:
            known = {key for part in RULES.get(axis.path[1], {}).values() for key in part.parameters}
            raise SpecError(f"{axis.place}: no policy of the experiment has the parameter {axis.path[-1]!r}{did_you_mean(axis.path[-1], known)}")

    def _new(self, base: int, changes: list[tuple[Axis, int]]) -> Part:
        raw, changed, absent = None, False, set()
        places: dict[tuple, Place] = {}
        for axis, at in changes:
            if len(axis.path) == 1:
                raw = self._reference(axis, at)
                continue
            if raw is None:
                raw = self._raw[base]
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
                raw["aliases"] = [*raw.get("aliases", []), name]  # traces know it by that
        return Part(self._spec(raw, places, changes[0][0].places[changes[0][1]]), name, frozenset(absent))

    def _reference(self, axis: Axis, at: int) -> dict:
        if at not in self._references:
            kind = PLURAL[self._kind]
            tree = resolve(kind, axis.values[at], axis.places[at], self._folder)
            if not isinstance(tree.get((kind, 0)), dict):
                raise SpecError(f"{axis.places[at]}: expected a name or a mapping, not {describe(axis.values[at])}")
            validate(KINDS[self._kind], tree, (kind, 0))
            self._references[at] = tree.get((kind, 0))
        return self._references[at]

    def _applies(self, raw: dict, path: tuple[str, ...]) -> bool:
        """Whether a policy's rule has the parameter of a path; any other path applies."""
        if self._kind != "policy" or len(path) != 2 or path[0] not in PARTS or path[1] == "name":
            return True
        given = raw.get(path[0], "linear" if path[0] == "placement" else "none")
        name = given.get("name") if isinstance(given, dict) else given
        rule = RULES[path[0]].get(name)
        return rule is None or path[1] in rule.parameters

    def _spec(self, raw: dict, places: dict[tuple, Place], place: Place) -> Any:
        """Equal data is validated once."""
        content = json.dumps(raw, sort_keys=True)
        spec = self._specs.get(content)
        if spec is None:
            try:
                spec = KINDS[self._kind].model_validate(raw, context={"from_yaml": True}, by_alias=True, by_name=False)
            except ValidationError:
                validate(KINDS[self._kind], Tree(raw, {(): place} | places))
                raise
            self._specs[content] = spec
        return spec


def _put(raw: Any, path: tuple[str, ...], value: Any, place: Place) -> Any:
    """A copy with a value at a path; nothing else is copied. Raises SpecError for a path through what has no keys."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(raw, list):
        if not key.isdecimal() or int(key) >= len(raw):
            raise SpecError(f"{place}: a list of {len(raw)} has no item {key!r}; items are numbered from 0")
        return [_put(each, rest, value, place) if index == int(key) else each for index, each in enumerate(raw)]
    if not isinstance(raw, dict):
        raise SpecError(f"{place}: leads into {describe(raw)}, which has no key {key!r}")
    below = raw.get(key)
    if rest and (below is None or (isinstance(below, str) and key in _SHORT_FORMS)):
        below = {} if below is None else {"name": below}
    return {**raw, key: _put(below, rest, value, place)}

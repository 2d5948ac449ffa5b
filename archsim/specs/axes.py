"""``sweep:`` of an experiment: axes over any of its keys, how they combine, and which points are kept.

::

    sweep:
      grid:                                      # every combination
        system.mesh: [5x5, 8x8]
        hbm.bandwidth: {from: 1 TB/s, to: 8 TB/s, log: 4}
      zip:                                       # linked: the first with the first, …; several groups are a list
        {llc.capacity: [32 MiB, 64 MiB], d2d.bandwidth: [1 TB/s, 2 TB/s]}
      sample: {method: sobol, count: 64, seed: 1, over: {workload.batch: {from: 64, to: 8192, scale: log}}}
      where: [dies <= 64, hbm_capacity fits]

Grid, groups and samples multiply each other and the experiment's own systems, models, batches, policies and
assumption sets. A path starts with ``system``, ``model``, ``policy``, ``assumptions``, ``workload``, ``parallel``,
``precision`` or ``engine``; a key that only one of them has may also start it (``hbm.bandwidth``). Nested mappings are
paths, too. The syntax of values: `archsim.specs.axis_values`; of constraints: `archsim.specs.constraints`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import Spec
from archsim.base.quantities import as_written, describe
from archsim.base.validation import keys_of
from archsim.base.yaml import Keys, Place, Tree
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.axis_values import Drawn, Range, RangeValues, counted_values, is_range, read_range
from archsim.specs.constraints import Constraint, parse_constraint
from archsim.specs.drawn_shares import METHODS, draw_shares
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.workload import WorkloadSpec

SWEEP_KEY = "sweep"
KINDS: dict[str, type[Spec]] = {
    "system": SystemSpec,
    "model": ModelSpec,
    "policy": PolicySpec,
    "assumptions": AssumptionsSpec,
    "workload": WorkloadSpec,
}
_PLURALS = {"systems": "system", "models": "model", "policies": "policy"}
DEPLOYED = ("parallel", "precision")
_ROOTS = (*KINDS, *DEPLOYED, "engine")
_WAYS = ("grid", "zip", "sample", "where")
_SAMPLE_KEYS = ("method", "count", "seed", "over")
_MOST_POINTS = 100_000_000


@dataclass(frozen=True)
class Axis:
    """One key that varies. path: from its root; values: raw, as in YAML; places: where each value is given."""

    path: tuple[str, ...]
    place: Place
    values: Sequence[Any]
    places: Sequence[Place]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def telling(self) -> Sequence[int]:
        """Indices of values that are valid only if all are."""
        return self.values.telling if isinstance(self.values, Drawn | RangeValues) else range(len(self.values))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class LinkedAxes:
    """Linked axes: value i of each goes with value i of the others."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return len(self.axes[0])


@dataclass(frozen=True)
class SweepSpec:
    """The content of ``sweep:`` (``given``): groups that multiply each other, the first slowest, and constraints."""

    given: Any
    groups: tuple[LinkedAxes, ...]
    where: tuple[tuple[Constraint, Place], ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for group in self.groups for axis in group.axes)

    @property
    def combinations(self) -> int:
        product = 1
        for group in self.groups:
            product *= len(group)
        return product


WAFER = ("system", "drawn", "wafer")  # the axis that every experiment with drawn machines has


def with_wafers(sweep: SweepSpec | None, systems: Sequence[SystemSpec], place: Place) -> SweepSpec | None:
    """The sweep with an axis over the machines that are drawn, if any are and it has none. Raises SpecError."""
    numbers = {system.drawn.wafers for system in systems if system.drawn is not None and system.drawn.wafers > 1}
    if not numbers or (sweep is not None and any(axis.path == WAFER for axis in sweep.axes)):
        return sweep
    if len(numbers) > 1:
        raise SpecError(
            f"{place}: systems sample {' and '.join(map(str, sorted(numbers)))} wafers. Give all of them the same "
            "number"
        )
    count = numbers.pop()
    axis = Axis(WAFER, place, range(count), (place,) * count)
    given = dict(sweep.given) if sweep is not None else {}
    given["grid"] = {**(given.get("grid") or {}), axis.name: {"from": 0, "to": count - 1, "step": 1}}
    return SweepSpec(given, (*(sweep.groups if sweep else ()), LinkedAxes((axis,))), sweep.where if sweep else ())


def read_sweep(tree: Tree) -> SweepSpec:
    """Read the sweep of an experiment's tree. Raises SpecError with one line per problem."""
    reader = _Reader(tree)
    spec = reader.read()
    if reader.problems:
        raise SpecError("\n".join(reader.problems))
    return spec


def canonical(name: str) -> tuple[str, ...]:
    """The full path of a name, from its root. Raises ValueError with the nearest key if the first part is not a key."""
    first, *rest = name.split(".")
    first = _PLURALS.get(first, first)
    if first in _ROOTS:
        return (first, *rest)
    # Assumptions are single values: no key follows after a dot.
    owners = [root for root, keys in _keys_by_root().items() if first in keys and not (rest and root == "assumptions")]
    if len(owners) == 1:
        return (owners[0], first, *rest)
    if owners:
        raise ValueError(
            f"{first!r} is a key of {' and of '.join(owners)}. Write {' or '.join(f'{root}.{name}' for root in owners)}"
        )
    raise ValueError(
        f"unknown key {first!r}{did_you_mean(first, first_parts())} (a path starts with {', '.join(_ROOTS)}, or a key "
        "of one of them)"
    )


def first_parts() -> list[str]:
    """What a name may begin with: roots, and keys of one of them."""
    return [*_ROOTS, *(key for keys in _keys_by_root().values() for key in keys)]


def _keys_by_root() -> dict[str, list[str]]:
    return {root: list(RULE_TYPES) if root == "policy" else keys_of(kind) for root, kind in KINDS.items()}


class _Reader:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.problems: list[str] = []
        self._seen: dict[tuple[str, ...], Place] = {}

    def read(self) -> SweepSpec:
        given = self._tree.find((SWEEP_KEY,))
        keys = (SWEEP_KEY,)
        if not isinstance(given, dict):
            self._problem(keys, f"expected a mapping with the keys {', '.join(_WAYS)}, not {describe(given)}")
            return SweepSpec(given, (), ())
        for key in given:
            if key not in _WAYS:
                self._problem((*keys, key), f"unknown key{did_you_mean(key, _WAYS)} (known: {', '.join(_WAYS)})")
        groups = [LinkedAxes((axis,)) for axis in self._axes((*keys, "grid"), given.get("grid", {}))]
        groups += self._linked_axes((*keys, "zip"), given.get("zip", []))
        if "sample" in given:
            groups += self._sampled_axes((*keys, "sample"), given["sample"])
        if not groups and not self.problems:
            self._problem(keys, "the sweep varies nothing. Give axes in grid, zip or sample")
        spec = SweepSpec(given, tuple(groups), tuple(self._where((*keys, "where"), given.get("where", []))))
        if spec.combinations > _MOST_POINTS:
            self._problem(keys, f"{spec.combinations:,} combinations are too many; at most {_MOST_POINTS:,}")
        return spec

    def _problem(self, keys: Keys, problem: str) -> None:
        self.problems.append(f"{self._tree.place(keys)}: {problem}")

    def _axes(self, keys: Keys, given: Any, ranges: bool = False) -> Iterator[Axis]:
        """The axes below a mapping; with ``ranges``, a range stays a range (the only value), to be sampled."""
        for at, path, values in self._paths(keys, (), given):
            axis = self._axis(at, path, values, ranges)
            if axis is not None:
                yield axis

    def _paths(self, keys: Keys, path: tuple[str, ...], given: Any) -> Iterator[tuple[Keys, tuple[str, ...], Any]]:
        if path and not (isinstance(given, dict) and not is_range(given)):
            yield keys, path, given
        elif not isinstance(given, dict):
            self._problem(
                keys, f"expected a mapping of paths and values, such as system.mesh: [5x5, 8x8], not {describe(given)}"
            )
        else:
            for key, below in given.items():
                yield from self._paths((*keys, key), (*path, key), below)

    def _axis(self, keys: Keys, names: tuple[str, ...], given: Any, ranges: bool) -> Axis | None:
        place = self._tree.place(keys)
        try:
            path = canonical(".".join(names))
            if not all(path) or (len(path) == 1 and path[0] == "workload"):
                raise ValueError("expected the path of a key, such as workload.batch")
            if path in self._seen:
                raise ValueError(f"{'.'.join(path)} is already an axis ({self._seen[path]})")
            self._seen[path] = place
            if isinstance(given, list):
                if not given:
                    raise ValueError("needs at least one value")
                _refuse_equal(given)
                return Axis(
                    path, place, tuple(given), tuple(self._tree.place((*keys, index)) for index in range(len(given)))
                )
            if not is_range(given):
                raise ValueError(f"expected a list of values or a range {{from, to, …}}, not {describe(given)}")
            values = (
                (read_range(given),)
                if ranges and not set(given) & {"step", "factor", "linear", "log"}
                else counted_values(given)
            )
            return Axis(path, place, values, (place,) * len(values))
        except ValueError as error:
            self._problem(keys, str(error))
            return None

    def _linked_axes(self, keys: Keys, given: Any) -> Iterator[LinkedAxes]:
        groups = given if isinstance(given, list) else [given]
        for index, each in enumerate(groups):
            at = (*keys, index) if isinstance(given, list) else keys
            axes = tuple(self._axes(at, each))
            if len({len(axis) for axis in axes}) > 1:
                lengths = ", ".join(f"{axis.name} has {len(axis)}" for axis in axes)
                self._problem(at, f"linked axes need the same number of values; {lengths}")
            elif axes:
                yield LinkedAxes(axes)

    def _sampled_axes(self, keys: Keys, given: Any) -> Iterator[LinkedAxes]:
        if not isinstance(given, dict):
            self._problem(keys, f"expected a mapping with the keys {', '.join(_SAMPLE_KEYS)}, not {describe(given)}")
            return
        for key in given:
            if key not in _SAMPLE_KEYS:
                self._problem(
                    (*keys, key), f"unknown key{did_you_mean(key, _SAMPLE_KEYS)} (known: {', '.join(_SAMPLE_KEYS)})"
                )
        method, count, seed = given.get("method", METHODS[0]), given.get("count"), given.get("seed", 0)
        if method not in METHODS:
            self._problem(
                (*keys, "method"),
                f"unknown value {method!r}{did_you_mean(str(method), METHODS)} (valid: {', '.join(METHODS)})",
            )
        for key, value, low in (("count", count, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST_POINTS:
                self._problem(
                    (*keys, key), f"expected a whole number from {low} to {_MOST_POINTS:,}, not {describe(value)}"
                )
        axes = tuple(self._axes((*keys, "over"), given.get("over", {}), ranges=True))
        if not axes and not self.problems:
            self._problem(keys, "needs axes in over")
        if not self.problems and isinstance(count, int):
            yield LinkedAxes(_drawn(axes, method, count, seed))

    def _where(self, keys: Keys, given: Any) -> Iterator[tuple[Constraint, Place]]:
        listed = given if isinstance(given, list) else [given]
        for index, text in enumerate(listed):
            at = (*keys, index) if isinstance(given, list) else keys
            if not isinstance(text, str):
                self._problem(at, f"expected a constraint such as dies <= 64, not {describe(text)}")
                continue
            try:
                yield parse_constraint(text), self._tree.place(at)
            except ValueError as error:
                self._problem(at, str(error))


def _refuse_equal(values: list) -> None:
    """Raise ValueError for two quantities that are one, in other units. Equal text is a repeat, which runs once."""
    seen: dict[tuple[str, float], str] = {}
    for text in values:
        if isinstance(text, str) and (written := as_written(text)) is not None:
            key = written.dimension.name, float(f"{written.number * written.worth:.12g}")
            if seen.setdefault(key, text) != text:
                raise ValueError(f"{seen[key]} and {text} are the same value. Keep one")


def _drawn(axes: tuple[Axis, ...], method: str, count: int, seed: int) -> tuple[Axis, ...]:
    """The axes with ``count`` values each, drawn together."""
    drawn = []
    for axis, shares in zip(axes, draw_shares(method, len(axes), count, seed).T, strict=True):
        first = axis.values[0]
        values = Drawn(shares, first if isinstance(first, Range) else axis.values)
        drawn.append(Axis(axis.path, axis.place, values, Drawn(shares, axis.places)))
    return tuple(drawn)

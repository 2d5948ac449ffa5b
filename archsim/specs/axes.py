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
paths, too. Syntax of values: ``archsim.specs.axes``; constraints: ``archsim.specs.constraints``.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import DIMENSIONS, SIZE, Dimension, Spec, as_written, describe, format_quantity, parse_quantity
from archsim.base.yaml import Keys, Place, Tree, keys_of
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.constraints import Constraint, parse_constraint
from archsim.specs.model import ModelSpec
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.system import SystemSpec
from archsim.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    import numpy as np

# ---- axis_values
# The values of a sweep axis: a list, or a range with a count or to be sampled.
#
# ==================================== =================================================================================
# ``[5x5, 8x8]``                       these values, of any type
# ``{from: 1 TB/s, to: 4 TB/s, step: 1 TB/s}``  1, 2, 3 and 4 TB/s; never above ``to``
# ``{from: 1, to: 64, factor: 2}``     1, 2, 4, … 64
# ``{from: 1 TB/s, to: 8 TB/s, linear: 8}``     8 values, evenly spaced
# ``{from: 1 TB/s, to: 8 TB/s, log: 4}``        4 values, evenly spaced in log scale
# ``{from: 1 TB/s, to: 8 TB/s}``       to be sampled; with ``scale: log``, uniformly in log scale
# ==================================== =================================================================================
#
# If ``from`` and ``to`` are integers, so are the values (rounded, each once); write ``1.0`` for reals. Other values
# that are not whole in their base unit are rounded to six significant digits. Values are written with a suitable unit.

ENDS = ("from", "to")
_COUNTED = ("step", "factor", "linear", "log")
_KEYS = (*ENDS, *_COUNTED, "scale")
_SCALES = ("linear", "log")
_MOST_VALUES = 1_000_000
_DIGITS = 6
# A range ends at ``to`` even if rounding of the steps overshoots by this much (relative).
_SLACK = 1e-9
# A number this close to an integer is an integer: the rest is rounding.
_WHOLE = 1e-5


def is_range(given: Any) -> bool:
    """Whether a mapping is a range (rather than keys that lead to axes)."""
    return isinstance(given, dict) and any(key in given for key in ENDS)


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high`` in the base unit of ``dimension`` (None: pure numbers); ``log``: sampled in log scale.
    """

    low: float
    high: float
    dimension: Dimension | None
    whole: bool
    log: bool

    def value(self, share: float) -> Any:
        """The value at ``share`` (0 to 1) of the range."""
        if self.log:
            return self._written(self.low * (self.high / self.low) ** share)
        if self.whole:
            # Every integer in the range is equally likely.
            return min(int(self.low + share * (self.high - self.low + 1)), int(self.high))
        return self._written(self.low + share * (self.high - self.low))

    def number(self, share: float) -> float:
        """`value` in the base unit: the number that its text is read as."""
        if self.log:
            return self._rounded(self.low * (self.high / self.low) ** share)
        if self.whole:
            return float(self.value(share))
        return self._rounded(self.low + share * (self.high - self.low))

    def numbers(self, shares: "np.ndarray") -> list[float]:
        """`number` of each of ``shares: float64[n]``: a sample has hundreds of thousands."""
        import numpy as np

        if self.whole:
            return list(map(self.number, shares.tolist()))
        if self.log:  # numpy's power may differ in the last bit
            ratio = self.high / self.low
            numbers = np.array([self.low * ratio**share for share in shares.tolist()])
        else:
            numbers = self.low + shares * (self.high - self.low)
        whole, as_text = np.rint(numbers) + 0.0, f"%.{_DIGITS}g"
        rounded = [float(as_text % number) for number in numbers.tolist()]
        return np.where(np.abs(numbers - whole) <= _WHOLE, whole, rounded).tolist()

    def _rounded(self, number: float) -> float:
        if self.whole or abs(number - round(number)) <= _WHOLE:
            return float(round(number))
        return float(f"{number:.{_DIGITS}g}")

    def _written(self, number: float) -> Any:
        if self.whole:
            return round(number)
        rounded = self._rounded(number)
        if self.dimension is None:
            return rounded
        return format_quantity(int(rounded) if self.dimension is SIZE else rounded, self.dimension)


def read_range(given: dict[str, Any]) -> Range:
    """Read a range, ignoring its count. Raises ValueError."""
    for key in given:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r} of a range{did_you_mean(key, _KEYS)} (known: {', '.join(_KEYS)})")
    for key in ENDS:
        if key not in given:
            raise ValueError(f"a range needs from and to; {key!r} is missing")
    scale = given.get("scale", "linear")
    if scale not in _SCALES:
        raise ValueError(
            f"scale: unknown value {scale!r}{did_you_mean(str(scale), _SCALES)} (valid: {', '.join(_SCALES)})"
        )
    (low, dimension), (high, other) = (_number(key, given[key]) for key in ENDS)
    if dimension is not other:
        raise ValueError(f"from is {_kind(dimension)}, to is {_kind(other)}; expected the same kind of quantity")
    if not low < high:
        raise ValueError(f"from {given['from']!r} is not below to {given['to']!r}")
    log = scale == "log" or "log" in given or "factor" in given
    if log and low <= 0:
        raise ValueError(f"from {given['from']!r} must be above 0 on a log scale")
    whole = all(isinstance(given[key], int) for key in ENDS)
    return Range(low, high, dimension, whole, log)


def counted_values(given: dict[str, Any]) -> tuple[Any, ...]:
    """The values of a range with a count. Raises ValueError."""
    span = read_range(given)
    ways = [key for key in _COUNTED if key in given]
    if len(ways) != 1:
        said = "none is" if not ways else f"{' and '.join(ways)} are"
        raise ValueError(f"a range needs exactly one of {', '.join(_COUNTED)}; {said} given")
    if "scale" in given:
        raise ValueError("scale applies to sampled ranges only; in a grid, use step, factor, linear or log")
    (way,) = ways
    if way in ("linear", "log"):
        count = given[way]
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= _MOST_VALUES:
            raise ValueError(f"{way}: expected a number of values, 2 or more, not {describe(count)}")
        numbers = [_between(span, index / (count - 1)) for index in range(count)]
    else:
        numbers = _stepped(span, way, given[way])
    return tuple(dict.fromkeys(span._written(number) for number in numbers))


def _between(span: Range, share: float) -> float:
    return span.low * (span.high / span.low) ** share if span.log else span.low + share * (span.high - span.low)


def _stepped(span: Range, way: str, given: Any) -> list[float]:
    step, dimension = _number(way, given)
    if way == "factor":
        if dimension is not None or step <= 1:
            raise ValueError(f"factor: expected a number above 1, not {describe(given)}")
        last = math.log(span.high / span.low) / math.log(step)
    else:
        if dimension is not span.dimension or step <= 0:
            raise ValueError(f"step: expected {_kind(span.dimension)} above 0, not {describe(given)}")
        last = (span.high - span.low) / step
    count = math.floor(last * (1 + _SLACK) + _SLACK) + 1
    if count > _MOST_VALUES:
        raise ValueError(f"{way} {given!r}: {count:,} values are too many; at most {_MOST_VALUES:,}")
    return [span.low * step**index if way == "factor" else span.low + step * index for index in range(count)]


def _number(key: str, given: Any) -> tuple[float, Dimension | None]:
    """A value in its base unit, and its dimension (None: a pure number)."""
    if isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given):
        return given, None
    if isinstance(given, str):
        dimension = dimension_of(given)
        if dimension is not None:
            return float(parse_quantity(given, dimension)), dimension
    raise ValueError(f"{key}: expected a number or a quantity with a unit, such as '1 TB/s', not {describe(given)}")


def dimension_of(text: str) -> Dimension | None:
    """The dimension of a quantity given as text, or None if it is not a quantity with a unit."""
    for dimension in DIMENSIONS:
        try:
            parse_quantity(text, dimension)
        except ValueError:
            continue
        return dimension if not text.strip().replace(".", "").isdigit() else None
    return None


def _kind(dimension: Dimension | None) -> str:
    return "a pure number" if dimension is None else dimension.article_name


# ---- drawn
# Values of a sampled axis, made when asked for: a sample of a million points costs no more than its random numbers.

METHODS = ("latin_hypercube", "sobol", "random")


class Drawn(Sequence):
    """``shares: float64[count]`` in [0, 1), as values ``of`` a range, or of a sequence with equal chances."""

    def __init__(self, shares, of: Range | Sequence[Any]) -> None:
        self._shares, self._of = shares, of

    def __len__(self) -> int:
        return len(self._shares)

    def __getitem__(self, index):
        share = float(self._shares[index])
        if isinstance(self._of, Range):
            return self._of.value(share)
        return self._of[min(int(share * len(self._of)), len(self._of) - 1)]

    def numbers(self) -> list[float] | None:
        """All values of a range in the base unit, without writing any as text; None where values are listed."""
        return self._of.numbers(self._shares) if isinstance(self._of, Range) else None

    @cached_property
    def telling(self) -> list[int]:
        """Indices of values that are valid only if all are: the ends of a range, else one of each."""
        if isinstance(self._of, Range):
            return sorted({int(self._shares.argmin()), int(self._shares.argmax())})
        import numpy as np

        drawn = np.minimum((self._shares * len(self._of)).astype(np.int32), len(self._of) - 1)
        first = np.full(len(self._of), -1)
        first[drawn[::-1]] = np.arange(len(drawn) - 1, -1, -1, dtype=np.int32)  # the last that is written stays
        return sorted(first[first >= 0].tolist())


def draw_shares(method: str, dimensions: int, count: int, seed: int):
    """float64[count, axis] in [0, 1) by a method of ``METHODS``; Sobol points (scipy.stats.qmc) are scrambled."""
    import numpy as np

    generator = np.random.default_rng(seed)
    if method == "sobol":
        return _sobol(dimensions, count, generator)
    if method == "random":
        return generator.random((count, dimensions))
    return _latin_hypercube(dimensions, count, *generator.spawn(1))


def _latin_hypercube(dimensions: int, count: int, generator):
    """One share in every stratum of 1 / count of every axis (McKay, Beckman and Conover, Technometrics 1979).

    The numbers of scipy.stats.qmc.LatinHypercube, which takes a second to import and three times the memory.
    """
    import numpy as np

    shares = generator.random((count, dimensions))
    for column in shares.T:
        strata = np.arange(1, count + 1, dtype=np.int32)
        generator.shuffle(strata)
        np.subtract(strata, column, out=column)
    shares /= count
    return shares


def _sobol(dimensions: int, count: int, generator):
    import warnings

    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a count that is not a power of 2 is merely less balanced
        return qmc.Sobol(dimensions, seed=generator).random(count)


# ---- axes

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
        return self.values.telling if isinstance(self.values, Drawn) else range(len(self.values))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Group:
    """Linked axes: value i of each goes with value i of the others."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return len(self.axes[0])


@dataclass(frozen=True)
class SweepSpec:
    """The content of ``sweep:``: groups that multiply each other (the first varies slowest), and constraints with
    their places.

    given: the data from which it was read.
    """

    given: Any
    groups: tuple[Group, ...]
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
            f"{place}: systems draw {' and '.join(map(str, sorted(numbers)))} wafers; give all that are drawn the same "
            "number"
        )
    count = numbers.pop()
    axis = Axis(WAFER, place, range(count), (place,) * count)
    given = dict(sweep.given) if sweep is not None else {}
    given["grid"] = {**(given.get("grid") or {}), axis.name: {"from": 0, "to": count - 1, "step": 1}}
    return SweepSpec(given, (*(sweep.groups if sweep else ()), Group((axis,))), sweep.where if sweep else ())


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
            f"{first!r} is a key of {' and of '.join(owners)}; write {' or '.join(f'{root}.{name}' for root in owners)}"
        )
    known = [*_ROOTS, *(key for keys in _keys_by_root().values() for key in keys)]
    raise ValueError(
        f"unknown key {first!r}{did_you_mean(first, known)} (a path starts with {', '.join(_ROOTS)}, or a key of one "
        f"of them)"
    )


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
        groups = [Group((axis,)) for axis in self._axes((*keys, "grid"), given.get("grid", {}))]
        groups += self._linked((*keys, "zip"), given.get("zip", []))
        if "sample" in given:
            groups += self._sampled((*keys, "sample"), given["sample"])
        if not groups and not self.problems:
            self._problem(keys, "varies nothing; give axes in grid, zip or sample")
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

    def _linked(self, keys: Keys, given: Any) -> Iterator[Group]:
        groups = given if isinstance(given, list) else [given]
        for index, each in enumerate(groups):
            at = (*keys, index) if isinstance(given, list) else keys
            axes = tuple(self._axes(at, each))
            if len({len(axis) for axis in axes}) > 1:
                lengths = ", ".join(f"{axis.name} has {len(axis)}" for axis in axes)
                self._problem(at, f"linked axes need the same number of values; {lengths}")
            elif axes:
                yield Group(axes)

    def _sampled(self, keys: Keys, given: Any) -> Iterator[Group]:
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
            yield Group(_drawn(axes, method, count, seed))

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
                raise ValueError(f"{seen[key]} and {text} are the same value; keep one")


def _drawn(axes: tuple[Axis, ...], method: str, count: int, seed: int) -> tuple[Axis, ...]:
    """The axes with ``count`` values each, drawn together."""
    drawn = []
    for axis, shares in zip(axes, draw_shares(method, len(axes), count, seed).T, strict=True):
        first = axis.values[0]
        values = Drawn(shares, first if isinstance(first, Range) else axis.values)
        drawn.append(Axis(axis.path, axis.place, values, Drawn(shares, axis.places)))
    return tuple(drawn)

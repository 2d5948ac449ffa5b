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
paths, too. The syntax of values and of constraints is below.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import (
    DIMENSIONS,
    SIZE,
    Dimension,
    KeyProblem,
    Spec,
    as_written,
    count,
    describe,
    format_quantity,
    parse_quantity,
    refuse_duplicates,
)
from archsim.base.yaml import Keys, Place, Tree, keys_of
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.experiment import WorkloadSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.system import SystemSpec

if TYPE_CHECKING:
    import numpy as np


# ---- constraints
# Constraints of a sweep: which points are kept. They have their own grammar; nothing is evaluated as code.
#
#     constraint := test { "and" test }
#     test       := NAME "fits"  |  sum OP sum { OP sum }          OP: <= < >= > == !=
#     sum        := product { ("+" | "-") product }
#     product    := atom { ("*" | "/") atom }
#     atom       := NUMBER [UNIT]  |  NAME  |  'text'  |  "(" sum ")"  |  "-" atom
#
# A NAME is a key of the experiment by its dotted path, or a measure of the machine that needs no run. Numbers with
# units are compared in base units (B, B/s, FLOP/s, ns, Hz). Put blanks around operators, as names may contain ``-`` and
# ``+``. A word that is not a name is text to the right of == and != (``system.topology.name == torus``). Text has no
# other comparison.

_COMPARE = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
_REAL = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_UNITS = sorted({unit for dimension in DIMENSIONS for unit in dimension.units if unit}, key=len, reverse=True)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)(?:\s*(?P<unit>"
    + "|".join(map(re.escape, _UNITS))
    + r")(?![\w/]))?"
    r"|(?P<name>[A-Za-z_]\w*(?:[.+-]?\w+)*)|'(?P<text>[^']*)'|(?P<sign><=|>=|==|!=|[-+*/()<>]))",
    re.ASCII,
)

MOST_WORDS = 200  # of a constraint: its parser descends with every bracket

Lookup = Callable[[str], Any]
"""Value of a name: number (base unit), text, boolean (for ``fits``), or None if the point has no such key."""


class Absent(Exception):
    """The point does not have the key, so the constraint does not apply to it."""


@dataclass(frozen=True)
class Constraint:
    """``text`` as written, its ``names``; ``words``: names that may be text; ``tests``: trees; all must hold."""

    text: str
    names: tuple[str, ...]
    words: frozenset[str]
    tests: tuple[tuple, ...]

    def holds(self, lookup: Lookup) -> Any:
        """Whether a point is kept; constraints on keys it lacks do not apply. Raises ValueError for bad comparisons.

        Of many points, whose numbers are arrays: bool[point].
        """
        kept: Any = True
        try:
            for test in self.tests:
                kept = kept & _test(test, lookup)
                if not any_of(kept):
                    break
        except Absent:
            pass
        return kept


def parse_constraint(text: str) -> Constraint:
    """Parse a constraint. Raises ValueError that says where the text is invalid and what was expected."""
    parser = _Parser(text)
    tests = [parser.test()]
    while parser.take("name", "and"):
        tests.append(parser.test())
    parser.end()
    names = tuple(dict.fromkeys(name for test in tests for name in _names(test)))
    words = {
        sides[1][1]
        for test in tests
        if test[0] == "compare" and set(test[2]) <= {"==", "!="}
        for sides in [test[1]]
        if sides[1][0] == "name"
    }
    return Constraint(text, names, frozenset(words), tuple(tests))


@dataclass(frozen=True)
class Expression:
    """A sum of a constraint alone: ``text`` as written, the ``names`` in it, its ``tree``."""

    text: str
    names: tuple[str, ...]
    tree: tuple

    @property
    def has_text(self) -> bool:
        """Whether a word is quoted."""
        return "'" in self.text

    def value(self, lookup: Lookup) -> Any:
        """NaN where a name has no value, and for a division by zero; of many points, float64[point]."""
        try:
            return 1.0 * _value(self.tree, lookup)
        except (Absent, ValueError):
            return math.nan


def parse_expression(text: str) -> Expression:
    """Parse a sum, such as ``throughput / area``. Raises ValueError as `parse_constraint` does."""
    parser = _Parser(text)
    tree = parser.sum()
    parser.end()
    return Expression(text, tuple(dict.fromkeys(_names(tree))), tree)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, Any, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text!r}: not understood from {text[at:].strip()[:20]!r} on")
            kind = str(match.lastgroup if match.lastgroup != "unit" else "number")
            value = _quantity(match["number"], match["unit"]) if kind == "number" else match[kind]
            self._tokens.append((kind, value, at))
            at = match.end()
            if len(self._tokens) > MOST_WORDS:
                raise ValueError(f"{text[:40]!r}...: more than {MOST_WORDS} words and signs")
        self._next = 0

    def test(self) -> tuple:
        first = self.sum()
        if first[0] == "name" and self.take("name", "fits"):
            return "fits", first[1]
        sums, signs = [first], []
        while (sign := self._one_of(_COMPARE)) is not None:
            signs.append(sign)
            sums.append(self.sum())
        if not signs:
            raise self._unexpected(f"one of {' '.join(_COMPARE)}")
        return "compare", tuple(sums), tuple(signs)

    def sum(self) -> tuple:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> tuple:
        return self._chain(self._atom, ("*", "/"))

    def _chain(self, part: Callable[[], tuple], signs: tuple[str, ...]) -> tuple:
        tree = part()
        while (sign := self._one_of(signs)) is not None:
            tree = (sign, tree, part())
        return tree

    def _atom(self) -> tuple:
        if self._one_of(("(",)):
            tree = self.sum()
            if not self._one_of((")",)):
                raise self._unexpected("')'")
            return tree
        if self._one_of(("-",)):
            return "-", ("number", 0.0), self._atom()
        if self._next < len(self._tokens) and self._tokens[self._next][0] != "sign":
            kind, value, _ = self._tokens[self._next]
            self._next += 1
            return kind, value
        raise self._unexpected("a number, a name or '('")

    def take(self, kind: str, value: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next][:2] == (kind, value)
        self._next += found
        return found

    def _one_of(self, signs) -> str | None:
        return next((sign for sign in signs if self.take("sign", sign)), None)

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise self._unexpected("the end, or `and`")

    def _unexpected(self, expected: str) -> ValueError:
        rest = self._text[self._tokens[self._next][2] :].strip() if self._next < len(self._tokens) else ""
        return ValueError(f"{self._text!r}: expected {expected}{f' instead of {rest!r}' if rest else ' at the end'}")


def any_of(found: Any) -> bool:
    """Whether a truth holds; of many points, for any of them."""
    return bool(found.any() if hasattr(found, "any") else found)


def _quantity(number: str, unit: str | None) -> float:
    if unit is None:
        return float(number)
    dimension = next(each for each in DIMENSIONS if unit in each.units)
    return float(parse_quantity(f"{number} {unit}", dimension))


def _names(tree: tuple) -> Iterator[str]:
    if tree[0] in ("name", "fits"):
        yield tree[1]
    elif tree[0] == "compare":
        for each in tree[1]:
            yield from _names(each)
    elif tree[0] in _REAL:
        yield from _names(tree[1])
        yield from _names(tree[2])


def _test(test: tuple, lookup: Lookup) -> Any:
    if test[0] == "fits":
        return bool(_known(test[1], lookup))
    _, sums, signs = test
    values = [_value(each, lookup) for each in sums]
    for sign, left, right in zip(signs, values, values[1:], strict=False):
        if isinstance(left, str) != isinstance(right, str) or (isinstance(left, str) and sign not in ("==", "!=")):
            raise ValueError(f"{left!r} {sign} {right!r}: cannot be compared with {sign}")
    holding = (_COMPARE[sign](left, right) for sign, left, right in zip(signs, values, values[1:], strict=False))
    return reduce(operator.and_, holding)


def _value(tree: tuple, lookup: Lookup) -> Any:
    if tree[0] == "name":
        return _known(tree[1], lookup)
    if tree[0] in ("number", "text"):
        return tree[1]
    left, right = _value(tree[1], lookup), _value(tree[2], lookup)
    if isinstance(left, str) or isinstance(right, str):
        raise ValueError(f"{left!r} {tree[0]} {right!r}: text has no arithmetic; compare it with == or !=")
    if tree[0] == "/" and any_of(right == 0):
        raise ValueError("division by zero")
    return _REAL[tree[0]](left, right)


def _known(name: str, lookup: Lookup) -> Any:
    value = lookup(name)
    if value is None:
        raise Absent(name)
    return value


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
_MANY = 1000  # values of a range: if there are more, they are written when asked for, and its ends are checked alone
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
    """A range from ``low`` to ``high``, in the base unit of ``dimension`` (None for pure numbers). ``log``: it is
    sampled on a log scale.
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
        return self.rounded(numbers)

    def rounded(self, numbers: "np.ndarray") -> list[float]:
        """Numbers in the base unit, float64[n], as their text is read: whole, or of six significant digits."""
        import numpy as np

        whole = np.rint(numbers) + 0.0
        if self.whole:
            return whole.tolist()
        return np.where(np.abs(numbers - whole) <= _WHOLE, whole, _short(numbers)).tolist()

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


def _short(numbers: "np.ndarray") -> "np.ndarray":
    """Numbers of six significant digits, float64[n], as ``float(f"{number:.6g}")``.

    That is a whole number of six digits, over or times a power of ten: one operation that is rounded correctly where
    the power is exact (10^22 at most). Where the whole number is uncertain, which is close to a half, the text is read.
    """
    import numpy as np

    size = np.abs(numbers)
    sure = (size > 1e-12) & (size < 1e24)
    likely = np.where(sure, numbers, 1.0)
    digits = _DIGITS - 1 - np.floor(np.log10(np.abs(likely))).astype(np.int64)
    power = np.array([float(f"1e{at}") for at in range(23)])[np.minimum(np.abs(digits), 22)]
    shifted = np.where(digits >= 0, likely * power, likely / power)
    whole = np.rint(shifted)
    sure &= (np.abs(whole) > 10 ** (_DIGITS - 1)) & (np.abs(whole) < 10**_DIGITS)
    sure &= np.abs(np.abs(shifted - whole) - 0.5) > 1e-6
    found = np.where(digits >= 0, whole / power, whole * power)
    for at in np.flatnonzero(~sure).tolist():
        found[at] = float(f"{numbers[at]:.{_DIGITS}g}")
    return found


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


def counted_values(given: dict[str, Any]) -> Sequence[Any]:
    """The values of a range with a count, each once. Raises ValueError."""
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
    if len(numbers) > _MANY:
        import numpy as np

        return RangeValues(span, list(dict.fromkeys(span.rounded(np.array(numbers, np.float64)))))
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
# Values of a sampled axis, and of a range with many, made when asked for: a million points cost no more than their
# numbers.

METHODS = ("latin_hypercube", "sobol", "random")


class RangeValues(Sequence):
    """Values of a range with a count, by their numbers in the base unit."""

    def __init__(self, of: Range, numbers: list[float]) -> None:
        self._of, self._numbers = of, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index):
        return self._of._written(self._numbers[index])

    def numbers(self) -> list[float]:
        """All values in the base unit."""
        return self._numbers

    @property
    def telling(self) -> list[int]:
        """Indices of values that are valid only if all are: the ends, and the first pure number that is not whole."""
        numbers = self._numbers if self._of.dimension is None else []
        broken = next((at for at, number in enumerate(numbers) if number != int(number)), 0)
        return sorted({0, broken, len(self._numbers) - 1})


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
    """The content of ``sweep:``: groups that multiply each other (the first varies slowest), and constraints with
    their places.

    given: the data from which it was read.
    """

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
            f"{place}: systems draw {' and '.join(map(str, sorted(numbers)))} wafers. Give all that are drawn the same "
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
        groups = [LinkedAxes((axis,)) for axis in self._axes((*keys, "grid"), given.get("grid", {}))]
        groups += self._linked((*keys, "zip"), given.get("zip", []))
        if "sample" in given:
            groups += self._sampled((*keys, "sample"), given["sample"])
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

    def _linked(self, keys: Keys, given: Any) -> Iterator[LinkedAxes]:
        groups = given if isinstance(given, list) else [given]
        for index, each in enumerate(groups):
            at = (*keys, index) if isinstance(given, list) else keys
            axes = tuple(self._axes(at, each))
            if len({len(axis) for axis in axes}) > 1:
                lengths = ", ".join(f"{axis.name} has {len(axis)}" for axis in axes)
                self._problem(at, f"linked axes need the same number of values; {lengths}")
            elif axes:
                yield LinkedAxes(axes)

    def _sampled(self, keys: Keys, given: Any) -> Iterator[LinkedAxes]:
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


# ---- explore
# ``explore:`` of an experiment with a ``sweep:``: what to optimise over its points.
#
# ::
#
#     explore:
#       objectives: [throughput, energy, cost]     # or expressions, throughput / area; budgets optimise the first
#       where: [throughput >= 20000]               # checked on results; `sweep.where` is checked before anything runs
#       budgets: [cost <= 40000, power <= 2000]    # the best design within each is reported, with its YAML
#       event_runs: 15 %                           # of the points, or a number of runs; 0: the analytical engine alone
#       analytical_runs: 20000                     # at most; a larger space is screened, or optuna chooses which
#       samples: 64                                # worlds, for objectives such as throughput.p10
#       screened_runs: 1000                        # of a screened space: points near its front that are run whole
#       coefficients: {hbm_usd_per_gb: 20}         # for energy, area and price: `archsim hardware cost FILE --sources`

EXPLORE_KEY = "explore"


class Objective(NamedTuple):
    """A column of the results (``archsim.runs.columns``), and its sense: ``max`` or ``min``."""

    column: str
    sense: str


OBJECTIVES: MappingProxyType[str, Objective] = MappingProxyType(
    {
        "throughput": Objective("tokens_per_s", "max"),
        "time": Objective("decode_ns", "min"),
        "energy": Objective("energy_per_token_j", "min"),
        "power": Objective("power_w", "min"),
        "area": Objective("silicon_mm2", "min"),
        "cost": Objective("cost_usd", "min"),
    }
)
_OPPOSITE = {"max": "min", "min": "max"}


class Risk(NamedTuple):
    """An objective over many worlds: a ``quantile`` (0 to 1) of ``name``, or the probability that it is on one side of
    a ``bound``, in its base unit.
    """

    name: str
    quantile: float | None
    above: bool = True
    bound: float = 0.0

    def of(self, values: Any) -> float:
        """The value of the objective, from that of ``name`` in every world, float64[sample]. A probability counts half
        a world more on either side: of few worlds, none says never.
        """
        import numpy as np

        if self.quantile is not None:
            return float(np.quantile(values, self.quantile))
        kept = np.count_nonzero(values >= self.bound if self.above else values <= self.bound)
        return (kept + 0.5) / (len(values) + 1)


RISKY = ("throughput", "time")  # what is known in every world
_QUANTILE = re.compile(r"(\w+)\.p(\d{1,2})")
_PROBABILITY = re.compile(r"probability\(\s*(\w+)\s*(>=|<=)\s*([0-9.]+(?:e[+-]?\d+)?)\s*\)")


def risk_of(objective: str) -> Risk | None:
    """``throughput.p10`` and ``probability(throughput >= 40000)`` (tokens/s; time in ns); None for other objectives.
    Raises ValueError for one of these of which the value in other worlds is not known.
    """
    quantile, probability = _QUANTILE.fullmatch(objective.strip()), _PROBABILITY.fullmatch(objective.strip())
    name = (quantile or probability or {1: None})[1]
    if name is None:
        return None
    if name not in RISKY:
        hint = did_you_mean(name, RISKY)
        raise ValueError(f"objective {objective!r}: {name!r} is not drawn{hint} (drawn: {', '.join(RISKY)})")
    if quantile:
        if not 1 <= int(quantile[2]) <= 99:
            raise ValueError(f"objective {objective!r}: expected a quantile from p1 to p99")
        return Risk(name, int(quantile[2]) / 100)
    assert probability is not None
    return Risk(name, None, probability[2] == ">=", float(probability[3]))


def sense_of(objective: str) -> str:
    """``max`` or ``min`` of a name of OBJECTIVES, an expression of them, or a risk (`risk_of`). Raises ValueError for
    unknown names, and where parts of an expression disagree, as in ``throughput * area``.
    """
    if objective in OBJECTIVES:
        return OBJECTIVES[objective].sense
    if (risk := risk_of(objective)) is not None:
        return OBJECTIVES[risk.name].sense if risk.quantile is not None else "max"
    try:
        found = parse_expression(objective)
    except ValueError as error:
        raise ValueError(f"unknown objective {objective!r}{_near(objective)}: {error}") from None
    for name in found.names:
        if name not in OBJECTIVES:
            raise ValueError(f"unknown objective {name!r}{_near(name)}")
    sense = _sense(found.tree, objective)
    if sense is None:
        raise ValueError(f"objective {objective!r} names no result{_near('')}")
    return sense


def with_expressions(values: Mapping[str, float], objectives: Iterable[str], slower: Any = None) -> dict[str, float]:
    """The values of OBJECTIVES, and of those objectives that are expressions of them, or risks. ``slower``:
    float64[sample], by what the time of each world is longer; None where it is not known, where a risk has the value of
    what it is a risk of, or 1 over it, so that better is better.
    """
    found: dict[str, float] = dict(values)
    for name in objectives:
        risk = risk_of(name) if name not in OBJECTIVES else None
        if risk is None:
            if name not in OBJECTIVES:
                found[name] = parse_expression(name).value(values.get)
        elif slower is not None:
            found[name] = risk.of(values[risk.name] * slower if risk.name == "time" else values[risk.name] / slower)
        else:
            value = values[risk.name]
            found[name] = value if risk.quantile is not None or risk.above else 1 / value
    return found


def _near(name: str) -> str:
    known = f"known: {', '.join(OBJECTIVES)}, and expressions such as throughput / area"
    return f"{did_you_mean(name, OBJECTIVES)} ({known})"


def _sense(tree: tuple, text: str) -> str | None:
    """Of a tree of ``parse_expression``; None of numbers."""
    kind, *parts = tree
    if kind == "name":
        return OBJECTIVES[parts[0]].sense
    if kind in ("number", "text"):
        return None
    left, right = (_sense(part, text) for part in parts)
    if kind in ("-", "/") and right:
        right = _OPPOSITE[right]
    if left and right and left != right:
        raise ValueError(f"objective {text!r}: more of one part is better and of the other worse; neither is optimised")
    return left or right


_MOST_RUNS = 1_000_000


def _read_constraint(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"expected a constraint such as 'cost <= 40000', not {describe(text)}")
    for name in parse_constraint(text).names:
        if name not in OBJECTIVES:
            raise ValueError(
                f"unknown result {name!r}{did_you_mean(name, OBJECTIVES)} (known: {', '.join(OBJECTIVES)})"
            )
    return text


class ExploreSpec(Spec):
    """What ``archsim sweep --search`` optimises."""

    objectives: tuple[str, ...] = Field(min_length=1, max_length=4)
    where: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    # Maximum runs of the event engine: a share of the points, or a number.
    event_runs: float | int = 0.15
    # Maximum runs of the analytical engine; of more points, a screen or optuna decides. Twenty thousand take minutes.
    analytical_runs: Annotated[int, count(1, _MOST_RUNS)] = 20_000
    # Points of a screened space, on and nearest to its front, that the analytical engine runs whole.
    screened_runs: Annotated[int, count(1, _MOST_RUNS)] = 1000
    # Worlds in which an objective such as throughput.p10 is found (`archsim sure`), and how many designs are drawn.
    samples: Annotated[int, count(16, 4096)] = 64
    drawn_designs: Annotated[int, count(1, 10_000)] = 64
    coefficients: dict[str, float] = Field(default_factory=dict)
    seed: Annotated[int, count(0, 2**31)] = 0

    @field_validator("objectives")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for place, name in enumerate(names):
            try:
                sense_of(name)
            except ValueError as error:
                raise KeyProblem((place,), str(error)) from None
        refuse_duplicates("objective", list(names))
        return names

    @field_validator("where", "budgets", mode="before")
    @classmethod
    def _readable(cls, texts: Any) -> Any:
        if not isinstance(texts, list | tuple):
            raise ValueError(f"expected a list of constraints, not {describe(texts)}")
        for place, text in enumerate(texts):
            try:
                _read_constraint(text)
            except ValueError as error:
                raise KeyProblem((place,), str(error)) from None
        return texts

    @field_validator("event_runs", mode="before")
    @classmethod
    def _share_or_number(cls, value: Any) -> float | int:
        expected = "expected a share of the points such as 15 %, or a number of runs"
        if isinstance(value, str) and value.strip().endswith("%"):
            try:
                value = float(value.strip()[:-1] if value.isascii() else "") / 100
            except ValueError:
                raise ValueError(f"{expected}, not {describe(value)}") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{expected}, not {describe(value)}")
        if isinstance(value, float) and not 0 < value <= 1:
            raise ValueError(f"{value!r}: a share must be above 0 and at most 1; {expected}")
        if isinstance(value, int) and not 0 <= value <= _MOST_RUNS:
            raise ValueError(f"{value!r}: {expected}")
        return value

    def most_runs(self, points: int) -> int:
        """The maximum number of event runs for this many points; of a share at least 1."""
        return self.event_runs if isinstance(self.event_runs, int) else max(1, round(self.event_runs * points))

    @property
    def senses(self) -> tuple[str, ...]:
        return tuple(map(sense_of, self.objectives))

    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(map(parse_constraint, self.where))

"""The values of a sweep axis: a list, or a range with a count or to be sampled.

==================================== =================================================================================
``[5x5, 8x8]``                       these values, of any type
``{from: 1 TB/s, to: 4 TB/s, step: 1 TB/s}``  1, 2, 3 and 4 TB/s; never above ``to``
``{from: 1, to: 64, factor: 2}``     1, 2, 4, … 64
``{from: 1 TB/s, to: 8 TB/s, linear: 8}``     8 values, evenly spaced
``{from: 1 TB/s, to: 8 TB/s, log: 4}``        4 values, evenly spaced in log scale
``{from: 1 TB/s, to: 8 TB/s}``       to be sampled; with ``scale: log``, uniformly in log scale
==================================== =================================================================================

If ``from`` and ``to`` are integers, so are the values (rounded, each once); write ``1.0`` for reals. Other values
that are not whole in their base unit are rounded to six significant digits. Values are written with a suitable unit.

Values of a sampled axis, and of a range with many, made when asked for: a million points cost no more than their
numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from archsim.base.errors import did_you_mean
from archsim.base.quantities import DIMENSIONS, SIZE, Dimension, describe, format_quantity, parse_quantity

if TYPE_CHECKING:
    import numpy as np

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
    """A range that a value is taken from."""

    low: float  # first end, in the base unit
    high: float  # last end, in the base unit
    dimension: Dimension | None  # of its unit; None: pure numbers
    whole: bool  # integers only
    log: bool  # whether it is sampled on a log scale

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
            return self._round(self.low * (self.high / self.low) ** share)
        if self.whole:
            return float(self.value(share))
        return self._round(self.low + share * (self.high - self.low))

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
        return self.round_numbers(numbers)

    def round_numbers(self, numbers: "np.ndarray") -> list[float]:
        """Numbers in the base unit, float64[n], as their text is read: whole, or of six significant digits."""
        import numpy as np

        whole = np.rint(numbers) + 0.0
        if self.whole:
            return whole.tolist()
        return np.where(np.abs(numbers - whole) <= _WHOLE, whole, _short(numbers)).tolist()

    def _round(self, number: float) -> float:
        if self.whole or abs(number - round(number)) <= _WHOLE:
            return float(round(number))
        return float(f"{number:.{_DIGITS}g}")

    def _written(self, number: float) -> Any:
        if self.whole:
            return round(number)
        rounded = self._round(number)
        if self.dimension is None:
            return rounded
        return format_quantity(int(rounded) if self.dimension is SIZE else rounded, self.dimension)


def _short(numbers: "np.ndarray") -> "np.ndarray":
    """float64[n] as ``float(f"{number:.6g}")``: six whole digits over or times a power of ten, rounded correctly where
    that is exact (10^22 at most); the text is read where the whole number is close to a half.
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
        numbers = _steps(span, way, given[way])
    if len(numbers) > _MANY:
        import numpy as np

        return RangeValues(span, list(dict.fromkeys(span.round_numbers(np.array(numbers, np.float64)))))
    return tuple(dict.fromkeys(span._written(number) for number in numbers))


def _between(span: Range, share: float) -> float:
    return span.low * (span.high / span.low) ** share if span.log else span.low + share * (span.high - span.low)


def _steps(span: Range, way: str, given: Any) -> list[float]:
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
    for dimension in DIMENSIONS:
        try:
            parse_quantity(text, dimension)
        except ValueError:
            continue
        return dimension if not text.strip().replace(".", "").isdigit() else None
    return None


def _kind(dimension: Dimension | None) -> str:
    return "a pure number" if dimension is None else dimension.article_name


class RangeValues(Sequence):
    """Values of a range with a count, by their numbers in the base unit."""

    def __init__(self, of: Range, numbers: list[float]) -> None:
        self._of, self._numbers = of, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index):
        return self._of._written(self._numbers[index])

    def numbers(self) -> list[float]:
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

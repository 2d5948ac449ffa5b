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
"""

import math
from dataclasses import dataclass
from typing import Any

from archsim.base.nearest import did_you_mean
from archsim.base.text.quantities import DIMENSIONS, SIZE, Dimension, describe, format_quantity, parse_quantity

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

    def _written(self, number: float) -> Any:
        if self.whole:
            return round(number)
        rounded = float(round(number)) if abs(number - round(number)) <= _WHOLE else float(f"{number:.{_DIGITS}g}")
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

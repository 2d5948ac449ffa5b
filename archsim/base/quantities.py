"""Numbers as files have them, with units: '3.35 TB/s', '200 ns', '64 MiB', '989 TFLOP/s', '10 %'.

A quantity is read once, when a spec is loaded. From then on it is a plain number in the unit of its attribute's name:
bytes (int), bytes/s, FLOP/s and ns (float), fractions (float). Decimal prefixes are SI (k M G T P), binary ones
IEC (Ki Mi Gi Ti). Reading uses :class:`decimal.Decimal`, so that a value is the float nearest to the text.
"""

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from annotated_types import GroupedMetadata
from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from archsim.base.errors import did_you_mean

_SI = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_IEC = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_QUANTITY = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*)?", re.ASCII)

# Units of data that count bits, or write "per second" in letters: `Tb/s`, `Gbit`, `Gbps`, `GBps`, `megabits/s`.
_DATA_UNIT = re.compile(
    r"(?P<prefix>[kKMGTPgmtp]i?|kilo|mega|giga|tera|)-?(?P<what>b|bits?|B|bytes?)(?P<rate>/s|/sec|ps| per second|)",
    re.ASCII,
)
_PREFIXES = MappingProxyType(
    {"kilo": "k", "mega": "M", "giga": "G", "tera": "T", "K": "k", "m": "M", "g": "G", "t": "T", "p": "P"}
)
_MOST_DIGITS = 300  # before or after the point: what floats have


class Dimension(NamedTuple):
    """A physical dimension: its name, an example for messages, and its units in terms of the base unit."""

    name: str
    example: str
    units: MappingProxyType[str, Decimal]

    @property
    def article_name(self) -> str:
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"


def _prefixes_of(unit: str, *, binary: bool) -> MappingProxyType[str, Decimal]:
    units = {f"{prefix}{unit}": Decimal(10) ** power for prefix, power in _SI.items()}
    if binary:
        units |= {f"{prefix}{unit}": Decimal(2) ** power for prefix, power in _IEC.items()}
    return MappingProxyType(units)


SIZE = Dimension("size", "80 GB", _prefixes_of("B", binary=True))
BANDWIDTH = Dimension("bandwidth", "3.35 TB/s", _prefixes_of("B/s", binary=True))
COMPUTE = Dimension("compute rate", "989 TFLOP/s", _prefixes_of("FLOP/s", binary=False))
TIME = Dimension(
    "time",
    "200 ns",
    MappingProxyType(
        # Both code points of the micro sign are in use: U+00B5 on keyboards, U+03BC after Unicode normalisation.
        {unit: Decimal(10) ** power for unit, power in {"ns": 0, "us": 3, "µs": 3, "μs": 3, "ms": 6, "s": 9}.items()}
    ),
)
# A part that reaches less than this share of its datasheet is broken, not slow; smaller values are mistyped units.
LEAST_SHARE = 0.0001
FRACTION = Dimension("fraction", "10 %", MappingProxyType({"%": Decimal("0.01"), "": Decimal(1)}))
CLOCK = Dimension("clock rate", "2 GHz", _prefixes_of("Hz", binary=False))
NUMBER = Dimension("number", "1.5", MappingProxyType({"": Decimal(1)}))
POWER = Dimension("power", "17 kW", MappingProxyType({"W": Decimal(1), "kW": Decimal(1000), "MW": Decimal(10**6)}))
TEMPERATURE = Dimension("temperature", "25 C", MappingProxyType({"C": Decimal(1), "°C": Decimal(1)}))
RESISTANCE = Dimension("thermal resistance", "0.02 K/W per die", MappingProxyType({"K/W per die": Decimal(1)}))
AREA = Dimension("area", "600 mm2", MappingProxyType({"mm2": Decimal(1), "cm2": Decimal(100)}))
DIMENSIONS = (CLOCK, SIZE, BANDWIDTH, COMPUTE, TIME, POWER, TEMPERATURE, RESISTANCE, AREA, FRACTION)
_DIMENSION_OF_UNIT = {unit: dimension for dimension in DIMENSIONS for unit in dimension.units if unit}


def parse_quantity(text: str, dimension: Dimension) -> Decimal:
    """The value of ``text`` in the base unit of ``dimension`` (B, B/s, FLOP/s, ns, 1), exactly. Raises ValueError that
    says what was expected, for text that is not a number with a unit of this dimension.
    """
    expected = f"expected {dimension.article_name} such as '{dimension.example}'"
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit; {expected}{other_digits(text)}")
    number, unit = match[1], (match[2] or "")
    if unit in dimension.units:
        try:
            value = Decimal(number) * dimension.units[unit]
        except ArithmeticError:
            value = Decimal("inf")
        if value and not abs(value.adjusted() if value.is_finite() else _MOST_DIGITS) < _MOST_DIGITS:
            raise ValueError(f"{text!r} is out of range")
        return value
    if not unit:
        raise ValueError(f"{text!r} has no unit; {expected}")
    other = _DIMENSION_OF_UNIT.get(unit)
    if other is not None:
        raise ValueError(f"{text!r} is {other.article_name}; {expected}")
    hint = _of_data(number, unit, dimension) or did_you_mean(unit, [name for name in dimension.units if name])
    raise ValueError(f"{text!r}: unknown unit {unit!r}; {expected}{hint}")


def _of_data(number: str, unit: str, dimension: Dimension) -> str:
    """A hint for a unit of bits, or of bytes spelt another way: what to write instead, in bytes; '' for others."""
    found = _DATA_UNIT.fullmatch(unit) if dimension in (SIZE, BANDWIDTH) else None
    if found is None or bool(found["rate"]) != (dimension is BANDWIDTH):
        return ""
    prefix = found["prefix"]
    binary = prefix[1:] == "i"
    prefix = f"{prefix[0].upper()}i" if binary else _PREFIXES.get(prefix, prefix)
    right = f"{prefix}{'B/s' if found['rate'] else 'B'}"
    if right not in dimension.units:
        return ""
    bytes_ = f"'{number} {right}'"
    if found["what"].startswith(("B", "byte")):
        return f"; write {bytes_}"
    value = Decimal(number) * dimension.units[right] / 8
    in_bytes = format_quantity(int(value) if dimension is SIZE and value == int(value) else float(value), dimension)
    return f"; these are bits: write '{in_bytes}', or {bytes_} if bytes are meant"


def other_digits(text: str) -> str:
    """A hint for digits that are none of 0 to 9, such as full-width ones; '' without."""
    odd = sorted({letter for letter in text if letter.isdigit() and not letter.isascii()})
    return f"; {', '.join(odd)}: write digits as 0 to 9" if odd else ""


class WrittenNumber(NamedTuple):
    """A number as written, its unit, and the dimension of that."""

    number: float
    unit: str
    dimension: Dimension

    @property
    def worth(self) -> float:
        return float(self.dimension.units[self.unit])


def as_written(text: str) -> WrittenNumber | None:
    """A quantity of any dimension; a number without a unit counts as a fraction. None for other text."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2] or ""
    dimension = _DIMENSION_OF_UNIT.get(unit, None if unit else FRACTION)
    return None if dimension is None else WrittenNumber(float(match[1]), unit, dimension)


def format_quantity(value: float, dimension: Dimension) -> str:
    """``value`` (base unit) as short text that :func:`parse_quantity` reads back as exactly the same number."""
    units = sorted(dimension.units.items(), key=lambda item: -item[1])
    for unit, worth in units:
        number = Decimal(str(value)) / worth
        text = f"{number.normalize():f} {unit}".strip()
        if (
            unit.isascii()
            and abs(number) >= 1
            and len(text) <= 14
            and type(value)(parse_quantity(text, dimension)) == value
        ):
            return text
    smallest = next(unit for unit, worth in units if worth == 1)
    return f"{value!r} {smallest}".strip()


class FieldType(GroupedMetadata):
    """How a field is read and written, and its schema. ``dimension``: of a number with a range; None: of an exact."""

    def __init__(
        self, *parts: BeforeValidator | PlainSerializer | WithJsonSchema, dimension: Dimension | None = None
    ) -> None:
        self._parts, self.dimension = parts, dimension

    def __iter__(self) -> Iterator[object]:
        return iter(self._parts)


def quantity(dimension: Dimension, low: str, high: str, kind: type = float, *, zero: bool = False) -> FieldType:
    """A quantity that is read and checked; ``low`` and ``high`` limit plausible values. A negative ``low`` allows
    values of any sign.

    In YAML a unit is required (except for fractions). In Python a bare number is in the attribute's own unit.
    """
    least, most = parse_quantity(low, dimension), parse_quantity(high, dimension)

    def read(value: Any, info: ValidationInfo) -> Any:
        number = _number(value, dimension, from_yaml=bool(info.context))
        signed = least < 0
        if not signed and (number < 0 or (number == 0 and not zero)):
            raise ValueError(f"must be {'zero or more' if zero else 'positive'}, not {value!r}")
        if (signed or number != 0) and not least <= number <= most:
            raise ValueError(f"{value!r} is not plausible for a {dimension.name} here; expected {low} to {high}")
        if kind is int and number != int(number):
            raise ValueError(f"{value!r} is not a whole number of bytes")
        return kind(number)

    text = PlainSerializer(lambda value: format_quantity(value, dimension))
    schema = {"type": "string", "format": dimension.name, "examples": [dimension.example], "title": f"{low} to {high}"}
    return FieldType(BeforeValidator(read), text, WithJsonSchema(schema), dimension=dimension)


def fraction(*, zero: bool, most: float = 1.0) -> FieldType:
    """0 <= f < 1 if ``zero`` is allowed, else ``LEAST_SHARE`` <= f <= 1; at most ``most`` if that is less."""

    def read(value: Any) -> float:
        number = _number(value, FRACTION, from_yaml=False)
        if most < 1 and not 0 <= number <= most:
            raise ValueError(f"{value!r} is not plausible here; expected 0 to {most:.0%}")
        if not (0 <= number < 1 if zero else LEAST_SHARE <= number <= 1):
            ends = "at least 0 and below 1" if zero else f"at least {LEAST_SHARE} and at most 1"
            raise ValueError(f"{value!r} is not {ends}")
        return float(number)

    ends = "0 to below 1" if zero else f"{LEAST_SHARE} to 1"
    schema = {"type": ["number", "string"], "format": "fraction", "examples": ["10 %"], "title": ends}
    return FieldType(BeforeValidator(read), WithJsonSchema(schema), dimension=FRACTION)


def _number(value: Any, dimension: Dimension, *, from_yaml: bool) -> Decimal:
    expected = f"expected {dimension.article_name} such as '{dimension.example}'"
    if isinstance(value, str):
        return parse_quantity(value, dimension)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{expected}, not {describe(value)}")
    if from_yaml:
        raise ValueError(f"{value!r} has no unit; {expected}")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not finite; {expected}")
    return Decimal(str(value))


def describe(value: Any) -> str:
    """A YAML value in messages: ``a list``, ``a mapping``, ``nothing``, ``the number 5``, ``the text 'x'``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"the text {value!r}{other_digits(value)}" if isinstance(value, str) else f"the number {value!r}"


def count(low: int, high: int, *, none: bool = False) -> FieldType:
    """An integer from ``low`` to ``high`` (``1e3`` is one; ``true`` and ``'8'`` are not); ``none`` allows null."""

    def read(value: Any) -> int | None:
        if value is None and none:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value != int(value)
        ):
            raise ValueError(f"expected an integer, not {describe(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value} is out of range; expected {low} to {high}")
        return int(value)

    schema = {"type": ["integer", "null"] if none else "integer", "minimum": low, "maximum": high}
    return FieldType(BeforeValidator(read), WithJsonSchema(schema))


def number(low: float, high: float) -> FieldType:
    """A pure number from ``low`` to ``high``."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected a number, not {describe(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value} is out of range; expected {low:g} to {high:g}")
        return float(value)

    schema = {"type": "number", "minimum": low, "maximum": high}
    return FieldType(BeforeValidator(read), WithJsonSchema(schema), dimension=NUMBER)

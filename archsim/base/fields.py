"""The base of all specs. They are frozen, refuse unknown keys, and check the types of fields with messages that say
what was expected.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from archsim.base.errors import did_you_mean
from archsim.uncertainty.quantities import SHAPES, Distribution

# ---- quantities
# Numbers with units: ``'3.35 TB/s'``, ``'200 ns'``, ``'64 MiB'``, ``'989 TFLOP/s'``, ``'10 %'``.
#
# A quantity is read once, when a spec is loaded. From then on it is a plain number in the unit of its attribute's name:
# bytes (int), bytes/s, FLOP/s and ns (float), fractions (float). Decimal prefixes are SI (k M G T P), binary ones
# IEC (Ki Mi Gi Ti). Reading uses :class:`decimal.Decimal`, so that a value is the float nearest to the text.

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


def _prefixed(unit: str, *, binary: bool) -> MappingProxyType[str, Decimal]:
    units = {f"{prefix}{unit}": Decimal(10) ** power for prefix, power in _SI.items()}
    if binary:
        units |= {f"{prefix}{unit}": Decimal(2) ** power for prefix, power in _IEC.items()}
    return MappingProxyType(units)


SIZE = Dimension("size", "80 GB", _prefixed("B", binary=True))
BANDWIDTH = Dimension("bandwidth", "3.35 TB/s", _prefixed("B/s", binary=True))
COMPUTE = Dimension("compute rate", "989 TFLOP/s", _prefixed("FLOP/s", binary=False))
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
CLOCK = Dimension("clock rate", "2 GHz", _prefixed("Hz", binary=False))
NUMBER = Dimension("number", "1.5", MappingProxyType({"": Decimal(1)}))
POWER = Dimension("power", "17 kW", MappingProxyType({"W": Decimal(1), "kW": Decimal(1000), "MW": Decimal(10**6)}))
TEMPERATURE = Dimension("temperature", "25 C", MappingProxyType({"C": Decimal(1), "°C": Decimal(1)}))
RESISTANCE = Dimension("thermal resistance", "0.02 K/W per die", MappingProxyType({"K/W per die": Decimal(1)}))
AREA = Dimension("area", "600 mm2", MappingProxyType({"mm2": Decimal(1), "cm2": Decimal(100)}))
DIMENSIONS = (CLOCK, SIZE, BANDWIDTH, COMPUTE, TIME, POWER, TEMPERATURE, RESISTANCE, AREA, FRACTION)


_DIMENSION_OF_UNIT = {unit: dimension for dimension in DIMENSIONS for unit in dimension.units if unit}


def parse_quantity(text: str, dimension: Dimension) -> Decimal:
    """The value of ``text`` in the base unit of ``dimension`` (B, B/s, FLOP/s, ns, 1), exactly.

    Raises ValueError that says what was expected, for text that is not a number with a unit of this dimension.
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
        """What the unit is worth in the base unit of the dimension."""
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
    """What ``Annotated`` says of a field's type: how it is read, how written, and its schema. ``dimension``: of a
    number that may have a range; None of one that is exact, such as a count.
    """

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
    """A fraction: 0 <= f < 1 if ``zero`` is allowed, else ``LEAST_SHARE`` <= f <= 1; at most ``most``
    if that is less.
    """

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
    """Describe a YAML value for messages: ``a list``, ``a mapping``, ``nothing``, ``the number 5``,
    ``the text 'x'``.
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"the text {value!r}{other_digits(value)}" if isinstance(value, str) else f"the number {value!r}"


# ---- fields


class Ranged(NamedTuple):
    """What a file says about a number besides its value. ``written`` is what it gives there, without the value."""

    distribution: Distribution
    group: str
    source: str
    written: dict[str, Any]


_OF_RANGES = ("value", "range", "distribution", "group", "source")
_UNCERTAIN = "uncertain"


def without_range(given: Any) -> Any:
    """What a file gives for a number, without what it says beside the value."""
    return given["value"] if isinstance(given, dict) and "value" in given and {*given} <= {*_OF_RANGES} else given


class Spec(BaseModel):
    """Base class of all specs. YAML keys are the fields' aliases, if any; Python may use the attribute names.

    A number may have a range: ``bandwidth: {value: 1.5 TB/s, range: [1.35, 1.5], distribution: uniform}``, with
    ``group`` and ``source``. Its field is the value; `ranges` has the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    def __eq__(self, other: Any) -> bool:
        """Equal values with equal ranges: a cache must not give one for the other."""
        return self is other or (super().__eq__(other) is True and self.ranges == other.ranges)

    def has_values_of(self, other: Any) -> bool:
        """Whether the values are equal, whatever their ranges are."""
        if type(self) is not type(other):
            return False
        return all(_alike(getattr(self, name), getattr(other, name)) for name in type(self).model_fields)

    @property
    def ranges(self) -> dict[str, Ranged]:
        """Name of a field → what its file says of it beside the value."""
        return self.__dict__.get(_UNCERTAIN, {})

    def with_value(self, path: Sequence[str], value: float) -> Self:
        """The same with a number at a path of attributes or positions, in the unit of its attribute, checked as any
        other. Raises ValidationError.
        """
        name, *rest = path
        below = getattr(self, name)
        if isinstance(below, tuple):
            at = int(rest[0])
            new: Any = (*below[:at], below[at].with_value(rest[1:], value), *below[at + 1 :])
        elif rest:
            new = below.with_value(rest, value)
        else:
            own = {each: getattr(self, each) for each in type(self).model_fields}
            return type(self).model_validate(own | {name: round(value) if isinstance(below, int) else float(value)})
        return self.model_copy(update={name: new})

    @model_validator(mode="wrap")
    @classmethod
    def _with_ranges(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Read numbers that have a range: the spec has their values, and keeps the rest beside them."""
        if not isinstance(given, dict):
            return handler(given)
        found = [key for key, each in given.items() if isinstance(each, dict) and ("range" in each or "value" in each)]
        names = _ranged_fields(cls) if found else {}
        found = [key for key in found if key in names]
        if not found:
            return handler(given)
        for key in found:
            if "value" not in given[key]:
                said = "a range needs its value, too: expected {value: ..., range: [low, high]}"
                raise KeyProblem((key, "range"), said)
            for each in given[key]:
                if each not in _OF_RANGES:
                    hint = did_you_mean(each, _OF_RANGES)
                    raise KeyProblem((key, each), f"unknown key{hint} (known: {', '.join(_OF_RANGES)})")
        plain = given | {key: given[key]["value"] for key in found}
        spec = handler(plain)
        ranges = {names[key]: _ranged(cls, key, given[key], spec, plain, handler) for key in found}
        spec.__dict__[_UNCERTAIN] = {name: each for name, each in ranges.items() if each is not None}
        return spec

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, as it never changes."""
        return self


def _alike(one: Any, two: Any) -> bool:
    """Whether two values, or those of two lists, are equal whatever their ranges are."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_alike, one, two))
    return one.has_values_of(two) if isinstance(one, Spec) else one == two


@lru_cache(maxsize=512)
def _ranged_fields(kind: type[Spec]) -> dict[str, str]:
    """YAML key, or name → name, of the numbers that may have a range."""
    fields = {name: info for name, info in kind.model_fields.items() if dimension_of_field(info)}
    return {(info.alias or name): name for name, info in fields.items()}


def dimension_of_field(info: FieldInfo) -> Dimension | None:
    """The dimension of a number that may have a range, also of one that may be null. None for any other field."""
    parts, waiting = list(info.metadata), [info.annotation]  # what ``Annotated`` says
    while waiting:
        kind = waiting.pop()
        parts += getattr(kind, "__metadata__", ())
        if isinstance(kind, UnionType) or get_origin(kind) in (Union, Annotated):
            waiting += get_args(kind)
    return next((each.dimension for each in parts if isinstance(each, FieldType) and each.dimension is not None), None)


def _ranged(
    kind: type[Spec],
    key: str,
    given: dict[str, Any],
    spec: Spec,
    plain: dict[str, Any],
    handler: ModelWrapValidatorHandler[Any],
) -> Ranged | None:
    """What a mapping says of the number at ``key``. Raises KeyProblem; None without a range."""
    name = _ranged_fields(kind)[key]
    value = getattr(spec, name)
    shape = given.get("distribution", "uniform")
    if shape not in SHAPES:
        hint = did_you_mean(str(shape), SHAPES)
        raise KeyProblem((key, "distribution"), f"unknown distribution {shape!r}{hint} (known: {', '.join(SHAPES)})")
    for each in ("group", "source"):
        if not isinstance(given.get(each, ""), str):
            raise KeyProblem((key, each), f"expected text, not {describe(given[each])}")
    if "range" not in given:
        return None
    bounds = given["range"]
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise KeyProblem((key, "range"), f"expected two bounds such as [1.35, 1.5], not {describe(bounds)}")
    ends, told, of_value = [], [], as_written(given["value"]) if isinstance(given["value"], str) else None
    for at, bound in enumerate(bounds):
        if of_value and of_value.unit and isinstance(bound, int | float) and not isinstance(bound, bool):
            bound = f"{bound!r} {of_value.unit}"  # which stays, as a manifest may write the value in another unit
        told.append(bound)
        with _allowed((key, "range", at)):
            ends.append(getattr(handler(plain | {key: bound}), name))
    low, high = ends
    if not low <= value <= high:
        said = f"[{bounds[0]}, {bounds[1]}] does not contain the value, {given['value']}"
        raise KeyProblem((key, "range"), f"{said}; expected low <= value <= high")
    try:
        distribution = Distribution(shape, float(low), float(value), float(high))
    except ValueError as error:
        raise KeyProblem((key, "range"), str(error)) from None
    for end in distribution.ends:
        with _allowed((key, "range"), "the tails of this distribution: "):
            spec.with_value((name,), end)
    written = {each: given[each] for each in _OF_RANGES[1:] if each in given} | {"range": told}
    return Ranged(distribution, given.get("group", ""), given.get("source", ""), written)


@contextmanager
def _allowed(keys: tuple[str | int, ...], told: str = "") -> Iterator[None]:
    """Raises KeyProblem at ``keys`` for a number that the key does not allow; ``told``: before the problem."""
    try:
        yield
    except ValidationError as error:
        cause = error.errors(include_url=False)[0]
        raise KeyProblem(keys, f"{told}{cause.get('ctx', {}).get('error', cause['msg'])}") from None


def with_ranges(spec: Any, dumped: Any) -> Any:
    """What a spec was dumped to, with the ranges of its numbers beside their values, as a file has them."""
    if isinstance(spec, tuple) and isinstance(dumped, list) and len(spec) == len(dumped):
        return [with_ranges(each, own) for each, own in zip(spec, dumped, strict=True)]
    if not isinstance(spec, Spec) or not isinstance(dumped, dict):
        return dumped
    found = dict(dumped)
    for name, info in type(spec).model_fields.items():
        key, value = info.alias or name, getattr(spec, name)
        if name in spec.ranges:
            found[key] = {"value": found.get(key, value), **spec.ranges[name].written}
        elif key in found:
            found[key] = with_ranges(value, found[key])
        elif isinstance(value, Spec) and value.ranges:  # left out, as its values say nothing
            found[key] = with_ranges(value, value.model_dump(mode="json", by_alias=True))
    return found


class KeyProblem(ValueError):
    """A problem with one key below the value that is being validated; ``keys`` is relative to that value."""

    def __init__(self, keys: tuple[str | int, ...], problem: str) -> None:
        super().__init__(problem)
        self.keys = keys


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


# Of models: numbers of heads, experts and the like; sizes of vectors; tokens of a window.
_COUNT, _SIZE, _TOKENS = (1, 65_536), (1, 1_000_000), (1, 1_000_000_000)
Count = Annotated[int, count(*_COUNT)]
Size = Annotated[int, count(*_SIZE)]
MaybeSize = Annotated[int | None, count(*_SIZE, none=True)]
Tokens = Annotated[int, count(*_TOKENS)]
MaybeTokens = Annotated[int | None, count(*_TOKENS, none=True)]
Whole = Annotated[int, count(0, 1_000_000_000)]
Few = Annotated[int, count(1, 64)]


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


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", name):
        raise ValueError(
            f"{name!r} is not a name; names are letters, digits and . _ + - (they become file names), at most 80 of "
            f"them, "
            "and begin with a letter or digit"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name)]


def refuse_duplicates(kind: str, names: list[str | int]) -> None:
    """Raise a problem at the second occurrence of a name."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{kind} {name!r} is listed twice")

"""The base of all specs: frozen, without unknown keys, with messages that say which type was expected."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from archsim.base import errors
from archsim.base.errors import did_you_mean
from archsim.base.quantities import Dimension, FieldType, as_written, count, describe
from archsim.base.uncertain import SHAPES, Distribution


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
    """Base class of all specs. YAML keys are the fields' aliases, if any; Python may use the attribute names. A number
    may be ``{value: 1.5 TB/s, range: [1.35, 1.5], distribution: uniform, group:, source:}``: `ranges` has the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    def __eq__(self, other: Any) -> bool:
        """Equal values with equal ranges: a cache must not give one for the other."""
        return self is other or (super().__eq__(other) is True and self.ranges == other.ranges)

    def has_values_of(self, other: Any) -> bool:
        """Whether the values are equal, whatever their ranges are."""
        if type(self) is not type(other):
            return False
        return all(_identical(getattr(self, name), getattr(other, name)) for name in type(self).model_fields)

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
        ranges = {names[key]: _range_of(cls, key, given[key], spec, plain, handler) for key in found}
        spec.__dict__[_UNCERTAIN] = {name: each for name, each in ranges.items() if each is not None}
        return spec

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, as it never changes."""
        return self


def _identical(one: Any, two: Any) -> bool:
    """Whether two values, or those of two lists, are equal whatever their ranges are."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_identical, one, two))
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


def _range_of(
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
    ends, checked, of_value = [], [], as_written(given["value"]) if isinstance(given["value"], str) else None
    for at, bound in enumerate(bounds):
        if of_value and of_value.unit and isinstance(bound, int | float) and not isinstance(bound, bool):
            bound = f"{bound!r} {of_value.unit}"  # which stays, as a manifest may write the value in another unit
        checked.append(bound)
        with _refusals_at((key, "range", at)):
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
        with _refusals_at((key, "range"), "the tails of this distribution: "):
            spec.with_value((name,), end)
    written = {each: given[each] for each in _OF_RANGES[1:] if each in given} | {"range": checked}
    return Ranged(distribution, given.get("group", ""), given.get("source", ""), written)


@contextmanager
def _refusals_at(keys: tuple[str | int, ...], prefix: str = "") -> Iterator[None]:
    """Raises KeyProblem at ``keys`` for a number that the key does not allow; ``prefix``: before the problem."""
    try:
        yield
    except ValidationError as error:
        cause = error.errors(include_url=False)[0]
        raise KeyProblem(keys, f"{prefix}{cause.get('ctx', {}).get('error', cause['msg'])}") from None


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


# Of models: numbers of heads, experts and the like; sizes of vectors; tokens of a window.
_COUNT, _SIZE, _TOKENS = (1, 65_536), (1, 1_000_000), (1, 1_000_000_000)
Count = Annotated[int, count(*_COUNT)]
Size = Annotated[int, count(*_SIZE)]
MaybeSize = Annotated[int | None, count(*_SIZE, none=True)]
Tokens = Annotated[int, count(*_TOKENS)]
MaybeTokens = Annotated[int | None, count(*_TOKENS, none=True)]
Whole = Annotated[int, count(0, 1_000_000_000)]
Few = Annotated[int, count(1, 64)]


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


def check_parameters(target: str, function: Callable[..., Any], arguments: int, given: Iterable[str]) -> None:
    """Raise KeyProblem for a parameter that a user's function does not have, or needs and does not get. ``arguments``:
    how many it gets by position.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a function without Python code
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    by_position = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    known = [each.name for each in by_name if each not in by_position[:arguments]]
    for key in given:
        if key not in known:
            listed = f"; it has {', '.join(known)}" if known else "; it has none"
            raise KeyProblem((key,), f"unknown parameter of {target}{errors.did_you_mean(key, known) or listed}")
    for each in by_name:
        if each.name in known and each.default is each.empty and each.name not in given:
            raise KeyProblem(("name",), f"{target} needs a parameter {each.name!r}")

"""The base of all specs: frozen, no unknown keys, checked field types whose messages say what was expected."""

import math
import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from archsim.base.text.quantities import FieldType, describe


class Spec(BaseModel):
    """Base class of all specs. YAML keys are the fields' aliases, if any; Python may use the attribute names."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, as it never changes."""
        return self


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

    return FieldType(BeforeValidator(read), WithJsonSchema({"type": "number", "minimum": low, "maximum": high}))


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

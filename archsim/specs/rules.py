"""A rule of a policy by name: what it does, and its parameters with defaults, ranges and meanings."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base import errors, quantities


class Parameter(NamedTuple):
    """A parameter of a rule."""

    default: int | float | None  # None: absent unless given
    low: float  # least
    high: float  # most
    meaning: str  # in words
    kind: type = int  # int or float
    words: tuple[str, ...] = ()  # that it may be in place of a number

    def read(self, value: Any) -> int | float | str:
        if isinstance(value, str) and value in self.words:
            return value
        if self.kind is float and isinstance(value, str):
            value = float(quantities.parse_quantity(value, quantities.FRACTION))
        whole = "an integer" if self.kind is int else "a number"
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or self.kind(value) != value
        ):
            words = "".join(f", or {word}" for word in self.words)
            raise ValueError(f"expected {whole}{words}, not {quantities.describe(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is out of range; expected {self.low:g} to {self.high:g}")
        return self.kind(value)


class NamedChoice(NamedTuple):
    """A parameter that is one of several names; ``default`` None: absent unless given."""

    default: str | None
    names: tuple[str, ...]
    meaning: str

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            hint = errors.did_you_mean(value, self.names) if isinstance(value, str) else ""
            raise ValueError(f"expected {' or '.join(self.names)}, not {quantities.describe(value)}{hint}")
        return value


class Text(NamedTuple):
    """A parameter that is text, such as the path of a file."""

    default: str | None
    meaning: str

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"expected text, not {quantities.describe(value)}")
        return value


class Rule(NamedTuple):
    """A rule shipped with archsim: its meaning and parameters."""

    meaning: str
    parameters: Mapping[str, Parameter | NamedChoice | Text] = MappingProxyType({})

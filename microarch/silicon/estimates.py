"""Numbers known only within a range: a value to compute with, its bounds, its unit and its source."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TypeVar

Group = TypeVar("Group", bound="Estimates")


@dataclass(frozen=True)
class Estimate:
    """A number that is known within a range."""

    value: float  # used in computations
    low: float  # least of the sources
    high: float  # most of the sources
    unit: str  # as in tables
    source: str  # "assumed: …" without a source

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range."""
        if not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} {self.unit} is outside {self.low} to {self.high}")


@dataclass(frozen=True)
class Estimates:
    """A group of estimates, one per field."""

    def by_name(self) -> dict[str, Estimate]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def change(self: Group, changes: Mapping[str, float]) -> Group:
        """The group with changed values, without ranges. ValueError: a negative one, KeyError: an unknown name."""
        known = self.by_name()
        return replace(
            self,
            **{
                name: Estimate(value, value, value, known[name].unit, "set by the user")
                for name, value in changes.items()
            },
        )

    def with_estimates(self: Group, found: Mapping[str, Estimate]) -> Group:
        return replace(self, **{name: each for name, each in found.items() if name in self.by_name()})

    def at(self: Group, bound: str) -> Group:
        """The group with every value at its ``low`` or ``high`` bound."""
        return _at(self, bound)


@lru_cache(maxsize=64)
def _at(group: Group, bound: str) -> Group:
    ends = {name: replace(each, value=getattr(each, bound)) for name, each in group.by_name().items()}
    return replace(group, **ends)

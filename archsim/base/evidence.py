"""Whether what a file claims can be: each number beside what bounds it, be it counts, ranks, load and units of the file
itself, or rates of its machine. A reader lists claims as data; a message has both numbers.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from archsim.base.errors import TraceError

ABOVE_ZERO = 5e-324  # the least number above 0


class Claim(NamedTuple):
    """What is found, beside what bounds it."""

    what: str  # is bounded
    found: float  # the number
    why: str  # the reason of the bounds
    least: float = -inf  # of what can be
    most: float = inf  # of what can be
    unit: str = ""  # of all three numbers

    @property
    def holds(self) -> bool:
        """Not of nan, and of an infinite number only where nothing bounds it."""
        return self.least <= self.found <= self.most

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        near = self.least if not self.found > self.most else self.most
        if near == ABOVE_ZERO:
            return f"{self.what}: {_shown(self.found)}{unit}; expected more than 0{unit}: {self.why}"
        bound = "" if self.least == self.most else "at least " if near == self.least else "at most "
        return f"{self.what}: {_shown(self.found)}{unit}; expected {bound}{_shown(near)}{unit}: {self.why}"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:,.5g}"


def refuse_broken(where: str, claims: Iterable[Claim]) -> None:
    """Raise TraceError for the first claim that cannot be."""
    for claim in claims:
        if not claim.holds:
            raise TraceError(f"{where}: {claim}")

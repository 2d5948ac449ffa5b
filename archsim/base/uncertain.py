"""A quantity: a number that decides a result, with its unit, its source and the distribution of its true value.

A distribution is a range and a shape. What the range means depends on the shape:

========== ============================================================ =================================
shape      range                                                        beyond it
========== ============================================================ =================================
uniform    all values are equally likely                                nothing
triangular the value itself is the most likely                          nothing
loguniform all values are equally likely on a logarithmic scale         nothing
normal     the central 90 %; each side has its own standard deviation   tails, cut where 0.1 % is left
lognormal  as normal, of the logarithm                                  tails, cut where 0.1 % is left
========== ============================================================ =================================

Draws are quantiles of numbers between 0 and 1, so that quantities of one group share their luck (`Quantity.group`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsim.base.errors import did_you_mean

if TYPE_CHECKING:
    import numpy as np

SHAPES = ("uniform", "triangular", "loguniform", "normal", "lognormal")
_Z90 = 1.6448536269514722  # of a standard normal variable, 90 % lies within this
_Z_MOST = 3.090232306167813  # and 99.8 % within this; tails are cut here


@dataclass(frozen=True)
class Distribution:
    """What a number may be. ``centre``: the value without a draw. Raises ValueError for an unknown shape, a range
    without the centre, and one from zero or below on a logarithmic scale.
    """

    shape: str
    low: float
    centre: float
    high: float

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(
                f"unknown distribution {self.shape!r}{did_you_mean(str(self.shape), SHAPES)} (known: "
                f"{', '.join(SHAPES)})"
            )
        if not self.low <= self.centre <= self.high:
            raise ValueError(f"{self.low:g} to {self.high:g} does not contain the value, {self.centre:g}")
        if self.shape.startswith("log") and not self.low > 0:
            raise ValueError(f"{self.low:g} to {self.high:g}: a {self.shape} range begins above 0")

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the most that is ever drawn."""
        import numpy as np

        least, most = self.at(np.array([0.0, 1.0]))
        return float(least), float(most)

    def at(self, share: np.ndarray) -> np.ndarray:
        """Quantiles, float64 of the shape of ``share`` (0 to 1)."""
        import numpy as np

        share = np.asarray(share, np.float64)
        low, centre, high = self.low, self.centre, self.high
        if self.exact:
            return np.full(share.shape, centre)
        match self.shape:
            case "uniform":
                return low + share * (high - low)
            case "loguniform":
                return np.clip(low * (high / low) ** share, low, high)
            case "triangular":
                below = (centre - low) / (high - low)
                up = low + np.sqrt(share * (high - low) * (centre - low))
                down = high - np.sqrt((1 - share) * (high - low) * (high - centre))
                return np.where(share < below, up, down)
        from scipy.special import ndtri

        deviates = np.clip(ndtri(share), -_Z_MOST, _Z_MOST) / _Z90
        if self.shape == "normal":
            return centre + deviates * np.where(deviates < 0, centre - low, high - centre)
        return centre * np.where(deviates < 0, centre / low, high / centre) ** deviates

    def times(self, factor: float) -> Distribution:
        """The same for a number that is ``factor`` times as large."""
        return Distribution(self.shape, self.low * factor, self.centre * factor, self.high * factor)


KNOTS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Quantiles(Distribution):
    """A positive number whose quantiles at `KNOTS` are known, in ascending order: measured ones, whose tails are often
    longer than those of a lognormal number, and whose middle is off the centre. Between them, and beyond, the logarithm
    is linear in the standard normal deviate; tails are cut where 0.1 % is left.
    """

    knots: tuple[float, ...] = ()

    @classmethod
    def of(cls, knots: Sequence[float] | np.ndarray) -> Quantiles:
        """Around 1. Raises ValueError as `Distribution` does, and for quantiles that fall."""
        low, *_, high = given = tuple(map(float, knots))
        if len(given) != len(KNOTS) or list(given) != sorted(given) or low <= 0:
            raise ValueError(f"expected {len(KNOTS)} factors above 0 in ascending order, not {given}")
        return cls("lognormal", low, min(max(1.0, low), high), high, given)

    def at(self, share: np.ndarray) -> np.ndarray:
        """See `Distribution.at`."""
        import numpy as np
        from scipy.special import ndtri

        deviates = np.clip(ndtri(np.asarray(share, np.float64)), -_Z_MOST, _Z_MOST)
        at, logs = ndtri(np.array(KNOTS)), np.log(np.array(self.knots))
        found = np.interp(deviates, at, logs)
        first, last = (logs[1] - logs[0]) / (at[1] - at[0]), (logs[-1] - logs[-2]) / (at[-1] - at[-2])
        below, above = np.minimum(deviates - at[0], 0.0), np.maximum(deviates - at[-1], 0.0)
        return np.exp(found + below * first + above * last)

    def times(self, factor: float) -> Quantiles:
        """The same for a number that is ``factor`` times as large."""
        ends = self.low * factor, self.centre * factor, self.high * factor
        return Quantiles(self.shape, *ends, tuple(each * factor for each in self.knots))


@dataclass(frozen=True)
class Quantity:
    """A number with its distribution."""

    key: str  # dotted path in a scenario; of measured tables, as measured.moe.fit.common
    value: float  # in the base unit
    unit: str  # base unit: B/s, ns, FLOP/s, Hz, B; "": a pure number
    source: str  # where the number is from
    distribution: Distribution  # in the base unit
    group: str = ""  # of one group share their draws, as what has one cause; "": the key
    measured_by: str = ""  # key of commands in configs/uncertainty.yaml; "": nothing

    @property
    def draws_as(self) -> str:
        return self.group or self.key

    @property
    def exact(self) -> bool:
        return self.distribution.exact

    def narrowed(self) -> Quantity:
        known = Distribution(self.distribution.shape, self.value, self.value, self.value)
        return replace(self, distribution=known)

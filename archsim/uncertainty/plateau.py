"""The best of a key's values in common samples, its equals, the cheapest of them, and whether it is at an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.uncertainty.estimate import NO_DIFFERENCE, QUANTILES, SURE, Interval

PLATEAU = 0.005  # relative: values that gain less than this are equal, whatever the samples say


class BestValue(NamedTuple):
    """Positions of values, in the order in which they were given."""

    best: int  # of the highest median
    equal: tuple[int, ...]  # as good as the best within the noise, itself too
    cheapest: int  # of those; of equal prices the first within PLATEAU of the best
    worst: int  # of the lowest median
    end: str  # ``largest`` or ``smallest``: the only best one is at that end of the numbers; ''

    @property
    def flat(self) -> bool:
        return self.worst in self.equal


def best_value(
    rates: Sequence[np.ndarray], prices: Sequence[float] | None = None, numbers: Sequence[float] = ()
) -> BestValue:
    """``rates``: float64[sample] of each value, more is better, all with the same draws; ``prices`` and ``numbers``
    where values have any. A value equals the best if its median is within PLATEAU of it, or if the best is ahead in
    fewer than SURE of the samples.
    """
    medians = [float(np.median(each)) for each in rates]
    best, worst = int(np.argmax(medians)), int(np.argmin(medians))
    equal = tuple(
        at for at, each in enumerate(rates)
        if medians[at] >= (1 - PLATEAU) * medians[best]
        or float((rates[best] > (1 + NO_DIFFERENCE) * each).mean()) < SURE
    )  # fmt: skip
    costs = prices or (0.0,) * len(rates)
    cheapest = min(equal, key=lambda at: (costs[at], medians[at] < (1 - PLATEAU) * medians[best], at))
    end = ""
    if len(numbers) > 2 and len(equal) == 1:
        end = {max(numbers): "largest", min(numbers): "smallest"}.get(numbers[best], "")
    return BestValue(best, equal, cheapest, worst, end)


def ratio_of(rates: np.ndarray, base: np.ndarray) -> Interval:
    """Of rates over others in the same samples, float64[sample]: 1 where both are 0, infinite where the others are."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(rates == base, 1.0, rates / base)
    return Interval(*(float(np.quantile(ratios, share, method="inverted_cdf")) for share in QUANTILES))

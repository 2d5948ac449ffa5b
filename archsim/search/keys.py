"""Which of several keys of a machine is worth more for the same budget: gain of throughput over growth of a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.search.compare import NEVER, OptionComparison
from archsim.show.units import listing, percent, percents_text
from archsim.uncertainty.estimate import NO_DIFFERENCE, SURE, interval

BUDGETS = {"usd": "USD", "mm2": "mm² of silicon", "w": "W", "devices": "devices"}


class KeyWorth(NamedTuple):
    """A key of the machine, and its value that takes most of the budget."""

    key: str
    value: str
    gain: np.ndarray  # float64[sample] of throughput over the machine as it is, as a share
    growth: np.ndarray  # float64[sample] of the budget, as a share; 0 within NO_DIFFERENCE where it takes nothing

    @property
    def free(self) -> bool:
        return abs(float(np.median(self.growth))) < NO_DIFFERENCE / 10

    @property
    def worth(self) -> np.ndarray:
        """float64[sample]: gain per growth, which counts as NO_DIFFERENCE / 10 at least."""
        least = NO_DIFFERENCE / 10
        return self.gain / (least if self.free else np.maximum(self.growth, least))


def worths(found: OptionComparison) -> list[KeyWorth]:
    """The keys that were varied, that worth most first. The first side is the machine as it is."""
    varied, skip, base = found.varied, 1 if found.samples else 0, found.sides[0]
    assert varied is not None
    each_key = []
    for key in dict.fromkeys(varied.keys[1:]):
        variants = []
        for at, own in enumerate(varied.keys):
            if own != key:
                continue
            side = found.sides[at]
            growth = np.broadcast_to(side.amount(found.equal) / base.amount(found.equal) - 1, side.rates.shape)[skip:]
            gain = side.rates[skip:] / base.rates[skip:] - 1
            variants.append(KeyWorth(key, str(varied.values[at]), gain, np.asarray(growth)))
            if float(np.median(growth)) < -NO_DIFFERENCE:
                raise SpecError(
                    f"--vary {key}: {varied.values[at]} takes less {BUDGETS[found.equal]} than the machine as it is, "
                    "so that it spends none. Give values that take more"
                )
        each_key.append(max(variants, key=lambda each: (float(np.median(each.growth)), float(np.median(each.gain)))))
    return sorted(each_key, key=lambda each: -float(np.median(each.worth)))


def keys_sentence(found: OptionComparison) -> str:
    """``For the same mm² of silicon, more hbm.bandwidth is worth more than more llc.capacity (…): 1 % more …``."""
    name, unit = found.sides[0].side.label, BUDGETS[found.equal]
    if not (found.sides[0].rates > NEVER).all():
        raise SpecError(
            f"{name} as it is does not keep the limit in all samples, so that no gain is a share of it. Raise the "
            "limit, or give --vary one key"
        )
    first, *others = worths(found)
    ahead = min(float((first.worth > other.worth + NO_DIFFERENCE).mean()) for other in others)
    within = f" (in {percent(ahead)} of {found.samples} samples)" if found.samples else ""
    if ahead >= SURE:
        begin = f"more {first.key} is worth more than more {listing(each.key for each in others)}{within}"
    else:
        begin = (
            f"more {listing(each.key for each in (first, *others))} are a tie{within and f', the first ahead{within}'}"
        )
    return f"For the same {unit} on {name}, {begin}: {listing(_each(found, (first, *others)))}."


def _each(found: OptionComparison, keys: tuple[KeyWorth, ...]) -> Iterator[str]:
    for at, each in enumerate(keys):
        which = f"{each.key} {each.value}"
        if each.free:
            gain = f"serves {_share(each.gain)} more tokens per second"
            yield f"{which} takes no more {BUDGETS[found.equal]} and {gain}"
        else:
            is_first = not at or keys[at - 1].free
            begin = f"for 1 % more {BUDGETS[found.equal]}, " if is_first else ""
            yield f"{begin}{which} serves {_share(each.worth / 100)} more{' tokens per second' if is_first else ''}"


def _share(shares: np.ndarray) -> str:
    return percents_text(interval(shares))

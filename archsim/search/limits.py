"""Limits of a comparison of options: TTFT, TPOT and rate."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from archsim.base import errors
from archsim.base.quantities import TIME, format_quantity
from archsim.serving.answers.question import time_ns


class Limits(NamedTuple):
    """What all sides have to keep."""

    tpot_ns: float = inf  # time per output token
    ttft_ns: float = inf  # time to first token
    rate_per_s: float = 0.0  # requests a second that have to be served; 0: as many as possible

    @property
    def given(self) -> bool:
        return self != Limits()

    @property
    def words(self) -> str:
        """``At 50 ms a token and 2 s to the first one``; '' without a limit on times."""
        parts = [f"{format_quantity(self.tpot_ns, TIME)} per token"] if self.tpot_ns < inf else []
        parts += [f"{format_quantity(self.ttft_ns, TIME)} to the first token"] if self.ttft_ns < inf else []
        return f"At {' and '.join(parts)}" if parts else ""


def limits_of(tpot: str | None, ttft: str | None, rate: float | str | None) -> Limits:
    """Raises SpecError for what is no time, or no rate, above 0."""
    found = {}
    for name, text in (("tpot", tpot), ("ttft", ttft)):
        if text is not None:
            found[f"{name}_ns"] = time_ns(name, text)
    try:
        rate_per_s = float(str(rate or 0).removesuffix("/s"))
    except ValueError:
        rate_per_s = -1.0
    if not 0 <= rate_per_s < inf or (rate is not None and rate_per_s == 0):
        raise errors.SpecError(f"rate {rate}: expected requests per second above 0, such as 100/s")
    return Limits(**found, rate_per_s=rate_per_s)

"""Times of a kind with measurements of its own: one record, from which its law, its range and its error follow.

The law is a sum of terms with prices of at least 0: a launch, FLOP and bytes at the datasheet's rates, and tokens. It
is fitted to relative errors, and judged on every point by the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.errors import SpecError
from archsim.base.units import NS_PER_S, NS_PER_US
from archsim.laws.expert_gemm import Rates
from archsim.laws.laws import Laws
from archsim.specs.deployment import Precision

FEWEST = 6  # points of a phase: more than terms


class Point(NamedTuple):
    """``us`` that ``requests`` with ``new`` tokens each at the end of ``context`` took on one rank, without
    projections; ``phase``: prefill or decode.
    """

    phase: str
    requests: float
    new: float
    context: float
    us: float


@dataclass(frozen=True, eq=False)
class RecordedTimes:
    """``AttentionTimes`` of a kind's own points. ``prices``: float64[term]; ``most``, ``least``: of requests and of
    context, measured; ``error``: median, of points by all others.
    """

    kind: Any
    phase: str
    tp: int
    kv_dtype: str
    rates: tuple[float, float]
    prices: np.ndarray
    least: np.ndarray
    most: np.ndarray
    points: int
    error: float
    whole: bool = False

    @property
    def library(self) -> str:
        return f"measurements of {self.kind.kind}"

    @property
    def note(self) -> str:
        return (
            f"{self.kind.kind} attention, {self.phase}: {self.points} points of its own; "
            f"{self.error:.0%} off (median), each by the others"
        )

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        terms = _terms(self.kind, self.phase, self.tp, self.kv_dtype, self.rates, requests, new, context)
        return np.where(np.asarray(requests) > 0, terms @ self.prices, 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        at = np.stack(np.broadcast_arrays(np.asarray(requests, float), np.asarray(context, float)), axis=-1)
        return np.asarray(((at < self.least) | (at > self.most)).any(axis=-1))


def recorded(
    kind: Any, laws: Laws, phase: str, tp: int, precision: Precision, rates: Rates | None
) -> RecordedTimes | None:
    """By the points of a phase in ``kind.measurements``, which are of the calibration's GPU; None for none. Raises
    SpecError for fewer than FEWEST.
    """
    points = [Point(*each) for each in kind.measurements if each[0] == phase]
    if not points:
        return None
    if len(points) < FEWEST:
        raise SpecError(f"attention of kind {kind.kind}: {len(points)} points of {phase}; a law needs {FEWEST}")
    reference = laws.calibration.reference
    here = reference.peak_flop_per_s["bf16"], reference.hbm_bytes_per_s
    scales = laws.scale_of("bf16", rates)
    there = here[0] * scales[0], here[1] * scales[1]
    _, requests, new, context, us = zip(*points, strict=True)
    terms = _terms(kind, phase, 1, precision.kv, here, requests, new, context)
    ns, every = np.array(us) * NS_PER_US, np.arange(len(points))
    others = [terms[at] @ _prices(terms[every != at], ns[every != at]) / ns[at] - 1 for at in every]
    measured = np.stack([requests, context], axis=-1).astype(float)
    return RecordedTimes(
        kind, phase, tp, precision.kv, there, _prices(terms, ns), measured.min(axis=0), measured.max(axis=0),
        len(points), float(np.median(np.abs(others))),
    )  # fmt: skip


def _terms(
    kind: Any, phase: str, tp: int, kv_dtype: str, rates: Sequence[float], requests: Any, new: Any, context: Any
) -> np.ndarray:
    """float64[..., term]"""
    requests, new, context = np.broadcast_arrays(*(np.asarray(each, float) for each in (requests, new, context)))
    flop, moved = kind.work(phase, tp, requests, new, context, kv_dtype)
    each = 1e3, flop / rates[0] * NS_PER_S, moved / rates[1] * NS_PER_S, requests * new
    return np.stack(np.broadcast_arrays(*each), axis=-1)


def _prices(terms: np.ndarray, ns: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    return nnls(terms / ns[:, None], np.ones(len(ns)))[0]

"""Times of a kind with measurements of its own: one record, from which its law, its range and its error follow.

The law is a sum of terms with prices of at least 0: a launch, FLOP and bytes at the datasheet's rates, and tokens. It
is fitted to relative errors, and judged on every point by the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base import errors, units
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.specs.deployment import Precision

FEWEST = 6  # points of a phase: more than terms


class AttentionPoint(NamedTuple):
    """A measured point of one rank, without projections."""

    phase: str  # prefill or decode
    requests: float  # of the rank
    new: float  # new tokens of each
    context: float  # of each, new tokens included
    us: float  # that they took together


@dataclass(frozen=True, eq=False)
class RecordedTimes:
    """`archsim.iteration.attention.AttentionTimes` of a kind's own points."""

    kind: Any  # of attention
    phase: str  # prefill or decode
    tp: int  # ranks that share the heads
    kv_dtype: str  # of the cache
    rates: tuple[float, float]  # FLOP/s of BF16 and bytes/s of HBM of the die
    prices: np.ndarray  # float64[term]
    least: np.ndarray  # float64[2]: least measured requests and context
    most: np.ndarray  # float64[2]: most of them
    points: int  # measured in the phase
    error: float  # median relative error of points by a law of all others
    whole: bool = False  # with the projections

    @property
    def library(self) -> str:
        return f"measurements of {self.kind.kind}"

    @property
    def note(self) -> str:
        return (
            f"{self.kind.kind} attention, {self.phase}: {self.points} points; "
            f"{self.error:.0%} off (median), each by the others"
        )

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        terms = _terms(self.kind, self.phase, self.tp, self.kv_dtype, self.rates, requests, new, context)
        return np.where(np.asarray(requests) > 0, terms @ self.prices, 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        at = np.stack(np.broadcast_arrays(np.asarray(requests, float), np.asarray(context, float)), axis=-1)
        return np.asarray(((at < self.least) | (at > self.most)).any(axis=-1))


def recorded_times(
    kind: Any, laws: Laws, phase: str, tp: int, precision: Precision, rates: Rates | None
) -> RecordedTimes | None:
    """Times from the points of a phase in ``kind.measurements``, which were measured on the calibration's GPU. None
    without points. Raises SpecError for fewer than FEWEST.
    """
    points = [AttentionPoint(*each) for each in kind.measurements if each[0] == phase]
    if not points:
        return None
    if len(points) < FEWEST:
        raise errors.SpecError(f"attention of kind {kind.kind}: {len(points)} points of {phase}; a law needs {FEWEST}")
    reference, measured = laws.calibration.reference, laws.calibration.measured_rates
    here = measured.peak_flop_per_s["bf16"], measured.hbm_bytes_per_s
    scales = laws.scale_of("bf16", rates)
    there = reference.peak_flop_per_s["bf16"] * scales[0], reference.hbm_bytes_per_s * scales[1]
    _, requests, new, context, us = zip(*points, strict=True)
    terms = _terms(kind, phase, 1, precision.kv, here, requests, new, context)
    ns, every = np.array(us) * units.NS_PER_US, np.arange(len(points))
    others = [terms[at] @ _prices(terms[every != at], ns[every != at]) / ns[at] - 1 for at in every]
    sizes = np.stack([requests, context], axis=-1).astype(float)
    return RecordedTimes(
        kind=kind, phase=phase, tp=tp, kv_dtype=precision.kv, rates=there, prices=_prices(terms, ns),
        least=sizes.min(axis=0), most=sizes.max(axis=0), points=len(points), error=float(np.median(np.abs(others))),
    )  # fmt: skip


def _terms(
    kind: Any, phase: str, tp: int, kv_dtype: str, rates: Sequence[float], requests: Any, new: Any, context: Any
) -> np.ndarray:
    """float64[..., term]"""
    requests, new, context = np.broadcast_arrays(*(np.asarray(each, float) for each in (requests, new, context)))
    flop, moved = kind.work(phase, tp, requests, new, context, kv_dtype)
    each = 1e3, flop / rates[0] * units.NS_PER_S, moved / rates[1] * units.NS_PER_S, requests * new
    return np.stack(np.broadcast_arrays(*each), axis=-1)


def _prices(terms: np.ndarray, ns: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    return nnls(terms / ns[:, None], np.ones(len(ns)))[0]

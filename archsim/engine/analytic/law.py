"""The law: how long steps take at other rates, as bounds of their dies, HBMs and links and one measured overlap a step.

For a die d, with rates relative to the reference (docs/analytical.md derives it)::

    tokens(d) = HBM latency + route latency + max(HBM, links) of what is dispatched to d
    fetch(d)  = max(HBM, links) of its slices and of dispatch, or the latencies of its slices over those in flight
    done(d)   = max(tokens + routed compute, first slice + compute, fetch + first slice + compute of one slice)
    step      = max over d of done + (HBM latency + route latency + max(HBM, links) of what d sends back),
                not less than the load of any HBM or link
    overlap   = what the walk took at reference rates / step at reference rates
    time      = overlap · step + what decisions exposed at reference rates
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archsim.base.kernels import inner, kernel
from archsim.engine.analytic.features import (
    COMPUTE,
    FILL,
    HBM,
    IN_ANY,
    IN_HBM,
    IN_LINK,
    IN_ROUTE,
    LINK,
    OUT_ANY,
    OUT_HBM,
    OUT_LINK,
    OUT_ROUTE,
    ROUTED,
    SLICE,
    SLOTS_HBM,
    SLOTS_LLC,
    SLOTS_ROUTE,
    Features,
)

BOUNDS = ("compute", "hbm", "link", "latency", "activations")
RATES = ("compute", "hbm", "link")
LATENCIES = ("hbm_latency", "hop_latency", "llc_latency")
POINT = np.dtype([(name, "f8") for name in (*RATES, *LATENCIES)])  # factors of time against the reference: rates inverted
BLOCK = 64  # points that are worked on together: their rows stay in the first-level cache


def points(count: int, **values) -> np.ndarray:
    """POINT[count]: design points relative to the reference.

    ``compute``, ``hbm``, ``link``: rates over those of the reference; ``hbm_latency``, ``hop_latency``, ``llc_latency``: latencies
    over its. Each a number or float64[count], 1 if not given. Raises ValueError for another name, or one that is not positive.
    """
    table = np.ones(count, POINT)
    for name, value in values.items():
        if name not in POINT.names:
            raise ValueError(f"{name} is no property of a design point; expected {', '.join(POINT.names)}")
        if not (np.asarray(value) > 0).all():
            raise ValueError(f"{name} must be above 0")
        table[name] = 1 / np.asarray(value) if name in RATES else value
    return table


@dataclass(frozen=True)
class Evaluated:
    """Design points: ``decode_ns``, ``prefill_ns: float64[point]``; ``bounds_ns: float64[point, BOUNDS]`` sums over decode steps.

    A bound is the largest over dies of what that resource alone needs in a step.
    """

    decode_ns: np.ndarray
    prefill_ns: np.ndarray
    bounds_ns: np.ndarray

    @property
    def bound(self) -> np.ndarray:
        """int64[point]: which of BOUNDS is largest."""
        return self.bounds_ns.argmax(axis=1)

    @property
    def margin(self) -> np.ndarray:
        """float64[point]: how much larger it is than the next, over the time of decode."""
        ordered = np.sort(self.bounds_ns, axis=1)
        return (ordered[:, -1] - ordered[:, -2]) / self.decode_ns


def evaluate(features: Features, at: np.ndarray) -> Evaluated:
    """Times of ``at: POINT[point]`` by the law; at the reference itself they are those of the walk."""
    overlap = overlaps(features)
    ns, bounds = np.zeros((2, len(at))), np.zeros((len(at), len(BOUNDS)))
    _evaluate(features.dies, features.most, overlap, features.exposed_ns, features.decode, _columns(at), ns, bounds, _room())
    return Evaluated(ns[1], ns[0], bounds)


def overlaps(features: Features) -> np.ndarray:
    """float64[step]: time of the walk over that of the law at reference rates."""
    law_ns = np.zeros(len(features.walked_ns))
    one, ns, bounds = _columns(points(1)), np.zeros((2, 1)), np.zeros((1, len(BOUNDS)))
    every, none = np.ones(1), np.zeros(1)
    for step in range(len(law_ns)):
        ns[:] = 0.0
        here = slice(step, step + 1)
        _evaluate(features.dies[here], features.most[here], every, none, features.decode[here], one, ns, bounds, _room())
        law_ns[step] = ns.sum()
    return features.walked_ns / np.maximum(law_ns, np.finfo(float).tiny)


def _columns(at: np.ndarray) -> np.ndarray:
    """float64[property, point], so that points lie side by side."""
    return np.stack([at[name] for name in POINT.names])


def _room() -> np.ndarray:
    return np.zeros((len(BOUNDS) + 1, BLOCK))


@inner
def _raise(row, i, ns):
    row[i] = ns if ns > row[i] else row[i]


@inner
def _add_die(f, die, at, first, count, step_ns, bounds):
    """Raise ``step_ns: float64[BLOCK]`` and the bounds to those of a die of a step, for points first, first + 1, …"""
    for i in range(count):
        p = first + i
        compute, hbm, link = at[0, p], at[1, p], at[2, p]
        hbm_latency, hop, llc = at[3, p], at[4, p], at[5, p]
        slots = f[SLOTS_LLC, die] * llc + f[SLOTS_HBM, die] * hbm_latency + f[SLOTS_ROUTE, die] * hop
        tokens = f[IN_ANY, die] * hbm_latency + f[IN_ROUTE, die] * hop + max(f[IN_HBM, die] * hbm, f[IN_LINK, die] * link)
        back = f[OUT_ANY, die] * hbm_latency + f[OUT_ROUTE, die] * hop + max(f[OUT_HBM, die] * hbm, f[OUT_LINK, die] * link)
        own = f[COMPUTE, die] * compute
        moved = max(f[HBM, die] * hbm, f[LINK, die] * link)
        first_slice = slots * f[FILL, die]
        done = max(tokens + f[ROUTED, die] * compute, first_slice + own)
        done = max(done, max(moved, slots) + first_slice + f[SLICE, die] * compute)
        _raise(step_ns, i, done + back)
        _raise(bounds[0], i, own)
        _raise(bounds[3], i, slots)
        _raise(bounds[4], i, tokens + back)


@kernel
def _evaluate(dies, most, overlap, exposed, decode, at, ns, bounds_ns, room):
    """Add up steps: ``ns: float64[2, point]`` prefill and decode; ``bounds_ns: float64[point, BOUNDS]`` of decode."""
    block = room.shape[1]
    for first in range(0, at.shape[1], block):
        count = min(block, at.shape[1] - first)
        for step in range(len(overlap)):
            room[:] = 0.0
            bounds, step_ns = room[:-1], room[-1]
            for die in range(dies.shape[2]):
                _add_die(dies[step], die, at, first, count, step_ns, bounds)
            phase = np.int64(decode[step])
            for i in range(count):
                p = first + i
                bounds[1, i], bounds[2, i] = most[step, 0] * at[1, p], most[step, 1] * at[2, p]
                _raise(step_ns, i, max(bounds[1, i], bounds[2, i]))
                ns[phase, p] += overlap[step] * step_ns[i] + exposed[step]
                if phase == 1:
                    for bound in range(bounds.shape[0]):
                        bounds_ns[p, bound] += bounds[bound, i]

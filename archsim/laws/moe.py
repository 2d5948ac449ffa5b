"""Fused MoE layers from a table: the law of one rank's pairs and active experts (``MoeLaw``), and measured corrections.

At measured EP and TP sizes corrections are interpolated along ln tokens; at others by `carry_corrections`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archsim.base import sums, units
from archsim.laws.gemm import CORRECTION_UNIT, overlapped_ns
from archsim.laws.rank_load import rank_loads, routing_of
from archsim.laws.tables import Kriging, MoeLaw, MoeTable, shape_of

# Corrections of fused MoE layers at EP and TP sizes that were not measured, interpolated from those that were.
#
# Kriging over log2 ep, log2 tp and log2 tokens, with an exponential covariance (kernels are chosen by size, so
# corrections are rough) and an unknown mean. At some sizes libraries choose other kernels, which are not representative
# of their neighbours: an EP size that is far from its prediction by the others may lose weight.

LEAST_RANKS_TO_LEAVE_OUT = 3
ROUNDS = 2  # of reweighting outliers


def carry_corrections(kriging: Kriging | None, points: tuple, corrections: np.ndarray, wanted: tuple) -> np.ndarray:
    """Corrections at wanted points, float64[point]; points and wanted: ep, tp, tokens, float64[point] each."""
    if kriging is None:
        return np.zeros(len(wanted[0]))
    known, weights = _carried(kriging, tuple(each.tobytes() for each in points), corrections.tobytes())
    return _covariance(_scale(kriging, wanted), known) @ weights


@lru_cache(maxsize=256)
def _carried(kriging: Kriging, points: tuple[bytes, ...], corrections: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The points in its scale and their weights; arrays of `carry_corrections` as bytes, as many readers share them."""
    at, measured = tuple(np.frombuffer(each) for each in points), np.frombuffer(corrections)
    known = _scale(kriging, at)
    covariance = _covariance(known, known)
    noise = _noise(kriging, covariance, measured, list(ranks_of(at).values()))
    return known, np.linalg.solve(covariance + np.diag(noise), measured)


def off_the_others(
    kriging: Kriging | None, points: tuple, corrections: np.ndarray
) -> dict[tuple[float, float], np.ndarray]:
    """(ep, tp) → measured corrections minus those interpolated from all other (ep, tp), float64[point]."""
    ranks = ranks_of(points)
    if kriging is None:
        return {rank: corrections[mine] for rank, mine in ranks.items()}
    known = _scale(kriging, points)
    covariance = _covariance(known, known)
    masks = list(ranks.values())
    noise = _noise(kriging, covariance, corrections, masks)
    return dict(zip(ranks, _without_each(covariance, noise, corrections, masks), strict=True))


def ranks_of(points: tuple) -> dict[tuple[float, float], np.ndarray]:
    """(ep, tp) → mask of its points, sorted."""
    ep, tp, _ = points
    return {(e, t): (ep == e) & (tp == t) for e, t in sorted(set(zip(ep, tp, strict=True)))}


def _noise(kriging: Kriging, covariance: np.ndarray, corrections: np.ndarray, masks: list[np.ndarray]) -> np.ndarray:
    """float64[point]: relative variances; larger for outliers, proportional to the square of their deviation."""
    noise = np.full(len(corrections), kriging.noise)
    if kriging.outlier is not None and len(masks) >= LEAST_RANKS_TO_LEAVE_OUT:
        for _ in range(ROUNDS):
            off = np.zeros(len(corrections))
            for mine, distance in zip(masks, _without_each(covariance, noise, corrections, masks), strict=True):
                off[mine] = distance
            noise = kriging.noise * (1 + (off / kriging.outlier) ** 2)
    return noise


def _without_each(covariance, noise, corrections, masks) -> list[np.ndarray]:
    """Deviation of each group of points from its prediction by the others, in closed form (Dubrule, 1983)."""
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weights = inverse @ corrections
    return [np.linalg.solve(inverse[np.ix_(mine, mine)], weights[mine]) for mine in masks]


def _scale(kriging: Kriging, points: tuple) -> np.ndarray:
    return np.log2(np.stack(points, axis=1)) / np.array(kriging.reach)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exponential in the distance, plus one for an unknown mean of the same variance."""
    return np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))) + 1.0


# Load of the slowest rank: its token-expert pairs, and the number of its experts that receive any.
#
# Collectors of fused MoE layers route synthetic tokens. The load of one rank follows from their rules, which are
# reimplemented here (ai-dynamo/aiconfigurator, collector/helper.py, Apache-2.0: its rules, none of its code):
#
# - *balanced*: token t goes to experts t, t + experts / top_k, ...; or, for grouped GEMMs after a dispatch, all experts
#   of the rank receive equally many rows, not aligned to the tiles of the kernel (collector/sglang, prefill), which
# uses
#   the weights of one expert for a whole tile (*an expert a tile*);
# - *power law*: shares of experts are drawn from a power law, again for every point, and the most loaded rank is timed.
#   Shares are rounded; pairs left over by rounding (and by the limit of one pair per token and expert) go to the
# smallest
#   experts in turn: across all experts in older collectors (*smallest first*), rank by rank in newer ones;
# - either of them, *grouped*: the library keeps only the best groups of experts, as DeepSeek-V3's router does. Groups
#   tie, the lowest win, and the lost pairs of a token go to the lowest experts: those of rank 0;
# - anything else: *by chance*, ranks about equal (``MoeLaw.spread``).
#
# Draws are not recorded (a point is one draw, or the mean of several: ``DRAWS_OF_POINT``). Laws use their mean; no law
# can predict their scatter (``load_draws``).


POINT = ["ep", "tp", "tokens_total"]
SIZES = ("hidden", "ffn", "experts", "top_k")  # of a layer
EPLB = "eplb_slots"
SLICES = 3  # of an expert: gate, up and down


def law_ns(law: MoeLaw, named: dict, routing: str, ep, tp, tokens) -> np.ndarray:
    """The law without corrections, float64[point]; ``named``: as of ``named_of``; tokens: of the group."""
    pairs, active = rank_loads(named, routing, law, ep, tokens)
    return time_of_load(law, named, pairs, active, ep, tp, seen_tokens(named, pairs, tokens))


def seen_tokens(named: dict, pairs, tokens) -> np.ndarray:
    """float64[point]: tokens that pass a rank with these pairs. Collectors spread a token's experts evenly."""
    return np.minimum(tokens, pairs) if named.get("seen") == "received" else np.asarray(tokens, float)


def time_of_load(law: MoeLaw, named: dict, pairs, active, ep, tp, tokens) -> np.ndarray:
    """Time of a rank with these pairs, active experts and tokens that pass it, float64[point]."""
    slice_weights = named["hidden"] * named["ffn"] / tp
    flop_ns = 2 * SLICES * pairs * slice_weights / law.flop_per_s * units.NS_PER_S
    bytes_ns = active * SLICES * slice_weights * units.WEIGHT_BYTES[named["dtype"]] / law.bytes_per_s * units.NS_PER_S
    both = overlapped_ns(law, flop_ns, bytes_ns)
    others = law.ns_per_token * tokens + law.ns_per_pair * pairs + law.ns_per_expert * named["experts"] / ep
    return np.maximum(law.launch_ns + others + both, law.floor_ns)


def moe_ns(table: MoeTable, ep, tp, tokens) -> np.ndarray:
    """Time of fused layers, float64[point]; ep, tp, tokens: float64[point] (tokens of the whole EP group)."""
    ep, tp, tokens = (np.asarray(values, float) for values in (ep, tp, tokens))
    return law_ns(table.law, named_of(table), routing_of(table), ep, tp, tokens) * np.exp(
        measured_corrections(table, ep, tp, tokens)
    )


def rank_ns(table: MoeTable, pairs, active, ep, tp, tokens, received=None) -> np.ndarray:
    """Like ``moe_ns``, but for a rank with given pairs and active experts, whatever the routing of the table. All are
    float64[point]. ``received``: distinct tokens that a dispatch brings it; None: all of the group pass it, as
    measured.

    Corrections are those of the table at these sizes, as libraries choose kernels by size.
    """
    pairs, active, ep, tp, tokens = (np.asarray(values, float) for values in (pairs, active, ep, tp, tokens))
    seen = seen_tokens(named_of(table), pairs, tokens) if received is None else np.asarray(received, float)
    return time_of_load(table.law, named_of(table), pairs, active, ep, tp, seen) * np.exp(
        measured_corrections(table, ep, tp, tokens)
    )


def outside_ranks(table: MoeTable, ep, tp, tokens) -> np.ndarray:
    """bool[point]: outside the measured EP and TP sizes or tokens; arguments as in ``moe_ns``."""
    ranks = np.array([shape_of(name) for name in table.ranks], float)
    found = np.zeros(len(tokens), bool)
    for values, known in ((ep, ranks[:, 0]), (tp, ranks[:, 1]), (tokens, np.array(table.tokens))):
        found |= (values < known.min()) | (values > known.max())
    return found


def named_of(table: MoeTable) -> dict:
    """The configuration of a table: model, sizes, dtype, distribution and the tokens that pass a rank."""
    return table.model_dump(include={"model", "distribution", "dtype", "seen", *SIZES})


def measured_corrections(table: MoeTable, ep, tp, tokens) -> np.ndarray:
    """Logarithms of measured over law, float64[point]; arguments as in ``moe_ns``."""
    axis = np.log(table.tokens)
    found, seen = np.zeros(len(ep)), np.zeros(len(ep), bool)
    for name, row in table.ranks.items():
        e, p = shape_of(name)
        here = (ep == e) & (tp == p)
        found[here] = np.interp(np.log(tokens[here]), axis, row) * CORRECTION_UNIT
        seen |= here
    if not seen.all():
        known = [(*shape_of(name), size) for name in table.ranks for size in table.tokens]
        corrections = np.array([value for row in table.ranks.values() for value in row]) * CORRECTION_UNIT
        points = tuple(np.array(known, float).T)
        found[~seen] = carry_corrections(table.kriging, points, corrections, (ep[~seen], tp[~seen], tokens[~seen]))
    return found


# A fused layer of a shape that was not measured: the table of the nearest measured shape, with the sizes of its own.
#
# Models of the Blackwell set, left out in turn (TensorRT-LLM, balanced, B200): medians of 4 (FP8 block), 5 (FP8), 7
# (BF16) and 9 % (NVFP4); the mean over the two or three nearest is worse (benchmarks/held_out.py).


class MoeSizes(NamedTuple):
    """Sizes of one MoE layer: hidden size, expert width, experts, and experts per token."""

    hidden: int
    ffn: int
    experts: int
    top_k: int


def nearest_layer(tables: Sequence[MoeTable], sizes: MoeSizes) -> MoeTable:
    """The table of the nearest model, with these sizes."""
    nearest = min(tables, key=lambda table: (_octaves(table, sizes), table.model))
    return nearest.model_copy(update=sizes._asdict())


def _octaves(table: MoeTable, sizes: MoeSizes) -> float:
    return float(sums.sum(abs(np.log2(getattr(table, name) / getattr(sizes, name))) for name in SIZES))

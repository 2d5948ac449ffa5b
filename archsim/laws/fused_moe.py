"""Fused MoE layers from a table: the law of one rank's pairs and active experts (``MoeLaw``), and measured corrections.

At measured EP and TP sizes corrections are interpolated along ln tokens; at others they come from
``archsim.laws.between_ranks``.
"""

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.units import NS_PER_S
from archsim.laws.between_ranks import carried
from archsim.laws.gemm import CORRECTION_UNIT, overlapped_ns
from archsim.laws.rank_load import rank_loads, routing_of
from archsim.laws.tables import MoeLaw, MoeTable, shape_of

POINT = ["ep", "tp", "tokens_total"]
SIZES = ("hidden", "ffn", "experts", "top_k")  # of a layer
EPLB = "eplb_slots"
SLICES = 3  # of an expert: gate, up and down


def law_ns(law: MoeLaw, named: dict, routing: str, ep, tp, tokens) -> np.ndarray:
    """The law without corrections, float64[point]; ``named``: as of ``named_of``; tokens: of the group."""
    pairs, active = rank_loads(named, routing, law, ep, tokens)
    return time_of_load(law, named, pairs, active, ep, tp, seen_tokens(named, pairs, tokens))


def seen_tokens(named: dict, pairs, tokens) -> np.ndarray:
    """Tokens that pass a rank with these pairs, of a group with these tokens, float64[point].

    Behind a dispatch, collectors spread the experts of a token evenly: it visits as many ranks as it can.
    """
    return np.minimum(tokens, pairs) if named.get("seen") == "received" else np.asarray(tokens, float)


def time_of_load(law: MoeLaw, named: dict, pairs, active, ep, tp, tokens) -> np.ndarray:
    """Time of a rank with these pairs, active experts and tokens that pass it, float64[point]."""
    slice_weights = named["hidden"] * named["ffn"] / tp
    flop_ns = 2 * SLICES * pairs * slice_weights / law.flop_per_s * NS_PER_S
    bytes_ns = active * SLICES * slice_weights * WEIGHT_BYTES[named["dtype"]] / law.bytes_per_s * NS_PER_S
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
    """As ``moe_ns``, for a rank with given pairs and active experts whatever the table's routing; all float64[point].
    ``received``: distinct tokens that a dispatch brings it; None: all of the group pass it, as measured.

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
        found[~seen] = carried(table.kriging, points, corrections, (ep[~seen], tp[~seen], tokens[~seen]))
    return found

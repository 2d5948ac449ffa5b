"""Fused layers whose EP ranks were timed with the token-expert pairs of the whole group.

A rank of EP has 1 / ep of the pairs and of the weights, and at the largest number of tokens takes little more than that
of the time of one rank. In some collections EP of 2, 4 and 8 take as long as one rank, and 16 half of it, so every
token chose local experts alone: SGLang 0.5.10's Triton kernels on A100 and GB200 (the same kernels on a B200 of the
same silicon take their share), its Marlin kernels, and its Triton kernels of Gemma 4.
"""

from __future__ import annotations

import numpy as np

from archsim.laws.moe import moe_ns
from archsim.laws.rank_load import BALANCED
from archsim.laws.scaling import scaled_table
from archsim.laws.tables import CalibrationSpec, MoeTable, shape_of

JUDGED_EP = (2, 4, 8)
# Of the way from the share of a rank to the time of one rank; all of JUDGED_EP are beyond, and at least two of them. Of
# the points of other tables on B200 and GB200 97 % are below 0.3; all of these are above 0.7.
WHOLE, FEWEST = 2 / 3, 2


def with_own_pairs(calibration: CalibrationSpec, base: CalibrationSpec | None) -> CalibrationSpec:
    """The calibration with ``base``'s tables in place of those of whole groups; else with their times of EP 1 alone."""
    whole = _kernels(calibration)
    if not whole:
        return calibration
    also = _kernels(base) if base is not None else set()
    theirs = {} if base is None else {
        (*_kernel(each), each.distribution, each.eplb_slots): each for each in base.moe if _kernel(each) not in also
    }  # fmt: skip
    found = []
    for table in calibration.moe:
        like = theirs.get((*_kernel(table), table.distribution, table.eplb_slots))
        scaled = scaled_table(like, calibration, base) if like is not None and base is not None else None
        if _kernel(table) not in whole:
            found.append(table)
        elif scaled is not None:
            found.append(scaled)
        elif alone := {name: row for name, row in table.ranks.items() if shape_of(name)[0] == 1}:
            found.append(table.model_copy(update={"ranks": alone}))
    return calibration.model_copy(update={"moe": tuple(found)})


def _kernel(table: MoeTable) -> tuple:
    return table.library, table.version, table.kernel, table.dtype, table.model


def _kernels(calibration: CalibrationSpec) -> set[tuple]:
    return {_kernel(each) for each in calibration.moe if each.distribution == BALANCED and _is_of_whole(each)}


def _is_of_whole(table: MoeTable) -> bool:
    ep = np.array([1.0, *(each for each in JUDGED_EP if f"{each}x1" in table.ranks)])
    if "1x1" not in table.ranks or len(ep) - 1 < FEWEST or table.eplb_slots:
        return False
    one, *each = moe_ns(table, ep, np.ones(len(ep)), np.full(len(ep), float(table.tokens[-1])))
    return bool(((np.array(each) / one - 1 / ep[1:]) > WHOLE * (1 - 1 / ep[1:])).all())

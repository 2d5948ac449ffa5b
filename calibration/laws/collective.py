"""Collectives, and dispatch and combine of MoE libraries: which table, and how many bytes a rank sends."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from calibration.laws.choosing import ONLY_BY_NAME, newest
from calibration.laws.tables import CalibrationSpec, TransferTable

DISPATCH, COMBINE = "dispatch", "combine"
# Of a value of a hidden vector: DeepEP dispatches FP8 with one FP32 scale for 128 values, and combines BF16
# (deepseek-ai/DeepEP, README).
BYTES_PER_VALUE = MappingProxyType({DISPATCH: 1 + 4 / 128, COMBINE: 2})


def collectives(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of what all ranks do together, of sizes in bytes of the message as the library counts it."""
    return [table for table in calibration.collectives if table.of.get("op") not in BYTES_PER_VALUE]


def dispatches(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of dispatch and combine, of sizes in bytes that one rank sends."""
    return [table for table in calibration.collectives if table.of.get("op") in BYTES_PER_VALUE]


def sent_bytes(op: str, tokens, top_k: int, hidden: int):
    """What one rank sends of ``tokens`` of its own, each to ``top_k`` experts: dispatch in FP8 with scales, combine in BF16."""
    return tokens * top_k * hidden * BYTES_PER_VALUE[op]


def preferred_collective(tables: Sequence[TransferTable]) -> TransferTable:
    """Of several the library with most points, and its newest version; libraries of ONLY_BY_NAME last.

    Of one library's variants that with most points, then the one with most SMs.
    """

    def rank(table: TransferTable) -> tuple:
        return table.library not in ONLY_BY_NAME, table.residuals.points, float(table.of.get("sms", 0)), table.library

    best = max(tables, key=rank)
    return newest(table for table in tables if (table.library, table.of) == (best.library, best.of))

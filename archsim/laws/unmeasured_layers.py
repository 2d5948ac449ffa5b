"""A fused layer of a shape that was not measured: the table of the nearest measured shape, with the sizes of its own.

Models of the Blackwell set, left out in turn (TensorRT-LLM, balanced, B200): medians of 4 (FP8 block), 5 (FP8), 7
(BF16) and 9 % (NVFP4); the mean over the two or three nearest is worse (benchmarks/held_out.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from archsim.laws.fused_moe import SIZES
from archsim.laws.tables import MoeTable

if TYPE_CHECKING:
    from archsim.laws.laws import MoeSizes


def nearest_layer(tables: Sequence[MoeTable], sizes: MoeSizes) -> MoeTable:
    """The table of the nearest model, with these sizes."""
    nearest = min(tables, key=lambda table: (_octaves(table, sizes), table.model))
    return nearest.model_copy(update=sizes._asdict())


def _octaves(table: MoeTable, sizes: MoeSizes) -> float:
    """Between the sizes of two layers, all added up."""
    return float(sum(abs(np.log2(getattr(table, name) / getattr(sizes, name))) for name in SIZES))

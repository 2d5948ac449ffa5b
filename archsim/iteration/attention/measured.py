"""Times of grouped and latent attention: a measured table and its law (``archsim.laws.attention``)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archsim.laws.attention import (
    AttentionGrid,
    AttentionSizes,
    attention_grid,
    choose_attention,
    grid_ns,
    outside,
)
from archsim.laws.choosing import LawMissing
from archsim.laws.expert_gemm import Rates
from archsim.laws.laws import Laws
from archsim.specs.deployment import Precision


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """``AttentionTimes`` of a table at the sizes of a rank."""

    grid: AttentionGrid
    note: str = ""
    whole: bool = False

    @property
    def library(self) -> str:
        return self.grid.table.library

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        return grid_ns(self.grid, requests, new, context)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return outside(self.grid, requests, context)


def measured(
    laws: Laws, phase: str, sizes: AttentionSizes, precision: Precision, library: str | None, rates: Rates | None
) -> MeasuredTimes:
    """From the library's table, or that of another where it has none. Raises LawMissing."""
    try:
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv, library)
    except LawMissing:
        if library is None:
            raise
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv)
    return MeasuredTimes(attention_grid(table, sizes, *laws.scale_of(table.dtype, rates)))

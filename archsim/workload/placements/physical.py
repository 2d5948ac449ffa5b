"""The expert in every slot, as serving engines see a placement, and the rules that all of their loaders share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import PlacementError
from archsim.base.files import regular

MOST_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class PhysicalMap:
    """experts: int32[MoE layer, slot]. Rank r owns the slots r * slots / ranks to (r + 1) * slots / ranks - 1.

    Raises PlacementError unless every layer holds every expert and the slots divide among the ranks.
    """

    experts: np.ndarray
    num_experts: int
    ranks: int
    where: str = "placement"

    def __post_init__(self) -> None:
        check_slots(self.where, self.slots, self.num_experts, self.ranks)
        for layer, row in enumerate(self.experts):
            check_row(f"{self.where}: MoE layer {layer}", row, self.num_experts)

    @property
    def slots(self) -> int:
        return self.experts.shape[1]

    @property
    def slots_per_rank(self) -> int:
        return self.slots // self.ranks

    def copies(self) -> np.ndarray:
        """int64[layer, expert, rank]: how many slots of a rank hold an expert."""
        layers = len(self.experts)
        rank = np.broadcast_to(np.arange(self.slots) // self.slots_per_rank, self.experts.shape)
        found = np.zeros((layers, self.num_experts, self.ranks), np.int64)
        np.add.at(found, (np.arange(layers)[:, None], self.experts, rank), 1)
        return found


def check_slots(where: str, slots: int, experts: int, ranks: int) -> None:
    """Raise PlacementError unless ``slots`` hold all experts and divide among ``ranks``; says what would fit."""
    least = -(-experts // ranks) * ranks
    if slots < experts:
        raise PlacementError(
            f"{where}: {slots} slots cannot hold {experts} experts; the fewest for {ranks} ranks are {least} "
            f"({least - experts} more than experts)"
        )
    if slots % ranks:
        below, above = slots // ranks * ranks, -(-slots // ranks) * ranks
        fits = f"{below} or {above}" if below >= least else str(above)
        more = f"{below - experts} or {above - experts}" if below >= least else str(above - experts)
        raise PlacementError(
            f"{where}: {slots} slots ({experts} experts and {slots - experts} more) do not divide among {ranks} ranks; "
            f"{fits} would ({more} more)"
        )


def check_row(where: str, row: np.ndarray, experts: int) -> None:
    """Raise PlacementError unless a layer's slots hold ids of experts, and every expert."""
    if row.size and (row.min() < 0 or row.max() >= experts):
        slot = int(np.flatnonzero((row < 0) | (row >= experts))[0])
        raise PlacementError(f"{where}: slot {slot} holds expert {row[slot]}; expected 0 to {experts - 1}")
    missing = np.flatnonzero(np.bincount(row, minlength=experts) == 0)
    if len(missing):
        raise PlacementError(f"{where}: no slot holds expert {missing[0]}; every expert needs one")


def read_text(path: Path) -> str:
    """Raises PlacementError."""
    try:
        if regular(path).stat().st_size > MOST_BYTES:
            raise PlacementError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES} for a placement")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"{path}: cannot be read ({error})") from None


def slot_rows(where: str, rows: Sequence[Any]) -> np.ndarray:
    """int32[layer, slot] of nested lists. Raises PlacementError."""
    whole = all(isinstance(row, list) and all(type(expert) is int for expert in row) for row in rows)
    lengths = sorted({len(row) for row in rows}) if whole else []
    if len(lengths) != 1:
        found = f"lists of {lengths[0]} to {lengths[-1]}" if lengths else "something else"
        raise PlacementError(f"{where}: expected one list of expert ids a layer, all of one length; found {found}")
    if any(not -(2**31) <= expert < 2**31 for row in rows for expert in row):
        raise PlacementError(f"{where}: an expert id is out of range")
    return np.array(rows, np.int32)

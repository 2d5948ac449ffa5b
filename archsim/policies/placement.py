"""A placement: which dies hold which expert in which MoE layer. Capacity checks, report, optimum and engines query
the same object.

A die that holds an expert has all of its weights in HBM. The *home* of an expert is its first holder; the others hold
replicas. Rows of the layer axis are the model's MoE layers in ascending order, whichever of them a run simulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.errors import PlacementError

if TYPE_CHECKING:
    from archsim.traffic.placements import PhysicalMap

WEIGHT_MOVE = np.dtype([("layer", "i8"), ("expert", "i8"), ("src", "i8"), ("dst", "i8"), ("bytes", "i8")], align=True)


@dataclass(frozen=True, eq=False)
class Placement:
    """``home``: int32[layer, expert]; ``holds``: bool[layer, expert, die], True for the home and for every replica.
    ``room``: int64[layer, die], slots that are allocated, even where they are empty or hold an expert twice; None: as
    many as experts are held. ``buffers``: further slots of each die, for whichever layers need them.

    Raises ValueError for shapes that do not match, homes that are not dies, and homes that do not hold their expert.
    """

    home: np.ndarray
    holds: np.ndarray
    room: np.ndarray | None = None
    buffers: int = 0

    def __post_init__(self) -> None:
        if self.holds.ndim != 3 or self.home.shape != self.holds.shape[:2]:
            raise ValueError(
                f"home {self.home.shape} and holds {self.holds.shape}: expected [layer, expert] and [layer, expert, "
                "die]"
            )
        if self.home.size and not (0 <= self.home.min() and self.home.max() < self.dies):
            raise ValueError(
                f"homes are dies {self.home.min()} to {self.home.max()}; there are dies 0 to {self.dies - 1}"
            )
        if not np.take_along_axis(self.holds, self.home[:, :, None].astype(np.int64), axis=2).all():
            raise ValueError("the home of an expert must hold it")

    @classmethod
    def of_homes(cls, home: np.ndarray, layers: int, dies: int) -> Placement:
        """One holder per expert. ``home``: int[expert], the same in every layer, or int[layer, expert]."""
        home = np.array(np.broadcast_to(home, (layers, np.shape(home)[-1])), np.int32)
        holds = np.zeros((*home.shape, dies), np.bool_)
        np.put_along_axis(holds, home[:, :, None].astype(np.int64), True, axis=2)
        return cls(home, holds)

    @classmethod
    def of_holders(
        cls, holders: Sequence[Sequence[Sequence[int]]], dies: int, room: np.ndarray | None = None
    ) -> Placement:
        """``holders[layer][expert]``: the dies that hold it, the home first."""
        home = np.array([[dies_of[0] for dies_of in layer] for layer in holders], np.int32)
        holds = np.zeros((*home.shape, dies), np.bool_)
        for layer, experts in enumerate(holders):
            for expert, dies_of in enumerate(experts):
                holds[layer, expert, list(dies_of)] = True
        return cls(home, holds, room)

    @classmethod
    def of_holds(cls, holds: np.ndarray, home: np.ndarray, room: np.ndarray | None = None) -> Placement:
        """Homes stay at ``home: int[layer, expert]`` where that die still holds the expert, else the lowest holder."""
        stays = np.take_along_axis(holds, home[:, :, None].astype(np.int64), axis=2)[:, :, 0]
        return cls(np.where(stays, home, holds.argmax(axis=2)).astype(np.int32), holds, room)

    def of_layer(self, layer: int, more: np.ndarray) -> Placement:
        """One layer alone, with ``more: bool[expert, die]`` holders."""
        return Placement(self.home[layer : layer + 1], self.holds[layer : layer + 1] | more)

    @property
    def layers(self) -> int:
        return self.holds.shape[0]

    @property
    def experts(self) -> int:
        return self.holds.shape[1]

    @property
    def dies(self) -> int:
        return self.holds.shape[2]

    @cached_property
    def has_replicas(self) -> bool:
        return int(np.count_nonzero(self.holds)) > self.home.size

    @cached_property
    def layer_slots(self) -> np.ndarray:
        """Slots of each die in each layer, int64[layer, die]: those allocated, at least the experts that it holds."""
        held = np.count_nonzero(self.holds, axis=1).astype(np.int64)
        return held if self.room is None else np.maximum(held, self.room)

    @cached_property
    def slots_in_layers(self) -> list[int]:
        """Slots of all dies in each layer."""
        return self.layer_slots.sum(axis=1).tolist()

    @cached_property
    def slots(self) -> np.ndarray:
        """Slots of each die, replicas included, all layers together: int64[die]."""
        return self.layer_slots.sum(axis=0) + self.buffers

    def sources(self, layer: int, expert: np.ndarray, die: np.ndarray, hops: np.ndarray) -> np.ndarray:
        """int32[n]: the holder of ``expert[n]`` nearest to ``die[n]``, ties low. ``hops``: int32[die, die]."""
        if not self.has_replicas:
            return self.home[layer, expert]
        return nearest_holders(self.holds[layer, expert], die, hops)


def nearest_holders(holds: np.ndarray, die: np.ndarray, hops: np.ndarray) -> np.ndarray:
    """int32[n]: of the dies that hold row i (bool[n, die]) the nearest to die[i] by hops, ties to the lowest."""
    far = np.iinfo(hops.dtype).max
    return np.where(holds, hops[die], far).argmin(axis=1).astype(np.int32)


def moves_between(old: Placement, new: Placement, expert_bytes: int, hops: np.ndarray) -> np.ndarray:
    """The transfers that turn one placement into another, WEIGHT_MOVE[n] by layer, expert and target.

    Every new holder of an expert gets it from the nearest old one. Weights that a die no longer holds are dropped
    without a transfer. ``hops``: int32[die, die].
    """
    layer, expert, dst = np.nonzero(new.holds & ~old.holds)
    moves = np.zeros(len(layer), WEIGHT_MOVE)
    moves["layer"], moves["expert"], moves["dst"], moves["bytes"] = layer, expert, dst, expert_bytes
    moves["src"] = nearest_holders(old.holds[layer, expert], dst, hops)
    return moves


# A placement from a file: of ``archsim place``, or in the format of a serving engine.

OF_PLACE = "placement.json"  # what `archsim place` writes beside the engines' files


def file_of(name: str) -> Path:
    """The file that is read: beside the manifest of ``archsim place``, SGLang's."""
    from archsim.traffic.placements import SGLANG_FILE

    path = Path(name)
    if path.is_dir():
        path = path / OF_PLACE
    return path.with_name(SGLANG_FILE) if path.name == OF_PLACE else path


def from_file(model, dies: int, file: str) -> Placement:
    """``file``: of ``archsim place`` or an engine, for ``dies`` ranks. PlacementError: the engine would refuse it."""
    from archsim.traffic.placements import read_placement

    if not file:
        raise PlacementError("placement: from_file: give `file`, such as {name: from_file, file: out/placement.json}")
    return placement_of(read_placement(file_of(file), model, dies))


def placement_of(found: PhysicalMap) -> Placement:
    """The home of an expert is its first slot; slots that hold an expert a second time on a rank stay allocated."""
    layers, slots = found.experts.shape
    holds = found.copies() > 0
    home = np.zeros(holds.shape[:2], np.int32)
    for slot in reversed(range(slots)):
        home[np.arange(layers), found.experts[:, slot]] = slot // found.slots_per_rank
    return Placement(home, holds, np.full((layers, found.ranks), found.slots_per_rank, np.int64))


# Placement rules: pure functions ``(experts, dies, **parameters)`` that return the home die of every expert,
# int32[expert], the same in every layer; with a parameter ``layers`` a ``Placement``.
#
# A user's function may return a ``Placement`` instead, with replicas and layers that differ.


def linear(experts: int, dies: int) -> np.ndarray:
    """Die e // q with q = experts // dies for e < q * dies, else e mod dies; die e if q = 0 (published simulator)."""
    expert = np.arange(experts, dtype=np.int32)
    each = experts // dies
    return np.where(expert < each * dies, expert // max(each, 1), expert % dies).astype(np.int32)


def even_placement(experts: int, dies: int) -> np.ndarray:
    """Contiguous and even: die floor(e * dies / experts), for expert counts that are not multiples of the dies."""
    return (np.arange(experts, dtype=np.int64) * dies // experts).astype(np.int32)


def pad_slots(experts: int, dies: int, layers: int) -> Placement:
    """`even_placement` with as many slots on every die as on the fullest, for kernels that run equally many."""
    of_homes = Placement.of_homes(even_placement(experts, dies), layers, dies)
    return replace(of_homes, room=np.full((layers, dies), -(-experts // dies), np.int64))


def redundant(experts: int, dies: int, layers: int, slots: int = 1) -> Placement:
    """Every die has ⌈experts / dies⌉ + ``slots`` slots in every layer; slot i holds expert i mod experts, and die
    i // (slots of a die) has slot i.

    What SGLang starts from (``--init-expert-location trivial``), before EPLB has seen loads. The home of an expert is
    its first slot.
    """
    of_die = -(-experts // dies) + slots
    slot = np.arange(of_die * dies)
    holds = np.zeros((experts, dies), np.bool_)
    holds[slot % experts, slot // of_die] = True
    home = (np.arange(experts) // of_die).astype(np.int32)
    return Placement(
        np.tile(home, (layers, 1)), np.tile(holds, (layers, 1, 1)), np.full((layers, dies), of_die, np.int64)
    )

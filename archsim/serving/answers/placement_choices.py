"""The placements of ``archsim.balancers`` in equal slots for all ranks, as engines have them: a free slot holds a
further copy of an expert whose copies are all on that rank, which changes no load.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from archsim.base.errors import PlacementError, did_you_mean
from archsim.policies.craft import craft_budget, craft_gain, greedy_placement
from archsim.policies.eplb import eplb
from archsim.policies.remap import dup, remap
from archsim.traffic.placements import sglang_default

# (loads float64[time, layer, expert], ranks, slots) -> int[layer, slot]
Chooser = Callable[[np.ndarray, int, int], np.ndarray]
CRAFT_BATCHES = 64  # batches in which CRAFT estimates what replicas gain; consecutive matrices are summed


def none(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """What SGLang and vLLM start with: slot i holds expert i mod experts."""
    _, layers, experts = loads.shape
    return np.tile(sglang_default(slots, experts), (layers, 1))


def of_eplb(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    return eplb(loads.sum(axis=0), slots, groups=1, nodes=1, gpus=ranks).physical_to_logical


def of_craft(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """CRAFT: as many replicas in a layer as pay in the recorded batches, placed greedily."""
    _, layers, experts = loads.shape
    more, room = slots - experts, np.full(ranks, slots // ranks)
    replicas = np.zeros(layers, np.int64)
    if more:
        counts = sorted({min(2**n, more) for n in range(more.bit_length() + 1)})
        gain = craft_gain(_batches(loads), ranks, counts=counts)
        replicas = craft_budget(gain, more * layers)
    total = loads.sum(axis=0)
    plans = [greedy_placement(total[n], ranks, int(replicas[n]), room).experts for n in range(layers)]
    return np.stack([fill_slots(plan, slots, total[n]) for n, plan in enumerate(plans)])


def of_remap(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    total = loads.sum(axis=0)
    return np.stack([fill_slots(remap(layer, ranks).experts, slots, layer) for layer in total])


def of_dup(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """Dup: experts stay in order, replicas go where they lower the largest load most."""
    _, _, experts = loads.shape
    free = slots // ranks - -(-experts // ranks)
    total = loads.sum(axis=0)
    return np.stack([fill_slots(dup(layer, ranks, free, float).experts, slots, layer) for layer in total])


POLICIES: dict[str, Chooser] = {"none": none, "eplb": of_eplb, "craft": of_craft, "remap": of_remap, "dup": of_dup}


def policy_named(name: str) -> Chooser:
    """Raises PlacementError."""
    if name not in POLICIES:
        raise PlacementError(f"unknown policy {name!r}{did_you_mean(name, POLICIES)} (known: {', '.join(POLICIES)})")
    return POLICIES[name]


def fill_slots(held: list[np.ndarray], slots: int, load: np.ndarray) -> np.ndarray:
    """int64[slot]: what each rank holds (held[rank]: experts), with its free slots filled as this module says. A rank
    without an expert of its own alone repeats the one with the least load[expert] per copy.
    """
    each = slots // len(held)
    copies = np.bincount(np.concatenate(held), minlength=len(load))
    row = np.empty((len(held), each), np.int64)
    for rank, experts in enumerate(held):
        mine = np.bincount(experts, minlength=len(load))
        alone = np.flatnonzero((mine > 0) & (mine == copies))
        coldest = np.argmin(load / np.maximum(copies, 1))
        row[rank, : len(experts)] = experts
        row[rank, len(experts) :] = alone[0] if len(alone) else coldest
    return row.ravel()


def _batches(loads: np.ndarray) -> np.ndarray:
    starts = np.unique(np.arange(CRAFT_BATCHES) * len(loads) // CRAFT_BATCHES)
    return np.add.reduceat(loads, starts, axis=0)

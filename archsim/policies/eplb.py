"""EPLB: which slot holds which expert, by load (deepseek-ai/EPLB, commit d52c72d; CRAFT, section 2.3).

Each layer on its own: assign the redundant slots to the experts of largest load per instance, then pack instances
into GPUs, the largest first, each into the least loaded GPU that has a free slot. Hierarchical: groups of experts are
packed into nodes first, and both steps run within a node, so that no instance leaves its group's node.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.load import checked_count, checked_load
from archsim.traffic.placements import misfit_of


class EplbPlacement(NamedTuple):
    """Slot i belongs to GPU i // (slots / GPUs)."""

    physical_to_logical: np.ndarray  # int64[layer, slot] the expert in a slot
    logical_to_physical: np.ndarray  # int64[layer, expert, rank] the slot of an expert's instance, -1 after the last
    copies: np.ndarray  # int64[layer, expert]


def eplb(
    load: ArrayLike,
    replicas: int,
    groups: int,
    nodes: int,
    gpus: int,
    hierarchical: bool | None = None,
    speed: np.ndarray | None = None,
) -> EplbPlacement:
    """Place ``replicas`` instances of the experts of every layer of ``load[layer, expert]``, any numbers >= 0.

    ``replicas``: physical slots of a layer, those of first instances included. ``groups``: of experts, contiguous.
    ``hierarchical``: None chooses it if ``nodes`` divides ``groups``; False: all experts are one group on one node.
    ``speed``: float64[gpu]; instances then go to the GPU of a node that is through with its load first, which EPLB does
    not do. It is for one node alone. Ties go to the lowest expert and GPU; a layer without load gives all redundant
    slots to each node's first expert.

    ValueError: ``replicas`` is less than the experts or no multiple of ``gpus``; hierarchical: ``nodes`` does not
    divide ``groups`` and ``gpus``, or ``groups`` the experts; load that is negative or of a different shape.
    """
    load = checked_load(load, ("layer", "expert"))
    for name, value in (("replicas", replicas), ("groups", groups), ("nodes", nodes), ("gpus", gpus)):
        checked_count(value, name)
    if hierarchical is None:
        hierarchical = groups % nodes == 0
    if not hierarchical:
        groups = nodes = 1
    layers, experts = load.shape
    _check_sizes(experts, replicas, groups, nodes, gpus)

    from archsim.base.replication import replicate

    expert = _experts_by_node(load, groups, nodes)
    by_node = layers * nodes, experts // nodes
    copies = replicate(np.take_along_axis(load, expert, axis=1).reshape(by_node), replicas // nodes)
    if speed is not None and nodes > 1:
        raise ValueError(f"speed: nodes differ, and groups are packed into {nodes} equal nodes; hierarchical=False")
    slot = _pack_evenly(copies.load, gpus // nodes, speed)
    of_node = _arrange(copies.expert, slot)
    held = np.take_along_axis(expert.reshape(by_node), of_node, axis=1).reshape(layers, replicas)
    rank = _arrange(copies.rank, slot).reshape(layers, replicas)
    count = _arrange(copies.number.reshape(layers, experts), expert)
    slots = np.full((layers, experts, count.max(initial=1)), -1, np.int64)
    slots[np.arange(layers)[:, None], held, rank] = np.arange(replicas)
    return EplbPlacement(held, slots, count)


def _check_sizes(experts: int, replicas: int, groups: int, nodes: int, gpus: int) -> None:
    if experts < 1:
        raise ValueError("load has no experts; expected load[layer, expert] of one expert or more")
    if misfit := misfit_of(replicas, experts, gpus):
        raise ValueError(f"replicas: {misfit}")
    for many, what, few, by in (
        (groups, "groups", nodes, "nodes"),
        (gpus, "GPUs", nodes, "nodes"),
        (experts, "experts", groups, "groups"),
    ):
        if many % few:
            raise ValueError(
                f"{many} {what} do not divide among {few} {by}, as hierarchical placement needs; "
                "hierarchical=False does without"
            )


def _experts_by_node(load: np.ndarray, groups: int, nodes: int) -> np.ndarray:
    """int64[layer, position] all experts, those of the first node first: groups packed into nodes by their sums."""
    layers, experts = load.shape
    size = experts // groups
    place = _pack_evenly(load.reshape(layers, groups, size).sum(axis=2), nodes)
    group = _arrange(np.broadcast_to(np.arange(groups), (layers, groups)), place)
    return (group[:, :, None] * size + np.arange(size)).reshape(layers, experts)


def _pack_evenly(load: np.ndarray, bins: int, speed: np.ndarray | None = None) -> np.ndarray:
    """int64[row, item] the place of every item in bins of one size; of size 1: item i in bin i, as upstream."""
    from archsim.base.packing import pack

    rows, items = load.shape
    each = items // bins
    if each == 1 and speed is None:
        return np.broadcast_to(np.arange(items), (rows, items))
    into, place = pack(load, np.full(bins, each), speed)
    return into * each + place


def _arrange(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """``values[row, item]`` put where ``place[row, item]`` says."""
    arranged = np.empty_like(values)
    np.put_along_axis(arranged, place, values, axis=1)
    return arranged

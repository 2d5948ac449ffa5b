"""Ports of a cluster, and the bytes that pass them in one phase (dispatch or combine).

A fabric of switches, one level (a node) or two (nodes of GPUs), has a port per GPU and level: to the switch of its
node (NVLink), and to the network between nodes (a NIC; ``per: group``: one that the GPUs of a node share). A phase is
a sum of flows, one network at a time: ``flows: float64[network, source, target]``, bytes between ports. Flows of all
tokens between the same two ports are one.

============  =========================================================  =============================================
kernel        between nodes                                              inside a node
============  =========================================================  =============================================
forwarded     a vector once for every token and node, to the GPU with    from there to the GPUs that want it
              the same number there
direct        a vector for every token and GPU (or expert), to that GPU  only what stays in the node
============  =========================================================  =============================================

A combine has the same flows the other way round: the GPU that forwarded sums the results of its node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.machine.fabric import LevelSpec

SWITCH, LINKED = "switch", "fully_connected"


class Grid(NamedTuple):
    """Nodes of GPUs: GPU g of node n is die ``n · size + g``."""

    nodes: int
    size: int
    shared: bool = False  # the GPUs of a node share its NIC
    linked: bool = False  # each GPU of the one node has a link to each other, and no switch

    @property
    def dies(self) -> int:
        return self.nodes * self.size

    @property
    def node_of(self) -> np.ndarray:
        """Node of every die, int64[die]."""
        return np.arange(self.dies) // self.size


class PortBytes(NamedTuple):
    """Bytes of a phase between ports. ``inner``: float64[node, source, target] of the GPUs of each node; ``outer``:
    float64[network, source, target] between nodes, in the order of ``outer_ports``; no networks in a single node.
    """

    inner: np.ndarray
    outer: np.ndarray

    def part(self, share: float) -> PortBytes:
        return PortBytes(self.inner * share, self.outer * share)

    def reverse(self) -> PortBytes:
        return PortBytes(self.inner.swapaxes(1, 2), self.outer.swapaxes(1, 2))


def grid_of(system) -> Grid | None:
    """Nodes of a system of GPUs: switches in one or two levels, or links of pairs that have a law; else None."""
    levels: Sequence[LevelSpec] = () if system.fabric is None else system.fabric.levels
    if len(levels) == 1 and levels[0].kind == LINKED and levels[0].law is not None:
        return Grid(1, system.dies, linked=True)
    if not 1 <= len(levels) <= 2 or any(level.kind != SWITCH for level in levels):
        return None
    if len(levels) == 1:
        return Grid(1, system.dies)
    nodes, size = levels[1].size, levels[0].size
    if system.dies != system.sites:
        living = np.bincount(np.array(system.built.living) // size, minlength=nodes)
        if living.min() != living.max():
            raise SpecError(
                f"{system.name}: dies_as_built: nodes are left with {living.min()} to {living.max()} GPUs, but "
                "measured kernels are of nodes with equally many. List as many dead in every node"
            )
        size = int(living[0])
    return Grid(nodes, size, shared=levels[1].per != "gpu")


def flows_forwarded(vectors: np.ndarray, to_nodes: np.ndarray, grid: Grid, vector_bytes: float) -> PortBytes:
    """Flows of a dispatch that sends once a (token, node): ``vectors`` [home, die], ``to_nodes`` [home, node]."""
    nodes, size = grid.nodes, grid.size
    by_rail = vectors.reshape(nodes, size, nodes, size).sum(axis=0)  # [rail, node, die in it]
    inner = _off_diagonal(by_rail.swapaxes(0, 1) * float(vector_bytes))
    if nodes == 1:
        return PortBytes(inner, np.zeros((0, 0, 0)))
    between = to_nodes.reshape(nodes, size, nodes) * float(vector_bytes)
    outer = between.sum(axis=1)[None] if grid.shared else between.swapaxes(0, 1)
    return PortBytes(inner, _off_diagonal(outer))


def flows_direct(vectors: np.ndarray, grid: Grid, vector_bytes: float) -> PortBytes:
    """Flows of a dispatch that sends every vector straight to its GPU. ``vectors``: [home, die]."""
    nodes, size = grid.nodes, grid.size
    sent = vectors.reshape(nodes, size, nodes, size) * float(vector_bytes)
    here = np.arange(nodes)
    inner = _off_diagonal(sent[here, :, here, :].copy())
    if nodes == 1:
        return PortBytes(inner, np.zeros((0, 0, 0)))
    if grid.shared:
        return PortBytes(inner, _off_diagonal(sent.sum(axis=(1, 3))[None]))
    sent[here, :, here, :] = 0.0
    return PortBytes(inner, sent.reshape(1, grid.dies, grid.dies))


def outer_ports(grid: Grid, networks: int) -> np.ndarray:
    """int64[network, member]: the port (a die, or a node whose GPUs share one) of the networks between nodes."""
    if grid.shared:
        return np.arange(grid.nodes)[None]
    return np.arange(grid.dies).reshape(grid.nodes, grid.size).T if networks > 1 else np.arange(grid.dies)[None]


def port_bytes(flows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(out of, into) the ports of all networks, float64[network, port]."""
    return flows.sum(axis=2), flows.sum(axis=1)


def refuse_unequal(slots: np.ndarray, experts: int) -> None:
    """Raise SpecError where GPUs hold different numbers of experts (no kernel does). ``slots``: int64[layer, die]."""
    dies = slots.shape[1]
    if (slots.max(axis=1) == slots.min(axis=1)).all() or slots.max() == 1:
        return
    near = [each for each in range(1, experts + 1) if experts % each == 0]
    below, above = max(each for each in near if each < dies), min(each for each in near if each > dies)
    raise SpecError(
        f"{experts} experts do not divide over {dies} GPUs; {below} or {above} GPUs would do, or "
        f"{-(-experts // dies)} slots per GPU, of which {-experts % dies} are empty (placement: padded) or hold "
        "redundant experts, or transfer_software: free"
    )


def _off_diagonal(flows: np.ndarray) -> np.ndarray:
    """Without what a port sends to itself; changes ``flows``."""
    member = np.arange(flows.shape[1])
    flows = np.ascontiguousarray(flows)
    flows[:, member, member] = 0.0
    return flows

"""Weights that move between HBMs outside of steps: migrations of a rebalancing, and replicas for the next layer.

A set of moves takes as long as its flows over the fabric (`simulate_flows`, one flow for each pair of dies, all from
the start), or as its fullest HBM, which reads at the sources and writes at the targets, if that is longer; one HBM
latency is added. The engine's kernels do not see these flows. What they do to steps is the assumption ``migration``:

``free``        they take no time; links and HBM count their bytes
``blocking``    the next step waits until they are done
``overlapped``  they use what the steps leave: in a step of t ns a resource has t · rate − (bytes of the step) to spare,
                and the moves advance by the share of their bytes that the scarcest resource can spare
"""

from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine.network.flows import simulate_flows
from archsim.engine.state import DATA_MESSAGES, REPLICAS, SLICES, UNITS, Machine, Tally
from microarch.fabric.fabric import Fabric

NO_PAIRS = np.zeros(0, np.int64)


class Transfer(NamedTuple):
    """A set of moves: its time alone, the bytes on every resource, and what it adds to the hops of data."""

    ns: float
    resource_bytes: np.ndarray  # int64[resource]
    total_bytes: int
    hop_messages: int
    hop_bytes: int
    pairs: np.ndarray  # int64[n]: first die · dies + second
    pair_bytes: np.ndarray  # int64[n]
    arrival_ns: np.ndarray  # float64[die]: when a die has what it gets


class WeightMover:
    """Times and counts moves on a machine."""

    def __init__(self, machine: Machine, fabric: Fabric, tally: Tally):
        self._machine, self._fabric, self._tally = machine, fabric, tally
        dies = machine.dies
        self._contention = "shared" if machine.link_resources == fabric.links else "reserved"
        self._rates = np.full(machine.resources, np.inf)
        self._rates[dies : 2 * dies] = machine.hbm_bytes_per_ns
        links = fabric.link_bytes_per_ns
        if self._contention == "reserved":
            edges = np.full(fabric.edges, np.inf)
            np.minimum.at(edges, fabric.link_edge, links)
            links = edges
        self._rates[UNITS * dies :] = links

    def transfer(self, src: np.ndarray, dst: np.ndarray, n_bytes: int) -> Transfer:
        """Moves of ``n_bytes`` each from ``src[n]`` to ``dst[n]``."""
        machine, dies = self._machine, self._machine.dies
        resource_bytes = np.zeros(machine.resources, np.int64)
        if not len(src):
            return Transfer(0.0, resource_bytes, 0, 0, 0, NO_PAIRS, NO_PAIRS, np.zeros(dies))
        pairs, count = np.unique(np.asarray(src, np.int64) * dies + dst, return_counts=True)
        flows = []
        for pair, moves in zip(pairs.tolist(), count.tolist(), strict=True):
            origin, target = divmod(pair, dies)
            np.add.at(resource_bytes[UNITS * dies :], machine.route(origin, target), moves * n_bytes)
            resource_bytes[[dies + origin, dies + target]] += moves * n_bytes
            flows.append((origin, target, float(moves * n_bytes), 0.0))
        finish = simulate_flows(
            self._fabric, flows, contention=self._contention, die_port_bytes_per_s=machine.hbm_bytes_per_ns * NS_PER_S
        )
        hbm_ns = resource_bytes[dies : 2 * dies] / machine.hbm_bytes_per_ns
        arrival_ns = np.zeros(dies)
        np.maximum.at(arrival_ns, pairs % dies, finish)
        gets = arrival_ns > 0
        arrival_ns[gets] = np.maximum(arrival_ns, hbm_ns)[gets] + machine.hbm_latency_ns
        hops = int((machine.hops.ravel()[pairs] * count).sum())
        return Transfer(
            max(float(finish.max()), float(hbm_ns.max())) + machine.hbm_latency_ns,
            resource_bytes,
            int(count.sum()) * n_bytes,
            hops * SLICES,
            hops * n_bytes,
            pairs,
            count * n_bytes,
            arrival_ns,
        )

    def book(self, transfer: Transfer, kind: int = REPLICAS) -> None:
        """Count the moves: bytes and busy time of links and HBM, hops of data, bytes of pairs in class ``kind``."""
        resources, hops = self._tally.resources, self._tally.hops
        resources["bytes"] += transfer.resource_bytes
        resources["busy_ns"] += transfer.resource_bytes / self._rates
        hops[DATA_MESSAGES] += transfer.hop_messages, transfer.hop_bytes
        self._tally.pair_bytes[kind].reshape(-1)[transfer.pairs] += transfer.pair_bytes

    def counted_bytes(self) -> np.ndarray:
        """Bytes that resources have moved so far, int64[resource]."""
        return self._tally.resources["bytes"].copy()

    def spare_bytes(self, step_ns: float, moved_bytes: np.ndarray) -> np.ndarray:
        """What a step of ``step_ns`` that moved ``moved_bytes`` leaves of every resource, float64[resource]."""
        if step_ns <= 0:
            return np.zeros(len(moved_bytes))
        return np.maximum(step_ns * self._rates - moved_bytes, 0.0)


def advance(transfer: Transfer, spare_bytes: np.ndarray) -> float:
    """The share of the transfer, 0 to 1, that fits into ``spare_bytes``."""
    used = transfer.resource_bytes > 0
    if not used.any():
        return 1.0
    return float(min(1.0, (spare_bytes[used] / transfer.resource_bytes[used]).min()))

"""Weights that move between HBMs outside of steps: migrations of a rebalancing, and replicas for the next layer.

A set of moves takes as long as its flows over the fabric (`simulate_flows`, one flow for each pair of dies, all from
the start), or as its fullest HBM, which reads at the sources and writes at the targets, if that is longer; one HBM
latency is added. The engine's kernels do not see these flows. What they do to steps is the assumption ``migration``:

``free``        they take no time; their bytes are counted beside those that links and HBM move in theirs
``blocking``    the next step waits until they are done
``overlapped``  they use what the steps leave: in a step of t ns a resource has t · rate − (bytes of the step) to
                spare, and the moves advance by the share of their bytes that the scarcest resource can spare. What
                has not arrived when the run ends has not moved, and its placement was not used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine import pair_traffic, state
from archsim.engine.flows.simulation import simulate_flows
from microarch.fabric.fabric import Fabric

NO_PAIRS = np.zeros(0, np.int64)


class WeightTransfer(NamedTuple):
    """A set of moves: its time alone, and the bytes on every resource and between dies."""

    ns: float  # from its start until all has arrived
    resource_bytes: np.ndarray  # int64[resource]
    total_bytes: int  # of all pairs
    pairs: np.ndarray  # int64[n]: first die · dies + second
    pair_bytes: np.ndarray  # int64[n]
    arrival_ns: np.ndarray  # float64[die]: when a die has what it gets


class WeightMover:
    """Times and counts moves on a machine."""

    def __init__(self, machine: state.Machine, fabric: Fabric, tally: state.Tally):
        self._machine, self._fabric, self._tally = machine, fabric, tally
        dies = machine.dies
        self._contention = "shared" if machine.link_resources == fabric.links else "reserved"
        self._rates = np.full(machine.resources, np.inf)
        self._rates[dies : 2 * dies] = machine.hbm_rates
        links = fabric.link_bytes_per_ns
        if self._contention == "reserved":
            edges = np.full(fabric.edges, np.inf)
            np.minimum.at(edges, fabric.link_edge, links)
            links = edges
        self._rates[state.UNITS * dies :] = links

    def transfer(self, src: np.ndarray, dst: np.ndarray, n_bytes: int) -> WeightTransfer:
        """Moves of ``n_bytes`` each from ``src[n]`` to ``dst[n]``."""
        machine, dies = self._machine, self._machine.dies
        if not len(src):
            nothing = np.zeros(machine.resources, np.int64)
            return WeightTransfer(0.0, nothing, 0, NO_PAIRS, NO_PAIRS, np.zeros(dies))
        pairs, count = np.unique(np.asarray(src, np.int64) * dies + dst, return_counts=True)
        pair_bytes = count * n_bytes
        resource_bytes = self._on_resources(pairs, pair_bytes)
        flows = [(*divmod(pair, dies), float(each), 0.0) for pair, each in zip(pairs.tolist(), pair_bytes, strict=True)]
        port = float(machine.hbm_rates.max()) * NS_PER_S  # of a slower HBM, the bound below
        finish = simulate_flows(self._fabric, flows, contention=self._contention, die_port_bytes_per_s=port)
        hbm_ns = resource_bytes[dies : 2 * dies] / machine.hbm_rates
        arrival_ns = np.zeros(dies)
        np.maximum.at(arrival_ns, pairs % dies, finish)
        gets = arrival_ns > 0
        arrival_ns[gets] = np.maximum(arrival_ns, hbm_ns)[gets] + machine.hbm_latency_ns
        ns = max(float(finish.max()), float(hbm_ns.max())) + machine.hbm_latency_ns
        return WeightTransfer(ns, resource_bytes, int(pair_bytes.sum()), pairs, pair_bytes, arrival_ns)

    def _on_resources(self, pairs: np.ndarray, pair_bytes: np.ndarray) -> np.ndarray:
        """What HBMs read and write and links pass for bytes between pairs of dies, int64[resource]."""
        machine, dies = self._machine, self._machine.dies
        found, sent = np.zeros(machine.resources, np.int64), np.zeros((1, dies * dies), np.int64)
        sent[0, pairs] = pair_bytes
        pair_traffic.cross_links(sent, machine.route_ptr, machine.route_links, found[None, state.UNITS * dies :])
        np.add.at(found, dies + pairs // dies, pair_bytes)
        np.add.at(found, dies + pairs % dies, pair_bytes)
        return found

    def book(
        self, transfer: WeightTransfer, kind: int | np.int64 = state.REPLICAS, begin: float = 0.0, end: float = 1.0,
        idle_ns: float | np.ndarray = np.inf, timed: bool = True,
    ) -> int:  # fmt: skip
        """Count the moves from the share ``begin`` of their bytes to the share ``end``: bytes and busy time of links
        and HBM (if ``timed``), hops of data, bytes of pairs in class ``kind``. Returns the bytes.
        ``idle_ns``: float64[resource], how long resources do nothing else meanwhile; the rest of a move passes beside
        transfers that leave bandwidth.
        """
        resources, size = self._tally.resources, self._machine.slice_bytes
        sent = [np.floor(transfer.pair_bytes * share).astype(np.int64) for share in (begin, end)]
        before, after = (int((self._machine.hops.ravel()[transfer.pairs] * each).sum()) for each in sent)
        part = sent[1] - sent[0]
        if timed:
            resource_bytes = self._on_resources(transfer.pairs, part)
            resources["bytes"] += resource_bytes
            resources["busy_ns"] += np.minimum(resource_bytes / self._rates, idle_ns)
        self._tally.hops[state.DATA_MESSAGES] += after // size - before // size, after - before
        self._tally.pair_bytes[kind].reshape(-1)[transfer.pairs] += part
        return int(part.sum())

    def resource_counts(self) -> np.ndarray:
        """What resources have counted so far, RESOURCE[resource]."""
        return self._tally.resources.copy()

    def spare_bytes(self, step_ns: float, moved_bytes: np.ndarray) -> np.ndarray:
        """What a step of ``step_ns`` that moved ``moved_bytes`` leaves of every resource, float64[resource]."""
        if step_ns <= 0:
            return np.zeros(len(moved_bytes))
        return np.maximum(step_ns * self._rates - moved_bytes, 0.0)


def advance(transfer: WeightTransfer, spare_bytes: np.ndarray) -> float:
    """The share of the transfer, 0 to 1, that fits into ``spare_bytes``."""
    used = transfer.resource_bytes > 0
    if not used.any():
        return 1.0
    return float(min(1.0, (spare_bytes[used] / transfer.resource_bytes[used]).min()))

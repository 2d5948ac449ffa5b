"""What moved between which dies and over which links, by class: weights, hidden vectors, replicas, statistics.

The kernels count bytes by pair of dies (``Tally.pair_bytes``); those of a link follow from the routes, which are
fixed.
Expert parallelism counts what dispatch and combine put on links by itself (``Tally.phase_links``): a node forwards
vectors that it received once, and a kernel gathers all of them, so pairs say who sent what for whom, not which way.
Counts of loads (statistics) pass the fabric as latency and take part in no sharing, as a decision's messages do: the
kernels do not see them, and they are added where links are measured (``archsim.runs.measures.units.measure_links``).
"""

from collections.abc import Mapping
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.engine import state

CLASSES: Mapping[str, int] = {
    "request": int(state.REQUESTS),
    "weight": int(state.DATA_MESSAGES),
    "dispatch": int(state.HIDDEN + state.DISPATCH),
    "combine": int(state.HIDDEN + state.COMBINE),
    "replica": int(state.REPLICAS),
    "statistics": int(state.STATISTICS),
}


"""Name of a class of messages → its row of ``Tally.pair_bytes``."""


PHASES: Mapping[int, str] = {int(state.DISPATCH): "dispatch", int(state.COMBINE): "combine"}


def pair_bytes(tally: state.Tally) -> dict[str, np.ndarray]:
    """Class → bytes sent from the first die to the second, int64[die, die]."""
    return {name: tally.pair_bytes[row] for name, row in CLASSES.items()}


class LinkTraffic(NamedTuple):
    """What one class put on every link; under ``contention: reserved`` links are edges."""

    n_bytes: np.ndarray  # int64[link]
    ns: np.ndarray  # float64[link] that they held it


def link_traffic(machine: state.Machine, tally: state.Tally, rates: np.ndarray) -> dict[str, LinkTraffic]:
    """Class → what it put on links. ``rates``: float64[link] bytes per ns."""
    crossed = np.zeros((len(CLASSES), machine.link_resources), np.int64)  # by the pairs of each class, on their routes
    cross_links(tally.pair_bytes.reshape(len(CLASSES), -1), machine.route_ptr, machine.route_links, crossed)
    found = {name: LinkTraffic(crossed[row], crossed[row] / rates) for name, row in CLASSES.items()}
    for phase in (state.DISPATCH, state.COMBINE):
        counted = tally.phase_links[phase]
        if counted["bytes"].any():
            found[PHASES[int(phase)]] = LinkTraffic(counted["bytes"], counted["busy_ns"])
    return found


def statistics_bytes(machine: state.Machine, tally: state.Tally) -> np.ndarray:
    """What counts of loads put on every link of a run, int64[link]."""
    crossed = np.zeros((1, machine.link_resources), np.int64)
    cross_links(tally.pair_bytes[state.STATISTICS].reshape(1, -1), machine.route_ptr, machine.route_links, crossed)
    return crossed[0]


@kernel
def cross_links(pair_bytes, route_ptr, route_links, crossed):
    """Add int64[class, pair] to int64[class, link] of the routes of the pairs."""
    for row in range(len(pair_bytes)):
        for pair in range(pair_bytes.shape[1]):
            if pair_bytes[row, pair] != 0:
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    crossed[row, route_links[at]] += pair_bytes[row, pair]


def send_statistics(sent: np.ndarray, n_bytes: int, global_die: int, executor: str) -> None:
    """Add ``n_bytes`` of counts of every die to ``sent``, int64[die, die]: to ``global_die``, or if GPUs decide, to a
    partner in each of log2 D rounds of an all-reduce (``microarch.blocks.global_cp.all_reduce_ns``).
    """
    dies = len(sent)
    every = np.arange(dies)
    if executor != "gpu":
        sent[every != global_die, global_die] += n_bytes
        return
    for bit in range(ceil(log2(dies)) if dies > 1 else 0):
        partner = every ^ (1 << bit)
        there = partner < dies
        sent[every[there], partner[there]] += n_bytes

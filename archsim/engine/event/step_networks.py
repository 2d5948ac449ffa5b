"""Groups of flows under ``contention: shared``: all flows over the same resources, numbered by what they carry.

From these numbers on: within a die, by die, ``OWN_SLICES``, ``OWN_COPIES`` and ``OWN_VECTORS`` (times ``dies``);
then, behind ``PAIRS`` · dies, by pair (source · dies + target), slices from an HBM, slices from an LLC, hidden
vectors (from HBM to HBM). A network of all of them holds every link of every route three times: on a large machine it
has rows for the groups alone that a step can use.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.engine.event.flow_pool import LINE
from archsim.engine.event.flows import NOBODY
from archsim.engine.flows.network import FlowNetwork, build_network
from archsim.engine.state import Machine, StepWork
from microarch.fabric.fabric import Fabric

OWN_SLICES, OWN_COPIES, OWN_VECTORS, PAIRS = np.arange(4)
MOST_LINKS = 1 << 18  # of the routes of all pairs, up to which the network has all groups


class StepNetwork(NamedTuple):
    """The network that a step uses."""

    net: FlowNetwork  # empty, with the routes of the groups
    lines: np.ndarray  # LINE[line], all empty
    line_of: np.ndarray  # int32[row]: the line in which the flows of a group wait for each other; -1: they do not
    row_of: np.ndarray  # int32[group]: its row in the network; -1: the step has no such flows
    flow_of: np.ndarray  # int64[row] of 0


class StepNetworks:
    """Builds the networks of steps: one of all groups, or (``sparse``) one for every step."""

    def __init__(self, machine: Machine, fabric: Fabric, reads: str, source: str, sparse: bool | None = None):
        self._machine, self._fabric, self._order = machine, fabric, (reads, source)
        self._sparse = len(fabric.route_links) > MOST_LINKS if sparse is None else sparse
        groups = PAIRS * machine.dies + 3 * machine.dies**2
        self._row_of = np.full(groups, NOBODY, np.int32)
        self._now = np.arange(0 if self._sparse else groups)
        self._flows = self._of(self._now)

    def of(self, work: StepWork) -> StepNetwork:
        """For a step of that work."""
        if self._sparse:
            self._row_of[self._now] = NOBODY
            self._now = _groups_of(work, self._machine.dies)
            self._flows = None  # two at a time may not fit in memory
            self._flows = self._of(self._now)
        return self._flows

    def _of(self, groups: np.ndarray) -> StepNetwork:
        self._row_of[groups] = np.arange(len(groups))
        lines, line_of = lines_of_groups(groups, self._machine.dies, *self._order)
        network = flow_network(self._machine, self._fabric, groups)
        return StepNetwork(network, lines, line_of, self._row_of, np.zeros(len(groups), np.int64))


def _groups_of(work: StepWork, dies: int) -> np.ndarray:
    """int64[n], ascending: groups of the flows that a step can have."""
    entries, moves = work.entries, work.moves
    fetched = np.unique((entries["home"] * dies + entries["die"])[entries["home"] != entries["die"]])
    sent = np.unique((moves["src"] * dies + moves["dst"])[moves["src"] != moves["dst"]])
    pairs = [fetched, dies * dies + fetched, 2 * dies * dies + sent]
    return np.concatenate([np.arange(PAIRS * dies), *(PAIRS * dies + each for each in pairs)])


def flow_network(machine: Machine, fabric: Fabric, groups: np.ndarray) -> FlowNetwork:
    """The network of HBMs (first) and links with those groups of flows, int64[n]."""
    length = np.zeros(len(groups) + 1, np.int64)
    nowhere = np.zeros(0, np.int64)
    _list_routes(groups, fabric.dies, fabric.route_ptr, fabric.route_links, length, nowhere)
    route_ptr = np.cumsum(length)
    routes = np.empty(route_ptr[-1], np.int64)
    _list_routes(groups, fabric.dies, fabric.route_ptr, fabric.route_links, route_ptr.copy(), routes)
    capacity = np.concatenate([machine.hbm_rates, machine.link_rates])
    return build_network(capacity, route_ptr, routes)


@kernel
def _list_routes(groups, dies, route_ptr, route_links, at, routes):
    """Resources of each group's route into ``routes`` from ``at[row]``; if empty, counts into ``at[row + 1]``."""
    counts = len(routes) == 0
    for row in range(len(groups)):
        own = groups[row] < PAIRS * dies
        kind, pair = divmod(groups[row] - PAIRS * dies, dies * dies)
        src, dst = divmod(pair, dies)
        begin, end = np.int64(0), np.int64(0)
        if not own:
            begin, end = route_ptr[pair], route_ptr[pair + 1]
        from_hbm, into_hbm = own or kind != 1, not own and kind == 2 and src != dst
        if counts:
            at[row + 1] = end - begin + from_hbm + into_hbm
            continue
        to = at[row]
        if from_hbm:
            routes[to] = groups[row] % dies if own else src
            to += 1
        for link in range(begin, end):
            routes[to] = dies + route_links[link]
            to += 1
        if into_hbm:
            routes[to] = dst


def lines_of_groups(groups: np.ndarray, dies: int, reads: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """(LINE[line], all empty; int32[row]: the line in which the flows of each of the groups, int64[row], wait for each
    other, -1 where they do not).

    ``reads: in_order``: slices that a die takes from one source (from HBM or LLC) are in one line, hidden vectors in
    another, so that they do not wait for weights that were asked for ahead. Vectors that stay on a die are asked for
    before its weights, and are in their line. The copies that it writes are in another. ``source: queued``: all that
    leaves a die is in one line.
    """
    line_of, within = np.full(len(groups), NOBODY), groups < PAIRS * dies
    kind, pair = np.divmod(groups[~within] - PAIRS * dies, dies * dies)
    if reads == "in_order":
        own, die = np.divmod(groups[within], dies)
        line_of[within] = np.where(own == OWN_COPIES, dies, 0) + die
        line_of[~within] = PAIRS * dies + np.where(kind == 2, dies * dies, 0) + pair
    if source == "queued":
        line_of[~within] = PAIRS * dies + pair // dies
    named, line_of = np.unique(line_of, return_inverse=True)
    without = int(np.searchsorted(named, 0))  # 1 where a group has no line
    lines = np.zeros(len(named) - without, LINE)
    lines["first"] = lines["last"] = NOBODY
    return lines, (line_of - without).astype(np.int32)

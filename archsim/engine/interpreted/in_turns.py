"""``arbitration: round_robin``, slow and obvious: port-fair rates with coupled FIFOs, and the interpreter with them.

The rules are those of the text of ``archsim.engine.flows.port_fair``, with its damping and its tolerance: limits start
at the capacities, rates follow in travelling order, limits against it, until none moves by more than ``SETTLED`` of its
capacity. A flow's route is a tuple of names of resources; those in ``apart`` (HBMs) queue every flow apart, all others
are links, of which ``order`` lists all such that every route rises.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from math import inf
from typing import Any

from archsim.engine.event.flows import UNSATURATED
from archsim.engine.interpreted.interpreter import Name, Way, route
from archsim.engine.interpreted.shared import Flow, Shared
from archsim.engine.state import Machine
from microarch.blocks.request import State

KEPT, SETTLED, MAX_SWEEPS = 0.6, 1e-4, 200


def touched_flows(routes: Sequence[Way], changed: Sequence[Way]) -> list[int]:
    """Indices of the flows that share a resource, directly or through others, with one of the routes ``changed``."""
    reached = set().union(*changed)
    found: set[int] = set()
    while True:
        more = {i for i, way in enumerate(routes) if i not in found and reached & set(way)}
        if not more:
            return sorted(found)
        found |= more
        reached |= {r for i in more for r in routes[i]}


def add_up(values: Iterable[float]) -> float:
    """Their sum, one after the other (``sum`` of Python compensates): where flows tie, the last bit decides."""
    total = 0.0
    for value in values:
        total += value
    return total


def fill(asked: Sequence[tuple[float, int]], capacity: float) -> float:
    """Max–min level at which these (what each asks, how many) fill ``capacity``; infinity if they ask for less."""
    level, before = 0.0, None
    while True:
        left, sharing = capacity, 0
        for each, weight in asked:
            if each <= level:
                left -= each * weight
            else:
                sharing += weight
        if not sharing:
            return inf
        if sharing == before:
            return level
        level, before = max(level, left / sharing), sharing


class PortFair:
    """One component: ``weights[i]`` flows over ``routes[i]``; ``rates`` are those of each flow."""

    def __init__(
        self,
        routes: Sequence[Way],
        weights: Sequence[int],
        capacity: Mapping[Name, float],
        order: Sequence[Name],
        apart: Callable[[Name], bool],
    ) -> None:
        self.routes, self.weights, self.capacity, self.flows = routes, weights, capacity, range(len(routes))
        used = {r for way in routes for r in way}
        self.links = [r for r in order if r in used]
        self.stores = sorted(r for r in used if apart(r))
        # Input ports of a link: (link, link before it, or None for the die itself), with the flows that enter by them.
        self.ports: dict[Name, dict[Name | None, list[int]]] = {link: {} for link in self.links}
        for i, way in enumerate(routes):
            before = None
            for r in way:
                if not apart(r):
                    self.ports[r].setdefault(before, []).append(i)
                    before = r
        self.ports = {
            link: dict(sorted(ports.items(), key=lambda port: port[0] or ())) for link, ports in self.ports.items()
        }
        self.limit = {r: capacity[r] for r in used}
        self.rate = [0.0] * len(routes)
        self.source = [0.0] * len(routes)
        self.asked: dict[tuple[Name, Name | None], float] = {}
        self.granted: dict[tuple[Name, Name | None], float] = {}

    def rates(self) -> list[float]:
        for _ in range(MAX_SWEEPS):
            self.forward()
            if max(self.backward(), self.fill_stores()) <= SETTLED:
                break
        self.forward()
        for r in self.stores:
            total = self.taken(self.through(r))
            if total > self.capacity[r]:
                self.slow_down(self.through(r), self.capacity[r] / total)
        return self.rate

    def taken(self, flows: Iterable[int]) -> float:
        return add_up(self.rate[i] * self.weights[i] for i in flows)

    def through(self, r: Name) -> list[int]:
        return [i for i in self.flows if r in self.routes[i]]

    def slow_down(self, flows: Iterable[int], factor: float) -> None:
        for i in flows:
            self.rate[i] *= factor

    def forward(self) -> None:
        """Rates from limits, in travelling order."""
        for i in self.flows:
            self.source[i] = min((self.limit[r] for r in self.routes[i] if r in self.stores), default=inf)
            self.rate[i] = self.source[i]
        for link in self.links:
            ports = self.ports[link]
            for before, flows in ports.items():
                self.asked[link, before] = self.taken(flows)
            level = fill([(self.asked[link, before], 1) for before in ports], self.limit[link])
            for before, flows in ports.items():
                asked = self.asked[link, before]
                self.granted[link, before] = min(asked, level)
                if asked <= level:
                    continue
                if before is None:  # the die's own flows are queued apart
                    most = fill([(self.source[i], self.weights[i]) for i in flows], level)
                    for i in flows:
                        self.rate[i] = min(self.source[i], most)
                else:
                    self.slow_down(flows, level / asked)

    def backward(self) -> float:
        """Limits from shares, against the travelling order; the largest move in parts of a capacity."""
        moved = 0.0
        for link in reversed(self.links):
            total = add_up(self.granted[link, before] for before in self.ports[link])
            new = self.capacity[link]
            for after in self.links:
                if link in self.ports[after] and self.asked[after, link] > 0.0:
                    asked = [(inf if before == link else self.asked[after, before], 1) for before in self.ports[after]]
                    new = min(new, fill(asked, self.limit[after]) * (total / self.asked[after, link]))
            moved = max(moved, self.damp(link, new))
        return moved

    def fill_stores(self) -> float:
        """Levels of HBMs: a flow that something else slows asks for its rate, any other for all."""
        moved = 0.0
        for r in self.stores:
            asked = [(self.rate[i] if self.rate[i] < self.limit[r] else inf, self.weights[i]) for i in self.through(r)]
            moved = max(moved, self.damp(r, min(self.capacity[r], fill(asked, self.capacity[r]))))
        return moved

    def damp(self, r: Name, new: float) -> float:
        move = (1 - KEPT) * (new - self.limit[r])
        self.limit[r] += move
        return abs(move) / self.capacity[r]


class SharedInTurns(Shared):
    """``contention: shared``, ``arbitration: round_robin``."""

    def __init__(self, machine: Machine, *of_step: Any, **parts: Any) -> None:
        super().__init__(machine, *of_step, **parts)
        before: dict[Name, set[Name]] = {}
        for src in range(machine.dies):
            for dst in range(machine.dies):
                links = route(machine, src, dst)
                for link in links[:1]:
                    before.setdefault(link, set())
                for link, earlier in zip(links[1:], links, strict=False):
                    before.setdefault(link, set()).add(earlier)
        self.order = list(TopologicalSorter(before).static_order())

    def rates(self, routes: Sequence[Way], capacity: Mapping[Name, float]) -> list[tuple[float, Name | None]]:
        """Only flows that what has changed can reach get new rates: those of others stay as they were found."""
        groups = Counter(self.group(flow) for flow in self.flows)
        names = sorted(groups)
        ways = {self.group(flow): flow.route for flow in self.flows}
        rates = {self.group(flow): flow.rate for flow in self.flows}
        found = [names[i] for i in touched_flows([ways[name] for name in names], self.changed)]
        solver = PortFair(
            [ways[name] for name in found],
            [groups[name] for name in found],
            capacity,
            self.order,
            lambda name: name[0] == "hbm",
        )
        rates |= dict(zip(found, solver.rates(), strict=True))
        left = dict(capacity)
        for name, n in groups.items():
            for resource in ways[name]:
                left[resource] -= rates[name] * n
        full = {resource for resource in left if left[resource] <= UNSATURATED * capacity[resource]}
        return [(rates[self.group(flow)], self.limit(flow.route, full)) for flow in self.flows]

    def limit(self, way: Way, full: Collection[Name]) -> Name | None:
        """A saturated link of the way, else a saturated HBM, else None."""
        return max((resource for resource in way if resource in full), default=None)

    def group(self, flow: Flow) -> tuple[int, int, int]:
        """Flows over the same row of resources: (kind, source, target)."""
        state, item = flow.stage.state, flow.stage.item
        if state == State.ACT_MOVE:
            return 3, self.move(item).src, self.move(item).dst
        if state == State.DATA:
            return 1 + (flow.stage.before.state == State.REMOTE_LLC), self.entry(item).home, self.entry(item).die
        return 0, flow.route[0][1], 0

"""Max–min fairness the slow and obvious way: raise all rates, fix those at the tightest resource, repeat."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Any, Protocol, TypeVar

from archsim.base.sums import sum


class Ordered(Hashable, Protocol):
    """Names of resources have an order."""

    def __lt__(self, other: Any, /) -> bool: ...


Resource = TypeVar("Resource", bound=Ordered)


def fair_rates(routes: Sequence[Sequence[Resource]], capacity: Mapping[Resource, float]) -> list[float]:
    """Rates of flows over ``routes`` (names of resources, which have an order)."""
    rates, _ = max_min([tuple(way) for way in routes], capacity)
    return [rates[tuple(way)] for way in routes]


def max_min(
    routes: Sequence[tuple[Resource, ...]], capacity: Mapping[Resource, float]
) -> tuple[dict[tuple[Resource, ...], float], dict[tuple[Resource, ...], Resource]]:
    """(rate of each flow of a route, the resource that limits it). Without resources: infinity.

    Of several tightest resources the largest name counts; for a route that shares none, the last on its way.
    """
    flows, users = Counter(routes), defaultdict(list)
    for way in flows:
        for resource in way:
            users[resource].append(way)
    left = {resource: capacity[resource] for resource in users}
    waiting = {resource: sum(flows[way] for way in users[resource]) for resource in users}
    rates: dict[tuple[Resource, ...], float] = {way: inf for way in flows if not way}
    limits: dict[tuple[Resource, ...], Resource] = {}
    level = 0.0
    while any(waiting.values()):
        share = {resource: max(level, left[resource] / n) for resource, n in waiting.items() if n}
        level = min(share.values())
        fixed = []
        for resource in [resource for resource in share if share[resource] == level]:
            for way in users[resource]:
                if way in rates and way not in fixed:
                    continue
                if way not in rates:
                    rates[way], limits[way] = level, resource
                    fixed.append(way)
                limits[way] = max(limits[way], resource)
        gone: Counter = Counter()
        for way in fixed:
            for resource in way:
                gone[resource] += flows[way]
        for resource, n in gone.items():
            left[resource] -= level * n
            waiting[resource] -= n
    for way, rate in rates.items():
        if way and all(len(users[resource]) == 1 for resource in way):
            limits[way] = [r for r in way if capacity[r] / flows[way] == rate][-1]
    return rates, limits

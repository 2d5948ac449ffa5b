"""Max–min fairness the slow and obvious way: raise all rates, fix those at the tightest resource, repeat."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import inf

Route = tuple[Hashable, ...]


def fair_rates(routes: Sequence[Sequence[Hashable]], capacity: Mapping[Hashable, float]) -> list[float]:
    """Rates of flows over ``routes`` (names of resources, which have an order)."""
    rates, _ = max_min([tuple(route) for route in routes], capacity)
    return [rates[tuple(route)] for route in routes]


def max_min(
    routes: Sequence[Route], capacity: Mapping[Hashable, float]
) -> tuple[dict[Route, float], dict[Route, Hashable]]:
    """(rate of each flow of a route, the resource that limits it). Without resources: infinity.

    Of several tightest resources the largest name counts; for a route that shares none, the last on its way.
    """
    flows, users = Counter(routes), defaultdict(list)
    for route in flows:
        for resource in route:
            users[resource].append(route)
    left = {resource: capacity[resource] for resource in users}
    waiting = {resource: sum(flows[route] for route in users[resource]) for resource in users}
    rates: dict[Route, float] = {route: inf for route in flows if not route}
    limits: dict[Route, Hashable] = {}
    level = 0.0
    while any(waiting.values()):
        share = {resource: max(level, left[resource] / n) for resource, n in waiting.items() if n}
        level = min(share.values())
        fixed = []
        for resource in [resource for resource in share if share[resource] == level]:
            for route in users[resource]:
                if route in rates and route not in fixed:
                    continue
                if route not in rates:
                    rates[route], limits[route] = level, resource
                    fixed.append(route)
                limits[route] = max(limits[route], resource)
        gone: Counter = Counter()
        for route in fixed:
            for resource in route:
                gone[resource] += flows[route]
        for resource, n in gone.items():
            left[resource] -= level * n
            waiting[resource] -= n
    for route, rate in rates.items():
        if route and all(len(users[resource]) == 1 for resource in route):
            limits[route] = [r for r in route if capacity[r] / flows[route] == rate][-1]
    return rates, limits

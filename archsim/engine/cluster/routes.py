"""Bytes of flows on the links of their routes, and what a phase waits for on them."""

import numpy as np

from archsim.base.kernels import kernel
from microarch.fabric.fabric import Fabric


def link_bytes(fabric: Fabric, flows: np.ndarray) -> np.ndarray:
    """float64[link]: bytes of ``flows: float64[source, target]`` over each link."""
    found = np.zeros(fabric.links)
    _add(np.ascontiguousarray(flows, dtype=np.float64), fabric.route_ptr, fabric.route_links, found)
    return found


def slowest_link(fabric: Fabric, flows: np.ndarray, busy_ns: np.ndarray) -> np.ndarray:
    """float64[die]: the longest that a die waits for a flow: latency of its route, and its busiest link."""
    found = np.zeros(fabric.dies)
    flows = np.ascontiguousarray(flows, dtype=np.float64)
    _wait(flows, fabric.route_ptr, fabric.route_links, fabric.pair_ns, busy_ns, found)
    return found


@kernel
def _add(flows, route_ptr, route_links, found):
    dies = len(flows)
    for source in range(dies):
        for target in range(dies):
            if flows[source, target] > 0.0:
                pair = source * dies + target
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    found[route_links[at]] += flows[source, target]


@kernel
def _wait(flows, route_ptr, route_links, pair_ns, busy_ns, found):
    dies = len(flows)
    for source in range(dies):
        for target in range(dies):
            if flows[source, target] > 0.0:
                pair, longest = source * dies + target, 0.0
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    longest = max(longest, busy_ns[route_links[at]])
                found[target] = max(found[target], pair_ns[source, target] + longest)

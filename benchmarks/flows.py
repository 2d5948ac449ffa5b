"""Cost of one recompute of all rates: ``python benchmarks/flows.py``.

Random pairs on an 8 × 8 mesh, so that nearly all flows are one connected component. One recompute = one flow leaves
or enters, and the affected rates are solved. The oracle is the interpreter's, in plain Python.
"""

import time

import numpy as np
from numba import njit

from archsim.engine.flows.max_min import fair_rates
from archsim.engine.flows.network import enter, leave
from archsim.engine.flows.port_fair import round_robin_rates
from archsim.engine.flows.ports import build_ports
from archsim.engine.flows.simulation import _network, _port_rank
from archsim.engine.interpreted.max_min import fair_rates as oracle_rates
from microarch.fabric.grid import build_mesh

MESH = build_mesh(8, 8)


@njit
def _recompute(net, ports, solve, flows, times):
    """Take each flow out in turn, solve, put it back and solve; returns the mean number of groups solved."""
    solved = 0
    for i in range(times // 2):
        leave(net, flows[i % len(flows)])
        solved += solve(net, ports)
        enter(net, flows[i % len(flows)])
        solved += solve(net, ports)
    return solved / times


def _fill(n):
    """A network of all pairs with n random active flows, its ports, the flows' groups and their routes."""
    pairs = np.array([s * MESH.dies + d for s in range(MESH.dies) for d in range(MESH.dies) if s != d])
    net, rank = _network(MESH, pairs, np.ones(MESH.links), np.inf), _port_rank(MESH, np.inf)
    flows = np.random.default_rng(n).integers(0, len(pairs), n)
    for group in flows:
        enter(net, group)
    return net, build_ports(net, rank), flows, [MESH.route(*divmod(int(pairs[g]), MESH.dies)).tolist() for g in flows]


def main():
    for n in (64, 600):
        net, ports, flows, routes = _fill(n)
        started = time.perf_counter()
        oracle_rates(routes, net.resources["capacity"].tolist())
        oracle_us = (time.perf_counter() - started) * 1e6
        for arbitration, solve, needs in (("fair", fair_rates, ()), ("round_robin", round_robin_rates, ports)):
            _recompute(net, needs, solve, flows, 10)
            times = 50_000 // n
            started = time.perf_counter()
            solved = _recompute(net, needs, solve, flows, times)
            us = (time.perf_counter() - started) * 1e6 / times
            print(
                f"{n:4d} flows, {arbitration:11s}: {us:8.1f} us per recompute of {solved:.0f} groups"
                + (f", oracle {oracle_us:.0f} us (x {oracle_us / us:.0f})" if arbitration == "fair" else "")
            )


if __name__ == "__main__":
    main()

"""Fabrics with holes: routes end, use what works, and never wait for each other in a cycle on a virtual channel."""

import networkx as nx
import numpy as np
import pytest

from archsim.base.errors import SpecError
from archsim.engine.machine import _as_built, build_fabric, what_is_left
from archsim.specs.library import load_experiment


def system(like="dojo", **keys):
    return load_experiment({
        "name": "as_built", "systems": [{"like": like, "name": "wafer"} | keys], "models": ["deepseek-v3"],
        "workload": {"trace": {"synthetic": {}}, "batch": [64], "context": 376}, "policies": ["ep"],
    }).systems[0]  # fmt: skip


MACHINES = {
    "a dead die": ("dojo", {"dies_as_built": {"dead": [7]}}),
    "a dead block": ("dojo", {"dies_as_built": {"dead": [7, 8, 12]}}),
    "a router that passes": ("dojo", {"dies_as_built": {"dead": [7, 8, 12], "router": "bypass"}}),
    "dead links": ("dojo", {"links_as_built": {"dead": [[7, 8], [12, 17], [0, 1]]}}),
    "a spare row": ("dojo", {"spares": {"rows": 1}, "dies_as_built": {"dead": [7]}}),
    "a spare column": ("dojo", {"spares": {"columns": 1}, "dies_as_built": {"dead": [7, 11]}}),
    "a torus": ("dojo", {"topology": "torus", "dies_as_built": {"dead": [7]}}),
    "a ring": ("dojo", {"topology": "ring", "dies_as_built": {"dead": [7]}}),
    "levels": ("h100_cluster", {"dies_as_built": {"dead": [3]}}),
    "wafers": ("dojo_x4", {"dies_as_built": {"dead": [24, 30]}}),
    "drawn links": ("dojo", {"drawn": {"link_failure": "8 %", "wafers": 9, "wafer": 5}}),
}


@pytest.mark.parametrize("name", MACHINES)
def test_routes_of_no_channel_wait_in_a_cycle(name):
    like, keys = MACHINES[name]
    found, _ = _as_built(system(like, **keys))
    graph, waits = found.graph, [nx.DiGraph() for _ in range(found.channels)]
    for pair in range(graph.dies**2):
        route = graph.route_links[graph.route_ptr[pair] : graph.route_ptr[pair + 1]].tolist()
        here = pair // graph.dies
        for link in route:
            assert graph.link_src[link] == here
            here = int(graph.link_dst[link])
        assert here == pair % graph.dies and len(set(route)) == len(route)
        nx.add_path(waits[int(found.layer[pair])], route)
    assert all(nx.is_directed_acyclic_graph(each) for each in waits)


def test_routes_that_survive_stay_and_others_are_shortest():
    spec = system(dies_as_built={"dead": [12]})
    fabric, perfect = build_fabric(spec, "row_major"), build_fabric(system(), "row_major")
    sites = np.array(spec.built.living)
    left = nx.grid_2d_graph(5, 5)
    left.remove_node((2, 2))
    for a, b in np.ndindex(24, 24):
        one, other = sites[a], sites[b]
        passed = [int(perfect.link_dst[link]) for link in perfect.route(one, other)]
        new = [int(sites[fabric.link_dst[link]]) for link in fabric.route(a, b)]
        if 12 in passed:
            assert len(new) == nx.shortest_path_length(left, (one % 5, one // 5), (other % 5, other // 5))
        else:
            assert new == passed


def test_what_is_left_of_a_mesh():
    assert what_is_left(system()) is None
    found = what_is_left(system(dies_as_built={"dead": [12]}))
    assert (found.dies, found.sites, found.perfect_channels) == (24, 25, 1)
    assert found.channels > 1 and found.most_detour == 2.0 and 1 < found.mean_detour < 1.1
    half = what_is_left(system(links_as_built={"degraded": [{"link": [12, 13], "bandwidth": "50 %"}]}))
    assert half.mean_detour == 1.0 and half.bisection == pytest.approx(0.9)


def test_a_degraded_link_and_a_long_one_cost_what_they_are():
    slow = build_fabric(system(links_as_built={"degraded": [{"link": [3, 4], "bandwidth": "50 %"}]}), "row_major")
    link = int(np.flatnonzero((slow.link_src == 3) & (slow.link_dst == 4))[0])
    assert slow.link_bytes_per_ns[link] == slow.link_bytes_per_ns.max() / 2
    moved = build_fabric(system(spares={"rows": 1}, dies_as_built={"dead": [7]}), "row_major")
    link = int(np.flatnonzero((moved.link_src == 2) & (moved.link_dst == 7))[0])  # sites 2 and 12
    assert moved.link_ns[link] == 2 * moved.link_ns.min()


def test_a_bypassed_router_is_a_hop():
    fabric = build_fabric(system(dies_as_built={"dead": [12], "router": "bypass"}), "row_major")
    assert fabric.dies == 24 and fabric.nodes == 25 and fabric.hops.max() == 8
    assert fabric.hops[11, 12] == 2  # sites 11 and 13


def test_a_column_major_machine_as_built_is_refused():
    with pytest.raises(SpecError, match="numbering: row_major"):
        build_fabric(system(dies_as_built={"dead": [7]}), "column_major")


def test_a_link_that_levels_lack_is_refused():
    with pytest.raises(SpecError, match="no link between dies 0 and 1"):
        build_fabric(system("h100_cluster", links_as_built={"dead": [[0, 1]]}), "row_major")

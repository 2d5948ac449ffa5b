"""From a system to its fabric: the graph of dies and links, and the rate and latency of each link class."""

import networkx as nx
import pytest

from archsim.engine.fabrics import _as_built
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

"""Links of all routes by formula are those of the fabric that is built."""

import pytest

from microarch.fabric.extent import MEAN_LINKS, route_links, route_links_of_levels
from microarch.fabric.levels import Level, build_levels
from microarch.fabric.topology import BUILDERS, Edge, build_topology


@pytest.mark.parametrize("sides", [(1, 1), (2, 1), (5, 5), (4, 7), (6, 3)])
@pytest.mark.parametrize("kind", MEAN_LINKS)
def test_the_formula_counts_the_links_of_all_routes(kind, sides):
    graph = build_topology(kind, *sides, "row_major")
    assert round(route_links(kind, *sides)) == len(graph.route_links)


def test_every_named_topology_but_listed_edges_has_a_formula():
    assert set(BUILDERS) - set(MEAN_LINKS) == {"edges"}
    edges = tuple(Edge(die, die + 1, 1.0) for die in range(5))
    assert 0 < route_links("edges", 6, 1) <= len(build_topology("edges", 6, 1, "row_major", edges).route_links)


@pytest.mark.parametrize("levels", [
    (Level("switch", (8, 1)), Level("switch", (4, 1), "gpu")),
    (Level("mesh", (3, 2)), Level("switch", (4, 1), "group")),
    (Level("mesh", (3, 2)), Level("mesh", (2, 3), "edge")),
    (Level("fully_connected", (4, 1)), Level("ring", (3, 1), "group"), Level("switch", (2, 1), "gpu")),
])
def test_so_do_those_of_levels(levels):
    assert round(route_links_of_levels(levels)) == len(build_levels(levels).route_links)

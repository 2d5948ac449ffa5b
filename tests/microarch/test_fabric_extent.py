"""Links, and those of all routes, by formula are those of the fabric that is built."""

import pytest

from microarch.fabric.topology import (
    BUILDERS,
    EDGES,
    MEAN_LINKS,
    Edge,
    Extent,
    Level,
    build_levels,
    build_topology,
    extent,
    extent_of_levels,
)


def counted(found):
    return found._replace(route_links=round(found.route_links))


@pytest.mark.parametrize("sides", [(1, 1), (2, 1), (2, 2), (5, 5), (4, 7), (6, 3)])
@pytest.mark.parametrize("kind", MEAN_LINKS)
def test_the_formula_counts_links_and_those_of_all_routes(kind, sides):
    graph = build_topology(kind, *sides, "row_major")
    assert counted(extent(kind, *sides)) == Extent(graph.links, len(graph.route_links))


def test_every_named_topology_but_listed_edges_has_a_formula():
    assert set(BUILDERS) - set(MEAN_LINKS) == set(BUILDERS) - set(EDGES) == {"edges"}
    edges = tuple(Edge(die, die + 1, 1.0) for die in range(5))
    graph, least = build_topology("edges", 6, 1, "row_major", edges), extent("edges", 6, 1)
    assert 0 < least.links <= graph.links and 0 < least.route_links <= len(graph.route_links)


@pytest.mark.parametrize("levels", [
    (Level("switch", (8, 1)), Level("switch", (4, 1), "gpu")),
    (Level("mesh", (3, 2)), Level("switch", (4, 1), "group")),
    (Level("mesh", (3, 2)), Level("mesh", (2, 3), "edge")),
    (Level("mesh", (3, 2)), Level("torus", (2, 3), "edge")),
    (Level("fully_connected", (4, 1)), Level("ring", (3, 1), "group"), Level("switch", (2, 1), "gpu")),
])
def test_so_do_those_of_levels(levels):
    graph = build_levels(levels)
    assert counted(extent_of_levels(levels)) == Extent(graph.links, len(graph.route_links))

"""Laws of fabrics that are composed of levels or built by a user's function: routes, classes, costs of pairs."""

from math import prod
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.examples import examples

from archsim.base.errors import ArchsimError, SpecError
from archsim.engine.fabrics import build_fabric, what_is_left
from archsim.engine.flows.simulation import simulate_flows
from archsim.specs.library import load_experiment
from microarch.fabric.described import FabricDescription, build_own
from microarch.fabric.extent import EDGES, MEAN_LINKS, Extent, extent, extent_of_levels
from microarch.fabric.fabric import LinkClass, narrowest
from microarch.fabric.levels import Level, build_levels
from microarch.fabric.shortest_paths import shortest_paths
from microarch.fabric.topology import BUILDERS, Edge, build_topology

LINES = st.builds(
    lambda kind, size: (kind, (size, 1)), st.sampled_from(["switch", "ring", "fully_connected"]), st.integers(1, 4)
)
PLANES = st.builds(
    lambda kind, x, y: (kind, (x, y)), st.sampled_from(["mesh", "torus"]), st.integers(1, 3), st.integers(1, 3)
)
NETWORKS = LINES | PLANES
MOST_DIES = 64
law = settings(max_examples=examples(40))


@st.composite
def stacks(draw):
    """Up to three levels, of rails or shared ports."""
    levels = [Level(*draw(NETWORKS))]
    for _ in range(draw(st.integers(0, 2))):
        kind, sides = draw(NETWORKS)
        if prod(sides) * prod(level.members for level in levels) > MOST_DIES:
            break
        levels.append(Level(kind, sides, draw(st.sampled_from(["gpu", "group"]))))
    return tuple(levels)


SIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))
WAFERS = st.builds(
    lambda inner, kind, outer: (Level("mesh", inner), Level(kind, outer, "edge")),
    SIDES,
    st.sampled_from(["mesh", "torus"]),
    SIDES,
)
STACKS = stacks() | WAFERS


def fabric_of(levels, seed=0, slow=1.0):
    """The levels with bandwidths and latencies that differ."""
    rng = np.random.default_rng(seed)
    classes = [
        LinkClass(f"{i}", float(rng.integers(1, 9)) * 1e9 * slow, float(rng.integers(0, 9)))
        for i in range(2 * len(levels))
    ]
    return build_levels(levels).with_links("test", classes)


@law
@given(levels=STACKS)
def test_routes_connect_all_dies_without_a_loop(levels):
    graph = build_levels(levels)
    assert graph.dies == prod(level.members for level in levels)
    routes = [(src, dst, graph.route(src, dst)) for src in range(graph.dies) for dst in range(graph.dies)]
    assert len(routes) == graph.dies**2
    for src, dst, route in routes:
        stops = [src, *graph.link_dst[route].tolist()]
        assert stops[:-1] == graph.link_src[route].tolist() and stops[-1] == dst
        assert len(set(stops)) == len(stops)
        assert graph.hops[src, dst] == sum(stop < graph.dies for stop in stops[1:])


@law
@given(levels=STACKS)
def test_hops_are_the_same_both_ways_and_links_too(levels):
    graph = build_levels(levels)
    assert np.array_equal(graph.hops, graph.hops.T)
    links = {
        (s, d): (e, c)
        for s, d, e, c in zip(graph.link_src, graph.link_dst, graph.link_edge, graph.link_class, strict=True)
    }
    assert len(links) == graph.links == 2 * graph.edges
    assert all(links[d, s] == own for (s, d), own in links.items())


@law
@given(levels=STACKS, seed=st.integers(0, 99))
def test_costs_of_pairs_are_those_of_their_routes(levels, seed):
    fabric = fabric_of(levels, seed)
    costs = [
        (fabric.link_ns[route].sum(), fabric.link_bytes_per_ns[route].min(initial=np.inf))
        for src in range(fabric.dies)
        for dst in range(fabric.dies)
        if (route := fabric.route(src, dst)) is not None
    ]
    assert fabric.pair_ns.ravel() == pytest.approx([ns for ns, _ in costs])
    assert np.array_equal(narrowest(fabric, fabric.link_bytes_per_ns, here=np.inf).ravel(), [rate for _, rate in costs])


@law
@given(levels=STACKS)
def test_a_message_takes_links_of_the_levels_at_which_its_ends_differ(levels):
    """Between groups of level i nothing above level i is used, and something of level i is."""
    graph = build_levels(levels)
    sizes = np.cumprod([level.members for level in levels])
    pairs = [(src, dst) for src in range(graph.dies) for dst in range(graph.dies) if src != dst]
    assume(pairs)
    assert len(pairs) == graph.dies * (graph.dies - 1)
    for src, dst in pairs:
        highest = int(np.argmax(src // sizes == dst // sizes))  # the first level within which both lie
        used = set((graph.link_class[graph.route(src, dst)] % len(levels)).tolist())
        assert max(used) == highest


def test_one_level_is_the_topology_of_that_name():
    for kind, x, y in (("switch", 5, 1), ("ring", 6, 1), ("fully_connected", 4, 1), ("mesh", 3, 4), ("torus", 4, 3)):
        one, named = build_levels((Level(kind, (x, y)),)), build_topology(kind, x, y, "row_major")
        for array in ("hops", "link_src", "link_dst", "link_edge", "route_ptr", "route_links"):
            assert np.array_equal(getattr(one, array), getattr(named, array)), (kind, array)


@pytest.mark.parametrize(
    ("name", "sides", "busiest", "mesh"),
    # A ring of 8: distances 1, 2 and 3 give 6 ways of a link, half-way pairs 8 x 4 over 16 links give 2.
    [("ring", (8, 1), 8, None), ("torus", (4, 4), 8, 16), ("torus", (8, 4), 32, 64), ("torus_x", (4, 3), 8, None),
     ("ring", (4, 1), 2, None), ("torus", (5, 5), 15, 30)],
)  # fmt: skip
def test_uniform_traffic_loads_all_links_of_a_ring_equally(name, sides, busiest, mesh):
    """One vector from every die to every other: half-way pairs take both ways round alike."""

    def loads(kind):
        graph = build_topology(kind, *sides, "row_major")
        found = np.zeros(graph.links)
        for source in range(graph.dies):
            for target in range(graph.dies):
                for link in graph.route(source, target):
                    found[link] += 1
        return found

    found = loads(name)
    if sides[0] == sides[1] or name == "ring":
        assert found.min() == found.max()
    assert found.max() == busiest  # of torus_x: along y, a mesh's
    if mesh is not None:
        assert loads("mesh").max() == mesh


@pytest.mark.parametrize("kind", ["torus", "torus_x", "torus_y"])
def test_no_routes_of_a_torus_load_its_busiest_link_less(kind):
    """Uniform traffic between bands of neighbouring lines must cross their edges, however it is routed."""
    for x in (1, 2, 3, 4, 5, 6, 8, 10):
        for y in (1, 2, 3, 4, 6, 7, 10):
            graph = build_topology(kind, x, y, "row_major")
            busiest, least = np.bincount(graph.route_links, minlength=1).max(), 0
            for place, side in ((graph.x_of, x), (graph.y_of, y)):
                for begin in range(side):
                    for size in range(1, side):
                        band = (place - begin) % side < size
                        cut = int((band[graph.link_src] & ~band[graph.link_dst]).sum())
                        least = max(least, -(-int(band.sum() * (~band).sum()) // cut))
            assert busiest == least or x * y == 1, (x, y)


@pytest.mark.parametrize("per", ["gpu", "group"])
@pytest.mark.parametrize("sides", [(2, 6), (4, 6), (6, 6)])
def test_a_torus_in_a_hierarchy_is_as_balanced_as_alone(sides, per):
    """Inside groups, and between them: every die of two sends to both of each other group, over rails or ports."""
    alone = np.bincount(build_levels((Level("torus", sides),)).route_links).max()
    torus, pair = Level("torus", sides, per), Level("switch", (2, 1), per)
    inner, outer = build_levels((torus, pair)), build_levels((pair, torus))
    dies = prod(sides)
    within = [inner.route(a, b) for a in range(2 * dies) for b in range(2 * dies) if a // dies == b // dies]
    assert np.bincount(np.concatenate(within)).max() == alone
    of_torus = np.bincount(outer.route_links, minlength=outer.links)[outer.link_class == 1]
    assert of_torus.max() == (2 if per == "gpu" else 4) * alone


def test_rails_are_reached_inside_the_own_group_first():
    """Two nodes of four GPUs: 1 of node 0 to 3 of node 1 goes over the node's switch to 3, then over rail 3."""
    graph = build_levels((Level("switch", (4, 1)), Level("switch", (2, 1), "gpu")))
    assert (graph.dies, graph.nodes) == (8, 8 + 2 + 4)
    assert graph.link_dst[graph.route(1, 7)].tolist() == [8, 3, 13, 7]
    assert graph.link_class[graph.route(1, 7)].tolist() == [0, 0, 1, 1]
    assert graph.hops[1, 7] == 2 and graph.hops[3, 7] == 1


def test_a_shared_port_is_passed_by_everything_that_leaves_the_group():
    graph = build_levels((Level("switch", (4, 1)), Level("switch", (2, 1), "group")))
    port = graph.dies + 2
    leaving = [graph.link_dst[graph.route(src, dst)].tolist() for src in range(4) for dst in range(4, 8)]
    assert len(leaving) == 16 and {tuple(stops[:3]) for stops in leaving} == {(port, port + 2, port + 1)}
    inside = [graph.link_class[graph.route(src, dst)].tolist() for src in range(4) for dst in range(4) if src != dst]
    assert inside == [[0, 0]] * 12


def test_wafers_that_meet_at_their_edges_are_one_large_mesh():
    """Two by one wafers of 3 x 2: columns 2 and 3 are linked by the outer level, and XY routes go straight through."""
    graph = build_levels((Level("mesh", (3, 2)), Level("mesh", (2, 1), "edge")))
    whole = build_topology("mesh", 6, 2, "row_major")
    number = np.array([x + 6 * y for x, y in zip(graph.x_of.tolist(), graph.y_of.tolist(), strict=True)])
    assert np.array_equal(graph.hops, whole.hops[np.ix_(number, number)])
    crossing = {
        (int(graph.x_of[s]), int(graph.x_of[d]))
        for s, d in zip(graph.link_src[graph.link_class == 1], graph.link_dst[graph.link_class == 1], strict=True)
    }
    assert crossing == {(2, 3), (3, 2)}


def test_levels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="level 1: per 'rail': expected one of gpu, group, edge"):
        build_levels((Level("switch", (4, 1)), Level("switch", (2, 1), "rail")))
    with pytest.raises(ValueError, match="only a mesh or torus of meshes"):
        build_levels((Level("ring", (4, 1)), Level("mesh", (2, 1), "edge")))
    with pytest.raises(ValueError, match="level kind 'star'"):
        build_levels((Level("star", (4, 1)),))


def test_512_gpus_are_built_in_one_piece():
    graph = build_levels((Level("switch", (8, 1)), Level("switch", (64, 1), "gpu")))
    assert (graph.dies, graph.nodes, graph.links) == (512, 512 + 64 + 8, 2 * 2 * 512)
    held = sum(each.nbytes for each in vars(graph).values() if isinstance(each, np.ndarray))
    assert held < 16e6
    assert set(np.diff(graph.route_ptr).tolist()) == {0, 2, 4}


@law
@given(levels=STACKS, seed=st.integers(0, 99))
def test_twice_the_bandwidth_of_a_level_never_makes_one_transfer_slower(levels, seed):
    """All flows where every level has twice as much; of one level only lone flows and one route: sharing is not
    monotonic.
    """
    slow, fast = fabric_of(levels, seed), fabric_of(levels, seed, slow=2.0)
    rng = np.random.default_rng(seed)
    flows = [
        (*rng.integers(0, slow.dies, 2), float(rng.integers(1, 999)), float(rng.integers(0, 50))) for _ in range(12)
    ]
    zero = [(src, dst, size, 0.0) for src, dst, size, _ in flows]
    assert (simulate_flows(fast, zero) <= simulate_flows(slow, zero) * (1 + 1e-9)).all()
    for level in range(len(levels)):
        own = [
            each._replace(bandwidth_bytes_per_s=2 * each.bandwidth_bytes_per_s)
            if number % len(levels) == level
            else each
            for number, each in enumerate(slow.classes)
        ]
        wider = slow.with_links("test", own)
        for flow in flows:
            assert simulate_flows(wider, [flow]) <= simulate_flows(slow, [flow])
        # The last of a fixed set that starts together and shares one route.
        same = [(flows[0][0], flows[0][1], size, 0.0) for _, _, size, _ in flows]
        assert simulate_flows(wider, same).max() <= simulate_flows(slow, same).max() * (1 + 1e-9)


def test_flows_take_the_bandwidth_and_latency_of_their_links():
    """Four transfers out of a node share its port of 2 bytes/ns; inside the node each has 8."""
    levels = (Level("switch", (4, 1)), Level("switch", (2, 1), "group"))
    classes = [
        LinkClass("inside", 8e9, 10.0),
        LinkClass("between", 2e9, 100.0),
        LinkClass("", 8e9, 0.0),
        LinkClass("port", 2e9, 0.0),
    ]
    fabric = build_levels(levels).with_links("node", classes)
    assert simulate_flows(fabric, [(0, 1, 800, 0)]).tolist() == [2 * 10 + 100]
    together = simulate_flows(fabric, [(die, 4 + die, 800, 0) for die in range(4)])
    assert together.tolist() == pytest.approx([2 * 100 + 4 * 400] * 4)
    assert simulate_flows(fabric, [(0, 4, 800, 0)], 1e9, 1.0).tolist() == [4 * 1 + 800], (
        "given values replace the fabric's"
    )
    with pytest.raises(ValueError, match="link_bytes_per_s is missing"):
        simulate_flows(build_levels(levels), [(0, 4, 800, 0)])
    with pytest.raises(ValueError, match="cycle"):
        simulate_flows(build_levels((Level("ring", (5, 1)),)), [(0, 2, 9, 0)], 1e9, 1.0, arbitration="round_robin")


# Shortest paths, and users' own builders


@law
@given(nodes=st.integers(1, 12), seed=st.integers(0, 999))
def test_shortest_paths_are_shortest(nodes, seed):
    """By links, then latency, as Floyd and Warshall find them over both."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(0, node)), node) for node in range(1, nodes)}
    pairs |= {tuple(sorted(rng.choice(nodes, 2, replace=False).tolist())) for _ in range(nodes) if nodes > 1}
    edges = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    latency = rng.integers(1, 4, len(edges)).astype(float)
    cost = np.full((nodes, nodes), 1e9)
    np.fill_diagonal(cost, 0.0)
    for (a, b), ns in zip(edges.tolist(), latency.tolist(), strict=True):
        cost[a, b] = cost[b, a] = 1e4 + ns
    direct = cost.copy()
    for middle in range(nodes):
        cost = np.minimum(cost, cost[:, middle, None] + cost[middle])
    following = shortest_paths(nodes, nodes, edges, latency)
    here, target = np.nonzero(~np.eye(nodes, dtype=bool))
    after = following[here, target]
    assert np.array_equal(direct[here, after] + cost[after, target], cost[here, target])
    lowest = [
        min(n for n in range(nodes) if n != h and direct[h, n] + cost[n, t] == cost[h, t])
        for h, t in zip(here, target, strict=True)
    ]
    assert after.tolist() == lowest


class Mine(NamedTuple):
    """Duck-typed: only the fields that are needed."""

    nodes: int
    edges: list
    classes: list


LINK = LinkClass("link", 1e9, 5.0)
CALLED = {}


def builder(dies, which="good", **more):
    """A user's function, of many kinds."""
    return CALLED[which](dies, **more)


CALLED |= {
    "good": lambda dies: Mine(dies, [(die, die + 1) for die in range(dies - 1)], [("line", 1e9, 5.0)]),
    "star": lambda dies, width=1: FabricDescription(
        dies + 1, [(die, dies) for die in range(dies)], [LINK], places=[*((die, 0) for die in range(dies)), (0, width)]
    ),
    "table": lambda dies: FabricDescription(
        3, [(0, 1), (1, 2), (0, 2)], [LINK, LINK._replace(latency_ns=9.0)], [0, 0, 1], [[0, 1, 1], [0, 1, 2], [1, 1, 2]]
    ),
    "apart": lambda dies: Mine(dies, [(0, 1)], [LINK]),
    "outside": lambda dies: Mine(dies, [(0, 1), (1, dies)], [LINK]),
    "twice": lambda dies: Mine(dies, [(0, 1), (1, 2), (1, 0)], [LINK]),
    "loop": lambda dies: Mine(dies, [(0, 0)], [LINK]),
    "nothing": lambda dies: None,
    "few": lambda dies: Mine(2, [(0, 1)], [LINK]),
    "free": lambda dies: Mine(dies, [(0, 1), (1, 2)], [LinkClass("x", 0.0, 1.0)]),
    "early": lambda dies: Mine(dies, [(0, 1), (1, 2)], [LinkClass("x", 1.0, -1.0)]),
    "odd": lambda dies: Mine(dies, [(0, 1), (1, 2)], [7]),
    "none": lambda dies: Mine(dies, [(0, 1), (1, 2)], []),
    "unlinked": lambda dies: FabricDescription(
        3, [(0, 1), (1, 2)], [LINK], following=[[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    ),
    "round": lambda dies: FabricDescription(3, [(0, 1), (1, 2)], [LINK], following=[[0, 1, 1], [0, 1, 0], [1, 1, 2]]),
    "shape": lambda dies: FabricDescription(3, [(0, 1), (1, 2)], [LINK], following=[[0, 1], [0, 1]]),
    "class": lambda dies: FabricDescription(3, [(0, 1), (1, 2)], [LINK], edge_class=[0, 1]),
    "broken": lambda dies: 1 / 0,
}
OWN = f"{__name__}:builder"


def test_an_own_builder_gives_routes_or_shortest_paths_are_found():
    line, (only,) = build_own(OWN, 4, {})
    assert line.hops[0].tolist() == [0, 1, 2, 3] and only.name == "line" and line.node_x is None
    star, _ = build_own(OWN, 3, {"which": "star", "width": 2})
    assert star.hops[0].tolist() == [0, 1, 1] and star.node_y.tolist() == [0, 0, 0, 2]
    table, classes = build_own(OWN, 3, {"which": "table"})
    assert table.link_dst[table.route(0, 2)].tolist() == [1, 2] and table.link_dst[table.route(2, 0)].tolist() == [1, 0]
    assert table.with_links("mine", classes).pair_ns[0, 2] == 10.0


@pytest.mark.parametrize(("which", "problem"), [
    ("apart", "no route from die 2 to die 0"),
    ("outside", r"edges\[1, 1\]: 3; expected 0 to 2"),
    ("twice", r"edges\[0\]: nodes 0 and 1 are linked more than once; an edge is a link each way"),
    ("loop", r"edges\[0\]: links node 0 to itself"),
    ("nothing", "returns NoneType without 'nodes'"),
    ("few", "nodes 2: expected an integer of at least 3, the number of dies"),
    ("free", r"classes\[0\].bandwidth_bytes_per_s 0.0: expected a positive, finite number"),
    ("early", r"classes\[0\].latency_ns -1.0"),
    ("odd", r"classes\[0\]: expected microarch.fabric.fabric.LinkClass, not 7"),
    ("none", "classes: expected at least one class of links"),
    ("unlinked", "the route from die 0 to die 2 leads from node 0 to node 2, which no link connects"),
    ("round", "no route from die 0 to die 2"),
    ("shape", r"following: expected integers of shape \(3, 3\)"),
    ("class", r"edge_class\[1\]: 1; expected 0 to 0"),
    ("broken", "ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_what_is_no_fabric_is_refused_with_the_name_of_the_function(which, problem):
    with pytest.raises(ArchsimError, match=problem) as raised:
        build_own(OWN, 3, {"which": which})
    assert str(raised.value).startswith(f"{OWN}: ")


# Links, and those of all routes, by formula are those of the fabric that is built.


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
])  # fmt: skip
def test_so_do_those_of_levels(levels):
    graph = build_levels(levels)
    assert counted(extent_of_levels(levels)) == Extent(graph.links, len(graph.route_links))


# Fabrics with holes: routes end, use what works, and never wait for each other in a cycle on a virtual channel.


def system(like="dojo", **keys):
    return load_experiment({
        "name": "as_built", "systems": [{"like": like, "name": "wafer"} | keys], "models": ["deepseek-v3"],
        "workload": {"trace": {"synthetic": {}}, "batch": [64], "context": 376}, "policies": ["ep"],
    }).systems[0]  # fmt: skip


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
    port = {"degraded": [{"link": [0, "level 0"], "bandwidth": "50 %"}]}
    assert what_is_left(system("h100_node", links_as_built=port)).bisection is None  # no link joins the halves


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
    with pytest.raises(SpecError, match="no link between dies 0 and 7"):
        build_fabric(system("dojo_x4", links_as_built={"dead": [[0, 7]]}), "row_major")

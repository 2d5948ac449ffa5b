"""Laws of transfers that share a mesh, and the bars against a flit-level network simulator."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import flows_oracle
from support.examples import examples
from support.from_python import from_python

from archsim.engine.flows import max_min, network, port_fair
from archsim.engine.flows.link_order import xy_rank
from archsim.engine.flows.network import build_network
from archsim.engine.flows.ports import build_ports
from archsim.engine.flows.simulation import simulate_flows
from microarch.fabric.grid import build_mesh

GB_PER_S = 1e9  # one byte a ns
X, Y = 4, 3
enter, leave = from_python(network.enter), from_python(network.leave)
fair_rates, round_robin_rates = from_python(max_min.fair_rates), from_python(port_fair.round_robin_rates)
ARBITRATIONS = ("fair", "round_robin")
SETTLED = 2e-3  # how far round-robin rates may be from their fixed point

dies = st.integers(0, X * Y - 1)
flow_rows = st.tuples(dies, dies, st.integers(1, 5000), st.integers(0, 3000))
flow_lists = st.lists(flow_rows, min_size=1, max_size=14)
port_limits = st.sampled_from([None, 1.0, 0.75])


def finish(flows, arbitration="fair", mesh=(X, Y), link=1.0, hop_ns=20.0, port=None, contention="shared"):
    """`simulate_flows` with bandwidths in bytes/ns."""
    return simulate_flows(
        mesh,
        flows,
        link * GB_PER_S,
        hop_ns,
        contention=contention,
        arbitration=arbitration,
        die_port_bytes_per_s=None if port is None else port * GB_PER_S,
    )


def hops(src, dst):
    return abs(src % X - dst % X) + abs(src // X - dst // X)


@pytest.mark.parametrize(("arbitration", "policy", "duration_bar", "makespan_bar", "stated"), [
    ("fair", "fq_perflow", 0.02, 0.01, (0.05, 0.07)),
    ("round_robin", "rr_shared16", 0.05, 0.02, (0.14, 0.20)),
    ("head_of_line", "rr_shared16", 0.05, 0.02, (0.14, 0.20)),
    ("fair", "rr_shared16", math.inf, 0.05, (0.54, 0.69)),
])  # fmt: skip
def test_errors_against_flit_level_simulation(shared, arbitration, policy, duration_bar, makespan_bar, stated):
    """``stated``: P95 and P99 of the transfers of a set, as in docs/assumptions.md."""
    sets = json.loads((shared / "reference/contention/flows.json").read_text())
    assert sets
    errors, tails = [], []
    for case in sets:
        flows = [(f["src"], f["dst"], f["size_flits"], f["start"]) for f in case["flows"]]
        start = np.array([f["start"] for f in case["flows"]])
        port = 1.0 if case["local_ports"] == 1 else None
        ours = case["base_latency_cycles"] + finish(
            flows, arbitration, case["mesh"], hop_ns=case["hop_latency_cycles"], port=port
        )
        theirs = np.array(case["completion_cycles_by_policy"][policy], dtype=float)
        off = np.abs(ours - theirs) / (theirs - start)
        errors.append((np.mean(off), abs(ours.max() / theirs.max() - 1)))
        tails.append(np.percentile(off, (95, 99)))
    duration_error, makespan_error = np.mean(errors, axis=0)
    assert duration_error <= duration_bar
    assert makespan_error <= makespan_bar
    assert np.mean(tails, axis=0) == pytest.approx(stated, abs=0.005)


@pytest.mark.parametrize(
    ("contention", "arbitration"), [("shared", "fair"), ("shared", "round_robin"), ("reserved", "fair")]
)
@given(src=dies, dst=dies, size=st.floats(0, 1e9), start=st.floats(0, 1e9))
@settings(max_examples=examples(50))
def test_alone_takes_latency_and_size_over_bandwidth(contention, arbitration, src, dst, size, start):
    assume(src != dst)
    alone = finish([(src, dst, size, start)], arbitration, link=1.7, hop_ns=200, contention=contention)[0]
    assert alone == start + hops(src, dst) * 200 + size / (1.7 * GB_PER_S / 1e9)


@pytest.mark.parametrize("arbitration", ARBITRATIONS)
def test_strangers_do_not_disturb_a_transfer_at_all(arbitration):
    strangers = [(4 + i % 3, 7, 100 + 7 * i, 13.7 * i) for i in range(20)]
    assert finish([(0, 3, 1234.5, 0.1), *strangers], arbitration)[0] == 0.1 + 3 * 20.0 + 1234.5


def test_die_port_limits_a_transfer():
    assert finish([(0, 3, 1000, 5)], port=0.5)[0] == 5 + 60 + 2000
    assert finish([(0, 3, 1000, 5)], port=0.5, contention="reserved")[0] == 5 + 60 + 2000
    assert finish([(0, 3, 1000, 5)], port=4)[0] == 5 + 60 + 1000


def test_within_a_die_no_link_is_used():
    assert finish([(5, 5, 1000, 7)])[0] == 7
    assert finish([(5, 5, 1000, 7), (5, 6, 1000, 7)], port=0.5).tolist() == [7 + 2000, 7 + 20 + 2000]


def test_size_zero_takes_latency_only():
    assert finish([(0, 11, 0, 3), (0, 11, 100, 3)]).tolist() == [3 + 100, 3 + 100 + 100]


def test_no_flows():
    assert finish([]).shape == (0,)


@given(flows=flow_lists, port=port_limits)
@settings(max_examples=examples(60))
def test_fair_agrees_with_the_oracle(flows, port):
    flows = [flow for flow in flows if flow[0] != flow[1]]
    expected = flows_oracle.finish_times((X, Y), flows, 1.0, 20.0, port)
    assert finish(flows, port=port) == pytest.approx(expected, rel=1e-9)


@st.composite
def networks(draw):
    """Capacities, routes of groups, and which groups (with repetition) are under way."""
    resources = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.floats(0.1, 100), min_size=resources, max_size=resources))
    routes = draw(
        st.lists(st.lists(st.integers(0, resources - 1), min_size=1, max_size=4, unique=True), min_size=1, max_size=8)
    )
    return capacity, routes, draw(st.lists(st.integers(0, len(routes) - 1), min_size=1, max_size=15))


def network_with(capacity, routes, under_way):
    net = build_network(capacity, np.cumsum([0] + [len(r) for r in routes]), np.concatenate(routes))
    for group in under_way:
        enter(net, group)
    return net


def used(net, resource):
    return sum(
        rate * weight
        for rate, weight, route in zip(rates_of(net), net.groups["weight"][:-1], routes_of(net), strict=True)
        if resource in route
    )


def rates_of(net):
    return net.groups["rate"][:-1]  # the last row is of no group


def routes_of(net):
    return np.split(net.routes, net.groups["first"][1:-1])


@given(network=networks())
@settings(max_examples=examples(150))
def test_every_flow_has_a_saturated_bottleneck_where_none_is_faster(network):
    net = network_with(*network)
    fair_rates(net, ())
    routes = routes_of(net)
    for resource, capacity in enumerate(net.resources["capacity"]):
        assert used(net, resource) <= capacity * (1 + 1e-12)
    assert len(network[2]) > 0
    for group in set(network[2]):
        assert any(
            used(net, r) >= net.resources["capacity"][r] * (1 - 1e-12)
            and all(
                rates_of(net)[other] <= rates_of(net)[group] * (1 + 1e-12)
                for other in set(network[2])
                if r in routes[other]
            )
            for r in routes[group]
        )


@given(network=networks(), data=st.data())
@settings(max_examples=examples(100))
def test_recomputing_only_what_was_touched_gives_the_rates_of_all(network, data):
    capacity, routes, under_way = network
    net = network_with(*network)
    fair_rates(net, ())
    for _ in range(5):
        if under_way and data.draw(st.booleans()):
            leave(net, under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
        else:
            under_way.append(data.draw(st.integers(0, len(routes) - 1)))
            enter(net, under_way[-1])
        fair_rates(net, ())
        fresh = network_with(capacity, routes, under_way)
        fair_rates(fresh, ())
        # What is left of a resource is summed in another order: the last bit may differ.
        assert rates_of(net).tolist() == pytest.approx(rates_of(fresh).tolist(), rel=1e-12)


def test_what_bottlenecks_keep_does_not_change_rates(monkeypatch):
    draw = np.random.default_rng(7)
    capacity = draw.choice([1.0, 1.5, 2.0, 3.7], 30)
    routes = [draw.choice(30, draw.integers(1, 7), replace=False).tolist() for _ in range(60)]
    net = network_with(capacity, routes, [])
    monkeypatch.setattr(network, "MOST_PASSED", 2)
    walked, under_way = network_with(capacity, routes, []), []  # whose bottlenecks keep nothing: it walks all routes
    for event in range(240):
        ends = bool(under_way) and event % 3 != 0
        group = under_way.pop(draw.integers(len(under_way))) if ends else int(draw.integers(60))
        under_way += [] if ends else [group] * draw.integers(1, 4)
        for each in (net, walked):
            for _ in range(1 if ends else under_way.count(group) - int(each.groups["weight"][group])):
                (leave if ends else enter)(each, group)
            fair_rates(each, ())
        assert net.groups["rate"].tolist() == walked.groups["rate"].tolist()
        assert net.groups["bottleneck"].tolist() == walked.groups["bottleneck"].tolist()
        if event % 20 == 0:
            fresh = network_with(capacity, routes, under_way)
            fair_rates(fresh, ())
            assert rates_of(net).tolist() == pytest.approx(rates_of(fresh).tolist(), rel=1e-12)


def test_only_rates_from_the_level_of_the_touched_flow_on_are_recomputed():
    net = network_with([1.0, 4.0, 6.0], [[0], [0], [1], [1], [2], [2]], [0, 1, 2, 3, 4, 5])
    assert fair_rates(net, ()) == 6
    leave(net, 5)
    assert fair_rates(net, ()) == 1
    enter(net, 2)
    assert fair_rates(net, ()) == 3
    assert rates_of(net).tolist() == pytest.approx([1 / 2, 1 / 2, 4 / 3, 4 / 3, 6, 0])


def test_a_group_alone_on_its_route_is_filled_when_another_joins_it():
    net = network_with([1.0, 4.0], [[0, 1], [1], [1]], [0])
    assert fair_rates(net, ()) == 0
    assert rates_of(net).tolist() == [1, 0, 0]
    enter(net, 1)
    assert fair_rates(net, ()) == 2
    assert rates_of(net).tolist() == [1, 3, 0]


def test_weight_counts_as_so_many_flows():
    net = network_with([1.0, 0.5], [[0], [0, 1]], [0, 0, 0, 1, 1])
    fair_rates(net, ())
    assert rates_of(net).tolist() == [0.2, 0.2]


def test_round_robin_recomputes_only_the_component_too():
    net = network_with([1.0, 1.0, 1.0], [[0], [0, 1], [2]], [0, 1, 2])
    ports = build_ports(net, [0, 1, 0])
    assert round_robin_rates(net, ports) == 3
    leave(net, 0)
    assert round_robin_rates(net, ports) == 1
    assert rates_of(net).tolist() == [0, 1, 1]


@pytest.mark.parametrize("arbitration", ARBITRATIONS)
@given(flows=flow_lists, port=port_limits, power=st.integers(-30, 30))
@settings(max_examples=examples(30))
def test_rates_times_a_power_of_two_divide_times_exactly(arbitration, flows, port, power):
    factor = 2.0**power
    faster = finish(
        [(s, d, size, start / factor) for s, d, size, start in flows],
        arbitration,
        link=1.7 * factor,
        hop_ns=20 / factor,
        port=None if port is None else port * factor,
    )
    assert (faster * factor).tolist() == finish(flows, arbitration, link=1.7, port=port).tolist()


@pytest.mark.parametrize("arbitration", ARBITRATIONS)
@given(flows=flow_lists, port=port_limits, random=st.randoms(use_true_random=False))
@settings(max_examples=examples(30))
def test_order_of_the_flows_does_not_matter(arbitration, flows, port, random):
    order = list(range(len(flows)))
    random.shuffle(order)
    shuffled = finish([flows[i] for i in order], arbitration, port=port)
    assert shuffled.tolist() == finish(flows, arbitration, port=port)[order].tolist()


@pytest.mark.parametrize(("arbitration", "tolerance"), [("fair", 0), ("round_robin", SETTLED)])
@pytest.mark.parametrize("mirror", [lambda d: X - 1 - d % X + X * (d // X), lambda d: d % X + X * (Y - 1 - d // X)])
@given(flows=flow_lists, port=port_limits)
@settings(max_examples=examples(30))
def test_a_mirrored_mesh_behaves_the_same(arbitration, tolerance, mirror, flows, port):
    mirrored = finish([(mirror(s), mirror(d), size, start) for s, d, size, start in flows], arbitration, port=port)
    assert mirrored == pytest.approx(finish(flows, arbitration, port=port), rel=tolerance, abs=0)


@pytest.mark.parametrize("arbitration", ARBITRATIONS)
@given(flows=flow_lists, port=port_limits)
@settings(max_examples=examples(40))
def test_nothing_is_faster_than_its_links(arbitration, flows, port):
    ends = finish(flows, arbitration, hop_ns=0, port=port)
    mesh, bandwidth = build_mesh(X, Y), min(1.0, port or math.inf)
    bytes_on_link, first_start = np.zeros(mesh.links), np.full(mesh.links, math.inf)
    for (src, dst, size, start), end in zip(flows, ends, strict=True):
        if src != dst:
            assert end >= (start + size / bandwidth) * (1 - 1e-12)
            links = mesh.route(src, dst)
            bytes_on_link[links] += size
            first_start[links] = np.minimum(first_start[links], start)
    busy = bytes_on_link > 0
    assert ends.max() >= np.max(first_start[busy] + bytes_on_link[busy], initial=0) * (1 - 1e-12)


@pytest.mark.parametrize("arbitration", ARBITRATIONS)
@given(
    sources=st.lists(st.tuples(st.integers(1, X * Y - 1), st.integers(1, 5000), st.integers(0, 3000)), min_size=1),
    factor=st.floats(1, 4),
)
@settings(max_examples=examples(30))
def test_more_bandwidth_does_not_slow_a_fan_in(arbitration, sources, factor):
    flows = [(src, 0, size, start) for src, size, start in sources]
    faster = finish(flows, arbitration, port=1.0 * factor, link=factor)
    assert faster.max() <= finish(flows, arbitration, port=1.0).max() * (1 + 1e-3)


def mesh_rates(mesh, pairs, arbitration, hbm=None, hbm_of=()):
    """Rates of one flow for each of ``pairs``; HBM of capacity ``hbm`` feeds those that leave the dies ``hbm_of``."""
    geometry = build_mesh(*mesh)
    routes = [list(geometry.route(s, d)) for s, d in pairs]
    for route, (src, _) in zip(routes, pairs, strict=True):
        if src in hbm_of:
            route.insert(0, geometry.links)
    net = network_with([1.0] * geometry.links + [hbm or 1.0], routes, range(len(pairs)))
    if arbitration == "fair":
        fair_rates(net, ())
    else:
        round_robin_rates(net, build_ports(net, np.append(xy_rank(geometry), -1)))
    return rates_of(net)


def test_parking_lot():
    pairs = [(3, 4), (2, 4), (1, 4), (0, 4)]
    assert mesh_rates((5, 1), pairs, "round_robin") == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 8], rel=SETTLED)
    assert mesh_rates((5, 1), pairs, "fair").tolist() == [0.25] * 4
    flows = [(3, 4, 4000, 0), (2, 4, 2000, 0), (1, 4, 1000, 0), (0, 4, 1000, 0)]
    together = finish(flows, "round_robin", (5, 1), hop_ns=0)
    assert together == pytest.approx([8000] * 4, rel=SETTLED)


def test_a_die_is_one_input_however_many_flows_it_sources():
    pairs = [(1, 2), (1, 3), (1, 4), (0, 4)]
    assert mesh_rates((5, 1), pairs, "round_robin") == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2], rel=SETTLED)


def test_a_blocked_flow_holds_up_those_behind_it():
    """Die 3 sends one flow through a link that four inputs want, and one straight on, through the same buffer."""
    pairs = [(3, 7), (3, 5), (4, 7), (5, 7), (1, 7)]
    assert mesh_rates((3, 3), pairs, "round_robin") == pytest.approx([1 / 4] * 5, rel=SETTLED)
    assert mesh_rates((3, 3), pairs, "fair") == pytest.approx([1 / 4, 3 / 4, 1 / 4, 1 / 4, 1 / 4])


def test_fair_hbm_gives_to_the_free_side_what_the_contended_one_cannot_take():
    """Four flows share the link to die 0; die 1's HBM feeds one of them and one the other way."""
    rates = mesh_rates((3, 1), [(1, 0), (1, 2), (2, 0), (2, 0), (2, 0)], "fair", hbm=0.8, hbm_of=[1])
    assert rates == pytest.approx([0.25, 0.55, 0.25, 0.25, 0.25])


def test_round_robin_hbm_shares_equally_what_no_link_limits():
    rates = mesh_rates((3, 1), [(1, 0), (1, 2)], "round_robin", hbm=0.8, hbm_of=[1])
    assert rates == pytest.approx([0.4, 0.4], rel=SETTLED)


def test_round_robin_hbm_gives_to_the_free_side_what_a_shared_link_leaves():
    """The link to die 0 gives its two inputs half each."""
    pairs = [(1, 0), (1, 2), (2, 0)]
    assert mesh_rates((3, 1), pairs, "round_robin", hbm=1.2, hbm_of=[1]) == pytest.approx([0.5, 0.7, 0.5], rel=SETTLED)


@given(
    pairs=st.lists(st.tuples(dies, dies).filter(lambda p: p[0] != p[1]), min_size=1, max_size=40, unique=True),
    hbm=st.floats(0.2, 3),
)
@settings(max_examples=examples(60))
def test_round_robin_overloads_nothing_and_starves_no_one(pairs, hbm):
    rates = mesh_rates((X, Y), pairs, "round_robin", hbm=hbm, hbm_of=[5])
    mesh = build_mesh(X, Y)
    load = np.zeros(mesh.links)
    for (src, dst), rate in zip(pairs, rates, strict=True):
        assert rate > 0
        load[mesh.route(src, dst)] += rate
    assert load.max() <= 1 + 1e-12
    assert sum(rate for (src, _), rate in zip(pairs, rates, strict=True) if src == 5) <= hbm * (1 + 1e-12)


def test_reserved_paths_exclude_each_other_in_order_of_start():
    flows = [(2, 0, 100, 1), (0, 2, 100, 0), (4, 5, 100, 0), (1, 2, 10, 1)]
    # 0 → 2 holds both edges until 140; then 2 → 0 (lower index, same start) until 280; then 1 → 2
    assert finish(flows, contention="reserved").tolist() == [280, 140, 120, 310]


GOOD = {"fabric": (X, Y), "flows": [(0, 1, 10, 0)], "link_bytes_per_s": 1e9, "hop_ns": 20}


@pytest.mark.parametrize(("wrong", "message"), [
    ({"arbitration": "fifo"}, "arbitration 'fifo'.*'fair', 'round_robin'"),
    ({"contention": "none"}, "contention 'none'.*'shared', 'reserved'"),
    ({"link_bytes_per_s": 0}, "link_bytes_per_s 0"),
    ({"link_bytes_per_s": math.nan}, "link_bytes_per_s nan"),
    ({"die_port_bytes_per_s": -1.0}, "die_port_bytes_per_s -1.0"),
    ({"hop_ns": -1}, "hop_ns -1"),
    ({"hop_ns": math.inf}, "hop_ns inf"),
    ({"fabric": (0, 3)}, "mesh 0 x 3"),
    ({"flows": [(0, 1, 10, 0), (0, 12, 10, 0)]}, "flow 1: dst 12.* 0 to 11"),
    ({"flows": [(-1, 1, 10, 0)]}, "flow 0: src -1:"),
    ({"flows": [(0.5, 1, 10, 0)]}, "flow 0: src 0.5"),
    ({"flows": [(0, 1, -10, 0)]}, "flow 0: size_bytes -10:"),
    ({"flows": [(0, 1, math.nan, 0)]}, "flow 0: size_bytes nan"),
    ({"flows": [(0, 1, 10, math.inf)]}, "flow 0: start_ns inf"),
    ({"flows": [(0, 1, 10, -3)]}, "flow 0: start_ns -3:"),
    ({"flows": [(0, 1, 10, 0), (0, 1, 10)]}, "flow 1.* 3 "),
])  # fmt: skip
def test_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        simulate_flows(**(GOOD | wrong))


def test_networks_refuse_what_the_solvers_cannot_handle():
    with pytest.raises(ValueError, match="capacity"):
        build_network([0.0], [0, 1], [0])
    with pytest.raises(ValueError, match="twice"):
        build_network([1.0], [0, 2], [0, 0])
    with pytest.raises(ValueError, match=r"resource 1\b.*resource 0\b"):
        build_ports(build_network([1.0, 1.0], [0, 2], [1, 0]), [0, 1])

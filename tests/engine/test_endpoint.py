"""``endpoint: as_measured`` and ``arbitration: head_of_line``: ports of dies, and queues that are held up, on rings."""

import numpy as np
import pytest
from support.tiny import tiny

import archsim as ar
from archsim.engine import machine as machines
from archsim.engine.network.rates import ranks_in_cycles
from archsim.runs.notes import policy_notes
from microarch.fabric.fabric import LinkClass, with_ports
from microarch.fabric.topology import build_topology

ENDS = "assumptions=[physical, {set: physical, endpoint: as_measured}]"


def fabric(name="torus", x=3, y=3):
    return build_topology(name, x, y, "row_major").with_links(name, [LinkClass("link", 1e9, 20.0)] * 4)


@pytest.mark.parametrize("name", ["mesh", "torus", "ring", "fully_connected", "switch"])
def test_every_route_leaves_by_the_port_of_its_source_and_enters_by_that_of_its_target(name):
    plain = fabric(name)
    found = with_ports(plain, 5e8)
    assert (found.hops == plain.hops).all() and (found.pair_ns == plain.pair_ns).all()
    for source in range(9):
        for target in range(9):
            route, own = plain.route(source, target).tolist(), found.route(source, target).tolist()
            ports = [found.links - found.ports + source], [found.links - 9 + target]
            assert own == (ports[0] + route + ports[1] if source != target else [])


def test_a_port_limits_what_a_die_sends():
    flows = [(0, 1, 1000, 0), (0, 3, 1000, 0)]
    wide, narrow = (ar.simulate_flows(with_ports(fabric("mesh"), rate), flows) for rate in (1e18, 5e8))
    assert wide.tolist() == [1020, 1020] and narrow.tolist() == [4020, 4020]


def test_ports_without_a_limit_change_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "endpoint_bytes_per_s", lambda system: 1e18)
    experiment = tiny(tmp_path, ENDS)
    for engine in ("event", "analytical"):
        own = experiment.model_copy(update={"engine": engine})
        plain, ports = (ar.run(own, assumptions=each.label).runs.rows[0] for each in own.assumptions)
        for name in ("throughput_tokens_per_s", "link_bytes", "hop_bytes", "energy_j"):
            assert plain.get(name) == ports.get(name), name


def test_measured_endpoints_make_no_run_faster(tmp_path):
    experiment = tiny(tmp_path, ENDS, "engine=analytical")
    plain, ports = (ar.run(experiment, assumptions=each.label).runs.rows[0] for each in experiment.assumptions)
    assert ports["throughput_tokens_per_s"] < plain["throughput_tokens_per_s"]


def test_the_share_of_a_link_is_that_of_the_measured_chip():
    dojo = ar.load_system("dojo")
    share = machines.endpoint_bytes_per_s(dojo) / (dojo.d2d.bandwidth_bytes_per_s * dojo.d2d.efficiency)
    assert 0.43 < share < 0.45


# --- head of line ----------------------------------------------------------------------------------------------------


def test_a_transfer_that_waits_holds_up_those_behind_it():
    """Of three transfers over a line the first shares a buffer with the last, which three others hold up."""
    flows = [(0, 1, 1000, 0), *[(1, 2, 1000, 0)] * 3, (0, 2, 1000, 0)]
    fair, held = (ar.simulate_flows((3, 1), flows, 1e9, 0.0, arbitration=each) for each in ("fair", "head_of_line"))
    assert fair[0] == pytest.approx(4000 / 3) and held[0] == pytest.approx(2000)


@pytest.mark.parametrize("name", ["mesh", "switch"])
def test_without_cycles_it_is_round_robin(name):
    rng = np.random.default_rng(1)
    flows = [(*rng.integers(0, 9, 2).tolist(), *rng.integers(1, 5000, 2).tolist()) for _ in range(30)]
    one, other = (ar.simulate_flows(fabric(name), flows, arbitration=each) for each in ("round_robin", "head_of_line"))
    assert one == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("name, x, y", [("ring", 8, 1), ("torus", 4, 3), ("torus_x", 4, 3), ("torus_y", 3, 4)])
def test_rings_and_tori_finish_later_than_if_nothing_was_held_up_and_pass_no_link_too_fast(name, x, y):
    graph, dies = build_topology(name, x, y, "row_major"), x * y
    flows = [(s, d, 1000.0, 0.0) for s in range(dies) for d in range(dies) if s != d]
    fair, held = (ar.simulate_flows(graph, flows, 1e9, 0.0, arbitration=each) for each in ("fair", "head_of_line"))
    loads = np.bincount(np.concatenate([graph.route(s, d) for s, d, *_ in flows]), minlength=graph.links) * 1000.0
    assert loads.max() * (1 - 1e-6) <= held.max() < 3 * fair.max()
    assert sorted(ranks_in_cycles(graph)) == list(range(graph.links))


def test_a_ring_runs_in_the_engine(tmp_path):
    ring = tiny(tmp_path, "systems.1.topology=ring", "systems.1.mesh={x: 5, y: 1}",
                "assumptions={set: physical, arbitration: head_of_line}")  # fmt: skip
    assert ar.run(ring, system="square").runs.rows[0]["throughput_tokens_per_s"] > 0
    with pytest.raises(ar.ArchsimError, match="interpreted runs arbitration: fair and round_robin, not head_of_line"):
        ar.run(ring.model_copy(update={"engine": "interpreted"}), system="square")



def test_a_note_says_what_a_speed_up_is_worth():
    rows = [
        {"system": "w", "model": "m", "batch": 8, "policy": "allo", "assumptions": label, "speedup_vs_base": speedup}
        for label, speedup in (("physical", 1.5), ("physical+endpoint=as_measured", 2.5))
    ]
    (note,) = policy_notes(rows)
    assert "(endpoint: as_measured), the largest speed-up over base under physical is 2.50× instead of 1.50×" in note
    assert policy_notes(rows[:1]) == []

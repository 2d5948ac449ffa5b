"""What moved between which dies and over which links, by class, is all that moved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.balancer_runs import BALANCERS, SWITCH, WAFER, run_of
from support.clusters import cluster, demand_of, step
from support.clusters import engine_of as cluster_engine
from support.small_runs import CASES, IDS, engine_of, policy, small_model, small_system

from archsim.base.causes import Cause
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import CLASSES, link_traffic, pair_bytes, send_statistics
from archsim.engine.engine import EventEngine
from archsim.engine.state import UNITS
from archsim.runs.columns import MOST_DIES, measure_links, measure_pairs
from archsim.specs.library import load_assumptions, load_model


def check_conservation(outcome, dies):
    """Sums of every class are the run's totals, and links carry what their routes' pairs send."""
    tally, sent = outcome.tally, pair_bytes(outcome.tally)
    total = {name: int(each.sum()) for name, each in sent.items()}
    assert [total["dispatch"], total["combine"]] == tally.moved_bytes.tolist()
    assert total["replica"] == outcome.balancing.migrated_bytes + outcome.balancing.replicated_bytes
    slices = int(tally.llc_hits[1]) * outcome.machine.slice_bytes + int(tally.dies["remote_read_bytes"].sum())
    assert total["weight"] == slices
    assert total["request"] * outcome.machine.slice_bytes == total["weight"] * outcome.machine.request_bytes
    assert all((np.diagonal(each) == 0).all() for each in sent.values())
    crossed = link_traffic(outcome.machine, tally, np.ones(outcome.machine.link_resources))
    statistics = crossed.pop("statistics")
    assert (sum(each.n_bytes for each in crossed.values()) == tally.resources[UNITS * dies :]["bytes"]).all()
    assert statistics.n_bytes.sum() == (sent["statistics"] * route_lengths(outcome.machine)).sum()


def route_lengths(machine):
    return np.diff(machine.route_ptr).reshape(machine.dies, -1)


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
@pytest.mark.parametrize("system", [WAFER, SWITCH], ids=["mesh", "switch"])
@pytest.mark.parametrize("name", ["ep", "eplb+waterfill", "craft", "libra", "lina", "harmoeny"])
def test_every_byte_of_a_balancer_has_a_class_a_pair_and_a_route(name, system, engine):
    assert name in BALANCERS
    run = run_of(name, system, engine, migration="overlapped")
    check_conservation(run.run(), run.engine.machine.dies)


@pytest.mark.parametrize(("name", "changes"), CASES[::7], ids=IDS[::7])
def test_the_same_under_every_contention(name, changes):
    run = engine_of(small_system(), small_model(), policy(name), load_assumptions("physical", **changes))
    check_conservation(run.run(), run.engine.machine.dies)


@given(dies=st.integers(1, 40), n_bytes=st.integers(0, 10**6), executor=st.sampled_from(["fsm", "gpu"]))
def test_statistics_of_every_die_arrive(dies, n_bytes, executor):
    sent = np.zeros((dies, dies), np.int64)
    send_statistics(sent, n_bytes, dies // 2, executor)
    assert np.trace(sent) == 0
    if executor == "fsm":
        assert sent.sum() == sent[:, dies // 2].sum() == (dies - 1) * n_bytes
    else:  # partners exchange
        assert (sent == sent.T).all() and ((sent > 0).any(axis=1) == (dies > 1 and n_bytes > 0)).all()


def test_links_and_pairs_state_classes_with_their_time():
    run = run_of("eplb", WAFER, AnalyticalEngine, migration="blocking")
    outcome = run.run()
    links, pairs = measure_links(outcome), measure_pairs(outcome)
    assert sum(pairs["replica_bytes"]) == outcome.balancing.migrated_bytes > 0
    assert set(zip(pairs["src"], pairs["dst"], strict=True)) <= {
        (src, dst) for src in range(WAFER.dies) for dst in range(WAFER.dies)
    }
    rates = outcome.fabric.link_bytes_per_ns
    for name in CLASSES:
        assert links[f"{name}_ns"] == pytest.approx((np.array(links[f"{name}_bytes"]) / rates).tolist())
    assert MOST_DIES >= 25


@pytest.mark.parametrize(
    ("nodes", "dispatch"),
    [(1, "per_rank"), (2, "per_rank"), (1, "per_token_expert"), (2, "per_token_expert"), (1, "all_gather")],
)
def test_classes_are_all_that_links_of_a_cluster_carry(nodes, dispatch):
    run = cluster_engine(cluster(nodes), dispatch=dispatch, decision_cost="charged")
    step(run, demand_of(load_model("deepseek-v3"), 8 * nodes, 64, skew=1.0, seed=nodes))
    counted = run.tally.resources[UNITS * run.machine.dies :]
    traffic = link_traffic(run.machine, run.tally, run.fabric.link_bytes_per_ns)
    assert set(traffic) == set(CLASSES)
    assert traffic["dispatch"].n_bytes.sum() > 0 and traffic["combine"].n_bytes.sum() > 0
    crossed = [each for name, each in traffic.items() if name != "statistics"]
    assert (sum(each.n_bytes for each in crossed) == counted["bytes"]).all()
    assert sum(each.ns for each in crossed) == pytest.approx(counted["busy_ns"])


@given(seed=st.integers(0, 2**16), nodes=st.integers(1, 3))
@settings(max_examples=10)
def test_a_node_receives_a_vector_at_most_as_often_as_its_gpus_do(seed, nodes):
    run = cluster_engine(cluster(nodes), dispatch="per_rank", transfer_software="free")
    step(run, demand_of(load_model("deepseek-v3"), 8 * nodes, 16, skew=1.0, seed=seed))
    sent = pair_bytes(run.tally)["dispatch"].reshape(nodes, 8, nodes, 8)
    between = sent.sum() - sum(sent[node, :, node].sum() for node in range(nodes))
    traffic = link_traffic(run.machine, run.tally, run.fabric.link_bytes_per_ns)
    out = traffic["dispatch"].n_bytes[run.fabric.link_class == 1].sum() / 2  # out of a port, and into one
    assert out <= between * (1 + 1e-9) and (out > 0) == (nodes > 1)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_fetch_the_experts_that_they_run_and_do_not_hold(nodes):
    model = load_model("deepseek-v3")
    demand = demand_of(model, 8 * nodes, 512, skew=1.5, seed=nodes)
    ns = {}
    for name in ("ep", "harmoeny"):
        run = cluster_engine(cluster(nodes), policy=name)
        ns[name] = run.step(0, demand, 0.0)
        plan = ns[name].plan
        away = np.count_nonzero(~run.placement.holds[0][plan.expert, plan.die])
        traffic = link_traffic(run.machine, run.tally, run.fabric.link_bytes_per_ns)
        assert pair_bytes(run.tally)["weight"].sum() == away * run.expert_bytes
        assert run.tally.dies["remote_read_bytes"].sum() == away * run.expert_bytes
        assert (away > 0) == (name == "harmoeny")
        counted = run.tally.resources[UNITS * run.machine.dies :]["bytes"]
        assert (sum(each.n_bytes for kind, each in traffic.items() if kind != "statistics") == counted).all()
    moved = ns["harmoeny"].plan
    pairs = np.bincount(moved.die, moved.tokens, 8 * nodes)
    assert pairs.max() < np.bincount(ns["ep"].plan.die, ns["ep"].plan.tokens, 8 * nodes).max()
    waits = run.tally.bound_ns[Cause.LINK]
    assert 0 <= waits < ns["harmoeny"].step_ns

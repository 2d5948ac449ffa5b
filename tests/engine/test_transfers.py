"""Dispatch and combine on 8 dies behind a switch: against DeepEP's measured kernels, and what a Local CP starts."""

from functools import lru_cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.balancer_runs import WAFER, run_of
from support.clusters import cluster, step
from support.clusters import demand_of as cluster_demand_of
from support.clusters import engine_of as cluster_engine
from support.examples import examples, sampled
from support.shared import shared_path
from support.small_runs import demand_of as small_demand_of
from support.small_runs import engine_of as small_engine_of
from support.small_runs import policy, replay, scenario_of, small_model, small_system, traffic
from support.tiny import tiny

import archsim as ar
from archsim.base.causes import Cause
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.engine import demand as run_demand
from archsim.engine import machine as machines
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.machines import walk_all_carriers
from archsim.engine.analytic.rates import with_rates
from archsim.engine.analytic.recorded_steps import record
from archsim.engine.cluster.between_nodes import between_law
from archsim.engine.cluster.laws import node_law
from archsim.engine.demand import RunDemand, build_run_demand
from archsim.engine.engine import EventEngine
from archsim.engine.event import step_networks
from archsim.engine.fabrics import build_fabric, carriers_needed
from archsim.engine.flows.link_order import ranks_in_cycles
from archsim.engine.grouped_gemm import law_of_ranks
from archsim.engine.loop import Replay
from archsim.engine.mesh_laws import neighbour_bytes_per_s
from archsim.engine.moves import (
    Sizes,
    _tokens_taken,
    expected_ranks,
    received_of_experts,
    send_once,
    send_once_to,
    send_selections,
    send_tokens,
    vector_bytes,
)
from archsim.engine.pair_traffic import CLASSES, link_traffic, pair_bytes, send_statistics
from archsim.engine.state import UNITS
from archsim.engine.transfer_kernels import KERNELS, kernels_stand_in, name_kernels
from archsim.laws.calibration_files import calibration_digest, calibration_named
from archsim.laws.laws import Laws
from archsim.laws.tables import LawMissing
from archsim.laws.transfers import nodes_away
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.policies.allocation import Plan
from archsim.runs.measures.units import MOST_DIES, measure_links, measure_pairs
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.step_demand import StepDemand, TokenRouting
from archsim.uncertainty.system_quantities import quantities_of, ranges_of
from microarch.fabric.fabric import LinkClass, with_ports
from microarch.fabric.grid import ROW_MAJOR
from microarch.fabric.topology import build_topology

ENGINES = [EventEngine, AnalyticalEngine]
MEASURED = shared_path() / "data" / "calibration" / "comm"
FILES = {"low_latency": "aic_deepep_low_latency_intranode.csv", "normal": "aic_deepep_normal_intranode.csv"}
GPU, SMS, DIES, MOST_TOKENS = "H100-SXM5-80GB", 24, 8, 4096  # SMs: the most that were measured, as the law takes
NVLINK = {"switch": DIES, "bandwidth": "450 GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"}
# (hidden, top_k, experts): DeepSeek-V3, Kimi-K2, Qwen3-235B, and DeepSeek-V3's experts in a smaller model
SHAPES = [(7168, 8, 256), (7168, 8, 384), (4096, 8, 128), (2048, 8, 256)]
ALIKE = {"name": "nvlink", "source": "test"}
# Room for all slices, so that no read waits.
NEGLIGIBLE = {"capacity": "4 MB", "segment": "4 kB", "hit": "0 ns", "miss": "0 ns", "write": "0 ns"}


def system_of(launch="gpu", level=NVLINK):
    return SystemSpec.model_validate(
        ALIKE
        | {
            "fabric": {"levels": [level]},
            "hbm": {"bandwidth": "3.35 TB/s", "capacity": "80 GB", "latency": "600 ns"},
            "d2d": {"bandwidth": "450 GB/s", "hop_latency": "0.3 us"},
            "llc": NEGLIGIBLE,
            "compute": {"peak": "1000 PFLOP/s", "dtype": "fp8"},
            "launch": launch,
        }
    )


def engine_of(shape, dispatch, engine=EventEngine, system=None, **changes):
    """An engine whose steps are dispatch and combine: experts of width 1 take next to no time."""
    hidden, top_k, experts = shape
    sizes = {"hidden": hidden, "expert_ffn": 1, "experts": experts, "top_k": top_k}
    model = ModelSpec(**ALIKE, layers=1, moe_layers={"first": 0, "last": 0}, **sizes)
    given = {"transfer_software": "charged", "combine": "bf16", "decision_cost": "free", "gemm": "roofline"} | changes
    assumptions = load_assumptions("physical", dispatch=dispatch, **given)
    policy = PolicySpec(name="ep", **PRESETS["ep"])
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=DIES)
    return engine(Scenario(system or system_of(), model, assumptions, policy, workload, DIES))


@lru_cache
def demand_of(shape, tokens, known=True):
    """A step in which each die has ``tokens``, which all go to ``top_k`` experts by chance."""
    _, top_k, experts = shape
    rng = np.random.default_rng([tokens, experts])
    routed = rng.random((DIES * tokens, experts), np.float32).argpartition(top_k - 1, axis=1)[:, :top_k]
    die = np.repeat(np.arange(DIES, dtype=np.int32), tokens)
    origins = np.zeros((DIES, experts), np.int32)
    np.add.at(origins, (die[:, None], routed), 1)
    total = origins.sum(axis=0, dtype=np.int32)
    order = np.full(experts, -1, np.int16)
    order[: np.count_nonzero(total)] = np.flatnonzero(total)
    routing = TokenRouting(routed.astype(np.int16), die) if known else None
    return StepDemand(1, total, np.zeros_like(total), order, top_k, origins=origins, routing=routing)


def measured_us(kernel, shape):
    """Sum of dispatch and combine by tokens of a rank, float64 with tokens as index."""
    rows = pd.read_csv(MEASURED / FILES[kernel])
    rows = rows[(rows["gpu"] == GPU) & (rows["num_gpus"] == DIES) & (rows["tokens_per_rank"] <= MOST_TOKENS)]
    rows = rows[(rows[["hidden_size", "topk", "num_experts"]] == list(shape)).all(axis=1)]
    if "comm_sms" in rows:
        rows = rows[rows["comm_sms"] == SMS]
    return rows.set_index("tokens_per_rank")[["dispatch_us", "combine_us"]].sum(axis=1)


def errors_of(dispatch, shape, engine):
    """Simulated over measured, less one, by tokens of a rank."""
    measured = measured_us(KERNELS[dispatch], shape)
    run = engine_of(shape, dispatch, engine)
    simulated = [run.step(0, demand_of(shape, int(tokens)), 0.0).step_ns / 1e3 for tokens in measured.index]
    return pd.Series(simulated, measured.index) / measured - 1


def test_a_kernel_costs_its_fixed_time_and_its_rate_limits_a_port():
    runs = [engine_of(SHAPES[0], "per_rank", transfer_software=how) for how in ("charged", "free")]
    machine = runs[0].machine
    few, many = ([run.step(0, demand_of(SHAPES[0], tokens), 0.0).step_ns for run in runs] for tokens in (1, 2048))
    assert few[0] - few[1] == pytest.approx(machine.transfer_ns.sum(), rel=0.02)
    assert few[0] > 50_000 > few[1]
    assert machine.transfer_bytes_per_ns.max() < machine.link_rates.max()
    assert many[0] - few[0] > 1.3 * (many[1] - few[1])


def test_a_local_cp_starts_a_bundle_a_cycle_and_limits_no_rate():
    run, free = (
        engine_of(SHAPES[3], "per_rank", system=system_of("local_cp"), transfer_software=how)
        for how in ("charged", "free")
    )
    assert run.machine.transfer_ns.tolist() == [DIES / 2.0] * 2  # at 2 GHz
    assert np.isinf(run.machine.transfer_bytes_per_ns).all()
    times = [each.step(0, demand_of(SHAPES[3], 64), 0.0).step_ns for each in (run, free)]
    assert times[0] - times[1] == pytest.approx(run.machine.transfer_ns.sum())


def test_a_law_without_the_kernels_is_refused():
    with pytest.raises(SpecError, match="'normal'.*transfer_software: free"):
        engine_of(SHAPES[0], "per_rank", system=system_of(level=NVLINK | {"law": "a100/intra_node"}))


@pytest.mark.parametrize(("calibration", "taken"), sampled(
    [("a100", "h100"), ("h200", "h100"), ("gb200", "gb200"), ("h800", "h800"), ("b200", "b200"), (None, "h100")],
    lambda case: case[0] in ("a100", None),
))  # fmt: skip
def test_a_calibration_without_the_kernels_takes_those_of_the_nearest_and_says_so(calibration, taken):
    system = system_of(level={key: value for key, value in NVLINK.items() if key != "law"})
    system = system.model_copy(
        update={"compute": system.compute.model_copy(update={"calibration": calibration, "dtype": "bf16"})}
    )
    run = engine_of(SHAPES[0], "per_rank", system=system)
    named = engine_of(SHAPES[0], "per_rank", system=system_of(level=NVLINK | {"law": f"{taken}/intra_node"}))
    assert run.machine.transfer_ns.tolist() == named.machine.transfer_ns.tolist()
    assert (run.machine.transfer_ns > 10_000).all() and np.isfinite(run.machine.transfer_bytes_per_ns).all()
    kernels_named, own = name_kernels(run.scenario), calibration or "h100"
    assert kernels_named == f"DeepEP normal of {taken}" + (f" instead of {own}" if own != taken else "")
    assert kernels_stand_in(run.scenario) or own == taken
    assert name_kernels(engine_of(SHAPES[0], "per_rank", transfer_software="free").scenario) is None


def test_vectors_travel_with_scales_and_results_in_bf16():
    assert vector_bytes(7168, "fp8_block", "bf16") == (7168 + 4 * 56, 2 * 7168)
    assert vector_bytes(100, "fp8", "bf16") == (104, 200)
    assert vector_bytes(7168, "bf16", "bf16") == vector_bytes(7168, "fp16", "weights_dtype") == (14336, 14336)
    run = engine_of(SHAPES[3], "per_token_expert")
    demand = demand_of(SHAPES[3], 64)
    run.step(0, demand, 0.0)
    assert run.tally.moved_bytes[0] * 2 * 2048 == run.tally.moved_bytes[1] * (2048 + 64) > 0


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements of DeepEP are not there")
@pytest.mark.parametrize(("dispatch", "engine"), sampled(
    product(sorted(KERNELS), ENGINES), lambda each: (each[0] == "per_rank") == (each[1] is AnalyticalEngine)
))  # fmt: skip
def test_dispatch_and_combine_take_what_was_measured(dispatch, engine):
    errors = {shape: errors_of(dispatch, shape, engine) for shape in SHAPES}
    assert [len(each) for each in errors.values()] == [11 if dispatch == "per_token_expert" else 18] * len(SHAPES)
    assert max(each.abs().max() for each in errors.values()) < 0.15


def test_kernels_take_the_sms_that_a_level_gives_them():
    """Fewer are slower; between two measured numbers lies their mean, flagged; what was not measured is refused."""
    digest, shape = calibration_digest("h100"), (7168, 8, 256)
    counts = (None, 24, 12, 10, 8, 4)
    laws = {sms: node_law("h100", digest, "dispatch", "per_rank", None, shape, 8, sms) for sms in counts}
    busy = {sms: float(law.busy(1e8)) for sms, law in laws.items()}
    assert busy[None] == busy[24] < busy[12] < busy[10] < busy[8] < busy[4]
    assert laws[10].carried and not laws[8].carried
    with pytest.raises(LawMissing, match="sms.*dispatch: per_rank"):
        node_law("h100", digest, "dispatch", "per_token_expert", None, shape, 8, 8)
    with pytest.raises(LawMissing, match="4, 8, 12, 16, 20, 24"):
        node_law("h100", digest, "dispatch", "per_rank", None, shape, 8, 40)


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_fewer_sms_slow_a_transfer_only_where_the_network_is_faster(op):
    """On four nodes, which were not measured: the larger of the NIC's time and that of the SMs."""
    digest, shape, n_bytes = calibration_digest("h100"), (7168, 8, 256), np.geomspace(1e5, 1e9, 9)
    laws = [between_law("h100", digest, op, "per_rank", None, shape, 4, each) for each in (None, 24, 20, 16, 12, 8, 4)]
    ns = np.array([law.fixed_ns + law.busy(n_bytes) for law in laws])
    assert np.array_equal(ns[0], ns[1]) and (np.diff(ns, axis=0) >= -1e-9 * ns[:-1]).all()
    assert ns[3] == pytest.approx(ns[0], rel=0.06) and ns[4] == pytest.approx(ns[0], rel=0.35)
    assert (ns[6, 3:] > 1.5 * ns[0, 3:]).all()
    nodes = [between_law("h100", digest, op, "per_rank", None, shape, each, 4) for each in (2, 8)]
    tokens = [n_bytes * nodes_away(each, 8, 256) / nodes_away(4, 8, 256) for each in (2, 8)]
    fewest, most = (law.fixed_ns + law.busy(each) for law, each in zip(nodes, tokens, strict=True))
    assert (fewest <= ns[6]).all() and (ns[6, :6] <= most[:6] * 1.06).all()  # network beyond


def test_the_time_of_sms_on_few_nodes_tells_that_on_many():
    """Combine on 8 nodes with 8 and 12 SMs, left out: as much longer than on 2 as with 4 SMs, or what NICs take."""
    laws, tokens = Laws(calibration_named("h100")), 2.0 ** np.arange(6, 13)

    def ns(ranks, nodes, sms):
        shape = {"hidden": 7168, "top_k": 8, "experts": 256}
        return laws.dispatch_combine("combine", tokens, kernel="normal", ranks=ranks, nodes=nodes, sms=sms, **shape).ns

    longer, network = ns(64, 8, 4) / ns(16, 2, 4), ns(64, 8, 24)
    for sms in (8, 12):
        assert np.abs(np.maximum(network, longer * ns(16, 2, sms)) / ns(64, 8, sms) - 1).mean() < 0.06


def test_a_first_size_that_was_measured_cold_lengthens_no_other():
    """TensorRT-LLM's combine on 64 ranks of an NVL72 takes 25 us from two tokens on, and 34 us of one."""
    law = node_law("gb200", calibration_digest("gb200"), "combine", "per_rank", "trtllm", (7168, 8, 256), 64)
    few = law.at_bytes[law.at_bytes <= 16 * law.at_bytes[1]]
    assert law.fixed_ns + law.busy(few).max() < 27_000
    assert (np.diff(law.busy_ns) >= 0).all()


# How many hidden vectors are sent: laws, and the expected number against random routing.

NO_HOPS = 1 - np.eye(4, dtype=np.int64)


def drawn(seed, tokens, experts, top_k, dies, split):
    """(plan, origins, routing) of random tokens; ``split``: an expert's tokens may run on several dies."""
    rng = np.random.default_rng(seed)
    routed = np.argsort(rng.random((tokens, experts)) ** rng.uniform(1, 3, experts), axis=1)[:, :top_k].astype(np.int16)
    die = rng.integers(0, dies, tokens).astype(np.int32)
    origins = np.zeros((dies, experts), np.int32)
    np.add.at(origins, (die[:, None], routed), 1)
    rows = []
    for expert, total in enumerate(origins.sum(axis=0)):
        cut = int(rng.integers(0, total + 1)) if split else 0
        places = rng.permutation(dies)[:2]
        rows += [(expert, place, part) for place, part in zip(places, (total - cut, cut), strict=True) if part]
    plan = Plan(*(np.array(column, np.int32) for column in zip(*rows, strict=True)))
    return plan, origins, TokenRouting(routed, die)


def token_by_token(routing, target, dies):
    """int64[die, target]: tokens that a die sends to a target if each is sent once."""
    sent = np.zeros((dies, dies), np.int64)
    for experts, die in zip(routing.experts, routing.die, strict=True):
        sent[die, np.unique(target[experts])] += 1
    return sent


CASES = st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6), st.integers(2, 4)


@settings(max_examples=examples(60))
@given(*CASES)
def test_each_die_is_sent_a_vector_once(seed, tokens, top_k, dies):
    """Where every expert runs on one die, as counted token by token."""
    plan, origins, routing = drawn(seed, tokens, 8, top_k, dies, split=False)
    sizes, hops = Sizes(8, top_k), NO_HOPS[:dies, :dies]
    target = np.zeros(8, np.int64)
    target[plan.expert] = plan.die
    assert (send_once(plan, origins, routing, sizes, hops) == token_by_token(routing, target, dies)).all()


@settings(max_examples=examples(60))
@given(*CASES)
def test_dies_that_share_an_expert_take_tokens_in_their_order(seed, tokens, top_k, dies):
    """Undivided experts and divided ones together, as counted token by token."""
    plan, origins, routing = drawn(seed, tokens, 8, top_k, dies, split=True)
    hops = NO_HOPS[:dies, :dies]
    left = _tokens_taken(plan.expert, plan.die, plan.tokens, origins, hops)
    sent = np.zeros((dies, dies), np.int64)
    for experts, home in zip(routing.experts, routing.die, strict=True):
        reached = set()
        for expert in experts:
            entry = next(at for at in np.flatnonzero(plan.expert == expert) if left[at, home] > 0)
            left[entry, home] -= 1
            reached.add(plan.die[entry])
        sent[home, list(reached)] += 1
    assert (send_once(plan, origins, routing, Sizes(8, top_k), hops) == sent).all()
    assert not left.any()


@settings(max_examples=examples(100))
@given(*CASES, st.booleans(), st.sampled_from([(1, 1), (4, 2)]))
def test_fewer_are_sent_once_than_for_every_expert(seed, tokens, top_k, dies, known, groups):
    plan, origins, routing = drawn(seed, tokens, 8, top_k, dies, split=True)
    sizes, hops = Sizes(8, top_k, *(groups if known else (1, 1))), NO_HOPS[:dies, :dies]
    every = send_selections(plan, origins, routing, sizes, hops)
    once = send_once(plan, origins, routing if known else None, sizes, hops)
    assert every.sum() == origins.sum()
    assert (once <= every + 1e-9).all() and (once * top_k >= every - 1e-9).all()
    if top_k == 1:
        assert once == pytest.approx(every)


def test_the_expected_number_is_the_mean_of_random_routing():
    for sizes, ranks, published in (
        (Sizes(256, 8), 25, 1.13),
        (Sizes(256, 8), 8, 1.51),
        (Sizes(256, 8, groups=8, top_groups=4), 8, 2.20),
    ):
        rng = np.random.default_rng(ranks)
        score = rng.random((20_000, sizes.experts))
        chosen = rng.random((20_000, sizes.groups)).argsort(axis=1)[:, : sizes.top_groups]
        taken = np.zeros((20_000, sizes.groups), bool)
        np.put_along_axis(taken, chosen, True, axis=1)
        score[~np.repeat(taken, sizes.experts // sizes.groups, axis=1)] = 2.0
        ranks_of = score.argpartition(sizes.top_k, axis=1)[:, : sizes.top_k] * ranks // sizes.experts
        ranks_of.sort(axis=1)
        distinct = 1 + np.count_nonzero(np.diff(ranks_of, axis=1), axis=1)
        assert expected_ranks(sizes, ranks) == pytest.approx(distinct.mean(), rel=0.005)
        assert sizes.top_k / expected_ranks(sizes, ranks) == pytest.approx(published, abs=0.01)


def test_a_shared_expert_anywhere_is_a_vector_where_the_token_has_no_other():
    """Against dies that are chosen token by token, in proportion to those that are given."""
    plan, origins, routing = drawn(5, 20_000, 8, 2, 4, split=False)
    chosen = np.random.default_rng(5).choice(4, 20_000, p=[0.1, 0.2, 0.3, 0.4])
    anywhere = np.zeros((4, 4), np.int64)
    np.add.at(anywhere, (routing.die, chosen), 1)
    die_of = plan.die[np.searchsorted(plan.expert, np.arange(8))]
    for group in (np.arange(4), np.arange(4) // 2):
        counted = np.zeros((4, group.max() + 1))
        for experts, home, shared in zip(routing.experts, routing.die, chosen, strict=True):
            away = [] if shared == home else [group[shared]]  # at home it needs no vector
            counted[home, list({*group[die_of[experts]], *away})] += 1
        sent = send_once_to([group], plan, origins, routing, Sizes(8, 2), NO_HOPS, anywhere)[0]
        assert sent == pytest.approx(counted, rel=0.03)
        once = send_once_to([group], plan, origins, routing, Sizes(8, 2), NO_HOPS)[0]
        assert sent.sum() > once.sum()
        kept = np.diag(np.bincount(routing.die))
        assert (send_once_to([group], plan, origins, routing, Sizes(8, 2), NO_HOPS, kept)[0] == once).all()


def test_skewed_experts_are_sent_less_often():
    """Counts of skewed routing alone: within 3 % of the count, token by token."""
    plan, origins, routing = drawn(3, 20_000, 32, 6, 4, split=False)
    assert origins.sum(axis=0).max() > 3 * origins.sum(axis=0).min()
    sizes = Sizes(32, 6)
    known, expected = (send_once(plan, origins, each, sizes, NO_HOPS) for each in (routing, None))
    assert expected.sum() == pytest.approx(known.sum(), rel=0.03)
    assert known.sum() < 0.7 * send_tokens(plan.expert, plan.die, plan.tokens, origins, NO_HOPS).sum()


@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_bytes_are_those_of_the_vectors(contention):
    """What a run moves is its (token, die) pairs times the bytes of a vector, there and back."""
    assumptions = load_assumptions("physical", dispatch="per_rank", combine="bf16", contention=contention)
    system, model, spec = small_system(), small_model(), policy("ep")
    run = small_engine_of(system, model, spec, assumptions)
    run.demands = demand = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    home, pairs = run.engine.placement.home, 0
    for layer, each in demand:
        sent = token_by_token(each.routing, home[run.engine.rows[layer]], system.dies)
        pairs += sent.sum() - np.trace(sent)
    n_bytes = vector_bytes(model.hidden, system.compute.dtype, "bf16")
    assert run.run().tally.moved_bytes.tolist() == [pairs * n_bytes.dispatch, pairs * n_bytes.combine]
    assert pairs > 0


def test_single_tokens_are_kept_where_they_are_asked_for(monkeypatch):
    model, system = small_model(), small_system()
    unasked = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies)
    assert all(each.routing is None for _, each in unasked)
    demand = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    for _, each in demand:
        counted = np.zeros_like(each.origins)
        np.add.at(counted, (each.routing.die[:, None], each.routing.experts), 1)
        assert (counted == each.origins).all()
    monkeypatch.setattr(run_demand, "MOST_ROUTED", 700)  # between the prefill's 1,200 tokens and the 600 of decode
    known = {
        step.step: step.routing is not None
        for _, step in build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    }
    assert known[0] is False and known[1] is True


# What moved between which dies and over which links, by class, is all that moved.


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


@given(seed=st.integers(0, 2**16), nodes=st.integers(1, 3))
@settings(max_examples=10)
def test_a_node_receives_a_vector_at_most_as_often_as_its_gpus_do(seed, nodes):
    run = cluster_engine(cluster(nodes), dispatch="per_rank", transfer_software="free")
    step(run, cluster_demand_of(load_model("deepseek-v3"), 8 * nodes, 16, skew=1.0, seed=seed))
    sent = pair_bytes(run.tally)["dispatch"].reshape(nodes, 8, nodes, 8)
    between = sent.sum() - sum(sent[node, :, node].sum() for node in range(nodes))
    traffic = link_traffic(run.machine, run.tally, run.fabric.link_bytes_per_ns)
    out = traffic["dispatch"].n_bytes[run.fabric.link_class == 1].sum() / 2  # out of a port, and into one
    assert out <= between * (1 + 1e-9) and (out > 0) == (nodes > 1)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_fetch_the_experts_that_they_run_and_do_not_hold(nodes):
    model = load_model("deepseek-v3")
    demand = cluster_demand_of(model, 8 * nodes, 512, skew=1.5, seed=nodes)
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


# A die pays for the tokens that it receives, however many dies there are (physics: `gemm: grouped`).

EP = PolicySpec(name="ep", **PRESETS["ep"])
ACTIVE = 2  # experts of every die that get tokens
TOP_K = 8


def switched(dies, launch="local_cp"):
    return SystemSpec.model_validate(
        {
            "name": "switched", "source": "test", "fabric": {"levels": [{"switch": dies}]}, "launch": launch,
            "hbm": {"bandwidth": "3.35 TB/s", "capacity": "80 GB"}, "d2d": {"bandwidth": "1 TB/s"},
            "llc": {"capacity": "44 MiB"},
            "compute": {"peak": "1979 TFLOP/s", "dtype": "fp8", "calibration": "h100"},
        }
    )  # fmt: skip


def model_of(name):
    return load_model(name).model_copy(update={"layers": 4, "shared_experts": 0, "attention": None})


def received_demand_of(model, dies, tokens, routed):
    """``tokens`` of every die, each with eight experts on as many dies; every die runs ACTIVE experts."""
    home = np.repeat(np.arange(dies), tokens)
    local = model.experts // dies
    visited = (home[:, None] + np.arange(TOP_K)) % dies
    experts = visited * local + (np.arange(len(home)) % ACTIVE)[:, None]
    origins = np.zeros((1, 1, dies, model.experts), np.int32)
    np.add.at(origins[0, 0], (home[:, None], experts), 1)
    counts = origins.sum(axis=2)
    routing = {
        "routed": experts[:, None, :].astype(np.int16),
        "routed_die": home.astype(np.int32),
        "routed_from": np.array([0, len(home)]),
    }
    return RunDemand(
        tokens=counts.astype(np.int32), first_seen=np.argsort(-counts[0], axis=1).astype(np.int16)[None],
        has_prefill=False, layer_ids=np.array(model.moe_layer_ids[:1], np.int32), top_k=TOP_K, batch=len(home),
        digest="", origins=origins, **(routing if routed else {}),
    )  # fmt: skip


def step_ns(name, dies, tokens, engine, execution, routed, **changes):
    model = model_of(name)
    assumptions = load_assumptions(
        "physical", execution=execution, memory="experts", decision_cost="free", tables="unbounded",
        transfer_software="free", **changes,
    )  # fmt: skip
    demand = received_demand_of(model, dies, tokens, routed)
    scenario = scenario_of(switched(dies), model, EP, assumptions, demand.batch)
    return Replay(engine(scenario, demand.layer_ids), demand).run().decode_ns


@pytest.mark.parametrize(("name", "tokens", "engine", "execution", "routed"), sampled(
    (
        (*shape, *more)
        for shape in (("qwen3-235b-a22b", 64), ("qwen3-235b-a22b", 512), ("deepseek-v3", 128))
        for more in product(ENGINES, ("weight_streaming", "expert_parallel"), (True, False))
    ),
    lambda each: each[:2] == ("qwen3-235b-a22b", 64),
))  # fmt: skip
def test_a_step_does_not_grow_with_the_number_of_dies(name, tokens, engine, execution, routed):
    """Pairs, distinct tokens and active experts of a die held fixed."""
    found = [step_ns(name, dies, tokens, engine, execution, routed) for dies in (16, 32, 64)]
    assert max(found) / min(found) < 1.02


@pytest.mark.parametrize("execution", ["weight_streaming", "expert_parallel"])
def test_where_every_die_has_all_tokens_nothing_moves_and_more_dies_cost_more(execution):
    changed = {"activations": "replicated"}
    few, many = (step_ns("qwen3-235b-a22b", dies, 512, EventEngine, execution, True, **changed) for dies in (16, 64))
    assert many > 1.2 * few


@pytest.mark.parametrize("experts, tokens, top_k", [(1, 10, 8), (4, 32, 8), (256, 8, 8), (300, 8, 8), (64, 5, 1)])
def test_an_even_share_of_experts_receives_what_the_hypergeometric_law_expects(experts, tokens, top_k):
    sizes, absent = Sizes(256, top_k), 1.0
    for chosen in range(top_k):  # none of the experts among the k selections
        absent *= max(256 - min(experts, 256) - chosen, 0) / (256 - chosen)
    of_group = tokens * 256 / top_k  # so many give every expert its tokens
    assert received_of_experts(sizes, experts, tokens) == pytest.approx(of_group * (1 - absent), rel=1e-9)


def test_fewer_distinct_tokens_cost_less_and_other_dies_cost_nothing():
    law = law_of_ranks(switched(16), model_of("qwen3-235b-a22b"), 16, dispatched=True)
    pairs, active = np.full(4, 2048.0), np.full(4, 8.0)
    few, some, many, same = law.times(pairs, active, np.array([256.0, 1024.0, 2048.0, 2048.0])).ns
    assert few < some < many == same
    with pytest.raises(ValueError, match="needs the tokens that it receives"):
        law.times(pairs, active)


@pytest.mark.parametrize("launch", ["gpu", "local_cp"])
def test_a_rank_without_pairs_takes_its_launch(launch):
    law = law_of_ranks(switched(16, launch), model_of("qwen3-235b-a22b"), 16, dispatched=True)
    one = law.times(np.ones(1), np.ones(1), np.ones(1))
    assert (law.idle_ns > 5_000) == (launch == "gpu")
    assert law.idle_ns <= one.ns[0]


def test_parts_of_a_time_sum_to_it():
    law = law_of_ranks(switched(16, "gpu"), model_of("deepseek-v3"), 16, dispatched=True)
    pairs = np.array([1.0, 8.0, 512.0, 50_000.0])
    times = law.times(pairs, np.minimum(pairs, 16.0), pairs)
    parts = (
        times.launch_ns, times.multiply_ns, times.inefficiency_ns, times.permute_ns, times.expert_ns, times.excess_ns,
    )  # fmt: skip
    assert sum(parts) == pytest.approx(times.ns)
    assert all((part >= 0).all() for part in parts)
    least_ns = pairs * 6 * 7168 * 2048 / 1979e12 * 1e9
    assert (times.multiply_ns <= least_ns * (1 + 1e-12)).all()


# ``endpoint: as_measured`` and ``arbitration: head_of_line``: ports of dies, and queues that are held up, on
# rings.

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


def test_links_of_measured_meshes_follow_their_share():
    """Measured links reach 94 % of their rate: at twice the share the rate is twice as high, above it as below."""
    ring = ar.load_system("blackhole_ring8")
    rates = []
    for share in (0.47, 0.94, 1.0):
        own = ring.model_copy(update={"d2d": ring.d2d.model_copy(update={"efficiency": share})})
        rates.append(neighbour_bytes_per_s(own.endpoint, own, build_fabric(own, ROW_MAJOR)))
    assert rates[1] == pytest.approx(ring.d2d.bandwidth_bytes_per_s)
    assert rates == pytest.approx([rates[1] / 2, rates[1], rates[1] / 0.94])


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
    with pytest.raises(ar.ArchsimError, match="interpreted.*fair and round_robin.*head_of_line"):
        ar.run(ring.model_copy(update={"engine": "interpreted"}), system="square")


# ``carriers: as_needed``: links from one carrier to the next are a class of their own.

MODEL = small_model(layers=4, moe_layers=small_model().moe_layers.model_copy(update={"last": 3}))


def large(peak=8e15, **blocks):
    """3 × 2 dies with 60 stacks each: one carrier has room for all at a peak of 1 PFLOP/s, and for four at 8."""
    system = small_system(compute={"peak_flop_per_s": peak}, **blocks)
    return system.model_copy(update={"hbm": system.hbm.model_copy(update={"stacks_on_carrier": 60})})


def test_links_of_the_enhanced_dojo_that_leave_a_carrier():
    """1.5 carriers: three rows of five dies on one, two on the other; five links each way lead across."""
    system = load_system("dojo_enhanced")
    within, across = (build_fabric(system, "row_major", carriers) for carriers in ("one", "as_needed"))
    slower = np.flatnonzero(across.link_bytes_per_ns < within.link_bytes_per_ns)
    ends = {tuple(sorted((int(across.link_src[at]), int(across.link_dst[at])))) for at in slower}
    assert ends == {(die, die + 5) for die in range(10, 15)} and len(slower) == 10
    assert across.link_bytes_per_ns[slower] == pytest.approx(900 * system.d2d.efficiency)
    assert (across.link_ns[slower] == 500).all() and (np.delete(across.link_ns, slower) == 200).all()


@pytest.mark.parametrize("name", ["dojo", "dojo_x4", "tsmc_sow", "sow_x", "h100_cluster", "tpu7x_2x2x4"])
def test_machines_with_room_on_their_carriers_stay_as_they_are(name):
    system = load_system(name)
    within, across = (build_fabric(system, "row_major", carriers) for carriers in ("one", "as_needed"))
    assert carriers_needed(system) == 1 and within.classes == across.classes


def test_levels_are_cut_within_themselves_alone():
    """Four wafers, whose dies then take two carriers each: links between wafers are as listed."""
    system = load_system("dojo_x4")
    system = system.model_copy(update={"compute": system.compute.model_copy(update={"peak_flop_per_s": 4.5e15})})
    assert carriers_needed(system) == 2
    fabric = build_fabric(system, "row_major", "as_needed")
    names = [fabric.classes[at].name for at in fabric.link_class]
    assert names.count("level 0, off carrier") == 4 * 10 and not names.count("level 1, off carrier")


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
def test_links_across_take_time_and_no_assumption_makes_them_faster(engine):
    slow = {"off_carrier": load_system("dojo").d2d.off_carrier.model_copy(update={"bandwidth_bytes_per_s": 1e10})}
    ns = {}
    for name, system in (("as_needed", large()), ("slow", large(d2d=slow)), ("one", large())):
        assumptions = load_assumptions("physical", carriers="one" if name == "one" else "as_needed")
        demand = small_demand_of(MODEL, system, policy("base"))
        ns[name] = replay(system, MODEL, policy("base"), assumptions, demand, engine=engine).run().decode_ns
    assert ns["one"] < ns["as_needed"] < ns["slow"]


def test_machines_on_unlike_numbers_of_carriers_are_walked_together():
    peaks, assumptions = np.array([1e15, 8e15, 1e14, 8e15]), load_assumptions("physical")
    demand = small_demand_of(MODEL, large(), policy("base"))

    def scenario(peak):
        return scenario_of(large(peak), MODEL, policy("base"), assumptions, demand.batch)

    assert len({carriers_needed(large(peak)) for peak in peaks}) == 2
    recorded = {carriers_needed(large(1e15)): record(scenario(1e15), demand)}
    system = with_rates(large(), {("compute", "peak"): peaks}, len(peaks))
    walked = walk_all_carriers(recorded, system, demand, "in_order")
    alone = [Replay(AnalyticalEngine(scenario(peak), demand.layer_ids), demand).run() for peak in peaks]
    assert walked.decode_ns.tolist() == [each.decode_ns for each in alone]
    assert walked.prefill_ns.tolist() == [each.prefill_ns for each in alone]


@pytest.mark.parametrize(("name", "needed"), [("dojo", 1), ("dojo_enhanced", 2)])
def test_what_links_between_carriers_may_be_counts_where_there_are_any(name, needed):
    """A quantity that no run reads would take a share of the variance by chance."""
    system = load_system(name)
    scenario = scenario_of(system, MODEL, policy("ep"), load_assumptions("physical"))
    drawn = {each.quantity.key for each in quantities_of(scenario)}
    listed = {each.key for each in ranges_of(system)}
    assert carriers_needed(system) == needed and "system.d2d.hop_latency" in drawn
    for keys in (drawn, listed):
        assert any(key.startswith("system.d2d.off_carrier.") for key in keys) == (needed > 1)


def test_check_says_so(capsys):
    changes = ["--set", "systems=[dojo_enhanced]", "--set", "models=[olmoe-1b-7b]"]
    assert main(["check", "configs/dojo.yaml", *changes]) == 0
    assert "d2d.off_carrier" in capsys.readouterr().err


# The network of a large machine has the groups alone that a step can use; nothing else differs.

SYSTEM, GROUPS_MODEL = small_system(3, 2), small_model()


def ran(arbitration):
    demand = small_demand_of(GROUPS_MODEL, SYSTEM, policy("ep"), decode_steps=2, batch=8)
    assumptions = load_assumptions("physical", arbitration=arbitration, heatmap_update="free")
    replayed = replay(SYSTEM, GROUPS_MODEL, policy("ep"), assumptions, demand)
    return replayed.run(), replayed.engine.execution.kernel


@pytest.mark.parametrize("arbitration", ["fair", "round_robin"])
def test_a_network_of_the_groups_of_a_step_gives_the_same_bytes(arbitration, monkeypatch):
    whole, kernel = ran(arbitration)
    rows = len(kernel._groups.of(kernel._work).net.groups)
    monkeypatch.setattr(step_networks, "MOST_LINKS", 0)
    sparse, kernel = ran(arbitration)
    assert len(kernel._groups.of(kernel._work).net.groups) < rows
    assert np.array_equal(whole.step_ns, sparse.step_ns) and whole.step_ns.any()
    for one, other in zip(whole.tally, sparse.tally, strict=True):
        assert one.tobytes() == other.tobytes()

"""Expert parallelism on clusters: measured transfers, skew, nodes, NICs, bytes through ports, two engines, refusals."""

import gc
import sys
import weakref
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import KERNELS, cluster, demand_of, engine_of, step
from support.shared import shared_path
from support.small_runs import engine_of as small_engine_of
from support.small_runs import policy, small_model, small_system

from archsim.balancers import eplb
from archsim.base.errors import ArchsimError, CapacityError, SpecError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.cluster.laws import PortLaw
from archsim.engine.cluster.ports import refuse_unequal
from archsim.engine.engine import EventEngine
from archsim.engine.execution import GemmTime
from archsim.engine.expert_parallel import ExpertParallel
from archsim.engine.state import UNITS
from archsim.engine.weight_streaming import WeightStreaming
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.laws.tables import LawMissing
from archsim.laws.transfers import nodes_away
from archsim.policies.placement import Placement
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.assumptions import ASSUMPTIONS
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.policies import PRESETS
from calibration.measurements.reading import read_measurements

PLAIN = load_model("deepseek-v3").model_copy(update={"expert_groups": 1, "top_groups": 1})
SHAPE = {"hidden": 7168, "top_k": 8, "experts": 256}
LAWS = Laws(calibration_named("h100"))


def limited(nodes):
    """DeepSeek-V3 with its experts in as many groups as there are nodes, as DeepEP's benchmark routes."""
    return PLAIN.model_copy(update={"expert_groups": nodes, "top_groups": min(nodes, 4)})


@pytest.mark.parametrize("dispatch", KERNELS)
@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_uniform_traffic_takes_the_measured_time(dispatch, nodes):
    model = limited(nodes) if dispatch == "per_rank" else PLAIN
    run = engine_of(cluster(nodes), model, dispatch=dispatch)
    for tokens in (16, 1024) if nodes < 8 else (16,):  # DeepEP's normal kernels were congested on 8 nodes
        _, parts = step(run, demand_of(model, 8 * nodes, tokens))
        asked = {"kernel": KERNELS[dispatch], "ranks": 8 * nodes, "nodes": nodes}
        measured = [float(LAWS.dispatch_combine(op, tokens, **asked, **SHAPE).ns) for op in ("dispatch", "combine")]
        if dispatch == "per_rank" and nodes > 1:
            assert (parts[[0, 3]] > measured).all()  # and a notify: tests/engine/test_expert_parallel.py
        else:
            assert parts[[0, 3]] == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
def test_a_gpu_alone_dispatches_nothing(engine):
    alone = cluster(
        fabric={"levels": [{"switch": 1, "bandwidth": "450 GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"}]}
    )
    _, parts = step(engine_of(alone, PLAIN, engine), demand_of(PLAIN, 1, 16))
    assert parts[2] > 0 and (parts[[0, 3]] == 0).all()


def test_nccl_all_to_all_takes_the_measured_time():
    run = engine_of(cluster(), PLAIN, dispatch="all_to_all")
    _, parts = step(run, demand_of(PLAIN, 8, 512))
    n_bytes = 512 * 8 * np.array([7168 + 4 * 56, 2 * 7168])
    measured = [float(LAWS.collective("all_to_all", each, ranks=8).ns) for each in n_bytes]
    assert parts[[0, 3]] == pytest.approx(measured, rel=0.03)


def test_a_padded_all_to_all_takes_the_time_of_its_largest_part():
    """Whatever the other parts are; at least that of what is sent without padding."""
    demand = demand_of(PLAIN, 8, 512, skew=1.0, seed=1)
    largest = demand.origins.reshape(8, 8, 32).sum(axis=2).max()
    n_bytes = 8 * largest * np.array([7168 + 4 * 56, 2 * 7168])
    measured = [float(LAWS.collective("all_to_all", each, ranks=8).ns) for each in n_bytes]
    padded, plain = (
        step(engine_of(cluster(), PLAIN, dispatch=dispatch), demand)[1][[0, 3]]
        for dispatch in ("all_to_all_padded", "all_to_all")
    )
    assert padded[0] == pytest.approx(measured[0], rel=0.03) and (padded >= plain).all() and padded[0] > 1.02 * plain[0]


@pytest.mark.parametrize(("dispatch", "sums"), [
    ("all_gather", "reduce_scatter"),
    ("all_gather_all_reduce", "all_reduce"),
])  # fmt: skip
def test_all_gather_takes_the_measured_time_whatever_the_routing(dispatch, sums):
    run = engine_of(cluster(), PLAIN, dispatch=dispatch)
    n_bytes = 8 * 512 * np.array([7168 + 4 * 56, 2 * 7168])
    measured = [
        float(LAWS.collective(op, each, ranks=8).ns) for op, each in zip(("all_gather", sums), n_bytes, strict=True)
    ]
    for skew in (0.0, 1.0):
        _, parts = step(run, demand_of(PLAIN, 8, 512, skew, seed=2))
        assert parts[[0, 3]] == pytest.approx(measured)


def test_gathered_tokens_follow_the_links_and_wait_for_the_weakest():
    """Of so many bytes the latency hardly counts: twice the bandwidth halves them, one link at half doubles them."""
    demand = demand_of(PLAIN, 8, 65536)
    parts = []
    weak = {"degraded": [{"link": [3, "switch"], "bandwidth": "50 %"}]}
    for link, as_built in (("225 GB/s", None), ("450 GB/s", None), ("900 GB/s", None), ("450 GB/s", weak)):
        level = {"switch": 8, "bandwidth": link, "hop_latency": "0.3 us", "law": "h100/intra_node"}
        run = engine_of(cluster(fabric={"levels": [level]}, links_as_built=as_built), PLAIN, dispatch="all_gather")
        parts.append(step(run, demand)[1][[0, 3]])
    assert parts[3] == pytest.approx(2 * parts[1], rel=0.02)
    assert parts[0] == pytest.approx(2 * parts[1], rel=0.02) and parts[1] == pytest.approx(2 * parts[2], rel=0.02)


@settings(max_examples=12)
@given(
    nodes=st.sampled_from([1, 2, 4]), share=st.floats(0.05, 1), engine=st.sampled_from([EventEngine, AnalyticalEngine])
)
def test_skewed_traffic_is_never_faster(nodes, share, engine):
    """Selections of the last rank's experts move to those of the first: every selection still crosses one port."""
    run, even = engine_of(cluster(nodes), PLAIN, engine, dispatch="per_token_expert"), demand_of(PLAIN, 8 * nodes, 256)
    local, origins = PLAIN.experts // (8 * nodes), even.origins.copy()
    moved = (origins[:, -local:] * share).astype(np.int32)
    origins[:, -local:] -= moved
    origins[:, :local] += moved
    skewed = even._replace(origins=origins, tokens=origins.sum(axis=0).astype(np.int32))
    before, after = step(run, even)[1], step(run, skewed)[1]
    assert (after[[0, 3]] >= before[[0, 3]] * (1 - 1e-9)).all()
    # neighbouring sizes of measured kernels fall by up to 5 %
    assert after[2] >= 0.95 * before[2]


@pytest.mark.parametrize("dispatch", [*KERNELS, "all_gather"])
def test_gpus_with_a_link_to_each_other_take_as_long_as_a_switch_of_all_links_or_longer(dispatch):
    """As long for even traffic; of traffic to one GPU, a pair passes what one of seven links does."""
    linked = load_system("mi355x_node")
    switch = {"switch": 8, "bandwidth": "537.6 GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"}
    switched = cluster(name="mi355x_node", fabric={"levels": [switch]})
    for seed in (None, 3):
        demand = demand_of(PLAIN, 8, 256, 0.9, seed)
        one, other = (engine_of(each, PLAIN, dispatch=dispatch) for each in (linked, switched))
        took = step(one, demand)[0], step(other, demand)[0]
        if seed is None or dispatch == "all_gather":
            assert took[0] == pytest.approx(took[1], rel=1e-9)
        else:
            assert took[0] > took[1]
        n_bytes = [run.tally.resources["bytes"][UNITS * 8 :].sum() for run in (one, other)]
        assert 2 * n_bytes[0] == pytest.approx(n_bytes[1], abs=1024)  # a switch is two links away


@pytest.mark.parametrize("dispatch", KERNELS)
@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
def test_one_node_of_a_cluster_equals_the_node_alone(dispatch, engine):
    demand = demand_of(PLAIN, 8, 300, 0.8, seed=4)
    systems = cluster(), cluster(1)
    alone, of_one = (step(engine_of(each, PLAIN, engine, dispatch=dispatch), demand) for each in systems)
    assert alone[0] == of_one[0]
    assert alone[1].tolist() == of_one[1].tolist()


def test_traffic_within_one_node_of_many_leaves_the_nics_idle():
    model = PLAIN.model_copy(update={"experts": 16, "top_k": 2})
    run = engine_of(cluster(2), model)
    demand = demand_of(model, 16, 512)
    origins = np.zeros_like(demand.origins)
    origins[:8, :8] = 128  # tokens of node 0 go to experts of node 0
    total = origins.sum(axis=0).astype(np.int32)
    here = demand._replace(origins=origins, tokens=total)
    flows = run.execution._moves.sent(run.plan(0, here, run.placement, int(run.rows[0])), here).flows
    assert flows.outer.sum() == 0
    assert flows.inner[0].sum() > 0 == flows.inner[1].sum()


@pytest.mark.parametrize("dispatch", KERNELS)
@pytest.mark.parametrize("per", ["gpu", "group"])
def test_faster_nics_are_never_slower(dispatch, per):
    demand = demand_of(PLAIN, 32, 512, 0.7, seed=5)
    took = [
        step(engine_of(cluster(4, per, nic), PLAIN, dispatch=dispatch), demand)[0]
        for nic in ("12.5 GB/s", "25 GB/s", "50 GB/s", "100 GB/s")
    ]
    assert took == sorted(took, reverse=True)
    assert took[0] > took[-1]


@pytest.mark.parametrize("dispatch", KERNELS)
@pytest.mark.parametrize("per", ["gpu", "group"])
def test_bytes_that_leave_ports_enter_ports(dispatch, per):
    run = engine_of(cluster(4, per), PLAIN, dispatch=dispatch)
    demand = demand_of(PLAIN, 32, 100, 0.7, seed=6)
    step(run, demand)
    n_bytes, fabric = run.tally.resources["bytes"][UNITS * 32 :], run.fabric
    for level in (0, 1):
        of_level = fabric.link_class == level
        first = 0 if level == 0 or per == "gpu" else 36  # shared ports follow 32 dies and 4 switches
        ports = of_level & (fabric.link_src >= first) & (fabric.link_src < first + 32) & (fabric.link_src < 40)
        leaves, enters = n_bytes[ports & (fabric.link_src < fabric.link_dst)].sum(), n_bytes[of_level].sum()
        assert leaves > 0
        assert 2 * leaves == pytest.approx(enters, abs=64)
    if dispatch == "per_token_expert":
        sent = run.execution._moves.sent(run.plan(0, demand, run.placement, int(run.rows[0])), demand)
        away = sent.vectors.astype(float)
        np.fill_diagonal(away, 0.0)
        if per == "gpu":
            assert sent.flows.inner.sum() + sent.flows.outer.sum() == pytest.approx(away.sum() * (7168 + 4 * 56))


def test_both_engines_agree_on_random_clusters():
    rng, off = np.random.default_rng(3), []
    for seed in range(16):
        nodes, per = int(rng.choice([1, 2, 4, 8])), str(rng.choice(["gpu", "group"]))
        dispatch, overlap = str(rng.choice(list(KERNELS))), str(rng.choice(["none", "shared_expert", "two_batch"]))
        model = load_model(str(rng.choice(["deepseek-v3", "qwen3-235b-a22b"])))
        demand = demand_of(model, 8 * nodes, int(2 ** rng.integers(2, 10)), float(rng.choice([0.2, 0.7, 1.2])), seed)
        event, analytical = (
            step(engine_of(cluster(nodes, per), model, engine, dispatch=dispatch, overlap=overlap), demand)[0]
            for engine in (EventEngine, AnalyticalEngine)
        )
        off.append(abs(analytical / event - 1))
    assert np.median(off) <= 0.05
    assert np.quantile(off, 0.95) <= 0.15


def test_overlap_hides_time():
    took = {}
    for overlap in ("none", "shared_expert", "two_batch"):
        took[overlap] = step(engine_of(cluster(8), overlap=overlap), demand_of(PLAIN, 64, 1024))[0]
    assert took["shared_expert"] < took["none"]
    assert took["two_batch"] < took["none"]


def test_what_stays_local_runs_first_and_hides_the_dispatch():
    """Libra, 3.1: in two stages every token runs where it does in one, its dispatch waits less, and its experts, in two
    smaller kernels, take longer.
    """
    parts, plans = [], []
    for stages in (1, 2):
        how = {"allocation": {"name": "libra", "stages": stages}}
        engine = engine_of(cluster(), PLAIN, policy=how, dispatch="all_gather_all_reduce")
        plans.append(engine.step(0, demand_of(PLAIN, 8, 2048, 0.3, 1), 0.0).plan)
        parts.append(engine.tally.part_ns.copy())
    one, two = plans
    assert all((a == b).all() for a, b in zip(one[:3], two[:3], strict=True)) and one.first is None
    assert (two.first <= two.tokens).all() and 0 < two.first.sum() < two.tokens.sum()
    (dispatch, _, experts, combine), (in_sight, _, in_two, after) = parts
    assert in_sight < dispatch and in_two > experts and after == pytest.approx(combine)


@pytest.mark.parametrize("shared", [{}, {"shared": {"name": "waterfill", "kernel": "fused", "least_tokens": 0}}])
def test_two_stages_beside_shared_experts_lose_no_work(shared):
    """A dispatch that a first kernel hides is hidden once; the rest of the layer has all that it computes."""
    how = {"allocation": {"name": "libra", "stages": 2}, **shared}
    took, demand = {}, demand_of(PLAIN, 8, 2048, 0.3, 1)
    for overlap in ("none", "shared_expert"):
        engine = engine_of(cluster(), PLAIN, policy=how, dispatch="all_gather_all_reduce", overlap=overlap)
        plan = engine.step(0, demand, 0.0).plan
        took[overlap] = engine.tally.part_ns.copy()
    dispatch, own, experts, combine = took["shared_expert"]
    assert plan.first.sum() > 0 and own == pytest.approx(took["none"][1]) and experts == pytest.approx(took["none"][2])
    assert dispatch >= 0 and (own > 0) == (not shared)
    assert took["shared_expert"].sum() == pytest.approx(max(took["none"][0], own) + experts + combine, rel=0.02)


@pytest.mark.parametrize("rule", [{"name": "waterfill", "loads": "own"}, "test_expert_parallel:anywhere"])
@pytest.mark.parametrize(("system", "how"), [
    ("gpus", {"dispatch": "per_rank"}),
    ("gpus", {"dispatch": "per_token_expert"}),
    ("dojo", {"dispatch": "per_rank"}),
    ("dojo", {"dispatch": "per_token_expert"}),
    ("blackhole_line8", {}),
    ("gpus", {"activations": "ignored"}),
])  # fmt: skip
def test_shared_experts_on_any_die_are_sent_there(rule, system, how):
    """Every die's 64 to the next die: a vector each, or where none of the token's other experts is."""
    run = engine_of(
        cluster() if system == "gpus" else load_system(system), PLAIN, policy=PRESETS["ep"] | {"shared": rule}, **how
    )
    kept = np.diag(np.full(run.machine.dies, 64))
    demand, following = demand_of(PLAIN, len(kept), 64, seed=1), np.roll(kept, 1, axis=1)
    plan = run.plan(0, demand, run.placement, int(run.rows[0]))
    none, home, away = (run.execution._moves.sent(plan._replace(shared=to), demand) for to in (None, kept, following))
    assert (home.arrived == none.arrived).all() and (home.vectors == none.vectors).all()
    assert (away.arrived > none.arrived).all() and (away.arrived < none.arrived + 64).all()
    more, every = away.vectors - none.vectors, system == "blackhole_line8" or how.get("dispatch") == "per_token_expert"
    if how.get("activations") == "ignored":
        assert not more.any()
    else:
        assert (more[following == 0] == 0).all() and (more[following > 0] > 0).all()
        assert (more == following).all() if every else (more <= following).all()


def anywhere(tokens, load):
    return np.diag(tokens)


def test_nodes_between_measured_numbers_take_times_between():
    took = []
    for nodes in (2, 4, 8):
        run = engine_of(cluster(nodes), PLAIN, dispatch="per_token_expert")
        took.append(step(run, demand_of(PLAIN, 8 * nodes, 128))[1][0])
    assert took == sorted(took)


def test_bandwidths_alone_where_software_is_free():
    run = engine_of(cluster(2), PLAIN, dispatch="per_token_expert", transfer_software="free")
    _, parts = step(run, demand_of(PLAIN, 16, 512))
    bytes_between = 512 * 8 / 2 * (7168 + 4 * 56)
    assert parts[0] == pytest.approx(2 * 2000 + bytes_between / (50 * 0.9))


def test_a_wafer_runs_it_over_its_mesh():
    run = engine_of(load_system("dojo"), PLAIN)
    ns, parts = step(run, demand_of(PLAIN, 25, 128, 0.5, seed=1))
    assert ns == pytest.approx(parts.sum())
    assert (parts > 0).all()
    assert isinstance(run.execution, ExpertParallel)


def test_measured_inside_an_nvl72():
    switch = {"switch": 72, "bandwidth": "900 GB/s", "hop_latency": "0.3 us", "law": "gb200/intra_node"}
    model = PLAIN.model_copy(update={"experts": 288})
    run = engine_of(cluster(fabric={"levels": [switch]}), model)
    assert "nvlink_two_sided on 64 ranks" in run.execution._moves.named
    assert step(run, demand_of(model, 72, 128, 0.1, seed=1))[0] > 0


def nvl72(size, **level):
    """GPUs of an NVL72, and the law of their dispatch."""
    given = {"switch": size, "bandwidth": "900 GB/s", "hop_latency": "0.3 us", "law": "gb200/intra_node"} | level
    return engine_of(cluster(fabric={"levels": [given]}), PLAIN)


def test_ranks_between_measured_ones():
    """16, 32 and 64 ranks at equal tokens: 16 and 64 were measured; 32 lies between."""
    times = {size: step(nvl72(size), demand_of(PLAIN, size, 2048))[1][[0, 3]] for size in (16, 32, 64)}
    assert times[32] == pytest.approx(np.sqrt(times[16] * times[64]), rel=0.02)
    assert "between gb200 trtllm nvlink_two_sided on 16 ranks and" in nvl72(32).execution._moves.named


def test_a_level_names_the_library():
    assert "nvlink_two_sided" in nvl72(16, library="trtllm").execution._moves.named
    with pytest.raises(LawMissing, match="nccl.*dispatch: per_rank.*nvlink_two_sided"):
        nvl72(16, library="nccl")


def test_refusals_say_what_would_fit():
    node = load_system("h100_node")
    cases = (
        (cluster(2, law=None), {}, SpecError, "fabric.levels.1.*law: h100/inter_node"),
        (cluster(2, law="h100/intra_node"), {}, SpecError, "h100/inter_node"),
        (cluster(2, law="a100/inter_node"), {}, LawMissing, "normal.*law: h100/intra_node"),
        (cluster(2), {"dispatch": "all_to_all"}, LawMissing, "dispatch: per_rank"),
        (cluster(2), {"dispatch": "all_gather"}, SpecError, "dispatch: per_rank"),
        (node, {"gemm": "roofline"}, SpecError, "gemm: grouped.*roofline"),
        (node, {"execution": "weight_streaming", "dispatch": "all_gather"}, SpecError, "execution: expert_parallel"),
        (cluster(fabric={"levels": [{"ring": 8, "bandwidth": "450 GB/s"}]}), {}, SpecError, "transfer_software: free"),
        (cluster(3), {}, SpecError, "256.* 24 .*16 or 32.*8"),
        (node, {"capacity": "finite"}, CapacityError, "10 dies.* 8"),
    )
    for system, changes, kind, message in cases:
        with pytest.raises(kind, match=message):
            engine_of(system, **changes)


def test_no_log_of_a_step():
    run = engine_of(cluster())
    step(run, demand_of(PLAIN, 8, 128))
    with pytest.raises(ArchsimError, match="weight_streaming"):
        run.execution.log(0.0)


def test_a_placement_that_keeps_groups_in_nodes_sends_less_between_nodes():
    """EPLB's hierarchical placement, as ``archsim.balancers`` has it, against the same without nodes."""
    model, rng = load_model("deepseek-v3"), np.random.default_rng(1)
    load = np.exp(rng.standard_normal((1, model.experts)))
    demand = demand_of(model, 32, 256, 0.5, seed=7)
    between, inside = [], []
    for hierarchical in (True, False):
        slots = eplb(load, 288, model.expert_groups, 4, 32, hierarchical=hierarchical).physical_to_logical[0]
        holders = [[(np.flatnonzero(slots == expert) // 9).tolist() for expert in range(model.experts)]]
        placement = Placement.of_holders(holders, 32)
        run = engine_of(cluster(4), model)
        run.placement = Placement(
            np.repeat(placement.home, run.layers, axis=0), np.repeat(placement.holds, run.layers, axis=0)
        )
        flows = run.execution._moves.sent(run.plan(0, demand, run.placement, int(run.rows[0])), demand).flows
        between.append(flows.outer.sum())
        node = np.array([[die // 8 for die in dies] for dies in (each[:1] for each in holders[0])])[:, 0]
        inside.append([len(set(node[group])) for group in np.arange(model.experts).reshape(8, -1)])
    assert inside[0] == [1] * 8
    assert max(inside[1]) > 1
    assert between[0] < between[1]


def test_a_slot_that_holds_an_expert_twice_counts():
    holds = np.zeros((1, 4, 2), bool)
    holds[0, [0, 1, 2, 3, 0], [0, 0, 1, 1, 1]] = True  # the first die holds one of its experts twice
    placement = Placement(np.array([[0, 0, 1, 1]], np.int32), holds, np.full((1, 2), 3))
    refuse_unequal(placement.layer_slots, 4)
    with pytest.raises(SpecError, match="do not divide"):
        refuse_unequal(np.array([[2, 3]]), 5)


# Clusters against what was measured and published: DeepEP over nodes, skewed layers, a deployment on 96 H100.

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DATA = shared_path() / "data" / "calibration"
NORMAL = "aic_deepep_normal_internode.csv"
COLUMNS = {
    "per_rank": (NORMAL, [["dispatch_transmit_us", "dispatch_notify_us"],
                 ["combine_transmit_us", "combine_notify_us"]]),
    "per_token_expert": ("aic_deepep_low_latency_internode.csv", [["dispatch_us"], ["combine_us"]]),
}  # fmt: skip
DEEPSEEK = load_model("deepseek-v3")


def measured(dispatch, nodes):
    """float64[tokens, phase] ns and int64[tokens] of DeepEP on a number of nodes."""
    name, columns = COLUMNS[dispatch]
    if not (DATA / "comm" / name).is_file():
        pytest.skip(f"{DATA / 'comm' / name} is missing")
    rows = pd.read_csv(DATA / "comm" / name)
    rows = rows[(rows.nodes == nodes) & (rows.num_experts == 256) & (rows.tokens_per_rank <= 4096)]
    if "comm_sms" in rows:
        rows = rows[rows.comm_sms == rows.comm_sms.max()]
    times = np.stack([rows[each].sum(axis=1) for each in columns], axis=1) * 1e3
    return rows.tokens_per_rank.to_numpy(), times


def simulated(dispatch, nodes, tokens):
    """float64[tokens, phase] ns of dispatch and combine on nodes of 8, as DeepEP's benchmark routes."""
    groups = nodes if dispatch == "per_rank" else 1
    model = DEEPSEEK.model_copy(update={"expert_groups": groups, "top_groups": min(groups, 4)})
    run = engine_of(cluster(nodes), model, dispatch=dispatch)
    return np.array([step(run, demand_of(model, 8 * nodes, int(each)))[1][[0, 3]] for each in tokens])


@pytest.mark.parametrize(("dispatch", "nodes"), [("per_rank", 2), ("per_token_expert", 2), ("per_token_expert", 8)])
def test_deepep_between_nodes(dispatch, nodes):
    tokens, times = measured(dispatch, nodes)
    assert np.abs(simulated(dispatch, nodes, tokens) / times - 1).mean() <= 0.08


def usable(op, nodes):
    """tokens → us of what is read of a part of DeepEP's normal kernels, most SMs: not what a congested
    network slowed.
    """
    if not (DATA / "comm" / NORMAL).is_file():
        pytest.skip(f"{DATA / 'comm' / NORMAL} is missing")
    rows = read_measurements(DATA / "comm" / NORMAL).table("collective", "h100")
    rows = rows[(rows["op"] == op) & (rows["nodes"] == nodes)]
    rows = rows[rows["sms"] == rows["sms"].max()]
    return dict(zip(rows["tokens_per_rank"].astype(int), rows["latency_us_median"], strict=True))


def test_normal_kernels_on_8_nodes_without_congested_rows():
    off = []
    for phase, op in enumerate(("dispatch", "combine")):
        sent, notify = usable(op, 8), np.median(list(usable(f"{op}_notify", 8).values()))
        found = simulated("per_rank", 8, sent)[:, phase] / 1e3
        off.append(np.abs(found / (np.array(list(sent.values())) + notify) - 1))
        assert len(sent) >= 9
    assert np.concatenate(off).mean() <= 0.08


@pytest.mark.parametrize(("nodes", "published_gbytes_per_s"), [(4, (58, 57)), (8, (51, 50))])
def test_nics_pass_what_deepep_publishes(nodes, published_gbytes_per_s):
    """DeepEP, docs/legacy.md, 4,096 tokens a rank; its bandwidth counts what stays in a node, too."""
    counted = nodes_away(nodes, 8, 256) * nodes / (nodes - 1) * 4096 * np.array([7392, 14336])
    (found,) = simulated("per_rank", nodes, [4096])
    (few,) = simulated("per_rank", nodes, [1])
    assert found - few == pytest.approx(counted / np.array(published_gbytes_per_s), rel=0.06)


def test_a_notify_depends_on_nodes_alone():
    """8.3 ms of waiting in a notify of 8 nodes, at 4,096 tokens, used to make 4 nodes 94 % too slow."""
    for op in ("dispatch", "combine"):
        assert max(usable(f"{op}_notify", 8).values()) < 150
    beyond = {nodes: simulated("per_rank", nodes, [4096]) - simulated("per_rank", nodes, [1]) for nodes in (4, 8)}
    more_bytes = nodes_away(4, 8, 256) / nodes_away(8, 8, 256)
    assert beyond[4] / beyond[8] == pytest.approx(np.full((1, 2), more_bytes), rel=0.03)


@pytest.mark.parametrize("dispatch", KERNELS)
@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_deepep_at_sizes_left_out(dispatch, nodes):
    """Every second size predicted by the others, as the law interpolates and extrapolates."""
    tokens, times = measured(dispatch, nodes)
    off = []
    for phase in (0, 1):
        for held in (0, 1):
            kept = np.arange(len(tokens)) % 2 == held
            known = np.maximum.accumulate(times[kept, phase])
            at = np.concatenate([[0.0], tokens[kept].astype(float)])
            law = PortLaw(known[0], at, np.concatenate([[0.0], known - known[0]]), "", False)
            off.append(np.abs((law.fixed_ns + law.busy(tokens[~kept])) / times[~kept, phase] - 1))
    assert np.concatenate(off).mean() <= 0.12


@pytest.mark.parametrize("slots", [0, 256, 288])
def test_skewed_layers_with_and_without_redundant_experts(slots):
    file = DATA / "moe" / "aic_wideep_moe_skew_eplb.csv"
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    rows = pd.read_csv(file)
    rows = rows[(rows.gpu == "H100-SXM5-80GB") & (rows.eplb == (slots > 0)) & (rows.model == "DeepSeek-V3")]
    rows = rows[rows.num_slots == slots] if slots else rows
    laws, off = Laws(calibration_named("h100")), []
    for distribution, some in rows.groupby("distribution"):
        ns = laws.fused_moe(
            some.num_tokens, some.ep, dtype="fp8_block", model="DeepSeek-V3", distribution=distribution,
            library="trtllm-wideep", eplb_slots=slots,
        ).ns  # fmt: skip
        off.append(np.abs(ns / (some.latency_us * 1e3) - 1))
    assert np.concatenate(off).mean() <= 0.10


EVEN = "workload.trace.synthetic={popularity_skew: 0, request_taste: 0, stickiness: 0, prompt_tokens: 0}"


def iterations(name, column, *overrides):
    """(batch, overlap) → ns of an iteration of an experiment in configs."""
    simulator, runs = Simulator(), prepare(load_experiment(CONFIGS / f"{name}.yaml", overrides)).runs
    return {(run.batch, run.assumptions.overlap): simulator.record(run)["row"][column] for run in runs}


@pytest.fixture(scope="module")
def decodes():
    return iterations("two_batches", "iteration_ns", EVEN, "workload.layers=1", "workload.decode_steps=2")


def gain(found, batch):
    """By two batches, in percent."""
    return 100 * (found[batch, "none"] / found[batch, "two_batch"] - 1)


@pytest.mark.parametrize(("requests", "published"), [(32, -27.0), (256, 25.5)])
def test_two_batches_gain_and_lose_as_published_on_72_h100(decodes, requests, published):
    """SGLang, large-scale EP on 96 H100 (LMSYS, May 2025): EP72, 2,000 tokens of context."""
    assert gain(decodes, 72 * requests) == pytest.approx(published, abs=10)


@pytest.mark.parametrize(("overlap", "published"), [("none", 22310 / 1.255), ("two_batch", 22310)])
def test_decode_on_72_h100(decodes, overlap, published):
    """The same, tokens a second and node at 256 requests a GPU."""
    assert 8 * 256 / decodes[72 * 256, overlap] * 1e9 == pytest.approx(published, rel=0.2)


def test_prefill_on_32_h100():
    """The same, EP32, 16,384 tokens a GPU: 27 to 35 % by two batches."""
    found = iterations("two_batches_prefill", "prefill_iteration_ns")
    assert 17 <= gain(found, 128) <= 45
    assert 8 * 16384 / found[128, "two_batch"] * 1e9 == pytest.approx(59337, rel=0.2)  # perfectly balanced


def test_a_layer_of_qwen3_on_8_h200():
    """Libra, table 2: dispatch 0.73 ms at an imbalance that it does not state, 32 x 1024 tokens in BF16. Its experts
    take 5 times longer than any fused layer that was measured: docs/clusters.md.
    """
    node, model = cluster(name="h200_node"), load_model("qwen3-235b-a22b")
    compute = node.compute.model_copy(update={"dtype": "bf16", "peak_flop_per_s": 989e12})
    run = engine_of(node.model_copy(update={"compute": compute}), model)
    skewed, even = (step(run, demand_of(model, 8, 4096, skew, seed=3)) for skew in (0.7, 0.0))
    assert skewed[1][0] == pytest.approx(0.73e6, rel=0.15)
    assert skewed[0] > even[0]
    assert skewed[1][2] > even[1][2]


# Executions: chosen by name, and added from outside the package.

TOKEN_NS = 3.0


class Toy:
    """Every token takes its die 3 ns; nothing moves."""

    def __init__(self, setup):
        self._dies, self.steps = setup.machine.dies, 0

    def step(self, order, now_ns):
        self.steps += 1
        return now_ns + TOKEN_NS * np.bincount(order.plan.die, order.plan.tokens, self._dies).max()

    def log(self, begin_ns):
        return {}

    def gemm_time(self):
        return GemmTime(0.0, 0.0)


def check(outcome, run):
    assert (outcome.step_ns == TOKEN_NS * outcome.load.max(axis=2)).all()
    assert (outcome.load.sum(axis=2) == run.demands.tokens.sum(axis=2)).all()
    assert outcome.tally.hops.sum() == 0


@pytest.mark.parametrize(("name", "set_name"), [("allo+pred", "published"), ("allo-paper", "physical")])
def test_a_run_that_is_over_leaves_no_memory(name, set_name):
    """Memories are large: several would stand beside each other if they waited for the collector of cycles."""
    run = small_engine_of(small_system(), small_model(), policy(name), load_assumptions(set_name))
    run.run()
    left = [weakref.ref(each) for each in (run.engine, run.engine.execution)]
    gc.disable()
    try:
        del run
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


def test_every_value_of_the_assumption_has_a_module():
    assert list(ASSUMPTIONS["execution"])
    for name in ASSUMPTIONS["execution"]:
        assert callable(import_module(f"archsim.engine.{name}").build)
    for name in ("physical", "published"):
        assert load_assumptions(name).execution == "weight_streaming"


def test_the_default_streams_weights():
    assert isinstance(
        small_engine_of(small_system(), small_model(), policy("ep"), load_assumptions("physical")).engine.execution,
        WeightStreaming,
    )


def test_an_execution_of_a_user_runs():
    run = small_engine_of(
        small_system(),
        small_model(),
        policy("ep"),
        load_assumptions("physical", execution="test_expert_parallel:Toy", decision_cost="free"),
    )
    check(run.run(), run)
    assert run.engine.execution.steps == np.count_nonzero(run.demands.tokens.any(axis=2))


def test_a_module_and_a_value_are_an_execution(monkeypatch):
    monkeypatch.setitem(sys.modules, "archsim.engine.toy", SimpleNamespace(build=Toy))
    assumptions = load_assumptions("physical", decision_cost="free").model_copy(update={"execution": "toy"})
    run = small_engine_of(small_system(), small_model(), policy("ep"), assumptions)
    check(run.run(), run)


def test_the_analytical_engine_asks_the_same_execution():
    from support.small_runs import demand_of, replay

    system, model, spec = small_system(), small_model(), policy("ep")
    assumptions = load_assumptions("physical", execution="test_expert_parallel:Toy", decision_cost="free")
    run = replay(system, model, spec, assumptions, demand_of(model, system, spec), engine=AnalyticalEngine)
    check(run.run(), run)


def test_unknown_executions_are_told():
    with pytest.raises(SpecError, match="'weight_streaming'"):
        load_assumptions("physical", execution="weight_streamin")


def test_a_sweep_runs_it_and_its_code_is_part_of_the_run(tmp_path):
    from support.tiny import tiny

    own = tiny(
        tmp_path,
        "assumptions={set: physical, execution: 'test_expert_parallel:Toy'}",
        "policies=[ep]",
        "workload.batch=[12]",
    )
    run = prepare(own).runs[0]
    assert run.own_functions == ("test_expert_parallel:Toy",)
    assert Simulator().record(run)["row"]["hop_messages"] == 0
    plain = prepare(tiny(tmp_path, "assumptions=physical", "policies=[ep]", "workload.batch=[12]")).runs[0]
    assert run.code != plain.code and run.key != plain.key

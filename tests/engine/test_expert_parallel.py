"""Expert parallelism on clusters: measured transfers, skew, nodes, NICs, bytes through ports, two engines, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import KERNELS, cluster, demand_of, engine_of, step

from archsim.balancers import eplb
from archsim.base.errors import ArchsimError, CapacityError, SpecError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.cluster.ports import refuse_unequal
from archsim.engine.engine import EventEngine
from archsim.engine.executions.expert_parallel import ExpertParallel
from archsim.engine.state import UNITS
from archsim.laws.laws import Laws
from archsim.laws.tables import LawMissing
from archsim.policies.placement import Placement
from archsim.specs.calibration_files import calibration_named
from archsim.specs.library import load_model, load_system

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
            assert (parts[[0, 3]] > measured).all()  # and a notify: tests/engine/test_clusters_published.py
        else:
            assert parts[[0, 3]] == pytest.approx(measured, rel=0.01)


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
    ("all_gather", "reduce_scatter"), ("all_gather_all_reduce", "all_reduce"),
])
def test_all_gather_takes_the_measured_time_whatever_the_routing(dispatch, sums):
    run = engine_of(cluster(), PLAIN, dispatch=dispatch)
    n_bytes = 8 * 512 * np.array([7168 + 4 * 56, 2 * 7168])
    measured = [
        float(LAWS.collective(op, each, ranks=8).ns)
        for op, each in zip(("all_gather", sums), n_bytes, strict=True)
    ]
    for skew in (0.0, 1.0):
        _, parts = step(run, demand_of(PLAIN, 8, 512, skew, seed=2))
        assert parts[[0, 3]] == pytest.approx(measured)


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
    with pytest.raises(LawMissing, match="has no kernel of nccl for dispatch: per_rank .it has: .*nvlink_two_sided"):
        nvl72(16, library="nccl")


def test_refusals_say_what_would_fit():
    node = load_system("h100_node")
    cases = (
        (cluster(2, law=None), {}, SpecError, "fabric.levels.1.*give law: h100/inter_node"),
        (cluster(2, law="h100/intra_node"), {}, SpecError, "no law of this level; expected h100/inter_node"),
        (cluster(2, law="a100/inter_node"), {}, LawMissing, "has no kernel normal.*such as law: h100/intra_node"),
        (cluster(2), {"dispatch": "all_to_all"}, LawMissing, "not measured between nodes.*dispatch: per_rank"),
        (cluster(2), {"dispatch": "all_gather"}, SpecError, "inside a node alone.*dispatch: per_rank"),
        (node, {"gemm": "roofline"}, SpecError, "needs gemm: grouped, not roofline"),
        (node, {"execution": "weight_streaming", "dispatch": "all_gather"}, SpecError, "execution: expert_parallel"),
        (cluster(fabric={"levels": [{"ring": 8, "bandwidth": "450 GB/s"}]}), {}, SpecError, "switches with laws"),
        (cluster(3), {}, SpecError, "256 experts do not divide over 24 GPUs; 16 or 32 GPUs.*8 redundant experts"),
        (node, {"capacity": "finite"}, CapacityError, "about 10 dies or more instead of 8"),
    )
    for system, changes, kind, told in cases:
        with pytest.raises(kind, match=told):
            engine_of(system, **changes)


def test_no_log_of_a_step():
    run = engine_of(cluster())
    step(run, demand_of(PLAIN, 8, 128))
    with pytest.raises(ArchsimError, match="a timeline needs weight_streaming"):
        run.log(0.0)


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

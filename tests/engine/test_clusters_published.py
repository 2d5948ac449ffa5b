"""Clusters against what was measured and published: DeepEP over nodes, skewed layers, a deployment on 96 H100."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.clusters import KERNELS, cluster, demand_of, engine_of, step
from support.shared import shared_path

from archsim.engine.cluster.laws import PortLaw
from archsim.laws.laws import Laws
from archsim.laws.transfers import nodes_away
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.calibration_files import calibration_named
from archsim.specs.library import load_experiment, load_model
from calibration.measurements.reading import read_measurements

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DATA = shared_path() / "data" / "calibration"
NORMAL = "aic_deepep_normal_internode.csv"
COLUMNS = {
    "per_rank": (
        NORMAL,
        [["dispatch_transmit_us", "dispatch_notify_us"], ["combine_transmit_us", "combine_notify_us"]],
    ),
    "per_token_expert": ("aic_deepep_low_latency_internode.csv", [["dispatch_us"], ["combine_us"]]),
}
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
    """tokens → us of what is read of a part of DeepEP's normal kernels, most SMs: not what a congested network slowed.
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
        sent, told = usable(op, 8), np.median(list(usable(f"{op}_notify", 8).values()))
        found = simulated("per_rank", 8, sent)[:, phase] / 1e3
        off.append(np.abs(found / (np.array(list(sent.values())) + told) - 1))
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

"""Two batches never beat their kernels; whole iterations are the sum of their parts and of their layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import archsim
from archsim.iteration.overlap import DECODES, HOW, NOTHING, PROMPTS, Layer, Rest, Sms, compose, of_halves
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment

FREE = Sms(), Sms()
NS = st.floats(0, 1e6, allow_subnormal=False)
PHASES = st.sampled_from([DECODES, PROMPTS])
SCENARIO = {
    "name": "laws",
    "systems": [{"like": "h20_cluster", "name": "h20"}],
    "models": ["deepseek-v3"],
    "workload": {
        "trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 4096, "decode_steps": 2, "layers": 2, "context": 900,
    },
    "policies": ["ep"],
    "assumptions": {
        "set": "physical", "execution": "expert_parallel", "gemm": "grouped", "dispatch": "per_rank", "combine": "bf16",
        "transfer_software": "charged", "migration": "free", "capacity": "unbounded",
    },
    "engine": "analytical",
}  # fmt: skip
PARTS = ("attention", "projections", "dense", "experts", "transfers", "all_reduce", "head", "host")


def two_batches(*parts):
    return compose(HOW["two_batch"], *parts)


@given(NS, NS, NS, NS, NS, NS, PHASES, st.floats(0, 0.5))
def test_two_batches_take_at_least_their_kernels_and_their_transfers(d, s, k, c, first, then, phase, share):
    half, rest, sms = Layer(d, s, k, c), Rest(first, then), (Sms(share=share), Sms(share=share))
    found = two_batches(Layer(2 * d, 2 * s, 2 * k, 2 * c), half, (s, k), rest, sms, phase)
    assert found.shared >= 2 * s and found.experts >= 2 * k and found.dispatch >= 0 and found.combine >= 0
    assert found.total + 2 * sum(rest) >= max(2 * (d + c), d + s + k + c + sum(rest)) * (1 - 1e-9)
    most = 2 * (d + c) + 2 * (s + k) / (1 - share)
    assert found.total <= most + 1e-9 * (most + sum(rest))


@given(NS, NS, PHASES)
def test_without_transfers_two_batches_are_their_kernels(s, k, phase):
    whole = Layer(0.0, s, k, 0.0)
    found = two_batches(whole, Layer(0.0, s / 2, k / 2, 0.0), (s, k), Rest(3.0, 5.0), FREE, phase)
    assert tuple(found) == pytest.approx(tuple(whole), abs=1e-6)


def test_kernels_that_hide_a_transfer_hide_all_of_it():
    half = Layer(10.0, 0.0, 100.0, 20.0)
    assert two_batches(half, half, (0.0, 0.0), Rest(100.0, 100.0), FREE, DECODES).total == pytest.approx(200)
    taking = two_batches(half, half, (0.0, 0.0), Rest(100.0, 100.0), (Sms(ns=4.0), Sms(ns=6.0)), DECODES)
    assert taking.dispatch + taking.combine == pytest.approx(2 * (4 + 6))  # SMs that send and receive compute nothing


def test_transfers_longer_than_all_kernels_are_what_counts():
    half = Layer(1000.0, 1.0, 2.0, 3000.0)
    assert two_batches(half, half, (0.0, 0.0), NOTHING, FREE, PROMPTS).total >= 2 * 4000


def test_halves_are_never_faster_than_the_whole():
    assert of_halves(100.0, 40.0) == 100
    assert of_halves(100.0, 60.0, 30.0, 0.25) == 120 + 2 * 10


def rows_of(*overrides):
    simulator = Simulator()
    return [simulator.record(run)["row"] for run in prepare(load_experiment(SCENARIO, overrides)).runs]


@pytest.fixture(scope="module")
def overlapped():
    """Row by overlap, of a decode."""
    return {each: rows_of(f"assumptions.overlap={each}")[0] for each in ("none", "shared_expert", "two_batch")}


@pytest.mark.parametrize("overlap", ["none", "shared_expert", "two_batch"])
def test_parts_sum_to_the_iteration_and_layers_to_their_part(overlapped, overlap):
    row = overlapped[overlap]
    assert sum(row[f"iteration_{part}_ns"] for part in PARTS) == pytest.approx(row["iteration_ns"])
    layers = row["decode_ns"] / 2 * 58 / 2  # two steps, two of 58 layers
    assert row["iteration_experts_ns"] + row["iteration_transfers_ns"] == pytest.approx(layers, rel=0.01)


def test_no_part_is_below_what_its_kernels_take_undivided(overlapped):
    alone = overlapped["none"]
    for overlap in ("shared_expert", "two_batch"):
        for part in ("attention", "projections", "dense", "experts", "head"):
            assert overlapped[overlap][f"iteration_{part}_ns"] >= alone[f"iteration_{part}_ns"] * (1 - 1e-9)
        assert overlapped[overlap]["iteration_transfers_ns"] <= alone["iteration_transfers_ns"]


POLICIES = (
    "ep",
    {"name": "eplb", "placement": {"name": "redundant", "slots": 2}, "allocation": "even",
     "rebalancing": {"name": "eplb", "every_steps": 0}},
    {"name": "waterfill", "allocation": "even", "shared": "waterfill"},
    {"name": "lplb", "allocation": "lplb"},
)  # fmt: skip


DRAWS, BATCHES = 12, 6  # of traffic; of batches under each, with every policy


def gains(rng, overlap):
    """[(layer, iteration)]: decode and iteration of `ep` over those of other policies, by batch, under one traffic."""
    batches = sorted({int(each) for each in 2 ** rng.uniform(6, 13, BATCHES)})
    traffic = f"{{prompt_tokens: 0, popularity_skew: {rng.uniform(0, 1.5):.2f}, seed: {rng.integers(1 << 20)}}}"
    overrides = (
        f"assumptions.overlap={overlap}", f"workload.batch={batches}", f"workload.trace.synthetic={traffic}",
        "workload.layers=1", "workload.decode_steps=1",
    )  # fmt: skip
    simulator = Simulator()
    runs = prepare(load_experiment(SCENARIO | {"policies": POLICIES}, overrides)).runs
    rows = [simulator.record(run)["row"] for run in runs]
    alone = {row["batch"]: row for row in rows if row["policy"] == "ep"}
    pairs = [(alone[row["batch"]], row) for row in rows if row["policy"] != "ep"]
    return [tuple(ep[name] / row[name] - 1 for name in ("decode_ns", "iteration_ns")) for ep, row in pairs]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_layer_and_iteration_agree_on_who_gains(seed):
    overlap = ("none", "shared_expert", "two_batch")[seed % 3]
    found = np.array(gains(np.random.default_rng(seed), overlap))
    assert len(found) == BATCHES * (len(POLICIES) - 1)  # 216 draws in all
    large = np.abs(found).max(axis=1) >= 0.005
    assert np.array_equal(np.sign(found[large, 0]), np.sign(found[large, 1]))


def test_pages_show_the_prefill_as_the_decodes():
    row = archsim.run(
        load_experiment(SCENARIO, ["workload.trace.synthetic.prompt_tokens=64", "workload.batch=256"])
    ).runs.rows[0]
    assert row["prefill_iteration_ns"] > row["iteration_ns"] > 0

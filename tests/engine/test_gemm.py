"""``gemm: grouped``: on a die of its own the engines take the time of the fitted law, and say what it consists of."""

from copy import copy, deepcopy
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.html_page import text_of_report
from support.small_runs import replay, scenario_of

import archsim
from archsim.api import run as api_run
from archsim.base.causes import Cause
from archsim.base.errors import SpecError
from archsim.base.validation import validate
from archsim.base.yaml import Place, Tree
from archsim.cli.main import main
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import RunDemand, build_run_demand
from archsim.engine.engine import EventEngine
from archsim.engine.gemm import gemm_model
from archsim.engine.loop import Replay
from archsim.engine.machine import build_machine
from archsim.laws.calibration_files import calibration_named
from archsim.laws.die import GroupedLaw, Kernels, Vectors, kernel_bounds
from archsim.laws.gemm import ExpertGemm, Rates, gemm_times
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes
from archsim.laws.tables import LawMissing
from archsim.laws.transfers import law_of as fitted_law
from archsim.laws.transfers import link_table
from archsim.machine.system import D2DSpec, SystemSpec
from archsim.show.page import write_report
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic

H100 = calibration_named("h100")
EP = PolicySpec(name="ep", **PRESETS["ep"])
ALONE = {
    "gemm": "grouped", "activations": "replicated", "decision_cost": "free", "tables": "unbounded", "reads": "in_order",
}  # fmt: skip


def one_die(peak=1979e12, hbm=3.35e12, launch="gpu", library=None, dtype="fp8_block", llc="44 MiB"):
    """Its HBM reads as fast as the measured kernels; its LLC holds some slices."""
    return SystemSpec.model_validate(
        {
            "name": "one", "source": "test", "mesh": {"x": 1, "y": 1}, 
            "hbm": {"bandwidth": f"{hbm} B/s", "capacity": "90 TB", "efficiency": 0.95},
            "d2d": {"bandwidth": "1 TB/s"}, "llc": {"capacity": llc}, "launch": launch,
            "compute": {"peak": f"{peak} FLOP/s", "dtype": dtype, "calibration": "h100", "library": library},
        }
    )  # fmt: skip


def experts_of(name, experts, **changes):
    layers = {"layers": 4, "shared_experts": 0, "top_k": 1, "experts": experts}
    return load_model(name).model_copy(update=layers | changes)


def run(system, model, tokens, engine=EventEngine, **changes):
    """One step with these tokens of every expert, int[expert]."""
    tokens = np.asarray(tokens, np.int32).reshape(1, 1, -1)
    demand = RunDemand(
        tokens=tokens, first_seen=np.zeros(tokens.shape, np.int16), has_prefill=False,
        layer_ids=np.array(model.moe_layer_ids[:1], np.int32), top_k=1, batch=int(tokens.max()), digest="",
    )  # fmt: skip
    assumptions = load_assumptions("physical", **ALONE | changes)
    replay = Replay(engine(scenario_of(system, model, EP, assumptions), demand.layer_ids), demand)
    return replay.run()


def law_of(system, model, tokens):
    compute = system.compute
    law = GroupedLaw(
        H100, MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k), model.experts / system.dies,
        compute.dtype, Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s), compute.library,
        system.launch == "gpu",
    )  # fmt: skip
    tokens = np.asarray(tokens)
    return law.times(np.array([float(tokens.sum())]), np.array([float((tokens > 0).sum())]))


CASES = {  # (model, tokens of every expert)
    "128 small experts": ("qwen3-235b-a22b", [2] * 128),
    "one expert with 1,024 tokens": ("qwen3-235b-a22b", [1024]),
    "four experts of three slices": ("deepseek-v3", [16, 1, 0, 64]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
@pytest.mark.parametrize("launch", ["gpu", "local_cp"])
def test_alone_on_a_die_a_step_takes_the_time_of_the_law(case, engine, launch):
    name, tokens = CASES[case]
    system, model = one_die(launch=launch), experts_of(name, len(tokens))
    times, outcome = law_of(system, model, tokens), run(system, model, tokens, engine)
    assert outcome.decode_ns == pytest.approx(times.ns[0], rel=0.01)
    assert outcome.tally.bound_ns.sum() == pytest.approx(outcome.decode_ns, rel=1e-9)
    assert (outcome.tally.bound_ns >= -1e-6).all()
    low, high = outcome.decode_residual_ns
    assert low == pytest.approx(times.ns[0] * times.low[0], rel=0.02)
    assert high == pytest.approx(times.ns[0] * times.high[0], rel=0.02)


@pytest.mark.parametrize("case", CASES)
def test_both_engines_agree_where_nothing_contends(case):
    name, tokens = CASES[case]
    system, model = one_die(), experts_of(name, len(tokens))
    event, walked = (run(system, model, tokens, engine) for engine in (EventEngine, AnalyticalEngine))
    assert walked.decode_ns == pytest.approx(event.decode_ns, rel=1e-3)
    assert walked.tally.bound_ns[Cause.COMPUTE] == pytest.approx(event.tally.bound_ns[Cause.COMPUTE], rel=0.01)


def test_only_multiplying_counts_as_compute():
    system, model = one_die(), experts_of("qwen3-235b-a22b", 128)
    few = run(system, model, [1] * 128)
    flop_ns = 128 * 6 * model.hidden * model.expert_ffn / system.compute.peak_flop_per_s * 1e9
    assert few.tally.bound_ns[Cause.COMPUTE] < 4 * flop_ns < 0.1 * few.decode_ns
    assert few.tally.bound_ns[Cause.LAUNCH] > 15_000  # of a GPU's kernels
    many = run(system, model, [4096] * 128)
    assert many.tally.bound_ns[Cause.COMPUTE] == pytest.approx(4096 * flop_ns, rel=0.01)  # at the die's peak
    assert many.tally.bound_ns[Cause.COMPUTE] > 0.25 * many.decode_ns


def test_a_local_cp_saves_the_launch_of_a_gpu():
    model, tokens = experts_of("qwen3-235b-a22b", 1), [1024]
    gpu, local_cp = (run(one_die(launch=launch), model, tokens).decode_ns for launch in ("gpu", "local_cp"))
    assert 10_000 < gpu - local_cp < 60_000


@pytest.mark.parametrize("local", [None, 32])
def test_a_law_moved_to_other_rates_is_the_law_of_those_rates(local):
    sizes, rates = MoeSizes(7168, 2048, 256, 8), Rates(7e15, 2e12)
    own = GroupedLaw(H100, sizes, local, "fp8_block", rates)
    plain = GroupedLaw(H100, sizes, local, "fp8_block")
    pairs, active, tokens = np.array([3.0, 70.0, 900.0]), np.array([2.0, 20.0, 32.0]), np.array([3.0, 60.0, 400.0])
    before = plain.times(pairs, active, tokens).ns.copy()
    expected, moved = (law.times(pairs, active, tokens) for law in (own, plain.on(rates)))
    for one, other in zip(expected, moved, strict=True):
        assert (one == other).all()
    assert (plain.times(pairs, active, tokens).ns == before).all() and (before != expected.ns).any()


def test_copies_of_engines_share_what_never_changes():
    law, system = GroupedLaw(H100, MoeSizes(7168, 2048, 256, 8), None, "fp8_block"), load_system("dojo")
    assert deepcopy(law) is law and deepcopy(system) is system


@settings(max_examples=examples(12, 4))
@given(
    tokens=st.lists(st.integers(0, 300), min_size=2, max_size=40).filter(any),
    peak=st.floats(1e14, 1e16), hbm=st.floats(5e11, 2e13), faster=st.floats(1.0, 8.0),
    dtype=st.sampled_from(["bf16", "fp8", "fp8_block"]),
)  # fmt: skip
def test_a_faster_array_or_hbm_is_never_slower(tokens, peak, hbm, faster, dtype):
    model = experts_of("qwen3-235b-a22b", len(tokens))
    slow, more_peak, more_hbm = (
        law_of(one_die(peak * by, hbm * of, dtype=dtype), model, tokens).ns[0]
        for by, of in ((1, 1), (faster, 1), (1, faster))
    )
    assert more_peak <= slow * (1 + 1e-9) and more_hbm <= slow * (1 + 1e-9)


@pytest.mark.parametrize("faster", [{"peak": 4 * 1979e12}, {"hbm": 4 * 3.35e12}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_faster_die_runs_a_step_no_slower(case, faster):
    name, tokens = CASES[case]
    model = experts_of(name, len(tokens))
    assert run(one_die(**faster), model, tokens).decode_ns <= run(one_die(), model, tokens).decode_ns * 1.0001


def test_launches_follow_the_tokens_and_shared_experts_stand_apart():
    system, model = load_system("dojo"), load_model("deepseek-v3")
    assumptions = load_assumptions("physical", gemm="grouped")
    machine, _ = build_machine(scenario_of(system, model, EP, assumptions))
    gemm = gemm_model(system, model, assumptions, machine)
    routed, die = np.array([1, 1, 0]), np.array([3, 3, 3])
    arrived = np.full(machine.dies, 25.0)
    times = gemm.of(np.array([10, 20, 5]), routed, np.full(3, machine.slice_bytes), die, arrived)
    assert np.flatnonzero(times.launch_ns).tolist() == [3]
    assert times.launch_ns[3] == pytest.approx(3 / system.decision.local_clock_hz * 1e9)  # two sub-kernels and a start
    assert (times.multiply_ns + times.bytes_ns <= times.compute_ns * (1 + 1e-9)).all()


def test_a_model_that_was_not_measured_has_the_law_of_the_nearest_shape():
    system, measured, other = one_die(), experts_of("qwen3-235b-a22b", 8), experts_of("olmoe-1b-7b", 64)
    assert law_of(system, measured, [4] * 8).extrapolated.tolist() == [False]
    found = law_of(system, other, [4] * 64)
    assert found.extrapolated.tolist() == [True]
    assert found.low[0] > law_of(system, measured, [4] * 8).low[0]
    outcome = run(system, other, [4] * 64)
    assert outcome.gemm_law.startswith("nearest measured shape: ") and outcome.gemm_extrapolated == pytest.approx(1.0)


def test_a_rank_by_name_takes_the_time_of_its_library():
    model = load_model("deepseek-v3")
    sizes = MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k)
    law = GroupedLaw(H100, sizes, 32, "fp8_block", None, "trtllm")
    measured = Laws(H100).fused_moe(
        256, ep=8, dtype="fp8_block", model="DeepSeek-V3", library="trtllm", pairs=256, active_experts=32
    )
    assert law.times(np.array([256.0]), np.array([32.0])).ns[0] == pytest.approx(float(measured.ns), rel=1e-6)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_experts_after_deepep_take_the_time_of_the_masked_kernel(gpu):
    law = GroupedLaw(calibration_named(gpu), MoeSizes(7168, 2048, 256, 8), 32, "fp8_block", None, "sglang-deepep")
    measured = Laws(calibration_named(gpu)).fused_moe(
        256, ep=8, dtype="fp8_block", model="DeepSeek-V3", library="sglang-deepep", kernel="deepepmoe-generation"
    )
    assert law.times(np.array([256.0]), np.array([32.0])).ns[0] == pytest.approx(float(measured.ns), rel=1e-6)


@pytest.mark.parametrize("gpu", sampled(["h20", "h100", "h200", "b200"], lambda gpu: gpu == "h100"))
@pytest.mark.parametrize("local", [16, 32])
def test_a_kernel_takes_longer_the_more_pairs_and_never_jumps(gpu, local):
    model = load_model("deepseek-v3")
    sizes = MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k)
    law = GroupedLaw(calibration_named(gpu), sizes, local, "fp8_block")
    pairs = np.geomspace(256, 400_000, 800)  # beyond the last point of every table
    found = law.times(pairs, np.full(len(pairs), float(local)))
    steps = found.ns[1:] / found.ns[:-1]
    assert steps.min() > 0.995 and steps.max() < 1.05
    assert found.extrapolated[-1] and not found.extrapolated[0]


def narrowed(keep):
    return H100.model_copy(update={"moe": tuple(table for table in H100.moe if keep(table))})


def test_a_dtype_that_was_not_measured_has_the_law_of_a_wider_one():
    """FP8 by the bytes of its weights and its peak, from layers measured in BF16: within a fifth of those in FP8."""
    sizes, pairs = MoeSizes(7168, 2048, 256, 8), np.array([8.0, 64, 512, 4096, 32768])
    active = np.minimum(32, pairs)
    measured, other = (
        GroupedLaw(calibration, sizes, 32, "fp8").times(pairs, active)
        for calibration in (H100, narrowed(lambda table: table.dtype == "bf16"))
    )
    assert other.ns == pytest.approx(measured.ns, rel=0.2)
    assert other.extrapolated.all() and not measured.extrapolated[:4].any()


def test_without_fused_layers_the_message_says_what_to_do():
    with pytest.raises(LawMissing, match="`moe`.*`gemm: calibrated`"):
        GroupedLaw(narrowed(lambda table: False), MoeSizes(7168, 2048, 256, 8), 32, "fp8")


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
def test_kernels_of_another_engine_take_a_factor_of_the_time_but_for_the_launch(factor):
    """And never less than FLOP over peak."""
    rates, sizes = Rates(989e12, 3.35e12), MoeSizes(4096, 1536, 128, 8)
    pairs, active = np.array([64.0, 20000.0]), np.array([16.0, 16.0])
    own, other = (
        GroupedLaw(H100, sizes, None, "bf16", rates, factor=each).times(pairs, active, pairs / 4)
        for each in (1.0, factor)
    )
    expected = own.launch_ns + np.maximum(factor * (own.ns - own.launch_ns), own.multiply_ns)
    assert np.allclose(other.ns, expected) and np.array_equal(other.launch_ns, own.launch_ns)
    parts = other.launch_ns + other.multiply_ns + other.inefficiency_ns + other.permute_ns
    assert np.allclose(parts + other.expert_ns + other.excess_ns, other.ns)


DIE, SIZES = Rates(1000e12, 2e12), MoeSizes(7168, 2048, 256, 8)


def times_with(**kernels):
    law = GroupedLaw(H100, SIZES, None, "fp8", launched=False).on(DIE, None, Kernels(**kernels))
    pairs = np.array([64.0, 20000.0])
    return law.times(pairs, np.array([16.0, 16.0]), pairs / 4)


def test_parts_of_kernels_of_a_die_take_factors_of_their_own():
    plain, copied, wide = times_with(), times_with(permute=2.0), times_with(multiply=2.0)
    assert (copied.permute_ns > plain.permute_ns).all() and np.array_equal(copied.multiply_ns, plain.multiply_ns)
    assert (wide.expert_ns == 2 * plain.expert_ns).all() and np.array_equal(wide.permute_ns, plain.permute_ns)
    every = times_with(permute=2.0, quantise=2.0, finalise=2.0)
    assert np.allclose(every.permute_ns, 2 * plain.permute_ns)
    fast = times_with(multiply=0.02)
    assert (fast.multiply_ns + fast.inefficiency_ns >= 0.9 * plain.multiply_ns).all()  # FLOP over peak, as corrected


def test_kernels_of_a_die_lie_between_the_roofline_and_slow_gpus():
    bounds = kernel_bounds(H100, SIZES, "fp8", DIE, (0.28, 0.5))
    assert set(bounds) == set(Kernels._fields)
    assert all(least <= 1 <= most for least, most in bounds.values())
    least = {part: ends[0] for part, ends in bounds.items()}
    assert np.allclose(times_with(multiply=least["multiply"]).inefficiency_ns, 0, atol=1)
    few_lanes = kernel_bounds(H100, SIZES, "fp8", DIE, (0.28, 0.5), Vectors(1000, 1e9))
    assert few_lanes["quantise"][0] > bounds["quantise"][0] and few_lanes["multiply"] == bounds["multiply"]


# ``gemm: calibrated`` in the event engine: it takes what the fitted law says, counts nothing twice, and says
# where it guesses.

APART = {"gemm": "calibrated", "reads": "together", "memory": "experts"}  # every slice is a GEMM of its own
TOKENS = (1, 5, 48, 129, 512, 3000)
ENGINE_CASES = [
    ("h100", "bf16", None, 989e12, "deepseek-v3"),
    ("h100", "fp8", "vllm", 1979e12, "qwen3-235b-a22b"),
    ("a100", "bf16", None, 312e12, "qwen3-235b-a22b"),
    ("h100", "fp8_block", None, 1979e12, "deepseek-v3"),
    ("b200", "fp8", None, 9000e12, "deepseek-v3"),  # a die that does not exist
]
SPARSE = ("h800", "fp8_block", None, 1979e12, "deepseek-v3")  # DeepGEMM's, six shapes at three M


def one_expert(name, **changes):
    return load_model(name).model_copy(update={"experts": 1, "top_k": 1, "shared_experts": 0, "layers": 4} | changes)


def a_die(calibration="h100", dtype="bf16", library=None, peak=989e12, hbm=3.35e12, llc_bytes=2**20):
    """A die that holds at most one slice in flight, and keeps none in its LLC."""
    system = load_system("isca26_dojo")
    compute = {"calibration": calibration, "dtype": dtype, "library": library, "peak_flop_per_s": peak}
    return system.model_copy(
        update={
            "mesh": system.mesh.model_copy(update={"x": 1, "y": 1}),
            "hbm": system.hbm.model_copy(update={"bandwidth_bytes_per_s": hbm}),
            "llc": system.llc.model_copy(update={"capacity_bytes": llc_bytes}),
            "compute": system.compute.model_copy(update=compute),
        }
    )


def fitted_ns(system, model, tokens):
    """Gate, up and down product by the law, ns."""
    compute, out, total = system.compute, np.empty(1), 0.0
    rates = Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s)
    named = calibration_named(compute.calibration)
    expert = ExpertGemm(named, model.hidden, model.expert_ffn, compute.dtype, rates, compute.library)
    for curve in (expert.gate, expert.gate, expert.down):
        gemm_times(curve.m, curve.ns[None], np.zeros(1, np.int64), np.array([tokens]), out)
        total += out[0]
    return total


def run_one(system, model, tokens, **changes):
    source = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=1, decode_steps=1), tokens)
    demand = build_run_demand(source, tokens, 1, 0, origin_dies=1, predictor=None)
    assumptions = load_assumptions("physical", **APART, activations="ignored", decision_cost="free", **changes)
    return replay(system, model, EP, assumptions, demand).run()


@pytest.mark.parametrize(
    ("case", "changes"),
    sampled(
        product([*ENGINE_CASES, SPARSE], ({}, {"contention": "reserved"})),
        lambda each: each[0] in (SPARSE, *ENGINE_CASES[:2]) and bool(each[1]) == (each[0] is ENGINE_CASES[1]),
    ),
    ids=str,
)
def test_one_expert_on_one_die_takes_what_the_law_says(case, changes):
    """Weights that come one slice after the other: the measured time holds their reading, the engine adds none."""
    calibration, dtype, library, peak, name = case
    model, system = (
        one_expert(name),
        a_die(calibration, dtype, library, peak, 8e12 if calibration == "b200" else 2e12),
    )
    for tokens in TOKENS:
        step_ns = run_one(system, model, tokens, **changes).step_ns[1, 0]
        assert step_ns == pytest.approx(fitted_ns(system, model, tokens), rel=0.005)


def times_of(system, model, tokens):
    assumptions = load_assumptions("physical", **APART)
    machine, _ = build_machine(scenario_of(system, model, EP, assumptions))
    read = np.full(len(tokens), machine.slice_bytes)
    ones = np.ones(len(tokens), np.int64)
    return gemm_model(system, model, assumptions, machine).of(tokens, ones, read, np.zeros_like(ones))


@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_faster_die_is_not_slower_and_none_is_faster_than_its_peak(case):
    calibration, dtype, library, peak, name = case
    model, tokens = load_model(name), np.unique(np.geomspace(1, 8192, 40).astype(np.int64))
    # Where kernels have corrections of their own, what drains after late weights may move by a hundredth of the time.
    by_peak = [times_of(a_die(calibration, dtype, library, peak * p), model, tokens) for p in (0.25, 0.5, 1, 2, 4)]
    for slow, fast in zip(by_peak, by_peak[1:], strict=False):
        assert (fast.compute_ns <= slow.compute_ns * (1 + 1e-9)).all()
        assert (fast.drain_ns <= slow.drain_ns + 0.01 * slow.compute_ns).all()
    for share, times in zip((0.25, 0.5, 1, 2, 4), by_peak, strict=True):
        assert (
            times.compute_ns >= 2 * model.hidden * model.expert_ffn * tokens / (peak * share) * 1e9 * (1 - 1e-9)
        ).all()
        assert (times.drain_ns <= times.compute_ns).all()
    by_hbm = [fitted_ns(a_die(calibration, dtype, library, peak, hbm * 1e12), model, 64) for hbm in (1, 2, 4, 8)]
    assert by_hbm == sorted(by_hbm, reverse=True)


def test_a_dtype_that_was_not_measured_is_refused_by_name():
    with pytest.raises(SpecError, match=r"a100.*fp8.*sglang bf16"):
        times_of(a_die("a100", "fp8"), load_model("deepseek-v3"), np.array([1]))


def test_sizes_outside_the_measured_ones_are_counted():
    model, assumptions = one_expert("deepseek-v3"), load_assumptions("physical", **APART)
    for tokens, hidden, share in ((64, 7168, 0.0), (40_000, 7168, 1.0), (64, 64, 1.0)):
        shape = model.model_copy(update={"hidden": hidden})
        machine, _ = build_machine(scenario_of(a_die(), shape, EP, assumptions))
        gemm = gemm_model(a_die(), shape, assumptions, machine)
        gemm.of(np.array([tokens]), np.array([1]), np.array([machine.slice_bytes]), np.array([0]))
        assert gemm.extrapolated_ns == share * gemm.calibrated_ns > -1


def small_runs(scale=None):
    """A few steps of four layers on a 2 x 2 mesh; ``scale``: factor on the fitted times."""
    model = load_model("qwen3-235b-a22b").model_copy(
        update={"layers": 4, "experts": 16, "top_k": 4, "shared_experts": 0}
    )
    system = a_die("h100", "bf16", llc_bytes=64 * 2**20)
    system = system.model_copy(update={"mesh": system.mesh.model_copy(update={"x": 2, "y": 2})})
    source = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=2, decode_steps=3), 200)
    demand = build_run_demand(source, 200, 3, 0, origin_dies=4, predictor=None)
    engine = replay(system, model, EP, load_assumptions("physical", **APART), demand)
    if scale:
        gemm = engine.engine.execution.builder.gemm
        scaled = copy(gemm._experts[0])
        scaled._ns, scaled._there_ns = scaled._ns * scale, scaled._there_ns * scale
        gemm._experts = [scaled]
    return engine, engine.run()


def test_the_interval_of_residuals_is_what_runs_with_other_times_take():
    """The critical path of the run stands for those of the runs with shorter and longer GEMMs."""
    engine, outcome = small_runs()
    expert = engine.engine.execution.builder.gemm._experts[0]
    less_ns, more_ns = outcome.decode_residual_ns
    assert 0 < less_ns < outcome.decode_ns and more_ns > 0 and outcome.gemm_extrapolated == 0
    shorter = small_runs(1 - expert.low)[1].decode_ns
    longer = small_runs(1 + expert.high)[1].decode_ns
    assert outcome.decode_ns - shorter == pytest.approx(less_ns, rel=0.25)
    assert longer - outcome.decode_ns == pytest.approx(more_ns, rel=0.25)


def test_results_keep_the_interval():
    experiment = load_experiment("configs/validate_h100.yaml", ["workload.batch=[64]"])
    (row,) = api_run(experiment).runs.rows
    expert = small_runs()[0].engine.execution.builder.gemm._experts[0]
    assert 1 - row["decode_ns_low"] / row["decode_ns"] == pytest.approx(expert.low, rel=0.5)
    assert row["decode_ns_high"] / row["decode_ns"] - 1 == pytest.approx(expert.high, rel=0.5)
    (plain,) = api_run(
        load_experiment("configs/validate_h100.yaml", ["workload.batch=[64]", "assumptions.gemm=roofline"])
    ).runs.rows
    assert plain["decode_ns_low"] is None and plain["decode_ns_high"] is None


def test_block_scales_change_measured_gemms_only():
    """Bytes and roofline are those of fp8."""
    experiment = load_experiment("configs/validate_h100.yaml", ["workload.batch=[64]", "assumptions.gemm=roofline"])
    fp8 = experiment.systems[1]
    block = fp8.model_copy(update={"compute": fp8.compute.model_copy(update={"dtype": "fp8_block"})})
    plain, blocks = (api_run(experiment.model_copy(update={"systems": (system,)})).runs.rows for system in (fp8, block))
    assert fp8.compute.dtype == "fp8" and len(plain) == 1
    assert [row["decode_ns"] for row in plain] == [row["decode_ns"] for row in blocks]


# HBM and links whose latency and efficiency come from a calibration; the validation experiment through the event
# engine.

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_a_remote_read_over_calibrated_links_takes_what_a_copy_of_its_size_took(name):
    link, law = read(D2DSpec, bandwidth="450 GB/s", calibration=name), fitted_law(link_table(calibration_named(name)))
    nominal = link.copies.bandwidth_bytes_per_s
    for size in np.unique(np.geomspace(4096, 2**32, 200).astype(np.int64)):
        hop_ns, share = link.copies.link(int(size))
        assert hop_ns >= 0 and 0 < share <= 1
        assert 2 * hop_ns + size / (nominal * share) * 1e9 == pytest.approx(float(law.time_ns(size)), rel=1e-9)
        of_slices = link.of_slices(int(size))
        assert (of_slices.hop_latency_ns, of_slices.efficiency, of_slices.bandwidth_bytes_per_s) == (
            hop_ns,
            share,
            450e9,
        )
    again = read(D2DSpec, **link.model_dump(mode="json", by_alias=True))
    assert again == link  # a manifest does not need the calibration


def test_plain_links_do_not_depend_on_slices():
    plain = read(D2DSpec, bandwidth="450 GB/s")
    assert plain.of_slices(4096) is plain


def test_runs_whose_slices_are_outside_of_the_measured_copies_say_so(tmp_path, capsys):
    """In the results, on the page, and on the terminal: for copies of an experiment, and for points of a sweep."""
    copies = load_experiment(CONFIGS / "validate_h100_copies.yaml")
    some = copies.model_copy(
        update={
            "models": tuple(model for model in copies.models if model.name in ("copy_of_64_MiB", "copy_of_256_MiB"))
        }
    )
    rows = archsim.sweep(some, tmp_path).runs.rows
    assert [(row["model"], row["copies_extrapolated"]) for row in rows] == [
        ("copy_of_64_MiB", 0.0),
        ("copy_of_256_MiB", 1.0),
    ]
    said = "1 of 2 runs copies slices of a size that the calibration named in d2d did not measure"
    write_report(tmp_path)
    assert said in text_of_report(tmp_path)

    text = (CONFIGS / "validate_h100_copies.yaml").read_text() + "sweep: {grid: {system.hbm.latency: [0 ns, 1 ns]}}\n"
    kept = [line for line in text.splitlines() if "{name: copy_of_" not in line or "256_MiB" in line]
    (tmp_path / "points.yaml").write_text("\n".join(kept))
    assert (
        main(
            ["sweep", str(tmp_path / "points.yaml"), "--out", str(tmp_path / "points"), "--jobs", "1", "--samples", "0"]
        )
        == 0
    )
    said = said.replace("1 of 2 runs copies", "2 of 2 runs copy")
    assert said in text_of_report(tmp_path / "points")
    assert f"note: {said}" in capsys.readouterr().err

"""``gemm: grouped``: on a die of its own the engines take the time of the fitted law, and say what it consists of."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from archsim.base.causes import Cause
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import RunDemand
from archsim.engine.engine import EventEngine
from archsim.engine.gemm import gemm_model
from archsim.engine.loop import Replay
from archsim.engine.machine import build_machine
from archsim.laws.die import GroupedLaw, Kernels, Vectors, kernel_bounds
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws, MoeSizes
from archsim.laws.tables import LawMissing
from archsim.specs.calibration_files import calibration_named
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.system import SystemSpec
from tests.support.small_runs import scenario_of

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


@pytest.mark.parametrize("gpu", ["h20", "h100", "h200", "b200"])
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
    with pytest.raises(LawMissing, match="no fused MoE tables; measure the table `moe`, or take `gemm: calibrated`"):
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

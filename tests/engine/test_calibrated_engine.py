"""``gemm: calibrated`` in the event engine: it takes what the fitted law says, counts nothing twice, and says where
it guesses.
"""

from copy import copy

import numpy as np
import pytest
from support.small_runs import replay, scenario_of

from archsim.api import run
from archsim.base.errors import SpecError
from archsim.engine.demand import build_run_demand
from archsim.engine.gemm import gemm_model
from archsim.engine.machine import build_machine
from archsim.laws.gemm import ExpertGemm, Rates, gemm_times
from archsim.runs.notes import Die, calibration_notes
from archsim.specs.calibration_files import calibration_named
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.workload.generated import SyntheticTraffic

EP = PolicySpec(name="ep", **PRESETS["ep"])
APART = {"gemm": "calibrated", "reads": "together", "memory": "experts"}  # every slice is a GEMM of its own
TOKENS = (1, 5, 48, 129, 512, 3000)
CASES = [
    ("h100", "bf16", None, 989e12, "deepseek-v3"),
    ("h100", "fp8", "vllm", 1979e12, "qwen3-235b-a22b"),
    ("a100", "bf16", None, 312e12, "qwen3-235b-a22b"),
    ("h100", "fp8_block", None, 1979e12, "deepseek-v3"),
    ("b200", "fp8", None, 9000e12, "deepseek-v3"),  # a die that does not exist
]
SPARSE = ("h800", "fp8_block", None, 1979e12, "deepseek-v3")  # DeepGEMM's, six shapes at three M


def one_expert(name, **changes):
    return load_model(name).model_copy(update={"experts": 1, "top_k": 1, "shared_experts": 0, "layers": 4} | changes)


def one_die(calibration="h100", dtype="bf16", library=None, peak=989e12, hbm=3.35e12, llc_bytes=2**20):
    """A die that holds at most one slice in flight, and keeps none in its LLC."""
    system = load_system("isca26_dojo")
    compute = {"calibration": calibration, "dtype": dtype, "library": library, "peak_flop_per_s": peak}
    return system.model_copy(update={
        "mesh": system.mesh.model_copy(update={"x": 1, "y": 1}),
        "hbm": system.hbm.model_copy(update={"bandwidth_bytes_per_s": hbm}),
        "llc": system.llc.model_copy(update={"capacity_bytes": llc_bytes}),
        "compute": system.compute.model_copy(update=compute),
    })


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


@pytest.mark.parametrize("case", [*CASES, SPARSE], ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("changes", [{}, {"contention": "reserved"}], ids=str)
def test_one_expert_on_one_die_takes_what_the_law_says(case, changes):
    """Weights that come one slice after the other: the measured time holds their reading, the engine adds none."""
    calibration, dtype, library, peak, name = case
    model, system = (
        one_expert(name),
        one_die(calibration, dtype, library, peak, 8e12 if calibration == "b200" else 2e12),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_faster_die_is_not_slower_and_none_is_faster_than_its_peak(case):
    calibration, dtype, library, peak, name = case
    model, tokens = load_model(name), np.unique(np.geomspace(1, 8192, 40).astype(np.int64))
    # Where kernels have corrections of their own, what drains after late weights may move by a hundredth of the time.
    by_peak = [times_of(one_die(calibration, dtype, library, peak * p), model, tokens) for p in (0.25, 0.5, 1, 2, 4)]
    for slow, fast in zip(by_peak, by_peak[1:], strict=False):
        assert (fast.compute_ns <= slow.compute_ns * (1 + 1e-9)).all()
        assert (fast.drain_ns <= slow.drain_ns + 0.01 * slow.compute_ns).all()
    for share, times in zip((0.25, 0.5, 1, 2, 4), by_peak, strict=True):
        assert (
            times.compute_ns >= 2 * model.hidden * model.expert_ffn * tokens / (peak * share) * 1e9 * (1 - 1e-9)
        ).all()
        assert (times.drain_ns <= times.compute_ns).all()
    by_hbm = [fitted_ns(one_die(calibration, dtype, library, peak, hbm * 1e12), model, 64) for hbm in (1, 2, 4, 8)]
    assert by_hbm == sorted(by_hbm, reverse=True)


def test_a_dtype_that_was_not_measured_is_refused_by_name():
    with pytest.raises(SpecError, match=r"calibration a100 has no GEMM table for fp8 \(it has: sglang bf16\)"):
        times_of(one_die("a100", "fp8"), load_model("deepseek-v3"), np.array([1]))


def test_sizes_outside_the_measured_ones_are_counted():
    model, assumptions = one_expert("deepseek-v3"), load_assumptions("physical", **APART)
    for tokens, hidden, share in ((64, 7168, 0.0), (40_000, 7168, 1.0), (64, 64, 1.0)):
        shape = model.model_copy(update={"hidden": hidden})
        machine, _ = build_machine(scenario_of(one_die(), shape, EP, assumptions))
        gemm = gemm_model(one_die(), shape, assumptions, machine)
        gemm.of(np.array([tokens]), np.array([1]), np.array([machine.slice_bytes]), np.array([0]))
        assert gemm.extrapolated_ns == share * gemm.calibrated_ns > -1


def small_runs(scale=None):
    """A few steps of four layers on a 2 x 2 mesh; ``scale``: factor on the fitted times."""
    model = load_model("qwen3-235b-a22b").model_copy(
        update={"layers": 4, "experts": 16, "top_k": 4, "shared_experts": 0}
    )
    system = one_die("h100", "bf16", llc_bytes=64 * 2**20)
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
    (row,) = run(experiment).runs.rows
    expert = small_runs()[0].engine.execution.builder.gemm._experts[0]
    assert 1 - row["decode_ns_low"] / row["decode_ns"] == pytest.approx(expert.low, rel=0.5)
    assert row["decode_ns_high"] / row["decode_ns"] - 1 == pytest.approx(expert.high, rel=0.5)
    (plain,) = run(
        load_experiment("configs/validate_h100.yaml", ["workload.batch=[64]", "assumptions.gemm=roofline"])
    ).runs.rows
    assert plain["decode_ns_low"] is None and plain["decode_ns_high"] is None


PLAIN = Die(None, None, "bf16", 989e12, 3.35e12)


def test_notes_name_systems_without_a_calibration_and_runs_that_extrapolate():
    rows = [{"system": "mine", "gemm_extrapolated": share} for share in (0.0, 0.25)] + [
        {"system": "old", "gemm_extrapolated": None}
    ]
    notes = calibration_notes(rows, [("mine", PLAIN), ("old", PLAIN)])
    assert notes == [
        "compute.calibration is not given (mine): GEMMs take the times of h100, scaled to the die's peak and HBM",
        "1 of 2 runs use a GEMM calibration outside the measured sizes, for up to 25.0% of their GEMM time "
        "(column gemm_extrapolated)",
    ]
    assert calibration_notes(rows[:1], [("mine", PLAIN._replace(calibration="h100"))]) == []
    numbered = [rows[0] | {"system": "dojo.0123456789", "point": at} for at in (4, 6)]
    assert "(dojo.0123456789 (point 4))" in calibration_notes(numbered, [("dojo.0123456789", PLAIN)])[0]
    many = [{"system": f"s{number}", "gemm_extrapolated": 0.0} for number in range(11)]
    assert (
        "s0, s1" in (note := calibration_notes(many, [(f"s{number}", PLAIN) for number in range(11)])[0])
        and "s7 and 3 others)" in note
    )
    assert "s7 and 1 other)" in calibration_notes(many[:9], [(f"s{number}", PLAIN) for number in range(9)])[0]


def test_notes_name_runs_whose_slices_are_outside_of_the_measured_copies():
    rows = [{"system": "mine", "gemm_extrapolated": None, "copies_extrapolated": share} for share in (0.0, 1.0, None)]
    assert calibration_notes(iter(rows), [("mine", PLAIN)]) == [
        "1 of 2 runs read slices of a size at which the copies of the calibration in d2d were not measured (column "
        "copies_extrapolated)"
    ]
    assert calibration_notes([rows[0], rows[2]], [("mine", PLAIN)]) == []


def test_notes_say_where_times_hold_the_quantisation_of_activations():
    row = {"system": "mine", "gemm_extrapolated": 0.0}
    block, plain = (PLAIN._replace(calibration="h100", dtype=dtype) for dtype in ("fp8_block", "fp8"))
    assert calibration_notes([row], [("mine", block)]) == [
        "GEMM times of fp8_block in calibration h100 include the quantisation of activations (mine)"
    ]
    gone, other = block._replace(calibration="gone.yaml"), block._replace(calibration="a100")
    assert calibration_notes([row], [("mine", plain), ("not run", block), ("mine", gone), ("mine", other)]) == []


def test_block_scales_change_measured_gemms_only():
    """Bytes and roofline are those of fp8."""
    experiment = load_experiment("configs/validate_h100.yaml", ["workload.batch=[64]", "assumptions.gemm=roofline"])
    fp8 = experiment.systems[1]
    block = fp8.model_copy(update={"compute": fp8.compute.model_copy(update={"dtype": "fp8_block"})})
    plain, blocks = (
        run(experiment.model_copy(update={"systems": (system,)})).runs.rows for system in (fp8, block)
    )
    assert fp8.compute.dtype == "fp8" and len(plain) == 1
    assert [row["decode_ns"] for row in plain] == [row["decode_ns"] for row in blocks]

"""Dispatch and combine on 8 dies behind a switch: against DeepEP's measured kernels, and what a Local CP starts."""

from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from support.shared import shared_path

from archsim.base.errors import SpecError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.cluster.laws import node_law
from archsim.engine.engine import EventEngine
from archsim.engine.moves import KERNELS, kernels_stand_in, told_kernels, vector_bytes
from archsim.laws.tables import LawMissing
from archsim.specs.calibration_files import calibration_digest
from archsim.specs.library import load_assumptions
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.system import SystemSpec
from archsim.specs.workload import WorkloadSpec
from archsim.workload.demand import Routing, StepDemand

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
    routing = Routing(routed.astype(np.int16), die) if known else None
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
    with pytest.raises(SpecError, match="has no dispatch and combine of kernel 'normal'.*transfer_software: free"):
        engine_of(SHAPES[0], "per_rank", system=system_of(level=NVLINK | {"law": "a100/intra_node"}))


@pytest.mark.parametrize(
    ("calibration", "taken"),
    [("a100", "h100"), ("h200", "h100"), ("gb200", "gb200"), ("h800", "h800"), ("b200", "b200"), (None, "h100")],
)
def test_a_calibration_without_the_kernels_takes_those_of_the_nearest_and_says_so(calibration, taken):
    system = system_of(level={key: value for key, value in NVLINK.items() if key != "law"})
    system = system.model_copy(
        update={"compute": system.compute.model_copy(update={"calibration": calibration, "dtype": "bf16"})}
    )
    run = engine_of(SHAPES[0], "per_rank", system=system)
    named = engine_of(SHAPES[0], "per_rank", system=system_of(level=NVLINK | {"law": f"{taken}/intra_node"}))
    assert run.machine.transfer_ns.tolist() == named.machine.transfer_ns.tolist()
    assert (run.machine.transfer_ns > 10_000).all() and np.isfinite(run.machine.transfer_bytes_per_ns).all()
    told, own = told_kernels(run.scenario), calibration or "h100"
    assert told == f"DeepEP normal of {taken}" + (f" instead of {own}" if own != taken else "")
    assert kernels_stand_in(run.scenario) or own == taken
    assert told_kernels(engine_of(SHAPES[0], "per_rank", transfer_software="free").scenario) is None


def test_vectors_travel_with_scales_and_results_in_bf16():
    assert vector_bytes(7168, "fp8_block", "bf16") == (7168 + 4 * 56, 2 * 7168)
    assert vector_bytes(100, "fp8", "bf16") == (104, 200)
    assert vector_bytes(7168, "bf16", "bf16") == vector_bytes(7168, "fp16", "weights_dtype") == (14336, 14336)
    run = engine_of(SHAPES[3], "per_token_expert")
    demand = demand_of(SHAPES[3], 64)
    run.step(0, demand, 0.0)
    assert run.tally.moved_bytes[0] * 2 * 2048 == run.tally.moved_bytes[1] * (2048 + 64) > 0


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements of DeepEP are not there")
@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
@pytest.mark.parametrize("dispatch", sorted(KERNELS))
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
    with pytest.raises(LawMissing, match="were not measured by the SMs"):
        node_law("h100", digest, "dispatch", "per_token_expert", None, shape, 8, 8)
    with pytest.raises(LawMissing, match="it has: 4, 8, 12, 16, 20, 24"):
        node_law("h100", digest, "dispatch", "per_rank", None, shape, 8, 40)


def test_a_first_size_that_was_measured_cold_lengthens_no_other():
    """TensorRT-LLM's combine on 64 ranks of an NVL72 takes 25 us from two tokens on, and 34 us of one."""
    law = node_law("gb200", calibration_digest("gb200"), "combine", "per_rank", "trtllm", (7168, 8, 256), 64)
    few = law.at_bytes[law.at_bytes <= 16 * law.at_bytes[1]]
    assert law.fixed_ns + law.busy(few).max() < 27_000
    assert (np.diff(law.busy_ns) >= 0).all()

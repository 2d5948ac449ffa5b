"""Cost of calibrations: fitting a folder of measurements, one GEMM time in compiled code, and the engine's events.

Run as ``python benchmarks/calibrations.py [DIR]``; without a folder, nothing is fitted.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from archsim.laws.calibration_files import load_calibration
from archsim.laws.gemm import ExpertGemm, gemm_times

CALLS = 2_000_000
MOST_M = 4096
REQUESTS = 2048


def gemm_time_ns() -> float:
    """Time of one evaluation, in ns."""
    start = time.perf_counter()
    calibration = load_calibration("h100")
    loaded = time.perf_counter()
    gate = ExpertGemm(calibration, hidden=7168, ffn=2048, dtype="fp8").gate
    ExpertGemm(calibration, hidden=5000, ffn=1800, dtype="fp8")
    built = time.perf_counter()
    print(f"load h100: {loaded - start:.2f} s; curves of a measured and of an unseen expert: {built - loaded:.2f} s")
    m = np.random.default_rng(0).integers(1, MOST_M, CALLS)
    out, curve = np.empty(CALLS), np.zeros(CALLS, np.int64)
    gemm_times(gate.m, gate.ns[None], curve[:1], m[:1], out[:1])
    start = time.perf_counter()
    gemm_times(gate.m, gate.ns[None], curve, m, out)
    return (time.perf_counter() - start) / CALLS * 1e9


def engine_ratio() -> float:
    """Events per second of process time, ``gemm: calibrated`` over ``roofline``, the fastest of three each."""
    from support.small_runs import replay

    from archsim.engine.demand import build_run_demand
    from archsim.specs.library import load_assumptions, load_model, load_system
    from archsim.specs.policies import PRESETS, PolicySpec
    from archsim.specs.workload import SyntheticSpec
    from archsim.traffic.synthetic import SyntheticTraffic

    system, model = load_system("dojo"), load_model("qwen3-235b-a22b").model_copy(update={"layers": 12})
    model = model.model_copy(update={"moe_layers": model.moe_layers.model_copy(update={"last": 11})})
    source = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=1, decode_steps=3), REQUESTS)
    demand = build_run_demand(source, REQUESTS, 3, 0, origin_dies=system.dies, predictor=None)
    policy, rates = PolicySpec(name="ep", **PRESETS["ep"]), {"calibrated": 0.0, "roofline": 0.0}
    for repeat in range(4):  # the first compiles
        for gemm in rates:
            engine = replay(system, model, policy, load_assumptions("physical", gemm=gemm), demand)
            start = time.process_time()
            outcome = engine.run()
            rate = int(outcome.tally.events[0]) / (time.process_time() - start)
            rates[gemm] = max(rates[gemm], rate if repeat else 0.0)
    return rates["calibrated"] / rates["roofline"]


def fit_s(folder: str) -> float:
    """Time to read and fit all GPUs of a folder, in s."""
    from calibration.fit.fit import fit_measurements
    from calibration.measurements.reading import read_measurements

    start = time.perf_counter()
    measurements = read_measurements(folder)
    for gpu in measurements.gpus():
        fit_measurements(measurements, gpu)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(f"one GEMM time: {gemm_time_ns():.0f} ns (limit 200)")
    print(f"events per second, calibrated over roofline: {engine_ratio():.2f}")
    if len(sys.argv) > 1:
        print(f"fit of {sys.argv[1]}: {fit_s(sys.argv[1]):.1f} s (limit 120)")

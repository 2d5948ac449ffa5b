"""Accuracy and speed of the analytical engine against the event engine: ``python benchmarks/analytical.py``.

Prints

* errors of decode time on ``POINTS`` random points of each kind of contention, held out of the fit of coefficients
  (tests/support/random_points.py), and the points outside the limit with the misjudged bound;
* design points per second on one core: a point is a complete analytical run of DeepSeek-V3 on Dojo's 5 × 5 dies, batch
  4096, ``LAYERS`` MoE layers and one decode step;
* screened points per second, set-up included, over the same runs one at a time: `SPACES`. In those of ``llc.hit``,
  which nothing reads where no slice is a hit, 20 machines take one walk; in those of ``llc.miss`` each takes its own.
"""

import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scipy.stats import spearmanr
from support.random_points import HELD_OUT, random_point
from support.small_runs import replay

from archsim.base.causes import CAUSES, Cause
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import build_run_demand
from archsim.engine.engine import EventEngine
from archsim.questions.exploration.screening import Screen
from archsim.runs.engine_comparison import Compared
from archsim.runs.plan import RunMaker
from archsim.runs.prices import Coefficients
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_assumptions, load_model, load_planned, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic

POINTS = 300  # of each kind of contention
OUTSIDE = {"shared": 0.15, "reserved": 0.5}
BATCH, LAYERS = 4096, 4
SMALL = {
    "name": "small", "source": "made up", "layers": 2, "moe_layers": {"first": 1, "last": 1}, "hidden": 4096,
    "expert_ffn": 2048, "experts": 16, "top_k": 2,
}  # fmt: skip
SPACES = {
    "one layer of 16 experts, 2 x 2 dies": (SMALL, 64, "2x2"),
    "one layer of DeepSeek-V3, 5 x 5 dies": ("deepseek-v3", 512, "5x5"),
}
LATENCIES = ("llc.hit", "llc.miss")
OWN_POINTS = 100


def bounds(outcome):
    shares = {cause.column: outcome.tally.bound_ns[cause] for cause in CAUSES}
    return shares | {Cause.DECISION.column: outcome.decision.exposed_ns.sum()}


def accuracy(contention):
    """Errors on held-out points."""
    every = []
    for number in range(HELD_OUT, HELD_OUT + POINTS):
        point = random_point(number, contention)
        event, analytical = point.run(EventEngine), point.run(AnalyticalEngine)
        every.append(
            Compared(point.name, contention, event.decode_ns, analytical.decode_ns, bounds(event), bounds(analytical))
        )
    error = np.array([each.error for each in every])
    rank = spearmanr([each.event_ns for each in every], [each.analytical_ns for each in every]).statistic
    print(
        f"{contention}: {len(error)} points, median {np.median(abs(error)):.2%}, p95 "
        f"{np.percentile(abs(error), 95):.1%}, "
        f"max {abs(error).max():.1%}, signed median {np.median(error):+.2%}, Spearman {rank:.4f}"
    )
    for each in sorted(every, key=lambda one: -abs(one.error)):
        if abs(each.error) > OUTSIDE[contention]:
            print(f"  {each.run}: {each.error:+.1%}; {each.reason}")


def dojo(policy, layers, gemm="calibrated"):
    """Arguments of ``replay``."""
    system, model = load_system("dojo"), load_model("deepseek-v3")
    model = model.model_copy(
        update={"layers": 3 + layers, "moe_layers": model.moe_layers.model_copy(update={"last": 2 + layers})}
    )
    assumptions = load_assumptions("physical", capacity="unbounded", gemm=gemm)
    traffic = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=1), BATCH)
    demand = build_run_demand(traffic, BATCH, 1, 0, origin_dies=system.dies)
    return system, model, PolicySpec(name=policy, **PRESETS[policy]), assumptions, demand


def speed():
    """Design points per second on one core (processor time)."""
    for policy, gemm in product(("ep", "allo"), ("calibrated", "roofline")):
        arguments = dojo(policy, LAYERS, gemm)
        for engine in (AnalyticalEngine, EventEngine):  # compile
            replay(*arguments, engine=engine).run()
        started = time.process_time()
        for _ in range(OWN_POINTS):
            replay(*arguments, engine=AnalyticalEngine).run()
        own = OWN_POINTS / (time.process_time() - started)
        started = time.process_time()
        replay(*arguments).run()
        event = 1 / (time.process_time() - started)
        print(
            f"{policy}, gemm {gemm}, {LAYERS} layers: {own:,.0f} points/s ({own * LAYERS:,.0f} steps/s); the event "
            f"engine {event:,.1f} points/s"
        )


def space(model, batch, mesh, latency):
    """80,000 machines of one plan. ``latency``: of LLCs."""
    axes = {
        "d2d.bandwidth": {"from": "500 GB/s", "to": "4 TB/s", "log": 20},
        "d2d.hop_latency": {"from": "10 ns", "to": "200 ns", "linear": 20},
        "compute.peak": {"from": "100 TFLOP/s", "to": "1000 TFLOP/s", "log": 10},
        latency: {"from": "50 ns", "to": "240 ns", "linear": 20},
        "mesh": [mesh],
    }
    trace = {"synthetic": {"prompt_tokens": 0}}
    workload = {"trace": trace, "batch": batch, "decode_steps": 1, "context": 1024, "layers": 1}
    return load_planned(
        {
            "name": "space", "systems": ["dojo"], "models": [model], "workload": workload, "policies": ["ep"],
            "assumptions": "physical", "engine": "analytical", "sweep": {"grid": axes},
        }
    )  # fmt: skip


def screened_per_s(plan):
    """(Points of a space, how many of them are screened in a second of one core (processor time))."""
    next(Screen(plan, Coefficients()).blocks())  # compile
    started = time.process_time()
    points = sum(len(block.numbers) for block in Screen(plan, Coefficients()).blocks())
    return points, points / (time.process_time() - started)


def screened():
    """Points of a space per second, all together and one at a time."""
    for (name, arguments), latency in product(SPACES.items(), LATENCIES):
        plan = space(*arguments, latency)
        points, together = screened_per_s(plan)
        simulator, runs = Simulator(), RunMaker(plan=plan).runs(map(plan.point, range(0, points, points // OWN_POINTS)))
        simulator.record(runs[0], details=False)
        started = time.process_time()
        for run in runs[1:]:
            simulator.record(run, details=False)
        alone = len(runs[1:]) / (time.process_time() - started)
        rates = f"{together:,.0f} points/s, one at a time {alone:,.0f}: {together / alone:.0f} x"
        print(f"{name}, {points:,} points with {latency}: {rates}")


if __name__ == "__main__":
    speed()
    screened()
    for kind in ("shared", "reserved"):
        accuracy(kind)

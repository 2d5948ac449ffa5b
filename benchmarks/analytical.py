"""The analytical engine: how far from the event engine, and how many design points a second: ``python benchmarks/analytical.py``.

Prints

* errors of decode time on ``POINTS`` random points of each kind of contention that no coefficient was fitted to
  (tests/support/random_points.py), and those outside with the bound that was misjudged;
* errors of the law on design points that share a plan with a reference, every rate and latency drawn within a factor of four;
* design points a second on one core. *Sharing plans*: a point is Dojo's 5 × 5 dies with its own rates and latencies, DeepSeek-V3,
  batch 4096, policy ``ep``, one decode step, all 58 MoE layers, by the law from one pass over the plans.
  *Own plans*: a point is a whole analytical run of its own, of ``LAYERS`` of the MoE layers and one decode step, policy ``isca26``.
  Beside both, the law in plain Python.
"""

from __future__ import annotations

import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scipy.stats import spearmanr
from support.random_points import HELD_OUT, STEPS, random_point, with_rates

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.features import FIELDS, features_of
from archsim.engine.analytic.law import POINT, evaluate, overlaps, points
from archsim.engine.loop import EventEngine
from archsim.runs.engine_comparison import Compared
from archsim.runs.measure import BOUND_BY
from archsim.specs.loading.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.workload.demand import build_demand
from archsim.workload.generated.synthetic import SyntheticTraffic
from microarch.blocks.request import State

POINTS = 300  # of each kind of contention
FAMILIES = 100
FACTOR = 4.0  # rates of a family are within this factor of the reference
OUTSIDE = {"shared": 0.15, "reserved": 0.5}
BATCH, LAYERS = 4096, 4
SHARED_POINTS, OWN_POINTS, PYTHON_POINTS = 20_000, 100, 3


def bounds(outcome):
    shares = {name: outcome.tally.bound_ns[[State[state] for state in states]].sum() for name, states in BOUND_BY.items()}
    return shares | {"decision": outcome.decision.exposed_ns.sum()}


def accuracy(contention):
    """Errors on points held out."""
    every = []
    for number in range(HELD_OUT, HELD_OUT + POINTS):
        point = random_point(number, contention)
        event, analytical = point.run(EventEngine), point.run(AnalyticalEngine)
        every.append(Compared(point.name, contention, event.decode_ns, analytical.decode_ns, bounds(event), bounds(analytical)))
    error = np.array([each.error for each in every])
    rank = spearmanr([each.event_ns for each in every], [each.analytical_ns for each in every]).statistic
    print(f"{contention}: {len(error)} points, median {np.median(abs(error)):.2%}, p95 {np.percentile(abs(error), 95):.1%}, "
          f"max {abs(error).max():.1%}, signed median {np.median(error):+.2%}, Spearman {rank:.4f}")
    for each in sorted(every, key=lambda one: -abs(one.error)):
        if abs(each.error) > OUTSIDE[contention]:
            print(f"  {each.run}: {each.error:+.1%}; {each.reason}")


def families(contention):
    """Errors of the law away from its reference, on policies whose plans do not depend on rates."""
    error = {}
    for number in range(HELD_OUT, HELD_OUT + FAMILIES):
        point = random_point(number, contention)
        if not point.policy.name.startswith("allo"):
            rng = np.random.default_rng(number)
            factors = dict(zip(POINT.names, np.exp(rng.uniform(-np.log(FACTOR), np.log(FACTOR), len(POINT.names))), strict=True))
            routing = point.traffic.steps(np.arange(point.demand.batch), STEPS)
            features = features_of(point.system, point.model, point.policy, point.assumptions, point.demand, routing)
            found = evaluate(features, points(1, **factors)).decode_ns[0]
            found = found / with_rates(point, factors).run(EventEngine).decode_ns - 1
            error.setdefault(point.assumptions.gemm, []).append(abs(found))
    for gemm, found in error.items():
        print(f"{contention}, law at other rates than its plan's, gemm {gemm}: {len(found)} points, "
              f"median {np.median(found):.1%}, p95 {np.percentile(found, 95):.1%}")


def dojo(policy, layers, gemm="calibrated"):
    """Arguments of an engine."""
    system, model = load_system("dojo"), load_model("deepseek-v3")
    if layers:
        model = model.model_copy(update={"layers": 3 + layers, "moe_layers": model.moe_layers.model_copy(update={"last": 2 + layers})})
    assumptions = load_assumptions("physical", capacity="unbounded", gemm=gemm)
    traffic = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=1), BATCH)
    demand = build_demand(traffic, BATCH, 1, 0, origin_dies=system.dies)
    return system, model, PolicySpec(name=policy, **PRESETS[policy]), assumptions, demand


def law_in_python(features, at):
    """Decode time of one point: the law of archsim/engine/analytic/law.py, a die at a time."""
    total, scale = 0.0, dict(zip(POINT.names, at.tolist(), strict=True))
    for dies, (most_hbm, most_link), overlap, exposed in zip(
        features.dies.transpose(0, 2, 1).tolist(), features.most.tolist(), overlaps(features).tolist(),
        features.exposed_ns.tolist(), strict=True,
    ):  # fmt: skip
        step = max(most_hbm * scale["hbm"], most_link * scale["link"])
        for values in dies:
            f = dict(zip(FIELDS, values, strict=True))
            slots = f["slots_llc"] * scale["llc_latency"] + f["slots_hbm"] * scale["hbm_latency"] + f["slots_route"] * scale["hop_latency"]
            ways = []
            for way in ("in", "out"):
                latency = f[f"{way}_any"] * scale["hbm_latency"] + f[f"{way}_route"] * scale["hop_latency"]
                ways.append(latency + max(f[f"{way}_hbm"] * scale["hbm"], f[f"{way}_link"] * scale["link"]))
            first = slots * f["fill"]
            done = max(ways[0] + f["routed"] * scale["compute"], first + f["compute"] * scale["compute"])
            moved = max(f["hbm"] * scale["hbm"], f["link"] * scale["link"], slots)
            step = max(step, max(done, moved + first + f["slice"] * scale["compute"]) + ways[1])
        total += overlap * step + exposed
    return total


def speed():
    """Design points a second on one core (processor time)."""
    features = features_of(*dojo("ep", None))
    rng = np.random.default_rng(0)
    at = points(SHARED_POINTS, **{name: np.exp(rng.uniform(-1, 1, SHARED_POINTS)) for name in POINT.names})
    evaluate(features, at[:1])
    begin = time.process_time()
    found = evaluate(features, at).decode_ns
    shared = SHARED_POINTS / (time.process_time() - begin)
    begin = time.process_time()
    slow = [law_in_python(features, at[i]) for i in range(PYTHON_POINTS)]
    python = PYTHON_POINTS / (time.process_time() - begin)
    assert np.allclose(found[:PYTHON_POINTS], slow, rtol=1e-9)
    print(f"sharing plans, all {len(features.walked_ns)} layers: {shared:,.0f} points/s; in plain Python {python:.1f}: × {shared / python:,.0f}")
    for policy, gemm in product(("ep", "allo"), ("calibrated", "roofline")):
        arguments = dojo(policy, LAYERS, gemm)
        for engine in (AnalyticalEngine, EventEngine):  # compile
            engine(*arguments).run()
        begin = time.process_time()
        for _ in range(OWN_POINTS):
            AnalyticalEngine(*arguments).run()
        own = OWN_POINTS / (time.process_time() - begin)
        begin = time.process_time()
        EventEngine(*arguments).run()
        event = 1 / (time.process_time() - begin)
        print(f"own plans, {policy}, gemm {gemm}, {LAYERS} layers: {own:,.0f} points/s ({own * LAYERS:,.0f} steps/s); the event engine {event:,.1f} points/s")


if __name__ == "__main__":
    speed()
    for kind in ("shared", "reserved"):
        accuracy(kind)
        families(kind)

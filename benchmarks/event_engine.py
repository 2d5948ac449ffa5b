"""Speed of the event engine: ``python benchmarks/event_engine.py``.

Prints, for one core and after compilation,

* events per second of ``contention: reserved``, end to end (policy, plan, work and kernel of every step), on generated
  DeepSeek-V3 traffic, and its ratio to a bare ``heapq`` loop in plain Python and to the plain-Python reference of the
  same rules (``tests/reference/published.py``), both timed here;
* the same with the state machines of decisions on (``decision_cost: charged``, ``heatmap_update: limited``, ``tables:
  finite``) and what share of its events per second that keeps. A heatmap behind a port is part of the run, an unlimited
  one is part of building the demand: the share is given with the heatmap's time in both, in neither, and as the runs
  alone took it;
* steps per second of ``contention: shared`` with all other assumptions ``physical``, and the same under
  ``rate_updates: per_round_trip`` with what that changes of step times.
"""

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from reference.published import PublishedSimulator
from support.small_runs import replay
from timing import heap_events_per_s, reference_s

from archsim.engine.demand import build_run_demand
from archsim.policies.ported_heatmap import PortedHeatmap
from archsim.policies.registry import build_policy
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic
from archsim.traffic.trace import draw_requests

MODEL, BATCH, DECODE_STEPS = "deepseek-v3", 4096, 6
STRATEGIES = ("base", "ep", "allo", "pred", "allo+pred")
MACHINES_ON = {"decision_cost": "charged", "heatmap_update": "limited", "tables": "finite"}
REPEATS = 3  # the fastest one counts


def policy(name):
    return PolicySpec(name=name, **PRESETS[name])


def traffic_of(model, steps):
    return SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=steps), BATCH)


def demand_of(system, model, predictor, assumptions, steps):
    origins = system.dies if assumptions.activations == "dispatched" else None
    return build_run_demand(traffic_of(model, steps), BATCH, steps, 0, origin_dies=origins, predictor=predictor)


class Timed(NamedTuple):
    """A run: ``heatmap_s`` of its ``seconds`` (process time on one core) were spent in the heatmap behind its port.

    ``demand_heatmap_s``: spent in the heatmap of the demand instead. ``reference_s``: of the reference kernel after it.
    """

    seconds: float
    heatmap_s: float
    events: int
    step_ns: np.ndarray  # float64[n] > 0
    demand_heatmap_s: float = 0.0
    reference_s: float = 0.0

    def per_second(self):
        """Steps per second, how long one takes, and the same in reference kernels (`benchmarks/timing.py`)."""
        each_s = self.seconds / len(self.step_ns)
        return f"{1 / each_s:5.0f} ({each_s * 1e3:.1f} ms, {each_s / self.reference_s:.3f} ref)"


def timed_runs(system, model, sets, steps, repeats=1):
    """(strategy, the fastest run of each assumption set), each warmed up once; the sets take turns."""
    predictor = build_policy(policy("pred")).predictor
    demand = demand_of(system, model, predictor, sets[0], steps)
    warm_up = demand_of(system, model, predictor, sets[0], 1)
    for name in STRATEGIES:
        for assumptions in sets:
            run_once(system, model, name, assumptions, warm_up, 1)
        turns = [[run_once(system, model, name, each, demand, steps) for each in sets] for _ in range(repeats)]
        yield name, [min(runs, key=lambda run: run.seconds) for runs in zip(*turns, strict=True)]


def run_once(system, model, name, assumptions, demand, steps):
    routing = None
    if assumptions.heatmap_update == "limited":
        routing = iter(list(traffic_of(model, steps).steps(draw_requests(BATCH, BATCH, 0), steps)))
    clock = HeatmapClock()
    with clock.watching():
        engine = replay(system, model, policy(name), assumptions, demand, routing)
        begin = time.process_time()
        outcome = engine.run()
        seconds = time.process_time() - begin
    steps = outcome.step_ns[outcome.step_ns > 0]
    return Timed(seconds, clock.seconds, int(outcome.tally.events[0]), steps, reference_s=reference_s(1))


class HeatmapClock:
    """Adds up the time spent in methods of ``PortedHeatmap``."""

    def __init__(self):
        self.seconds = 0.0

    @contextmanager
    def watching(self):
        methods = {name: getattr(PortedHeatmap, name) for name in ("begin", "hot", "take_in")}
        for name, method in methods.items():
            setattr(PortedHeatmap, name, self._with_timer(method))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(PortedHeatmap, name, method)

    def _with_timer(self, method):
        def timed(*arguments):
            begin = time.process_time()
            result = method(*arguments)
            self.seconds += time.process_time() - begin
            return result

        return timed


def reference_events_per_s():
    model = dict(hidden=7168, ffn=2048, experts=256, u=0.9, v=[(None, 0.7)])
    simulator = PublishedSimulator(model, 5, 5, "base")
    begin = time.process_time()
    for layer in range(20):
        simulator.step(simulator.calendar.latest, layer, [128] * 256, list(range(256)), None)
    return simulator.calendar.processed / (time.process_time() - begin)


def rate(runs, heatmap=0):
    """Events per second over all runs, with the time of their heatmap (1), without it (-1), or as they ran (0)."""
    seconds = sum(run.seconds for run in runs)
    if heatmap == 1:
        seconds += sum(run.demand_heatmap_s for run in runs)
    if heatmap == -1:
        seconds -= sum(run.heatmap_s for run in runs)
    return sum(run.events for run in runs) / seconds


def heatmap_of_demand_s(model, steps):
    """Time that the heatmap adds to building a demand, on one core."""
    took = []
    for predictor in (build_policy(policy("pred")).predictor, None):
        build_run_demand(traffic_of(model, 1), BATCH, 1, 0, predictor=predictor, threads=1)  # compiles
        turns = []
        for _ in range(REPEATS):
            begin = time.process_time()
            build_run_demand(traffic_of(model, steps), BATCH, steps, 0, predictor=predictor, threads=1)
            turns.append(time.process_time() - begin)
        took.append(min(turns))
    return took[0] - took[1]


def main():
    model = load_model(MODEL)
    heap, slow = heap_events_per_s(), reference_events_per_s()
    print(f"reference kernel: {reference_s() * 1e3:.2f} ms (ref below)")
    print(f"plain Python: bare heap loop {heap / 1e6:.2f} M events/s, the same rules {slow / 1e6:.2f} M events/s")
    print(f"\nreserved ({MODEL}, batch {BATCH}, 5 x 5 dies, one core, end to end), M events/s")
    print(f"  {'':<10} decisions free  state machines on")
    sets = load_assumptions("published"), load_assumptions("published", **MACHINES_ON)
    heatmap_s = heatmap_of_demand_s(model, DECODE_STEPS)
    print(f"  (the heatmap in the demand of free decisions took {heatmap_s:.2f} s)")
    free, on = [], []
    for name, fastest in timed_runs(load_system("isca26_dojo"), model, sets, DECODE_STEPS, REPEATS):
        free.append(fastest[0]._replace(demand_heatmap_s=heatmap_s if "pred" in name else 0.0))
        on.append(fastest[1])
        print(f"  {name:<10} {rate(free[-1:]) / 1e6:14.2f}  {rate(on[-1:]) / 1e6:17.2f}")
    print(f"  {'all':<10} {rate(free) / 1e6:14.2f}  {rate(on) / 1e6:17.2f}")
    print(f"  free: x {rate(free) / heap:.1f} the bare heap loop, x {rate(free) / slow:.0f} the same rules in Python")
    for what, heatmap in (("in both", 1), ("in neither", -1), ("as the runs alone took it", 0)):
        print(f"  on, heatmap {what}: {rate(on, heatmap) / rate(free, heatmap):.0%} of the events/s of free decisions")
    print(f"\nshared ({MODEL}, batch {BATCH}, 5 x 5 dies, one core, end to end), steps/s")
    print(f"  {'':<10} {'instant':<28} {'per_round_trip':<28} its step times")
    sets = load_assumptions("physical"), load_assumptions("physical", rate_updates="per_round_trip")
    for name, (instant, paced) in timed_runs(load_system("dojo"), model, sets, 1, REPEATS):
        off, whole = paced.step_ns / instant.step_ns - 1, paced.step_ns.sum() / instant.step_ns.sum() - 1
        error = f"{whole:+.2%}, of a step {off.min():+.1%} to {off.max():+.1%}"
        print(f"  {name:<10} {instant.per_second():<28} {paced.per_second():<28} {error}")


if __name__ == "__main__":
    main()

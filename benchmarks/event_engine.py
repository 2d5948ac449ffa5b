"""How fast the event engine is: ``python benchmarks/event_engine.py``.

Prints, for one core and after compilation,

* events per second of ``contention: reserved``, end to end (policy, plan, work and kernel of every step), on generated
  DeepSeek-V3 traffic, and its ratio to a bare ``heapq`` loop in plain Python and to the slow re-telling of the same rules
  (``tests/reference/published.py``), both timed beside it;
* the same with the state machines of decisions on (``decision_cost: charged``, ``heatmap_update: limited``, ``tables: finite``)
  and what share of its events per second that keeps. A heatmap that takes in every pair is part of building the demand, one
  behind a port is part of the run: the share is given with and without the time that the run spends on its heatmap;
* steps per second of ``contention: shared`` with all other assumptions ``physical``.
"""

from __future__ import annotations

import heapq
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.published import PublishedSimulator

from archsim.engine.event import EventEngine
from archsim.policies.registry import build_policy
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.workload.demand import build_demand
from archsim.workload.heatmap import PortedHeatmap
from archsim.workload.synthetic import SyntheticTraffic
from archsim.workload.trace import draw_requests

MODEL, BATCH, DECODE_STEPS = "deepseek-v3", 4096, 6
STRATEGIES = ("base", "ep", "allo", "pred", "allo+pred")
MACHINES_ON = {"decision_cost": "charged", "heatmap_update": "limited", "tables": "finite"}
REPEATS = 3  # the fastest counts
PYTHON_EVENTS = 300_000


def policy(name):
    return PolicySpec(name=name, **PRESETS[name])


def traffic_of(model, steps):
    return SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=steps), BATCH)


def demand_of(system, model, predictor, assumptions, steps):
    origins = system.dies if assumptions.activations == "dispatched" else None
    return build_demand(traffic_of(model, steps), BATCH, steps, 0, origin_dies=origins, predictor=predictor)


class Timed(NamedTuple):
    """A run: ``heatmap_s`` of its ``seconds`` went into the heatmap behind its port."""

    strategy: str
    seconds: float
    heatmap_s: float
    events: int
    steps: int


def timed_runs(system, model, assumptions, steps, repeats=1):
    """Every strategy, each run once before it is timed."""
    predictor = build_policy(policy("pred")).predictor
    demand = demand_of(system, model, predictor, assumptions, steps)
    warm_up = demand_of(system, model, predictor, assumptions, 1)
    for name in STRATEGIES:
        run_once(system, model, name, assumptions, warm_up, 1)
        yield min((run_once(system, model, name, assumptions, demand, steps) for _ in range(repeats)), key=lambda run: run.seconds)


def run_once(system, model, name, assumptions, demand, steps):
    routing = None
    if assumptions.heatmap_update == "limited":
        routing = iter(list(traffic_of(model, steps).steps(draw_requests(BATCH, BATCH, 0), steps)))
    clock = HeatmapClock()
    with clock.watching():
        engine = EventEngine(system, model, policy(name), assumptions, demand, routing)
        begin = time.perf_counter()
        outcome = engine.run()
        seconds = time.perf_counter() - begin
    return Timed(name, seconds, clock.seconds, int(outcome.tally.events[0]), int((outcome.step_ns > 0).sum()))


class HeatmapClock:
    """Adds up the time spent in methods of ``PortedHeatmap``."""

    def __init__(self):
        self.seconds = 0.0

    @contextmanager
    def watching(self):
        methods = {name: getattr(PortedHeatmap, name) for name in ("begin", "hot", "take_in")}
        for name, method in methods.items():
            setattr(PortedHeatmap, name, self._timed(method))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(PortedHeatmap, name, method)

    def _timed(self, method):
        def timed(*arguments):
            begin = time.perf_counter()
            result = method(*arguments)
            self.seconds += time.perf_counter() - begin
            return result

        return timed


def bare_heap_events_per_s():
    """Pops and pushes of (time, sequence) in plain Python, with nothing done for an event."""
    heap = [(float(i % 97), i) for i in range(1000)]
    heapq.heapify(heap)
    begin = time.perf_counter()
    for sequence in range(PYTHON_EVENTS):
        now, _ = heapq.heappop(heap)
        heapq.heappush(heap, (now + sequence % 89, sequence))
    return PYTHON_EVENTS / (time.perf_counter() - begin)


def slow_retelling_events_per_s():
    model = dict(hidden=7168, ffn=2048, experts=256, u=0.9, v=[(None, 0.7)])
    simulator = PublishedSimulator(model, 5, 5, "base")
    begin = time.perf_counter()
    for layer in range(20):
        simulator.step(simulator.calendar.latest, layer, [128] * 256, list(range(256)), None)
    return simulator.calendar.processed / (time.perf_counter() - begin)


def reserved_rate(title, model, assumptions):
    """Print every strategy; events per second of all together, with the heatmap's time and without."""
    print(f"\nreserved, {title} ({model.name}, batch {BATCH}, 5 x 5 dies, one core, end to end)")
    runs = list(timed_runs(load_system("isca26_dojo"), model, assumptions, DECODE_STEPS, REPEATS))
    for run in runs:
        heatmap = f", {run.events / (run.seconds - run.heatmap_s) / 1e6:.2f} without its heatmap" if run.heatmap_s else ""
        print(f"  {run.strategy:<10} {run.events / run.seconds / 1e6:6.2f} M events/s{heatmap}")
    events, seconds = sum(run.events for run in runs), sum(run.seconds for run in runs)
    return events / seconds, events / (seconds - sum(run.heatmap_s for run in runs))


def main():
    model = load_model(MODEL)
    heap, slow = bare_heap_events_per_s(), slow_retelling_events_per_s()
    print(f"plain Python: bare heap loop {heap / 1e6:.2f} M events/s, the same rules {slow / 1e6:.2f} M events/s")
    rate, _ = reserved_rate("decisions free", model, load_assumptions("published"))
    print(f"  {'all':<10} {rate / 1e6:6.2f} M events/s: x {rate / heap:.1f} the bare heap loop, x {rate / slow:.0f} the same rules in Python")
    on, without_heatmap = reserved_rate("state machines on", model, load_assumptions("published", **MACHINES_ON))
    kept = f"{on / rate:.0%} of the events/s of free decisions, {without_heatmap / rate:.0%} without the heatmap's time"
    print(f"  {'all':<10} {on / 1e6:6.2f} M events/s: {kept}")
    print(f"\nshared ({MODEL}, batch {BATCH}, 5 x 5 dies, one core, end to end)")
    for run in timed_runs(load_system("dojo"), model, load_assumptions("physical"), 1):
        print(f"  {run.strategy:<10} {run.steps / run.seconds:6.0f} steps/s ({run.seconds / run.steps * 1e3:.1f} ms a step)")


if __name__ == "__main__":
    main()

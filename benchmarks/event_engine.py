"""How fast the event engine is: ``python benchmarks/event_engine.py``.

Prints, for one core and after compilation,

* events per second of ``contention: reserved``, end to end (policy, plan, work and kernel of every step), on generated
  DeepSeek-V3 traffic, and its ratio to a bare ``heapq`` loop in plain Python and to the slow re-telling of the same rules
  (``tests/reference/published.py``), both timed beside it;
* steps per second of ``contention: shared`` with all other assumptions ``physical``.
"""

from __future__ import annotations

import heapq
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from archsim.engine.event import EventEngine
from archsim.policies.registry import build_policy
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.workload.demand import build_demand
from archsim.workload.synthetic import SyntheticTraffic
from reference.published import PublishedSimulator

MODEL, BATCH, DECODE_STEPS = "deepseek-v3", 4096, 6
STRATEGIES = ("base", "ep", "allo", "pred", "allo+pred")
PYTHON_EVENTS = 300_000


def policy(name):
    return PolicySpec(name=name, **PRESETS[name])


def demand_of(system, model, predictor, assumptions, steps):
    source = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=steps), BATCH)
    origins = system.dies if assumptions.activations == "dispatched" else None
    return build_demand(source, BATCH, steps, 0, origin_dies=origins, predictor=predictor)


def timed_runs(system, model, assumptions, steps):
    """(strategy, seconds, events, steps) of every strategy, each run once before it is timed."""
    predictor = build_policy(policy("pred")).predictor
    demand = demand_of(system, model, predictor, assumptions, steps)
    warm_up = demand_of(system, model, predictor, assumptions, 1)
    for name in STRATEGIES:
        EventEngine(system, model, policy(name), assumptions, warm_up).run()
        engine = EventEngine(system, model, policy(name), assumptions, demand)
        begin = time.perf_counter()
        outcome = engine.run()
        yield name, time.perf_counter() - begin, int(outcome.tally.events[0]), int((outcome.step_ns > 0).sum())


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


def main():
    model = load_model(MODEL)
    heap, slow = bare_heap_events_per_s(), slow_retelling_events_per_s()
    print(f"plain Python: bare heap loop {heap / 1e6:.2f} M events/s, the same rules {slow / 1e6:.2f} M events/s")
    print(f"\nreserved ({MODEL}, batch {BATCH}, 5 x 5 dies, one core, end to end)")
    seconds = events = 0
    for name, took, count, _ in timed_runs(load_system("isca26_dojo"), model, load_assumptions("published"), DECODE_STEPS):
        seconds, events = seconds + took, events + count
        print(f"  {name:<10} {count / took / 1e6:6.2f} M events/s")
    rate = events / seconds
    print(f"  {'all':<10} {rate / 1e6:6.2f} M events/s: x {rate / heap:.1f} the bare heap loop, x {rate / slow:.0f} the same rules in Python")
    print(f"\nshared ({MODEL}, batch {BATCH}, 5 x 5 dies, one core, end to end)")
    for name, took, _, steps in timed_runs(load_system("dojo"), model, load_assumptions("physical"), 1):
        print(f"  {name:<10} {steps / took:6.0f} steps/s ({took / steps * 1e3:.1f} ms a step)")


if __name__ == "__main__":
    main()

"""What 200 drawn wafers under five policies take: a part is run, and the whole stated, in seconds and as a ratio.

    python benchmarks/wafers.py [--wafers 4] [--batch 4096] [--model qwen3-235b-a22b]

The machine is `configs/wafer_as_built.yaml` (Dojo's size, three decode steps) under base, ep, allo, and allo and eplb
that see speeds. The bar: 200 wafers in 600 s on two cores, in 1.5 GB a process. A sweep keeps wafers with as many dies
together, as they share their traffic, which each core builds once; so the part that is run has one number of dies.

The ratio does not depend on the machine: processor time of the whole over that of a million pops and pushes of a heap
in plain Python, measured before and after.
"""

import argparse
import resource
import time
from collections import Counter

from timing import heap_events_per_s

from archsim.runs.plan import select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_planned

WAFERS, CORES, BAR_S, BAR_GB = 200, 2, 600, 1.5
EVENTS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wafers", type=int, default=4, help="that are run, beside one before")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--model", default="qwen3-235b-a22b")
    args = parser.parse_args()
    changes = (
        f"systems.0.drawn.wafers={WAFERS}", f"workload.batch=[{args.batch}]", f"models=[{args.model}]",
    )  # fmt: skip
    plan = load_planned("wafer_as_built", changes)
    before_s = EVENTS / heap_events_per_s(EVENTS)
    begin = time.process_time()
    selection = select(plan)
    drawn_s = time.process_time() - begin
    runs, policies = selection.runs(), len(plan.experiment.policies)
    sizes = Counter(run.demand.key for run in runs)
    most = [run for run in runs if run.demand.key == max(sizes, key=lambda key: sizes[key])]
    simulator = Simulator(selection.maker.traces)
    begin = time.process_time()
    simulator.warm_up(most[0])
    for run in most[:policies]:  # compiles, and builds the demand
        simulator.record(run, details=False)
    first_s = time.process_time() - begin
    begin, took = time.process_time(), {}
    for run in most[policies : policies * (1 + args.wafers)]:
        since = time.process_time()
        simulator.record(run, details=False)
        took.setdefault(run.policy.name, []).append(time.process_time() - since)
    each_s = (time.process_time() - begin) / args.wafers
    work = len(runs) // policies
    whole_s = drawn_s + CORES * first_s * len(sizes) + each_s * work
    gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    event_s = min(before_s, EVENTS / heap_events_per_s(EVENTS))
    for name, seconds in took.items():
        print(f"{name}: {sum(seconds) / len(seconds):.2f} s a wafer")
    print(f"drawing and checking {WAFERS} wafers: {drawn_s:.1f} s; {work} work, with {len(sizes)} numbers of dies")
    print(f"first wafer of a number of dies, with its traffic, on each core: at most {first_s:.1f} s")
    print(f"all five: {each_s:.2f} s a wafer")
    print(f"all on {CORES} cores: {whole_s / CORES:.0f} s (bar {BAR_S}); {gb:.2f} GB a process (bar {BAR_GB})")
    print(f"processor time of all: {whole_s / event_s:,.0f} times that of a million heap operations ({event_s:.2f} s)")


if __name__ == "__main__":
    main()

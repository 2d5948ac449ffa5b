"""What 200 drawn wafers under five policies take: processor time and memory of a few, and what that makes of all.

    python benchmarks/wafers.py [--wafers 4] [--batch 4096] [--model qwen3-235b-a22b]

The machine is `configs/wafer_as_built.yaml` (Dojo's size, three decode steps) under base, ep, allo, and allo and eplb
that see speeds. The bar: 200 wafers in 600 s on two cores, in 1.5 GB a process.
"""

import argparse
import resource
import time

from archsim.runs.plan import select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_planned

WAFERS, CORES, BAR_S, BAR_GB = 200, 2, 600, 1.5


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
    begin = time.process_time()
    selection = select(plan)
    drawn_s = time.process_time() - begin
    runs = selection.runs()
    policies = len(plan.experiment.policies)
    simulator = Simulator(selection.maker.traces)
    for run in runs[:policies]:  # compiles, and builds the demand
        simulator.row(run)
    begin, took = time.process_time(), {}
    for run in runs[policies : policies * (1 + args.wafers)]:
        since = time.process_time()
        simulator.row(run)
        took.setdefault(run.policy.name, []).append(time.process_time() - since)
    each_s = (time.process_time() - begin) / args.wafers
    all_s = (drawn_s + each_s * len(runs) / policies) / CORES
    gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    for name, seconds in took.items():
        print(f"{name}: {sum(seconds) / len(seconds):.2f} s a wafer")
    print(f"drawing and checking {WAFERS} wafers: {drawn_s:.1f} s; {len(runs) // policies} work")
    print(f"all five: {each_s:.2f} s a wafer")
    print(f"all on {CORES} cores: {all_s:.0f} s (bar {BAR_S}); {gb:.2f} GB a process (bar {BAR_GB})")


if __name__ == "__main__":
    main()

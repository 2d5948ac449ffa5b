"""What ``archsim check`` says that runs take, beside what they took: ``python benchmarks/estimates.py``.

Prints the quotient estimate / measurement of events and of the time of a core, by side of the mesh, engine and
assumptions, without compilation; then of the memory of a process on larger meshes.
"""

import resource
import subprocess
import sys
import time

import pandas as pd

import archsim as ar
from archsim.runs.plan import select
from archsim.runs.run_cost import SPREAD, cost_of
from archsim.runs.simulator import Simulator

SIDES, MEMORY_SIDES = (3, 5, 9), (16, 24)
KINDS = {"event": (3, [64, 4096]), "analytical": (3, [512]), "interpreted": (1, [64])}  # steps, batches


def selected(side, engine, steps, batches, models):
    """The runs of a square mesh, and what each should cost."""
    workload = {
        "trace": {"synthetic": {"like": "model", "prompt_tokens": 0}},
        "batch": batches,
        "context": 64,
        "decode_steps": steps,
        "layers": 2,
    }
    selection = select(
        ar.load_experiment(
            {
                "name": "estimates",
                "systems": [{"like": "dojo", "name": "mesh", "mesh": {"x": side, "y": side}}],
                "models": models,
                "workload": workload,
                "policies": ["ep", "base"],
                "engine": engine,
                "assumptions": ["published", {"set": "physical", "capacity": "unbounded"}],
            }
        )
    )
    costs = [cost_of(selection.plan.point(number)) for number in selection.kept]
    return list(zip(selection.runs(), costs, strict=True)), Simulator(selection.maker.traces)


def quotients(side, engine, steps, batches):
    """A row per run."""
    runs, simulator = selected(side, engine, steps, batches, ["qwen3-235b-a22b"])
    for run, _ in runs:
        simulator.record(run)  # compiles, and draws the tokens that runs share
    for run, cost in runs:
        began_s = time.process_time()  # of a core, whatever else runs
        events = simulator.record(run)["row"]["events"]
        took_s = time.process_time() - began_s
        yield {
            "side": side,
            "engine": engine,
            "assumptions": run.assumptions.label,
            "events": cost.events / events if events else 1.0,
            "time": cost.host_ns / 1e9 / took_s,
        }


def memory(side):
    """Print the memory of this process after one run."""
    runs, simulator = selected(side, "event", 1, [1024], ["olmoe-1b-7b"])
    run, cost = runs[-2]
    simulator.record(run)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"memory, {side} × {side}, {run.assumptions.label}: {cost.host_bytes / used:.2f} of {used / 1e9:.2f} GB")


def main():
    rows = [row for side in SIDES for engine, given in KINDS.items() for row in quotients(side, engine, *given)]
    table = pd.DataFrame(rows)
    print("estimate / measurement, geometric mean")
    by = table.groupby(["side", "engine", "assumptions"])[["events", "time"]]
    print(by.agg(lambda column: column.prod() ** (1 / len(column))).round(2).to_string())
    near = ((table.time < SPREAD) & (table.time > 1 / SPREAD)).mean()
    print(f"time within a factor {SPREAD:g}: {near:.0%} of {len(table)} runs")
    for side in MEMORY_SIDES:
        subprocess.run([sys.executable, __file__, str(side)], check=True)


if __name__ == "__main__":
    memory(int(sys.argv[1])) if len(sys.argv) > 1 else main()

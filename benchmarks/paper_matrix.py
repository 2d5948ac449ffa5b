"""The paper's whole evaluation: ``python benchmarks/paper_matrix.py [--fraction 0.1] [--jobs 2] [--causes]``.

4 models x 2 meshes x batches of 4096, 8192, 16384 x 5 strategies x 127 decode steps, all MoE layers, generated traffic,
``assumptions: published``: the 120 runs for which the published simulator needs about 96 hours and 64 GB (its
documentation). ``--fraction`` runs this share of the decode steps and projects; traffic is generated in full
for the steps that run. Prints wall time, the projection, and the peak memory of all processes together: the sum of
what each holds (RSS), and the same with pages that several hold counted once (PSS). ``--causes`` runs in this process
and prints processor time by cause.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from measured_command import PeakMemory

PUBLISHED_HOURS, PUBLISHED_GB = 96, 64
DECODE_STEPS = 127
EXPERIMENT = """
name: paper-matrix
systems: [isca26_dojo, isca26_tsmc_sow]
models: [deepseek-v3, kimi-k2, llama-4-maverick, qwen3-235b-a22b]
workload: {{trace: {{synthetic: {{prompt_tokens: 1}}}}, batch: [4096, 8192, 16384], decode_steps: {steps}}}
policies: [base, ep, allo, pred, allo+pred]
assumptions: published
"""


def print_causes(experiment):
    """Processor time of every run by cause, that of Python also by policy, per step of a layer, after a run of each
    policy that compiles.
    """
    from archsim.engine.event import reserved
    from archsim.runs.plan import prepare
    from archsim.runs.simulator import Simulator

    clock, run_step, kernel_ns = time.process_time_ns, reserved.run_step, []

    def timed(*given):
        begin = clock()
        end_ns = run_step(*given)
        kernel_ns.append(clock() - begin)
        return end_ns

    runs, simulator, families = prepare(experiment).runs, Simulator(), {}
    for run in {run.policy.name: run for run in runs}.values():
        simulator.warm_up(run)
    for run in runs:
        families.setdefault(run.demand.family, {})[run.demand.key] = run.demand
    reserved.run_step, traffic_ns, others = timed, 0, {}
    for family in families.values():
        traffic_from = clock()
        simulator.gather(list(family.values()))
        traffic_ns += clock() - traffic_from
        for run in (run for run in runs if run.demand.key in family):
            begin, before = clock(), len(kernel_ns)
            simulator.record(run)
            own = others.setdefault(run.policy.name, np.zeros(2))
            own += clock() - begin - sum(kernel_ns[before:]), len(kernel_ns) - before
    steps, every = len(kernel_ns), sum(others.values())
    print(f"{steps} steps of a layer; ns of processor time for each, by cause:")
    rows = {"kernel": (sum(kernel_ns), steps), "traffic": (traffic_ns, steps), "Python, reading traffic": every}
    for cause, (ns, count) in (rows | {f"  of {name}": each for name, each in others.items()}).items():
        print(f"{cause:24} {ns / count:10,.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fraction", type=float, default=0.05, help="share of the 127 decode steps to run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--causes", action="store_true", help="run in this process; print processor time by cause")
    arguments = parser.parse_args()
    from archsim.runs.sweep import sweep
    from archsim.specs.library import load_experiment

    steps = max(1, round(DECODE_STEPS * arguments.fraction))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paper_matrix.yaml"
        file.write_text(EXPERIMENT.format(steps=steps))
        os.environ["ARCHSIM_CACHE"] = f"{folder}/cache"  # no run is reused
        if arguments.causes:
            print_causes(load_experiment(file))
            return
        memory, begin = PeakMemory(os.getpid()), time.perf_counter()
        memory.start()
        results = sweep(load_experiment(file), Path(folder) / "out", arguments.jobs)
        took = time.perf_counter() - begin
        memory.end()
        runs = len(results.runs.rows)
    projected = took * (DECODE_STEPS + 1) / (steps + 1)
    print(
        f"{runs} runs of {steps} decode steps: {took:.0f} s with {arguments.jobs} jobs, first-run compilation included"
    )
    print(
        f"projected to {DECODE_STEPS} steps: {projected / 60:.1f} minutes (published simulator: ~{PUBLISHED_HOURS} h, "
        f"x {PUBLISHED_HOURS * 3600 / projected:.0f})"
    )
    rss_gb, pss_gb = (each / 1e9 for each in memory.most)
    memory = f"RSS {rss_gb:.2f} GB, PSS {pss_gb:.2f} GB (published simulator: {PUBLISHED_GB} GB)"
    print(f"peak memory of all processes: {memory}")


if __name__ == "__main__":
    main()

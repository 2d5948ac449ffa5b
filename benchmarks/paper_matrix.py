"""The paper's whole evaluation: ``python benchmarks/paper_matrix.py [--fraction 0.1] [--jobs 2]``.

4 models x 2 meshes x batches of 4096, 8192, 16384 x 5 strategies x 127 decode steps, all MoE layers, generated traffic,
``assumptions: published``: the 120 runs for which the published simulator needs about 96 hours and 64 GB (its
documentation). ``--fraction`` runs this share of the decode steps and projects; traffic is generated in full
for the steps that run. Prints wall time, the projection, and the peak memory of all processes together.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

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


def resident_bytes(pid: int) -> int:
    """Memory of a process and all its descendants."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = [
            int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()
        ]
    except OSError:  # it has exited meanwhile
        return 0
    own = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return own + sum(resident_bytes(child) for child in children)


class PeakMemory(threading.Thread):
    """Samples the memory of this process and its children four times per second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.bytes = 0

    def run(self):
        while True:
            self.bytes = max(self.bytes, resident_bytes(os.getpid()))
            time.sleep(0.25)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fraction", type=float, default=0.05, help="share of the 127 decode steps to run")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    from archsim.runs.sweep import sweep
    from archsim.specs.loading.library import load_experiment

    steps = max(1, round(DECODE_STEPS * arguments.fraction))
    memory = PeakMemory()
    memory.start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paper_matrix.yaml"
        file.write_text(EXPERIMENT.format(steps=steps))
        os.environ["ARCHSIM_CACHE"] = f"{folder}/cache"  # no run is reused
        begin = time.perf_counter()
        results = sweep(load_experiment(file), Path(folder) / "out", arguments.jobs)
        took = time.perf_counter() - begin
        runs = len(results.runs.rows)
    projected = took * (DECODE_STEPS + 1) / (steps + 1)
    print(
        f"{runs} runs of {steps} decode steps: {took:.0f} s with {arguments.jobs} jobs, first-run compilation included"
    )
    print(
        f"projected to {DECODE_STEPS} steps: {projected / 60:.1f} minutes (published simulator: ~{PUBLISHED_HOURS} h, "
        f"x {PUBLISHED_HOURS * 3600 / projected:.0f})"
    )
    print(f"peak memory of all processes: {memory.bytes / 1e9:.2f} GB (published simulator: {PUBLISHED_GB} GB)")


if __name__ == "__main__":
    main()

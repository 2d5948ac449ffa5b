"""Processor time and memory of one small run on up to 4,096 dies: ``python benchmarks/big_fabrics.py``.

    python benchmarks/big_fabrics.py [--sides 16 32 64] [--assumptions physical published] [--topology mesh]

Each run is ``archsim run`` in a process of its own: DeepSeek-V3, one MoE layer, a prefill and a decode step of 1,024
requests, all that the command reads, builds and prints included. Prints what it took beside what ``archsim check``
estimates. Bars of a mesh: 32 × 32 dies in 15 s and 600 MB, 64 × 64 in 2 min and 3 GB. Existing compiled kernels are
used: run it twice for times without compilation.
"""

import argparse
import tempfile
from pathlib import Path

from measured_command import archsim, take

from archsim.runs.plan import plan_of
from archsim.runs.run_cost import cost_of
from archsim.specs.library import load_experiment
from microarch.fabric.extent import EDGES as TOPOLOGIES

EXPERIMENT = """
name: big-fabric
systems: [{{like: dojo, name: mesh, mesh: {side}x{side}, topology: {topology}}}]
models: [deepseek-v3]
workload: {{trace: {{synthetic: {{prompt_tokens: 1}}}}, batch: [1024], decode_steps: 1, layers: 1}}
policies: [ep]
assumptions: {assumptions}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="*", type=int, default=(16, 32, 64))
    parser.add_argument("--assumptions", nargs="*", default=("physical", "published"))
    parser.add_argument("--topology", choices=TOPOLOGIES, default="mesh", metavar="NAME", help=", ".join(TOPOLOGIES))
    arguments = parser.parse_args()
    print(f"{'dies':>7} {'assumptions':<12} {'processor':>10} {'peak':>9}   estimated")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "big.yaml"
        for side in arguments.sides:
            for assumptions in arguments.assumptions:
                file.write_text(EXPERIMENT.format(side=side, assumptions=assumptions, topology=arguments.topology))
                estimated = cost_of(plan_of(load_experiment(file)).point(0))
                found = take(archsim("run", str(file)))
                print(
                    f"{side**2:>7,} {assumptions:<12} {found.processor_s:>8.1f} s {found.held_bytes / 1e6:>6,.0f} MB   "
                    f"{estimated.host_ns / 1e9:.1f} s, {estimated.host_bytes / 1e6:,.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""Commands of a user at their largest, each with what it took and what it may take: time, memory and silence.

    python benchmarks/commands.py [NAME …]

Prints a row as soon as a command has ended; without names it runs all, about five minutes on two cores. A command runs
once to compile its kernels, and once more with nothing else kept; ``first hour`` begins without compiled kernels. The
paper's matrix is in ``benchmarks/paper_matrix.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measured_command import Taken, archsim, take
from timing import reference_s

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
SERVE = ["serve", str(CONFIGS / "serve_h200.yaml")]
ON_CLUSTER = ["--set", "system=h200_cluster", "--set", "routing={like: model}"]
EPLB = "{preset: eplb, name: eplb, rebalancing: {name: eplb, every_steps: 3000, window_steps: 1000}}"
# Mooncake's conversations have 3.4 requests/s of 12,035 tokens that 343 answer, on average; the trace of 23,608
# requests (toolagent) is as long as theirs (an hour).
MOONCAKE = "{arrivals: {rate: 6.56/s}, input: {mean: 12035, cv: 1}, output: {mean: 343, cv: 1}, count: 23608}"
ONE_LAYER = """
name: {name}
systems: [{system}]
models: [deepseek-v3]
workload: {{trace: {{synthetic: {{prompt_tokens: 0}}}}, batch: {batch}, decode_steps: 1, context: 1024, layers: 1}}
policies: [ep]
assumptions: physical
"""
SPACE = """
engine: analytical
sweep:
  grid:
    d2d.bandwidth: {{from: 500 GB/s, to: 4 TB/s, log: {links}}}
    d2d.hop_latency: {{from: 10 ns, to: 200 ns, linear: 100}}
    compute.peak: {{from: 100 TFLOP/s, to: 1000 TFLOP/s, log: 10}}
    llc.hit: {{from: 50 ns, to: 240 ns, linear: 10}}
explore: {{objectives: [throughput, energy, cost], event_runs: 20}}
"""
WAFER = """
like: dojo
name: wafer48
mesh: {x: 8, y: 6}
hbm: {bandwidth: 8 TB/s, capacity: 180 GB}
compute: {peak: 4.5 PFLOP/s}
d2d: {bandwidth: 2 TB/s}
"""
WIDE = """
system: h200_cluster
model: deepseek-v3
parallel: {attention: {dp: 32}, experts: {ep: 32}}
precision: {products: fp8_block, experts: fp8_block, kv: bf16}
engine: sglang
requests: {arrivals: {rate: 30/s}, input: {mean: 1024, cv: 0.5}, output: {mean: 512, cv: 0.5}, count: 600}
slo: {ttft: 2 s, tpot: 50 ms}
"""


class Command(NamedTuple):
    """Arguments of ``archsim``, ``FILE`` being ``experiment`` in a file; and what it may take (None: anything)."""

    arguments: list[str]
    most_s: float | None = None
    most_bytes: float | None = None
    experiment: str = ""
    out: bool = True
    compiled: bool = True
    most_cpu_s: float | None = None


def one_layer(system: str, batch: int, more: str = "", **values: object) -> str:
    return (ONE_LAYER + more).format(name="scale", system=system, batch=batch, **values)


def mesh(side: int) -> str:
    return one_layer(f"{{like: dojo, name: mesh, mesh: {side}x{side}}}", 4096)


COMMANDS = {
    "first hour": Command(["sweep", str(CONFIGS / "dojo.yaml")], 70, compiled=False),
    "32 x 32 dies": Command(["sweep", "FILE"], 15, 600e6, mesh(32)),
    "64 x 64 dies": Command(["sweep", "FILE"], 120, 3e9, mesh(64)),
    "check 10^6": Command(["check", "FILE"], 3, 200e6, one_layer("dojo", 512, SPACE, links=100), out=False),
    "dry run 10^6": Command(
        ["sweep", "FILE", "--dry-run"], 3, 200e6, one_layer("dojo", 512, SPACE, links=100), out=False
    ),
    "explore 10^5": Command(["explore", "FILE"], None, None, one_layer("dojo", 512, SPACE, links=10)),
    "serve 10^6": Command([*SERVE, "--set", "requests.count=1000000"], 60, out=False),
    "serve by traffic": Command(
        [
            *(*SERVE, *ON_CLUSTER, "--set", "requests.count=300"),
            *("--set", "parallel={attention: {tp: 1, dp: 32}, experts: {ep: 32}}"),
        ],
        60, out=False,
    ),
    "serve with EPLB": Command(
        [
            *(*SERVE, *ON_CLUSTER, "--set", f"requests={MOONCAKE}", "--set", f"policies=[{EPLB}]"),
            *("--set", "parallel={attention: {tp: 1, dp: 4}, experts: {ep: 4}}", "--set", "instances=8"),
        ],
        300, out=False,
    ),
    "wafer or racks": Command(
        ["compare", "FILE", "gb200_nvl72:8", "--model", "deepseek-v3", "--tpot", "50ms"], None, None, WAFER,
        most_cpu_s=60,
    ),
    "H200 or B200": Command(["compare", "h200_node", "b200_node", "--model", "qwen3-235b-a22b"], most_cpu_s=60),
    "spare experts": Command(
        ["compare", "FILE", "--vary", "redundant_experts=[0,32,64]"], None, None, WIDE, most_cpu_s=60
    ),
    "KV offload": Command(
        ["compare", str(CONFIGS / "serve_agents.yaml"), "--vary", "kv_offload=[none,1TB]"], most_cpu_s=60
    ),
    "recommend": Command(
        ["recommend", "qwen3-235b-a22b", "--on", "h200", "--on", "b200", "--rate", "20", "--jobs", "1"], most_cpu_s=25
    ),
    "FP8 or NVFP4": Command(
        ["recommend", "deepseek-r1", "--on", "b200:8", "--precision", "fp8", "--precision", "nvfp4", "--jobs", "1"],
        most_cpu_s=25,
    ),
    "ratio of pools": Command(
        [
            *("recommend", "deepseek-r1", "--on", "h200:32", "--pools", "--input", "4096", "--output", "1024"),
            *("--jobs", "1"),
        ],
        most_cpu_s=25,
    ),
}  # fmt: skip


def taken(command: Command) -> Taken:
    """What the command takes the second time, in a folder of its own; the first time if nothing may be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(command.experiment)
        own = {} if command.compiled else {"NUMBA_CACHE_DIR": f"{folder}/kernels"}
        for time in ("first", "second") if command.compiled else ("first",):
            out = ["--out", f"{folder}/{time}"] if command.out else []
            line = archsim(*(str(file) if each == "FILE" else each for each in command.arguments), *out)
            found = take(line, own)
    return found


def rows(names: list[str]) -> Iterator[str]:
    """A row of the table for each command, after its head."""
    head = f"{'':18}{'wall s':>14}{'CPU s':>14}{'CPU ref':>9}{'memory MB':>14}"
    yield f"{head}{'shared once':>13}{'first line s':>14}{'silent s':>10}"
    for name in names:
        command = COMMANDS[name]
        before_s = reference_s()  # of the kernel of `timing.py`, in which processor time is also measured
        found = taken(command)
        references = found.processor_s / ((before_s + reference_s()) / 2)
        wall, memory = bounded(found.wall_s, command.most_s, 1), bounded(found.held_bytes, command.most_bytes, 1e6)
        said = f"{found.pss_bytes / 1e6:13,.0f}{found.first_s:14.1f}{found.silent_s:10.1f}"
        processor = bounded(found.processor_s, command.most_cpu_s, 1)
        yield f"{name:18}{wall:>14}{processor:>14}{references:9,.0f}{memory:>14}{said}"


def bounded(value: float, most: float | None, unit: float) -> str:
    """``12.3 (15)``, marked where it is beyond its bound."""
    text = f"{value / unit:,.1f}" if value / unit < 100 else f"{value / unit:,.0f}"
    return text if most is None else f"{text} ({most / unit:,.0f}){'!' if value > most else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(COMMANDS)}")
    names = parser.parse_args().names or list(COMMANDS)
    if unknown := sorted(set(names) - set(COMMANDS)):
        sys.exit(f"{unknown[0]!r}: expected one of {', '.join(COMMANDS)}")
    print(f"load of the machine before: {os.getloadavg()[0]:.2f}; a bound is in brackets, ! where it is not met")
    for row in rows(names):
        print(row, flush=True)


if __name__ == "__main__":
    main()

"""Sweeps on a Dask cluster of this machine beside the same sweeps on its processes: time, bytes, and a killed worker.

    python benchmarks/cluster_sweep.py [--only matrix points] [--steps 2] [--points 10000]

Needs Dask (``pip install 'archsim[cluster]'``). ``matrix`` is that of ``benchmarks/paper_matrix.py``, 120 runs with all
their tables; ``points`` draws about so many analytical points of ``configs/design_space.yaml``. Each is swept three
times from empty caches: on two processes; on a cluster of two workers of one thread each; and again with a worker
killed halfway, which its nanny replaces. Prints runs, seconds (of reading, simulating and writing, imports left out),
processor seconds (of all processes, imports included), the client's peak memory, what Dask adds to the processor time
of a run, and whether all tables are equal to the byte. Existing compiled kernels are used: run it twice for times
without compilation.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from paper_matrix import EXPERIMENT
from support.dask_processes import Cluster

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
TABLES = ("results.csv", "results.parquet", "dies.csv", "links.csv", "pairs.csv", "steps.parquet")
COMBINED, KEPT = 8, 0.55  # models × policies of a sample of the design space; share of them that its constraints leave
SWEEP = """
import resource, sys, time
from pathlib import Path
from archsim.runs.plan import select
from archsim.runs.sweep import Unwatched, sweep_selected
from archsim.specs.library import load_planned
file, out, jobs, scheduler, *overrides = sys.argv[1:]
begin = time.perf_counter()
selection = select(load_planned(file, overrides))
sweep_selected(selection, Path(out), int(jobs), Unwatched(), scheduler or None)
took = time.perf_counter() - begin
print(len(selection), took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


class Swept(NamedTuple):
    """A sweep that has ended. cpu_s: of all processes; peak_gb: of the one that read, asked and wrote."""

    runs: int
    seconds: float
    cpu_s: float
    peak_gb: float
    folder: Path

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_s:.1f} s of processors, {self.peak_gb:.2f} GB"

    def equals(self, other: Swept) -> bool:
        return all(contents(self.folder / name) == contents(other.folder / name) for name in TABLES)


def contents(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def swept(file: Path, overrides: list[str], folder: Path, address: str = "") -> Swept:
    """Sweep in a process of its own, whose cache is empty."""
    command = [sys.executable, "-c", SWEEP, str(file), str(folder / "out"), str(WORKERS), address, *overrides]
    begin_s = children_s()
    done = subprocess.run(command, check=True, env=with_cache(folder), stdout=subprocess.PIPE, text=True)
    runs, seconds, peak_gb = done.stdout.split()
    return Swept(int(runs), float(seconds), children_s() - begin_s, float(peak_gb), folder / "out")


def children_s() -> float:
    """Processor seconds of all processes that were started here and have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def swept_there(file: Path, overrides: list[str], folder: Path, kill_after_s: float | None = None) -> Swept:
    """As `swept`, on a cluster; kill_after_s: when one of its workers is killed."""
    folder.mkdir()
    begin_s = children_s()
    cluster = Cluster(folder, WORKERS, env=with_cache(folder), nanny=True)
    try:
        cluster.wait()
        if kill_after_s is not None:
            killing = threading.Timer(kill_after_s, cluster.kill_under_nanny, (0,))
            killing.start()
        found = swept(file, overrides, folder, cluster.address)
        if kill_after_s is not None and not killing.finished.is_set():
            raise SystemExit("the sweep ended before a worker was killed")
    finally:
        cluster.end()
    return found._replace(cpu_s=children_s() - begin_s)


def with_cache(folder: Path) -> dict[str, str]:
    return os.environ | {"ARCHSIM_CACHE": str(folder / "cache")}


def compare(name: str, file: Path, overrides: list[str], folder: Path) -> None:
    here = swept(file, overrides, folder / "here")
    there = swept_there(file, overrides, folder / "there")
    killed = swept_there(file, overrides, folder / "killed", kill_after_s=there.seconds / 2)
    print(f"{name}: {here.runs:,} runs")
    print(f"  {WORKERS} processes: {here}")
    print(f"  {WORKERS} Dask workers: {there}; same bytes: {'yes' if there.equals(here) else 'NO'}")
    print(f"  one of them killed: {killed}; same bytes: {'yes' if killed.equals(here) else 'NO'}")
    added_s = there.cpu_s - here.cpu_s - started_s(folder / "idle")
    print(f"  Dask adds {1e3 * added_s / here.runs:.2f} ms of processors a run, its start left out", flush=True)


def started_s(folder: Path) -> float:
    """Processor seconds of a cluster that runs nothing."""
    folder.mkdir()
    begin_s = children_s()
    cluster = Cluster(folder, WORKERS, nanny=True)
    cluster.wait()
    cluster.end()
    return children_s() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=("matrix", "points"), choices=("matrix", "points"))
    parser.add_argument("--steps", type=int, default=2, help="decode steps of the matrix (the paper: 127)")
    parser.add_argument("--points", type=int, default=10_000, help="about how many points to explore")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in arguments.only:
            (folder / name).mkdir()
        if "matrix" in arguments.only:
            file = folder / "matrix.yaml"
            file.write_text(EXPERIMENT.format(steps=arguments.steps))
            compare("matrix", file, [], folder / "matrix")
        if "points" in arguments.only:
            count = max(1, round(arguments.points / COMBINED / KEPT))
            file = ROOT / "configs" / "design_space.yaml"
            compare("points", file, [f"sweep.sample.count={count}"], folder / "points")


if __name__ == "__main__":
    main()

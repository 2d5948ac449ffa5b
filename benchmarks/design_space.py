"""A whole sweep of ten thousand points: ``python benchmarks/design_space.py [FILE]``.

Linux only; default: configs/design_space.yaml. Runs ``archsim sweep FILE --jobs 2`` on two cores, into a temporary
folder with an empty cache of runs and traffic, and prints wall time, processor time of all processes over two (equal to
the wall time if nothing else runs and both cores are busy), points per second, and the peak resident memory of all
processes together, sampled four times per second (shared pages count for each process). The sweep ends with its page,
and includes the sample on the event engine. Existing compiled kernels are used: run it twice for times without
compilation.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyarrow import parquet

CORES = 2
EVERY_S = 0.25
MIB = 1 << 20


def children(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        own = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [pid, *(each for child in own for each in children(child))]


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main(file: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "archsim.cli.main",
            "sweep",
            file,
            "--jobs",
            str(CORES),
            "--out",
            f"{folder}/out",
        ]
        begin, peak_bytes = time.perf_counter(), 0
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, "ARCHSIM_CACHE": f"{folder}/cache"}, stdout=log, stderr=log
            )
            while process.poll() is None:
                peak_bytes = max(peak_bytes, sum(map(resident_bytes, children(process.pid))))
                time.sleep(EVERY_S)
        wall_s = time.perf_counter() - begin
        if process.returncode:
            sys.exit(Path(f"{folder}/log").read_text()[-2000:])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        points = parquet.read_metadata(f"{folder}/out/results.parquet").num_rows
    print(
        f"{file}: {points:,} points; wall {wall_s:.0f} s, {points / wall_s:.0f} points/s; processors {cpu_s:.0f} s, "
        f"over {CORES} cores "
        f"{cpu_s / CORES:.0f} s, {points * CORES / cpu_s:.0f} points/s; peak memory {peak_bytes / MIB:,.0f} MiB"
    )


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).resolve().parents[1] / "configs" / "design_space.yaml")
    )

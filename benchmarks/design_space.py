"""A whole sweep of ten thousand points: ``python benchmarks/design_space.py [FILE]``.

Default: configs/design_space.yaml. Runs ``archsim sweep FILE --jobs 2`` on two cores, into a temporary folder with an
empty cache of runs and traffic, and prints wall time, processor time of all processes over two (equal to the wall time
if nothing else runs and both cores are busy), points per second, and their peak memory (`measured_command`). The sweep
ends with its page, and includes the sample on the event engine. Existing compiled kernels are used: run it twice for
times without compilation.
"""

import os
import sys
import tempfile
from pathlib import Path

from measured_command import archsim, take
from pyarrow import parquet

CORES = 2
MIB = 1 << 20


def main(file: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as folder:
        found = take(archsim("sweep", file, "--jobs", str(CORES), "--out", f"{folder}/out"))
        points = parquet.read_metadata(f"{folder}/out/results.parquet").num_rows
    print(
        f"{file}: {points:,} points; wall {found.wall_s:.0f} s, {points / found.wall_s:.0f} points/s; processors "
        f"{found.processor_s:.0f} s, over {CORES} cores {found.processor_s / CORES:.0f} s, "
        f"{points * CORES / found.processor_s:.0f} points/s; peak memory {found.held_bytes / MIB:,.0f} MiB"
    )


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).resolve().parents[1] / "configs" / "design_space.yaml")
    )

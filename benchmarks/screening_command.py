"""What a user gets of screening: the whole command `archsim sweep --search`, from its file to its page.

    python benchmarks/screening_command.py [--points 100000] [--shapes grid sample axis]

Runs ``archsim sweep --search FILE --jobs 1`` with ``event_runs: 0`` on spaces of a small model (one layer of 16
experts, 2 x 2 dies), in a process of its own with empty caches, and prints points per processor second and the peak
memory. As machines differ, each rate is also printed as points in the time of the reference kernel (timing.py), which
is timed just before and after, and as a share of the rows a second that pyarrow writes to Parquet, of the columns that
screening writes, in the same run. A small space runs first, so that no kernel is compiled in what is timed.
`benchmarks/speed.py --only screening` writes the rates to docs/speed.md.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from analytical import SMALL
from measured_command import Taken, archsim, take
from timing import reference_s

from archsim.base.yaml import dump_yaml

MIB = 1 << 20
SHAPES = ("grid", "sample", "axis")
POINTS, WARM_POINTS = 100_000, 1000
COLUMNS = 12  # of the reference, as many numbers as a screened point has
ROWS = 200_000
RANGES = {
    "compute.peak": {"from": "100 TFLOP/s", "to": "1000 TFLOP/s"},
    "hbm.bandwidth": {"from": "1 TB/s", "to": "4 TB/s"},
    "d2d.bandwidth": {"from": "500 GB/s", "to": "4 TB/s"},
    "llc.miss": {"from": "50 ns", "to": "240 ns"},
}


def sweep_of(shape: str, points: int) -> dict:
    """The `sweep:` of a space of about so many points."""
    if shape == "sample":
        return {"sample": {"count": points, "over": RANGES}}
    if shape == "axis":
        return {"grid": {"compute.peak": RANGES["compute.peak"] | {"log": points}}}
    each = max(2, round(points ** (1 / len(RANGES))))
    return {"grid": {name: ends | {"linear": each} for name, ends in RANGES.items()}}


def experiment(shape: str, points: int) -> dict:
    workload = {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 64, "decode_steps": 1, "context": 1024}
    sweep = sweep_of(shape, points)
    sweep["grid"] = sweep.get("grid", {}) | {"mesh": ["2x2"]}
    asked = {"objectives": ["throughput", "energy", "cost"], "event_runs": 0, "analytical_runs": 50}
    return {
        "name": f"screened-{shape}", "systems": ["dojo"], "models": [SMALL], "workload": workload | {"layers": 1},
        "policies": ["ep"], "assumptions": "physical", "sweep": sweep, "explore": asked,
    }  # fmt: skip


def reference_per_s() -> float:
    """Rows per processor second of the reference."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({f"c{at}": np.random.default_rng(at).random(ROWS) for at in range(COLUMNS)})
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        parquet.write_table(table, f"{folder}/rows.parquet")
        return ROWS / (time.process_time() - begin)


class Screened(NamedTuple):
    """What the command takes on a space of about ``points`` points. ``reference_s``: of the kernel around it."""

    points: int
    taken: Taken
    reference_s: float

    @property
    def per_s(self) -> float:
        """Points per processor second."""
        return self.points / self.taken.processor_s


def screened(shape: str, points: int) -> Screened:
    """Run the command on a space of this shape, after a small one."""
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as folder:
        for count in (WARM_POINTS, points):
            file, out = Path(folder) / "space.yaml", f"{folder}/{count}"
            file.write_text(dump_yaml(experiment(shape, count)), encoding="utf-8")
            before_s = reference_s()
            found = take(archsim("explore", str(file), "--jobs", "1", "--out", out))
            around_s = (before_s + reference_s()) / 2
        rows = parquet.read_metadata(f"{out}/analytical/screened.parquet").num_rows
    return Screened(rows, found, around_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    arguments = parser.parse_args()
    reference = reference_per_s()
    for shape in arguments.shapes:
        found = screened(shape, arguments.points)
        print(
            f"{shape}: {found.points:,} points, {found.per_s:,.0f} points per processor second "
            f"({found.per_s * found.reference_s:,.1f} ref), {found.per_s / reference:.3f} of the rows "
            f"that are written to Parquet alone; {found.taken.processor_s:.1f} s of processors, "
            f"{found.taken.held_bytes / MIB:,.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""What a user gets of screening: the whole command `archsim sweep --search`, from its file to its page.

    python benchmarks/screening_command.py [--points 100000] [--shapes grid sample axis]

Runs ``archsim sweep --search FILE --jobs 1`` with ``event_runs: 0`` on spaces of a small model (one layer of 16
experts, 2 x 2 dies), in a process of its own with empty caches, and prints points per processor second and the peak
memory. As machines differ, each rate is also printed as a ratio to a reference: rows per second that pyarrow writes
to Parquet, of the columns that screening writes, in the same run. Kernels that are compiled already are used: run it
twice for times without compilation. """

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from analytical import SMALL
from measured_command import archsim, take

from archsim.base.yaml import dump_yaml

MIB = 1 << 20
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--shapes", nargs="+", choices=("grid", "sample", "axis"), default=["grid", "sample", "axis"])
    arguments = parser.parse_args()
    reference = reference_per_s()
    for shape in arguments.shapes:
        tree = experiment(shape, arguments.points)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "space.yaml"
            file.write_text(dump_yaml(tree), encoding="utf-8")
            found = take(archsim("explore", str(file), "--jobs", "1", "--out", f"{folder}/out"))
            from pyarrow import parquet

            points = parquet.read_metadata(f"{folder}/out/analytical/screened.parquet").num_rows
        rate = points / found.processor_s
        print(
            f"{shape}: {points:,} points, {rate:,.0f} points per processor second, {rate / reference:.3f} of the rows "
            f"that are written to Parquet alone; {found.processor_s:.1f} s of processors, "
            f"{found.held_bytes / MIB:,.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""``python -m calibration.measure all --out measurements/``: measure this machine, as CSV in the schema's layout."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from archsim.base.config_files import named_files
from archsim.base.errors import ArchsimError
from archsim.specs.library import load_model
from calibration.measure.backend import Backend
from calibration.measure.points import PLANS

MESH = "mesh"


def points_of_mesh() -> list[str]:
    """What determines the laws of a mesh of chips (`archsim.laws.mesh`), and the files that hold it."""
    from calibration.measurements.mesh import COLUMNS

    points = {
        "fabric_bandwidth": "one link, packets of 256 B, 1, 2, 4, 8 KiB and the largest, each alone: a neighbour; a "
        "line and a ring with all chips sending; op: write",
        "fabric_latency": "there and back to the neighbour, payloads of 16 B and 4 KiB, with and without an atomic; "
        "hops: 2",
        "uniform_random_8chip": "dispatch and combine of even routing, 640 and 3,200 tokens a chip, line and ring, "
        "1 and 2 links; chips: of the line or ring",
        "replay_timings": "dispatch and combine alone of recorded routing, four layers or more: captured; experts "
        "balanced over chips; tokens shuffled over sources; two runs each",
        "replay_source_destination": "assignments from chip to chip of these cases, rows are sources",
        "captured_columns_5k": "where only the share of a column is known: the same layers on a line and on a ring",
    }
    lines = ["Points that determine the curves of a mesh; archsim calibrate FOLDER fits them. Files and columns:"]
    return [*lines, *(f"{name}.csv ({', '.join(COLUMNS[name])}): {what}" for name, what in points.items())]


def torch_backend() -> Backend:
    """Imported only to measure: torch is not a dependency of this project."""
    from calibration.measure.torch_backend import TorchBackend

    return TorchBackend()


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(prog="python -m calibration.measure", description=__doc__.partition(": ")[2])
    command.add_argument(
        "what",
        nargs="+",
        choices=("all", *PLANS, MESH),
        help="tables to measure; mesh: print which points of a mesh of chips to take, for other tools to measure",
    )
    command.add_argument("--out", type=Path, default=Path("measurements"), help="folder (default: measurements)")
    command.add_argument("--run-id", default="1", help="name of the repetition; a new name measures everything again")
    command.add_argument("--models", nargs="+", help="models for gemm and moe (default: all in configs/models)")
    return command


def main(arguments: Sequence[str] | None = None, make_backend: Callable[[], Backend] = torch_backend) -> int:
    """0: done; 1: nothing could be measured; 130: interrupted (a second call keeps the rows measured so far)."""
    from rich.console import Console

    from calibration.measure.session import measure

    options = parser().parse_args(arguments)
    if MESH in options.what:
        print("\n".join(points_of_mesh()))
        return 0
    kinds = list(PLANS) if "all" in options.what else list(dict.fromkeys(options.what))
    try:
        models = [load_model(name) for name in options.models or named_files("models")]
        measure(make_backend(), kinds, models, options.out, options.run_id, Console(stderr=True))
    except (ArchsimError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

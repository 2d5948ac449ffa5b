"""``python -m calibration.measure all --out measurements/``: measure this machine, as CSV in the schema's layout."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from archsim.base.errors import ArchsimError
from archsim.specs.loading.config_files import named_files
from archsim.specs.loading.library import load_model
from calibration.measure.backend import Backend
from calibration.measure.points import PLANS


def torch_backend() -> Backend:
    """Imported only to measure: torch is not a dependency of this project."""
    from calibration.measure.torch_backend import TorchBackend

    return TorchBackend()


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(prog="python -m calibration.measure", description=__doc__.partition(": ")[2])
    command.add_argument("what", nargs="+", choices=("all", *PLANS), help="tables to measure")
    command.add_argument("--out", type=Path, default=Path("measurements"), help="folder (default: measurements)")
    command.add_argument("--run-id", default="1", help="name of the repetition; a new name measures everything again")
    command.add_argument("--models", nargs="+", help="models for gemm and moe (default: all in configs/models)")
    return command


def main(arguments: Sequence[str] | None = None, make_backend: Callable[[], Backend] = torch_backend) -> int:
    """0: done; 1: nothing could be measured; 130: interrupted (a second call keeps the rows measured so far)."""
    from rich.console import Console

    from calibration.measure.session import measure

    options = parser().parse_args(arguments)
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

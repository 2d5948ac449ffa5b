"""``archsim trace fit``: estimate the parameters of generated routing from recorded routing."""

from __future__ import annotations

import argparse
from pathlib import Path

from archsim.cli.arguments import natural
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source", metavar="SRC", help="store, .npz or directory of JSON requests; or .npz of loads (counts, layer_ids)"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="model by name or file")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help=".yaml to write; its tables are written beside it as .npz"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Print the file that was written."""
    from archsim.specs.loading.library import load_model
    from archsim.workload.generated.files import fit_preset

    print(fit_preset(args.source, load_model(args.model), Path(args.out), args.seed))
    return OK

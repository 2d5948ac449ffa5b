"""``archsim trace fit``: estimate the parameters of generated routing from recorded routing."""

import argparse
from pathlib import Path

from archsim.cli.arguments import natural
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SRC", help="store, .npz or directory of JSON requests; or .npz of loads (counts, layer_ids)"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="model by name or file")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help=".yaml to write; its tables are written beside it as .npz"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Print the file that was written, and how far subjects differ."""
    from archsim.specs.loading.library import load_model
    from archsim.workload.generated.files import fit_preset
    from archsim.workload.generated.traffic_heads import TrafficSubjects, read_head

    out = fit_preset(args.source, load_model(args.model), Path(args.out), args.seed)
    head, _ = read_head(out)
    if isinstance(head, TrafficSubjects):
        print(f"a model of each of {len(head.subjects)} subjects; between them (standard deviation over the mean):")
        print("\n".join(f"  {name}: {value:g} %" for name, value in head.spread.items()))
        print("so uncertain is a subject that is not among them (`mix: {another: 1}` is like one of them, by its name)")
    print(out)
    return OK

"""``archsim new``: a commented file to start from."""

import argparse

from archsim.cli.exit_codes import OK

KINDS = ("system", "model", "experiment")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", metavar="NAME", help="name of the system, model or experiment")
    parser.add_argument("--out", metavar="FILE", help="file to write (default: NAME.yaml)")


def run(args: argparse.Namespace) -> int:
    """Write the file; an existing one is left as it is. Raises SpecError."""
    from pathlib import Path

    from archsim.specs.loading.starting import starting_text, write_new

    file = Path(args.out or f"{args.name}.yaml")
    write_new(file, starting_text(args.kind, args.name))
    use = f"archsim sweep {file}" if args.kind == "experiment" else f"{args.kind}s: [{file}] in an experiment"
    print(f"{file}: edit it; archsim check {file}; {use}")
    return OK

"""``archsim new``: a commented file to start from."""

import argparse

from archsim.cli.arguments import OK, add_file

KINDS = ("system", "model", "experiment")


def add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument(
        "name", metavar="NAME", help="Name of the system, model or experiment, or of the file to write."
    )
    add_file(parser, "File to write", "NAME.yaml")


def run_new(args: argparse.Namespace) -> int:
    """Write the file; an existing one is left as it is. Raises SpecError."""
    from pathlib import Path

    from archsim.base.config_files import schema_line
    from archsim.specs.library import starting_text, write_new

    name = args.name.removesuffix(".yml").removesuffix(".yaml")  # `archsim new experiment mine.yaml` writes that file
    file = Path(args.out or (args.name if name != args.name else f"{name}.yaml"))
    write_new(file, schema_line(args.kind, file) + starting_text(args.kind, Path(name).name))
    use = (
        f"simulate it with `archsim sweep {file}`"
        if args.kind == "experiment"
        else (f"name it in an experiment (`{args.kind}s: [{file}]`)")
    )
    args.result = {"file": str(file), "kind": args.kind}
    print(f"{file} is written. Edit it, check it with `archsim check {file}`, and {use}.")
    return OK

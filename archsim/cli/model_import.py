"""``archsim new --from``: a model file from an ONNX graph, or from Hugging Face's ``config.json``."""

import argparse
import sys
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.base.verbs import natural
from archsim.cli.arguments import OK, add_file, file_out


def add_model_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "graph", metavar="MODEL.onnx|config.json", help="An ONNX graph, or a config.json of Hugging Face."
    )
    add_file(parser, "Model file (YAML) to write", "MODEL.yaml")
    parser.add_argument(
        "--name", help="Name of the model (default: that in config.json, or the file name of the graph)."
    )
    parser.add_argument(
        "--operators", metavar="FILE", help="Write a table of the GEMMs and attention operators to this CSV file."
    )
    parser.add_argument(
        "--moe-layers", type=_spacing, metavar="FIRST:LAST[:EVERY]", help="Give it if the graph does not show it."
    )
    parser.add_argument(
        "--accept-approximate",
        action="store_true",
        help="Go on where config.json has a type or keys that archsim does not know. Every page says so.",
    )
    parser.add_argument(
        "--gated", type=_yes_or_no, metavar="yes|no", help="Whether experts have a gate, if the graph does not show it."
    )
    for flag in ("--layers", "--hidden", "--expert-ffn", "--experts", "--top-k", "--shared-experts", "--shared-ffn"):
        parser.add_argument(flag, type=natural, metavar="N", help="Give it if the graph does not show it.")


def run_model_import(args: argparse.Namespace) -> int:
    """Import and write. Raises ArchsimError for a graph that is not recognised."""
    from archsim.model.config_keys import FLAGS

    given = {field: getattr(args, field) for field in FLAGS}
    if args.graph.endswith(".json"):
        from archsim.model.config_json import import_config

        if args.operators:
            raise SpecError("--operators: needs an ONNX graph; config.json has no operators")
        model = import_config(Path(args.graph), args.name, given, args.accept_approximate)
        for line in model.approximate:
            print(f"approximate: {line}", file=sys.stderr)
        return _written(model, args)
    from archsim.model.onnx import import_model, write_operators

    imported = import_model(Path(args.graph), args.name, given)
    print("\n".join(imported.found), file=sys.stderr)
    _written(imported.spec, args)
    if args.operators:
        write_operators(imported.operators, Path(args.operators))
        print(f"operators: {args.operators}")
    return OK


def _written(model, args: argparse.Namespace) -> int:
    from archsim.model.config_json import write_model
    from archsim.specs.describe import summary

    out = file_out(args.out, f"{model.name}.yaml")
    write_model(model, out)
    args.result = {"file": str(out), "model": model}
    print(f"model: {out}: {summary(model)}")
    return OK


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected yes or no")
    return text == "yes"


def _spacing(text: str) -> dict[str, int]:
    parts = [natural(part) for part in text.split(":")]
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:LAST or FIRST:LAST:EVERY")
    return dict(zip(("first", "last", "every"), [*parts, 1], strict=False))

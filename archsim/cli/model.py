"""What ``archsim model`` does: models from exported graphs; calls the API and prints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from archsim.cli.arguments import natural

OK = 0


def add_model_commands(commands: argparse._SubParsersAction) -> None:
    """The parsers of this module, below ``archsim model``."""
    importing = commands.add_parser("import", help="make a model file of an ONNX graph; weights are not read")
    importing.add_argument("graph", metavar="MODEL.onnx")
    importing.add_argument("--out", required=True, metavar="FILE", help="model file to write (YAML)")
    importing.add_argument("--name", help="name of the model (default: that of the graph's file)")
    importing.add_argument(
        "--operators", metavar="FILE", help="write a table (CSV) of products and attention operators"
    )
    importing.add_argument(
        "--moe-layers", type=_spacing, metavar="FIRST:LAST[:EVERY]", help="where the graph does not say"
    )
    for flag in ("--layers", "--hidden", "--expert-ffn", "--experts", "--top-k", "--shared-experts", "--shared-ffn"):
        importing.add_argument(flag, type=natural, metavar="N", help="where the graph does not say")
    importing.set_defaults(command=_import)


def _spacing(text: str) -> dict[str, int]:
    parts = [natural(part) for part in text.split(":")]
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:LAST or FIRST:LAST:EVERY")
    return dict(zip(("first", "last", "every"), [*parts, 1], strict=False))


def _import(arguments: argparse.Namespace) -> int:
    from archsim.base.files import write_text
    from archsim.models.onnx_import import FLAGS, import_model
    from archsim.specs.text.yaml import dump_yaml

    imported = import_model(
        Path(arguments.graph), arguments.name, {field: getattr(arguments, field) for field in FLAGS}
    )
    print("\n".join(imported.found), file=sys.stderr)
    write_text(
        Path(arguments.out), dump_yaml(imported.spec.model_dump(mode="json", by_alias=True, exclude={"aliases"}))
    )
    print(f"model: {arguments.out}")
    if arguments.operators:
        _write_table(Path(arguments.operators), imported.operators)
        print(f"operators: {arguments.operators}")
    return OK


def _write_table(path: Path, rows: list[dict]) -> None:
    import csv

    from archsim.base.files import drafted
    from archsim.models.onnx_import import OPERATOR_COLUMNS

    with drafted(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, OPERATOR_COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)

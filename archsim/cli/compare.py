"""``archsim compare``: two designs, or two policies or systems of one experiment, side by side."""

import argparse
import re
import sys

from archsim.cli.arguments import CHOSEN, add_chosen, add_json, add_out
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(
            name.lower(), metavar=name, help="experiment (path or name); with --in: a policy or system of it"
        )
    parser.add_argument("--in", dest="inside", metavar="FILE", help="experiment whose policies or systems A and B are")
    add_chosen(parser)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="override a key of both designs; repeatable",
    )  # fmt: skip
    add_out(parser, "folder of the page (default: reports/A-B-…)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what differs, and write the page."""
    from pathlib import Path

    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes

    print_compiling()
    chosen = {name: getattr(args, name) for name in CHOSEN}
    folder = Path(args.out or Path("reports") / _folder_name(args))
    print("simulating both ...", file=sys.stderr, flush=True)
    found = ar.compare(args.a, args.b, inside=args.inside, out=folder, overrides=args.overrides, **chosen)
    args.result = found
    _print(found)
    print_notes(found.notes)
    print(f"report: {folder / 'index.html'}")
    return OK


def _folder_name(args: argparse.Namespace) -> str:
    """Of the comparison: another ``--in``, ``--batch``, ``--set`` … has another name."""
    from pathlib import Path

    files = [Path(each).stem for each in (args.inside, args.a, args.b) if each]
    given = [str(value) for name in CHOSEN if (value := getattr(args, name)) is not None]
    return re.sub(r"[^\w.+=-]+", "_", "-".join([*files, *given, *args.overrides]))


def _print(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.designs.page import answer, cell, change

    print(f"A: {found.a}, B: {found.b}; both: {found.same}")
    table = grid("specification", "A", "B")
    for each in found.spec:
        table.add_row(each.key, each.a, each.b)
    console().print(table)
    table = grid("", numbers=("A", "B", "B over A"))
    table.add_column("")
    for group in dict.fromkeys(each.group for each in (*found.causes, *found.quantities)):
        table.add_row(group, style="bold")
        for each in (*found.causes, *found.quantities):
            if each.group == group:
                better = {1: "better", -1: "worse", 0: ""}[each.better]
                table.add_row(f"  {each.name}", cell(each, 0), cell(each, 1), change(each), better)
    console().print(table)
    print(f"{answer(found)}.")

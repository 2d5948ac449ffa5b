"""``archsim compare``: two designs, or two policies or systems of one experiment, side by side."""

from __future__ import annotations

import argparse
import re
import sys

from archsim.cli import arguments


def add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(
            name.lower(),
            metavar=name,
            help="An experiment, by path or name. With --in, a policy or a system of that experiment.",
        )
    parser.add_argument(
        "--in", dest="inside", metavar="FILE", help="The experiment that A and B are policies or systems of."
    )
    arguments.add_chosen(parser)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="Override a key of both designs. May be repeated.",
    )  # fmt: skip
    arguments.add_out(parser, "Folder to write the page to (default: reports/A-B-…).")
    arguments.add_samples(parser)


def run_compare(args: argparse.Namespace) -> int:
    """Print what differs, and write the page."""
    from pathlib import Path

    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.runs.results import damage_told

    print_compiling()
    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    folder = Path(args.out or Path("reports") / _folder_name(args))
    for each in dict.fromkeys(filter(None, (args.inside, args.a, args.b))):
        print_notes(damage_told(Path(each)))
    print("simulating both ...", file=sys.stderr, flush=True)
    found = ar.compare(args.a, args.b, inside=args.inside, out=folder, overrides=args.overrides, **chosen)
    args.result = found
    _print(found)
    print_notes(found.notes)
    if args.samples is not None:
        from archsim.cli.printing import print_sure
        from archsim.cli.progress import study
        from archsim.studies.sides import load_side, side_of
        from archsim.studies.sure import sure_of_sides

        inside = None if args.inside is None else load_side(args.inside, args.overrides)
        sides = {name: side_of(each, inside, args.overrides, chosen) for name, each in (("A", args.a), ("B", args.b))}
        named = {f"{name}: {of}": side for (name, side), of in zip(sides.items(), (found.a, found.b), strict=True)}
        with study(folder) as watching:
            sure = sure_of_sides(named, args.samples, folder, None, watching)
        print_sure(sure)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _folder_name(args: argparse.Namespace) -> str:
    """The name of the folder of the comparison, which depends on ``--in``, ``--batch``, ``--set`` and the like."""
    from pathlib import Path

    files = [Path(each).stem for each in (args.inside, args.a, args.b) if each]
    given = [str(value) for name in arguments.CHOSEN if (value := getattr(args, name)) is not None]
    return re.sub(r"[^\w.+=-]+", "_", "-".join([*files, *given, *args.overrides]))


def _print(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.designs_page import answer, cell, change

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

"""``archsim compare``: options as well as each can be used, designs at one batch, or deployments, side by side."""

from __future__ import annotations

import argparse
import re
import sys

from archsim.cli import arguments

OPTIONS = "options, each as well as it can be used"  # heading in --help


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sides", nargs="+", metavar="SIDE",
        help="A system, by name or file, with :N for N machines; an experiment; a file of `archsim serve`; or the "
        "folder of a report. With --in, a policy or a system of that experiment.",
    )  # fmt: skip
    parser.add_argument(
        "--in", dest="inside", metavar="FILE", help="The experiment that the sides are policies or systems of."
    )
    for name, metavar, text in (
        ("--tpot", "TIME", "Limit of the time per output token, such as 50ms."),
        ("--ttft", "TIME", "Limit of the time to first token, such as 2s."),
        ("--rate", "N", "Requests a second that must be served: how many machines of each side do that."),
        ("--equal", "WHAT", "Budget of the comparison: machines, devices, usd, w or mm2 (default: machines)."),
    ):  # fmt: skip
        parser.add_argument(name, metavar=metavar, help=text, **arguments.below(parser, OPTIONS))
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=[VALUES]",
        help="Compare values of a key of each side, such as d2d.bandwidth=[1,2,4]TB/s, or "
        "scheduler.chunked_prefill=[true,false] of a deployment. May be repeated: of one machine, it says which of the "
        "keys is worth more for the same budget.",
        **arguments.below(parser, OPTIONS),
    )  # fmt: skip
    for name, what in (("input", "prompt"), ("output", "output")):
        parser.add_argument(
            f"--{name}", type=arguments.positive, metavar="N", help=f"Number of {what} tokens of a request.",
            **arguments.below(parser, OPTIONS),
        )  # fmt: skip
    parser.add_argument(
        "--price", action="append", default=[], metavar="GPU=USD", help="Price of an hour of a GPU. May be repeated.",
        **arguments.below(parser, OPTIONS),
    )  # fmt: skip
    arguments.add_chosen(parser)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="Override a key of all sides. May be repeated.",
    )  # fmt: skip
    arguments.add_out(parser, "Folder to write the page to (default: reports/A-B-…).")
    parser.add_argument(
        "--samples", type=_worlds, metavar="N",
        help="Draw all numbers that have a range N times, and say how sure the answer is (default: 32 of machines, 16 "
        "of deployments, none of two designs; 0: none).", **arguments.below(parser, arguments.EFFORT),
    )  # fmt: skip
    arguments.add_jobs(parser)


def _worlds(text: str) -> int:
    return 0 if text == "0" else arguments.worlds(text)


def run_compare(args: argparse.Namespace) -> int:
    """Print what differs, or which option serves more, and write the page."""
    from pathlib import Path

    import archsim as ar
    from archsim.cli import heartbeat
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.runs.results import damage_told
    from archsim.search.options import vary_of
    from archsim.studies.designs import DesignComparison

    print_compiling()
    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    folder = Path(args.out or Path("reports") / _folder_name(args))
    for each in dict.fromkeys(filter(None, (args.inside, *args.sides))):
        print_notes(damage_told(Path(each)))
    print("comparing ...", file=sys.stderr, flush=True)
    found = ar.compare(
        *args.sides, inside=args.inside, out=folder, overrides=args.overrides, equal=args.equal,
        limits={name: value for name in ("tpot", "ttft", "rate") if (value := getattr(args, name)) is not None},
        vary=vary_of(args.vary), input_tokens=args.input, output_tokens=args.output, samples=args.samples,
        prices=arguments.named_numbers("--price", args.price, "h200=2.5"), jobs=args.jobs, report=heartbeat.begins,
        **chosen,
    )  # fmt: skip
    if isinstance(found, DesignComparison):
        args.result = found
        _print(found)
        print_notes(found.notes)
        if args.samples:
            _print_sure(args, found, chosen, folder)
    else:
        args.result = found.as_json()
        print(found.sentence)
        _print_options(found)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _print_sure(args: argparse.Namespace, found, chosen, folder) -> None:
    """How sure the order of two designs is."""
    from archsim.cli.printing import print_sure
    from archsim.cli.progress import study
    from archsim.studies.sides import load_side, side_of
    from archsim.studies.sure import sure_of_sides

    inside = None if args.inside is None else load_side(args.inside, args.overrides)
    sides = {name: side_of(each, inside, args.overrides, chosen) for name, each in zip("AB", args.sides, strict=True)}
    named = {f"{name}: {of}": side for (name, side), of in zip(sides.items(), (found.a, found.b), strict=True)}
    with study(folder) as watching:
        sure = sure_of_sides(named, args.samples, folder, None, watching)
    print_sure(sure)


def _print_options(found) -> None:
    """The reasons and notes of machines; the table and notes of deployments."""
    from archsim.cli.printing import print_notes, print_served_sure
    from archsim.search.compare import OptionComparison

    if not isinstance(found, OptionComparison):
        print_served_sure(found.sure)
        return
    for each in found.reasons:
        print(f"- {each}")
    print_notes(found.notes)


def _folder_name(args: argparse.Namespace) -> str:
    """The name of the folder of the comparison, which depends on ``--in``, ``--batch``, ``--set`` and the like."""
    from pathlib import Path

    files = [Path(each).stem for each in (args.inside, *args.sides) if each]
    given = [str(value) for name in (*arguments.CHOSEN, "tpot", "ttft", "rate", "equal", "input", "output")
             if (value := getattr(args, name)) is not None]  # fmt: skip
    return re.sub(r"[^\w.+=-]+", "_", "-".join([*files, *given, *args.overrides, *args.vary]))


def _print(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.designs_page import answer, cell, change

    print(f"{answer(found)}.")
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

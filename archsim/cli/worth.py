"""``archsim compare --without``: whether a balancer pays on a deployment, judged on held-out loads, or a block of
silicon.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.cli import arguments


def add_worth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="A balancer (eplb, craft, remap or dup) or a block of silicon (prediction, allocator or speeds).",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        metavar="LOADS",
        help="For a balancer: recorded loads, as `archsim place` takes them (default: those of the traffic that is "
        "known of the model).",
    )
    parser.add_argument(
        "--deployment",
        metavar="FILE",
        help="For a balancer: a deployment with one engine, as `archsim serve` takes it.",
    )
    parser.add_argument(
        "--in",
        dest="inside",
        metavar="FILE",
        help="For a block: the experiment, or the folder of a report, whose policies are compared.",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="Override a key of the deployment or experiment, such as requests.count=200. May be repeated.",
    )  # fmt: skip
    arguments.add_out(parser, "For a balancer: folder to write the files to deploy to (default: nothing is written).")
    arguments.add_samples(parser)
    arguments.add_jobs(parser)


def run_worth(args: argparse.Namespace) -> int:
    """Print the verdict and what it stands on. Raises ArchsimError for what does not fit."""
    if args.inside is None and args.deployment is None:
        raise SpecError("a balancer needs --deployment. A block (prediction, allocator or speeds) needs --in")
    if args.inside is not None and (args.loads or args.deployment or args.out):
        raise SpecError("--in is for a block. --loads, --deployment and --out are for a balancer")
    print(f"reading {args.inside or args.deployment} ...", file=sys.stderr, flush=True)  # before slow imports
    return _balancer(args) if args.inside is None else _block(args)


def _balancer(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_notes

    print_compiling()
    print("choosing placements, serving with and without ...", file=sys.stderr, flush=True)
    out = None if args.out is None else Path(args.out)
    found = ar.worth(args.what, args.loads, args.deployment, args.overrides, out=out, samples=args.samples,
                     jobs=args.jobs or available_cores())  # fmt: skip
    args.result = found
    if found.answer:
        print(found.answer)
    print(found.verdict)
    if found.reason:
        print(found.reason)
    if found.worlds is not None:
        print(found.worlds.sentence)
    _print_rows(found)
    _print_moves(found)
    print_notes(found.notes)
    return arguments.OK


def _block(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.cli.progress import watcher

    is_report = Path(args.inside).is_dir()
    if is_report and args.overrides:
        raise SpecError(f"{args.inside} is a report, whose runs are taken as they are. --set needs an experiment")
    print_compiling()
    with watcher() as watching:
        experiment = args.inside if is_report else ar.load(args.inside, args.overrides)
        found = ar.block_worth(args.what, experiment, args.jobs, watching, args.samples)
    args.result = found
    _print_block(found)
    print_notes(getattr(experiment, "unread", ()))
    return arguments.OK


def _print_block(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.report.units import TIME_UNITS, signed_percent, usd, with_unit
    from archsim.studies.block_worth import WORDS

    print(found.verdict)
    for each in found.worlds:
        print(each.sentence)
    for cost in found.costs:
        takes = f"{cost.mm2:,.3g} mm², {cost.w:,.3g} W and {usd(*cost.usd[::2])}"
        print(f"On {cost.system}, which decides by {cost.decided}, {found.block} takes {takes}.")
    numbers = ("batch", "saved per decode step", "throughput", "energy per token")
    table = grid("policy", "without it", "system", "model", "assumptions", title="simulated", numbers=numbers)
    table.add_column("is worth its")
    for row in found.rows:
        saved = "0" if row.gain == 0 else with_unit(row.saved_ns, TIME_UNITS)
        energy = "–" if row.energy is None else signed_percent(row.energy)
        pays = ", ".join(WORDS[each] for each in row.pays) or "no"
        where = row.policy, row.without, row.system, row.model, row.assumptions, f"{row.batch:,}"
        table.add_row(*where, saved, signed_percent(row.gain), energy, pays)
    console().print(table)
    for sentence in (*found.reasons, *found.break_evens):
        print(sentence)


def _print_rows(found) -> None:
    from archsim.cli.printing import console, grid

    timed = any(row.experts_ms is not None for row in found.rows)
    heads = ["experts ms"] if timed else []
    numbers = ("max / mean", *heads, "TTFT ms", "TPOT ms", "goodput /s", "KV blocks per rank")
    table = grid("served", title="on held-out loads, simulated", numbers=("spares per rank", *numbers))
    for row in found.rows:
        spares, experts = ("–" if each is None else f"{each:.4g}" for each in (row.spares, row.experts_ms))
        times = (f"{row.ttft_ms:,.1f}", f"{row.tpot_ms:,.3f}", f"{row.goodput_per_s:.3f}", f"{row.kv_blocks:,}")
        table.add_row(row.name, spares, f"{row.max_over_mean:.3f}", *([experts] if timed else []), *times)
    console().print(table)


def _print_moves(found) -> None:
    cost, even = found.placed.cost, found.break_even
    print(
        f"Spare slots take {cost.extra_bytes / 1e9:.2f} GB of HBM per rank, {cost.hbm_share:.1%} of it.\n"
        f"A new placement moves {cost.moved:,} experts, of which {cost.busiest_bytes / 1e9:.2f} GB go to the busiest "
        f"rank. That takes {found.stall_ms:,.1f} ms over its link, after a search of {found.search_s:.2f} s on this "
        "host (measured)."
    )
    if even is None:
        print("Moving experts is never worth it, as a token takes no less time afterwards.")
    else:
        print(f"Moving experts is worth it if the placement stays for {even:,.0f} decode iterations.")
    for file in found.placed.files:
        print(f"Written for deployment: {file}")

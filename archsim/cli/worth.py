"""``archsim worth``: whether a balancer pays on a deployment, judged on held-out loads, or a block of silicon."""

import argparse
import sys
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.cli.arguments import add_jobs, add_json, add_out
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="a balancer: eplb, craft, remap or dup; or a block: prediction or allocator"
    )
    parser.add_argument("--loads", nargs="+", metavar="LOADS", help="of a balancer: as `archsim place` takes them")
    parser.add_argument("--deployment", metavar="FILE", help="of a balancer: as `archsim serve` takes it; one engine")
    parser.add_argument(
        "--in", dest="inside", metavar="FILE", help="of a block: experiment, or folder of a report, with its policies"
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="override a key of the deployment or experiment, such as requests.count=200; repeatable",
    )  # fmt: skip
    add_out(parser, "of a balancer: folder of the files to deploy (default: nothing is written)")
    add_jobs(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the verdict and what it stands on. Raises ArchsimError for what does not fit."""
    if args.inside is None and (args.loads is None or args.deployment is None):
        raise SpecError("worth: a balancer needs --loads and --deployment; a block (prediction, allocator) needs --in")
    if args.inside is not None and (args.loads or args.deployment or args.out):
        raise SpecError("worth: --in is for a block; --loads, --deployment and --out are for a balancer")
    print(f"reading {args.inside or args.deployment} ...", file=sys.stderr, flush=True)  # before slow imports
    return _balancer(args) if args.inside is None else _block(args)


def _balancer(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes

    print_compiling()
    print("choosing placements, serving with and without ...", file=sys.stderr, flush=True)
    out = None if args.out is None else Path(args.out)
    found = ar.worth(args.what, args.loads, args.deployment, args.overrides, out=out)
    args.result = found
    print(f"{found.policy} is {found.verdict}")
    _print_rows(found)
    _print_moves(found)
    print_notes(found.notes)
    return OK


def _block(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher

    is_report = Path(args.inside).is_dir()
    if is_report and args.overrides:
        raise SpecError(f"{args.inside} is a report, whose runs are taken as they are; --set needs an experiment")
    print_compiling()
    with watcher() as watching:
        experiment = args.inside if is_report else ar.load(args.inside, args.overrides)
        found = ar.block_worth(args.what, experiment, args.jobs, watching)
    args.result = found
    _print_block(found)
    return OK


def _print_block(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.report.units import TIME_UNITS, scaled, signed_percent
    from archsim.studies.block_worth import UNITS
    from archsim.studies.designs.page import usd

    print(f"{found.block} is {found.verdict}")
    for cost in found.costs:
        print(f"{cost.system} ({cost.decided}): {cost.mm2:,.3g} mm², {cost.w:,.3g} W, {usd(*cost.usd[::2])}")
    numbers = ("batch", "saved a step", "throughput", "energy a token")
    table = grid("policy", "without it", "system", "model", "assumptions", title="simulated", numbers=numbers)
    table.add_column("pays")
    for row in found.rows:
        saved = "0" if row.gain == 0 else scaled(row.saved_ns, TIME_UNITS)
        energy = "–" if row.energy is None else signed_percent(row.energy)
        pays = ", ".join(f"a {UNITS[each]}" for each in row.pays) or "no"
        where = row.policy, row.without, row.system, row.model, row.assumptions, f"{row.batch:,}"
        table.add_row(*where, saved, signed_percent(row.gain), energy, pays)
    console().print(table)
    for sentence in found.break_evens:
        print(f"break-even  {sentence}")


def _print_rows(found) -> None:
    from archsim.cli.printing import console, grid

    timed = any(row.experts_ms is not None for row in found.rows)
    numbers = ("max / mean", *(["experts ms"] if timed else []), "TTFT ms", "TPOT ms", "goodput /s", "KV blocks a rank")
    table = grid("served", title="on held-out loads, simulated", numbers=("spares a rank", *numbers))
    for row in found.rows:
        spares, experts = ("–" if each is None else f"{each:.4g}" for each in (row.spares, row.experts_ms))
        times = (f"{row.ttft_ms:,.1f}", f"{row.tpot_ms:,.3f}", f"{row.goodput_per_s:.3f}", f"{row.kv_blocks:,}")
        table.add_row(row.name, spares, f"{row.max_over_mean:.3f}", *([experts] if timed else []), *times)
    console().print(table)


def _print_moves(found) -> None:
    cost, even = found.placed.cost, found.break_even
    print(
        f"HBM         {cost.extra_bytes / 1e9:.2f} GB a rank for spares, {cost.hbm_share:.1%} of it\n"
        f"rearranging {cost.moved:,} experts, {cost.busiest_bytes / 1e9:.2f} GB to the busiest rank: "
        f"{found.stall_ms:,.1f} ms over its link, after {found.search_s:.2f} s of search on this host (measured)"
    )
    often = "never" if even is None else f"at most every {even:,.0f} decode iterations: then it has paid for itself"
    print(f"break-even  rearrange {often}")
    for file in found.placed.files:
        print(f"deploy      {file}")

"""``archsim worth``: whether a balancer pays on a deployment, judged on loads held out in time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from archsim.cli.arguments import add_json, add_out
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("policy", metavar="BALANCER", help="eplb, craft, remap or dup")
    parser.add_argument("--loads", required=True, nargs="+", metavar="LOADS", help="as `archsim place` takes them")
    parser.add_argument("--deployment", required=True, metavar="FILE", help="as `archsim serve` takes it; one engine")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="override a key of the deployment, such as requests.count=200; repeatable",
    )  # fmt: skip
    add_out(parser, "folder of the files to deploy (default: nothing is written)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the verdict and what it stands on. Raises ArchsimError for what does not fit."""
    print(f"reading {args.deployment} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes

    print_compiling()
    print("choosing placements, serving with and without ...", file=sys.stderr, flush=True)
    out = None if args.out is None else Path(args.out)
    found = ar.worth(args.policy, args.loads, args.deployment, args.overrides, out=out)
    args.result = found
    print(f"{found.policy} is {found.verdict}")
    _print_rows(found)
    _print_moves(found)
    print_notes(found.notes)
    return OK


def _print_rows(found) -> None:
    from archsim.cli.printing import console, grid

    numbers = ("spares a rank", "max / mean", "experts ms", "TTFT ms", "TPOT ms", "goodput /s", "KV blocks a rank")
    table = grid("served", title="on held-out loads, simulated", numbers=numbers)
    for row in found.rows:
        spares, experts = ("–" if each is None else f"{each:.4g}" for each in (row.spares, row.experts_ms))
        times = (f"{row.ttft_ms:,.1f}", f"{row.tpot_ms:,.3f}", f"{row.goodput_per_s:.3f}", f"{row.kv_blocks:,}")
        table.add_row(row.name, spares, f"{row.max_over_mean:.3f}", experts, *times)
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

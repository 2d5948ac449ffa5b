"""``archsim rtl energy``: what a component's registers and clock take, by its activity on a stimulus."""

import argparse
from typing import Any

from archsim.base.errors import SpecError
from archsim.cli.arguments import positive
from archsim.cli.exit_codes import OK
from archsim.cli.printing import console, grid
from archsim.cli.rtl.arguments import add_run, benches, known_block, recorded_in

COLUMNS = (
    "cycles", "bits", "clocked", "toggled", "fJ/cycle free", "gated", "pJ/event free", "gated", "GHz", "5 nm, mW free",
    "gated",
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="one component (default: all)")
    parser.add_argument("--events", type=positive, default=300, metavar="N", help="of its stimulus (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="of random stimulus (default: 0)")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Print activity and energy. Raises SpecError for an unknown block, or where a component differs from its table."""
    made = grid("component", title="registers and clock, cells of ASAP7; logic, wires and memories are not counted")
    for name in COLUMNS:
        made.add_column(name, justify="right")
    for block in [known_block(args.block)] if args.block else benches():
        made.add_row(block, *_row(block, args))
    console().print(made)
    return OK


def _row(block: str, args: argparse.Namespace) -> list[str]:
    from microarch.rtl.activity import Watched
    from microarch.rtl.lockstep import lockstep
    from microarch.silicon.switching import energy_of
    from microarch.silicon.synthesised import side_by_side

    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    watched: list[Any] = []

    def component(parameters):
        watched.append(Watched(benches()[block][0].component(parameters)))
        return watched[0]

    changes, given = (of_run.changes, of_run.given) if of_run else ({}, None)
    found = lockstep(block, args.events, args.seed, changes, component, given)
    if found.difference:
        raise SpecError(f"{block}: {found.difference}")
    beside = next(row for row in side_by_side(1) if row.component == block)
    activity, at_hz = watched[0].activity, beside.clock_hz
    clocked, toggled = (n / activity.cycles / activity.bits for n in (activity.clocked, activity.toggled))
    flops = beside.synthesised.flip_flops  # of the shipped parameters, whose bits do the same share
    energy = energy_of(beside.synthesised, clocked * flops, toggled * flops, at_hz)
    a_cycle = [energy.free + energy.changes + energy.leakage, energy.gated + energy.changes + energy.leakage]
    of_event = [fj * activity.cycles / found.events / 1e3 for fj in a_cycle]
    return [
        f"{activity.cycles:,}", f"{activity.bits:,}", f"{clocked:.1%}", f"{toggled:.1%}",
        *(f"{fj:,.0f}" for fj in a_cycle), *(f"{pj:,.2f}" for pj in of_event), f"{at_hz / 1e9:.2f}",
        *(f"{energy.mw(at_hz, gated):.2f}" for gated in (False, True)),
    ]  # fmt: skip

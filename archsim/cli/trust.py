"""``archsim check --trust``: the error of the nearest machine that was measured, by part of the time."""

import argparse

from archsim.cli import arguments


def add_trust(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, or a system, by name or file")
    arguments.add_chosen(parser, "physical, the largest batch, ep")


def run_trust(args: argparse.Namespace) -> int:
    """Simulate one run shortly, and print what its time rests on. Raises ArchsimError."""
    from archsim.cli.printing import console, grid, print_compiling
    from archsim.evidence.trust import trust
    from archsim.report.units import percent
    from archsim.search.options import experiment_or_machine

    experiment, chosen = experiment_or_machine(args.file, args.overrides)
    print_compiling(of=experiment)
    found = trust(experiment, {name: getattr(args, name) for name in arguments.CHOSEN})
    args.result = found.plain() | ({"chosen": chosen} if chosen else {})
    console().print(found.sentence, soft_wrap=True)
    table = grid("part of the time", numbers=("share", "median error", "5 %", "95 %"))
    table.add_column("rests on")
    for each in found.parts:
        ends = ("–",) * 3 if each.off is None else (percent(each.typical), percent(each.off.p05), percent(each.off.p95))
        table.add_row(each.name, percent(each.share, 1), *ends, each.source)
    console().print(table)
    if chosen:
        console().print(chosen, soft_wrap=True)
    return arguments.OK

"""``archsim hardware cost``: area by block, price by part, coefficients; ``archsim hardware power``: at full load."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.base.answer import Answer
    from archsim.machine.system import SystemSpec


def add_cost(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, or a system, by name or file")
    parser.add_argument(
        "--coefficient", action="append", default=[], metavar="NAME=VALUE",
        help="Change a coefficient, such as wafer_usd=20000. May be repeated.",
    )  # fmt: skip
    parser.add_argument("--sources", action="store_true", help="Print every coefficient, its range and its source.")


add_power = add_cost


def run_cost(args: argparse.Namespace) -> Answer:
    """Area and price of every system. Raises SpecError for an unknown coefficient."""
    from archsim.questions.machine_answer import cost_parts

    return _answer(args, cost_parts, ("", " of power and cooling"))


def run_power(args: argparse.Namespace) -> Answer:
    """Power at full load against the limits, and by block. Raises SpecError for an unknown coefficient."""
    from archsim.questions.machine_answer import power_parts

    return _answer(args, power_parts, (" of energy", " of power and cooling"))


def _answer(args: argparse.Namespace, parts_of: Callable[..., Answer], names: tuple[str, str]) -> Answer:
    """Of all systems of a file, or of the one that it is; ``names``: of both tables of coefficients."""
    from archsim.base.answer import Answer
    from archsim.questions.machine_answer import coefficients_of, sources_of
    from archsim.specs.library import AXIS_UNREAD

    systems, unread = _systems(args)
    middle, limits = coefficients_of(verbs.named_numbers("--coefficient", args.coefficient, "hbm_pj_per_bit=5"))
    found = [parts_of(system, middle, limits) for system in systems]
    parts = [part for each in found for part in each.parts]
    if args.sources:
        known = (middle.energy if names[0] else middle), limits
        parts += [sources_of(f"coefficients{name}", each.by_name()) for name, each in zip(names, known, strict=True)]
    notes = [note for each in found for note in each.notes]
    result = {system.name: each.result for system, each in zip(systems, found, strict=True)}
    return Answer(parts, [*notes, *(each for each in unread if AXIS_UNREAD in each)], result)


def _systems(args: argparse.Namespace) -> tuple[tuple[SystemSpec, ...], tuple[str, ...]]:
    """The systems of an experiment, and what has no effect; or one system, whose keys are those of every system."""
    from archsim.search.options import is_system, load_system
    from archsim.specs.file_kinds import EXPERIMENT_KEYS
    from archsim.specs.library import load_experiment

    if is_system(args.file):
        return (load_system(args.file, [each.removeprefix("systems.0.") for each in args.overrides]),), ()
    of_machine = [each for each in args.overrides if each.partition("=")[0].split(".")[0] not in EXPERIMENT_KEYS]
    overrides = [each for each in args.overrides if each not in of_machine]
    count = len(load_experiment(args.file, overrides).systems) if of_machine else 0
    overrides += [f"systems.{at}.{each.removeprefix('system.')}" for at in range(count) for each in of_machine]
    experiment = load_experiment(args.file, overrides)
    return experiment.systems, experiment.unread

"""The clock of identical engines within the limits of their machine (``power:`` and ``cooling:`` of a system), by the
law of `archsim.runs.clocks`: the highest, in hundredths, with which what was served exceeds none. Arrays follow the
clock; HBM, links and launches keep their rates. Power is a mean over the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from archsim.base.errors import CapacityError
from archsim.base.units import NS_PER_S
from archsim.machine.system import SystemSpec
from archsim.runs.clocks import IDLE, LOWEST, STEPS, ClassPower, DieLoad, PowerLimits, highest_clock
from microarch.silicon.energy import Activity

Ran = TypeVar("Ran")


class Clocked(NamedTuple):
    """What ran at the highest clock within the limits."""

    clock: float  # share of the full one
    w_per_die: float
    held_by: str  # what holds the clock; '' where it is full

    def told(self, system: SystemSpec) -> str:
        """``h200_node: it runs at 84 % of the full clock, limited by the power of a die.``"""
        if not self.held_by:
            return f"{system.name}: it stays within its limits at the full clock."
        return f"{system.name}: it runs at {self.clock:.0%} of the full clock, limited by the {self.held_by}."


def at_clock(system: SystemSpec, clock: float) -> SystemSpec:
    peak = system.compute.peak_flop_per_s * clock
    return system.model_copy(update={"compute": system.compute.model_copy(update={"peak_flop_per_s": peak})})


def run_within(
    system: SystemSpec,
    devices: int,
    run: Callable[[float], Ran],
    joule_of: Callable[[Ran], tuple[dict[str, float], Activity]],
) -> tuple[Ran, Clocked]:
    """``devices``: dies that serve, the others wait; ``run``: at a share of the clock; ``joule_of``: block → J of one
    die at the full voltage, and the time. Raises CapacityError for a load that exceeds a limit at the lowest clock.
    """
    limits, tried = PowerLimits(system), dict[int, tuple[Ran, ClassPower]]()
    serves = np.arange(system.dies) < devices

    def at(clock: int) -> ClassPower:
        if clock not in tried:
            ran = run(clock / STEPS)
            joule, done = joule_of(ran)
            of_dies = {name: each * (serves | (name == IDLE)) for name, each in joule.items()}
            tried[clock] = ran, limits.at(DieLoad(done.time_s * NS_PER_S, of_dies), clock / STEPS)
        return tried[clock][1]

    if at(STEPS).within:
        return tried[STEPS][0], Clocked(1.0, float(at(STEPS).die_w[serves].mean()), "")
    if not at(LOWEST).within:
        raise CapacityError(limits.describe(at(LOWEST), "as it serves"))
    clock = highest_clock(lambda clock: at(clock).within, LOWEST, STEPS - 1)
    held_by = at(clock + 1).exceeded[0][0]
    return tried[clock][0], Clocked(clock / STEPS, float(at(clock).die_w[serves].mean()), held_by)

"""Clocks, power and heat of a run."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs.finished import Column, Finished, measures

LIMITS: tuple[Column, ...] = (
    Column("clock", REAL, "share", "clock of the arrays in decode, relative to the full clock; empty for a system without power and cooling", "clock", optional=True),
    Column("prefill_clock", REAL, "share", "clock of the arrays in the prefill, relative to the full clock; empty as clock", optional=True),
    Column("plans_by_speeds", INTEGER, "", "1 where the policy sees the speeds of dies that differ, and plans anew for them; else empty", optional=True),
    Column("held_by", TEXT, "", "which limit lowers the clock, in decode if in either phase; empty without a limit that is reached", optional=True),
    Column("throttled_share", REAL, "share", "share of the time in which the clock is below the full one; empty for a system without power and cooling",
           "throttled", optional=True),
    Column("die_power_max_w", REAL, "W", "power of the die that draws most, as a mean over a class of steps; empty for a system without power and cooling", "peak power of a die", optional=True),
    Column("die_temperature_max_c", REAL, "C", "temperature of the hottest spot of a die, in the hotter class of steps; empty for a system without cooling", "hottest die", optional=True),
    Column("hbm_temperature_max_c", REAL, "C", "temperature of the hottest HBM, in the hotter class of steps; empty for a system without cooling", "hottest HBM", optional=True),
    *(
        Column(f"{name}_energy_factor", REAL, "×", f"energy of {of} over that at full clock, by voltage, clock and temperature; empty for a system without power and cooling", optional=True)
        for name, of in (("core", "arrays and LLCs"), ("idle", "waiting"))
    ),
)  # fmt: skip


@measures(LIMITS)
def limits(run: Finished) -> dict[str, Any]:
    """Clocks, power and heat; None without limits, or where there is none. ``plans_by_speeds``: a rule sees dies that
    differ, as they are built or by their clocks.
    """
    power, machine = run.outcome.power, run.outcome.machine
    unequal = np.ptp(machine.array_speeds) > 0 or np.ptp(machine.hbm_rates) > 0
    unequal = unequal or (power is not None and any(np.ptp(each.die_clock) > 0 for each in power.classes.values()))
    asks = any(run.run.policy.needs_speeds(part) for part in ("allocation", "rebalancing"))
    found: dict[str, Any] = {"plans_by_speeds": 1 if unequal and asks else None}
    if power is None:
        return found | dict.fromkeys(_OF_LIMITS)
    hottest = {
        "die_power_max_w": power.most(lambda each: each.die_w),
        "die_temperature_max_c": power.most(lambda each: each.heat and each.heat.die_c),
        "hbm_temperature_max_c": power.most(lambda each: each.heat and each.heat.hbm_c),
    }
    return found | {
        "clock": power.clock(1),
        "prefill_clock": power.clock(0),
        "held_by": power.held_by,
        "throttled_share": power.throttled_share,
        "core_energy_factor": power.core_factor,
        "idle_energy_factor": power.idle_factor,
        **{name: None if each is None or np.isnan(each).any() else each.max() for name, each in hottest.items()},
    }


_OF_LIMITS = (
    "clock", "prefill_clock", "held_by", "throttled_share", "core_energy_factor", "idle_energy_factor",
    "die_power_max_w", "die_temperature_max_c", "hbm_temperature_max_c",
)  # fmt: skip

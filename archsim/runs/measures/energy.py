"""Energy, power, area and price of a run."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archsim.base.tables import REAL
from archsim.runs.finished import Column, Finished, measures

ENERGY: tuple[Column, ...] = (
    *(
        Column(name, REAL, unit, meaning, optional=name in ("energy_per_token_j", "power_w"))
        for name, unit, meaning in (
            ("energy_per_token_j", "J/token", "energy of the MoE layers, prefill included, for each token that passed all of them; empty without tokens"),
            ("power_w", "W", "mean power of the MoE layers over the whole run; empty for a run without time"),
            ("die_mm2", "mm²", "estimated area of one die"),
            ("silicon_mm2", "mm²", "estimated area of all dies, without HBM"),
            ("cost_usd", "USD", "estimated price of making one machine"),
        )
    ),
    Column("carrier_share", REAL, "share", "area of dies that are linked as on one carrier, and their HBM, over that of the largest carrier: above 1, links from one carrier to the next are slower under `carriers: as_needed`", optional=True),
    *(
        Column(f"iteration_energy_per_token_j{end}", REAL, "J/token", meaning, optional=True)
        for end, meaning in (
            ("", "of a whole decode iteration: attention, dense layers, head and waiting included; empty where it is not known"),
            ("_low", "as iteration_energy_per_token_j, all coefficients of energy at their low bound"),
            ("_high", "as iteration_energy_per_token_j, all coefficients of energy at their high bound"),
        )
    ),
    *(
        Column(f"{name}_{bound}", REAL, unit, f"as {name}, all coefficients of energy at their {bound} bound", optional=True)
        for name, unit in (("energy_per_token_j", "J/token"), ("power_w", "W"))
        for bound in ("low", "high")
    ),
)  # fmt: skip


@measures(ENERGY)
def energy(run: Finished, row: Mapping[str, Any]) -> dict[str, Any]:
    """Energy, power, area and price, by the work and the times in ``row``."""
    from archsim.runs.energy import activity_of, economics, iteration_energy
    from archsim.runs.prices import build_costs

    activity, costs = activity_of(run.run.model, row), build_costs(run.run.system)
    return economics(activity, costs) | iteration_energy(run.run, activity, costs, row["iteration_ns"])

"""Process nodes: how logic, energy and the price of a wafer differ from those of 5 nm, in which all coefficients are.

Interfaces (PHYs) do not shrink from node to node here; cells of SRAM have their own table (``memory_area``).
"""

# ruff: noqa: E501  (one row a node: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from microarch.silicon.estimates import Estimate
from microarch.silicon.memory_area import CELL_UM2


class Node(NamedTuple):
    """One process node."""

    logic_area: Estimate  # of a gate, over that in 5 nm
    sram_area: float  # of a cell, over that in 5 nm
    energy: Estimate  # of an operation, over that in 5 nm
    wafer_usd: Estimate | None  # of a processed wafer; None: `CostEstimates.wafer_usd`


def _node(area: tuple[float, float, float, str], cell: str, energy: tuple[float, float, float, str],
          usd: tuple[float, float, float, str] | None) -> Node:  # fmt: skip
    price = None if usd is None else Estimate(*usd[:3], "USD", usd[3])
    sram = CELL_UM2[cell].value / CELL_UM2["N5"].value
    return Node(Estimate(*area[:3], "times 5 nm", area[3]), sram, Estimate(*energy[:3], "times 5 nm", energy[3]), price)


_CSET = "Khan and Mann, AI Chips, CSET 2020"
NODES: Mapping[str, Node] = MappingProxyType({
    "n16": _node((6.1, 4.5, 6.1, "TSMC: N7 is 70 % smaller than 16FF+, N5 45 % smaller than N7"), "N16", (3.6, 2.8, 3.6, "TSMC: N7 takes 60 % less power than 16FF+, N5 30 % less than N7"), (3984.0, 3500.0, 5000.0, _CSET)),
    "n12": _node((5.1, 4.0, 5.6, "TSMC: 12FFC is 20 % smaller than 16FFC"), "N16", (3.2, 2.5, 3.6, "assumed: a tenth below 16 nm"), (3984.0, 3500.0, 5000.0, f"{_CSET}: as 16 nm")),
    "n7": _node((1.82, 1.25, 1.84, "TSMC: N5 is 45 % smaller than N7; low: Cortex-A55 (Linley Group, 2021)"), "N7", (1.43, 1.26, 1.67, "TSMC: N5 takes 30 % less power than N7"), (9346.0, 8000.0, 11000.0, _CSET)),
    "n6": _node((1.54, 1.2, 1.6, "TSMC: N6 has 18 % more logic than N7"), "N7", (1.4, 1.2, 1.6, "assumed: as N7"), (9346.0, 8000.0, 11000.0, f"{_CSET}: as 7 nm")),
    "n5": _node((1.0, 1.0, 1.0, "the node of the coefficients"), "N5", (1.0, 1.0, 1.0, "the same"), None),
    "n4": _node((1.0, 0.94, 1.0, "the coefficients are of GH100, in 4N; low: TSMC, N4 is 6 % smaller"), "N5", (1.0, 0.9, 1.0, "the same"), None),
    "n3": _node((0.62, 0.58, 0.72, "TSMC: N3E has 1.6 times the logic of N5"), "N5", (0.68, 0.64, 0.8, "TSMC: N3E takes 32 % less power than N5"), (19500.0, 18000.0, 22000.0, "press reports of 2023 to 2025")),
    "n2": _node((0.54, 0.5, 0.63, "TSMC: N2 is 1.15 times as dense as N3E"), "N2", (0.5, 0.45, 0.6, "TSMC: N2 takes 25 to 30 % less power than N3E"), (30000.0, 26000.0, 33000.0, "press reports of 2024 and 2025")),
})  # fmt: skip

"""Analytical areas beside those of synthesis, for the parts of the decision hardware that are in RTL.

Areas are of cells in the node of the library (ASAP7); the published ones (table II, 5 nm) are of all copies. 7 nm to
5 nm is in one place: `TO_5NM`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from microarch.silicon.datapath_area import CANDIDATE, COMPARATOR, LANE, SORTER
from microarch.silicon.published_area import PUBLISHED
from microarch.silicon.synthesis import Synthesised, read_result
from microarch.silicon.technology import N5, Coefficient

TO_5NM = Coefficient(
    0.8, "5 nm over 7 nm", "as for cores: a Cortex-A55 is 22 to 29 % denser in 5 nm (Linley Group, 2021)", (0.775, 0.82)
)
WIRES = Coefficient(1.25, "of the longest path, with wires and clock", "assumed", (1.15, 1.4))
FASTER = Coefficient(0.87, "delay in 5 nm over 7 nm", "TSMC, 5nm Technology (tsmc.com): 15 % faster at equal power")
STATE_MACHINE = ("allocator", "select", "sorter")  # components that run at decision.fsm.clock
NEAR = 1.25  # a larger ratio gets a reason
NOT_MODELLED: Mapping[str, str] = MappingProxyType(
    {
        "atu": "no analytical model: table II's 68-bit entries have neither tag nor order; SRAM is a row above",
        "heatmap": "no analytical model: adders and a word's registers; the counters' SRAM is a row above",
    }
)
A_CORE = "table II has a Cortex-A76 (1.1 mm²) in the place of allocator, selector and sorter"


class Beside(NamedTuple):
    """A component: cells in um2 of the library's node; ``placed_mm2``: all copies in 5 nm, placed; ``published_mm2``:
    of table II, None where it has no such row. ``stale``: the component's source has changed since its synthesis.
    """

    component: str
    copies: int
    analytical_um2: float | None
    synthesised: Synthesised
    published_mm2: float | None
    stale: bool

    @property
    def ratio(self) -> float | None:
        """Analytical over synthesised."""
        return None if self.analytical_um2 is None else self.analytical_um2 / self.synthesised.area_um2

    @property
    def placed_mm2(self) -> float:
        return self.copies * self.synthesised.area_um2 * TO_5NM.value / N5.placement.value / 1e6

    @property
    def clock_hz(self) -> float:
        """In 5 nm, with wires and clock."""
        return self.synthesised.clock_hz / (WIRES.value * FASTER.value)

    @property
    def reason(self) -> str:
        """Why a ratio, of the model or of table II, is above `NEAR`; '' where none is."""
        told = []
        if self.ratio is None:
            told.append(NOT_MODELLED[self.component])
        elif not 1 / NEAR <= self.ratio <= NEAR:
            told.append(f"the model is {self.ratio:.2f} of synthesis")
        if self.component in STATE_MACHINE:
            told.append(A_CORE)
        if self.published_mm2 is not None and self.placed_mm2 > NEAR * self.published_mm2:
            share = self.copies * self.synthesised.sequential_um2 * TO_5NM.value / 1e6 / self.published_mm2
            told.append(f"flip-flops alone take {share:.1f} times table II's area, before any logic or placement")
        return "; ".join(told)


def side_by_side(dies: int) -> list[Beside]:
    """Every component with a committed result, at its shipped parameters; ``dies``: of the wafer."""
    found = []
    for component, copies, published in (
        ("allocator", 1, None),
        ("select", 1, None),
        ("sorter", 1, None),
        ("pdu", dies, "prediction table"),
        ("atu", dies, "ATU"),
        ("heatmap", 1, None),
    ):
        result = read_result(component)
        if result is not None:
            row = PUBLISHED[published].area_mm2 * dies / 25 if published else None
            found.append(Beside(component, copies, _analytical_um2(result), result, row, _is_stale(result)))
    return found


def clock_note(name: str, executor: str, clock_hz: float) -> str:
    """That a system's state machine asks for more than synthesis reaches at the shipped parameters, and which path
    limits it; '' if it does not. ``clock_hz``: ``decision.fsm.clock``.
    """
    rows = [row for row in side_by_side(1) if row.component in STATE_MACHINE]
    slowest = min(rows, key=lambda row: row.clock_hz, default=None)
    if executor != "fsm" or slowest is None or clock_hz <= slowest.clock_hz:
        return ""
    return (
        f"{name}: decision.fsm.clock is {clock_hz / 1e9:g} GHz; the RTL at its shipped parameters reaches "
        f"{slowest.clock_hz / 1e9:.2f} GHz, by the longest path of its {slowest.component} "
        f"({slowest.synthesised.delay_ps / 1000:.3f} ns in ASAP7, to the register of {slowest.synthesised.path_ends})"
    )


def _analytical_um2(result: Synthesised) -> float | None:
    """Cells by the model of ``archsim area``, in the flip-flops of the library."""
    flop, parameters = result.flip_flop_um2, result.parameters
    if result.block == "allocator":
        return flop * (parameters["lanes"] * LANE.value + parameters["dies"] * CANDIDATE.value)
    if result.block == "select":
        return flop * parameters["comparators"] * COMPARATOR.value
    if result.block == "sorter":
        return flop * parameters["comparators"] * SORTER.value
    if result.block == "pdu":
        bits = 2 * parameters["experts"]
        return flop * (bits * (1 + N5.flop_port.value) + parameters["shadow"] * parameters["experts"])
    return None


def _is_stale(result: Synthesised) -> bool:
    spec = find_spec("microarch")
    assert spec is not None and spec.submodule_search_locations
    source = Path(next(iter(spec.submodule_search_locations))) / "rtl" / f"{result.block}.py"
    return hashlib.sha256(source.read_bytes()).hexdigest() != result.source

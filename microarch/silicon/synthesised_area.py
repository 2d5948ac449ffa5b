"""Analytical areas beside those of synthesis, for the parts of the decision hardware that are in RTL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from microarch.silicon import decision_area, published_area, synthesis, technology

TO_5NM = technology.Coefficient(
    0.8, "5 nm over 7 nm", "as for cores: a Cortex-A55 is 22 to 29 % denser in 5 nm (Linley Group, 2021)", (0.775, 0.82)
)
STATE_MACHINE = ("allocator", "select", "sorter")  # components that run at decision.fsm.clock
NEAR = 1.25  # a larger ratio gets a reason
A_CORE = "table II has a Cortex-A76 (1.1 mm²) in the place of allocator, selector and sorter"
BESIDE: Mapping[str, str] = MappingProxyType(  # why table II is no row of the component
    dict.fromkeys(STATE_MACHINE, A_CORE)
    | {
        "atu": "table II's row is SRAM alone (a row above), whose 68-bit entries have neither tag nor order",
        "heatmap": "table II has the counters' SRAM alone (a row above), without adders",
    }
)


class ComponentArea(NamedTuple):
    """A component, by the model and by synthesis."""

    component: str  # name
    copies: int  # on the wafer
    analytical_um2: float  # one copy by the model, in the library's node
    synthesised: synthesis.Synthesised  # one copy in cells of the library's node
    published_mm2: float | None  # all copies by table II; None where it has no such row
    stale: bool  # its source has changed since its synthesis

    @property
    def ratio(self) -> float:
        """Analytical over synthesised."""
        return self.analytical_um2 / self.synthesised.area_um2

    @property
    def placed_mm2(self) -> float:
        return self.copies * self.synthesised.area_um2 * TO_5NM.value / technology.N5.placement.value / 1e6

    @property
    def reason(self) -> str:
        """Why a ratio, of the model or of table II, is above `NEAR`; '' where none is."""
        reasons = [] if 1 / NEAR <= self.ratio <= NEAR else [f"the model is {self.ratio:.2f} of synthesis"]
        if self.component in BESIDE:
            reasons.append(BESIDE[self.component])
        if self.published_mm2 is not None and self.placed_mm2 > NEAR * self.published_mm2:
            share = self.copies * self.synthesised.sequential_um2 * TO_5NM.value / 1e6 / self.published_mm2
            reasons.append(f"flip-flops alone take {share:.1f} times table II's area, before any logic or placement")
        return "; ".join(reasons)


def side_by_side(dies: int) -> list[ComponentArea]:
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
        result = synthesis.read_result(component)
        if result is not None:
            row = published_area.PUBLISHED[published].area_mm2 * dies / 25 if published else None
            found.append(ComponentArea(component, copies, _analytical_um2(result), result, row, _is_stale(result)))
    return found


def clock_note(name: str, executor: str, clock_hz: float) -> str:
    """A note where a state machine's ``clock_hz`` is above what synthesis reaches, and the limiting path; else ''."""
    return _above(name, "fsm.clock", clock_hz, STATE_MACHINE) if executor == "fsm" else ""


def local_clock_note(name: str, clock_hz: float) -> str:
    """The same of ``decision.local_clock``: Local CPs, PDUs and ATUs."""
    return _above(name, "local_clock", clock_hz, ("pdu", "atu"))


def _above(name: str, key: str, clock_hz: float, components: Sequence[str]) -> str:
    found = [each for each in map(synthesis.read_result, components) if each is not None]
    slowest = min(found, key=lambda each: each.clock_hz, default=None)
    if slowest is None or clock_hz <= slowest.clock_hz:
        return ""
    return (
        f"{name}: decision.{key} is {clock_hz / 1e9:g} GHz; the RTL at its shipped parameters reaches "
        f"{slowest.clock_hz / 1e9:.2f} GHz, by the longest path of its {slowest.block} "
        f"({slowest.delay_ps / 1000:.3f} ns in ASAP7, to the register of {slowest.path_ends})"
    )


def _analytical_um2(result: synthesis.Synthesised) -> float:
    """Cells by the model of ``archsim hardware area``, in the flip-flops of the library."""
    of = result.parameters
    if result.block == "allocator":
        flops = of["lanes"] * decision_area.LANE.value + of["dies"] * decision_area.CANDIDATE.value
    elif result.block in ("select", "sorter"):
        flops = (
            of["comparators"] * (decision_area.COMPARATOR if result.block == "select" else decision_area.SORTER).value
        )
    elif result.block == "pdu":
        flops = of["experts"] * (2 * (1 + technology.N5.flop_port.value) + of["shadow"])
    elif result.block == "atu":
        flops = decision_area.atu_flops(of["entries"], of["ways"])
    else:
        flops = decision_area.heatmap_flops(of["port_bits"])
    return result.flip_flop_um2 * flops


def _is_stale(result: synthesis.Synthesised) -> bool:
    spec = find_spec("microarch")
    assert spec is not None and spec.submodule_search_locations
    source = Path(next(iter(spec.submodule_search_locations))) / "rtl" / f"{result.block}.py"
    return synthesis.digest_of(source) != result.source

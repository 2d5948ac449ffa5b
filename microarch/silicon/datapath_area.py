"""Area and power of the Global CP as a state machine: lanes that evaluate candidates, comparators and buffers that
sort.

Logic is counted in flip-flops of the technology, each clocked every cycle; their number per lane and per comparator is
this project's estimate. A merge sorter writes the experts from one buffer to another, a bitonic network sorts them in
place, so only the first needs an extra buffer.
"""

from __future__ import annotations

from archsim.specs.machine.decision import FsmSpec
from microarch.blocks.table_sizes import bits_to_count
from microarch.silicon.area_power import MW_PER_W, UM2_PER_MM2, W_PER_PJ_HZ, Cost, Part
from microarch.silicon.technology import N5, PJ_PER_FJ, Coefficient, Technology

_GATES = "a flip-flop is about 5 gates"
LANE = Coefficient(
    500.0,
    "flip-flops per lane",
    f"assumed: a 16 × 32 bit multiplier of 2,000 gates, two adders of 32 bits; {_GATES}",
    (250.0, 1000.0),
)
COMPARATOR = Coefficient(
    50.0,
    "flip-flops per comparator",
    f"assumed: two registers of 16 bits, comparison and exchange; {_GATES}",
    (35.0, 100.0),
)
TOKENS = Coefficient(
    16.0,
    "flip-flops per expert, plus its id",
    "assumed: a count of tokens has the bits of a heatmap counter",
    (16.0, 24.0),
)


def datapath_parts(fsm: FsmSpec, experts: int, clock_hz: float, technology: Technology = N5) -> tuple[Part, ...]:
    """Lanes, comparators and buffers, placed; ``experts``: the number to sort."""
    counted = [("lanes", fsm.lanes, LANE.value), ("comparators", fsm.comparators, COMPARATOR.value)]
    if fsm.sorter == "merge":
        counted.append(("merge buffer", 1, experts * (TOKENS.value + bits_to_count(experts))))
    return tuple(
        Part(f"Global CP: {name}", copies, _flops_cost(flops, clock_hz, technology).times(copies))
        for name, copies, flops in counted
    )


def _flops_cost(flops: float, clock_hz: float, technology: Technology) -> Cost:
    area_um2 = flops * technology.flop.value / technology.placement.value
    cycle_pj = flops * technology.flop_cycle.value * PJ_PER_FJ
    return Cost(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)

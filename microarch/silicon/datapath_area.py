"""Area and power of the Global CP as a state machine: lanes that evaluate candidates, slots that keep them, comparators
and buffers that sort.

Logic is counted in flip-flops of the technology, each clocked every cycle. Their number per lane, per candidate and per
comparator is that of the RTL, synthesised at 4 to 16 lanes (``microarch.silicon.synthesised``: within 25 %). A bitonic
network sorts in place; a merge sorter, which is not in RTL, writes the experts from one buffer to another.
"""

from __future__ import annotations

from archsim.specs.machine.decision import FsmSpec
from microarch.blocks.table_sizes import TableDesign, bits_to_count
from microarch.silicon.area_power import MW_PER_W, UM2_PER_MM2, W_PER_PJ_HZ, Cost, Part
from microarch.silicon.technology import N5, PJ_PER_FJ, Coefficient, Technology

SHADOW = "PDU: second register"
_RTL = "area of cells over that of a flip-flop, ASAP7, pipeline of 3 (archsim rtl synth)"
LANE = Coefficient(
    298.0,
    "flip-flops per lane",
    f"synthesis of the allocator, 8 and 16 lanes: {_RTL}",
    (250.0, 350.0),
)
CANDIDATE = Coefficient(
    255.0,
    "flip-flops per die",
    f"synthesis of the allocator, 25 dies: slot, load and their multiplexers; {_RTL}",
    (215.0, 280.0),
)
COMPARATOR = Coefficient(
    50.0,
    "flip-flops per comparator",
    f"synthesis of the selector, 32 comparators: 48; {_RTL}",
    (35.0, 100.0),
)
SORTER = Coefficient(
    181.0,
    "flip-flops per comparator of a bitonic sorter",
    f"synthesis of the sorter, 32 comparators and 512 experts: two keys, and what brings them there and back; {_RTL}",
    (120.0, 240.0),
)
TOKENS = Coefficient(
    16.0,
    "flip-flops per expert, plus its id",
    "assumed: a count of tokens has the bits of a heatmap counter",
    (16.0, 24.0),
)


def datapath_parts(
    fsm: FsmSpec, experts: int, dies: int, clock_hz: float, technology: Technology = N5
) -> tuple[Part, ...]:
    """Lanes, candidates, comparators and buffers, placed; ``experts``: the number to sort; ``dies``: the candidates."""
    counted = [
        ("lanes", fsm.lanes, LANE.value),
        ("candidates", dies, CANDIDATE.value),
        ("comparators", fsm.comparators, COMPARATOR.value),
    ]
    if fsm.sorter == "bitonic":
        counted.append(("sorter", fsm.comparators, SORTER.value))
    else:
        counted.append(("merge buffer", 1, experts * (TOKENS.value + bits_to_count(experts))))
    return tuple(
        Part(f"Global CP: {name}", copies, _flops_cost(flops, clock_hz, technology).times(copies))
        for name, copies, flops in counted
    )


def shadow_part(design: TableDesign, clock_hz: float, technology: Technology = N5) -> Part:
    """The PDUs' second registers: a bit an expert, so that cp_en bits take effect together."""
    return Part(SHADOW, design.dies, _flops_cost(design.experts, clock_hz, technology).times(design.dies))


def _flops_cost(flops: float, clock_hz: float, technology: Technology) -> Cost:
    area_um2 = flops * technology.flop.value / technology.placement.value
    cycle_pj = flops * technology.flop_cycle.value * PJ_PER_FJ
    return Cost(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)

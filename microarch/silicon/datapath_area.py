# ruff: noqa: E501  (one row a coefficient: a table is read across)
"""Area and power of logic that decides: lanes of the Global CP that evaluate candidates, slots that keep them,
comparators and buffers that sort, the heatmap's adders; on the dies the PDUs' second registers and the ATUs' order.

Logic is counted in flip-flops of the technology, each clocked every cycle. Their number per lane, per candidate and per
comparator is that of the RTL, synthesised at 4 to 16 lanes (``microarch.silicon.synthesised``: within 25 %), of an ATU
at 4 to 16 ways and 128 to 1,024 entries, of the heatmap's store at ports of 64 to 2,048 bits (both within 5 %). A
bitonic network sorts in place; a merge sorter, which is not in RTL, writes the experts from one buffer to another.
"""

from archsim.specs.machine.decision import FsmSpec
from microarch.blocks.table_sizes import TableDesign, bits_to_count
from microarch.silicon.area_power import MW_PER_W, UM2_PER_MM2, W_PER_PJ_HZ, Cost, Part
from microarch.silicon.technology import N5, PJ_PER_FJ, Coefficient, Technology

SHADOW, ORDER, ADDERS = "PDU: second register", "ATU: order of use", "Global CP: heatmap adders"
_RTL = "area of cells over that of a flip-flop, ASAP7, pipeline of 3 (archsim rtl synth)"
LANE = Coefficient(298.0, "flip-flops per lane", f"synthesis of the allocator, 8 and 16 lanes: {_RTL}", (250.0, 350.0))
CANDIDATE = Coefficient(255.0, "flip-flops per die", f"synthesis of the allocator, 25 dies: slot, load and their multiplexers; {_RTL}", (215.0, 280.0))
COMPARATOR = Coefficient(60.0, "flip-flops per comparator", f"synthesis of the selector, 32 comparators, its word of the heatmap in a register: 60; {_RTL}", (35.0, 100.0))
SORTER = Coefficient(181.0, "flip-flops per comparator of a bitonic sorter", f"synthesis of the sorter, 32 comparators and 512 experts: two keys, and what brings them there and back; {_RTL}", (120.0, 240.0))
ORDER_BIT = Coefficient(2.3, "flip-flops per pair of ways of a set", f"synthesis of the ATU: its bit of the order of use, the set's choice and update, comparison of tags; {_RTL}", (2.2, 2.5))
ADDER_BIT = Coefficient(2.43, "flip-flops per bit of the heatmap's port", f"synthesis of the heatmap's store: a bit of the word, its adder and its halving; {_RTL}", (2.4, 2.5))
ADDER_REST = Coefficient(60.0, "flip-flops beside the heatmap's word", f"synthesis of the heatmap's store: addresses, states; {_RTL}", (50.0, 80.0))
TOKENS = Coefficient(16.0, "flip-flops per expert, plus its id", "assumed: a count of tokens has the bits of a heatmap counter", (16.0, 24.0))


def atu_flops(entries: int, ways: int) -> float:
    """Flip-flops' worth of logic of an ATU: the order of use in every set."""
    return entries // ways * (ways * (ways - 1) // 2) * ORDER_BIT.value


def heatmap_flops(port_bits: int) -> float:
    """Flip-flops' worth of logic behind the heatmap's port."""
    return port_bits * ADDER_BIT.value + ADDER_REST.value


def datapath_parts(
    fsm: FsmSpec, experts: int, dies: int, clock_hz: float, technology: Technology = N5
) -> tuple[Part, ...]:
    """Lanes, candidates, comparators and buffers, placed; ``experts``: the number to sort; ``dies``: the candidates."""
    counted = [
        ("lanes", fsm.lanes, LANE.value), ("candidates", dies, CANDIDATE.value),
        ("comparators", fsm.comparators, COMPARATOR.value), ("heatmap adders", 1, heatmap_flops(fsm.heatmap_port_bits)),
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


def order_part(design: TableDesign, ways: int, clock_hz: float, technology: Technology = N5) -> Part:
    """The ATUs' order of use and comparison of tags; ``design.atu_entries`` must be known."""
    flops = atu_flops(design.atu_entries or design.experts, ways)
    return Part(ORDER, design.dies, _flops_cost(flops, clock_hz, technology).times(design.dies))


def _flops_cost(flops: float, clock_hz: float, technology: Technology) -> Cost:
    area_um2 = flops * technology.flop.value / technology.placement.value
    cycle_pj = flops * technology.flop_cycle.value * PJ_PER_FJ
    return Cost(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)

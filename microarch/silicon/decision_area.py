"""Silicon of a system's decision hardware: tables, Local CPs, a Global CP, and the logic that decides.

It follows ``decision`` of the system (``archsim.machine.system``); the design of the paper's table II, with the clock that
its powers were fitted to, is ``microarch.blocks.table_sizes.TableDesign()``, apart, so that no configuration is compared
with a row that does not describe it.

Logic is counted in flip-flops of the technology, each clocked every cycle. Their number per lane, per candidate and per
comparator is that of the RTL, synthesised at 4 to 16 lanes (``microarch.silicon.synthesis``: within 25 %), of an ATU at
4 to 16 ways and 128 to 1,024 entries, of the heatmap's store at ports of 64 to 2,048 bits (both within 5 %). A bitonic
network sorts in place; a merge sorter, which is not in RTL, writes the experts from one buffer to another.
"""

# ruff: noqa: E501  (one row a coefficient: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from archsim.base.sums import sum
from archsim.laws.wafer import SPEED_BITS
from archsim.machine.decision import DecisionSpec, FsmSpec
from archsim.machine.system import SystemSpec
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign, bits_to_count, tables_of
from microarch.silicon.area import MW_PER_W, UM2_PER_MM2, W_PER_PJ_HZ, AreaAndPower, Part, core_cost, table_cost, total
from microarch.silicon.technology import A72, A76, N5, PJ_PER_FJ, Coefficient, Technology

SHADOW, ORDER, ADDERS = "PDU: second register", "ATU: order of use", "Global CP: heatmap adders"
_RTL = "area of cells over that of a flip-flop, ASAP7, pipeline of 3 (archsim hardware rtl synth)"
LANE = Coefficient(298.0, "flip-flops per lane", f"synthesis of the allocator, 8 and 16 lanes: {_RTL}", (250.0, 350.0))
CANDIDATE = Coefficient(
    255.0,
    "flip-flops per die",
    f"synthesis of the allocator, 25 dies: slot, load and their multiplexers; {_RTL}",
    (215.0, 280.0),
)
COMPARATOR = Coefficient(
    60.0,
    "flip-flops per comparator",
    f"synthesis of the selector, 32 comparators, its word of the heatmap in a register: 60; {_RTL}",
    (35.0, 100.0),
)
SORTER = Coefficient(
    181.0,
    "flip-flops per comparator of a bitonic sorter",
    f"synthesis of the sorter, 32 comparators and 512 experts: two keys, and what brings them there and back; {_RTL}",
    (120.0, 240.0),
)
ORDER_BIT = Coefficient(
    2.3,
    "flip-flops per pair of ways of a set",
    f"synthesis of the ATU: its bit of the order of use, the set's choice and update, comparison of tags; {_RTL}",
    (2.2, 2.5),
)
ADDER_BIT = Coefficient(
    2.43,
    "flip-flops per bit of the heatmap's port",
    f"synthesis of the heatmap's store: a bit of the word, its adder and its halving; {_RTL}",
    (2.4, 2.5),
)
ADDER_REST = Coefficient(
    60.0,
    "flip-flops beside the heatmap's word",
    f"synthesis of the heatmap's store: addresses, states; {_RTL}",
    (50.0, 80.0),
)
TOKENS = Coefficient(
    16.0,
    "flip-flops per expert, plus its id",
    "assumed: a count of tokens has the bits of a heatmap counter",
    (16.0, 24.0),
)


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
        ("lanes", fsm.lanes, LANE.value),
        ("candidates", dies, CANDIDATE.value),
        ("comparators", fsm.comparators, COMPARATOR.value),
        ("heatmap adders", 1, heatmap_flops(fsm.heatmap_port_bits)),
    ]
    if fsm.sorter == "bitonic":
        counted.append(("sorter", fsm.comparators, SORTER.value))
    else:
        counted.append(("merge buffer", 1, experts * (TOKENS.value + bits_to_count(experts))))
    return tuple(
        Part(f"Global CP: {name}", copies, _flops_cost(flops, clock_hz, technology).times(copies))
        for name, copies, flops in counted
    )


SPEEDS = "Global CP: speeds of dies"
SPEED_MULTIPLIER = Coefficient(
    680.0,
    "flip-flops per lane",
    f"synthesis of the allocator with and without speeds, 4 and 8 lanes: a multiplier of 24 x 16 bits and the register after it; {_RTL}",
    (640.0, 730.0),
)
SPEED_SLOT = Coefficient(
    29.0,
    "flip-flops per die",
    f"the same, 25 dies: the factor of a slot, 16 bits, and its choice; {_RTL}",
    (25.0, 35.0),
)
NEIGHBOURS = 4  # of a die on a mesh: links whose costs differ


def speeds_part(system: SystemSpec, technology: Technology = N5) -> Part:
    """What rules that see speeds add to the Global CP: a table of dies' slowness, HBM and links; in a state machine the
    factor of every slot, and a multiplier a lane.
    """
    decision, fsm = system.decision, system.decision.fsm
    if decision.executor != "fsm":
        return Part(SPEEDS, 1, AreaAndPower(0.0, 0.0))
    entry = ("how slow", SPEED_BITS), ("costs of reading", (1 + NEIGHBOURS) * fsm.cost_bits)
    table = HardwareTable(SPEEDS, Storage.SRAM, system.sites, entry, sum(bits for _, bits in entry), 1)
    flops = fsm.lanes * SPEED_MULTIPLIER.value + system.dies * SPEED_SLOT.value
    clock_hz = global_clock_hz(decision)
    cost = total([_flops_cost(flops, clock_hz, technology), table_cost(table, clock_hz, technology)])
    return Part(SPEEDS, 1, cost)


def _flops_cost(flops: float, clock_hz: float, technology: Technology) -> AreaAndPower:
    area_um2 = flops * technology.flop.value / technology.placement.value
    cycle_pj = flops * technology.flop_cycle.value * PJ_PER_FJ
    return AreaAndPower(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)


CORES = MappingProxyType({"a72": A72, "a76": A76})
LOCAL_CP = f"Local CP ({A72.name})"
ON_DIES = ("prediction table", "ATU")  # the other tables are the Global CP's
IN_SRAM = ("expert distribution table", "heatmap cache")  # unless its state machine reads them from DRAM


def design_of(system: SystemSpec, changes: Mapping[str, Any] = MappingProxyType({})) -> TableDesign:
    """The tables as the system configures them, with ``changes`` applied."""
    decision = system.decision
    configured: dict[str, Any] = {
        "dies": system.dies,
        "hbm_capacity_bytes": system.hbm.capacity_bytes,
        "atu_entries": decision.atu_entries,
        "table_port_bits": decision.fsm.table_port_bits,
        "heatmap_port_bits": decision.fsm.heatmap_port_bits,
        "prediction_port_bits": decision.fsm.prediction_port_bits,
        "clock_hz": decision.local_clock_hz,
    }
    return TableDesign(**(configured | dict(changes)))


def global_clock_hz(decision: DecisionSpec) -> float:
    """Clock of the Global CP and its tables: a core's own, or the state machine's."""
    return decision.firmware.clock_hz if decision.executor == "firmware" else decision.fsm.clock_hz


def decision_parts(decision: DecisionSpec, design: TableDesign, technology: Technology = N5) -> tuple[Part, ...]:
    """Rows as in table II. A host keeps the Global CP's tables in its own memory, so none of them is on the wafer."""
    at_hz = global_clock_hz(decision)
    parts = []
    for table in tables_of(design):
        if table.name in IN_SRAM and decision.executor == "fsm" and decision.fsm.tables == "dram":
            continue
        if table.name in ON_DIES or decision.executor != "host":
            clock_hz = design.clock_hz if table.name in ON_DIES else at_hz
            parts.append(
                Part(table.name, table.copies, table_cost(table, clock_hz, technology).times(table.copies), table)
            )
    if decision.atu_ways > 1:
        # The ATUs' order of use and comparison of tags.
        flops = atu_flops(design.atu_entries or design.experts, decision.atu_ways)
        cost = _flops_cost(flops, design.clock_hz, technology)
        parts.append(Part(ORDER, design.dies, cost.times(design.dies)))
    if decision.executor == "fsm" and decision.fsm.shadow:
        # The PDUs' second registers: a bit an expert, so that cp_en bits take effect together.
        cost = _flops_cost(design.experts, design.clock_hz, technology)
        parts.append(Part(SHADOW, design.dies, cost.times(design.dies)))
    parts.append(Part(LOCAL_CP, design.dies, core_cost(A72, design.clock_hz).times(design.dies)))
    if decision.executor == "firmware":
        core = CORES[decision.firmware.core]
        parts.append(Part(f"Global CP ({core.name})", 1, core_cost(core, at_hz)))
    if decision.executor == "fsm":
        parts += datapath_parts(decision.fsm, design.experts, design.dies, at_hz, technology)
    return tuple(parts)


def added_parts(system: SystemSpec, allocates: bool, predicts: bool) -> tuple[Part, ...]:
    """Hardware that a policy needs and ``base`` does not, without Local CPs (which every other needs)."""
    if not allocates and not predicts:
        return ()
    spared = {LOCAL_CP}
    if not predicts:
        spared |= {"prediction table", "heatmap cache", SHADOW, ADDERS}
    if not allocates:
        spared.add("expert distribution table")
    parts = decision_parts(system.decision, design_of(system))
    return tuple(part for part in parts if part.name not in spared and not _in_dram(part))


def added_cost(system: SystemSpec, allocates: bool, predicts: bool) -> AreaAndPower:
    return total(part.cost for part in added_parts(system, allocates, predicts))


def _in_dram(part: Part) -> bool:
    return part.table is not None and part.table.storage is Storage.DRAM

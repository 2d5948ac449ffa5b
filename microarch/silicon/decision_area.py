"""Silicon of a system's decision hardware: tables, Local CPs, and a Global CP that is a state machine, a core or a
host.

It follows ``decision`` of the system (``archsim.specs.machine.decision``). The design of the paper's table II, with
the clock that its powers were fitted to, is ``microarch.blocks.table_sizes.TableDesign()``; the two are separate, so
that a configuration is never compared with a row that does not describe it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from archsim.specs.machine.decision import DecisionSpec
from archsim.specs.machine.system import SystemSpec
from microarch.blocks.table_sizes import Storage, TableDesign, tables_of
from microarch.silicon.area_power import Cost, Part, core_cost, table_cost, total
from microarch.silicon.datapath_area import ADDERS, SHADOW, datapath_parts, order_part, shadow_part
from microarch.silicon.technology import A72, A76, N5, Technology

CORES = MappingProxyType({"a72": A72, "a76": A76})
LOCAL_CP = f"Local CP ({A72.name})"
ON_DIES = ("prediction table", "ATU")  # the other tables are the Global CP's
IN_SRAM = ("expert distribution table", "heatmap cache")  # unless its state machine reads them from DRAM


def design_of(system: SystemSpec, changes: Mapping[str, float] = MappingProxyType({})) -> TableDesign:
    """The tables as the system configures them, with ``changes`` applied."""
    decision = system.decision
    configured = {
        "dies": system.dies, "hbm_capacity_bytes": system.hbm.capacity_bytes, "atu_entries": decision.atu_entries,
        "table_port_bits": decision.fsm.table_port_bits, "heatmap_port_bits": decision.fsm.heatmap_port_bits,
        "prediction_port_bits": decision.fsm.prediction_port_bits, "clock_hz": decision.local_clock_hz,
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
        parts.append(order_part(design, decision.atu_ways, design.clock_hz, technology))
    if decision.executor == "fsm" and decision.fsm.shadow:
        parts.append(shadow_part(design, design.clock_hz, technology))
    parts.append(Part(LOCAL_CP, design.dies, core_cost(A72, design.clock_hz).times(design.dies)))
    if decision.executor == "firmware":
        core = CORES[decision.firmware.core]
        parts.append(Part(f"Global CP ({core.name})", 1, core_cost(core, at_hz)))
    if decision.executor == "fsm":
        parts += datapath_parts(decision.fsm, design.experts, design.dies, at_hz, technology)
    return tuple(parts)


def added_parts(system: SystemSpec, allocates: bool, predicts: bool) -> tuple[Part, ...]:
    """Hardware that a policy needs on the wafer and ``base`` does not; excludes Local CPs, which every other policy
    needs.
    """
    if not allocates and not predicts:
        return ()
    spared = {LOCAL_CP}
    if not predicts:
        spared |= {"prediction table", "heatmap cache", SHADOW, ADDERS}
    if not allocates:
        spared.add("expert distribution table")
    parts = decision_parts(system.decision, design_of(system))
    return tuple(part for part in parts if part.name not in spared and not _in_dram(part))


def added_cost(system: SystemSpec, allocates: bool, predicts: bool) -> Cost:
    """Of all `added_parts`."""
    return total(part.cost for part in added_parts(system, allocates, predicts))


def _in_dram(part: Part) -> bool:
    return part.table is not None and part.table.storage is Storage.DRAM

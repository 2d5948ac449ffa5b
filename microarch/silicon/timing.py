"""Static timing of a netlist over the library's NLDM tables: no wires, an ideal clock, one corner.

The longest path is that from a register (or an input) to a register's set-up or an output, with slews and the loads
of the pins that a net drives. A memory behind the ports of a component is part of the path: its data arrives after
its address and its access time (`access_ps`), and what it takes over has to be there before the end of the cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil, log2
from typing import Any, NamedTuple

from microarch.rtl import Memory
from microarch.silicon import liberty, technology

INPUT_SLEW_PS, OUTPUT_FF, CLOCK_SLEW_PS = 10.0, 1.0, 10.0
_MACRO = "ASAP7 SRAM srambank_256x4x64_6t122 (asap7_sram_0p0, TT, 0.7 V, 25 °C)"
ADDRESS_SETUP = technology.Coefficient(54.0, "ps", f"{_MACRO}: set-up of ADDRESS, falling, slew of 40 ps", (48.0, 59.0))
CLOCK_TO_DATA = technology.Coefficient(164.0, "ps", f"{_MACRO}: clk to dataout, rising, slew of 10 ps, 23 fF (about 0.1 mm of wire)", (144.0, 189.0))  # fmt: skip # noqa: E501
WRITE_SETUP = technology.Coefficient(21.0, "ps", f"{_MACRO}: set-up of write, falling, slew of 40 ps", (14.0, 26.0))
SELECTION = technology.Coefficient(32.0, "ps", "two NAND2x1 of ASAP7, slew of 20 ps, 1.5 fF each", (28.0, 40.0))
MACRO_WORDS = 1024  # of the deepest macro; its smaller ones have the same access time in the library
DATA_SLEW_PS = 40.0
RISE, FALL = "rise", "fall"
INTO: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # sense: (output edge, input edges)
    "positive_unate": {RISE: (RISE,), FALL: (FALL,)},
    "negative_unate": {RISE: (FALL,), FALL: (RISE,)},
    "non_unate": {RISE: (RISE, FALL), FALL: (RISE, FALL)},
}


class PathTiming(NamedTuple):
    """The longest paths of a component."""

    delay_ps: float  # longest path
    # longest logic between registers, without the register at its start and the set-up at its end, memories answering
    # at once
    logic_ps: float
    ends: str  # cell and pin, or port, at the end of the longest path
    cells_ps: float = 0.0  # longest path if memories answered at once
    arrivals: Mapping[str, float] = {}  # input of a memory → when its data arrives, ps


class Instance(NamedTuple):
    name: str
    cell: liberty.LibertyCell
    inputs: Mapping[str, Any]  # pin: net
    outputs: Mapping[str, Any]


def instances_of(module: Mapping[str, Any], library: liberty.Library) -> list[Instance]:
    """The cells of a module of Yosys' JSON, in order of name. Raises KeyError for a cell that the library lacks."""
    found = []
    for name, each in sorted(module["cells"].items()):
        cell = library.cells[each["type"]]
        nets = {pin: bits[0] for pin, bits in each["connections"].items()}
        inputs = {pin: net for pin, net in nets.items() if pin in cell.pin_ff}
        outputs = {pin: net for pin, net in nets.items() if pin not in cell.pin_ff}
        found.append(Instance(name, cell, inputs, outputs))
    return found


def access_ps(memory: Memory) -> float:
    """From the address of a memory to its data: set-up, access of a macro, selections between macros."""
    deep = ceil(memory.bits / memory.port_bits / MACRO_WORDS)
    selections = memory.selections + ceil(log2(deep))
    return ADDRESS_SETUP.value + CLOCK_TO_DATA.value + selections * SELECTION.value


def longest_path(module: Mapping[str, Any], library: liberty.Library, memories: Iterable[Memory] = ()) -> PathTiming:
    """The longest path of a mapped module of Yosys' JSON. ValueError: a memory's address follows from its data."""
    instances, memories = instances_of(module, library), list(memories)
    loads, ports = loads_of(module, instances), module["ports"]
    at_once = _arrivals(instances, loads, ports, {})
    timing = _worst(instances, ports, at_once, {})
    addressed = {each.name: _latest(ports, each.address, at_once) for each in memories}
    arrivals = {name: addressed[each.name] + access_ps(each) for each in memories for name in each.data}
    at = _arrivals(instances, loads, ports, arrivals)
    if any(_latest(ports, each.address, at) > addressed[each.name] for each in memories):
        raise ValueError("the address of a memory follows from its data in the same cycle")
    setups = {name: WRITE_SETUP.value for each in memories for name in each.written}
    worst = _worst(instances, ports, at, setups)
    return PathTiming(worst.delay_ps, timing.logic_ps, worst.ends, timing.delay_ps, arrivals)


def _arrivals(instances: list[Instance], loads: Mapping[Any, float], ports, inputs: Mapping[str, float]):
    """(arrival, slew, arrival of the register's output) by net and edge; ``inputs``: arrival of those that are late."""
    at = {
        (net, edge): (inputs.get(name, 0.0), DATA_SLEW_PS if name in inputs else INPUT_SLEW_PS, 0.0)
        for name, port in ports.items() if port["direction"] == "input" for net in port["bits"] for edge in (RISE, FALL)
    }  # fmt: skip
    for each in _in_order(instances):
        for pin, net in each.outputs.items():
            for edge, found in _output(each, pin, loads[net], at).items():
                at[net, edge] = found
    return at


def _latest(ports, names: Iterable[str], at) -> float:
    """Arrival of the last of some ports."""
    nets = [net for name in names for net in ports[name]["bits"]]
    return max((at[net, edge][0] for net in nets for edge in (RISE, FALL) if (net, edge) in at), default=0.0)


def loads_of(module: Mapping[str, Any], instances: list[Instance]) -> dict[Any, float]:
    """fF of every net: the pins that it drives, without wires."""
    loads: dict[Any, float] = defaultdict(float)
    for each in instances:
        for pin, net in each.inputs.items():
            loads[net] += each.cell.pin_ff[pin]
    for port in module["ports"].values():
        for net in port["bits"] if port["direction"] == "output" else ():
            loads[net] += OUTPUT_FF
    return loads


def _in_order(instances: list[Instance]) -> list[Instance]:
    """Sequential cells first, then each cell after those that drive it."""
    driver = {net: each for each in instances for net in each.outputs.values()}
    done: set[str] = set()
    order: list[Instance] = []
    for root in sorted(instances, key=lambda each: not each.cell.is_sequential):
        stack = [(root, False)]
        while stack:
            each, entered = stack.pop()
            if each.name in done:
                continue
            if entered or each.cell.is_sequential:
                done.add(each.name)
                order.append(each)
                continue
            stack.append((each, True))
            stack += [(driver[net], False) for net in each.inputs.values() if net in driver]
    return order


def _output(
    each: Instance, pin: str, load_ff: float, at: Mapping[tuple[Any, str], tuple[float, float, float]]
) -> dict[str, tuple[float, float, float]]:
    """(arrival, slew, start) of both edges of an output."""
    found: dict[str, tuple[float, float, float]] = {}
    for arc in each.cell.arcs.get(pin, ()):
        clocked = each.cell.is_sequential
        if clocked and not arc.kind.endswith("_edge"):
            continue
        for edge in (RISE, FALL):
            if f"cell_{edge}" not in arc.tables:
                continue
            sources = (RISE,) if clocked else INTO[arc.sense][edge]
            for source in sources:
                net = each.inputs.get(arc.source)
                before = (0.0, CLOCK_SLEW_PS, 0.0) if clocked else at.get((net, source))
                if before is None:  # a constant
                    continue
                arrival = before[0] + arc.tables[f"cell_{edge}"].at(before[1], load_ff)
                slew = arc.tables[f"{edge}_transition"].at(before[1], load_ff)
                old = found.get(edge, (-1.0, 0.0, 0.0))
                start = arrival if clocked else before[2]
                later = (arrival, start) if arrival > old[0] else (old[0], old[2])
                found[edge] = later[0], max(slew, old[1]), later[1]
    return found


def _worst(instances: list[Instance], ports, at, setups: Mapping[str, float]) -> PathTiming:
    worst, logic_ps = PathTiming(0.0, 0.0, ""), 0.0
    for each in instances:
        if not each.cell.is_sequential:
            continue
        for pin, arcs in each.cell.arcs.items():
            net = each.inputs.get(pin)
            for arc in (arc for arc in arcs if arc.kind.startswith("setup")):
                for edge in (RISE, FALL):
                    if (net, edge) not in at or f"{edge}_constraint" not in arc.tables:
                        continue
                    arrival, slew, start = at[net, edge]
                    logic_ps = max(logic_ps, arrival - start)
                    delay = arrival + arc.tables[f"{edge}_constraint"].at(CLOCK_SLEW_PS, slew)
                    worst = max(worst, PathTiming(delay, 0.0, f"{each.name}.{pin}"), key=lambda each: each.delay_ps)
    for name, port in ports.items():
        for net in port["bits"] if port["direction"] == "output" else ():
            for edge in (RISE, FALL):
                if (net, edge) in at:
                    arrival, _, start = at[net, edge]
                    logic_ps = max(logic_ps, arrival - start)
                    delay = arrival + setups.get(name, 0.0)
                    worst = max(worst, PathTiming(delay, 0.0, f"output {name}"), key=lambda each: each.delay_ps)
    return worst._replace(logic_ps=logic_ps)

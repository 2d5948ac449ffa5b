"""Cell libraries in Liberty format, as far as area, timing and clock energy need them: NLDM tables.

Groups are ``name (arguments) { ... }``, attributes ``name : value;`` or ``name ("...", ...);``. Times are in ps,
capacitances in fF and energies in fJ, as in ASAP7; a library in other units is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.files import unpacked
from microarch.rtl import Memory
from microarch.silicon.area import Coefficient

# ---- liberty

TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][\w.\[\]]*|[-+]?[\d.]+(?:[eE][-+]?\d+)?|[(){};:,]')
UNENDED = re.compile(r"^(\s*\w+\s*:[^;{}\n]*)$", re.MULTILINE)  # an attribute without its semicolon
COMMENT = re.compile(r"/\*.*?\*/|\\\n", re.DOTALL)
MIDDLE_SLEW_PS = 40.0  # of the library's tables, as for clocks
SHARED = "../shared/data/cells"
WANTED = ("asap7_simple_rvt_tt.lib.xz", "asap7_invbuf_rvt_tt.lib.xz", "asap7_seq_rvt_tt.lib.xz")


@dataclass
class Group:
    """A group of a library: its attributes, and the groups in it."""

    kind: str
    arguments: list[str]
    attributes: dict[str, list[str]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def of(self, kind: str) -> list[Group]:
        return [group for group in self.groups if group.kind == kind]

    def value(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, [default])[0]


def parse(text: str) -> Group:
    """The library of a file. Raises ValueError where it ends too soon."""
    tokens = [
        token.strip('"') if token[0] == '"' else token
        for token in TOKEN.findall(UNENDED.sub(r"\1;", COMMENT.sub(" ", text)))
    ]
    group, _ = _statement(tokens, 0)
    if not isinstance(group, Group):
        raise ValueError("expected a library (...) { ... }")
    return group


def _statement(tokens: list[str], at: int) -> tuple[Group | tuple[str, list[str]], int]:
    """The group or attribute that begins at a token, and where the next one does."""
    name = tokens[at]
    if tokens[at + 1] == ":":
        end = tokens.index(";", at)
        return (name, [" ".join(tokens[at + 2 : end])]), end + 1
    end = tokens.index(")", at)
    arguments = [token for token in tokens[at + 2 : end] if token != ","]
    if end + 1 >= len(tokens) or tokens[end + 1] != "{":
        return (name, arguments), end + 2 if tokens[end + 1 : end + 2] == [";"] else end + 1
    group, at = Group(name, arguments), end + 2
    while tokens[at] != "}":
        if tokens[at] == ";":
            at += 1
            continue
        inner, at = _statement(tokens, at)
        if isinstance(inner, Group):
            group.groups.append(inner)
        else:
            group.attributes.setdefault(*inner)
    return group, at + 1


@dataclass(frozen=True)
class Surface:
    """A table over two axes (NLDM): bilinear between them, and continued beyond."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    def at(self, row: float, column: float) -> float:
        i = min(max(int(np.searchsorted(self.rows, row)) - 1, 0), len(self.rows) - 2)
        j = min(max(int(np.searchsorted(self.columns, column)) - 1, 0), len(self.columns) - 2)
        u = (row - self.rows[i]) / (self.rows[i + 1] - self.rows[i])
        v = (column - self.columns[j]) / (self.columns[j + 1] - self.columns[j])
        (a, b), (c, d) = self.values[i : i + 2, j : j + 2]
        return float((1 - u) * ((1 - v) * a + v * b) + u * ((1 - v) * c + v * d))


def _surface(group: Group) -> Surface:
    axes = [np.array(group.attributes[name][0].replace(",", " ").split(), float) for name in ("index_1", "index_2")]
    numbers = np.array(" ".join(group.attributes["values"]).replace(",", " ").split(), float)
    return Surface(*axes, numbers.reshape(len(axes[0]), len(axes[1])))


@dataclass(frozen=True)
class Arc:
    """From an input pin to an output: ``tables``: delay and slew of a rising, then of a falling output; of a setup arc
    the constraints.
    """

    source: str
    sense: str  # positive_unate, negative_unate, non_unate
    kind: str  # combinational, rising_edge, setup_rising, ...
    tables: dict[str, Surface]


@dataclass(frozen=True)
class Cell:
    name: str
    area_um2: float
    pin_ff: dict[str, float]  # of input pins
    arcs: dict[str, tuple[Arc, ...]]  # by output pin, or by the pin of a setup arc
    is_sequential: bool
    clock_pin: str
    clock_fj: float  # of a cycle of its clock, data at rest; 0 without a clock
    leakage_nw: float
    changes: tuple[Surface, ...] = ()  # fJ of a rising and of a falling output, of each supply

    def change_fj(self, load_ff: float, volts: float) -> float:
        """What a change of the output takes, the mean of both edges: in the cell, and the charge of the load."""
        inside = sum(each.at(MIDDLE_SLEW_PS, load_ff) for each in self.changes) / 2
        return inside + load_ff * volts**2 / 2


@dataclass(frozen=True)
class Library:
    """Cells by name, at ``volts``; ``files``: (name, SHA-256 of the content) of each file they came from."""

    cells: dict[str, Cell]
    files: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]  # (name, text), for tools that read files
    volts: float = 0.7


def find_libraries(given: Sequence[str] = ()) -> tuple[list[Path], str]:
    """The files, and what is missing ('' if nothing is): those given, else the shared ones."""
    if given:
        paths = [Path(each) for each in given]
    else:
        root = os.environ.get("ARCHSIM_SHARED")
        folder = Path(root) / "data" / "cells" if root else Path(SHARED)
        paths = [folder / name for name in WANTED]
    lacking = [str(path) for path in paths if not path.exists()]
    return paths, f"no cell library: {', '.join(lacking)} not found; name yours with --liberty FILE" if lacking else ""


def read_libraries(paths: Sequence[Path]) -> Library:
    """The cells of Liberty files, plain or xz. Raises ValueError for other units than ps and fF."""
    cells: dict[str, Cell] = {}
    files, texts, volts = [], [], 0.0
    for path in paths:
        data = path.read_bytes()
        content = unpacked(data, "xz") if path.suffix == ".xz" else data
        text = content.decode("utf-8", "replace")
        library = parse(text)
        unit, load = library.value("time_unit"), library.attributes.get("capacitive_load_unit", [])
        if unit != "1ps" or [each.lower() for each in load] != ["1", "ff"]:
            raise ValueError(f"{path.name}: time_unit {unit}, load unit {load}; expected 1ps and 1 fF")
        volts = float(library.value("nom_voltage", "0.7"))
        files.append((path.name.removesuffix(".xz"), hashlib.sha256(content).hexdigest()))
        texts.append((path.name.removesuffix(".xz"), text))
        cells |= {group.arguments[0]: _cell(group) for group in library.of("cell")}
    return Library(cells, tuple(files), tuple(texts), volts)


def _cell(group: Group) -> Cell:
    pins = group.of("pin")
    arcs: dict[str, tuple[Arc, ...]] = {}
    for pin in pins:
        found = tuple(arc for timing in pin.of("timing") if (arc := _arc(timing)) is not None)
        if found:
            arcs[pin.arguments[0]] = found
    clock = next((pin for pin in pins if pin.value("clock") == "true"), None)
    leakages = [float(each.value("value", "0")) for each in group.of("leakage_power")]
    powered = [each for each in leakages if each > 0]
    return Cell(
        name=group.arguments[0],
        area_um2=float(group.value("area", "0")),
        pin_ff={
            pin.arguments[0]: float(pin.value("capacitance", "0")) for pin in pins if pin.value("direction") == "input"
        },
        arcs=arcs,
        is_sequential=bool(group.of("ff") or group.of("latch") or group.of("statetable")),
        clock_pin=clock.arguments[0] if clock else "",
        clock_fj=_clock_fj(clock) if clock else 0.0,
        leakage_nw=sum(powered) / len(powered) / 1000 if powered else 0.0,
        changes=tuple(
            _surface(table)
            for pin in pins if clock and pin.value("direction") == "output"
            for power in pin.of("internal_power") for table in power.groups if "index_2" in table.attributes
        ),
    )


def _arc(timing: Group) -> Arc | None:
    tables = {
        each.kind: _surface(each)
        for each in timing.groups
        if "index_2" in each.attributes and "values" in each.attributes
    }
    if not tables or timing.value("timing_type", "combinational").startswith(
        ("hold", "min_pulse", "recovery", "removal")
    ):
        return None
    kind = timing.value("timing_type", "combinational")
    return Arc(timing.value("related_pin"), timing.value("timing_sense", "non_unate"), kind, tables)


def _clock_fj(clock: Group) -> float:
    """What a cycle of the clock takes while the data rests: from both supplies, the mean of the states that a rising
    clock keeps, at the middle slew.
    """
    by_state: dict[str, list[tuple[float, float]]] = {}
    for power in clock.of("internal_power"):
        edges = [_middle(each) for kind in ("rise_power", "fall_power") for each in power.of(kind)]
        if len(edges) == 2:
            by_state.setdefault(power.value("when"), []).append((edges[0], edges[1]))
    cycles = [tuple(map(sum, zip(*supplies, strict=True))) for supplies in by_state.values()]
    resting = [sum(edges) for edges in cycles if edges[0] > 0]  # without a rising edge the clock changed the output
    return sum(resting) / len(resting) if resting else 0.0


def _middle(power: Group) -> float:
    values = " ".join(power.attributes.get("values", ["0"])).replace(",", " ").split()
    return float(values[len(values) // 2])


# ---- timing
# Static timing of a netlist over the library's NLDM tables: no wires, an ideal clock, one corner.
#
# The longest path is that from a register (or an input) to a register's set-up or an output, with slews and the loads
# of
# the pins that a net drives. A memory behind the ports of a component is part of the path: its data arrives after its
# address and its access time (`access_ps`), and what it takes over has to be there before the end of the cycle.

INPUT_SLEW_PS, OUTPUT_FF, CLOCK_SLEW_PS = 10.0, 1.0, 10.0
_MACRO = "ASAP7 SRAM srambank_256x4x64_6t122 (asap7_sram_0p0, TT, 0.7 V, 25 °C)"
ADDRESS_SETUP = Coefficient(54.0, "ps", f"{_MACRO}: set-up of ADDRESS, falling, slew of 40 ps", (48.0, 59.0))
CLOCK_TO_DATA = Coefficient(164.0, "ps", f"{_MACRO}: clk to dataout, rising, slew of 10 ps, 23 fF (about 0.1 mm of wire)", (144.0, 189.0))  # fmt: skip # noqa: E501
WRITE_SETUP = Coefficient(21.0, "ps", f"{_MACRO}: set-up of write, falling, slew of 40 ps", (14.0, 26.0))
SELECTION = Coefficient(32.0, "ps", "two NAND2x1 of ASAP7, slew of 20 ps, 1.5 fF each", (28.0, 40.0))
MACRO_WORDS = 1024  # of the deepest macro; its smaller ones have the same access time in the library
DATA_SLEW_PS = 40.0
RISE, FALL = "rise", "fall"
INTO = {  # sense: (output edge, input edges)
    "positive_unate": {RISE: (RISE,), FALL: (FALL,)},
    "negative_unate": {RISE: (FALL,), FALL: (RISE,)},
    "non_unate": {RISE: (RISE, FALL), FALL: (RISE, FALL)},
}


class Timing(NamedTuple):
    """``delay_ps``: longest path; ``logic_ps``: longest logic between registers, without what the register at its start
    and the set-up at its end take, memories answering at once; ``ends``: cell and pin, or port, at the end of the
    longest path; ``cells_ps``: the longest path if memories answered at once; ``arrivals``: when the data of a memory
    arrives, by input, in ps.
    """

    delay_ps: float
    logic_ps: float
    ends: str
    cells_ps: float = 0.0
    arrivals: Mapping[str, float] = {}


class Instance(NamedTuple):
    name: str
    cell: Cell
    inputs: Mapping[str, Any]  # pin: net
    outputs: Mapping[str, Any]


def instances_of(module: Mapping[str, Any], library: Library) -> list[Instance]:
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
    """From the address of a memory to its data: set-up of the address, access of a macro, selections between macros."""
    deep = ceil(memory.bits / memory.port_bits / MACRO_WORDS)
    selections = memory.selections + ceil(log2(deep))
    return ADDRESS_SETUP.value + CLOCK_TO_DATA.value + selections * SELECTION.value


def longest_path(module: Mapping[str, Any], library: Library, memories: Iterable[Memory] = ()) -> Timing:
    """Of a module of Yosys' JSON that is mapped to cells of the library. Raises ValueError where the address of a
    memory follows from its own data.
    """
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
    return Timing(worst.delay_ps, timing.logic_ps, worst.ends, timing.delay_ps, arrivals)


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


def _output(each: Instance, pin: str, load_ff: float, at) -> dict[str, tuple[float, float, float]]:
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


def _worst(instances: list[Instance], ports, at, setups: Mapping[str, float]) -> Timing:
    worst, logic_ps = Timing(0.0, 0.0, ""), 0.0
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
                    worst = max(worst, Timing(delay, 0.0, f"{each.name}.{pin}"), key=lambda each: each.delay_ps)
    for name, port in ports.items():
        for net in port["bits"] if port["direction"] == "output" else ():
            for edge in (RISE, FALL):
                if (net, edge) in at:
                    arrival, _, start = at[net, edge]
                    logic_ps = max(logic_ps, arrival - start)
                    delay = arrival + setups.get(name, 0.0)
                    worst = max(worst, Timing(delay, 0.0, f"output {name}"), key=lambda each: each.delay_ps)
    return worst._replace(logic_ps=logic_ps)

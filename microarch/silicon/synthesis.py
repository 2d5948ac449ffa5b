"""Synthesis of a component to a cell library with Yosys and abc (``pyosys``, no system package), and what it takes.

Adders are Kogge-Stone; registers with an enable get clock gates; flip-flops with a true output are left out, as they
are a quarter larger than flip-flop and inverter. Memories are no part of a component (``microarch.rtl``). Areas are
those of cells: no wires, no clock tree, no utilisation. The access time of memories is part of the longest path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from math import ceil, log2
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.files import unpacked
from archsim.base.own_code import safe_path
from archsim.base.sums import sum
from microarch.rtl import Memory, ports_of
from microarch.silicon.area import (
    CANDIDATE,
    COMPARATOR,
    LANE,
    N5,
    PUBLISHED,
    SORTER,
    Coefficient,
    atu_flops,
    heatmap_flops,
)

# ---- liberty
# Cell libraries in Liberty format, as far as area, timing and clock energy need them: NLDM tables.
#
# Groups are ``name (arguments) { ... }``, attributes ``name : value;`` or ``name ("...", ...);``. Times are in ps,
# capacitances in fF and energies in fJ, as in ASAP7; a library in other units is refused.

TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][\w.\[\]]*|[-+]?[\d.]+(?:[eE][-+]?\d+)?|[(){};:,]')
UNENDED = re.compile(r"^(\s*\w+\s*:[^;{}\n]*)$", re.MULTILINE)  # an attribute without its semicolon
COMMENT = re.compile(r"/\*.*?\*/|\\\n", re.DOTALL)
MIDDLE_SLEW_PS = 40.0  # of the library's tables, as for clocks
SHARED = "../shared/data/cells"
WANTED = ("asap7_simple_rvt_tt.lib.xz", "asap7_invbuf_rvt_tt.lib.xz", "asap7_seq_rvt_tt.lib.xz")


@dataclass
class LibertyGroup:
    """A group of a library: its attributes, and the groups in it."""

    kind: str
    arguments: list[str]
    attributes: dict[str, list[str]] = field(default_factory=dict)
    groups: list[LibertyGroup] = field(default_factory=list)

    def of(self, kind: str) -> list[LibertyGroup]:
        return [group for group in self.groups if group.kind == kind]

    def value(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, [default])[0]


def parse(text: str) -> LibertyGroup:
    """The library of a file. Raises ValueError where it ends too soon."""
    tokens = [
        token.strip('"') if token[0] == '"' else token
        for token in TOKEN.findall(UNENDED.sub(r"\1;", COMMENT.sub(" ", text)))
    ]
    group, _ = _statement(tokens, 0)
    if not isinstance(group, LibertyGroup):
        raise ValueError("expected a library (...) { ... }")
    return group


def _statement(tokens: list[str], at: int) -> tuple[LibertyGroup | tuple[str, list[str]], int]:
    """The group or attribute that begins at a token, and where the next one does."""
    name = tokens[at]
    if tokens[at + 1] == ":":
        end = tokens.index(";", at)
        return (name, [" ".join(tokens[at + 2 : end])]), end + 1
    end = tokens.index(")", at)
    arguments = [token for token in tokens[at + 2 : end] if token != ","]
    if end + 1 >= len(tokens) or tokens[end + 1] != "{":
        return (name, arguments), end + 2 if tokens[end + 1 : end + 2] == [";"] else end + 1
    group, at = LibertyGroup(name, arguments), end + 2
    while tokens[at] != "}":
        if tokens[at] == ";":
            at += 1
            continue
        inner, at = _statement(tokens, at)
        if isinstance(inner, LibertyGroup):
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


def _surface(group: LibertyGroup) -> Surface:
    rows, columns = (
        np.array(group.attributes[name][0].replace(",", " ").split(), float) for name in ("index_1", "index_2")
    )
    numbers = np.array(" ".join(group.attributes["values"]).replace(",", " ").split(), float)
    return Surface(rows, columns, numbers.reshape(len(rows), len(columns)))


@dataclass(frozen=True)
class Arc:
    """A timing arc from an input pin to an output. ``tables``: delay and slew of a rising, then of a falling output; of
    a setup arc the constraints.
    """

    source: str
    sense: str  # positive_unate, negative_unate, non_unate
    kind: str  # combinational, rising_edge, setup_rising, ...
    tables: dict[str, Surface]


@dataclass(frozen=True)
class LibertyCell:
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

    cells: dict[str, LibertyCell]
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
    cells: dict[str, LibertyCell] = {}
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


def _cell(group: LibertyGroup) -> LibertyCell:
    pins = group.of("pin")
    arcs: dict[str, tuple[Arc, ...]] = {}
    for pin in pins:
        found = tuple(arc for timing in pin.of("timing") if (arc := _arc(timing)) is not None)
        if found:
            arcs[pin.arguments[0]] = found
    clock = next((pin for pin in pins if pin.value("clock") == "true"), None)
    leakages = [float(each.value("value", "0")) for each in group.of("leakage_power")]
    powered = [each for each in leakages if each > 0]
    return LibertyCell(
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
            for pin in pins
            if clock and pin.value("direction") == "output"
            for power in pin.of("internal_power")
            for table in power.groups
            if "index_2" in table.attributes
        ),
    )


def _arc(timing: LibertyGroup) -> Arc | None:
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


def _clock_fj(clock: LibertyGroup) -> float:
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


def _middle(power: LibertyGroup) -> float:
    values = " ".join(power.attributes.get("values", ["0"])).replace(",", " ").split()
    return float(values[len(values) // 2])


# ---- timing
# Static timing of a netlist over the library's NLDM tables: no wires, an ideal clock, one corner.
#
# The longest path is that from a register (or an input) to a register's set-up or an output, with slews and the loads
# of the pins that a net drives. A memory behind the ports of a component is part of the path: its data arrives after
# its address and its access time (`access_ps`), and what it takes over has to be there before the end of the cycle.

INPUT_SLEW_PS, OUTPUT_FF, CLOCK_SLEW_PS = 10.0, 1.0, 10.0
_MACRO = "ASAP7 SRAM srambank_256x4x64_6t122 (asap7_sram_0p0, TT, 0.7 V, 25 °C)"
ADDRESS_SETUP = Coefficient(54.0, "ps", f"{_MACRO}: set-up of ADDRESS, falling, slew of 40 ps", (48.0, 59.0))
CLOCK_TO_DATA = Coefficient(164.0, "ps", f"{_MACRO}: clk to dataout, rising, slew of 10 ps, 23 fF (about 0.1 mm of wire)", (144.0, 189.0))  # fmt: skip # noqa: E501
WRITE_SETUP = Coefficient(21.0, "ps", f"{_MACRO}: set-up of write, falling, slew of 40 ps", (14.0, 26.0))
SELECTION = Coefficient(32.0, "ps", "two NAND2x1 of ASAP7, slew of 20 ps, 1.5 fF each", (28.0, 40.0))
MACRO_WORDS = 1024  # of the deepest macro; its smaller ones have the same access time in the library
DATA_SLEW_PS = 40.0
RISE, FALL = "rise", "fall"
INTO: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # sense: (output edge, input edges)
    "positive_unate": {RISE: (RISE,), FALL: (FALL,)},
    "negative_unate": {RISE: (FALL,), FALL: (RISE,)},
    "non_unate": {RISE: (RISE, FALL), FALL: (RISE, FALL)},
}


class PathTiming(NamedTuple):
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
    cell: LibertyCell
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
    """The time from the address of a memory to its data: set-up of the address, access of a macro, selections between
    macros.
    """
    deep = ceil(memory.bits / memory.port_bits / MACRO_WORDS)
    selections = memory.selections + ceil(log2(deep))
    return ADDRESS_SETUP.value + CLOCK_TO_DATA.value + selections * SELECTION.value


def longest_path(module: Mapping[str, Any], library: Library, memories: Iterable[Memory] = ()) -> PathTiming:
    """The longest path of a module of Yosys' JSON that is mapped to cells of the library. Raises ValueError where the
    address of a memory follows from its own data.
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


# ---- synthesis

GATE, GATE_PINS, GATE_OFF = "ICGx1_ASAP7_75t_R", "ENA:CLK:GCLK", "SE"
LEFT_OUT = ("DFFHQx4_ASAP7_75t_R",)  # a flip-flop with a true output
LEAST_GATED = 4  # registers behind a clock gate
DRIVER = "BUFx2_ASAP7_75t_R"
TARGET_PS = 500  # abc sizes for speed
SCRIPT = "strash; &get -n; &st; &dch; &nf; &put; buffer -c; topo; stime -p; upsize -c; dnsize -c; stime -p"
RESULTS = Path(__file__).parent / "results"


class Netlist(NamedTuple):
    """A component in cells: ``module`` of Yosys' JSON, the same in Verilog; the delay of its logic by abc's timing."""

    module: Mapping[str, Any]
    verilog: str
    abc_logic_ps: float


@dataclass(frozen=True)
class Synthesised:
    """A component in cells. Areas are the library's own, of its node; ``delay_ps``: longest path by this project's
    timing, with the access time of its memories; ``cells_ps``: without; ``abc_logic_ps``: of the logic between
    registers, by abc's timing, beside ``logic_ps``.
    """

    block: str
    parameters: dict[str, Any]
    flip_flops: int
    clock_gates: int
    gated_flip_flops: int
    cells: int
    area_um2: float
    sequential_um2: float
    flip_flop_um2: float
    delay_ps: float
    cells_ps: float
    access_ps: dict[str, float]  # of its memories, from address to data
    logic_ps: float
    abc_logic_ps: float
    path_ends: str
    free_running_fj: float  # a cycle, all clock pins
    gates_fj: float  # a cycle of the clock gates' own clock pins
    change_fj: float  # of a flip-flop's output and what it drives, the mean of all
    leakage_nw: float
    source: str  # SHA-256 of the component's file
    library: dict[str, str]  # file: SHA-256
    versions: dict[str, str]

    @property
    def clock_hz(self) -> float:
        """What the longest path allows in 5 nm, with wires and clock tree."""
        return 1e12 / self.delay_ps / (WIRES.value * FASTER.value)


def synthesise(block: str, component: Any, source: Path, library: Library) -> Synthesised:
    """Map a component (Amaranth) to the cells of a library. Raises ModuleNotFoundError without the extra ``rtl``."""
    netlist = mapped(block, component, library)
    module = netlist.module
    kinds = Counter(each["type"] for each in module["cells"].values())
    cells = {name: library.cells[name] for name in kinds}
    registers = {name: n for name, n in kinds.items() if cells[name].is_sequential and name != GATE}
    clocks = {each["connections"][cells[each["type"]].clock_pin][0] for each in module["cells"].values()
              if each["type"] in registers}  # fmt: skip
    (root,) = module["ports"]["clk"]["bits"]
    free = sum(each["type"] in registers and each["connections"][cells[each["type"]].clock_pin][0] == root
               for each in module["cells"].values())  # fmt: skip
    memories = getattr(component, "memories", [])
    timing = longest_path(module, library, memories)
    flip_flops = sum(registers.values())
    return Synthesised(
        block=block,
        parameters=asdict(component.parameters),
        flip_flops=flip_flops,
        clock_gates=len(clocks - {root}),
        gated_flip_flops=flip_flops - free,
        cells=sum(kinds.values()),
        area_um2=round(sum(n * cells[name].area_um2 for name, n in kinds.items()), 4),
        sequential_um2=round(sum(n * cells[name].area_um2 for name, n in registers.items()), 4),
        flip_flop_um2=cells[max(registers, key=lambda name: registers[name])].area_um2,
        delay_ps=round(timing.delay_ps, 2),
        cells_ps=round(timing.cells_ps, 2),
        access_ps={each.name: round(access_ps(each), 2) for each in memories},
        logic_ps=round(timing.logic_ps, 2),
        abc_logic_ps=netlist.abc_logic_ps,
        path_ends=_register_at(module, timing.ends),
        free_running_fj=round(sum(n * cells[name].clock_fj for name, n in registers.items()), 3),
        gates_fj=round(kinds[GATE] * library.cells[GATE].clock_fj if kinds[GATE] else 0.0, 3),
        change_fj=round(_change_fj(module, library), 4),
        leakage_nw=round(sum(n * cells[name].leakage_nw for name, n in kinds.items()), 3),
        source=digest_of(source),
        library=dict(library.files),
        versions={name: version(name) for name in ("amaranth", "pyosys")},
    )


def mapped(block: str, component: Any, library: Library) -> Netlist:
    """A component in the cells of a library. Raises ModuleNotFoundError without the extra ``rtl``."""
    return Netlist(*in_yosys(_mapped, block, _rtlil(block, component), library.texts))


def verilog_of(block: str, component: Any) -> str:
    """A component as behavioural Verilog, with the values that its registers have at the start."""
    return in_yosys(_verilog, _rtlil(block, component))


def _rtlil(block: str, component: Any) -> str:
    from amaranth.back import rtlil

    ports = {name: (signal, None) for name, signal in ports_of(component).items()}
    return rtlil.convert(component, ports=ports, name=block)


def in_yosys(made: Callable, *given: Any) -> Any:
    """``made(*given, folder, run)`` in a process of its own, as what Yosys finds depends on the numbers that it has
    given out before; ``run``: a command of Yosys, whose log is in the folder. Raises ArchsimError where Yosys ends the
    process, as it does when a command fails.
    """
    with tempfile.TemporaryDirectory() as folder, safe_path():
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                return fresh.submit(_there, made, given, Path(folder)).result()
        except BrokenProcessPool:
            log = Path(folder) / "log"
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            said = [line for line in lines if "rror" in line] or lines[-1:]
            raise ArchsimError(
                f"Yosys or abc failed{': ' * bool(said)}{'; '.join(said[:3])}; a cell library in several files needs "
                "them in the order of simple cells, inverters and buffers, flip-flops"
            ) from None


def _there(made: Callable, given: Sequence[Any], folder: Path) -> Any:
    os.chdir(folder)  # Yosys and abc find no file of the user's there
    from pyosys import libyosys as yosys

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Yosys prints every command that it runs
    design = yosys.Design()
    return made(*given, folder, lambda command: yosys.run_pass(f"tee -q -o {folder / 'log'} {command}", design))


def _verilog(text: str, folder: Path, run: Callable[[str], None]) -> str:
    (folder / "in.il").write_text(text, encoding="utf-8")
    for command in (f"read_rtlil {folder / 'in.il'}", "proc -norom", f"write_verilog -noattr {folder / 'out.v'}"):
        run(command)
    return (folder / "out.v").read_text(encoding="utf-8")


def _change_fj(module: Mapping[str, Any], library: Library) -> float:
    """Mean energy of a change of a flip-flop's output."""
    instances = instances_of(module, library)
    loads = loads_of(module, instances)
    registers = [each for each in instances if each.cell.changes and each.cell.name != GATE]
    driven = (sum(loads[net] for net in each.outputs.values()) for each in registers)
    changes = [each.cell.change_fj(load, library.volts) for each, load in zip(registers, driven, strict=True)]
    return sum(changes) / len(changes)


def _register_at(module: Mapping[str, Any], pin: str) -> str:
    """The lines of the component that wrote the register of ``pin`` (cell.pin): file:line."""
    cell = module["cells"].get(pin.rpartition(".")[0], {})
    written = re.findall(r"(\w+\.py:\d+)", cell.get("attributes", {}).get("src", ""))
    return " ".join(sorted(set(written))) or re.sub(r"\$\d+", "", pin)


def digest_of(source: Path) -> str:
    """SHA-256 of a component's file, up to what is claimed of it."""
    text = source.read_text(encoding="utf-8").partition("\nCLAIM = ")[0]
    return hashlib.sha256(text.encode()).hexdigest()


def _mapped(block: str, text: str, texts: Sequence[tuple[str, str]], folder: Path, run: Callable[[str], None]):
    """The fields of ``Netlist``."""
    files = []
    for name, content in texts:
        files.append(folder / name)
        files[-1].write_text(content, encoding="utf-8")
    (folder / "in.il").write_text(text, encoding="utf-8")
    (folder / "abc").write_text(SCRIPT, encoding="utf-8")
    (folder / "constraints").write_text(f"set_driving_cell {DRIVER}\nset_load 1.0\n", encoding="utf-8")
    liberty = " ".join(f"-liberty {file}" for file in files)
    left_out = " ".join(f"-dont_use {name}" for name in LEFT_OUT)
    run(f"read_rtlil {folder / 'in.il'}")
    run(f"synth -flatten -noabc -top {block} -extra-map +/choices/kogge-stone.v")
    run(f"clockgate -pos {GATE} {GATE_PINS} -min_net_size {LEAST_GATED} -tie_lo {GATE_OFF}")
    run(f"dfflibmap {left_out} {liberty}")
    run("opt_clean")
    run(f"abc -D {TARGET_PS} {liberty} -constr {folder / 'constraints'} -script {folder / 'abc'}")
    delays = re.findall(r"Delay =\s*([\d.]+) ps", (folder / "log").read_text(encoding="utf-8", errors="replace"))
    run("opt_clean -purge")
    run(f"write_json {folder / 'out.json'}")
    run(f"write_verilog -noattr -noexpr {folder / 'out.v'}")
    module = json.loads((folder / "out.json").read_text(encoding="utf-8"))["modules"][block]
    return module, (folder / "out.v").read_text(encoding="utf-8"), float(delays[-1]) if delays else 0.0


def written(found: Synthesised) -> str:
    return json.dumps(asdict(found), indent=1, sort_keys=True) + "\n"


def read_result(block: str) -> Synthesised | None:
    """The committed result of a component at its shipped parameters; None if there is none."""
    try:
        return Synthesised(**json.loads((RESULTS / f"{block}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


# ---- synthesised
# Analytical areas beside those of synthesis, for the parts of the decision hardware that are in RTL.
#
# Areas are of cells in the node of the library (ASAP7); the published ones (table II, 5 nm) are of all copies. 7 nm to
# 5 nm is in one place: `TO_5NM`.

TO_5NM = Coefficient(
    0.8, "5 nm over 7 nm", "as for cores: a Cortex-A55 is 22 to 29 % denser in 5 nm (Linley Group, 2021)", (0.775, 0.82)
)
WIRES = Coefficient(1.25, "of the longest path, with wires and clock", "assumed", (1.15, 1.4))
FASTER = Coefficient(0.87, "delay in 5 nm over 7 nm", "TSMC, 5nm Technology (tsmc.com): 15 % faster at equal power")
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
    """A component: cells in um2 of the library's node; ``placed_mm2``: all copies in 5 nm, placed; ``published_mm2``:
    of table II, None where it has no such row. ``stale``: the component's source has changed since its synthesis.
    """

    component: str
    copies: int
    analytical_um2: float
    synthesised: Synthesised
    published_mm2: float | None
    stale: bool

    @property
    def ratio(self) -> float:
        """Analytical over synthesised."""
        return self.analytical_um2 / self.synthesised.area_um2

    @property
    def placed_mm2(self) -> float:
        return self.copies * self.synthesised.area_um2 * TO_5NM.value / N5.placement.value / 1e6

    @property
    def reason(self) -> str:
        """Why a ratio, of the model or of table II, is above `NEAR`; '' where none is."""
        told = [] if 1 / NEAR <= self.ratio <= NEAR else [f"the model is {self.ratio:.2f} of synthesis"]
        if self.component in BESIDE:
            told.append(BESIDE[self.component])
        if self.published_mm2 is not None and self.placed_mm2 > NEAR * self.published_mm2:
            share = self.copies * self.synthesised.sequential_um2 * TO_5NM.value / 1e6 / self.published_mm2
            told.append(f"flip-flops alone take {share:.1f} times table II's area, before any logic or placement")
        return "; ".join(told)


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
        result = read_result(component)
        if result is not None:
            row = PUBLISHED[published].area_mm2 * dies / 25 if published else None
            found.append(ComponentArea(component, copies, _analytical_um2(result), result, row, _is_stale(result)))
    return found


def clock_note(name: str, executor: str, clock_hz: float) -> str:
    """A note if a system's state machine asks for a higher clock than synthesis reaches at the shipped parameters, and
    which path limits it. '' if it does not. ``clock_hz``: ``decision.fsm.clock``.
    """
    return _above(name, "fsm.clock", clock_hz, STATE_MACHINE) if executor == "fsm" else ""


def local_clock_note(name: str, clock_hz: float) -> str:
    """The same of ``decision.local_clock``: Local CPs, PDUs and ATUs."""
    return _above(name, "local_clock", clock_hz, ("pdu", "atu"))


def _above(name: str, key: str, clock_hz: float, components: Sequence[str]) -> str:
    found = [each for each in map(read_result, components) if each is not None]
    slowest = min(found, key=lambda each: each.clock_hz, default=None)
    if slowest is None or clock_hz <= slowest.clock_hz:
        return ""
    return (
        f"{name}: decision.{key} is {clock_hz / 1e9:g} GHz; the RTL at its shipped parameters reaches "
        f"{slowest.clock_hz / 1e9:.2f} GHz, by the longest path of its {slowest.block} "
        f"({slowest.delay_ps / 1000:.3f} ns in ASAP7, to the register of {slowest.path_ends})"
    )


def _analytical_um2(result: Synthesised) -> float:
    """Cells by the model of ``archsim hardware area``, in the flip-flops of the library."""
    of = result.parameters
    if result.block == "allocator":
        flops = of["lanes"] * LANE.value + of["dies"] * CANDIDATE.value
    elif result.block in ("select", "sorter"):
        flops = of["comparators"] * (COMPARATOR if result.block == "select" else SORTER).value
    elif result.block == "pdu":
        flops = of["experts"] * (2 * (1 + N5.flop_port.value) + of["shadow"])
    elif result.block == "atu":
        flops = atu_flops(of["entries"], of["ways"])
    else:
        flops = heatmap_flops(of["port_bits"])
    return result.flip_flop_um2 * flops


def _is_stale(result: Synthesised) -> bool:
    spec = find_spec("microarch")
    assert spec is not None and spec.submodule_search_locations
    source = Path(next(iter(spec.submodule_search_locations))) / "rtl" / f"{result.block}.py"
    return digest_of(source) != result.source

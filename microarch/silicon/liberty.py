"""Cell libraries in Liberty format, as far as area, timing and clock energy need them: NLDM tables.

Groups are ``name (arguments) { ... }``, attributes ``name : value;`` or ``name ("...", ...);``. Times are in ps,
capacitances in fF and energies in fJ, as in ASAP7; a library in other units is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from archsim.base.packed_files import decompress
from archsim.base.sums import sum

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
    """From an input pin to an output. ``tables``: delay and slew of rise, then fall; of a setup arc the constraints."""

    source: str
    sense: str  # positive_unate, negative_unate, non_unate
    kind: str  # combinational, rising_edge, setup_rising, ...
    tables: dict[str, Surface]


@dataclass(frozen=True)
class LibertyCell:
    name: str  # in the library
    area_um2: float  # of its node
    pin_ff: dict[str, float]  # of input pins
    arcs: dict[str, tuple[Arc, ...]]  # by output pin, or by the pin of a setup arc
    is_sequential: bool  # a flip-flop or a latch
    clock_pin: str  # '' without a clock
    clock_fj: float  # of a cycle of its clock, data at rest; 0 without a clock
    leakage_nw: float  # mean of its states
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
        content = decompress(data, "xz") if path.suffix == ".xz" else data
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
    """A cycle of the clock while data rests: both supplies, mean of states on a rising clock, middle slew."""
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

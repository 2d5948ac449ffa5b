"""Synthesis of a component to a cell library with Yosys and abc (``pyosys``, no system package), and what it takes.

Adders are Kogge-Stone; registers with an enable get clock gates; flip-flops with a true output are left out, as they
are a quarter larger than flip-flop and inverter. Memories are no part of a component (``microarch.rtl``). Areas are
those of cells: no wires, no clock tree, no utilisation. The access time of memories is part of the longest path.
"""

import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.errors import ArchsimError
from archsim.base.own_code import safe_path
from microarch.rtl import ports_of
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
from microarch.silicon.liberty import Library, access_ps, instances_of, loads_of, longest_path

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
        """What the longest path allows, without wires."""
        return 1e12 / self.delay_ps


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


class Beside(NamedTuple):
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
    def clock_hz(self) -> float:
        """In 5 nm, with wires and clock."""
        return self.synthesised.clock_hz / (WIRES.value * FASTER.value)

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


def side_by_side(dies: int) -> list[Beside]:
    """Every component with a committed result, at its shipped parameters; ``dies``: of the wafer."""
    found = []
    for component, copies, published in (
        ("allocator", 1, None), ("select", 1, None), ("sorter", 1, None), ("pdu", dies, "prediction table"),
        ("atu", dies, "ATU"), ("heatmap", 1, None),
    ):
        result = read_result(component)
        if result is not None:
            row = PUBLISHED[published].area_mm2 * dies / 25 if published else None
            found.append(Beside(component, copies, _analytical_um2(result), result, row, _is_stale(result)))
    return found


def clock_note(name: str, executor: str, clock_hz: float) -> str:
    """That a system's state machine asks for more than synthesis reaches at the shipped parameters, and which path
    limits it; '' if it does not. ``clock_hz``: ``decision.fsm.clock``.
    """
    return _above(name, "fsm.clock", clock_hz, STATE_MACHINE) if executor == "fsm" else ""


def local_clock_note(name: str, clock_hz: float) -> str:
    """The same of ``decision.local_clock``: Local CPs, PDUs and ATUs."""
    return _above(name, "local_clock", clock_hz, ("pdu", "atu"))


def _above(name: str, key: str, clock_hz: float, components: Sequence[str]) -> str:
    rows = [row for row in side_by_side(1) if row.component in components]
    slowest = min(rows, key=lambda row: row.clock_hz, default=None)
    if slowest is None or clock_hz <= slowest.clock_hz:
        return ""
    return (
        f"{name}: decision.{key} is {clock_hz / 1e9:g} GHz; the RTL at its shipped parameters reaches "
        f"{slowest.clock_hz / 1e9:.2f} GHz, by the longest path of its {slowest.component} "
        f"({slowest.synthesised.delay_ps / 1000:.3f} ns in ASAP7, to the register of {slowest.synthesised.path_ends})"
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

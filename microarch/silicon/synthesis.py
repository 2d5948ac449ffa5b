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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base import errors, own_code, sums
from microarch.rtl import ports_of
from microarch.silicon.liberty import Library
from microarch.silicon.technology import Coefficient
from microarch.silicon.timing import access_ps, instances_of, loads_of, longest_path

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
    """A component in cells. Areas are the library's own, of its node."""

    block: str  # name of the component
    parameters: dict[str, Any]  # of the component
    flip_flops: int  # how many
    clock_gates: int  # how many
    gated_flip_flops: int  # flip-flops behind clock gates
    cells: int  # all of them
    area_um2: float  # of all cells
    sequential_um2: float  # of its flip-flops
    flip_flop_um2: float  # the kind of flip-flop of which it has most
    delay_ps: float  # longest path by this project's timing, with the access time of its memories
    cells_ps: float  # the same, memories answering at once
    access_ps: dict[str, float]  # of its memories, from address to data
    logic_ps: float  # of the logic between registers, by this project's timing
    abc_logic_ps: float  # the same by abc's timing
    path_ends: str  # file:line of the register at the end of the longest path
    free_running_fj: float  # a cycle, all clock pins
    gates_fj: float  # a cycle of the clock gates' own clock pins
    change_fj: float  # of a flip-flop's output and what it drives, the mean of all
    leakage_nw: float  # of all cells
    source: str  # SHA-256 of the component's file
    library: dict[str, str]  # file: SHA-256
    versions: dict[str, str]  # package → version

    @property
    def clock_hz(self) -> float:
        """What the longest path allows in 5 nm, with wires and clock tree."""
        return 1e12 / self.delay_ps / (WIRES.value * FASTER.value)


def synthesise(block: str, component: Any, source: Path, library: Library) -> Synthesised:
    """Map a component (Amaranth) to the cells of a library. Raises ModuleNotFoundError without the extra ``rtl``."""
    netlist = map_to_cells(block, component, library)
    module = netlist.module
    kinds = Counter(each["type"] for each in module["cells"].values())
    cells = {name: library.cells[name] for name in kinds}
    registers = {name: n for name, n in kinds.items() if cells[name].is_sequential and name != GATE}
    clocks = {each["connections"][cells[each["type"]].clock_pin][0] for each in module["cells"].values()
              if each["type"] in registers}  # fmt: skip
    (root,) = module["ports"]["clk"]["bits"]
    free = sums.sum(each["type"] in registers and each["connections"][cells[each["type"]].clock_pin][0] == root
               for each in module["cells"].values())  # fmt: skip
    memories = getattr(component, "memories", [])
    timing = longest_path(module, library, memories)
    flip_flops = sums.sum(registers.values())
    return Synthesised(
        block=block,
        parameters=asdict(component.parameters),
        flip_flops=flip_flops,
        clock_gates=len(clocks - {root}),
        gated_flip_flops=flip_flops - free,
        cells=sums.sum(kinds.values()),
        area_um2=round(sums.sum(n * cells[name].area_um2 for name, n in kinds.items()), 4),
        sequential_um2=round(sums.sum(n * cells[name].area_um2 for name, n in registers.items()), 4),
        flip_flop_um2=cells[max(registers, key=lambda name: registers[name])].area_um2,
        delay_ps=round(timing.delay_ps, 2),
        cells_ps=round(timing.cells_ps, 2),
        access_ps={each.name: round(access_ps(each), 2) for each in memories},
        logic_ps=round(timing.logic_ps, 2),
        abc_logic_ps=netlist.abc_logic_ps,
        path_ends=_register_at(module, timing.ends),
        free_running_fj=round(sums.sum(n * cells[name].clock_fj for name, n in registers.items()), 3),
        gates_fj=round(kinds[GATE] * library.cells[GATE].clock_fj if kinds[GATE] else 0.0, 3),
        change_fj=round(_change_fj(module, library), 4),
        leakage_nw=round(sums.sum(n * cells[name].leakage_nw for name, n in kinds.items()), 3),
        source=digest_of(source),
        library=dict(library.files),
        versions={name: version(name) for name in ("amaranth", "pyosys")},
    )


def map_to_cells(block: str, component: Any, library: Library) -> Netlist:
    """A component in the cells of a library. Raises ModuleNotFoundError without the extra ``rtl``."""
    return Netlist(*in_yosys(_map_in_yosys, block, _rtlil(block, component), library.texts))


def verilog_of(block: str, component: Any) -> str:
    """A component as behavioural Verilog, with the values that its registers have at the start."""
    from microarch.rtl.verilog import lint_free

    return lint_free(in_yosys(_verilog, _rtlil(block, component)))


def _rtlil(block: str, component: Any) -> str:
    from amaranth.back import rtlil

    ports = {name: (signal, None) for name, signal in ports_of(component).items()}
    return rtlil.convert(component, ports=ports, name=block)


def in_yosys(made: Callable, *given: Any) -> Any:
    """``made(*given, folder, run)`` in a process of its own, as what Yosys finds depends on the numbers that it has
    given out before; ``run``: a command of Yosys, whose log is in the folder. Raises ArchsimError where it fails.
    """
    with tempfile.TemporaryDirectory() as folder, own_code.safe_path():
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                return fresh.submit(_there, made, given, Path(folder)).result()
        except BrokenProcessPool:
            log = Path(folder) / "log"
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            said = [line for line in lines if "rror" in line] or lines[-1:]
            raise errors.ArchsimError(
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
    from microarch.rtl.verilog import PASSES

    (folder / "in.il").write_text(text, encoding="utf-8")
    for command in (f"read_rtlil {folder / 'in.il'}", *PASSES, f"write_verilog -noattr {folder / 'out.v'}"):
        run(command)
    return (folder / "out.v").read_text(encoding="utf-8")


def _change_fj(module: Mapping[str, Any], library: Library) -> float:
    """Mean energy of a change of a flip-flop's output."""
    instances = instances_of(module, library)
    loads = loads_of(module, instances)
    registers = [each for each in instances if each.cell.changes and each.cell.name != GATE]
    driven = (sums.sum(loads[net] for net in each.outputs.values()) for each in registers)
    changes = [each.cell.change_fj(load, library.volts) for each, load in zip(registers, driven, strict=True)]
    return sums.sum(changes) / len(changes)


def _register_at(module: Mapping[str, Any], pin: str) -> str:
    """The lines of the component that wrote the register of ``pin`` (cell.pin): file:line."""
    cell = module["cells"].get(pin.rpartition(".")[0], {})
    as_json = re.findall(r"(\w+\.py:\d+)", cell.get("attributes", {}).get("src", ""))
    return " ".join(sorted(set(as_json))) or re.sub(r"\$\d+", "", pin)


def digest_of(source: Path) -> str:
    """SHA-256 of a component's file, up to what is claimed of it."""
    text = source.read_text(encoding="utf-8").partition("\nCLAIM = ")[0]
    return hashlib.sha256(text.encode()).hexdigest()


def _map_in_yosys(block: str, text: str, texts: Sequence[tuple[str, str]], folder: Path, run: Callable[[str], None]):
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


def as_json(found: Synthesised) -> str:
    return json.dumps(asdict(found), indent=1, sort_keys=True) + "\n"


def read_result(block: str) -> Synthesised | None:
    """The committed result of a component at its shipped parameters; None if there is none."""
    try:
        return Synthesised(**json.loads((RESULTS / f"{block}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


WIRES = Coefficient(1.25, "of the longest path, with wires and clock", "assumed", (1.15, 1.4))
FASTER = Coefficient(0.87, "delay in 5 nm over 7 nm", "TSMC, 5nm Technology (tsmc.com): 15 % faster at equal power")

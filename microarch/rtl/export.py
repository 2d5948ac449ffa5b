"""A component for a flow of one's own: Verilog, a test bench that checks itself, and the delays of its memories.

The test bench plays back what lockstep drove: in every cycle it sets the inputs and compares all outputs before the
next edge of the clock. The memories behind the ports of a component are in what was recorded. The delays are those of
``microarch.silicon.synthesis``, as constraints (SDC) that OpenSTA and other static timers read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

from microarch.rtl import lockstep, ports_of, verilog
from microarch.silicon import liberty, synthesis
from microarch.silicon.timing import (
    CLOCK_SLEW_PS,
    DATA_SLEW_PS,
    INPUT_SLEW_PS,
    OUTPUT_FF,
    WRITE_SETUP,
    PathTiming,
    access_ps,
    longest_path,
)

SHOWN = 10  # differences that a test bench prints


@dataclass(frozen=True)
class Exported:
    """``files``: text by name. ``cycles`` of the stimulus, of ``events``; ``timing``: of the netlist, None without a
    library.
    """

    files: Mapping[str, str]
    events: int
    cycles: int
    timing: PathTiming | None


class _Recorded(Elaboratable):
    """A component with its ports; ``cycles``: inputs and outputs of every cycle, as two words."""

    def __init__(self, component: Any):
        self.component = component
        self.cycles: list = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.component, name)

    def elaborate(self, platform) -> Any:
        return self.component

    def watch(self, simulator: Simulator) -> None:
        """Record every cycle, as it is at its end."""
        from amaranth.hdl import Cat

        given, said = Cat(*self.component.inputs), Cat(*self.component.outputs)

        async def record(ctx):
            async for _, _, *found in ctx.tick().sample(given, said):
                self.cycles.append(tuple(found))

        simulator.add_process(record)


def export(
    block: str,
    events: int,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    given: Any = None,
    library: liberty.Library | None = None,
) -> Exported:
    """The files of a block at its shipped parameters with ``changes``; its stimulus: the corners of lockstep and
    ``events`` at random, or the recorded ones ``given``.

    With a cell library there is a netlist, too, and the constraints have the arrival of every memory's data in it.
    Raises ValueError for parameters that cannot be built, and where the component differs from its table.
    """
    recorded: list[_Recorded] = []

    def component(parameters):
        recorded.append(_Recorded(lockstep.BENCHES[block][0].component(parameters)))
        return recorded[0]

    found = lockstep.lockstep(block, events, seed, changes, component, given)
    if found.difference:
        raise ValueError(f"{block} differs from its table: {found.difference}")
    shipped = lockstep.BENCHES[block][0].component(found.parameters)
    cycles = recorded[0].cycles
    files = {f"{block}.v": synthesis.verilog_of(block, shipped), f"{block}_tb.v": _bench(block, shipped, len(cycles))}
    files[f"{block}_tb.hex"] = _vectors(shipped, cycles)
    if (wrapper := verilog.with_memories(block, shipped)) is not None:
        files[f"{block}_with_memory.v"] = wrapper
    timing = None
    if library is not None:
        netlist = synthesis.map_to_cells(block, lockstep.BENCHES[block][0].component(found.parameters), library)
        timing = longest_path(netlist.module, library, getattr(shipped, "memories", []))
        files[f"{block}_netlist.v"] = netlist.verilog
    files = {name: verilog.rename_ports(text) for name, text in files.items()}
    files[f"{block}.sdc"] = _constraints(block, shipped, timing)
    return Exported(files, found.events, len(cycles), timing)


def _bits(signals: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(lowest bit, bit above the highest) of every port in a word of them."""
    at, places = 0, {}
    for name, signal in signals.items():
        places[name] = (at, at + len(signal))
        at += len(signal)
    return places


def _ports(component: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs by name."""
    ports, given = ports_of(component), {id(each) for each in component.inputs}
    inputs = {name: each for name, each in ports.items() if id(each) in given}
    return inputs, {name: each for name, each in ports.items() if name not in inputs}


def _vectors(component: Any, cycles: list[tuple[int, int]]) -> str:
    inputs, outputs = (sum(map(len, side.values())) for side in _ports(component))
    digits = -(-(inputs + outputs) // 4)
    return "".join(f"{given << outputs | said:0{digits}x}\n" for given, said in cycles)


def _bench(block: str, component: Any, cycles: int) -> str:
    inputs, outputs = map(_bits, _ports(component))
    n_in, n_out = (max(high for _, high in side.values()) for side in (inputs, outputs))
    ports = [f".{name}(given[{high - 1}:{low}])" for name, (low, high) in inputs.items()]
    ports += [f".{name}(said[{high - 1}:{low}])" for name, (low, high) in outputs.items()]
    connected = ",\n    ".join([".clk(clk)", ".rst(rst)", *ports])
    compared = "\n".join(
        f"        if (said[{bits}] !== expected[{bits}])\n"
        f'          $display("cycle %0d: {name} is %h, recorded was %h", cycle, said[{bits}], expected[{bits}]);'
        for name, (low, high) in outputs.items() for bits in [f"{high - 1}:{low}"]
    )  # fmt: skip
    return f"""// {block}: every cycle as lockstep drove it. In this folder:
//   iverilog -g2012 -o {block}_tb.vvp {block}.v {block}_tb.v && vvp -n {block}_tb.vvp
// The status is 0 if every output of every cycle is as recorded, else 1. {block}_tb.hex has a line for every cycle:
// inputs, then outputs; the first port is in the lowest bits of each.
`timescale 1ps/1ps
module {block}_tb;
  localparam CYCLES = {cycles}, INPUTS = {n_in}, OUTPUTS = {n_out}, HALF_PS = 5000;
  reg [INPUTS+OUTPUTS-1:0] vectors [0:CYCLES-1];
  reg [INPUTS-1:0] given = 0;
  reg [OUTPUTS-1:0] expected;
  wire [OUTPUTS-1:0] said;
  reg clk = 0, rst = 1;
  integer cycle, differences = 0;

  {block} dut (
    {connected}
  );

  initial begin
    $readmemh("{block}_tb.hex", vectors);
    #HALF_PS clk = 1;
    #HALF_PS clk = 0;
    rst = 0;
    for (cycle = 0; cycle < CYCLES; cycle = cycle + 1) begin
      {{given, expected}} = vectors[cycle];
      #HALF_PS;
      if (said !== expected) begin
        differences = differences + 1;
        if (differences <= {SHOWN}) begin
{compared}
        end
      end
      clk = 1;
      #HALF_PS clk = 0;
    end
    if (differences) $fatal(1, "FAIL: %0d of %0d cycles differ", differences, CYCLES);
    $display("PASS: %0d cycles, every output as recorded", CYCLES);
    $finish;
  end
endmodule
"""


def _constraints(block: str, component: Any, timing: PathTiming | None) -> str:
    """SDC in ps and fF, the units of ASAP7's libraries."""
    inputs, outputs = _ports(component)
    memories = getattr(component, "memories", [])
    period = f"{timing.delay_ps:.2f}" if timing else "1000.00"
    said = "the longest path by archsim" if timing else "to be set: no cell library was given"
    lines = [
        f"# {block}: times in ps, capacitances in fF.",
        f"set period {period}  ;# {said}",
        "create_clock -name clk -period $period [get_ports clk]",
        f"set_input_transition {CLOCK_SLEW_PS:g} [get_ports clk]",
    ]
    data = {name: each for each in memories for name in each.data}
    for name, signal in {"rst": None, **inputs}.items():
        port = _port(name, signal)
        if (memory := data.get(name)) is None:
            lines += [f"set_input_delay 0 -clock clk {port}", f"set_input_transition {INPUT_SLEW_PS:g} {port}"]
            continue
        address = timing.arrivals[name] - access_ps(memory) if timing else 0.0
        lines += [
            f"# {name} is what the memory {memory.name} of {memory.bits:,} bits reads: it arrives after its address "
            f"({verilog.rename_ports(', '.join(memory.address))}), whose arrival is "
            + ("that in the netlist, and the access time" if timing else "to be added to the access time"),
            f"set_input_delay [expr {address:.2f} + {access_ps(memory):.2f}] -clock clk {port}",
            f"set_input_transition {DATA_SLEW_PS:g} {port}",
        ]
    written = {name for each in memories for name in each.written}
    for name, signal in outputs.items():
        port = _port(name, signal)
        setup_ps = WRITE_SETUP.value if name in written else 0
        lines += [f"set_output_delay {setup_ps:g} -clock clk {port}", f"set_load {OUTPUT_FF:g} {port}"]
    return "\n".join(lines) + "\n"


def _port(name: str, signal: Any) -> str:
    return f"[get_ports {{{verilog.rename_ports(name)}{'[*]' if signal is not None and len(signal) > 1 else ''}}}]"


def write(exported: Exported, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in exported.files.items():
        (folder / name).write_text(text, encoding="utf-8")

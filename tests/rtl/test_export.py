"""Exported Verilog plays back the recorded stimulus in Icarus Verilog; OpenSTA times the netlist as archsim does."""

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from support.examples import sampled

from archsim.cli.main import main
from microarch.silicon.liberty import find_libraries, read_libraries

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
pytest.importorskip("pyosys", reason="RTL: pip install 'archsim[rtl]'")

from amaranth.hdl import Signal  # noqa: E402

from microarch.rtl import ports_of, verilog  # noqa: E402
from microarch.rtl.export import export, write  # noqa: E402

needs_icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs Icarus Verilog: iverilog not found")
needs_sta = pytest.mark.skipif(shutil.which("sta") is None, reason="needs OpenSTA: sta not found")
needs_cells = pytest.mark.skipif(bool(find_libraries()[1]), reason=find_libraries()[1] or "a library is there")

SMALL = {
    "allocator": {"dies": 5, "lanes": 2}, "pdu": {"experts": 16, "port_bits": 4},
    "select": {"experts": 12, "comparators": 4, "keep": 3}, "sorter": {"experts": 8, "comparators": 4},
    "atu": {"entries": 8, "ways": 4, "experts": 40}, "heatmap": {"experts": 12, "port_bits": 64},
}  # fmt: skip
# Words of C++ that are no words of Verilog: Verilator warns of them (SYMRSVDWORD).
CPP_WORDS = {
    "and", "any", "class", "delete", "free", "friend", "min", "max", "new", "not", "or", "set", "size_t", "xor",
}  # fmt: skip


def simulated(block, folder):
    """The run of a test bench as its first lines tell it."""
    files = ("-o", f"{block}_tb.vvp", f"{block}.v", f"{block}_tb.v")
    subprocess.run(["iverilog", "-g2012", "-Wall", "-Wno-timescale", *files], cwd=folder, check=True)
    return subprocess.run(["vvp", "-n", f"{block}_tb.vvp"], cwd=folder, capture_output=True, text=True)


@needs_icarus
@pytest.mark.parametrize("block", sampled(SMALL, lambda block: block in ("atu", "pdu")))
def test_verilog_does_what_lockstep_recorded(block, tmp_path):
    made = export(block, 20, changes=SMALL[block])
    write(made, tmp_path)
    played = simulated(block, tmp_path)
    assert played.returncode == 0 and f"PASS: {made.cycles} cycles" in played.stdout


@pytest.mark.parametrize("block", sampled(SMALL, lambda block: block in ("atu", "pdu")))
def test_operands_have_equal_widths_and_registers_no_value_in_their_declaration(block, tmp_path):
    """What linters warn of. Where Verilator is found, it says nothing of the component or of its wrapper."""
    files = export(block, 1, changes=SMALL[block]).files
    assert (f"{block}_with_memory.v" in files) == (block not in ("pdu", "allocator"))
    text = files[f"{block}.v"]
    bits, found = verilog.bits_of(text), verilog._BINARY.findall(text)
    assert found and not verilog._VALUE.search(text) and "casez" not in text
    assert all(verilog._width(one, bits) == verilog._width(other, bits) for _, _, one, _, other in found)
    assert all(bits.values()) and not bits.keys() & CPP_WORDS
    if (lint := shutil.which("verilator")) is not None:
        for name, each in files.items():
            (tmp_path / name).write_text(each)
        wanted = [name for name in files if name in (f"{block}.v", f"{block}_with_memory.v")]
        asked = (lint, "--lint-only", "-Wall", "-Wno-DECLFILENAME", "--top-module", wanted[-1][:-2], *wanted)
        assert not subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("given, wanted", [
    ("4'hf < c", "1'h0"),  # never so
    ("4'h7 < c", "4'h7 < c"),
    ("3'h7 < c", "{ 1'h0, 3'h7 } < c"),
    ("a + c", "{ 1'h0, a } + c"),  # its bits are 6 to 4
])  # fmt: skip
def test_what_linters_warn_of_is_written_otherwise(given, wanted):
    declared = "  wire [6:4] a;\n  output b;\n  input [3:0] c;\n"
    text = verilog.lint_free(f"module m(b, c);\n{declared}  assign b = {given};\nendmodule\n")
    assert f"assign b = {wanted};" in text and ("&{ 1'b0, a" in text) == ("a" not in given)


def test_ports_without_a_bit_are_left_out():
    none, two = Signal(0, name="none"), Signal(2, name="two")
    assert ports_of(SimpleNamespace(inputs=[none, two], outputs=[none])) == {"two": two}


@needs_icarus
def test_a_difference_is_told_by_port_and_cycle(tmp_path):
    made = export("pdu", 20, changes=SMALL["pdu"])
    write(made, tmp_path)
    lines = (tmp_path / "pdu_tb.hex").read_text().splitlines()
    lines[7] = f"{int(lines[7], 16) ^ 0b001:0{len(lines[7])}x}"  # the lowest bit is the first output
    (tmp_path / "pdu_tb.hex").write_text("\n".join(lines) + "\n")
    played = simulated("pdu", tmp_path)
    assert played.returncode == 1 and f"FAIL: 1 of {made.cycles} cycles differ" in played.stdout
    assert re.search(r"cycle 7: state is \d, recorded was \d", played.stdout)


@needs_cells
def test_command_writes_netlist_and_arrival_of_memories(tmp_path, capsys):
    changes = [f"{key}={value}" for key, value in SMALL["atu"].items()]
    assert main(["rtl", "export", "atu", "--events", "10", "--out", str(tmp_path), "--set", *changes]) == 0
    out = capsys.readouterr().out
    names = {"atu.v", "atu_tb.v", "atu_tb.hex", "atu.sdc", "atu_netlist.v"}
    assert {each.name for each in tmp_path.iterdir()} >= names and all(name in out for name in names)
    constraints = (tmp_path / "atu.sdc").read_text()
    assert "set_input_delay [expr 0.00 + 218.00] -clock clk [get_ports {stored[*]}]" in constraints
    assert "set_output_delay 21 -clock clk [get_ports {entered[*]}]" in constraints


@needs_sta
@needs_cells
def test_an_external_timer_agrees(tmp_path):
    library = read_libraries(find_libraries()[0])
    made = export("atu", 1, changes=SMALL["atu"], library=library)
    write(made, tmp_path)
    for name, text in library.texts:
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = [*(f"read_liberty {name}" for name, _ in library.texts), "read_verilog atu_netlist.v", "link_design atu"]
    (tmp_path / "sta.tcl").write_text("\n".join([*commands, "read_sdc atu.sdc", "report_worst_slack"]))
    ran = subprocess.run(["sta", "-no_splash", "-exit", "sta.tcl"], cwd=tmp_path, capture_output=True, text=True)
    slack_ps = float(re.search(r"worst slack (?:max )?(-?[\d.]+)", ran.stdout)[1])
    assert made.timing.delay_ps - slack_ps == pytest.approx(made.timing.delay_ps, rel=0.03)


def test_what_cannot_be_exported_is_refused(tmp_path, capsys):
    for changes, said in (("entries=24", "power of two"), ("ways=2,4", "one value of each"), ("way=2", "ways")):
        assert main(["rtl", "export", "atu", "--out", str(tmp_path / "new"), "--set", changes]) == 2
        assert said in capsys.readouterr().err
    assert main(["rtl", "export", "atu", "--out", str(tmp_path / "new"), "--liberty", "none.lib"]) == 2
    assert "none.lib not found" in capsys.readouterr().err and not list((tmp_path / "new").glob("*.v"))

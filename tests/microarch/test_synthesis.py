"""Synthesis to the shared cell library, the timing of its netlists, and what is committed of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from archsim.cli.main import main
from archsim.machine.decision import FsmSpec
from microarch.silicon.liberty import Surface, find_libraries, parse, read_libraries
from microarch.silicon.synthesis import RESULTS, read_result
from microarch.silicon.synthesised_area import NEAR, STATE_MACHINE, side_by_side
from microarch.silicon.timing import longest_path

TABLE = 'index_1 ("1, 3"); index_2 ("2, 4"); values ("10, 20", "30, 40");'
TINY = f"""library (tiny) {{
  time_unit : "1ps";
  capacitive_load_unit (1, ff);
  cell (INV) {{
    area : 0.5
    pin (A) {{ direction : input; capacitance : 1.5; }}
    pin (Y) {{ direction : output; timing () {{ related_pin : "A"; timing_sense : negative_unate;
      cell_rise (t) {{ {TABLE} }} cell_fall (t) {{ {TABLE} }}
      rise_transition (t) {{ {TABLE} }} fall_transition (t) {{ {TABLE} }} }} }}
  }}
}}
"""


def test_a_table_is_bilinear_and_goes_on_beyond_its_ends():
    table = Surface(np.array([1.0, 3.0]), np.array([2.0, 4.0]), np.array([[10.0, 20.0], [30.0, 40.0]]))
    assert [table.at(1, 2), table.at(2, 3), table.at(3, 4), table.at(5, 6)] == [10.0, 25.0, 40.0, 70.0]


def test_a_library_is_read_and_a_chain_of_inverters_is_timed(tmp_path):
    file = tmp_path / "tiny.lib"
    file.write_text(TINY, encoding="utf-8")
    library = read_libraries([file])
    assert library.cells["INV"].area_um2 == 0.5 and library.cells["INV"].pin_ff == {"A": 1.5}
    cell = {"type": "INV", "port_directions": {}}
    module = {
        "ports": {"a": {"direction": "input", "bits": [2]}, "y": {"direction": "output", "bits": [4]}},
        "cells": {"u": cell | {"connections": {"A": [2], "Y": [3]}}, "v": cell | {"connections": {"A": [3], "Y": [4]}}},
    }
    arc = library.cells["INV"].arcs["Y"][0].tables["cell_rise"]
    first = arc.at(10.0, 1.5)  # delay and slew have the same table here
    assert longest_path(module, library).delay_ps == pytest.approx(first + arc.at(first, 1.0))


def test_other_units_are_refused(tmp_path):
    file = tmp_path / "other.lib"
    file.write_text(TINY.replace("1ps", "1ns"), encoding="utf-8")
    with pytest.raises(ValueError, match="expected 1ps and 1 fF"):
        read_libraries([file])
    assert parse(TINY).arguments == ["tiny"]


def test_committed_results_are_of_the_sources_and_their_areas_add_up():
    rows = side_by_side(25)
    stems = {file.stem.partition("_")[0] for file in RESULTS.glob("*.json")}  # allocator_speeds: another size of it
    assert {row.component for row in rows} == stems and len(rows) == 6
    for row in rows:
        found = row.synthesised
        assert not row.stale, f"{row.component}: archsim hardware rtl synth --out {RESULTS}"
        assert found.sequential_um2 == pytest.approx(found.flip_flops * found.flip_flop_um2, rel=1e-3)
        assert (found.gates_fj > 0) == (found.clock_gates > 0)
        assert found.logic_ps == pytest.approx(found.abc_logic_ps, rel=0.05)
        assert 1 / NEAR <= row.ratio <= NEAR


def test_the_model_of_an_allocator_that_sees_speeds_is_that_of_its_synthesis():
    from microarch.silicon.decision_area import SPEED_MULTIPLIER, SPEED_SLOT

    plain, speeds = read_result("allocator"), read_result("allocator_speeds")
    assert speeds.parameters == plain.parameters | {"speeds": True} and speeds.source == plain.source
    more = (speeds.area_um2 - plain.area_um2) / plain.flip_flop_um2
    assert 8 * SPEED_MULTIPLIER.value + 25 * SPEED_SLOT.value == pytest.approx(more, rel=0.02)
    assert speeds.delay_ps < 1.01 * plain.delay_ps


def test_page_shows_analytical_synthesised_and_published(tmp_path, capsys):
    from support.tiny import tiny_file

    assert main(["area", str(tiny_file(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "Not counted are the logic of prediction tables and second registers, the wires" in out
    assert "in RTL" in out and re.search(r"pdu .*0\.0", out) and "flip-flops alone take" in out
    assert "decision.fsm.clock is" not in out and "decision.local_clock is 2 GHz; the RTL" in out


def test_a_clock_above_synthesis_is_told_with_its_path(tmp_path, capsys):
    from support.tiny import tiny_file

    default_hz = FsmSpec().clock_hz
    reached_hz = min(row.synthesised.clock_hz for row in side_by_side(25) if row.component in STATE_MACHINE)
    assert 0.95 * reached_hz < default_hz <= reached_hz
    for command in ("area", "check"):
        assert main([command, str(tiny_file(tmp_path)), "--set", "systems.0.decision.fsm.clock=2 GHz"]) == 0
        said = capsys.readouterr()
        assert re.search(
            r"decision.fsm.clock is 2 GHz; the RTL .* reaches 0.\d+ GHz, by the longest path of its select",
            said.out + said.err,
        )


@pytest.mark.nightly  # of other sources or tools: test_committed_results_are_of_the_sources_and_their_areas_add_up
@pytest.mark.parametrize("block", ["pdu"])
def test_synthesis_gives_the_committed_file_again(block, tmp_path, capfd):
    pytest.importorskip("pyosys", reason="RTL: pip install 'archsim[rtl]'")
    pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
    if (lacking := find_libraries()[1]) != "":
        pytest.skip(lacking)
    assert main(["rtl", "synth", block, "--out", str(tmp_path)]) == 0
    assert "sequential" in capfd.readouterr().out
    again, kept = (json.loads((folder / f"{block}.json").read_text()) for folder in (tmp_path, RESULTS))
    assert read_result(block) is not None and Path(RESULTS).is_dir()
    if again["versions"] == kept["versions"]:
        assert again == kept


def test_synthesis_without_its_tool_says_what_to_install(monkeypatch, capsys):
    pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
    monkeypatch.setattr("microarch.rtl.find_spec", lambda package: package == "amaranth" or None)
    for command in (["synth", "pdu"], ["formal", "pdu"]):
        assert main(["rtl", *command]) != 0
        assert "RTL: pip install 'archsim[rtl]'" in capsys.readouterr().err


def test_a_missing_library_is_named(tmp_path, capsys):
    pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
    assert main(["rtl", "synth", "pdu", "--liberty", str(tmp_path / "none.lib")]) == 2
    assert "none.lib not found" in capsys.readouterr().err

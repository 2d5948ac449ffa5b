"""A command that works in silence says what it does, for how long, and how much of it is done."""

import argparse
import io
import sys

import pytest
from support.tiny import tiny_file
from support.waiting import wait_for

from archsim.base.code_digest import MachineCode
from archsim.cli import run
from archsim.cli.list import add_list, run_list
from archsim.cli.progress import LONG_S, LONG_SILENT_S, Beside, Heard, Lines, doing, heartbeat

SILENT_S = 2.5


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    monkeypatch.setattr("archsim.cli.progress.SILENT_S", SILENT_S)
    nothing = MachineCode(0, 0.0, False)  # others may compile
    monkeypatch.setattr("archsim.cli.progress.machine_code", lambda *expected: nothing)


def heard():
    """(a stream, what was written to it, its clock)"""
    now, stream = [0.0], io.StringIO()
    return Heard(stream, lambda: now[0]), stream, now


def test_silence_ends_with_the_last_line_and_its_time():
    stream, written, now = heard()
    print("loading the simulator ...", file=stream)
    now[0] = SILENT_S - 0.1
    stream.beat()
    assert written.getvalue() == "loading the simulator ...\n"
    for now[0] in (SILENT_S, 2 * SILENT_S - 0.1, 2 * SILENT_S):
        stream.beat()
    told = [f"  loading the simulator, {seconds} s so far" for seconds in (2, 5)]
    assert written.getvalue().splitlines()[1:] == told


def test_in_a_pipe_lines_are_rarer_the_longer_the_same_goes_on():
    """The first within three seconds; a minute of the same takes about ten lines, and ten minutes about thirty."""
    stream, written, now = heard()
    print("laws of an iteration ...", file=stream)
    counts = {}
    for tenths in range(6001):
        now[0] = tenths / 10
        stream.beat()
        counts[tenths] = len(written.getvalue().splitlines()) - 1
    assert counts[30] == 1 and counts[600] <= 12 and counts[6000] <= 32


def test_after_ten_minutes_lines_are_rarer():
    stream, written, now = heard()
    print("running ...", file=stream)
    now[0] = LONG_S
    stream.beat()
    now[0] += LONG_SILENT_S - 0.1
    stream.beat()
    assert len(written.getvalue().splitlines()) == 2


def test_runs_say_how_many_are_done_and_what_is_left():
    stream, written, now = heard()
    with Lines(stream, lambda: now[0]) as lines:
        lines.begin(20)
        now[0] = 4.0
        stream.beat()
        lines.at("laws of an iteration", 0.0)
        now[0] = 8.0
        stream.beat()
        lines.phase("writing the page")
        now[0] = 12.0
        stream.beat()
    first, part, _, last = written.getvalue().splitlines()
    assert first == "  running [0/20] 0 %, 4 s so far" and part == "  laws of an iteration [0/20] 0 %, 8 s so far"
    assert last == "  writing the page, 4 s so far"


def test_a_part_of_a_run_is_told_in_words_once_some_of_it_is_done():
    written, now = io.StringIO(), [0.0]
    with Lines(written, lambda: now[0]) as lines:
        for now[0], share in ((0.0, 0.0), (1.0, 0.04), (10.0, 0.25)):
            lines.at("ep, 4 requests/s: serving", share)
    assert written.getvalue() == "  ep, 4 requests/s: serving, 25 % after 10 s, about 30 s left\n"


def test_stderr_is_as_before_when_the_command_ends(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("archsim.cli.progress.SILENT_S", 0.05)
    monkeypatch.setattr("archsim.cli.progress._LOOK_S", 0.01)
    with heartbeat("archsim sweep"):
        print("working on it ...", file=sys.stderr)
        wait_for(lambda: "working on it, " in stream.getvalue(), seconds=10)
    assert sys.stderr is stream and "  working on it, 0 s so far\n" in stream.getvalue()


def test_in_a_terminal_one_line_is_written_over_and_erased(monkeypatch):
    """What it leaves on the screen is what the command said."""
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(stream, "isatty", lambda: True)
    heard = Heard(stream, lambda: now[0])
    print("searching ...", file=heard)
    for now[0] in (SILENT_S, 2 * SILENT_S):
        heard.beat()
    assert stream.getvalue().count("\n") == 1 and "searching, 5 s so far" in stream.getvalue()
    print("found 3", file=Beside(stream, heard))
    shown = [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]
    assert shown == ["searching ...", "found 3", ""]


def test_what_goes_on_is_told_in_place_of_the_last_line(monkeypatch):
    heard_, written, now = heard()
    monkeypatch.setattr(sys, "stderr", heard_)
    print("searching ...", file=heard_)
    doing("serving with sizes 2 of 7")
    now[0] = SILENT_S
    heard_.beat()
    assert written.getvalue().splitlines() == ["searching ...", "  serving with sizes 2 of 7"]


def test_a_run_names_its_phase_with_an_estimate(monkeypatch, tmp_path):
    heard_, written, now = heard()

    def simulated(*given, **names):
        now[0] = SILENT_S
        heard_.beat()
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", heard_)
    monkeypatch.setattr("archsim.run", simulated)
    parser = argparse.ArgumentParser()
    run.add_run(parser)
    with pytest.raises(KeyboardInterrupt):
        run.run_run(parser.parse_args([str(tiny_file(tmp_path))]))
    said = written.getvalue().splitlines()[-1]
    assert said.startswith("  simulating about ") and " on 1 core when compiled" in said
    assert said.endswith(", 2 s so far")


def test_a_list_names_its_phase(monkeypatch):
    heard_, written, now = heard()

    def listed(what):
        now[0] = SILENT_S
        heard_.beat()
        return what

    monkeypatch.setattr(sys, "stderr", heard_)
    monkeypatch.setattr("archsim.specs.describe.listing", listed)
    parser = argparse.ArgumentParser()
    add_list(parser)
    run_list(parser.parse_args(["models"]))
    assert written.getvalue() == "  reading the models that there are, 2 s so far\n"

"""What a long command says: few lines where there is no terminal, and in silence what it does and how much is done."""

import argparse
import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.tiny import tiny_file
from support.waiting import wait_for

from archsim.base import verbs
from archsim.base.code_digest import MachineCode
from archsim.base.errors import spoken
from archsim.cli import arguments, run
from archsim.cli.heartbeat import EVERY_S, LONG_S, LONG_SILENT_S, ErasingStream, Heard, begins, heartbeat
from archsim.cli.list import add_list, run_list
from archsim.cli.progress import FEW, Bar, Lines

RUN = SimpleNamespace(name="one", summary=lambda row: f"decode {row['decode_ns'] / 1e6:.3f} ms")
RECORD = {"row": {"decode_ns": 1e6}, "host": {"wall_s": 0.5}}


def said(runs, seconds_a_run, kept=0, phases=()):
    """The lines in a pipe on so many runs, which take equally long."""
    stream, now = io.StringIO(), [0.0]
    heard = Heard(stream, lambda: now[0])
    lines = Lines(heard, lambda: now[0])
    for phase in phases:
        lines.phase(phase)
    lines.begin(runs)
    lines.kept(kept)
    for _ in range(runs - kept):
        now[0] += seconds_a_run
        lines.on_finished(RUN, RECORD)
        heard.beat()
    return stream.getvalue().splitlines()


def test_few_runs_get_a_line_each():
    lines = said(FEW, 1.0)
    assert len(lines) == FEW and lines[0] == f"[1/{FEW}] one: decode 1.000 ms, simulated in 0.5 s"


@pytest.mark.parametrize("runs", [11, 60, 200, 10_000])
@pytest.mark.parametrize("seconds", [1.0, 40.0, 600.0])
def test_more_runs_get_a_line_for_each_tenth_and_every_ten_seconds(runs, seconds):
    """Whatever their number and their time: so many lines, and no more."""
    lines = said(runs, seconds / runs)
    tenths = [line for line in lines if not line.startswith("  ")]
    assert len(tenths) == 10 and len(lines) <= 11 + seconds / EVERY_S
    assert tenths[-1].startswith(f"running [{runs:,}/{runs:,}] 100 %, ")
    assert seconds < 40 or lines[0].startswith("  running [")  # the first is not as late as the first tenth


def test_a_line_on_the_state_has_an_estimate():
    lines = said(10_000, 0.125)
    assert "running [1,000/10,000] 10 %, 2 min so far, about 19 min left" in lines
    assert lines[-1] == "running [10,000/10,000] 100 %, 21 min so far"


def test_runs_kept_from_before_do_not_make_the_estimate_short_and_one_run_is_not_enough():
    lines = said(1000, 10.0, kept=900)
    assert lines[0] == "900 of 1000 runs kept from before"
    assert lines[1] == "  running [901/1,000] 90 %, 10 s so far"
    estimated = next(line for line in lines if "left" in line)
    assert estimated == "  running [905/1,000] 90 %, 50 s so far, about 16 min left"


@pytest.mark.parametrize(("phases", "named"), [
    (["screening 10,000 points; then 40 on and near the front are run whole"], "screening 10,000 points"),
    (["2 of 2: points on and near the front"], "2 of 2: points on and near the front"),
    (["loading the simulator, compiling what is new"], "running"),
])  # fmt: skip
def test_a_line_names_its_phase(phases, named):
    assert said(10_000, 0.125, phases=phases)[-1] == f"{named} [10,000/10,000] 100 %, 21 min so far"


def test_times_are_spoken_in_their_unit():
    assert [spoken(seconds) for seconds in (3, 99, 300, 5400, 36000)] == ["3 s", "99 s", "5 min", "90 min", "10.0 h"]


def test_a_bar_says_what_was_kept_and_what_is_compiled(monkeypatch):
    compiled = iter([3, 3, *[8] * 1000])
    monkeypatch.setattr("archsim.cli.progress.machine_code", lambda *given: MachineCode(next(compiled), 0.0, False))
    stream = io.StringIO()
    with Bar(Console(file=stream, force_terminal=True, width=120)) as bar:
        bar.begin(3)
        bar.kept(2)
    assert "2 runs kept from before" in stream.getvalue() and "5 functions compiled" in stream.getvalue()


def test_a_bar_estimates_by_the_runs_that_were_not_kept(monkeypatch):
    """As the lines do, and not before there are enough: the first ones compile for all."""
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr("archsim.cli.progress.machine_code", lambda *given: MachineCode(0, 0.0, False))
    with Bar(Console(file=stream, force_terminal=True, width=150, get_time=lambda: now[0])) as bar:
        bar.begin(100)
        bar.kept(50)
        shown = []
        for _ in range(5):
            now[0] += 6.0
            bar.on_finished(RUN, RECORD)
            stream.truncate(0)
            bar._progress.refresh()
            shown.append(" left" in stream.getvalue())
        assert shown == [False] * 4 + [True]
        assert "about 4 min left" in stream.getvalue()  # 45 runs of 6 s


# ---- A command that works in silence.

SILENT_S = 2.5


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    monkeypatch.setattr("archsim.cli.heartbeat.SILENT_S", SILENT_S)
    nothing = MachineCode(0, 0.0, False)  # others may compile
    for module in ("cli.heartbeat", "base.code_digest"):
        monkeypatch.setattr(f"archsim.{module}.machine_code", lambda *expected: nothing)


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
    for now[0] in (SILENT_S, SILENT_S + EVERY_S - 0.1, SILENT_S + EVERY_S):
        stream.beat()
    told = [f"  loading the simulator, {seconds} s so far" for seconds in (2, 12)]
    assert written.getvalue().splitlines()[1:] == told


def test_in_a_pipe_lines_are_rarer_the_longer_the_same_goes_on():
    """The first within three seconds; a minute of the same takes six lines, and ten minutes about thirty."""
    stream, written, now = heard()
    print("laws of an iteration ...", file=stream)
    counts = {}
    for tenths in range(6001):
        now[0] = tenths / 10
        stream.beat()
        counts[tenths] = len(written.getvalue().splitlines()) - 1
    assert counts[30] == 1 and counts[600] <= 7 and counts[6000] <= 32


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
        now[0] = 14.0
        stream.beat()
        lines.phase("writing the page")
        now[0] = 18.0
        stream.beat()
    first, part, _, last = written.getvalue().splitlines()
    assert first == "  running [0/20] 0 %, 4 s so far" and part == "  laws of an iteration [0/20] 0 %, 14 s so far"
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
    monkeypatch.setattr("archsim.cli.heartbeat.SILENT_S", 0.05)
    monkeypatch.setattr("archsim.cli.heartbeat._LOOK_S", 0.01)
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
    print("found 3", file=ErasingStream(stream, heard))
    shown = [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]
    assert shown == ["searching ...", "found 3", ""]


@pytest.mark.parametrize("counted", ["wafer: {} of 39 ways", "{} of 39 ways", "serving with sizes"])
def test_what_goes_on_is_told_in_place_of_the_last_line(monkeypatch, counted):
    heard_, written, now = heard()
    monkeypatch.setattr(sys, "stderr", heard_)
    print("searching ...", file=heard_)
    begins(counted.format(2))
    now[0] = SILENT_S
    heard_.beat()
    begins(counted.format(3))
    now[0] += SILENT_S + 1
    heard_.beat()  # the same goes on
    assert written.getvalue().splitlines() == ["searching ...", f"  {counted.format(2)}, 2 s so far"]


def test_a_line_of_progress_is_not_said_again_at_once():
    stream, written, now = heard()
    print("  34 runs, 38 % after 21 s, about 35 s left", file=stream)
    now[0] = EVERY_S - 0.1
    stream.beat()
    assert written.getvalue().count("\n") == 1


def test_a_run_names_its_phase_with_an_estimate(monkeypatch, tmp_path):
    heard_, written, now = heard()

    def simulated(*given, **names):
        now[0] = SILENT_S
        heard_.beat()
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", heard_)
    monkeypatch.setattr("archsim.run", simulated)
    parser = argparse.ArgumentParser()
    arguments.add_options(parser, verbs.RUN)
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


def test_progress_has_a_phase_and_an_estimate(capsys):
    now = [0.0]
    lines = Lines(sys.stderr, lambda: now[0])
    for at in range(8):
        now[0] = 6.0 * at
        lines.at("ep: serving", at / 10)
    said = capsys.readouterr().err
    assert "ep: serving" in said and "left" in said and len(said.splitlines()) >= 3

"""What a long command says where there is no terminal: few lines, the first with an estimate."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from archsim.base.code_digest import MachineCode
from archsim.base.errors import spoken
from archsim.cli.progress import FEW, FIRST_S, INTERVAL_S, Bar, Lines

RUN = SimpleNamespace(name="one", summary=lambda row: f"decode {row['decode_ns'] / 1e6:.3f} ms")
RECORD = {"row": {"decode_ns": 1e6}, "host": {"wall_s": 0.5}}


def said(runs, seconds_a_run, kept=0, phases=()):
    """The lines on so many runs, which take equally long."""
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, lambda: now[0])
    for phase in phases:
        lines.phase(phase)
    lines.begin(runs)
    lines.kept(kept)
    for _ in range(runs - kept):
        now[0] += seconds_a_run
        lines.finished(RUN, RECORD)
    return stream.getvalue().splitlines()


def test_few_runs_get_a_line_each():
    lines = said(FEW, 1.0)
    assert len(lines) == FEW and lines[0] == f"[1/{FEW}] one: decode 1.000 ms, simulated in 0.5 s"


def test_many_runs_get_a_line_at_intervals_and_the_first_is_an_estimate():
    lines = said(10_000, 0.125)
    assert len(lines) == pytest.approx(1250 / INTERVAL_S, abs=2)
    assert lines[0] == f"running [40/10,000] 0 %, {FIRST_S:.0f} s so far, about 21 min left"
    assert lines[-1] == "running [10,000/10,000] 100 %, 21 min so far"


def test_runs_kept_from_before_do_not_make_the_estimate_short_and_one_run_is_not_enough():
    lines = said(1000, 10.0, kept=900)
    assert lines[0] == "900 of 1000 runs kept from before"
    assert lines[1] == "running [901/1,000] 90 %, 10 s so far"
    assert next(line for line in lines if "left" in line) == "running [905/1,000] 90 %, 50 s so far, about 16 min left"


@pytest.mark.parametrize(("phases", "named"), [
    (["screening 10,000 points; then 40 on and near the front are run whole"], "screening 10,000 points"),
    (["2 of 2: points on and near the front"], "2 of 2: points on and near the front"),
    (["loading the simulator, compiling what is new"], "running"),
])
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
            bar.finished(RUN, RECORD)
            stream.truncate(0)
            bar._progress.refresh()
            shown.append(" left" in stream.getvalue())
        assert shown == [False] * 4 + [True]
        assert "about 4 min left" in stream.getvalue()  # 45 runs of 6 s

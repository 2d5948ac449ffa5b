"""Timelines of a step: loadable, complete, and without slices of a thread that overlap."""

import importlib.util
import json
import re
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.html_page import Page

from archsim.base.errors import ArchsimError
from archsim.show.plots import Bars, Colours, PlotAxis
from archsim.show.printed_figures import FORMATS, draw, names_of, write_figure
from archsim.show.timeline import write_timeline
from microarch.blocks.catalogue import SERVED_BY
from microarch.blocks.request import State
from microarch.fabric.grid import build_mesh

ROWS = [
    # state, die, src, dst, expert, slice, tokens, start, end
    (State.LOOKUP, 0, -1, -1, 17, 2, 40, 1000.0, 1110.0),
    (State.REQUEST, -1, 0, 8, 17, 2, 40, 1110.0, 1911.0),
    (State.REMOTE_HBM, 8, -1, -1, 17, 2, 40, 1911.0, 6000.25),
    (State.REMOTE_HBM, 8, -1, -1, 18, 0, 3, 2000.0, 6500.0),
    (State.DATA, -1, 8, 0, 17, 2, 40, 6000.25, 9000.5),
    (State.COMPUTE, 0, -1, -1, 17, 2, 40, 9000.5, 9100.0),
    (State.COMPUTE, 0, -1, -1, 18, 2, 3, 9100.0, 9100.0),
    (State.ACT_MOVE, -1, 3, 4, -1, -1, -1, 9100.0, 9400.0),
]


def log_of(rows, **more) -> dict[str, np.ndarray]:
    names = ("kind", "die", "src", "dst", "expert", "slice", "tokens", "start_ns", "end_ns")
    log = {
        name: np.array([row[i] for row in rows], float if name.endswith("_ns") else int) for i, name in enumerate(names)
    }
    return log | {"unit": np.array([SERVED_BY[row[0]] for row in rows], int)} | more


def load(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def slices(timeline) -> dict[tuple[str, str], list[dict]]:
    """(process, thread) → its slices, in order of start."""
    named = defaultdict(dict)
    for event in timeline["traceEvents"]:
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
            named[event["name"]][event["pid"], event["tid"]] = event["args"]["name"]
    found = defaultdict(list)
    for event in timeline["traceEvents"]:
        if event["ph"] == "X":
            process = named["process_name"][event["pid"], 0]
            found[process, named["thread_name"][event["pid"], event["tid"]]].append(event)
    return {track: sorted(events, key=lambda event: event["ts"]) for track, events in found.items()}


def test_processes_threads_names_and_times(tmp_path):
    bytes_moved = np.arange(len(ROWS)) * 16
    timeline = load(write_timeline(log_of(ROWS, bytes=bytes_moved), tmp_path / "step.json", "a step"))
    tracks = slices(timeline)
    fabric = "fabric, at most 16 busiest links"
    assert set(tracks) == {
        ("die 0", "LLC port"), ("die 8", "HBM"), ("die 0", "compute"), ("die 0", "links out"), ("die 8", "links out"),
        ("die 3", "links out"), (fabric, "route 0 → 8"), (fabric, "route 8 → 0"), (fabric, "route 3 → 4"),
    }  # fmt: skip
    (data,) = tracks["die 8", "links out"]
    assert data["name"] == "expert 17 slice 2: DATA" and tracks[fabric, "route 8 → 0"][0]["args"] == data["args"]
    assert data["args"] == {"tokens": 40, "bytes": 64, "from die": 8, "to die": 0}
    assert (data["ts"], data["dur"]) == (5.0, 3.0)  # from 6000.25 to 9000.5 ns of a step that began at 1000, in µs
    (move,) = tracks["die 3", "links out"]
    assert move["name"] == "hidden vectors: ACT_MOVE"
    assert move["args"] == {"bytes": 112, "from die": 3, "to die": 4}  # tokens are not known
    assert (timeline["displayTimeUnit"], timeline["otherData"]["title"]) == ("ns", "a step")


def test_what_overlaps_is_one_slice_with_counters(tmp_path):
    bytes_moved = np.arange(len(ROWS)) * 16
    timeline = load(write_timeline(log_of(ROWS, bytes=bytes_moved), tmp_path / "step.json", "a step"))
    (both,) = slices(timeline)["die 8", "HBM"]
    assert both["name"] == "2 requests: REMOTE_HBM" and (both["ts"], both["dur"]) == (0.911, 4.589)
    assert both["args"] == {"requests": 2, "bytes": 80, "REMOTE_HBM": 2, "experts": "17, 18"}
    counters = [event for event in timeline["traceEvents"] if event["ph"] == "C" and event["pid"] == 3 + 8]
    flight = [event["args"]["requests"] for event in counters if event["name"] == "HBM: in flight"]
    assert max(flight) == 2 and flight[-1] == 0
    assert any(event["name"] == "HBM: rate" and event["args"]["GB/s"] > 0 for event in counters)


def test_the_critical_path_is_a_lane_with_arrows(tmp_path):
    critical = np.array([0, 1, 2, -1, 3, 4, -1, -1])
    timeline = load(write_timeline(log_of(ROWS, critical=critical), tmp_path / "step.json", "a step"))
    path = slices(timeline)["critical path", "what the end of the step waited for"]
    assert [event["name"].partition(": ")[2] for event in path] == [
        "LOOKUP, die 0 LLC port", "REQUEST, die 0 links out", "REMOTE_HBM, die 8 HBM", "DATA, die 8 links out",
        "COMPUTE, die 0 compute",
    ]  # fmt: skip
    flows = {kind: [event for event in timeline["traceEvents"] if event["ph"] == kind] for kind in "sf"}
    assert [event["id"] for event in flows["s"]] == [event["id"] for event in flows["f"]] == [1, 2, 3, 4, 5]
    assert {event["pid"] for event in flows["s"]} == {1} and {event["pid"] for event in flows["f"]} == {3, 11}


def test_only_the_busiest_links_of_a_route_have_lanes(tmp_path):
    mesh = build_mesh(3, 3)
    tracks = slices(load(write_timeline(log_of(ROWS), tmp_path / "step.json", "a step", mesh)))
    data = {
        thread
        for (process, thread), events in tracks.items()
        if process.startswith("fabric") and events[0]["cat"] == "DATA"
    }
    assert data == {"link 8 → 7", "link 7 → 6", "link 6 → 3", "link 3 → 0"}


def test_links_are_ranked_by_bytes_where_any_are_known(tmp_path):
    """A long transfer without bytes is not as busy as its nanoseconds."""
    pairs = [(src, dst) for src in range(5) for dst in range(4)][:17]
    rows = [(State.DATA, -1, *pair, 1, 0, 2, 0.0, 1000.0) for pair in pairs]
    known = np.array([-1] + [16] * 16)
    tracks = slices(load(write_timeline(log_of(rows, bytes=known), tmp_path / "a.json", "")))
    assert "route 0 → 0" not in {thread for _, thread in tracks} and "route 4 → 0" in {thread for _, thread in tracks}


@pytest.mark.parametrize("mesh", [None, build_mesh(4, 2)])
def test_nothing_is_lost_and_nothing_overlaps(tmp_path, mesh):
    random = np.random.default_rng(1)
    states = [State.LOOKUP, State.LOCAL_HBM, State.DATA, State.COMPUTE]
    rows = []
    for _ in range(400):
        state, start = states[random.integers(4)], random.random() * 5000
        src = int(random.integers(8))
        src, die = (src, -1) if state == State.DATA else (-1, src)
        dst = (src + int(random.integers(1, 8))) % 8 if state == State.DATA else -1
        rows.append((state, die, src, dst, 1, 0, 2, start, start + random.random() * 300))
    tracks = slices(load(write_timeline(log_of(rows), tmp_path / "step.json", "random", mesh)))
    for events in tracks.values():
        assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
        ends = [(round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))) for event in events]
        assert all(before[1] <= after[0] for before, after in pairwise(ends))
    dies = {track: events for track, events in tracks.items() if track[0].startswith("die")}
    assert len(dies) == 4 * 8 and len(tracks) - len(dies) <= 16
    requests = [event["args"].get("requests", 1) for events in dies.values() for event in events]
    assert sum(requests) == len(rows)


def test_one_thread_is_enough_where_one_thing_happens_at_a_time(tmp_path):
    rows = [(State.COMPUTE, 0, -1, -1, i, 0, 1, 10.5 * i, 10.5 * (i + 1)) for i in range(50)]
    tracks = slices(load(write_timeline(log_of(rows), tmp_path / "step.json", "busy")))
    assert list(tracks) == [("die 0", "compute")]
    assert len(tracks["die 0", "compute"]) == 50


def test_a_step_in_which_nothing_happens(tmp_path):
    assert load(write_timeline(log_of([]), tmp_path / "step.json", "idle"))["traceEvents"] == []


@pytest.mark.parametrize(("log", "message"), [
    ({key: column for key, column in log_of(ROWS).items() if key != "die"}, "no column 'die'"),
    (log_of(ROWS) | {"die": np.zeros(3, int)}, "differ in length"),
    (log_of([(*ROWS[0][:-1], 5.0)]), "row 0 of the step's log ends before it starts"),
])  # fmt: skip
def test_a_log_that_is_none_is_refused(tmp_path, log, message):
    with pytest.raises(ValueError, match=message):
        write_timeline(log, tmp_path / "step.json", "bad")
    assert not (tmp_path / "step.json").exists()


# ---- Figures for print: those that a report has, by name, in every format; others are refused with the list.


def _bars(runs: int = 2) -> Bars:
    rows = [{"name": each, "value": 1.5 + at, "kind": each} for at, each in enumerate(("ep", "mine")[:runs])]
    colours = Colours("kind", {"ep": "--p1", "mine": "--p5"})
    return Bars(
        name="gain", question="How much faster is <mine>?", rows=rows, x=PlotAxis("value", "gain, ×"), y="name",
        colours=colours,
    )  # fmt: skip


def _page(folder: Path, *figures: Bars) -> Path:
    (folder / "index.html").write_text("".join(each.html() for each in figures), encoding="utf-8")
    return folder


def test_a_report_has_the_figures_of_its_pages(tmp_path):
    """By name; two of the same name that differ are told apart, and the same figure on two pages is one."""
    more = replace(_bars(1), name="")
    (tmp_path / "other.html").write_text(_bars().html() + more.html(), encoding="utf-8")
    assert names_of(_page(tmp_path, _bars(), _bars(1))) == {
        "gain": "How much faster is <mine>?", "gain-2": "How much faster is <mine>?",
        "how-much-faster-is-mine": "How much faster is <mine>?",
    }  # fmt: skip


def test_the_table_of_a_figure_has_each_row_once_with_digits_that_are_read():
    rows = [{"name": "ep", "value": 84.14581613067107, "kind": "ep"}] * 2 + [{"name": "mine", "kind": "mine"}]
    page = Page(replace(_bars(), rows=rows, tips=(("name", "policy"), ("value", "gain"))).html())
    assert page.rows == [["policy", "gain"], ["ep", "84.15"], ["mine", ""]]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_figure_is_written_in_its_format_the_same_each_time(tmp_path, format_):
    """What the page shows and what a notebook has: the same bytes."""
    pytest.importorskip("vl_convert", reason="figures for print need vl-convert-python: pip install 'archsim[figures]'")
    files = [tmp_path / f"{n}.{format_}" for n in range(2)]
    write_figure(_page(tmp_path, _bars()), "gain", files[0])
    _bars().save(files[1])
    begins = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<svg"}[format_]
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(begins)


@pytest.mark.parametrize(("columns", "width_pt"), [(1, 252), (2, 516)])
def test_a_figure_for_print_is_as_wide_as_the_columns_of_a_paper(tmp_path, columns, width_pt):
    """With text of the size that is asked for, and nothing outside."""
    pytest.importorskip("vl_convert", reason="figures for print need vl-convert-python: pip install 'archsim[figures]'")
    text = write_figure(_page(tmp_path, _bars()), "gain", tmp_path / "a.svg", columns, 6).read_text(encoding="utf-8")
    assert float(re.search(r'width="([\d.]+)pt"', text)[1]) == width_pt
    wide_px = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
    assert "11px" in text and 11 * width_pt / wide_px == pytest.approx(6, rel=0.01)


def test_a_long_title_stands_once_in_lines_beside_whiskers(tmp_path):
    """A title of bars in lines and another of their whiskers were joined, twice as wide as the figure."""
    pytest.importorskip("vl_convert", reason="figures for print need vl-convert-python: pip install 'archsim[figures]'")
    title = "gain over the policy that was the fastest of those that are no function of yours, ×"
    bars = replace(_bars(), x=PlotAxis("value", title), low="value", high="value")
    text = draw(bars.vega(), tmp_path / "a.svg", 1).read_text(encoding="utf-8")
    titles = re.findall(r"<text[^>]*>(?:(?!</text>).)*gain over(?:(?!</text>).)*", text)
    assert len(titles) == 1 and titles[0].count("gain over") == 1 and "tspan" in titles[0]


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [("gian", "a.pdf", "did you mean 'gain'.*\n  gain "), ("gain", "a.xls", "written as pdf, png, svg")],
)
def test_an_unknown_figure_or_format_is_refused_with_those_there_are(tmp_path, name, file, said):
    with pytest.raises(ArchsimError, match=said):
        write_figure(_page(tmp_path, _bars()), name, tmp_path / file)


def test_without_its_library_a_figure_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ArchsimError, match=r"archsim\[figures\]"):
        draw(_bars().vega(), tmp_path / "a.pdf")


def test_a_figure_for_print_reads_nothing_beside_it(tmp_path):
    pytest.importorskip("vl_convert", reason="figures for print need vl-convert-python: pip install 'archsim[figures]'")
    secret = tmp_path / "secret.csv"
    secret.write_text("name,value\nleaked,3\n", encoding="utf-8")
    spec = _bars().vega()
    (spec.get("spec", spec))["layer"][0]["data"] = {"url": secret.as_uri()}
    assert "leaked" not in draw(spec, tmp_path / "a.svg").read_text(encoding="utf-8")


# ---- The page on speed is what `benchmarks/speed.py` makes of its table.

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "speed.py"


@pytest.fixture(scope="module")
def speed():
    spec = importlib.util.spec_from_file_location("benchmark_speed", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_table(speed):
    machine, table = speed.kept()
    assert speed.PAGE.read_text() == speed.page(table, machine)
    assert {speed.kind_of(point) for point in table} == {*speed.SIZES, *speed.RATIOS, "commands"}
    assert all(point.value > 0 for point in table if point.axis in speed.SIZES)


def test_exponents_are_those_of_the_points(speed):
    sizes = [4, 16, 64]
    assert speed.fitted(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx((3, 1.5))
    rows = [speed.Point("layers", "an engine", size, 3 * size**1.5) for size in sizes]
    page = speed.page([*rows, speed.Point("ratio", "one over another", 0, 7.0)], "a machine")
    assert "| an engine | 24 | 192 | 1,536 | layers^1.50 |" in page and "| one over another | 7 |" in page


def test_figures_are_given_in_reference_kernels_that_were_timed_beside_them(speed, monkeypatch):
    times = iter([0.02, 0.04, 0.06])
    monkeypatch.setattr(speed, "reference_s", lambda: next(times))
    points = speed.Point("layers", "an engine", 4, 0.6), speed.Point("ratio", "steps/s of an engine", 0, 100.0)
    slow, fast = speed.referenced(iter(points))
    assert slow.in_references == pytest.approx(20) and fast.in_references == pytest.approx(5)
    assert (speed.both(slow), speed.both(fast)) == ("0.6 (20 ref)", "100 (5 ref)")
    assert speed.Point("ratio", "one over another", 0, 7.0, 0.03).in_references is None

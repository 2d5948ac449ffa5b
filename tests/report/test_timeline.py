"""Timelines of a step: loadable, complete, and without slices of a thread that overlap."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from archsim.report.timeline import write_timeline
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
    assert set(tracks) == {
        ("die 0", "LLC port"), ("die 8", "HBM"), ("die 8", "HBM · 2"), ("die 0", "compute"),
        ("fabric links", "route 0 → 8"), ("fabric links", "route 8 → 0"), ("fabric links", "route 3 → 4"),
    }  # fmt: skip
    (data,) = tracks["fabric links", "route 8 → 0"]
    assert data["name"] == "expert 17 slice 2: DATA"
    assert data["args"] == {"tokens": 40, "bytes": 64, "from die": 8, "to die": 0}
    assert (data["ts"], data["dur"]) == (5.0, 3.0)  # from 6000.25 to 9000.5 ns of a step that began at 1000, in µs
    (move,) = tracks["fabric links", "route 3 → 4"]
    assert move["name"] == "hidden vectors: ACT_MOVE"
    assert move["args"] == {"bytes": 112, "from die": 3, "to die": 4}  # tokens are not known
    assert (timeline["displayTimeUnit"], timeline["otherData"]["title"]) == ("ns", "a step")


def test_a_transfer_is_on_every_link_of_its_route(tmp_path):
    mesh = build_mesh(3, 3)
    tracks = slices(load(write_timeline(log_of(ROWS), tmp_path / "step.json", "a step", mesh)))
    data = {
        thread
        for (process, thread), events in tracks.items()
        if process == "fabric links" and events[0]["cat"] == "DATA"
    }
    assert data == {"link 8 → 7", "link 7 → 6", "link 6 → 3", "link 3 → 0"}


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
    paths = sum(mesh.hops[row[2], row[3]] if mesh else 1 for row in rows if row[0] == State.DATA)
    assert sum(map(len, tracks.values())) == sum(row[0] != State.DATA for row in rows) + paths


def test_one_thread_is_enough_where_one_thing_happens_at_a_time(tmp_path):
    rows = [(State.COMPUTE, 0, -1, -1, i, 0, 1, 10.5 * i, 10.5 * (i + 1)) for i in range(50)]
    tracks = slices(load(write_timeline(log_of(rows), tmp_path / "step.json", "busy")))
    assert list(tracks) == [("die 0", "compute")]
    assert len(tracks["die 0", "compute"]) == 50


def test_a_step_in_which_nothing_happens(tmp_path):
    assert load(write_timeline(log_of([]), tmp_path / "step.json", "idle"))["traceEvents"] == []


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ({key: column for key, column in log_of(ROWS).items() if key != "die"}, "no column 'die'"),
        (log_of(ROWS) | {"die": np.zeros(3, int)}, "differ in length"),
        (log_of([(*ROWS[0][:-1], 5.0)]), "row 0 of the step's log ends before it starts"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path, log, message):
    with pytest.raises(ValueError, match=message):
        write_timeline(log, tmp_path / "step.json", "bad")
    assert not (tmp_path / "step.json").exists()

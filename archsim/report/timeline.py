"""Timeline of one step in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

A die is a process, its LLC port, HBM and compute array are threads; the fabric is one process with a thread for every
link (for every route, if the fabric is not given). Where a block serves several requests at once, as a shared HBM or
link does, the thread is split into lanes (``HBM``, ``HBM · 2``, ...), so that no two slices of a thread overlap.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.files import write_text
from microarch.blocks.request import State, Unit
from microarch.fabric.fabric import Fabric

COLUMNS = ("kind", "unit", "die", "src", "dst", "expert", "slice", "tokens", "start_ns", "end_ns")
OPTIONAL = ("bytes",)
BLOCKS = {Unit.PORT: "LLC port", Unit.HBM: "HBM", Unit.COMPUTE: "compute"}
FABRIC_PROCESS = 1
FIRST_DIE_PROCESS = 2  # process ids: die + 2; Perfetto reserves 0


class Track(NamedTuple):
    """The thread that an activity is drawn on: its ``order`` and ``name`` within its process."""

    process: int
    order: int
    name: str


@dataclass(frozen=True)
class Activity:
    """One request at one block; whole nanoseconds since the start of the step."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    arguments: Mapping[str, Any]


def write_timeline(log: Mapping[str, np.ndarray], path: Path, title: str, fabric: Fabric | None = None) -> Path:
    """Write the timeline of a step and return its path.

    log: columns of equal length, one row per activity: ``kind`` (State), ``unit`` (Unit), ``die`` (-1 on a path),
    ``src`` and ``dst`` (-1 off a path), ``expert`` and ``slice`` (-1 for hidden vectors), ``tokens`` (-1 if unknown),
    ``start_ns``, ``end_ns``, and ``bytes`` if known. With ``fabric``, a transfer is drawn on every link of its route.
    Raises ValueError for a malformed log.
    """
    tracks = _tracks(_checked(log), fabric)
    events = [*_process_names(tracks), *_slices(tracks)]
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events)
    head = json.dumps({"title": title}, ensure_ascii=False)
    path = Path(path)
    write_text(path, f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n{lines}\n]}}\n')
    return path


def _checked(log: Mapping[str, np.ndarray]) -> dict[str, list]:
    missing = [name for name in COLUMNS if name not in log]
    if missing:
        raise ValueError(f"the log of the step has no column {missing[0]!r}")
    columns = {name: np.asarray(log[name]) for name in COLUMNS + OPTIONAL if name in log}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of the step's log differ in length: {lengths}")
    if (columns["end_ns"] < columns["start_ns"]).any():
        raise ValueError(
            f"row {int(np.argmax(columns['end_ns'] < columns['start_ns']))} of the step's log ends before it starts"
        )
    begin = columns["start_ns"].min() if len(columns["start_ns"]) else 0
    for name in ("start_ns", "end_ns"):
        columns[name] = np.rint(columns[name] - begin).astype(np.int64)
    return {name: column.tolist() for name, column in columns.items()}


def _tracks(columns: dict[str, list], fabric: Fabric | None) -> dict[Track, list[Activity]]:
    """The activities of every track, sorted by start; tracks in drawing order."""
    found: dict[Track, list[Activity]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        activity = _activity(row)
        for track in _places(row, fabric):
            found.setdefault(track, []).append(activity)
    return {track: sorted(found[track], key=lambda each: (each.start_ns, each.end_ns)) for track in sorted(found)}


def _activity(row: Mapping[str, Any]) -> Activity:
    state = State(row["kind"]).name
    subject = "hidden vectors" if row["expert"] < 0 else f"expert {row['expert']} slice {row['slice']}"
    arguments = {key: row[key] for key in ("tokens", "bytes") if row.get(key, -1) >= 0}
    if row["unit"] == Unit.PATH:
        arguments |= {"from die": row["src"], "to die": row["dst"]}
    return Activity(row["start_ns"], row["end_ns"], f"{subject}: {state}", state, arguments)


def _places(row: Mapping[str, Any], fabric: Fabric | None) -> Iterable[Track]:
    unit, src, dst = Unit(row["unit"]), row["src"], row["dst"]
    if unit in BLOCKS:
        return [Track(FIRST_DIE_PROCESS + row["die"], int(unit), BLOCKS[unit])]
    if fabric is None:
        return [Track(FABRIC_PROCESS, src * 10_000 + dst, f"route {src} → {dst}")]
    return [
        Track(FABRIC_PROCESS, int(link), f"link {fabric.link_src[link]} → {fabric.link_dst[link]}")
        for link in fabric.route(src, dst)
    ]


def _process_names(tracks: Iterable[Track]) -> Iterator[dict[str, Any]]:
    for process in sorted({track.process for track in tracks}):
        name = "fabric links" if process == FABRIC_PROCESS else f"die {process - FIRST_DIE_PROCESS}"
        yield _named("process_name", process, 0, name=name)
        yield _named("process_sort_index", process, 0, sort_index=process)


def _slices(tracks: Mapping[Track, list[Activity]]) -> Iterator[dict[str, Any]]:
    """Thread names and complete events; threads are numbered across all processes."""
    thread = 0
    for track, activities in tracks.items():
        lanes = _lanes(activities)
        for lane in range(1 + max(lanes)):
            name = track.name if lane == 0 else f"{track.name} · {lane + 1}"
            yield _named("thread_name", track.process, thread + lane + 1, name=name)
            yield _named("thread_sort_index", track.process, thread + lane + 1, sort_index=thread + lane + 1)
        for activity, lane in zip(activities, lanes, strict=True):
            yield {
                "ph": "X",
                "pid": track.process,
                "tid": thread + lane + 1,
                "ts": activity.start_ns / 1000,  # the format uses microseconds
                "dur": (activity.end_ns - activity.start_ns) / 1000,
                "name": activity.name,
                "cat": activity.category,
                "args": activity.arguments,
            }
        thread += 1 + max(lanes)


def _lanes(activities: list[Activity]) -> list[int]:
    """The lane of each activity (sorted by start): the lowest free one, so that activities do not overlap."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end, lane)
    lanes = []
    for activity in activities:
        while busy and busy[0][0] <= activity.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (activity.end_ns, lane))
        lanes.append(lane)
    return lanes


def _named(kind: str, process: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}

"""Timeline of one step in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

A die is a process with one lane for each of its resources: LLC port, HBM, compute array, links out. Where a resource
serves one request at a time, a slice is a request; where it serves several at once, as a shared HBM does, a slice is a
time in which it is busy, and says how many requests it serves. Counter tracks have requests in flight and the rate of
bytes. The process ``critical path`` has the requests that the end of the step waited for, one after the other, and
arrows from each to the lane where it was served. Of the fabric, the MOST_LINKS links that carry most have lanes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, files
from archsim.engine.demand import RunDemand
from archsim.engine.loop import Replay
from archsim.show.units import listing
from microarch.blocks.request import State, Unit
from microarch.fabric.fabric import Fabric

# Files in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.


def write_events(path: Path, events: Iterable[dict[str, Any]], title: str, unit: str) -> None:
    """Write events, whose times are in microseconds. ``unit``: in which they are shown, ``ns`` or ``ms``."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events)
    head = json.dumps({"title": title}, ensure_ascii=False)
    files.write_text(path, f'{{"displayTimeUnit":"{unit}","otherData":{head},"traceEvents":[\n{lines}\n]}}\n')


def name_event(kind: str, process: int, thread: int = 0, **arguments: Any) -> dict[str, Any]:
    """The event that says something about a process or a thread, such as ``process_name``."""
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}


COLUMNS = ("kind", "unit", "die", "src", "dst", "expert", "slice", "tokens", "start_ns", "end_ns")
OPTIONAL = {"bytes": -1, "critical": -1}  # column of a log that may lack → value that stands for unknown
BLOCKS = {Unit.PORT: "LLC port", Unit.HBM: "HBM", Unit.COMPUTE: "compute"}
LINKS_OUT = len(BLOCKS)  # position of the lane within a die
CRITICAL_PROCESS, FABRIC_PROCESS, FIRST_DIE_PROCESS = 1, 2, 3  # process ids: die + 3; Perfetto reserves 0
MOST_LINKS = 16
BINS = 200  # of a counter track
US_PER_NS = 1e-3  # the format uses microseconds


class Lane(NamedTuple):
    """A thread: its process, and its ``order`` and ``name`` there; ``rows`` of the log that it shows."""

    process: int
    order: int
    name: str
    rows: np.ndarray

    @property
    def thread(self) -> int:
        """Unique over all processes."""
        return self.process * 10_000 + self.order + 1


def write_timeline(log: Mapping[str, np.ndarray], path: Path, title: str, fabric: Fabric | None = None) -> Path:
    """Write the timeline of a step and return its path.

    log: columns of equal length, one row per activity: ``kind`` (State), ``unit`` (Unit), ``die`` (-1 on a path),
    ``src`` and ``dst`` (-1 off a path), ``expert`` and ``slice`` (-1 for hidden vectors), ``tokens`` (-1 if unknown),
    ``start_ns``, ``end_ns``, and, if known, ``bytes`` and ``critical`` (place on the critical path). With ``fabric``, a
    transfer is drawn on every link of its route. Raises ValueError for a malformed log.
    """
    rows = _check_log(log)
    lanes = _lanes(rows, fabric)
    events = [*_names(lanes), *(event for lane in lanes for event in _slices(rows, lane))]
    events += [event for lane in lanes for event in _counters(rows, lane)]
    events += _critical_path(rows, lanes)
    path = Path(path)
    write_events(path, events, title, "ns")
    return path


def _check_log(log: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    missing = [name for name in COLUMNS if name not in log]
    if missing:
        raise ValueError(f"the log of the step has no column {missing[0]!r}")
    rows = {name: np.asarray(log[name]) for name in (*COLUMNS, *OPTIONAL) if name in log}
    lengths = {name: len(column) for name, column in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of the step's log differ in length: {lengths}")
    early = rows["end_ns"] < rows["start_ns"]
    if early.any():
        raise ValueError(f"row {int(np.argmax(early))} of the step's log ends before it starts")
    for name, unknown in OPTIONAL.items():
        rows.setdefault(name, np.full(len(early), unknown))
    begin = rows["start_ns"].min() if len(early) else 0
    for name in ("start_ns", "end_ns"):
        rows[name] = np.rint(rows[name] - begin).astype(np.int64)
    return rows


def _lanes(rows: Mapping[str, np.ndarray], fabric: Fabric | None) -> list[Lane]:
    """Lanes with anything on them, in drawing order; their rows by start."""
    found: dict[tuple[int, int, str], np.ndarray] = {}
    for unit, name in BLOCKS.items():
        for die in np.unique(rows["die"][rows["unit"] == unit]).tolist():
            found[FIRST_DIE_PROCESS + die, int(unit), name] = (rows["unit"] == unit) & (rows["die"] == die)
    paths = rows["unit"] == Unit.PATH
    for die in np.unique(rows["src"][paths]).tolist():
        found[FIRST_DIE_PROCESS + die, LINKS_OUT, "links out"] = paths & (rows["src"] == die)
    for order, (name, on) in enumerate(_busiest_links(rows, fabric)):
        found[FABRIC_PROCESS, order, name] = on
    order_of_start = np.lexsort((rows["end_ns"], rows["start_ns"]))
    return [Lane(*where, order_of_start[found[where][order_of_start]]) for where in sorted(found)]


def _busiest_links(rows: Mapping[str, np.ndarray], fabric: Fabric | None) -> list[tuple[str, np.ndarray]]:
    """Name and bool[row] of the links (routes, without a fabric) that carry most: bytes, or time if none are known."""
    paths = np.flatnonzero(rows["unit"] == Unit.PATH)
    known = (rows["bytes"][paths] > 0).any()
    weight = np.maximum(rows["bytes"], 0) if known else rows["end_ns"] - rows["start_ns"]
    carried: dict[str, list[int]] = {}
    for row in paths.tolist():
        src, dst = int(rows["src"][row]), int(rows["dst"][row])
        if fabric is None:
            names = [f"route {src} → {dst}"]
        else:
            names = [f"link {fabric.link_src[link]} → {fabric.link_dst[link]}" for link in fabric.route(src, dst)]
        for name in names:
            carried.setdefault(name, []).append(row)
    busiest = sorted(carried, key=lambda name: -weight[carried[name]].sum())[:MOST_LINKS]
    on = {name: np.zeros(len(weight), bool) for name in busiest}
    for name in busiest:
        on[name][carried[name]] = True
    return list(on.items())


def _names(lanes: Iterable[Lane]) -> Iterator[dict[str, Any]]:
    lanes = list(lanes)
    processes = sorted({lane.process for lane in lanes})
    for process in [CRITICAL_PROCESS, *processes] if processes else []:
        special = {CRITICAL_PROCESS: "critical path", FABRIC_PROCESS: f"fabric, at most {MOST_LINKS} busiest links"}
        yield name_event("process_name", process, 0, name=special.get(process, f"die {process - FIRST_DIE_PROCESS}"))
        yield name_event("process_sort_index", process, 0, sort_index=process)
    for lane in lanes:
        yield name_event("thread_name", lane.process, lane.thread, name=lane.name)
        yield name_event("thread_sort_index", lane.process, lane.thread, sort_index=lane.order)


def _slices(rows: Mapping[str, np.ndarray], lane: Lane) -> Iterator[dict[str, Any]]:
    """Requests, one after the other; those that overlap as one slice."""
    start, end = rows["start_ns"][lane.rows], rows["end_ns"][lane.rows]
    if not len(start):
        return
    until = np.maximum.accumulate(end)
    firsts = np.flatnonzero(np.concatenate(([True], start[1:] >= until[:-1])))
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(start)], strict=True):
        own = lane.rows[first:last]
        name, arguments = _sentence(rows, int(own[0])) if last - first == 1 else _told_together(rows, own)
        most = State(int(np.bincount(rows["kind"][own]).argmax())).name  # what most of them do
        yield _slice(lane.process, lane.thread, start[first], until[last - 1], name, most, arguments)


def _sentence(rows: Mapping[str, np.ndarray], row: int) -> tuple[str, dict[str, Any]]:
    expert, piece = int(rows["expert"][row]), int(rows["slice"][row])
    subject = "hidden vectors" if expert < 0 else f"expert {expert} slice {piece}"
    arguments = {name: int(rows[name][row]) for name in ("tokens", "bytes") if rows[name][row] >= 0}
    if rows["unit"][row] == Unit.PATH:
        arguments |= {"from die": int(rows["src"][row]), "to die": int(rows["dst"][row])}
    return f"{subject}: {State(int(rows['kind'][row])).name}", arguments


def _told_together(rows: Mapping[str, np.ndarray], own: np.ndarray) -> tuple[str, dict[str, Any]]:
    kinds, counts = np.unique(rows["kind"][own], return_counts=True)
    each = {State(kind).name: count for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)}
    experts = np.unique(rows["expert"][own][rows["expert"][own] >= 0])
    arguments = {"requests": len(own), "bytes": int(np.maximum(rows["bytes"][own], 0).sum())} | each
    arguments["experts"] = ", ".join(map(str, experts[:12].tolist())) + (", …" if len(experts) > 12 else "")
    return f"{len(own)} requests: {', '.join(each)}", arguments


def _counters(rows: Mapping[str, np.ndarray], lane: Lane) -> Iterator[dict[str, Any]]:
    """Requests in flight, and bytes per ns (GB/s), each a mean over a bin of the step."""
    if lane.name == BLOCKS[Unit.COMPUTE]:
        return
    start, end = rows["start_ns"][lane.rows].astype(float), rows["end_ns"][lane.rows].astype(float)
    width = max(float(rows["end_ns"].max()) / BINS, 1.0)
    in_flight = _mean_in_bins(start, end, end - start, width)
    rate = _mean_in_bins(start, end, np.maximum(rows["bytes"][lane.rows], 0).astype(float), width)
    for name, unit, values in (("in flight", "requests", in_flight), ("rate", "GB/s", rate)):
        if not values.any():
            continue
        before = None
        for at, value in enumerate(np.round(values, 2).tolist()):
            if value != before:
                yield {"ph": "C", "pid": lane.process, "ts": at * width * US_PER_NS, "name": f"{lane.name}: {name}"} | {
                    "args": {unit: value}
                }
            before = value


def _mean_in_bins(start: np.ndarray, end: np.ndarray, amount: np.ndarray, width: float) -> np.ndarray:
    """float64[BINS + 1]: amounts spread evenly from ``start`` to ``end``, per ns, mean over each bin; 0 at the end."""
    edges = np.arange(BINS + 1) * width
    span = np.maximum(end - start, 1.0)
    done = (np.clip((edges[:, None] - start) / span, 0.0, 1.0) * amount).sum(axis=1)
    return np.append(np.diff(done) / width, 0.0)


def _critical_path(rows: Mapping[str, np.ndarray], lanes: Iterable[Lane]) -> list[dict[str, Any]]:
    """Its requests as slices of one lane, and a flow from each to the lane that served it."""
    on = np.flatnonzero(rows["critical"] >= 0)
    on = on[np.argsort(rows["critical"][on])]
    lane_of = {
        int(row): lane for lane in lanes if lane.process >= FIRST_DIE_PROCESS for row in np.intersect1d(lane.rows, on)
    }
    thread = CRITICAL_PROCESS * 10_000
    events = [name_event("thread_name", CRITICAL_PROCESS, thread, name="what the end of the step waited for")]
    until = 0
    for number, row in enumerate(on.tolist()):
        begin, end = max(int(rows["start_ns"][row]), until), int(rows["end_ns"][row])
        if end <= begin or row not in lane_of:
            continue
        lane, (name, arguments) = lane_of[row], _sentence(rows, row)
        where = f"{name}, die {lane.process - FIRST_DIE_PROCESS} {lane.name}"
        events.append(_slice(CRITICAL_PROCESS, thread, begin, end, where, "critical", arguments))
        middle = (begin + end) / 2 * US_PER_NS
        flow = {"cat": "critical", "name": "critical path", "id": number + 1, "ts": middle}
        events.append(flow | {"ph": "s", "pid": CRITICAL_PROCESS, "tid": thread})
        events.append(flow | {"ph": "f", "bp": "e", "pid": lane.process, "tid": lane.thread})
        until = end
    return events if until else []


def _slice(
    process: int, thread: int, start_ns: int, end_ns: int, name: str, category: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    times = {"ts": int(start_ns) * US_PER_NS, "dur": int(end_ns - start_ns) * US_PER_NS}
    times = {key: round(value, 3) for key, value in times.items()}
    return {"ph": "X", "pid": process, "tid": thread, **times, "name": name, "cat": category, "args": dict(arguments)}


# The timeline of one layer in one iteration of a run, chosen and checked.

# Under ``contention: shared`` these are latencies; the bytes flow in DATA and ACT_MOVE (archsim.engine.event.shared).
LATENCIES = (State.REMOTE_LLC, State.REMOTE_HBM, State.LLC_FILL, State.ACT_READ, State.ACT_WRITE)


def refuse_part_of_timeline(given: Mapping[str, object]) -> None:
    """Raise ArchsimError if some of these arguments are given and some are None, naming what is missing."""
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        verb = "is" if len(missing) == 1 else "are"
        raise errors.ArchsimError(f"a timeline needs {listing(given)}, but {listing(missing)} {verb} missing")


def write_step_timeline(replay: Replay, step: int, layer: int, path: Path, name: str) -> Path:
    """Write what blocks and links do in iteration ``step`` (0: prefill) and the model's ``layer``. replay: at its
    beginning; name: of the run. Raises ArchsimError for an iteration or layer that the run does not have.
    """
    demand = replay.demands
    assert isinstance(demand, RunDemand), "steps are chosen by number"
    layers = demand.layer_ids.tolist()
    if not 0 <= step < demand.steps:
        raise errors.ArchsimError(f"step {step}: the run has iterations 0 (the prefill) to {demand.steps - 1}")
    if layer not in layers:
        nearest = min(layers, key=lambda each: abs(each - layer))
        every = replay.engine.scenario.model.moe_layer_ids
        if layer in every:
            raise errors.ArchsimError(
                f"layer {layer}: did not run, as workload.layers chose {len(layers)} of the {len(every)} MoE layers, "
                f"{_ranges(layers)}; nearest is {nearest}. Give one of these, or --set workload.layers=null for all"
            )
        raise errors.ArchsimError(
            f"layer {layer}: not an MoE layer of the routing; it has {_ranges(layers)}; nearest is {nearest}"
        )
    index = layers.index(layer)
    if not demand.tokens[step, index].any():
        raise errors.ArchsimError(f"step {step}, layer {layer}: no request has routing there")
    log = replay.trace_step(step, index)
    if replay.engine.scenario.assumptions.contention == "shared":
        log["bytes"] = np.where(np.isin(log["kind"], LATENCIES), -1, log["bytes"])
    return write_timeline(log, path, f"{name}, iteration {step}, layer {layer}", replay.engine.fabric)


def _ranges(layers: list[int]) -> str:
    """Layers in few words: 3 to 60, or 1, 3, 5, … 47."""
    if len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers)) if len(layers) < 6 else f"{', '.join(map(str, layers[:3]))}, … {layers[-1]}"

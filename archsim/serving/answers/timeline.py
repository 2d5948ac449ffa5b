"""Timeline of served requests in the Trace Event Format (https://ui.perfetto.dev): an engine is a process with a thread
of iterations and counters of KV and queue; requests are asynchronous slices: queued, prompt, decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base import units

if TYPE_CHECKING:
    from archsim.serving.simulate import Served
from archsim.show.timeline import name_event, write_events

MOST_ITERATIONS = 200_000  # what Perfetto still opens quickly
REQUESTS_PROCESS = 1
FIRST_WORKER_PROCESS = 2  # Perfetto reserves 0


def write_serving_timeline(served: Served, path: Path, title: str) -> Path:
    """Write the iterations and requests of ``served.log``; returns the path. ValueError for a run without a log."""
    if not len(served.log):
        raise ValueError("the run kept no log of its iterations. Serve with logged=")
    events = [*_lane_names(served.log), *_iterations(served.log), *_requests(served)]
    write_events(path, events, title, "ms")
    return path


def _lane_names(log: np.ndarray) -> Iterator[dict[str, Any]]:
    yield name_event("process_name", REQUESTS_PROCESS, name="requests")
    for worker in np.unique(log["instance"]).tolist():
        yield name_event("process_name", FIRST_WORKER_PROCESS + worker, name=f"worker {worker}")


def _iterations(log: np.ndarray) -> Iterator[dict[str, Any]]:
    for row in log:
        process, begin = FIRST_WORKER_PROCESS + int(row["instance"]), float(row["begin_ns"]) / units.NS_PER_US
        name = "prompts and decodes" if row["chunks"] and row["decodes"] else "prompts" if row["chunks"] else "decodes"
        arguments: dict[str, float] = {key: int(row[key]) for key in ("decodes", "chunks", "chunk_tokens")}
        arguments["experts_us"] = round(float(row["experts_ns"]) / units.NS_PER_US, 3)
        if row["stall_ns"]:
            arguments["weights_moved_us"] = round(float(row["stall_ns"]) / units.NS_PER_US, 3)
        lasts = float(row["end_ns"] - row["begin_ns"]) / units.NS_PER_US
        yield _event("X", process, begin, name, arguments) | {"dur": lasts}
        yield _event("C", process, begin, "KV blocks in use, %", {"in use": round(100 * float(row["kv"]), 3)})
        yield _event("C", process, begin, "waiting requests", {"waiting": int(row["waiting"])})


def _event(kind: str, process: int, at_us: float, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": kind, "pid": process, "tid": 1, "ts": at_us, "name": name, "args": arguments}


def _requests(served: Served) -> Iterator[dict[str, Any]]:
    until = float(served.log["end_ns"].max())
    for at, row in enumerate(served.requests):
        if row["arrival_ns"] > until:
            continue
        times = [float(row[key]) / units.NS_PER_US for key in ("arrival_ns", "scheduled_ns", "first_ns", "last_ns")]
        sizes = {key: int(row[key]) for key in ("input", "output", "hit", "preempted")}
        for name, begin, end in zip(("queued", "prompt", "decode"), times, times[1:], strict=False):
            slice_of = {"cat": "request", "id": at, "pid": REQUESTS_PROCESS, "tid": 1, "name": name}
            yield slice_of | {"ph": "b", "ts": begin, "args": sizes}
            yield slice_of | {"ph": "e", "ts": end}

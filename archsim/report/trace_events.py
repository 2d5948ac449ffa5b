"""Files in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from archsim.base.files import write_text


def write_events(path: Path, events: Iterable[dict[str, Any]], title: str, unit: str) -> None:
    """Write events, whose times are in microseconds. ``unit``: in which they are shown, ``ns`` or ``ms``."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events)
    head = json.dumps({"title": title}, ensure_ascii=False)
    write_text(path, f'{{"displayTimeUnit":"{unit}","otherData":{head},"traceEvents":[\n{lines}\n]}}\n')


def named(kind: str, process: int, thread: int = 0, **arguments: Any) -> dict[str, Any]:
    """The event that says something about a process or a thread, such as ``process_name``."""
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}

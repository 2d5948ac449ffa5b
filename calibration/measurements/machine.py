"""Files that do not say which GPU they were measured on: it is that of the folder, named by other files or the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from calibration.measurements.cells import is_table, read_cells
from calibration.measurements.checking import Problem
from calibration.measurements.schema import gpu_key

MANIFEST = "manifest.json"  # {run_id: {"gpu_name": ..., "driver": ...}}, or one such machine alone


def with_machine(raw: pd.DataFrame, file: Path, label: str, problems: list[Problem]) -> pd.DataFrame | None:
    """Cells with ``gpu_name``, and ``driver`` where the folder names one; None, and a problem, where the folder names no
    GPU or several."""
    if "gpu_name" in raw:
        return raw
    machines = list(_machines(file))
    gpus = {gpu_key(machine["gpu_name"]): machine["gpu_name"] for machine in machines}
    if len(gpus) != 1:
        why = f"the folder names several GPUs: {', '.join(map(repr, sorted(gpus.values())))}" if gpus else "no other file of the folder names the GPU"
        remedy = f'add the column, or {MANIFEST} with {{"gpu_name": "..."}}' if not gpus else "add the column, or give each GPU a folder"
        problems.append(Problem(label, 1, f"no column gpu_name, and {why}; {remedy}", "refused"))
        return None
    drivers = {machine.get("driver", "") for machine in machines} - {""}
    raw = raw.assign(gpu_name=next(iter(gpus.values())))
    return raw if "driver" in raw or len(drivers) != 1 else raw.assign(driver=drivers.pop())


def _machines(file: Path) -> Iterator[dict[str, str]]:
    """What the other tables and the manifest of a file's folder say, each machine at least once."""
    for other in sorted(file.parent.iterdir()):
        if other != file and is_table(other):
            cells = read_cells(other, "", [])
            if cells is not None and "gpu_name" in cells:
                named = cells[[name for name in ("gpu_name", "driver") if name in cells]].drop_duplicates()
                yield from (machine for machine in named.to_dict("records") if gpu_key(machine["gpu_name"]))
    try:
        told = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or none that can be read
        return
    for machine in [told, *told.values()] if isinstance(told, dict) else []:
        if isinstance(machine, dict) and isinstance(machine.get("gpu_name"), str) and gpu_key(machine["gpu_name"]):
            yield {name: machine[name] for name in ("gpu_name", "driver") if isinstance(machine.get(name), str)}

"""Files that do not name the measured GPU: it is taken from the folder, from other files or the manifest."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from calibration.measurements.cells import is_table, read_cells
from calibration.measurements.checking import Problem
from calibration.measurements.schema import gpu_key

MANIFEST = "manifest.json"  # {run_id: {"gpu_name": ..., "driver": ...}}, or a single such machine


def with_machine(raw: pd.DataFrame, file: Path, label: str, problems: list[Problem]) -> pd.DataFrame | None:
    """Cells with ``gpu_name``, and ``driver`` if the folder names one; None, and a problem, if the
    folder names no GPU or several.
    """
    if "gpu_name" in raw:
        return raw
    machines = list(_machines(file))
    gpus = {gpu_key(machine["gpu_name"]): machine["gpu_name"] for machine in machines}
    if len(gpus) != 1:
        why = (
            f"the folder names several GPUs: {', '.join(map(repr, sorted(gpus.values())))}"
            if gpus
            else "no other file of the folder names the GPU"
        )
        remedy = (
            f'add the column, or {MANIFEST} with {{"gpu_name": "..."}}'
            if not gpus
            else "add the column, or use one folder per GPU"
        )
        problems.append(Problem(label, 1, f"no column gpu_name, and {why}; {remedy}", "refused"))
        return None
    drivers = {machine.get("driver", "") for machine in machines} - {""}
    raw = raw.assign(gpu_name=next(iter(gpus.values())))
    return raw if "driver" in raw or len(drivers) != 1 else raw.assign(driver=drivers.pop())


def _machines(file: Path) -> Iterator[dict[str, str]]:
    """The machines named by the other tables and the manifest of a file's folder, each at least once."""
    for other in sorted(file.parent.iterdir()):
        if other != file and is_table(other):
            cells = read_cells(other, "", [])
            if cells is not None and "gpu_name" in cells:
                named = cells[[name for name in ("gpu_name", "driver") if name in cells]].drop_duplicates()
                yield from (machine for machine in named.to_dict("records") if gpu_key(machine["gpu_name"]))
    try:
        stated = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing or unreadable
        return
    for machine in [stated, *stated.values()] if isinstance(stated, dict) else []:
        if isinstance(machine, dict) and isinstance(machine.get("gpu_name"), str) and gpu_key(machine["gpu_name"]):
            yield {name: machine[name] for name in ("gpu_name", "driver") if isinstance(machine.get(name), str)}

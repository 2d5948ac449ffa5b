"""Runs and systems as notes name them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archsim.specs.variants import is_variant

MOST_NAMED = 8  # systems, and points of a system
_POINT = re.compile(r"(?P<system>.*) \(point (?P<point>\d+)\)")  # as `system_names` has it


def own_name(system: str) -> str:
    """A system's name in its file, without a variant's digest, which tells nobody which one it is."""
    return system.rpartition(".")[0] if is_variant(system) else system


def system_names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    first: dict[str, int] = {}
    for row in rows:
        if (point := row.get("point")) is not None and "system" in row:
            first.setdefault(row["system"], point)
    systems = dict.fromkeys(row["system"] for row in rows if "system" in row)
    return {
        each: f"{own_name(each)} (point {first[each]})" if each in first and is_variant(each) else each
        for each in systems
    }


def list_some(systems: Iterable[str]) -> str:
    """``a, b (points 0, 5 and 10) and c``; beyond MOST_NAMED, how many others there are."""
    points: dict[str, list[str]] = {}
    for name in dict.fromkeys(systems):
        found = _POINT.fullmatch(name)
        points.setdefault(found["system"] if found else name, []).extend([found["point"]] if found else [])
    return _listed(
        f"{name} (point{'s' if len(of) > 1 else ''} {_listed(of)})" if of else name for name, of in points.items()
    )


def _listed(every: Iterable[str]) -> str:
    """``a, b and c``; beyond MOST_NAMED, how many others there are."""
    names = list(every)
    left = len(names) - MOST_NAMED
    if left > 0:
        names = [*names[:MOST_NAMED], f"{left} other{'s' if left > 1 else ''}"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def count_runs(some: int, of: int, one: str, many: str) -> str:
    """``The run uses``, ``1 of 4 runs uses``, ``3 of 4 runs use``: a subject and its verb."""
    return f"The run {one}" if of == 1 else f"{some} of {of} runs {one if some == 1 else many}"


def place_of(row: Mapping[str, Any], system: bool = True) -> str:
    """``deepseek-v3 on dojo at batch 64``; ``system``: whether the system is named."""
    point = row.get("point")
    on = f" on {row['system'] if point is None else own_name(row['system'])}" if system else ""
    at = f" (point {point})" if point is not None else ""
    return f"{row['model']}{on} at batch {int(row['batch']):,}{at}"

"""Paths of calibration files in systems: relative to the current directory, else to the file that names them."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from archsim.base.config_files import searched_places
from archsim.base.yaml import Keys, Place, Tree

KEYS = (("compute", "calibration"), ("hbm", "calibration"), ("d2d", "calibration"), ("decision", "host", "calibration"))
TABLE = ("dies_as_built", "speed", "table")  # of speeds of dies, a file that is found in the same way
_SUFFIXES = (".yaml", ".yml")


def find_calibrations(tree: Tree, keys: Keys, folders: list[Path], *, all_found: bool = True) -> None:
    """Make paths of calibrations and of a table of speeds in the system at ``keys`` relative to the current directory.
    Raises SpecError for a missing file; with ``all_found=False`` its path is left as it is.
    """
    for path in (*KEYS, TABLE):
        inner = _mapping(tree, (*keys, *path[:-1]))
        name = inner.get(path[-1])
        if not isinstance(name, str) or not (path == TABLE or name.endswith(_SUFFIXES)) or os.path.exists(name):
            continue
        found = next((folder / name for folder in folders if os.path.exists(folder / name)), None)
        if found is not None:
            inner[path[-1]] = os.path.relpath(found)
        elif all_found:
            raise tree.error((*keys, *path), f"no such file: {name!r} (searched {searched_places(folders)})")


def with_calibrations_found(value: Any, path: tuple[str, ...], place: Place, folders: list[Path]) -> Any:
    """The value at ``path``, calibration paths relative to the current directory. Raises SpecError."""
    if not any(key[: len(path)] == path for key in (*KEYS, TABLE)):
        return value
    data: Any = deepcopy(value)
    for key in reversed(path):
        data = {key: data}
    tree = Tree(data, {(): place, path: place})
    find_calibrations(tree, (), folders)
    return tree.get(path)


def _mapping(tree: Tree, keys: Keys) -> dict[str, Any]:
    """The mapping at ``keys``, or an empty one."""
    value = tree.data
    for key in keys:
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}

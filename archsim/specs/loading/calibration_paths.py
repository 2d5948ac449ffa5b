"""Paths of calibration files in systems: found from the current directory, else around the file in which they are given."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from archsim.specs.loading.config_files import looked_in
from archsim.specs.text.yaml import Keys, Place, Tree

KEYS = (("compute", "calibration"), ("hbm", "calibration"), ("d2d", "calibration"), ("decision", "host", "calibration"))
_SUFFIXES = (".yaml", ".yml")


def find_calibrations(tree: Tree, keys: Keys, folders: list[Path], *, all_found: bool = True) -> None:
    """Put in place of every path to a calibration in the system at ``keys`` one from the current directory.

    Raises SpecError for a file that is nowhere, unless not ``all_found``: then its path stays.
    """
    for path in KEYS:
        inner = _mapping(tree, (*keys, *path[:-1]))
        name = inner.get(path[-1])
        if not _is_path(name) or os.path.exists(name):
            continue
        found = next((folder / name for folder in folders if os.path.exists(folder / name)), None)
        if found is not None:
            inner[path[-1]] = os.path.relpath(found)
        elif all_found:
            raise tree.error((*keys, *path), f"no such file: {name!r} (looked in {looked_in(folders)})")


def with_calibrations_found(value: Any, path: tuple[str, ...], place: Place, folders: list[Path]) -> Any:
    """The value of an axis ``path`` of a system, with calibrations in it as paths from the current directory. Raises SpecError."""
    if not any(key[: len(path)] == path for key in KEYS):
        return value
    data: Any = deepcopy(value)
    for key in reversed(path):
        data = {key: data}
    tree = Tree(data, {(): place, path: place})
    find_calibrations(tree, (), folders)
    return tree.get(path)


def _is_path(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(_SUFFIXES)


def _mapping(tree: Tree, keys: Keys) -> dict[str, Any]:
    """The mapping at ``keys``; an empty one where there is none."""
    value = tree.data
    for key in keys:
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}

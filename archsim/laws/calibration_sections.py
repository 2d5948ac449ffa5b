"""Sections of a calibration in files of their own, which its file names: ``gemm: h100/gemm.yaml``.

Such a file has ``tables`` (laws, sources, errors), and names the numbers beside it with their digest: ``numbers:
{file:
gemm.npz, sha256: ...}`` (``archsim.laws.stored``). Paths are relative to the file that has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archsim.base import errors, fields, validation, yaml
from archsim.base.config_files import display
from archsim.laws.tables import SECTIONS

TABLES, NUMBERS, STORED = "tables", "numbers", "stored"
HINT = "fit the section again with `archsim calibrate`, or copy it with its files"


class _Numbers(fields.Spec):
    file: str
    sha256: str


class _Section(fields.Spec):
    numbers: _Numbers | None = None
    tables: tuple[dict[str, Any], ...]


def files_of(data: Any, folder: Path) -> list[Path]:
    """The files of sections that a calibration names."""
    return [folder / data[name] for name in SECTIONS if isinstance(data, dict) and isinstance(data.get(name), str)]


def with_sections(tree: yaml.Tree, folder: Path, *, numbers: bool = True) -> yaml.Tree:
    """A calibration's tree with its sections' tables; ``numbers``: with those beside them. Raises SpecError."""
    for name in SECTIONS:
        if isinstance(tree.data.get(name), str):
            tree.graft((name,), _tables(tree, name, folder, numbers))
    return tree


def _tables(tree: yaml.Tree, name: str, folder: Path, numbers: bool) -> yaml.Tree:
    file = folder / tree.data[name]
    if not file.is_file():
        raise tree.error((name,), f"no such file: {display(file)}; {HINT}")
    section = yaml.read_yaml(file, display(file))
    head = validation.validate(_Section, section)
    stored = _load_stored(section, head, file) if numbers else None
    for at, table in enumerate(section.data[TABLES]):
        entries = table.pop(STORED, {})
        if stored is None or not isinstance(entries, dict):
            continue
        for field, entry in entries.items():
            if not isinstance(entry, int) or not 0 <= entry < len(stored):
                raise section.error((TABLES, at, STORED, field), f"{entry!r} is no entry of the section's numbers")
            table[field] = stored[entry]
    places = {keys[1:]: place for keys, place in section.places.items() if keys[:1] == (TABLES,)}
    return yaml.Tree(section.data[TABLES], places)


def _load_stored(section: yaml.Tree, head: _Section, file: Path) -> list[Any]:
    from archsim.laws.stored import DamagedNumbers, load  # here, as it imports numpy

    if head.numbers is None:
        return []
    beside = file.parent / head.numbers.file
    try:
        return load(beside, head.numbers.sha256)
    except FileNotFoundError:
        raise section.error((NUMBERS, "file"), f"no such file: {display(beside)}; {HINT}") from None
    except (DamagedNumbers, OSError) as error:
        raise errors.SpecError(f"{section.place((NUMBERS, 'sha256'))}: {display(beside)} {error}; {HINT}") from None

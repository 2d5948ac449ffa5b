"""Long rows of numbers of a section's tables (corrections, axes, fingerprints), kept beside its YAML in one npz file.

A table's ``stored`` maps its fields to entries of the file. An entry is one row of numbers, rows of numbers by name, or
texts. All rows of a section lie end to end, as planes of their bytes: the high bytes of small numbers are equal.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.packed_files import UNREADABLE, read_npz
from archsim.laws.tables import TableOrigin

STORED = "stored"  # key of a table in YAML
MOST_IN_YAML = 12  # numbers of a field that stay there
LONGEST_TEXT = 120  # characters of texts that stay there
WHOLE, REAL, TEXT = 0, 1, 2  # kinds of rows
_TYPES: Mapping[int, np.dtype[Any]] = {WHOLE: np.dtype("<i4"), REAL: np.dtype("<f8"), TEXT: np.dtype("u1")}
Arrays = Mapping[str, np.ndarray]
Rows = list[tuple[str, Any]]  # name ('' of a field that is one row, and of texts), values


class DamagedNumbers(ValueError):
    """The file of a section's numbers cannot be read, or is another one."""


def pack(tables: Sequence[TableOrigin]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """(each table as YAML has it, the arrays of the file beside it)"""
    entries: list[Rows] = []
    written = []
    for table in tables:
        long = {name: rows for name in type(table).model_fields if (rows := _long_rows(getattr(table, name)))}
        places = {name: len(entries) + at for at, name in enumerate(long)}
        entries += long.values()
        short = table.model_dump(mode="json", exclude_defaults=True, exclude=set(long))
        written.append(short | ({STORED: places} if places else {}))
    return written, _arrays(entries)


def unpack(arrays: Arrays) -> list[Any]:
    """The value of every entry: numbers, numbers by name, or texts."""
    ends, start = np.cumsum(arrays["rows"]), dict.fromkeys(_TYPES, 0)
    flat = {kind: _join(arrays[str(kind)], dtype).tolist() for kind, dtype in _TYPES.items() if kind != TEXT}
    text = arrays[str(TEXT)].tobytes()
    names = arrays["names"].tobytes().decode().split("\n")
    values, kinds = [], arrays["kinds"].tolist()
    for kind, length in zip(kinds, arrays["lengths"].tolist(), strict=True):
        at = slice(start[kind], start[kind] + length)
        values.append(text[at].decode() if kind == TEXT else tuple(flat[kind][at]))
        start[kind] += length
    found: list[Any] = []
    for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        if names[first]:
            found.append(dict(zip(names[first:end], values[first:end], strict=True)))
        else:
            found.append(tuple(values[first:end]) if kinds[first] == TEXT else values[first])
    return found


def digest(arrays: Arrays) -> str:
    """sha256 of the content: the same for every version of the compressing library."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape} ".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


def save(path: Path, arrays: Arrays) -> None:
    """Write the file; equal arrays give equal bytes."""
    with path.open("wb") as stream:
        np.savez_compressed(stream, **dict(arrays))  # type: ignore[arg-type]


def load(path: Path, sha256: str) -> list[Any]:
    """The entries of a file whose content has this digest. Raises DamagedNumbers, and OSError."""
    try:
        arrays = read_npz(path)
    except FileNotFoundError:
        raise
    except (*UNREADABLE, AttributeError) as error:
        raise DamagedNumbers(f"is damaged ({error or type(error).__name__})") from None
    if (content := digest(arrays)) != sha256:
        raise DamagedNumbers(f"holds other numbers (sha256 {content[:12]}…, not {sha256[:12]}…)")
    return unpack(arrays)


def _long_rows(value: Any) -> Rows:
    """The rows of a field that is too long for YAML; none of any other."""
    if isinstance(value, dict) and value and all(isinstance(row, tuple) for row in value.values()):
        return [*value.items()] if sum(map(len, value.values())) > MOST_IN_YAML else []
    if not isinstance(value, tuple) or not value:
        return []
    if all(isinstance(each, float) for each in value):
        return [("", value)] if len(value) > MOST_IN_YAML else []
    if not all(isinstance(each, str) for each in value) or max(map(len, value)) <= LONGEST_TEXT:
        return []
    return [("", text) for text in value]


def _kind(values: Any) -> int:
    if isinstance(values, str):
        return TEXT
    return WHOLE if all(each.is_integer() and abs(each) < 2**31 for each in values) else REAL


def _arrays(entries: list[Rows]) -> dict[str, np.ndarray]:
    rows = [row for entry in entries for row in entry]
    kinds = [_kind(values) for _, values in rows]
    sizes = [len(values.encode()) if isinstance(values, str) else len(values) for _, values in rows]
    found = {
        "rows": np.array([len(entry) for entry in entries], "<i4"),
        "names": np.frombuffer("\n".join(name for name, _ in rows).encode(), np.uint8),
        "kinds": np.array(kinds, "u1"),
        "lengths": np.array(sizes, "<i4"),
    }
    for kind, dtype in _TYPES.items():
        mine: Iterable = (values for (_, values), of in zip(rows, kinds, strict=True) if of == kind)
        if kind == TEXT:
            found[str(kind)] = np.frombuffer("".join(mine).encode(), np.uint8)
        else:
            found[str(kind)] = _planes(np.array([each for values in mine for each in values], dtype))
    return found


def _planes(values: np.ndarray) -> np.ndarray:
    """uint8[byte, value]"""
    return values.view(np.uint8).reshape(len(values), values.dtype.itemsize).T.copy()


def _join(planes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(planes.T).view(dtype).ravel()

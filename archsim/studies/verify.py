"""Run a report again from its manifest, and say which of its numbers moved."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from archsim.base.errors import ArchsimError
from archsim.base.shown import Shown
from archsim.base.text.yaml import read_yaml
from archsim.runs.manifest import CODE, read_manifest
from archsim.runs.run import code_of
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY

if TYPE_CHECKING:
    import pandas

_NAMED = ("system", "model", "batch", "assumptions", "policy", "point", "offered", "placement")  # of a row, for people
_KEYS = ("run",)  # digests of inputs, which a newer version may compute from more


@dataclass(frozen=True)
class Moved:
    """A column of a file that moved. ``rows``: in how many; ``at``, ``before``, ``after``: where it moved most;
    ``change``: there, relative to before; None of texts and of numbers that were or became none.
    """

    file: str
    column: str
    rows: int
    change: float | None
    at: str
    before: str
    after: str


@dataclass(frozen=True)
class Verified(Shown):
    """``made``, ``now``: facts of the manifests, such as ``version`` and ``code``; ``rows``, ``numbers``: compared."""

    folder: Path
    made: Mapping[str, Any]
    now: Mapping[str, Any]
    rows: int
    numbers: int
    moved: tuple[Moved, ...]

    def __repr__(self) -> str:
        told = f"{len(self.moved)} columns moved" if self.moved else "none moved"
        return f"Verified({self.folder}: {self.rows:,} rows, {self.numbers:,} cells, {told})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per column that moved."""
        import pandas

        return pandas.DataFrame([asdict(each) for each in self.moved])

    def facts(self) -> list[tuple[str, str, str]]:
        """(name, as made, as run again) of the program and its code."""
        names = ("version", "code", "python", "numpy", "numba")
        return [(name, _told(self.made.get(name)), _told(self.now.get(name))) for name in names]


def report_of(path: Path) -> Path:
    """The folder of the report that ``path``, a folder or its manifest, is. Raises ArchsimError if it is none."""
    if not path.exists():
        raise ArchsimError(f"{path}: no such folder; expected that of a report, or its {MANIFEST}")
    if not path.is_dir():
        if path.name != MANIFEST:
            raise ArchsimError(f"{path}: not the manifest of a report, which `archsim verify` runs again")
        return path.parent
    if not (path / MANIFEST).is_file():
        raise ArchsimError(f"{path}: no {MANIFEST}: not the folder of a report")
    return path


def verify(folder: Path, again: Callable[[Path, Path], Any]) -> Verified:
    """Run the report in ``folder`` with ``again(manifest, out)``, which writes one to ``out``; nothing kept is used.

    Raises ArchsimError for a report that was changed, or whose traces are others now.
    """
    made, _ = read_manifest(folder)
    with TemporaryDirectory(prefix="archsim-verify-") as temporary, _code_of_report(folder, made):
        out = Path(temporary) / "report"
        with _variable("ARCHSIM_CACHE", str(Path(temporary) / "cache")):
            again(folder / MANIFEST, out)
        now = read_yaml(out / MANIFEST).data[MANIFEST_KEY]
        for model, digest in made.get("traces", {}).items():
            if (found := now.get("traces", {}).get(model)) != digest:
                raise ArchsimError(f"{folder / MANIFEST}: the trace of {model} is {digest}, but now it is {found}")
        rows = numbers = 0
        moved: list[Moved] = []
        for name in made["results"]:
            before, after = _read(folder / name), _read(out / name)
            if len(before) != len(after):
                raise ArchsimError(f"{folder / name}: has {len(before)} rows; run again, it has {len(after)}")
            rows += len(before)
            numbers += sum(len(row) for row in before)
            moved += _moved(name, before, after)
    return Verified(folder, made, now, rows, numbers, tuple(moved))


def _moved(name: str, before: list[dict[str, str]], after: list[dict[str, str]]) -> Iterator[Moved]:
    """Columns of which a cell differs; of columns of one side alone, nothing is known."""
    for column in before[0] if before else ():
        if column in _KEYS or column not in after[0]:
            continue
        rows = [at for at in range(len(before)) if before[at][column] != after[at][column]]
        if not rows:
            continue
        changes = {at: _change(before[at][column], after[at][column]) for at in rows}
        most = max(rows, key=lambda at: abs(changes[at] or 0))
        where = " ".join(before[most][key] for key in _NAMED if key in before[most]) or f"row {most + 1}"
        cells = before[most][column], after[most][column]
        yield Moved(name, column, len(rows), changes[most], where, *cells)


def _change(before: str, after: str) -> float | None:
    try:
        old, new = float(before), float(after)
    except ValueError:
        return None
    return new / old - 1 if old else None


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _told(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "–")


@contextmanager
def _code_of_report(folder: Path, made: Mapping[str, Any]) -> Iterator[None]:
    """Import users' functions from the copies beside the manifest, not from where they were."""
    files = made.get("functions", ())
    names = {file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for file in files}
    if not names:
        yield
        return
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    code_of.cache_clear()
    sys.path.insert(0, str((folder / CODE).resolve()))
    try:
        yield
    finally:
        sys.path.remove(str((folder / CODE).resolve()))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
        code_of.cache_clear()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before

"""Run a report again from its manifest, and say which of its numbers moved."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archsim.base import own_code, tables
from archsim.base.answer import Answer, Grid
from archsim.base.errors import ArchsimError, printable
from archsim.base.files import regular
from archsim.base.tables import DataFrame, frame_of
from archsim.base.yaml import read_yaml
from archsim.runs.results import CODE, inside, read_manifest
from archsim.specs.file_kinds import EXPERIMENT, SERVE, kind_of
from archsim.specs.library import MANIFEST, MANIFEST_KEY

# Of a row, for people.
_NAMED = ("place", "system", "model", "batch", "assumptions", "policy", "point", "offered", "placement")
_Columns = Mapping[str, Sequence[str]]  # name → a cell a row
_TABLES = (".csv", ".parquet", ".json", ".yaml")  # ends of names of files that are compared, but for these:
_DETAILS = ("dies.csv", "links.csv", "pairs.csv", "steps.parquet", "frames.json")
_NOT_COMPARED = (  # a pattern of names, and why; the rest of a report is compared
    ("*.html", "pages are made of what is compared"),
    ("*code/*.py", "own functions are compared with their digests"),
    ("*manifest.yaml", "it says what made the report; its experiment is compared with its digest"),
    ("*timings.csv", "it holds times of the machine that simulated"),
    ("*runs/*.json", "kept runs, which nothing here rests on, hold times of the machine that simulated"),
    ("*worlds/*", "kept runs, which nothing here rests on, hold times of the machine that simulated"),
    ("sure.*", "`archsim sure` and `serve` wrote it, whose samples are not taken again"),
)
_SHOWN, _LISTED = 20, 4  # columns that moved; files that are not compared
_KEYS = ("run",)  # digests of inputs, which a newer version may compute from more


@dataclass(frozen=True)
class ChangedColumn:
    """A column that changed; without a name: a file that only one side has."""

    file: str  # of the report
    column: str  # or empty
    rows: int  # in how many it changed
    change: float | None  # where it changed most, relative to before; None: texts, numbers that were or became none
    at: str  # the row where it changed most
    before: str  # its value there, as written
    after: str  # the same now


@dataclass(frozen=True)
class Verified(tables.Shown):
    """A report beside a run of today."""

    folder: Path  # of the report
    made: Mapping[str, Any]  # facts of its manifest, such as ``version`` and ``code``
    now: Mapping[str, Any]  # the same facts of today
    rows: int  # compared
    numbers: int  # compared
    moved: tuple[ChangedColumn, ...]  # columns that changed
    files: tuple[str, ...] = ()  # that were compared
    not_compared: Mapping[str, str] = field(default_factory=dict)  # other files of the report → why not

    def __repr__(self) -> str:
        moved = f"{len(self.moved)} columns moved" if self.moved else "none moved"
        return f"Verified({self.folder}: {self.rows:,} rows, {self.numbers:,} cells, {moved})"

    def to_pandas(self) -> DataFrame:
        return frame_of(self.moved)

    def as_answer(self) -> Answer:
        facts = [
            (name, printable(made), now if now != made else "the same") for name, made, now in self.facts()
        ]  # fmt: skip
        count = len(self.moved)
        changed = f"{count} column{' has' if count == 1 else 's have'} changed" if count else "Nothing has changed"
        first = (
            f"{changed} in {self.folder}, of {self.numbers:,} cells in {self.rows:,} rows of {len(self.files)} files "
            "that were simulated again."
        )
        parts: list[str | Grid] = [first, Grid(("", "made by", "run again by"), facts)]
        for why in dict.fromkeys(self.not_compared.values()):
            names = [name for name, reason in self.not_compared.items() if reason == why]
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            parts.append(printable(f"Not compared: {', '.join(names[:_LISTED])}{more}: {why}."))
        if not self.moved:
            return Answer(parts, result=self)
        rows = []
        for each in sorted(self.moved, key=lambda each: -abs(each.change or 0))[:_SHOWN]:
            change = "–" if each.change is None else f"{each.change:+.2%}"
            cells = each.file, each.column, str(each.rows), each.before, each.after, change, each.at
            rows.append(tuple(map(printable, cells)))
        heads = ("rows", "before", "after", "change")
        parts.append(Grid(("file", "column"), rows, heads, more=("changed most at",)))
        if count > _SHOWN:
            parts.append(f"{count - _SHOWN} more columns have changed. --json prints all of them.")
        return Answer(parts, result=self, status=1)

    def facts(self) -> list[tuple[str, str, str]]:
        """(name, as made, as run again) of the program and its code."""
        names = ("version", "code", "python", "numpy", "numba")
        return [(name, _text(self.made.get(name)), _text(self.now.get(name))) for name in names]


def report_of(path: Path) -> Path:
    """The folder of the report that ``path``, a folder or its manifest, is. Raises ArchsimError if it is none."""
    if not path.exists():
        raise ArchsimError(f"{path}: no such folder; expected that of a report, or its {MANIFEST}")
    if not path.is_dir():
        if path.name != MANIFEST:
            raise ArchsimError(f"{path}: not the manifest of a report, which `archsim check --report` runs again")
        return path.parent
    if not (path / MANIFEST).is_file():
        raise ArchsimError(
            f"{path}: no {MANIFEST}: not the folder of a report of `sweep` or `serve`; others are not run again"
        )
    return path


def verify(folder: Path, again: Callable[[Path, Path], Any]) -> Verified:
    """Run the report in ``folder`` with ``again(manifest, out)``; nothing kept is used, and every table and document
    that either has is tested. Raises ArchsimError for a report that was changed, or other traces.
    """
    made, data = read_manifest(folder)
    if (kind := kind_of(data)) not in (EXPERIMENT, SERVE):
        raise ArchsimError(f"{folder / MANIFEST}: holds neither an experiment nor a deployment, but keys of a {kind}")
    with TemporaryDirectory(prefix="archsim-verify-") as temporary, _code_of_report(folder, made):
        out = Path(temporary) / "report"
        with own_code.variable("ARCHSIM_CACHE", str(Path(temporary) / "cache")):
            again(folder / MANIFEST, out)
        now = read_yaml(out / MANIFEST).data[MANIFEST_KEY]
        for model, digest in made.get("traces", {}).items():
            if (found := now.get("traces", {}).get(model)) != digest:
                raise ArchsimError(f"{folder / MANIFEST}: the trace of {model} is {digest}, but now it is {found}")
        rows = numbers = 0
        moved: list[ChangedColumn] = []
        there, found = _files(folder), _files(out)
        not_compared = {name: why for name in there if (why := _why_not(name))}
        compared: list[str] = []
        for name in (name for name in dict.fromkeys((*found, *there)) if not _why_not(name)):
            if name not in there or name not in found:
                if name in found and (why := _left_out(name, there)):
                    not_compared[name] = why
                else:
                    sides = ("a file", "no file") if name in there else ("no file", "a file")
                    moved.append(ChangedColumn(name, "", 0, None, "", *sides))
                continue
            compared.append(name)
            after = _columns(out / name)
            before = _columns(inside(folder, name), _rows(after), (out / name).stat().st_size)
            if _rows(before) != _rows(after):
                raise ArchsimError(f"{folder / name}: has {_rows(before)} rows; run again, it has {_rows(after)}")
            rows += _rows(before)
            numbers += _rows(before) * len(before)
            known = {replace(each, file=name) for each in moved}
            moved += [each for each in _changed_columns(name, before, after) if each not in known]
    return Verified(
        folder=folder, made=made, now=now, rows=rows, numbers=numbers, moved=tuple(moved), files=tuple(compared),
        not_compared=not_compared,
    )  # fmt: skip


def _files(folder: Path) -> dict[str, Path]:
    every = ((file.relative_to(folder), file) for file in sorted(folder.rglob("*")) if not file.is_dir())
    return {name.as_posix(): file for name, file in every if not any(part.startswith(".") for part in name.parts)}


def _why_not(name: str) -> str:
    found = next((why for pattern, why in _NOT_COMPARED if fnmatchcase(name, pattern)), "")
    return found or ("" if name.endswith(_TABLES) else "it is no table of a report")


def _left_out(name: str, there: Collection[str]) -> str:
    """Why a report may lack a file: another format is there, or it is a detail of estimates. '' if deleted."""
    from archsim.questions.exploration.explore import ANALYTICAL

    stem, _, end = name.rpartition(".")
    if (twin := f"{stem}.{'parquet' if end == 'csv' else 'csv'}") in there:
        return f"it is not there, but {twin} is, which holds the same"
    room, _, table = name.rpartition("/")
    if room == ANALYTICAL and table in _DETAILS and not any(f"{room}/{each}" in there for each in _DETAILS):
        return "the report has no details of estimates"
    return ""


def _rows(table: _Columns) -> int:
    return len(next(iter(table.values()), ()))


def _changed_columns(name: str, before: _Columns, after: _Columns) -> Iterator[ChangedColumn]:
    """Columns of which a cell differs, and those that only one side has."""
    for column in dict.fromkeys((*after, *before)):
        if column in _KEYS:
            continue
        if column not in after or column not in before:
            there = ("a column", "no column")
            yield ChangedColumn(name, column, _rows(after), None, "", *(there if column in before else there[::-1]))
            continue
        old, new = before[column], after[column]
        rows = [at for at in range(len(old)) if old[at] != new[at]]
        if not rows:
            continue
        changes = {at: _change(old[at], new[at]) for at in rows}
        most = max(rows, key=lambda at: abs(changes[at] or 0))
        where = " ".join(before[key][most] for key in _NAMED if key in before) or f"row {most + 1}"
        yield ChangedColumn(name, column, len(rows), changes[most], where, old[most], new[most])


def _change(before: str, after: str) -> float | None:
    try:
        old, new = float(before), float(after)
    except ValueError:
        return None
    return new / old - 1 if old else None


def _columns(file: Path, most_rows: int | None = None, usual_bytes: int | None = None) -> _Columns:
    """Cells of a table, or a document's values by place. Refuses more rows than most_rows, or far over usual_bytes."""
    try:
        if file.suffix in (".csv", ".parquet"):
            return (_columns_of_csv if file.suffix == ".csv" else _columns_of_parquet)(file, most_rows)
        if usual_bytes is not None and regular(file).stat().st_size > 4 * usual_bytes + (1 << 16):
            raise ValueError(f"its size is far from the {usual_bytes} bytes that it has when it is run again")
        data = json.loads(file.read_text("utf-8")) if file.suffix == ".json" else read_yaml(file).data
        cells = list(_values(data))
        return {"place": [place for place, _ in cells], "value": [value for _, value in cells]}
    except (OSError, ValueError, RecursionError, csv.Error) as error:  # pyarrow raises ValueErrors
        raise ArchsimError(f"{file}: cannot be read as a table of results: {error}") from None


def _values(data: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, value) of every value in a tree."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _values(value, f"{place}.{key}" if place else str(key))
    elif isinstance(data, list):
        yield place, f"{len(data)} of a list"
        for at, value in enumerate(data):
            yield from _values(value, f"{place}[{at}]")
    else:
        yield place, repr(data)


def _columns_of_csv(file: Path, most_rows: int | None) -> _Columns:
    with regular(file).open(encoding="utf-8", newline="") as stream:
        lines = csv.reader(stream)
        names = next(lines, [])
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name")
        cells: list[list[str]] = []
        for cell in lines:
            if len(cell) != len(names):
                raise ValueError(f"row {len(cells) + 1} has {len(cell)} cells; expected {len(names)}")
            if most_rows is not None and len(cells) == most_rows:
                raise ValueError(f"more than the {most_rows} rows that it has when it is run again")
            cells.append(cell)
    columns = zip(*cells, strict=True) if cells else ((),) * len(names)
    return dict(zip(names, columns, strict=True))


def _columns_of_parquet(file: Path, most_rows: int | None) -> _Columns:
    columns = tables.parquet_columns(file)
    rows = tables.read_parquet(regular(file), columns, most_rows).rows
    return {name: tuple(tables.cell_text(name, row[name]) for row in rows) for name in columns}


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "–")


def _code_of_report(folder: Path, made: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Load users' functions from the copies beside the manifest, not from where they were."""
    return own_code.code_below(folder / CODE) if made.get("functions") else nullcontext()

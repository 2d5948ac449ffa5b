"""Checks a file before anything is simulated: whether it is valid, whether it fits, and what it contains."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from archsim.base.errors import ArchsimError, aligned
from archsim.base.files import regular
from archsim.base.own_code import CodeNotImported, code_below, variable
from archsim.base.tables import Shown, cell_text, parquet_columns, read_parquet
from archsim.base.yaml import read_yaml
from archsim.runs.notes import system_notes
from archsim.runs.results import CODE, inside, read_manifest
from archsim.specs.describe import summary, summary_of_serving, summary_of_sweep
from archsim.specs.file_kinds import EXPERIMENT, SERVE, kind_of
from archsim.specs.library import MANIFEST, MANIFEST_KEY, Source
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec

if TYPE_CHECKING:
    import pandas

    from archsim.runs.run import Run


# ---- checking

MOST_SYSTEMS = 4  # whose ranges are listed
MOST_POINTS = 2000  # some seconds to check


@dataclass(frozen=True)
class Checked:
    """A valid file that can run. ``content``: what ``archsim.load`` gives; ``summary``: a line on it; ``details``: room
    for KV, and what its machines are as built; ``notes``: what a reader should know first; ``ranges``: lines of tables
    of the numbers that `archsim sure` draws.
    """

    content: Any
    summary: str
    details: tuple[str, ...]
    notes: tuple[str, ...]
    ranges: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n  ".join((self.summary, *self.details))


def check(
    found: Any, of: Source, overrides: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> Checked:
    """What ``archsim.load`` found in ``of`` after ``overrides``, checked as a run would check it; ``say``: told of long
    work. Raises ArchsimError for what cannot run, with a line for each run or point that would fail.
    """
    planned = getattr(found, "plan", found)
    systems = systems_of(found)
    notes = [*system_notes(systems), *getattr(getattr(planned, "experiment", planned), "unread", ())]
    try:
        takes, details = _points(found, of, overrides, say)
    except CodeNotImported as error:
        takes, details = f". Points were not checked: {error}", []
    from archsim.runs.energy import build_costs, carrier_note, full_load_told
    from archsim.runs.plan import told_as_built

    def of_carrier(system: SystemSpec) -> Iterable[str]:
        return filter(None, [carrier_note(system.name, build_costs(system).carrier_share)])

    def of_limits(system: SystemSpec) -> Iterable[str]:
        return (f"{system.name}: {line}" for line in full_load_told(system))

    notes += [*_of_each(systems, of_carrier), *_of_each(systems, of_limits)]
    details += _of_each(systems, told_as_built)
    return Checked(found, _summary(found, str(of)) + takes, tuple(details), tuple(notes), tuple(_ranges(systems)))


def systems_of(found: Any) -> list[SystemSpec]:
    """The machines of a file: its own, those of an experiment or of the points' base, or that of a deployment."""
    found = getattr(found, "plan", found)
    found = getattr(found, "experiment", found)
    alone = found if isinstance(found, SystemSpec) else getattr(found, "system", None)
    return [alone] if isinstance(alone, SystemSpec) else list(getattr(found, "systems", ()))


def _ranges(systems: list[SystemSpec]) -> Iterator[str]:
    """What numbers of a file's machines may be, and which count as exact, as `archsim sure` takes them."""
    from archsim.runs.energy import Coefficients
    from archsim.specs.uncertainty import load_widths
    from archsim.uncertainty.worlds import economics_of, exact_of, ranges_of

    for system in systems[:MOST_SYSTEMS]:
        of = f"{system.name}: " if len(systems) > 1 else ""
        yield f"{of}`archsim sure` draws these numbers, beside those of kernels and measured laws:"
        rows = []
        for each in ranges_of(system):
            low, high = (_amount(end, each.unit) for end in (each.distribution.low, each.distribution.high))
            key, source = each.key.removeprefix("system."), each.source
            source = source.partition(": ")[0] if source.startswith("default of ") else source
            value = _amount(each.value, each.unit)
            rows.append((f"  {key}", value, f"{low} to {high}", each.distribution.shape, source))
        yield from aligned([("  key", "value", "range", "shape", "source"), *rows]).splitlines()
        exact = [key.removeprefix("system.") for key in exact_of(system)]
        yield f"{of}These numbers count as exact: {', '.join(exact)}"
    if systems:
        traffics = load_widths().traffic
        draws = f"draws the traffic {traffics} times" if traffics else "keeps the traffic as it is"
        yield f"It {draws} and takes the layers that run as a sample of all."
        yield "Energy, area and price of all machines rest on these coefficients:"
        coefficients = [
            (
                f"  {each.key}", f"{each.value:.4g} {each.unit}".strip(),
                f"{each.distribution.low:.4g} to {each.distribution.high:.4g}", each.distribution.shape, each.source,
            )
            for each in economics_of(Coefficients())
        ]  # fmt: skip
        yield from aligned([("  key", "value", "range", "shape", "source"), *coefficients]).splitlines()


def _amount(value: float, unit: str) -> str:
    """``1.5 TB/s``, ``300 ns``, ``0.9``."""
    from archsim.report.units import prefixed, significant

    if unit in ("B", "B/s", "FLOP/s", "Hz"):
        number, _, prefix = prefixed(value).partition("\u00a0")
        return f"{number} {prefix}{unit}"
    return f"{significant(value)} {unit}".strip()


def _of_each(systems: Iterable[SystemSpec], told: Callable[[SystemSpec], Iterable[str]]) -> Iterator[str]:
    """What there is to say of every machine. Machines whose fabric is own code that is not imported are left out."""
    for system in systems:
        with suppress(CodeNotImported):
            yield from told(system)


def _points(found: Any, of: Source, overrides: Sequence[str], say: Callable[[str], None]) -> tuple[str, list[str]]:
    """(what its runs take, details): the checks of ``archsim sweep`` before it simulates, where they are quick, else
    what makes them.
    """
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.serving_files import Serving

    if isinstance(found, Serving):
        from archsim.serving.serving import check_serving, rooms_told
        from archsim.studies.serving.runs import refused_points, serve_plan

        if found.axes:
            _refuse(refused_points(serve_plan(of, overrides)), len(found.spec.sweep.cells) if found.spec.sweep else 0)
        of_requests = check_serving(found)
        return "", [*found.recipe, *rooms_told(found), *of_requests]
    if isinstance(found, SystemSpec):
        from archsim.runs.energy import refuse_unpowered
        from archsim.runs.feasibility import refuse_own_fabric

        refuse_own_fabric(found)
        refuse_unpowered(found)
        return "", []
    planned = getattr(found, "plan", found)
    if not isinstance(planned, ExperimentSpec | SweepPlan):
        return "", []
    from archsim.base.host import available_cores
    from archsim.runs.feasibility import doubts_told, kv_rooms_told, told
    from archsim.runs.plan import plan_of, select

    plan = plan_of(planned)
    takes = f". To simulate: {told(plan, available_cores())}"
    if plan.combinations > MOST_POINTS:
        return f"{takes}. `archsim sweep --dry-run` checks whether the points can run", []
    runs = select(plan, say).runs()
    _refuse(_refused_runs(plan, runs), len(runs))
    drawn = [run.system.drawn for run in runs if run.system.drawn is not None]
    first = min((each.wafer for each in drawn), default=0)  # of drawn machines, which have nearly the same room
    alike = [run for run in runs if run.system.drawn is None or run.system.drawn.wafer == first]
    return takes, [*kv_rooms_told(alike), *doubts_told(alike)]


def _refused_runs(plan: SweepPlan, runs: Sequence[Run]) -> Iterator[str]:
    """A line for each run that would fail: where its system is written, its point or parts, and why."""
    from archsim.runs.plan import axes_told
    from archsim.runs.simulator import refused

    for run, why in refused(runs):
        if run.point is None:
            at = plan.experiment.limits_at.get((run.system.name, ""), "")
            which = f"{run.model.name} by {run.policy.name}, {run.assumptions.label}"
        else:
            point = plan.point(run.point)
            at, which = plan.system_at(point), f"point {run.point} ({axes_told(plan, point)})"
        yield f"{at}: {which}: {why}".removeprefix(": ")


def _refuse(lines: Iterable[str], of: int) -> None:
    """Raise ArchsimError for runs that would fail, a line each."""
    if found := list(dict.fromkeys(lines)):
        raise ArchsimError("\n".join([f"{len(found)} of {of} {'run' if of == 1 else 'runs'} would fail", *found]))


def _summary(found: Any, file: str) -> str:
    from archsim.base.fields import Spec
    from archsim.specs.serving_files import Serving

    planned = getattr(found, "plan", found)
    match planned:
        case Spec():
            return summary(planned)
        case SweepPlan():
            return summary_of_sweep(planned)
        case Serving():
            return summary_of_serving(planned)
    from archsim.workload.traffic_presets import model_of

    return f"ok, a valid traffic preset of {model_of(file)}"


# ---- verify
# Run a report again from its manifest, and say which of its numbers moved.

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
    ("sure.*", "`archsim sure` and `serve --samples` wrote it, whose draws are not repeated"),
)
_KEYS = ("run",)  # digests of inputs, which a newer version may compute from more


@dataclass(frozen=True)
class ChangedColumn:
    """A column of a file that moved; of a file that only one side has, no column. ``rows``: in how many; ``at``,
    ``before``, ``after``: where it moved most; ``change``: there, relative to before; None of texts and of
    numbers that were or became none.
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
    """``made``, ``now``: facts of the manifests, such as ``version`` and ``code``; ``rows``, ``numbers``: compared, in
    ``files``; ``not_compared``: other files of the report, each with the reason.
    """

    folder: Path
    made: Mapping[str, Any]
    now: Mapping[str, Any]
    rows: int
    numbers: int
    moved: tuple[ChangedColumn, ...]
    files: tuple[str, ...] = ()
    not_compared: Mapping[str, str] = field(default_factory=dict)

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
            raise ArchsimError(f"{path}: not the manifest of a report, which `archsim check --report` runs again")
        return path.parent
    if not (path / MANIFEST).is_file():
        raise ArchsimError(
            f"{path}: no {MANIFEST}: not the folder of a report of `sweep` or `serve`; others are not run again"
        )
    return path


def verify(folder: Path, again: Callable[[Path, Path], Any]) -> Verified:
    """Run the report in ``folder`` with ``again(manifest, out)``, which writes one to ``out``; nothing kept is used.

    Every table and document that either report has is judged, whatever the manifest lists. Raises ArchsimError for a
    report that was changed, or whose traces are others now.
    """
    made, data = read_manifest(folder)
    if (kind := kind_of(data)) not in (EXPERIMENT, SERVE):
        raise ArchsimError(f"{folder / MANIFEST}: holds neither an experiment nor a deployment, but keys of a {kind}")
    with TemporaryDirectory(prefix="archsim-verify-") as temporary, _code_of_report(folder, made):
        out = Path(temporary) / "report"
        with variable("ARCHSIM_CACHE", str(Path(temporary) / "cache")):
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
            moved += [each for each in _moved(name, before, after) if each not in known]
    return Verified(folder, made, now, rows, numbers, tuple(moved), tuple(compared), not_compared)


def _files(folder: Path) -> dict[str, Path]:
    """Files of a report by their names below its folder, without hidden ones."""
    every = ((file.relative_to(folder), file) for file in sorted(folder.rglob("*")) if not file.is_dir())
    return {name.as_posix(): file for name, file in every if not any(part.startswith(".") for part in name.parts)}


def _why_not(name: str) -> str:
    """Why a file is not compared; empty if it is."""
    found = next((why for pattern, why in _NOT_COMPARED if fnmatchcase(name, pattern)), "")
    return found or ("" if name.endswith(_TABLES) else "it is no table of a report")


def _left_out(name: str, there: Collection[str]) -> str:
    """Why a report may lack a file: the other format of the table is there, or it is one of the details of estimates,
    of which a report that is kept under version control may have none. Empty where it was deleted.
    """
    from archsim.studies.exploration.search import ANALYTICAL

    stem, _, end = name.rpartition(".")
    if (twin := f"{stem}.{'parquet' if end == 'csv' else 'csv'}") in there:
        return f"it is not there, but {twin} is, which holds the same"
    room, _, table = name.rpartition("/")
    if room == ANALYTICAL and table in _DETAILS and not any(f"{room}/{each}" in there for each in _DETAILS):
        return "the report has no details of estimates"
    return ""


def _rows(table: _Columns) -> int:
    return len(next(iter(table.values()), ()))


def _moved(name: str, before: _Columns, after: _Columns) -> Iterator[ChangedColumn]:
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
    """The cells of a table; of a document, its values with their places. most_rows: a table that has more is refused
    before they are read; usual_bytes: so is a document that is much longer.
    """
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
    columns = parquet_columns(file)
    rows = read_parquet(regular(file), columns, most_rows).rows
    return {name: tuple(cell_text(name, row[name]) for row in rows) for name in columns}


def _told(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "–")


def _code_of_report(folder: Path, made: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Load users' functions from the copies beside the manifest, not from where they were."""
    return code_below(folder / CODE) if made.get("functions") else nullcontext()

"""The results of a sweep: one row per run, the dies and links of every run, and their files."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from archsim.base import own_code, yaml
from archsim.base.errors import ArchsimError
from archsim.base.files import write_draft, write_text
from archsim.base.tables import MissingColumn, Shown, Table, parquet_columns, read_csv, read_parquet
from archsim.runs.columns import (
    DIE_COLUMNS,
    LAYOUT,
    LINK_COLUMNS,
    PAIR_COLUMNS,
    RUN_COLUMNS,
    STEP_COLUMNS,
    TIMING_COLUMNS,
    Kinds,
)
from archsim.runs.packed_steps import unpack
from archsim.specs.library import MANIFEST, MANIFEST_KEY, digest_of, manifest_blamed, take_facts

if TYPE_CHECKING:
    from archsim.runs.run import Record

BASE_POLICY = "base"
REFERENCES = ("ep", BASE_POLICY)  # speed-ups are over plain expert parallelism, and over the baseline of the paper
CSV, PARQUET, STEPS, FRAMES = "results.csv", "results.parquet", "steps.parquet", "frames.json"
FILES = MappingProxyType({"dies": DIE_COLUMNS, "links": LINK_COLUMNS, "pairs": PAIR_COLUMNS, "timings": TIMING_COLUMNS})
TABLES = ("runs", *FILES, "steps")
_KEPT_FOR_FEW = "; they are for few runs, or with details: kept in the experiment"
AGAIN = f"This archsim reads layout {LAYOUT} of results. To make them again, run `archsim sweep manifest.yaml` there"
_OF_RUN = ("run", "system", "model", "batch", "policy", "assumptions")  # of each die and link

Row = Mapping[str, Any]
Frames = Mapping[str, list[Any]]
"""What dies and links did between iterations: see `archsim.runs.measures.frames.measure_frames`."""


class Results(Shown):
    """The tables of a sweep: ``runs`` (one row each; with axes ``point`` and these first), ``dies``, ``links``,
    ``pairs``, ``steps``, ``timings``, read on first use; ``.to_pandas()`` or ``.rows``. ``folder``: None without files.
    ``answer``: the page's first sentences, or ''. A table that was not kept raises ArchsimError.
    """

    def __init__(
        self,
        read: Callable[[str], Table],
        folder: Path | None = None,
        write_page: Callable[[Path], Path] | None = None,
        answer: str = "",
    ) -> None:
        self._read, self.folder, self._write_page, self.answer = read, folder, write_page, answer

    def page(self, folder: str | Path) -> Path:
        """Write the report to ``folder``; returns the path of its ``index.html``. Runs come from the cache, or are
        simulated again. Raises ArchsimError for results that were read from a folder, where their page is.
        """
        if self._write_page is None:
            where = f": {self.folder / 'index.html'}" if self.folder else ""
            raise ArchsimError(f"these results were read, not simulated; their page is beside them{where}")
        return self._write_page(Path(folder))

    def with_page(self, write_page: Callable[[Path], Path], answer: str = "") -> Results:
        """The same tables; ``write_page``: writes their report to a folder, and returns the path of the page."""
        return Results(self._read, self.folder, write_page, answer)

    @cached_property
    def plot(self) -> Any:
        """Figures: ``results.plot.gain()``, ``.limits()``, ``.critical_path()``, ``.dies()``, …; ``.names()`` lists
        them. A notebook draws them; ``.save("x.pdf")`` is for print. See `archsim.show.notebook.Plots`.
        """
        return import_module("archsim.show.notebook").Plots(self)  # drawn a floor above, on first use

    @cached_property
    def runs(self) -> Table:
        return self._read("runs")

    @cached_property
    def dies(self) -> Table:
        return self._read("dies")

    @cached_property
    def links(self) -> Table:
        return self._read("links")

    @cached_property
    def pairs(self) -> Table:
        return self._read("pairs")

    @cached_property
    def steps(self) -> Table:
        return self._read("steps")

    @cached_property
    def timings(self) -> Table:
        return self._read("timings")

    @cached_property
    def frames(self) -> Mapping[str, Frames]:
        """Key of a run → what its dies and links did between iterations; of results in a folder."""
        file = self.folder / FRAMES if self.folder else None
        return {} if file is None or not file.is_file() else _FramesFile(file)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Results) and all(getattr(self, name) == getattr(other, name) for name in TABLES)

    def __repr__(self) -> str:
        of = ", ".join(_told_values(name, {row[name] for row in self.runs.rows}) for name in _OF_RUN[1:])
        return f"Results({', '.join(f'{name}: {len(table):,} rows' for name, table in self._kept().items())}; {of})"

    def _shown(self) -> Any:
        return self.runs.to_pandas()

    def in_memory(self) -> Results:
        """The same tables, read now: they need the folder no more. Steps stay packed until asked for."""
        tables = self._kept()
        steps = self.folder / STEPS if self.folder else None
        packed = steps.read_bytes() if steps and steps.is_file() else None

        def read(name: str) -> Table:
            if name == "steps" and packed is not None:
                return read_parquet(BytesIO(packed), STEP_COLUMNS)
            if name not in tables:
                raise ArchsimError(f"{name}: not kept{_KEPT_FOR_FEW}")
            return tables[name]

        return Results(read)

    def _kept(self) -> dict[str, Table]:
        """Name → table, of those that were kept, without steps: there may be very many."""
        tables = {}
        for name in TABLES:
            if name != "steps":
                with suppress(ArchsimError):
                    tables[name] = getattr(self, name)
        return tables

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """The results in a report's folder. Raises ArchsimError if there are no complete ones, and as a table is first
        used if an older archsim wrote it with other columns.
        """
        folder = Path(folder)
        if not (folder / PARQUET).is_file():
            raise ArchsimError(f"{folder / PARQUET}: no such file; are these the results of a sweep that ended?")
        return cls(lambda name: _read_table(folder, name), folder)


def _told_values(name: str, values: set) -> str:
    """``system dojo``, ``batch 2 values``."""
    return f"{name} {next(iter(values))}" if len(values) == 1 else f"{name} {len(values)} values"


def _read_table(folder: Path, name: str) -> Table:
    if name == "runs":
        try:
            columns = parquet_columns(folder / PARQUET)
        except (OSError, ValueError) as error:
            again = f"To make it again, run `archsim sweep {folder / MANIFEST}`"
            raise ArchsimError(f"{folder / PARQUET}: damaged or gone ({error}). {again}") from None
        if lacking := [column for column in RUN_COLUMNS if column not in columns]:
            raise ArchsimError(f"{folder / PARQUET}: no column {lacking[0]!r}. {AGAIN}")
        return read_parquet(folder / PARQUET, columns)
    if name == "steps":
        if not (folder / STEPS).is_file():
            raise ArchsimError(f"{folder / STEPS}: no such file{_KEPT_FOR_FEW}")
        return read_parquet(folder / STEPS, STEP_COLUMNS)
    file = folder / f"{name}.csv"
    try:
        return read_csv(file, FILES[name])
    except FileNotFoundError:
        reason = _KEPT_FOR_FEW if name != "timings" else ""
        raise ArchsimError(f"{file}: no such file{reason}") from None
    except MissingColumn as error:
        raise ArchsimError(f"{error}. {AGAIN}") from None


def write_frames(path: Path, records: Iterable[Record]) -> None:
    """Write the frames of runs as one JSON object, a line a run; one is in memory at a time."""
    with write_draft(path) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        before = "{\n"
        for record in records:
            if found := record.get("frames"):
                packed = json.dumps(found, separators=(",", ":"), allow_nan=False)
                stream.write(f"{before}{json.dumps(record['run'])}:{packed}")
                before = ",\n"
        stream.write("\n}\n" if before == ",\n" else "{}\n")


class _FramesFile(Mapping[str, Frames]):
    """What `write_frames` wrote, read when it is asked for. Raises ArchsimError for a file that is not whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at: dict[str, int] = {}  # run → place of its line
        with file.open("rb") as stream:
            at = len(first := stream.readline())
            if first not in (b"{\n", b"{}\n"):
                raise ArchsimError(f"{file}: not a line for each run. {AGAIN}")
            for line in stream:
                if line.startswith(b'"'):
                    self._at[line[1 : line.index(b'"', 1)].decode()] = at
                at += len(line)

    def __getitem__(self, run: str) -> Frames:
        with self._file.open("rb") as stream:
            stream.seek(self._at[run])
            line = stream.readline().strip().removesuffix(b",")
        try:
            return json.loads(b"{%b}" % line)[run]
        except ValueError as error:
            raise ArchsimError(f"{self._file}: run {run}: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


def collect(records: Sequence[Record], columns: Kinds = RUN_COLUMNS) -> Results:
    """The tables of finished runs in memory, in the given order; nothing is written."""
    references = references_of(record["row"] for record in records)
    rows = tuple(with_speedups({**record["row"], "run": record["run"]}, references) for record in records)
    tables = {
        "runs": Table(columns, rows),
        "dies": Table(DIE_COLUMNS, tuple(each for record in records for each in spread(record, "dies"))),
        "links": Table(LINK_COLUMNS, tuple(each for record in records for each in spread(record, "links"))),
        "pairs": Table(PAIR_COLUMNS, tuple(each for record in records for each in spread(record, "pairs"))),
        "steps": Table(STEP_COLUMNS, tuple(each for record in records for each in spread(record, "steps"))),
        "timings": Table(TIMING_COLUMNS, tuple({"run": record["run"], **record["host"]} for record in records)),
    }
    return Results(tables.__getitem__)


def spread(record: Record, of: str) -> Iterator[Row]:
    """One row for every die, link, pair or step (``of``: ``dies``, ``links``, ``pairs``, ``steps``) of a run."""
    of_run = {name: record["run"] if name == "run" else record["row"][name] for name in _OF_RUN}
    columns = unpack(record[of]) if of == "steps" else record[of]
    for values in zip(*columns.values(), strict=True):
        yield of_run | dict(zip(columns, values, strict=True))


def references_of(rows: Iterable[Row]) -> dict[tuple, float | None]:
    """(Policy, key of comparable runs) → throughput, of the policies REFERENCES."""
    return {
        (row["policy"], *_comparison_key(row)): row["throughput_tokens_per_s"]
        for row in rows
        if row["policy"] in REFERENCES
    }


def with_speedups(row: Row, references: Mapping[tuple, float | None]) -> dict[str, Any]:
    """The row with its speed-ups over REFERENCES (see `references_of`), None over one that was not run."""
    speedups = {}
    for policy in REFERENCES:
        reference = references.get((policy, *_comparison_key(row)))
        speedups[f"speedup_vs_{policy}"] = row["throughput_tokens_per_s"] / reference if reference else None
    return {**row, **speedups}


Layers = Mapping[str, tuple[tuple[int, ...], int]]
"""Model → (how many MoE layers its runs had, ascending; how many it has)."""


def layers_that_ran(rows: Iterable[Row], models: Mapping[str, int]) -> Layers:
    """The MoE layers that ran. ``models``: name → how many it has."""
    ran: dict[str, set[int]] = {}
    for row in rows:
        ran.setdefault(row["model"], set()).add(int(row["layers"]))
    return {model: (tuple(sorted(ran[model])), every) for model, every in models.items() if model in ran}


def in_part(layers: Layers) -> Layers:
    """The models of which some run had fewer layers than the model has."""
    return {model: (ran, every) for model, (ran, every) in layers.items() if ran != (every,)}


def layer_counts(layers: Layers) -> str:
    """``3 of 58 MoE layers of deepseek-v3, all MoE layers of qwen3``, or ``MoE layers of …`` if all had all."""
    if not in_part(layers):
        return f"MoE layers of {', '.join(layers)}"
    parts = []
    for model, (ran, every) in layers.items():
        *rest, last = map(str, ran)
        some = f"{', '.join(rest)} or {last} of {every}" if rest else f"{last} of {every}"
        parts.append(f"{'all' if ran == (every,) else some} MoE layers of {model}")
    return ", ".join(parts)


def _comparison_key(row: Row) -> tuple:
    """Key shared by the runs whose policies are compared."""
    return tuple(row[name] for name in ("system", "model", "trace", "batch", "engine", "assumptions"))


# The manifest of a report: its experiment, what it was made by, and digests for ``archsim check --report``.
#
# ``manifest.yaml`` has the experiment, and below ``manifest``: version and libraries, ``digest`` (of the experiment),
# ``functions`` (file → SHA-256 of users' code, copied to ``code/``) and ``results`` (file → SHA-256), written last.

CODE = "code"  # folder of users' functions, beside the manifest
_INSTALLED = "site-packages"


def made_by() -> dict[str, str]:
    """Facts about the program, for every manifest."""
    libraries = {library: version(library) for library in ("numpy", "numba")}
    return {"version": version("archsim"), "python": platform.python_version(), **libraries}


def write_manifest(
    folder: Path, given: Mapping[str, Any], about: Mapping[str, Any], functions: Iterable[str] = ()
) -> None:
    """Write the manifest of ``given``, with facts ``about`` it, and the code of users' ``functions``."""
    facts = {**made_by(), **about, "digest": digest_of(yaml.parse_yaml(yaml.dump_yaml(given), MANIFEST).data)}
    if copied := _copy_code(functions, folder / CODE):
        facts["functions"] = copied
    write_text(folder / MANIFEST, yaml.dump_yaml({MANIFEST_KEY: facts, **given}))


def seal(folder: Path, *files: str) -> None:
    """Add the digests of finished ``files`` to the manifest."""
    data = dict(yaml.read_yaml(folder / MANIFEST).data)
    facts = data.pop(MANIFEST_KEY) | {"results": {name: _sha256(folder / name) for name in files}}
    write_text(folder / MANIFEST, yaml.dump_yaml({MANIFEST_KEY: facts, **data}))


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts, experiment) of an unchanged report. Raises ArchsimError for a false digest or a missing file, which it
    names; SpecError as reading YAML does.
    """
    with manifest_blamed(folder / MANIFEST):
        tree = yaml.read_yaml(inside(folder, MANIFEST))
        facts, data = take_facts(tree) or {}, tree.data
    if "digest" not in facts:
        raise ArchsimError(f"{folder / MANIFEST}: no digest of the experiment; it was made by an older archsim")
    for name in ("functions", "results", "traces"):
        listed = facts.get(name) or {}
        if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
            raise ArchsimError(f"{folder / MANIFEST}: {MANIFEST_KEY}.{name}: expected names, each with its digest")
    if facts["digest"] != digest_of(data):
        raise ArchsimError(f"{folder / MANIFEST}: the experiment is not that of its digest: it was changed afterwards")
    if not facts.get("results"):
        raise ArchsimError(f"{folder / MANIFEST}: no digest of results: the command that made it did not end")
    named = {f"{CODE}/{name}": digest for name, digest in (facts.get("functions") or {}).items()} | facts["results"]
    for name, digest in named.items():
        if _sha256(inside(folder, name)) != digest:
            raise ArchsimError(f"{folder / name}: is not the file of its digest in {MANIFEST}: one was changed")
    return facts, data


def damage_notes(folder: Path) -> list[str]:
    """A sentence on each table of a sweep's report that is damaged or gone; none of what is no such report."""
    if not (folder / MANIFEST).is_file():
        return []
    data = dict(yaml.read_yaml(folder / MANIFEST).data)
    facts = data.pop(MANIFEST_KEY, None)
    results = facts.get("results") if isinstance(facts, dict) else None
    if not isinstance(results, dict) or CSV not in results:
        return []
    said = []
    if not (folder / CSV).is_file():
        said.append(f"{folder / CSV} is gone")
    elif _sha256(folder / CSV) != results[CSV]:
        said.append(f"{folder / CSV} is not the file of its digest in {MANIFEST}: it was cut off or changed")
    details = [STEPS] if (folder / "dies.csv").exists() else []
    for name in (PARQUET, *details):
        if not (folder / name).is_file():
            said.append(f"{folder / name} is gone")
            continue
        try:
            parquet_columns(folder / name)
        except (OSError, ValueError):
            said.append(f"{folder / name} is damaged: it is no whole Parquet file")
    again = "The answer here is not from there: runs are simulated again, or found in the cache"
    if said:
        said[-1] += f". {again}. To make the report whole, run `archsim sweep {folder / MANIFEST}`"
    if facts.get("digest") != digest_of(data):
        said.append(f"{folder / MANIFEST}: the experiment is not that of its digest: it was cut off or changed")
    return said


def inside(folder: Path, name: str) -> Path:
    """The file of a report by a name in it. ArchsimError for one that leads out, also by a link, or is not there."""
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise ArchsimError(f"{folder / MANIFEST}: {name!r} leads out of the folder of the report; nothing is read")
        if not file.is_file():
            raise ArchsimError(f"{folder / name}: no such file, but it is part of the report")
    except (OSError, ValueError, RuntimeError) as error:  # names that are too long, null characters, links in a circle
        raise ArchsimError(f"{folder / MANIFEST}: {name!r:.80} is no name of a file: {error}") from None
    return file


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _copy_code(functions: Iterable[str], folder: Path) -> dict[str, str]:
    """Copy users' modules and neighbours that they import; file → SHA-256. Installed packages stay."""
    files: dict[str, Path] = {}
    for target in dict.fromkeys(functions):
        own_code.import_function(target)
        name = target.partition(":")[0]
        module = own_code.module_of(name)
        file = getattr(module, "__file__", None)
        elsewhere = own_code.is_ours(name) or name.partition(".")[0] in sys.stdlib_module_names
        if file and (own_code.is_in_folder(module) or (not elsewhere and _INSTALLED not in Path(file).parts)):
            root = Path(file).parents[name.count(".") + (Path(file).name == "__init__.py")]
            files |= {each.relative_to(root).as_posix(): each for each in _with_imports(Path(file), root)}
    copied = {name: _sha256(file) for name, file in sorted(files.items())}
    for name, file in files.items():
        copy = folder / name
        if not (copy.is_file() and copy.samefile(file)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return copied


def _with_imports(file: Path, root: Path) -> set[Path]:
    """The file, the packages around it, and what these import below ``root``."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each in found or not each.is_file():
            continue
        found.add(each)
        waiting += [folder / "__init__.py" for folder in each.parents if root in folder.parents]
        for name in _imports_of(each, root):
            path = root.joinpath(*name.split("."))
            waiting += [path.with_suffix(".py"), path / "__init__.py"]
    return found


def _imports_of(file: Path, root: Path) -> Iterator[str]:
    """Names that may be modules; of relative imports, the absolute ones."""
    package = file.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)

"""A report folder as written: the experiment, its runs, and the statistics per die and per link."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.tables import TEXT as WORD
from archsim.base.yaml import read_yaml, validate
from archsim.runs.columns import COLUMNS, Column, columns_with
from archsim.runs.columns import STEPS as STEP_TABLE
from archsim.runs.columns import TEXT as WORDING
from archsim.runs.notes import COLUMNS as NOTED
from archsim.runs.plan import with_areas
from archsim.runs.results import FRAMES, STEPS, layers_that_ran
from archsim.specs.as_built import AsBuilt
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec, columns_of
from archsim.specs.fabric import FabricSpec
from archsim.specs.library import MANIFEST, MANIFEST_KEY
from archsim.specs.system import AS_BUILT, SystemSpec

# ---- fabrics
# The dies and links of a system in a manifest: their number, a description, and their arrangement in a map.

def built_of(system: Mapping[str, Any]) -> AsBuilt | None:
    """The dies of a system in a manifest as they are built; None: all as meant."""
    if not any(system.get(key) for key in AS_BUILT):
        return None
    return with_areas(SystemSpec.model_validate(system)).built


def dies_of(system: Mapping[str, Any]) -> int:
    """Number of dies of a system in a manifest."""
    if (built := built_of(system)) is not None:
        return len(built.living)
    if system.get("mesh"):
        return system["mesh"]["x"] * system["mesh"]["y"]
    if system.get("fabric"):
        return FabricSpec.model_validate(system["fabric"]).dies
    return system["topology"]["dies"]


def shape_of(system: Mapping[str, Any]) -> str:
    """Dies and links in words: ``5 × 5``, ``5 × 5, torus``, ``4 × 8 switch``."""
    if system.get("fabric"):
        return FabricSpec.model_validate(system["fabric"]).shape
    topology = system.get("topology") or "mesh"
    name = topology if isinstance(topology, str) else topology["name"]
    if not system.get("mesh"):
        return f"{topology['dies']}, {name}"
    size = f"{system['mesh']['x']} × {system['mesh']['y']}"
    return size if topology == "mesh" else f"{size}, {name}"


def map_width(system: Mapping[str, Any]) -> int:
    """Dies per row in a map without coordinates: the innermost group of several, else as many as there are rows."""
    levels = FabricSpec.model_validate(system["fabric"]).levels if system.get("fabric") else ()
    return levels[0].size if len(levels) > 1 else ceil(sqrt(dies_of(system)))


def nodes_of(system: Mapping[str, Any]) -> int | None:
    """Nodes of GPUs behind switches, in one or two levels; None: another fabric."""
    levels = FabricSpec.model_validate(system["fabric"]).levels if system.get("fabric") else ()
    if built_of(system) is not None:
        return None
    if not 1 <= len(levels) <= 2 or any(level.kind != "switch" for level in levels):
        return None
    return levels[1].size if len(levels) > 1 else 1


# ---- layers
# Which MoE layers of each model ran, in words.

Parts = Mapping[str, tuple[tuple[int, ...], int]]  # as of ``archsim.runs.results.layers_that_ran``


def partial(parts: Parts) -> Parts:
    """The models of which some run had fewer layers than the model has."""
    return {model: (ran, every) for model, (ran, every) in parts.items() if ran != (every,)}


def told(parts: Parts) -> str:
    """``3 of 58 MoE layers of deepseek-v3, all MoE layers of qwen3``; ``MoE layers of …`` if every run had all
    of them.
    """
    if not partial(parts):
        return f"MoE layers of {', '.join(parts)}"
    return ", ".join(f"{_part(*parts[model])} MoE layers of {model}" for model in parts)


def _part(ran: tuple[int, ...], every: int) -> str:
    if ran == (every,):
        return "all"
    *rest, last = map(str, ran)
    return f"{', '.join(rest)} or {last} of {every}" if rest else f"{last} of {every}"


# ---- data

KEYS = ("system", "model", "batch", "policy", "assumptions")
TEXT = ("run", "system", "model", "trace", "policy", "engine", "assumptions")
_PAGE = tuple(column for column in COLUMNS if column.page)
HOST_TIMES = tuple(column.name for column in _PAGE if column.name.startswith("host_"))
MANY_SYSTEMS = 4  # with more, figures show one of those that differ only in the executor
RESULT_COLUMNS = (*("run", *KEYS, "trace", "engine"), *(column.name for column in _PAGE if column.since == 1))
# Empty if undefined: no base run, or no decode.
OPTIONAL = tuple(column.name for column in _PAGE if column.optional)
# Missing in folders of older versions.
LATER = tuple(column.name for column in _PAGE if column.since > 1)
# Texts that notes tell.
WORDS = ("uncharged", *(column.name for column in COLUMNS if column.kind == WORDING and column.name in NOTED))
NUMBERS = tuple(column for column in RESULT_COLUMNS if column not in TEXT)
DIE_COLUMNS = ("run", "die", "x", "y", "hbm_utilisation", "compute_utilisation", "activation_bytes")
PLACES = ("x", "y", "src_x", "src_y", "dst_x", "dst_y")  # empty in a fabric without coordinates
LINK_COLUMNS = ("run", "src", "dst", "src_x", "src_y", "dst_x", "dst_y", "direction", "utilisation")


PAIR_COLUMNS = ("run", "src", "dst")
OF_STEPS = ("link_bytes", "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens")


class ReportError(ArchsimError):
    """A report folder is incomplete or its files are inconsistent."""


@dataclass(frozen=True)
class Place:
    """What runs of different batches and policies share: one panel of a figure."""

    assumptions: str
    system: str
    model: str


@dataclass(frozen=True)
class RunRow:
    """One row of results.csv. ``numbers`` has the columns NUMBERS, without empty cells of OPTIONAL ones."""

    key: str
    place: Place
    batch: int
    policy: str
    trace: str
    engine: str
    numbers: Mapping[str, float] = field(hash=False)
    words: Mapping[str, str] = field(default_factory=dict, hash=False)  # of the columns WORDS, not empty

    def __getitem__(self, column: str) -> float:
        return self.numbers[column]

    def get(self, column: str) -> float | None:
        return self.numbers.get(column)

    @property
    def label(self) -> str:
        return f"{self.policy}, batch {self.batch}, {self.place.model} on {self.place.system}, {self.place.assumptions}"


@dataclass(frozen=True)
class Die:
    """Utilisation of one die over a run, as shares of the total time."""

    die: int
    x: int | None  # None: a fabric without coordinates
    y: int | None
    hbm: float
    compute: float
    activation_bytes: float
    # phase → (pairs of token and expert, bytes of HBM); empty for folders of older versions
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    # of a system with limits: mean W with its HBM; C of its hottest place and of its HBM, None without cooling
    power_w: float | None = None
    temperature_c: float | None = None
    hbm_temperature_c: float | None = None
    # to which limits lower the clock of its array, as a share; None without limits, and in a phase without steps
    clock: float | None = None  # in decode
    prefill_clock: float | None = None
    # of a machine as it is built: its number as made, and factors of its array and HBM
    site: int | None = None
    speeds: tuple[float, float] = (1.0, 1.0)

    @property
    def use(self) -> float:
        """The higher of HBM and compute array utilisation."""
        return max(self.hbm, self.compute)


@dataclass(frozen=True)
class Link:
    """Utilisation of one link over a run; ``both_ways``: an edge that is one resource for both directions."""

    src: int
    dst: int
    src_at: tuple[int, int] | None
    dst_at: tuple[int, int] | None
    both_ways: bool
    utilisation: float


@dataclass(frozen=True)
class Step:
    """A layer in an iteration. ``bounds``: ns of its critical path by cause, without those that took none; ``link``:
    the ends of its busiest link.
    """

    step: int
    layer: int
    time_ns: float
    bounds: Mapping[str, float] = field(hash=False)
    link: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a run, arrays of one value each, and the slowest of them. ``more``: further columns of the table, by
    name; without those that a folder of an older version lacks.
    """

    step: np.ndarray
    layer: np.ndarray
    time_ns: np.ndarray
    slowest: Step
    more: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All data on the page. Names are in the order of the manifest."""

    folder: Path
    experiment: Mapping[str, Any]  # resolved, as in manifest.yaml
    made: Mapping[str, Any]  # version, seeds, digests
    assumptions: Mapping[str, AssumptionsSpec]  # by label
    runs: tuple[RunRow, ...]
    dies: Mapping[str, tuple[Die, ...]]  # by RunRow.key
    links: Mapping[str, tuple[Link, ...]]  # by RunRow.key; empty for a mesh of one die
    # by RunRow.key; class of archsim.engine.demand → (from die, to die) → bytes; empty for many dies
    pairs: Mapping[str, Mapping[str, Mapping[tuple[int, int], float]]]
    steps: Mapping[str, Steps]  # by RunRow.key, of runs whose steps were kept
    own: tuple[Column, ...] = ()  # of a user's functions and executions: numbers
    # by RunRow.key; what dies and links did between iterations: ``archsim.runs.columns.measure_frames``
    frames: Mapping[str, Mapping[str, list]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.experiment["name"]

    @property
    def policies(self) -> list[str]:
        return [each["name"] for each in self.experiment["policies"]]

    @property
    def systems(self) -> dict[str, Mapping[str, Any]]:
        return {each["name"]: each for each in self.experiment["systems"]}

    @property
    def models(self) -> dict[str, Mapping[str, Any]]:
        return {each["name"]: each for each in self.experiment["models"]}

    @property
    def batches(self) -> list[int]:
        return list(self.experiment["workload"]["batch"])

    @property
    def synthetic(self) -> bool:
        return not isinstance(self.experiment["workload"]["trace"], str)

    @property
    def traces(self) -> list[str]:
        return list(dict.fromkeys(run.trace for run in self.runs))

    def moe_layers(self, model: str) -> int:
        layers = self.models[model]["moe_layers"]
        return len(range(layers["first"], layers["last"] + 1, layers["every"]))

    def dies_of(self, run: RunRow) -> int:
        x, y = run.get("mesh_x"), run.get("mesh_y")
        if built_of(self.systems[run.place.system]) is not None:
            return dies_of(self.systems[run.place.system])
        return dies_of(self.systems[run.place.system]) if x is None or y is None else int(x * y)

    def layers_of(self, run: RunRow) -> int:
        """Number of MoE layers that a run simulated: ``workload.layers`` or the trace may limit it."""
        ran = run.get("layers")
        return self.moe_layers(run.place.model) if ran is None else int(ran)

    def layers(self, runs: Iterable[RunRow] | None = None) -> Parts:
        """Model → (numbers of MoE layers that its runs simulated, number it has), over all runs or these."""
        rows = ({"model": run.place.model, "layers": run.get("layers")} for run in runs or self.runs)
        return layers_that_ran(rows, {model: self.moe_layers(model) for model in self.models})

    def tie_pairs(self) -> list[tuple[str, str]]:
        """Labels of assumption sets that differ only in the order of simultaneous events: (sequence, heapq)."""

        def rest(spec: AssumptionsSpec) -> list[str]:
            return [spec.set, *(getattr(spec, field) for field in ASSUMPTIONS if field != "ties")]

        return [
            (ordered, heaped)
            for ordered, spec in self.assumptions.items()
            for heaped, other in self.assumptions.items()
            if (spec.ties, other.ties) == ("sequence", "heapq") and rest(spec) == rest(other)
        ]

    def compared(self) -> list[str]:
        """The assumption sets that figures show: of two that differ only in ties, the one with the shorter label."""
        twins = {max(pair, key=len) for pair in self.tie_pairs()}
        return [label for label in self.assumptions if label not in twins]

    def families(self) -> list[tuple[str, ...]]:
        """Names of systems, grouped if they differ only in ``decision`` (and name and source)."""
        found: dict[str, list[str]] = {}
        for name, system in self.systems.items():
            hardware = {key: value for key, value in system.items() if key not in ("name", "source", "decision")}
            found.setdefault(repr(hardware), []).append(name)
        return [tuple(names) for names in found.values()]

    def shown_systems(self) -> list[str]:
        """Systems with their own panels: all, or the first of each family if there are more than MANY_SYSTEMS."""
        return list(self.systems) if len(self.systems) <= MANY_SYSTEMS else [names[0] for names in self.families()]

    def places(self) -> list[Place]:
        """Places with runs that figures show, ordered by assumption set, system, model."""
        found = {run.place for run in self.runs}
        order = [Place(a, s, m) for a in self.compared() for s in self.shown_systems() for m in self.models]
        return [place for place in order if place in found]

    def at(self, place: Place) -> list[RunRow]:
        """The runs of a place, ordered by batch and policy."""
        return [run for run in self.runs if run.place == place]

    def find(self, place: Place, batch: int, policy: str) -> RunRow | None:
        return next((run for run in self.at(place) if (run.batch, run.policy) == (batch, policy)), None)


def read_report(folder: Path) -> Report:
    """Read manifest.yaml, results.csv, dies.csv and links.csv of ``folder``.

    Raises ReportError (or SpecError for the manifest), with file and line, for missing or inconsistent data.
    """
    tree = read_yaml(_existing(folder / MANIFEST))
    experiment = {key: value for key, value in tree.data.items() if key != MANIFEST_KEY}
    specs = [validate(AssumptionsSpec, tree, ("assumptions", i)) for i in range(len(experiment["assumptions"]))]
    order = {
        "system": [each["name"] for each in experiment["systems"]],
        "model": [each["name"] for each in experiment["models"]],
        "batch": [str(batch) for batch in experiment["workload"]["batch"]],
        "policy": [each["name"] for each in experiment["policies"]],
        "assumptions": [spec.label for spec in specs],
    }
    functions = (*experiment.get("columns", ()), *(spec.execution for spec in specs if columns_of(spec.execution)))
    own = tuple(each for each in columns_with(tuple(dict.fromkeys(functions)))[len(COLUMNS) :] if each.kind != WORD)
    rows = []
    for where, row in _rows(folder / "results.csv", RESULT_COLUMNS):
        rows.append((_rank(where, row, order), _run(where, row, own)))
    if not rows:
        raise ReportError(f"{folder / 'results.csv'}: no runs")
    runs = tuple(run for _, run in sorted(rows, key=lambda each: each[0]))
    report = Report(
        folder=folder, experiment=experiment, made=tree.data.get(MANIFEST_KEY) or {},
        assumptions={spec.label: spec for spec in specs}, runs=runs,
        dies=_by_run(folder / "dies.csv", DIE_COLUMNS, _die), links=_by_run(folder / "links.csv", LINK_COLUMNS, _link),
        pairs=_pairs(folder / "pairs.csv"), steps=_steps(folder / STEPS), own=own, frames=_frames(folder / FRAMES),
    )
    _check_complete(report)
    return report


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ReportError(
            f"{path}: no such file; a report folder holds results.csv, dies.csv, links.csv and manifest.yaml"
        )
    return path


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, columns) of every row. Raises ReportError for a missing column or a row of the wrong length."""
    with _existing(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        missing = [column for column in needed if column not in header]
        if missing:
            raise ReportError(f"{path}:1: column {missing[0]!r} is missing")
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                raise ReportError(f"{where}: {len(cells)} columns, expected {len(header)}")
            yield where, dict(zip(header, cells, strict=True))


def _rank(where: str, row: dict[str, str], order: dict[str, list[str]]) -> tuple[int, ...]:
    for key, names in order.items():
        if row[key] not in names:
            raise ReportError(f"{where}: {key} {row[key]!r} is not in manifest.yaml (it has {', '.join(names)})")
    ranks = {key: names.index(row[key]) for key, names in order.items()}
    return tuple(ranks[key] for key in ("assumptions", "system", "model", "batch", "policy"))


def _run(where: str, row: dict[str, str], own: tuple[Column, ...]) -> RunRow:
    numbers = {
        column: _number(where, column, row[column]) for column in NUMBERS if row[column] or column not in OPTIONAL
    }
    later = (*LATER, *(column.name for column in own))
    numbers |= {column: _number(where, column, row[column]) for column in later if row.get(column)}
    place = Place(row["assumptions"], row["system"], row["model"])
    words = {column: row[column] for column in WORDS if row.get(column)}
    return RunRow(row["run"], place, int(row["batch"]), row["policy"], row["trace"], row["engine"], numbers, words)


def _number(where: str, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ReportError(f"{where}: {column}: {cell!r} is not a number") from None


def _by_run(path: Path, needed: tuple[str, ...], read) -> dict[str, tuple]:
    found: dict[str, list] = {}
    for where, row in _rows(path, needed):
        found.setdefault(row["run"], []).append(read(where, row))
    return {run: tuple(each) for run, each in found.items()}


def _pairs(path: Path) -> dict[str, dict[str, dict[tuple[int, int], float]]]:
    """Empty for folders of older versions, which have no such file."""
    found: dict[str, dict[str, dict[tuple[int, int], float]]] = {}
    for where, row in _rows(path, PAIR_COLUMNS) if path.is_file() else ():
        pair = int(row["src"]), int(row["dst"])
        for column, cell in row.items():
            if column.endswith("_bytes") and cell != "0":
                sent = found.setdefault(row["run"], {}).setdefault(column.removesuffix("_bytes"), {})
                sent[pair] = _number(where, column, cell)
    return found


def _frames(path: Path) -> dict[str, dict[str, list]]:
    """Empty for folders of older versions, which have no such file."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from None


def _steps(path: Path) -> dict[str, Steps]:
    """Empty for folders of older versions, which have no such file. The rows of a run are consecutive."""
    if not path.is_file():
        return {}
    from pyarrow import parquet

    bounds = [column.name for column in STEP_TABLE if column.name.startswith("bound_")]
    there = parquet.read_schema(path).names  # folders of older versions have less
    bounds, more = ([name for name in names if name in there] for names in (bounds, OF_STEPS))
    names = ("run", "step", "layer", "time_ns", "link_src", "link_dst", *bounds, *more)
    table = parquet.read_table(path, columns=list(names))
    runs = np.array(table["run"].to_pylist(), dtype=str)
    columns = {name: table[name].to_numpy() for name in names if name != "run"}
    first = np.flatnonzero(np.concatenate(([True], runs[1:] != runs[:-1]))) if len(runs) else np.zeros(0, int)
    found = {}
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(runs)], strict=True):
        own = {name: column[begin:end] for name, column in columns.items()}
        at = int(own["time_ns"].argmax())
        waited = {name.removeprefix("bound_").removesuffix("_ns"): float(own[name][at]) for name in bounds}
        ends = own["link_src"][at], own["link_dst"][at]
        slowest = Step(
            int(own["step"][at]), int(own["layer"][at]), float(own["time_ns"][at]),
            {name: ns for name, ns in waited.items() if ns},
            None if np.isnan(ends[0]) else (int(ends[0]), int(ends[1])),
        )
        kept = {name: own[name] for name in ("link_src", "link_dst", *bounds, *more)}
        found[str(runs[begin])] = Steps(own["step"], own["layer"], own["time_ns"], slowest, kept)
    return found


def _die(where: str, row: dict[str, str]) -> Die:
    numbers = {
        column: _number(where, column, row[column]) for column in DIE_COLUMNS[1:] if row[column] or column not in PLACES
    }
    return Die(
        int(numbers["die"]),
        *(_at(row, "x", "y") or (None, None)),
        hbm=numbers["hbm_utilisation"],
        compute=numbers["compute_utilisation"],
        activation_bytes=numbers["activation_bytes"],
        phases={
            phase: (float(row[f"{phase}_tokens"]), float(row[f"{phase}_hbm_bytes"]))
            for phase in ("prefill", "decode")
            if row.get(f"{phase}_tokens") and row.get(f"{phase}_hbm_bytes")
        },
        **{name: float(row[name]) for name in (*_KELVIN, "power_w", "clock", "prefill_clock") if row.get(name)},
        speeds=(float(row.get("array_speed") or 1.0), float(row.get("hbm_speed") or 1.0)),
    )


def die_of_row(row: Mapping[str, Any]) -> Die:
    """A die of the table of dies."""
    return _die("dies", _as_cells(row))


def link_of_row(row: Mapping[str, Any]) -> Link:
    """A link of the table of links."""
    return _link("links", _as_cells(row))


def _as_cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


_KELVIN = ("temperature_c", "hbm_temperature_c")


def _link(where: str, row: dict[str, str]) -> Link:
    read = [column for column in LINK_COLUMNS[1:] if column != "direction" and (row[column] or column not in PLACES)]
    numbers = {column: _number(where, column, row[column]) for column in read}
    return Link(
        int(numbers["src"]), int(numbers["dst"]), _at(row, "src_x", "src_y"), _at(row, "dst_x", "dst_y"),
        row["direction"] == "both ways", numbers["utilisation"],
    )


def _at(row: dict[str, str], x: str, y: str) -> tuple[int, int] | None:
    """(column, row) of a node; None in a fabric without coordinates."""
    return (int(float(row[x])), int(float(row[y]))) if row[x] and row[y] else None


def _check_complete(report: Report) -> None:
    """Every run must have a row for each of its dies, and links if it has more than one die."""
    for run in report.runs:
        dies = report.dies_of(run)
        found = len(report.dies.get(run.key, ()))
        if found != dies:
            raise ReportError(
                f"{report.folder / 'dies.csv'}: {found} rows for run {run.key} ({run.label}), expected {dies}"
            )
        if dies > 1 and run.key not in report.links:
            raise ReportError(f"{report.folder / 'links.csv'}: no rows for run {run.key} ({run.label})")

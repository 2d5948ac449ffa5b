"""The results in a report's folder as its pages show them, and the tables of the page, as plain rows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base.causes import CAUSES
from archsim.base.errors import ArchsimError
from archsim.base.tables import TEXT, Table
from archsim.base.validation import validate
from archsim.base.yaml import read_yaml
from archsim.report.units import (
    NO_BREAK,
    RATE_UNITS,
    TIME_UNITS,
    Unit,
    factor,
    percent,
    prefixed,
    scaled,
    signed_percent,
    significant,
    unit_of,
)
from archsim.runs.columns import COLUMNS as RUN_COLUMNS
from archsim.runs.columns import LAYOUT, Column, columns_with, shown_columns
from archsim.runs.plan import with_areas
from archsim.runs.results import AGAIN, Layers, Results, Row, layers_that_ran
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec, meaning_of, shipped_sets
from archsim.specs.axes import SWEEP_KEY
from archsim.specs.decision import DecisionSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import MANIFEST, MANIFEST_KEY
from archsim.specs.model import ModelSpec
from archsim.specs.system import SystemSpec

CLOSE = 0.01  # policies within this relative difference of throughput are listed together
BOUNDS = {f"bound_{cause.column}": about.label for cause, about in CAUSES.items()}  # column → cause, as pages call it


def bound_shares(run: Row) -> dict[str, float]:
    """Cause, as pages call it → its share of the critical path; 0 where it is not known."""
    return {name: run.get(column) or 0.0 for column, name in BOUNDS.items()}


# ---- report

MANY_SYSTEMS = 4  # with more, figures show one of those that differ only in the executor


class Panel(NamedTuple):
    """What runs of different batches and policies share: one panel of a figure."""

    assumptions: str
    system: str
    model: str


def place_of(run: Row) -> Panel:
    return Panel(run["assumptions"], run["system"], run["model"])


class Report:
    """A report's folder: the experiment of its manifest, resolved, with the names of its parts in their order; and its
    results. ``made``: version, seeds, digests; ``assumptions``: by label; ``runs``: in the order of assumption sets,
    systems, models, batches and policies; ``dies``, ``links``, ``pairs`` and ``steps``: key of a run → its rows of
    these tables; ``frames``: see `archsim.runs.results.Results`; ``own``: columns of a user's functions and executions
    that hold numbers.

    Raises SpecError for the manifest, and ArchsimError for files that are missing or inconsistent, or of an older
    archsim.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tree = read_yaml(folder / MANIFEST)
        self.made: Mapping[str, Any] = tree.data.get(MANIFEST_KEY) or {}
        if (layout := self.made.get("layout")) != LAYOUT:
            written = f"results of layout {layout}" if layout else "no layout of results"
            raise ArchsimError(f"{folder / MANIFEST}: {written}. {AGAIN}")
        tree.data.pop(MANIFEST_KEY, None)
        if SWEEP_KEY in tree.data:
            raise ArchsimError(f"{folder / MANIFEST}: has axes ({SWEEP_KEY}:); expected the report of an experiment")
        self.experiment = validate(ExperimentSpec, tree, code=False)
        self.assumptions: dict[str, AssumptionsSpec] = {spec.label: spec for spec in self.experiment.assumptions}
        self.name: str = self.experiment.name
        self.systems: dict[str, SystemSpec] = {each.name: each for each in self.experiment.systems}
        self.models: dict[str, ModelSpec] = {each.name: each for each in self.experiment.models}
        self.policies: list[str] = [each.name for each in self.experiment.policies]
        self.batches: list[int] = list(self.experiment.workload.batch)
        self.synthetic = not isinstance(self.experiment.workload.trace, str)
        own = columns_with(self.experiment.all_columns)[len(RUN_COLUMNS) :]
        self.own = tuple(column for column in own if column.kind != TEXT)
        results = Results.load(folder)
        self.runs = self._ordered(results.runs)
        self.traces: list[str] = list(dict.fromkeys(run["trace"] for run in self.runs))
        self.dies, self.links, self.pairs, self.steps = (
            table.by("run") for table in (results.dies, results.links, results.pairs, results.steps)
        )
        self.frames = results.frames
        self._at: dict[Panel, list[Row]] = {}
        for run in self.runs:
            self._at.setdefault(place_of(run), []).append(run)
        self._check_complete()

    def _ordered(self, runs: Table) -> Table:
        order: dict[str, list[Any]] = {
            "assumptions": list(self.assumptions), "system": list(self.systems), "model": list(self.models),
            "batch": self.batches, "policy": self.policies,
        }  # fmt: skip
        for run in runs:
            for name, known in order.items():
                if run[name] not in known:
                    raise ArchsimError(
                        f"{self.folder}: run {run['run']} has {name} {run[name]!r}, which is not in {MANIFEST} (it has "
                        f"{', '.join(map(str, known))})"
                    )
        if not len(runs):
            raise ArchsimError(f"{self.folder}: no runs")
        return Table(runs.columns, sorted(runs, key=lambda run: [order[name].index(run[name]) for name in order]))

    def _check_complete(self) -> None:
        """Every run must have a row for each of its dies, and links if it has more than one die."""
        made = {name: with_areas(system) for name, system in self.systems.items()}
        sizes = {name: None if each.mesh and each.built is None else each.dies for name, each in made.items()}
        for run in self.runs:
            dies, found = sizes[run["system"]] or run["mesh_x"] * run["mesh_y"], len(self.dies.get(run["run"], ()))
            name = f"run {run['run']} ({run['policy']}, batch {run['batch']}, {run['model']} on {run['system']}, "
            name += f"{run['assumptions']})"
            if found != dies:
                raise ArchsimError(f"{self.folder / 'dies.csv'}: {found} rows for {name}, expected {dies}")
            if dies > 1 and run["run"] not in self.links:
                raise ArchsimError(f"{self.folder / 'links.csv'}: no rows for {name}")

    def links_of(self, run: Row) -> Sequence[Row]:
        return self.links[run["run"]].rows if run["run"] in self.links else ()

    def layers(self) -> Layers:
        """The MoE layers that ran: `workload.layers` or the trace may limit them."""
        return layers_that_ran(self.runs, {run["model"]: run["model_layers"] for run in self.runs})

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
        found: list[tuple[SystemSpec, list[str]]] = []
        for name, system in self.systems.items():
            hardware = system.model_copy(update={"name": "", "source": "", "decision": DecisionSpec()})
            names = next((names for other, names in found if other == hardware), None)
            if names is None:
                found.append((hardware, names := []))
            names.append(name)
        return [tuple(names) for _, names in found]

    def shown_systems(self) -> list[str]:
        """Systems with their own panels: all, or the first of each family if there are more than MANY_SYSTEMS."""
        return list(self.systems) if len(self.systems) <= MANY_SYSTEMS else [names[0] for names in self.families()]

    def places(self) -> list[Panel]:
        """Places with runs that figures show, ordered by assumption set, system, model."""
        order = (Panel(a, s, m) for a in self.compared() for s in self.shown_systems() for m in self.models)
        return [place for place in order if place in self._at]

    def at(self, place: Panel) -> list[Row]:
        """The runs of a place, ordered by batch and policy."""
        return self._at.get(place, [])

    def shown(self) -> list[Row]:
        """The runs that figures show."""
        return [run for place in self.places() for run in self.at(place)]

    def of_system(self, name: str) -> list[Row]:
        """The runs of a system under the assumption sets that figures show."""
        compared = self.compared()
        return [run for run in self.runs if run["system"] == name and run["assumptions"] in compared]

    def beside(self, run: Row, **other: Any) -> Row | None:
        """The run that differs from this one in these columns alone: ``report.beside(run, policy="ep")``."""
        wanted = {name: run[name] for name in ("assumptions", "system", "model", "batch", "policy")} | other
        runs = self.at(place_of(wanted))
        return next((each for each in runs if all(each[name] == wanted[name] for name in ("batch", "policy"))), None)


# ---- tables


class Cell(NamedTuple):
    """Text, and its sort key."""

    text: str
    order: float | str


class ShownColumn(NamedTuple):
    """A column of the results table; ``units``: one is chosen for the whole column and stated in its header."""

    header: str
    name: str
    meaning: str
    units: tuple[Unit, ...]
    write: Callable[[float], str]

    def shown(self, value: float) -> str:
        """One value with its unit."""
        worth, unit = unit_of([value], self.units)
        written = self.write(value / worth)
        return f"{written}{'' if not unit or written[-1:].isalpha() or unit == '×' else NO_BREAK}{unit}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


_PLAIN = ((1.0, ""),)
# Unit of a results column → how its values are written.
_WRITTEN: dict[str, tuple[tuple[Unit, ...], Callable[[float], str]]] = {
    "ns": (TIME_UNITS, significant),
    "tokens/s": (RATE_UNITS, significant),
    "bytes": (((1.0, "B"),), prefixed),
    "byte hops": (((1.0, "B · hops"),), prefixed),
    "message hops": (_PLAIN, prefixed),
    "events": (_PLAIN, prefixed),
    "share": (((0.01, "%"),), significant),
    "percent": (((1.0, "%"),), significant),
    "W": (((1e6, "MW"), (1e3, "kW"), (1.0, "W")), significant),
    "C": (((1.0, "C"),), significant),
    "×": (((1.0, "×"),), significant),
    "steps": (_PLAIN, _count),
}


def _as_shown(column: Column, header: str) -> ShownColumn:
    return ShownColumn(header, column.name, column.meaning, *_WRITTEN.get(column.unit, (_PLAIN, significant)))


COLUMNS = tuple(_as_shown(each, each.header) for each in shown_columns())


def results(report: Report) -> tuple[list[dict[str, str]], list[list[Cell]]]:
    """(headers with units and meanings, rows) of every run; columns empty in all runs are left out."""
    headers = [{"text": name, "meaning": ""} for name in ("system", "model", "batch", "policy", "assumptions")]
    chosen = []
    for column in (*COLUMNS, *(_as_shown(each, each.name) for each in report.own)):
        if all(run[column.name] is None for run in report.runs):
            continue
        unit = unit_of([run[column.name] or 0.0 for run in report.runs], column.units)
        chosen.append((column, unit[0]))
        headers.append(
            {"text": f"{column.header} [{unit[1]}]" if unit[1] else column.header, "meaning": column.meaning}
        )
    rows = []
    for run in report.runs:
        cells = [Cell(run["system"], run["system"]), Cell(run["model"], run["model"])]
        cells += [Cell(_count(run["batch"]), run["batch"]), Cell(run["policy"], run["policy"])]
        cells += [Cell(run["assumptions"], run["assumptions"])]
        for column, worth in chosen:
            value = run[column.name]
            cells.append(Cell("–", -1.0) if value is None else Cell(column.write(value / worth), float(value)))
        rows.append(cells)
    return headers, rows


def fastest(runs: Iterable[Row]) -> list[Row]:
    """Of runs that decoded, those within CLOSE of the highest throughput, in their order."""
    rates = [(run["throughput_tokens_per_s"], run) for run in runs if run["throughput_tokens_per_s"]]
    highest = max((rate for rate, _ in rates), default=0.0)
    return [run for rate, run in rates if rate >= highest * (1 - CLOSE)]


def overview(report: Report) -> list[dict[str, Any]]:
    """For every place, the fastest policies at the largest batch (all within CLOSE), and the bottleneck of the
    first.
    """
    rows = []
    for place in report.places():
        runs = report.at(place)
        decoded = [run["batch"] for run in runs if run["throughput_tokens_per_s"]]
        if not decoded:
            continue
        batch = max(decoded)
        close = fastest(run for run in runs if run["batch"] == batch)
        best = close[0]
        shares = bound_shares(best)
        longest = max(shares, key=lambda name: shares[name])
        rows.append(
            {
                "place": place,
                "batch": _count(batch),
                "policies": ", ".join(run["policy"] for run in close),
                "throughput": _known(best["tokens_per_s"], lambda rate: scaled(rate, RATE_UNITS)),
                "step": _known(best["decode_step_ns"], lambda ns: scaled(ns, TIME_UNITS)),
                "over": _known(best["over_roofline"], factor),
                "gain": _known(best["speedup_vs_ep"], factor, "no ep run"),
                "speedup": _known(best["speedup_vs_base"], factor, "no base run"),
                "bound": f"{longest}, {percent(shares[longest])} of the time" if shares[longest] else "not recorded",
            }
        )
    return rows


def _known(value: float | None, write: Callable[[float], str], unknown: str = "not recorded") -> str:
    return unknown if value is None else write(value)


def assumptions(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Every field with its value in each set and the meaning; ``differ``: fields in which sets differ; ``same``: the
    others.
    """
    split: dict[str, list[dict[str, Any]]] = {"differ": [], "same": []}
    specs = list(report.assumptions.values())
    for field, meanings in ASSUMPTIONS.items():
        values = [getattr(spec, field) for spec in specs]
        row = {
            "field": field,
            "values": values,
            "meanings": {value: meanings.get(value) or meaning_of(value) for value in dict.fromkeys(values)},
        }
        split["differ" if len(set(values)) > 1 else "same"].append(row)
    return split


def origins(report: Report) -> dict[str, str]:
    """Label of an assumption set → the origin of its values."""
    shipped = shipped_sets()
    return {
        label: shipped[spec.set].origin if spec.set in shipped else "defined by the experiment"
        for label, spec in report.assumptions.items()
    }


def ties(report: Report) -> list[dict[str, str]]:
    """Change of each run when events at equal times are processed in (time, sequence) order; empty without such
    runs.
    """
    rows = []
    for ordered, heaped in report.tie_pairs():
        for run in report.runs:
            if run["assumptions"] != heaped:
                continue
            if (other := report.beside(run, assumptions=ordered)) is not None:
                change = other["decode_ns"] / run["decode_ns"] - 1
                rows.append({name: run[name] for name in ("system", "model", "policy")} | {
                    "batch": _count(run["batch"]), "heapq": scaled(run["decode_ns"], TIME_UNITS),
                    "sequence": scaled(other["decode_ns"], TIME_UNITS), "change": signed_percent(change),
                })  # fmt: skip
    return rows

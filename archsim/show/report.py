"""A report of runs, read once: its runs, places, policies and files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base.errors import ArchsimError
from archsim.base.tables import TEXT, Table
from archsim.base.validation import validate
from archsim.base.yaml import read_yaml
from archsim.machine.decision import DecisionSpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.runs.columns import COLUMNS as RUN_COLUMNS
from archsim.runs.columns import LAYOUT, columns_with
from archsim.runs.plan import with_areas
from archsim.runs.results import AGAIN, Layers, Results, Row, layers_that_ran
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec
from archsim.specs.axes import SWEEP_KEY
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import MANIFEST, MANIFEST_KEY

RANGES = "ranges.json"  # beside results: pairs of runs in worlds
MANY_SYSTEMS = 4  # with more, figures show one of those that differ only in the executor


def ranges_in(folder: Path) -> Mapping[str, Any]:
    """What worlds say of some runs of a report (`archsim.questions.ranges`); {} without."""
    file = folder / RANGES
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def samples_in(folder: Path) -> int:
    """How many worlds the ranges of a report are of; 0 without."""
    return int(ranges_in(folder).get("samples", 0))


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
    that hold numbers; ``ranges``: what worlds say of some runs (`archsim.questions.ranges`), {} without.

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
        self.runs = self._order(results.runs)
        self.traces: list[str] = list(dict.fromkeys(run["trace"] for run in self.runs))
        self.dies, self.links, self.pairs, self.steps = (
            table.by("run") for table in (results.dies, results.links, results.pairs, results.steps)
        )
        self.frames = results.frames
        self.ranges = ranges_in(folder)
        self._at: dict[Panel, list[Row]] = {}
        for run in self.runs:
            self._at.setdefault(place_of(run), []).append(run)
        self._check_complete()

    def _order(self, runs: Table) -> Table:
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

    def compared_sets(self) -> list[str]:
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
        order = (Panel(a, s, m) for a in self.compared_sets() for s in self.shown_systems() for m in self.models)
        return [place for place in order if place in self._at]

    def at(self, place: Panel) -> list[Row]:
        return self._at.get(place, [])

    def shown(self) -> list[Row]:
        return [run for place in self.places() for run in self.at(place)]

    def of_system(self, name: str) -> list[Row]:
        compared = self.compared_sets()
        return [run for run in self.runs if run["system"] == name and run["assumptions"] in compared]

    def beside(self, run: Row, **other: Any) -> Row | None:
        """The run that differs from this one in these columns alone: ``report.beside(run, policy="ep")``."""
        wanted = {name: run[name] for name in ("assumptions", "system", "model", "batch", "policy")} | other
        runs = self.at(place_of(wanted))
        return next((each for each in runs if all(each[name] == wanted[name] for name in ("batch", "policy"))), None)

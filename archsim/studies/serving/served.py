"""From a plan of ``archsim serve`` to its folder: run what is not kept, then write tables and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.files import sole_writer
from archsim.base.tables import Shown, Table
from archsim.runs import store as cache
from archsim.runs.manifest import seal
from archsim.runs.results import Record
from archsim.runs.sweep import Unwatched, Watcher, complete
from archsim.serving.serving import Outcome
from archsim.serving.simulate import Progress
from archsim.specs.library import MANIFEST
from archsim.studies.serving.page import Loaded, write_outcome, write_points_page
from archsim.studies.serving.runs import (
    MADE_LAST,
    TABLES,
    ByInput,
    Load,
    ServePlan,
    ServeRun,
    ServeStore,
    Simulator,
    asked_loads,
    at_load,
    input_loads,
    input_runs,
    load_runs,
    measures_of,
    table_of,
    write_manifest,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class ServedPlan(Shown):
    """``outcomes``: of a plain file, one a policy; none of a file with axes. ``table``: a row a run."""

    plan: ServePlan
    outcomes: tuple[Outcome, ...]
    table: Table

    def __repr__(self) -> str:
        return f"ServedPlan({self.plan!r}, {self.table!r})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run: its point, axes, policy and measures."""
        return self.table.to_pandas()


def serve_all(plan: ServePlan, watcher: Watcher | None = None) -> ServedPlan:
    """Serve every run of a plan; nothing is written. Raises ArchsimError for a plain file that cannot be served."""
    watching = watcher or Unwatched()
    runs = plan.runs()
    outcomes: dict[str, Outcome] = {}
    keep = lambda run, outcome: outcomes.update({run.key: outcome})  # noqa: E731
    simulator = Simulator(not plan.has_axes, Progress(watching.at), keep)
    watching.begin(len(runs))
    records: dict[str, Record] = {}
    for run, reply in simulator(runs):
        records[run.key] = reply
        watching.finished(run, reply)
    return ServedPlan(plan, tuple(outcomes[run.key] for run in runs if run.whole), table_of(plan, runs, records))


def serve_into(plan: ServePlan, folder: Path, watcher: Watcher | None = None, around: bool = True) -> ServedPlan:
    """As ``serve_all``, into a folder in which what is there is kept; ``around``: also at the loads of its page."""
    watching = watcher or Unwatched()
    with sole_writer(folder):
        store = ServeStore(folder)
        runs = plan.runs()
        others = _others(runs) if around and not plan.has_axes else ()
        write_manifest(folder, plan, runs)
        watching.begin(len(runs) + len(others))
        outcomes: dict[str, Outcome] = {}

        def keep(run: ServeRun, outcome: Outcome) -> None:
            store.save_served(run, outcome.served)
            outcomes[run.key] = outcome

        def outdate() -> None:
            for name in MADE_LAST:
                (folder / name).unlink(missing_ok=True)

        simulator, failures = Simulator(not plan.has_axes, Progress(watching.at), keep), []
        records = complete((*runs, *others), simulator, store, watching, failures, outdate=outdate)
        cache.remove_oldest()
        if failures:
            raise ArchsimError("\n".join(failures))
        watching.phase("writing the tables and the page")
        found = tuple(outcomes.get(run.key) or store.outcome(run, records[run.key]) for run in runs if run.whole)
        table = table_of(plan, runs, records)
        table.write_parquet(folder / "results.parquet")
        if plan.has_axes:
            write_points_page(plan, table, folder)
        else:
            _write_pages(folder, runs, found, records, around)
        table.write_csv(folder / "results.csv")
        seal(folder, "results.csv")
    return ServedPlan(plan, found, table)


def _others(runs: Sequence[ServeRun]) -> tuple[ServeRun, ...]:
    """At the loads of the page, and by length of prompts; each once."""
    found = [each for run in runs for each in (*load_runs(run), *(longer for _, longer in input_runs(run)))]
    here = {run.key for run in runs}
    return tuple({each.key: each for each in found if each.key not in here}.values())


def _write_pages(
    folder: Path, runs: Sequence[ServeRun], outcomes: Sequence[Outcome], records: dict[str, Record], around: bool
) -> None:
    loaded = [_loaded(run, records) for run in runs] if around else []
    for at, outcome in enumerate(outcomes[1:], 1):
        write_outcome(outcome, loaded[at : at + 1], folder / outcome.serving.policy.name)
    write_outcome(outcomes[0], loaded, folder, outcomes, (*TABLES, MANIFEST))


def _loaded(run: ServeRun, records: dict[str, Record]) -> Loaded:
    """What the page of a run shows of other loads."""
    own = {run.offered: run}
    around = [own.get(load) or at_load(run, load) for load in asked_loads(run)]
    loads = [Load(each.offered, measures_of(records[each.key]["row"])) for each in around]
    return Loaded(run.serving.policy.name, loads, _by_input(run, records))


def _by_input(run: ServeRun, records: dict[str, Record]) -> ByInput | None:
    inputs, asked = run.serving.spec.loads.inputs, input_loads(run)
    if not inputs:
        return None
    ttft = [records[each.key]["row"]["ttft_mean_ms"] for _, each in input_runs(run)]
    return ByInput(inputs, asked, np.array(ttft).reshape(len(inputs), len(asked)))

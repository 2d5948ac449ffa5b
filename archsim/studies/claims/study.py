"""From a paper's file to its numbers: run what is missing, under each of its rules, and judge."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsim.base.shown import Shown
from archsim.runs.plan import select
from archsim.runs.sweep import Watcher, sweep_selected
from archsim.specs.loading.library import load_planned
from archsim.specs.papers import PaperSpec, RunSpec, listed_ids
from archsim.studies.claims.evaluate import Answered, Judged, Row, answered, value_of
from archsim.studies.serving.plan import serve_plan
from archsim.studies.serving.served import serve_into

if TYPE_CHECKING:
    import pandas

_AXIS = "axis."  # begins a column of a sweep's results
PHYSICAL, OWN = "under physical", "under the paper's rules"


@dataclass(frozen=True, eq=False)
class Claims(Shown):
    """A paper's numbers beside its runs. ``runs``: how many there are in all."""

    paper: PaperSpec
    judged: tuple[Judged, ...]
    answers: tuple[Answered, ...]
    runs: int

    def __repr__(self) -> str:
        return f"Claims({self.paper.title}: {len(self.of('met'))} of {len(self.judged)} rows met)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per judged claim: what, at, published, simulated (under the paper's rules), physical, kind."""
        import pandas

        rows = [
            {
                "what": each.group.what, "at": str(each.row.at or ""), "published": each.row.published,
                "simulated": each.simulated, "physical": each.physical, "kind": each.kind,
            }
            for each in self.judged
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def of(self, kind: str) -> tuple[Judged, ...]:
        """Those of a kind: met, missed, fit or none."""
        return tuple(each for each in self.judged if each.kind == kind)

    @property
    def numbers(self) -> int:
        """How many the paper publishes."""
        return len(listed_ids(self.paper.numbers))

    @property
    def outside(self) -> tuple[str, ...]:
        """Ids of those that are out of scope."""
        return tuple(name for part in self.paper.outside for name in listed_ids(part.ids))


class _Made(NamedTuple):
    rows: Sequence[Row]
    axes: tuple[str, ...]


def judge_paper(paper: PaperSpec, folder: Path, jobs: int | None, watcher: Watcher) -> Claims:
    """Runs that ``folder`` has are kept. Raises SpecError, CapacityError, TraceError; FailedRuns."""
    last = len(paper.rules)
    used = dict.fromkeys([*(group.run for group in paper.claims), *(each.run for each in paper.answers)])
    made = {name: {at: _make(paper, name, at, folder, jobs, watcher) for at in paper.steps(name)} for name in used}
    judged = []
    for group, row in paper.rows():
        values = {at: value_of(group, row, each.rows, each.axes) for at, each in made[group.run].items()}
        judged.append(Judged(group, row, values, paper.steps(group.run)))
    answers = []
    for answer in paper.answers:
        of = made[answer.run]
        ends = {OWN: of[max(of)], PHYSICAL: of[0]} if last else {PHYSICAL: of[0]}
        answers.append(answered(answer, {name: each.rows for name, each in ends.items()}, of[0].axes))
    runs = sum(len(each.rows) for of in made.values() for each in of.values())
    return Claims(paper, tuple(judged), tuple(answers), runs)


def _make(paper: PaperSpec, name: str, rules: int, folder: Path, jobs: int | None, watcher: Watcher) -> _Made:
    """The rows of a run under the first ``rules`` rules."""
    spec, overrides = paper.runs[name], paper.overrides(name, rules)
    where = folder / name / _label(overrides)
    watcher.phase(f"{paper.paper}: {name}, {paper.steps(name)[rules]}")
    if spec.sweep:
        return _swept(spec.sweep, overrides, where, jobs, watcher)
    return _served(spec, overrides, where, watcher)


def _label(overrides: Sequence[str]) -> str:
    """A folder of their own for other overrides, so that what is kept of each stays."""
    return hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:8] if overrides else "physical"


def _swept(source: Mapping, overrides: Sequence[str], folder: Path, jobs: int | None, watcher: Watcher) -> _Made:
    selection = select(load_planned(source, overrides), watcher.phase)
    rows = sweep_selected(selection, folder, jobs, watcher).runs.rows
    # an axis is named as in the file, as it is in tables of serving
    named = [{key.removeprefix(_AXIS): value for key, value in row.items()} for row in rows]
    return _Made(named, tuple(axis.name for axis in selection.plan.sweep.axes))


def _served(spec: RunSpec, overrides: Sequence[str], folder: Path, watcher: Watcher) -> _Made:
    assert spec.serve is not None
    plan = serve_plan(spec.serve, overrides)
    return _Made(serve_into(plan, folder, watcher, around=False).table.rows, tuple(plan.first.axes))

"""Reproduces the numbers of a paper: runs what is missing under each of its rules, and tests the results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from yaml import safe_load

from archsim.base import code_digest, config_files, own_code, sums, tables
from archsim.evidence import judged_claims
from archsim.runs.plan import select
from archsim.runs.sweep import Watcher, sweep_selected
from archsim.serving.answers.page import serve_into
from archsim.serving.answers.runs import serve_plan
from archsim.specs import library, papers

if TYPE_CHECKING:
    import pandas


_AXIS = "axis."  # begins a column of a sweep's results
PHYSICAL, OWN = "under physical", "under the paper's rules"


@dataclass(frozen=True, eq=False)
class Claims(tables.Shown):
    """A paper's numbers beside its runs. ``runs``: how many there are in all."""

    paper: papers.PaperSpec
    judged: tuple[judged_claims.JudgedClaim, ...]
    answers: tuple[judged_claims.AnswerCells, ...]
    runs: int
    bars: tuple[tuple[Any, str, float], ...] = ()  # of its figure: (value of the column, part, quantity)

    def __repr__(self) -> str:
        counted = (f"{len(self.of(kind))} {kind}" for kind in ("reproduced", "better", "missed"))
        return f"Claims({self.paper.title}: {len(self.judged)} rows, {', '.join(counted)})"

    def to_pandas(self) -> pandas.DataFrame:
        """A row a claim: what, at, published, guess (best null model), simulated, physical, skill, kind."""
        import pandas

        rows = [
            {
                "what": each.group.what, "at": str(each.row.at or ""), "published": each.row.published,
                "guess": each.guess, "simulated": each.simulated, "physical": each.physical, "skill": each.skill,
                "kind": each.kind,
            }
            for each in self.judged
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def of(self, kind: str) -> tuple[judged_claims.JudgedClaim, ...]:
        """The rows of one kind: reproduced, better, missed, follows, fit or none."""
        return tuple(each for each in self.judged if each.kind == kind)

    @cached_property
    def signs(self) -> tuple[judged_claims.JudgedSign, ...]:
        """Which of two systems is faster, for all pairs that its groups name."""
        return tuple(judged_claims.judged_signs(self.judged, self.paper.name_of))

    @cached_property
    def groups(self) -> list[tuple[papers.ClaimGroup, list[judged_claims.JudgedClaim]]]:
        return [(group, [each for each in self.judged if each.group is group]) for group in self.paper.claims]

    def as_recorded(self) -> dict[str, Any]:
        """What was simulated: values by id, bars of the figure, answers; and by which code (`judge_recorded`)."""
        rows = {
            each.row.id: {"values": {str(at): value for at, value in each.values.items()}}
            | ({"ends": list(each.ends)} if each.ends else {})
            for each in self.judged
        }
        answers = [{"columns": each.columns, "rows": each.rows} for each in self.answers]
        return {"code": code_of(self.paper), "rows": rows, "bars": self.bars, "answers": answers}

    @property
    def numbers(self) -> int:
        """How many the paper publishes."""
        return len(papers.listed_ids(self.paper.numbers))

    @property
    def outside(self) -> tuple[str, ...]:
        return tuple(name for part in self.paper.outside for name in papers.listed_ids(part.ids))


class _Made(NamedTuple):
    rows: Sequence[judged_claims.Row]
    axes: tuple[str, ...]


def judge_paper(paper: papers.PaperSpec, folder: Path, jobs: int | None, watcher: Watcher) -> Claims:
    """Runs that ``folder`` has are kept. Raises SpecError, CapacityError, TraceError; FailedRuns."""
    last = len(paper.rules)
    used = dict.fromkeys([*(group.run for group in paper.claims), *(each.run for each in paper.answers)])
    if paper.figure:
        used[paper.figure.run] = None
    made = {
        name: {at: _make(paper, name, at, None, folder, jobs, watcher) for at in paper.steps(name)} for name in used
    }
    ends = {
        name: [_make(paper, name, last, end, folder, jobs, watcher) for end in (0, 1)]
        for name in used
        if paper.has_ends(name)
    }
    judged = []
    for group, row in paper.rows():
        values = {at: judged_claims.value_of(group, row, each.rows, each.axes) for at, each in made[group.run].items()}
        at_ends = tuple(judged_claims.value_of(group, row, each.rows, each.axes) for each in ends.get(group.run, ()))
        judged.append(_judge(paper, group, row, values, at_ends))
    answers = []
    for answer in paper.answers:
        of = made[answer.run]
        both = {OWN: of[max(of)], PHYSICAL: of[0]} if last else {PHYSICAL: of[0]}
        answers.append(judged_claims.answer_of(answer, {name: each.rows for name, each in both.items()}, of[0].axes))
    every = [each for of in made.values() for each in of.values()] + [each for of in ends.values() for each in of]
    runs = sums.sum(len(each.rows) for each in every)
    bars: tuple[tuple[Any, str, float], ...] = ()
    if paper.figure:
        of = made[paper.figure.run]
        bars = judged_claims.bars_of(paper.figure, of[max(of)].rows, of[max(of)].axes)
    return Claims(paper, tuple(judged), tuple(answers), runs, bars)


# What a recorded value depends on, beside the files of a paper.
_CODE = (
    *code_digest.DECIDING, "archsim/serving/*.py", "archsim/evidence/claims.py", "archsim/evidence/judged_claims.py",
    "archsim/evidence/claim_tables.py", "archsim/serving/answers/runs.py",
)  # fmt: skip
_CONFIGS = ("assumptions", "calibrations", "fabrics", "models", "serving", "systems", "traffic")


def code_of(paper: papers.PaperSpec) -> str:
    """12 hex digits of what decides a paper's values: code, files, runs, rules, quantities; not nulls, reasons."""
    digest = hashlib.sha256(f"{code_digest.digest_here(_CODE)} {_configs_digest()}".encode())
    digest.update(paper.model_dump_json(include={"runs", "rules", "answers", "figure"}).encode())
    for group, row in paper.rows():
        digest.update(f"{row.id} {group.run} {group.quantity} {group.at | row.at} {group.against} ".encode())
        digest.update(f"{row.take or group.take} ".encode())
    return digest.hexdigest()[:12]


@lru_cache(maxsize=1)
def _configs_digest() -> str:
    root, digest = config_files.shipped_configs(), hashlib.sha256()
    for file in sorted(file for name in _CONFIGS for file in (root / name).rglob("*") if file.is_file()):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def judge_recorded(paper: papers.PaperSpec, recorded: Mapping[str, Any]) -> Claims | None:
    """Like `judge_paper`, for recorded values (`Claims.as_recorded`): None where other code computed them. A row that
    was not simulated has no value.
    """
    if recorded.get("code") != code_of(paper):
        return None
    judged = []
    for group, row in paper.rows():
        found = recorded["rows"].get(row.id, {"values": {"0": None}})
        values = {int(at): value for at, value in found["values"].items()}
        judged.append(_judge(paper, group, row, values, tuple(found.get("ends", ()))))
    answers = (
        judged_claims.AnswerCells(
            answer, tuple(each["columns"]), tuple((what, tuple(cells), mean) for what, cells, mean in each["rows"])
        )
        for answer, each in zip(paper.answers, recorded.get("answers", ()), strict=False)
    )
    return Claims(paper, tuple(judged), tuple(answers), 0, tuple(map(tuple, recorded.get("bars", ()))))


_OF_ALL = MappingProxyType(
    {"mean": "mean of all", "most": "highest of all", "least": "lowest of all", "total": "ratio of sums over all"}
)


def _judge(
    paper: papers.PaperSpec,
    group: papers.ClaimGroup,
    row: papers.ClaimRow,
    values: Mapping[int, judged_claims.Value],
    ends: tuple[judged_claims.Value, ...],
) -> judged_claims.JudgedClaim:
    place = ", ".join(paper.name_of(key, value) for key, value in row.at.items())
    if not place and len(group.rows) > 1:
        place = _OF_ALL[row.take or group.take]
    return judged_claims.JudgedClaim(
        group, row, values, paper.steps(group.run), paper.guesses_of(group, row), ends, place
    )


def _make(
    paper: papers.PaperSpec, name: str, rules: int, end: int | None, folder: Path, jobs: int | None, watcher: Watcher
) -> _Made:
    """The rows of a run under the first ``rules`` rules, with constants at an ``end`` of their interval."""
    spec, overrides = paper.runs[name], paper.overrides(name, rules, end)
    # other overrides have a folder of their own, so that what is kept of each stays
    own = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:8] if overrides else "physical"
    where = folder / name / own
    watcher.phase(f"{paper.paper}: {name}, " + (paper.steps(name)[rules] if end is None else f"end {end + 1} of 2"))
    if spec.table:
        changed = (override.partition("=") for override in overrides)  # values are YAML
        given = spec.table.given | {key: safe_load(value) for key, _, value in changed}
        return _Made(own_code.import_function(spec.table.function)(**given), ())
    if spec.sweep:
        selection = select(library.load_planned(spec.sweep, overrides), watcher.phase)
        rows = sweep_selected(selection, where, jobs, watcher).runs.rows
        # an axis is named as in the file, as it is in tables of serving
        named = [{key.removeprefix(_AXIS): value for key, value in row.items()} for row in rows]
        return _Made(named, tuple(axis.name for axis in selection.plan.sweep.axes))
    assert spec.serve is not None
    plan = serve_plan(spec.serve, overrides)
    return _Made(serve_into(plan, where, watcher, around=False).table.rows, tuple(plan.first.axes))

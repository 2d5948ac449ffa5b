"""From a paper's file to its numbers: run what is missing, under each of its rules, and judge."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from archsim.base.files import own_folder, write_text
from archsim.base.tables import REAL, TEXT, Shown, Table
from archsim.report.page import rendered
from archsim.report.units import NO_BREAK, significant
from archsim.runs.plan import select
from archsim.runs.sweep import Watcher, sweep_selected
from archsim.specs.constraints import Lookup
from archsim.specs.library import load_planned
from archsim.specs.papers import OTHER, Answer, ClaimGroup, ClaimRow, PaperSpec, RunSpec, listed_ids, parsed_quantity
from archsim.studies.serving.runs import serve_plan
from archsim.studies.serving.served import serve_into

if TYPE_CHECKING:
    import pandas


# ---- evaluate
# A claim beside rows of results: the one evaluator, for sweeps and for serving.
#
# A quantity is an expression of columns of a row, and of ``other``'s, the row that differs from it in nothing but what
# ``against`` says. Its value is the mean (the most, the least) over all rows that ``at`` selects.

Row = Mapping[str, Any]
Value = float | str | None
NO_ROOM = "OOM"
_TAKE = MappingProxyType({"mean": fmean, "most": max, "least": min})
# What a row is of, beside the axes of its sweep: rows that are compared agree in these.
_IDENTITY = ("system", "model", "batch", "policy", "trace", "devices")


def value_of(group: ClaimGroup, row: ClaimRow, rows: Sequence[Row], axes: Iterable[str]) -> Value:
    """Of the rows that are meant; None where there are none, or the runs lack a column; NO_ROOM where all of them were
    refused.
    """
    return taken(group.quantity, group.at | row.at, group.against, rows, axes, row.take or group.take)


def taken(
    quantity: str, at: Mapping[str, Any], against: Mapping[str, Any], rows: Sequence[Row], axes: Iterable[str],
    take: str = "mean",
) -> Value:
    """As `value_of`, of a quantity."""
    expression = parsed_quantity(quantity)
    wanted = [row for row in rows if _agrees(row, at)]
    if wanted and all(row.get("refused") for row in wanted):
        return NO_ROOM
    keys = [key for key in (*_IDENTITY, *axes) if key not in against]
    found = [expression.value(_lookup(row, _other(row, rows, keys, against))) for row in wanted]
    return _TAKE[take](found) if found and not any(map(math.isnan, found)) else None


def _other(row: Row, rows: Sequence[Row], keys: Sequence[str], against: Mapping[str, Any]) -> Row | None:
    """The first row that ``against`` means and that is like ``row`` in ``keys``."""
    if not against:
        return None
    return next((e for e in rows if _agrees(e, against) and all(e.get(key) == row.get(key) for key in keys)), None)


def _lookup(row: Row, other: Row | None) -> Lookup:
    """Value of a quantity's name; None where the row has no number of it."""
    return lambda name: _number(other if name.startswith(f"{OTHER}.") else row, name.removeprefix(f"{OTHER}."))


def _agrees(row: Row, wanted: Mapping[str, Any]) -> bool:
    """A list of values means any of them; null any at all."""
    return all(
        value is None or row.get(key) in (value if isinstance(value, list) else [value])
        for key, value in wanted.items()
    )


def _number(row: Row | None, column: str) -> float | None:
    value = row.get(column) if row is not None else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


class Judged(NamedTuple):
    """A claim beside runs. ``values``: number of rules → value, from ``physical`` (0) to the paper's own experiment."""

    group: ClaimGroup
    row: ClaimRow
    values: Mapping[int, Value]
    steps: Mapping[int, str]

    @property
    def simulated(self) -> Value:
        """Under all of the paper's rules."""
        return self.values[max(self.values)]

    @property
    def physical(self) -> Value:
        return self.values[0]

    @property
    def off(self) -> float | None:
        """Simulated over the nearest published value, minus 1; None where either is no number."""
        nearest = _nearest(self.row.published, self.simulated)
        return None if nearest is None or not nearest else float(self.simulated) / nearest - 1  # type: ignore[arg-type]

    @property
    def met(self) -> bool:
        """Within the group's tolerance, and with the right sign where that is asked; text: the same text."""
        published, simulated = self.row.published, self.simulated
        if isinstance(published, str) or not isinstance(simulated, float):
            return published == simulated
        nearest = _nearest(published, simulated)
        assert nearest is not None
        return abs(simulated - nearest) <= self._room(nearest) and not (self.group.sign and simulated * nearest < 0)

    @property
    def tolerances(self) -> float:
        """How many of the group's tolerances it is off; 0 where either is no number, or the tolerance is 0."""
        nearest = _nearest(self.row.published, self.simulated)
        room = self._room(nearest) if nearest is not None else 0.0
        return abs(self.simulated - nearest) / room if room else 0.0  # type: ignore[operator]

    def _room(self, nearest: float) -> float:
        group = self.group
        return group.within if group.within is not None else abs(nearest) * (group.within_percent or 0) / 100

    @property
    def kind(self) -> str:
        """``fit``, ``met``, ``missed``, or ``none`` where the runs show no value."""
        if self.simulated is None:
            return "none"
        if self.row.fit:
            return "fit"
        return "met" if self.met else "missed"

    @property
    def why(self) -> str:
        """Why it may be off, in words."""
        return self.row.why or self.group.why or ""

    @property
    def moved(self) -> tuple[tuple[str, float], ...]:
        """(rule, what it changes), the largest first."""
        found, before = [], self.values[0]
        for at, name in list(self.steps.items())[1:]:
            now = self.values[at]
            if isinstance(now, float) and isinstance(before, float):
                found.append((name, now - before))
            before = now
        return tuple(sorted(found, key=lambda each: -abs(each[1])))


def _nearest(published: Any, simulated: Value) -> float | None:
    if not isinstance(simulated, float) or isinstance(published, str):
        return None
    low, high = published if isinstance(published, tuple) else (published, published)
    return min(max(simulated, low), high)


class Answered(NamedTuple):
    """``rows``: (what, value for every value of the column, mean)."""

    answer: Answer
    columns: tuple[Any, ...]
    rows: tuple[tuple[str, tuple[Value, ...], Value], ...]


def answered(answer: Answer, runs: Mapping[str, Sequence[Row]], axes: Iterable[str]) -> Answered:
    """``runs``: name of a set of assumptions → rows."""
    columns = tuple(sorted({row[answer.by] for rows in runs.values() for row in rows}))
    found = []
    for name, rows in runs.items():
        for what, against in answer.against.items():
            cells = [taken(answer.quantity, answer.at | {answer.by: at}, against, rows, axes) for at in columns]
            found.append((f"{what}, {name}", tuple(cells), taken(answer.quantity, answer.at, against, rows, axes)))
    return Answered(answer, columns, tuple(found))


# ---- study

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


# ---- page
# The page of a paper's claims, and the summary over all papers.

LARGEST = 3  # misses that a summary names
_SHOWN_STEPS = 2  # assumptions beside a difference
COLUMNS = MappingProxyType(
    {
        "paper": TEXT, "id": TEXT, "what": TEXT, "at": TEXT, "unit": TEXT, "published": TEXT, "simulated": TEXT,
        "physical": TEXT, "off": REAL, "verdict": TEXT, "moved_most": TEXT, "why": TEXT,
    }
)  # fmt: skip


class Counts(NamedTuple):
    """Of one paper, or of all."""

    numbers: int
    rows: int
    met: int
    missed: int
    fit: int
    none: int
    outside: int


def counts_of(claims: Sequence[Claims]) -> Counts:
    kinds = [sum(len(each.of(kind)) for each in claims) for kind in ("met", "missed", "fit", "none")]
    outside = sum(len(each.outside) for each in claims)
    return Counts(sum(each.numbers for each in claims), sum(kinds[:3]), *kinds, outside)


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, Judged]]:
    """Those farthest from the published value, in tolerances: a gain near 0 has no ratio worth naming."""

    def far(found: tuple[Claims, Judged]) -> float:
        return found[1].tolerances

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def summary_sentence(claims: Sequence[Claims]) -> str:
    """How many of the published numbers have a row, and how many of those that were not fitted are met."""
    found = counts_of(claims)
    return (
        f"{found.rows} of {found.numbers} published numbers have a row; {found.met} of {found.met + found.missed} that "
        f"were not fitted are met; {found.outside} are out of scope"
    )


def answer_sentence(found: Answered) -> str:
    """The answer's sentence, with what was simulated."""
    told = {}
    for key, name in (("paper", OWN), ("physical", PHYSICAL)):
        for what, cells, mean in found.rows:
            if what.endswith(name):
                at = what.removesuffix(f", {name}").replace(" ", "_")
                listed = [shown(each, found.answer.unit) for each in cells]
                told[f"{key}_{at}"] = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
                told[f"{key}_{at}_mean"] = shown(mean, found.answer.unit)
    return found.answer.says.format_map(told)


def write_claims(claims: Claims, folder: Path) -> Path:
    """``index.html`` and ``claims.csv`` of one paper."""
    own_folder(folder)
    table_of([claims]).write_csv(folder / "claims.csv")
    groups = [(group, [each for each in claims.judged if each.group is group]) for group in claims.paper.claims]
    context = {
        "claims": claims, "paper": claims.paper, "counts": counts_of([claims]), "groups": groups,
        "sentence": summary_sentence([claims]), "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", rendered("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


def write_summary(claims: Sequence[Claims], folder: Path) -> Path:
    """``index.html`` and ``claims.csv`` over all papers."""
    own_folder(folder)
    table_of(claims).write_csv(folder / "claims.csv")
    context: Mapping[str, Any] = {
        "sentence": summary_sentence(claims),
        "papers": [(each, counts_of([each])) for each in claims],
        "total": counts_of(claims),
        "misses": largest_misses(claims),
        "answers": [(answer, answer_sentence(answer)) for each in claims for answer in each.answers],
    }
    write_text(folder / "index.html", rendered("claims_summary.html.j2", context, _FILTERS))
    return folder / "index.html"


def table_of(claims: Sequence[Claims]) -> Table:
    rows = [
        {
            "paper": each.paper.paper, "id": judged.row.id, "what": judged.group.what, "at": place_of(judged),
            "unit": judged.group.unit, "published": published(judged), "simulated": shown(judged.simulated, ""),
            "physical": shown(judged.physical, ""), "off": judged.off, "verdict": judged.kind,
            "moved_most": moved(judged), "why": "" if judged.kind in ("met", "fit") else judged.why,
        }
        for each in claims
        for judged in each.judged
    ]  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def shown(value: Value, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{significant(value)}{_gap(unit)}"


def published(judged: Judged, unit: str = "") -> str:
    """The published value as it is written, with a unit."""
    value = judged.row.published
    if isinstance(value, str):
        return value
    low, high = value if isinstance(value, tuple) else (value, None)
    return f"{low:g}{'' if high is None else f' to {high:g}'}{_gap(unit)}"


def place_of(judged: Judged) -> str:
    """What a row is of, beside its group: ``policy libra, batch 32``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in judged.row.at.items())


def moved(judged: Judged) -> str:
    """The assumptions that take most of the difference between ``physical`` and the paper's rules."""
    found = [(name, change) for name, change in judged.moved if change][:_SHOWN_STEPS]
    return "; ".join(f"{name} {'+' if change > 0 else '−'}{significant(abs(change))}" for name, change in found)


def verdict(judged: Judged) -> str:
    """``met``, ``32 % below``; whether it was fitted."""
    told = {"fit": "fit", "none": "no value", "met": "met"}.get(judged.kind)
    if told is not None:
        return told
    if judged.off is None:
        return "not met"
    side = "above" if judged.off > 0 else "below"
    return f"not met: {abs(judged.off):.0%}".replace("%", f"{NO_BREAK}%") + f" {side}"


def _gap(unit: str) -> str:
    return unit if unit == "×" else f"{NO_BREAK}{unit}" if unit else ""


_FILTERS = MappingProxyType(
    {"shown": shown, "published": published, "place": place_of, "moved": moved, "verdict": verdict}
)

"""From a paper's file to its numbers: run what is missing, under each of its rules, and judge."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from yaml import safe_load

from archsim.base.files import own_folder, write_text
from archsim.base.own_code import import_function
from archsim.base.tables import REAL, TEXT, Shown, Table
from archsim.report.page import rendered
from archsim.report.plots import Axis, Colours, Points
from archsim.report.units import NO_BREAK, significant
from archsim.runs.plan import select
from archsim.runs.sweep import Watcher, sweep_selected
from archsim.specs.constraints import Expression, Lookup
from archsim.specs.library import load_planned
from archsim.specs.papers import (
    NO_ROOM,
    OTHER,
    Answer,
    Bound,
    ClaimGroup,
    ClaimRow,
    PaperSpec,
    RunSpec,
    SignSpec,
    listed_ids,
    parsed_quantity,
)
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
_TAKE = MappingProxyType({"mean": fmean, "most": max, "least": min, "total": fmean})
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
    pairs = [(row, _other(row, rows, keys, against)) for row in wanted]
    # what does not fit has no time, and takes no part in a mean over others
    served = [pair for pair in pairs if not any(each is not None and each.get("refused") for each in pair)]
    if take == "total" and served:
        # columns are added up first: a ratio of sums has a value where a single row has 0 below
        served = [(_added([each[0] for each in served], expression), _added([each[1] for each in served], expression))]
    found = [expression.value(_lookup(row, other)) for row, other in served]
    return _TAKE[take](found) if found and not any(map(math.isnan, found)) else None


def _added(rows: Sequence[Row | None], expression: Expression) -> Row:
    """Sums over rows of the columns of an expression; one that a row lacks is left out."""
    columns = {name.removeprefix(f"{OTHER}.") for name in expression.names}
    values = {column: [_number(row, column) for row in rows] for column in columns}
    return {column: sum(each) for column, each in values.items() if None not in each}  # type: ignore[arg-type]


def _other(row: Row, rows: Sequence[Row], keys: Sequence[str], against: Mapping[str, Any]) -> Row | None:
    """The first row that ``against`` means and that is like ``row`` in ``keys``. A mapping there is looked up with the
    row's own value: ``{policy: {fast: slow}}`` compares fast with slow.
    """
    if not against:
        return None
    meant = {key: value.get(row.get(key)) if isinstance(value, dict) else value for key, value in against.items()}
    return next((e for e in rows if _agrees(e, meant) and all(e.get(key) == row.get(key) for key in keys)), None)


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
    """A claim beside runs. ``values``: number of rules → value, from ``physical`` (0) to the paper's own experiment;
    ``guess``: the null model's value; ``ends``: values at both ends of the interval of a constant that was fitted on a
    rounded number, empty where there is none.
    """

    group: ClaimGroup
    row: ClaimRow
    values: Mapping[int, Value]
    steps: Mapping[int, str]
    guess: Value = None
    ends: tuple[Value, ...] = ()

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
        nearest = self.nearest(self.simulated)
        return None if nearest is None or not nearest else float(self.simulated) / nearest - 1  # type: ignore[arg-type]

    @property
    def met(self) -> bool:
        """Within the group's tolerance, and with the right sign where that is asked, for all of a constant's interval;
        text: the same text.
        """
        return all(map(self.meets, (self.simulated, *self.ends)))

    @property
    def guess_met(self) -> bool:
        """Whether the null model meets the number as well."""
        return self.meets(self.guess)

    def meets(self, value: Value) -> bool:
        if isinstance(self.row.published, str) or not isinstance(value, float):
            return self.row.published == value
        nearest = self.nearest(value)
        assert nearest is not None
        room = self._room(nearest)
        # an inequality is met or it is not
        if isinstance(self.row.published, Bound):
            room = 0.0
        return abs(value - nearest) <= room and not (self.group.sign and value * nearest < 0)

    @property
    def tolerances(self) -> float:
        """How many of the group's tolerances it is off; 0 where either is no number, or the tolerance is 0."""
        nearest = self.nearest(self.simulated)
        room = self._room(nearest) if nearest is not None else 0.0
        return abs(self.simulated - nearest) / room if room else 0.0  # type: ignore[operator]

    def _room(self, nearest: float) -> float:
        group = self.group
        return group.within if group.within is not None else abs(nearest) * (group.within_percent or 0) / 100

    def nearest(self, value: Value) -> float | None:
        """The published value that is nearest, of those that its range, inequality or rounding allows."""
        published = self.row.published
        if not isinstance(value, float) or isinstance(published, str):
            return None
        if isinstance(published, Bound):
            low = -math.inf if published.less_than is not None else published.value
            high = math.inf if published.more_than is not None else published.value
            return min(max(value, low), high)
        low, high = published if isinstance(published, tuple) else (published, published)
        return min(max(value, low - self.rounded), high + self.rounded)

    @property
    def rounded(self) -> float:
        """By how much the published value was rounded, at most; an inequality is not rounded."""
        return self.row.rounded if self.row.rounded is not None else self.group.rounded

    @property
    def kind(self) -> str:
        """``better`` (met, and the null model does not meet it), ``as null`` (met, as the null model does), ``missed``,
        ``fit``, or ``none`` where the runs show no value.
        """
        if self.simulated is None:
            return "none"
        if self.row.fit:
            return "fit"
        if not self.met:
            return "missed"
        return "as null" if self.guess_met else "better"

    @property
    def why(self) -> str:
        """Why it may be off, in words."""
        return self.row.why or self.group.why or ""

    @property
    def moved(self) -> tuple[tuple[str, float], ...]:
        """(rule, what it changes), the largest first."""
        found, before = [], self.values[0]
        for at, name in list(self.steps.items())[1:]:
            now = self.values.get(at)
            if isinstance(now, float) and isinstance(before, float):
                found.append((name, now - before))
            before = now
        return tuple(sorted(found, key=lambda each: -abs(each[1])))


ORDER = ("below", "equal", "above")


class JudgedSign(NamedTuple):
    """Which of two rows is larger. ``published``, ``simulated``, ``guess``: of the first, one of `ORDER`; simulated
    None: the runs show no value for one of them.
    """

    group: ClaimGroup
    one: ClaimRow
    other: ClaimRow
    published: str
    simulated: str | None
    guess: str

    @property
    def kind(self) -> str:
        """As `Judged.kind`."""
        if self.simulated is None:
            return "none"
        if self.simulated != self.published:
            return "missed"
        return "as null" if self.guess == self.published else "better"


def judged_signs(judged: Sequence[Judged]) -> list[JudgedSign]:
    """Of all pairs of rows that their groups' ``signs`` name; pairs that are equal as published, that do not fit, or of
    which both were fitted, have none.
    """
    found = []
    for each in judged:
        for sign in each.group.signs:
            other = next((by for by in judged if by.group is each.group and _pairs(each, by, sign)), None)
            if other is None or (each.row.fit and other.row.fit):
                continue
            published = _order(each.row.published, other.row.published)
            if published in (None, "equal"):
                continue
            simulated = _order(each.simulated, other.simulated)
            found.append(JudgedSign(each.group, each.row, other.row, published, simulated, sign.guess))
    return found


def _pairs(one: Judged, other: Judged, sign: SignSpec) -> bool:
    """Whether two rows differ in what ``sign`` says and in nothing else."""
    first, second = one.group.at | one.row.at, other.group.at | other.row.at
    return first.items() >= sign.of.items() and second == first | sign.over


def _order(one: Any, other: Any) -> str | None:
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return None
    return ORDER[(one > other) - (one < other) + 1]


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
        better, met = len(self.of("better")), len(self.of("better")) + len(self.of("as null"))
        return f"Claims({self.paper.title}: {len(self.judged)} rows, {met} met, {better} of them better than the null)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per judged claim: what, at, published, guess (the null model), simulated (under the paper's rules),
        physical, kind.
        """
        import pandas

        rows = [
            {
                "what": each.group.what, "at": str(each.row.at or ""), "published": each.row.published,
                "guess": each.guess, "simulated": each.simulated, "physical": each.physical, "kind": each.kind,
            }
            for each in self.judged
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def of(self, kind: str) -> tuple[Judged, ...]:
        """Those of a kind: better, as null, missed, fit or none."""
        return tuple(each for each in self.judged if each.kind == kind)

    @cached_property
    def signs(self) -> tuple[JudgedSign, ...]:
        """Which of two systems is faster, for all pairs that its groups name."""
        return tuple(judged_signs(self.judged))

    def nulls_of(self, group: ClaimGroup) -> list[tuple[str, int]]:
        """(null model, how many of a group's numbers it meets) for the group's own, for further ones, and, last, what
        is simulated; numbers that were fitted count, too.
        """
        rows = [each for each in self.judged if each.group is group]
        found = [(group.guessed or "the null model", sum(each.guess_met for each in rows))]
        for null in group.nulls:
            met = sum(each.meets(self.paper.guess_of(group, each.row, null)) for each in rows)
            found.append((null.name, met))
        return [*found, ("simulated", sum(each.met for each in rows))]

    def recorded(self) -> dict[str, Any]:
        """What was simulated, by id, in the form that `judge_recorded` reads."""
        return {
            each.row.id: {"values": {str(at): value for at, value in each.values.items()}}
            | ({"ends": list(each.ends)} if each.ends else {})
            for each in self.judged
        }

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
        values = {at: value_of(group, row, each.rows, each.axes) for at, each in made[group.run].items()}
        at_ends = tuple(value_of(group, row, each.rows, each.axes) for each in ends.get(group.run, ()))
        judged.append(_judged(paper, group, row, values, at_ends))
    answers = []
    for answer in paper.answers:
        of = made[answer.run]
        both = {OWN: of[max(of)], PHYSICAL: of[0]} if last else {PHYSICAL: of[0]}
        answers.append(answered(answer, {name: each.rows for name, each in both.items()}, of[0].axes))
    every = [each for of in made.values() for each in of.values()] + [each for of in ends.values() for each in of]
    runs = sum(len(each.rows) for each in every)
    return Claims(paper, tuple(judged), tuple(answers), runs)


def judge_recorded(paper: PaperSpec, recorded: Mapping[str, Any]) -> Claims:
    """As `judge_paper`, of values that were simulated before (`Claims.recorded`); a row that was not has no value."""
    judged = []
    for group, row in paper.rows():
        found = recorded.get(row.id, {"values": {"0": None}})
        values = {int(at): value for at, value in found["values"].items()}
        judged.append(_judged(paper, group, row, values, tuple(found.get("ends", ()))))
    return Claims(paper, tuple(judged), (), 0)


def _judged(
    paper: PaperSpec, group: ClaimGroup, row: ClaimRow, values: Mapping[int, Value], ends: tuple[Value, ...]
) -> Judged:
    return Judged(group, row, values, paper.steps(group.run), paper.guess_of(group, row), ends)


def _make(
    paper: PaperSpec, name: str, rules: int, end: int | None, folder: Path, jobs: int | None, watcher: Watcher
) -> _Made:
    """The rows of a run under the first ``rules`` rules, with constants at an ``end`` of their interval."""
    spec, overrides = paper.runs[name], paper.overrides(name, rules, end)
    where = folder / name / _label(overrides)
    watcher.phase(f"{paper.paper}: {name}, " + (paper.steps(name)[rules] if end is None else f"end {end + 1} of 2"))
    if spec.table:
        given = spec.table.given | dict(map(_changed, overrides))
        return _Made(import_function(spec.table.function)(**given), ())
    if spec.sweep:
        return _swept(spec.sweep, overrides, where, jobs, watcher)
    return _served(spec, overrides, where, watcher)


def _changed(override: str) -> tuple[str, Any]:
    """``key=value`` of what a function is given; the value is YAML."""
    key, _, value = override.partition("=")
    return key, safe_load(value)


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
        "paper": TEXT, "id": TEXT, "what": TEXT, "at": TEXT, "unit": TEXT, "published": TEXT, "null": TEXT,
        "simulated": TEXT, "lowest": TEXT, "highest": TEXT, "physical": TEXT, "off": REAL, "verdict": TEXT,
        "moved_most": TEXT, "why": TEXT,
    }
)  # fmt: skip


VERDICTS = MappingProxyType(
    {
        "better": "met and better than the null", "as null": "met, as the null is", "missed": "not met", "fit": "fit",
        "none": "no value",
    }
)  # fmt: skip


class Counts(NamedTuple):
    """Of one paper, or of all. ``better``, ``as_null``, ``missed``, ``fit``, ``none``: rows by verdict; ``signs``,
    ``signs_better``, ``signs_met``: orders of two systems, those met and better than the null, and all that are met.
    """

    numbers: int
    rows: int
    better: int
    as_null: int
    missed: int
    fit: int
    none: int
    outside: int
    signs: int
    signs_better: int
    signs_met: int


def counts_of(claims: Sequence[Claims]) -> Counts:
    kinds = [sum(len(each.of(kind)) for each in claims) for kind in VERDICTS]
    outside = sum(len(each.outside) for each in claims)
    signs = [each.kind for paper in claims for each in paper.signs if each.kind != "none"]
    better = signs.count("better")
    return Counts(
        sum(each.numbers for each in claims), sum(kinds[:4]), *kinds, outside,
        len(signs), better, better + signs.count("as null"),
    )  # fmt: skip


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, Judged]]:
    """Those farthest from the published value, in tolerances: a gain near 0 has no ratio worth naming."""

    def far(found: tuple[Claims, Judged]) -> float:
        return found[1].tolerances

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def summary_sentence(claims: Sequence[Claims]) -> str:
    """How many of the published numbers are met where a null model does not meet them, and what the others are."""
    found = counts_of(claims)
    judged = found.better + found.as_null + found.missed
    signs = (
        f"; of {found.signs} orders of two systems {found.signs_met} are right, {found.signs_better} of them where the "
        "null model is wrong"
        if found.signs
        else ""
    )
    return (
        f"{found.better} of {judged} published numbers that were judged are met and better than a null model; "
        f"{found.as_null} are met as the null model meets them, {found.missed} are not met, {found.fit} were fitted; "
        f"{found.outside} of {found.numbers} are out of scope{signs}"
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
        "sentence": summary_sentence([claims]), "picture": picture_of(claims),
        "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", rendered("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


_LEAST, _MOST = 0.1, 10.0  # ends of the figure's axis; what lies beyond is drawn at the end
_DOT = MappingProxyType({"better": "--p4", "as null": "--p0", "missed": "--p7", "fit": "--p6"})


def picture_of(claims: Claims) -> Points | None:
    """Simulated over published, a row for each group of values; None where no value is a positive number."""
    rows: list[dict[str, Any]] = []
    for group in claims.paper.claims:
        for judged in claims.judged:
            ratio = _ratio(judged, judged.simulated) if judged.group is group and judged.kind in _DOT else None
            if ratio is not None:
                guess = _ratio(judged, judged.guess)
                rows.append({
                    "group": group.what, "ratio": min(max(ratio, _LEAST), _MOST), "kind": judged.kind,
                    "row": f"{judged.row.id} {place_of(judged)}", "published": published(judged),
                    "simulated": shown(judged.simulated, ""), "null": "–" if guess is None else f"{guess:.3g}×",
                })  # fmt: skip
    if not rows:
        return None
    return Points(
        question="How near are simulated values to published ones?", rows=rows, named="group",
        x=Axis("ratio", "simulated over published, ×", "~g", log=True, low=_LEAST, high=_MOST), y=Axis("group", ""),
        colours=Colours("kind", _DOT, "against the null model"),
        tips=(
            ("row", "value"), ("published", "published"), ("simulated", "simulated"), ("kind", "verdict"),
            ("null", "null model"),
        ),
    )  # fmt: skip


def _ratio(judged: Judged, value: Value) -> float | None:
    nearest = judged.nearest(value)
    if nearest is None or not isinstance(value, float) or nearest == 0 or value / nearest <= 0:
        return None
    return value / nearest


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
    """A row a number, then a row a sign of a difference."""
    rows: list[dict[str, Any]] = []
    for each in claims:
        for judged in each.judged:
            both = interval(judged)
            rows.append(
                {
                    "paper": each.paper.paper, "id": judged.row.id, "what": judged.group.what, "at": place_of(judged),
                    "unit": judged.group.unit, "published": published(judged), "null": shown(judged.guess, ""),
                    "simulated": shown(judged.simulated, ""), "lowest": shown(both[0], "") if both else "",
                    "highest": shown(both[-1], "") if both else "",
                    "physical": shown(judged.physical, ""), "off": judged.off, "verdict": VERDICTS[judged.kind],
                    "moved_most": moved(judged), "why": judged.why if judged.kind in ("missed", "none") else "",
                }
            )  # fmt: skip
        rows += [
            {
                "paper": each.paper.paper, "id": f"{sign.one.id}-{sign.other.id}",
                "what": f"Order of two systems: {sign.group.what}", "at": sign_place(sign), "unit": "",
                "published": sign.published, "null": sign.guess, "simulated": sign.simulated or "–", "lowest": "",
                "highest": "", "physical": "", "off": None, "verdict": VERDICTS[sign.kind], "moved_most": "", "why": "",
            }
            for sign in each.signs
        ]  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def as_json(claims: Sequence[Claims]) -> dict[str, Any]:
    """The summary, the counts of every paper, and all rows."""
    return {
        "summary": summary_sentence(claims),
        "papers": {each.paper.paper: counts_of([each])._asdict() for each in claims},
        "all": counts_of(claims)._asdict(),
        "answers": [answer_sentence(answer) for each in claims for answer in each.answers],
        "rows": [dict(row) for row in table_of(claims).rows],
    }


def shown(value: Value, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{significant(value)}{_gap(unit)}"


def published(judged: Judged, unit: str = "") -> str:
    """The published value as it is written, with a unit."""
    value = judged.row.published
    if isinstance(value, str):
        return value
    if isinstance(value, Bound):
        return f"{'less' if value.less_than is not None else 'more'} than {value.value:g}{_gap(unit)}"
    low, high = value if isinstance(value, tuple) else (value, None)
    rounded = f" ± {judged.rounded:g}" if judged.rounded else ""
    return f"{low:.10g}{'' if high is None else f' to {high:.10g}'}{rounded}{_gap(unit)}"


def place_of(judged: Judged) -> str:
    """What a row is of, beside its group: ``policy libra, batch 32``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in judged.row.at.items())


def moved(judged: Judged) -> str:
    """The assumptions that take most of the difference between ``physical`` and the paper's rules."""
    found = [(name, change) for name, change in judged.moved if change][:_SHOWN_STEPS]
    return "; ".join(f"{name} {'+' if change > 0 else '−'}{significant(abs(change))}" for name, change in found)


def ends(judged: Judged, unit: str) -> str:
    """The values for both ends of a fitted constant's interval, OOM first; empty where it has none."""
    found = interval(judged)
    texts = dict.fromkeys(each for each in (judged.simulated, *judged.ends) if isinstance(each, str) and judged.ends)
    values = dict.fromkeys(significant(each) for each in (*found[:1], *found[-1:]))
    return f"{' to '.join([*texts, *values])}{_gap(unit)}" if texts or found else ""


def interval(judged: Judged) -> list[float]:
    """Sorted values for a fitted constant and both ends of its interval; none where it has no interval."""
    return sorted(value for value in (judged.simulated, *judged.ends) if isinstance(value, float) and judged.ends)


def sign_place(sign: JudgedSign) -> str:
    """What is compared: ``libra against ep, batch 32``."""
    one, other = sign.group.at | sign.one.at, sign.group.at | sign.other.at
    differ = [key for key in one if one[key] != other.get(key)]
    versus = f"{', '.join(str(one[key]) for key in differ)} against {', '.join(str(other.get(key)) for key in differ)}"
    rest = [f"{key.rpartition('.')[2]} {value}" for key, value in one.items() if key not in differ]
    return ", ".join([versus, *rest])


def verdict(judged: Judged | JudgedSign) -> str:
    """One of `VERDICTS`; of what is not met, by how much: ``not met: 32 % below``."""
    if judged.kind != "missed" or isinstance(judged, JudgedSign) or judged.off is None:
        return VERDICTS[judged.kind]
    if judged.meets(judged.simulated):
        return "not met for all values of the fitted constant"
    side = "above" if judged.off > 0 else "below"
    return f"not met: {abs(judged.off):.0%}".replace("%", f"{NO_BREAK}%") + f" {side}"


def _gap(unit: str) -> str:
    return unit if unit == "×" else f"{NO_BREAK}{unit}" if unit else ""


_FILTERS = MappingProxyType(
    {
        "shown": shown, "published": published, "place": place_of, "moved": moved, "verdict": verdict, "ends": ends,
        "sign_place": sign_place,
    }
)  # fmt: skip

"""Reproduces the numbers of a paper: it runs what is missing under each of the paper's rules, and
judges the results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from yaml import safe_load

from archsim import balancers
from archsim.base.errors import capital, sentence
from archsim.base.files import own_folder, write_text
from archsim.base.own_code import import_function
from archsim.base.sums import sum
from archsim.base.tables import REAL, TEXT, Shown, Table
from archsim.base.units import NS_PER_S
from archsim.laws.gemm import dense_product
from archsim.laws.laws import Laws
from archsim.policies import allocation, libra, lina, replication
from archsim.report import page, plots, units
from archsim.runs.plan import select
from archsim.runs.sweep import Watcher, sweep_selected
from archsim.specs import calibration_files, constraints, decision, library, papers, workload
from archsim.studies.serving.page import serve_into
from archsim.studies.serving.runs import serve_plan
from archsim.workload import generated, profile
from archsim.workload.trace import Trace
from archsim.workload.traffic_model import QUANTILES, TrafficModel
from archsim.workload.traffic_presets import expected_loads, fitted_skew, load_traffic, mapped, of_layers
from microarch.silicon.area import parts_of, total
from microarch.silicon.published_area import PUBLISHED_DESIGN
from microarch.silicon.technology import TECHNOLOGIES

if TYPE_CHECKING:
    import pandas


# ---- evaluate
# A claim beside rows of results: the one evaluator, for sweeps and for serving.
#
# A quantity is an expression of columns of a row, and of ``other``'s, the row that differs from it in nothing but what
# ``against`` says. Its value is the mean (the most, the least) over all rows that ``at`` selects.

Row = Mapping[str, Any]
Value = float | str | None
_TAKE: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"mean": fmean, "most": max, "least": min, "total": fmean}
)
# What a row is of, beside the axes of its sweep: rows that are compared agree in these.
_IDENTITY = ("system", "model", "batch", "policy", "trace", "devices")


def value_of(group: papers.ClaimGroup, row: papers.ClaimRow, rows: Sequence[Row], axes: Iterable[str]) -> Value:
    """The value of the rows that are meant. None where there are none or the runs lack a column. NO_ROOM where all of
    them were refused.
    """
    return taken(group.quantity, group.at | row.at, group.against, rows, axes, row.take or group.take)


def taken(
    quantity: str,
    at: Mapping[str, Any],
    against: Mapping[str, Any],
    rows: Sequence[Row],
    axes: Iterable[str],
    take: str = "mean",
) -> Value:
    """Like `value_of`, but for a quantity."""
    expression = papers.parsed_quantity(quantity)
    wanted = [row for row in rows if _agrees(row, at)]
    if wanted and all(row.get("refused") for row in wanted):
        return papers.NO_ROOM
    keys = [key for key in (*_IDENTITY, *axes) if key not in against]
    pairs = [(row, _other(row, rows, keys, against)) for row in wanted]
    # what does not fit has no time, and takes no part in a mean over others
    served = [pair for pair in pairs if not any(each is not None and each.get("refused") for each in pair)]
    if take == "total" and served:
        # columns are added up first: a ratio of sums has a value where a single row has 0 below
        served = [(_added([each[0] for each in served], expression), _added([each[1] for each in served], expression))]
    found = [expression.value(_lookup(row, other)) for row, other in served]
    return _TAKE[take](found) if found and not any(map(math.isnan, found)) else None


def _added(rows: Sequence[Row | None], expression: constraints.Expression) -> Row:
    """Sums over rows of the columns of an expression; one that a row lacks is left out."""
    columns = {name.removeprefix(f"{papers.OTHER}.") for name in expression.names}
    values = {column: [_number(row, column) for row in rows] for column in columns}
    there = {column: [each for each in of if each is not None] for column, of in values.items()}
    return {column: sum(each) for column, each in there.items() if len(each) == len(rows)}


def _other(row: Row, rows: Sequence[Row], keys: Sequence[str], against: Mapping[str, Any]) -> Row | None:
    """The first row that ``against`` means and that is like ``row`` in ``keys``. A mapping there is looked up with the
    row's own value: ``{policy: {fast: slow}}`` compares fast with slow.
    """
    if not against:
        return None
    meant = {key: value.get(row.get(key)) if isinstance(value, dict) else value for key, value in against.items()}
    return next((e for e in rows if _agrees(e, meant) and all(e.get(key) == row.get(key) for key in keys)), None)


def _lookup(row: Row, other: Row | None) -> constraints.Lookup:
    """Value of a quantity's name; None where the row has no number of it."""
    return lambda name: _number(
        other if name.startswith(f"{papers.OTHER}.") else row, name.removeprefix(f"{papers.OTHER}.")
    )


def _agrees(row: Row, wanted: Mapping[str, Any]) -> bool:
    """A list of values means any of them; null any at all."""
    return all(
        value is None or row.get(key) in (value if isinstance(value, list) else [value])
        for key, value in wanted.items()
    )


def _number(row: Row | None, column: str) -> float | None:
    value = row.get(column) if row is not None else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


class JudgedClaim(NamedTuple):
    """A claim beside runs. ``values``: number of rules → value, from ``physical`` (0) to the paper's own experiment;
    ``guess``: the null model's value; ``ends``: values at both ends of the interval of a constant that was fitted on a
    rounded number, empty where there is none; ``place``: what it is of, beside its group, in words.
    """

    group: papers.ClaimGroup
    row: papers.ClaimRow
    values: Mapping[int, Value]
    steps: Mapping[int, str]
    guess: Value = None
    ends: tuple[Value, ...] = ()
    place: str = ""

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
        if isinstance(self.row.published, papers.PublishedBound):
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
        if isinstance(published, papers.PublishedBound):
            low = -math.inf if published.less_than is not None else published.value
            high = math.inf if published.more_than is not None else published.value
            return min(max(value, low), high)
        low, high = published if isinstance(published, tuple) else (published, published)
        return min(max(value, low - self.rounded), high + self.rounded)

    @property
    def rounded(self) -> float:
        """The most by which the published value was rounded. An inequality is not rounded."""
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
    None: the runs show no value for one of them. ``place``: what is compared, in words.
    """

    group: papers.ClaimGroup
    one: papers.ClaimRow
    other: papers.ClaimRow
    published: str
    simulated: str | None
    guess: str
    place: str = ""

    @property
    def kind(self) -> str:
        """The kind of the sign, like `JudgedClaim.kind`."""
        if self.simulated is None:
            return "none"
        if self.simulated != self.published:
            return "missed"
        return "as null" if self.guess == self.published else "better"


def judged_signs(judged: Sequence[JudgedClaim], called: Callable[[str, Any], str] | None = None) -> list[JudgedSign]:
    """The judged signs of all pairs of rows that their groups' ``signs`` name. Pairs that are equal as published, that
    do not fit, or that were both fitted have no sign. called: what a value of a column is in words.
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
            place = _against(each, other, called) if called else ""
            found.append(JudgedSign(each.group, each.row, other.row, published, simulated, sign.guess, place))
    return found


def _against(one: JudgedClaim, other: JudgedClaim, called: Callable[[str, Any], str]) -> str:
    """What is compared: ``libra against ep, batch 32``."""
    first, second = one.group.at | one.row.at, other.group.at | other.row.at
    differ = [key for key in first if first[key] != second.get(key)]
    sides = (", ".join(called(key, each.get(key)).removeprefix(f"{key.rpartition('.')[2]} ") for key in differ)
             for each in (first, second))  # fmt: skip
    return ", ".join([" against ".join(sides), *(called(key, first[key]) for key in first if key not in differ)])


def _pairs(one: JudgedClaim, other: JudgedClaim, sign: papers.SignSpec) -> bool:
    """Whether two rows differ in what ``sign`` says and in nothing else."""
    first, second = one.group.at | one.row.at, other.group.at | other.row.at
    return first.items() >= sign.of.items() and second == first | sign.over


def _order(one: Any, other: Any) -> str | None:
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return None
    return ORDER[(one > other) - (one < other) + 1]


class Answered(NamedTuple):
    """``rows``: (what, value for every value of the column, mean)."""

    answer: papers.Answer
    columns: tuple[Any, ...]
    rows: tuple[tuple[str, tuple[Value, ...], Value], ...]


def answered(answer: papers.Answer, runs: Mapping[str, Sequence[Row]], axes: Iterable[str]) -> Answered:
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

    paper: papers.PaperSpec
    judged: tuple[JudgedClaim, ...]
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

    def of(self, kind: str) -> tuple[JudgedClaim, ...]:
        """The rows of one kind: better, as null, missed, fit or none."""
        return tuple(each for each in self.judged if each.kind == kind)

    @cached_property
    def signs(self) -> tuple[JudgedSign, ...]:
        """Which of two systems is faster, for all pairs that its groups name."""
        return tuple(judged_signs(self.judged, self.paper.called))

    @cached_property
    def groups(self) -> list[tuple[papers.ClaimGroup, list[JudgedClaim]]]:
        """Every group of the paper, with its rows."""
        return [(group, [each for each in self.judged if each.group is group]) for group in self.paper.claims]

    def nulls_of(self, group: papers.ClaimGroup, rows: Sequence[JudgedClaim]) -> list[tuple[str, int]]:
        """(null model, how many of a group's numbers it meets) for the group's own, for further ones, and, last, what
        is simulated; numbers that were fitted count, too.
        """
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
        return len(papers.listed_ids(self.paper.numbers))

    @property
    def outside(self) -> tuple[str, ...]:
        """Ids of those that are out of scope."""
        return tuple(name for part in self.paper.outside for name in papers.listed_ids(part.ids))


class _Made(NamedTuple):
    rows: Sequence[Row]
    axes: tuple[str, ...]


def judge_paper(paper: papers.PaperSpec, folder: Path, jobs: int | None, watcher: Watcher) -> Claims:
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


def judge_recorded(paper: papers.PaperSpec, recorded: Mapping[str, Any]) -> Claims:
    """Like `judge_paper`, but for values that were simulated before (`Claims.recorded`). A row that was not simulated
    has no value.
    """
    judged = []
    for group, row in paper.rows():
        found = recorded.get(row.id, {"values": {"0": None}})
        values = {int(at): value for at, value in found["values"].items()}
        judged.append(_judged(paper, group, row, values, tuple(found.get("ends", ()))))
    return Claims(paper, tuple(judged), (), 0)


_OF_ALL = MappingProxyType(
    {"mean": "mean of all", "most": "highest of all", "least": "lowest of all", "total": "ratio of sums over all"}
)


def _judged(
    paper: papers.PaperSpec,
    group: papers.ClaimGroup,
    row: papers.ClaimRow,
    values: Mapping[int, Value],
    ends: tuple[Value, ...],
) -> JudgedClaim:
    place = ", ".join(paper.called(key, value) for key, value in row.at.items())
    if not place and len(group.rows) > 1:
        place = _OF_ALL[row.take or group.take]
    return JudgedClaim(group, row, values, paper.steps(group.run), paper.guess_of(group, row), ends, place)


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
        return _Made(import_function(spec.table.function)(**given), ())
    if spec.sweep:
        selection = select(library.load_planned(spec.sweep, overrides), watcher.phase)
        rows = sweep_selected(selection, where, jobs, watcher).runs.rows
        # an axis is named as in the file, as it is in tables of serving
        named = [{key.removeprefix(_AXIS): value for key, value in row.items()} for row in rows]
        return _Made(named, tuple(axis.name for axis in selection.plan.sweep.axes))
    assert spec.serve is not None
    plan = serve_plan(spec.serve, overrides)
    return _Made(serve_into(plan, where, watcher, around=False).table.rows, tuple(plan.first.axes))


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


class VerdictCounts(NamedTuple):
    """The counts of one paper, or of all. ``better``, ``as_null``, ``missed``, ``fit``, ``none``: rows by verdict;
    ``signs``, ``signs_better``, ``signs_met``: orders of two systems, those met and better than the null, and all that
    are met.
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


def counts_of(claims: Sequence[Claims]) -> VerdictCounts:
    better, as_null, missed, fit, none = (sum(len(each.of(kind)) for each in claims) for kind in VERDICTS)
    outside = sum(len(each.outside) for each in claims)
    signs = [each.kind for paper in claims for each in paper.signs if each.kind != "none"]
    signs_better = signs.count("better")
    return VerdictCounts(
        sum(each.numbers for each in claims), better + as_null + missed + fit, better, as_null, missed, fit, none,
        outside, len(signs), signs_better, signs_better + signs.count("as null"),
    )  # fmt: skip


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, JudgedClaim]]:
    """The rows that are farthest from the published value, measured in tolerances. A ratio would mean nothing for a
    gain near 0.
    """

    def far(found: tuple[Claims, JudgedClaim]) -> float:
        return found[1].tolerances

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def summary_sentence(claims: Sequence[Claims]) -> str:
    """How many of the published numbers are met where a null model does not meet them, and what the others are."""
    found = counts_of(claims)
    judged = found.better + found.as_null + found.missed
    said = [
        f"{found.better} of {judged} published numbers that were judged are met and better than a null model.",
        f"{found.as_null} are met as well as the null model meets them, and {found.missed} are not met.",
        f"{found.fit} further numbers were fitted, and {found.outside} of all {found.numbers} are out of scope.",
    ]
    if found.signs:
        said.append(
            f"Of {found.signs} orders of two systems, {found.signs_met} are right, {found.signs_better} of them where "
            "the null model is wrong."
        )
    return " ".join(said)


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
    context = {
        "claims": claims, "paper": claims.paper, "counts": counts_of([claims]), "groups": claims.groups,
        "sentence": summary_sentence([claims]), "picture": picture_of(claims),
        "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", page.rendered("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


_LEAST, _MOST = 0.1, 10.0  # ends of the figure's axis; what lies beyond is drawn at the end
_DOT = MappingProxyType({"better": "--p4", "as null": "--p0", "missed": "--p7", "fit": "--p6"})


def picture_of(claims: Claims) -> plots.Points | None:
    """Simulated over published, a row for each group of values; None where no value is a positive number."""
    rows: list[dict[str, Any]] = []
    for judged in (each for _, of_group in claims.groups for each in of_group if each.kind in _DOT):
        if (ratio := _ratio(judged, judged.simulated)) is not None:
            guess = _ratio(judged, judged.guess)
            rows.append({
                "group": judged.group.what, "ratio": min(max(ratio, _LEAST), _MOST), "kind": judged.kind,
                "row": f"{judged.row.id} {judged.place}", "published": published(judged),
                "simulated": shown(judged.simulated, ""), "null": "–" if guess is None else f"{guess:.3g}×",
            })  # fmt: skip
    if not rows:
        return None
    return plots.Points(
        question="How near are simulated values to published ones?", rows=rows, named="group",
        x=plots.PlotAxis("ratio", "simulated over published, ×", "~g", log=True, low=_LEAST, high=_MOST),
        y=plots.PlotAxis("group", ""),
        colours=plots.Colours("kind", _DOT, "against the null model"),
        tips=(
            ("row", "value"), ("published", "published"), ("simulated", "simulated"), ("kind", "verdict"),
            ("null", "null model"),
        ),
    )  # fmt: skip


def _ratio(judged: JudgedClaim, value: Value) -> float | None:
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
    write_text(folder / "index.html", page.rendered("claims_summary.html.j2", context, _FILTERS))
    return folder / "index.html"


def table_of(claims: Sequence[Claims]) -> Table:
    """A row a number, then a row a sign of a difference."""
    rows: list[dict[str, Any]] = []
    for each in claims:
        for judged in each.judged:
            both = interval(judged)
            rows.append(
                {
                    "paper": each.paper.paper, "id": judged.row.id, "what": judged.group.what, "at": judged.place,
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
                "what": f"Order of two systems: {sign.group.what}", "at": sign.place, "unit": "",
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
    return f"{units.significant(value)}{_gap(unit)}"


def published(judged: JudgedClaim, unit: str = "") -> str:
    """The published value as it is written, with a unit."""
    value = judged.row.published
    if isinstance(value, str):
        return value
    if isinstance(value, papers.PublishedBound):
        return f"{'less' if value.less_than is not None else 'more'} than {value.value:g}{_gap(unit)}"
    low, high = value if isinstance(value, tuple) else (value, None)
    rounded = f" ± {judged.rounded:g}" if judged.rounded else ""
    return f"{low:.10g}{'' if high is None else f' to {high:.10g}'}{rounded}{_gap(unit)}"


def moved(judged: JudgedClaim) -> str:
    """The assumptions that take most of the difference between ``physical`` and the paper's rules."""
    found = [(name, change) for name, change in judged.moved if change][:_SHOWN_STEPS]
    return "; ".join(f"{name} {'+' if change > 0 else '−'}{units.significant(abs(change))}" for name, change in found)


def ends(judged: JudgedClaim, unit: str) -> str:
    """The values for both ends of a fitted constant's interval, OOM first; empty where it has none."""
    found = interval(judged)
    texts = dict.fromkeys(each for each in (judged.simulated, *judged.ends) if isinstance(each, str) and judged.ends)
    values = dict.fromkeys(units.significant(each) for each in (*found[:1], *found[-1:]))
    return f"{' to '.join([*texts, *values])}{_gap(unit)}" if texts or found else ""


def interval(judged: JudgedClaim) -> list[float]:
    """Sorted values for a fitted constant and both ends of its interval; none where it has no interval."""
    return sorted(value for value in (judged.simulated, *judged.ends) if isinstance(value, float) and judged.ends)


def verdict(judged: JudgedClaim | JudgedSign) -> str:
    """One of `VERDICTS`; of what is not met, by how much: ``not met: 32 % below``."""
    if judged.kind != "missed" or isinstance(judged, JudgedSign) or judged.off is None:
        return VERDICTS[judged.kind]
    if judged.meets(judged.simulated):
        return "not met for all values of the fitted constant"
    side = "above" if judged.off > 0 else "below"
    return f"not met: {abs(judged.off):.0%}".replace("%", f"{units.NO_BREAK}%") + f" {side}"


def _gap(unit: str) -> str:
    return unit if unit == "×" else f"{units.NO_BREAK}{unit}" if unit else ""


_FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "shown": shown, "published": published, "moved": moved, "verdict": verdict, "ends": ends,
        "sentence": lambda text: sentence(capital(text)),
        "plain": lambda value: f"{value:g}",
    }
)  # fmt: skip


# ---- claim_tables
# Rows of papers' numbers that no sweep gives: areas, statistics of routing, predictors and balancers on vectors.
#
# A run ``table: {function: archsim.studies.claims:NAME, given: ...}`` of a paper's file calls them.

Rows = list[dict[str, Any]]


def constants(**values: Any) -> Rows:
    """One row of what is given."""
    return [values]


# ---- hardware


def decision_hardware(technology: str = "n5") -> Rows:
    """A row a part of table II of the wafer paper, by its parameters: ``area_mm2`` and ``power_mw`` of all copies,
    ``mib`` of a table; and a row ``total``. technology: n5, or scaled: older cells shrunk by the node's name.
    """
    parts = parts_of(PUBLISHED_DESIGN, TECHNOLOGIES[technology])
    costs = {part.name: part.cost for part in parts} | {"total": total(part.cost for part in parts)}
    sizes = {part.name: part.table.bits / 8 / 2**20 for part in parts if part.table is not None}
    return [
        {"part": name, "area_mm2": cost.area_mm2, "power_mw": cost.power_mw, "mib": sizes.get(name)}
        for name, cost in costs.items()
    ]


# ---- routing

_TOP_EXPERTS = (5, 10, 20)


def routing_statistics(models: Sequence[str], requests: int = 2000, layers: int = 3, seed: int = 1) -> Rows:
    """A row a traffic preset, measured on pairs of adjacent MoE layers that are spread over the model.

    Means over layers: ``pairs_across_*``, % of selections in the most frequent 20 % of pairs; ``following_across_*``, %
    of the selections after an expert in the 20 % of experts that follow it most often; ``together_10``, % of
    co-selections in the most frequent 10 % of pairs; ``bright``, the pair at 99.9 % over the mean pair;
    ``prefill_top_N``, % of the N most loaded experts of prefill that are among those of decode. ``hottest_most``,
    ``hottest_least``: hottest expert over the mean in the most and the least skewed layer. ``heatmap_rank``: median
    over layers and both heatmaps, across layers and across tokens, of Spearman's correlation of prefill and decode.
    """
    return [{"model": name} | _measured(*_spread_pairs(name, requests, layers, seed)) for name in models]


def _measured(trace: Trace, pairs: list[int]) -> dict[str, float]:
    """Of pairs of layers: rows ``pairs`` of `statistics.cross_layer`."""
    across, following = profile.cross_layer(trace)[pairs], profile.cross_token(trace)
    hottest = profile.max_over_mean(profile.loads(trace))
    found = {
        "pairs_across_layers": 100 * profile.coverage(across).mean(),
        "pairs_across_tokens": 100 * profile.coverage(following).mean(),
        "following_across_layers": 100 * profile.predictable(across, across).mean(),
        "following_across_tokens": 100 * profile.predictable(following, following).mean(),
        "hottest_most": hottest.max(), "hottest_least": hottest.min(),
    }  # fmt: skip
    if trace.top_k > 1:
        above = np.triu_indices(trace.num_experts, 1)
        together = profile.coactivation(trace)[:, above[0], above[1]].astype(np.float64)
        found["together_10"] = 100 * profile.coverage(together, 0.1).mean()
        found["bright"] = (np.quantile(together, 0.999, axis=1) / together.mean(axis=1)).mean()
    prefill = trace.iteration == 0
    if prefill.any() and not prefill.all():
        phases = [profile.rows_of(trace, rows) for rows in (prefill, ~prefill)]
        ranks = profile.heatmap_agreement(trace)
        found["heatmap_rank"] = np.median(np.concatenate([ranks["cross_layer"][pairs], ranks["cross_token"]]))
        order = [np.argsort(-profile.loads(phase), axis=1, kind="stable") for phase in phases]
        for top in _TOP_EXPERTS:
            common = [len(np.intersect1d(*both)) for both in zip(*(each[:, :top] for each in order), strict=True)]
            found[f"prefill_top_{top}"] = 100 * np.mean(common) / top
    return {name: float(value) for name, value in found.items()}


def _spread_pairs(name: str, requests: int, layers: int, seed: int) -> tuple[Trace, list[int]]:
    """Routing of a preset in so many pairs of adjacent MoE layers."""
    traffic = load_traffic(name, library.load_model(name))
    assert isinstance(traffic, TrafficModel)
    first = np.unique(np.linspace(0, len(traffic.layer_ids) - 2, layers).astype(int))
    at = np.unique(np.concatenate([first, first + 1]))
    trace = generated.collect(generated.traffic_of(of_layers(traffic, traffic.layer_ids[at], name), requests, seed))
    return trace, np.flatnonzero(np.isin(at[:-1], first) & (np.diff(at) == 1)).tolist()


def skewed_loads(model: str, skew: float | Sequence[float], gamma: float = 2.0, seed: int = 0) -> Rows:
    """A row a ``skew`` (standard deviation of log popularity) with loads as generated traffic expects them, means over
    the model's MoE layers: ``hottest`` expert over the mean, % of all that the ``two`` hottest have, and ``dropped``, %
    of all above ``gamma`` times the mean. ``hottest_most``, ``hottest_least``: of single layers.
    """
    shape, rows = library.load_model(model), []
    ids = np.array(shape.moe_layer_ids, np.int32)
    for each in [skew] if isinstance(skew, int | float) else skew:
        shares = generated.popularity(seed, ids, shape.experts, float(each))
        loads = np.sort(expected_loads(shares, shape.top_k, 0, 0), axis=1)
        mean, whole = loads.mean(axis=1, keepdims=True), loads.sum(axis=1)
        hottest = loads[:, -1] / mean[:, 0]
        rows.append({
            "skew": each, "hottest": float(hottest.mean()), "hottest_most": float(hottest.max()),
            "hottest_least": float(hottest.min()), "two": float(100 * (loads[:, -2:].sum(axis=1) / whole).mean()),
            "dropped": float(100 * (np.maximum(loads - gamma * mean, 0).sum(axis=1) / whole).mean()),
        })  # fmt: skip
    return rows


def path_tables(models: Sequence[str], tokens: int = 40_000, path_length: int = 4, seed: int = 1) -> Rows:
    """A row a traffic preset: ``accuracy``, % of a token's experts that Lina's table of paths predicts.

    The table is counted over the top-1 experts of as many ``tokens`` of other requests, in layers of the middle of the
    model; popularity alone predicts ``popular`` %.
    """
    rows = []
    for name in models:
        traffic = load_traffic(name, library.load_model(name))
        assert isinstance(traffic, TrafficModel)
        middle = len(traffic.layer_ids) // 2
        ids = traffic.layer_ids[middle : middle + path_length + 1]
        prompts = mapped(of_layers(traffic, ids, name), _prompts)
        trace = generated.collect(generated.traffic_of(prompts, 2 * tokens // _PROMPT, seed))
        half = trace.request_offsets[trace.requests // 2]
        top1 = trace.experts[:, :, 0].T.astype(np.int64)
        actual = trace.experts[half:, -1].astype(np.int64)
        table = lina.lina_fit(top1[:, :half], path_length, trace.num_experts)
        often = np.bincount(trace.experts[:half, -1].ravel(), minlength=trace.num_experts)
        popular = np.tile(np.argsort(-often, kind="stable")[: trace.top_k], (len(actual), 1))
        predicted = table.predict(top1[:, half:], trace.top_k)[-1]
        found = {"accuracy": predicted, "popular": popular}
        rows.append(
            {"model": name} | {key: 100 * lina.prediction_accuracy(each, actual)[0] for key, each in found.items()}
        )
    return rows


_PROMPT = 128  # tokens


def _prompts(traffic: TrafficModel) -> TrafficModel:
    return replace(traffic, prompt_tokens=np.full(QUANTILES, float(_PROMPT)), decode_steps=np.zeros(QUANTILES))


# ---- balancers


def placed_by_load(model: str, gpus: int, imbalance: dict[str, Any], layers: int = 8, seed: int = 0) -> Rows:
    """A row a placement, ``default`` (contiguous), ``remap``, ``worst`` (the hottest experts together) and ``best``
    (the mean), with ``max_over_mean`` of the GPUs' tokens, mean over layers whose popularity has this ``imbalance``.
    """
    shape = library.load_model(model)
    ids = np.array(shape.moe_layer_ids[:layers], np.int32)
    spec = workload.SyntheticSpec.model_validate(
        {"prompt_tokens": 0, "imbalance": imbalance | {"ranks": gpus}, "seed": seed}
    )
    skew = np.array(fitted_skew(spec, tuple(ids.tolist()), shape.experts, shape.top_k))
    loads = expected_loads(generated.popularity(seed, ids, shape.experts, skew[:, None]), shape.top_k, 0, 0)
    found: dict[str, list[float]] = {"default": [], "remap": [], "worst": [], "best": []}
    for load in loads:
        placed = {"default": load, "worst": np.sort(load)}
        most = {name: each.reshape(gpus, -1).sum(axis=1).max() for name, each in placed.items()}
        most |= {"remap": balancers.remap(load, gpus).load.max(), "best": load.sum() / gpus}
        for name, value in most.items():
            found[name].append(value * gpus / load.sum())
    return [{"placement": name, "max_over_mean": float(np.mean(values))} for name, values in found.items()]


def shared_by_graph(spread: float = 0.3, draws: int = 100, seed: int = 0) -> Rows:
    """A row a graph of DeepSeek's LPLB: ``max_over_mean`` of the GPUs after the linear programme, and ``before`` it.

    Every edge of the graph is a redundant expert: one of the first GPU's, of which the second has a copy. Loads of
    experts are normal (1, spread).
    """
    generator = np.random.default_rng(seed)
    rows = []
    for name, edges in _GRAPHS.items():
        gpus = max(max(edge) for edge in edges) + 1
        after, before = [], []
        for _ in range(draws):
            load = np.maximum(generator.normal(1, spread, len(edges)), 0)
            home = np.bincount([one for one, _ in edges], weights=load, minlength=gpus)
            mean = load.sum() / gpus
            before.append(home.max() / mean)
            after.append(balancers.lplb(load, edges, gpus).max_load / mean)
        rows.append({"graph": name, "max_over_mean": float(np.mean(after)), "before": float(np.mean(before))})
    return rows


SOLVER_NS, OPERATIONS_PER_NS = 100_000, 190.0  # README of deepseek-ai/LPLB: about 100 us within a node; GpuSpec's rate


def lplb_of_100_us(step: allocation.StepView) -> allocation.Plan:
    """Allocation ``lplb``, charged what DeepSeek's README states of its solver and no less: a small programme does not
    use a GPU, and waits for its own steps.
    """
    plan = allocation.lplb(step)
    least = int(SOLVER_NS * OPERATIONS_PER_NS)
    return plan._replace(effort=plan.effort._replace(operations=max(least, plan.effort.operations)))


def _hypercube(dimensions: int) -> list[tuple[int, int]]:
    return [(gpu, gpu ^ (1 << bit)) for gpu in range(1 << dimensions) for bit in range(dimensions)]


_GRAPHS = {
    "ring": [(gpu, (gpu + step) % 8) for gpu in range(8) for step in (1, -1)],
    "cube": _hypercube(3),
    "hypercube": _hypercube(4),
    "torus": [
        (4 * x + y, 4 * ((x + a) % 4) + (y + b) % 4) for x in range(4) for y in range(4) for a, b in ((0, 1), (1, 0))
    ],
}  # fmt: skip


def replicated(load: Sequence[float], gpus: int, slots: int) -> Rows:
    """One row: the largest load of a GPU, ``most``, after EPLB with ``slots`` experts a GPU; ``mean`` of all."""
    placed = balancers.eplb([list(load)], gpus * slots, 1, 1, gpus)
    each = np.array(load) / placed.copies[0]
    of_gpu = each[placed.physical_to_logical[0]].reshape(gpus, slots).sum(axis=1)
    return [{"most": float(of_gpu.max()), "mean": float(of_gpu.mean())}]


# ---- the parts of a layer under expert parallelism

_ID_BYTES = 8  # an expert's id, int64 in PyTorch
_COUNT_BYTES = 4


def parts_of_layer(model: str, gpu: str, tokens: int, ranks: int) -> Rows:
    """A row a ``part`` of a prefill's MoE layer beside its experts, ``ns``: ``dispatch``, an all-gather of hidden
    vectors in BF16; ``combine``, an all-reduce; ``predict``, the product of the next layer's router; ``broadcast``, an
    all-gather of the predicted ids; ``to_host``, ids of all tokens over PCIe; ``to_gpu``, tokens of every pair of GPU,
    expert and holder. tokens: of all ranks. Times are those of the GPU's calibration; of PCIe, of a Gen5 slot.
    """
    shape, host = library.load_model(model), decision.HostSpec()
    laws = Laws(calibration_files.calibration_named(gpu))
    ids = float(tokens * shape.top_k * _ID_BYTES)
    plan = float(ranks * ranks * shape.experts * _COUNT_BYTES)
    router = dense_product(laws.calibration, shape.experts, shape.hidden, "bf16", tuned=True)

    def collective(op: str, n_bytes: float) -> float:
        return float(laws.collective(op, n_bytes, ranks=ranks).ns)

    def over_pcie(n_bytes: float) -> float:
        return host.pcie_latency_ns + n_bytes / host.pcie_bandwidth_bytes_per_s * NS_PER_S

    found = {
        "dispatch": collective("all_gather", 2.0 * tokens * shape.hidden),
        "combine": collective("all_reduce", 2.0 * tokens * shape.hidden),
        "broadcast": collective("all_gather", ids),
        "predict": float(router.ns(np.array([tokens / ranks]))[0]),
        "to_host": over_pcie(ids), "to_gpu": over_pcie(plan),
    }  # fmt: skip
    return [{"part": name, "ns": value} for name, value in found.items()]


def two_stages(
    model: str,
    ranks: int,
    tokens: int,
    accuracy: float,
    slots: int = 8,
    local_share: float = 0.5,
    layers: int = 4,
    seed: int = 0,
) -> Rows:
    """One row: ``local``, the share of pairs of token and expert that Libra's first stage runs, whose expert the
    token's own GPU holds after Algorithm 1; ``imbalance``, the load of the busiest GPU over the mean, unbalanced.

    Means over layers of the model's traffic preset, of prompts; tokens: of all ranks.
    """
    shape = library.load_model(model)
    traffic = load_traffic(model, shape)
    assert isinstance(traffic, TrafficModel)
    at = np.linspace(0, len(traffic.layer_ids) - 1, layers).astype(int)
    prompts = _prompts(of_layers(traffic, traffic.layer_ids[at], model))
    trace = generated.collect(generated.traffic_of(prompts, tokens // _PROMPT, seed))
    rank = np.repeat(np.arange(trace.requests) * ranks // trace.requests, np.diff(trace.request_offsets))
    home = np.arange(shape.experts) * ranks // shape.experts
    local, imbalance = [], []
    for layer in range(layers):
        load = np.stack(
            [np.bincount(trace.experts[rank == each, layer].ravel(), minlength=shape.experts) for each in range(ranks)]
        )
        predicted = replication.look_ahead(load, accuracy, np.random.default_rng([seed, layer]))
        holds = libra.libra_plan(predicted, home, slots, int(slots * local_share)).holds > 0
        local.append(load[holds].sum() / load.sum())
        imbalance.append(np.bincount(home, weights=load.sum(axis=0)).max() * ranks / load.sum())
    return [{"local": float(np.mean(local)), "imbalance": float(np.mean(imbalance))}]

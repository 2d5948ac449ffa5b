"""A claim beside rows of results, of sweeps and serving: a quantity is an expression of columns of a row and of
``other``'s, which differs in what ``against`` says; its value is the mean (most, least) over the rows of ``at``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.sums import sum
from archsim.specs import constraints, papers

_NOISE = 1e-9  # of a value: arithmetic on published numbers is no nearer
LEAST_SKILL = 0.5  # of a number that is predicted: half of the best null model's error
Row = Mapping[str, Any]
Value = float | str | None
_TAKE: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"mean": fmean, "most": max, "least": min, "total": fmean}
)
# What a row is of, beside the axes of its sweep: rows that are compared agree in these.
_IDENTITY = ("system", "model", "batch", "policy", "trace", "devices")


def value_of(group: papers.ClaimGroup, row: papers.ClaimRow, rows: Sequence[Row], axes: Iterable[str]) -> Value:
    """The value of the rows that are meant; None without any or without a column, NO_ROOM where all were refused."""
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
        own, others = ([pair[side] for pair in served] for side in (0, 1))
        served = [(_column_sums(own, expression), _column_sums(others, expression))]
    found = [expression.value(_lookup(row, other)) for row, other in served]
    return _TAKE[take](found) if found and not any(map(math.isnan, found)) else None


def _column_sums(rows: Sequence[Row | None], expression: constraints.Expression) -> Row:
    """Sums over rows of the columns of an expression; one that a row lacks is left out."""
    columns = {name.removeprefix(f"{papers.OTHER}.") for name in expression.names}
    values = {column: [_number(row, column) for row in rows] for column in columns}
    there = {column: [each for each in of if each is not None] for column, of in values.items()}
    return {column: sum(each) for column, each in there.items() if len(each) == len(rows)}


def _other(row: Row, rows: Sequence[Row], keys: Sequence[str], against: Mapping[str, Any]) -> Row | None:
    """The first row like ``row`` in ``keys`` that ``against`` means. A mapping there is looked up with the row's own
    value: ``{policy: {fast: slow}}`` compares fast with slow.
    """
    if not against:
        return None
    meant = {key: value.get(row.get(key)) if isinstance(value, dict) else value for key, value in against.items()}
    return next((e for e in rows if _agrees(e, meant) and all(e.get(key) == row.get(key) for key in keys)), None)


def _lookup(row: Row, other: Row | None) -> constraints.Lookup:
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
    """A claim beside runs."""

    group: papers.ClaimGroup  # of rows of a paper
    row: papers.ClaimRow  # the claim
    values: Mapping[int, Value]  # number of rules → value, from ``physical`` (0) to the paper's own experiment
    steps: Mapping[int, str]  # number of rules → the rule that it adds
    nulls: Mapping[str, Value] = MappingProxyType({})  # null model, in words → its value
    ends: tuple[Value, ...] = ()  # at both ends of the interval of a constant fitted on a rounded number, if any
    place: str = ""  # what it is of, beside its group, in words

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

    def error(self, value: Value) -> float:
        """Distance from the published value, in its unit or by the logarithm; infinite if only one of them is a number,
        and for what an inequality excludes.
        """
        published = self.row.published
        if isinstance(published, str) or not isinstance(value, float):
            return 0.0 if published == value else math.inf
        nearest = self.nearest(value)
        assert nearest is not None
        if isinstance(published, papers.PublishedBound):
            return 0.0 if value == nearest else math.inf
        if self.group.scale == "log":
            return abs(math.log(value / nearest)) if value > 0 and nearest > 0 else math.inf
        far = abs(value - nearest)
        return far if far > _NOISE * abs(nearest) else 0.0

    @property
    def best_null(self) -> tuple[str, Value]:
        """(null model, its value): the one with the smallest error."""
        return min(self.nulls.items(), key=lambda null: self.error(null[1]))

    @property
    def guess(self) -> Value:
        return self.best_null[1]

    @property
    def skill(self) -> float | None:
        """1 minus the error (over a fitted constant's interval) over that of the best null model; at most 0 where a
        null model is inside the paper's rounding or spread, -inf where it alone is exact, None without a value.
        """
        if self.simulated is None:
            return None
        own, null = max(map(self.error, (self.simulated, *self.ends))), self.error(self.guess)
        if own == null:
            return 0.0
        skill = 1 - own / null if null else -math.inf
        return min(skill, 0.0) if any(map(self._is_within, self.nulls.values())) else skill

    @property
    def within(self) -> bool:
        """Whether the error is inside the paper's rounding and spread, for all of a constant's interval."""
        return all(map(self._is_within, (self.simulated, *self.ends)))

    def _is_within(self, value: Value) -> bool:
        nearest = self.nearest(value)
        if nearest is None or isinstance(self.row.published, papers.PublishedBound):
            return self.error(value) == 0
        room = self.group.within or abs(nearest) * self.group.within_percent / 100
        return abs(value - nearest) <= room  # type: ignore[operator]

    @property
    def mechanism(self) -> bool:
        """Whether it tests what a mechanism changes."""
        of = self.group.mechanism
        return _agrees(self.group.at | self.row.at, of) if isinstance(of, dict) else of

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
        """``reproduced`` (skill above `LEAST_SKILL`, and inside the paper's rounding or spread), ``better`` (that skill
        alone), ``missed``, ``follows`` (from other rows), ``fit``, or ``none`` where the runs show no value.
        """
        if self.simulated is None:
            return "none"
        if self.row.fit:
            return "fit"
        if self.row.follows:
            return "follows"
        assert self.skill is not None
        if self.skill <= LEAST_SKILL:
            return "missed"
        return "reproduced" if self.within else "better"

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
    """Which of two rows is larger."""

    group: papers.ClaimGroup  # of rows of a paper
    one: papers.ClaimRow  # first row
    other: papers.ClaimRow  # second row
    published: str  # of the first against the second, one of `ORDER`
    simulated: str | None  # the same of the runs; None: no value for one of them
    guess: str  # the same of the null model
    place: str = ""  # what is compared, in words

    @property
    def kind(self) -> str:
        """The kind of the sign, like `JudgedClaim.kind`."""
        if self.simulated is None:
            return "none"
        if self.simulated != self.published:
            return "missed"
        return "as null" if self.guess == self.published else "better"


def judged_signs(judged: Sequence[JudgedClaim], called: Callable[[str, Any], str] | None = None) -> list[JudgedSign]:
    """The signs of all pairs of rows that their groups' ``signs`` name, without pairs that are equal as published, do
    not fit, or were both fitted. called: what a value of a column is in words.
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


class AnswerCells(NamedTuple):
    """``rows``: (what, value for every value of the column, mean)."""

    answer: papers.Answer
    columns: tuple[Any, ...]
    rows: tuple[tuple[str, tuple[Value, ...], Value], ...]


def answer_of(answer: papers.Answer, runs: Mapping[str, Sequence[Row]], axes: Iterable[str]) -> AnswerCells:
    """``runs``: name of a set of assumptions → rows."""
    columns = tuple(sorted({row[answer.by] for rows in runs.values() for row in rows}))
    found = []
    for name, rows in runs.items():
        for what, against in answer.against.items():
            cells = [taken(answer.quantity, answer.at | {answer.by: at}, against, rows, axes) for at in columns]
            found.append((f"{what}, {name}", tuple(cells), taken(answer.quantity, answer.at, against, rows, axes)))
    return AnswerCells(answer, columns, tuple(found))


def bars_of(figure: papers.FigureSpec, rows: Sequence[Row], axes: Iterable[str]) -> tuple[tuple[Any, str, float], ...]:
    """The bars of a figure in the order of its rows: (value of the column, part, quantity); what fits alone."""
    axes, bars = tuple(axes), []
    for value in dict.fromkeys(row.get(figure.by) for row in rows if _agrees(row, figure.at)):
        for part, quantity in figure.parts.items():
            found = taken(quantity, figure.at | {figure.by: value}, figure.against, rows, axes)
            if isinstance(found, float):
                bars.append((value, part, found))
    return tuple(bars)

"""A claim beside rows of results: the one evaluator, for sweeps and for serving.

A quantity is an expression of columns of a row, and of ``other``'s, the row that differs from it in nothing but what
``against`` says. Its value is the mean (the most, the least) over all rows that ``at`` selects.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.specs.papers import OTHER, Answer, ClaimGroup, ClaimRow, parsed_quantity
from archsim.specs.sweeps.constraints import Lookup

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

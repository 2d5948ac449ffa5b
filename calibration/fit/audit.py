"""The audit of a calibration: which points of its tables stand apart from those beside them, and why they are kept.

Tables with a law keep ln(measured / law) at every point: products at each m of a shape, fused layers at each number
of tokens of an EP size, attention at each context of a batch; ``calibration.fit.gemm`` says which stand apart. The
fit of fused layers leaves such a point out where one sweep alone measured it, unless its routing was drawn.

Transfers keep segments, and no points: a table is reported whose held-out error is APART times that of the median
table of its section. Single numbers have nothing beside them.

Whole tables are dominated where another of the same library, of more bits or an older version of the kernel, is
faster at the median (``archsim.laws.laws``).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from archsim.laws.attention import CORRECTION_UNIT as ATTENTION_UNIT
from archsim.laws.dominated import NOT_SERVED, SLOWER, dominated_in
from archsim.laws.gemm import CORRECTION_UNIT
from archsim.laws.rank_load import BALANCED
from archsim.laws.tables import (
    AttentionTable,
    CalibrationSpec,
    GemmTable,
    MoeTable,
    TableOrigin,
    TransferTable,
    shape_of,
)
from calibration.fit.covered_tables import name_of
from calibration.fit.gemm import LEAST_SHAPES_TO_KRIGE
from calibration.fit.isolated import APART, LEAST, LEAST_OF_ROW, apart, off_span, spread_of

WITH_POINTS, TRANSFERS = ("gemm", "moe", "attention"), ("p2p", "collectives", "pcie", "hbm")


class Finding(NamedTuple):
    """A point that stands apart."""

    section: str  # of the calibration
    table: str  # of the section
    row: str  # of the table
    at: str  # place of the point in its row
    off: float  # ln(point / span of its neighbours)
    spreads: float  # the same in spreads of the table
    why: str  # it is kept


class Audited(NamedTuple):
    """Tables and points of one section that were looked at, and the odd points, the farthest first."""

    section: str
    tables: int
    points: int
    found: tuple[Finding, ...]


def audit(calibration: CalibrationSpec) -> list[Audited]:
    """Every section of a calibration, its own tables alone (not those scaled from another GPU)."""
    found = []
    for section in WITH_POINTS:
        tables = [table for table in getattr(calibration, section) if not table.scaled_from]
        each = [_audit_table(section, table) for table in tables]
        every = sorted((one for _, findings in each for one in findings), key=lambda one: -one.spreads)
        found.append(Audited(section, len(tables), sum(points for points, _ in each), tuple(every)))
    for section in TRANSFERS:
        transfers = [
            table
            for table in getattr(calibration, section)
            if isinstance(table, TransferTable) and not table.scaled_from
        ]
        found.append(Audited(section, len(transfers), 0, tuple(_held_out(section, transfers))))
    return found


def _held_out(section: str, tables: list[TransferTable]) -> Iterator[Finding]:
    errors = np.array([table.held_out_error for table in tables])
    if not errors.any():
        return
    spread = float(np.median(errors[errors > 0]))
    for table, error in sorted(zip(tables, errors, strict=True), key=lambda pair: -pair[1]):
        if error > max(APART * spread, LEAST):
            named = _name(section, table)
            yield Finding(section, named, "all", "", float(error), float(error / spread), "error of points left out")


def _audit_table(section: str, table: TableOrigin) -> tuple[int, list[Finding]]:
    """(points, findings) of a table with corrections."""
    rows = [row for row in _rows_of(table) if len(row.values) >= LEAST_OF_ROW]
    spread = spread_of([row.values for row in rows])
    found = []
    for row in rows:
        off = off_span(row.values)
        for at in np.flatnonzero(apart(row.values, spread)):
            who = _name(section, table), row.name, row.at[at], float(off[at]), abs(float(off[at])) / spread
            found.append(Finding(section, *who, _why(table)))
    return sum(len(row.values) for row in rows), found


def _why(table: TableOrigin) -> str:
    """Why a point that stands apart is kept."""
    if isinstance(table, MoeTable) and table.distribution != BALANCED:
        return "routing sampled anew at every point"
    if isinstance(table, GemmTable) and len(table.shapes) >= LEAST_SHAPES_TO_KRIGE:
        return "other shapes are outliers there, too"  # the fit replaces it where they do not
    return "several sweeps agree" if len(table.sweeps) > 1 else "measured once, kept"


class PointsWithNeighbours(NamedTuple):
    """Points with neighbours: ``values``: ln(measured / law), float64[point]; ``at``: what each is at."""

    name: str
    values: np.ndarray
    at: list[str]


def _rows_of(table: TableOrigin) -> Iterator[PointsWithNeighbours]:
    """Corrections of a table at points that were measured."""
    if isinstance(table, MoeTable):
        for name, values in table.ranks.items():
            yield PointsWithNeighbours(
                name, np.array(values) * CORRECTION_UNIT, [f"tokens {each:g}" for each in table.tokens]
            )
        return
    assert isinstance(table, GemmTable | AttentionTable)
    for name, values in table.shapes.items():
        if isinstance(table, GemmTable):
            first, last = table.range_of(*shape_of(name))
            inside = [at for at, m in enumerate(table.m) if first <= m <= last]
            corrections = np.array([values[at] for at in inside]) * CORRECTION_UNIT
            yield PointsWithNeighbours(name, corrections, [f"m {table.m[at]:g}" for at in inside])
            continue
        by_batch = np.array(values).reshape(len(table.batch), -1) * ATTENTION_UNIT
        for batch, most, row in zip(table.batch, table.most_tokens, by_batch, strict=True):
            inside = [at for at, tokens in enumerate(table.tokens) if tokens <= most]
            yield PointsWithNeighbours(
                name, row[inside], [f"batch {batch:g}, tokens {table.tokens[at]:g}" for at in inside]
            )


def _name(section: str, table: TableOrigin) -> str:
    return f"{name_of(section, table)} {table.version}".removeprefix(f"{section} ").strip()


def audit_lines(calibration: CalibrationSpec) -> Iterator[str]:
    for each in audit(calibration):
        if each.tables:
            points = f" with {each.points:,} points" if each.points else ""
            far = f", the farthest {_line(each.found[0])}" if each.found else ""
            yield f"{calibration.gpu} {each.section}: {each.tables} tables{points}: {len(each.found)} outliers{far}"
    for section, found in dominated_in(calibration):
        for one in found:
            yield (
                f"{calibration.gpu} {section}: {_name(section, one.table)} is dominated: it takes {one.ratio:.2f} "
                f"times as long as {_name(section, one.by)} (median of {one.points:,} points)"
            )


def page_of(calibrations: Sequence[CalibrationSpec]) -> str:
    lines = [
        "# Audit of shipped calibrations",
        "",
        "Which measured points are outliers? `archsim calibrate --validate --audit --out docs/audit.md` writes this",
        "page. It leaves out every point of every table in turn and compares it with its neighbours.",
        "`archsim calibrate --validate --audit` prints the points and tables by name.",
        "",
        f"- A point is an *outlier* if it lies outside the span of its neighbours by more than {APART:g} times",
        f"  the spread of its table, and by more than {LEAST:.0%}. Of transfers, a whole table is one if its held-out",
        f"  error is {APART:g} times that of the median table. `archsim calibrate` leaves out fused layers that are",
        "  outliers, unless several sweeps measured them or their routing was sampled.",
        "- A table is *dominated* if it should be faster than another one, because it has fewer bits or a newer",
        f"  version of the kernel, but takes at least {SLOWER:g} times as long. `archsim serve` does not use fused",
        f"  layers that take {NOT_SERVED:g} times as long as those of more bits.",
        "",
    ]
    lines += ["| GPU | section | tables | points | outliers | farthest | dominated | most dominated |",
              "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for calibration in calibrations:
        dominated = dict(dominated_in(calibration))
        for each in audit(calibration):
            if each.tables:
                slower = dominated.get(each.section, ())
                far = f"{np.expm1(each.found[0].off):+.0%}" if each.found else "–"
                worst = f"{max(one.ratio for one in slower):.2f} ×" if slower else "–"
                cells = (calibration.gpu, each.section, each.tables, f"{each.points:,}", len(each.found), far,
                         len(slower), worst)  # fmt: skip
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _line(one: Finding) -> str:
    at = ", ".join(filter(None, (one.table, one.row, one.at)))
    return f"{at}: {np.expm1(one.off):+.0%}, {one.spreads:.1f} spreads ({one.why})"

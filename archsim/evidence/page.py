"""What one source of evidence says: first sentences and tables, for terminal, Markdown, JSON and page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archsim.base.case import COUNTS, HEADINGS, UNDER, frame_of
from archsim.base.files import own_folder, write_text
from archsim.base.tables import Shown
from archsim.show import plots, rendering
from calibration.measurements.reading import CASES

if TYPE_CHECKING:
    import pandas

TEMPLATES = Path(__file__).parent / "templates"
ERRORS, JSON = "errors.csv", "evidence.json"
MOST_IN_JSON = 2_000  # cases
MOST_POINTS = 18_000  # of the drawing: every n-th case by error, so that the worst are always drawn
_NEAR_OR_FAR = {"error under 5 %": "--p4", "5 % or more": "--p7"}


class EvidenceTable(NamedTuple):
    """A table as it is shown. The first ``texts`` columns are text, the others numbers."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int
    most: int = 1000  # rows that a terminal shows

    def lines(self) -> Iterator[str]:
        shown = self.rows[: self.most]
        more = f", the first {len(shown)} of {len(self.rows)} rows" if len(shown) < len(self.rows) else ""
        yield f"\n{self.title}{more}:"
        widths = [max(map(len, column)) for column in zip(self.names, *shown, strict=True)]
        for row in (self.names, *shown):
            texts = [cell.ljust(width) for cell, width in zip(row[: self.texts], widths, strict=False)]
            numbers = [cell.rjust(width) for cell, width in zip(row[self.texts :], widths[self.texts :], strict=True)]
            yield "  ".join([*texts, *numbers]).rstrip()

    def markdown(self) -> list[str]:
        marks = ["---"] * self.texts + ["---:"] * (len(self.names) - self.texts)
        return [f"| {' | '.join(row)} |" for row in (self.names, marks, *self.rows)]


def table_of(
    title: str, found: pandas.DataFrame, columns: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> EvidenceTable:
    """columns: heading → (column of ``found``, how a value is written); those written by `str` are text."""
    rows = [[write(row[name]) for name, write in columns.values()] for row in found.to_dict("records")]
    texts = sum(write is str for _, write in columns.values())
    return EvidenceTable(title, list(columns), rows, texts)


def error_table(
    title: str,
    found: pandas.DataFrame,
    by: Sequence[str],
    shown: Sequence[str] = ("cases", "extrapolated", "under_5", "mean", "p95", "worst", "floor"),
) -> EvidenceTable:
    """Rows of `archsim.base.case.errors` by the columns ``by``, with statistics that are named."""
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {name: (name, str) for name in by}
    columns |= {HEADINGS[name]: (name, _count if name in COUNTS else percent) for name in shown}
    return table_of(title, found, columns)


def _count(value: int) -> str:
    return f"{value:,}"


def percent(share: float | None) -> str:
    """``0.0341`` → ``3.41 %``; what is not known is a dash."""
    return "–" if share is None or share != share else f"{100 * share:.2f} %"


@dataclass(frozen=True)
class Evidence(Shown):
    """What was measured or published beside what archsim says."""

    title: str
    sentences: tuple[str, ...]  # the answer
    cases: pandas.DataFrame  # a row a case: columns of `archsim.base.case.Case`, ``error`` and the source's own
    errors: pandas.DataFrame  # by group, of `archsim.base.case.errors`
    tables: tuple[EvidenceTable, ...]
    notes: tuple[str, ...] = ()  # how the cases were read, and what predicted them
    left_out: tuple[str, ...] = ()  # what was measured and is not predicted, and why
    about: str = ""  # how to read the tables

    def __repr__(self) -> str:
        return f"Evidence({self.title!r}: {len(self.cases):,} cases, {len(self.left_out)} left out)"

    def to_pandas(self) -> pandas.DataFrame:
        """A row a case: fields of `archsim.base.case.Case`, ``error``, and columns of the source's own."""
        return self.cases

    def lines(self) -> Iterator[str]:
        """What a terminal shows."""
        yield from self.sentences
        for table in self.tables:
            if table.most:
                yield from table.lines()

    def as_json(self) -> dict[str, Any]:
        found = {"answer": list(self.sentences), "errors": _records(self.errors), "notes": list(self.notes),
                 "left_out": list(self.left_out)}  # fmt: skip
        return found | ({"cases": _records(self.cases)} if len(self.cases) <= MOST_IN_JSON else {})

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", " ".join(self.sentences), "", *(f"- {note}" for note in self.notes), ""]
        for table in self.tables:
            lines += [f"{table.title}:", "", *table.markdown(), ""]
        if self.left_out:
            lines += ["Not predicted:", "", *(f"- {line}" for line in self.left_out), ""]
        return "\n".join(lines)

    def write(self, folder: Path) -> Path:
        """Write ``index.html``, ``cases.parquet`` (every case), ``errors.csv`` (by group) and ``evidence.json`` (the
        answer). Returns the page.
        """
        import json

        own_folder(folder)
        self.cases.to_parquet(folder / CASES, index=False, compression="zstd")
        write_text(folder / ERRORS, self.errors.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
        write_text(folder / JSON, json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")
        context = {"found": self, "figure": figure_of(self.cases), "files": (CASES, ERRORS, JSON)}
        write_text(folder / "index.html", rendering.render("evidence.html.j2", context, folder=TEMPLATES))
        return folder / "index.html"


def _records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    rows = frame.to_dict("records")
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def figure_of(cases: pandas.DataFrame) -> plots.Points | None:
    """Predicted over measured value with the diagonal, a group at a time; None without cases."""
    known = cases[cases["error"].notna() & (cases["measured"] > 0) & (cases["predicted"] > 0)] if len(cases) else cases
    if not len(known):
        return None
    order = known["error"].abs().sort_values(ascending=False, kind="stable").index
    rows = [
        {
            "set": f"{row.source}, {row.group}", "at": row.what, "measured": float(row.measured),
            "predicted": float(row.predicted), "error": percent(row.error),
            "kind": "error under 5 %" if abs(row.error) < UNDER else "5 % or more",
        }
        for row in known.loc[order[:: -(-len(known) // MOST_POINTS)]].itertuples()
    ]  # fmt: skip
    ends = [end for row in rows for end in (row["measured"], row["predicted"])]
    unit = ", ".join(dict.fromkeys(known["unit"]))
    return plots.Points(
        question="How far are predictions from measurements?", rows=rows, zero=False, size=16,
        x=plots.PlotAxis("measured", f"measured, {unit}", "~g", log=True),
        y=plots.PlotAxis("predicted", f"predicted, {unit}", "~g", log=True),
        colours=plots.Colours("kind", _NEAR_OR_FAR),
        tips=(("set", "set"), ("at", "case"), ("measured", "measured"), ("predicted", "predicted"), ("error", "error")),
        curves=[{"line": "equal", "measured": end, "predicted": end} for end in (min(ends), max(ends))],
        filters={"set": rows[0]["set"]},
    )  # fmt: skip


def join_frames(frames: Iterable[pandas.DataFrame]) -> pandas.DataFrame:
    """Frames of cases, one below the other; one without rows, if there are none, has the columns of a case."""
    import pandas

    there = [frame for frame in frames if len(frame)]
    return pandas.concat(there, ignore_index=True) if there else frame_of([])

"""What a study says: sentences and tables in the order in which a reader needs them, notes, and the result as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from archsim.base.errors import sentence, spaced


@dataclass(frozen=True)
class Grid:
    """Rows of texts. Heads of ``columns`` come first, then those of right-aligned ``numbers``, then ``more`` texts."""

    columns: Sequence[str]
    rows: Iterable[Sequence[str] | None]  # a cell for each head; None: a line between groups
    numbers: Sequence[str] = ()
    more: Sequence[str] = ()
    title: str | None = None
    has_heads: bool = True  # whether heads are shown
    wraps: bool = False  # whether numbers, too, may take several lines in a terminal that is too narrow
    unbroken: bool = False  # whether the first column stays on one line
    second: int = 0  # most characters of the second column; 0: as many as there are
    headings: bool = False  # whether rows with a first cell alone are headings
    least: int = 0  # columns that stay in a terminal that is too narrow; 0: cells wrap instead

    @property
    def heads(self) -> tuple[str, ...]:
        return (*self.columns, *self.numbers, *self.more)


Part = str | Grid


@dataclass(frozen=True)
class Answer:
    """What a command prints, and what a notebook shows."""

    parts: Sequence[Part]  # lines and tables
    notes: Sequence[str] = ()  # caveats: in a terminal on stderr
    result: Any = None  # what ``--json`` prints
    status: int = 0  # with which a command ends

    def _repr_html_(self) -> str:
        parts = (each if isinstance(each, str) else _html_of(each) for each in self.parts)
        notes = (f"Note: {sentence(note)}" for note in self.notes)
        return "\n".join(
            each if each.startswith("<table") else f"<p>{escape(spaced(each))}</p>" for each in (*parts, *notes)
        )


def _html_of(grid: Grid) -> str:
    title = f"<caption>{escape(spaced(grid.title))}</caption>" if grid.title else ""
    heads = "".join(f"<th>{escape(spaced(head))}</th>" for head in grid.heads) if grid.has_heads else ""
    rows = ("".join(f"<td>{escape(spaced(cell))}</td>" for cell in row) for row in grid.rows if row is not None)
    return f"<table>{title}<tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

"""Tables that commands print: as wide as the terminal, or of a width of their own where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from archsim.base.code_digest import nothing_compiled

LOG_WIDTH = 200  # of tables that do not go to a terminal


def console():
    """Where tables are printed."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False)


def print_notes(notes: Iterable[str]) -> None:
    """What a reader of results must know, a line each, on stderr."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def tell_compiling() -> None:
    """On stderr, where the first runs are going to wait for the compiler; see ``archsim.base.code_digest``."""
    if nothing_compiled():
        print("compiling, once: up to a minute", file=sys.stderr, flush=True)


def grid(*columns: str, title: str | None = None, numbers: tuple[str, ...] = ()):
    """A table with columns of text, then of ``numbers``, which are aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column)
    for column in numbers:
        made.add_column(column, justify="right")
    return made

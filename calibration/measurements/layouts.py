"""Adapters: the columns of one public file layout, and the conversion of its rows to the schema."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class FileLayout:
    """One public layout; it reads files whose header has all of ``required``.

    ``figures``: columns that must hold numbers > 0 (of ``required``, or left out of it if the file may lack them);
    ``may_be_empty``: those of the figures whose cells may be empty (they arrive as NaN). ``leaves_out``: the rows that
    ``convert`` does not use, reported if there are any. ``skip``: why files of this layout are recognised but not read;
    their ``kind`` is empty, and ``convert`` is never called. ``of_user``: measured by the user, with one GPU per file,
    whose name may come from the folder (``calibration.measurements.reading``). ``convert`` receives the valid rows (all
    columns as text, figures as float64; the index is the line number; ``file`` is the name of the file) and returns
    schema rows of the table ``kind`` with the same index (a line with two points appears twice).
    """

    name: str
    kind: str
    required: tuple[str, ...]
    figures: tuple[str, ...]
    convert: Callable[[DataFrame], DataFrame]
    may_be_empty: tuple[str, ...] = ()
    leaves_out: str = ""
    of_user: bool = False
    skip: str = ""


def layout(
    name: str, kind: str, convert: Callable[[DataFrame], DataFrame], texts: str, figures: str, **more: Any
) -> FileLayout:
    """A layout that needs all of its columns: ``texts`` and ``figures``, names with blanks between."""
    return FileLayout(name, kind, (*texts.split(), *figures.split()), tuple(figures.split()), convert, **more)


def frame(rows: DataFrame, of: str = "", **columns: Any) -> DataFrame:
    """Rows of the schema: ``columns``, and those taken from ``rows``, ``name`` or ``name=theirs``, blanks between."""
    taken = (pair.partition("=") for pair in of.split())
    return DataFrame({name: rows[theirs or name] for name, _, theirs in taken} | columns, index=rows.index)


def renamed(names, known: dict[str, str]):
    """A column of names in the words of the schema; unknown ones stay, for the reader to quarantine."""
    return names.map(known).fillna(names)

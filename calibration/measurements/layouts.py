"""Adapters: the columns of one public file layout, and the conversion of its rows to the schema."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class FileLayout:
    """One public layout; it reads files whose header has all of ``required``."""

    name: str  # in messages
    kind: str  # table of the schema that its rows become; '' where they are skipped
    required: tuple[str, ...]  # columns
    figures: tuple[str, ...]  # columns of numbers > 0, of ``required``, or of those that a file may lack
    # valid rows (texts, figures as float64; index: the line; ``file``: its name) → rows of the schema with that index;
    # a line with two points appears twice
    convert: Callable[[DataFrame], DataFrame]
    may_be_empty: tuple[str, ...] = ()  # figures whose cells may be empty: NaN
    leaves_out: str = ""  # the rows that ``convert`` does not use, reported if there are any
    # measured by the user: one GPU a file, whose name may come from the folder (`calibration.measurements.reading`)
    of_user: bool = False
    skip: str = ""  # why such files are recognised but not read; ``convert`` is never called


def layout(
    name: str, kind: str, convert: Callable[[DataFrame], DataFrame], texts: str, figures: str, **more: Any
) -> FileLayout:
    """A layout that needs all of its columns: ``texts`` and ``figures``, names with blanks between."""
    return FileLayout(name, kind, (*texts.split(), *figures.split()), tuple(figures.split()), convert, **more)


def frame(rows: DataFrame, of: str = "", **columns: Any) -> DataFrame:
    """Rows of the schema: ``columns``, and those taken from ``rows``, ``name`` or ``name=theirs``, blanks between."""
    taken = (pair.partition("=") for pair in of.split())
    return DataFrame({name: rows[theirs or name] for name, _, theirs in taken} | columns, index=rows.index)


def translate(names, known: dict[str, str]):
    """A column of names in the words of the schema; unknown ones stay, for the reader to quarantine."""
    return names.map(known).fillna(names)

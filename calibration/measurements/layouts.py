"""Adapters: the columns of one public file layout, and the conversion of its rows to the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class Layout:
    """One public layout; it reads files whose header has all of ``required``.

    ``figures``: columns that must hold numbers > 0 (of ``required``, or left out of it if the file may lack them);
    ``may_be_empty``: those of the figures whose cells may be empty (they arrive as NaN). ``leaves_out``: the rows that
    ``convert`` does not use, reported if there are any. ``skip``: why files of this layout are recognised but not read;
    their ``kind`` is empty, and ``convert`` is never called. ``of_user``: measured by the user, with one GPU per file,
    whose name may come from the folder (``calibration.measurements.machine``). ``convert`` receives the valid rows (all
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

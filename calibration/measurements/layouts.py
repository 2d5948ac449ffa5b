"""What an adapter is: the columns of one public file layout, and how its rows become rows of the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class Layout:
    """One public layout; a file whose header has all of ``required`` is read by it.

    ``figures``: columns that must hold numbers > 0 (of ``required``, or left out of it if the file may lack them);
    ``may_be_empty``: those of the figures whose cells may be empty (they arrive as NaN).
    ``leaves_out``: what rows ``convert`` does not use, to be told where there are such rows.
    ``skip``: why files of this layout are recognised and not read; their ``kind`` is empty, and ``convert`` is never called.
    ``of_user``: measured by the user, so of one GPU a file, whose name may be left to the folder (``calibration.measurements.machine``).
    ``convert`` gets the rows that passed (all columns as text, figures as float64; the index is the line number; ``file`` is the name of the file) and
    returns schema rows of the table ``kind``, with the index kept (lines may repeat, where one line holds two points).
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

"""Selects tables of a calibration by name; a missing one raises an error that lists the available ones."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.laws.tables import Fitted

Table = TypeVar("Table", bound=Fitted)
# Libraries that are used only by name, or if there is no other: the bandwidth of NCCL under XLA depends on XLA's
# channel settings (docs/calibration.md), and wide-EP experts were timed without the parts of a layer other than its
# products.
ONLY_BY_NAME = ("nccl-xla", "trtllm-wideep")
# Experts after a dispatch kernel, without the permutation and the sum of a fused layer: used if named, or alone.
PARTS_OF_LAYERS = ("sglang-deepep", *ONLY_BY_NAME)


class LawMissing(SpecError):
    """A calibration has no table for the request."""


def newest_first(version: str) -> tuple:
    """A sort key of versions, for ``reverse=True``: 1.10.0 before 1.9.0, 1.3.0 before 1.3.0rc10."""
    release, _, candidate = version.partition("rc")
    numbers = tuple(int(word) for word in re.findall(r"\d+", release))
    return numbers, int(candidate) if candidate.isdecimal() else 10**9, version


def newest(tables: Iterable[Table]) -> Table:
    """The table of the newest version. Raises ValueError if there is no table."""
    return max(tables, key=lambda table: newest_first(table.version))


def matching(gpu: str, what: str, tables: Sequence[Table], asked: Mapping[str, object]) -> list[Table]:
    """The tables that match all values of ``asked``; None matches everything, and case is ignored.

    A key is an attribute of the table or a key of its ``of``. Raises LawMissing at the first value without a matching
    table: it lists the available values, given the previous ones, and the nearest.
    """
    if not tables:
        raise LawMissing(f"calibration {gpu} has no {what} tables")
    before: list[str] = []
    for key, value in asked.items():
        if value is None:
            continue
        found = [table for table in tables if name_of(table, key).casefold() == _written(value).casefold()]
        if not found:
            there = sorted({name_of(table, key) for table in tables}, key=_by_number)
            given = f" for {', '.join(before)}" if before else ""
            near = "" if isinstance(value, int | float) else did_you_mean(_written(value), there)
            raise LawMissing(
                f"calibration {gpu} has no {what} table of {key} {_written(value)!r}{given}{near} "
                f"(it has: {', '.join(name or 'none' for name in there)})"
            )
        tables = found
        before.append(f"{key} {_written(value)}")
    return list(tables)


def name_of(table: Fitted, key: str) -> str:
    """The value of ``key`` in a table, as text; '' for none."""
    value = getattr(table, key) if key in type(table).model_fields else getattr(table, "of", {}).get(key, "")
    return _written(value)


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_number(name: str) -> tuple:
    return (0, float(name), "") if re.fullmatch(r"\d+(\.\d+)?", name) else (1, 0.0, name)

"""Recorded routing as matrices of assignments, from source chip to the chip of the expert, and counts of experts.

A file ``*source_destination.csv`` has a row for every case and source chip, with a column ``to_chip_0``, ``to_chip_1``,
… for every destination; experts lie on chips in order of their slots. Beside it, with the same beginning of the name,
there may be ``*expert_counts.csv`` (assignments of every slot) and ``*case_summary.csv`` (tokens of a case). Matrices
count assignments: a token with two experts on a chip counts twice.

As a trace, a case is one request for each source chip, whose tokens are the prompt of a single MoE layer, the model's
first: the name of the case, which is the subject, says what was recorded. Sums over sources, chips and experts are
those of the files. Which experts a single token has together is not in them; it is drawn, always in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.csv_lines import CsvLine, csv_rows
from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic.formats.requests import Item, RequestRows, request_rows

ENDING = "source_destination.csv"
COLUMNS = {
    "source_destination": ("case", "source_chip"),
    "case_summary": ("case", "tokens_with_1_chip"),
    "expert_counts": ("case", "expert_slot", "chip", "assignments"),
}
_SEED = 0


def is_matrices(path: Path) -> bool:
    return path.name.endswith(ENDING)


def matrix_items(path: Path, model: ModelSpec) -> Iterator[Item]:
    """The requests of a file. Raises TraceError."""
    for case, matrix in read_matrices(path, model.top_k).items():
        where = f"{path}: case {case!r}"
        by_source = _assignments(where, matrix, model)
        for source, counts in enumerate(by_source):
            rows = partial(_rows, f"{where}, source chip {source}", counts)
            yield Item(f"{where}, source chip {source}", "", case, source, int(counts.sum()) * 2, rows)


def _assignments(where: str, matrix: AssignedTokens, model: ModelSpec) -> np.ndarray:
    """int64[source, expert]: with the sums of the files."""
    chips = len(matrix.sent)
    if model.experts % chips:
        raise matrix.row.refusal(f"{model.name} has {model.experts} experts; expected a multiple of {chips} chips")
    if matrix.experts is not None and len(matrix.experts) != model.experts:
        raise matrix.row.refusal(
            f"{len(matrix.experts)} experts have counts; expected {model.experts}, those of {model.name}"
        )
    own, draw = model.experts // chips, np.random.default_rng(_SEED)
    found = np.zeros((chips, model.experts), np.int64)
    for chip in range(chips):
        total, first = int(matrix.sent[:, chip].sum()), chip * own
        if matrix.experts is None:
            experts = first + np.arange(total) % own
        else:
            experts = first + np.repeat(np.arange(own), matrix.experts[first : first + own])
        experts = draw.permutation(experts)
        ends = np.cumsum(matrix.sent[:, chip]).astype(np.int64)
        for source, part in enumerate(np.split(experts, ends[:-1])):
            found[source] += np.bincount(part, minlength=model.experts)
    return found


def _rows(where: str, counts: np.ndarray, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    tokens = int(counts.sum()) // model.top_k
    if counts.max(initial=0) > tokens:
        raise TraceError(
            f"{where}: expert {int(counts.argmax())} has {counts.max()} assignments of {tokens} tokens; expected at "
            "most one per token"
        )
    # in order of expert, then cut into top_k parts: the picks of a token are a part apart, and so of other experts
    experts = np.repeat(np.arange(len(counts)), counts).reshape(model.top_k, tokens).T[:, None, :]
    layers = np.array(model.moe_layer_ids[:1], np.int32)
    return request_rows(where, model, np.ascontiguousarray(experts), tokens, layers, layer_ids)


class AssignedTokens(NamedTuple):
    """Assignments of a case, float64[source, destination], and of every expert, int64[expert] or None."""

    case: str
    sent: np.ndarray
    experts: np.ndarray | None
    row: CsvLine


def read_matrices(file: Path, top_k: int) -> dict[str, AssignedTokens]:
    """Case → matrix of a file ``*source_destination.csv``, with the counts of experts of the file beside it, if any.

    Raises TraceError for sources or destinations that the mesh lacks, for rows that do not sum to their tokens
    times ``top_k``, and for experts whose counts do not sum to the column of their chip.
    """
    rows = csv_rows(file, COLUMNS["source_destination"], TraceError)
    if not rows:
        raise TraceError(f"{file}: no rows; expected a row for each case and source chip")
    beside = {
        name: csv_rows(file.with_name(file.name.replace("source_destination", name)), COLUMNS[name], TraceError)
        for name in ("case_summary", "expert_counts")
    }
    return matrices_of(rows, beside["case_summary"], beside["expert_counts"], top_k)


def matrices_of(
    rows: list[CsvLine], summary: list[CsvLine], counts: list[CsvLine], top_k: int
) -> dict[str, AssignedTokens]:
    """Like `read_matrices`, but for rows that are read already. Faults are raised as the error of the rows."""
    columns = [name for name in rows[0].cells if name.startswith("to_chip_")] if rows else []
    chips = len(columns)
    if rows and columns != [f"to_chip_{chip}" for chip in range(chips)]:
        raise rows[0].error(f"{rows[0].file}: line 1: columns {', '.join(columns)}; expected to_chip_0, to_chip_1, …")
    of_case: dict[str, dict[int, CsvLine]] = {}
    for row in rows:
        source = int(row.number("source_chip", 0, more=False, whole=True))
        if source >= chips:
            raise row.fault("source_chip", f"the mesh has chips 0 to {chips - 1}, one for each column to_chip_…")
        if source in of_case.setdefault(row.text("case"), {}):
            raise row.fault("source_chip", "this source already has a row in this case")
        of_case[row.text("case")][source] = row
    tokens = {row.text("case"): _tokens_of(row) for row in summary}
    found = {}
    for case, by_source in of_case.items():
        last = by_source[max(by_source)]
        if len(by_source) < chips:
            lacking = min(set(range(chips)) - set(by_source))
            raise last.refusal(f"case {case!r} has no row of source chip {lacking}; expected chips 0 to {chips - 1}")
        sent = np.array([[by_source[s].count(c, zero=True) for c in columns] for s in range(chips)], float)
        _refuse_sums(case, sent, by_source, tokens.get(case), top_k)
        own = [row for row in counts if row.text("case") == case]
        found[case] = AssignedTokens(case, sent, _experts(case, own, sent), last)
    return found


def _tokens_of(row: CsvLine) -> int:
    return sum(row.count(name, zero=True) for name in row.cells if re.fullmatch(r"tokens_with_\d+_chips?", name))


def _refuse_sums(case: str, sent: np.ndarray, rows: Mapping[int, CsvLine], tokens: int | None, top_k: int) -> None:
    """Raise for a row whose sum is not its tokens times top_k."""
    sums, chips = sent.sum(axis=1), len(sent)
    wanted = tokens * top_k / chips if tokens else float(np.median(sums))
    for source, total in enumerate(sums):
        if total != wanted or total % top_k:
            of = f"{tokens} tokens on {chips} chips" if tokens else "the other rows of the case"
            raise rows[source].refusal(
                f"case {case!r}: the assignments of source chip {source} sum to {total:g}; expected {wanted:g}, of "
                f"{of} and {top_k} experts per token"
            )


def _experts(case: str, rows: list[CsvLine], sent: np.ndarray) -> np.ndarray | None:
    if not rows:
        return None
    counts, chips = np.zeros(len(rows), np.int64), len(sent)
    seen = set()
    by_chip = np.zeros(chips)
    for row in rows:
        slot, chip = row.count("expert_slot", zero=True), row.count("chip", zero=True)
        if slot in seen or slot >= len(rows):
            raise row.fault("expert_slot", f"expected each of 0 to {len(rows) - 1} once in case {case!r}")
        if chip >= chips or chip != slot // max(1, len(rows) // chips):
            raise row.fault("chip", f"expected chip {slot // max(1, len(rows) // chips)} of a mesh of {chips} chips")
        seen.add(slot)
        counts[slot] = row.count("assignments", zero=True)
        by_chip[chip] += counts[slot]
    off = np.flatnonzero(by_chip != sent.sum(axis=0))
    if len(off):
        chip = int(off[0])
        raise rows[-1].refusal(
            f"case {case!r}: the experts of chip {chip} have {by_chip[chip]:g} assignments; expected "
            f"{sent.sum(axis=0)[chip]:g}, the sum of column to_chip_{chip}"
        )
    return counts

"""All caveats of results: one list for pages and terminals."""

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.base.causes import CAUSES
from archsim.runs import calibration_notes, policy_notes, roofline_notes
from archsim.runs.calibration_notes import Die
from archsim.runs.drawn_notes import drawn_notes
from archsim.runs.memory_notes import memory_notes

COLUMNS = (
    *calibration_notes.EXTRAPOLATED, "drawn_from", "extend", "active_experts", "active_if_distinct", "context_tokens",
    "context_from", "transfer_law", "hbm_all_counted", "approximate", "attention_law",
    "speedup_vs_ep", "speedup_vs_base", *roofline_notes.COLUMNS, *(f"bound_{cause.column}" for cause in CAUSES),
)  # fmt: skip
"""Columns that the notes use."""


def result_notes(rows: Iterable[Mapping[str, Any]], dies: Iterable[tuple[str, Die]]) -> list[str]:
    """A sentence each. rows: of results; dies: (system, its die), a system once or more (points of a sweep)."""
    rows = list(rows)
    calibrations = calibration_notes.calibration_notes(rows, dies)
    policies = [*policy_notes.policy_notes(rows), *roofline_notes.roofline_notes(rows)]
    return [*calibrations, *drawn_notes(rows), *memory_notes(rows), *policies]

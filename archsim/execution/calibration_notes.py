"""What a reader of results must know of the calibrations behind them: used by default, or outside of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.specs.calibration import DEFAULT_CALIBRATION

EXTRAPOLATED = ("gemm_extrapolated", "copies_extrapolated")  # columns of results that notes are made of
MOST_NAMED = 8  # systems


def calibration_notes(rows: Iterable[Mapping[str, Any]], named: Mapping[str, str | None]) -> list[str]:
    """One sentence for each thing to say, none if there is nothing. rows: of results; named: system → its calibration."""
    rows = list(rows)
    calibrated = [row for row in rows if row.get("gemm_extrapolated") is not None]
    used = {row["system"] for row in calibrated}
    notes = []
    unnamed = [system for system, calibration in named.items() if system in used and calibration is None]
    if unnamed:
        others = f" and {len(unnamed) - MOST_NAMED} others" if len(unnamed) > MOST_NAMED else ""
        notes.append(
            f"compute.calibration is not given ({', '.join(unnamed[:MOST_NAMED])}{others}): GEMMs take the times of {DEFAULT_CALIBRATION}, "
            "scaled to the die's peak and HBM"
        )
    outside = [row["gemm_extrapolated"] for row in calibrated if row["gemm_extrapolated"] > 0]
    if outside:
        notes.append(
            f"{len(outside)} of {len(calibrated)} runs use a GEMM calibration outside of the sizes that were measured, for up "
            f"to {max(outside):.1%} of their GEMM time (column gemm_extrapolated)"
        )
    linked = [row for row in rows if row.get("copies_extrapolated") is not None]
    beyond = sum(row["copies_extrapolated"] > 0 for row in linked)
    if beyond:
        notes.append(
            f"{beyond} of {len(linked)} runs read slices of a size at which the copies of the calibration in d2d were not "
            "measured (column copies_extrapolated)"
        )
    return notes

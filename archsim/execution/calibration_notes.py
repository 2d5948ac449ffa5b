"""What a reader of results must know of the calibrations behind them: used by default, or outside of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.specs.calibration import DEFAULT_CALIBRATION


def calibration_notes(rows: Iterable[Mapping[str, Any]], named: Mapping[str, str | None]) -> list[str]:
    """One sentence for each thing to say, none if there is nothing. rows: of results; named: system → its calibration."""
    calibrated = [row for row in rows if row.get("gemm_extrapolated") is not None]
    used = {row["system"] for row in calibrated}
    notes = []
    unnamed = [system for system, calibration in named.items() if system in used and calibration is None]
    if unnamed:
        notes.append(
            f"compute.calibration is not given ({', '.join(unnamed)}): GEMMs take the times of {DEFAULT_CALIBRATION}, "
            "scaled to the die's peak and HBM"
        )
    outside = [row["gemm_extrapolated"] for row in calibrated if row["gemm_extrapolated"] > 0]
    if outside:
        notes.append(
            f"{len(outside)} of {len(calibrated)} runs use a GEMM calibration outside of the sizes that were measured, for up "
            f"to {max(outside):.1%} of their GEMM time (column gemm_extrapolated)"
        )
    return notes

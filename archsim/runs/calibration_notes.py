"""Notes on whose measurements the times of runs are."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from archsim.base.errors import SpecError
from archsim.base.quantities import BANDWIDTH, COMPUTE, format_quantity
from archsim.laws.calibration_files import DEFAULT_CALIBRATION, calibration_named
from archsim.laws.tables import HBM, CalibrationSpec
from archsim.machine.system import SystemSpec
from archsim.runs.measures.laws import GEMMS_OF, STAND_INS_APART
from archsim.runs.named_runs import count_runs, list_some, system_names

ON_PORTS = " on "  # in the names of kernels of clusters: "normal on 8 ranks"
SAME = 0.005  # relative; smaller differences of rates are rounding


class GemmSource(NamedTuple):
    """Properties of a system that select its measured GEMMs and their scaling."""

    calibration: str | None  # `ComputeSpec.calibration`
    library: str | None  # `ComputeSpec.library`
    dtype: str  # of the products
    peak_flop_per_s: float  # of a die
    hbm_bytes_per_s: float  # of a die
    datasheet_only: bool = False  # nothing of the die was measured


def die_of(system: SystemSpec) -> GemmSource:
    compute = system.compute
    peak, bandwidth = compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s
    return GemmSource(compute.calibration, compute.library, compute.dtype, peak, bandwidth, system.datasheet_only)


def datasheet_note(systems: Iterable[str]) -> str:
    return (
        f"Nothing was measured on {list_some(systems)} (datasheet only). The fitted curves are those of another GPU, "
        "scaled by nominal rates, so every time is extrapolated."
    )


def calibration_notes(rows: Iterable[Mapping[str, Any]], dies: Iterable[tuple[str, GemmSource]]) -> list[str]:
    """A sentence on each calibration of some results (rows). dies: (system, its die), a system once or more."""
    rows, dies = list(rows), list(dict.fromkeys(dies))
    ran = {row["system"] for row in rows if "system" in row}
    unmeasured = [system for system, die in dies if die.datasheet_only and system in ran]
    calibrated = [row for row in rows if row.get("gemm_extrapolated") is not None]
    used = {row["system"] for row in calibrated}
    names = system_names(calibrated)
    dies = [(names[system], die) for system, die in dies if system in used]
    unnamed = [system for system, die in dies if die.calibration is None]
    notes = [datasheet_note(unmeasured)] if unmeasured else []
    if unnamed:
        notes.append(
            f"No compute.calibration is given for {list_some(unnamed)}. GEMMs take the times of "
            f"{DEFAULT_CALIBRATION}, scaled to the die's peak and HBM bandwidth."
        )
    notes += _table_notes(dies)
    noted = set(unnamed) | set(unmeasured)  # above
    outside = [
        row["gemm_extrapolated"] for row in calibrated if row["gemm_extrapolated"] > 0 and not _takes_scaled_law(row)
    ]
    if outside:
        notes.append(
            f"{count_runs(len(outside), len(calibrated), 'uses', 'use')} the GEMM calibration outside the measured "
            f"sizes, for up to {max(outside):.1%} of the GEMM time (column gemm_extrapolated)."
        )
    notes += _stand_in_notes(row for row in rows if row.get("system") not in noted or not _takes_scaled_law(row))
    moved = {(str(row["system"]), str(row["transfer_law"])) for row in rows if ON_PORTS in str(row.get("transfer_law"))}
    notes += [f"Hidden vectors on {system} take the measured times of {law}." for system, law in sorted(moved)]
    linked = [row for row in rows if row.get("copies_extrapolated") is not None]
    beyond = sum(row["copies_extrapolated"] > 0 for row in linked)
    if beyond:
        notes.append(
            f"{count_runs(beyond, len(linked), 'copies', 'copy')} slices of a size that the calibration named in d2d "
            "did not measure (column copies_extrapolated)."
        )
    return notes


def _takes_scaled_law(row: Mapping[str, Any]) -> bool:
    return GEMMS_OF in str(row.get("stand_ins") or "")


def _stand_in_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was not measured, whose law it takes, and on which systems."""
    rows = list(rows)
    names, systems = system_names(rows), dict[str, list[str]]()
    for row in rows:
        for each in filter(None, str(row.get("stand_ins") or "").split(STAND_INS_APART)):
            systems.setdefault(each, []).append(names[row["system"]])
    return [
        f"On {list_some(named)}, {each}. This combination was not measured, so all of its time counts as extrapolated."
        for each, named in sorted(systems.items())
    ]


def _table_notes(dies: list[tuple[str, GemmSource]]) -> list[str]:
    """Notes on the tables that the dies use: scaled from fitted rates, or including the quantisation of activations."""
    systems: dict[str, list[str]] = {}
    read = cache(calibration_named)  # a sweep has a system a point
    for system, die in dies:
        for said in _of_table(die, read):
            systems.setdefault(said, []).append(system)
    return [f"On {list_some(named)}, {said}." for said, named in systems.items()]


def _of_table(die: GemmSource, read: Callable[[str | None], CalibrationSpec]) -> list[str]:
    from archsim.laws.gemm import choose_table

    name = die.calibration or DEFAULT_CALIBRATION
    try:
        calibration = read(die.calibration)
        table = choose_table(calibration, die.dtype, die.library)
    except (SpecError, OSError):  # results outlive files
        return []
    said = _of_reference(name, calibration, table.dtype, die)
    if table.quantisation == "included":
        said.append(f"the {table.dtype} GEMM times of calibration {name} include the quantisation of activations")
    return said


def _of_reference(name: str, calibration: CalibrationSpec, dtype: str, die: GemmSource) -> list[str]:
    reference, said = calibration.reference, []
    for rate, mine, measured, dimension in (
        (dtype, die.peak_flop_per_s, reference.peak_flop_per_s.get(dtype), COMPUTE),
        (HBM, die.hbm_bytes_per_s, reference.hbm_bytes_per_s, BANDWIDTH),
    ):
        if rate in reference.fitted and measured and abs(mine / measured - 1) > SAME:
            what, fitted = ("HBM bandwidth", "--hbm") if rate == HBM else (f"{rate} peak", "--peak")
            said.append(
                f"GEMMs are scaled from the fitted {what} of calibration {name}, "
                f"{format_quantity(float(f'{measured:.4g}'), dimension)}, to that of the die. The calibration has no "
                f"nominal {what}: give one with `archsim calibrate {fitted}`"
            )
    return said

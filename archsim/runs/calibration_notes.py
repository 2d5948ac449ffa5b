"""Notes on the calibrations behind results: used by default, or outside the measured range."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from archsim.base.errors import SpecError
from archsim.base.text.quantities import BANDWIDTH, COMPUTE, format_quantity, parse_quantity
from archsim.engine.transfer import INSTEAD
from archsim.laws.tables import HBM, CalibrationSpec
from archsim.specs.loading.calibrations import DEFAULT_CALIBRATION, calibration_named
from archsim.specs.machine.system import SystemSpec
from archsim.specs.sweeps.variants import is_variant

EXTRAPOLATED = ("gemm_extrapolated", "copies_extrapolated")  # columns of results that the notes use
ON_PORTS = " on "  # in the names of kernels of clusters: "normal on 8 ranks"
MOST_NAMED = 8  # systems
SAME = 0.005  # relative; smaller differences of rates are rounding


class Die(NamedTuple):
    """Properties of a system that select its measured GEMMs and their scaling."""

    calibration: str | None
    library: str | None
    dtype: str
    peak_flop_per_s: float
    hbm_bytes_per_s: float
    datasheet_only: bool = False


def die_of(system: SystemSpec) -> Die:
    """Of a system."""
    compute = system.compute
    peak, bandwidth = compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s
    return Die(compute.calibration, compute.library, compute.dtype, peak, bandwidth, system.datasheet_only)


def written_die(system: Mapping[str, Any]) -> Die:
    """Of a system as written in a manifest."""
    compute = system["compute"]
    peak, bandwidth = parse_quantity(compute["peak"], COMPUTE), parse_quantity(system["hbm"]["bandwidth"], BANDWIDTH)
    told = compute.get("calibration"), compute.get("library"), compute["dtype"]
    return Die(*told, float(peak), float(bandwidth), bool(system.get("datasheet_only")))


def datasheet_note(systems: Iterable[str]) -> str:
    """Of systems on which nothing was measured."""
    return (
        f"{_listed(systems)}: datasheet only: nothing was measured there; laws are another GPU's, scaled by nominal "
        "rates, and every time is extrapolated"
    )


def calibration_notes(rows: Iterable[Mapping[str, Any]], dies: Iterable[tuple[str, Die]]) -> list[str]:
    """Notes on the calibrations of some results, one sentence each. rows: of results; dies: (system, its die), a
    system once or more (points of a sweep).
    """
    rows, dies = list(rows), list(dict.fromkeys(dies))
    ran = {row["system"] for row in rows if "system" in row}
    unmeasured = [system for system, die in dies if die.datasheet_only and system in ran]
    calibrated = [row for row in rows if row.get("gemm_extrapolated") is not None]
    used = {row["system"] for row in calibrated}
    first = {row["system"]: row.get("point") for row in reversed(calibrated)}
    dies = [(_numbered(system, first[system]), die) for system, die in dies if system in used]
    unnamed = [system for system, die in dies if die.calibration is None]
    notes = [datasheet_note(unmeasured)] if unmeasured else []
    if unnamed:
        notes.append(
            f"compute.calibration is not given ({_listed(unnamed)}): GEMMs take the times of {DEFAULT_CALIBRATION}, "
            "scaled to the die's peak and HBM"
        )
    notes += _table_notes(dies)
    outside = [row["gemm_extrapolated"] for row in calibrated if row["gemm_extrapolated"] > 0]
    if outside:
        notes.append(
            f"{len(outside)} of {len(calibrated)} runs use a GEMM calibration outside the measured sizes, for up "
            f"to {max(outside):.1%} of their GEMM time (column gemm_extrapolated)"
        )
    for model, law in sorted({(row["model"], row["gemm_law"]) for row in calibrated if _not_measured(row)}):
        notes.append(f"fused layers of {model} were not measured; its experts take the law of the {law}")
    notes += [
        f"dispatch and combine take the times of {law}, whose calibration has none"
        for law in sorted({str(row.get("transfer_law") or "") for row in rows})
        if INSTEAD in law
    ]
    moved = {(str(row["system"]), str(row["transfer_law"])) for row in rows if ON_PORTS in str(row.get("transfer_law"))}
    notes += [f"hidden vectors on {system} move as measured: {law}" for system, law in sorted(moved)]
    linked = [row for row in rows if row.get("copies_extrapolated") is not None]
    beyond = sum(row["copies_extrapolated"] > 0 for row in linked)
    if beyond:
        notes.append(
            f"{beyond} of {len(linked)} runs read slices of a size at which the copies of the calibration in d2d were "
            "not measured (column copies_extrapolated)"
        )
    return notes


def _not_measured(row: Mapping[str, Any]) -> bool:
    from archsim.laws.grouped import NEAREST, OTHER_DTYPE

    return str(row.get("gemm_law") or "").startswith((NEAREST, OTHER_DTYPE))


def _table_notes(dies: list[tuple[str, Die]]) -> list[str]:
    """Notes on the tables that the dies use: scaled from fitted rates, or including the quantisation of activations."""
    systems: dict[str, list[str]] = {}
    read = cache(calibration_named)  # a sweep has a system a point
    for system, die in dies:
        for said in _of_table(die, read):
            systems.setdefault(said, []).append(system)
    return [f"{said} ({_listed(named)})" for said, named in systems.items()]


def _of_table(die: Die, read: Callable[[str | None], CalibrationSpec]) -> list[str]:
    from archsim.laws.gemm import choose_table

    name = die.calibration or DEFAULT_CALIBRATION
    try:
        calibration = read(die.calibration)
        table = choose_table(calibration, die.dtype, die.library)
    except (SpecError, OSError):  # results outlive files
        return []
    said = _of_reference(name, calibration, table.dtype, die)
    if table.quantisation == "included":
        said.append(f"GEMM times of {table.dtype} in calibration {name} include the quantisation of activations")
    return said


def _of_reference(name: str, calibration: CalibrationSpec, dtype: str, die: Die) -> list[str]:
    reference, said = calibration.reference, []
    for rate, mine, measured, dimension in (
        (dtype, die.peak_flop_per_s, reference.peak_flop_per_s.get(dtype), COMPUTE),
        (HBM, die.hbm_bytes_per_s, reference.hbm_bytes_per_s, BANDWIDTH),
    ):
        if rate in reference.fitted and measured and abs(mine / measured - 1) > SAME:
            what, fitted = ("HBM", "--hbm") if rate == HBM else (f"{rate} peak", "--peak")
            said.append(
                f"calibration {name} has no nominal {what} (archsim calibrate {fitted}): GEMMs are scaled from the "
                f"fitted "
                f"{format_quantity(float(f'{measured:.4g}'), dimension)} to another one of the die"
            )
    return said


def _numbered(system: str, point: int | None) -> str:
    """A variant of a system with a point that has it, as a digest alone tells nobody which one it is."""
    return f"{system} (point {point})" if point is not None and is_variant(system) else system


def _listed(systems: Iterable[str]) -> str:
    systems = list(dict.fromkeys(systems))
    left = len(systems) - MOST_NAMED
    others = f" and {left} other{'s' if left > 1 else ''}" if left > 0 else ""
    return f"{', '.join(systems[:MOST_NAMED])}{others}"

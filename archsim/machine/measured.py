"""What HBM and die-to-die links take from a calibration, as numbers that a manifest stores.

A ``calibration`` in ``hbm`` or ``d2d`` is replaced by what was measured on that GPU (also in ``decision.host``).
HBM gets the latency and the share of nominal bandwidth of reads. A link follows
the law of one-way copies between two GPUs of a server node, with its rate as a share of the link's nominal rate. A
run has slices of one size, and its links use the rate around that size, so that a slice takes the time of a measured
copy. ``archsim.laws`` chooses the tables and evaluates the laws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from archsim.base import errors, fields, quantities
from archsim.laws import calibration_files
from archsim.laws.tables import HBM, CalibrationSpec


class FromCalibration(NamedTuple):
    """Keys that a calibration gives to ``hbm`` or ``d2d``, and their source; without keys, ``why`` it gives none."""

    values: dict[str, Any]
    note: str
    why: str = ""


def hbm_measured(calibration: CalibrationSpec) -> FromCalibration:
    """``latency`` and ``efficiency``, if measured."""
    from archsim.laws.laws import Laws

    values: dict[str, Any] = {}
    latency_ns, efficiency = Laws(calibration).hbm_reads()
    if latency_ns is not None:
        values["latency"] = f"{latency_ns:.4g} ns"
    if efficiency is not None:
        values["efficiency"] = float(f"{min(efficiency, 1.0):.4g}")
    note, reference = ", ".join(values), calibration.reference
    if efficiency is not None and HBM in reference.fitted:
        note += f" (of {quantities.format_quantity(reference.hbm_bytes_per_s, quantities.BANDWIDTH)}, which was fitted)"
    return FromCalibration(values, note, "no HBM measurements, neither latency nor reads (memory.csv)")


def link_measured(calibration: CalibrationSpec) -> FromCalibration:
    """``copies``, the keys of a CopyLaw; nothing if no suitable copies were measured."""
    from archsim.laws.laws import Laws
    from archsim.laws.transfers import NVLINK_BYTES_PER_S

    link = Laws(calibration).link()
    if link.table is None:
        return FromCalibration({}, "", link.why)
    rate = quantities.format_quantity(link.nominal_bytes_per_s, quantities.BANDWIDTH)
    pieces = {
        key: " ".join(f"{value:.12g}" for value in getattr(link.table, key))
        for key in ("from_bytes", "latency_ns", "ns_per_byte")
    }
    measured = {"bandwidth": rate, "first_bytes": link.table.first_bytes, "last_bytes": link.table.last_bytes}
    known = calibration.gpu in NVLINK_BYTES_PER_S
    note = (
        "copies"
        if known
        else f"copies, as a share of {rate}: the fastest copy, as no nominal rate of {calibration.gpu} is known"
    )
    return FromCalibration({"copies": pieces | measured}, note)


def with_measured(given: Any, measured: Callable[[CalibrationSpec], FromCalibration]) -> Any:
    """A mapping with the values of its ``calibration`` by ``measured`` (for ``hbm`` or ``d2d``). Raises KeyProblem."""
    name = given.get("calibration") if isinstance(given, dict) else None
    if not isinstance(name, str):
        return given
    try:
        calibration = calibration_files.calibration_named(name)
    except (errors.SpecError, OSError) as error:
        raise fields.KeyProblem(("calibration",), str(error)) from None
    found = measured(calibration)
    if not found.values:
        raise fields.KeyProblem(("calibration",), f"{name!r} has {found.why}")
    rest = {key: value for key, value in given.items() if key not in ("calibration", "latency_ns")}
    return rest | found.values | {"source": f"calibration {name}: {found.note}"}

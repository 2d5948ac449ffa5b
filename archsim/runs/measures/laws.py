"""Which measurements the times of a run rest on, and how far beyond them they are."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archsim.base.tables import REAL, TEXT
from archsim.runs.finished import Column, Finished, measures

if TYPE_CHECKING:
    from archsim.machine.system import SystemSpec


OTHER_CHIP = 0.1  # relative; a peak or HBM that differs more from a calibration's is that of another chip

GEMMS_OF = "GEMMs take the times of "

STAND_INS_APART = " | "

LAWS: tuple[Column, ...] = (
    Column("gemm_law", TEXT, "", "measured kernels whose fitted curves time the experts: fused layers (gemm: grouped) or GEMMs (gemm: calibrated); empty for a roofline", optional=True),
    Column("transfer_law", TEXT, "", "measured kernels that hidden vectors wait for; empty unless a GPU's transfer software is charged", optional=True),
    Column("transfer_extrapolated", REAL, "share", "time of dispatch and combine by the curve of another GPU, shape or number of ranks or nodes; empty unless a GPU's transfer software is charged", optional=True),
    Column("stand_ins", TEXT, "", "what was not measured, and whose curve it takes, of which all time counts as extrapolated; empty where all was measured", optional=True),
    Column("gemm_extrapolated", REAL, "share", "share of the GEMM time at sizes that were not measured, or by the curve of another chip; empty without a calibration",
           "GEMMs extrapolated", optional=True, after="decode_ns_high"),
    Column("copies_extrapolated", REAL, "share", "share of the slices whose size was not measured when copying; empty where links are not calibrated", "copies extrapolated", optional=True, after="gemm_extrapolated"),
)  # fmt: skip


@measures(LAWS)
def laws(run: Finished) -> dict[str, Any]:
    """Which measurements the times rest on, and how far beyond them they are."""
    from archsim.engine.machine import slice_bytes
    from archsim.laws.die import NEAREST, OTHER_DTYPE

    scenario, outcome = run.run, run.outcome
    if scenario.assumptions.execution == "expert_parallel":
        from archsim.engine.cluster.moves import kernels_carried as are_carried
        from archsim.engine.cluster.moves import name_kernels
    else:
        from archsim.engine.transfer_kernels import kernels_stand_in as are_carried
        from archsim.engine.transfer_kernels import name_kernels
    transfers = name_kernels(scenario)
    carried = float(are_carried(scenario)) if transfers else None
    other_chip = None if outcome.decode_residual_ns is None else _scaled_from(scenario.system)
    copies = scenario.system.d2d.copies
    outside = None if copies is None else copies.extrapolates(slice_bytes(scenario.system, scenario.model))
    stand_ins = []
    if other_chip:
        stand_ins.append(f"{GEMMS_OF}{other_chip}, scaled to the die's peak and HBM")
    if outcome.gemm_law.startswith((NEAREST, OTHER_DTYPE)):
        stand_ins.append(f"fused layers of {scenario.model.name} take the curve of the {outcome.gemm_law}")
    if carried:
        stand_ins.append(f"dispatch and combine of {scenario.model.name} take the times of {transfers}")
    return {
        "gemm_law": outcome.gemm_law or None,
        "gemm_extrapolated": 1.0 if other_chip else outcome.gemm_extrapolated,  # all of it
        "transfer_law": transfers,
        "transfer_extrapolated": carried,
        "copies_extrapolated": None if outside is None else float(outside),  # all slices have the same size
        "stand_ins": STAND_INS_APART.join(stand_ins) or None,
    }


def _scaled_from(system: SystemSpec) -> str | None:
    """The calibration of another chip whose laws are scaled to the dies; None where it is their own."""
    from archsim.laws.calibration_files import DEFAULT_CALIBRATION, calibration_named

    reference, compute = calibration_named(system.compute.calibration).reference, system.compute
    pairs = (
        (compute.peak_flop_per_s, reference.peak_flop_per_s.get(compute.dtype)),
        (system.hbm.bandwidth_bytes_per_s, reference.hbm_bytes_per_s),
    )
    other = system.datasheet_only or any(there and abs(here / there - 1) > OTHER_CHIP for here, there in pairs)
    return (compute.calibration or DEFAULT_CALIBRATION) if other else None

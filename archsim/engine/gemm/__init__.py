"""How long the products of weight slices occupy the array of a die: the strategies of the assumption ``gemm``."""

from __future__ import annotations

from archsim.engine.gemm.calibrated import Calibrated
from archsim.engine.gemm.grouped import Grouped
from archsim.engine.gemm.share_of_peak import ShareOfPeak
from archsim.engine.state import Machine


def gemm_model(system, model, assumptions, machine: Machine) -> ShareOfPeak | Calibrated | Grouped:
    """The GEMM strategy of a run."""
    if assumptions.gemm == "calibrated":
        return Calibrated(system, model, machine, system.compute.library)
    if assumptions.gemm == "grouped":
        return Grouped(system, model, machine)
    return ShareOfPeak(system, model, assumptions)

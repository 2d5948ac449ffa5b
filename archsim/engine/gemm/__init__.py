"""How long the products of weight slices occupy the array of a die: the strategies of the assumption ``gemm``."""

from archsim.engine.gemm.calibrated import Calibrated
from archsim.engine.gemm.grouped import Grouped
from archsim.engine.gemm.share_of_peak import ShareOfPeak
from archsim.engine.state import Machine
from archsim.laws.gemm import choose_table
from archsim.laws.grouped import tables_of
from archsim.specs.loading.calibrations import calibration_named


def gemm_model(system, model, assumptions, machine: Machine) -> ShareOfPeak | Calibrated | Grouped:
    """The GEMM strategy of a run."""
    if assumptions.gemm == "calibrated":
        return Calibrated(system, model, machine, system.compute.library)
    if assumptions.gemm == "grouped":
        return Grouped(system, model, assumptions, machine)
    return ShareOfPeak(system, model, assumptions)


def refuse_unmeasured(system, assumptions) -> None:
    """Raises LawMissing (a SpecError), as `gemm_model` would, where the system's calibration lacks the tables that the
    assumption ``gemm`` reads.
    """
    compute = system.compute
    if assumptions.gemm == "calibrated":
        choose_table(calibration_named(compute.calibration), compute.dtype, compute.library)
    if assumptions.gemm == "grouped":
        tables_of(calibration_named(compute.calibration), compute.dtype, compute.library)

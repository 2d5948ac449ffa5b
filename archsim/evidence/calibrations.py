"""A calibration judged by measurements: the file as it is, and fits again without what they are judged by."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archsim.base.tables import Shown
from archsim.evidence import products
from archsim.evidence import transfers as comm_errors
from archsim.evidence.choosing import choice_notes
from archsim.evidence.engine_copies import copy_cases
from archsim.evidence.engine_experts import engine_cases
from archsim.evidence.engine_layers import layer_cases, scaled_cases
from archsim.evidence.kernels import LawPoints, judge_tables, sections, unread
from archsim.evidence.page import write_page
from archsim.evidence.power import power_cases
from archsim.laws.tables import CalibrationSpec
from archsim.specs.calibration_files import load_calibration
from calibration.measurements.reading import CalibrationError, Measurements

FILE_ALONE, HELD_OUT = "calibration file", "sizes left out"


@dataclass(frozen=True)
class Validation(Shown):
    """Every measurement of a calibration's GPU beside its prediction."""

    calibration: CalibrationSpec  # that predicts
    cases: pd.DataFrame  # a row a GEMM or fused MoE layer
    transfers: dict[str, list[comm_errors.SetErrors]]  # what was judged → errors by set of transfers
    through_engine: pd.DataFrame  # a row a time that the event engine gives
    copies: pd.DataFrame  # the same of copies
    notes: list[str]  # which table judged what, and why
    layers: pd.DataFrame  # a row a layer of experts through the engine
    power: pd.DataFrame  # a row a steady work
    judged: list[LawPoints]  # every measured table
    unread: list[str]  # a line a measured table that no law reads

    @property
    def sections(self) -> pd.DataFrame:
        """A row a law, kind and library: points and errors of the file."""
        return sections(self.judged)

    def __repr__(self) -> str:
        transfers = sum(len(each) for each in self.transfers.values())
        return f"Validation({self.calibration.gpu!r}, {len(self.cases):,} cases, {transfers} sets of transfers)"

    def to_pandas(self) -> pd.DataFrame:
        """A row a case: what was run, measured and predicted time in ns, which kind of prediction."""
        return self.cases

    def write(self, folder: Path) -> Path:
        """Write the page and its tables; the path of the page."""
        return write_page(
            self.calibration, self.cases, self.transfers, self.through_engine, self.copies, self.notes, folder,
            self.layers, self.power, self.sections, self.unread,
        )  # fmt: skip


def validate_calibration(name: str, measurements: Measurements, quick: bool) -> Validation:
    """name: of a calibration, or its file; quick: the file alone, nothing held out and fitted again.

    Raises CalibrationError where there are no measurements of its GPU.
    """
    calibration = load_calibration(name)
    if calibration.gpu not in measurements.gpus():
        known = ", ".join(measurements.gpus()) or "none"
        raise CalibrationError(
            f"no measurements of {calibration.gpu!r}, which was calibrated; there are some of: {known}"
        )
    found = [products.gemm_cases(calibration, measurements), products.moe_cases(calibration, measurements)]
    transfers = {FILE_ALONE: comm_errors.errors_with(calibration, measurements)}
    if not quick:
        found += [
            products.sweep_out_cases(measurements, calibration.gpu),
            products.shape_out_cases(measurements, calibration.gpu),
            products.rank_out_cases(measurements, calibration.gpu),
        ]
        transfers[HELD_OUT] = comm_errors.transfer_errors(measurements, calibration.gpu)
    of_file = pd.concat([frame for frame in found[:2] if len(frame)] or found[:1], ignore_index=True)
    read = judge_tables(calibration, name, measurements, of_file)
    cases = pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)
    layers = [layer_cases(calibration, name, measurements), scaled_cases(calibration, name, measurements)]
    return Validation(
        calibration=calibration, cases=cases, transfers=transfers,
        through_engine=engine_cases(calibration, name, measurements), copies=copy_cases(calibration, measurements),
        notes=choice_notes(calibration, measurements), layers=pd.concat(layers, ignore_index=True),
        power=power_cases(calibration.gpu, measurements), judged=read, unread=unread(read, measurements),
    )  # fmt: skip

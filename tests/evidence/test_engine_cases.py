"""Measured products and copies, through the event engine."""

import numpy as np
import pytest

from archsim.evidence.engine_copies import COPY_SIZES, copy_cases
from archsim.evidence.engine_experts import engine_cases
from archsim.laws.calibration_files import calibration_named
from calibration.measurements.reading import Measurements, read_measurements


@pytest.mark.nightly
def test_a_copy_through_the_event_engine_takes_what_the_law_says_of_it(shared):
    """4 KiB to 4 GiB: one remote read, two dies."""
    measurements = read_measurements(shared / "data" / "calibration" / "comm" / "vidur_nccl_send_recv.csv")
    for name in ("h100",):
        cases = copy_cases(calibration_named(name), measurements)
        assert set(COPY_SIZES) <= set(cases["bytes"]) and cases["law_error"].abs().max() < 0.005
        measured = cases.dropna(subset="measured")
        assert len(measured) > 600 and measured["error"].abs().mean() < 0.03
        assert cases["extrapolated"].sum() == sum(size > 2**26 for size in COPY_SIZES)
        assert cases["group"].nunique() == 3
    assert not len(copy_cases(calibration_named("b200"), Measurements()))


def test_the_event_engine_takes_what_the_law_says_and_what_was_measured(shared):
    """Within 0.5 % of the law; of measurements, what is left is the law's error."""
    measurements = read_measurements(shared / "data" / "calibration" / "gemm" / "aic_gemm_expert_shapes.csv")
    cases = engine_cases(calibration_named("h100"), "h100", measurements)
    assert len(cases) > 200
    assert cases["law_error"].abs().max() < 0.005
    assert cases["error"].abs().mean() < 0.02 and (cases["error"].abs() < 0.05).mean() > 0.97
    assert cases["group"].nunique() == cases.groupby(["model", "dtype"]).ngroups


def test_without_measurements_of_experts_there_are_no_cases():
    cases = engine_cases(calibration_named("a100"), "a100", Measurements())
    assert not len(cases) and np.all(cases["error"] == [])

"""HBM and links whose latency and efficiency come from a calibration; the validation experiment through the event engine."""

from pathlib import Path

import numpy as np
import pytest

from archsim.specs.calibration import calibration_named
from archsim.specs.errors import SpecError
from archsim.specs.hardware import D2DSpec, HbmSpec
from archsim.specs.library import load_experiment
from archsim.specs.memory_path import NVLINK_BYTES_PER_S, link_fitted
from archsim.specs.validation import validate
from archsim.specs.yaml_loader import Place, Tree
from calibration.engine_cases import COLUMNS, engine_cases, engine_table
from calibration.reading import Measurements, read_measurements

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "validate_h100.yaml"


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


def test_hbm_takes_latency_and_efficiency_of_a_calibration():
    hbm = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB", latency="300 ns", efficiency=0.9, calibration="h100")
    plain = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB")
    assert (hbm.latency_ns, hbm.efficiency) != (plain.latency_ns, plain.efficiency)
    assert 300 < hbm.latency_ns < 700 and 0.7 < hbm.efficiency < 1
    assert hbm.bandwidth_bytes_per_s == plain.bandwidth_bytes_per_s
    again = read(HbmSpec, **{key: value for key, value in hbm.model_dump(mode="json", by_alias=True).items()})
    assert again == hbm  # a manifest does not need the calibration


def test_a_link_takes_the_share_of_nominal_bandwidth_that_copies_reach():
    link = read(D2DSpec, bandwidth="450 GB/s", calibration="h100")
    fitted = link_fitted(calibration_named("h100"))
    assert link.hop_latency_ns == pytest.approx(fitted["hop_latency"], rel=1e-3)
    assert 0.5 < link.efficiency < 1 and link.efficiency * NVLINK_BYTES_PER_S["h100"] > 300e9


@pytest.mark.parametrize(("kind", "name", "problem"), [
    (HbmSpec, "b200", "'b200' has no measurements of HBM"),
    (D2DSpec, "b200", "'b200' has no measurements of copies between GPUs"),
    (D2DSpec, "h10", "no calibration is called 'h10'; did you mean 'h100'"),
])
def test_what_was_not_measured_is_refused(kind, name, problem):
    keys = {"bandwidth": "2 TB/s", "calibration": name} | ({"capacity": "80 GB"} if kind is HbmSpec else {})
    with pytest.raises(SpecError, match=problem) as refused:
        read(kind, **keys)
    assert "calibration" in str(refused.value)


def test_the_shipped_validation_experiment_is_one_expert_on_one_die():
    experiment = load_experiment(CONFIG)
    assert {system.dies for system in experiment.systems} == {1}
    assert {model.experts for model in experiment.models} == {1}
    assert {system.compute.calibration for system in experiment.systems} == {"h100"}
    assert {each.gemm for each in experiment.assumptions} == {"calibrated"}


def test_the_event_engine_takes_what_the_law_says_and_what_was_measured(shared):
    """Within 0.5 % of the law; of measurements, what is left is the law's error."""
    measurements = read_measurements(shared / "data" / "calibration" / "gemm" / "aic_gemm_expert_shapes.csv")
    cases = engine_cases(calibration_named("h100"), "h100", measurements)
    assert len(cases) > 200
    assert cases["law_error"].abs().max() < 0.005
    assert cases["error"].abs().mean() < 0.02 and (cases["error"].abs() < 0.05).mean() > 0.97
    names, rows = engine_table(cases)
    assert len(rows) == cases.groupby(["model", "dtype"]).ngroups and {len(row) for row in rows} == {len(names)}


def test_without_measurements_of_experts_there_are_no_cases():
    cases = engine_cases(calibration_named("a100"), "a100", Measurements())
    assert list(cases.columns) == COLUMNS and not len(cases) and np.all(cases["error"] == [])

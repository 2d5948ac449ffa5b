"""The errors that a calibration is allowed, on public sweeps, shapes and EP sizes that its fit has not seen."""

import pytest

from archsim.studies.validation import errors as validate
from archsim.studies.validation.errors import AIM, AIM_OF, layer_groups
from calibration.measurements.reading import Measurements, read_measurements

DTYPES = ["bf16", "fp8"]
FOLDS = 5  # of shapes; the command takes 16, which is a little easier
CASES = {"fp8": 112 / 117, "bf16": 105 / 117}
# One library and one of seven models, as each takes half a minute: the one with the closest limit. `archsim calibrate
# --validate` judges all.
MODELS = {"DeepSeek-V3"}
# Fits take time in proportion to the number of M; `archsim calibrate --validate` judges the others between
JUDGED_M = {2**i for i in range(17)}
MEAN_OF_ALL_M = {"fp8": 0.025, "bf16": 0.04}


@pytest.fixture(scope="module")
def measurements(shared) -> Measurements:
    folder = shared / "data" / "calibration"
    gemm = read_measurements(folder / "gemm").table("gemm", "h100")
    gemm = gemm[(gemm["library"] == "trtllm") & gemm["dtype"].isin(DTYPES) & gemm["m"].isin(JUDGED_M)]
    layers = read_measurements(folder / "moe").table("moe", "h100")
    layers = layers[(layers["dtype"] == "fp8_block") & layers["model"].isin(MODELS) & (layers["library"] == "trtllm")]
    layers = layers[layers["library_version"] == layers["library_version"].max()]
    return Measurements({"gemm": gemm, "moe": layers})


@pytest.fixture(scope="module")
def sweeps(measurements):
    return validate.sweep_out_cases(measurements, "h100")


@pytest.fixture(scope="module")
def shapes(measurements):
    return validate.shape_out_cases(measurements, "h100", FOLDS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_on_sweeps_left_out(sweeps, dtype):
    """Not all nine shapes were measured in two sweeps; the limits are shares of 117."""
    cases = validate.expert_cases(sweeps[sweeps["dtype"] == dtype])
    found = validate.summary(cases)
    assert found.cases >= 100 and found.under >= CASES[dtype] * found.cases
    assert cases["floor"].notna().all()


def test_fp8_experts_of_deepseek_and_qwen_all(sweeps):
    cases = validate.expert_cases(sweeps[sweeps["dtype"] == "fp8"])
    assert cases["error"].abs().max() < validate.UNDER


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_m_on_sweeps_left_out(sweeps, dtype):
    assert validate.summary(sweeps[sweeps["dtype"] == dtype]).mean <= MEAN_OF_ALL_M[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_left_out(shapes, dtype):
    found = validate.summary(shapes[shapes["dtype"] == dtype])
    assert found.cases > 3_000
    assert found.mean <= 0.04 and found.p95 <= 0.10


@pytest.fixture(scope="module")
def groups(measurements):
    return layer_groups(validate.rank_out_cases(measurements, "h100"))


def test_ep_sizes_left_out_of_every_group(groups):
    """Per model, routing and version, not only on average; skewed routing is drawn again for every point."""
    assert set(groups["model"]) == MODELS and set(groups["distribution"]) == {"balanced", "power_law_1.2"}
    assert (groups["mean"] <= AIM).all()
    assert (groups["met"] != "no").all()


def test_ep_sizes_left_out_of_deepseek(groups):
    balanced = groups.loc[groups["distribution"] == "balanced", "mean"]
    assert (balanced <= AIM_OF["DeepSeek-V3"]).all()
    assert groups.groupby(["library", "version"])["mean"].mean().max() <= AIM_OF["DeepSeek-V3"]

"""The machine: dies, each with HBM, an LLC and a compute array, and the D2D links between them."""

import pytest

from archsim.base.errors import SpecError
from archsim.base.validation import validate
from archsim.base.yaml import Place, Tree
from archsim.machine.system import D2DSpec, HbmSpec


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


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        (HbmSpec, "b200", "'b200'.*HBM"),
        (D2DSpec, "b200", "'b200'.*XLA"),
        (D2DSpec, "h800", r"'h800'.*p2p\.csv"),
        (D2DSpec, "h10", "'h10'.*'h100'"),
    ],
)
def test_what_was_not_measured_is_refused(kind, name, problem):
    keys = {"bandwidth": "2 TB/s", "calibration": name} | ({"capacity": "80 GB"} if kind is HbmSpec else {})
    with pytest.raises(SpecError, match=problem) as refused:
        read(kind, **keys)
    assert "calibration" in str(refused.value)

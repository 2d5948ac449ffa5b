"""Laws of fused MoE layers on other dies."""

import numpy as np
import pytest

from archsim.base.units import WEIGHT_BYTES
from archsim.laws.calibration_files import calibration_named
from archsim.laws.gemm import Rates, scale_to
from archsim.laws.moe import law_ns, named_of, time_of_load
from archsim.laws.scaling import MachineRates, MeasuredLayer, Scale, at_rates, pair_bytes, scaled_law, token_bytes
from archsim.laws.tables import MoeLaw
from archsim.laws.transfers import LINK_BYTES_PER_S, NIC_BYTES_PER_S, domain_of, law_of

H100_HBM, H200_HBM, PEAK = 3.35e12, 4.8e12, 989e12


LAYER = MeasuredLayer(4096, 1536, "fp8", H100_HBM)


BASE = MoeLaw(launch_ns=1e4, ns_per_token=0, flop_per_s=1e15, bytes_per_s=3e12, order=2)


def test_only_bytes_gain_by_a_faster_hbm():
    n_bytes = token_bytes(LAYER), pair_bytes(LAYER)
    assert n_bytes == (4096 * 5, 4096 * 4 + 1536 * 5)
    of_bytes_ns = np.array(n_bytes) / H100_HBM * 1e9
    law = BASE.model_copy(update={"ns_per_token": of_bytes_ns[0] + 5, "ns_per_pair": 1.0})
    twice = scaled_law(law, LAYER, Scale(1.0, 2.0))
    assert twice.ns_per_token == pytest.approx(of_bytes_ns[0] / 2 + 5)
    assert twice.ns_per_pair == 0.5  # cheaper than its bytes: all of it is bytes
    assert (twice.bytes_per_s, twice.flop_per_s, twice.launch_ns) == (6e12, 1e15, 1e4)
    assert scaled_law(law, LAYER, Scale(1.0, 1.0)) == law


@pytest.mark.parametrize("faster", [Scale(2.0, 1.0), Scale(1.0, 3.0), Scale(4.0, 4.0)])
def test_a_faster_die_is_never_slower(faster):
    law = BASE.model_copy(update={"ns_per_token": 9.0, "ns_per_pair": 20.0, "ns_per_expert": 99.0})
    named = named_of(calibration_named("h100").moe[0])
    pairs = np.geomspace(1, 1e6, 50)
    at = (pairs, np.minimum(pairs, 8), np.full(50, 8.0), np.ones(50), pairs)
    assert (time_of_load(scaled_law(law, LAYER, faster), named, *at) <= time_of_load(law, named, *at)).all()


def test_the_gain_of_an_h200_over_an_h100_at_many_tokens_is_as_measured():
    """1.084 above 256 tokens an expert, over TensorRT-LLM's layers (H200 measurements are not in the shared data)."""
    h100, h200 = calibration_named("h100"), calibration_named("h200")
    gains = []
    for table in h100.moe:
        (scaled,) = [each for each in h200.moe if _key(each) == _key(table) and each.scaled_from] or [None]
        if table.library != "trtllm" or table.distribution != "balanced" or scaled is None:
            continue
        ep = np.array([1.0, 4.0, 16.0])
        tokens = 1024 * table.experts / table.top_k * np.ones(3)
        times = [law_ns(each.law, named_of(each), each.routing, ep, np.ones(3), tokens) for each in (table, scaled)]
        gains.append(times[0] / times[1])
    assert np.mean(gains) == pytest.approx(1.084, rel=0.05)


def _key(table):
    return table.model, table.library, table.version, table.kernel, table.dtype, table.distribution, table.eplb_slots


def test_a_peak_of_one_dtype_says_that_of_another():
    """16-bit attention of a die of 8 bits has half of its peak, as on the measured GPU."""
    calibration, wide = calibration_named("h100"), WEIGHT_BYTES["bf16"] / WEIGHT_BYTES["nvfp4"]
    peaks = calibration.reference.peak_flop_per_s
    for dtype, peak in peaks.items():
        assert scale_to(calibration, "bf16", Rates(peak, 3.35e12, dtype)).compute == pytest.approx(1)
    assert scale_to(calibration, "bf16", Rates(wide * peaks["bf16"], 1.0, "nvfp4")).compute == pytest.approx(1)


@pytest.mark.parametrize("gpu", ["a100", "h100", "gb300"])
def test_no_all_reduce_takes_less_than_its_bytes_over_the_link_of_a_machine(gpu):
    """Nor where its time does not rise with them; at the links of the GPU it is as measured."""
    measured, link = calibration_named(gpu), LINK_BYTES_PER_S[gpu]
    own, tenth = (
        at_rates(measured, MachineRates(1, 1, link * x, link * x, NIC_BYTES_PER_S, 0, 0, domain_of(measured)))
        for x in (1.0, 0.1)
    )
    assert own is measured
    flat = 0
    for one, slow in zip(own.collectives, tenth.collectives, strict=True):
        size = np.array([each for each in one.from_bytes if each >= one.first_bytes])
        if one.of["op"] == "all_reduce" and one.of.get("nodes", "1") == "1":
            assert (law_of(slow).time_ns(size) >= 10 * size / link * 1e9 * (1 - 1e-9)).all()
            flat += (law_of(one).line(size)[1] <= 0).sum()
    assert flat > 5

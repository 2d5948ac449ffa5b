"""Laws of fused MoE layers on other dies, and what bounds their fits."""

import numpy as np
import pandas as pd
import pytest
from support.made_up_layers import LAW, MODEL, layers

from archsim.laws.moe import POINT, law_ns, named_of, time_of_load
from archsim.laws.scaling import Layer, Scale, pair_bytes, scaled_law, token_bytes
from archsim.laws.tables import MoeLaw
from archsim.specs.calibration_files import calibration_named
from archsim.studies.validation.cases import calibrations_shipped
from calibration.fit.moe import fit_moe

H100_HBM, H200_HBM, PEAK = 3.35e12, 4.8e12, 989e12
LAYER = Layer(4096, 1536, "fp8", H100_HBM)
BASE = MoeLaw(launch_ns=1e4, ns_per_token=0, flop_per_s=1e15, bytes_per_s=3e12, order=2)


@pytest.mark.parametrize("gpu", sorted(calibrations_shipped()))
def test_no_law_of_moe_layers_is_faster_than_its_gpu(gpu):
    calibration = calibration_named(gpu)
    peaks, hbm = calibration.reference.peak_flop_per_s, calibration.reference.hbm_bytes_per_s
    for table in calibration.moe:
        assert table.law.flop_per_s <= peaks.get(table.dtype, np.inf), table.model
        assert table.law.bytes_per_s <= hbm, table.model


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


def test_gpus_that_differ_in_their_hbm_share_a_law_below_the_peak():
    """Compute that hides in the cost of a pair: the fit alone may call it faster than the peak."""
    truth = LAW.model_copy(update={"flop_per_s": 0.8 * PEAK, "ns_per_pair": 12.0, "bytes_per_s": 3e12})
    layer = Layer(MODEL["hidden"], MODEL["ffn"], "bf16", H100_HBM)
    slow = layers(law=truth)
    fast = layers(law=scaled_law(truth, layer, Scale(1.0, H200_HBM / H100_HBM)))
    known = {"peaks": lambda dtype: PEAK}
    (one,) = fit_moe(slow, H100_HBM, like={H200_HBM: fast}, **known)
    (other,) = fit_moe(fast, H200_HBM, like={H100_HBM: slow}, **known)
    assert one.law.flop_per_s == pytest.approx(0.8 * PEAK, rel=0.02) == other.law.flop_per_s
    assert other.law.bytes_per_s / one.law.bytes_per_s == pytest.approx(H200_HBM / H100_HBM, rel=1e-3)
    assert one.law.launch_ns == other.law.launch_ns
    (capped,) = fit_moe(layers(law=truth.model_copy(update={"flop_per_s": 3 * PEAK})), H100_HBM, **known)
    assert capped.law.flop_per_s <= PEAK


def test_tokens_that_a_rank_received_are_those_with_a_pair():
    named = {**MODEL, "distribution": "balanced", "seen": "received"}
    points = np.array([(ep, 1, 2.0**power) for ep in (1, 4, 16, 64) for power in range(12)])
    ns = law_ns(LAW, named, "balanced", *points.T)
    all_ns = law_ns(LAW, named | {"seen": "group"}, "balanced", *points.T)
    few = points[:, 0] > MODEL["top_k"]
    assert (ns[few] < all_ns[few]).all() and (ns[~few] == all_ns[~few]).all()
    rows = pd.DataFrame(points, columns=POINT).assign(
        **{key: float(value) if isinstance(value, int) else value for key, value in MODEL.items()},
        distribution="balanced", latency_us_median=ns / 1e3, run_id="1", gpu_name="H100", library="lib",
        library_version="1", kernel="", file="moe.csv", gpu="h100", tokens_seen="received",
    )  # fmt: skip
    (table,) = fit_moe(rows)
    assert table.seen == "received" and table.law.ns_per_token + table.law.ns_per_pair == pytest.approx(8, rel=0.1)

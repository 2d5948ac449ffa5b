"""Disaggregated points: batches by the recipes' rule, what pools are fitted to, and a choice's loss."""

import numpy as np
import pytest
from measured_serving.accuracy import Point
from measured_serving.choices import with_clients, within_limits
from measured_serving.split import pools_of

from archsim.serving.hosts import host_file, host_of
from archsim.specs.library import load_model
from archsim.studies.serving.accuracy import decode_batches


def rows(precision, workers, *clients, backend="trtllm"):
    one = {"backend": backend, "precision": precision, "decode_workers": workers, "decode_attention_dp": 1}
    return [one | {"concurrency": each} for each in clients]


def test_decode_batches_are_those_of_the_recipes():
    """Names of recipes: srt-slurm, trtllm/gb200-fp4 and gb200-fp8 (ctx1_gen4_tep8_batch32, ctx1_gen3_tep8_batch16)."""
    assert decode_batches(rows("fp4", 4, 12, 24, 48, 96, 192)) == [32] * 5
    assert decode_batches(rows("fp4", 4, 5, 12, 44, 76)) == [1, 16, 16, 16]
    assert decode_batches(rows("fp8", 3, 3, 6, 18, 27, 63)) == [1, 1, 4, 8, 16]
    assert decode_batches(rows("fp8", 8, 4301, 6144)) == [512, 768]
    assert decode_batches(rows("fp4", 4, 12, backend="sglang")) == [0]


def points(late, iterations, slower):
    """Of two engines; simulated plainly."""
    one = {"backend": "vllm", "system": "GB200", "model": "DeepSeek-R1/V3", "is_moe": 1, "gemm_quant": "nvfp4",
           "moe_quant": "nvfp4", "origin": "inferencex_db", "decode_attention_dp": 1}  # fmt: skip
    found = []
    for group, ttft, tpot in (("A", 100.0, 6.0), ("A", 200.0, 12.0), ("B", 300.0, 20.0), ("C", 400.0, 30.0)):
        real = tpot * slower
        row = one | {"group": group, "ttft_ms": ttft + late + iterations * real, "tpot_ms": real}
        found.append(Point(row, ttft, tpot))
    return found


def test_pools_are_given_what_their_points_are_late_and_slower():
    engine, kind, cell = pools_of(points(160.0, 8, 1.1))
    assert (engine.engine, engine.request, engine.handoff, engine.first_after) == ("vllm", 0, 160e6, 9)
    assert (cell.gpu, cell.dtype) == ("gb200", "nvfp4") and cell.first_after is None
    assert kind.data_parallel is False and cell.data_parallel is None
    assert engine.decodes * kind.decodes * cell.decodes == pytest.approx(1.1, abs=0.03)
    assert 1 < cell.decodes < kind.decodes < engine.decodes  # held towards 1 more strongly


def test_pools_decode_by_their_own_constants():
    known = host_file().model_copy(update={"pools": pools_of(points(160.0, 8, 1.1))})
    model = load_model("deepseek-v3")
    both, first, then = (
        host_of("vllm", model, "gb200", "nvfp4", "nvfp4", known, pool) for pool in ("", "prefill", "decode")
    )
    slower = then.decodes / both.decodes
    assert slower == pytest.approx(then.iteration_ns / both.iteration_ns) == pytest.approx(1.1, abs=0.03)
    assert first.prompts / both.prompts == pytest.approx(known.pools[-1].decodes)
    assert first.decodes == both.decodes and first.handoff_ns == 160e6 and first.first_after == 9
    assert first.request_ns == 0 < both.request_ns and both.first_after == 2
    elsewhere = host_of("vllm", model, "h100", "fp8_block", "fp8_block", known, "decode")
    assert 1.01 < elsewhere.decodes / host_of("vllm", model, "h100", "fp8_block", "fp8_block", known).decodes < 1.1


def choice(gpus, tpot, simulated, clients=8):
    row = {
        "model": "m", "system": "s", "backend": "vllm", "isl_tokens": 100, "osl_tokens": 100, "precision": "fp8",
        "concurrency": clients, "gpus": gpus, "tp": gpus, "attention_dp": 1, "moe_tp": 1, "moe_ep": 1,
        "ttft_ms": 0.0, "tpot_ms": tpot,
    }  # fmt: skip
    return Point(row, 0.0, simulated)


def test_a_choice_loses_what_the_best_measured_one_has_more():
    right = [choice(1, 40.0, 41.0), choice(4, 12.0, 12.0)]
    assert with_clients(right)[:3] == (1, 0.0, 1.0)
    wrong = [choice(1, 40.0, 41.0), choice(4, 12.0, 9.0)]  # 4 GPUs: 20.8 requests a GPU against 25
    found = with_clients(wrong)
    assert found.mean == pytest.approx(1 - 40 / 48) and found.near == 0 and found.fewest == 0
    limits = within_limits(wrong)  # 12, 15, 20, 30 ms: the only one; 10: simulated within it, none measured
    assert limits.choices == 6 and np.isclose(limits.mean, (1 - 40 / 48) * 2 / 6)

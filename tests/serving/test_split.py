"""Disaggregated points: batches by the recipes' rule, what a handoff is fitted to, and a choice's loss."""

import numpy as np
import pytest
from measured_serving.accuracy import Point
from measured_serving.choices import with_clients, within_limits
from measured_serving.split import handoffs_ns, with_handoffs

from archsim.serving.hosts import host_file
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


def points(late):
    one = {"backend": "vllm", "tpot_ms": 10.0}
    return [
        Point(one | {"group": group, "ttft_ms": ttft + late}, ttft, 10.0)
        for group, ttft in zip("AABC", (100.0, 200.0, 300.0, 400.0), strict=True)
    ]


def test_a_handoff_is_what_first_tokens_are_late():
    assert handoffs_ns([*points(230.0), *points(230.0)[:1]]) == {"vllm": 230e6}
    known = with_handoffs(host_file(), {"vllm": 230e6})
    assert {row.handoff for row in known.hosts if row.engine == "vllm"} == {230e6}
    assert {row.handoff for row in known.hosts if row.engine != "vllm"} == {0.0}


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

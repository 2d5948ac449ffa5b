"""Fits blocks of sparse attention and kernels of linear attention: prices of the terms of ``attention.blocks``."""

import numpy as np
import pytest

from archsim.iteration.attention import PREFILL
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from calibration.fit.attention_blocks import model_of


@pytest.mark.parametrize(("gpu", "context", "measured_ms"), [
    ("h200", 524_288, 11.4), ("h200", 1_000_000, 21.8), ("b200", 262_144, 4.4), ("b200", 1_000_000, 17.4),
])  # fmt: skip
def test_few_tokens_after_many_wait_for_a_scan_of_them(gpu, context, measured_ms):
    """SGLang's block-sparse kernel scans the keys of a request one after the other: as long for 1 as for 16 tokens, and
    for up to 64 requests of 4 KV heads; 128 take twice as long, and count as extrapolated."""
    hidden, kind = model_of("block_sparse", "MiniMax-M3", 64)
    times = kind.times(Laws(calibration_named(gpu)), PREFILL, hidden, library="sglang")
    assert times.ns(1, np.array([2, 16]), context) / 1e6 == pytest.approx(measured_ms, rel=0.2)
    assert times.outside(np.array([1, 64, 128]), 65_536).tolist() == [False, False, True]

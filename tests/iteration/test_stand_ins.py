"""Tables that stand in for what a calibration lacks: weights of 4 bits, and expert layers of other shapes."""

import numpy as np

from archsim.iteration.stand_ins import NEAR, with_stand_ins
from archsim.laws.calibration_files import calibration_named
from archsim.specs.library import load_model


def test_a_kernel_that_was_not_measured_on_a_shape_takes_a_near_one():
    model = load_model("deepseek-v3")
    found = with_stand_ins(calibration_named("b300"), model, "fp8_block", "fp8_block")
    copies = {table.kernel: table for table in found.calibration.moe
              if table.scaled_from and (table.hidden, table.dtype) == (model.hidden, "fp8_block")}  # fmt: skip
    assert copies["sglang_flashinfer_trtllm_moe"].scaled_from == "GLM-5"
    assert "deepgemm" not in copies  # measured
    shapes = {table.model.lower(): table for table in calibration_named("b300").moe}
    for table in copies.values():
        like = shapes[table.scaled_from.lower()]
        sizes = ((like.hidden, model.hidden), (like.ffn, model.expert_ffn), (like.experts, model.experts))
        assert sum(abs(np.log2(a / b)) for a, b in sizes) <= NEAR
    assert any("GLM-5 (sglang_flashinfer_trtllm_moe)" in note for note in found.notes)


def test_a_dense_model_is_told_nothing_of_experts():
    found = with_stand_ins(calibration_named("h100"), load_model("llama-3.1-70b"), "fp8", "fp8")
    assert not any("xperts" in note for note in found.notes)

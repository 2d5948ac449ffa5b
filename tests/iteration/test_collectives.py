"""Collectives of an iteration: the fastest measured kernels inside a node, and nodes by copies between their NICs."""

import numpy as np

from archsim.iteration.collectives import fastest_all_reduce_ns
from archsim.iteration.stand_ins import ONE_SHOT, with_stand_ins
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.specs.library import load_model


def test_one_shot_all_reduces_stand_in_for_those_of_a_gpu_without():
    """They were looked up, but never taken: every time of a stand-in counts as extrapolated."""
    measured = calibration_named("b200")
    nccl = tuple(table for table in measured.collectives if table.library not in ONE_SHOT)
    b200 = measured.model_copy(update={"collectives": nccl})
    with_kernels = with_stand_ins(b200, load_model("llama-3.1-70b"), "fp8", "fp8").calibration
    small, large = (np.array([size]) for size in (65536.0, 2.0**27))
    for ranks in (2, 4, 8):
        of_small, of_large = (
            [fastest_all_reduce_ns(Laws(each), size, ranks) for each in (with_kernels, b200)] for size in (small, large)
        )
        assert of_small[0] < 0.5 * of_small[1]
        assert of_large[0] == of_large[1]

"""Fused layers whose EP ranks were timed with the token-expert pairs of the whole group."""

import pytest
from support.examples import sampled

from archsim.base.config_files import shipped_configs
from archsim.laws.calibration_files import calibration_named, read_calibration
from archsim.laws.moe import moe_ns
from archsim.laws.whole_pairs import with_own_pairs

WHOLE = "sglang", "0.5.10", "sglang_fused_moe_triton"  # whose EP ranks were timed with all pairs of the group


@pytest.mark.parametrize("gpu", sampled(["a100", "gb200"], {"a100"}.__contains__))
def test_ranks_with_a_share_of_the_pairs_do_not_take_the_time_of_all(gpu):
    """16,384 tokens: files have 0.9 of the time of one rank at EP 4 and 8; B200, of GB200's silicon, has its share."""
    files, loaded = read_calibration(shipped_configs() / "calibrations" / f"{gpu}.yaml"), calibration_named(gpu)

    def over_one(calibration, ep):
        of = [each for each in calibration.moe if (each.library, each.version, each.kernel) == WHOLE
              and (each.model, each.dtype, each.distribution) == ("DeepSeek-V3", "bf16", "balanced")]  # fmt: skip
        several, one = moe_ns(of[0], [ep, 1], [1, 1], [16384, 16384])
        return several / one

    for ep in (2, 4, 8):
        assert over_one(files, ep) > 0.7 and over_one(loaded, ep) < 1.7 / ep
    sound = read_calibration(shipped_configs() / "calibrations" / "h100.yaml")
    assert with_own_pairs(sound, None) is sound

"""All-gathers of any number of ranks follow one law: measured times where there are some, no refusal beyond them."""

import numpy as np
import pytest

from archsim.iteration.times import NODE, gathered_ns, gathered_told
from archsim.laws.laws import Laws
from archsim.specs.calibration_files import calibration_named

SIZES = np.array([1e4, 1e6, 5e7])


@pytest.fixture(scope="module")
def laws():
    return Laws(calibration_named("h100"))


def of(laws, ranks, size=SIZES):
    return gathered_ns(laws, "all_gather", size, ranks)


def test_measured_numbers_of_ranks_keep_their_times(laws):
    for ranks in (2, 4, 8):
        assert np.array_equal(of(laws, ranks), laws.collective("all_gather", SIZES, ranks=ranks).ns)
        assert gathered_told(laws, "all_gather", ranks) == ""


def test_between_two_measured_numbers_lies_their_geometric_mean(laws):
    share = np.log(6 / 4) / np.log(2)
    assert of(laws, 6) == pytest.approx(of(laws, 4) ** (1 - share) * of(laws, 8) ** share)


def test_between_nodes_each_rank_sends_its_part_around_the_nodes(laws):
    copies = laws.copy(SIZES / 16, placement="inter_node").ns
    assert of(laws, 16) == pytest.approx(of(laws, NODE) + copies)
    assert "by one law of its 2, 4, 8 measured ranks, which is " in gathered_told(laws, "all_gather", 16)
    assert "copies between nodes of 8 are those of h100" in gathered_told(laws, "all_gather", 16)


def test_in_one_domain_latency_grows_and_bytes_follow_their_share():
    """GB200 was measured on 2, 4 and 8 of the 72 GPUs of its domain: no node lies between 32 of them."""
    laws = Laws(calibration_named("gb200"))
    eight, four = of(laws, 8, 1.0), of(laws, 4, 1.0)
    growth = float(np.clip(np.log(eight / four) / np.log(2), 0, 1))
    latency = float(eight) * 4**growth
    moved = (of(laws, 8) - float(eight)) * (31 / 32) / (7 / 8)
    assert of(laws, 32) == pytest.approx(latency + moved, rel=1e-6)
    assert "nodes" not in gathered_told(laws, "all_gather", 32)


def test_times_grow_with_the_ranks(laws):
    times = np.array([of(laws, ranks) for ranks in (2, 3, 4, 6, 8, 16, 32, 64)])
    assert (np.diff(times, axis=0) >= 0).all()

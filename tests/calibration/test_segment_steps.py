"""Lines between steps: what a dense sweep in whole microseconds says of sizes that were left out."""

import numpy as np
import pytest

from calibration.fit.comm import series_of
from calibration.fit.segment_steps import stepped_lines
from calibration.fit.segments import fit_segments, held_out_ratios
from calibration.laws.piecewise import PiecewiseLaw
from calibration.measurements.reading import read_measurements

MIB = 2.0**20
SIZES = np.arange(32, 640) * MIB / 32


def staircase(size):
    """Copies that take 10 % longer from right after every second MiB on."""
    return 1e4 + size / 300 * (1 + 0.1 * (np.ceil(size / MIB) % 2))


def law(size, time):
    return PiecewiseLaw(*map(tuple, stepped_lines(size, time)), size[0], size[-1])


def test_steps_are_where_they_are():
    found = law(SIZES, staircase(SIZES))
    assert np.abs(found.time_ns(SIZES) / staircase(SIZES) - 1).max() < 0.06  # falls are lines from size to size
    rises = np.array([4, 6, 8, 10]) * MIB
    after = rises + MIB / 64
    assert found.time_ns(rises) == pytest.approx(staircase(rises), rel=0.01)
    assert found.time_ns(after) == pytest.approx(staircase(after), rel=0.01)


def test_whole_microseconds_are_smoothed():
    size = np.arange(1, 200) * 8192.0
    time = 8000 + size / 200
    flipping = np.round((time + 400 * (-1) ** np.arange(len(size))) / 1000) * 1000
    found = law(size, flipping)
    assert np.abs(flipping / time - 1).max() > 0.1
    assert np.abs(found.time_ns(size[8:-8]) / time[8:-8] - 1).max() < 0.03
    assert np.all(np.diff(found.from_bytes) > 0)


def test_a_line_stays_one_piece_and_steps_are_chosen_only_where_they_pay():
    line = fit_segments(SIZES, 9000 + SIZES / 250)
    assert len(line.from_bytes) == 1
    assert len(fit_segments(SIZES, staircase(SIZES)).from_bytes) > 20


def test_send_and_receive_on_one_node_at_sizes_left_out(shared):
    rows = read_measurements(shared / "data/calibration/comm/vidur_nccl_send_recv.csv").table("p2p", "h100")
    (item,) = (each for each in series_of(rows, "p2p") if each.of["placement"] == "intra_node")
    for folds in (2, 5):
        ratio = held_out_ratios(item.size_bytes, item.time_ns, folds)
        there = ~np.isnan(ratio)
        measured, found = item.time_ns[there], (ratio * item.time_ns)[there]
        errors = np.abs(found / measured - 1)
        beyond_rounding = np.abs(found / np.clip(found, measured - 500, measured + 500) - 1)
        assert errors.mean() < 0.012 and beyond_rounding.max() < 0.05
        assert errors[measured > 11_000].max() < 0.07

"""One summation for every Python."""

import math

import numpy as np

from archsim.base.sums import sum


def test_floats_are_added_one_after_the_other():
    rng = np.random.default_rng(3)
    for count in (0, 1, 2, 3, 100):
        values = (rng.random(count) * 10.0 ** rng.integers(-9, 9, count)).tolist()
        found = 0
        for each in values:
            found += each
        assert sum(values) == found and sum(values) - math.fsum(values) <= 1e-12 * math.fsum(values)
    assert sum([0.1] * 10) == 0.9999999999999999  # not the 1.0 of a compensated sum
    assert sum([[1], [2]], []) == [1, 2] and sum(iter([2, 3]), start=1) == 6

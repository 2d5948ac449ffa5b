"""``engine: interpreted`` beside the compiled kernels: the same results, to the last column."""

import pytest
from support.random_systems import assert_kernels_equal_interpreter

SYSTEMS = 12  # of the 1,000 that were compared
SPECIAL = (253, 10281)  # reads shorter than a first segment; flows that go on at the rate of those before


@pytest.mark.parametrize("number", [*range(SYSTEMS), *SPECIAL])
def test_kernels_equal_the_interpreter_on_random_systems(number):
    assert_kernels_equal_interpreter(number)

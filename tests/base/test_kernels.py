"""Functions of kernels: called by kernels, refused in Python."""

import pytest
from support.from_python import from_python

from archsim.base.compiled import inner, outer


@pytest.mark.parametrize("decorate", [inner, outer])
def test_python_is_told_that_a_function_is_for_kernels(decorate):
    @decorate
    def twice(number):
        return 2 * number

    assert from_python(twice)(21) == 42
    with pytest.raises(TypeError, match=r"twice is for kernels alone; in Python call twice\.py_func"):
        twice(21)
    assert twice.py_func(21) == 42

"""How a model is spread over devices, and which number formats it computes in."""

from archsim.specs.deployment import fitting


def test_sizes_that_fit_are_named():
    assert fitting(128, 72) == "64 or 32 fit"
    assert fitting(7, 4) == "1 fits"

"""Shares between 0 and 1 for the points of a sampled sweep."""

import numpy as np
from scipy.stats import qmc

from archsim.specs.drawn_shares import draw_shares


def test_a_latin_hypercube_has_the_shares_of_scipy():
    for count, axes, seed in ((1, 1, 0), (7, 3, 1), (2250, 9, 6)):
        expected = qmc.LatinHypercube(axes, seed=np.random.default_rng(seed)).random(count)
        assert (draw_shares("latin_hypercube", axes, count, seed) == expected).all()

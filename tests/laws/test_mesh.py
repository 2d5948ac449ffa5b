"""Laws of a measured mesh of chips: the rate of a link by packet size, the latency of a hop, and the endpoint law."""

import numpy as np
import pytest

from archsim.laws.mesh import link_loads

RING, LINE = ((8,), (True,)), ((8,), (False,))


ROUTING = np.random.default_rng(3).integers(0, 200, (8, 8)).astype(float)


@pytest.mark.parametrize("kind", [RING, LINE])
def test_links_carry_every_vector_once_a_hop(kind):
    apart = np.abs(np.subtract.outer(range(8), range(8)))
    hops = np.minimum(apart, 8 - apart) if kind is RING else apart
    assert link_loads(ROUTING, *kind).sum() == pytest.approx((ROUTING * hops).sum())

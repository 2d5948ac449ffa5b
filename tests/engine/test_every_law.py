"""Every law on every system: ``tests/support/laws.py`` has a row of each."""

import pytest
from support.examples import sampled
from support.laws import LAWS, SYSTEMS, assert_equal_bytes, ran


@pytest.mark.parametrize("system", sampled(SYSTEMS, lambda system: system.sampled), ids=lambda system: system.name)
def test_laws_hold(system):
    one = ran(system.start)
    for law in LAWS:
        law(one)
    assert_equal_bytes(one.outcome, system.start().run())

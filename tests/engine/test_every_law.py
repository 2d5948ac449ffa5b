"""Every law on every system: ``tests/support/laws.py`` has a row of each."""

import pytest
from support.examples import sampled
from support.laws import LAWS, SYSTEMS, assert_equal_bytes, ran

TRIED = [system for system in SYSTEMS if system.sampled][::2]


@pytest.mark.parametrize("system", sampled(SYSTEMS, TRIED.__contains__), ids=lambda system: system.name)
def test_laws_hold(system):
    one = ran(system.start)
    assert one.total_ns > 0
    for law in LAWS.values():
        law.holds(one)


@pytest.mark.parametrize("system", sampled(SYSTEMS, TRIED[::5].__contains__), ids=lambda system: system.name)
def test_equal_runs_give_equal_bytes(system):
    assert_equal_bytes(system.start().run(), system.start().run())


@pytest.fixture(scope="module")
def one():
    """A run that every law says something of."""
    (start,) = (system.start for system in SYSTEMS if system.name == "analytical allo+pred physical")
    return ran(start)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_kills_its_mutant(name, one):
    LAWS[name].holds(one)
    with pytest.raises(AssertionError):
        LAWS[name].holds(LAWS[name].mutant(one))

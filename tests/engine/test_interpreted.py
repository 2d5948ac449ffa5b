"""``engine: interpreted`` beside the compiled kernels: the same results, to the last column."""

import numpy as np
import pytest
from support.random_systems import random_system, run_system

from archsim.engine.engine import EventEngine
from archsim.engine.interpreted.engine import InterpretedEngine

SYSTEMS = 12  # of the 1,000 that were compared
SPECIAL = (253, 10281)  # reads shorter than a first segment; flows that go on at the rate of those before


@pytest.mark.parametrize("number", [*range(SYSTEMS), *SPECIAL])
def test_kernels_equal_the_interpreter_on_random_systems(number):
    exact = random_system(number)[3].contention == "reserved"
    compiled, interpreted = (run_system(number, engine) for engine in (EventEngine, InterpretedEngine))
    assert_equal_runs(compiled, interpreted, exact)


def assert_equal_runs(compiled, interpreted, exact):
    close = np.testing.assert_array_equal if exact else near
    assert compiled.step_ns.sum() > 0
    close(interpreted.step_ns, compiled.step_ns, "step_ns")
    np.testing.assert_array_equal(interpreted.load, compiled.load)
    for name in compiled.tally._fields:
        if name == "events":
            continue
        of_compiled, of_interpreted = getattr(compiled.tally, name), getattr(interpreted.tally, name)
        for column in of_compiled.dtype.names or (None,):
            told = f"{name}.{column}" if column else name
            one, other = (of if column is None else of[column] for of in (of_interpreted, of_compiled))
            close(one, other, told)
    for name in ("present", "was_read", "slices", "room"):
        np.testing.assert_array_equal(
            getattr(interpreted.memory.copies, name), getattr(compiled.memory.copies, name), name
        )
    np.testing.assert_array_equal(interpreted.memory.llc_tags, compiled.memory.llc_tags)
    np.testing.assert_array_equal(interpreted.memory.atu.misses, compiled.memory.atu.misses)
    close(np.array(interpreted.decision.by_step), np.array(compiled.decision.by_step), "decision")


def near(one, other, told):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-3, err_msg=told)

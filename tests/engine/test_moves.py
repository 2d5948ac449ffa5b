"""Hidden vectors of a step: which die sends how many to which, and how many bytes one has."""

import numpy as np
import pytest

from archsim.engine.cluster.transfer_times import send_equal
from archsim.engine.moves import Sizes, VectorBytes
from archsim.iteration.machine import calibration_on
from archsim.laws.laws import Laws
from archsim.machine.system import SystemSpec
from archsim.specs.library import load_system


@pytest.mark.parametrize("level", [0, 1])
def test_a_hop_of_each_level_takes_as_much_longer_as_its_file_says(level):
    """Of dispatch and combine on 4 nodes with hops of 10 us more: NICs, that take longest, one hop; NVLink none."""
    system = load_system("h100_cluster")
    levels = [each.model_dump(mode="json", by_alias=True) for each in system.fabric.levels]
    levels[level]["hop_latency"] = f"{system.fabric.levels[level].hop_latency_ns + 10_000} ns"
    given = system.model_dump(mode="json", by_alias=True) | {"fabric": {"levels": levels}}
    of = "per_token_expert", Sizes(256, 8), 7168, VectorBytes(7168, 14336), 32, np.array([1.0, 64.0, 512.0])
    before, after = (
        send_equal(calibration_on(each), *of) for each in (system, SystemSpec.model_validate(given | {"name": "far"}))
    )
    for op in ("dispatch", "combine"):
        longer = getattr(after, op) - getattr(before, op)
        assert longer == pytest.approx(10_000) if level else (longer <= 10_000).all()
    longer = Laws(calibration_on(SystemSpec.model_validate(given))).collective("all_reduce", 2.0**20, ranks=8).ns
    more = longer - Laws(calibration_on(system)).collective("all_reduce", 2.0**20, ranks=8).ns
    assert more == pytest.approx(0 if level else 20_000)

"""How far a run's steps are from the best possible allocation under the same placement, copies and caches."""

import pytest
from support.small_runs import (
    engine_of,
    policy,
    small_model,
    small_system,
)

from archsim.base.errors import ArchsimError
from archsim.questions.optimum_distances import Bounds, distances
from archsim.specs.library import load_assumptions


def test_bounds_are_refused_where_experts_have_several_holders():
    run = engine_of(
        small_system(),
        small_model(),
        policy("ep", placement="support.placements:replicated"),
        load_assumptions("physical"),
    )
    with pytest.raises(ArchsimError, match="one holder"):
        list(distances(run, 2, Bounds()))

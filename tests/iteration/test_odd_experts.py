"""Experts that do nothing, experts on latent vectors, and experts without a gate: served by laws."""

import numpy as np
import pytest

from archsim.base.errors import SpecError
from archsim.iteration.experts import ByChance, FusedLaw
from archsim.iteration.layers import PROJECTIONS, ROUTER, Product, counted, program
from archsim.laws.laws import Laws
from archsim.serving.deployment import with_stand_ins
from archsim.serving.serving import serve
from archsim.specs.calibration_files import calibration_named
from archsim.specs.deployment import ALONE
from archsim.specs.library import load_model
from archsim.specs.serving_files import load_serving

SIZES = 257


def changed(**fields):
    return load_model("olmoe-1b-7b").model_copy(update={"name": "odd", **fields})


def times(model):
    found = with_stand_ins(calibration_named("h200"), model, "bf16", "bf16")
    return ByChance().times(Laws(found.calibration), model, ALONE, "bf16", SIZES).ns, found.notes


@pytest.fixture(scope="module")
def usual():
    return times(changed())[0]


def test_experts_that_do_nothing_take_no_time(usual):
    """With as many of them, half of the pairs do nothing: what is left is between none and all of the time."""
    half, most = (times(changed(zero_experts=count))[0] for count in (64, 10_000))
    assert np.all(half[1:] <= usual[1:]) and np.all(most[1:] <= half[1:]) and half[256] > usual[256] / 3
    operators = counted(program(changed(zero_experts=64), ALONE))
    assert {each.n for each in operators if isinstance(each, Product) and each.cause == ROUTER} == {128}
    with pytest.raises(SpecError, match="odd: zero_experts: 64 experts do nothing"):
        FusedLaw().times(Laws(calibration_named("h200")), changed(zero_experts=64), ALONE, "bf16", SIZES)


def test_experts_without_a_gate_have_two_matrices(usual):
    model = changed(gated=False)
    found, notes = times(model)
    assert model.slices == 2 and any("without a gate" in note for note in notes)
    assert np.all(found[1:] <= usual[1:]) and found[256] >= usual[256] / 2


def test_experts_on_latent_vectors_are_narrower_and_have_products_around_them(usual):
    model = changed(expert_hidden=1024)
    latent = {
        (each.n, each.k): count for each, count in counted(program(model, ALONE)).items()
        if isinstance(each, Product) and each.cause == PROJECTIONS and 1024 in (each.n, each.k)
    }  # fmt: skip
    assert latent == {(1024, 2048): 16, (2048, 1024): 16}
    assert times(model)[0][256] < usual[256]


def test_they_are_served_and_not_run_by_the_engine():
    model = load_model("olmoe-1b-7b").model_dump(mode="json", by_alias=True, exclude_none=True)
    file = {
        "system": "h200_node", "model": model | {"name": "odd", "zero_experts": 64, "gated": False},
        "engine": "none", "precision": {"products": "bf16", "experts": "bf16"},
        "requests": {"concurrency": 4, "input": {"fixed": 100}, "output": {"fixed": 4}, "count": 8},
    }  # fmt: skip
    assert serve(load_serving(file)).measures.tpot.mean > 0
    with pytest.raises(SpecError, match=r"odd: zero_experts: .*serve it with routing: uniform"):
        serve(load_serving(file | {"routing": {"like": "olmoe-1b-7b", "layers": 1}, "precision": {}}))

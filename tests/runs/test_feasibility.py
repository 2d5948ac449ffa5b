"""Checks before anything runs: models fit into the HBM of systems."""

import pytest
from support.scenarios import placed, scenario

from archsim.base.errors import SpecError
from archsim.iteration.memory import KV, fit_of
from archsim.iteration.rank_memory import EXPERTS
from archsim.runs.feasibility import MemoryUse, uncounted_notes
from archsim.specs.library import load_model

GEOMETRY = {"attention": None, "vocabulary": None}


def test_a_model_without_attention_counts_experts_alone_and_says_so():
    model = load_model("qwen3-235b-a22b").model_copy(update=GEOMETRY)
    of = scenario(model=model)
    fit = fit_of(of, placed(of))
    assert set(fit.parts) == {EXPERTS}
    (note,) = uncounted_notes([MemoryUse(of, fit, True, None)])
    assert "qwen3-235b-a22b" in note and "attention, vocabulary" in note


def test_a_context_that_nothing_says_must_be_written():
    of = scenario()
    with pytest.raises(SpecError, match=r"^workload\.context: .*context: 4096"):
        fit_of(of, placed(of))
    none = scenario(context=0)
    fit = fit_of(none, placed(none))
    assert fit.of(KV) == 0 and uncounted_notes([MemoryUse(none, fit, True, None)]) == [
        "HBM holds no KV cache, as workload.context is 0."
    ]

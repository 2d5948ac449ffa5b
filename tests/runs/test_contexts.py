"""The context of requests that a recorded trace or a preset alone knows."""

import numpy as np
import pytest
from support.trace_files import save_npz

from archsim.base.errors import SpecError
from archsim.runs.feasibility import rooms, uncounted
from archsim.runs.notes import memory_notes
from archsim.runs.plan import prepare
from archsim.specs.library import load_experiment

MODEL = {"name": "toy", "source": "made up", "layers": 2, "moe_layers": {"first": 0, "last": 1}, "hidden": 64}
MODEL |= {"expert_ffn": 64, "experts": 8, "top_k": 2, "vocabulary": 100}
ATTENTION = {"attention": {"heads": 4, "kv_heads": 2, "head_dim": 16}}
LENGTHS = ((5, 4), (9, 1), (2, 9))


def run_of(trace, batch, model=None, assumptions="physical", **workload):
    return prepare(
        load_experiment({
            "name": "x", "systems": ["dojo"], "models": [model or MODEL | ATTENTION],
            "workload": {"trace": trace, "batch": batch} | workload, "policies": ["ep"], "assumptions": assumptions,
        })
    ).runs[0]


@pytest.fixture
def recorded(tmp_path):
    """Requests with prompts of 5, 9 and 2 tokens, and 4, 1 and 9 decode steps."""
    rng, requests = np.random.default_rng(0), {}
    for name, (prompt, decode) in enumerate(LENGTHS):
        iteration = np.r_[np.zeros(prompt, int), np.arange(1, decode + 1)]
        requests[name] = rng.random((len(iteration), 2, 8)).argsort(axis=2)[:, :, :2], iteration
    return str(save_npz(tmp_path / "recorded.npz", requests, [0, 1]))


@pytest.mark.parametrize(("batch", "steps", "tokens"), [(1, 127, 9), (2, 127, 10), (3, 127, 11), (3, 1, 10)])
def test_of_a_recorded_trace_it_is_that_of_the_longest_request_of_the_batch(recorded, batch, steps, tokens):
    run = run_of(recorded, batch, decode_steps=steps)
    (room,) = rooms([run])
    assert room.fit.context == run.workload.context == tokens and run.context_from == "longest request"
    assert uncounted([room]) == [
        "workload.context is not given: requests hold as much KV cache as the longest of their batch"
    ]


def test_what_is_written_counts(recorded):
    given = run_of(recorded, 3, context=7)
    assert given.workload.context == 7 and given.context_from == "workload"
    assert run_of(recorded, 3).key != given.key
    assert run_of(recorded, 3, model=MODEL).workload.context is None
    assert run_of(recorded, 3, assumptions="published").workload.context is None


def test_of_a_preset_it_is_that_of_the_longest_request_drawn():
    few, many = (
        run_of({"synthetic": {"like": "mixtral-8x7b"}}, batch, "mixtral-8x7b", decode_steps=9) for batch in (1, 50)
    )
    assert 9 < few.workload.context <= many.workload.context
    asked = {"synthetic": {"like": "mixtral-8x7b", "prompt_tokens": 30, "decode_steps": 5}}
    assert run_of(asked, 3, "mixtral-8x7b").workload.context == 35


@pytest.mark.parametrize("like", [{}, {"like": "gpt-oss-20b"}])
def test_requests_without_prompts_say_nothing(like):
    run = run_of({"synthetic": like | {"prompt_tokens": 0}}, 3, "gpt-oss-20b")
    with pytest.raises(SpecError, match=r"^workload\.context: "):
        list(rooms([run]))


def test_a_note_tells_it():
    row = {"model": "a", "hbm_all_counted": 1, "context_from": "longest request"}
    (note,) = memory_notes([row | {"context_tokens": tokens} for tokens in (5, 9)])
    assert note.startswith("workload.context is not given") and "(up to 9)" in note

"""A user's own scheduler: compiled with its parameters; what cannot be is refused by name, with the request."""

import pytest
from support.examples import sampled
from support.own_scheduler import GENTLE
from support.serving import opened, pool

from archsim.base.errors import ArchsimError
from archsim.base.validation import validate
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.library import tree_of
from archsim.specs.schedulers import SchedulerSpec

OWN = (
    GENTLE
    + """
import numpy as np

from archsim.serving.schedulers import lacking


def idle(state, k, now_ns, limits):
    pass


def greedy(state, k, now_ns, limits):
    gentle_most = admit(state, k, now_ns, limits.budget, 0, 0, limits)
    state.new[k, 0] = gentle_most + 1


def unpaid(state, k, now_ns, limits):
    if state.ranks[k].running == 0:
        admit(state, k, now_ns, limits.budget, 0, 0, limits)
    else:
        state.new[k, 0] = lacking(state, state.slots[k, 0])


def outside(state, k, now_ns, limits):
    state.new[k, 10_000_000] = 1


def not_compiled(state, k, now_ns, limits):
    {}[state] = open


def without_rank(state):
    pass
"""
)
ROWS = [(0.0, 20, 5)] * 12
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "block_tokens": 4}


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The module ``mine_schedulers``, in the current folder."""
    (tmp_path / "mine_schedulers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def served(name, **params):
    return simulate(opened(ROWS), Scheduler(name, **SMALL, params=params), pool(100))


@pytest.mark.parametrize(("params", "times"), sampled([({}, 12), ({"most": 100}, 3)], lambda case: case[0]))
def test_an_own_scheduler_admits_as_its_parameter_says(params, times):
    """Each value is compiled for four seconds."""
    found = served("mine_schedulers:gentle", **params).requests
    assert len(set(found["scheduled_ns"])) == times  # 6 prompts fill the budget of 128
    assert (found.tobytes() == served("vllm_v1").requests.tobytes()) == (times == 3)


@pytest.mark.parametrize(
    ("name", "told"),
    sampled(
        [
            ("idle", "idle: gives no token to any of 12 requests that are left"),
            ("greedy", "greedy: gives fewer than 0 tokens, or more than are left .* request 0"),
            ("unpaid", "unpaid: gives tokens without KV blocks .* request 0"),
            ("outside", "outside: raises an error"),
            ("not_compiled", "not_compiled: cannot be compiled"),
        ],
        lambda case: case[0] == "not_compiled",
    ),
)
@pytest.mark.filterwarnings("ignore:Exception ignored")  # numba prints what compiled code raises
def test_what_cannot_be_is_refused(name, told):
    with pytest.raises(ArchsimError, match=f"scheduler mine_schedulers:{told}|scheduler: mine_schedulers:{told}"):
        served(f"mine_schedulers:{name}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "sglan"}, "unknown scheduler 'sglan'.*sglang"),
        ({"name": "sglang", "poll_every": 0}, "out of range"),
        ({"name": "vllm_v1", "max_num_seq": 3}, "unknown key 'max_num_seq'.*max_num_seqs"),
        ({"name": "mine_schedulers:gently"}, "gentle"),
        ({"name": "mine_schedulers:gentle", "mosst": 3}, "unknown parameter.*most"),
        ({"name": "mine_schedulers:gentle", "most": "many"}, "a parameter must be a number"),
    ],
)
def test_bad_keys_are_refused(given, told):
    with pytest.raises(ArchsimError, match=told):
        validate(SchedulerSpec, tree_of(given))

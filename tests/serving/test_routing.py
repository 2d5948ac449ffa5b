"""Which engine a request goes to: sessions stay, prefixes are found, requests without hash ids are refused."""

import numpy as np
import pytest
from support.serving import opened, pool

from archsim.base.errors import SpecError, TraceError
from archsim.serving.requests import Requests, read_requests
from archsim.serving.routing import sessions_of
from archsim.serving.simulate import CHOICES, Scheduler, simulate
from archsim.specs.serving_files import load_serving

BLOCK = 32
SYSTEM = 0  # hash id of the first block of every prompt


def conversations(sessions: int, turns: int, gap_ms: float = 500.0) -> Requests:
    """Turns of sessions one after the other, in an order that round robin does not follow; a prompt has the one
    before, and two blocks more.
    """
    rows, ids, starts = [], [], [0]
    for turn in range(turns):
        for at in range(sessions):
            session = (at + turn) % sessions
            own = [SYSTEM, *(1 + session * 100 + block for block in range(2 * (turn + 1)))]
            rows.append((gap_ms * len(rows), BLOCK * len(own), 4))
            ids += own
            starts.append(len(ids))
    return opened(rows)._replace(hash_ids=np.array(ids), hash_from=np.array(starts), hash_tokens=BLOCK)


def served(requests, balance, instances=3):
    scheduler = Scheduler("vllm_v1", 8, 1024, block_tokens=16, balance=balance)
    return simulate(requests, scheduler, pool(blocks=4000, instances=instances))


def test_later_turns_have_the_session_of_the_first():
    requests = conversations(4, 3)
    assert sessions_of(requests).tolist() == [0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1]


def test_a_session_stays_where_it_began():
    requests = conversations(4, 3)
    found, sessions = served(requests, "session"), sessions_of(requests)
    for session in set(sessions.tolist()):
        assert len(set(found.requests["rank"][sessions == session])) == 1


@pytest.mark.parametrize("balance", ["prefix_aware", "cache_aware", "session"])
def test_prefixes_are_found_where_they_are(balance):
    """Of a turn all blocks of the one before are cached; round robin finds the system prompt, and some by chance."""
    requests = conversations(4, 5)
    hits = {each: served(requests, each).requests["hit"].sum() for each in (balance, "round_robin")}
    whole = sum(BLOCK * (1 + 2 * turn) for turn in range(1, 5)) * 4
    assert hits[balance] >= whole > hits["round_robin"]


def test_a_queue_that_is_much_longer_is_left(monkeypatch):
    """All prompts share everything, and come at once: the router of the cache alone would choose one engine."""
    rows = [(0.0, BLOCK * 2, 50)] * 400
    ids, starts = np.tile([0, 1], 400), np.arange(401) * 2
    requests = opened(rows)._replace(hash_ids=ids, hash_from=starts, hash_tokens=BLOCK)
    counts = np.bincount(served(requests, "cache_aware").requests["rank"], minlength=3)
    assert counts.min() > 60


@pytest.mark.parametrize("balance", ["prefix_aware", "cache_aware", "session"])
def test_requests_without_hash_ids_are_refused(balance):
    with pytest.raises(TraceError, match="no hash ids"):
        served(opened([(0.0, 10, 2)]), balance)
    with pytest.raises(SpecError, match=r"scheduler\.balance.*hash ids"):
        load_serving("configs/serve_h200.yaml", [f"scheduler.balance={balance}"])


def test_all_choices_end_with_the_same_tokens():
    requests = conversations(3, 3, gap_ms=1.0)
    for balance in CHOICES:
        found = served(requests, balance)
        assert np.array_equal(found.requests["made"], found.requests["output"])


@pytest.mark.parametrize(("balance", "least", "most"), [("cache_aware", 0.30, 0.38), ("round_robin", 0.0, 0.15)])
def test_mooncakes_conversations_hit_on_eight_engines(shared, balance, least, most):
    """One cache without end has 37.4 %; eight of 2.4 million tokens (eight H200, Qwen3-235B-A22B in FP8) nearly as
    much where requests go to their prefixes.
    """
    path = shared / "data" / "requests" / "mooncake_conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} not found")
    requests = read_requests(path)
    scheduler = Scheduler(balance=balance)
    found = simulate(requests, scheduler, pool(150_000, 8, base_ns=1e7, token_ns=5e4))
    hits = found.requests["hit"].sum() / found.requests["input"].sum()
    assert least <= hits <= most

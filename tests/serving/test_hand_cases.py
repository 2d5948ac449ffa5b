"""Turns that wait for answers, orders of waiting, stores of KV and ranks that fail: cases derived by hand."""

import itertools
import re

import numpy as np
import pytest
from support.serving import MS, opened, pool, table

from archsim.base.errors import CapacityError, SpecError
from archsim.iteration import rank_memory
from archsim.iteration.attention import PREFILL
from archsim.iteration.collectives import gathered_ns
from archsim.iteration.layers import EXPERTS, PROJECTIONS
from archsim.iteration.times import batches_of, iteration_times
from archsim.laws.laws import Laws
from archsim.serving.answers.runs import serve_plan
from archsim.serving.clock import OCTAVE
from archsim.serving.deployment import laws_of, offloaded_ns, pipeline_of
from archsim.serving.engine import missing_of
from archsim.serving.file_engines import engine_of, host_for
from archsim.serving.file_requests import requests_of
from archsim.serving.kv import pieces_of, with_outputs
from archsim.serving.kv_room import kept, kv_blocks, kv_room
from archsim.serving.measures import Slo, rates, within_limits
from archsim.serving.requests import Requests, TokenPool, in_sessions, read_requests, with_prefixes, without_hashes
from archsim.serving.serving import _built, deploy, serve
from archsim.serving.simulate import Fault, KvStore, Pool, Scheduler, simulate
from archsim.serving.tabulated import LOCAL
from archsim.specs.library import load_model
from archsim.specs.papers import load_paper
from archsim.specs.serving_files import load_serving

BLOCK = 16
VLLM = Scheduler("vllm_v1", 8, 1024, block_tokens=BLOCK)
S = 1e9


def sessions(turns, added, output, think_ms, arrivals_ms=(0.0,), **more):
    n = len(added)
    before, which = more.pop("before", np.zeros(len(turns), int)), more.pop("which", np.zeros(len(turns), int))
    return in_sessions(
        np.array(arrivals_ms) * MS, np.array(turns), np.array(added), np.array(output), np.full(n, think_ms * MS),
        np.asarray(before), np.asarray(which), **more,
    )  # fmt: skip


def test_a_turn_comes_when_the_answer_before_was_read():
    # An iteration takes 2 ms and 10 us a token; a decode or prompt 1 us more. The first turn: 40 tokens, 3 of output.
    found = simulate(sessions([2], [40, 24], [3, 2], 5.0), VLLM, pool(blocks=400)).requests
    first = 2 + 0.40 + 0.001 + 2 * (2 + 0.01 + 0.001)
    assert found["last_ns"][0] / MS == pytest.approx(first, abs=0.01)
    assert found["arrival_ns"][1] / MS == pytest.approx(first + 5.0, abs=0.01)
    # 40 + 3 + 24 tokens, of which 40 + 3 - 1 have KV, 2 blocks of 16.
    assert found["input"].tolist() == [40, 67] and found["hit"].tolist() == [0, 32]


def test_turns_of_several_sessions_mix_by_time():
    requests = sessions([2, 1, 2], [16] * 5, [2] * 5, 100.0, (0.0, 50.0, 60.0))
    served = simulate(requests, VLLM, pool(blocks=400)).requests
    order = np.argsort(served["arrival_ns"]).tolist()
    assert order == [0, 2, 3, 1, 4]
    assert requests.offered_per_s == pytest.approx(2 / 0.06 * 5 / 3)


def test_sessions_of_an_open_loop_have_the_rate_at_which_they_come():
    """40 sessions, one a second, of three turns: 3 requests a second, however long the last session thinks."""
    for think_ms in (0.0, 500.0, 8000.0):
        asked = sessions([3] * 40, [16] * 120, [2] * 120, think_ms, tuple(1000.0 * np.arange(40)))
        found = rates(simulate(asked, VLLM, pool(blocks=4000)), True)
        assert found.requests == pytest.approx(3.0) == asked.offered_per_s and found.output == pytest.approx(6.0)


def test_clients_of_sessions_begin_the_next_one_when_the_last_turn_is_over():
    requests = sessions([2, 2, 2], [16] * 6, [2] * 6, 10.0, (0.0,) * 3)._replace(concurrency=1)
    found = simulate(requests, VLLM, pool(blocks=400)).requests
    assert (np.diff(found["arrival_ns"]) > 0).all()
    assert found["arrival_ns"][2] == found["last_ns"][1]  # no time to think between sessions
    assert found["arrival_ns"][3] == pytest.approx(found["last_ns"][2] + 10 * MS)


def test_sessions_share_prefixes_and_prompts_repeat_what_was_said():
    requests = sessions([2, 1], [10, 20, 30], [6, 5, 4], 0.0, (0.0, 1.0), before=[32, 32], which=[1, 1])
    assert requests.input.tolist() == [42, 68, 62]  # 32 + 10; + 6 + 20; 32 + 30
    ids = [requests.hash_ids[a:b].tolist() for a, b in zip(requests.hash_from, requests.hash_from[1:], strict=False)]
    assert ids[0][:2] == ids[1][:2] == ids[2][:2] and len({*ids[0][2:], *ids[1][2:], *ids[2][2:]}) == 1 + 3 + 2
    dropped = sessions([2], [10, 20], [6, 5], 0.0, outputs_kept=False)
    assert dropped.input.tolist() == [10, 30]


GIVEN = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"}, "engine": "none",
    "requests": {
        "arrivals": {"rate": "2/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 60,
        "sessions": {"turns": {"uniform": [1, 5]}, "think": "1 s", "think_cv": 1},
    },
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}  # fmt: skip


def changed(**changes):
    return load_serving({**GIVEN, "requests": {**GIVEN["requests"], **changes.pop("requests", {})}, **changes})


def test_drawn_sessions_have_the_asked_turns():
    found = requests_of(changed())
    heads = np.setdiff1d(np.arange(60), found.follower)
    turns = np.diff([*heads, 60])
    assert len(found.input) == 60 and turns.min() >= 1 and turns.max() <= 5
    assert found.think_ns.mean() == pytest.approx(1e9, rel=0.5)
    assert (found.input[heads] == 64).all() and (found.input[heads[turns > 1] + 1] == 64 + 8 + 64).all()


def write(tmp_path, *lines):
    (tmp_path / "trace.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "trace.jsonl"


def test_dynamos_sessions_are_read(tmp_path):
    path = write(
        tmp_path, '{"session_id": "a", "timestamp": 1000, "input_length": 40, "output_length": 4, "hash_ids": [7]}',
        '{"session_id": "b", "timestamp": 1500, "input_length": 20, "output_length": 4, "hash_ids": [9]}',
        '{"session_id": "a", "delay": 2000.5, "input_length": 600, "output_length": 4, "hash_ids": [7, 8]}',
        '{"session_id": "b", "delay_ms": 10, "input_length": 24, "output_length": 4, "hash_ids": [9]}',
    )  # fmt: skip
    found = read_requests(path, unit="ms")
    assert found.follower.tolist() == [2, 3, -1, -1] and found.hash_tokens == 512
    assert found.think_ns.tolist() == [2000.5 * MS, 10 * MS, 0, 0]
    assert found.arrival_ns.tolist() == [0, 500 * MS, 0, 500 * MS] and "2 sessions" in found.read_as


def test_agents_of_llmservingsim_and_applied_compute_are_read(tmp_path):
    one = '{"session_id": "t", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 32, "output_toks": 16, '
    path = write(tmp_path, one + '"tool_duration_ns": 7}, {"input_toks": 80, "output_toks": 2, "tool_duration_ns": 0}, '
                 '{"input_toks": 50, "output_toks": 2, "tool_duration_ns": 0}]}')  # fmt: skip
    found = read_requests(path)
    assert found.follower.tolist() == [1, 2, -1] and found.think_ns.tolist() == [7, 0, 0]
    ids = [set(found.hash_ids[a:b]) for a, b in zip(found.hash_from, found.hash_from[1:], strict=False)]
    assert ids[0] < ids[1] and not ids[1] & ids[2]  # 80 has room for 32 + 16; 50 has none for 80 + 2
    path = write(
        tmp_path, '{"num_turns": 1, "input_prompt_length": 900, "assistant_response_length": [40], '
        '"tool_call_output_length": [120], "tool_call_latency": [0.2], "final_assistant_response_length": 300}',
    )  # fmt: skip
    found = read_requests(path)
    assert found.input.tolist() == [900, 1060] and found.output.tolist() == [40, 300]
    assert found.think_ns.tolist() == [0.2 * S, 0]


# Ten requests at once of 64 tokens and 4 of output, on a rank that runs one at a time.
ALONE = Scheduler("vllm_v1", 1, 1024, block_tokens=BLOCK)


@pytest.mark.parametrize("name", ["vllm_v1", "sglang", "trtllm"])
def test_requests_of_a_higher_priority_wait_in_front(name):
    requests = opened([(0.0, 64, 4)] * 10)
    order = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 1], float)
    found = simulate(requests._replace(order=order), ALONE._replace(name=name, order="priority"), pool()).requests
    rows = np.argsort(found["first_ns"], kind="stable").tolist()
    assert rows == [0, 3, 7, 1, 2, 4, 5, 6, 8, 9]
    plain = simulate(requests._replace(order=order), ALONE._replace(name=name), pool()).requests
    assert np.argsort(plain["first_ns"], kind="stable").tolist() == list(range(10))


def test_the_earliest_deadline_is_served_first():
    # Limits of 100 ms and 5 ms: the third request is due at 7 ms, the second at 101 ms. The first comes alone.
    requests = opened([(0.0, 64, 4), (1.0, 64, 4), (2.0, 64, 4)])._replace(order=np.array([100, 100, 5]) * MS)
    found = simulate(requests, ALONE._replace(order="deadline"), pool()).requests
    assert np.argsort(found["first_ns"]).tolist() == [0, 2, 1]


def test_the_request_of_the_lowest_priority_loses_its_kv():
    # Room for 8 blocks: two requests of 3 blocks that grow to 5.
    requests = opened([(0.0, 48, 40), (0.0, 48, 40)])
    low_first = requests._replace(order=np.array([1.0, 0.0]))
    for asked, lost in ((requests, [0, 1]), (low_first, [1, 0])):
        found = simulate(asked, VLLM._replace(order="priority"), pool(blocks=8)).requests
        assert (found["preempted"] > 0).astype(int).tolist() == lost


def test_each_class_has_limits_of_its_own():
    classes = [{"name": "chat", "share": 0.5, "priority": 0, "ttft": "500 ms"},
               {"name": "batch", "share": 0.5, "priority": 1}]  # fmt: skip
    serving = changed(requests={"classes": classes}, scheduler={"name": "vllm_v1", "order": "priority"})
    outcome = serve(serving)
    requests = outcome.requests
    assert (requests.kinds[requests.follower[requests.follower >= 0]] == requests.kinds[requests.follower >= 0]).all()
    ttft = outcome.served.requests["first_ns"] - outcome.served.requests["arrival_ns"]
    limits = np.where(requests.kinds == 0, 0.5e9, 1e9)
    within = within_limits(outcome.served, Slo(np.array([0.5e9, 1e9]), np.inf, np.inf))
    assert within.tolist() == (ttft <= limits).tolist()
    assert sum(" requests of class " in each for each in outcome.notes) == 2


# ---- stores


def stored(blocks, block_ms=1.0, load_ms=0.5, shared=False):
    return KvStore(blocks, shared, block_ms * MS, load_ms * MS)


# A prompt of 64 tokens, another of 96 that needs all of HBM, and the first again: HBM has 9 blocks.
AGAIN = sessions([1, 1, 1], [32, 32, 32], [2, 2, 2], 0.0, (0.0, 100.0, 200.0), before=[64, 96, 64], which=[0, 1, 0])


def test_kv_that_hbm_has_dropped_comes_from_the_store():
    without = simulate(AGAIN, VLLM, pool(blocks=9)).requests
    with_one = simulate(AGAIN, VLLM, pool(blocks=9), store=stored(100))
    assert without["hit"].tolist() == [0, 0, 0] and with_one.requests["hit"].tolist() == [0, 0, 64]
    assert with_one.totals["loaded_tokens"] == 64
    # Four blocks of 1 ms and 0.5 ms, then 32 tokens: 2 ms + 0.32 ms.
    ttft = (with_one.requests["first_ns"] - with_one.requests["arrival_ns"])[2] / MS
    assert ttft == pytest.approx(4.5 + 2.32, abs=0.01)


def test_what_hbm_has_is_not_loaded():
    served = simulate(AGAIN, VLLM, pool(blocks=100), store=stored(100))
    assert served.requests["hit"].tolist() == [0, 0, 64] and served.totals["loaded_tokens"] == 0


def test_a_store_evicts_what_was_used_longest_ago():
    # A store of nine blocks has six of the first prompt, then the eight of the second and one of the first, not its
    # first one.
    served = simulate(AGAIN, VLLM, pool(blocks=9), store=stored(9))
    assert served.requests["hit"].tolist() == [0, 0, 0]


def test_loads_of_a_rank_come_one_after_the_other():
    requests = sessions([1] * 4, [16] * 4, [2] * 4, 0.0, (0.0, 100.0, 200.0, 200.0), before=[64, 96, 64, 64],
                        which=[0, 1, 0, 0])  # fmt: skip
    found = simulate(requests, VLLM, pool(blocks=9), store=stored(100)).requests
    scheduled = (found["scheduled_ns"] - found["arrival_ns"]) / MS
    # HBM has kept the first of four blocks: three of 1 ms come, and three more behind them.
    assert scheduled[2] == pytest.approx(3.5) and 6.5 <= scheduled[3] < 9


def test_engines_may_share_a_store():
    # Round robin: the third request goes to the first engine again, the second to the other.
    requests = sessions([1, 1], [32, 32], [2, 2], 0.0, (0.0, 100.0), before=[64, 64], which=[0, 0])
    for shared, hits in ((False, 0), (True, 64)):
        found = simulate(requests, VLLM, pool(blocks=20, instances=2), store=stored(100, shared=shared)).requests
        assert found["rank"].tolist() == [0, 1] and found["hit"].tolist() == [0, hits]


def test_a_store_holds_as_many_blocks_as_its_capacity():
    # Llama-3.1-8B: 32 layers x 2 x 8 heads x 128 x 2 bytes = 131,072 bytes a token; a block of 16 has 2.1 MB.
    serving = changed(kv_store={"capacity": "21 MB", "bandwidth": "50 GB/s", "latency": "10 us"},
                      parallel={"attention": {"tp": 2}})  # fmt: skip
    from archsim.serving.serving import deploy

    found = deploy(serving).store
    assert found.blocks == 10 and found.load_ns == 10_000
    assert found.block_ns == pytest.approx(131_072 * 16 / 2 / 50e9 * 1e9)  # half of it on each of two devices


# ---- faults


def test_a_rank_that_fails_computes_its_requests_anew_elsewhere():
    # Two engines of one rank, a request each; the first fails after 21 ms and stays away for 1 s.
    requests = opened([(0.0, 64, 40), (0.0, 64, 40), (50.0, 64, 2)])
    served = simulate(requests, VLLM, pool(instances=2), faults=[Fault(21 * MS, 0, 0, S, False)])
    found = served.requests
    assert served.failed[0].lost == 1 and found["preempted"].tolist() == [1, 0, 0]
    assert found["rank"].tolist() == [1, 1, 1]
    plain = simulate(requests, VLLM, pool(instances=2)).requests
    # Its 64 tokens and those that it has made are computed in one iteration, with the next token of the other request.
    assert 0.7 * MS < found["last_ns"][0] - plain["last_ns"][0] < 1.1 * MS


def test_one_engine_that_fails_starts_anew():
    requests = opened([(0.0, 64, 40)])
    plain = simulate(requests, VLLM, pool()).requests
    found = simulate(requests, VLLM, pool(), faults=[Fault(21 * MS, 0, 0, S, False)]).requests
    # The iteration in which it fails is over after 21 ms and up to 2.01; what it had is computed anew a second later.
    later = (found["last_ns"] - plain["last_ns"])[0]
    assert S - 2.1 * MS < later < S + 1 * MS


def test_experts_of_a_rank_that_fails_are_on_the_others():
    # Experts take 1 ms an iteration on four ranks; on three, 4/3 of it; and 5 ms pass before.
    one = table()._replace(experts=np.full(4097, 1e6))
    four = Pool(1, 4, 200, one)
    requests = opened([(0.0, 16, 60)] * 4)
    plain = simulate(requests, VLLM, four)
    served = simulate(requests, VLLM, four, faults=[Fault(21 * MS, 0, 3, 5 * MS, True)])
    gaps = np.flatnonzero(served.gaps)
    longest = served.requests["last_ns"].max() - plain.requests["last_ns"].max()
    assert served.failed[0].lost == 1 and len(gaps) > len(np.flatnonzero(plain.gaps))
    # 52 more iterations that take 1/3 ms more, the pause, and a prompt of 24 tokens that is computed anew.
    assert longest / MS == pytest.approx(52 / 3 + 5, abs=3)
    back = simulate(requests, VLLM, four, faults=[Fault(21 * MS, 0, 3, 5 * MS, True, 40 * MS)])
    assert plain.requests["last_ns"].max() < back.requests["last_ns"].max() < served.requests["last_ns"].max()


# ---- why a run is slow


def outcome_of(requests, deployed_pool, scheduler):
    from types import SimpleNamespace

    from archsim.serving.measures import measure
    from archsim.serving.outcome import Deployment, Outcome

    served = simulate(requests, scheduler, deployed_pool)
    built = SimpleNamespace(pool=deployed_pool)
    deployment = Deployment(scheduler, None, built, None, None, 1, ())  # type: ignore[arg-type]
    return Outcome(None, deployment, requests, served, measure(served, 1))  # type: ignore[arg-type]


def test_a_run_says_what_requests_wait_for():
    many = opened([(0.0, 64, 40)] * 30)
    told = outcome_of(many, pool(blocks=4000), VLLM._replace(max_num_seqs=4)).why_slow
    assert any("until it is admitted" in each and "at most 4 requests at a time" in each for each in told)
    full = outcome_of(many, pool(blocks=20), VLLM).why_slow
    assert any("The KV cache is full" in each for each in full)
    assert outcome_of(opened([(0.0, 64, 40)]), pool(), VLLM).why_slow == ()


def test_a_run_says_that_prompts_hold_up_decodes_of_all_ranks():
    # A prompt of 1,000 tokens on a rank of four every 20 ms; an iteration of decodes takes 2 ms.
    requests = opened([(20.0 * at, 1000, 60) for at in range(40)])
    (told,) = outcome_of(requests, pool(blocks=4000, ranks=4), VLLM).why_slow
    assert "of the iterations compute prompts, and these take 12." in told
    assert "delays the decodes on every rank" in told
    alone = outcome_of(requests, pool(blocks=4000), VLLM).why_slow
    assert alone and not any("delays the decodes" in each for each in alone)


def test_a_run_says_when_times_are_as_before_a_fault():
    requests = {"arrivals": {"rate": "40/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 1200,
                "sessions": None}  # fmt: skip
    faults = [{"at": "10 s", "recovery": "5 s"}]
    outcome = serve(changed(requests=requests, faults=faults))
    (told,) = (each for each in outcome.notes if each.startswith("A fault after 10.0 s"))
    assert "computed again. Times to first token are normal again after " in told
    assert 5 < float(told.rpartition(" after ")[2].split()[0]) < 15


# ---- KV of outputs is found by the next turn, and requests share prefixes: cases derived by hand.


def asked(rows, ids) -> Requests:
    """(ms, input, output), and hash ids of each."""
    starts = np.concatenate([[0], np.cumsum([len(each) for each in ids])])
    flat = np.array([each for one in ids for each in one])
    return opened(rows)._replace(hash_ids=flat, hash_from=starts, hash_tokens=BLOCK)


# A prompt of 40 tokens (two full blocks, and one of 8) and an output of 24; the next turn has both, and 26 tokens more.
TURNS = asked([(0.0, 40, 24), (5e3, 90, 4)], [[0, 1, 2], [0, 1, 3, 4, 5, 6]])


def hits(requests: Requests, **changes) -> list[int]:
    scheduler = Scheduler("vllm_v1", 8, 1024, block_tokens=BLOCK, **changes)
    return simulate(requests, scheduler, pool(blocks=4000)).requests["hit"].tolist()


def test_a_turn_finds_what_the_one_before_has_computed():
    # KV of 40 + 24 - 1 = 63 tokens: the last output token has none. Three blocks of 16 are full.
    assert hits(TURNS) == [0, 48]
    assert hits(TURNS._replace(outputs_kept=False)) == [0, 32]
    assert hits(TURNS, prefix_caching=False) == [0, 0]


def test_ids_of_an_output_are_those_that_the_next_turn_has_there():
    chains = with_outputs(TURNS)
    assert chains.tokens.tolist() == [63, 90]
    assert chains.ids[: chains.first[1]].tolist() == [0, 1, 3, 4]
    found = pieces_of(TURNS, BLOCK)
    assert found.blocks[found.pieces[: found.first[1]]].sum() == 3


@pytest.mark.parametrize(
    "other",
    [
        asked([(0.0, 40, 24), (5e3, 60, 4)], [[0, 1, 2], [0, 1, 3, 4]]),  # too short for the output
        asked([(0.0, 40, 24), (5e3, 90, 4)], [[0, 1, 2], [0, 7, 3, 4, 5, 6]]),  # another conversation
        asked([(0.0, 20, 24), (5e3, 90, 4)], [[0, 2], [0, 1, 3, 4, 5, 6]]),  # one block alone is a system prompt
    ],
)
def test_what_is_no_later_turn_finds_no_output(other):
    assert with_outputs(other).tokens.tolist() == other.input.tolist()
    assert hits(other)[1] <= 32


def test_an_agent_of_many_turns_reuses_outputs_in_every_one():
    """Ten turns that each add 32 tokens of a tool to an output of 96: without them, only prompts are found."""
    rows, ids, tokens = [], [], 64
    for turn in range(10):
        rows.append((turn * 1e4, tokens, 96))
        ids.append(list(range(tokens // BLOCK)))
        tokens += 96 + 32
    requests = asked(rows, ids)
    kept, dropped = (np.array(hits(each)) for each in (requests, requests._replace(outputs_kept=False)))
    before = requests.input[:-1]
    assert dropped[1:].tolist() == before.tolist()
    assert kept[1:].tolist() == (before + 80).tolist()  # 95 tokens of the output have KV: five blocks of 16
    assert kept.sum() / requests.input.sum() > dropped.sum() / requests.input.sum() + 0.1


def test_requests_that_are_drawn_share_prefixes_in_blocks():
    plain = without_hashes(np.zeros(2000), np.full(2000, 100), np.full(2000, 4))
    found = with_prefixes(plain, np.array([50, 32]), 0.5, 1.0, 0)
    assert set(found.input.tolist()) == {100, 150, 132}
    share = float((found.input == 150).mean())
    assert share == pytest.approx(0.5 * 2 / 3, abs=0.04)  # of the first prefix: 1 to 1/2
    one, other = np.flatnonzero(found.input == 150)[:2]
    ids = [found.hash_ids[found.hash_from[r] : found.hash_from[r + 1]] for r in (one, other)]
    assert len(ids[0]) == 10 and ids[0][:3].tolist() == ids[1][:3].tolist()  # 48 of 50 tokens are full blocks
    assert not set(ids[0][3:].tolist()) & set(ids[1][3:].tolist())


PREFIXED = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"},
    "requests": {
        "arrivals": {"rate": "4/s"}, "input": {"fixed": 64}, "output": {"fixed": 4}, "count": 20,
        "prefixes": {"tokens": {"fixed": 160}, "count": 1},
    },
    "scheduler": {"name": "vllm_v1", "balance": "prefix_aware"},
}  # fmt: skip


def test_a_file_draws_prefixes_and_more_requests_begin_with_the_same():
    few = requests_of(load_serving(PREFIXED))
    many = requests_of(load_serving(PREFIXED, ["requests.count=50"]))
    assert few.input.tolist() == [224] * 20 and np.array_equal(many.input[:20], few.input)
    assert hits(few)[1:] == [160] * 19
    with pytest.raises(SpecError, match="prefixes: a trace brings its own hash ids"):
        load_serving({**PREFIXED, "requests": {"trace": "x.jsonl", "prefixes": {"tokens": {"fixed": 160}}}})


# ---- Prompts that ranks share, and experts in memory of the host: cases derived by hand.

SHARING = {
    "system": "h200_node", "model": "qwen3-235b-a22b", "engine": "none", "parallel": {"attention": {"dp": 8}},
    "precision": {"products": "fp8_block", "experts": "fp8_block"},
    "requests": {"concurrency": 4, "input": {"fixed": 512}, "output": {"fixed": 4}, "count": 8},
    "scheduler": {"name": "vllm_v1", "max_num_seqs": 16, "max_num_batched_tokens": 2048},
}  # fmt: skip
SIDES = {
    "prefill": {"parallel": {"attention": {"tp": 1, "dp": 4, "prompts": "shared"}}},
    "decode": {"parallel": {"attention": {"tp": 4}}},
}


def apart(prompts, **changes):
    attention = {"tp": 1, "dp": 4, "prompts": prompts}
    sides = {**SIDES, "prefill": {"parallel": {"attention": attention}}}
    given = {key: value for key, value in SHARING.items() if key != "parallel"}
    return load_serving({**given, "disaggregated": sides, **changes})


@pytest.fixture(scope="module")
def engines():
    """Of four groups that prefill: with prompts of their own, and with shared ones."""
    found = []
    for prompts in ("own", "shared"):
        serving = apart(prompts).on("prefill")
        found.append(_built(serving, serving.spec.pools[0], Scheduler.of(serving.spec.scheduler), host_for(serving)))
    return found


def test_every_group_has_its_part_of_the_tokens_of_a_prompt(engines):
    own, shared = engines
    assert (own.pool.ranks, shared.pool.ranks) == (4, 1)
    one, all_ = own.pool.table, shared.pool.table
    for tokens in (1, 4, 1000, 2000):
        part = -(-tokens // 4)
        assert all_.local[tokens] == one.local[part]
        assert all_.experts[tokens] == one.experts[part]
        assert all_.dispatch[tokens] == one.dispatch[part]
    # Keys and values of 4 heads of 128 in each of 94 layers, in BF16, gathered by four ranks.
    engine = engine_of(apart("shared").on("prefill"), apart("shared").spec.pools[0].parallel)
    size = np.array([2000 * 2 * 4 * 128 * 2.0])
    gather = 94 * gathered_ns(Laws(engine.calibration), "all_gather", size, 4)[0]
    assert all_.prefill_up[2000] == one.prefill_up[500]
    assert all_.links.of_prompts[2000] == pytest.approx(one.links.of_prompts[500] + gather, rel=1e-9)


def test_attention_of_a_shared_prompt_is_a_quarter_of_its_pairs(engines):
    own, shared = engines
    # 8192 queries from the beginning on see 4096 keys each in the mean: so do 2048 at the end of 4096 + 1024.
    times = own.laws.attention[PREFILL]
    part = sum(layers * each.ns(1, 2048, 5120) for each, layers in times)
    assert np.exp(shared.pool.table.prefill[0, 13 * OCTAVE, 0]) == pytest.approx(float(part), rel=1e-6)
    long = 16 * OCTAVE  # a prompt of 65,536 tokens
    assert 3.2 < np.exp(own.pool.table.prefill[0, long, 0] - shared.pool.table.prefill[0, long, 0]) < 4.8


def test_kv_of_a_shared_prompt_is_on_every_group(engines):
    own, shared = engines
    assert own.pool.kv_blocks == shared.pool.kv_blocks
    moved = [deploy(apart(prompts)).transfer.ns_per_token for prompts in ("own", "shared")]
    assert moved[0] == pytest.approx(4 * moved[1])


def test_a_prompt_comes_sooner_where_ranks_share_it():
    lengths = {"concurrency": 1, "input": {"fixed": 2048}, "output": {"fixed": 4}, "count": 4}
    own, shared = (serve(apart(prompts, requests=lengths)).measures.ttft.mean for prompts in ("own", "shared"))
    assert shared < 0.75 * own


def test_laws_without_an_engine_leave_out_a_dispatch_too():
    few = SHARING["scheduler"] | {"max_num_batched_tokens": 64}
    wide = {"system": "h200_cluster", "parallel": {"attention": {"dp": 16}}, "scheduler": few}
    serving = load_serving(SHARING | wide)
    engine, scheduler = engine_of(serving, serving.spec.parallel), Scheduler.of(serving.spec.scheduler)
    assert laws_of(engine, scheduler, dispatches=False)[0].ns("dispatch")[64] == 0


@pytest.mark.parametrize(("ep", "resident"), [(1, 64), (8, 12), (8, 0), (2, 32)])
def test_a_step_loads_what_the_rank_lacks_that_lacks_most(ep, resident):
    """128 experts, of which each token takes 8, beside samples of tokens."""
    missing, draw = missing_of(load_model("qwen3-235b-a22b"), ep, resident, None), np.random.default_rng(0)
    for tokens in (1, 4, 12):
        taken = draw.random((1000, tokens, 128)).argpartition(8, axis=2)[..., :8]
        chosen = np.zeros((1000, 128))
        np.put_along_axis(chosen, taken.reshape(1000, -1), 1.0, axis=1)
        lacked = chosen.reshape(1000, ep, -1)[..., resident:].sum(axis=2).max(axis=1).mean()
        assert missing(np.array([tokens]))[0] == pytest.approx(lacked, rel=0.05)
    assert missing(np.array([0, 10**6])).tolist() == pytest.approx([0, 128 // ep - resident])


def test_residents_are_the_popular_experts_of_the_traffic_before():
    model = load_model("qwen3-235b-a22b")
    # All tokens choose experts 0 to 7: the first rank of 16 has them, and eight residents hold all.
    decodes = np.tile(np.arange(8, dtype=np.int16), (40, 1, 1))
    pool = TokenPool(decodes, decodes, np.zeros(1, np.int64), np.zeros(1, np.int32), "hand")
    assert missing_of(model, 8, 8, pool)(np.array([64]))[0] == 0
    assert missing_of(model, 8, 6, pool)(np.array([1, 64])).tolist() == [2, 2]


def offloaded(**given):
    serving = load_serving({**SHARING, "expert_offload": {"bandwidth": "50 GB/s", **given}})
    engine = engine_of(serving, serving.spec.parallel)
    return serving, engine, laws_of(engine, Scheduler.of(serving.spec.scheduler))[0]


def test_a_note_never_says_that_a_token_lacks_more_experts_than_it_takes():
    """Ranks whose popular experts differ: the one that loads most is not each of them."""
    _, engine, _ = offloaded(resident=0.0, popularity={"synthetic": {"popularity_skew": 2}, "layers": 2})
    assert 1 < float(re.search(r"lacks ([\d.]+)", engine.offload.note)[1]) <= 8


def test_loads_that_nobody_names_wait_for_the_router():
    _, engine, laws = offloaded(resident=0.5)
    expert = 3 * 4096 * 1536  # bytes in FP8
    assert rank_memory.expert_bytes(engine.model, engine.precision) == expert
    found = offloaded_ns(engine, laws)
    lacking = engine.offload.missing(np.array([80]))[0]  # 10 tokens on each of 8 ranks
    assert found[10] == pytest.approx(94 * lacking * expert / 50e9 * 1e9, rel=1e-9) and found[0] == 0


def test_loads_that_are_named_before_pass_beside_a_layer():
    _, engine, laws = offloaded(resident=0.5)
    _, named, _ = offloaded(resident=0.5, prefetch=1.0)
    _, partly, _ = offloaded(resident=0.5, prefetch=0.75)
    alone, beside, some = (offloaded_ns(each, laws) for each in (engine, named, partly))
    layer = laws.ns(*LOCAL)[1:] / 94 + (laws.ns(EXPERTS) + laws.ns("dispatch") + laws.ns("combine"))[1:] / 94
    assert beside[1:] == pytest.approx(np.maximum(alone[1:] - 94 * layer, 0))
    loads = alone[1:] / 94
    wrong = np.minimum(0.25 * loads, alone.max() / 94 - loads)  # with enough tokens all that are absent are needed
    in_time = np.minimum(1, layer / (0.75 * loads + wrong))  # of right and wrong ones alike
    assert some[1:] == pytest.approx(94 * (loads - 0.75 * loads * in_time))
    assert laws.ns(PROJECTIONS)[1] > 0


@pytest.mark.parametrize("resident", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("bandwidth", ["5 GB/s", "50 GB/s", "450 GB/s"])
def test_no_more_experts_are_loaded_than_exist(resident, bandwidth):
    """A predictor is never slower than none, and a better one never slower than a worse one."""
    shares = (0.0, 0.3, 0.5, 0.8, 1.0)
    _, engine, laws = offloaded(resident=resident, bandwidth=bandwidth)
    alone = offloaded_ns(engine, laws)
    by_share = [offloaded_ns(engine._replace(offload=engine.offload._replace(accuracy=each)), laws) for each in shares]
    for worse, better in itertools.pairwise(by_share):
        assert (better <= worse + 1e-6).all()
    assert by_share[0] == pytest.approx(alone) and engine.offload.absent == 16 - int(16 * resident)
    whole = (
        engine.offload.absent * rank_memory.expert_bytes(engine.model, engine.precision) / engine.offload.bytes_per_s
    )
    assert alone.max() == pytest.approx(94 * whole * S)


def test_memory_has_residents_and_room_for_two_layers_that_are_loaded():
    serving, engine, _ = offloaded(resident=0.5)
    scheduler = Scheduler.of(serving.spec.scheduler)
    whole = kept(engine_of(load_serving(SHARING), serving.spec.parallel), scheduler)
    less = sum(whole.values()) - sum(kept(engine, scheduler).values())
    expert = rank_memory.expert_bytes(engine.model, engine.precision)
    assert less == pytest.approx((16 * 94 - (8 * 94 + 2 * 8)) * expert, rel=1e-6)
    assert deploy(serving).prefill.pool.kv_blocks > deploy(load_serving(SHARING)).prefill.pool.kv_blocks


def test_experts_of_ranks_that_may_fail_have_spare_slots():
    faults = [{"at": "1 s", "rank": rank, "recovery": "5 s", "elastic": True} for rank in (1, 5)]
    serving = load_serving({**SHARING, "faults": faults})
    engine = engine_of(serving, serving.spec.parallel)
    assert engine.expert_slots == 94 * 22  # 16 experts a rank on eight; 128 / 6 = 21.3 on six


# ---- A static batch: what it takes of HBM, and Libra's cells that ran out of memory (tables 4 to 13).

LENGTHS, BATCHES = (1024, 2048, 4096, 6144, 8192), (8, 16, 32, 48, 64)
# Of tables 4 to 13, output length 1: the batches from which on a system runs out of memory, by length of prompts.
NEVER = 1000
RUNS_OUT = {
    "qwen3": {"ep": (NEVER,) * 5, "lina": (NEVER, NEVER, 64, 48, 32), "libra": (NEVER, NEVER, NEVER, NEVER, 64)},
    "glm": {"ep": (NEVER, 64, 32, 16, 16), "lina": (NEVER, 48, 32, 16, 16), "libra": (NEVER, 48, 32, 16, 16)},
}


def static_engines(run: str):
    """(policy, engine) for every policy of a run of Libra's."""
    for each in serve_plan(load_paper("libra").runs[run].serve, ["sweep=null"]).runs():
        yield each.serving.policy.name, engine_of(each.serving, each.serving.spec.parallel)


def runs_out(engine, batch: int, length: int) -> bool:
    static = engine.static._replace(requests=batch, tokens=length + 1, prompt_tokens=batch * length)
    try:
        return kv_blocks(engine._replace(static=static), Scheduler()) < 1
    except CapacityError as error:
        assert f"a static batch of {batch} requests of {length + 1:,} tokens" in str(error)
        return True


def test_libras_cells_run_out_of_memory_as_published():
    right = wrong = 0
    for run, published in RUNS_OUT.items():
        for policy, engine in static_engines(run):
            for length, least in zip(LENGTHS, published[policy], strict=True):
                for batch in BATCHES:
                    agrees = runs_out(engine, batch, length) == (batch >= least)
                    right, wrong = right + agrees, wrong + (not agrees)
    assert right >= 143 and right + wrong == 150


def test_what_a_batch_takes_grows_with_its_tokens_and_with_the_stages_of_its_policy():
    found = dict(static_engines("glm"))
    one, two = found["lina"].static, found["libra"].static
    assert (one.stages, two.stages, found["ep"].static.gathered) == (1, 2, 0)

    def taken(engine, tokens):
        before, after = (
            kv_room(engine._replace(static=engine.static._replace(prompt_tokens=each)), Scheduler()).free_bytes
            for each in (0, tokens)
        )
        return before - after

    model = found["ep"].model
    vectors, pair = 2 * model.hidden * 2, (2 * model.hidden + 3 * model.expert_ffn) * 2
    assert taken(found["ep"], 8000) == pytest.approx(8000 * (vectors + 1.5 * pair * model.top_k / 8), abs=1)
    assert taken(found["libra"], 8000) == pytest.approx(8000 * (vectors + 3.0 * pair * model.top_k / 8), abs=1)


def test_a_batch_without_a_size_is_refused():
    given = dict(load_paper("libra").runs["glm"].serve) | {"requests": {"arrivals": {"rate": "1/s"}, "count": 8}}
    given["requests"] |= {"input": {"fixed": 64}, "output": {"fixed": 1}}
    (run, *_) = serve_plan(given, ["sweep=null"]).runs()
    with pytest.raises(SpecError, match=r"Give requests: \{concurrency: 32"):
        engine_of(run.serving, run.serving.spec.parallel)


# ---- Pipelines of stages, and ranks that share the tokens of a request: memory and time by hand.

FILE = {
    "system": "h200_node",
    "model": "deepseek-v2-lite",
    "engine": "none",
    "precision": {"products": "bf16", "experts": "bf16"},
    "parallel": {"attention": {"tp": 4}},
    "requests": {"concurrency": 16, "input": {"fixed": 2000}, "output": {"fixed": 8}, "count": 16},
    "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 2048},
    "disaggregated": {"prefill": "none", "decode": {"parallel": {"attention": {"tp": 4}}}},
}


def loaded(parallel, **others):
    return load_serving(FILE | {"disaggregated": {"prefill": "none", "decode": {"parallel": parallel}}} | others)


def side_of(serving):
    return engine_of(serving, serving.spec.pools[-1].parallel)


def tpot_ms(serving):
    return serve(serving).measures.tpot.mean


def test_a_stage_has_its_part_of_weights_and_cache():
    whole, stage = (side_of(loaded({"attention": {"tp": 4}, "pp": pp})) for pp in (1, 2))
    scheduler = Scheduler.of(loaded({"attention": {"tp": 4}}).spec.scheduler)
    for kind in ("experts", "shared experts", "attention"):
        assert kept(stage, scheduler)[kind] == pytest.approx(kept(whole, scheduler)[kind] / 2, rel=1e-6)
    assert kv_room(stage, scheduler).kv.token_bytes == kv_room(whole, scheduler).kv.token_bytes / 2
    assert deploy(loaded({"attention": {"tp": 4}, "pp": 2})).devices == 8


def test_ranks_that_share_tokens_keep_no_copies():
    """Latent attention has one key a token, which all 4 ranks would hold."""
    scheduler = Scheduler.of(loaded({"attention": {"tp": 4}}).spec.scheduler)
    room = [kv_room(side_of(loaded({"attention": {"tp": 4, "context": n}})), scheduler).tokens for n in (1, 2, 4)]
    assert room[1] == pytest.approx(2 * room[0], abs=2) and room[2] == pytest.approx(4 * room[0], abs=4)


def test_a_token_passes_all_stages_with_its_micro_batch():
    """16 requests on 2 stages: 8 of them pass 27 layers, and two copies of their hidden vectors."""
    serving = loaded({"attention": {"tp": 4}, "pp": 2})
    outcome = serve(serving)
    laws, engine = outcome.deployment.prefill.laws, side_of(serving)
    hop = pipeline_of(engine, laws.sizes).hop_ns[8]
    context = 2000 + np.arange(1, 8).mean()
    alone = iteration_times(laws, batches_of(np.ones(8, int), np.full(8, round(context)))).total_ns[0]
    assert outcome.measures.tpot.mean * 1e6 == pytest.approx(alone + 2 * hop, rel=0.01)


def test_each_micro_batch_is_an_iteration_of_its_stage_s_host():
    """While 2 micro-batches pass, the host of a stage begins 2 iterations, of half of the requests each."""
    host = {"engine": "vllm", "host": {"iteration": "3 ms", "sequence": "0.1 ms"}}
    free = {"engine": "vllm", "host": {"iteration": "0 ns", "sequence": "0 ns"}}
    for pp, ms in ((1, 3 + 1.6), (2, 6 + 1.6)):
        with_host, without = (tpot_ms(loaded({"attention": {"tp": 4}, "pp": pp}, **more)) for more in (host, free))
        assert with_host - without == pytest.approx(ms, rel=1e-6)


def test_more_stages_are_no_faster_for_one_request_and_bubbles_are_exact():
    """One request fills one stage of p: it takes the layers of all of them, and p copies."""
    one = {"requests": {"concurrency": 1, "input": {"fixed": 2000}, "output": {"fixed": 8}, "count": 1}}
    times = [tpot_ms(loaded({"attention": {"tp": 4}, "pp": pp}, **one)) for pp in (1, 2)]
    engine = side_of(loaded({"attention": {"tp": 4}, "pp": 2}))
    hop = pipeline_of(engine, 2).hop_ns[1]
    assert times[1] * 1e6 == pytest.approx(times[0] * 1e6 + 2 * hop, rel=1e-3)


def drafted_ms(pp, requests, drafts=1, method="mtp", tp=4):
    """Of an iteration that accepts no draft, from one to the next."""
    many = {"concurrency": requests, "input": {"fixed": 2000}, "output": {"fixed": 8}, "count": requests}
    speculation = {"draft_tokens": drafts, "acceptance": 0.0, "method": method}
    return tpot_ms(loaded({"attention": {"tp": tp}, "pp": pp}, requests=many, speculation=speculation))


def test_a_request_and_its_drafts_pass_all_stages_together():
    """They are one micro-batch, and the last stage drafts: as on one stage, and two copies of all rows."""
    hop = pipeline_of(side_of(loaded({"attention": {"tp": 4}, "pp": 2})), 5).hop_ns[4]
    for method in ("ngram", "mtp"):
        one, two = (drafted_ms(pp, 1, 3, method) for pp in (1, 2))
        assert two * 1e6 == pytest.approx(one * 1e6 + 2 * hop, rel=1e-3)


def test_a_stage_that_drafts_longer_than_others_work_sets_the_pace():
    """16 drafts of a layer each are most of an iteration of 27 layers: 4 requests on 4 stages draft in turn."""
    one, four = (drafted_ms(4, requests, 16, tp=2) for requests in (1, 4))
    drafting = one - drafted_ms(4, 1, 16, "ngram", tp=2)
    assert 4 * drafting > one and 4 * drafting < four < 4.5 * drafting
    mtp, ngram = ([drafted_ms(4, requests, 1, how, tp=2) for requests in (1, 4)] for how in ("mtp", "ngram"))
    assert mtp[1] - ngram[1] == pytest.approx(mtp[0] - ngram[0], rel=0.1)  # one draft: layers are divided evenly


def test_a_first_prompt_fills_the_pipeline():
    """m = p micro-batches take 2 p - 1 turns where no prompt was before them."""
    ttft = []
    for pp in (1, 2):
        file = {"parallel": {"attention": {"tp": 4}, "pp": pp}, "disaggregated": "none"}
        file |= {"requests": {"concurrency": 1, "input": {"fixed": 2000}, "output": {"fixed": 2}, "count": 1}}
        ttft.append(serve(load_serving(FILE | file)).measures.ttft.mean)
    assert ttft[1] < 1.5 * ttft[0]  # not divided by two: 3 turns of 1,000 tokens in place of one of 2,000


def test_sharing_tokens_pays_where_contexts_are_long():
    """What ranks exchange takes time at any context; reading a part of the cache saves time with its length (Helix,
    arXiv 2507.07120, figure 6: it pays beyond some hundred thousand tokens).
    """
    gains = []
    for context, requests in ((1_000, 4), (30_000, 16)):
        many = {"requests": {"concurrency": requests, "input": {"fixed": context}, "output": {"fixed": 4},
                             "count": requests}}  # fmt: skip
        alone, shared = (tpot_ms(loaded({"attention": {"tp": 4, "context": n}}, **many)) for n in (1, 4))
        gains.append(alone / shared)
    assert gains[0] < 1.02 and gains[1] > gains[0]


def test_an_experiment_says_that_it_has_neither(tmp_path):
    from archsim.api import run

    for key, parallel in (
        ("pp", {"attention": {"tp": 8}, "pp": 2}), ("context", {"attention": {"tp": 8, "context": 2}}),
    ):  # fmt: skip
        file = {
            "name": "none", "systems": ["h200_node"], "models": ["deepseek-v3"], "policies": ["ep"],
            "parallel": parallel, "workload": {"trace": {"synthetic": {"decode_steps": 1}}, "batch": 8, "context": 16},
        }  # fmt: skip
        with pytest.raises(SpecError, match=key):
            run(file)

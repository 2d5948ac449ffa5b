"""Turns that wait for answers, orders of waiting, stores of KV and ranks that fail: cases derived by hand."""

import numpy as np
import pytest
from support.serving import MS, opened, pool, table

from archsim.base.errors import SpecError, TraceError
from archsim.serving.measures import Slo, within_limits
from archsim.serving.requests import in_sessions, read_requests
from archsim.serving.serving import requests_of, serve
from archsim.serving.simulate import Fault, Pool, Scheduler, Store, simulate
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
    assert found.arrival_ns.tolist() == [0, 500 * MS, 0, 500 * MS] and "2 sessions" in found.told


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"session_id": "a", "timestamp": 9, "input_length": 4, "output_length": 4}', "has no delay"),
        ('{"session_id": "a", "delay": -1, "input_length": 4, "output_length": 4}', "0 or more"),
        ('{"session_id": "c", "wait_for": ["a"], "delay": 1, "input_length": 4, "output_length": 4}', "several others"),
    ],
)
def test_turns_that_contradict_themselves_are_refused_with_their_line(tmp_path, line, said):
    path = write(tmp_path, '{"session_id": "a", "timestamp": 1, "input_length": 4, "output_length": 4}', line)
    with pytest.raises(TraceError, match=f"trace.jsonl:2: .*{said}"):
        read_requests(path, unit="ms")


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
    assert sum(each.startswith("class ") for each in outcome.notes) == 2


# ---- stores

def stored(blocks, block_ms=1.0, load_ms=0.5, shared=False):
    return Store(blocks, shared, block_ms * MS, load_ms * MS)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"faults": [{"at": "1 s", "engine": 3, "recovery": "5 s"}]}, "there are 1 engines"),
        ({"faults": [{"at": "1 s", "recovery": "5 s", "elastic": True}]}, "no other that goes on"),
        ({"faults": [{"at": "1 s", "recovery": "5 s", "back": "9 s"}]}, "leave back out"),
        ({"routing": {"like": "model"}, "faults": [{"at": "1 s", "recovery": "5 s"}]}, "not modelled"),
        ({"scheduler": {"name": "vllm_v1", "order": "priority"}}, "priorities that differ"),
        ({"scheduler": {"name": "vllm_v1", "order": "deadline"}}, "limits `ttft` that differ"),
        ({"requests": {"classes": [{"name": "a", "share": 0.5}]}}, "add up to 1"),
        ({"kv_store": {"capacity": "1 TB"}, "scheduler": {"prefix_caching": False}}, "prefix_caching is false"),
        ({"disaggregated": {"prefill": "none", "decode": {}}, "kv_store": {"capacity": "1 TB"}}, "brings it with"),
        ({"requests": {"sessions": None}, "kv_store": {"capacity": "1 TB"}}, "share none"),
    ],
)
def test_what_contradicts_itself_is_refused(change, said):
    with pytest.raises(SpecError, match=said):
        changed(**change)


# ---- why a run is slow

def outcome_of(requests, deployed_pool, scheduler):
    from types import SimpleNamespace

    from archsim.serving.measures import measure
    from archsim.serving.serving import Deployment, Outcome

    served = simulate(requests, scheduler, deployed_pool)
    built = SimpleNamespace(pool=deployed_pool)
    deployment = Deployment(scheduler, None, built, None, None, 1, ())  # type: ignore[arg-type]
    return Outcome(None, deployment, requests, served, measure(served, 1))  # type: ignore[arg-type]


def test_a_run_says_what_requests_wait_for():
    many = opened([(0.0, 64, 40)] * 30)
    told = outcome_of(many, pool(blocks=4000), VLLM._replace(max_num_seqs=4)).why_slow
    assert any("before a request is admitted: a rank runs 4 requests at a time" in each for each in told)
    full = outcome_of(many, pool(blocks=20), VLLM).why_slow
    assert any("the KV cache is full" in each for each in full)
    assert outcome_of(opened([(0.0, 64, 40)]), pool(), VLLM).why_slow == ()


def test_a_run_says_that_prompts_hold_up_decodes_of_all_ranks():
    # A prompt of 1,000 tokens on a rank of four every 20 ms; an iteration of decodes takes 2 ms.
    requests = opened([(20.0 * at, 1000, 60) for at in range(40)])
    told, = outcome_of(requests, pool(blocks=4000, ranks=4), VLLM).why_slow
    assert "of the iterations compute prompts and take 12." in told and "holds up the decodes of all" in told
    alone = outcome_of(requests, pool(blocks=4000), VLLM).why_slow
    assert alone and not any("holds up" in each for each in alone)


def test_json_says_why(tmp_path, monkeypatch):
    import yaml

    from archsim.cli.main import main

    lines = []
    monkeypatch.setattr("archsim.cli.printing.print_json", lines.append)
    given = {**GIVEN, "scheduler": {"name": "vllm_v1", "max_num_seqs": 1}}
    requests = {"concurrency": 4, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 12}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**given, "requests": requests}))
    assert main(["serve", str(tmp_path / "mine.yaml"), "--json"]) == 0
    row, = lines[0]
    assert "a rank runs 1 requests at a time" in row["why_slow"][0] and row["why_slow"][0] in row["notes"]


def test_a_run_says_when_times_are_as_before_a_fault():
    requests = {"arrivals": {"rate": "40/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 1200,
                "sessions": None}  # fmt: skip
    faults = [{"at": "10 s", "recovery": "5 s"}]
    outcome = serve(changed(requests=requests, faults=faults))
    told, = (each for each in outcome.notes if each.startswith("fault after 10.0 s"))
    assert "computed anew; times to first token are as before after " in told
    assert 5 < float(told.rpartition(" after ")[2].split()[0]) < 15

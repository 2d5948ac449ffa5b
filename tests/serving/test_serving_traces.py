# ruff: noqa: E501  (one row a case: a table is read across)

"""Traces: the six formats, and what is refused with file, line and reason."""

import json
import re

import numpy as np
import pytest
from support.serving import opened, pool

from archsim.base.errors import SpecError, TraceError
from archsim.serving.requests import FORMATS, Requests, first, format_of, read_requests, repeated, scale_rate
from archsim.serving.schedulers import sessions_of
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.serving_files import load_serving

SAMPLES = {
    "mooncake": (
        "a.jsonl",
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}\n'
        '{"timestamp": 2000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 8]}\n',
    ),
    "azure": (
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,600,3\n2023-11-16 18:17:05.9799600,1024,5",
    ),
    "burstgpt": (
        "b.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,600,3,603,API log\n"
        "6,GPT-4,9,0,9,API log\n7,GPT-4,1024,5,1029,API log\n",
    ),
    "vidur": ("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,600,3\n3.5,1024,5\n"),
    "llmservingsim": (
        "l.jsonl",
        '{"input_toks": 600, "output_toks": 3, "arrival_time_ns": 0}\n'
        '{"input_toks": 1024, "output_toks": 5, "arrival_time_ns": 2000000000}\n',
    ),
}


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_formats_agree(tmp_path, name):
    path = written(tmp_path, *SAMPLES[name])
    assert format_of(path) == name
    found = read_requests(path)
    assert found.arrival_ns == pytest.approx([0.0, 2e9], abs=300)
    assert found.input.tolist() == [600, 1024] and found.output.tolist() == [3, 5]
    assert found.offered_per_s == pytest.approx(0.5)


def test_a_repeated_trace_has_its_rate_and_no_prefix_twice(tmp_path):
    """Three passes of two requests that share a block of their own pass alone; later turns follow within a pass."""
    once = read_requests(written(tmp_path, *SAMPLES["mooncake"]))
    every = repeated(once, 5)
    assert every.arrival_ns == pytest.approx(np.array([0, 2, 4, 6, 8, 10]) * 1e9) and len(every.lines) == 6
    blocks = [set(every.hash_ids[a:b]) for a, b in zip(every.hash_from, every.hash_from[1:], strict=False)]
    assert len(blocks) == 6 and [len(a & b) for a, b in zip(blocks, blocks[1:], strict=False)] == [1, 0, 1, 0, 1]
    turns = every._replace(follower=np.array([1, -1, 3, -1, -1, -1]))
    assert repeated(turns, 7).follower.tolist()[6:10] == [7, -1, 9, -1] and repeated(once, 2) is once


def test_hash_ids_are_numbered_anew(tmp_path):
    found = read_requests(written(tmp_path, *SAMPLES["mooncake"]))
    assert found.hash_tokens == 512 and found.hash_from.tolist() == [0, 2, 4]
    assert found.hash_ids[0] == found.hash_ids[2] and found.hash_ids[1] != found.hash_ids[3]
    assert first(found, 1).hash_ids.tolist() == [0, 2] and scale_rate(found, 2.0).arrival_ns[1] == 1e9


def test_sharegpt_gives_lengths(tmp_path):
    turns = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 80}]
    records = [{"id": "x", "conversations": turns}, {"id": "y", "conversations": turns[:1]}, {"id": "z"}]
    found = read_requests(written(tmp_path, "s.json", json.dumps(records)))
    assert found.input.tolist() == [10] and found.output.tolist() == [20]


def test_unknown_formats_are_named(tmp_path):
    with pytest.raises(TraceError, match="did you mean 'mooncake'"):
        read_requests(written(tmp_path, *SAMPLES["mooncake"]), "moncake")


@pytest.mark.parametrize(
    ("name", "requests", "tokens"),
    [
        ("azure_llm_2023_code.csv", 8819, 2048), ("azure_llm_2023_conv.csv", 19366, 1155),
        ("mooncake_conversation_trace.jsonl", 12031, 12035), ("samples/burstgpt_6col.csv", None, None),
        ("samples/burstgpt_8col.csv", None, None), ("samples/sharegpt_conversations.json", None, None),
        ("samples/vidur_splitwise_conv_500.csv", 500, None), ("samples/llmservingsim_flat_example.jsonl", 10, None),
    ],
)  # fmt: skip
def test_published_traces_are_read(shared, name, requests, tokens):
    path = shared / "data" / "requests" / name
    if not path.is_file():
        pytest.skip(f"{path} not found")
    found = read_requests(path)
    assert len(found.input) > 0 and np.all(np.diff(found.arrival_ns) >= 0)
    assert requests in (None, len(found.input)) and tokens in (None, round(found.input.mean()))


def test_every_format_has_a_reader():
    assert list(FORMATS) == [
        "bailian", "sessions", "mooncake", "guidellm", "llmservingsim_agentic", "applied_compute", "azure",
        "burstgpt", "sharegpt", "vidur", "llmservingsim",
    ]  # fmt: skip


def _azure(*times):
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{each},500,20\n" for each in times)


def _mooncake(*times):
    return "".join(f'{{"timestamp": {each}, "input_length": 800, "output_length": 9}}\n' for each in times)


@pytest.mark.parametrize(
    "times",
    [
        ("2024-05-10 02:00:00+02:00", "2024-05-10 02:00:00.500000+02:00", "2024-05-10 02:00:01.250000+02:00"),
        ("2024-05-09 19:00:00-05:00", "2024-05-09 19:00:00.5-05:00", "2024-05-10 00:00:01.25+00:00"),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:00.5000000Z", '"2024-05-10t00:00:01,25z"'),
        ("2024-05-10 00:00:00 UTC", "2024-05-10 05:30:00.5+0530", "2024-05-10 09:00:01.25 +09"),
        ("2024-05-10 00:00", "2024-05-10 00:00:00.5", "2024-05-10 00:00:01.250000000"),
        ("1715299200", "1715299200.5", "1715299201.25"),
        ("1715299200000", "1715299200500", "1715299201250"),
    ],
)
def test_dates_with_and_without_fractions_and_offsets_are_one_clock(tmp_path, times):
    assert read_requests(written(tmp_path, "a.csv", _azure(*times))).arrival_ns.tolist() == [0, 5e8, 1.25e9]


@pytest.mark.parametrize(
    ("times", "per_s", "told"),
    [
        ((0.0, 0.4, 0.8, 1.2, 1.6), 2.5, "in s: numbers with fractions"),
        ((0, 60_000, 120_000), 1 / 60, "in ms: whole"),
        ((0.0, 300.0, 600.0), 1 / 0.3, "in ms: whole"),
        ((1715299200.25, 1715299200.5), 4, "in s since 1970"),
        ((1715299200250, 1715299200500), 4, "in ms since 1970"),
        ((5, 5), 0, "at once"),
    ],
)
def test_the_unit_of_time_follows_from_digits_and_rate(tmp_path, times, per_s, told):
    found = read_requests(written(tmp_path, "t.jsonl", _mooncake(*times)))
    assert (
        found.offered_per_s == pytest.approx(per_s)
        and told in found.read_as
        and "t.jsonl is read as mooncake" in found.read_as
    )


@pytest.mark.parametrize(
    "times", [(0, 1, 2, 3), (0, 5, 11), (0, 1_000_000, 2_000_000), (0.0, 12.5, 31.0), (0.25, 120.5)]
)
def test_a_unit_of_which_two_are_plausible_is_asked_for(tmp_path, times):
    path = written(tmp_path, "t.jsonl", _mooncake(*times))
    with pytest.raises(TraceError, match="unit of timestamp is not clear.*requests.time_unit: s"):
        read_requests(path)
    in_s, in_ms = (read_requests(path, None, unit).arrival_ns for unit in ("s", "ms"))
    assert in_s.tolist() == pytest.approx(1000 * in_ms) and read_requests(path, "guidellm").arrival_ns[-1] == in_s[-1]
    assert read_requests(path, "mooncake").arrival_ns.tolist() == in_ms.tolist()


@pytest.mark.parametrize("name", ["vidur", "burstgpt", "llmservingsim"])
def test_a_rate_that_no_trace_has_is_refused(tmp_path, name):
    file, text = SAMPLES[name]
    changed = text.replace("2000000000", "2").replace("3.5", "2400").replace("\n7,GPT", "\n7000,GPT")
    with pytest.raises(TraceError, match="not plausible.*Name the unit"):
        read_requests(written(tmp_path, file, changed))


def test_alibabas_traces_have_seconds_and_blocks_of_16(tmp_path):
    rows = (
        {
            "chat_id": at, "parent_chat_id": -1, "timestamp": 7.5 * at, "input_length": 20, "output_length": 3,
            "type": "text", "turn": 1, "hash_ids": [2**63 + 1, at],
        }
        for at in range(3)
    )  # fmt: skip
    found = read_requests(written(tmp_path, "q.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert (
        found.arrival_ns.tolist() == [0, 7.5e9, 1.5e10] and found.hash_tokens == 16 and "not read" not in found.read_as
    )


def test_hash_ids_of_any_size_are_identities(tmp_path):
    ids = (1, 2**32 + 1, 2**63 + 1, 2**64 - 1, -5, "0f3a")
    rows = (
        {"timestamp": at * 60_000, "input_length": 512, "output_length": 3, "hash_ids": [each]}
        for at, each in enumerate(ids)
    )
    found = read_requests(written(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert len(set(found.hash_ids.tolist())) == len(ids) and found.hash_ids.dtype == np.int64


def test_mooncakes_columns_in_a_spreadsheets_csv(tmp_path):
    text = "\ufeff\ntimestamp; input_length;output_length;user\n0.0;600;3;a\n0.5;1024;5;b\n"
    found = read_requests(written(tmp_path, "t.csv", text))
    assert found.arrival_ns.tolist() == [0, 5e8] and "These keys have no effect: user" in found.read_as
    assert found.place("t.csv", 1) == "t.csv:4"


def test_requests_beyond_the_positions_of_a_model_are_refused_with_their_line(tmp_path):
    from archsim.serving.file_requests import notes_of_requests, requests_of
    from archsim.specs.serving_files import load_serving

    def asked(model, *prompts, count=None):
        rows = "".join(f"{at},{each},10\n" for at, each in enumerate(prompts))
        path = written(tmp_path, "v.csv", f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
        serving = load_serving(
            {"system": "h200_node", "model": model, "requests": {"trace": str(path), "count": count}}
        )
        return notes_of_requests(serving, requests_of(serving))

    assert len(asked("olmoe-1b-7b", 10, 4086)) == 1
    for count, fewer in ((2, False), (3, True)):
        assert (
            "2 requests, fewer than the 3 of requests.count" in asked("olmoe-1b-7b", 10, 10, count=count)[0]
        ) == fewer
    for model, tokens, told in (
        ("olmoe-1b-7b", 4087, "olmoe-1b-7b has 4,096 positions,"),
        ("qwen3-235b-a22b", 300_000, "qwen3-235b-a22b has 40,960 positions .131,072 if"),
    ):
        said = asked(model, 10, tokens)[1]  # a server rejects it, and serves the other
        assert re.search(f"1 of 2 requests is rejected, as {told}", said)
        assert f"v.csv:3: {tokens:,} prompt and 10 output tokens" in said
        with pytest.raises(TraceError, match=f"v.csv:2: {tokens:,} prompt and 10 output tokens, but {told}"):
            asked(model, tokens, tokens)
    assert "1 of 2 requests are longer than the 40,960 positions" in asked("qwen3-235b-a22b", 10, 50_000)[1]


def test_every_shipped_model_says_its_positions():
    from archsim.base.config_files import search_folders
    from archsim.base.yaml import read_yaml

    files = [file for folder in search_folders("models", None) for file in sorted(folder.glob("*.yaml"))]
    assert len(files) > 20 and [file.name for file in files if not read_yaml(file).data.get("positions")] == []


def test_a_trace_may_have_ids_of_other_blocks(tmp_path):
    """A trace says nothing of its blocks; the file does."""
    line = '{"timestamp": 0, "input_length": 130, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
    trace = written(tmp_path, "t.jsonl", line)
    with pytest.raises(TraceError, match=r"3 ids would be of blocks of 64; .* as requests\.hash_tokens"):
        read_requests(trace)
    assert read_requests(trace, hash_tokens=64).hash_tokens == 64
    azure = written(tmp_path, *SAMPLES["azure"])
    with pytest.raises(TraceError, match="only traces of .*mooncake.* have hash ids"):
        read_requests(azure, hash_tokens=64)


# ---- Which engine a request goes to: sessions stay, prefixes are found, requests without hash ids are refused.

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


@pytest.mark.nightly
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

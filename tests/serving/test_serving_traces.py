# ruff: noqa: E501  (one row a case: a table is read across)
"""Traces: the six formats, and what is refused with file, line and reason."""

import json

import numpy as np
import pytest

from archsim.base.errors import TraceError
from archsim.serving.requests import first, scaled
from archsim.serving.traces import FORMATS, format_of, read_requests

SAMPLES = {
    "mooncake": (
        "a.jsonl",
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}\n'
        '{"timestamp": 2000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 8]}\n',
    ),
    "azure": ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,600,3\n2023-11-16 18:17:05.9799600,1024,5"),
    "burstgpt": (
        "b.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,600,3,603,API log\n"
        "6,GPT-4,9,0,9,API log\n7,GPT-4,1024,5,1029,API log\n",
    ),
    "vidur": ("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,600,3\n3.5,1024,5\n"),
    "llmservingsim": ("l.jsonl", '{"input_toks": 600, "output_toks": 3, "arrival_time_ns": 0}\n' '{"input_toks": 1024, "output_toks": 5, "arrival_time_ns": 2000000000}\n'),
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


def test_hash_ids_are_numbered_anew(tmp_path):
    found = read_requests(written(tmp_path, *SAMPLES["mooncake"]))
    assert found.hash_tokens == 512 and found.hash_from.tolist() == [0, 2, 4]
    assert found.hash_ids[0] == found.hash_ids[2] and found.hash_ids[1] != found.hash_ids[3]
    assert first(found, 1).hash_ids.tolist() == [0, 2] and scaled(found, 2.0).arrival_ns[1] == 1e9


def test_sharegpt_gives_lengths(tmp_path):
    turns = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 80}]
    records = [{"id": "x", "conversations": turns}, {"id": "y", "conversations": turns[:1]}, {"id": "z"}]
    found = read_requests(written(tmp_path, "s.json", json.dumps(records)))
    assert found.input.tolist() == [10] and found.output.tolist() == [20]


@pytest.mark.parametrize(("text", "told"), [
    ('{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [7]}', ":1: 1 hash ids, but .* 2 blocks"),
    ('{"timestamp": 0, "input_length": 0, "output_length": 3}', ":1: a prompt of 0 tokens"),
    ('{"timestamp": 0, "input_length": 4, "output_length": 0}', ":1: an output of 0 tokens"),
    ('{"timestamp": 0, "input_length": "x", "output_length": 3}', ":1: input_length is 'x'; expected a number"),
    ('{"timestamp": 0, "input_length": 1.5, "output_length": 3}', ":1: input_length is 1.5; expected a whole"),
    (
        '{"timestamp": 5, "input_length": 4, "output_length": 1}\n{"timestamp": 4, "input_length": 4, '
        '"output_length": 1}',
        ":2: arrives at 0.004 s, before the request above it",
    ),
    ('{"timestamp": 0,', ":1: not JSON"),
    ("", "columns none are of no known format"),
    ("a,b\n1,2\n", "columns a, b are of no known format"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n", ":2: TIMESTAMP is 'noon'"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
])
def test_what_contradicts_itself_is_refused(tmp_path, text, told):
    with pytest.raises(TraceError, match=told):
        read_requests(written(tmp_path, "t.jsonl", text))


def test_unknown_formats_are_named(tmp_path):
    with pytest.raises(TraceError, match="did you mean 'mooncake'"):
        read_requests(written(tmp_path, *SAMPLES["mooncake"]), "moncake")


@pytest.mark.parametrize(("name", "requests", "tokens"), [
    ("azure_llm_2023_code.csv", 8819, 2048), ("azure_llm_2023_conv.csv", 19366, 1155),
    ("mooncake_conversation_trace.jsonl", 12031, 12035), ("samples/burstgpt_6col.csv", None, None),
    ("samples/burstgpt_8col.csv", None, None), ("samples/sharegpt_conversations.json", None, None),
    ("samples/vidur_splitwise_conv_500.csv", 500, None), ("samples/llmservingsim_flat_example.jsonl", 10, None),
])
def test_published_traces_are_read(shared, name, requests, tokens):
    path = shared / "data" / "requests" / name
    if not path.is_file():
        pytest.skip(f"{path} not found")
    found = read_requests(path)
    assert len(found.input) > 0 and np.all(np.diff(found.arrival_ns) >= 0)
    assert requests in (None, len(found.input)) and tokens in (None, round(found.input.mean()))


def test_every_format_has_a_reader():
    assert list(FORMATS) == ["mooncake", "azure", "burstgpt", "sharegpt", "vidur", "llmservingsim"]

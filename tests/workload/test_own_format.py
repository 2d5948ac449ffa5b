"""A user's own trace format: read as the built-in ones are, in runs and imports; what it gives is checked."""

import json

import numpy as np
import pytest
from support.tiny import TINY, archsim
from support.trace_files import TOY, toy_requests

from archsim.base.errors import TraceError
from archsim.workload import open_trace

READER = '''
import numpy as np

def read(path, model):
    """One request a line: prompt tokens, then expert ids of every token, layer and rank."""
    for line in path.read_text().splitlines():
        prompt, *ids = map(int, line.split())
        yield np.array(ids).reshape(-1, len(model.moe_layer_ids), model.top_k), prompt

def broken(path, model):
    raise RuntimeError("no such luck")

def outside(path, model):
    yield np.full((2, len(model.moe_layer_ids), model.top_k), model.experts), 1

def unlike(path, model):
    yield np.zeros((2, len(model.moe_layer_ids), model.top_k)), 1

def empty(path, model):
    return iter(())
'''


@pytest.fixture
def requests():
    """Three requests of the toy model: (experts, iteration)."""
    return toy_requests(["a/0", "a/1", "a/2"])


@pytest.fixture
def source(tmp_path, monkeypatch, requests):
    """A file of the requests in a format that only the reader beside it knows."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_format.py").write_text(READER)
    lines = [
        f"{(iteration == 0).sum()} {' '.join(map(str, experts.ravel()))}" for experts, iteration in requests.values()
    ]
    file = tmp_path / "routing.txt"
    file.write_text("\n".join(lines))
    return file


def test_own_reader_gives_what_it_read(source, requests):
    trace = open_trace(source, TOY, "my_format:read")
    assert np.array_equal(trace.experts, np.concatenate([experts for experts, _ in requests.values()]))
    assert np.array_equal(trace.iteration, np.concatenate([iteration for _, iteration in requests.values()]))


def test_json_lines_are_opened_as_they_are_imported(tmp_path, source, requests):
    lines = [
        {"topk_ids": experts.tolist(), "prompt_tokens": int((iteration == 0).sum())}
        for experts, iteration in requests.values()
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert open_trace(file, TOY).digest == open_trace(source, TOY, "my_format:read").digest


def test_sweep_and_import_read_it(tmp_path, source):
    rows = [" ".join(["1", *(str(i % 16) for i in range(r, r + 5 * 2 * 2))]) for r in range(6)]
    (tmp_path / "tiny.txt").write_text("\n".join(rows))
    text = TINY.replace("trace: {synthetic: {prompt_tokens: 3}}", "trace: tiny.txt, reader: my_format:read").replace(
        "[12, 40]", "[4]"
    )
    (tmp_path / "own.yaml").write_text(text)
    swept = archsim(tmp_path, "sweep", "own.yaml", "--jobs", "1")
    assert swept.returncode == 0, swept.stderr
    own = ("trace", "import", "routing.txt", "--model", "toy.yaml", "--reader", "my_format:read", "--out", "store")
    imported = archsim(tmp_path, *own)
    assert imported.returncode == 2 and "toy.yaml" in imported.stderr  # there is no such model file yet
    (tmp_path / "toy.yaml").write_text(
        "{name: toy, source: made up, layers: 5, moe_layers: {first: 1, last: 4}, hidden: 8, expert_ffn: 8, experts: "
        "6, top_k: 2}"
    )
    imported = archsim(tmp_path, *own)
    assert imported.returncode == 0, imported.stderr
    assert np.array_equal(
        open_trace(tmp_path / "store", TOY).experts, open_trace(source, TOY, "my_format:read").experts
    )


@pytest.mark.parametrize(("function", "said"), [
    ("broken", r"RuntimeError: no such luck \(.*my_format.py:\d+\)"), ("outside", "expert id 6"),
    ("unlike", "expected integers"), ("empty", "yields no requests"), ("missing", "has no function 'missing'"),
])
def test_what_a_reader_does_wrong_is_named(source, function, said):
    with pytest.raises(TraceError, match=said):
        open_trace(source, TOY, f"my_format:{function}")

"""Recorded traces: both layouts read alike, and stream in order."""

import numpy as np
import pytest
from support.trace_files import TOY, save_npz, toy_requests, write_tree

from archsim.engine.demand import build_run_demand
from archsim.specs.library import load_model
from archsim.traffic import open_trace
from archsim.traffic.formats import readers
from archsim.traffic.trace import Trace

ARRAYS = ("experts", "request_offsets", "iteration", "layer_ids")


@pytest.fixture
def llama():
    return load_model("llama-4-maverick")


def test_any_level_of_the_tree_may_be_given(shared, llama):
    tree = shared / "data/traces/meta-llama"
    model = tree / "Llama-4-Maverick-17B-128E-Instruct"
    traces = [open_trace(level, llama) for level in (shared / "data/traces", tree, model, model / "mmlu")]
    assert len({trace.digest for trace in traces}) == 1
    assert open_trace(model / "mmlu/anatomy", llama).requests == 8
    assert open_trace(model / "mmlu/anatomy/148.json", llama).requests == 1


def test_requests_are_ordered_by_number_not_by_text(tmp_path):
    requests = toy_requests(["b/10", "b/9", "a/2", "b/100"])
    trace = open_trace(write_tree(tmp_path, requests, [1, 2, 3, 4], 5), TOY)
    lengths = {name: len(iteration) for name, (_, iteration) in requests.items()}
    assert np.diff(trace.request_offsets).tolist() == [lengths[name] for name in ("a/2", "b/9", "b/10", "b/100")]
    assert [trace.subject_names[s] for s in trace.request_subject] == ["a", "b", "b", "b"]


def test_both_layouts_give_identical_columns_and_digest(tmp_path):
    requests = toy_requests(["a/1", "a/2", "b/1"])
    tree = open_trace(write_tree(tmp_path / "tree", requests, [1, 2, 3, 4], 5), TOY)
    file = open_trace(save_npz(tmp_path / "toy.npz", requests, [1, 2, 3, 4]), TOY)
    for name in ARRAYS:
        assert getattr(tree, name).dtype == getattr(file, name).dtype, name
        assert np.array_equal(getattr(tree, name), getattr(file, name)), name
    assert tree.digest == file.digest
    assert file.experts.dtype == np.int16 and file.layer_ids.dtype == np.int32
    assert (tree.label, file.label) == (str(tmp_path / "tree"), str(tmp_path / "toy.npz"))


def test_digest_tells_contents_apart(tmp_path):
    requests = toy_requests(["a/1", "a/2"])
    experts, iteration = requests["a/2"]
    changed = {**requests, "a/2": ((experts + 1) % 6, iteration)}
    digests = [
        open_trace(save_npz(tmp_path / "a.npz", which, [1, 2, 3, 4]), TOY).digest for which in (requests, changed)
    ]
    assert digests[0] != digests[1]


def test_a_trace_may_have_fewer_layers_than_the_model(shared, tmp_path):
    reference = open_trace(shared / "reference/published/deepseek_synthetic.npz", load_model("deepseek-v3"))
    assert reference.layer_ids.tolist() == [3, 4, 5, 6]
    requests = toy_requests(["a/1"], layers=2)
    assert open_trace(write_tree(tmp_path, requests, [2, 3], 5), TOY).layer_ids.tolist() == [2, 3]


def test_dense_layers_are_not_columns(shared, llama):
    trace = open_trace(shared / "data/traces/meta-llama", llama)
    assert trace.layer_ids.tolist() == list(range(1, 48, 2))


def test_phase_follows_from_the_iteration(tmp_path):
    requests = toy_requests(["a/1", "a/2"])
    without = open_trace(save_npz(tmp_path / "a.npz", requests, [1, 2, 3, 4]), TOY)
    phase = (np.concatenate([iteration for _, iteration in requests.values()]) > 0).astype(np.int8)
    given = open_trace(save_npz(tmp_path / "b.npz", requests, [1, 2, 3, 4], phase=phase), TOY)
    one, other = build_run_demand(without, 2, 9, 0), build_run_demand(given, 2, 9, 0)
    assert np.array_equal(one.tokens, other.tokens) and one.has_prefill == other.has_prefill is True


def test_json_request_without_a_prompt_starts_at_iteration_1(tmp_path):
    experts, iteration = toy_requests(["a/1"])["a/1"]
    decode = {"a/1": (experts[iteration > 0], iteration[iteration > 0])}
    trace = open_trace(write_tree(tmp_path, decode, [1, 2, 3, 4], 5), TOY)
    assert trace.iteration.tolist() == [1, 2, 3]


def test_steps_come_by_request_then_token_ranks_as_stored(tmp_path):
    requests = toy_requests(["a/1", "a/2", "a/3"])
    trace = open_trace(save_npz(tmp_path / "a.npz", requests, [1, 2, 3, 4]), TOY)
    routing = [requests[f"a/{n}"] for n in (3, 1, 3)]
    pieces = list(trace.steps(np.array([2, 0, 2]), 2))
    assert [piece.iteration for piece in pieces] == [0, 1, 2]
    for piece in pieces:
        rows = [experts[iteration == piece.iteration] for experts, iteration in routing]
        assert np.array_equal(piece.experts, np.concatenate(rows))
        assert piece.request.tolist() == [p for p, part in enumerate(rows) for _ in part]
        assert piece.experts.dtype == np.int16 and piece.request.dtype == np.int32


def test_a_request_that_has_ended_stops_contributing(tmp_path):
    requests = toy_requests(["a/1", "a/2"])
    experts, iteration = requests["a/1"]
    requests["a/1"] = (experts[:-2], iteration[:-2])
    trace = open_trace(save_npz(tmp_path / "a.npz", requests, [1, 2, 3, 4]), TOY)
    assert [piece.request.tolist() for piece in trace.steps(np.arange(2), 99)] == [[0, 1, 1], [0, 1], [1], [1]]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(readers, "CACHED_BYTES", 0)
    return tmp_path / "cache"


def columns_equal(one: Trace, other: Trace) -> bool:
    return one.digest == other.digest and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ARRAYS)


def test_large_traces_are_converted_once_and_mapped(cached, tmp_path, monkeypatch):
    requests = toy_requests(["a/1", "b/2"])
    sources = {
        "read_npz": save_npz(tmp_path / "a.npz", requests, [1, 2, 3, 4]),
        "_assemble": write_tree(tmp_path / "tree", requests, [1, 2, 3, 4], 5),
    }
    for reader, source in sources.items():
        fresh = getattr(readers, reader)(source, TOY, str(source))
        first = open_trace(source, TOY)
        monkeypatch.setattr(readers, reader, lambda *_: pytest.fail("converted again"))
        second = open_trace(source, TOY)
        for trace in (first, second):
            assert isinstance(trace.experts, np.memmap)
            assert columns_equal(fresh, trace)
            assert (trace.source, trace.model, trace.subject_names) == (str(source), fresh.model, fresh.subject_names)
    assert len(list(cached.rglob("facts.json"))) == 2


def test_cache_is_not_used_for_changed_content_or_another_model(cached, tmp_path):
    source = save_npz(tmp_path / "a.npz", toy_requests(["a/1"]), [1, 2, 3, 4])
    before = open_trace(source, TOY)
    save_npz(tmp_path / "a.npz", toy_requests(["a/1", "a/2"]), [1, 2, 3, 4])
    assert open_trace(source, TOY).requests == 2 and before.requests == 1
    wider = TOY.model_copy(update={"experts": 7})
    assert open_trace(source, wider).num_experts == 7


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(readers, "CACHED_BYTES", 0)
    trace = open_trace(save_npz(tmp_path / "a.npz", toy_requests(["a/1"]), [1, 2, 3, 4]), TOY)
    assert trace.requests == 1 and not isinstance(trace.experts, np.memmap)


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("name", ["facts.json", "experts.npy", "iteration.npy", "request_offsets.npy"])
@pytest.mark.parametrize("damage", [flip, lambda content: b"", lambda content: content[:-3]])
def test_a_damaged_cache_entry_is_made_again(cached, tmp_path, name, damage):
    source = save_npz(tmp_path / "a.npz", toy_requests(["a/1"]), [1, 2, 3, 4])
    before = open_trace(source, TOY)
    expected = {column: np.array(getattr(before, column)) for column in ("experts", "iteration", "request_offsets")}
    file = next(cached.rglob(name))
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(content))
    again = open_trace(source, TOY)
    assert isinstance(again.experts, np.memmap)
    assert all((getattr(again, column) == values).all() for column, values in expected.items())

# ruff: noqa: E501  (one row a case: a table is read across)
"""What malformed traces are told: file, request, iteration and layer, what was found and what was expected."""

import json

import numpy as np
import pytest
from support.trace_files import TOY, save_npz, toy_requests, write_tree

from archsim.base.errors import TraceError
from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.specs.library import load_model
from archsim.workload import open_trace

LAYERS = [1, 2, 3, 4]

# What is done to the second of two good requests (a list of iterations; layer id → null or rows) → the message.
BAD_JSON = {
    "too many ids in a row": (lambda request: request[2]["3"][0].append(5), "a/2.json: request a/2, iteration 2, layer 3: row 0 has 3 ids; expected top_k = 2 of toy"),
    "too few ids in a row": (lambda request: request[0]["4"][1].pop(), "a/2.json: request a/2, iteration 0, layer 4: row 1 has 1 ids; expected top_k = 2 of toy"),
    "wrong top-k everywhere": (
        lambda request: [row.pop() for t in request for rows in t.values() for row in rows or []],
        "a/2.json: request a/2, iteration 0, layer 1: row 0 has 1 ids; expected top_k = 2 of toy",
    ),
    "id out of range": (
        lambda request: request[1]["2"][0].__setitem__(1, 6),
        "a/2.json: request a/2, iteration 1, layer 2: expert id 6 at rank 1 is out of range; expected 0 to 5",
    ),
    "negative id": (lambda request: request[3]["1"][0].__setitem__(0, -1), "a/2.json: request a/2, iteration 3, layer 1: expert id -1 at rank 0 is out of range; expected 0 to 5"),
    "id that is no integer": (
        lambda request: request[3]["1"][0].__setitem__(0, 2.5),
        "a/2.json: request a/2, iteration 3, layer 1: expert id 2.5 at rank 0 of row 0; expected an integer from 0 to "
        "5",
    ),
    "id that is text": (
        lambda request: request[1]["1"][0].__setitem__(0, "2"),
        "a/2.json: request a/2, iteration 1, layer 1: expert id '2' at rank 0 of row 0; expected an integer from 0 to "
        "5",
    ),
    "missing layer": (lambda request: request[2].pop("3"), "a/2.json: request a/2, iteration 2, layer 3: the layer is missing; expected layers 1, 2, 3, 4 in every iteration"),
    "layer without routing once": (lambda request: request[2].update({"3": None}), "a/2.json: request a/2, iteration 2, layer 3: expected a list of rows, found null"),
    "dense layer with routing": (
        lambda request: request[2].update({"0": [[1, 2]]}),
        "a/2.json: request a/2, iteration 2, layer 0: has routing, but had none in the first iteration of the trace",
    ),
    "ragged prefill": (lambda request: request[0]["3"].pop(), "a/2.json: request a/2, iteration 0, layer 3: 1 rows; expected 2, as in layer 1"),
    "decode step with two rows": (
        lambda request: [rows.append(rows[0]) for rows in request[1].values() if rows],
        "a/2.json: request a/2, iteration 1, layer 1: 2 rows; expected 1 row in a decode step",
    ),
    "decode step without rows": (
        lambda request: [rows.clear() for rows in request[1].values() if rows],
        "a/2.json: request a/2, iteration 1, layer 1: expected a list of rows, found nothing",
    ),
    "iteration that is no object": (lambda request: request.__setitem__(1, [[1, 2]]), "a/2.json: request a/2, iteration 1: expected an object of layers, found a list"),
    "no iterations": (lambda request: request.clear(), "a/2.json: request a/2: expected a list of 1 to 32767 iterations"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case, tmp_path):
    spoil, message = BAD_JSON[case]
    write_tree(tmp_path, toy_requests(["a/1", "a/2"]), LAYERS, 5)
    file = tmp_path / "org/toy/set/a/2.json"
    request = json.loads(file.read_text())
    spoil(request)
    file.write_text(json.dumps(request))
    with pytest.raises(TraceError) as error:
        open_trace(tmp_path, TOY)
    assert str(error.value) == f"{file.parents[1]}/{message}"


# What is done to the first iteration of the only request → the message.
BAD_FIRST = {
    "routing in a dense layer": (
        lambda first: first.update({"0": [[1, 2]]}),
        "layer 0 is dense in model toy; nearest MoE layer 1, valid are 1 to 4",
    ),
    "routing in a layer there is not": (
        lambda first: first.update({"9": [[1, 2]]}),
        "layer 9 is not a layer of model toy; nearest MoE layer 4, valid are 1 to 4",
    ),
    "layer id that is no number": (lambda first: first.update({"lm_head": None}), "layer id 'lm_head' is not a number"),
    "no routing": (lambda first: first.update(dict.fromkeys(first)), "no MoE layer; model toy has layers 1 to 4"),
}


@pytest.mark.parametrize("case", BAD_FIRST)
def test_bad_first_iteration(case, tmp_path):
    spoil, message = BAD_FIRST[case]
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    file = tmp_path / "org/toy/set/a/1.json"
    request = json.loads(file.read_text())
    spoil(request[0])
    file.write_text(json.dumps(request))
    with pytest.raises(TraceError) as error:
        open_trace(tmp_path, TOY)
    assert str(error.value) == f"{file}: request a/1, iteration 0: {message}"


def test_layer_missing_from_the_whole_trace(tmp_path):
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    file = tmp_path / "org/toy/set/a/1.json"
    request = json.loads(file.read_text())
    file.write_text(json.dumps([{key: rows for key, rows in t.items() if key != "2"} for t in request]))
    with pytest.raises(TraceError, match="a/1, iteration 0, layer 2: the layer is missing; .* is written null$"):
        open_trace(tmp_path, TOY)


def test_truncated_json(shared, tmp_path):
    whole = next((shared / "data/traces/meta-llama").rglob("148.json")).read_bytes()
    file = tmp_path / "org/model/mmlu/anatomy/148.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"anatomy/148\.json: request anatomy/148: not valid JSON \(.*truncated\?$"):
        open_trace(tmp_path, load_model("llama-4-maverick"))


def test_empty_file(tmp_path):
    (tmp_path / "0.json").touch()
    with pytest.raises(TraceError, match=r"0\.json: request .*/0: not valid JSON"):
        open_trace(tmp_path, TOY)


def test_empty_directory(tmp_path):
    with pytest.raises(
        TraceError, match="no request files; expected <dataset>/<subject>/<n>.json below this directory"
    ):
        open_trace(tmp_path, TOY)


def test_file_that_is_no_request(tmp_path):
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    (tmp_path / "org/toy/set/index.json").write_text("{}")
    with pytest.raises(TraceError, match=r"set/index\.json: the name of a request file is its number"):
        open_trace(tmp_path, TOY)


def test_requests_of_two_models(tmp_path):
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    (tmp_path / "org/toy").rename(tmp_path / "org/other")
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    with pytest.raises(TraceError, match="holds requests of org/other and of org/toy; expected those of one model"):
        open_trace(tmp_path, TOY)


def test_no_such_path(tmp_path):
    (tmp_path / "traces").mkdir()
    with pytest.raises(TraceError, match="no such file or directory: .* has no 'tracse'; did you mean 'traces'"):
        open_trace(tmp_path / "tracse/llama", TOY)


def test_file_of_another_kind(tmp_path):
    (tmp_path / "trace.csv").write_text("1,2")
    with pytest.raises(
        TraceError, match=r"trace\.csv: unknown format; expected tokens: a directory .* \.json, \.jsonl or \.npz"
    ):
        open_trace(tmp_path / "trace.csv", TOY)


def changed(name, index, value):
    """Members of the good file with one entry of one member changed."""

    def change(members):
        members[name] = members[name].copy()
        members[name][index] = value

    return change


# What is done to the members of a good file (requests of 4 and 5 tokens, 4 layers, top-2 of 6) → the message.
BAD_NPZ = {
    "id out of range": (changed("experts", (5, 2, 1), 6), "request 1, iteration 0, layer 3: expert id 6 at rank 1 is out of range; expected 0 to 5"),
    "negative id": (changed("experts", (8, 0, 0), -3), "request 1, iteration 3, layer 1: expert id -3 at rank 0 is out of range; expected 0 to 5"),
    "wrong top-k": (lambda members: members.update(experts=members["experts"][:, :, :1]), "the trace has top_k = 1, but model toy has top_k = 2"),
    "stated top-k": (lambda members: members.update(top_k=np.int32(8)), "the trace has top_k = 8, but model toy has top_k = 2"),
    "stated number of experts": (lambda members: members.update(num_experts=np.int32(8)), "the trace has experts = 8, but model toy has experts = 6"),
    "stated number of layers": (lambda members: members.update(num_layers_total=np.int32(48)), "the trace has layers = 48, but model toy has layers = 5"),
    "stated shape that is no number": (lambda members: members.update(top_k=np.array("two")), "member 'top_k' is array('two', dtype='<U3'); expected one integer"),
    "dense layer": (changed("layer_ids", 0, 0), "layer 0 is dense in model toy; nearest MoE layer 1, valid are 1 to 4"),
    "layer there is not": (changed("layer_ids", 3, 7), "layer 7 is not a layer of model toy; nearest MoE layer 4, valid are 1 to 4"),
    "layer twice": (changed("layer_ids", 1, 1), "layer 1 follows layer 1; expected ascending layer ids"),
    "too few layer ids": (lambda members: members.update(layer_ids=members["layer_ids"][:3]), "member 'layer_ids' has 3 entries; 'experts' has 4 layers"),
    "missing member": (lambda members: members.pop("iteration"), "member 'iteration' is missing; expected experts, request_offsets, iteration, layer_ids (token-level layout)"),
    "wrong dtype": (lambda members: members.update(experts=members["experts"].astype(np.float32)), "member 'experts' has dtype float32; expected integers"),
    "wrong number of dimensions": (lambda members: members.update(experts=members["experts"][:, 0]), "member 'experts' has shape (9, 2); expected 3 dimension(s)"),
    "offsets that fall": (
        lambda members: members.update(request_offsets=np.array([0, 5, 4, 9])),
        "request 1: request_offsets falls from 5 to 4; expected offsets that never decrease",
    ),
    "offsets that do not cover all tokens": (changed("request_offsets", 2, 8), "request_offsets runs from 0 to 8; expected 0 to 9 (all tokens)"),
    "no requests": (lambda members: members.update(request_offsets=np.array([0])), "no requests (request_offsets has 1 entries; expected at least 2)"),
    "iteration that repeats": (
        changed("iteration", 7, 1),
        "request 1: iteration 1 follows iteration 1; expected a later one (only iteration 0, the prefill, has more "
        "than one row)",
    ),
    "iteration that goes back": (
        changed("iteration", 3, 0),
        "request 0: iteration 0 follows iteration 2; expected a later one (only iteration 0, the prefill, has more "
        "than one row)",
    ),
    "negative iteration": (changed("iteration", 4, -1), "request 1: starts with iteration -1; expected 0 or later"),
    "iteration out of range": (
        lambda members: members.update(iteration=members["iteration"].astype(int) + 40_000 * (np.arange(9) == 8)),
        "request 1: iteration 40003 is out of range; expected at most 32766",
    ),
    "too few iterations": (lambda members: members.update(iteration=members["iteration"][:5]), "member 'iteration' has 5 rows; expected 9, as 'experts'"),
    "subject without a name": (
        lambda members: members.update(request_subject=np.array([0, 1]), subject_names=np.array(["a"])),
        "request 1: subject 1 has no name; expected 0 to 0",
    ),
    "too few subjects": (
        lambda members: members.update(request_subject=np.array([0]), subject_names=np.array(["a"])),
        "member 'request_subject' has shape (1,); expected (2,)",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(case, tmp_path):
    spoil, message = BAD_NPZ[case]
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1", "a/2"]), LAYERS)
    with np.load(file) as archive:
        members = dict(archive)
    spoil(members)
    np.savez(file, **members)
    with pytest.raises(TraceError) as error:
        open_trace(file, TOY)
    assert str(error.value) == f"{file}: {message}"


def test_truncated_npz(tmp_path):
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1"]), LAYERS)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TraceError, match=r"bad\.npz: not a readable \.npz file"):
        open_trace(file, TOY)


def test_npz_of_a_version_of_zip_that_is_not_known(tmp_path, capsys):
    """Found by tests/fuzz: the version needed to extract, two bytes behind the signature of a central entry."""
    content = bytearray(save_npz(tmp_path / "t.npz", toy_requests(["a/1"]), LAYERS).read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 67
    (tmp_path / "t.npz").write_bytes(content)
    (tmp_path / "toy.yaml").write_text(dump_yaml(TOY.model_dump(mode="json", by_alias=True, exclude_none=True)))
    source, model, out = (str(tmp_path / name) for name in ("t.npz", "toy.yaml", "out"))
    assert main(["trace", "import", source, "--model", model, "--out", out]) == 2
    assert "t.npz: not a readable .npz file (zip file version 6.7)" in capsys.readouterr().err


def test_npz_that_holds_python_objects_is_not_unpickled(tmp_path):
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1"]), LAYERS, experts=np.array([[1], [1, 2]], object))
    with pytest.raises(TraceError, match=r"bad\.npz: not a readable \.npz file .*holds objects"):
        open_trace(file, TOY)


@pytest.mark.parametrize(("layout", "model", "message"), [
    ("llama4-maverick/mmlu_abstract_algebra_anatomy.npz", "qwen3-235b-a22b", "the trace is of llama-4-maverick"),
    ("meta-llama", "deepseek-v3", "the trace is of llama-4-maverick"),
    ("deepseek-v2-lite/moe_beyond_prompts.npz", "olmoe-1b-7b", "the trace is of deepseek-v2-lite"),
    ("gpt-oss-20b/mmlu_decode.npz", "mixtral-8x7b", "the trace is of gpt-oss-20b ('openai/gpt-oss-20b'), the model is mixtral-8x7b"),
    ("deepseek-v3-r1/sglang_logical_count.npz", "deepseek-v3", "member 'experts' is missing"),
])
def test_model_that_does_not_match(layout, model, message, shared):
    with pytest.raises(TraceError) as error:
        open_trace(shared / "data/traces" / layout, load_model(model))
    assert message in str(error.value) and str(shared / "data/traces" / layout) in str(error.value)


def test_same_shape_but_another_shipped_model(tmp_path):
    file = save_npz(tmp_path / "a.npz", toy_requests(["a/1"]), LAYERS, model=np.array("moonshotai/Kimi-K2-Instruct"))
    disguised = TOY.model_copy(update={"name": "deepseek-v3"})
    with pytest.raises(
        TraceError, match=r"the trace is of kimi-k2 \('moonshotai/Kimi-K2-Instruct'\), the model is deepseek-v3"
    ):
        open_trace(file, disguised)
    assert open_trace(file, TOY).model == "moonshotai/Kimi-K2-Instruct", (
        "a model of the user's own is bound by its shape"
    )

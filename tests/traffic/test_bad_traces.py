# ruff: noqa: E501  (one row a case: a table is read across)

"""What malformed traces are told: file, request, iteration and layer, what was found and what was expected."""

import hashlib
import io
import json
import random
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.mutants import mutated
from support.stores import LAYERS as STORED
from support.stores import NAMES, imported
from support.trace_files import TOY, json_request, save_npz, toy_requests, write_tree

from archsim.base.errors import TraceError
from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.specs.library import load_model
from archsim.traffic.formats.json_request import Origin, read_request
from archsim.traffic.formats.npz import read_npz
from archsim.traffic.formats.readers import open_trace
from archsim.traffic.frames import MAGIC, pack_frames, read_frames
from archsim.traffic.trace_store import open_store, verify

LAYERS = [1, 2, 3, 4]


def change(found, key, value):
    found[key] = value


# What is done to the second of two good requests (a list of iterations; layer id → null or rows) → its place, and what
# is said there.
BAD_JSON = {
    "too many ids in a row": (lambda t: t[2]["3"][0].append(5), "iteration 2, layer 3: row 0 ", "3 ids", "top_k = 2"),
    "too few ids in a row": (lambda t: t[0]["4"][1].pop(), "iteration 0, layer 4: row 1 ", "1 ids", "top_k = 2"),
    "wrong top-k everywhere": (lambda t: [row.pop() for each in t for rows in each.values() for row in rows or []], "iteration 0, layer 1: row 0 ", "1 ids", "top_k = 2"),
    "id out of range": (lambda t: change(t[1]["2"][0], 1, 6), "iteration 1, layer 2: ", "6 at rank 1", "0 to 5"),
    "negative id": (lambda t: change(t[3]["1"][0], 0, -1), "iteration 3, layer 1: ", "-1 at rank 0", "0 to 5"),
    "id that is no integer": (lambda t: change(t[3]["1"][0], 0, 2.5), "iteration 3, layer 1: ", "2.5 at rank 0 of row 0", "0 to 5"),
    "id that is text": (lambda t: change(t[1]["1"][0], 0, "2"), "iteration 1, layer 1: ", "'2' at rank 0 of row 0", "0 to 5"),
    "missing layer": (lambda t: t[2].pop("3"), "iteration 2, layer 3: ", "missing", "1, 2, 3, 4"),
    "layer without routing once": (lambda t: t[2].update({"3": None}), "iteration 2, layer 3: ", "list of rows", "null"),
    "dense layer with routing": (lambda t: t[2].update({"0": [[1, 2]]}), "iteration 2, layer 0: ", "first iteration"),
    "ragged prefill": (lambda t: t[0]["3"].pop(), "iteration 0, layer 3: ", "1 rows", "2, as in layer 1"),
    "decode step with two rows": (lambda t: [rows.append(rows[0]) for rows in t[1].values() if rows], "iteration 1, layer 1: ", "2 rows", "1 row "),
    "decode step without rows": (lambda t: [rows.clear() for rows in t[1].values() if rows], "iteration 1, layer 1: ", "list of rows"),
    "iteration that is no object": (lambda t: change(t, 1, [[1, 2]]), "iteration 1: ", "object of layers", "a list"),
    "no iterations": (lambda t: t.clear(), "", "1 to 32767 iterations"),
}  # fmt: skip
# The same of the first one.
BAD_FIRST = {
    "routing in a dense layer": (lambda t: t[0].update({"0": [[1, 2]]}), "iteration 0: layer 0 ", "nearest MoE layer 1", "1 to 4"),
    "routing in a layer there is not": (lambda t: t[0].update({"9": [[1, 2]]}), "iteration 0: layer 9 ", "nearest MoE layer 4", "1 to 4"),
    "layer id that is no number": (lambda t: t[0].update({"lm_head": None}), "iteration 0: ", "'lm_head'", "number"),
    "no routing": (lambda t: t[0].update(dict.fromkeys(t[0])), "iteration 0: ", "no MoE layer", "1 to 4"),
    "layer missing from the whole trace": (lambda t: [step.pop("2") for step in t], "iteration 0, layer 2: ", "missing", "null"),
}  # fmt: skip
BAD_REQUESTS = {(2, name): case for name, case in BAD_JSON.items()} | {(1, name): case for name, case in BAD_FIRST.items()}  # fmt: skip


@pytest.mark.parametrize("case", BAD_REQUESTS, ids=lambda case: case[1])
def test_bad_json(case, tmp_path):
    spoil, place, *facts = BAD_REQUESTS[case]
    write_tree(tmp_path, toy_requests(["a/1", "a/2"]), LAYERS, 5)
    file = tmp_path / f"org/toy/set/a/{case[0]}.json"
    request = json.loads(file.read_text())
    spoil(request)
    file.write_text(json.dumps(request))
    with pytest.raises(TraceError) as error:
        open_trace(tmp_path, TOY)
    assert str(error.value).startswith(f"{tmp_path}/org/toy/set/a/{case[0]}.json: request a/{case[0]}")
    assert f"a/{case[0]}.json: request a/{case[0]}, {place}".removesuffix(", ") in str(error.value)
    assert all(each in str(error.value) for each in facts)


def test_truncated_json(shared, tmp_path):
    whole = next((shared / "data/traces/meta-llama").rglob("148.json")).read_bytes()
    file = tmp_path / "org/model/mmlu/anatomy/148.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"anatomy/148\.json: request anatomy/148: "):
        open_trace(tmp_path, load_model("llama-4-maverick"))


def test_empty_directory(tmp_path):
    with pytest.raises(TraceError, match="<dataset>/<subject>/<n>.json"):
        open_trace(tmp_path, TOY)


def test_file_that_is_no_request(tmp_path):
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    (tmp_path / "org/toy/set/index.json").write_text("{}")
    with pytest.raises(TraceError, match=r"set/index\.json: .*<n>\.json"):
        open_trace(tmp_path, TOY)


def test_requests_of_two_models(tmp_path):
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    (tmp_path / "org/toy").rename(tmp_path / "org/other")
    write_tree(tmp_path, toy_requests(["a/1"]), LAYERS, 5)
    with pytest.raises(TraceError, match="org/other.* org/toy"):
        open_trace(tmp_path, TOY)


def test_no_such_path(tmp_path):
    (tmp_path / "traces").mkdir()
    with pytest.raises(TraceError, match="'tracse'.*'traces'"):
        open_trace(tmp_path / "tracse/llama", TOY)


def changed(name, index, value):
    """Members of the good file with one entry of one member changed."""

    def change(members):
        members[name] = members[name].copy()
        members[name][index] = value

    return change


def put(**more):
    """Members of the good file with these in place of theirs; those that are made of them are functions of all."""
    return lambda members: members.update(
        {key: each(members) if callable(each) else each for key, each in more.items()}
    )


# What is done to the members of a good file (requests of 4 and 5 tokens, 4 layers, top-2 of 6) → the place, and what is
# said there.
BAD_NPZ = {
    "id out of range": (changed("experts", (5, 2, 1), 6), "request 1, iteration 0, layer 3: ", "6 at rank 1", "0 to 5"),
    "negative id": (changed("experts", (8, 0, 0), -3), "request 1, iteration 3, layer 1: ", "-3 at rank 0", "0 to 5"),
    "wrong top-k": (put(experts=lambda all: all["experts"][:, :, :1]), "", "top_k = 1", "top_k = 2"),
    "stated top-k": (put(top_k=np.int32(8)), "", "top_k = 8", "top_k = 2"),
    "stated number of experts": (put(num_experts=np.int32(8)), "", "experts = 8", "experts = 6"),
    "stated number of layers": (put(num_layers_total=np.int32(48)), "", "layers = 48", "layers = 5"),
    "stated shape that is no number": (put(top_k=np.array("two")), "member 'top_k' ", "'two'", "one integer"),
    "dense layer": (changed("layer_ids", 0, 0), "layer 0 ", "nearest MoE layer 1", "1 to 4"),
    "layer there is not": (changed("layer_ids", 3, 7), "layer 7 ", "nearest MoE layer 4", "1 to 4"),
    "layer twice": (changed("layer_ids", 1, 1), "layer 1 follows layer 1", "ascending"),
    "too few layer ids": (put(layer_ids=lambda all: all["layer_ids"][:3]), "member 'layer_ids' ", "3 entries", "'experts' has 4"),
    "missing member": (lambda members: members.pop("iteration"), "member 'iteration' is missing", "experts, request_offsets, iteration, layer_ids"),
    "wrong dtype": (put(experts=lambda all: all["experts"].astype(np.float32)), "member 'experts' ", "float32", "integers"),
    "wrong number of dimensions": (put(experts=lambda all: all["experts"][:, 0]), "member 'experts' ", "(9, 2)", "3 dimension"),
    "offsets that fall": (put(request_offsets=np.array([0, 5, 4, 9])), "request 1: request_offsets ", "5 to 4", "never decrease"),
    "offsets that do not cover all tokens": (changed("request_offsets", 2, 8), "request_offsets ", "0 to 8", "0 to 9"),
    "no requests": (put(request_offsets=np.array([0])), "no requests", "1 entries", "at least 2"),
    "iteration that repeats": (changed("iteration", 7, 1), "request 1: iteration 1 follows iteration 1", "later"),
    "iteration that goes back": (changed("iteration", 3, 0), "request 0: iteration 0 follows iteration 2", "later"),
    "negative iteration": (changed("iteration", 4, -1), "request 1: ", "iteration -1", "0 or later"),
    "iteration out of range": (put(iteration=lambda all: all["iteration"].astype(int) + 40_000 * (np.arange(9) == 8)), "request 1: iteration 40003 ", "at most 32766"),
    "too few iterations": (put(iteration=lambda all: all["iteration"][:5]), "member 'iteration' ", "5 rows", "9, as 'experts'"),
    "subject without a name": (put(request_subject=np.array([0, 1]), subject_names=np.array(["a"])), "request 1: subject 1 ", "no name", "0 to 0"),
    "too few subjects": (put(request_subject=np.array([0]), subject_names=np.array(["a"])), "member 'request_subject' ", "(1,)", "(2,)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(case, tmp_path):
    spoil, place, *facts = BAD_NPZ[case]
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1", "a/2"]), LAYERS)
    with np.load(file) as archive:
        members = dict(archive)
    spoil(members)
    np.savez(file, **members)
    with pytest.raises(TraceError) as error:
        open_trace(file, TOY)
    assert str(error.value).startswith(f"{file}: {place}") and all(each in str(error.value) for each in facts)


def test_truncated_npz(tmp_path):
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1"]), LAYERS)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TraceError, match=r"bad\.npz: "):
        open_trace(file, TOY)


def test_npz_of_a_version_of_zip_that_is_not_known(tmp_path, capsys):
    """Found by tests/fuzz: the version needed to extract, two bytes behind the signature of a central entry."""
    content = bytearray(save_npz(tmp_path / "t.npz", toy_requests(["a/1"]), LAYERS).read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 67
    (tmp_path / "t.npz").write_bytes(content)
    (tmp_path / "toy.yaml").write_text(dump_yaml(TOY.model_dump(mode="json", by_alias=True, exclude_none=True)))
    source, model, out = (str(tmp_path / name) for name in ("t.npz", "toy.yaml", "out"))
    assert main(["trace", "import", source, "--model", model, "--out", out]) == 2
    assert "t.npz: " in (said := capsys.readouterr().err) and "version 6.7" in said


def test_npz_that_holds_python_objects_is_not_unpickled(tmp_path):
    file = save_npz(tmp_path / "bad.npz", toy_requests(["a/1"]), LAYERS, experts=np.array([[1], [1, 2]], object))
    with pytest.raises(TraceError, match=r"bad\.npz: .*objects"):
        open_trace(file, TOY)


@pytest.mark.parametrize(("layout", "model", "message"), [
    ("llama4-maverick/mmlu_abstract_algebra_anatomy.npz", "qwen3-235b-a22b", "the trace is of llama-4-maverick"),
    ("meta-llama", "deepseek-v3", "the trace is of llama-4-maverick"),
    ("deepseek-v2-lite/moe_beyond_prompts.npz", "olmoe-1b-7b", "the trace is of deepseek-v2-lite"),
    ("gpt-oss-20b/mmlu_decode.npz", "mixtral-8x7b",
     "the trace is of gpt-oss-20b ('openai/gpt-oss-20b'), the model is mixtral-8x7b"),
    ("deepseek-v3-r1/sglang_logical_count.npz", "deepseek-v3", "member 'experts' is missing"),
])  # fmt: skip
def test_model_that_does_not_match(layout, model, message, shared):
    with pytest.raises(TraceError) as error:
        open_trace(shared / "data/traces" / layout, load_model(model))
    assert message in str(error.value) and str(shared / "data/traces" / layout) in str(error.value)


def test_same_shape_but_another_shipped_model(tmp_path):
    file = save_npz(tmp_path / "a.npz", toy_requests(["a/1"]), LAYERS, model=np.array("moonshotai/Kimi-K2-Instruct"))
    disguised = TOY.model_copy(update={"name": "deepseek-v3"})
    with pytest.raises(TraceError, match="kimi-k2 .*moonshotai/Kimi-K2-Instruct.* deepseek-v3"):
        open_trace(file, disguised)
    assert open_trace(file, TOY).model == "moonshotai/Kimi-K2-Instruct", (
        "a model of the user's own is bound by its shape"
    )


# ---- Mutants of stores and traces: nothing crashes, and nothing is accepted that an import would not have written.
# Every checksum of a mutant is right: what is refused is refused for its content.

REQUESTS = toy_requests(NAMES)
MUTANTS = 400
SEED = 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    imported(
        save_npz(
            folder / "good.npz",
            REQUESTS,
            STORED,
            request_subject=np.arange(4, dtype=np.int16),
            subject_names=np.array(["a", "b", "c", "d"]),
        ),
        folder / "store",
    )
    return folder / "store"


def columns_of(trace):
    return [trace.experts, trace.request_offsets, trace.iteration, trace.layer_ids, trace.request_subject]


def opened(path, good):
    """Whether a store is accepted; it then holds what the good one holds."""
    try:
        trace = open_trace(path, TOY)
        verify(open_store(path))
    except TraceError as error:
        assert str(path) in str(error)
        return False
    assert all(np.array_equal(one, other) for one, other in zip(columns_of(trace), columns_of(good), strict=True))
    return True


def header_of(content):
    length, _ = struct.unpack("<II", content[8:16])
    return json.loads(content[16 : 16 + length]), content[16 + length :]


def with_header(header, body):
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<II", len(text), zlib.crc32(text)) + text + body


def put(folder, part, content):
    """Replace a file of a store by another with right checksums everywhere."""
    manifest = json.loads((folder / "manifest.json").read_text())
    about = manifest["rows"][0] if part == "rows" else manifest[part]
    (folder / about["file"]).unlink()
    digest = hashlib.sha256(content).hexdigest()
    about |= {"file": f"{part}-{digest[:16]}.col", "bytes": len(content), "sha256": digest}
    (folder / about["file"]).write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def file_of(folder, part):
    manifest = json.loads((folder / "manifest.json").read_text())
    return folder / (manifest["rows"][0] if part == "rows" else manifest[part])["file"]


def fresh(store, tmp_path, number):
    folder = tmp_path / f"store{number}"
    shutil.copytree(store, folder)
    return folder


def test_manifests(store, tmp_path):
    rng, good, accepted = random.Random(SEED), open_trace(store, TOY), []
    manifest = json.loads((store / "manifest.json").read_text())
    folder = fresh(store, tmp_path, 0)
    for _ in range(MUTANTS):
        mutant = mutated(manifest, rng)
        (folder / "manifest.json").write_text(json.dumps(mutant))
        accepted.append(opened(folder, good))
    assert len(accepted) == MUTANTS and sum(accepted) < MUTANTS / 4


@pytest.mark.parametrize("part", ["index", "rows"])
def test_headers(store, tmp_path, part):
    rng, good, accepted = random.Random(SEED), open_trace(store, TOY), []
    header, body = header_of(file_of(store, part).read_bytes())
    for number in range(MUTANTS // 4):
        folder = fresh(store, tmp_path, number)
        put(folder, part, with_header(mutated(header, rng), body))
        accepted.append(opened(folder, good))
    assert len(accepted) == MUTANTS // 4 and sum(accepted) < MUTANTS / 16


def mutants_changed(name, change):
    def apply(columns, facts):
        columns[name] = change(columns[name].copy())

    return apply


def first(value):
    def change(column):
        column.flat[0] = value
        return column

    return change


def dropped(name):
    return lambda columns, facts: columns.pop(name)


BAD_COLUMNS = {
    "a negative expert": ("rows", mutants_changed("experts", lambda x: first(-1)(x.astype(np.int16))),
                          "expert ids -1 to"),
    "an expert of another model": ("rows", mutants_changed("experts", first(6)), "expert ids 0 to 6; expected 0 to 5"),
    "no experts": ("rows", dropped("experts"), "has no column 'experts'"),
    "no iterations": ("rows", dropped("iteration"), "has no column 'iteration'"),
    "flat experts": ("rows", mutants_changed("experts", np.ravel), "has no column 'experts' of integers in 3"),
    "experts as fractions": ("rows", mutants_changed("experts", lambda x: x.astype(np.float32)),
                             "has no column 'experts' of integers"),
    "an iteration out of range": ("rows", mutants_changed("iteration", lambda x: first(32767)(x.astype(np.int32))),
                                  "iterations .* expected 0 to"),
    "a negative iteration": ("rows", mutants_changed("iteration", first(-1)), "iterations -1 to"),
    "an iteration that falls": ("rows", mutants_changed("iteration", lambda x: x[::-1]), "iteration"),
    "decode for prefill": ("rows", mutants_changed("iteration", first(1)),
                           "other numbers of prefill rows|follows iteration"),
    "fewer tokens": ("rows", mutants_changed("iteration", lambda x: x[:-1]), "iteration is .* expected"),
    "zero rows": ("index", mutants_changed("rows", first(0)), "rows of request 0 is 0; expected 1 to"),
    "negative rows": ("index", mutants_changed("rows", first(-1)), "rows of request 0 is -1"),
    "more rows": ("index", mutants_changed("rows", first(9)), "other numbers of tokens than the manifest"),
    "a negative number": ("index", mutants_changed("number", first(-1)), "number of request 0 is -1"),
    "a negative subject": ("index", mutants_changed("subject", first(-1)),
                           "subject of request 0 is -1; expected 0 to 3"),
    "an unknown subject": ("index", mutants_changed("subject", first(4)), "subject of request 0 is 4"),
    "an unknown data set": ("index", mutants_changed("dataset", first(1)),
                            "dataset of request 0 is 1; expected 0 to 0"),
    "more prefill than rows": ("index", mutants_changed("prefill_rows", first(99)), "prefill_rows of request 0 is 99"),
    "fewer requests": ("index", lambda columns, facts: columns.update({k: v[:-1] for k, v in columns.items()}),
                       "one per request"),
    "no names": ("index", lambda columns, facts: facts.pop("subjects"), "subjects: expected a list of printable names"),
    "no column": ("index", dropped("number"), "column 'number' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_columns_that_no_import_writes(store, tmp_path, case):
    part, change, message = BAD_COLUMNS[case]
    columns, facts = read_frames(file_of(store, part))
    change(columns, facts)
    put(fresh(store, tmp_path, 0), part, pack_frames(columns, facts))
    with pytest.raises(TraceError, match=message):
        open_trace(tmp_path / "store0", TOY)


@pytest.mark.parametrize("case", ["counts", "phase", "names", "shape", "fractions"])
def test_stores_of_loads(tmp_path, case):
    np.save(tmp_path / "x.npy", np.ones((3, 4, 6)) / 2)
    imported(tmp_path / "x.npy", tmp_path / "store")
    columns, facts = read_frames(file_of(tmp_path / "store", "loads"))
    if case == "counts":
        columns["counts"][0, 0, 0] = -1
    elif case == "phase":
        columns["phase"][0] = 2
    elif case == "names":
        facts["names"].pop()
    elif case == "shape":
        columns["counts"] = columns["counts"][:, :3]
    else:
        columns["counts"][0, 0, 0] = np.nan
    put(tmp_path / "store", "loads", pack_frames(columns, facts))
    with pytest.raises(TraceError, match=r"loads-\w+.col: "):
        open_store(tmp_path / "store").loads()


def test_a_bomb_is_refused(tmp_path):
    packed = pack_frames({"x": np.zeros(70 << 20, np.uint8)}, {})
    (tmp_path / "x.col").write_bytes(packed)
    assert len(packed) < 1 << 16
    with pytest.raises(TraceError, match="column 'x'.* bytes"):
        read_frames(tmp_path / "x.col")


def members():
    experts, iteration = (np.concatenate([request[part] for request in REQUESTS.values()]) for part in (0, 1))
    offsets = np.cumsum([0, *(len(request[1]) for request in REQUESTS.values())])
    return {"experts": experts, "request_offsets": offsets, "iteration": iteration, "layer_ids": np.array(STORED)}


def twice(experts):
    experts[3, 1, 1] = experts[3, 1, 0]
    return experts


BAD_MEMBERS = {
    "offsets that fall, unsigned": ("request_offsets", lambda x: x[[0, 2, 1, 3, 4]].astype(np.uint64), "falls from"),
    "a request without rows": ("request_offsets", lambda x: x[[0, 1, 1, 3, 4]], "request 1: has no rows"),
    "iterations that fall, unsigned": ("iteration", lambda x: x[::-1].astype(np.uint16), "iteration"),
    "iterations out of range, unsigned": ("iteration", lambda x: first(2**63)(x.astype(np.uint64)), "out of range"),
    "layers that fall, unsigned": ("layer_ids", lambda x: x[[0, 2, 1, 3]].astype(np.uint8), "layer 2 follows layer 3"),
    "an expert twice": ("experts", twice, "is chosen twice, at ranks 0 and 1"),
    "a huge expert, unsigned": ("experts", lambda x: first(2**64 - 1)(x.astype(np.uint64)), "out of range"),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_members_of_npz(tmp_path, case):
    name, change, message = BAD_MEMBERS[case]
    given = members()
    np.savez(tmp_path / "x.npz", **{**given, name: change(given[name].copy())})
    with pytest.raises(TraceError, match=f"x.npz: .*{message}"):
        open_trace(tmp_path / "x.npz", TOY)


def test_fortran_order_and_unsigned_types_are_read_as_they_are(tmp_path):
    given = members()
    np.savez(tmp_path / "c.npz", **given)
    odd = {name: np.asfortranarray(array).astype(np.uint32) for name, array in given.items()}
    np.savez(tmp_path / "f.npz", **odd)
    one, other = open_trace(tmp_path / "c.npz", TOY), open_trace(tmp_path / "f.npz", TOY)
    assert other.experts.flags.c_contiguous
    assert all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(columns_of(one), columns_of(other), strict=True)
    )


LINE = {"topk_ids": [[[0, 1]] * 4] * 3, "prompt_tokens": 2}


def test_mutants_of_lines(tmp_path):
    rng, refused, file = random.Random(SEED), 0, tmp_path / "x.jsonl"
    for _ in range(MUTANTS):
        file.write_text(json.dumps(mutated(LINE | {"layer_ids": STORED, "model": "toy"}, rng)) + "\n")
        try:
            trace = open_trace(file, TOY)
        except TraceError as error:
            refused += str(file) in str(error)
        else:
            assert 0 <= trace.experts.min() and trace.experts.max() < 6 and trace.layer_ids.tolist() == STORED
            assert (trace.experts[..., 0] != trace.experts[..., 1]).all()
    assert refused > MUTANTS / 2


# ---- Both readers under fire: damaged bytes never crash them, and nothing is accepted that a plain oracle would not
# accept.

EXPERTS, ITERATION = toy_requests(["a/1", "a/2"])["a/2"]
STEPS = json_request(EXPERTS, ITERATION, LAYERS, 5)
MINIFIED = json.dumps(STEPS, separators=(",", ":")).encode()
INDENTED = json.dumps(STEPS, indent=2).encode()
FEW = settings(max_examples=examples(400), derandomize=True)


def oracle(content: bytes):
    """experts as lists [token][layer][k] of a valid request of TOY, None for any other bytes. Slow and obvious."""

    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        steps = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    if type(steps) is not list or not steps or any(type(step) is not dict for step in steps):
        return None
    if any(key not in map(str, range(10**4)) for key in steps[0]):
        return None
    layers = sorted(int(key) for key, rows in steps[0].items() if rows is not None)
    present = sorted(map(int, steps[0]))
    between = [layer for layer in (1, 2, 3, 4) if present[0] < layer < present[-1]] if present else []
    if not layers or not set(layers) <= {1, 2, 3, 4} or not set(between) <= set(present):
        return None
    tokens = []
    for t, step in enumerate(steps):
        routed = {key: rows for key, rows in step.items() if rows is not None}
        if set(routed) != {str(layer) for layer in layers} or any(type(rows) is not list for rows in routed.values()):
            return None
        heights = {len(rows) for rows in routed.values()}
        if len(heights) != 1 or (t and heights != {1}):
            return None
        every = [row for rows in routed.values() for row in rows]
        if any(type(row) is not list or len(row) != 2 for row in every):
            return None
        if any(type(expert) is not int or not 0 <= expert < 6 for row in every for expert in row):
            return None
        tokens += [[routed[str(layer)][row] for layer in layers] for row in range(heights.pop())]
    return tokens


def check_json(content: bytes) -> None:
    """The reader says what the oracle says."""
    expected = oracle(content)
    try:
        found = read_request(content, Origin("x.json", "a/1"), TOY, None)
    except TraceError as error:
        assert expected is None, f"refused, though valid: {error}"
        assert str(error).startswith("x.json: request a/1")
    else:
        assert found.experts.tolist() == expected, "accepted, though not valid, or read otherwise"
        assert found.experts.dtype == np.int16 and found.experts.max(initial=0) < 6
        assert len(found.iteration) == len(found.experts)


ANY_BYTE = st.integers(0, 255)


@st.composite
def damaged(draw, good: bytes, mark=ANY_BYTE) -> bytes:
    """Some bytes changed, put in, left out, doubled, or the end cut off."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(["change", "insert", "delete", "double", "cut"]))
        if how == "change" and content:
            content[at] = draw(mark)
        elif how == "insert":
            content.insert(at, draw(mark))
        elif how == "delete":
            del content[at : at + draw(st.integers(1, 30))]
        elif how == "double":
            content[at:at] = content[at : at + draw(st.integers(1, 60))]
        elif draw(st.booleans()):
            del content[at:]
    return bytes(content)


MARKS = st.sampled_from(list(b'[]{},:"0123456789 \n\tnul-.eE\\/'))


def test_the_oracle_knows_good_from_bad():
    assert oracle(MINIFIED) == EXPERTS.tolist() == oracle(INDENTED)
    assert oracle(MINIFIED.replace(b"]]", b"]", 1)) is None
    assert oracle(MINIFIED[:-1]) is None
    check_json(MINIFIED)
    check_json(INDENTED)


@FEW
@given(st.one_of(damaged(MINIFIED, MARKS), damaged(INDENTED, MARKS), damaged(MINIFIED)))
def test_damaged_json(content):
    check_json(content)


@FEW
@given(st.one_of(st.binary(max_size=64), st.text('[]{},:"0123456789 nul', max_size=64).map(str.encode)))
def test_json_made_of_anything(content):
    check_json(content)


IDS = st.one_of(st.integers(-2, 7), st.sampled_from([True, None, 1.0, "1", 10**30]))
ROWS = st.one_of(st.none(), st.lists(st.one_of(st.lists(IDS, max_size=3), st.just([1, 2])), max_size=3))
KEYS = st.sampled_from(["0", "1", "2", "3", "4", "5", "01", "", "x", "٣", "-1"])


@FEW
@given(st.lists(st.dictionaries(KEYS, st.one_of(ROWS, st.just([[1, 2]])), max_size=6), max_size=4), st.booleans())
def test_json_of_the_right_kind(steps, indented):
    check_json(json.dumps(steps, indent=1 if indented else None).encode())


def npz_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        return save_npz(Path(folder) / "x.npz", toy_requests(["a/1", "a/2"]), LAYERS).read_bytes()


NPZ = npz_bytes()


def check_npz(content: bytes) -> None:
    """What is accepted is whole: ids, offsets and iterations are in range and fit each other."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.npz"
        path.write_bytes(content)
        try:
            trace = read_npz(path, TOY, "x")
        except TraceError as error:
            assert str(path) in str(error)
            return
    tokens = len(trace.experts)
    assert trace.experts.shape == (tokens, len(trace.layer_ids), 2)
    assert trace.experts.min(initial=0) >= 0 and trace.experts.max(initial=0) < 6
    assert trace.request_offsets[0] == 0 and trace.request_offsets[-1] == tokens == len(trace.iteration)
    assert (np.diff(trace.request_offsets) >= 0).all() and set(trace.layer_ids.tolist()) <= set(LAYERS)
    for r in range(trace.requests):
        own = trace.iteration[trace.request_offsets[r] : trace.request_offsets[r + 1]].astype(int)
        assert ((np.diff(own) > 0) | (own[1:] == 0)).all() and own.min(initial=0) >= 0


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@FEW
@given(st.one_of(damaged(NPZ), st.binary(max_size=200)))
def test_damaged_npz(content):
    check_npz(content)


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@settings(max_examples=examples(200), derandomize=True)
@given(st.data())
def test_npz_with_damaged_members(data):
    """The checksums of the archive are right; what it holds is not."""
    packed = io.BytesIO()
    spoil = data.draw(st.sampled_from(["experts", "request_offsets", "iteration", "layer_ids"]))
    with zipfile.ZipFile(io.BytesIO(NPZ)) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, data.draw(damaged(content)) if name == f"{spoil}.npy" else content)
    check_npz(packed.getvalue())

"""Mutants of stores and traces: nothing crashes, and nothing is accepted that an import would not have written.

Every checksum of a mutant is right: what is refused is refused for its content.
"""

import hashlib
import json
import random
import shutil
import struct
import zlib

import numpy as np
import pytest
from support.mutants import mutated
from support.stores import LAYERS, NAMES, imported
from support.trace_files import TOY, save_npz, toy_requests

from archsim.base.errors import TraceError
from archsim.workload import open_trace
from archsim.workload.store import MAGIC, open_store, pack_frames, read_frames, verify

REQUESTS = toy_requests(NAMES)
MUTANTS = 400
SEED = 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    imported(
        save_npz(
            folder / "good.npz", REQUESTS, LAYERS, request_subject=np.arange(4, dtype=np.int16),
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


def changed(name, change):
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
    "a negative expert": ("rows", changed("experts", lambda x: first(-1)(x.astype(np.int16))), "expert ids -1 to"),
    "an expert of another model": ("rows", changed("experts", first(6)), "expert ids 0 to 6; expected 0 to 5"),
    "no experts": ("rows", dropped("experts"), "has no column 'experts'"),
    "no iterations": ("rows", dropped("iteration"), "has no column 'iteration'"),
    "flat experts": ("rows", changed("experts", np.ravel), "has no column 'experts' of integers in 3"),
    "experts as fractions": (
        "rows", changed("experts", lambda x: x.astype(np.float32)), "has no column 'experts' of integers"
    ),
    "an iteration out of range": (
        "rows", changed("iteration", lambda x: first(32767)(x.astype(np.int32))), "iterations .* expected 0 to"
    ),
    "a negative iteration": ("rows", changed("iteration", first(-1)), "iterations -1 to"),
    "an iteration that falls": ("rows", changed("iteration", lambda x: x[::-1]), "iteration"),
    "decode for prefill": ("rows", changed("iteration", first(1)), "other numbers of prefill rows|follows iteration"),
    "fewer tokens": ("rows", changed("iteration", lambda x: x[:-1]), "iteration is .* expected"),
    "zero rows": ("index", changed("rows", first(0)), "rows of request 0 is 0; expected 1 to"),
    "negative rows": ("index", changed("rows", first(-1)), "rows of request 0 is -1"),
    "more rows": ("index", changed("rows", first(9)), "other numbers of tokens than the manifest"),
    "a negative number": ("index", changed("number", first(-1)), "number of request 0 is -1"),
    "a negative subject": ("index", changed("subject", first(-1)), "subject of request 0 is -1; expected 0 to 3"),
    "an unknown subject": ("index", changed("subject", first(4)), "subject of request 0 is 4"),
    "an unknown data set": ("index", changed("dataset", first(1)), "dataset of request 0 is 1; expected 0 to 0"),
    "more prefill than rows": ("index", changed("prefill_rows", first(99)), "prefill_rows of request 0 is 99"),
    "fewer requests": (
        "index",
        lambda columns, facts: columns.update({k: v[:-1] for k, v in columns.items()}),
        "one a request",
    ),
    "no names": ("index", lambda columns, facts: facts.pop("subjects"), "subjects: expected a list of printable names"),
    "no column": ("index", dropped("number"), "column 'number' is missing"),
}


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
    with pytest.raises(TraceError, match="column 'x'.* declares .* bytes in .* expected at most"):
        read_frames(tmp_path / "x.col")


def members():
    experts, iteration = (np.concatenate([request[part] for request in REQUESTS.values()]) for part in (0, 1))
    offsets = np.cumsum([0, *(len(request[1]) for request in REQUESTS.values())])
    return {"experts": experts, "request_offsets": offsets, "iteration": iteration, "layer_ids": np.array(LAYERS)}


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
BAD_LINES = {
    "an expert twice": ({"topk_ids": [[[0, 1]] * 4, [[2, 2]] * 4]}, "token 1, layer 1: expert 2 is chosen twice"),
    "no tokens": ({"topk_ids": []}, "expected integers in 3 nested"),
    "a layer of many digits": ({"layer_ids": [2**32 + 1, 2, 3, 4]}, "layer 4294967297 is not a layer"),
    "layers that fall": ({"layer_ids": [1, 3, 2, 4]}, "layer 2 follows layer 3"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_lines(tmp_path, case):
    change, message = BAD_LINES[case]
    (tmp_path / "x.jsonl").write_text(json.dumps(LINE | change))
    with pytest.raises(TraceError, match=f"x.jsonl: line 1: .*{message}"):
        open_trace(tmp_path / "x.jsonl", TOY)


def test_mutants_of_lines(tmp_path):
    rng, refused, file = random.Random(SEED), 0, tmp_path / "x.jsonl"
    for _ in range(MUTANTS):
        file.write_text(json.dumps(mutated(LINE | {"layer_ids": LAYERS, "model": "toy"}, rng)) + "\n")
        try:
            trace = open_trace(file, TOY)
        except TraceError as error:
            refused += str(file) in str(error)
        else:
            assert 0 <= trace.experts.min() and trace.experts.max() < 6 and trace.layer_ids.tolist() == LAYERS
            assert (trace.experts[..., 0] != trace.experts[..., 1]).all()
    assert refused > MUTANTS / 2

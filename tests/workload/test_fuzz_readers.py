"""Both readers under fire: damaged bytes never crash them, and nothing is accepted that a plain oracle would not
accept.
"""

import io
import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.trace_files import TOY, json_request, save_npz, toy_requests

from archsim.base.errors import TraceError
from archsim.workload.formats.json_request import Origin, read_request
from archsim.workload.formats.npz import read_npz

LAYERS = [1, 2, 3, 4]
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

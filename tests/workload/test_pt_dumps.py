"""``.pt`` files without PyTorch: tensors come back as they were saved, and nothing in a file is ever executed."""

import io
import os
import pickle
import pickletools
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.examples import examples
from support.torch_files import save_pt, zip_pt

from archsim.base.errors import TraceError
from archsim.specs.library import load_model
from archsim.workload.loads.pt import read_pt
from archsim.workload.loads.reading import read_all_loads, read_loads

MODEL = load_model("olmoe-1b-7b")
COUNTS = np.random.default_rng(0).integers(0, 1000, size=(3, MODEL.layers, MODEL.experts))


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def dump(tmp_path, counts=COUNTS, **more):
    content = {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None} | more
    return save_pt(tmp_path / "my_decode.pt", content)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_a_dump_keeps_its_steps(tmp_path, dtype):
    found = read_loads(dump(tmp_path, COUNTS.astype(dtype)), MODEL)
    assert (found.counts == COUNTS).all() and found.counts.dtype == np.int64
    assert found.phase == [1, 1, 1] and set(found.series) == {"my_decode"}


@settings(max_examples=examples(60), derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
        | arrays.arrays(st.sampled_from(["int64", "int32", "float32", "bool"]), arrays.array_shapes(max_dims=3),
                        elements=st.integers(0, 1)),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=8,
    )
)  # fmt: skip
def test_what_is_saved_is_read(tmp_path_factory, content):
    found = read_pt(save_pt(tmp_path_factory.mktemp("pt") / "x.pt", content))
    assert same(found, content)


def same(one, other):
    if isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_strided_tensors_are_read_and_expanded_ones_refused(tmp_path):
    assert (read_pt(save_pt(tmp_path / "x.pt", COUNTS.transpose(2, 0, 1).copy().transpose(1, 2, 0))) == COUNTS).all()
    with zipfile.ZipFile(save_pt(tmp_path / "z.pt", np.ones((7, 1), np.int64))) as archive:
        pickled = archive.read("z/data.pkl")
    shape_and_strides = b"K\x07K\x01\x86", b"K\x01K\x01\x86"
    assert all(part in pickled for part in shape_and_strides)
    expanded = pickled.replace(shape_and_strides[1], b"K\x00K\x00\x86").replace(shape_and_strides[0], b"K\x08K\x01\x86")
    with pytest.raises(TraceError, match=r"a tensor of shape \[8, 1\] in a storage of 7 numbers; expected a dense one"):
        read_pt(zip_pt(tmp_path / "y.pt", expanded, [bytes(56)]))


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_be_executed_is_not(tmp_path, protocol):
    victim = tmp_path / "executed"
    for number, content in enumerate(({"logical_count": Evil(victim)}, Evil(victim), [print], {"x": io.StringIO})):
        path = zip_pt(tmp_path / f"{number}.pt", pickle.dumps(content, protocol))
        with pytest.raises(TraceError, match="cannot be read safely|can be read safely.* nothing in it was executed"):
            read_loads(path, MODEL)
    bare = tmp_path / "bare.pt"
    bare.write_bytes(pickle.dumps(Evil(victim), protocol))
    with pytest.raises(TraceError, match="older than torch 1.6; nothing in it was executed"):
        read_loads(bare, MODEL)
    assert not victim.exists()


HOSTILE = {
    "a class of torch": (b"\x80\x02ctorch\nload\n.", "names 'torch.load'"),
    "an attribute of a builtin": (b"\x80\x02c__builtin__\neval\n.", "names '__builtin__.eval'"),
    "a call of plain data": (b"\x80\x02]K\x01\x85R.", "calls something that is no tensor"),
    "an instance": (b"(ios\nsystem\n.", "opcode INST"),
    "state set from outside": (b"\x80\x02}}b.", "opcode BUILD"),
    "an extension": (b"\x80\x02\x82\x01.", "opcode EXT1"),
    "a persistent id that is no storage": (b"\x80\x02X\x01\x00\x00\x00aQ.", "a persistent id is no storage"),
    "a key that is hashed deeply": (b"\x80\x02}" + b"]" * 1 + b"K\x01s.", "a key is list"),
    "no end": (b"\x80\x02}q\x00", "damaged pickle"),
    "an empty stack": (b"\x80\x020.", "opcode POP"),
    "more values than one": (b"\x80\x02}}.", "does not end with one value"),
    "a huge memo index": (b"\x80\x02}r\xff\xff\xff\xff.", ""),
    "a huge text": (b"\x80\x02X\xff\xff\xff\x7fa.", "damaged pickle"),
    "nothing": (b"", "damaged pickle"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused_with_a_reason(tmp_path, case):
    pickled, message = HOSTILE[case]
    with pytest.raises(TraceError, match=f"x.pt: .*{message}"):
        read_loads(zip_pt(tmp_path / "x.pt", pickled), MODEL)


def test_damage_is_named(tmp_path):
    path = dump(tmp_path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for content in (good[: len(good) // 2], b"", b"rubbish", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"my_decode.pt: not a .pt file that can be read.*nothing in it was"):
            read_loads(path, MODEL)


@settings(max_examples=examples(200), derandomize=True)
@given(st.data())
def test_no_damaged_pickle_crashes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("pt")
    with zipfile.ZipFile(dump(folder, np.ones((2, 2), np.int64))) as archive:
        pickled = bytearray(archive.read("my_decode/data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_pt(zip_pt(folder / "x.pt", bytes(pickled), [bytes(32)]))
    except TraceError as error:
        assert "x.pt: not a .pt file" in str(error)
    else:
        assert pickletools.genops(bytes(pickled)) and not callable(found)


def test_counts_that_are_none_are_refused(tmp_path):
    with pytest.raises(TraceError, match="a count is negative"):
        read_loads(dump(tmp_path, -COUNTS), MODEL)
    with pytest.raises(TraceError, match="all counts are zero: the recorder did not run"):
        read_all_loads([dump(tmp_path, 0 * COUNTS)], MODEL)
    with pytest.raises(TraceError, match="finite"):
        read_loads(dump(tmp_path, np.full((16, 64), np.nan, np.float32)), MODEL)
    with pytest.raises(TraceError, match="the trace has experts = 63, but model olmoe-1b-7b has experts = 64"):
        read_loads(dump(tmp_path, COUNTS[:, :, :63]), MODEL)


def test_torch_writes_what_is_read(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: files of torch itself cannot be written here")
    torch.save({"rank": 0, "logical_count": torch.from_numpy(COUNTS)}, tmp_path / "x.pt")
    assert (read_loads(tmp_path / "x.pt", MODEL).counts == COUNTS).all()

"""SGLang's dumps as .pt files: real ones of torch, and those that must not be loaded. Needs torch (a CPU build will
do).
"""

import os
import pickle

import numpy as np
import pytest

from archsim.base.errors import TraceError
from archsim.specs.loading.library import load_model
from archsim.workload.formats.loads import read_loads

torch = pytest.importorskip("torch", reason="torch is not installed: .pt dumps cannot be written or read here")
MODEL = load_model("olmoe-1b-7b")
COUNTS = np.random.default_rng(0).integers(0, 1000, size=(3, MODEL.layers, MODEL.experts))


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def dump(tmp_path, counts=COUNTS, **more):
    path = tmp_path / "my_decode.pt"
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None} | more, path)
    return path


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_a_dump_is_summed_over_time(tmp_path, dtype):
    counts = torch.from_numpy(COUNTS).to(getattr(torch, dtype))
    found = read_loads(dump(tmp_path, counts), MODEL)
    assert (found.counts[0] == COUNTS.sum(axis=0)).all() and found.phase == [1]


def test_what_would_be_executed_is_not(tmp_path):
    victim = tmp_path / "executed"
    path = dump(tmp_path, torch.from_numpy(COUNTS), hook=Evil(victim))
    bare = tmp_path / "bare.pt"
    bare.write_bytes(pickle.dumps({"logical_count": Evil(victim)}, protocol=2))
    for each in (path, bare):
        with pytest.raises(TraceError, match="loaded safely.* nothing in it was executed"):
            read_loads(each, MODEL)
    assert not victim.exists()
    with pytest.raises(TraceError, match="torch 2.5.1 cannot load .pt files safely"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "__version__", "2.5.1")
            read_loads(path, MODEL)


def test_damage_is_named(tmp_path):
    path = dump(tmp_path, torch.from_numpy(COUNTS))
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for content, message in [
        (good[: len(good) // 2], "damaged, or holds more"),
        (b"", "damaged, or holds more"),
        (bytes(flipped), "the checksum of member"),
    ]:
        path.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            read_loads(path, MODEL)


def test_tensors_that_hold_no_counts_are_refused(tmp_path):
    whole = torch.from_numpy(COUNTS)
    vast = torch.zeros(1, dtype=torch.int64).expand(10**6, *COUNTS.shape[1:])
    for counts in (vast, whole.to_sparse(), whole.to("meta")):
        with pytest.raises(TraceError, match="expected a dense one of at most"):
            read_loads(dump(tmp_path, counts), MODEL)
    with pytest.raises(TraceError, match="a count is negative"):
        read_loads(dump(tmp_path, -whole), MODEL)

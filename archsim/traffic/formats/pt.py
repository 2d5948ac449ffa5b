"""``.pt`` files as ``torch.save`` writes them, read without PyTorch: a zip archive of one pickle and raw storages.

Nothing in a file is executed. Layout of the archive: ``<name>/data.pkl``,
``<name>/data/<key>`` (one storage each), ``<name>/byteorder``.
"""

import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.traffic.formats.pickles import RefusedPickle, plain_values

MOST_BYTES = 512 << 20
LEAST_SUSPECT_BYTES, MOST_TIMES = 1 << 20, 100  # torch.save stores tensors without compression
DTYPES = {
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
}


def read_pt(path: Path) -> Any:
    """The content of a ``.pt`` file: plain values, with tensors as numpy arrays. Raises TraceError.

    Tensors, numbers, text and containers of them are read; a file that holds anything else is refused.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RefusedPickle(f"{path.stat().st_size} bytes; expected at most {MOST_BYTES} for a dump of loads")
        with zipfile.ZipFile(path) as archive:
            return _content(archive)
    except zipfile.BadZipFile as error:
        raise TraceError(
            f"{path}: not a .pt file that can be read ({error}): it is damaged or truncated, or older than torch 1.6; "
            "nothing in it was executed"
        ) from None
    except (OSError, RefusedPickle, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        raise TraceError(
            f"{path}: not a .pt file that can be read safely: {error}; expected tensors and plain values, as SGLang's "
            "recorder writes them; nothing in it was executed"
        ) from None


def _content(archive: zipfile.ZipFile) -> Any:
    size = sum(member.file_size for member in archive.infolist())
    if size > MOST_BYTES:
        raise RefusedPickle(f"declares {size} bytes; expected at most {MOST_BYTES} for a dump of loads")
    packed = sum(member.compress_size for member in archive.infolist())
    if size > MOST_TIMES * packed + LEAST_SUSPECT_BYTES:
        raise RefusedPickle(f"declares {size} bytes, {size // max(packed, 1)} times the {packed} that it has")
    pickles = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise RefusedPickle(f"{len(pickles)} members are named data.pkl; expected one, as torch.save writes it")
    storages = _Storages(archive, pickles[0].removesuffix("data.pkl"))
    callables: dict[str, Callable[..., Any]] = {
        "torch._utils _rebuild_tensor_v2": storages.tensor,
        "collections OrderedDict": _no_hooks,
    }
    names = {f"torch {kind}": kind for kind in DTYPES}
    return plain_values(archive.read(pickles[0]), callables, names, storages.storage)


def _no_hooks(*items: Any) -> dict:
    if items:
        raise RefusedPickle("an OrderedDict with items is no part of a tensor")
    return {}


class _Storages:
    """The storages of an archive; each is read once, and its checksum compared."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self._archive, self._root = archive, root
        self._read: dict[tuple[str, str], np.ndarray] = {}
        marked = f"{root}byteorder" in archive.namelist()
        self._order = ">" if marked and archive.read(f"{root}byteorder").strip() == b"big" else "<"

    def storage(self, given: Any) -> np.ndarray:
        """The array that a persistent id ``("storage", kind, key, location, size)`` names."""
        if type(given) is not tuple or len(given) != 5 or given[0] != "storage" or type(given[2]) is not str:
            raise RefusedPickle("a persistent id is no storage")
        kind, key, size = given[1], given[2], given[4]
        if kind not in DTYPES:
            raise RefusedPickle(f"a storage of kind {kind!r}; expected one of {', '.join(DTYPES)}")
        if (kind, key) not in self._read:
            try:
                content = self._archive.read(f"{self._root}data/{key}")
            except KeyError:
                raise RefusedPickle(f"storage data/{key} is missing: is the file truncated?") from None
            dtype = np.dtype(self._order + DTYPES[kind])
            if type(size) is not int or size * dtype.itemsize > len(content) or size < 0:
                raise RefusedPickle(f"storage data/{key} has {len(content)} bytes; expected {size} of {dtype.itemsize}")
            self._read[kind, key] = np.frombuffer(content, dtype, size)
        return self._read[kind, key]

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> np.ndarray:
        """A tensor as torch._utils._rebuild_tensor_v2 makes it; the other arguments concern gradients."""
        whole = all(type(each) is tuple and all(type(n) is int and n >= 0 for n in each) for each in (shape, strides))
        if type(storage) is not np.ndarray or type(offset) is not int or offset < 0 or not whole:
            raise RefusedPickle("a tensor without storage, shape and strides")
        if len(shape) != len(strides) or len(shape) > 8:
            raise RefusedPickle(f"a tensor of shape {list(shape)} and strides {list(strides)}")
        count = math.prod(shape)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if count else 0
        if count > len(storage) or last >= max(1, len(storage)):
            raise RefusedPickle(
                f"a tensor of shape {list(shape)} in a storage of {len(storage)} numbers; expected a dense one"
            )
        steps = [stride * storage.itemsize for stride in strides]
        view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
        return view.astype(view.dtype.newbyteorder("="))

"""``.pt`` files as ``torch.save`` writes them, read without PyTorch: a zip archive of one pickle and raw storages.

Nothing in a file is executed. Layout of the archive: ``<name>/data.pkl``,
``<name>/data/<key>`` (one storage each), ``<name>/byteorder``.
"""

import math
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError

# ---- pickles
# Pickles as data: a stack machine for the opcodes that plain values and tensors need. Nothing in a file is executed.
#
# ``pickle`` itself calls what a file names. Here a name is only looked up in a table of the reader's own functions, the
# only things that are called; objects, methods, extensions and every other opcode are refused. Keys of dictionaries are
# text or numbers, so that no hostile nesting is ever hashed.


class RefusedPickle(ValueError):
    """A pickle that holds more than plain values, is truncated, or contradicts itself."""


def plain_values(
    content: bytes, callables: Mapping[str, Callable[..., Any]], names: Mapping[str, Any], persistent: Callable
) -> Any:
    """What a pickle holds: None, booleans, numbers, text, lists, tuples, dictionaries, and results of ``callables``.

    callables: ``module name`` → function to call with the arguments that the file gives. names: ``module name`` → a
    value that is passed on and never called. persistent: value of a persistent id. Raises RefusedPickle.
    """
    machine = _Machine(callables, names, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        return machine.result()
    except RefusedPickle:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise RefusedPickle(f"damaged pickle ({type(error).__name__}: {error})") from None


class _Mark:
    """Separates the items of an open list, tuple or dictionary."""


_MARK = _Mark()
_PUSHES_ARGUMENT = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}


class _Machine:
    def __init__(self, callables, names, persistent) -> None:
        self._callables, self._names, self._persistent = callables, names, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        if opcode in _PUSHES_ARGUMENT:
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            stack.append(_EMPTY[opcode]())
        elif opcode in _TUPLES:
            count = _TUPLES[opcode]
            if len(stack) < count:
                raise RefusedPickle("damaged pickle: a tuple of more items than there are")
            stack[-count:] = [tuple(stack[-count:])]
        elif opcode in _PUTS:
            self._memo[argument] = stack[-1]
        elif opcode in _GETS:
            stack.append(self._memo[argument])
        elif opcode not in _IGNORED:
            act = getattr(self, f"_{opcode.lower()}", None)
            if act is None:
                raise RefusedPickle(f"opcode {opcode} is none of plain values and tensors")
            act(argument)

    def result(self) -> Any:
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise RefusedPickle("damaged pickle: it does not end with one value")
        return self._stack[0]

    def _mark(self, _) -> None:
        self._stack.append(_MARK)

    def _memoize(self, _) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise RefusedPickle("damaged pickle: the start of a list is missing")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _tuple(self, _) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _list(self, _) -> None:
        self._stack.append(self._since_mark())

    def _dict(self, _) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._set(items)

    def _append(self, _) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self, _) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise RefusedPickle(f"damaged pickle: appends to {type(self._stack[-1]).__name__}")
        self._stack[-1].extend(items)

    def _setitem(self, _) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self, _) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise RefusedPickle(f"damaged pickle: sets items of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int, float, bool, bytes):
                raise RefusedPickle(f"a key is {type(key).__name__}; expected text or a number")
            target[key] = value

    def _global(self, argument: str) -> None:
        self._named(argument)

    def _stack_global(self, _) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._named(f"{module} {name}")

    def _named(self, name: str) -> None:
        if name in self._callables:
            self._stack.append(self._callables[name])
        elif name in self._names:
            self._stack.append(self._names[name])
        else:
            raise RefusedPickle(f"names {name.replace(' ', '.')!r}, which is no tensor and no plain value")

    def _reduce(self, _) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(arguments) is not tuple or not any(function is known for known in self._callables.values()):
            raise RefusedPickle("calls something that is no tensor")
        self._stack.append(function(*arguments))

    def _binpersid(self, _) -> None:
        self._stack.append(self._persistent(self._stack.pop()))


# ---- pt

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

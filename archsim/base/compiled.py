"""Decorators that compile functions which loop over arrays.

Most compiled functions in this project get all arrays from the caller and never allocate, so they need no reference
counts (``_nrt=False``): counting references to every array in a record on every call would cost more than the work.

``kernel``  called from Python; compiled on first use and cached on disk; releases the GIL, so that threads may
            share work, and a command can say meanwhile what it does
``allocating``  like kernel, but may make arrays
``outer``   called from kernels alone, compiled once
``inner``   called from kernels alone, inlined

The last two have no entry point for Python, which halves the time of compilation.

Pass only int64 and float64, and constants as ``np.int64(...)``: numba gives a plain Python constant its own type
and would compile the function once per constant.
"""

import logging
import pickle
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature

# ---- machine_code
# Machine code on disk, sealed: numba's cache with a checksum. What is damaged is compiled anew, after a warning.

LOG = logging.getLogger(__name__)


class _SealedFile(IndexDataCacheFile):
    """Its files hold (CRC-32, content); the checksum is of the signature, too: an index may name another's file."""

    def save(self, key: tuple, data: Any) -> None:
        content = self._dump(data)
        super().save(key, (_seal(key, content), content))

    def load(self, key: tuple) -> Any:
        """None where nothing is kept, or where it is damaged."""
        try:
            found = super().load(key)
            if found is None:
                return None
            seal, content = found
            if seal == _seal(key, content):
                return pickle.loads(content)
        except Exception:  # a damaged pickle raises any of them
            LOG.debug("%s", self._index_path, exc_info=True)
        LOG.warning("%s: damaged: its checksum does not match; it is compiled anew", self._index_path)
        with suppress(OSError):
            self.flush()
        return None


class SealedCache(FunctionCache):
    """numba's cache of a function, in sealed files."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _SealedFile


class SealedCallback(CFunc):
    """A compiled callback that is kept in sealed files."""

    def enable_caching(self) -> None:
        self._cache = SealedCache(self._pyfunc)


def keep(dispatcher: Dispatcher) -> Dispatcher:
    """The same, which keeps its machine code in sealed files."""
    dispatcher._cache = SealedCache(dispatcher.py_func)
    return dispatcher


def _seal(key: tuple, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(str(key).encode()))


# ---- kernels

class _OfKernels(CPUDispatcher):
    """A compiled function without an entry point for Python; calling it there would end the process."""

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.__name__} is for kernels alone; in Python call {self.__name__}.py_func")


def _of_kernels(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    compiled = njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        dispatcher.__class__ = _OfKernels
        return dispatcher

    return decorate


def _kept(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    compiled = njit(**options)
    return lambda function: keep(compiled(function))


kernel = _kept(_nrt=False, nogil=True)
allocating = _kept(nogil=True)
outer = _of_kernels()
inner = _of_kernels(forceinline=True)


@inner
def unsigned(number):
    """A number that is not negative, as an index: then the code has no look whether it counts from the end."""
    return np.uint64(number)


def pointer(function: Callable[..., Any], signature: Any, *, cached: bool = True) -> Any:
    """A function that kernels get as an argument: compiled for one signature, so that they are compiled once for all
    such functions. ``cached``: on disk.
    """
    callback = SealedCallback(function, normalize_signature(signature), locals={}, options={"_nrt": not cached})
    if cached:
        callback.enable_caching()
    callback.compile()
    return callback


# ---- mixing
# A hash of whole numbers, by which draws depend on a counter alone (SplitMix64: Steele et al., OOPSLA 2014).

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix_bits(x):
    """SplitMix64's finaliser: a bijection of 64-bit numbers that scatters neighbours. Scalars or arrays."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * MIX_1
        x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))

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

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature

from archsim.base.machine_code import SealedCallback, keep


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

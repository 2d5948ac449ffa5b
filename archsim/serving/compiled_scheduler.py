"""Schedulers by name: a function of `archsim.serving.schedulers`, or a user's own ``package.module:function``."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numba import float64, int64, njit, typeof, types, void
from numba.core.errors import NumbaError

from archsim.base import errors, own_code
from archsim.base.compiled import pointer
from archsim.serving import records, schedulers
from archsim.specs.schedulers import ARGUMENTS, is_function

Compiled = Any  # numba's pointer to a function of (state, k, now_ns, limits)


def compile_scheduler(
    name: str, params: Mapping[str, float], state: records.ServingState, limits: records.SchedulerLimits
) -> Compiled:
    """The scheduler that a file names, compiled; shipped ones are kept on disk. Raises ArchsimError for a user's
    function that numba cannot compile.
    """
    signature = void(_type_of(state), int64, float64, typeof(limits))
    if not is_function(name):
        return _shipped(getattr(schedulers, name), signature)
    try:
        own = own_code.import_function(name)
        return _of_user(own, _values(own, params), signature)
    except (NumbaError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]  # then numba's path
        raise errors.ArchsimError(f"scheduler: {name}: cannot be compiled: {' '.join(lines[:4])}") from None


def _type_of(state: records.ServingState) -> Any:
    """As `typeof`, which looks at the fields of every array anew: over a third of the time of a short simulation."""
    kinds = tuple(_kind(each.dtype, each.ndim) if each.flags.carray else typeof(each) for each in state)
    return types.BaseTuple.from_types(kinds, type(state))


@lru_cache(maxsize=64)
def _kind(dtype: np.dtype, dimensions: int) -> Any:
    return typeof(np.empty((0,) * dimensions, dtype))


@lru_cache(maxsize=16)
def _shipped(function: Callable[..., None], signature: Any) -> Compiled:
    """Read from disk once a process: reading it for every simulation took a fifth of the time of served samples."""
    return pointer(function, signature)


@lru_cache(maxsize=16)
def _of_user(own: Callable[..., None], values: tuple[float, ...], signature: Any) -> Compiled:
    """A user's function with its parameters, compiled once a process. ``failed`` stays set where it raises, which
    compiled code would pass over.
    """
    body = njit(boundscheck=True)(getattr(own, "py_func", own))

    def schedule(state, k, now_ns, limits):
        state.totals[0].failed = 1
        body(state, k, now_ns, limits, *values)
        state.totals[0].failed = 0

    return pointer(schedule, signature, cached=False)


def _values(own: Callable[..., None], params: Mapping[str, float]) -> tuple[float, ...]:
    named = list(inspect.signature(own).parameters.values())[ARGUMENTS:]
    return tuple(float(params.get(each.name, each.default)) for each in named)

"""Schedulers by name: the function of that name in `archsim.serving.schedulers`, or a user's own
``package.module:function``.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from numba import float64, int64, njit, typeof, void
from numba.core.errors import NumbaError

from archsim.base import errors, own_code
from archsim.base.compiled import pointer
from archsim.serving import records, schedulers
from archsim.specs.schedulers import ARGUMENTS, is_function

Compiled = Any  # numba's pointer to a function of (state, k, now_ns, limits)


def compile_scheduler(
    name: str, params: Mapping[str, float], state: records.ServingState, limits: records.SchedulerLimits
) -> Compiled:
    """The scheduler that a file names, for compiled code. Shipped ones are compiled once and kept on disk.

    Raises ArchsimError for a function of the user's that numba cannot compile.
    """
    signature = void(typeof(state), int64, float64, typeof(limits))
    if not is_function(name):
        return _shipped(getattr(schedulers, name), signature)
    try:
        own = own_code.import_function(name)
        return _of_user(own, _values(own, params), signature)
    except (NumbaError, ValueError) as error:
        raise errors.ArchsimError(f"scheduler: {name}: cannot be compiled: {_first_lines(error)}") from None


@lru_cache(maxsize=16)
def _shipped(function: Callable[..., None], signature: Any) -> Compiled:
    """Read from disk once a process: reading it for every simulation took a fifth of the time of served samples."""
    return pointer(function, signature)


@lru_cache(maxsize=16)
def _of_user(own: Callable[..., None], values: tuple[float, ...], signature: Any) -> Compiled:
    """A user's function with its parameters: compiled once a process, as a search simulates with it many times."""
    return pointer(_bound(own, values), signature, cached=False)


def _values(own: Callable[..., None], params: Mapping[str, float]) -> tuple[float, ...]:
    """Of the parameters of a user's function, in its order."""
    named = list(inspect.signature(own).parameters.values())[ARGUMENTS:]
    return tuple(float(params.get(each.name, each.default)) for each in named)


def _bound(
    own: Callable[..., None], values: tuple[float, ...]
) -> Callable[[records.ServingState, int, float, records.SchedulerLimits], None]:
    """With its parameters. ``failed`` stays set where it raises, which compiled code would pass over."""
    body = njit(boundscheck=True)(getattr(own, "py_func", own))

    def schedule(state, k, now_ns, limits):
        state.totals[0].failed = 1
        body(state, k, now_ns, limits, *values)
        state.totals[0].failed = 0

    return schedule


def _first_lines(error: Exception) -> str:
    """What numba says, without its path through the compiler."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4])

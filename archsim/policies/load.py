"""Loads: the input of every balancer, and two measures of how even a load is."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def checked_load(load: ArrayLike, shape: Sequence[str], name: str = "load") -> np.ndarray:
    """``load`` as float64[shape]; ValueError if not finite, negative, or of other dimensions."""
    array = np.asarray(load, dtype=np.float64)
    wanted = f"{name}[{', '.join(shape)}]"
    if array.ndim != len(shape):
        raise ValueError(f"{name} has {array.ndim} dimensions {array.shape}; expected {wanted}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name} has negative or non-finite entries; expected {wanted} of numbers >= 0")
    return array


def whole(array: np.ndarray) -> np.ndarray:
    """int64 where every entry is a whole number that float64 holds exactly, else ``array`` as it is."""
    return array.astype(np.int64) if (array == np.floor(array)).all() and (array < 2.0**53).all() else array


def checked_tokens(tokens: ArrayLike, shape: Sequence[str], name: str = "tokens") -> np.ndarray:
    """``tokens`` as int64[shape]; ValueError if any is negative or not whole, or the shape differs."""
    array = whole(checked_load(tokens, shape, name))
    if array.dtype != np.int64:
        raise ValueError(
            f"{name} has entries that are not whole numbers; expected {name}[{', '.join(shape)}] of whole tokens"
        )
    return array


def checked_count(value: int, name: str, least: int = 1) -> int:
    """``value`` as int; ValueError if it is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number >= {least}")
    return int(value)


def checked_name(value: str, name: str, known: Sequence[str]) -> str:
    """``value``; ValueError if it is none of ``known``."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value


def balancedness(load: ArrayLike) -> float | np.ndarray:
    """Mean / max of ``load[..., gpu]`` in (0, 1], 1.0 without load (CRAFT, 3.1). ValueError for negative loads."""
    mean, most = _mean_and_max(load)
    return _ratio(mean, most)


def imbalance(load: ArrayLike) -> float | np.ndarray:
    """Max / mean over the last axis of ``load[..., gpu]``, >= 1; 1.0 where there is no load (Libra, appendix A)."""
    mean, most = _mean_and_max(load)
    return _ratio(most, mean)


def _mean_and_max(load: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    array = np.atleast_1d(np.asarray(load, dtype=np.float64))
    checked_load(array, ("...",) * (array.ndim - 1) + ("gpu",))
    if array.shape[-1] == 0:
        raise ValueError(f"load has shape {array.shape}: it has no GPU; expected load[..., gpu] of one GPU or more")
    return array.mean(axis=-1), array.max(axis=-1)


def _ratio(above: np.ndarray, below: np.ndarray) -> float | np.ndarray:
    ratio = np.divide(above, below, out=np.ones_like(above), where=below > 0)
    return float(ratio) if ratio.ndim == 0 else ratio

"""Counts of logical experts, from counts of slots."""

from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec


def numbers(where: str, name: str, values: Any, *dimensions: int) -> np.ndarray:
    """Nested lists, or an array, as an array of numbers of one of these numbers of dimensions. Raises TraceError."""
    try:
        found = np.asarray(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind not in "iuf" or found.ndim not in dimensions:
        kind = f"{found.dtype}{list(found.shape)}" if found.dtype.kind != "O" else "uneven lists, or numbers above 2^64"
        raise TraceError(
            f"{where}: {name}: {kind}; expected numbers in nested lists of even lengths, "
            f"{' or '.join(map(str, dimensions))} dimensions"
        )
    return found


def logical_counts(where: str, model: ModelSpec, physical: np.ndarray, slots: Any, named: str) -> np.ndarray:
    """Counts of slots as counts of experts.

    physical: numbers [matrix, layer, slot]. slots: the expert in every slot [layer, slot], -1 for an empty one; None
    is refused. named: what the file calls the map. Raises TraceError.
    """
    if slots is None:
        raise TraceError(
            f"{where}: counts of physical slots without a map to experts; expected {named} [layer][slot] beside them"
        )
    slots = numbers(where, named, slots, 2)
    if slots.dtype.kind not in "iu" or slots.shape != physical.shape[1:]:
        raise TraceError(
            f"{where}: {named} is {slots.dtype}{list(slots.shape)}; expected integers {list(physical.shape[1:])}, as "
            "the counts [layer][slot]"
        )
    if slots.size and (slots.min() < -1 or slots.max() >= model.experts):
        raise TraceError(
            f"{where}: {named} has expert ids {slots.min()} to {slots.max()}; {model.name} has 0 to {model.experts - 1}"
        )
    logical = np.zeros((*physical.shape[:2], model.experts), physical.dtype)
    for layer, row in enumerate(slots):
        if physical[:, layer, row < 0].any():
            raise TraceError(f"{where}: an empty slot of row {layer} has counts; expected none where {named} is -1")
        np.add.at(logical[:, layer].T, row[row >= 0], physical[:, layer, row >= 0].T)
    return logical

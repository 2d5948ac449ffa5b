"""What importers of token-level routing hand over: batches of items that can be read side by side."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from archsim.specs.model import ModelSpec
from archsim.workload.formats.json_request import RequestRows

BATCH_BYTES = 16 << 20
"""A batch ends with the item that brings it to this size: what is in memory is a few batches per job."""


@dataclass(frozen=True)
class Item:
    """One request that is still to be read. where: for messages, and to recognise it when an import goes on.

    read(model, layer_ids or None) -> RequestRows; raises TraceError.
    """

    where: str
    dataset: str
    subject: str
    number: int
    size: int
    read: Callable[[ModelSpec, np.ndarray | None], RequestRows]


def grouped(items):
    """Lists of consecutive items of about BATCH_BYTES."""
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += item.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

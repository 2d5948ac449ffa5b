"""The blocks of a die combined: one transition table for the path of a request through all of them."""

from collections.abc import Iterable

import numpy as np

from microarch.blocks import atu, compute, global_cp, hbm, link, llc, local_cp, pdu
from microarch.blocks.request import Event, State, Table, Unit

REQUEST_BLOCKS = (atu, llc, hbm, link, pdu, compute)


def _merged(dictionaries: Iterable[dict]) -> dict:
    merged: dict = {}
    for each in dictionaries:
        assert not merged.keys() & each.keys(), "two blocks declare the same state"
        merged |= each
    return merged


TABLES = {
    block.__name__.rpartition(
        "."
    )[2]: Table(block.__name__.rpartition(".")[2], State, Event, tuple(block.SERVES), State.DONE, block.STEPS)
    for block in REQUEST_BLOCKS
} | {"local_cp": local_cp.TABLE, "global_cp": global_cp.TABLE}
REQUEST = Table(
    name="request", states=State, events=Event, initial=(State.LOOKUP, State.ACT_READ), final=State.DONE,
    steps=_merged(block.STEPS for block in REQUEST_BLOCKS),
)
SERVED_BY = _merged([*(block.SERVES for block in REQUEST_BLOCKS), {State.DONE: Unit.NONE}])

NEXT, SPAWN = REQUEST.arrays()  # int64[state, event]
UNIT = np.array([SERVED_BY[state] for state in State], dtype=np.int64)  # int64[state]

"""The blocks of a die combined: one transition table for the path of a request through all of them."""

import numpy as np

from microarch.blocks import atu, compute, global_cp, hbm, link, llc, local_cp, pdu
from microarch.blocks.block import TransitionTable
from microarch.blocks.request import Event, State, Unit

REQUEST_BLOCKS = (atu, llc, hbm, link, pdu, compute)


TABLES = {
    name: TransitionTable(name, State, Event, tuple(block.SERVES), State.DONE, block.STEPS)
    for name, block in ((block.__name__.rpartition(".")[2], block) for block in REQUEST_BLOCKS)
} | {"local_cp": local_cp.TABLE, "global_cp": global_cp.TABLE}
REQUEST = TransitionTable(
    name="request",
    states=State,
    events=Event,
    initial=(State.LOOKUP, State.ACT_READ),
    final=State.DONE,
    steps={at: step for block in REQUEST_BLOCKS for at, step in block.STEPS.items()},
)
SERVED_BY = {state: unit for block in REQUEST_BLOCKS for state, unit in block.SERVES.items()} | {State.DONE: Unit.NONE}
assert len(REQUEST.steps) == sum(len(block.STEPS) for block in REQUEST_BLOCKS), "two blocks declare the same state"

NEXT, SPAWN = REQUEST.arrays()  # int64[state, event]
UNIT = np.array([SERVED_BY[state] for state in State], dtype=np.int64)  # int64[state]

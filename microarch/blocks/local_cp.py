"""Local command processor of a die: its role in a step, from the first sub-kernel to sending the results.

It keeps up to the allowed number of slices in flight, holds those whose tokens have not arrived, and sends the results
when the last slice is computed. (Yu et al., ISCA 2026, arXiv 2510.05497v4, section V; design choices in
``docs/engine.md``.)

State layout: ``archsim.engine.local_cp.LOCAL_CP[die]`` (state, next and last slice to start, bundles and slices that
are left, slices held) and ``HELD[chain]`` (queue of those held).

FETCH: slices are fetched, tokens are in flight. EXECUTE: the tokens have arrived, slices are computed as they arrive.
COMBINE: all are computed, results travel to the dies on which their tokens live. A die that receives no tokens starts
in EXECUTE.
"""

from dataclasses import dataclass
from enum import IntEnum

from microarch.blocks.block import CHOICE, PAPER, NextState, TransitionTable, parameter


@dataclass(frozen=True)
class Parameters:
    """Limit of slices in flight on a die (``llc: segments``): as many whole slices as its LLC can hold."""

    llc_capacity_bytes: int = parameter(64 * 2**20, "llc.capacity", PAPER)
    segment_bytes: int = parameter(2**20, "llc.segment", CHOICE)


class State(IntEnum):
    FETCH = 0
    EXECUTE = 1
    COMBINE = 2


class Event(IntEnum):
    TOKENS = 0  # the last dispatched bundle has arrived
    LAST_DONE = 1  # the last routed slice has been computed


TABLE = TransitionTable(
    name="local_cp",
    states=State,
    events=Event,
    initial=(State.FETCH, State.EXECUTE),
    final=State.COMBINE,
    steps={
        (State.FETCH, Event.TOKENS): NextState(State.EXECUTE, action="release the slices held", latency="waits"),
        (State.EXECUTE, Event.LAST_DONE): NextState(State.COMBINE, action="send the results", latency="waits"),
    },
)
NEXT, _ = TABLE.arrays()  # int64[state, event]


def launch_ns(sub_kernels, clock_hz: float):
    """How long a Local CP takes to launch the sub-kernels of a step, from tokens to the first product.

    A cycle to decode each, as the Global CP takes to form one, and one to start the array; the hops of the command are
    those of the Global CP's DISPATCH.
    """
    return (sub_kernels + 1) * (1e9 / clock_hz)

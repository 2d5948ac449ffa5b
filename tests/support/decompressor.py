"""Decompressor of a die's D2D controller, a block from outside the package: slices travel compressed and are expanded
here.

State layout: none.
"""

from dataclasses import dataclass
from enum import IntEnum

from microarch.blocks import catalogue as blocks
from microarch.blocks.block import NextState, TransitionTable, parameter
from microarch.blocks.request import Event
from microarch.blocks.request import State as RequestState

State = IntEnum("State", [*RequestState.__members__, "EXPAND"], start=0)  # the states of a request, and one more
STEPS = {(State.EXPAND, Event.SERVED): NextState(State.COMPUTE, None, "expand the slice", "expand_ns")}


@dataclass(frozen=True)
class Parameters:
    """Speed of the decompressor."""

    expand_ns: float = parameter(500.0, "none: an example", "made up")


TABLE = TransitionTable("decompressor", State, Event, (State.EXPAND,), State.DONE, STEPS)


def expanding(step: NextState) -> NextState:
    """A step from the links to COMPUTE, redirected to EXPAND."""
    return step._replace(next=State.EXPAND)


REQUEST = TransitionTable(
    name="request",
    states=State,
    events=Event,
    initial=blocks.REQUEST.initial,
    final=State.DONE,
    steps={
        **blocks.REQUEST.steps,
        **{key: expanding(step) for key, step in blocks.REQUEST.steps.items() if key[0] == State.DATA},
        **STEPS,
    },
)

"""Local command processor of a die: its part of a step, from the first sub-kernel to the results on their way.

It starts as many slices as are in flight at a time, holds those back whose tokens have not come, and sends the results off
when the last one is computed. (Yu et al., ISCA 2026, arXiv 2510.05497v4, section V; design choices in ``docs/engine.md``.)

Transitions::

    state    event      next     spawns
    -------  ---------  -------  ------
    FETCH    TOKENS     EXECUTE
    EXECUTE  LAST_DONE  COMBINE

FETCH: slices are fetched, tokens are on their way. EXECUTE: the tokens are there, slices are computed as they come.
COMBINE: all are computed, results travel to the dies on which their tokens live. A die that no tokens are sent to begins
in EXECUTE.
"""

from __future__ import annotations

from enum import IntEnum

from microarch.fsm import Step, Table


class State(IntEnum):
    FETCH = 0
    EXECUTE = 1
    COMBINE = 2


class Event(IntEnum):
    TOKENS = 0  # the last dispatched bundle has arrived
    LAST_DONE = 1  # the last routed slice has been computed


TABLE = Table(
    name="local_cp",
    states=State,
    events=Event,
    initial=(State.FETCH, State.EXECUTE),
    final=State.COMBINE,
    steps={
        (State.FETCH, Event.TOKENS): Step(State.EXECUTE),
        (State.EXECUTE, Event.LAST_DONE): Step(State.COMBINE),
    },
)
NEXT, _ = TABLE.arrays()  # int64[state, event]

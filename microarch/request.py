"""What happens to one request: the weight slice that a sub-kernel needs, or a bundle of hidden vectors on its way.

The D2D controller, ATU, PDU, LLC, HBM and compute array of the dies serve it one after the other; each state
names the block that is busy with it (paper [W] section V, published simulator; see ``docs/assumptions.md``).

=========== ============================ =========================================================================
state       block                        what it does
=========== ============================ =========================================================================
LOOKUP      LLC port of the die          look for the slice in the local LLC, ask the ATU
LOCAL_HBM   HBM of the die               read the slice: the die is its home or holds a copy
REQUEST     links, die to home           command and address travel to the home
REMOTE_LLC  LLC port of the home         read the slice there
REMOTE_HBM  HBM of the home              read the slice there
DATA        links, home to die           the slice travels back
COMPUTE     compute array of the die     multiply the tokens with the slice
LLC_FILL    LLC port of the reader       the slice that came from HBM enters that die's LLC
COPY        HBM of the die               the PDU keeps the slice: it is written and entered in the ATU
ACT_READ    HBM of the source die        hidden vectors are read (dispatch: home of the tokens; combine: executor)
ACT_MOVE    links, source to target      they travel
ACT_WRITE   HBM of the target die        they are written
DONE        none                         nothing is left to do
=========== ============================ =========================================================================

Transitions::

    state       event   next        spawns
    ----------  ------  ----------  --------
    LOOKUP      HIT     COMPUTE
    LOOKUP      HERE    LOCAL_HBM
    LOOKUP      AWAY    REQUEST
    REQUEST     HIT     REMOTE_LLC
    REQUEST     MISS    REMOTE_HBM
    LOCAL_HBM   SERVED  COMPUTE     LLC_FILL
    REMOTE_LLC  SERVED  DATA
    REMOTE_HBM  SERVED  DATA        LLC_FILL
    DATA        SERVED  COMPUTE
    DATA        KEEP    COMPUTE     COPY
    COMPUTE     SERVED  DONE
    LLC_FILL    SERVED  DONE
    COPY        SERVED  DONE
    ACT_READ    SERVED  ACT_MOVE
    ACT_READ    HERE    DONE
    ACT_MOVE    SERVED  ACT_WRITE
    ACT_WRITE   SERVED  DONE
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from microarch.fsm import Step, Table, codes


class State(IntEnum):
    LOOKUP = 0
    LOCAL_HBM = 1
    REQUEST = 2
    REMOTE_LLC = 3
    REMOTE_HBM = 4
    DATA = 5
    COMPUTE = 6
    LLC_FILL = 7
    COPY = 8
    ACT_READ = 9
    ACT_MOVE = 10
    ACT_WRITE = 11
    DONE = 12


class Unit(IntEnum):
    """The block that serves a state."""

    PORT = 0
    HBM = 1
    COMPUTE = 2
    PATH = 3
    NONE = 4


SERVED_BY = {
    State.LOOKUP: Unit.PORT,
    State.LOCAL_HBM: Unit.HBM,
    State.REQUEST: Unit.PATH,
    State.REMOTE_LLC: Unit.PORT,
    State.REMOTE_HBM: Unit.HBM,
    State.DATA: Unit.PATH,
    State.COMPUTE: Unit.COMPUTE,
    State.LLC_FILL: Unit.PORT,
    State.COPY: Unit.HBM,
    State.ACT_READ: Unit.HBM,
    State.ACT_MOVE: Unit.PATH,
    State.ACT_WRITE: Unit.HBM,
    State.DONE: Unit.NONE,
}


class Event(IntEnum):
    SERVED = 0  # the block has done its part
    HIT = 1  # the LLC holds the slice
    MISS = 2  # the home's LLC does not
    HERE = 3  # what is wanted lies in this die's HBM
    AWAY = 4  # it lies in another die's
    KEEP = 5  # served, and the PDU keeps a copy


TABLE = Table(
    name="request",
    states=State,
    events=Event,
    initial=(State.LOOKUP, State.ACT_READ),
    final=State.DONE,
    steps={
        (State.LOOKUP, Event.HIT): Step(State.COMPUTE),
        (State.LOOKUP, Event.HERE): Step(State.LOCAL_HBM),
        (State.LOOKUP, Event.AWAY): Step(State.REQUEST),
        (State.REQUEST, Event.HIT): Step(State.REMOTE_LLC),
        (State.REQUEST, Event.MISS): Step(State.REMOTE_HBM),
        (State.LOCAL_HBM, Event.SERVED): Step(State.COMPUTE, State.LLC_FILL),
        (State.REMOTE_LLC, Event.SERVED): Step(State.DATA),
        (State.REMOTE_HBM, Event.SERVED): Step(State.DATA, State.LLC_FILL),
        (State.DATA, Event.SERVED): Step(State.COMPUTE),
        (State.DATA, Event.KEEP): Step(State.COMPUTE, State.COPY),
        (State.COMPUTE, Event.SERVED): Step(State.DONE),
        (State.LLC_FILL, Event.SERVED): Step(State.DONE),
        (State.COPY, Event.SERVED): Step(State.DONE),
        (State.ACT_READ, Event.SERVED): Step(State.ACT_MOVE),
        (State.ACT_READ, Event.HERE): Step(State.DONE),
        (State.ACT_MOVE, Event.SERVED): Step(State.ACT_WRITE),
        (State.ACT_WRITE, Event.SERVED): Step(State.DONE),
    },
)

NEXT, SPAWN = TABLE.arrays()
UNIT = np.array([SERVED_BY[state] for state in State], dtype=np.int64)

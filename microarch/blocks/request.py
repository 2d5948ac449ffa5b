"""What happens to one request: the weight slice that a sub-kernel needs, or a bundle of hidden vectors on its way.

The D2D controller, ATU, PDU, LLC, HBM and compute array of the dies serve it one after the other; each state
names the block that is busy with it (paper [W] section V, published simulator; see ``docs/assumptions.md``).

=========== ============================ =========================================================================
state       block                        what it does
=========== ============================ =========================================================================
LOOKUP      LLC port of the die          look the slice up in the local LLC and the ATU
LOCAL_HBM   HBM of the die               read the slice: the die is its home or holds a copy
REQUEST     links, die to home           command and address travel to the home
REMOTE_LLC  LLC port of the home         read the slice there
REMOTE_HBM  HBM of the home              read the slice there
DATA        links, home to die           the slice travels back
COMPUTE     compute array of the die     multiply the tokens with the slice
LLC_FILL    LLC port of the reader       the slice that came from HBM enters that die's LLC
COPY        HBM of the die               the PDU keeps the slice: it is written and entered in the ATU
ACT_READ    HBM of the source die        hidden vectors are read (dispatch: home of the tokens; combine: executor)
ACT_MOVE    links, source to target      hidden vectors travel
ACT_WRITE   HBM of the target die        hidden vectors are written
DONE        none                         the request is complete
=========== ============================ =========================================================================

Each block declares the transitions of the states that it serves; ``microarch.blocks.catalogue`` combines them.
"""

from enum import IntEnum

from microarch.blocks.block import codes


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


class Event(IntEnum):
    SERVED = 0  # the block is done
    HIT = 1  # the LLC holds the slice
    MISS = 2  # the home's LLC does not
    HERE = 3  # the slice is in this die's HBM
    AWAY = 4  # it is in another die's
    KEEP = 5  # served, and the PDU keeps a copy


# States and events of a request as int64 constants, for compiled kernels.

(
    LOOKUP,
    LOCAL_HBM,
    REQUEST,
    REMOTE_LLC,
    REMOTE_HBM,
    DATA,
    COMPUTE,
    LLC_FILL,
    COPY,
    ACT_READ,
    ACT_MOVE,
    ACT_WRITE,
    DONE,
) = codes(State)
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)

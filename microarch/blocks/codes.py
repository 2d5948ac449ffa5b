"""States and events of a request (``microarch.blocks.request``) as int64 constants, for compiled kernels."""

from microarch.blocks.request import Event, State
from microarch.blocks.state_machine import codes

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

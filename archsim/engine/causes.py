"""Which cause the time of a state of a request has."""

import numpy as np

from archsim.base.causes import Cause
from microarch.blocks.request import State

_CAUSES = {
    State.LOOKUP: Cause.LLC,
    State.LOCAL_HBM: Cause.HBM,
    State.REQUEST: Cause.LINK,
    State.REMOTE_LLC: Cause.LLC,
    State.REMOTE_HBM: Cause.HBM,
    State.DATA: Cause.LINK,
    State.COMPUTE: Cause.COMPUTE,
    State.LLC_FILL: Cause.LLC,
    State.COPY: Cause.HBM,
    State.ACT_READ: Cause.ACTIVATIONS,
    State.ACT_MOVE: Cause.ACTIVATIONS,
    State.ACT_WRITE: Cause.ACTIVATIONS,
    State.DONE: Cause.LLC,  # takes no time
}
CAUSE_OF = np.array([_CAUSES[state] for state in State], np.int64)  # by state, for kernels

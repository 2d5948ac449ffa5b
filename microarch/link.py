"""Die-to-die links: what crosses the mesh. Requests ask, slices answer, hidden vectors go out and come back.

Transitions (those of DATA are the PDU's, which looks at what arrives)::

    state     event   next        spawns
    --------  ------  ----------  ------
    REQUEST   HIT     REMOTE_LLC
    REQUEST   MISS    REMOTE_HBM
    ACT_MOVE  SERVED  ACT_WRITE
"""

from __future__ import annotations

from microarch.fsm import Step
from microarch.request import Event, State, Unit

SERVES = {State.REQUEST: Unit.PATH, State.ACT_MOVE: Unit.PATH}
STEPS = {
    (State.REQUEST, Event.HIT): Step(State.REMOTE_LLC),
    (State.REQUEST, Event.MISS): Step(State.REMOTE_HBM),
    (State.ACT_MOVE, Event.SERVED): Step(State.ACT_WRITE),
}

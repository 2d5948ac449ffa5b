"""Compute array of a die: multiplies a sub-kernel's tokens with one weight slice at a time.

Transitions::

    state    event   next  spawns
    -------  ------  ----  ------
    COMPUTE  SERVED  DONE
"""

from __future__ import annotations

from microarch.fsm import Step
from microarch.request import Event, State, Unit

SERVES = {State.COMPUTE: Unit.COMPUTE}
STEPS = {(State.COMPUTE, Event.SERVED): Step(State.DONE)}

"""Predictive Data Unit of a die's D2D controller: keeps a copy of a slice that passes, if the Global CP predicts its use.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V: when remote data returns, the PDU looks at the ``cp_en`` bit of the
expert and at whether it is local already, and may write the slice to the local HBM and enter it in the ATU.

Transitions::

    state  event   next     spawns
    -----  ------  -------  ------
    DATA   SERVED  COMPUTE
    DATA   KEEP    COMPUTE  COPY
"""

from __future__ import annotations

from archsim.kernels import inner
from microarch.fsm import Step, codes
from microarch.request import Event, State, Unit

SERVES = {State.DATA: Unit.PATH}
STEPS = {
    (State.DATA, Event.SERVED): Step(State.COMPUTE),
    (State.DATA, Event.KEEP): Step(State.COMPUTE, State.COPY),
}
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)


@inner
def decide(cp_en, copies, entry, key):
    """KEEP or SERVED for a slice that has arrived from another die. ``cp_en: uint8[die, expert]``."""
    if cp_en[entry.die, entry.expert] and not copies.present[entry.die, key]:
        return KEEP
    return SERVED

"""Address Translation Unit of a die's D2D controller: redirects a read to where the slice lies nearest.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V: a read of a remote slice passes the D2D controller, whose ATU
redirects it to the local HBM if the die holds a copy. What it knows is the table of copies (``microarch.hbm.Copies``).

Transitions::

    state   event  next       spawns
    ------  -----  ---------  ------
    LOOKUP  HIT    COMPUTE
    LOOKUP  HERE   LOCAL_HBM
    LOOKUP  AWAY   REQUEST
"""

from __future__ import annotations

from archsim.kernels import inner
from microarch import hbm, llc
from microarch.fsm import Step, codes
from microarch.request import Event, State, Unit

SERVES = {State.LOOKUP: Unit.PORT}
STEPS = {
    (State.LOOKUP, Event.HIT): Step(State.COMPUTE),
    (State.LOOKUP, Event.HERE): Step(State.LOCAL_HBM),
    (State.LOOKUP, Event.AWAY): Step(State.REQUEST),
}
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)


@inner
def look_up(llc_tags, copies, entry, key):
    """HIT, HERE or AWAY: in the local LLC, in the local HBM (home or copy), or elsewhere. A copy that is read is touched.

    ``entry.look_here`` is 0 where no copies are made and the die is not the home: then only the home is asked.
    """
    if not entry.look_here:
        return AWAY
    if llc.holds(llc_tags, entry.die, entry.expert, key):
        return HIT
    if entry.die == entry.home:
        return HERE
    if copies.present[entry.die, key]:
        hbm.touch(copies, entry.die, key)
        return HERE
    return AWAY

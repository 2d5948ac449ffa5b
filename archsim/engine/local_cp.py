"""The Local CPs of a step: their state, the chains that wait for tokens, and the transitions that are logged."""

import numpy as np

from archsim.base import compiled
from microarch.blocks.block import codes
from microarch.blocks.local_cp import NEXT as LOCAL_NEXT
from microarch.blocks.local_cp import Event, State

FETCH, EXECUTE, _ = codes(State)
TOKENS, LAST_DONE = codes(Event)

LOCAL_CP = np.dtype(
    [
        ("state", "i8"),  # microarch.blocks.local_cp.State
        ("next_chain", "i8"),  # next of the step's ``chains`` to start on the die
        ("end_chain", "i8"),  # start of the next die's chains
        ("moves_left", "i8"),  # dispatch bundles that have not arrived
        ("routed_left", "i8"),  # routed chains that have not ended
        ("held", "i8"),  # first chain that waits for dispatched tokens, -1 if none
        ("held_last", "i8"),
        ("launch_ns", "f8"),  # from the arrival of the tokens to the first routed product
        ("launched_ns", "f8"),  # its end, on the clock of the step; without tokens to wait for, from 0 on
    ],
    align=True,
)
HELD = np.dtype([("floor", "f8"), ("next", "i8")], align=True)
NOTE = np.dtype([("time_ns", "f8"), ("die", "i8"), ("state", "i8"), ("event", "i8"), ("next", "i8")], align=True)
NO_NOTES = np.zeros(0, NOTE)


@compiled.inner
def awaits_tokens(work, die):
    """Whether tokens that were sent to the die are still on their way."""
    return work.local[die].state == FETCH


@compiled.inner
def _tell(work, die, event, now):
    local, last = work.local[die], len(work.notes) - 1
    before = local.state
    local.state = LOCAL_NEXT[before, event]
    if last >= 0:
        note = work.notes[work.notes[last].next]
        work.notes[last].next += 1
        note.time_ns, note.die, note.state, note.event, note.next = now, die, before, event, local.state


@compiled.inner
def count_arrived(work, die, now):
    """A dispatched bundle has arrived; True if it was the die's last one."""
    local = work.local[die]
    local.moves_left -= 1
    if local.moves_left > 0:
        return False
    _tell(work, die, TOKENS, now)
    return True


@compiled.inner
def count_computed(work, die, now):
    """A routed slice has been computed; True if it was the die's last one."""
    local = work.local[die]
    local.routed_left -= 1
    if local.routed_left > 0:
        return False
    _tell(work, die, LAST_DONE, now)
    return True


@compiled.inner
def hold(work, die, chain):
    """Queue the chain for dispatched tokens, behind the waiting chains of its die."""
    local = work.local[die]
    work.held[chain].next = -1
    if local.held < 0:
        local.held = chain
    else:
        work.held[local.held_last].next = chain
    local.held_last = chain

"""The compute array of a die under ``contention: shared``: when it takes a slice, and how long that holds it.

A product counts as begun when its slice was asked for and the array is idle; it multiplies when bytes are there, too
(``archsim.engine.state.begun_ns``, ``multiplied_ns``).
"""

from archsim.base.kernels import inner, outer
from archsim.engine.event.transfers import HAS_ROOM, IS_COMPUTED, NOBODY, set_timer
from archsim.engine.state import SLICES, begun_ns, launched_ns, multiplied_ns


@outer
def start_array(pool, work, resources, die, now):
    """The compute array, if idle, takes the next slice; a routed one waits there for the launch of its kernel."""
    array = pool.dies[die]
    if array.running >= 0 or array.first < 0:
        return
    chain = array.first
    array.first, array.running = pool.chains[chain].next, chain
    stage = pool.chains[chain].stage
    row = pool.stages[stage]
    entry, ready = work.entries[chain // SLICES], pool.chains[chain].ready
    launched = launched_ns(work, entry)
    array.begun = begun_ns(array.free, ready, launched)
    ends, row.bound_from = multiplied_ns(entry, array.begun, max(now, launched)), now
    if now <= array.free or ends <= array.begun + entry.compute_ns:  # bound by the array, not by the slice's bytes
        row.bound_from = max(array.free, ready)
        if array.free > ready and array.latest >= 0:
            row.cause = array.latest
    resources[die].wait_ns += now - row.time
    row.time, array.latest = now, stage
    set_timer(pool, stage, ends, IS_COMPUTED)
    watch_room(pool, entry, array, stage, max(now, launched))


@inner
def watch_room(pool, entry, array, stage, now):
    """Set a timer for when the slice that the array works on has left enough room for the next one. It leaves room
    evenly until it is multiplied.
    """
    lacking, taken = array.ask_from - array.room, pool.chains[pool.stages[stage].item].taken
    if array.unasked > 0 and lacking < taken:
        left = entry.compute_ns * (entry.read_bytes - taken + lacking) / entry.read_bytes
        set_timer(pool, stage, max(now, array.begun + left), HAS_ROOM)


@inner
def leave_array(pool, die, now):
    pool.dies[die].running, pool.dies[die].free = NOBODY, now

"""One step, slice by slice: every transfer is booked once, when it is requested, and never revisited.

Where slices come from is in ``archsim.engine.analytic.slices``, how transfers are booked in ``shares`` (``contention:
shared``) and ``holds`` (``reserved``). A die has ``window`` slices in flight; its array takes them in the order in
which their first segments arrive, as in the event engine, and each slice computed makes room for the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner, kernel
from archsim.engine.analytic.holds import begin_held, combine_held, fetch_held, stored_held
from archsim.engine.analytic.shares import begin_shared, combine_shared, fetch_shared, stored_shared
from archsim.engine.analytic.slices import BOOKED, DIE, FETCHED, HBMS, Walk, rate, store, take_next
from archsim.engine.state import SLICES, Machine, Memory, Work


@inner
def _first_done(s):
    first = np.int64(0)
    for die in range(1, s.machine.dies):
        if s.dies[die].done < s.dies[first].done:
            first = die
    return first


@inner
def _leave_copies(s, end):
    """Leave copies that are booked beyond the end of the step to the next one."""
    for die in range(s.machine.dies):
        hbm = HBMS * s.machine.dies + die
        late_ns = max(0.0, s.booked[hbm].free - end)
        s.memory.copies.room[die].unwritten_bytes = np.int64(late_ns * rate(s.machine, hbm))


@inner
def _walk(s, begin, fetch, stored, combine):
    """Walk the step with these booking functions; returns when the last booking ends."""
    local, end = s.work.local, 0.0
    begin(s)
    for die in range(s.machine.dies):
        end = max(end, s.dies[die].tokens)
        take_next(s, die)
    die = _first_done(s)
    while s.dies[die].done < np.inf:
        row = s.dies[die]
        now, chain = row.done, s.flying[die, row.taken]
        entry = s.work.entries[chain // SLICES]
        row.array = now
        row.busy += entry.compute_ns
        store(s, chain)
        end = max(end, now, stored(s, chain))
        if local[die].next_chain < local[die].end_chain:
            following = s.work.chains[local[die].next_chain]
            local[die].next_chain += 1
            s.flying[die, row.taken] = following
            fetch(s, following, now)
        else:
            row.flying -= 1
            s.flying[die, row.taken] = s.flying[die, row.flying]
        if entry.routed:
            local[die].routed_left -= 1
            if local[die].routed_left == 0:
                end = max(end, combine(s, die, now))
        take_next(s, die)
        die = _first_done(s)
    if s.machine.copies_in_background:
        _leave_copies(s, end)
    return end


@kernel
def _walk_shared(s):
    return _walk(s, begin_shared, fetch_shared, stored_shared, combine_shared)


@kernel
def _walk_held(s):
    return _walk(s, begin_held, fetch_held, stored_held, combine_held)


WALKS = {"shared": _walk_shared, "reserved": _walk_held}


class Walked(NamedTuple):
    """A walked step: ``fetches`` FETCHED[chain], ``dies`` DIE[die] at its end, ``ns`` its duration."""

    fetches: np.ndarray
    dies: np.ndarray
    ns: float


def walk_step(machine: Machine, work: Work, memory: Memory, contention: str) -> Walked:
    """Walk a step; modifies ``work.local`` and ``memory``."""
    most = int((work.local["end_chain"] - work.local["next_chain"]).max(initial=0))
    flying = np.zeros((machine.dies, max(1, min(most, machine.window))), np.int64)
    fetches, dies = np.zeros(len(work.chains), FETCHED), np.zeros(machine.dies, DIE)
    booked = np.zeros(machine.resources, BOOKED)
    state = Walk(machine, work, memory, fetches, booked, dies, flying, np.zeros(len(work.chains), np.int64))
    return Walked(fetches, dies, WALKS[contention](state))

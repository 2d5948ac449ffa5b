"""One step, slice by slice: every transfer is booked once, when it is requested, and never revisited.

Where slices come from is in `archsim.engine.analytic.slices`, how transfers are booked in `bookings` (``contention:
shared``) and `holds` (``reserved``), the walk under ``reads: in_order`` in `turns`. A die has
``window`` slices in flight; its array takes them in the order in which their first segments arrive, as in the event
engine, and each slice computed makes room for the next.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, reference
from archsim.engine.analytic import bookings, holds, slices, turns
from archsim.engine.event.heaps import time_bits
from archsim.engine.state import Machine, Memory, StepWork, room_for_slices, room_of, room_to_ask


@inner
def _first_done(s, die, done):
    """The first of all dies. ``done``: when ``die`` is, written after the look at all, which need not wait for it."""
    soonest = time_bits(np.inf)
    for each in range(s.machine.dies):  # of integers, as processors take the least of several at once
        soonest = min(soonest, time_bits(s.done[each]))
    first = np.uint64(0)
    while time_bits(s.done[first]) != soonest:
        first += np.uint64(1)
    s.done[die] = done
    if done < s.done[first] or (done == s.done[first] and die < np.int64(first)):
        return die
    return np.int64(first)


@inner
def _ask(s, die, entry, fetch, now):
    """The slice of ``entry`` has left room, evenly, until it was multiplied: ask for others."""
    row, local, place = s.dies[die], s.work.local[die], s.dies[die].taken
    freed, least = room_of(s.machine, entry), room_to_ask(s.machine)
    while local.next_chain < local.end_chain and row.room + freed >= least:
        following, lacking = s.work.chains[local.next_chain], least - row.room
        local.next_chain += 1
        row.room -= room_of(s.machine, slices.entry_of(s, following))
        s.flying[die, place] = following
        place = row.flying
        row.flying += 1
        left = max(row.from_ns, row.began + entry.compute_ns * lacking / freed)
        fetch(s, following, left if lacking < freed else now)
    row.room += freed
    row.flying -= 1
    if place == row.taken:  # none was asked for
        s.flying[die, place] = s.flying[die, row.flying]


@inner
def walk(s, begin, fetch, stored, combine):
    """Walk the step with these booking functions; returns when the last booking ends."""
    s = reference(s)
    local, end = s.work.local, 0.0
    for die in range(s.machine.dies):
        s.dies[die].room = room_for_slices(s.machine)
    begin(s)
    for die in range(s.machine.dies):
        end = max(end, s.dies[die].tokens)
        s.done[die] = slices.take_next(s, die)
    die = _first_done(s, np.int64(0), s.done[0])
    while s.done[die] < np.inf:
        row = s.dies[die]
        now, chain = s.done[die], s.flying[die, row.taken]
        s.done[die] = np.inf
        entry = slices.entry_of(s, chain)
        row.array = max(row.array, now)
        row.busy += entry.compute_ns
        slices.store(s, chain)
        end = max(end, now, stored(s, chain))
        _ask(s, die, entry, fetch, now)
        if entry.routed:
            local[die].routed_left -= 1
            if local[die].routed_left == 0:
                end = max(end, combine(s, die, now))
        die = _first_done(s, die, slices.take_next(s, die))
    if s.machine.copies_in_background:
        slices.leave_copies(s, end)
    return end


@kernel
def _walk_shared(s):
    return walk(s, bookings.begin_shared, bookings.fetch_shared, bookings.stored_shared, bookings.combine_shared)


@kernel
def _walk_held(s):
    return walk(s, holds.begin_held, holds.fetch_held, holds.stored_held, holds.combine_held)


WALKS = {"together": _walk_shared, "in_order": turns.walk_turns, "queued": turns.walk_turns, "reserved": _walk_held}


def walk_strategy(assumptions) -> str:
    """The strategy of ``WALKS`` for a set of assumptions."""
    if assumptions.contention != "shared":
        return assumptions.contention
    return "queued" if assumptions.reads == "in_order" and assumptions.source == "queued" else assumptions.reads


class WalkedStep(NamedTuple):
    """A walked step: ``fetches`` FETCHED[chain], ``dies`` BOOKED_DIE[die] at its end, ``ns`` its duration."""

    fetches: np.ndarray
    dies: np.ndarray
    ns: float


def walk_step(machine: Machine, work: StepWork, memory: Memory, strategy: str) -> WalkedStep:
    """Walk a step by a strategy of ``WALKS``; modifies ``work.local`` and ``memory``."""
    state = begun(machine, work, memory, strategy)
    return WalkedStep(state.fetches, state.dies, WALKS[strategy](state))


def begun(machine: Machine, work: StepWork, memory: Memory, strategy: str) -> slices.Walk:
    """The state of a walk before its step, with what starts with it at any rates."""
    most = int((work.local["end_chain"] - work.local["next_chain"]).max(initial=0))
    if machine.stream_bytes:
        room = 2 + machine.stream_bytes // int(work.entries["read_bytes"].min(initial=machine.slice_bytes))
    else:
        room = machine.window
    state = slices.Walk(
        machine, work, memory, fetches=np.zeros(len(work.chains), slices.FETCHED),
        booked=np.zeros(machine.resources, slices.BOOKED), dies=np.zeros(machine.dies, slices.BOOKED_DIE),
        done=np.zeros(machine.dies), flying=np.zeros((machine.dies, 1 + max(1, min(most, room))), np.int64),
        lines=np.zeros((machine.dies, machine.dies)), calendar=np.zeros(len(work.chains), np.int64),
        queued=strategy == "queued",
    )  # fmt: skip
    bookings.count_moves(state)
    return state

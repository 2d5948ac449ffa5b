"""What a walk knows of slices, resources and dies, and what blocks decide about a slice wherever its time comes from.

Look-ups, redirections, copies and contents of LLCs follow from the same functions of the hardware blocks as in the event
kernels (``microarch.blocks.atu``, ``llc``, ``pdu``, ``hbm``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner, outer
from archsim.engine.state import SLICES, UNITS, Machine, Memory, Work
from microarch.blocks import atu, hbm, llc, pdu
from microarch.blocks.request import Event
from microarch.blocks.state_machine import codes

SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)
FROM_LLC, FROM_HBM, FROM_HOME_LLC, FROM_HOME_HBM = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
HBMS, ARRAYS = np.int64(1), np.int64(2)  # units, in the numbering of resources
NOBODY = np.int64(-1)

FETCHED = np.dtype(
    [
        ("time", "f8"),  # its bytes may begin to flow; then, its data may leave the home
        ("first", "f8"),  # its first segment is there
        ("last", "f8"),  # all of it is there
        ("tie", "i8"),  # the chain: of equal times, the lower one is first
        ("way", "i8"),  # FROM_…
        ("unknown", "i8"),  # 1 where the ATU had to ask the HBM
        ("kept", "i8"),  # 1 where the PDU kept a copy
    ],
    align=True,
)
BOOKED = np.dtype(
    [
        ("free", "f8"),  # when what is booked on the resource ends
        ("moves", "f8"),  # bytes of hidden vectors among what begins with the step
        ("weights", "f8"),  # bytes of slices among it
        ("slices", "f8"),  # and how many those are
    ],
    align=True,
)
DIE = np.dtype(
    [
        ("tokens", "f8"),  # all dispatched tokens are there
        ("array", "f8"),  # the compute array is free
        ("busy", "f8"),  # how long it has computed
        ("held", "f8"),  # how long it has waited for tokens while slices were there
        ("done", "f8"),  # it is done with the slice that it takes next
        ("taken", "i8"),  # that slice: its place among those in flight
        ("flying", "i8"),  # slices in flight
    ],
    align=True,
)


class Walk(NamedTuple):
    """All that a walk works on. Times are in ns from the begin of the step."""

    machine: Machine
    work: Work
    memory: Memory
    fetches: np.ndarray  # FETCHED[chain]
    booked: np.ndarray  # BOOKED[resource]
    dies: np.ndarray  # DIE[die]
    flying: np.ndarray  # int64[die, most slices in flight]
    calendar: np.ndarray  # int64[chain]: heap of slices by ``time``


@inner
def rate(machine, resource):
    """Bytes per ns of an HBM, or of a link where links are full duplex (``contention: shared``)."""
    if resource < ARRAYS * machine.dies:
        return machine.hbm_bytes_per_ns
    return machine.link_rates[resource - UNITS * machine.dies]


@inner
def route_group(machine, src, dst):
    """Row of ``Machine.group_ptr`` of a route."""
    return UNITS * machine.dies + src * machine.dies + dst


@inner
def bytes_of(s, chain):
    """Bytes that a fetch moves: with those that a local read carries along, or those of the slice."""
    return s.work.entries[chain // SLICES].read_bytes if s.fetches[chain].way == FROM_HBM else s.machine.slice_bytes


@outer
def look_up(s, chain, now):
    """Ask the die's LLC and its ATU where the slice is; ``time``: when the answer is there."""
    machine, entry, fetch = s.machine, s.work.entries[chain // SLICES], s.fetches[chain]
    event = atu.look_up(s.memory.llc_tags, s.memory.copies, entry, entry.key + chain % SLICES)
    fetch.unknown = fetch.kept = 0
    fetch.time = now + (machine.llc_hit_ns if event == HIT else machine.llc_miss_ns)
    if event != HIT and not atu.knows(s.memory.atu, entry, entry.key // SLICES):
        fetch.unknown = 1
        fetch.time += machine.hbm_latency_ns
    fetch.way = FROM_LLC if event == HIT else FROM_HBM if event == HERE else FROM_HOME_HBM


@outer
def ask_home(s, chain):
    """The request has reached the home: its LLC may have what its HBM has."""
    entry, fetch = s.work.entries[chain // SLICES], s.fetches[chain]
    if llc.holds(s.memory.llc_tags, entry.home, entry.expert, entry.key + chain % SLICES):
        fetch.way = FROM_HOME_LLC
        fetch.time += s.machine.llc_hit_ns


@outer
def arrive(s, chain, first, last):
    """Note when the slice is there; if it came from another die, the PDU decides whether to keep it."""
    entry, fetch = s.work.entries[chain // SLICES], s.fetches[chain]
    fetch.first, fetch.last = first, last
    if fetch.way >= FROM_HOME_LLC:
        key = entry.key + chain % SLICES
        fetch.kept = pdu.decide(s.work.cp_en, s.work.cp_ready_ns, s.memory.copies, entry, key, last) == KEEP


@inner
def store(s, chain):
    """What was read enters the LLC of the die that read it, and the HBM of the die that keeps it."""
    entry, fetch = s.work.entries[chain // SLICES], s.fetches[chain]
    key = entry.key + chain % SLICES
    if fetch.way == FROM_HBM or fetch.way == FROM_HOME_HBM:
        llc.store(s.memory.llc_tags, entry.die if fetch.way == FROM_HBM else entry.home, entry.expert, key)
    if fetch.kept:
        fetch.kept = hbm.keep(s.memory.copies, entry.die, key, s.machine.slice_bytes)


@outer
def take_next(s, die):
    """Which slice in flight the compute array takes next, when it will be done with it (infinity: none), and what it waits for."""
    row, best, ready, ready_first = s.dies[die], NOBODY, np.inf, np.inf
    for place in range(row.flying):
        chain = s.flying[die, place]
        first = s.fetches[chain].first
        at = max(first, row.tokens) if s.work.entries[chain // SLICES].routed else first
        if at < ready or (at == ready and first < ready_first):
            best, ready, ready_first = place, at, first
    row.taken, row.done = best, np.inf
    if best >= 0:
        chain = s.flying[die, best]
        row.held += max(0.0, ready - max(row.array, ready_first))
        entry = s.work.entries[chain // SLICES]
        row.done = max(max(row.array, ready) + entry.compute_ns, s.fetches[chain].last + entry.drain_ns)

"""State of a walk (slices, resources, dies), and what the blocks (``microarch.blocks``) decide about a slice."""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, outer, unsigned
from archsim.engine.state import UNITS, Machine, Memory, StepWork, begun_ns, multiplied_ns, room_of, room_to_ask
from microarch.blocks import atu, block, hbm, llc, pdu, request
from microarch.blocks.hbm import SLICES

SERVED, HIT, MISS, HERE, AWAY, KEEP = block.codes(request.Event)
FROM_LLC, FROM_HBM, FROM_HOME_LLC, FROM_HOME_HBM = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
HBMS, ARRAYS = np.int64(1), np.int64(2)  # units, in the numbering of resources
NOBODY = np.int64(-1)

FETCHED = np.dtype(
    [
        ("asked", "f8"),  # when it was looked up
        ("time", "f8"),  # earliest start of its transfer; then, when its data may leave the home
        ("first", "f8"),  # arrival of its first segment
        ("last", "f8"),  # arrival of all of it
        ("tie", "i8"),  # the chain: breaks ties of time, lower first
        ("way", "i8"),  # FROM_…
        ("unknown", "i8"),  # 1 where the ATU had to query the HBM
        ("kept", "i8"),  # 1 where the PDU kept a copy
    ],
    align=True,
)
BOOKED = np.dtype(
    [
        ("free", "f8"),  # end of the last booking on the resource
        ("moves", "f8"),  # bytes of hidden vectors that start with the step
        ("weights", "f8"),  # bytes of slices that start with the step
        ("slices", "f8"),  # number of those slices
        ("bundles", "f8"),  # number of those hidden vectors' bundles
        ("soonest", "f8"),  # when the first transfer of a turn may pass it (reads: in_order, as the next two)
        ("served", "f8"),  # time that it takes for all it was booked for
        ("returned", "f8"),  # end of the last result's booking
    ],
    align=True,
)
BOOKED_DIE = np.dtype(
    [
        ("tokens", "f8"),  # arrival of the last dispatched tokens
        ("array", "f8"),  # when the last slice was multiplied
        ("free", "f8"),  # when the compute array may take the next one
        ("busy", "f8"),  # time it has computed
        ("launch", "f8"),  # time it has waited for the launch of its kernel while slices were ready
        ("held", "f8"),  # time it has waited for tokens while slices were ready
        ("began", "f8"),  # when its product counts as begun
        ("from_ns", "f8"),  # from when on it is multiplied
        ("room", "f8"),  # left for slices, see archsim.engine.state.room_for_slices
        ("leaving", "f8"),  # room that the slice multiplied last leaves (reads: in_order, as the next three)
        ("asks", "f8"),  # when it has asked for its last slice
        ("done", "f8"),  # end of the slice multiplied last
        ("results", "f8"),  # when its last routed slice was multiplied
        ("taken", "i8"),  # that slice: its index among those in flight
        ("flying", "i8"),  # slices in flight
    ],
    align=True,
)


class Walk(NamedTuple):
    """State of a walk. Times are in ns from the start of the step."""

    machine: Machine  # rates and sizes of the run
    work: StepWork  # of the step
    memory: Memory  # LLCs, copies, translations
    fetches: np.ndarray  # FETCHED[chain]
    booked: np.ndarray  # BOOKED[resource]
    dies: np.ndarray  # BOOKED_DIE[die]
    done: np.ndarray  # float64[die]: when it finishes the slice that it takes next
    flying: np.ndarray  # int64[die, most slices in flight]
    lines: np.ndarray  # float64[source, reader]: when the last byte asked for has passed (reads: in_order)
    calendar: np.ndarray  # int64[chain]: heap of slices by ``time``
    queued: bool  # under ``source: queued`` (reads: in_order)


@inner
def entry_of(s, chain):
    return s.work.entries[unsigned(chain) // unsigned(SLICES)]


@inner
def key_of(entry, chain):
    return entry.key + np.int64(unsigned(chain) % unsigned(SLICES))


@inner
def rate(machine, resource):
    """Bytes per ns of an HBM, or of a link where links are full duplex (``contention: shared``)."""
    if resource < ARRAYS * machine.dies:
        return machine.hbm_rates[resource - HBMS * machine.dies]
    return machine.link_rates[resource - UNITS * machine.dies]


@inner
def source_of(s, chain):
    entry = entry_of(s, chain)
    return entry.die if s.fetches[chain].way == FROM_HBM else entry.home


@inner
def bytes_of(s, chain):
    """Bytes that a fetch moves: those of the slice, or of a local read with what it carries along."""
    return entry_of(s, chain).read_bytes if s.fetches[chain].way == FROM_HBM else s.machine.slice_bytes


@outer
def look_up(s, chain, now):
    """Look the slice up in the die's LLC and ATU; ``time`` becomes the time of the answer."""
    machine, entry, fetch = s.machine, entry_of(s, chain), s.fetches[chain]
    event = atu.look_up(s.memory.llc_tags, s.memory.copies, entry, key_of(entry, chain))
    fetch.unknown = fetch.kept = 0
    fetch.asked = now
    fetch.time = now + (machine.llc_hit_ns if event == HIT else machine.llc_miss_ns)
    if event != HIT and not atu.knows(s.memory.atu, entry, entry.key // SLICES):
        fetch.unknown = 1
        fetch.time += machine.hbm_latency_ns
    fetch.way = FROM_LLC if event == HIT else FROM_HBM if event == HERE else FROM_HOME_HBM


@outer
def ask_home(s, chain):
    """The request has reached the home: its LLC may have what its HBM has."""
    entry, fetch = entry_of(s, chain), s.fetches[chain]
    if llc.holds(s.memory.llc_tags, entry.home, entry.expert, key_of(entry, chain)):
        fetch.way = FROM_HOME_LLC
        fetch.time += s.machine.llc_hit_ns


@outer
def arrive(s, chain, first, last):
    """Record when the slice arrives; if it came from another die, the PDU decides whether to keep it."""
    entry, fetch = entry_of(s, chain), s.fetches[chain]
    fetch.first, fetch.last = first, last
    if fetch.way >= FROM_HOME_LLC:
        key = key_of(entry, chain)
        fetch.kept = pdu.decide(s.work.cp_en, s.work.cp_ready_ns, s.memory.copies, entry, key, last) == KEEP


@inner
def store(s, chain):
    """Write what was read to the LLC of the die that read it, and to the HBM of the die that keeps it."""
    entry, fetch = entry_of(s, chain), s.fetches[chain]
    key = key_of(entry, chain)
    if fetch.way == FROM_HBM or fetch.way == FROM_HOME_HBM:
        llc.store(s.memory.llc_tags, entry.die if fetch.way == FROM_HBM else entry.home, entry.expert, key)
    if fetch.kept:
        fetch.kept = hbm.keep(s.memory.copies, entry.die, key, s.machine.slice_bytes)


@inner
def ask_first(s, die):
    """The next slice that the die asks for as the step begins; -1 if there is no room, or none is left."""
    row, local = s.dies[die], s.work.local[die]
    if row.room < room_to_ask(s.machine) or local.next_chain >= local.end_chain:
        return NOBODY
    chain = s.work.chains[local.next_chain]
    local.next_chain += 1
    row.room -= room_of(s.machine, entry_of(s, chain))
    s.flying[die, row.flying] = chain
    row.flying += 1
    return chain


@inner
def leave_copies(s, end):
    """Leave copies that are booked beyond the end of the step to the next one."""
    for die in range(s.machine.dies):
        hbm = HBMS * s.machine.dies + die
        late_ns = max(0.0, s.booked[hbm].free - end)
        s.memory.copies.room[die].unwritten_bytes = np.int64(late_ns * rate(s.machine, hbm))


@outer
def take_next(s, die):
    """The slice in flight that the array takes next, when it is done (infinity: none), and what it waits for."""
    row, best, ready, ready_first = s.dies[die], NOBODY, np.inf, np.inf
    for place in range(row.flying):
        chain = s.flying[die, place]
        first = s.fetches[chain].first
        at = max(first, row.tokens) if entry_of(s, chain).routed else first
        if at < ready or (at == ready and first < ready_first):
            best, ready, ready_first = place, at, first
    row.taken = best
    return array_takes(s, die, s.flying[die, best]) if best >= 0 else np.inf


@inner
def array_takes(s, die, chain):
    """The compute array takes a slice; returns when it is done with it."""
    row, entry, fetch = s.dies[die], entry_of(s, chain), s.fetches[chain]
    tokens = row.tokens if entry.routed else 0.0
    ready = max(fetch.first, tokens)
    row.held += max(0.0, ready - max(row.free, fetch.first))
    launched = tokens + s.work.local[die].launch_ns if entry.routed else 0.0
    taken = max(row.free, ready)
    row.from_ns = max(taken, launched)
    row.launch += row.from_ns - taken
    row.began = begun_ns(row.free, max(fetch.asked, tokens), launched)
    row.free = multiplied_ns(entry, row.began, row.from_ns)
    done = max(row.free, fetch.last + entry.drain_ns, fetch.asked + entry.alone_ns)
    if s.machine.array_waits:
        row.free = done
    return done

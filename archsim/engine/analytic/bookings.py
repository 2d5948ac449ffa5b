"""Bookings under ``contention: shared``: a transfer books its bytes on every resource along its route.

A resource serves bookings in the order in which they were made; a transfer ends when the last of its resources has
served it. Bytes are conserved and no resource is idle while a transfer waits for it, as with max-min fair rates;
which of several transfers waits longest may differ. Hidden vectors that start with the step share a resource equally,
and under ``reads: together`` so do slices: a transfer of size b has passed it after the sum of min(b, size) over all of
them (processor sharing; Kleinrock, Queueing Systems II, 1976, section 4.4).
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference, unsigned
from archsim.engine.event.heaps import calendar_pop, calendar_push
from archsim.engine.state import (
    COMBINE,
    DISPATCH,
    SLICES,
    UNITS,
    Machine,
    Memory,
    StepWork,
    begun_ns,
    link_at,
    multiplied_ns,
    room_of,
    room_to_ask,
    route_of,
)
from microarch.blocks import atu, hbm, llc, pdu
from microarch.blocks.request import Event, codes

# ---- slices
# State of a walk (slices, resources, dies), and what blocks decide about a slice, however its time is computed.
#
# Look-ups, redirections, copies and contents of LLCs follow from the same functions of the hardware blocks as in the
# event kernels (``microarch.blocks.atu``, ``llc``, ``pdu``, ``hbm``).

SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)
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

    machine: Machine
    work: StepWork
    memory: Memory
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
    """ENTRY: of which the chain is a slice."""
    return s.work.entries[unsigned(chain) // unsigned(SLICES)]


@inner
def key_of(entry, chain):
    """Key of the slice in LLCs and copies."""
    return entry.key + np.int64(unsigned(chain) % unsigned(SLICES))


@inner
def rate(machine, resource):
    """Bytes per ns of an HBM, or of a link where links are full duplex (``contention: shared``)."""
    if resource < ARRAYS * machine.dies:
        return machine.hbm_rates[resource - HBMS * machine.dies]
    return machine.link_rates[resource - UNITS * machine.dies]


@inner
def source_of(s, chain):
    """The die whose HBM or LLC a fetch reads."""
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
    """Which slice in flight the compute array takes next, when it will be done with it (infinity: none), and what it
    waits for.
    """
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


# ---- shares


@inner
def _book_one(s, resource, asked, n_bytes):
    row = s.booked[resource]
    row.free = max(row.free, asked) + n_bytes / rate(s.machine, resource)
    return row.free


@outer
def book(s, asked, src, dst, from_hbm, to_hbm, n_bytes):
    """When bytes that may flow from ``asked`` on have passed the source's HBM, the route and the target's HBM."""
    machine, end, (first, last) = s.machine, asked, route_of(s.machine, src, dst)
    if from_hbm:
        end = max(end, _book_one(s, HBMS * machine.dies + src, asked, n_bytes))
    for at in range(first, last):
        end = max(end, _book_one(s, link_at(machine, at), asked, n_bytes))
    if to_hbm and dst != src:
        end = max(end, _book_one(s, HBMS * machine.dies + dst, asked, n_bytes))
    return end


@outer
def find(s, chain, now):
    """Look a slice up; if it is not on this die, send a request to its home."""
    look_up(s, chain, now)
    machine, entry, fetch = s.machine, entry_of(s, chain), s.fetches[chain]
    if fetch.way == FROM_HOME_HBM:
        fetch.time += machine.route_ns[entry.die, entry.home]
        fetch.time += machine.request_bytes / machine.route_bytes_per_ns[entry.die, entry.home]
        ask_home(s, chain)
        if fetch.way == FROM_HOME_HBM:
            fetch.time += machine.hbm_latency_ns


@outer
def latency_of(s, chain):
    """What is added once the slice's bytes have passed."""
    machine, entry, way = s.machine, entry_of(s, chain), s.fetches[chain].way
    if way == FROM_HBM:
        return machine.hbm_latency_ns
    return machine.route_ns[entry.home, entry.die] if way >= FROM_HOME_LLC else 0.0


@inner
def first_part(s, chain):
    """Share of the slice's bytes with which the array may start."""
    machine = s.machine
    if machine.first_bytes < machine.slice_bytes:
        return min(1.0, machine.first_bytes / bytes_of(s, chain))
    return 1.0


@outer
def receive(s, chain, start, end):
    """The slice's bytes pass from ``start`` to ``end``; its first segment is ready once that share has passed."""
    latency = latency_of(s, chain)
    arrive(s, chain, start + (end - start) * first_part(s, chain) + latency, end + latency)


@outer
def fetch_shared(s, chain, now):
    """Look a slice up at ``now`` and book its transfer."""
    find(s, chain, now)
    entry, fetch = entry_of(s, chain), s.fetches[chain]
    end = fetch.time
    if fetch.way != FROM_LLC:
        end = book(s, fetch.time, source_of(s, chain), entry.die, fetch.way != FROM_HOME_LLC, False, bytes_of(s, chain))
    receive(s, chain, fetch.time, end)


@inner
def filled_ns(s, chain):
    """When the slice is there, and has been written to the LLC that it fills."""
    machine, fetch = s.machine, s.fetches[chain]
    end = fetch.last
    if fetch.way == FROM_HBM:
        end += machine.llc_write_ns
    elif fetch.way == FROM_HOME_HBM:
        home = entry_of(s, chain).home
        end = max(end, fetch.time + machine.slice_bytes / machine.hbm_rates[home] + machine.llc_write_ns)
    return end


@inner
def stored_shared(s, chain):
    """When the slice has been written to the LLC it fills and to the HBM that keeps it."""
    machine, entry, fetch, end = s.machine, entry_of(s, chain), s.fetches[chain], filled_ns(s, chain)
    if fetch.kept:
        written = book(s, fetch.last, entry.die, entry.die, True, False, machine.slice_bytes)
        if not machine.copies_in_background:
            end = max(end, written + machine.hbm_latency_ns)
    return end


@outer
def combine_shared(s, die, now):
    """Results leave a die; returns when the last of them arrives."""
    machine, end = s.machine, now
    for column in range(s.work.move_ptr[COMBINE, die], s.work.move_ptr[COMBINE, die + 1]):
        move = s.work.moves[COMBINE, column]
        stays = move.src == move.dst
        asked = now if stays else now + machine.hbm_latency_ns
        passed = book(s, asked, move.src, move.dst, True, True, move.bytes)
        passed = max(passed, asked + move.port_bytes / machine.transfer_bytes_per_ns[COMBINE])
        latency = machine.hbm_latency_ns if stays else machine.route_ns[move.src, move.dst]
        end = max(end, passed + latency + machine.transfer_ns[COMBINE])  # not before: a booking ahead blocks others
    return end


@inner
def count_one(row, n_bytes, is_slice):
    """Count a transfer of ``n_bytes`` on one resource, whose record in ``State.booked`` is ``row``; see `count`."""
    if is_slice:
        row.weights += n_bytes
        row.slices += 1.0
    else:
        row.moves += n_bytes
        row.bundles += 1.0


@outer
def count(s, src, dst, from_hbm, is_slice, n_bytes):
    """Count a transfer that starts with the step. Hidden vectors also pass the target's HBM."""
    machine, (first, last) = s.machine, route_of(s.machine, src, dst)
    if from_hbm:
        count_one(s.booked[HBMS * machine.dies + src], n_bytes, is_slice)
    for at in range(first, last):
        count_one(s.booked[link_at(machine, at)], n_bytes, is_slice)
    if not is_slice and dst != src:
        count_one(s.booked[HBMS * machine.dies + dst], n_bytes, is_slice)


@kernel
def count_moves(s):
    """Count the hidden vectors that start with the step: the same at any rates."""
    s = reference(s)
    for move in s.work.moves[DISPATCH]:
        count(s, move.src, move.dst, True, False, float(move.bytes))


@outer
def count_unwritten(s):
    """Count what the step before left of its copies: it competes as a slice of its own."""
    for die in range(s.machine.dies):
        unwritten = s.memory.copies.room[die].unwritten_bytes
        if unwritten > 0:
            count_one(s.booked[HBMS * s.machine.dies + die], float(unwritten), True)


@inner
def _passed_one(s, resource, moves, slices):
    row = s.booked[resource]
    hidden = min(row.bundles * moves, row.moves) if slices == 0.0 else row.moves
    return (hidden + min(row.slices * (moves + slices), row.weights)) / rate(s.machine, resource)


@outer
def passed_together(s, src, dst, from_hbm, to_hbm, moves, slices):
    """How long a transfer that starts with the step takes in competition with all others that do: ``moves`` bytes of
    hidden vectors, or ``slices`` bytes of a slice.
    """
    machine, ns, (first, last) = s.machine, 0.0, route_of(s.machine, src, dst)
    if from_hbm:
        ns = max(ns, _passed_one(s, HBMS * machine.dies + src, moves, slices))
    for at in range(first, last):
        ns = max(ns, _passed_one(s, link_at(machine, at), moves, slices))
    if to_hbm and dst != src:
        ns = max(ns, _passed_one(s, HBMS * machine.dies + dst, moves, slices))
    return ns


@outer
def _begin_slices(s):
    """Look up the first slices of every die."""
    for die in range(s.machine.dies):
        chain = ask_first(s, die)
        while chain >= 0:
            find(s, chain, 0.0)
            way = s.fetches[chain].way
            if way != FROM_LLC:
                count(s, source_of(s, chain), die, way != FROM_HOME_LLC, True, float(bytes_of(s, chain)))
            chain = ask_first(s, die)


@inner
def tokens_arrive(s, move, ns):
    """A dispatched bundle arrives, whose bytes have passed after ``ns``, but no sooner than software lets a port."""
    machine, row = s.machine, s.dies[move.dst]
    ns = max(ns, move.port_bytes / machine.transfer_bytes_per_ns[DISPATCH]) + machine.hbm_latency_ns
    row.tokens = max(row.tokens, machine.transfer_ns[DISPATCH] + ns + machine.route_ns[move.src, move.dst])


@outer
def begin_shared(s):
    """Book everything that starts with the step at equal shares: hidden vectors, the first slices of every die, and
    what the step before left of its copies.
    """
    machine = s.machine
    count_unwritten(s)
    _begin_slices(s)
    for move in s.work.moves[DISPATCH]:
        tokens_arrive(s, move, passed_together(s, move.src, move.dst, True, True, float(move.bytes), 0.0))
    for die in range(machine.dies):
        for place in range(s.dies[die].flying):
            chain = s.flying[die, place]
            way, ns = s.fetches[chain].way, 0.0
            if way != FROM_LLC:
                n_bytes = float(bytes_of(s, chain))
                ns = passed_together(s, source_of(s, chain), die, way != FROM_HOME_LLC, False, 0.0, n_bytes)
            receive(s, chain, s.fetches[chain].time, s.fetches[chain].time + ns)
    book_begun(s)


@outer
def book_begun(s):
    """Every resource is booked until it has served all that starts with the step."""
    machine = s.machine
    for resource in range(HBMS * machine.dies, len(s.booked)):
        row = s.booked[resource]
        if (
            resource < ARRAYS * machine.dies or resource >= (ARRAYS + 1) * machine.dies
        ) and row.moves + row.weights > 0.0:
            begun = machine.llc_miss_ns if row.slices > 0.0 else machine.hbm_latency_ns
            row.free = begun + (row.moves + row.weights) / rate(machine, resource)


# ---- holds
# Bookings under ``contention: reserved``: every stage holds its resources, latency included, and stages run one
# after the other.
#
# In the published simulator a transfer also waits until all links of its route are free at once, and keeps the links
# that are already free idle meanwhile. Here every link is booked separately, and one coefficient, ``CONVOY``, stands
# for that waste: the fraction by which a transfer over several links takes longer on each of them.

# Chosen from 0.1, 0.2 and 0.3 by the signed errors against event runs of points 0 to 149 of
# tests/support/random_points.py under
# ``reserved`` (runs of ``base`` and ``pred``, which move weights); its errors are stated on other points.
CONVOY = 0.3


@inner
def _hold_one(s, resource, asked, duration):
    row = s.booked[resource]
    row.free = max(row.free, asked) + duration
    return row.free


@inner
def _duration(machine, n_bytes, bytes_per_ns):
    return np.ceil(n_bytes / bytes_per_ns) if machine.whole_ns else n_bytes / bytes_per_ns


@inner
def _hold_hbm(s, die, asked, n_bytes):
    machine, hbm = s.machine, HBMS * s.machine.dies + die
    return _hold_one(s, hbm, asked, machine.hbm_latency_ns + _duration(machine, n_bytes, rate(machine, hbm)))


@outer
def _hold_route(s, src, dst, asked, n_bytes, most_bytes_per_ns):
    machine, end, (first, last) = s.machine, asked, route_of(s.machine, src, dst)
    if first == last:
        return asked
    bytes_per_ns = min(machine.route_bytes_per_ns[src, dst], most_bytes_per_ns)
    duration = machine.route_ns[src, dst] + _duration(machine, n_bytes, bytes_per_ns)
    wasted = CONVOY * duration if last - first > 1 else 0.0
    for at in range(first, last):
        end = max(end, _hold_one(s, link_at(machine, at), asked, duration + wasted))
    return end - wasted


@outer
def _find(s, chain, now):
    """Look a slice up; if it is not on this die, send a request to its home."""
    look_up(s, chain, now)
    machine, entry, fetch = s.machine, entry_of(s, chain), s.fetches[chain]
    if fetch.way == FROM_HOME_HBM:
        fetch.time = _hold_route(s, entry.die, entry.home, fetch.time, machine.request_bytes, np.inf)
        ask_home(s, chain)


@outer
def _receive(s, chain, end, bytes_per_ns):
    """The slice is complete at ``end``; its first segment is ready earlier by the transfer time of the rest."""
    machine, first = s.machine, end
    if machine.first_bytes < machine.slice_bytes and s.fetches[chain].way != FROM_LLC:
        first = end - (machine.slice_bytes - machine.first_bytes) / bytes_per_ns
    arrive(s, chain, first, end)


@outer
def _read(s, chain):
    """Hold the HBM that has the slice; True if the slice must then cross the fabric, from ``time`` on."""
    machine, entry, fetch = s.machine, entry_of(s, chain), s.fetches[chain]
    if fetch.way == FROM_LLC:
        arrive(s, chain, fetch.time, fetch.time)
    elif fetch.way == FROM_HBM:
        _receive(s, chain, _hold_hbm(s, entry.die, fetch.time, entry.read_bytes), machine.hbm_rates[entry.die])
    elif fetch.way == FROM_HOME_HBM:
        fetch.time = _hold_hbm(s, entry.home, fetch.time, bytes_of(s, chain))
    return fetch.way >= FROM_HOME_LLC


@outer
def _travel(s, chain):
    machine, entry = s.machine, entry_of(s, chain)
    end = _hold_route(s, entry.home, entry.die, s.fetches[chain].time, machine.slice_bytes, np.inf)
    _receive(s, chain, end, machine.route_bytes_per_ns[entry.home, entry.die])


@outer
def fetch_held(s, chain, now):
    """Look a slice up at ``now`` and book its transfer."""
    _find(s, chain, now)
    if _read(s, chain):
        _travel(s, chain)


@inner
def stored_held(s, chain):
    """When the slice has been written to the LLC it fills and to the HBM that keeps it."""
    machine, entry, fetch = s.machine, entry_of(s, chain), s.fetches[chain]
    end = fetch.last + (machine.llc_write_ns if fetch.way == FROM_HBM else 0.0)
    if fetch.kept:
        written = _hold_hbm(s, entry.die, fetch.last, machine.slice_bytes)
        if not machine.copies_in_background:
            end = max(end, written)
    return end


@outer
def combine_held(s, die, now):
    """Results leave a die; returns when the last of them arrives."""
    end = now
    for column in range(s.work.move_ptr[COMBINE, die], s.work.move_ptr[COMBINE, die + 1]):
        move = s.work.moves[COMBINE, column]
        at = _hold_hbm(s, die, now, move.bytes)
        if move.dst != die:
            at = _hold_route(s, die, move.dst, at, move.bytes, s.machine.transfer_bytes_per_ns[COMBINE])
            at = _hold_hbm(s, move.dst, at, move.bytes)
        end = max(end, at + s.machine.transfer_ns[COMBINE])
    return end


@outer
def _begin_held_slices(s, away):
    """Look up the first slices of every die, in turn: slices with a home on another die (``away``) are served first."""
    machine, local, waiting, turn, left = s.machine, s.work.local, np.int64(0), np.int64(0), True
    while left:
        left = False
        for die in range(machine.dies):
            if turn >= min(machine.window, local[die].end_chain - local[die].next_chain):
                continue
            left = True
            chain = s.work.chains[local[die].next_chain + turn]
            if (entry_of(s, chain).home != die) == away:
                row = s.dies[die]
                s.flying[die, row.flying] = chain
                _find(s, chain, row.flying * machine.llc_miss_ns)  # one look-up at a time
                row.flying += 1
                row.room -= 1.0
                if _read(s, chain):
                    s.fetches[chain].tie = chain
                    waiting = calendar_push(s.calendar, waiting, chain, s.fetches)
        turn += 1
    while waiting > 0:
        chain, waiting = calendar_pop(s.calendar, waiting, s.fetches)
        _travel(s, chain)


@outer
def begin_held(s):
    """Book everything that starts with the step: what the step before left of its copies, then hidden vectors, slices
    from other homes, and local ones.
    """
    for die in range(s.machine.dies):
        hbm = HBMS * s.machine.dies + die
        s.booked[hbm].free = s.memory.copies.room[die].unwritten_bytes / rate(s.machine, hbm)
    moves, software_ns = s.work.moves[DISPATCH], s.machine.transfer_ns[DISPATCH]
    for move in moves:
        at = _hold_hbm(s, move.src, 0.0, move.bytes)
        at = _hold_route(s, move.src, move.dst, at, move.bytes, s.machine.transfer_bytes_per_ns[DISPATCH])
        s.dies[move.dst].tokens = max(s.dies[move.dst].tokens, at + software_ns)
    _begin_held_slices(s, True)
    _begin_held_slices(s, False)
    for move in moves:
        if move.src != move.dst:
            row = s.dies[move.dst]
            row.tokens = max(row.tokens, _hold_hbm(s, move.dst, 0.0, move.bytes) + software_ns)
    for die in range(s.machine.dies):
        s.work.local[die].next_chain += s.dies[die].flying

"""Bookings under ``contention: shared``: a transfer books its bytes on every resource along its route.

A resource serves bookings in the order in which they were made; a transfer ends when the last of its resources has
served it. Bytes are conserved and no resource is idle while a transfer waits for it, as with max-min fair rates;
which of several transfers waits longest may differ. Hidden vectors that start with the step share a resource equally,
and under ``reads: together`` so do slices: a transfer of size b has passed it after the sum of min(b, size) over all of
them (processor sharing; Kleinrock, Queueing Systems II, 1976, section 4.4).
"""

import numpy as np

from archsim.base.compiled import inner, kernel, outer
from archsim.engine.analytic.slices import (
    ARRAYS,
    FROM_HBM,
    FROM_HOME_HBM,
    FROM_HOME_LLC,
    FROM_LLC,
    HBMS,
    arrive,
    ask_first,
    ask_home,
    bytes_of,
    entry_of,
    look_up,
    rate,
    source_of,
)
from archsim.engine.event.heaps import calendar_pop, calendar_push
from archsim.engine.state import COMBINE, DISPATCH, link_at, route_of

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

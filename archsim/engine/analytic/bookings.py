"""Bookings under ``contention: shared``: a transfer books its bytes on every resource along its route.

A resource serves bookings in the order in which they were made; a transfer ends when the last of its resources has
served it. Bytes are conserved and no resource is idle while a transfer waits for it, as with max-min fair rates;
which of several transfers waits longest may differ. Hidden vectors that start with the step share a resource equally,
and under ``reads: together`` so do slices: a transfer of size b has passed it after the sum of min(b, size) over all of
them (processor sharing; Kleinrock, Queueing Systems II, 1976, section 4.4).
"""

from archsim.base.compiled import inner, kernel, outer, reference
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
from archsim.engine.state import COMBINE, DISPATCH, link_at, route_of


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
    """Count a transfer of ``n_bytes`` on one resource, whose BOOKED is ``row``; see `count`."""
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
    """Time of a transfer of ``moves`` bytes of vectors or ``slices`` of a slice beside all that start with the step."""
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
    """Book all that starts with the step at equal shares: vectors, first slices, copies left by the step before."""
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

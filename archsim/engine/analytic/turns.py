"""The walk under ``contention: shared, reads: in_order``: one slice of every die a turn.

In turn k every die asks for the k-th of its slices, and its array multiplies slices in the order in which they were
asked for. What is served before what therefore depends on the plan alone, and times are sums, maxima and minima of
what machines take: a machine with a higher rate or a lower latency ends no step later.

A resource is booked by turns: it begins with the transfers of a turn once it has served those before and the first of
them may begin, and serves them one after the other; one that may begin later takes at least its own time from then
on. A die that is late therefore delays nobody. Results that leave the dies are served in the order of their ends; all
that passed a resource takes at least its bytes over its rate.
"""

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.engine.analytic import bookings, slices
from archsim.engine.state import COMBINE, DISPATCH, link_at, room_for_slices, room_of, room_to_ask, route_of


@inner
def _ns_of(s, resource, n_bytes):
    return n_bytes / slices.rate(s.machine, resource)


@inner
def _queue_ns(s, src, dst, n_bytes):
    """How long bytes that leave a die are the only ones that do (``source: queued``)."""
    return n_bytes / min(s.machine.hbm_rates[src], s.machine.route_bytes_per_ns[src, dst])


@inner
def _ask_one(s, resource, at):
    s.booked[resource].soonest = min(s.booked[resource].soonest, at)


@outer
def _ask_all(s, at, src, dst, from_hbm):
    """A transfer of this turn may begin at ``at``."""
    first, last = route_of(s.machine, src, dst)
    if from_hbm:
        _ask_one(s, slices.HBMS * s.machine.dies + src, at)
    for link in range(first, last):
        _ask_one(s, link_at(s.machine, link), at)
    if s.queued and src != dst:
        _ask_one(s, src, at)


@inner
def _serve_one(s, resource, at, begun, ns):
    """When a resource has served a transfer that may pass it from ``at`` on, and in its line from ``begun`` on."""
    row = s.booked[resource]
    if row.soonest < np.inf:
        row.free = max(row.free, row.soonest)
        row.soonest = np.inf
    row.free += ns
    row.served += ns
    return max(row.free, max(at, begun) + ns)


@outer
def _serve_all(s, at, begun, src, dst, from_hbm, n_bytes):
    end, (first, last) = at, route_of(s.machine, src, dst)
    if from_hbm:
        hbm = slices.HBMS * s.machine.dies + src
        end = max(end, _serve_one(s, hbm, at, begun, _ns_of(s, hbm, n_bytes)))
    for each in range(first, last):
        link = link_at(s.machine, each)
        end = max(end, _serve_one(s, link, at, begun, _ns_of(s, link, n_bytes)))
    if s.queued and src != dst:
        end = max(end, _serve_one(s, src, at, begun, _queue_ns(s, src, dst, n_bytes)))
    return end


@outer
def _multiply(s, die):
    """The array takes the die's next slice; returns when all that it starts has ended."""
    row, local, machine = s.dies[die], s.work.local[die], s.machine
    chain = s.work.chains[row.taken]
    entry, fetch, done = slices.entry_of(s, chain), s.fetches[chain], slices.array_takes(s, die, chain)
    row.array = max(row.array, done)
    row.busy += entry.compute_ns
    row.taken += 1
    row.done = max(row.done, done)
    slices.store(s, chain)
    end = max(done, bookings.filled_ns(s, chain))
    if fetch.kept:
        hbm = slices.HBMS * machine.dies + die
        written = _serve_one(s, hbm, fetch.last, 0.0, _ns_of(s, hbm, machine.slice_bytes))
        if not machine.copies_in_background:
            end = max(end, written + machine.hbm_latency_ns)
    if entry.routed:
        local.routed_left -= 1
        row.results = max(row.results, done)
    return end


@outer
def _request(s, die, end):
    """Look up the die's next slice once it has room (left evenly by products); returns when what it waits for ends."""
    row, local, least = s.dies[die], s.work.local[die], room_to_ask(s.machine)
    while row.room + row.leaving < least:
        row.room += row.leaving
        row.leaving = room_of(s.machine, slices.entry_of(s, s.work.chains[row.taken]))
        row.asks = row.done
        end = max(end, _multiply(s, die))
    chain, lacking = s.work.chains[local.next_chain], least - row.room
    if lacking > 0.0:
        left = row.done
        if lacking < row.leaving:
            compute_ns = slices.entry_of(s, s.work.chains[row.taken - 1]).compute_ns
            left = max(row.from_ns, row.began + compute_ns * lacking / row.leaving)
        row.asks = max(row.asks, left)
    row.room -= room_of(s.machine, slices.entry_of(s, chain))
    bookings.find(s, chain, row.asks)
    if s.fetches[chain].way != slices.FROM_LLC:
        fetch = s.fetches[chain]
        _ask_all(s, fetch.time, slices.source_of(s, chain), die, fetch.way != slices.FROM_HOME_LLC)
    return end


@outer
def _book(s, die):
    """Book the slice that the die asked for in this turn."""
    local = s.work.local[die]
    chain = s.work.chains[local.next_chain]
    local.next_chain += 1
    fetch = s.fetches[chain]
    if fetch.way == slices.FROM_LLC:
        bookings.receive(s, chain, fetch.time, fetch.time)
        return
    src = slices.source_of(s, chain)
    begun = s.lines[src, die]
    end = _serve_all(s, fetch.time, begun, src, die, fetch.way != slices.FROM_HOME_LLC, slices.bytes_of(s, chain))
    bookings.receive(s, chain, min(max(fetch.time, begun), end), end)
    s.lines[src, die] = end


@inner
def _return_one(s, resource, asked, ns):
    row = s.booked[resource]
    row.returned = max(row.returned, asked) + ns
    row.served += ns
    return max(row.returned, row.served)


@outer
def _combine(s, die, now):
    """Results leave a die; returns when the last of them arrives."""
    machine, end = s.machine, now
    for column in range(s.work.move_ptr[COMBINE, die], s.work.move_ptr[COMBINE, die + 1]):
        move = s.work.moves[COMBINE, column]
        away, hbm, (first, last) = (
            move.src != move.dst,
            slices.HBMS * machine.dies,
            route_of(machine, move.src, move.dst),
        )
        asked = now + machine.hbm_latency_ns if away else now
        passed = _return_one(s, hbm + move.src, asked, _ns_of(s, hbm + move.src, move.bytes))
        for each in range(first, last):
            link = link_at(machine, each)
            passed = max(passed, _return_one(s, link, asked, _ns_of(s, link, move.bytes)))
        if away:
            passed = max(passed, _return_one(s, hbm + move.dst, asked, _ns_of(s, hbm + move.dst, move.bytes)))
            if s.queued:
                passed = max(passed, _return_one(s, move.src, asked, _queue_ns(s, move.src, move.dst, move.bytes)))
        passed = max(passed, asked + move.port_bytes / machine.transfer_bytes_per_ns[COMBINE])
        latency = machine.route_ns[move.src, move.dst] if away else machine.hbm_latency_ns
        end = max(end, passed + latency + machine.transfer_ns[COMBINE])
    return end


@outer
def _combine_all(s, end):
    for _ in range(s.machine.dies):
        first = np.int64(-1)
        for die in range(s.machine.dies):
            row = s.dies[die]
            if row.results > 0.0 and (first < 0 or row.results < s.dies[first].results):
                first = np.int64(die)
        if first < 0:
            break
        end = max(end, _combine(s, first, s.dies[first].results))
        s.dies[first].results = 0.0
    return end


@outer
def _begin(s):
    """Hidden vectors, and what the step before left of its copies, are served before all slices."""
    machine = s.machine
    for die in range(machine.dies):
        s.dies[die].room = room_for_slices(machine)
        s.dies[die].taken = s.work.local[die].next_chain
    for resource in range(len(s.booked)):
        s.booked[resource].soonest = np.inf
        if (
            slices.ARRAYS * machine.dies <= resource < (slices.ARRAYS + 1) * machine.dies
            or resource < slices.HBMS * machine.dies
        ):
            continue
        n_bytes = s.booked[resource].moves
        if resource < slices.ARRAYS * machine.dies:
            n_bytes += s.memory.copies.room[resource - slices.HBMS * machine.dies].unwritten_bytes
        s.booked[resource].free = s.booked[resource].served = _ns_of(s, resource, n_bytes)
    for move in s.work.moves[DISPATCH]:
        ns = bookings.passed_together(s, move.src, move.dst, True, True, float(move.bytes), 0.0)
        if s.queued and move.src != move.dst:
            ns = max(ns, _serve_one(s, move.src, 0.0, 0.0, _queue_ns(s, move.src, move.dst, move.bytes)))
        bookings.tokens_arrive(s, move, ns)


@kernel
def walk_turns(s):
    """Walk the step; returns when the last booking ends."""
    s = reference(s)
    local, end, left = s.work.local, 0.0, True
    _begin(s)
    for die in range(s.machine.dies):
        end = max(end, s.dies[die].tokens)
    while left:
        left = False
        for die in range(s.machine.dies):
            if local[die].next_chain < local[die].end_chain:
                left = True
                end = _request(s, die, end)
        for die in range(s.machine.dies):
            if local[die].next_chain < local[die].end_chain:
                _book(s, die)
    for die in range(s.machine.dies):
        while s.dies[die].taken < local[die].end_chain:
            end = max(end, _multiply(s, die))
    end = _combine_all(s, end)
    if s.machine.copies_in_background:
        slices.leave_copies(s, end)
    return end

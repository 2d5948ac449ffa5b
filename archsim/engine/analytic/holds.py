"""Bookings under ``contention: reserved``: every stage holds its resources, latency included, and stages run one
after the other.

In the published simulator a transfer also waits until all links of its route are free at once, and keeps the links
that are already free idle meanwhile. Here every link is booked separately, and one coefficient, ``CONVOY``, stands
for that waste: the fraction by which a transfer over several links takes longer on each of them.
"""

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.engine.analytic import slices
from archsim.engine.event.heaps import calendar_pop, calendar_push
from archsim.engine.state import COMBINE, DISPATCH, link_at, route_of

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
    machine, hbm = s.machine, slices.HBMS * s.machine.dies + die
    return _hold_one(s, hbm, asked, machine.hbm_latency_ns + _duration(machine, n_bytes, slices.rate(machine, hbm)))


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
    slices.look_up(s, chain, now)
    machine, entry, fetch = s.machine, slices.entry_of(s, chain), s.fetches[chain]
    if fetch.way == slices.FROM_HOME_HBM:
        fetch.time = _hold_route(s, entry.die, entry.home, fetch.time, machine.request_bytes, np.inf)
        slices.ask_home(s, chain)


@outer
def _receive(s, chain, end, bytes_per_ns):
    """The slice is complete at ``end``; its first segment is ready earlier by the transfer time of the rest."""
    machine, first = s.machine, end
    if machine.first_bytes < machine.slice_bytes and s.fetches[chain].way != slices.FROM_LLC:
        first = end - (machine.slice_bytes - machine.first_bytes) / bytes_per_ns
    slices.arrive(s, chain, first, end)


@outer
def _read(s, chain):
    """Hold the HBM that has the slice; True if the slice must then cross the fabric, from ``time`` on."""
    machine, entry, fetch = s.machine, slices.entry_of(s, chain), s.fetches[chain]
    if fetch.way == slices.FROM_LLC:
        slices.arrive(s, chain, fetch.time, fetch.time)
    elif fetch.way == slices.FROM_HBM:
        _receive(s, chain, _hold_hbm(s, entry.die, fetch.time, entry.read_bytes), machine.hbm_rates[entry.die])
    elif fetch.way == slices.FROM_HOME_HBM:
        fetch.time = _hold_hbm(s, entry.home, fetch.time, slices.bytes_of(s, chain))
    return fetch.way >= slices.FROM_HOME_LLC


@outer
def _travel(s, chain):
    machine, entry = s.machine, slices.entry_of(s, chain)
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
    machine, entry, fetch = s.machine, slices.entry_of(s, chain), s.fetches[chain]
    end = fetch.last + (machine.llc_write_ns if fetch.way == slices.FROM_HBM else 0.0)
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
            if (slices.entry_of(s, chain).home != die) == away:
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
    """Book all that starts with the step: copies left by the step before, hidden vectors, slices."""
    for die in range(s.machine.dies):
        hbm = slices.HBMS * s.machine.dies + die
        s.booked[hbm].free = s.memory.copies.room[die].unwritten_bytes / slices.rate(s.machine, hbm)
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

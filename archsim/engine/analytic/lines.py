"""Bookings under ``reads: in_order``: as in ``archsim.engine.analytic.shares``, but what a die takes from one source
stands in a line.

Lines that start with the step share a resource equally: what is behind ``size`` bytes of its line (its own included)
has passed after the sum of min(line, size) over all lines. Later, a slice flows from the end of the one before it.
"""

from archsim.base.kernels import inner, outer
from archsim.engine.analytic.shares import (
    book,
    book_begun,
    count,
    count_unwritten,
    find,
    first_part,
    latency_of,
    receive,
    slowest,
    tokens_arrive,
)
from archsim.engine.analytic.slices import (
    FROM_HOME_LLC,
    FROM_LLC,
    arrive,
    ask_first,
    bytes_of,
    entry_of,
    rate,
    source_of,
)
from archsim.engine.state import DISPATCH


@outer
def fetch_in_order(s, chain, now):
    """Look a slice up at ``now`` and book its transfer."""
    find(s, chain, now)
    die, fetch = entry_of(s, chain).die, s.fetches[chain]
    if fetch.way == FROM_LLC:
        receive(s, chain, fetch.time, fetch.time)
        return
    src = source_of(s, chain)
    line = s.lines[src, die]
    end = book(s, fetch.time, src, die, fetch.way != FROM_HOME_LLC, False, bytes_of(s, chain))
    receive(s, chain, min(max(fetch.time, line.end), end), end)
    line.end = end


@inner
def _passed_one(s, resource, moves, slices):
    row = s.booked[resource]
    passed = min(row.bundles * (moves + slices), row.moves) + min(row.slices * slices, row.weights)
    return passed / rate(s.machine, resource)


@outer
def _passed(s, src, dst, from_hbm, to_hbm, moves, slices):
    """How long it takes until these bytes of a line have passed, hidden vectors first."""
    return slowest(s, src, dst, from_hbm, to_hbm, _passed_one, moves, slices)


@outer
def _count_slices(s):
    """Look up the first slices of every die; count each line with all of them."""
    for die in range(s.machine.dies):
        chain = ask_first(s, die)
        while chain >= 0:
            find(s, chain, 0.0)
            way = s.fetches[chain].way
            if way != FROM_LLC:
                src, n_bytes = source_of(s, chain), float(bytes_of(s, chain))
                count(s, src, die, way != FROM_HOME_LLC, s.lines[src, die].asked == 0.0, True, n_bytes)
                s.lines[src, die].asked += n_bytes
            chain = ask_first(s, die)


@outer
def _pass_slice(s, chain, die):
    """When a slice that starts with the step arrives: ``asked`` counts the slices of its line before it."""
    fetch = s.fetches[chain]
    if fetch.way == FROM_LLC:
        arrive(s, chain, fetch.time, fetch.time)
        return
    src, size = source_of(s, chain), float(bytes_of(s, chain))
    line, from_hbm = s.lines[src, die], fetch.way != FROM_HOME_LLC
    first = line.asked + size * first_part(s, chain)
    line.asked += size
    latency = latency_of(s, chain)
    begun = fetch.time + _passed(s, src, die, from_hbm, False, line.moves, first)
    line.end = fetch.time + _passed(s, src, die, from_hbm, False, line.moves, line.asked)
    arrive(s, chain, begun + latency, line.end + latency)


@outer
def begin_in_order(s):
    """Book everything that starts with the step at equal shares of the lines."""
    machine = s.machine
    count_unwritten(s)
    _count_slices(s)
    for move in s.work.moves[DISPATCH]:
        tokens_arrive(s, move, _passed(s, move.src, move.dst, True, True, float(move.bytes), 0.0))
    for die in range(machine.dies):
        for place in range(s.dies[die].flying):
            src = source_of(s, s.flying[die, place])
            s.lines[src, die].asked = 0.0
        for place in range(s.dies[die].flying):
            _pass_slice(s, s.flying[die, place], die)
    book_begun(s)

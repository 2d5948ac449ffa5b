"""One step, slice by slice: every transfer is booked once, when it is requested, and never revisited.

Where slices come from is in ``archsim.engine.analytic.bookings``, how transfers are booked in ``shares`` (``contention:
shared``) and ``holds`` (``reserved``). A die has ``window`` slices in flight; its array takes them in the order in
which their first segments arrive, as in the event engine, and each slice computed makes room for the next.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.engine.analytic.bookings import (
    ARRAYS,
    BOOKED,
    BOOKED_DIE,
    FETCHED,
    FROM_HBM,
    FROM_HOME_HBM,
    FROM_HOME_LLC,
    FROM_LLC,
    HBMS,
    Walk,
    array_takes,
    begin_held,
    begin_shared,
    bytes_of,
    combine_held,
    combine_shared,
    count_moves,
    entry_of,
    fetch_held,
    fetch_shared,
    filled_ns,
    find,
    leave_copies,
    passed_together,
    rate,
    receive,
    source_of,
    store,
    stored_held,
    stored_shared,
    take_next,
    tokens_arrive,
)
from archsim.engine.event.heaps import time_bits
from archsim.engine.state import (
    COMBINE,
    DATA_MESSAGES,
    DISPATCH,
    HIDDEN,
    REQUESTS,
    SLICES,
    UNITS,
    Machine,
    Memory,
    StepWork,
    link_at,
    room_for_slices,
    room_of,
    room_to_ask,
    route_of,
)

# ---- turns
# The walk under ``contention: shared, reads: in_order``: one slice of every die a turn.
#
# In turn k every die asks for the k-th of its slices, and its array multiplies slices in the order in which they were
# asked for. What is served before what therefore depends on the plan alone, and times are sums, maxima and minima of
# what machines take: a machine with a higher rate or a lower latency ends no step later.
#
# A resource is booked by turns: it begins with the transfers of a turn once it has served those before and the first of
# them may begin, and serves them one after the other; one that may begin later takes at least its own time from then
# on. A die that is late therefore delays nobody. Results that leave the dies are served in the order of their ends; all
# that passed a resource takes at least its bytes over its rate.

# ---- resources


@inner
def _ns_of(s, resource, n_bytes):
    return n_bytes / rate(s.machine, resource)


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
        _ask_one(s, HBMS * s.machine.dies + src, at)
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
        hbm = HBMS * s.machine.dies + src
        end = max(end, _serve_one(s, hbm, at, begun, _ns_of(s, hbm, n_bytes)))
    for each in range(first, last):
        link = link_at(s.machine, each)
        end = max(end, _serve_one(s, link, at, begun, _ns_of(s, link, n_bytes)))
    if s.queued and src != dst:
        end = max(end, _serve_one(s, src, at, begun, _queue_ns(s, src, dst, n_bytes)))
    return end


# ---- slices


@outer
def _multiply(s, die):
    """The array takes the die's next slice; returns when all that it starts has ended."""
    row, local, machine = s.dies[die], s.work.local[die], s.machine
    chain = s.work.chains[row.taken]
    entry, fetch, done = entry_of(s, chain), s.fetches[chain], array_takes(s, die, chain)
    row.array = max(row.array, done)
    row.busy += entry.compute_ns
    row.taken += 1
    row.done = max(row.done, done)
    store(s, chain)
    end = max(done, filled_ns(s, chain))
    if fetch.kept:
        hbm = HBMS * machine.dies + die
        written = _serve_one(s, hbm, fetch.last, 0.0, _ns_of(s, hbm, machine.slice_bytes))
        if not machine.copies_in_background:
            end = max(end, written + machine.hbm_latency_ns)
    if entry.routed:
        local.routed_left -= 1
        row.results = max(row.results, done)
    return end


@outer
def _request(s, die, end):
    """Look up the die's next slice as soon as it has room for it; returns when all has ended that this waited for.

    A slice leaves room, evenly, while it is multiplied.
    """
    row, local, least = s.dies[die], s.work.local[die], room_to_ask(s.machine)
    while row.room + row.leaving < least:
        row.room += row.leaving
        row.leaving = room_of(s.machine, entry_of(s, s.work.chains[row.taken]))
        row.asks = row.done
        end = max(end, _multiply(s, die))
    chain, lacking = s.work.chains[local.next_chain], least - row.room
    if lacking > 0.0:
        left = row.done
        if lacking < row.leaving:
            compute_ns = entry_of(s, s.work.chains[row.taken - 1]).compute_ns
            left = max(row.from_ns, row.began + compute_ns * lacking / row.leaving)
        row.asks = max(row.asks, left)
    row.room -= room_of(s.machine, entry_of(s, chain))
    find(s, chain, row.asks)
    if s.fetches[chain].way != FROM_LLC:
        fetch = s.fetches[chain]
        _ask_all(s, fetch.time, source_of(s, chain), die, fetch.way != FROM_HOME_LLC)
    return end


@outer
def _book(s, die):
    """Book the slice that the die asked for in this turn."""
    local = s.work.local[die]
    chain = s.work.chains[local.next_chain]
    local.next_chain += 1
    fetch = s.fetches[chain]
    if fetch.way == FROM_LLC:
        receive(s, chain, fetch.time, fetch.time)
        return
    src = source_of(s, chain)
    begun = s.lines[src, die]
    end = _serve_all(s, fetch.time, begun, src, die, fetch.way != FROM_HOME_LLC, bytes_of(s, chain))
    receive(s, chain, min(max(fetch.time, begun), end), end)
    s.lines[src, die] = end


# ---- results


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
        away, hbm, (first, last) = move.src != move.dst, HBMS * machine.dies, route_of(machine, move.src, move.dst)
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


# ---- walk


@outer
def _begin(s):
    """Hidden vectors, and what the step before left of its copies, are served before all slices."""
    machine = s.machine
    for die in range(machine.dies):
        s.dies[die].room = room_for_slices(machine)
        s.dies[die].taken = s.work.local[die].next_chain
    for resource in range(len(s.booked)):
        s.booked[resource].soonest = np.inf
        if ARRAYS * machine.dies <= resource < (ARRAYS + 1) * machine.dies or resource < HBMS * machine.dies:
            continue
        n_bytes = s.booked[resource].moves
        if resource < ARRAYS * machine.dies:
            n_bytes += s.memory.copies.room[resource - HBMS * machine.dies].unwritten_bytes
        s.booked[resource].free = s.booked[resource].served = _ns_of(s, resource, n_bytes)
    for move in s.work.moves[DISPATCH]:
        ns = passed_together(s, move.src, move.dst, True, True, float(move.bytes), 0.0)
        if s.queued and move.src != move.dst:
            ns = max(ns, _serve_one(s, move.src, 0.0, 0.0, _queue_ns(s, move.src, move.dst, move.bytes)))
        tokens_arrive(s, move, ns)


@kernel
def _walk_turns(s):
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
        leave_copies(s, end)
    return end


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
    """The slice of ``entry`` has left room, evenly, until it was multiplied: ask for others, each as soon as there was
    enough.
    """
    row, local, place = s.dies[die], s.work.local[die], s.dies[die].taken
    freed, least = room_of(s.machine, entry), room_to_ask(s.machine)
    while local.next_chain < local.end_chain and row.room + freed >= least:
        following, lacking = s.work.chains[local.next_chain], least - row.room
        local.next_chain += 1
        row.room -= room_of(s.machine, entry_of(s, following))
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
        s.done[die] = take_next(s, die)
    die = _first_done(s, np.int64(0), s.done[0])
    while s.done[die] < np.inf:
        row = s.dies[die]
        now, chain = s.done[die], s.flying[die, row.taken]
        s.done[die] = np.inf
        entry = entry_of(s, chain)
        row.array = max(row.array, now)
        row.busy += entry.compute_ns
        store(s, chain)
        end = max(end, now, stored(s, chain))
        _ask(s, die, entry, fetch, now)
        if entry.routed:
            local[die].routed_left -= 1
            if local[die].routed_left == 0:
                end = max(end, combine(s, die, now))
        die = _first_done(s, die, take_next(s, die))
    if s.machine.copies_in_background:
        leave_copies(s, end)
    return end


@kernel
def _walk_shared(s):
    return walk(s, begin_shared, fetch_shared, stored_shared, combine_shared)


@kernel
def _walk_held(s):
    return walk(s, begin_held, fetch_held, stored_held, combine_held)


WALKS = {"together": _walk_shared, "in_order": _walk_turns, "queued": _walk_turns, "reserved": _walk_held}


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


def begun(machine: Machine, work: StepWork, memory: Memory, strategy: str) -> Walk:
    """The state of a walk before its step, with what starts with it at any rates."""
    most = int((work.local["end_chain"] - work.local["next_chain"]).max(initial=0))
    if machine.stream_bytes:
        room = 2 + machine.stream_bytes // int(work.entries["read_bytes"].min(initial=machine.slice_bytes))
    else:
        room = machine.window
    state = Walk(
        machine,
        work,
        memory,
        fetches=np.zeros(len(work.chains), FETCHED),
        booked=np.zeros(machine.resources, BOOKED),
        dies=np.zeros(machine.dies, BOOKED_DIE),
        done=np.zeros(machine.dies),
        flying=np.zeros((machine.dies, 1 + max(1, min(most, room))), np.int64),
        lines=np.zeros((machine.dies, machine.dies)),
        calendar=np.zeros(len(work.chains), np.int64),
        queued=strategy == "queued",
    )
    count_moves(state)
    return state


# ---- count
# What a walked step moved: the counts of ``Tally``, and the loads of HBMs and links by phase.
#
# ``loads: float64[phase, resource]`` in ns at the machine's rates; the phases are slices (0), dispatch (1) and combine
# (2). Under ``contention: reserved`` loads include the latency for which a resource is held.

OF_SLICES, OF_DISPATCH, OF_COMBINE = np.int64(0), np.int64(1), np.int64(2)
HBM_BYTES, LINK_BYTES, READ_BYTES, LLC_HITS = np.arange(4)  # of `add_slices`


@inner
def _pass_hbm(machine, tally, load, die, n_bytes, held):
    row = tally.resources[HBMS * machine.dies + die]
    ns = n_bytes / machine.hbm_rates[die] + (machine.hbm_latency_ns if held else 0.0)
    row.bytes += n_bytes
    row.busy_ns += ns
    load[HBMS * machine.dies + die] += ns


@outer
def _pass_route(machine, tally, load, what, src, dst, n_bytes, held):
    """Count a message over the fabric. Requests occupy bandwidth only where they hold links."""
    hops, (first, last) = machine.hops[src, dst], route_of(machine, src, dst)
    tally.hops[what, 0] += hops
    tally.hops[what, 1] += hops * n_bytes
    for at in range(first, last):
        resource = link_at(machine, at)
        row = tally.resources[resource]
        row.bytes += n_bytes
        if held:
            ns = machine.route_ns[src, dst] + n_bytes / machine.route_bytes_per_ns[src, dst]
        elif what == REQUESTS:
            ns = 0.0
        else:
            ns = n_bytes / machine.link_rates[resource - UNITS * machine.dies]
        row.busy_ns += ns
        load[resource] += ns


@outer
def _count_slices(machine, work, fetches, tally, load, held):
    for chain in range(len(fetches)):
        entry, fetch = work.entries[chain // SLICES], fetches[chain]
        array = tally.resources[ARRAYS * machine.dies + entry.die]
        array.busy_ns += entry.compute_ns
        load[ARRAYS * machine.dies + entry.die] += entry.compute_ns
        if fetch.way == FROM_LLC:
            tally.llc_hits[0] += 1
        elif fetch.way == FROM_HBM:
            tally.dies[entry.die].local_read_bytes += entry.read_bytes
            _pass_hbm(machine, tally, load, entry.die, entry.read_bytes, held)
        else:
            tally.pair_bytes[REQUESTS, entry.die, entry.home] += machine.request_bytes
            tally.pair_bytes[DATA_MESSAGES, entry.home, entry.die] += machine.slice_bytes
            _pass_route(machine, tally, load, REQUESTS, entry.die, entry.home, machine.request_bytes, held)
            _pass_route(machine, tally, load, DATA_MESSAGES, entry.home, entry.die, machine.slice_bytes, held)
            tally.llc_hits[1] += fetch.way == FROM_HOME_LLC
        if fetch.way == FROM_HOME_HBM:
            tally.dies[entry.home].remote_read_bytes += machine.slice_bytes
            _pass_hbm(machine, tally, load, entry.home, machine.slice_bytes, held)
        if fetch.kept:
            tally.dies[entry.die].write_bytes += machine.slice_bytes
            _pass_hbm(machine, tally, load, entry.die, machine.slice_bytes, held)


@outer
def _count_moves(machine, work, phase, tally, load, held):
    for move in work.moves[phase]:
        tally.dies[move.src].activation_bytes += move.bytes
        _pass_hbm(machine, tally, load, move.src, move.bytes, held)
        if move.dst != move.src:
            tally.moved_bytes[phase] += move.bytes
            tally.pair_bytes[HIDDEN + phase, move.src, move.dst] += move.bytes
            tally.dies[move.dst].activation_bytes += move.bytes
            _pass_route(machine, tally, load, HIDDEN, move.src, move.dst, move.bytes, held)
            _pass_hbm(machine, tally, load, move.dst, move.bytes, held)


@kernel
def count_step(machine, work, fetches, tally, loads, held):
    """Add a step to ``tally``, and fill ``loads``. ``held``: under ``contention: reserved``."""
    machine, work, tally = reference(machine), reference(work), reference(tally)
    loads[:] = 0.0
    _count_slices(machine, work, fetches, tally, loads[OF_SLICES], held)
    _count_moves(machine, work, DISPATCH, tally, loads[OF_DISPATCH], held)
    _count_moves(machine, work, COMBINE, tally, loads[OF_COMBINE], held)


@inner
def _links(machine, src, dst):
    """Links of a route: more than its hops where one leads through a switch."""
    begin, end = route_of(machine, src, dst)
    return np.int64(end) - np.int64(begin)


@outer
def add_slices(machine, work, fetches, total):
    """Add the slices of a step to ``total``, int64[4]: bytes through all HBMs and links, and of weights read; and how
    many of the slices an LLC had.
    """
    for chain in range(len(fetches)):
        entry, fetch = work.entries[chain // SLICES], fetches[chain]
        if fetch.way == FROM_HBM:
            total[HBM_BYTES] += entry.read_bytes
            total[READ_BYTES] += entry.read_bytes
        elif fetch.way != FROM_LLC:
            total[LINK_BYTES] += _links(machine, entry.die, entry.home) * machine.request_bytes
            total[LINK_BYTES] += _links(machine, entry.home, entry.die) * machine.slice_bytes
        total[LLC_HITS] += fetch.way == FROM_LLC or fetch.way == FROM_HOME_LLC
        if fetch.way == FROM_HOME_HBM:
            total[HBM_BYTES] += machine.slice_bytes
            total[READ_BYTES] += machine.slice_bytes
        if fetch.kept:
            total[HBM_BYTES] += machine.slice_bytes


@kernel
def add_moves(machine, work, total):
    """The same of its hidden vectors."""
    for phase in range(len(work.moves)):
        for move in work.moves[phase]:
            total[HBM_BYTES] += move.bytes if move.src == move.dst else 2 * move.bytes
            total[LINK_BYTES] += _links(machine, move.src, move.dst) * move.bytes

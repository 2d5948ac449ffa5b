"""What a stage takes under ``contention: reserved``, what it counts and changes, and which resources it needs."""

import numpy as np

from archsim.base.compiled import inner, unsigned
from archsim.engine import state
from archsim.engine.event.claims import claim_of, entry_of, row_of
from microarch.blocks import atu, catalogue, hbm, llc, pdu, request

HBM_CLASS = np.int64(request.Unit.HBM)


@inner
def _duration(s, fixed_ns, n_bytes, bytes_per_ns):
    transfer_ns = n_bytes / bytes_per_ns
    return fixed_ns + (np.ceil(transfer_ns) if s.machine.whole_ns else transfer_ns)


@inner
def _cross(s, what, src, dst, n_bytes, most_bytes_per_ns):
    """Count a message over the fabric; returns its duration, at no more than ``most_bytes_per_ns``."""
    hops = s.machine.hops[src, dst]
    s.tally.hops[what, 0] += hops
    s.tally.hops[what, 1] += hops * n_bytes
    rate = min(s.machine.route_bytes_per_ns[src, dst], most_bytes_per_ns)
    return _duration(s, s.machine.route_ns[src, dst], n_bytes, rate)


@inner
def asked_at(s, stage):
    """When the slice was looked up whose arrival the stage is."""
    while row_of(s, stage).kind != request.LOOKUP:
        stage = row_of(s, stage).parent
    return row_of(s, stage).time


@inner
def _product_ns(s, row, entry):
    """How long a stage holds the array: less than its product takes by what it counts as begun before."""
    launching, ahead = state.launching_ns(s.work, entry, row.time), 0.0
    if row_of(s, row.parent).kind < request.ACT_READ:  # not held for tokens
        free, asked = claim_of(s, row.group).free_at, asked_at(s, row.parent)
        ahead = max(0.0, row.time - state.begun_ns(free, asked, state.launched_ns(s.work, entry)))
    multiplied = max(entry.compute_ns - ahead, entry.least_ns)
    return max(launching + multiplied, row.floor - row.time)


@inner
def serve_slice(s, row):
    """(event, duration, bytes) of a weight slice's stage; updates caches, copies and counters."""
    kind, machine, memory = row.kind, s.machine, s.memory
    entry = entry_of(s, row.item)
    key = entry.key + np.int64(unsigned(row.item) % unsigned(hbm.SLICES))
    n_bytes = machine.slice_bytes
    if kind == request.LOOKUP:
        event = atu.look_up(memory.llc_tags, memory.copies, entry, key)
        s.tally.llc_hits[0] += event == request.HIT
        row.home_hit = llc.holds(memory.llc_tags, entry.home, entry.expert, key)
        latency = machine.llc_hit_ns if event == request.HIT else machine.llc_miss_ns
        if event != request.HIT and not atu.knows(memory.atu, entry, key // hbm.SLICES):
            latency += machine.hbm_latency_ns
        return event, latency, np.int64(0)
    if kind == request.LOCAL_HBM:
        s.tally.dies[unsigned(entry.die)].local_read_bytes += entry.read_bytes
        duration = _duration(s, machine.hbm_latency_ns, entry.read_bytes, machine.hbm_rates[entry.die])
        return request.SERVED, duration, entry.read_bytes
    if kind == request.REQUEST:
        s.tally.pair_bytes[state.REQUESTS, entry.die, entry.home] += machine.request_bytes
        duration = _cross(s, state.REQUESTS, entry.die, entry.home, machine.request_bytes, np.inf)
        return (request.HIT if row_of(s, row.parent).home_hit else request.MISS), duration, machine.request_bytes
    if kind == request.REMOTE_LLC:
        s.tally.llc_hits[1] += 1
        return request.SERVED, machine.llc_hit_ns, n_bytes
    if kind == request.COMPUTE:
        # An array that holds a slice whose last bytes have not arrived waits: it is not busy.
        duration, array = _product_ns(s, row, entry), s.tally.resources[unsigned(row.group)]
        array.busy_ns -= duration - entry.compute_ns
        array.wait_ns += max(0.0, duration - entry.compute_ns)
        return request.SERVED, duration, np.int64(0)
    if kind == request.LLC_FILL:
        llc.store(memory.llc_tags, row.group % machine.dies, entry.expert, key)
        return request.SERVED, machine.llc_write_ns, n_bytes
    if kind == request.DATA:
        s.tally.pair_bytes[state.DATA_MESSAGES, entry.home, entry.die] += n_bytes
        duration = _cross(s, state.DATA_MESSAGES, entry.home, entry.die, n_bytes, np.inf)
        event = pdu.decide(s.work.cp_en, s.work.cp_ready_ns, memory.copies, entry, key, row.time + duration)
        return event, duration, n_bytes
    if kind == request.REMOTE_HBM:
        s.tally.dies[unsigned(entry.home)].remote_read_bytes += n_bytes
        return request.SERVED, _duration(s, machine.hbm_latency_ns, n_bytes, machine.hbm_rates[entry.home]), n_bytes
    if hbm.keep(memory.copies, entry.die, key, n_bytes):
        s.tally.dies[unsigned(entry.die)].write_bytes += n_bytes
    return request.SERVED, _duration(s, machine.hbm_latency_ns, n_bytes, machine.hbm_rates[entry.die]), n_bytes


@inner
def serve_move(s, row):
    """(event, duration, bytes) of a stage of a bundle of hidden vectors."""
    move = state.move_of(s.work, row.item)
    if row.kind == request.ACT_MOVE:
        phase = state.phase_of(s.work, row.item)
        s.tally.moved_bytes[phase] += move.bytes
        s.tally.pair_bytes[state.HIDDEN + phase, move.src, move.dst] += move.bytes
        most = s.machine.transfer_bytes_per_ns[phase]
        return request.SERVED, _cross(s, state.HIDDEN, move.src, move.dst, move.bytes, most), move.bytes
    die = move.src if row.kind == request.ACT_READ else move.dst
    s.tally.dies[unsigned(die)].activation_bytes += move.bytes
    event = request.HERE if row.kind == request.ACT_READ and move.src == move.dst else request.SERVED
    return event, _duration(s, s.machine.hbm_latency_ns, move.bytes, s.machine.hbm_rates[die]), move.bytes


@inner
def group_of(s, kind, item, reader):
    """Resources of a stage: a unit of a die, or a route. ``reader``: whose LLC is filled."""
    dies = s.machine.dies
    routes = state.UNITS * dies
    if kind == request.DONE:
        return routes  # the empty route from die 0 to itself
    if kind >= request.ACT_READ:
        move = state.move_of(s.work, item)
        if kind == request.ACT_MOVE:
            return routes + move.src * dies + move.dst
        return HBM_CLASS * dies + (move.src if kind == request.ACT_READ else move.dst)
    entry = entry_of(s, item)
    if kind == request.REQUEST:
        return routes + entry.die * dies + entry.home
    if kind == request.DATA:
        return routes + entry.home * dies + entry.die
    place = entry.home if kind == request.REMOTE_LLC or kind == request.REMOTE_HBM else entry.die
    return catalogue.UNIT[kind] * dies + (reader if kind == request.LLC_FILL else place)


@inner
def priority_of(s, chain):
    entry = entry_of(s, chain)
    return np.int64(entry.die != entry.home)


@inner
def early_ns(s, kind, chain):
    """How long before a slice's last byte its first segment is there (0 where slices are not segmented)."""
    rest = s.machine.slice_bytes - s.machine.first_bytes
    if kind == request.LOCAL_HBM:
        return rest / s.machine.hbm_rates[entry_of(s, chain).die]
    if kind != request.DATA:
        return 0.0
    entry = entry_of(s, chain)
    return rest / s.machine.route_bytes_per_ns[entry.home, entry.die]

"""How a step begins the stages of its slices and hidden vectors under ``contention: shared``."""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.engine import state
from archsim.engine.event.flow_pool import Traffic
from archsim.engine.event.flows import IS_SERVED, STAGES, send, set_timer
from archsim.engine.event.step_networks import OWN_COPIES, OWN_SLICES, OWN_VECTORS, PAIRS
from microarch.blocks import atu, hbm, request


class SharedState(NamedTuple):
    """State of a step, as its kernels use it."""

    machine: state.Machine  # constants of the run
    work: state.StepWork  # of the step
    memory: state.Memory  # LLCs, copies, translations
    tally: state.Tally  # counts of the run
    traffic: Traffic  # stages and flows of the step


@inner
def new_stage(pool, kind, item, parent, now):
    stage = pool.count[STAGES]
    pool.count[STAGES] += 1
    row = pool.stages[stage]
    row.kind, row.item, row.parent, row.cause, row.event = kind, item, parent, parent, request.SERVED
    row.time = row.bound_from = row.end = now
    row.hbm_ns, row.least_ns = 0.0, 0.0
    return stage


@inner
def describe_flow(traffic, row, group, n_bytes, first_bytes, latency):
    row.group, row.bytes = np.int64(traffic.row_of[group]), n_bytes
    row.first_bytes, row.latency = first_bytes, latency


@inner
def _count_message(machine, tally, what, src, dst, n_bytes):
    tally.hops[min(what, state.HIDDEN), 0] += machine.hops[src, dst]
    tally.hops[min(what, state.HIDDEN), 1] += machine.hops[src, dst] * n_bytes
    tally.pair_bytes[what, src, dst] += n_bytes


@inner
def _request(machine, tally, entry):
    """Latency of a command to the home; its bytes are counted on the links that it passes."""
    n_bytes = machine.request_bytes
    _count_message(machine, tally, state.REQUESTS, entry.die, entry.home, n_bytes)
    first, last = state.route_of(machine, entry.die, entry.home)
    for at in range(first, last):
        tally.resources[state.link_at(machine, at)].bytes += n_bytes
    return machine.route_ns[entry.die, entry.home] + n_bytes / machine.route_bytes_per_ns[entry.die, entry.home]


@outer
def begin_move(s, kind, item, parent, now):
    """Begin a stage of a bundle of hidden vectors."""
    machine, move, phase = s.machine, state.move_of(s.work, item), state.phase_of(s.work, item)
    stage = new_stage(s.traffic.pool, kind, item, parent, now)
    row = s.traffic.pool.stages[stage]
    if kind == request.ACT_MOVE:
        _count_message(machine, s.tally, state.HIDDEN + phase, move.src, move.dst, move.bytes)
        s.tally.moved_bytes[phase] += move.bytes
        s.tally.dies[move.dst].activation_bytes += move.bytes
        row.least_ns = move.port_bytes / machine.transfer_bytes_per_ns[phase]
        group = (PAIRS + 2 * machine.dies + move.src) * machine.dies + move.dst
        describe_flow(s.traffic, row, group, move.bytes, move.bytes, machine.route_ns[move.src, move.dst])
        send(s.traffic, stage, now)
        return
    s.tally.dies[move.src].activation_bytes += move.bytes
    if move.src == move.dst:
        row.event = request.HERE
        group = OWN_VECTORS * machine.dies + move.src
        latency = machine.transfer_ns[phase] + machine.hbm_latency_ns
        describe_flow(s.traffic, row, group, move.bytes, move.bytes, latency)
        send(s.traffic, stage, now)
    else:
        set_timer(s.traffic.pool, stage, now + machine.transfer_ns[phase] + machine.hbm_latency_ns, IS_SERVED)


@outer
def begin_slice(s, kind, item, parent, now):
    """Begin a stage of a weight slice, COMPUTE excepted."""
    machine, pool, entry = s.machine, s.traffic.pool, s.work.entries[item // hbm.SLICES]
    stage = new_stage(pool, kind, item, parent, now)
    row, latency = pool.stages[stage], 0.0
    if kind == request.LOCAL_HBM:
        s.tally.dies[entry.die].local_read_bytes += entry.read_bytes
        whole = machine.first_bytes == machine.slice_bytes
        first_bytes = entry.read_bytes if whole else min(machine.first_bytes, entry.read_bytes)
        group = OWN_SLICES * machine.dies + entry.die
        describe_flow(s.traffic, row, group, entry.read_bytes, first_bytes, machine.hbm_latency_ns)
        send(s.traffic, stage, now)
        return
    if kind == request.COPY:
        group = OWN_COPIES * machine.dies + entry.die
        describe_flow(s.traffic, row, group, machine.slice_bytes, machine.slice_bytes, machine.hbm_latency_ns)
        send(s.traffic, stage, now)
        return
    if kind == request.DATA:
        _count_message(machine, s.tally, state.DATA_MESSAGES, entry.home, entry.die, machine.slice_bytes)
        from_llc = pool.stages[parent].kind == request.REMOTE_LLC
        group = (PAIRS + (machine.dies if from_llc else 0) + entry.home) * machine.dies + entry.die
        latency = machine.route_ns[entry.home, entry.die]
        describe_flow(s.traffic, row, group, machine.slice_bytes, machine.first_bytes, latency)
        send(s.traffic, stage, now)
        return
    if kind == request.LOOKUP:
        row.event = atu.look_up(s.memory.llc_tags, s.memory.copies, entry, entry.key + item % hbm.SLICES)
        s.tally.llc_hits[0] += row.event == request.HIT
        latency = machine.llc_hit_ns if row.event == request.HIT else machine.llc_miss_ns
        if row.event != request.HIT and not atu.knows(s.memory.atu, entry, entry.key // hbm.SLICES):
            latency += machine.hbm_latency_ns
    elif kind == request.REQUEST:
        latency = _request(machine, s.tally, entry)
    elif kind == request.REMOTE_LLC:
        s.tally.llc_hits[1] += 1
        latency = machine.llc_hit_ns
    elif kind == request.REMOTE_HBM:
        s.tally.dies[entry.home].remote_read_bytes += machine.slice_bytes
        latency = machine.hbm_latency_ns
    else:  # LLC_FILL
        latency = machine.llc_write_ns
        if pool.stages[parent].kind == request.REMOTE_HBM:
            latency += machine.slice_bytes / machine.hbm_rates[entry.home]
    set_timer(pool, stage, now + latency, IS_SERVED)


@outer
def start_moves(s, what, die, parent, now):
    """Start the bundles of hidden vectors that leave a die."""
    columns = s.work.moves.shape[1]
    for column in range(s.work.move_ptr[what, die], s.work.move_ptr[what, die + 1]):
        begin_move(s, request.ACT_READ, what * columns + column, parent, now)


@outer
def ask(s, die, parent, now):
    """The Local CP asks for slices while there is room for them."""
    local, row = s.work.local[die], s.traffic.pool.dies[die]
    while row.unasked > 0 and row.room >= row.ask_from:
        chain = s.work.chains[local.next_chain]
        taken = state.room_of(s.machine, s.work.entries[chain // hbm.SLICES])
        asked = s.traffic.pool.chains[chain]
        asked.taken, asked.ready = taken, now
        asked.ends_from = now + s.work.entries[chain // hbm.SLICES].alone_ns
        local.next_chain += 1
        row.unasked -= 1
        row.room -= taken
        begin_slice(s, request.LOOKUP, chain, parent, now)

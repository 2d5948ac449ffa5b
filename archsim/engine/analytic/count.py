"""What a walked step moved: the counts of ``archsim.engine.state.Tally``, and the loads of HBMs and links by phase.

``loads: float64[phase, resource]`` in ns at the machine's rates; the phases are slices (0), dispatch (1) and combine
(2). Under ``contention: reserved`` loads include the latency for which a resource is held.
"""

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.engine.analytic.slices import ARRAYS, FROM_HBM, FROM_HOME_HBM, FROM_HOME_LLC, FROM_LLC, HBMS
from archsim.engine.state import COMBINE, DATA_MESSAGES, DISPATCH, HIDDEN, REQUESTS, UNITS, link_at, route_of
from microarch.blocks.hbm import SLICES

OF_SLICES, OF_DISPATCH, OF_COMBINE = np.int64(0), np.int64(1), np.int64(2)


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

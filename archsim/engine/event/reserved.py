"""``contention: reserved``: every stage claims all of its resources exclusively, booked ahead by one.

The rules are those of the published simulator (design notes, machine section 4). A stage of a request (see
``microarch.blocks.request``) has an earliest time and a group of resources. When it is created and none of them is
claimed, it claims them and will start when the last of them becomes free; otherwise it waits in the queue of each.
Stages are processed in order of start; processing creates the successors, releases the resources at once (they become
free at the stage's end) and offers each to the first stage that waits for it. A look-up chooses the whole path of its
slice: if the home is queried, its LLC is looked up at that moment, not when the request arrives.

Rows of the pool stay until the step ends; they are also the log from which timelines are drawn.
"""

import numpy as np

from archsim.base.compiled import inner, kernel, reference, unsigned
from archsim.engine import local_cp, state
from archsim.engine.event import claim_pool, claims, explained, heaps, service, step_log
from microarch.blocks.catalogue import NEXT, SPAWN
from microarch.blocks.request import ACT_READ, COMPUTE, COPY, DONE, LOOKUP, Unit
from microarch.fabric.fabric import Fabric

HBM, COMPUTE_ARRAY = np.int64(Unit.HBM), np.int64(Unit.COMPUTE)


@inner
def _follow(s, stage, event, end):
    """Create the successors of a processed stage, the spawned one first."""
    row = claims.row_of(s, stage)
    spawned, following = SPAWN[row.kind, event], NEXT[row.kind, event]
    if spawned >= 0:
        group = service.group_of(s, spawned, row.item, row.group % s.machine.dies)
        claims.create(s, spawned, row.item, group, end, 0.0, stage, row.priority)
    earliest, floor = end, 0.0
    if following == COMPUTE:
        entry = claims.entry_of(s, row.item)
        earliest = end - service.early_ns(s, row.kind, row.item)
        floor = max(end + entry.drain_ns, service.asked_at(s, stage) + entry.alone_ns)
        if entry.routed and local_cp.awaits_tokens(s.work, entry.die):
            s.work.held[unsigned(row.item)].floor = floor
            local_cp.hold(s.work, entry.die, row.item)
            return
    elif following == DONE and row.kind >= ACT_READ:  # software follows, so that it keeps no resource from others
        earliest = end + s.machine.transfer_ns[state.phase_of(s.work, row.item)]
    group = service.group_of(s, following, row.item, row.group % s.machine.dies)
    claims.create(s, following, row.item, group, earliest, floor, stage, row.priority)


@inner
def _start_chain(s, die, now, parent):
    local = s.work.local[unsigned(die)]
    if local.next_chain < local.end_chain:
        chain = s.work.chains[unsigned(local.next_chain)]
        local.next_chain += 1
        claims.create(s, LOOKUP, chain, die, now, 0.0, parent, service.priority_of(s, chain))


@inner
def _start_moves(s, what, die, now, parent):
    columns = s.work.moves.shape[1]
    for column in range(s.work.move_ptr[what, die], s.work.move_ptr[what, die + 1]):
        claims.create(s, ACT_READ, what * columns + column, HBM * s.machine.dies + die, now, 0.0, parent, np.int64(0))


@inner
def _release_held(s, die, now, parent):
    chain = s.work.local[unsigned(die)].held
    s.work.local[unsigned(die)].held = claims.NOBODY
    s.work.local[unsigned(die)].launched_ns = now + s.work.local[unsigned(die)].launch_ns
    while chain >= 0:
        group = COMPUTE_ARRAY * s.machine.dies + die
        claims.create(
            s, COMPUTE, chain, group, now, s.work.held[unsigned(chain)].floor, parent, service.priority_of(s, chain)
        )
        chain = s.work.held[unsigned(chain)].next


@inner
def _finish(s, stage):
    """A request is done: its die may start the next one or send its results."""
    now, item = claims.row_of(s, stage).time, claims.row_of(s, stage).item
    kind = claims.row_of(s, claims.row_of(s, stage).parent).kind
    if kind == COMPUTE:
        entry = claims.entry_of(s, item)
        _start_chain(s, entry.die, now, stage)
        if entry.routed and local_cp.count_computed(s.work, entry.die, now):
            _start_moves(s, state.COMBINE, entry.die, now, stage)
    elif kind >= ACT_READ and item < s.work.moves.shape[1]:
        die = s.work.moves[state.DISPATCH, item].dst
        if local_cp.count_arrived(s.work, die, now):
            _release_held(s, die, now, stage)


@inner
def _process(s, stage):
    """Serve a stage, create its successors, release its resources."""
    row = claims.row_of(s, stage)
    if row.kind == DONE:
        row.end = row.time
        _finish(s, stage)
        return
    event, duration, n_bytes = service.serve_move(s, row) if row.kind >= ACT_READ else service.serve_slice(s, row)
    row.end, row.event = row.time + duration, event
    _follow(s, stage, event, row.end)
    if claims.is_unit(s, row.group):
        claims.give_up(s, stage, row.group, duration, n_bytes)
        waiting = claims.first_waiting(s, row.group)
        if waiting >= 0:
            claims.admit_at(s, waiting, row.group)
        return
    first, last = claims.links_of(s, row.group)
    for at in range(first, last):
        claims.give_up(s, stage, state.link_at(s.machine, at), duration, n_bytes)
    if len(s.link_bits):
        s.pool.count[claims.CLAIMED] &= ~s.link_bits[unsigned(row.group)]
    claims.offer_links(s, row.group)


@inner
def _trace_back(s, stage, begin):
    """Add the critical path that ends with ``stage`` to ``bound_ns``, by cause, and its residuals."""
    until = claims.row_of(s, stage).end
    while stage >= 0 and until > begin:
        row = claims.row_of(s, stage)
        since = max(min(row.time, until), begin)
        if row.kind == COMPUTE:
            explained.explain_product(s.tally, s.work, claims.entry_of(s, row.item), since, until)
        else:
            s.tally.bound_ns[state.CAUSE_OF[row.kind]] += until - since
        until = since
        stage = row.cause


@inner
def _start_all(s, begin_ns):
    for die in range(s.machine.dies):
        _start_moves(s, state.DISPATCH, die, begin_ns, claims.NOBODY)
    if s.machine.window < len(s.work.chains):
        for die in range(s.machine.dies):
            for _ in range(s.machine.window):
                _start_chain(s, die, begin_ns, claims.NOBODY)
        return
    for chain in range(len(s.work.chains)):
        claims.create(
            s, LOOKUP, chain, claims.entry_of(s, chain).die, begin_ns, 0.0, claims.NOBODY, service.priority_of(s, chain)
        )
    for die in range(s.machine.dies):
        s.work.local[unsigned(die)].next_chain = s.work.local[unsigned(die)].end_chain


@inner
def _ends_step(s, stage):
    """Whether the step waits for the stage: not for copies under ``copy_writes: background``."""
    row = claims.row_of(s, stage)
    is_copy = row.kind == COPY or (row.kind == DONE and claims.row_of(s, row.parent).kind == COPY)
    return not (is_copy and s.machine.copies_in_background)


@kernel
def run_step(s, begin_ns):
    """Run one step from ``begin_ns``; float64 ns at which its last stage ends: stores included, but for copies under
    ``copy_writes: background``, whose time is left to the HBMs at the start of the next step.
    """
    s = reference(s)
    for i in range(len(s.pool.count)):
        s.pool.count[i] = 0
    for r in range(len(s.pool.claims)):
        claim = claims.claim_of(s, r)
        claim.queued, claim.claimed, claim.last_user, claim.free_at = 0, 0, -1, begin_ns
    for die in range(s.machine.dies):
        s.work.local[unsigned(die)].launched_ns += begin_ns
        unwritten_ns = s.memory.copies.room[die].unwritten_bytes / s.machine.hbm_rates[die]
        claims.claim_of(s, s.machine.dies + die).free_at += unwritten_ns
    _start_all(s, begin_ns)
    end, last = begin_ns, claims.NOBODY
    while s.pool.count[claims.BOOKED] > 0:
        booking, s.pool.count[claims.BOOKED] = heaps.bookings_pop(
            s.pool.calendar, s.pool.count[claims.BOOKED], s.tie_bits
        )
        stage = booking[1]
        _process(s, stage)
        if claims.row_of(s, stage).end > end and _ends_step(s, stage):
            end, last = claims.row_of(s, stage).end, stage
    s.tally.events[0] += s.pool.count[claims.STAGES]
    if s.machine.copies_in_background:
        for die in range(s.machine.dies):
            late_ns = max(0.0, claims.claim_of(s, s.machine.dies + die).free_at - end)
            s.memory.copies.room[die].unwritten_bytes = np.int64(late_ns * s.machine.hbm_rates[die])
    if last >= 0:
        _trace_back(s, last, begin_ns)
    return end


def _link_bits(machine: state.Machine) -> np.ndarray:
    if machine.link_resources > claims.MOST_BITS:
        return np.zeros(0, np.int64)
    of_pairs = np.zeros(machine.dies**2, np.int64)
    pair = np.repeat(np.arange(len(of_pairs)), np.diff(machine.route_ptr))
    np.bitwise_or.at(of_pairs, pair, np.int64(1) << machine.route_links.astype(np.int64))
    return np.concatenate([np.zeros(state.UNITS * machine.dies, np.int64), of_pairs])


class ReservedKernel:
    """The strategy ``contention: reserved``: runs steps, keeping one pool that grows as steps need."""

    def __init__(self, machine: state.Machine, fabric: Fabric, assumptions):
        self._machine = machine
        self._tie_bits = -1 if assumptions.ties == "sequence" else 0
        self._link_bits = _link_bits(machine)
        self.pool = claim_pool.new_pool(machine.resources, 0, 0)

    def step(self, work: state.StepWork, memory: state.Memory, tally: state.Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        if claim_pool.STAGES_PER_CHAIN * chains + claim_pool.STAGES_PER_MOVE * moves > len(self.pool.stages):
            room = 2 * chains, 2 * moves
            self.pool = claim_pool.new_pool(
                self._machine.resources,
                claim_pool.STAGES_PER_CHAIN * room[0] + claim_pool.STAGES_PER_MOVE * room[1],
                claim_pool.WAITS_PER_CHAIN * room[0] + room[1],
            )
        self._work = work = work._replace(cp_ready_ns=begin_ns + work.cp_ready_ns)
        end_ns = run_step(
            claim_pool.ReservedState(self._machine, work, memory, tally, self.pool, self._link_bits, self._tie_bits),
            begin_ns,
        )
        if len(work.notes):
            work.notes["time_ns"] -= begin_ns
        return end_ns

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step, which began at ``begin_ns``."""
        stages, waits = self.pool.stages[: self.pool.count[claims.STAGES]], not self._machine.copies_in_background
        return step_log.step_log(stages, self._work, begin_ns, waits)

"""``contention: shared``: transfers share links and HBM; rates change when a transfer starts or ends.

The same requests go through the same table (``microarch.blocks.request``) as under ``reserved``; what differs is how
a stage is served:

============ ==========================================================================================================
LOOKUP       the LLC answers after its hit or miss latency (its port is pipelined)
LOCAL_HBM    a flow through the die's HBM; HBM latency is added at its end
REQUEST      hops and ``request_bytes`` at link speed, as latency: too small to take part in sharing
REMOTE_LLC   the home's LLC answers after its hit latency
REMOTE_HBM   the home's HBM answers after its latency; the read itself is part of DATA
DATA         one flow through the home's HBM (not after REMOTE_LLC) and all links of the route; hop latency at its end
COMPUTE      the array takes slices one at a time, in the order in which their first segments arrive; a slice does not
             end before its last segment has arrived, nor sooner after that than its drain. An array that has spent
             the time of the product waits until then (``reads: together``) or takes the next slice (``in_order``).
             Time in which an idle array waits after the request counts towards the product already
LLC_FILL     the write latency, after the slice has left a remote HBM at full rate
COPY         a flow through the die's HBM; under ``copy_writes: background`` the step does not wait for it, and the next
             begins with a flow of the bytes that are left
ACT_READ     software of the transfer, then HBM latency of the source; a flow through its HBM if the vectors stay
ACT_MOVE     one flow through both HBMs and all links of the route; no sooner than the fuller of its ports has passed
             what the phase sends through it, at the rate of the software
ACT_WRITE    nothing more: the write was part of the move
============ ==========================================================================================================

Flows of one line take part one after the other (``reads: in_order``, ``source: queued``). Times are counted from
the start of the step; everything that starts or ends at one instant is recomputed once. Under ``rate_updates:
per_round_trip`` recomputes keep a distance in time: until the next one, a flow that has started waits, and the share of
one that has ended is left unused. Timers and flows are in `archsim.engine.event.flows`, their
groups in `step_networks`, how stages begin in `stages`, the compute array in `array`.
"""

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.engine.event import array, explained, flow_pool, flows, step_log, step_networks
from archsim.engine.event.stages import SharedState, ask, begin_move, begin_slice, describe_flow, new_stage, start_moves
from archsim.engine.flows import link_order
from archsim.engine.flows.network import TOUCHED, FlowNetwork
from archsim.engine.flows.port_fair import solve_rates
from archsim.engine.flows.ports import NO_PORTS, Ports, build_ports
from archsim.engine.local_cp import count_arrived
from archsim.engine.machine import share_every_ns
from archsim.engine.state import DISPATCH, Machine, Memory, StepWork, Tally, room_for_slices, room_to_ask
from microarch.blocks import catalogue, hbm, llc, pdu, request
from microarch.fabric.fabric import Fabric

# Copies that a step leaves to be written while the next one runs (``copy_writes: background``).


@outer
def resume_copies(s):
    """Begin with the bytes of copies that the step before left to be written: item -1 - die."""
    for die in range(s.machine.dies):
        left = s.memory.copies.room[die].unwritten_bytes
        if left > 0:
            stage = new_stage(s.traffic.pool, request.COPY, -1 - die, flows.NOBODY, 0.0)
            group = step_networks.OWN_COPIES * s.machine.dies + die
            describe_flow(s.traffic, s.traffic.pool.stages[stage], group, left, left, s.machine.hbm_latency_ns)
            flows.send(s.traffic, stage, 0.0)


@outer
def leave_copies(s, end):
    """Leave copies that are not written to the next step; from ``end`` on only they use an HBM."""
    pool, machine, room = s.traffic.pool, s.machine, s.memory.copies.room
    for die in range(machine.dies):
        room[die].unwritten_bytes = 0
    for stage in range(pool.count[flows.STAGES]):
        row = pool.stages[stage]
        if row.kind == request.COPY:
            die = -1 - row.item if row.item < 0 else s.work.entries[row.item // hbm.SLICES].die
            left = np.int64((row.end - row.latency - end) * machine.hbm_rates[die])
            room[die].unwritten_bytes = max(room[die].unwritten_bytes, left)
    for die in range(machine.dies):
        row = s.tally.resources[machine.dies + die]
        row.bytes -= room[die].unwritten_bytes
        row.busy_ns -= room[die].unwritten_bytes / machine.hbm_rates[die]


@inner
def _move_done(s, item, stage, now):
    if item < s.work.moves.shape[1]:
        die = s.work.moves[DISPATCH, item].dst
        if count_arrived(s.work, die, now):
            array.release_held(s, die, stage, now)


@inner
def _outcome(s, row, now):
    """Event that ends a stage ``now``; updates caches and copies."""
    if row.kind >= request.ACT_READ or row.kind == request.LOOKUP or row.item < 0:
        return row.event
    entry = s.work.entries[row.item // hbm.SLICES]
    key = entry.key + row.item % hbm.SLICES
    if row.kind == request.REQUEST:
        return request.HIT if llc.holds(s.memory.llc_tags, entry.home, entry.expert, key) else request.MISS
    if row.kind == request.DATA:
        return pdu.decide(s.work.cp_en, s.work.cp_ready_ns, s.memory.copies, entry, key, now)
    if row.kind == request.LLC_FILL:
        reader = entry.home if s.traffic.pool.stages[row.parent].kind == request.REMOTE_HBM else entry.die
        llc.store(s.memory.llc_tags, reader, entry.expert, key)
    elif row.kind == request.COPY and hbm.keep(s.memory.copies, entry.die, key, s.machine.slice_bytes):
        s.tally.dies[entry.die].write_bytes += s.machine.slice_bytes
    return request.SERVED


@inner
def _end_stage(s, stage, now):
    """A stage has ended: apply its effects and start its successors, the spawned one first."""
    row = s.traffic.pool.stages[stage]
    event = _outcome(s, row, now)
    row.end, row.event = now, event
    spawned, following = catalogue.SPAWN[row.kind, event], catalogue.NEXT[row.kind, event]
    if spawned >= 0:
        begin_slice(s, spawned, row.item, stage, now)
    if following == request.COMPUTE:
        array.arrive(s, row.item, stage, now)
    elif row.kind < request.ACT_READ:
        if following != request.DONE:
            begin_slice(s, following, row.item, stage, now)
    elif following == request.ACT_MOVE:
        begin_move(s, following, row.item, stage, now)
    else:  # written on arrival
        _move_done(s, row.item, stage, now)


@outer
def _tell(s, timer, now):
    """Handle the event of a timer: ``(stage, event)``."""
    stage, tells = timer
    if tells == flows.IS_SERVED:
        _end_stage(s, stage, now)
    elif tells == flows.HAS_SEGMENT:
        array.operand_ready(s, s.traffic.pool.stages[stage].item, stage, now)
    elif tells == flows.HAS_ROOM:
        array.has_room(s, stage, now)
    else:
        array.end_multiplying(s, stage, now)


@outer
def _start(s):
    resume_copies(s)
    for die in range(s.machine.dies):
        start_moves(s, DISPATCH, die, flows.NOBODY, 0.0)
    for die in range(s.machine.dies):
        local, row = s.work.local[die], s.traffic.pool.dies[die]
        row.room, row.ask_from = room_for_slices(s.machine), room_to_ask(s.machine)
        row.unasked = local.end_chain - local.next_chain
        ask(s, die, flows.NOBODY, 0.0)


@inner
def _last_to_end(stages, count, copies_too):
    """The stage that ends the step."""
    last = flows.NOBODY
    for stage in range(count):
        if (copies_too or stages[stage].kind != request.COPY) and (last < 0 or stages[stage].end > stages[last].end):
            last = stage
    return last


@kernel
def run_step(s, ports, fair):
    """Run one step with the rates of `solve_rates`; returns its duration, float64 ns."""
    s, ports = reference(s), reference(ports)
    traffic, pool = s.traffic, s.traffic.pool
    flows.reset(traffic, len(s.work.chains))
    _start(s)
    now, flow_time, share_from = 0.0, np.inf, 0.0
    while True:
        if traffic.net.counts[TOUCHED] > 0 and share_from <= now:
            solve_rates(traffic.net, ports, fair)
            flow_time, share_from = flows.apply_rates(traffic, now), now + traffic.share_every_ns
        elif flow_time <= now:
            flow_time = flows.next_flow_time(pool)
        now = min(flows.next_timer_time(pool), flow_time, share_from if traffic.net.counts[TOUCHED] > 0 else np.inf)
        if now == np.inf:
            break
        if flow_time <= now:
            flows.work_flows(traffic, now)
        while flows.next_timer_time(pool) <= now:
            _tell(s, flows.take_timer(pool), now)
    s.tally.events[0] += pool.count[flows.TIMERS]
    if pool.count[flows.STAGES] == 0:
        return 0.0
    last = _last_to_end(pool.stages, pool.count[flows.STAGES], not s.machine.copies_in_background)
    if s.machine.copies_in_background:
        leave_copies(s, pool.stages[last].end)
    explained.trace_back(pool.stages, s.work, s.tally, last)
    return pool.stages[last].end


class SharedKernel:
    """The strategy ``contention: shared``: runs steps, keeping one network, and one pool that grows as steps need."""

    def __init__(self, machine: Machine, fabric: Fabric, assumptions):
        self._machine = machine
        self._groups = step_networks.StepNetworks(machine, fabric, assumptions.reads, assumptions.source)
        self._cycles = assumptions.arbitration == "head_of_line"
        self._ranks = None if assumptions.arbitration == "fair" else link_order.port_ranks(fabric, self._cycles)
        self._ports: tuple[FlowNetwork | None, Ports] = (None, NO_PORTS)
        self.share_every_ns = share_every_ns(machine, assumptions)  # least time between two recomputes of rates
        self._metered = np.zeros(machine.dies + machine.link_resources)
        self.pool = flow_pool.new_pool(machine, 0, 0)

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        stages = flow_pool.STAGES_PER_CHAIN * chains + flow_pool.STAGES_PER_MOVE * moves + self._machine.dies
        if chains > len(self.pool.chains) or stages > len(self.pool.stages):
            self.pool = flow_pool.new_pool(self._machine, 2 * chains, 2 * moves)
        self._work = work
        net, lines, line_of, row_of, flow_of = self._groups.of(work)
        traffic = flow_pool.Traffic(
            pool=self.pool, net=net, resources=tally.resources, metered=self._metered, lines=lines, line_of=line_of,
            row_of=row_of, flow_of=flow_of, dies=self._machine.dies, share_every_ns=self.share_every_ns,
        )  # fmt: skip
        state = SharedState(self._machine, work, memory, tally, traffic)
        return begin_ns + run_step(state, self._ports_of(net), self._ranks is None)

    def _ports_of(self, net: FlowNetwork) -> Ports:
        if self._ranks is not None and self._ports[0] is not net:
            self._ports = net, build_ports(net, self._ranks, self._cycles)
        return self._ports[1]

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step; its times count from 0, whenever the step began."""
        stages, waits = self.pool.stages[: self.pool.count[flows.STAGES]], not self._machine.copies_in_background
        return step_log.step_log(stages, self._work, 0.0, waits)

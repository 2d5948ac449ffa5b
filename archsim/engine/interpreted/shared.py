"""``contention: shared``, slow and obvious: transfers as flows whose rates come from a plain max–min, or as messages
of a user's packet-level network.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Any

from archsim.base import errors, sums
from archsim.engine.flows.simulation import SPENT
from archsim.engine.interpreted import blocks, counting, max_min
from archsim.engine.interpreted.interpreter import MOVE_STATES, Interpreter, Name, Way, route
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.stage import Stage
from archsim.engine.state import DISPATCH, UNITS, Machine, StepWork, Tally
from microarch.blocks.request import Event, State

Line = tuple[str, int] | tuple[str, int, int]  # flows that wait for each other: what they carry, from where to where


@dataclass(eq=False)
class Flow:
    """Bytes of a stage on their way: at ``rate`` since ``since`` (from its ``start``), with ``left`` to go then."""

    stage: Stage  # whose bytes they are
    route: Way  # resources that they pass
    size: float  # bytes
    goal: float  # bytes left at the next thing to tell
    latency: float  # ns, added at the end
    start: float  # ns
    left: float  # bytes at ``since``
    rate: float = 0.0  # bytes per ns
    since: float = 0.0  # ns from ``start``: last change of the rate
    takes: float = inf  # ns from ``start`` until the next thing to tell
    least: float = 0.0  # it takes no less
    hbm_bound: bool = False  # whether an HBM is its bottleneck now


class Shared(Interpreter):
    """``contention: shared``, ``arbitration: fair``: transfers share links and HBM max–min."""

    def __init__(
        self,
        machine: Machine,
        work: StepWork,
        memory: DieMemory,
        queued: bool,
        in_order: bool = False,
        share_every_ns: float = 0.0,
        network: blocks.Network | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(machine, work, memory, **parts)
        self.queued, self.in_order = queued, in_order  # source: queued, reads: in_order
        self.share_every_ns = share_every_ns  # least time between two recomputes of rates
        self.network = network
        self.on_way: dict[int, Flow] = {}  # messages of the network
        self.timers: list[tuple[float, int, int, Callable[[Stage, float], None], Stage]] = []
        self.timers_set = 0
        self.flows: list[Flow] = []
        self.changed: list[Way] = []  # routes of the flows that have come or gone since rates were found
        self.queues: list[list[int]] = [[] for _ in range(machine.dies)]  # of compute arrays
        self.running: list[int | None] = [None] * machine.dies
        self.lines: dict[Line, list[Flow]] = {}  # flows that wait for each other, the first of them under way
        self.room = [float(machine.stream_bytes or machine.window)] * machine.dies
        self.taken: dict[int, float] = {}  # chain: room that it takes
        self.ready: dict[int, float] = {}  # chain: from when on its product counts as begun if the array is idle
        self.read_out: dict[int, float] = {}  # chain: least end of a product that reads as it was measured
        self.free, self.begun = [0.0] * machine.dies, [0.0] * machine.dies  # of arrays: since, and their product
        self.drained: dict[int, float] = {}  # chain: when the whole slice was there, and drained
        self.computed: set[int] = set()
        self.arrived_by: dict[int, Stage] = {}
        self.compute_stage: dict[int, Stage] = {}
        self.latest: list[Stage | None] = [None] * machine.dies  # what an array worked on last
        self.metered: dict[Name, float] = {}  # until when busy and waiting time of a resource are counted

    def run(self, begin: float) -> float:
        """Run the step; times count from 0. Returns ``begin`` plus how long it takes."""
        for die, left in enumerate(self.memory.unwritten):
            if left:
                stage = self.new_stage(State.COPY, -1 - die, None, 0.0)
                self.send(Flow(stage, (("hbm", die),), left, 0.0, self.machine.hbm_latency_ns, 0.0, left), 0.0)
        for die in range(self.machine.dies):
            self.start_moves(int(DISPATCH), die, 0.0, None)
        for die in range(self.machine.dies):
            self.start_chain(die, 0.0, None)
        now, flow_time, share_from = 0.0, inf, 0.0
        while True:
            if self.changed and share_from <= now:
                self.share(now)
                flow_time, share_from = self.next_flow_time(), now + self.share_every_ns
            sooner = share_from if self.changed else inf
            now = self.messages_arrive(min(self.next_timer_time(), flow_time, sooner))
            if now == inf:
                break
            if flow_time <= now:
                self.work_flows(now)
                flow_time = self.next_flow_time()
            while self.next_timer_time() <= now:
                _, _, _, tells, stage = heapq.heappop(self.timers)
                tells(stage, now)
        self.last = max((stage for stage in self.log if self.ends_step(stage)), key=lambda s: s.end, default=None)
        end = self.last.end if self.last else 0.0
        freed = [0.0] * self.machine.dies
        for stage in self.log:
            if stage.state == State.COPY:
                die = -1 - stage.item if stage.item < 0 else self.entry(stage.item).die
                freed[die] = max(freed[die], stage.end - self.machine.hbm_latency_ns)
        self.leave_copies(end, freed)
        if self.machine.copies_in_background:
            for die, left in enumerate(self.memory.unwritten):
                row = self.machine.dies + die
                self.counted.uses(row, bytes=-left, busy_ns=-(left / self.machine.hbm_rates[die]))
        return begin + end

    def messages_arrive(self, until: float) -> float:
        """The time of what happens next, no later than ``until``: a message of the network may be first."""
        arrival = self.network.poll(until) if self.network and self.on_way else None
        if arrival is None:
            if until == inf and self.on_way:
                raise errors.ArchsimError(f"blocks: the network never delivers {len(self.on_way)} messages")
            return until
        now, number = arrival
        flow = self.on_way.pop(number)
        if flow.stage.state == State.DATA and self.has_segments(flow.stage):
            self.at(now + flow.latency, flow.stage, self.operand_ready)
        self.at(now + flow.latency, flow.stage, self.end_stage)
        self.next_in_line(flow, now)
        return now

    def next_timer_time(self) -> float:
        return self.timers[0][0] if self.timers else inf

    def next_flow_time(self) -> float:
        return min((flow.start + flow.takes for flow in self.flows), default=inf)

    def at(self, time: float, stage: Stage, tells: Callable[[Stage, float], None]) -> None:
        heapq.heappush(self.timers, (time, stage.number, self.timers_set, tells, stage))
        self.timers_set += 1

    # stages
    def begin(self, state: IntEnum, item: int, now: float, parent: Stage | None) -> None:
        stage = self.new_stage(state, item, parent, now)
        stage.cause, stage.bound_from = parent, now
        if state == State.LLC_FILL:
            at_home = stage.before.state == State.REMOTE_HBM
            stage.reader = self.entry(item).home if at_home else self.entry(item).die
        self.serve(stage, now)
        flow = self.flow_of(stage, now)
        if flow is None:
            self.at(now + self.latency(stage), stage, self.end_stage)
        else:
            self.send(flow, now)

    def flow_of(self, stage: Stage, now: float) -> Flow | None:
        """The bytes that a stage moves where they take part in sharing, else None."""
        m, state = self.machine, stage.state
        if state in MOVE_STATES:
            move = self.move(stage.item)
            hbm = (("hbm", move.src),)
            if state == State.ACT_MOVE:
                way = (*hbm, *route(m, move.src, move.dst), ("hbm", move.dst))
                least = move.port_bytes / m.transfer_bytes_per_ns[self.phase(stage.item)]
                return Flow(stage, way, move.bytes, 0.0, stage.ns, now, move.bytes, least=least)
            latency = self.latency(stage)
            return Flow(stage, hbm, move.bytes, 0.0, latency, now, move.bytes) if move.src == move.dst else None
        entry = self.entry(stage.item)
        own = (("hbm", entry.die),)
        if state == State.LOCAL_HBM:
            rest = entry.read_bytes - m.first_bytes if self.has_segments(stage) else 0.0
            return Flow(stage, own, entry.read_bytes, rest, stage.ns, now, entry.read_bytes)
        if state == State.COPY:
            return Flow(stage, own, m.slice_bytes, 0.0, stage.ns, now, m.slice_bytes)
        if state == State.DATA:
            source = () if stage.before.state == State.REMOTE_LLC else (("hbm", entry.home),)
            way = source + route(m, entry.home, entry.die)
            return Flow(stage, way, m.slice_bytes, m.slice_bytes - m.first_bytes, stage.ns, now, m.slice_bytes)
        return None

    def has_segments(self, stage: Stage) -> bool:
        """Whether the arrival of a slice's first segment comes before that of the whole slice."""
        n_bytes = self.entry(stage.item).read_bytes if stage.state == State.LOCAL_HBM else self.machine.slice_bytes
        return stage.state != State.LOOKUP and self.machine.first_bytes < min(self.machine.slice_bytes, n_bytes)

    def latency(self, stage: Stage) -> float:
        """Time of a stage that takes no part in sharing, or of what follows its last byte."""
        m, state = self.machine, stage.state
        if state == State.REQUEST:
            entry = self.entry(stage.item)
            for name in route(m, entry.die, entry.home):
                self.counted.uses(self.row(name), bytes=int(m.request_bytes))
            return stage.ns + m.request_bytes / m.route_bytes_per_ns[entry.die, entry.home]
        if state == State.LLC_FILL and stage.before.state == State.REMOTE_HBM:
            return stage.ns + m.slice_bytes / m.hbm_rates[self.entry(stage.item).home]
        if state == State.ACT_READ:
            return m.transfer_ns[self.phase(stage.item)] + stage.ns
        return stage.ns

    def end_stage(self, stage: Stage, now: float) -> None:
        """A stage has ended: begin what follows, the spawned one first."""
        stage.end = now
        if stage.item < 0:  # copies of the step before are written
            stage.event, stage.next = Event.SERVED, State.DONE
            return
        step = self.answer(stage, self.finish(stage, now), now)
        if step.spawn is not None:
            self.begin(step.spawn, stage.item, now, stage)
        if step.next == State.COMPUTE:
            self.arrive(stage, now)
        elif step.next == State.ACT_WRITE or (step.next == State.DONE and stage.state in MOVE_STATES):
            self.move_done(stage.item, now, stage)  # written as it came
        elif step.next != State.DONE:
            self.begin(step.next, stage.item, now, stage)

    # the compute array
    def arrive(self, stage: Stage, now: float) -> None:
        """The whole slice is there. If the array has been waiting for it, it is done, but for what is left to drain."""
        if not self.has_segments(stage):
            self.operand_ready(stage, now)
        self.drained[stage.item], self.arrived_by[stage.item] = now + self.entry(stage.item).drain_ns, stage
        if stage.item in self.computed:
            self.drain(stage.item, now)

    def drain(self, chain: int, now: float) -> None:
        """The array would be done but for the last segment, which came late."""
        stage, ends_from, last = self.compute_stage[chain], self.ends_from(chain), self.arrived_by[chain]
        if ends_from <= self.drained[chain] + self.held_ns[chain]:
            stage.cause, stage.bound_from = last, last.end
        if ends_from <= now:
            self.array_done(chain, now)
        else:
            self.at(ends_from, stage, self.gemm_done)

    def ends_from(self, chain: int) -> float:
        """When the GEMM may end, as the whole slice is there; infinity while it is not."""
        return max(self.drained.get(chain, inf), self.read_out[chain]) + self.held_ns[chain]

    def operand_ready(self, stage: Stage, now: float) -> None:
        """The first segment is there."""
        if self.must_hold(stage.item):
            self.local[self.entry(stage.item).die].held.append((stage.item, 0.0))
        else:
            self.compute(stage.item, now, 0.0, stage)

    def compute(self, chain: int, now: float, floor: float, parent: Stage | None) -> None:
        die = self.entry(chain).die
        if parent is not None and parent.state in MOVE_STATES:  # it has waited for tokens
            self.ready[chain] = now
        stage = self.compute_stage[chain] = self.new_stage(State.COMPUTE, chain, parent, now)
        stage.cause, stage.bound_from = parent, now
        self.serve(stage, now)
        self.queues[die].append(chain)
        self.start_array(die, now)

    def start_array(self, die: int, now: float) -> None:
        if self.running[die] is None and self.queues[die]:
            chain = self.running[die] = self.queues[die].pop(0)
            stage, entry = self.compute_stage[chain], self.entry(chain)
            free, ready = self.free[die], self.ready[chain]
            self.counted.uses(self.row(("array", die)), wait_ns=now - stage.start)
            launched = self.local[die].launched if entry.routed else 0.0
            self.hold(chain, now)
            self.begun[die] = max(free, ready, launched)
            least_ns = entry.least_ns + self.held_ns[chain]
            ends = max(self.begun[die] + self.computing_ns(chain), max(now, launched) + least_ns)
            stage.start = stage.bound_from = now
            if now <= free or ends <= self.begun[die] + self.computing_ns(chain):  # bound by the array, not by bytes
                stage.bound_from = max(free, ready)
                stage.cause = self.latest[die] if free > ready and self.latest[die] is not None else stage.cause
            self.latest[die] = stage
            self.at(ends, stage, self.gemm_done)
            self.watch_room(chain, max(now, launched))

    # room for slices that are asked for and not yet multiplied
    def start_chain(self, die: int, now: float, parent: Stage | None) -> None:
        """Ask for slices while there is room for them."""
        while self.local[die].waiting and self.room[die] >= self.least_room():
            chain = self.local[die].waiting[0]
            self.taken[chain] = self.entry(chain).read_bytes if self.machine.stream_bytes else 1.0
            self.room[die] -= self.taken[chain]
            self.ready[chain], self.read_out[chain] = now, now + self.entry(chain).alone_ns
            super().start_chain(die, now, parent)

    def least_room(self) -> float:
        return self.machine.first_bytes if self.machine.stream_bytes else 1.0

    def watch_room(self, chain: int, now: float) -> None:
        """The slice that is multiplied leaves room evenly; tell when there is enough for the next one."""
        entry = self.entry(chain)
        lacking = self.least_room() - self.room[entry.die]
        if self.local[entry.die].waiting and lacking < self.taken[chain]:
            after = self.computing_ns(chain) * (entry.read_bytes - self.taken[chain] + lacking) / entry.read_bytes
            self.at(max(now, self.begun[entry.die] + after), self.compute_stage[chain], self.has_room)

    def has_room(self, stage: Stage, now: float) -> None:
        die = self.entry(stage.item).die
        self.taken[stage.item] -= self.least_room() - self.room[die]
        self.room[die] = self.least_room()
        self.start_chain(die, now, stage)
        self.watch_room(stage.item, now)

    def gemm_done(self, stage: Stage, now: float) -> None:
        """The array has worked on a slice for its time, or the slice has drained."""
        chain, die = stage.item, self.entry(stage.item).die
        self.computed.add(chain)
        if self.ends_from(chain) <= now:
            self.array_done(chain, now)
            return
        if chain in self.drained:
            self.drain(chain, now)
        if self.in_order and self.running[die] == chain:  # the array does not wait for bytes
            self.running[die], self.free[die] = None, now
            self.start_array(die, now)

    def array_done(self, chain: int, now: float) -> None:
        stage, die = self.compute_stage[chain], self.entry(chain).die
        stage.end = now
        computing_ns = self.computing_ns(chain)
        waited_ns = max(0.0, now - stage.start - computing_ns)
        self.counted.uses(self.row(("array", die)), busy_ns=computing_ns, wait_ns=waited_ns)
        self.answer(stage, stage.event, now)
        if self.running[die] == chain:
            self.running[die], self.free[die] = None, now
        self.room[die] += self.taken[chain]
        self.start_chain(die, now, stage)
        self.start_array(die, now)
        self.chain_done(chain, now, stage)

    # flows
    def send(self, flow: Flow, now: float) -> None:
        """A flow starts at once, or behind the others of its line."""
        line = self.line(flow)
        if line is None:
            self.start_flow(flow, now)
            return
        flows = self.lines.setdefault(line, [])
        flows.append(flow)
        if len(flows) == 1:
            self.start_flow(flow, now)

    def line(self, flow: Flow) -> Line | None:
        """Name of the line in which a flow waits, None if it does not wait."""
        state, item = flow.stage.state, flow.stage.item
        if state in MOVE_STATES:
            src, dst = self.move(item).src, self.move(item).dst
        elif item < 0:  # copies of the step before
            src = dst = -1 - item
        else:
            entry = self.entry(item)
            src, dst = entry.home if state == State.DATA else entry.die, entry.die
        if self.queued and state in (State.DATA, State.ACT_MOVE):
            return ("out", src)
        if not self.in_order:
            return None
        if state == State.ACT_MOVE:
            return ("vectors", src, dst)
        return ("copies" if state == State.COPY else "reads", src, dst)

    def start_flow(self, flow: Flow, now: float) -> None:
        flow.start = now
        if flow.stage.state in (State.DATA, State.ACT_MOVE) and flow.stage.item >= 0:
            if self.enters_network(flow, now):
                return
        self.meter(flow.route, now, int(flow.size))
        if not flow.rate:
            self.changed.append(flow.route)
        self.flows.append(flow)

    def enters_network(self, flow: Flow, now: float) -> bool:
        """Hand the bytes to the user's network, if there is one, unless they stay on their die."""
        if self.network is None:
            return False
        request = self.request_of(flow.stage)
        if request.home == request.die:
            return False
        for name in flow.route:
            self.counted.uses(self.row(name), bytes=int(flow.size))
        self.on_way[flow.stage.number] = flow
        self.network.send(flow.stage.number, request.home, request.die, int(flow.size), now)
        return True

    def work_flows(self, now: float) -> None:
        for flow in list(self.flows):
            if not flow.rate:  # it waits until rates are found anew
                continue
            elapsed = now - flow.start
            if not (flow.start + flow.takes <= now or (flow.takes - elapsed) * flow.rate <= SPENT * flow.size):
                continue
            due = max(flow.start + (flow.takes + flow.latency), flow.stage.start + flow.least + flow.latency)
            if flow.goal > 0.0:
                self.at(due, flow.stage, self.operand_ready)
                flow.goal, flow.takes = 0.0, flow.since + flow.left / flow.rate
            else:
                self.end_flow(flow, now)
                self.at(due, flow.stage, self.end_stage)
                if not self.next_in_line(flow, now):
                    self.changed.append(flow.route)

    def end_flow(self, flow: Flow, now: float) -> None:
        if flow.hbm_bound:
            flow.stage.hbm_ns += now - (flow.start + flow.since)
        self.meter(flow.route, now, 0)
        self.flows.remove(flow)

    def next_in_line(self, ended: Flow, now: float) -> bool:
        """The next flow of the line starts; returns whether it goes on at the rate of the one that ended."""
        line = self.line(ended)
        flows = [] if line is None else self.lines.get(line, [])
        if flows:
            flows.pop(0)
        if not flows:
            return False
        stage = flows[0].stage
        self.counted.uses(self.row(flows[0].route[0]), wait_ns=now - stage.start)
        stage.start = stage.bound_from = now
        stage.cause = ended.stage
        if flows[0].route == ended.route and stage.state == ended.stage.state and ended.rate:
            self.goes_on(flows[0], ended)
        self.start_flow(flows[0], now)
        return flows[0].rate > 0.0

    def goes_on(self, flow: Flow, ended: Flow) -> None:
        """A flow that takes the way of the one before it moves at its rate, limited by what limited that one."""
        flow.rate, flow.hbm_bound = ended.rate, ended.hbm_bound
        flow.takes = (flow.left - flow.goal) / flow.rate

    def share(self, now: float) -> None:
        """Find rates anew; a flow whose rate has changed is counted anew."""
        m = self.machine
        capacity = {
            name: m.hbm_rates[name[1]] if name[0] == "hbm" else m.link_rates[name[1] - UNITS * m.dies]
            for flow in self.flows
            for name in flow.route
        }
        found = self.rates([flow.route for flow in self.flows], capacity)
        self.changed = []
        for flow, (rate, limit) in zip(self.flows, found, strict=True):
            if rate != flow.rate:
                elapsed = now - flow.start
                if flow.hbm_bound:
                    flow.stage.hbm_ns += elapsed - flow.since
                flow.left = max(0.0, flow.left - flow.rate * (elapsed - flow.since))
                flow.since, flow.rate = elapsed, rate
                flow.takes = flow.since + max(0.0, flow.left - flow.goal) / rate
                flow.hbm_bound = limit is not None and limit[0] == "hbm"

    def rates(self, routes: Sequence[Way], capacity: Mapping[Name, float]) -> list[tuple[float, Name | None]]:
        """(rate, resource that limits it) of each flow."""
        rates, limits = max_min.max_min(routes, capacity)
        return [(rates[way], limits.get(way)) for way in routes]

    # counting
    def row(self, name: Name) -> int:
        """Row of a resource in ``archsim.engine.state.Tally.resources``."""
        unit = {"hbm": 1, "array": 2}
        return unit[name[0]] * self.machine.dies + name[1] if name[0] in unit else name[1]

    def meter(self, names: Sequence[Name], now: float, n_bytes: float) -> None:
        """Count busy and waiting time of resources up to now, and the bytes about to pass them."""
        for name in names:
            load = sums.sum(name in flow.route for flow in self.flows)
            since = self.metered.get(name, 0.0)
            self.metered[name] = now
            busy = {"busy_ns": now - since, "wait_ns": (load - 1) * (now - since)} if load else {}
            self.counted.uses(self.row(name), bytes=n_bytes, **busy)

    def tally(self, tally: Tally) -> None:
        """Add what the step counted, and its critical path."""
        self.counted.leave(tally, self.memory.kept_bytes, self.timers_set)

        def explain(stage: Stage, since: float, until: float) -> None:
            entry, held_ns = self.entry(stage.item), self.held_ns[stage.item]
            counting.explain_product(tally, entry, self.launching(stage.item, since), held_ns, since, until)

        counting.trace_back(tally, self.last, 0.0, lambda stage: stage.bound_from, explain)

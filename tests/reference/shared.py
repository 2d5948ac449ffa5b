"""``contention: shared``, slow and obvious: transfers as flows whose rates come from the max–min oracle."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf

from archsim.engine.network.flows import SPENT
from microarch.blocks.request import Event, State
from reference.flows_oracle import fair_rates
from reference.interpreter import DISPATCH, MOVE_STATES, Interpreter, Stage, look_up_ns, route


@dataclass(eq=False)
class Flow:
    """Bytes of a stage on their way: at ``rate`` since ``since`` (from its ``start``), with ``left`` to go then."""

    stage: Stage
    route: tuple
    size: float
    goal: float  # bytes left at the next thing to tell
    latency: float
    start: float
    left: float
    rate: float = 0.0
    since: float = 0.0
    takes: float = inf
    least: float = 0.0  # it takes no less


class Shared(Interpreter):
    """``contention: shared``, ``arbitration: fair``: transfers share links and HBM max–min."""

    def __init__(self, machine, work, memory, queued, in_order=False, **tables):
        super().__init__(machine, work, memory, **tables)
        self.queued, self.in_order = queued, in_order  # source: queued, reads: in_order
        self.timers: list[tuple] = []
        self.timers_set = 0
        self.flows: list[Flow] = []
        self.changed: list[tuple] = []  # routes of the flows that have come or gone since rates were found
        self.queues = [[] for _ in range(machine.dies)]  # of compute arrays
        self.running = [None] * machine.dies
        self.lines: dict[tuple, list[Flow]] = {}  # flows that wait for each other, the first of them under way
        self.room = [float(machine.stream_bytes or machine.window)] * machine.dies
        self.taken: dict[int, float] = {}  # chain: room that it takes
        self.ends_from, self.computed = {}, set()  # chain: when its GEMM may end, as the whole slice is there
        self.compute_stage: dict[int, Stage] = {}

    def run(self, begin: float) -> float:
        """Run the step; times count from 0. Returns ``begin`` plus how long it takes."""
        for die, left in enumerate(self.unwritten):
            if left:
                stage = self.new_stage(State.COPY, -1 - die, None, 0.0)
                self.send(Flow(stage, (("hbm", die),), left, 0.0, self.machine.hbm_latency_ns, 0.0, left), 0.0)
        for die in range(self.machine.dies):
            self.start_moves(DISPATCH, die, 0.0, None)
        for die in range(self.machine.dies):
            self.start_chain(die, 0.0, None)
        now, flow_time = 0.0, inf
        while True:
            if self.changed:
                self.share(now)
                flow_time = self.next_flow_time()
            now = min(self.next_timer_time(), flow_time)
            if now == inf:
                break
            if flow_time <= now:
                self.work_flows(now)
                if not self.changed:
                    flow_time = self.next_flow_time()
            while self.next_timer_time() <= now:
                _, _, _, tells, stage = heapq.heappop(self.timers)
                tells(stage, now)
        end = max((stage.end for stage in self.log if self.ends_step(stage)), default=0.0)
        freed = [0.0] * self.machine.dies
        for stage in self.log:
            if stage.state == State.COPY:
                die = -1 - stage.item if stage.item < 0 else self.entry(stage.item).die
                freed[die] = max(freed[die], stage.end - self.machine.hbm_latency_ns)
        self.leave_copies(end, freed)
        return begin + end

    def next_timer_time(self):
        return self.timers[0][0] if self.timers else inf

    def next_flow_time(self):
        return min((flow.start + flow.takes for flow in self.flows), default=inf)

    def at(self, time, stage, tells):
        heapq.heappush(self.timers, (time, stage.number, self.timers_set, tells, stage))
        self.timers_set += 1

    # stages
    def begin(self, state, item, now, parent):
        stage = self.new_stage(state, item, parent, now)
        if state == State.LLC_FILL:
            at_home = parent.state == State.REMOTE_HBM
            stage.reader = self.entry(item).home if at_home else self.entry(item).die
        if state == State.LOOKUP:
            stage.event = self.outcome(stage, None)
        flow = self.flow_of(stage, now)
        if flow is None:
            self.at(now + self.latency(stage), stage, self.served)
        else:
            self.send(flow, now)

    def flow_of(self, stage, now):
        """The bytes that a stage moves where they take part in sharing, else None."""
        m, state = self.machine, stage.state
        if state in MOVE_STATES:
            move = self.move(stage.item)
            hbm = (("hbm", move.src),)
            if state == State.ACT_MOVE:
                way = (*hbm, *route(m, move.src, move.dst), ("hbm", move.dst))
                least = move.port_bytes / m.transfer_bytes_per_ns[self.phase(stage.item)]
                return Flow(stage, way, move.bytes, 0.0, m.route_ns[move.src, move.dst], now, move.bytes, least=least)
            latency = self.latency(stage)
            return Flow(stage, hbm, move.bytes, 0.0, latency, now, move.bytes) if move.src == move.dst else None
        entry, whole = self.entry(stage.item), m.first_bytes == m.slice_bytes
        own = (("hbm", entry.die),)
        if state == State.LOCAL_HBM:
            rest = 0.0 if whole else max(0.0, entry.read_bytes - m.first_bytes)
            return Flow(stage, own, entry.read_bytes, rest, m.hbm_latency_ns, now, entry.read_bytes)
        if state == State.COPY:
            return Flow(stage, own, m.slice_bytes, 0.0, m.hbm_latency_ns, now, m.slice_bytes)
        if state == State.DATA:
            source = () if stage.parent.state == State.REMOTE_LLC else (("hbm", entry.home),)
            way = source + route(m, entry.home, entry.die)
            latency = m.route_ns[entry.home, entry.die]
            return Flow(stage, way, m.slice_bytes, m.slice_bytes - m.first_bytes, latency, now, m.slice_bytes)
        return None

    def latency(self, stage):
        m, state = self.machine, stage.state
        if state == State.LOOKUP:
            return look_up_ns(m, stage.event, stage.walks)
        if state == State.REQUEST:
            entry = self.entry(stage.item)
            return m.route_ns[entry.die, entry.home] + m.request_bytes / m.route_bytes_per_ns[entry.die, entry.home]
        if state == State.REMOTE_LLC:
            return m.llc_hit_ns
        if state == State.LLC_FILL:
            reading = m.slice_bytes / m.hbm_bytes_per_ns if stage.parent.state == State.REMOTE_HBM else 0.0
            return m.llc_write_ns + reading
        software_ns = m.transfer_ns[self.phase(stage.item)] if state == State.ACT_READ else 0.0
        return m.hbm_latency_ns + software_ns  # REMOTE_HBM, ACT_READ

    def served(self, stage, now):
        """A stage has ended: begin what follows, the spawned one first."""
        stage.end = now
        if stage.item < 0:  # copies of the step before are written
            stage.event, stage.next = Event.SERVED, State.DONE
            return
        event = stage.event if stage.state == State.LOOKUP else self.outcome(stage, now)
        step = self.answer(stage, event, now)
        if step.spawn is not None:
            self.begin(step.spawn, stage.item, now, stage)
        if step.next == State.COMPUTE:
            self.arrive(stage, now)
        elif step.next == State.ACT_WRITE or (step.next == State.DONE and stage.state in MOVE_STATES):
            self.move_done(stage.item, now, stage)  # written as it came
        elif step.next != State.DONE:
            self.begin(step.next, stage.item, now, stage)

    # the compute array
    def arrive(self, stage, now):
        """The whole slice is there. If the array has been waiting for it, it is done, but for what is left to drain."""
        if self.machine.first_bytes == self.machine.slice_bytes or stage.state == State.LOOKUP:
            self.operand_ready(stage, now)
        self.ends_from[stage.item] = now + self.entry(stage.item).drain_ns
        if stage.item in self.computed:
            self.gemm_done(self.compute_stage[stage.item], now)

    def operand_ready(self, stage, now):
        """The first segment is there."""
        if self.must_hold(stage.item):
            self.local[self.entry(stage.item).die].held.append((stage.item, 0.0))
        else:
            self.compute(stage.item, now, 0.0, stage)

    def compute(self, chain, now, floor, parent):
        die = self.entry(chain).die
        self.compute_stage[chain] = self.new_stage(State.COMPUTE, chain, parent, now)
        self.queues[die].append(chain)
        self.start_array(die, now)

    def start_array(self, die, now):
        if self.running[die] is None and self.queues[die]:
            chain = self.running[die] = self.queues[die].pop(0)
            self.compute_stage[chain].start = now
            launching = self.launching(chain, now)
            self.at(now + (launching + self.entry(chain).compute_ns), self.compute_stage[chain], self.gemm_done)
            self.watch_room(chain, now + launching)

    # room for slices that are asked for and not yet multiplied
    def start_chain(self, die, now, parent):
        """Ask for slices while there is room for them."""
        while self.local[die].waiting and self.room[die] >= self.least_room():
            chain = self.local[die].waiting[0]
            self.taken[chain] = self.entry(chain).read_bytes if self.machine.stream_bytes else 1.0
            self.room[die] -= self.taken[chain]
            super().start_chain(die, now, parent)

    def least_room(self):
        return self.machine.first_bytes if self.machine.stream_bytes else 1.0

    def watch_room(self, chain, now):
        """The slice that is multiplied leaves room evenly; tell when there is enough for the next one."""
        entry = self.entry(chain)
        lacking = self.least_room() - self.room[entry.die]
        if self.local[entry.die].waiting and lacking < self.taken[chain]:
            after = entry.compute_ns * lacking / entry.read_bytes
            self.at(now + after, self.compute_stage[chain], self.has_room)

    def has_room(self, stage, now):
        die = self.entry(stage.item).die
        self.taken[stage.item] -= self.least_room() - self.room[die]
        self.room[die] = self.least_room()
        self.start_chain(die, now, stage)
        self.watch_room(stage.item, now)

    def gemm_done(self, stage, now):
        self.computed.add(stage.item)
        ends_from = self.ends_from.get(stage.item, inf)
        if ends_from <= now:
            self.array_done(stage.item, now)
            return
        if ends_from < inf:
            self.at(ends_from, stage, self.gemm_done)
        die = self.entry(stage.item).die
        if self.in_order and self.running[die] == stage.item:  # the array does not wait for bytes
            self.running[die] = None
            self.start_array(die, now)

    def array_done(self, chain, now):
        stage, die = self.compute_stage[chain], self.entry(chain).die
        stage.end = now
        self.answer(stage, Event.SERVED, now)
        if self.running[die] == chain:
            self.running[die] = None
        self.room[die] += self.taken[chain]
        self.start_chain(die, now, stage)
        self.start_array(die, now)
        self.chain_done(chain, now, stage)

    # flows
    def send(self, flow, now):
        """A flow starts at once, or behind the others of its line."""
        line = self.line(flow)
        if line is None:
            self.start_flow(flow, now)
            return
        flows = self.lines.setdefault(line, [])
        flows.append(flow)
        if len(flows) == 1:
            self.start_flow(flow, now)

    def line(self, flow):
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

    def start_flow(self, flow, now):
        flow.start = now
        self.changed.append(flow.route)
        self.flows.append(flow)

    def work_flows(self, now):
        for flow in list(self.flows):
            elapsed = now - flow.start
            if not (flow.start + flow.takes <= now or (flow.takes - elapsed) * flow.rate <= SPENT * flow.size):
                continue
            told = max(flow.start + (flow.takes + flow.latency), flow.stage.start + flow.least + flow.latency)
            if flow.goal > 0.0:
                self.at(told, flow.stage, self.operand_ready)
                flow.goal, flow.takes = 0.0, flow.since + flow.left / flow.rate
            else:
                self.at(told, flow.stage, self.served)
                self.flows.remove(flow)
                self.changed.append(flow.route)
                self.next_in_line(flow, now)

    def next_in_line(self, ended, now):
        flows = self.lines.get(self.line(ended), [])
        if flows:
            flows.pop(0)
        if flows:
            flows[0].stage.start = now
            self.start_flow(flows[0], now)

    def share(self, now):
        """Find rates anew; a flow whose rate has changed is counted anew."""
        m = self.machine
        capacity = {
            name: m.hbm_bytes_per_ns if name[0] == "hbm" else m.link_rates[name[1] - 3 * m.dies]
            for flow in self.flows
            for name in flow.route
        }
        rates = self.rates([flow.route for flow in self.flows], capacity)
        self.changed = []
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate != flow.rate:
                elapsed = now - flow.start
                flow.left = max(0.0, flow.left - flow.rate * (elapsed - flow.since))
                flow.since, flow.rate = elapsed, rate
                flow.takes = flow.since + max(0.0, flow.left - flow.goal) / rate

    def rates(self, routes, capacity):
        return fair_rates(routes, capacity)

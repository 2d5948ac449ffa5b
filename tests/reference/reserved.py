"""``contention: reserved``, slow and obvious: a stage claims all of its resources, queues are Python's ``heapq``."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from microarch.blocks.request import Event, State
from reference.interpreter import DISPATCH, MOVE_STATES, Interpreter, Stage, look_up_ns, route


@dataclass(eq=False)
class Resource:
    claimed: bool = False
    free_at: float = 0.0
    queue: list = field(default_factory=list)


@dataclass(eq=False)
class Waiting:
    """A stage in the queue of a resource."""

    stage: Stage

    def __lt__(self, other):
        a, b = self.stage, other.stage
        return (-a.priority, a.start, a.arrival) < (-b.priority, b.start, b.arrival)


class Reserved(Interpreter):
    """``contention: reserved``: a stage claims all of its resources, booked ahead by one.

    ``total_order``: equal times are served in order of creation (``ties: sequence``), else in the heap's (``heapq``).
    """

    def __init__(self, machine, work, memory, total_order, **tables):
        super().__init__(machine, work, memory, **tables)
        self.total_order = total_order
        self.pool: dict[Any, Resource] = {}
        self.calendar: list[Stage] = []
        self.arrivals = 0

    def run(self, now: float) -> float:
        """Run the step from ``now``; returns when its last stage has ended."""
        self.bits_ready += now
        for local in self.local:
            local.launched += now
        for die, left in enumerate(self.unwritten):
            self.pool[("hbm", die)] = Resource(free_at=now + left / self.machine.hbm_bytes_per_ns)
        for die in range(self.machine.dies):
            self.start_moves(DISPATCH, die, now, None)
        if self.machine.window < len(self.chains):
            for die in range(self.machine.dies):
                for _ in range(self.machine.window):
                    self.start_chain(die, now, None)
        else:
            for local in self.local:
                local.waiting = []
            for chain in range(len(self.chains)):
                self.begin(State.LOOKUP, chain, now, None)
        end = now
        while self.calendar:
            stage = heapq.heappop(self.calendar)
            self.process(stage)
            if self.ends_step(stage):
                end = max(end, stage.end)
        self.leave_copies(end, [self.pool[("hbm", die)].free_at for die in range(self.machine.dies)])
        return end

    def begin(self, state, item, now, parent, floor=0.0):
        stage = self.new_stage(state, item, parent, now)
        stage.floor, stage.tie = floor, stage.number if self.total_order else 0
        if state == State.DONE:
            stage.priority = parent.priority
        elif state not in MOVE_STATES:
            stage.priority = int(self.entry(item).die != self.entry(item).home)
        if state == State.LLC_FILL:
            at_home = parent.state == State.REMOTE_HBM
            stage.reader = self.entry(item).home if at_home else self.entry(item).die
        stage.resources = tuple(self.pool.setdefault(name, Resource()) for name in self.needs(stage))
        if any(resource.claimed for resource in stage.resources):
            stage.arrival = self.arrivals
            self.arrivals += 1
            for resource in stage.resources:
                heapq.heappush(resource.queue, Waiting(stage))
        else:
            self.admit(stage)

    def admit(self, stage):
        for resource in stage.resources:
            resource.claimed = True
            stage.start = max(stage.start, resource.free_at)
        stage.admitted = True
        heapq.heappush(self.calendar, stage)

    def process(self, stage):
        """Serve a stage, begin what follows (the spawned one first), give its resources up."""
        if stage.state == State.DONE:
            stage.end = stage.start
            if stage.parent.state == State.COMPUTE:
                self.chain_done(stage.item, stage.start, stage)
            elif stage.parent.state in MOVE_STATES:
                self.move_done(stage.item, stage.start, stage)
            return
        event = self.outcome(stage, stage.start + self.duration(stage) if stage.state == State.DATA else None)
        stage.end = stage.start + self.duration(stage, event)
        step = self.answer(stage, event, stage.end)
        if step.spawn is not None:
            self.begin(step.spawn, stage.item, stage.end, stage)
        if step.next == State.DONE and stage.state in MOVE_STATES:
            software_ns = float(self.machine.transfer_ns[self.phase(stage.item)])
            self.begin(step.next, stage.item, stage.end + software_ns, stage)
        elif step.next != State.COMPUTE:
            self.begin(step.next, stage.item, stage.end, stage)
        elif self.must_hold(stage.item):
            self.local[self.entry(stage.item).die].held.append(
                (stage.item, stage.end + self.entry(stage.item).drain_ns)
            )
        else:
            self.compute(stage.item, stage.end - self.early(stage), stage.end + self.entry(stage.item).drain_ns, stage)
        for resource in stage.resources:
            resource.claimed, resource.free_at = False, stage.end
        self.offer(stage.resources)

    def outcome(self, stage, end):
        """The look-up also chooses between the home's LLC and its HBM; the request only carries the answer there."""
        if stage.state == State.LOOKUP:
            entry = self.entry(stage.item)
            stage.home_hit = self.memory.in_llc(entry.home, entry.expert, self.key(stage.item))
        if stage.state == State.REQUEST:
            return Event.HIT if stage.parent.home_hit else Event.MISS
        return super().outcome(stage, end)

    def compute(self, chain, now, floor, parent):
        self.begin(State.COMPUTE, chain, now, parent, floor)

    def offer(self, resources):
        offers = []
        for resource in resources:
            while resource.queue and resource.queue[0].stage.admitted:
                heapq.heappop(resource.queue)
            if resource.queue:
                heapq.heappush(offers, resource.queue[0].stage)
        while offers:
            stage = heapq.heappop(offers)
            if not stage.admitted and not any(resource.claimed for resource in stage.resources):
                self.admit(stage)

    def needs(self, stage):
        """Names of the resources that a stage claims."""
        state = stage.state
        if state == State.DONE:
            return ()
        if state in MOVE_STATES:
            move = self.move(stage.item)
            if state == State.ACT_MOVE:
                return self.route(move.src, move.dst)
            return (("hbm", move.src if state == State.ACT_READ else move.dst),)
        entry = self.entry(stage.item)
        return {
            State.LOOKUP: lambda: (("port", entry.die),),
            State.LOCAL_HBM: lambda: (("hbm", entry.die),),
            State.REQUEST: lambda: self.route(entry.die, entry.home),
            State.REMOTE_LLC: lambda: (("port", entry.home),),
            State.REMOTE_HBM: lambda: (("hbm", entry.home),),
            State.DATA: lambda: self.route(entry.home, entry.die),
            State.COMPUTE: lambda: (("array", entry.die),),
            State.LLC_FILL: lambda: (("port", stage.reader),),
            State.COPY: lambda: (("hbm", entry.die),),
        }[state]()

    def route(self, src, dst):
        return route(self.machine, src, dst)

    def duration(self, stage, event=None):
        m, state = self.machine, stage.state
        if state in MOVE_STATES:
            move = self.move(stage.item)
            if state == State.ACT_MOVE:
                port = m.transfer_bytes_per_ns[self.phase(stage.item)]
                rate = min(m.route_bytes_per_ns[move.src, move.dst], port)
                return self.transfer(m.route_ns[move.src, move.dst], move.bytes, rate)
            return self.transfer(m.hbm_latency_ns, move.bytes, m.hbm_bytes_per_ns)
        entry = self.entry(stage.item)
        there, back = (entry.die, entry.home), (entry.home, entry.die)
        return {
            State.LOOKUP: lambda: look_up_ns(m, event, stage.walks),
            State.LOCAL_HBM: lambda: self.transfer(m.hbm_latency_ns, entry.read_bytes, m.hbm_bytes_per_ns),
            State.REQUEST: lambda: self.transfer(m.route_ns[there], m.request_bytes, m.route_bytes_per_ns[there]),
            State.REMOTE_LLC: lambda: m.llc_hit_ns,
            State.REMOTE_HBM: lambda: self.transfer(m.hbm_latency_ns, m.slice_bytes, m.hbm_bytes_per_ns),
            State.DATA: lambda: self.transfer(m.route_ns[back], m.slice_bytes, m.route_bytes_per_ns[back]),
            State.COMPUTE: lambda: self.multiplying_ns(stage),
            State.LLC_FILL: lambda: m.llc_write_ns,
            State.COPY: lambda: self.transfer(m.hbm_latency_ns, m.slice_bytes, m.hbm_bytes_per_ns),
        }[state]()

    def multiplying_ns(self, stage):
        begun = stage.start + self.launching(stage.item, stage.start)
        return max(begun - stage.start + self.entry(stage.item).compute_ns, stage.floor - stage.start)

    def transfer(self, fixed_ns, n_bytes, bytes_per_ns):
        ns = n_bytes / bytes_per_ns
        return fixed_ns + (ceil(ns) if self.machine.whole_ns else ns)

    def early(self, stage):
        """How long before its end the first segment of a slice is there."""
        rest = self.machine.slice_bytes - self.machine.first_bytes
        if stage.state == State.LOCAL_HBM:
            return rest / self.machine.hbm_bytes_per_ns
        if stage.state != State.DATA:
            return 0.0
        entry = self.entry(stage.item)
        return rest / self.machine.route_bytes_per_ns[entry.home, entry.die]

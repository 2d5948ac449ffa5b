"""``contention: reserved``, slow and obvious: a stage claims all of its resources, queues are Python's ``heapq``."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import ceil
from typing import Any

from archsim.engine.interpreted.counting import explain_product, trace_back
from archsim.engine.interpreted.interpreter import MOVE_STATES, Interpreter, Name, Way, route
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.stage import Stage
from archsim.engine.state import DISPATCH, Machine, StepWork, Tally
from microarch.blocks.request import Event, State

ROWS = {"port": 0, "hbm": 1, "array": 2}  # of the resources of a die, in ``Tally.resources``


@dataclass(eq=False)
class Resource:
    """What stages claim."""

    row: int | None = None  # of ``Tally.resources``
    claimed: bool = False  # by a stage that has not begun
    free_at: float = 0.0  # ns: end of the last use
    last_user: Stage | None = None  # who used it last
    queue: list = field(default_factory=list)  # heap of `Waiting`


@dataclass(eq=False)
class Waiting:
    """A stage in the queue of a resource."""

    stage: Stage

    def __lt__(self, other: Waiting) -> bool:
        a, b = self.stage, other.stage
        return (-a.priority, a.start, a.arrival) < (-b.priority, b.start, b.arrival)


class Reserved(Interpreter):
    """``contention: reserved``: a stage claims all of its resources, booked ahead by one.

    ``total_order``: equal times are served in order of creation (``ties: sequence``), else in the heap's (``heapq``).
    """

    def __init__(self, machine: Machine, work: StepWork, memory: DieMemory, total_order: bool, **parts: Any) -> None:
        super().__init__(machine, work, memory, **parts)
        self.total_order = total_order
        self.pool: dict[Name, Resource] = {}
        self.calendar: list[Stage] = []
        self.arrivals = 0
        self.free_at: dict[int, float] = {}  # chain: since when the array is idle that takes it

    def run(self, now: float) -> float:
        """Run the step from ``now``; returns when its last stage has ended."""
        self.memory.bits_ready_ns += now
        self.begun = now
        for local in self.local:
            local.launched += now
        for die, left in enumerate(self.memory.unwritten):
            hbm = self.resource(("hbm", die))
            hbm.free_at = now + left / self.machine.hbm_rates[die]
        for die in range(self.machine.dies):
            self.start_moves(int(DISPATCH), die, now, None)
        if self.machine.window < len(self.chains):
            for die in range(self.machine.dies):
                for _ in range(self.machine.window):
                    self.start_chain(die, now, None)
        else:
            for local in self.local:
                local.waiting = []
            for chain in range(len(self.chains)):
                self.begin(State.LOOKUP, chain, now, None)
        end, self.last = now, None
        while self.calendar:
            stage = heapq.heappop(self.calendar)
            self.process(stage)
            if stage.end > end and self.ends_step(stage):
                end, self.last = stage.end, stage
        self.leave_copies(end, [self.pool[("hbm", die)].free_at for die in range(self.machine.dies)])
        return end

    def begin(self, state: IntEnum, item: int, now: float, parent: Stage | None, floor: float = 0.0) -> None:
        stage = self.new_stage(state, item, parent, now)
        stage.floor, stage.tie = floor, stage.number if self.total_order else 0
        if state == State.DONE:
            stage.priority = stage.before.priority
        elif state not in MOVE_STATES:
            stage.priority = int(self.entry(item).die != self.entry(item).home)
        if state == State.LLC_FILL:
            at_home = stage.before.state == State.REMOTE_HBM
            stage.reader = self.entry(item).home if at_home else self.entry(item).die
        stage.resources = tuple(self.resource(name) for name in self.needs(stage))
        if any(resource.claimed for resource in stage.resources):
            stage.arrival = self.arrivals
            self.arrivals += 1
            for resource in stage.resources:
                heapq.heappush(resource.queue, Waiting(stage))
        else:
            self.admit(stage)

    def resource(self, name: Name) -> Resource:
        if name not in self.pool:
            row = ROWS[name[0]] * self.machine.dies + name[1] if name[0] in ROWS else None
            self.pool[name] = Resource(name[1] if name[0] == "link" else row)
        return self.pool[name]

    def admit(self, stage: Stage) -> None:
        earliest, stage.cause, binding = stage.start, stage.parent, None
        for resource in stage.resources:
            resource.claimed = True
            if resource.free_at > stage.start:
                stage.start, stage.cause, binding = resource.free_at, resource.last_user, resource.row
        if binding is not None:
            self.counted.uses(binding, wait_ns=stage.start - earliest)
        stage.admitted = True
        heapq.heappush(self.calendar, stage)

    def process(self, stage: Stage) -> None:
        """Serve a stage, begin what follows (the spawned one first), give its resources up."""
        if stage.state == State.DONE:
            stage.end = stage.start
            if stage.before.state == State.COMPUTE:
                self.chain_done(stage.item, stage.start, stage)
            elif stage.before.state in MOVE_STATES:
                self.move_done(stage.item, stage.start, stage)
            return
        self.serve(stage, stage.start)
        stage.end = stage.start + self.duration(stage)
        event = self.finish(stage, stage.end)
        step = self.answer(stage, event, stage.end)
        if step.spawn is not None:
            self.begin(step.spawn, stage.item, stage.end, stage)
        if step.next == State.DONE and stage.state in MOVE_STATES:
            software_ns = float(self.machine.transfer_ns[self.phase(stage.item)])
            self.begin(step.next, stage.item, stage.end + software_ns, stage)
        elif step.next != State.COMPUTE:
            self.begin(step.next, stage.item, stage.end, stage)
        elif self.must_hold(stage.item):
            self.local[self.entry(stage.item).die].held.append((stage.item, self.floor(stage)))
        else:
            self.compute(stage.item, stage.end - self.early(stage), self.floor(stage), stage)
        for resource in stage.resources:
            resource.claimed, resource.free_at, resource.last_user = False, stage.end, stage
            self.count_use(stage, resource)
        self.offer(stage.resources)

    def count_use(self, stage: Stage, resource: Resource) -> None:
        if resource.row is None:
            return
        if stage.state == State.COMPUTE:  # an array that waits for the last bytes of its slice is not busy
            stall_ns = self.duration(stage) - self.computing_ns(stage.item)
            self.counted.uses(resource.row, busy_ns=-stall_ns, wait_ns=max(0.0, stall_ns))
        self.counted.uses(resource.row, busy_ns=self.duration(stage), bytes=self.passed_bytes(stage))

    def serve(self, stage: Stage, now: float) -> None:
        """The look-up also chooses between the home's LLC and its HBM; the request only carries the answer there."""
        if stage.state == State.LOOKUP:
            entry = self.entry(stage.item)
            stage.home_hit = self.memory.in_llc(entry.home, entry.expert, self.key(stage.item))
        super().serve(stage, now)
        if stage.state == State.REQUEST and stage.event is None:
            stage.event = Event.HIT if stage.before.home_hit else Event.MISS
        if stage.state == State.COMPUTE:
            self.hold(stage.item, now)
            self.free_at[stage.item] = max(self.begun, stage.resources[0].free_at)

    def compute(self, chain: int, now: float, floor: float, parent: Stage | None) -> None:
        self.begin(State.COMPUTE, chain, now, parent, floor)

    def offer(self, resources: Sequence[Resource]) -> None:
        offers: list[Stage] = []
        for resource in resources:
            while resource.queue and resource.queue[0].stage.admitted:
                heapq.heappop(resource.queue)
            if resource.queue:
                heapq.heappush(offers, resource.queue[0].stage)
        while offers:
            stage = heapq.heappop(offers)
            if not stage.admitted and not any(resource.claimed for resource in stage.resources):
                self.admit(stage)

    def needs(self, stage: Stage) -> Way:
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

    def route(self, src: int, dst: int) -> Way:
        return route(self.machine, src, dst)

    def duration(self, stage: Stage) -> float:
        """Time of the block, and of the bytes that it moves."""
        m, state = self.machine, stage.state
        if state == State.COMPUTE:
            return self.multiplying_ns(stage)
        if state in (State.LOOKUP, State.REMOTE_LLC, State.LLC_FILL):
            return stage.ns
        if state == State.ACT_MOVE:
            move = self.move(stage.item)
            port = m.transfer_bytes_per_ns[self.phase(stage.item)]
            return self.transfer(stage.ns, move.bytes, min(m.route_bytes_per_ns[move.src, move.dst], port))
        if state in (State.REQUEST, State.DATA):
            entry = self.entry(stage.item)
            ends = (entry.die, entry.home) if state == State.REQUEST else (entry.home, entry.die)
            return self.transfer(stage.ns, self.passed_bytes(stage), m.route_bytes_per_ns[ends])
        ((_, die),) = self.needs(stage)
        return self.transfer(stage.ns, self.passed_bytes(stage), m.hbm_rates[die])

    def passed_bytes(self, stage: Stage) -> int:
        """What a stage moves through its resources."""
        if stage.state in MOVE_STATES:
            return self.move(stage.item).bytes
        if stage.state in (State.LOOKUP, State.COMPUTE):
            return 0
        if stage.state == State.REQUEST:
            return int(self.machine.request_bytes)
        return self.entry(stage.item).read_bytes if stage.state == State.LOCAL_HBM else int(self.machine.slice_bytes)

    def multiplying_ns(self, stage: Stage) -> float:
        """Less than the product takes by what it counts as begun before."""
        entry, launching, ahead_ns = self.entry(stage.item), self.launching(stage.item, stage.start), 0.0
        if stage.before.state != State.DONE:  # it has not waited for tokens
            launched = self.local[entry.die].launched if entry.routed else 0.0
            ahead_ns = max(0.0, stage.start - max(self.free_at[stage.item], self.asked_at(stage.before), launched))
        multiplied_ns = max(self.computing_ns(stage.item) - ahead_ns, entry.least_ns + self.held_ns[stage.item])
        return max(launching + multiplied_ns, stage.floor + self.held_ns[stage.item] - stage.start)

    def floor(self, stage: Stage) -> float:
        """When the product of a slice that arrives ends at the earliest."""
        entry = self.entry(stage.item)
        return max(stage.end + entry.drain_ns, self.asked_at(stage) + entry.alone_ns)

    def asked_at(self, stage: Stage) -> float:
        """When the slice was looked up whose arrival the stage is."""
        while stage.state != State.LOOKUP:
            stage = stage.before
        return stage.start

    def transfer(self, fixed_ns: float, n_bytes: float, bytes_per_ns: float) -> float:
        ns = n_bytes / bytes_per_ns
        return fixed_ns + (ceil(ns) if self.machine.whole_ns else ns)

    def early(self, stage: Stage) -> float:
        """How long before its end the first segment of a slice is there."""
        rest = self.machine.slice_bytes - self.machine.first_bytes
        if stage.state == State.LOCAL_HBM:
            return rest / self.machine.hbm_rates[self.entry(stage.item).die]
        if stage.state != State.DATA:
            return 0.0
        entry = self.entry(stage.item)
        return rest / self.machine.route_bytes_per_ns[entry.home, entry.die]

    def tally(self, tally: Tally) -> None:
        """Add what the step counted, and its critical path."""
        self.counted.leave(tally, self.memory.kept_bytes, len(self.log))

        def explain(stage: Stage, since: float, until: float) -> None:
            entry, held_ns = self.entry(stage.item), self.held_ns[stage.item]
            explain_product(tally, entry, self.launching(stage.item, since), held_ns, since, until)

        trace_back(tally, self.last, self.begun, lambda stage: stage.start, explain)

"""A slow, obvious interpreter of the blocks' transition tables, in plain Python.

It takes the inputs of the compiled kernels (``Machine``, ``Work``, ``Memory``), leaves them as they are, and walks every
chain and move of a step through the table of requests and that of the Local CPs. ``log`` has one ``Stage`` for each
activity, in the order in which they were created; ``transitions`` one row for each event that a table answered. Caches and
copies are dictionaries and lists here, queues are Python's ``heapq``, rates come from the max–min oracle.

What follows an event is nowhere written but in the tables. What is written here is how long a state lasts, what it waits
for, and how the blocks choose between events; ``Reserved`` and ``Shared`` tell the first two in their own way. A new state
needs a table that leads to it, and a subclass that says the same of it (``tests/test_extend_block.py``).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil, inf
from types import SimpleNamespace
from typing import Any, NamedTuple

from archsim.engine.flows import SPENT
from microarch import blocks, local_cp
from microarch.fsm import Table
from microarch.request import Event, State
from reference.flows_oracle import fair_rates

SLICES = 3
DISPATCH, COMBINE = 0, 1
MOVE_STATES = (State.ACT_READ, State.ACT_MOVE, State.ACT_WRITE)


class Transition(NamedTuple):
    """``table`` answered ``event`` in ``state`` with ``next``; ``item``: chain or move, die for a Local CP."""

    time: float
    table: str
    state: Any
    event: Any
    next: Any
    item: int


def walk(table: Table, state, choose, now: float = 0.0) -> list[Transition]:
    """Follow a table from ``state`` until nothing is under way. ``choose(state)``: the event that ends it, and after how long."""
    transitions, under_way = [], [(now, state)]
    while under_way:
        now, state = under_way.pop(0)
        if state == table.final:
            continue
        event, ns = choose(state)
        step = table.steps[state, event]
        transitions.append(Transition(now + ns, table.name, state, event, step.next, 0))
        under_way += [(now + ns, following) for following in (step.spawn, step.next) if following is not None]
    return transitions


@dataclass(eq=False)
class Stage:
    """One activity: an item in a state, from ``start`` (before: the earliest) to ``end``."""

    number: int
    state: Any
    item: int
    parent: Stage | None
    start: float
    end: float = 0.0
    event: Any = None
    next: Any = None
    floor: float = 0.0  # Reserved: a compute stage does not end before its last segment is there
    reader: int = -1  # LLC_FILL: the die whose HBM the slice came from
    walks: bool = False  # LOOKUP: the ATU does not know the expert and reads the table of copies in the HBM
    # Reserved
    resources: tuple = ()
    priority: int = 0
    tie: int = 0
    arrival: int = 0
    admitted: bool = False

    def __lt__(self, other):
        return (self.start, self.tie) < (other.start, other.tie)


class DieMemory:
    """LLCs as lists of keys, oldest first; copies and what ATUs know as ordered dictionaries, oldest first."""

    def __init__(self, memory, slice_bytes):
        self.sets = memory.llc_tags.shape[1]
        self.ways = memory.llc_tags.shape[2]
        self.llc = [[[int(key) for key in line if key >= 0] for line in die] for die in memory.llc_tags]
        self.copies = [OrderedDict.fromkeys(ring_order(ring)) for ring in memory.copies.ring]
        self.limit = [int(room["limit_bytes"]) for room in memory.copies.room]
        self.slice_bytes = slice_bytes
        self.atu_entries = memory.atu.entries
        self.known = [OrderedDict.fromkeys(ring_order(ring)) for ring in memory.atu.ring]

    def in_llc(self, die, expert, key):
        return key in self.llc[die][expert % self.sets]

    def store(self, die, expert, key):
        line = self.llc[die][expert % self.sets]
        if self.ways == 0:
            return
        if key in line:
            line.remove(key)
        elif len(line) == self.ways:
            line.pop(0)
        line.append(key)

    def keep(self, die, key):
        copies = self.copies[die]
        if self.slice_bytes > self.limit[die] and key not in copies:
            return
        if key not in copies:
            while (len(copies) + 1) * self.slice_bytes > self.limit[die]:
                copies.popitem(last=False)
        copies[key] = None
        copies.move_to_end(key)

    def translate(self, die, expert):
        """Whether the ATU knows the expert; from now on it does."""
        known = self.known[die]
        knew = expert in known
        known[expert] = None
        known.move_to_end(expert)
        if len(known) > self.atu_entries:
            known.popitem(last=False)
        return knew


def ring_order(ring):
    """Keys of an LRU ring, oldest first."""
    head = len(ring) - 1
    at, keys = int(ring[head]["newer"]), []
    while at != head:
        keys.append(at)
        at = int(ring[at]["newer"])
    return keys


class Interpreter:
    """What both strategies share: how events are chosen, and what the Local CPs do."""

    def __init__(self, machine, work, memory, request: Table = blocks.REQUEST, local: Table = local_cp.TABLE):
        self.machine, self.request, self.local_table = machine, request, local
        names = work.entries.dtype.names
        self.entries = [SimpleNamespace(**{name: entry[name].item() for name in names}) for entry in work.entries]
        self.moves = [[SimpleNamespace(bytes=int(m["bytes"]), src=int(m["src"]), dst=int(m["dst"])) for m in row] for row in work.moves]
        self.chains = work.chains.tolist()
        self.cp_en, self.bits_ready = work.cp_en, work.cp_ready_ns
        self.local = [
            SimpleNamespace(
                state=local.states(int(row["state"])), waiting=self.chains[row["next_chain"] : row["end_chain"]],
                moves_left=int(row["moves_left"]), routed_left=int(row["routed_left"]), held=[],
            )
            for row in work.local
        ]
        self.memory = DieMemory(memory, int(machine.slice_bytes))
        self.log: list[Stage] = []
        self.transitions: list[Transition] = []

    # what an item is
    def entry(self, chain):
        return self.entries[chain // SLICES]

    def key(self, chain):
        return self.entry(chain).key + chain % SLICES

    def move(self, item):
        return self.moves[item // len(self.moves[0])][item % len(self.moves[0])]

    def hops(self, src, dst):
        return int(self.machine.hops[src, dst])

    def new_stage(self, state, item, parent, start):
        stage = Stage(len(self.log), state, item, parent, start)
        self.log.append(stage)
        return stage

    def answer(self, stage, event, now):
        """The table's answer to an event."""
        step = self.request.steps[stage.state, event]
        stage.event, stage.next = event, step.next
        self.transitions.append(Transition(now, "request", stage.state, event, step.next, stage.item))
        return step

    # how blocks choose between events
    def outcome(self, stage, end):
        """The event that ends a stage, and what it changes in caches and copies. ``end``: of DATA."""
        if stage.state in MOVE_STATES:
            move = self.move(stage.item)
            return Event.HERE if stage.state == State.ACT_READ and move.src == move.dst else Event.SERVED
        entry, key = self.entry(stage.item), self.key(stage.item)
        if stage.state == State.LOOKUP:
            event = self.look_up(entry, key)
            redirected = self.memory.atu_entries and entry.look_here and entry.die != entry.home
            if event != Event.HIT and redirected:
                stage.walks = not self.memory.translate(entry.die, key // SLICES)
            return event
        if stage.state == State.REQUEST:
            return Event.HIT if self.memory.in_llc(entry.home, entry.expert, key) else Event.MISS
        if stage.state == State.DATA:
            wanted = end >= self.bits_ready and self.cp_en[entry.die, entry.expert]
            return Event.KEEP if wanted and key not in self.memory.copies[entry.die] else Event.SERVED
        if stage.state == State.LLC_FILL:
            self.memory.store(stage.reader, entry.expert, key)
        if stage.state == State.COPY:
            self.memory.keep(entry.die, key)
        return Event.SERVED

    def look_up(self, entry, key):
        if not entry.look_here:
            return Event.AWAY
        if self.memory.in_llc(entry.die, entry.expert, key):
            return Event.HIT
        if entry.die == entry.home:
            return Event.HERE
        if key in self.memory.copies[entry.die]:
            self.memory.copies[entry.die].move_to_end(key)
            return Event.HERE
        return Event.AWAY

    # the Local CPs
    def tell_local(self, die, event, now):
        local = self.local[die]
        step = self.local_table.steps[local.state, event]
        self.transitions.append(Transition(now, "local_cp", local.state, event, step.next, die))
        local.state = step.next

    def must_hold(self, chain):
        return self.entry(chain).routed and self.local[self.entry(chain).die].state == local_cp.State.FETCH

    def start_chain(self, die, now, parent):
        if self.local[die].waiting:
            self.begin(State.LOOKUP, self.local[die].waiting.pop(0), now, parent)

    def start_moves(self, what, die, now, parent):
        for column, move in enumerate(self.moves[what]):
            if move.src == die:
                self.begin(State.ACT_READ, what * len(self.moves[what]) + column, now, parent)

    def chain_done(self, chain, now, parent):
        """A slice is computed: fetch the next one; send the results after the last."""
        entry = self.entry(chain)
        local = self.local[entry.die]
        self.start_chain(entry.die, now, parent)
        if entry.routed:
            local.routed_left -= 1
            if local.routed_left == 0:
                self.tell_local(entry.die, local_cp.Event.LAST_DONE, now)
                self.start_moves(COMBINE, entry.die, now, parent)

    def move_done(self, item, now, parent):
        """A bundle has arrived; after the last one that was dispatched to a die, its slices may be computed."""
        if item >= len(self.moves[DISPATCH]):
            return
        die = self.move(item).dst
        local = self.local[die]
        local.moves_left -= 1
        if local.moves_left == 0:
            self.tell_local(die, local_cp.Event.TOKENS, now)
            held, local.held = local.held, []
            for chain, floor in held:
                self.compute(chain, now, floor, parent)

    def begin(self, state, item, now, parent):
        """Start (or wait to start) an activity."""
        raise NotImplementedError

    def compute(self, chain, now, floor, parent):
        """The operand and the tokens are there."""
        raise NotImplementedError


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
            end = max(end, stage.end)
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
        if step.next != State.COMPUTE:
            self.begin(step.next, stage.item, stage.end, stage)
        elif self.must_hold(stage.item):
            self.local[self.entry(stage.item).die].held.append((stage.item, stage.end + self.entry(stage.item).drain_ns))
        else:
            self.compute(stage.item, stage.end - self.early(stage), stage.end + self.entry(stage.item).drain_ns, stage)
        for resource in stage.resources:
            resource.claimed, resource.free_at = False, stage.end
        self.offer(stage.resources)

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
                return self.transfer(m.route_ns[move.src, move.dst], move.bytes, m.route_bytes_per_ns[move.src, move.dst])
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
            State.COMPUTE: lambda: max(entry.compute_ns, stage.floor - stage.start),
            State.LLC_FILL: lambda: m.llc_write_ns,
            State.COPY: lambda: self.transfer(m.hbm_latency_ns, m.slice_bytes, m.hbm_bytes_per_ns),
        }[state]()

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


def route(machine, src, dst):
    """Names of the links from ``src`` to ``dst``."""
    pair = 3 * machine.dies + src * machine.dies + dst
    return tuple(("link", int(r)) for r in machine.group_resources[machine.group_ptr[pair] : machine.group_ptr[pair + 1]])


def look_up_ns(machine, event, walks):
    """Latency of an LLC look-up, and of the read of the table of copies if the ATU has to."""
    looked = machine.llc_hit_ns if event == Event.HIT else machine.llc_miss_ns
    return looked + (machine.hbm_latency_ns if walks else 0)


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


class Shared(Interpreter):
    """``contention: shared``, ``arbitration: fair``: transfers share links and HBM max–min."""

    def __init__(self, machine, work, memory, queued, **tables):
        super().__init__(machine, work, memory, **tables)
        self.queued = queued  # source: queued
        self.timers: list[tuple] = []
        self.timers_set = 0
        self.flows: list[Flow] = []
        self.changed: list[tuple] = []  # routes of the flows that have come or gone since rates were found
        self.queues = [[] for _ in range(machine.dies)]  # of compute arrays
        self.running = [None] * machine.dies
        self.sending = [False] * machine.dies
        self.outgoing = [[] for _ in range(machine.dies)]
        self.ends_from, self.computed = {}, set()  # chain: when its GEMM may end, as the whole slice is there
        self.compute_stage: dict[int, Stage] = {}

    def run(self, begin: float) -> float:
        """Run the step; times count from 0. Returns ``begin`` plus how long it takes."""
        for die in range(self.machine.dies):
            self.start_moves(DISPATCH, die, 0.0, None)
        for die in range(self.machine.dies):
            for _ in range(min(self.machine.window, len(self.local[die].waiting))):
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
        return begin + max((stage.end for stage in self.log), default=0.0)

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
        elif state in (State.DATA, State.ACT_MOVE):
            self.send(flow, now)
        else:
            self.start_flow(flow, now)

    def flow_of(self, stage, now):
        """The bytes that a stage moves where they take part in sharing, else None."""
        m, state = self.machine, stage.state
        if state in MOVE_STATES:
            move = self.move(stage.item)
            hbm = (("hbm", move.src),)
            if state == State.ACT_MOVE:
                way = (*hbm, *route(m, move.src, move.dst), ("hbm", move.dst))
                return Flow(stage, way, move.bytes, 0.0, m.route_ns[move.src, move.dst], now, move.bytes)
            return Flow(stage, hbm, move.bytes, 0.0, m.hbm_latency_ns, now, move.bytes) if move.src == move.dst else None
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
        return m.hbm_latency_ns  # REMOTE_HBM, ACT_READ of vectors that leave

    def served(self, stage, now):
        """A stage has ended: begin what follows, the spawned one first."""
        stage.end = now
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
            self.at(now + self.entry(chain).compute_ns, self.compute_stage[chain], self.gemm_done)

    def gemm_done(self, stage, now):
        self.computed.add(stage.item)
        ends_from = self.ends_from.get(stage.item, inf)
        if ends_from <= now:
            self.array_done(stage.item, now)
        elif ends_from < inf:
            self.at(ends_from, stage, self.gemm_done)

    def array_done(self, chain, now):
        stage, die = self.compute_stage[chain], self.entry(chain).die
        stage.end = now
        self.answer(stage, Event.SERVED, now)
        self.running[die] = None
        self.start_array(die, now)
        self.chain_done(chain, now, stage)

    # flows
    def send(self, flow, now):
        """An outgoing flow starts at once, or behind the others of its die (``source: queued``)."""
        die = self.source(flow)
        if self.queued and self.sending[die]:
            self.outgoing[die].append(flow)
            return
        self.sending[die] = True
        self.start_flow(flow, now)

    def source(self, flow):
        state, item = flow.stage.state, flow.stage.item
        return {State.DATA: lambda: self.entry(item).home, State.ACT_MOVE: lambda: self.move(item).src}[state]()

    def start_flow(self, flow, now):
        flow.start = now
        self.changed.append(flow.route)
        self.flows.append(flow)

    def work_flows(self, now):
        for flow in list(self.flows):
            elapsed = now - flow.start
            if not (flow.start + flow.takes <= now or (flow.takes - elapsed) * flow.rate <= SPENT * flow.size):
                continue
            told = flow.start + (flow.takes + flow.latency)
            if flow.goal > 0.0:
                self.at(told, flow.stage, self.operand_ready)
                flow.goal, flow.takes = 0.0, flow.since + flow.left / flow.rate
            else:
                self.at(told, flow.stage, self.served)
                self.flows.remove(flow)
                self.changed.append(flow.route)
                if flow.stage.state in (State.DATA, State.ACT_MOVE):
                    self.next_out(self.source(flow), now)

    def next_out(self, die, now):
        self.sending[die] = bool(self.outgoing[die])
        if self.outgoing[die]:
            self.start_flow(self.outgoing[die].pop(0), now)

    def share(self, now):
        """Find rates anew; a flow whose rate has changed is counted anew."""
        m = self.machine
        capacity = {name: m.hbm_bytes_per_ns if name[0] == "hbm" else m.link_rates[name[1] - 3 * m.dies]
                    for flow in self.flows for name in flow.route}
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

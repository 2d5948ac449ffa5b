"""A slow, obvious interpreter of the blocks' transition tables, in plain Python.

It takes the inputs of the compiled kernels (``Machine``, ``Work``, ``Memory``), leaves them as they are, and walks
every chain and move of a step through the table of requests and that of the Local CPs. ``log`` has one ``Stage`` for
each activity, in the order in which they were created; ``transitions`` one row for each event that a table answered.
Caches and copies are dictionaries and lists here, queues are Python's ``heapq``, rates come from the max–min oracle.

What follows an event is nowhere written but in the tables. What is written here is how long a state lasts, what it
waits for, and how the blocks choose between events; ``Reserved`` and ``Shared`` (modules of their names) tell the
first two in their own way. A new state needs a table that leads to it, and a subclass that says the same of it
(``tests/microarch/test_extend_block.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from microarch.blocks import catalogue as blocks
from microarch.blocks import local_cp
from microarch.blocks.request import Event, State
from microarch.blocks.state_machine import Table
from reference.die_memory import DieMemory

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
    """Follow a table from ``state`` until nothing is under way. ``choose(state)``: the event that ends it, and after
    how long.
    """
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
    home_hit: bool = False  # LOOKUP: the home's LLC has the slice

    def __lt__(self, other):
        return (self.start, self.tie) < (other.start, other.tie)


class Interpreter:
    """What both strategies share: how events are chosen, and what the Local CPs do."""

    def __init__(self, machine, work, memory, request: Table = blocks.REQUEST, local: Table = local_cp.TABLE):
        self.machine, self.request, self.local_table = machine, request, local
        names = work.entries.dtype.names
        self.entries = [SimpleNamespace(**{name: entry[name].item() for name in names}) for entry in work.entries]
        self.moves = [
            [SimpleNamespace(**{name: int(m[name]) for name in ("bytes", "src", "dst", "port_bytes")}) for m in row]
            for row in work.moves
        ]
        self.chains = work.chains.tolist()
        self.cp_en, self.bits_ready = work.cp_en, work.cp_ready_ns
        self.local = [
            SimpleNamespace(
                state=local.states(int(row["state"])),
                waiting=self.chains[row["next_chain"] : row["end_chain"]],
                moves_left=int(row["moves_left"]),
                routed_left=int(row["routed_left"]),
                held=[],
                launch_ns=float(row["launch_ns"]),
                launched=float(row["launch_ns"]),  # from the step's start, unless tokens are dispatched to the die
            )
            for row in work.local
        ]
        self.memory = DieMemory(memory, int(machine.slice_bytes))
        self.unwritten = [int(room["unwritten_bytes"]) for room in memory.copies.room]
        self.log: list[Stage] = []
        self.transitions: list[Transition] = []

    # what an item is
    def entry(self, chain):
        return self.entries[chain // SLICES]

    def key(self, chain):
        return self.entry(chain).key + chain % SLICES

    def move(self, item):
        return self.moves[item // len(self.moves[0])][item % len(self.moves[0])]

    def phase(self, item):
        return item // len(self.moves[0])

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

    def ends_step(self, stage):
        """Whether the step waits for the stage: not for copies under ``copy_writes: background``."""
        copies = stage.state == State.COPY or (stage.parent is not None and stage.parent.state == State.COPY)
        return not (copies and self.machine.copies_in_background)

    def leave_copies(self, end, freed):
        """What is unwritten at the step's end. ``freed``: when each die's HBM has worked off its last stage."""
        if self.machine.copies_in_background:
            self.unwritten = [int(max(0.0, at - end) * self.machine.hbm_bytes_per_ns) for at in freed]

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

    def launching(self, chain, now):
        """How long the product waits for the launch of its die's kernel."""
        entry = self.entry(chain)
        return max(0.0, self.local[entry.die].launched - now) if entry.routed else 0.0

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
            local.launched = now + local.launch_ns
            held, local.held = local.held, []
            for chain, floor in held:
                self.compute(chain, now, floor, parent)

    def begin(self, state, item, now, parent):
        """Start (or wait to start) an activity."""
        raise NotImplementedError

    def compute(self, chain, now, floor, parent):
        """The operand and the tokens are there."""
        raise NotImplementedError


def route(machine, src, dst):
    """Names of the links from ``src`` to ``dst``."""
    pair = 3 * machine.dies + src * machine.dies + dst
    return tuple(
        ("link", int(r)) for r in machine.group_resources[machine.group_ptr[pair] : machine.group_ptr[pair + 1]]
    )


def look_up_ns(machine, event, walks):
    """Latency of an LLC look-up, and of the read of the table of copies if the ATU has to."""
    looked = machine.llc_hit_ns if event == Event.HIT else machine.llc_miss_ns
    return looked + (machine.hbm_latency_ns if walks else 0)

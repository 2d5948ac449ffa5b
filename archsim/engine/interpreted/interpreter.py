"""A slow, obvious interpreter of the blocks' transition tables, in plain Python: ``engine: interpreted``.

It takes the inputs of the compiled kernels (``Machine``, ``StepWork``, memory) and walks every chain and move of a step
through the table of requests and that of the Local CPs. ``log`` has one ``Stage`` for each activity, in the order
in which they were created; ``transitions`` one row for each event that a table answered. Caches and copies are
dictionaries and lists here, queues are Python's ``heapq``, rates come from a max–min of their own.

What follows an event is nowhere written but in the tables. Blocks (`blocks`) choose between events and say how long
they hold a request; `archsim.engine.interpreted.reserved` and `shared` say what a stage waits for. A new state needs
a table that leads to it, and a subclass that says the same of it (``tests/microarch/test_blocks.py``); a block of one's
own needs one class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from archsim.base import errors, sums
from archsim.engine.interpreted.blocks import InterpretedBlock, LateBlock, Request, shipped_blocks
from archsim.engine.interpreted.counting import StepCounter
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.stage import Stage, Transition
from archsim.engine.state import COMBINE, DISPATCH, UNITS, Machine, StepWork
from microarch.blocks import catalogue as blocks
from microarch.blocks import hbm, local_cp
from microarch.blocks.block import NextState, TransitionTable
from microarch.blocks.request import Event, State

Name = tuple[str, int]  # of a resource: its kind, and the number of its die or link
Way = tuple[Name, ...]
MOVE_STATES = (State.ACT_READ, State.ACT_MOVE, State.ACT_WRITE)


def walk(
    table: TransitionTable, state: Any, choose: Callable[[Any], tuple[Any, float]], now: float = 0.0
) -> list[Transition]:
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


def _name(block: InterpretedBlock) -> str:
    return f"{type(block).__module__}:{type(block).__name__}"


class Interpreter:
    """What both strategies share: how blocks are asked, and what the Local CPs do.

    ``memory``: a ``DieMemory``, which it changes. ``served_by``: the block of every state. ``before_array``: users'
    blocks that hold each slice before the array multiplies it.
    """

    def __init__(
        self,
        machine: Machine,
        work: StepWork,
        memory: DieMemory,
        served_by: dict[int, InterpretedBlock] | None = None,
        before_array: Sequence[InterpretedBlock] = (),
        request: TransitionTable = blocks.REQUEST,
        local: TransitionTable = local_cp.TABLE,
    ) -> None:
        self.machine, self.request, self.local_table = machine, request, local
        self.served_by = served_by or shipped_blocks(machine, memory)
        self.before_array = before_array
        names = work.entries.dtype.names or ()
        self.entries = [SimpleNamespace(**{name: entry[name].item() for name in names}) for entry in work.entries]
        self.moves = [
            [SimpleNamespace(**{name: int(m[name]) for name in ("bytes", "src", "dst", "port_bytes")}) for m in row]
            for row in work.moves
        ]
        self.chains = work.chains.tolist()
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
        self.memory = memory
        memory.cp_en, memory.bits_ready_ns = work.cp_en, work.cp_ready_ns
        self.held_ns: dict[int, float] = {}  # chain: for which users' blocks hold the slice
        self.counted = StepCounter(machine)
        self.log: list[Stage] = []
        self.transitions: list[Transition] = []

    # what an item is
    def entry(self, chain: int) -> SimpleNamespace:
        return self.entries[chain // hbm.SLICES]

    def key(self, chain: int) -> int:
        return self.entry(chain).key + chain % hbm.SLICES

    def move(self, item: int) -> SimpleNamespace:
        return self.moves[item // len(self.moves[0])][item % len(self.moves[0])]

    def phase(self, item: int) -> int:
        return item // len(self.moves[0])

    def hops(self, src: int, dst: int) -> int:
        return int(self.machine.hops[src, dst])

    def new_stage(self, state: IntEnum, item: int, parent: Stage | None, start: float) -> Stage:
        stage = Stage(len(self.log), state, item, parent, start)
        self.log.append(stage)
        return stage

    def answer(self, stage: Stage, event: Event, now: float) -> NextState:
        """The table's answer to an event."""
        step = self.request.steps[stage.state, event]
        stage.event, stage.next = event, step.next
        self.transitions.append(Transition(now, "request", stage.state, event, step.next, stage.item))
        return step

    def ends_step(self, stage: Stage) -> bool:
        """Whether the step waits for the stage: not for copies under ``copy_writes: background``."""
        copies = stage.state == State.COPY or (stage.parent is not None and stage.parent.state == State.COPY)
        return not (copies and self.machine.copies_in_background)

    def leave_copies(self, end: float, freed: Sequence[float]) -> None:
        """What is unwritten at the step's end. ``freed``: when each die's HBM has worked off its last stage."""
        if self.machine.copies_in_background:
            rates = self.machine.hbm_rates
            self.memory.unwritten = [int(max(0.0, at - end) * rate) for at, rate in zip(freed, rates, strict=True)]

    # blocks
    def request_of(self, stage: Stage) -> Request:
        """What the stage's block is asked."""
        if stage.state in MOVE_STATES:
            move, phase = self.move(stage.item), self.phase(stage.item)
            return Request(stage.state, move.dst, move.src, -1, -1, move.bytes, phase=phase)
        entry = self.entry(stage.item)
        moved = entry.read_bytes if stage.state == State.LOCAL_HBM else int(self.machine.slice_bytes)
        return Request(
            state=stage.state, die=entry.die, home=entry.home, expert=entry.expert, key=self.key(stage.item),
            n_bytes=moved, tokens=entry.tokens, look_here=bool(entry.look_here), reader=stage.reader,
        )  # fmt: skip

    def serve(self, stage: Stage, now: float) -> None:
        """The stage's block takes it: its event, if it is known by then, and the block's time."""
        request = self.request_of(stage)
        stage.event, stage.ns = self.served_by[stage.state].serve(request, now)
        self.counted.count_request(request, stage.event)

    def finish(self, stage: Stage, end: float) -> Event:
        """The event that ends the stage."""
        block = self.served_by[stage.state]
        if stage.event is None:
            if not isinstance(block, LateBlock):
                raise errors.ArchsimError(
                    f"blocks: {_name(block)} gives no event for a request in the state {stage.state.name}. Let serve "
                    "return one, or add a method finish(request, now) that returns the event at the end of the state"
                )
            stage.event = block.finish(self.request_of(stage), end)
        if (stage.state, stage.event) not in self.request.steps:
            known = [event.name for state, event in self.request.steps if state == stage.state]
            raise errors.ArchsimError(
                f"blocks: {_name(block)} ends the state {stage.state.name} with the event {stage.event!r}; expected "
                f"one of Event.{', Event.'.join(known)}"
            )
        return stage.event

    def hold(self, chain: int, now: float) -> float:
        """For how long users' blocks hold the slice that the array takes now."""
        entry = self.entry(chain)
        n_bytes = int(self.machine.slice_bytes)
        request = Request(State.COMPUTE, entry.die, entry.home, entry.expert, self.key(chain), n_bytes, entry.tokens)
        ns = sums.sum((block.serve(request, now)[1] for block in self.before_array), 0.0)
        self.held_ns[chain] = ns
        return ns

    def computing_ns(self, chain: int) -> float:
        """For how long the array has the slice: users' blocks, then the product."""
        return self.entry(chain).compute_ns + self.held_ns[chain]

    # the Local CPs
    def tell_local(self, die: int, event: local_cp.Event, now: float) -> None:
        local = self.local[die]
        step = self.local_table.steps[local.state, event]
        self.transitions.append(Transition(now, "local_cp", local.state, event, step.next, die))
        local.state = step.next

    def must_hold(self, chain: int) -> bool:
        return self.entry(chain).routed and self.local[self.entry(chain).die].state == local_cp.State.FETCH

    def launching(self, chain: int, now: float) -> float:
        """How long the product waits for the launch of its die's kernel."""
        entry = self.entry(chain)
        return max(0.0, self.local[entry.die].launched - now) if entry.routed else 0.0

    def start_chain(self, die: int, now: float, parent: Stage | None) -> None:
        if self.local[die].waiting:
            self.begin(State.LOOKUP, self.local[die].waiting.pop(0), now, parent)

    def start_moves(self, what: int, die: int, now: float, parent: Stage | None) -> None:
        for column, move in enumerate(self.moves[what]):
            if move.src == die:
                self.begin(State.ACT_READ, what * len(self.moves[what]) + column, now, parent)

    def chain_done(self, chain: int, now: float, parent: Stage | None) -> None:
        """A slice is computed: fetch the next one; send the results after the last."""
        entry = self.entry(chain)
        local = self.local[entry.die]
        self.start_chain(entry.die, now, parent)
        if entry.routed:
            local.routed_left -= 1
            if local.routed_left == 0:
                self.tell_local(entry.die, local_cp.Event.LAST_DONE, now)
                self.start_moves(int(COMBINE), entry.die, now, parent)

    def move_done(self, item: int, now: float, parent: Stage | None) -> None:
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

    def begin(self, state: IntEnum, item: int, now: float, parent: Stage | None) -> None:
        """Start (or wait to start) an activity."""
        raise NotImplementedError

    def compute(self, chain: int, now: float, floor: float, parent: Stage | None) -> None:
        """The operand and the tokens are there."""
        raise NotImplementedError


def route(machine: Machine, src: int, dst: int) -> Way:
    """Names of the links from ``src`` to ``dst``."""
    return tuple(("link", UNITS * machine.dies + int(link)) for link in machine.route(src, dst))

"""What stands around a component in a simulation: it offers work, keeps the memories, and gathers the answers.

Each function is a piece of a test bench (a coroutine of Amaranth's simulator). Lockstep drives components with them,
and so does a run of the interpreted engine. ``asks``: whether to ask a component to start while it is busy, which it
must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator, SimulatorContext

from microarch.rtl import allocator, atu, heatmap, pdu, select, sorter, tables

PERIOD_S = 1e-9


class Differs(Exception):
    """What a component did otherwise than its table."""


def never() -> bool:
    return False


def simulate(component: Elaboratable, bench: Callable) -> None:
    """Run a test bench beside the component, to its end. One that is watched (``microarch.rtl.export``) counts; of
    one whose coverage is counted (``microarch.rtl.lockstep``) it is gathered at the end.
    """
    simulator = Simulator(component)
    simulator.add_clock(PERIOD_S)
    if (watch := getattr(component, "watch", None)) is not None:
        watch(simulator)
    gather = getattr(component, "gather", None)

    async def to_its_end(ctx):
        try:
            await bench(ctx)
        finally:
            if gather is not None:
                gather(ctx)

    simulator.add_testbench(to_its_end)
    simulator.run()


class Driven:
    """A component that keeps its state from one piece of work to the next."""

    def __init__(self, component: Elaboratable):
        self.component = component
        self._simulator = Simulator(component)
        self._simulator.add_clock(PERIOD_S)
        self._simulator.add_testbench(self._bench, background=True)
        self._piece: Callable | None = None
        self._answer: Any = None

    async def _bench(self, ctx):
        while True:
            if self._piece is None:
                await ctx.tick()
                continue
            self._answer = await self._piece(ctx, self.component)
            self._piece = None

    def ask(self, piece: Callable) -> Any:
        """What ``piece(ctx, component)`` returns, a piece of a test bench."""
        self._piece = piece
        while self._piece is not None:
            self._simulator.advance()
        return self._answer


async def place(
    ctx: SimulatorContext,
    dut: allocator.Allocator,
    given: tables.PlacingStep,
    most: int,
    asks: Callable[[], bool] = never,
) -> tuple[list[tuple[int, ...]], list[int]]:
    """(entries of every expert as {die, tokens}, cycles in GENERATE, EVALUATE, MERGE) of a step, loads cleared first.

    Raises Differs where it takes more than ``most`` cycles.
    """
    ctx.set(dut.clear, 1)
    await ctx.tick()
    ctx.set(dut.clear, 0)
    output: list[tuple[int, ...]] = []
    cycles = [0, 0, 0]
    waiting = list(given.experts)
    entries: list[int] = []
    placing: tables.Placing | None = None
    at = 0
    ctx.set(dut.block_tokens, given.block_tokens)
    for _ in range(most):
        state = ctx.get(dut.state)
        if state in (allocator.IDLE, allocator.MERGE):
            if waiting:
                _offer(ctx, dut, waiting[0])
            ctx.set(dut.start, bool(waiting))
        else:
            ctx.set(dut.start, asks())  # not taken: it is busy
        if state == allocator.IDLE and not waiting:
            return output, cycles
        if state == allocator.GENERATE:
            assert placing is not None
            ctx.set(dut.die, placing.die[at])
            ctx.set(dut.read, placing.read[at])
            if dut.parameters.speeds:
                ctx.set(dut.factor, placing.factor[at])
            at += 1
        if state == allocator.MERGE:
            entries += [ctx.get(dut.entry_die), ctx.get(dut.entry_tokens)]
        if state:
            cycles[state - 1] += 1
        await ctx.tick()
        after = ctx.get(dut.state)
        if state == allocator.MERGE and after != allocator.MERGE:
            output.append(tuple(entries))
            entries = []
        if state in (allocator.IDLE, allocator.MERGE) and after == allocator.GENERATE:
            placing, at = waiting.pop(0), 0
    raise Differs(f"the step does not end after {most} cycles")


def _offer(ctx, dut, placing):
    p, n = dut.parameters, len(placing.die)
    ctx.set(dut.candidates, n)
    ctx.set(dut.groups, -(-n // p.lanes))
    ctx.set(dut.levels, (min(n, p.lanes) - 1).bit_length())
    for name in ("tokens", "work", "last_work"):
        ctx.set(getattr(dut, name), getattr(placing, name))


async def sort(
    ctx: SimulatorContext, dut: sorter.Sorter, tokens: np.ndarray, last: int, asks: Callable[[], bool] = never
) -> tuple[list[int], int]:
    """(experts in order of tokens, cycles) of a step; raises Differs where it takes more than ``last`` cycles."""
    p, n = dut.parameters, len(tokens)
    keys = np.full(p.experts, 2**p.key_bits - 1, object)
    keys[:n] = [int(count) << p.levels | expert for expert, count in enumerate(tokens)]
    memory = keys.reshape(-1, p.comparators)
    ctx.set(dut.start, n > 1)
    ctx.set(dut.size, 1 << (n - 1).bit_length())
    await ctx.tick()
    ctx.set(dut.start, 0)
    cycles = 0
    while ctx.get(dut.state):
        at = [ctx.get(each) for each in dut.at]
        for word, loaded in zip(at, dut.loaded, strict=True):
            ctx.set(loaded, packed(memory[word], p.key_bits))
        for word, stored in zip(at, dut.stored, strict=True):
            memory[word] = unpacked(ctx.get(stored), p.comparators, p.key_bits)
        cycles += 1
        if cycles > last:
            raise Differs(f"a step of {n} experts does not end after {last} cycles")
        ctx.set(dut.start, cycles < last and asks())  # not taken: it is busy
        await ctx.tick()
        ctx.set(dut.start, 0)
    return [int(key) % p.experts for key in memory.reshape(-1)[:n]], cycles


async def choose(
    ctx: SimulatorContext, dut: select.Selector, row: np.ndarray, asks: Callable[[], bool] = never
) -> tuple[int, int, list[int]]:
    """(cycles, threshold, marked experts) of a row of counters; raises Differs where it does not end."""
    p = dut.parameters
    padded = np.zeros(p.words * p.comparators, np.int64)
    padded[: p.experts] = row
    words = [packed(word, p.count_bits) for word in padded.reshape(p.words, -1)]
    ctx.set(dut.start, 1)
    await ctx.tick()
    ctx.set(dut.start, 0)
    marked, cycles, threshold = [], 0, -1
    while ctx.get(dut.state):
        ctx.set(dut.word, words[ctx.get(dut.at)])
        if ctx.get(dut.marking):
            marks, threshold, at = ctx.get(dut.marks), ctx.get(dut.threshold), ctx.get(dut.marked_at)
            marked += [at * p.comparators + bit for bit in range(p.comparators) if marks >> bit & 1]
        cycles += 1
        if cycles > 2 * p.cycles:
            raise Differs(f"a row does not end after {cycles} cycles")
        ctx.set(dut.start, cycles < p.cycles and asks())  # not taken: it is busy
        await ctx.tick()
        ctx.set(dut.start, 0)
    return cycles, threshold, sorted(marked)


async def count(
    ctx: SimulatorContext, dut: heatmap.HeatmapStore, counters: np.ndarray, row: int, word: int, mask: int
) -> int:
    """How often the row was halved while 1 was added to its counters of a word, in place; ``counters``: uint16[row,
    expert].
    """
    p, halving = dut.parameters, 0
    for signal, value in zip((dut.start, dut.row, dut.word, dut.mask), (1, row, word, mask), strict=True):
        ctx.set(signal, value)
    await ctx.tick()
    ctx.set(dut.start, 0)
    while state := ctx.get(dut.state):
        first = ctx.get(dut.at) * p.per_word
        of_word = counters[ctx.get(dut.row_at), first : first + p.per_word]
        ctx.set(dut.loaded, packed(of_word, p.count_bits))
        if ctx.get(dut.writes):
            of_word[:] = unpacked(ctx.get(dut.stored), len(of_word), p.count_bits)
        halving += state == heatmap.HALVE_READ
        await ctx.tick()
    return halving // p.words


async def look_up(
    ctx: SimulatorContext, dut: atu.Atu, expert: int, stored: list[int], idle: bool = False
) -> tuple[int, int]:
    """(answered, hit) of a look-up; ``stored``: the tags of each set, which a miss changes."""
    p, width = dut.parameters, dut.parameters.tag_bits + 1
    ctx.set(dut.look_up, not idle)
    ctx.set(dut.expert, expert)
    at = ctx.get(dut.set) if p.index_bits else 0
    ctx.set(dut.stored, stored[at])
    enters, entered = ctx.get(dut.enters), ctx.get(dut.entered)
    for way in range(p.ways):
        if enters >> way & 1:
            mask = (1 << width) - 1 << way * width
            stored[at] = stored[at] & ~mask | entered << way * width
    await ctx.tick()
    ctx.set(dut.look_up, 0)
    return int(ctx.get(dut.answered)), int(ctx.get(dut.hit))


async def cycle(ctx: SimulatorContext, dut: pdu.Pdu, given: Iterable[int]) -> tuple[int, ...]:
    """(loading, answered, keep) of a PDU after a cycle with these inputs; none is set after it."""
    for signal, value in zip(dut.inputs, given, strict=True):
        ctx.set(signal, value)
    await ctx.tick()
    for signal in (dut.write, dut.look_up, dut.place):
        ctx.set(signal, 0)
    return tuple(int(ctx.get(signal)) for signal in dut.outputs)


def packed(counters: Iterable[int], bits: int) -> int:
    """Counters as one word, the first in its lowest bits."""
    word = 0
    for at, counter in enumerate(counters):
        word |= int(counter) << at * bits
    return word


def unpacked(word: int, n: int, bits: int) -> list[int]:
    return [word >> at * bits & (1 << bits) - 1 for at in range(n)]

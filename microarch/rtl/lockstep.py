"""Drives a component and its table with one stimulus, and tells the first difference.

A ``Bench`` of a block draws the stimulus from a seed (or takes a recorded one), simulates the component, and compares
every event's answer and the cycles of its states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microarch.blocks.global_cp import sorting_cycles
from microarch.rtl import allocator, atu, heatmap, pdu, select, sorter, tables
from microarch.rtl.drive import Differs, choose, cycle, look_up, packed, place, simulate, sort, unpacked

EARLY = 0.2  # of the cycles in which a component is busy: it is asked to start, and must not


@dataclass(frozen=True)
class Found:
    """Of a lockstep run. ``difference``: the first, or ''."""

    block: str
    parameters: Any
    seed: int
    events: int
    cycles: int
    difference: str

    @property
    def differences(self) -> int:
        return int(bool(self.difference))


def expect(said: Any, done: Any, what: str) -> None:
    if said != done:
        raise Differs(f"{what}: the table says {said}, the RTL {done}")


def _early(rng: np.random.Generator) -> Callable[[], bool]:
    """Whether to ask a component to start while it is busy."""
    return lambda: bool(rng.random() < EARLY)


class AllocatorBench:
    """``events``: blocks of tokens. ``views``: recorded steps (StepView, block_tokens); drawn at random without."""

    component = allocator.Allocator

    def __init__(self, parameters: allocator.Parameters, views: Iterable[tuple[Any, int]] | None = None):
        self._p, self._views = parameters, views
        self.events = self.cycles = 0

    def steps(self, rng: np.random.Generator) -> Iterator[tuple[Any, int]]:
        while True:
            experts = int(rng.integers(1, 40))
            yield tables.random_view(rng, self._p.dies, experts), int(rng.choice([16, 50, 512]))

    def run(self, dut: allocator.Allocator, events: int, rng: np.random.Generator) -> None:
        table = tables.AllocatorTable(self._p)

        async def bench(ctx):
            for view, block_tokens in self._views if self._views is not None else self.steps(rng):
                if self.events >= events:
                    return
                given, said = table.step(view, block_tokens)
                most = 2 * int(said.cycles.sum()) + 50
                output, cycles = await place(ctx, dut, given, most, _early(rng))
                self.cycles += sum(cycles)
                for at, (wanted, got) in enumerate(zip(said.output, output, strict=True)):
                    expect(wanted, got, f"block {self.events}, expert {at} of the step: (die, tokens) of its entries")
                expect(said.cycles[0].tolist(), cycles, f"block {self.events}: cycles in GENERATE, EVALUATE, MERGE")
                self.events += sum(-(-each.tokens // block_tokens) for each in given.experts)

        simulate(dut, bench)


class PduBench:
    """``events``: cycles, in each of which a word may be written, a slice looked up and a copy entered."""

    component = pdu.Pdu

    def __init__(self, parameters: pdu.Parameters, stimulus: Iterable[tuple[int, ...]] | None = None):
        self._p, self._stimulus = parameters, stimulus
        self.events = self.cycles = 0

    def _drawn(self, rng):
        p, bits, span = self._p, rng.integers(0, 2, 3), self._p.experts
        while True:
            bits = rng.random(4) < (0.4, 0.7, 0.3, 0.5)
            word = int.from_bytes(rng.bytes(-(-p.port_bits // 8)), "little") % 2**p.port_bits
            experts = rng.integers(0, span, 2)
            yield int(bits[0]), word, int(bits[1]), int(experts[0]), int(bits[2]), int(experts[1]), int(bits[3])

    def run(self, dut: pdu.Pdu, events: int, rng: np.random.Generator) -> None:
        table = tables.PduTable(self._p)

        async def bench(ctx):
            for given in self._stimulus if self._stimulus is not None else self._drawn(rng):
                if self.events >= events:
                    return
                done = await cycle(ctx, dut, given)
                expect(table.cycle(*given), done, f"cycle {self.events}: (loading, answered, keep)")
                self.events += 1
                self.cycles += 1

        simulate(dut, bench)


class SelectBench:
    """``events``: cycles; rows of counters with many ties."""

    component = select.Selector

    def __init__(self, parameters: select.Parameters, rows: Iterable[np.ndarray] | None = None):
        self._p, self._rows = parameters, rows
        self.events = self.cycles = 0

    def _drawn(self, rng):
        while True:
            most = int(rng.choice([1, 2, 4, 30, 2**16 - 1]))
            row = rng.integers(0, most + 1, self._p.experts)
            row[rng.random(self._p.experts) < rng.choice([0.0, 0.5, 0.99])] = 0
            row[rng.random(self._p.experts) < 0.01] = 2**16 - 1
            yield row % 2**self._p.count_bits

    def run(self, dut: select.Selector, events: int, rng: np.random.Generator) -> None:
        table = tables.SelectTable(self._p)

        async def bench(ctx):
            for row in self._rows if self._rows is not None else self._drawn(rng):
                if self.events >= events:
                    return
                done = await choose(ctx, dut, row, _early(rng))
                expect(table.row(row), done, f"row at cycle {self.cycles}: (cycles, threshold, experts)")
                cycles = done[0]
                self.cycles += cycles
                self.events += cycles

        simulate(dut, bench)


class SorterBench:
    """``events``: experts; steps of tokens with many ties."""

    component = sorter.Sorter

    def __init__(self, parameters: sorter.Parameters, steps: Iterable[np.ndarray] | None = None):
        self._p, self._steps = parameters, steps
        self.events = self.cycles = 0

    def _drawn(self, rng):
        while True:
            n = int(rng.integers(2, self._p.experts + 1)) if rng.random() < 0.5 else int(rng.integers(2, 9))
            yield rng.integers(0, int(rng.choice([2, 30, 2**self._p.count_bits])), min(n, self._p.experts))

    def run(self, dut: sorter.Sorter, events: int, rng: np.random.Generator) -> None:
        table = tables.SorterTable(self._p)

        async def bench(ctx):
            for tokens in self._steps if self._steps is not None else self._drawn(rng):
                if self.events >= events:
                    return
                last = sorting_cycles(len(tokens), "bitonic", self._p.comparators)
                order, cycles = await sort(ctx, dut, tokens, last, _early(rng))
                expect(table.step(tokens), (order, cycles), f"step at expert {self.events}: (order, cycles)")
                self.events += len(tokens)
                self.cycles += cycles

        simulate(dut, bench)


class AtuBench:
    """``events``: look-ups, of experts that come again."""

    component = atu.Atu

    def __init__(self, parameters: atu.Parameters, experts: Iterable[int] | None = None):
        self._p, self._experts = parameters, experts
        self.events = self.cycles = 0

    def _drawn(self, rng):
        p = self._p
        near = rng.integers(0, p.experts, max(1, p.entries))
        while True:
            of_few = int(near[rng.integers(0, len(near))])
            of_set = int(near[0] % p.sets + p.sets * rng.integers(0, 2 * p.ways)) % p.experts
            yield (of_few, of_set, int(rng.integers(0, p.experts)))[int(rng.choice(3, p=(0.5, 0.4, 0.1)))]

    def run(self, dut: atu.Atu, events: int, rng: np.random.Generator) -> None:
        table = tables.AtuTable(self._p)
        stored = [0] * self._p.sets

        async def bench(ctx):
            for expert in self._experts if self._experts is not None else self._drawn(rng):
                if self.events >= events:
                    return
                idle = self._experts is None and rng.random() < 0.1
                answered, hit = await look_up(ctx, dut, expert, stored, idle)
                self.cycles += 1
                expect(int(not idle), answered, f"look-up {self.events}: answered")
                if not idle:
                    expect(table.look_up(expert), hit, f"look-up {self.events}: expert {expert} known")
                    self.events += 1

        simulate(dut, bench)


class HeatmapBench:
    """``events``: words that are updated, of few rows, many of them with counters that are nearly full."""

    component = heatmap.HeatmapStore

    def __init__(self, parameters: heatmap.Parameters, updates: Iterable[tuple[int, int, int]] | None = None):
        self._p, self._updates = parameters, updates
        self.events = self.cycles = 0

    def _drawn(self, rng):
        p = self._p
        while True:
            last = p.experts - (p.words - 1) * p.per_word
            word = int(rng.integers(0, p.words))
            mask = int.from_bytes(rng.bytes(8), "little") & (2 ** (last if word == p.words - 1 else p.per_word) - 1)
            mask &= int.from_bytes(rng.bytes(8), "little")
            if mask:
                yield int(rng.integers(0, min(4, p.experts))), word, mask

    def run(self, dut: heatmap.HeatmapStore, events: int, rng: np.random.Generator) -> None:
        p = self._p
        start = rng.integers(2**p.count_bits - 40, 2**p.count_bits, (p.experts, p.experts)).astype(np.uint16)
        table = tables.HeatmapTable(p, start)
        memory = start.copy()

        async def bench(ctx):
            updates = iter(self._updates if self._updates is not None else self._drawn(rng))
            update = self._start(ctx, dut, next(updates, None))
            await ctx.tick()
            while update is not None and self.events < events:
                spent, writes, following = [0] * 4, [0] * 4, None
                while following is None and (state := ctx.get(dut.state)):
                    spent[state - 1] += 1
                    row_at, first = ctx.get(dut.row_at), ctx.get(dut.at) * p.per_word
                    of_word = memory[row_at, first : first + p.per_word]
                    ctx.set(dut.loaded, packed(of_word, p.count_bits))
                    ctx.set(dut.start, state != heatmap.WRITE and rng.random() < EARLY)  # not taken: it is busy
                    if ctx.get(dut.writes):
                        writes[state - 1] += 1
                        of_word[:] = unpacked(ctx.get(dut.stored), len(of_word), p.count_bits)
                    if state == heatmap.WRITE and rng.random() < 0.5:  # the next one follows at once
                        following = self._start(ctx, dut, next(updates, None))
                    await ctx.tick()
                    ctx.set(dut.start, 0)
                    self.cycles += 1
                    if sum(spent) > 8 * p.words + 8:
                        raise Differs(f"word {self.events}: it does not end")
                row = update[0]
                expect(said := table.update(*update), tuple(spent), f"word {self.events}: cycles by state")
                expect([0, said[1], 0, said[3]], writes, f"word {self.events}: writes by state")
                expect(table.counters[row].tolist(), memory[row].tolist(), f"word {self.events}: counters of row {row}")
                self.events += 1
                if following is None:
                    following = self._start(ctx, dut, next(updates, None))
                    await ctx.tick()
                update = following

        simulate(dut, bench)

    def _start(self, ctx, dut, update):
        """Offer an update, if there is one."""
        if update is not None:
            for signal, value in zip((dut.start, dut.row, dut.word, dut.mask), (1, *update), strict=True):
                ctx.set(signal, value)
        return update


BENCHES: Mapping[str, tuple[Any, Any]] = {
    "allocator": (AllocatorBench, allocator.Parameters()),
    "pdu": (PduBench, pdu.Parameters()),
    "select": (SelectBench, select.Parameters()),
    "sorter": (SorterBench, sorter.Parameters()),
    "atu": (AtuBench, atu.Parameters()),
    "heatmap": (HeatmapBench, heatmap.Parameters()),
}


def lockstep(
    block: str,
    events: int,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    component: Any = None,
    given: Any = None,
) -> Found:
    """Component and table with one stimulus of ``seed`` (or the recorded one ``given``), up to the first difference.

    ``component``: one to take instead of the shipped. Raises ValueError for parameters that cannot be built.
    """
    kind, parameters = BENCHES[block]
    parameters = replace(parameters, **(changes or {}))
    bench = kind(parameters, given)
    difference = ""
    try:
        bench.run((component or kind.component)(parameters), events, np.random.default_rng([seed, 24]))
    except Differs as found:
        difference = str(found)
    return Found(block, parameters, seed, bench.events, bench.cycles, difference)

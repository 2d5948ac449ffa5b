"""Drives a component and its table with one stimulus, and tells the first difference.

A ``Bench`` of a block draws the stimulus from a seed (or takes a recorded one), simulates the component, and compares
every event's answer and the cycles of its states. Drawn stimulus begins with *corners*: inputs that bring every bit of
every register to both values, take every branch, and hit the bounds of what may enter the component. Random events
follow. How much of this was reached is part of what a run of lockstep tells (``microarch.rtl.lockstep``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from archsim.laws.wafer import SPEED_BITS, SPEED_FRACTION
from microarch.blocks.global_cp import sorting_cycles
from microarch.rtl import allocator, atu, drive, heatmap, pdu, select, sorter, tables
from microarch.rtl.coverage import Covered, LockstepCoverage

EARLY = 0.2  # of the cycles in which a component is busy: it is asked to start, and must not


@dataclass(frozen=True)
class LockstepResult:
    """Of a lockstep run. ``difference``: the first, or ''. ``coverage``: of the component, where it was counted."""

    block: str
    parameters: Any
    seed: int
    events: int
    cycles: int
    difference: str
    coverage: LockstepCoverage = field(default_factory=LockstepCoverage)

    @property
    def differences(self) -> int:
        return int(bool(self.difference))


def expect(said: Any, done: Any, what: str) -> None:
    if said != done:
        raise drive.Differs(f"{what}: the table says {said}, the RTL {done}")


def _early(rng: np.random.Generator) -> Callable[[], bool]:
    """Whether to ask a component to start while it is busy."""
    return lambda: bool(rng.random() < EARLY)


class Bench:
    """Stimulus, simulation and comparison of a block. ``recorded``: a stimulus to take instead of a drawn one."""

    component: Any

    def __init__(self, parameters: Any, recorded: Iterable[Any] | None = None):
        self._p, self._recorded = parameters, recorded
        self.events = self.cycles = 0
        self.bounds: dict[str, bool] = {}

    def never(self) -> Mapping[str, str]:
        """Bits of registers that no stimulus can toggle: why."""
        return {}

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        """Stimulus that is always driven first."""
        raise NotImplementedError

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        """Random stimulus, without end."""
        raise NotImplementedError

    def stimulus(self, rng: np.random.Generator, events: int) -> Iterator[Any]:
        """What is recorded, up to ``events``; else the corners, and ``events`` at random."""
        if self._recorded is None:
            yield from self.corners(rng)
            events += self.events
        for each in self.drawn(rng) if self._recorded is None else self._recorded:
            if self.events >= events:
                return
            yield each

    def reach(self, **bounds: Any) -> None:
        """Note which bounds were hit: name = whether."""
        for name, hit in bounds.items():
            name = name.replace("_", " ")
            self.bounds[name] = self.bounds.get(name, False) or bool(hit)

    def run(self, dut: Any, events: int, rng: np.random.Generator) -> None:
        """Raises Differs at the first difference."""
        raise NotImplementedError


class AllocatorBench(Bench):
    """``events``: blocks of tokens. ``recorded``: steps as (StepView, block_tokens)."""

    component = allocator.Allocator

    def never(self) -> Mapping[str, str]:
        p = self._p
        found = {f"kept_0[{p.cost_bits}]": "the first lane always has a candidate"}
        for lane in range(p.lanes):
            below, winners = [lane], {lane}  # lanes whose winner the tree may bring to this one
            while below := [each for one in below for each in (2 * one, 2 * one + 1) if one < each < p.lanes]:
                winners |= set(below)
            winners |= {*range(p.lanes)} if lane == 0 else set()
            for bit in range((p.lanes - 1).bit_length()):
                if len({each >> bit & 1 for each in winners}) == 1:
                    found[f"kept_lane_{lane}[{bit}]"] = "no lane below it in the tree has another bit"
        return found

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        one = 1 << SPEED_FRACTION
        for view, size in self._of_equal_dies(rng):
            yield tables.with_factors(view, [one] * self._p.dies) if self._p.speeds else view, size
        if self._p.speeds:
            yield from self._of_unequal_dies(rng)

    def _of_unequal_dies(self, rng):
        """Every slot with factors of all ones and of few; work that is multiplied by the largest and the least."""
        p = self._p
        dies, top = p.dies, 2**p.cost_bits - 1
        apart, slowest = 2 - 2 * np.eye(dies, dtype=int), 2**SPEED_BITS - 1
        work = max(1, (top << SPEED_FRACTION) // slowest // 4)
        for n in self._numbers_of_candidates():
            first = np.arange(dies) < n
            for factors in (slowest, 1, slowest - 1, 2, slowest):
                yield tables.view_of([2], [first], [0], apart, (0, 0, work), [factors] * dies), 1
            for _ in range(4):
                factors = rng.integers(1, slowest + 1, dies)
                yield tables.view_of([9], [first], [0], apart, (1, 0, work / 9), factors), 2

    def _of_equal_dies(self, rng):
        p = self._p
        dies, top, full = p.dies, 2**p.cost_bits - 1, 2**p.token_bits - 1
        every = np.ones((dies + 1, dies), bool)
        apart = 2 - 2 * np.eye(dies, dtype=int)
        for n in self._numbers_of_candidates():
            yield from self._at(n, apart, rng)
        yield tables.view_of([0, 0], every[:2], [0, 0], apart, (1, 1, 1)), 1  # nothing to place
        yield tables.view_of([1], every[:1], [0], apart, (0, 0, top)), 1  # all work is the largest
        yield (
            tables.view_of([full], every[:1], [0], apart, (0, 0, 0.9 * top / full)),
            full - 1,
        )  # of a block before the last
        size = -(-full // (3 * dies))
        yield (
            tables.view_of([full], every[:1], [0], apart, (top // 9, 0, top / 5 / size)),
            size,
        )  # high loads everywhere
        for tokens in (1, 2, 7, 8, 9, 16):
            yield tables.view_of([tokens], every[:1], [dies - 1], apart, (3, 0, 1)), 8
        yield tables.view_of([5, 6], ~every[:2], [dies - 1, 0], apart, (2, 0, 1)), 1  # one candidate, blocks of a token

    def _numbers_of_candidates(self):
        """As many as bring candidates to every slot."""
        p, found = self._p, []
        reached: set[tuple[int, int]] = set()
        for n in (p.dies, *range(p.lanes * (p.dies // p.lanes), 0, -p.lanes)):
            groups = -(-n // p.lanes)
            slots = {(at // groups, at % groups) for at in range(n)}
            if slots - reached:
                found.append(n)
                reached |= slots
        return found

    def _at(self, n, apart, rng):
        """Steps with ``n`` candidates."""
        p = self._p
        dies, top, full = p.dies, 2**p.cost_bits - 1, 2**p.token_bits - 1
        first, last = np.arange(dies) < n, np.arange(dies) >= dies - n
        each = [full] * (n + 1)  # every slot gets the largest block
        yield (
            tables.view_of(each, np.tile(first, (n + 1, 1)), [0] * (n + 1), apart, (top // 8, 0, top / 8 / full)),
            full,
        )
        yield tables.view_of([1], [first], [0], apart, (top, 0, 0)), 1  # all reads are the largest
        yield tables.view_of([1], [last], [dies - 1], apart, (1, 0, 0)), 1
        # the load of every die but the first is the largest, and the last expert may run on each of the candidates
        near_first = apart.copy()
        near_first[1:n, 0] = 1
        alone = np.zeros((dies, dies), bool)
        homes = [*range(1, dies), 0]
        yield tables.view_of([*[1] * (dies - 1), 2], alone, homes, near_first, (top, 0, 0)), full
        for turn in range(24):  # any dies in any slots: those that hold the expert, and then their neighbours
            among = rng.permutation(dies) < n
            holding = among & ((rng.random(dies) < 0.5) if turn % 2 else (np.arange(dies) >= turn * dies // 24))
            holding[np.flatnonzero(among)[-1]] |= not holding.any()
            reached = np.where(among & ~holding, 1, 2)[:, None] * np.ones((1, dies), int)
            home = int(np.flatnonzero(holding)[0])
            yield tables.view_of([1], [holding], [home], np.where(apart, reached, 0), (turn % 2, 1, 0)), 1

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        while True:
            if rng.random() < 0.5:
                experts = int(rng.integers(1, 40))
                view = tables.random_view(rng, self._p.dies, experts, self._p.speeds)
                yield view, int(rng.choice([16, 50, 512]))
            else:
                yield self._wide(rng)

    def _wide(self, rng):
        """A step with tokens, costs and loads of any size up to the largest, and any candidates."""
        p = self._p
        dies, n, full = p.dies, int(rng.integers(1, 13)), 2**p.token_bits - 1
        size = min(full, int(2 ** rng.uniform(0, p.token_bits)))
        blocks = rng.integers(1, rng.choice([2, 6, 24]), n)
        tokens = np.clip(blocks * size + rng.choice([-1, 0, 0, 1, size // 2], n), 0, full)
        hops = np.where(np.eye(dies, dtype=bool), 0, rng.choice([1, 2, 3], (dies, dies), p=(0.2, 0.4, 0.4)))
        holders = rng.random((n, dies)) < rng.choice([0.0, 0.2, 0.9])
        most = 2.0 ** rng.uniform(2, p.cost_bits)
        costs = np.array([*(most * rng.choice([0.0, 0.1, 1.0, 1.0], 2) * rng.random(2)), most * rng.random() / size])
        home = rng.integers(0, dies, n)
        factors = (2 ** rng.uniform(0, SPEED_BITS, dies)).astype(int) if p.speeds else None
        table, allowed = tables.AllocatorTable(p), 2**p.cost_bits
        grown = rng.random() < 0.5  # up to loads near the largest
        while True:
            view = tables.view_of(tokens, holders, home, hops, tuple(costs), factors)
            given, said = table.step(view, size)
            largest = tables.loads_of(given, said.output, dies)[1]
            if largest >= allowed:
                costs *= allowed / largest * 0.98
            elif grown and largest:
                costs, grown = costs * (allowed / largest * rng.uniform(0.6, 0.98)), False
            else:
                return view, size

    def run(self, dut: allocator.Allocator, events: int, rng: np.random.Generator) -> None:
        p, table = self._p, tables.AllocatorTable(self._p)
        top, full = 2**p.cost_bits - 1, 2**p.token_bits - 1

        async def bench(ctx):
            for view, block_tokens in self.stimulus(rng, events):
                given, said = table.step(view, block_tokens)
                loads, largest = tables.loads_of(given, said.output, p.dies)
                assert largest <= top, f"a stimulus of {largest} quanta exceeds {p.cost_bits} bits"
                most = 2 * int(said.cycles.sum()) + 50
                output, cycles = await drive.place(ctx, dut, given, most, _early(rng))
                self.cycles += sum(cycles)
                for at, (wanted, got) in enumerate(zip(said.output, output, strict=True)):
                    expect(wanted, got, f"block {self.events}, expert {at} of the step: (die, tokens) of its entries")
                expect(said.cycles[0].tolist(), cycles, f"block {self.events}: cycles in GENERATE, EVALUATE, MERGE")
                expect(loads, [ctx.get(each) for each in dut.loads], f"block {self.events}: loads after the step")
                self.events += sum(-(-each.tokens // block_tokens) for each in given.experts)
                self.reach(a_step_without_tokens=not given.experts, load_in_the_upper_half=max(loads) > top // 2)
                self.reach(largest_load=max(loads) == top, load_of_0=0 in loads)
                self.reach(block_of_one_token=block_tokens == 1, block_of_most_tokens=block_tokens == full)
                for each in given.experts:
                    candidates = len(each.die)
                    self.reach(one_token=each.tokens == 1, most_tokens=each.tokens == full)
                    self.reach(one_candidate=candidates == 1, every_die_a_candidate=candidates == p.dies)
                    self.reach(read_of_0=0 in each.read, largest_read=top in each.read)
                    self.reach(work_of_0=each.last_work == 0, largest_work=each.last_work == top)
                    several = each.tokens > block_tokens
                    self.reach(largest_bit_of_work=several and each.work > top // 2)
                    if p.speeds:
                        self.reach(largest_factor=2**SPEED_BITS - 1 in each.factor, least_factor=1 in each.factor)
                    self.reach(a_full_last_block=each.tokens % block_tokens == 0 and several)

        drive.simulate(dut, bench)


class PduBench(Bench):
    """``events``: cycles, in each of which a word may be written, a slice looked up and a copy entered."""

    component = pdu.Pdu

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        """Every expert wanted and not local, wanted and local, neither; then words of any bits."""
        p = self._p
        for fill in (2**p.port_bits - 1, 0, 2**p.port_bits - 1):
            yield 0, 0, 1, 0, 0, 0, 0
            yield from ((1, fill, 0, 0, 0, 0, 0) for _ in range(p.words))
        yield from ((0, 0, 1, each, 1, each, 1) for each in range(p.experts))
        yield from ((0, 0, 1, each, 1, each, 0) for each in range(p.experts))
        yield from ((1, self._word(rng), 1, int(rng.integers(0, p.experts)), 0, 0, 0) for _ in range(p.words))
        yield from ((0, 0, 1, each, 0, 0, 0) for each in range(p.experts))
        for _ in range(p.words + 1):  # local ones stay local while words are written
            yield 1, self._word(rng), 1, int(rng.integers(0, p.experts)), 1, int(rng.integers(0, p.experts)), 1

    def _word(self, rng):
        p = self._p
        return int.from_bytes(rng.bytes(-(-p.port_bits // 8)), "little") % 2**p.port_bits

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        span = self._p.experts
        while True:
            bits = rng.random(4) < (0.4, 0.7, 0.3, 0.5)
            experts = rng.integers(0, span, 2)
            if rng.random() < 0.2:
                experts[1] = experts[0]  # looked up and entered in the same cycle
            yield (
                int(bits[0]),
                self._word(rng),
                int(bits[1]),
                int(experts[0]),
                int(bits[2]),
                int(experts[1]),
                int(bits[3]),
            )

    def run(self, dut: pdu.Pdu, events: int, rng: np.random.Generator) -> None:
        p, table = self._p, tables.PduTable(self._p)

        async def bench(ctx):
            for given in self.stimulus(rng, events):
                done = await drive.cycle(ctx, dut, given)
                expect(table.cycle(*given), done, f"cycle {self.events}: (loading, answered, keep)")
                self.events += 1
                self.cycles += 1
                write, word, asked, expert, entered, placed, _ = given
                self.reach(
                    looks_up_the_first=asked and expert == 0, looks_up_the_last=asked and expert == p.experts - 1
                )
                self.reach(
                    enters_the_first=entered and placed == 0, enters_the_last=entered and placed == p.experts - 1
                )
                self.reach(word_of_0=write and word == 0, word_of_ones=write and word == 2**p.port_bits - 1)
                self.reach(look_up_while_its_copy_enters=asked and entered and placed == expert)

        drive.simulate(dut, bench)


class SelectBench(Bench):
    """``events``: cycles; rows of counters with many ties."""

    component = select.Selector

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        p = self._p
        n, top = p.experts, 2**p.count_bits - 1
        for value in (top, 0, 1, top):
            yield np.full(n, value)
        for above in (p.keep - 1, p.keep, min(n, p.keep + 1)):  # as many counters as are kept, one less, one more
            yield rng.permutation(np.where(np.arange(n) < above, top, 0))
        yield np.arange(n) % (top + 1)
        yield top - np.arange(n) % (top + 1)
        for bits in sorted({p.count_bits, 13, 10, 7, 4, 2}, reverse=True):  # thresholds of any size
            low = min(bits, p.count_bits) - 1
            yield 2**low + rng.integers(-1, 2, n).clip(-(2**low), top - 2**low)
            yield rng.integers(0, 2 ** (low + 1), n)

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        while True:
            most = int(rng.choice([1, 2, 4, 30, 2 ** int(rng.integers(1, 17)) - 1, 2**16 - 1]))
            row = rng.integers(0, most + 1, self._p.experts)
            row[rng.random(self._p.experts) < rng.choice([0.0, 0.5, 0.99])] = 0
            row[rng.random(self._p.experts) < 0.01] = 2**16 - 1
            yield row % 2**self._p.count_bits

    def run(self, dut: select.Selector, events: int, rng: np.random.Generator) -> None:
        p, table = self._p, tables.SelectTable(self._p)
        top = 2**p.count_bits - 1

        async def bench(ctx):
            for row in self.stimulus(rng, events):
                done = await drive.choose(ctx, dut, row, _early(rng))
                expect(table.row(row), done, f"row at cycle {self.cycles}: (cycles, threshold, experts)")
                cycles, threshold, marked = done
                self.cycles += cycles
                self.events += cycles
                self.reach(
                    threshold_of_0=threshold == 0, largest_threshold=threshold == top, all_equal=np.ptp(row) == 0
                )
                self.reach(marks_the_first=0 in marked, marks_the_last=p.experts - 1 in marked)
                equal = int((row == threshold).sum())
                missing = p.keep - int((row > threshold).sum())
                self.reach(all_of_the_threshold_are_marked=equal == missing)
                self.reach(ties_are_left_out=equal > missing or p.keep == p.experts)

        drive.simulate(dut, bench)


class SorterBench(Bench):
    """``events``: experts; steps of tokens with many ties."""

    component = sorter.Sorter

    def never(self) -> Mapping[str, str]:
        return {"block[0]": "a block has at least two keys", "whole[0]": "a step of one key is not sorted"}

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        p = self._p
        top = 2**p.count_bits - 1
        for level in range(p.levels, 0, -1):
            n = 2**level
            yield np.arange(n)[::-1] * top // n  # in the wrong order, of all sizes
            if n <= 32 or n == 2 * p.comparators:
                yield np.full(n, top)
                yield np.where(np.arange(n) % 2, 0, top)
                yield np.arange(max(2, n - 1)) % 2
        yield np.zeros(2, int)

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        while True:
            n = int(rng.integers(2, self._p.experts + 1)) if rng.random() < 0.5 else int(rng.integers(2, 9))
            most = int(rng.choice([2, 30, 2 ** rng.integers(1, self._p.count_bits + 1), 2**self._p.count_bits]))
            yield rng.integers(0, most, min(n, self._p.experts))

    def run(self, dut: sorter.Sorter, events: int, rng: np.random.Generator) -> None:
        p, table = self._p, tables.SorterTable(self._p)
        top = 2**p.count_bits - 1

        async def bench(ctx):
            for tokens in self.stimulus(rng, events):
                last = sorting_cycles(len(tokens), "bitonic", p.comparators)
                order, cycles = await drive.sort(ctx, dut, tokens, last, _early(rng))
                expect(table.step(tokens), (order, cycles), f"step at expert {self.events}: (order, cycles)")
                self.events += len(tokens)
                self.cycles += cycles
                n = len(tokens)
                self.reach(
                    two_experts=n == 2, every_expert=n == p.experts, not_a_power_of_two=n & (n - 1) or p.experts < 4
                )
                self.reach(tokens_of_0=(tokens == 0).any(), most_tokens=(tokens == top).any())
                self.reach(all_equal=np.ptp(tokens) == 0)

        drive.simulate(dut, bench)


class AtuBench(Bench):
    """``events``: look-ups, of experts that come again."""

    component = atu.Atu

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        """Every set is filled, its ways are used in both orders, and all of them are replaced; tags differ in a bit."""
        p = self._p
        yield from (0, p.experts - 1, 0, p.experts - 1)
        for at in range(min(p.sets, p.experts)):  # fewer experts leave sets empty
            last = (p.experts - 1 - at) // p.sets
            base, tags = int(rng.integers(0, last + 1)), []
            for mask in (0, *(1 << bit for bit in np.roll(range(p.tag_bits), at).tolist())):
                if base ^ mask <= last:
                    tags.append(base ^ mask)
            spare = (each for each in (0, last, *range(1, last)) if each not in tags)
            tags = [*tags, *(each for each, _ in zip(spare, range(2 * p.ways), strict=False))][: p.ways + 2]
            kept = tags[: p.ways]
            for tag in (*kept, *kept[::-1], *kept, *kept, *tags[p.ways :], *kept):
                yield tag * p.sets + at

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        p = self._p
        near = rng.integers(0, p.experts, max(1, p.entries))
        while True:
            of_few = int(near[rng.integers(0, len(near))])
            of_set = int(near[0] % p.sets + p.sets * rng.integers(0, 2 * p.ways)) % p.experts
            yield (of_few, of_set, int(rng.integers(0, p.experts)))[int(rng.choice(3, p=(0.5, 0.4, 0.1)))]

    def run(self, dut: atu.Atu, events: int, rng: np.random.Generator) -> None:
        p, table = self._p, tables.AtuTable(self._p)
        stored = [0] * p.sets

        async def bench(ctx):
            for expert in self.stimulus(rng, events):
                idle = self._recorded is None and rng.random() < 0.1
                answered, hit = await drive.look_up(ctx, dut, expert, stored, idle)
                self.cycles += 1
                expect(int(not idle), answered, f"look-up {self.events}: answered")
                if not idle:
                    expect(table.look_up(expert), hit, f"look-up {self.events}: expert {expert} known")
                    way = int(ctx.get(dut.way))
                    of_way = stored[expert % p.sets] >> way * (p.tag_bits + 1)
                    tag = of_way % 2 ** (p.tag_bits + 1)
                    expect(expert // p.sets | 1 << p.tag_bits, tag, f"look-up {self.events}: tag of way {way}")
                    self.events += 1
                    self.reach(first_expert=expert == 0, last_expert=expert == p.experts - 1)
                    self.reach(hit=hit, miss=not hit, hit_in_the_first_way=hit and way == 0)
                    self.reach(hit_in_the_last_way=hit and way == p.ways - 1)
                    self.reach(replaces_the_last_way=not hit and way == p.ways - 1, idle=False)
                else:
                    self.reach(idle=True)

        drive.simulate(dut, bench)


class HeatmapBench(Bench):
    """``events``: words that are updated, of few rows or of any, many of them with counters that are nearly full."""

    component = heatmap.HeatmapStore

    def _start_of(self, rng):
        """Counters, uint16[row, expert]: nearly full ones; rows of zeros, of full ones, of any, and of all ones below a
        bit.
        """
        p = self._p
        top = 2**p.count_bits - 1
        start = rng.integers(top - 39, top + 1, (p.experts, p.experts)).astype(np.uint16)
        for row in range(p.experts):
            kind = row % 8
            if kind in (0, 4):
                start[row] = 0
            elif kind == 1:
                start[row] = top
            elif kind == 2:
                start[row] = rng.integers(0, top + 1, p.experts)
            elif kind == 3:
                start[row] = 2 ** rng.integers(0, p.count_bits + 1, p.experts) - 1
        return start

    def corners(self, rng: np.random.Generator) -> Iterator[Any]:
        p = self._p
        rows = sorted(
            {0, 1, 2, 3, 5, p.experts - 1, p.experts // 2, *(2**bit for bit in range(10))} & set(range(p.experts))
        )
        for row in rows:
            for word in sorted({0, p.words // 2, p.words - 1}):
                yield row, word, self._ones(word)
        for word in range(p.words):
            yield 2 % p.experts, word, self._ones(word)
            yield 0, word, 1
            yield 0, word, 1 << self._ones(word).bit_length() - 1

    def _ones(self, word):
        p = self._p
        last = p.experts - (p.words - 1) * p.per_word
        return 2 ** (last if word == p.words - 1 else p.per_word) - 1

    def drawn(self, rng: np.random.Generator) -> Iterator[Any]:
        p = self._p
        while True:
            word = int(rng.integers(0, p.words))
            mask = int.from_bytes(rng.bytes(-(-p.per_word // 8)), "little") & self._ones(word)
            mask &= int.from_bytes(rng.bytes(-(-p.per_word // 8)), "little")
            if mask:
                few = rng.random() < 0.5
                yield int(rng.integers(0, min(4, p.experts) if few else p.experts)), word, mask

    def run(self, dut: heatmap.HeatmapStore, events: int, rng: np.random.Generator) -> None:
        p, start = self._p, self._start_of(rng)
        table, memory = tables.HeatmapTable(self._p, start), start.copy()
        top = 2**p.count_bits - 1

        async def bench(ctx):
            updates = self.stimulus(rng, events)
            update = self._start(ctx, dut, next(updates, None))
            await ctx.tick()
            while update is not None:
                spent, writes, following, asked = [0] * 4, [0] * 4, None, False
                while following is None and (state := ctx.get(dut.state)):
                    spent[state - 1] += 1
                    row_at, first = ctx.get(dut.row_at), ctx.get(dut.at) * p.per_word
                    of_word = memory[row_at, first : first + p.per_word]
                    ctx.set(dut.loaded, drive.packed(of_word, p.count_bits))
                    ctx.set(dut.start, state != heatmap.WRITE and rng.random() < EARLY)  # not taken: it is busy
                    if ctx.get(dut.writes):
                        writes[state - 1] += 1
                        of_word[:] = drive.unpacked(ctx.get(dut.stored), len(of_word), p.count_bits)
                    if state == heatmap.WRITE and rng.random() < 0.5:  # the next one follows at once
                        self.events, asked = self.events + 1, True
                        following = self._start(ctx, dut, next(updates, None))
                    await ctx.tick()
                    ctx.set(dut.start, 0)
                    self.cycles += 1
                    if sum(spent) > 8 * p.words + 8:
                        raise drive.Differs(f"word {self.events}: it does not end")
                row, word, mask = update
                before = table.counters[row].copy()
                expect(said := table.update(*update), tuple(spent), f"word {self.events}: cycles by state")
                expect([0, said[1], 0, said[3]], writes, f"word {self.events}: writes by state")
                expect(table.counters[row].tolist(), memory[row].tolist(), f"word {self.events}: counters of row {row}")
                counts = before[word * p.per_word : (word + 1) * p.per_word]
                counts = counts[[bool(mask >> bit & 1) for bit in range(len(counts))]]
                self.reach(counter_of_0=(counts == 0).any(), full_counter=(counts == top).any())
                self.reach(counter_that_becomes_full=(counts == top - 1).any(), follows_at_once=following is not None)
                self.reach(
                    first_row=row == 0, last_row=row == p.experts - 1, row_in_the_upper_half=2 * row >= p.experts
                )
                self.reach(first_word=word == 0, last_word=word == p.words - 1, one_counter=mask.bit_count() == 1)
                self.reach(every_counter_of_a_word=mask == self._ones(word))
                if following is None and not asked:
                    self.events += 1
                    following = self._start(ctx, dut, next(updates, None))
                    await ctx.tick()
                update = following
            expect(True, bool((table.counters == memory).all()), "every row after the last word: equal")

        drive.simulate(dut, bench)

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

# Further sizes that run where no parameter is given: dies that differ in speed, sizes that are no power of two, and
# ports of one bit.
FURTHER_SIZES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "allocator": (
        {"lanes": 1}, {"lanes": 4}, {"lanes": 16}, {"lanes": 4, "speeds": True},
        {"dies": 7, "lanes": 3, "pipeline": 0}, {"dies": 6, "lanes": 2, "pipeline": 1, "speeds": True},
    ),
    "pdu": ({"experts": 12, "port_bits": 4, "shadow": False}, {"experts": 2, "port_bits": 1}),
    "select": (
        {"experts": 33, "comparators": 4, "keep": 3}, {"experts": 10, "comparators": 4, "larger_wins": True},
    ),
    "sorter": ({"experts": 8, "comparators": 1}, {"experts": 16, "comparators": 8}),
    "atu": ({"entries": 24, "ways": 3, "experts": 100},),
    "heatmap": ({"experts": 12, "port_bits": 64},),
}  # fmt: skip


def lockstep(
    block: str,
    events: int,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    component: Any = None,
    given: Any = None,
    cover: bool = False,
) -> LockstepResult:
    """Component and table with one stimulus of ``seed`` (or the recorded one ``given``), up to the first difference.

    ``component``: one to take instead of the shipped. ``cover``: count the coverage of the component. Raises
    ValueError for parameters that cannot be built.
    """
    kind, parameters = BENCHES[block]
    parameters = replace(parameters, **(changes or {}))
    bench = kind(parameters, given)
    dut = (component or kind.component)(parameters)
    coverage, difference = LockstepCoverage(), ""
    if cover:
        dut = Covered(dut, bench.never())
        coverage = dut.coverage
    try:
        bench.run(dut, events, np.random.default_rng([seed, 24]))
    except drive.Differs as found:
        difference = str(found)
    coverage.bounds = bench.bounds
    return LockstepResult(block, parameters, seed, bench.events, bench.cycles, difference, coverage)

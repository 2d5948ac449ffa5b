"""What the tables and policy functions say that a component does: the reference of lockstep.

``TableOutput``: for every cycle in which the component is busy its state, and for every event its output words.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.laws.wafer import SPEED_FRACTION
from archsim.model.spec import SLICES
from archsim.policies.allocation import NO_SPEEDS, Costs, Plan, StepView, knows_speeds, paper, slowness
from archsim.policies.heatmap import hot_rows
from archsim.policies.ported_heatmap import add_words
from microarch.blocks import atu as atu_block
from microarch.blocks import pdu as pdu_block
from microarch.blocks.global_cp import DecisionWork, State, fsm_ns, sorting_cycles
from microarch.blocks.request import Event
from microarch.fabric.grid import build_mesh


class TableOutput(NamedTuple):
    """``cycles``: int64[event, state]; ``output``: what each event answers, a tuple of numbers."""

    cycles: np.ndarray
    output: list[tuple[int, ...]]


class Placing(NamedTuple):
    """An expert to place: its candidates in order of rank, and what the allocator gets of it."""

    die: list[int]
    read: list[int]  # quanta
    tokens: int
    work: int  # quanta, of a full block on a die of nominal speed
    last_work: int
    factor: list[int]  # how slow the candidates are, in units of 2^-SPEED_FRACTION

    def on(self, rank: int, work: int) -> int:
        """``work`` of a nominal die as it is on a candidate, in quanta."""
        return (work * self.factor[rank] + (1 << SPEED_FRACTION - 1)) >> SPEED_FRACTION


class PlacingStep(NamedTuple):
    """A step of the allocator: experts in the order in which they are placed."""

    experts: list[Placing]
    block_tokens: int


def counts_of(plan: Plan, dies: int, experts: int, rows: int = 0) -> DecisionWork:
    """Counts of a decision as the engine makes them."""
    effort = plan.effort
    return DecisionWork(
        dies, experts, effort.global_demand, len(effort.candidates), effort.sorted_experts, effort.candidates,
        effort.blocks, len(plan.expert), rows, 0, speeds=effort.speeds,
    )  # fmt: skip


class AllocatorTable:
    """The policy ``paper`` with costs in quanta, and the cycles of ``fsm_ns``."""

    def __init__(self, parameters: Any):
        self._parameters = parameters
        self._fsm = SimpleNamespace(
            lanes=parameters.lanes, pipeline=parameters.pipeline, clock_hz=1e9, table_port_bits=72, sorter="bitonic",
            comparators=32, heatmap_port_bits=512, prediction_port_bits=16,
        )  # fmt: skip

    def step(self, view: StepView, block_tokens: int) -> tuple[PlacingStep, TableOutput]:
        """What the allocator gets for a step, and what it has to do."""
        plan = paper(view, block_tokens)
        order = np.argsort(view.tokens, kind="stable")
        order = order[view.tokens[order] > 0]
        given = self.given(view, block_tokens, order)
        output = []
        for expert, placing in zip(order, given.experts, strict=True):
            of = {int(plan.die[at]): int(plan.tokens[at]) for at in np.flatnonzero(plan.expert == expert)}
            output.append(tuple(number for die in placing.die if die in of for number in (die, of[die])))
        ns = fsm_ns(counts_of(plan, len(view.hops), len(view.tokens)), self._fsm)
        states = [round(ns[state]) for state in (State.GENERATE, State.EVALUATE, State.MERGE)]
        return given, TableOutput(np.array([states]), output)

    def given(self, view: StepView, block_tokens: int, order: Iterable[int], distance: int = 1) -> PlacingStep:
        """What the allocator gets of the experts, in that order. Raises OverflowError for tokens of too many bits."""
        if view.tokens.max(initial=0) >= 2**self._parameters.token_bits:
            raise OverflowError(f"{view.tokens.max()} tokens of an expert exceed {self._parameters.token_bits} bits")
        return PlacingStep([self._placing(view, int(each), block_tokens, distance) for each in order], block_tokens)

    def _placing(self, view: StepView, expert: int, block_tokens: int, furthest: int) -> Placing:
        """Candidates by distance from a holder, then by die; costs in quanta, as the policy rounds them."""
        costs, tokens = view.costs, int(view.tokens[expert])
        nbytes = SLICES * costs.slice_bytes
        hosts = view.holders[expert] | (view.copied_slices[expert] == SLICES)
        home = int(view.home[expert])
        hosts[home] = True
        # of several holders that are as near, the home, then the lowest
        of = np.array([home, *(each for each in np.flatnonzero(hosts) if each != home)])
        nearest, distance = of[view.hops[:, of].argmin(axis=1)], view.hops[:, of].min(axis=1)
        speeds = view.speeds if knows_speeds(view) else np.ones((2, len(view.hops)))

        def read_ns(die: int) -> float:
            reach, host = int(distance[die]), nearest[die]
            if not reach:
                return costs.hbm_latency_ns + nbytes / (costs.hbm_bytes_per_ns * speeds[1, die])
            if knows_speeds(view):
                return view.pair_ns[host, die] + reach * (nbytes / view.pair_bytes_per_ns[host, die])
            return reach * (costs.hop_ns + nbytes / costs.link_bytes_per_ns)

        near = [die for reach in range(furthest + 1) for die in np.flatnonzero(distance == reach).tolist()]
        last = tokens - (-(-tokens // block_tokens) - 1) * block_tokens
        full, rest = (_quanta(costs.flop_per_token * size / costs.flop_per_ns, costs) for size in (block_tokens, last))
        factor = slowness(speeds[0])[near].tolist()
        return Placing(near, [_quanta(read_ns(die), costs) for die in near], tokens, full, rest, factor)


def _quanta(ns: float, costs: Costs) -> int:
    return int(np.floor(ns / costs.quantum_ns + 0.5))


def loads_of(given: PlacingStep, output: Iterable[tuple[int, ...]], dies: int) -> tuple[list[int], int]:
    """(load of every die after a step whose entries are ``output``, in quanta; the largest cost that was compared, or
    work that entered).
    """
    loads, most = [0] * dies, 0
    for placing, entries in zip(given.experts, output, strict=True):
        size, ranks = given.block_tokens, {die: rank for rank, die in enumerate(placing.die)}
        several = placing.tokens > size
        first = placing.work if several else placing.last_work
        costs = (loads[die] + max(placing.read[at], placing.on(at, first)) for die, at in ranks.items())
        most = max(most, first, *costs)
        for die, tokens in zip(entries[::2], entries[1::2], strict=True):
            full, rest = divmod(tokens, size)
            at, each = ranks[die], [placing.work] * full + [placing.last_work] * (rest > 0)
            works = [placing.on(at, work) for work in each]
            loads[die] += max(placing.read[at], works[0]) + sum(works[1:])
        if several:  # at most: what a further block costs on top of all of them
            further = placing.work if placing.tokens > 2 * size else placing.last_work
            most = max(most, *(loads[die] + placing.on(at, further) for die, at in ranks.items()))
    return loads, most


def view_of(tokens, holders, home, hops, costs: tuple[float, float, float], factors=None) -> StepView:
    """A step whose costs are given directly. ``tokens``, ``home``: int[expert]; ``holders``: bool[expert, die];
    ``hops``: int[die, die]; ``costs``: quanta of a read here, of a read a hop away, and of the work of a token;
    ``factors``: how slow dies are, int[die] in units of 2^-SPEED_FRACTION; None: a rule that sees no speeds.
    """
    here, hop, work = costs
    tokens, home = np.asarray(tokens, np.int32), np.asarray(home, np.int32)
    holders = np.array(holders, np.bool_)
    holders[np.arange(len(home)), home] = True
    spent = Costs(0, float(work), 1.0, 1.0, 1.0, float(here), float(hop), 1.0)
    copied = np.zeros(holders.shape, np.int8)
    hops = np.asarray(hops, np.int32)
    view = StepView(
        tokens, np.zeros(0, np.int16), home, copied, hops, spent, 0, 1, holders, hops * float(hop), np.ones(hops.shape)
    )
    return view if factors is None else with_factors(view, factors)


def with_factors(view: StepView, factors) -> StepView:
    """A step for dies whose arrays are so slow, int[die] in units of 2^-SPEED_FRACTION."""
    speeds = 2.0**SPEED_FRACTION / np.asarray(factors, float)
    return view._replace(speeds=np.stack([speeds, np.ones(len(speeds))]))


def random_view(rng: np.random.Generator, dies: int, experts: int, speeds: bool = False) -> StepView:
    """A step of random demand, holders and copies on a mesh of ``dies`` dies; ties are frequent. ``speeds``: dies and
    links differ.
    """
    mesh = build_mesh(*next((x, dies // x) for x in range(int(dies**0.5), 0, -1) if dies % x == 0))
    tokens = rng.integers(0, rng.choice([4, 40, 400, 2000]), experts).astype(np.int32)
    home = rng.integers(0, dies, experts).astype(np.int32)
    holders = rng.random((experts, dies)) < rng.choice([0.0, 0.1, 0.6])
    holders[np.arange(experts), home] = True
    copied = (SLICES * (rng.random((experts, dies)) < rng.choice([0.0, 0.2]))).astype(np.int8)
    flop_per_token = 2e4 * float(rng.integers(1, 64))
    costs = Costs(int(rng.integers(2**10, 2**20)), flop_per_token, 1e5, 1500.0, 1000.0, 300.0, 200.0, 1.0)
    pair = np.ones((2, *mesh.hops.shape))
    if speeds:
        pair = rng.choice([200.0, 400.0, 900.0], pair.shape)
    of_dies = rng.choice([0.5, 0.8, 0.97, 1.0, 1.03], (2, dies)) if speeds else NO_SPEEDS
    return StepView(
        tokens, np.zeros(0, np.int16), home, copied, mesh.hops, costs, 0, 1, holders, pair[0], pair[1], speeds=of_dies
    )


class PduTable:
    """``microarch.blocks.pdu.decide``, with the bits that have taken effect."""

    def __init__(self, parameters: Any):
        self._p = parameters
        self._bits, self._local = np.zeros((2, 1, parameters.experts), np.uint8)
        self._gathered: list[int] = []

    def cycle(self, write, word, look_up, expert, place, placed, is_local) -> tuple[int, int, int]:
        """(state, answered, keep) after a cycle with these inputs."""
        entry, copies = SimpleNamespace(die=0, expert=expert), SimpleNamespace(present=self._local)
        event = pdu_block.decide.py_func(self._bits, 0.0, copies, entry, expert, 1.0)
        keep = int(look_up and event == Event.KEEP)
        if write:
            p = self._p
            self._gathered += [word >> bit & 1 for bit in range(p.port_bits)]
            if not p.shadow or len(self._gathered) == p.experts:
                self._bits[0, : len(self._gathered)] = self._gathered
            if len(self._gathered) == p.experts:
                self._gathered = []
        if place:
            self._local[0, placed] = is_local
        return int(bool(self._gathered)), int(look_up), keep


class SelectTable:
    """``hot_rows`` of a predictor, and SELECT of ``fsm_ns``."""

    def __init__(self, parameters: Any):
        self._p = parameters
        experts = parameters.experts
        self._heat = np.zeros((1, experts, experts), np.uint32)
        self._marks = np.zeros((1, experts, (experts + 7) // 8), np.uint8)
        self._changed = np.zeros((1, experts), np.bool_)
        self._changed[0, 0] = True

    def row(self, counters: np.ndarray) -> tuple[int, int, list[int]]:
        """(cycles, the ``keep``-th largest counter, marked experts) of a row."""
        p = self._p
        self._heat[0, 0] = counters
        hot_rows(self._heat, self._changed, p.keep, 0 if p.larger_wins else 1, p.larger_wins, self._marks)
        counts = DecisionWork(1, p.experts, False, 0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 1, 0)
        fsm = SimpleNamespace(
            lanes=1, pipeline=0, clock_hz=1e9, table_port_bits=72, sorter="bitonic", comparators=p.comparators,
            heatmap_port_bits=512, prediction_port_bits=16,
        )  # fmt: skip
        chosen = np.flatnonzero(np.unpackbits(self._marks[0, 0], bitorder="little"))
        return round(fsm_ns(counts, fsm)[State.SELECT]), int(np.sort(counters)[-p.keep]), chosen.tolist()


class SorterTable:
    """The order in which ``paper`` places experts, and ORDER of ``fsm_ns``."""

    def __init__(self, parameters: Any):
        self._p = parameters

    def step(self, tokens: np.ndarray) -> tuple[list[int], int]:
        """(experts by tokens, then by number; cycles)."""
        cycles = sorting_cycles(len(tokens), "bitonic", self._p.comparators)
        return np.argsort(tokens, kind="stable").tolist(), cycles


class AtuTable:
    """``microarch.blocks.atu.use``."""

    def __init__(self, parameters: Any):
        self._atu = atu_block.no_translations(1, parameters.entries, parameters.ways)

    def look_up(self, expert: int) -> int:
        """Whether the ATU knows the expert; from now on it does."""
        return int(atu_block.use.py_func(self._atu, 0, expert))


@kernel
def _add_words(counts, now, per_word):
    return add_words(counts, now, per_word)


class HeatmapTable:
    """``archsim.policies.ported_heatmap.add_words``: a word at a time, two accesses each."""

    def __init__(self, parameters: Any, memory: np.ndarray):
        self._p, self.counters = parameters, memory.copy()  # uint16[row, expert]

    def update(self, row: int, word: int, mask: int) -> tuple[int, ...]:
        """Accesses of the port, by state: (READ, WRITE, HALVE_READ, HALVE_WRITE)."""
        p = self._p
        now = np.array([word * p.per_word + bit for bit in range(p.per_word) if mask >> bit & 1])
        halved = int(_add_words(self.counters[row], now, np.int64(p.per_word)))
        return 1 + halved, 1, halved * p.words, halved * p.words

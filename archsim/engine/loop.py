"""A run: an engine driven through the demands of a batch, one step after the other, with a barrier after each.

The loop keeps the state that outlives a step and is not hardware: the predictor's heatmap, and the history from which
a rebalancing rule computes a new placement between two iterations.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, unsigned
from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_S
from archsim.engine.decision import DecisionTotals
from archsim.engine.demand import CLASSES
from archsim.engine.engine import BalancingTotals, EventEngine, StepTimes
from archsim.engine.state import DIE, PARTS, UNITS, Machine, Memory, Tally
from archsim.iteration.memory import Fit
from archsim.policies.allocation import Plan
from archsim.policies.placement import moves_between
from archsim.policies.prediction import PortedHeatmap, Predictor, cycles_per_halving, cycles_per_transition
from archsim.policies.rebalancing import History, Rebalanced, Rebalancing
from archsim.workload.demand import Predicted, StepDemand
from archsim.workload.trace import StepTokens
from microarch.blocks.global_cp import COUNTER_BITS
from microarch.fabric.fabric import Fabric
from microarch.silicon.energy import TILE_ROWS

# ---- ceilings
# Ceilings of balance: how little the most loaded die could have, whatever the allocation.
#
# Loads are pairs of token and expert. ``perfect``: the mean. ``slots``: no placement with as many slots does better: an
# expert with c instances has at least 1/c of its load on some die, and the fewest loads per instance that the slots
# allow are those of the greedy rule that gives each slot to the largest. ``placement``: the linear programme of LPLB
# over the holders of the step, solved exactly as a flow (``archsim.policies.lplb``); no allocation to holders does
# better, allocations to other dies may. perfect <= slots <= placement.


class Ceilings(NamedTuple):
    """Least possible load of the most loaded die, in pairs."""

    perfect: float
    slots: float
    placement: float


def ceilings(tokens: np.ndarray, holders: np.ndarray, slots: int) -> Ceilings:
    """``tokens: int[expert]``; ``holders: bool[expert, die]``; ``slots``: of all dies in the layer."""
    pairs, largest, held, fullest = _sums(tokens, holders, np.zeros(holders.shape[1], np.int64))
    mean = pairs / holders.shape[1]
    if not pairs:
        return Ceilings(0.0, 0.0, 0.0)
    slots = max(slots, held)
    placed = float(fullest) if held == len(tokens) else _shared_out(tokens.astype(np.float64), holders)
    instance = float(largest) if slots <= len(tokens) else _largest_instance(tokens.astype(np.float64), slots)
    return Ceilings(mean, min(max(mean, instance), placed), placed)


@kernel
def _sums(tokens, holders, loads):
    """Sum and largest of ``tokens``, how many ``holders``, and the most that a die would have if all of its experts
    ran there alone. ``loads``: int64[die], zeros.
    """
    pairs, largest, held, fullest = 0, 0, 0, 0
    for expert in range(unsigned(len(tokens))):
        pairs += tokens[expert]
        largest = max(largest, tokens[expert])
        for die in range(unsigned(len(loads))):
            if holders[expert, die]:
                held += 1
                loads[die] += tokens[expert]
    for die in range(len(loads)):
        fullest = max(fullest, loads[die])
    return pairs, largest, held, fullest


def _largest_instance(load: np.ndarray, slots: int) -> float:
    """The least that the largest load per instance can be with that many instances, more than experts."""
    from archsim.base.packing import replicate

    return float(replicate(load[None], slots).load.max())


def _shared_out(load: np.ndarray, holders: np.ndarray) -> float:
    from archsim.policies.lplb import share_out

    active = np.flatnonzero(load)
    expert, gpu = np.nonzero(holders[active])
    begin = np.searchsorted(expert, np.arange(len(active) + 1))
    share = share_out(load[active], begin.astype(np.int64), gpu.astype(np.int64), holders.shape[1])
    return float(np.bincount(gpu, share, holders.shape[1]).max())


# ---- step_counts
# What every step counted: the difference of the run's tally before and after it, one row a step of a layer.
#
# What moves between two steps (weights that rebalancing moves) counts for the next one.

PREFILL, DECODE = 0, 1  # rows of ``StepCounts.hbm_bytes``
MOVED = tuple(CLASSES)
MOST_STEPS = 12_000  # rows that are kept: 127 iterations of 94 layers, the paper's longest run
MOST_DIES = 128  # with more, classes of messages are not told apart: their sum over pairs would take longer than a step


# Of a step; ``link`` -1: none was busy. What has more than one value a step is in columns of its own.
ROW = np.dtype(
    [
        ("step", "i8"), ("layer", "i8"), ("time_ns", "f8"), ("decision_ns", "f8"), ("link", "i8"),
        ("link_bytes", "i8"), ("link_busy_ns", "f8"), ("die", "i8"), ("die_tokens", "i8"), ("tokens", "i8"),
        ("expert", "i8"), ("expert_tokens", "i8"),
    ],
    align=True,
)  # fmt: skip
NAMES = (
    "step", "layer", "time_ns", "decision_ns", "bound_ns", "hbm_bytes", "moved", "link", "link_bytes",
    "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens",
)  # fmt: skip
FIRST_ROOM = 256  # rows; doubled when they are full
MOST_FRAMES = 16  # of a run; iterations are taken together where it has more


class Frame(NamedTuple):
    """Sums from the begin of a run to the end of iteration ``step``: time, int64[die] tokens, and of each resource
    int64[resource] bytes, float64[resource] ns that it was busy, and ns that stages waited for it.
    """

    step: int
    time_ns: float
    tokens: np.ndarray
    bytes: np.ndarray
    busy_ns: np.ndarray
    wait_ns: np.ndarray


class Sums(NamedTuple):
    """What the tally held before a step, and then what it has grown by: of resources, causes, parts, and dies."""

    resource_bytes: np.ndarray  # int64[resource]
    busy_ns: np.ndarray  # float64[resource]
    bound_ns: np.ndarray  # float64[cause]
    part_ns: np.ndarray  # float64[PARTS]
    hbm_bytes: np.ndarray  # int64[4], by field of DIE, of all dies
    moved: np.ndarray  # int64[class] of all pairs


class StepCounts:
    """In prefill and decode: ``resource_bytes``: int64[2, resource] and ``busy_ns``: float64[2, resource], of each
    resource as ``archsim.engine.state`` numbers them; ``hbm_bytes``: int64[2, die], a part of the bytes; ``tokens``:
    int64[2, die] assigned to it, ``padded``: int64[2, die] rows that are empty in the tiles of its products;
    ``entries``: int64[2] of plans, experts that a die runs; ``time_ns``: float64[2]; ``part_ns``: float64[2, PARTS] of
    expert-parallel layers.

    A run of more than MOST_STEPS steps keeps these sums alone: its rows would be larger than all else that is kept.
    """

    def __init__(self, machine: Machine, tally: Tally) -> None:
        self._tally = tally
        self.tokens, self.padded = np.zeros((2, 2, machine.dies), np.int64)
        self.resource_bytes, self.entries = np.zeros((2, len(tally.resources)), np.int64), np.zeros(2, np.int64)
        self.busy_ns, self.time_ns = np.zeros((2, len(tally.resources))), np.zeros(2)
        self.hbm_bytes = self.resource_bytes[:, machine.dies : 2 * machine.dies]
        self.part_ns = np.zeros((2, len(PARTS)))
        self._links = UNITS * machine.dies
        self._pair_bytes = tally.pair_bytes if machine.dies <= MOST_DIES else tally.pair_bytes[:, :0]
        self._before = Sums(
            np.zeros(len(tally.resources), np.int64), np.zeros(len(tally.resources)), np.zeros_like(tally.bound_ns),
            np.zeros(len(PARTS)), np.zeros(len(DIE.fields or ()), np.int64), np.zeros(len(MOVED), np.int64),
        )  # fmt: skip
        self._grown = Sums(*map(np.zeros_like, self._before))
        several = self._grown.bound_ns, self._grown.hbm_bytes, self._grown.moved
        self._columns = [np.zeros(FIRST_ROOM, ROW), *(np.zeros((FIRST_ROOM, len(of)), of.dtype) for of in several)]
        self.forget()

    def forget(self) -> None:
        """The tally begins anew."""
        self.resource_bytes[:] = self.tokens[:] = self.padded[:] = self.entries[:] = 0
        self.part_ns[:] = self.busy_ns[:] = self.time_ns[:] = 0.0
        self._steps, self._iteration, self._end_ns = 0, -1, 0.0
        self._frames: list[Frame] = []
        self._ended, self._together = 0, 1  # iterations, and how many of them a frame spans
        self._wait_ns = self._tally.resources["wait_ns"].copy()
        _grow(self._tally, self._pair_bytes, self._before, self._grown)

    def add(
        self,
        step: int,
        layer: int,
        prefill: bool,
        took_ns: float,
        exposed_ns: float,
        end_ns: float,
        load: np.ndarray,
        wanted: np.ndarray,
        plan: Plan,
    ) -> None:
        """A step has run. ``end_ns``: time of the run so far; ``load``: int64[die] tokens; ``wanted``: int32[expert]
        tokens.
        """
        if step != self._iteration:
            self._end_iteration(step)
        phase = PREFILL if prefill else DECODE
        self.time_ns[phase] += took_ns
        self._end_ns = end_ns
        self.entries[phase] += len(plan.expert)
        _add_padded(plan.die, plan.tokens, TILE_ROWS, self.padded[phase])
        sums = self.resource_bytes, self.busy_ns, self.tokens, self.part_ns
        _add(self._tally, self._pair_bytes, self._before, self._grown, load, *(each[phase] for each in sums))
        np.copyto(self._wait_ns, self._tally.resources["wait_ns"])
        at, self._steps = self._steps, self._steps + 1
        if at >= MOST_STEPS:
            return
        if at == len(self._columns[0]):
            self._columns = [np.concatenate([column, np.zeros_like(column)]) for column in self._columns]
        _note(tuple(self._columns), at, (step, layer, took_ns, exposed_ns), self._grown, self._links, load, wanted)

    def _end_iteration(self, following: int) -> None:
        if self._iteration >= 0:
            self._ended += 1
            if self._ended % self._together == 0:
                self._frames.append(self._frame())
            if len(self._frames) >= 2 * MOST_FRAMES:
                del self._frames[::2]  # two become one, which ends with the later
                self._together *= 2
        self._iteration = following

    def _frame(self) -> Frame:
        tokens, n_bytes, busy_ns = (each.sum(axis=0) for each in (self.tokens, self.resource_bytes, self.busy_ns))
        return Frame(self._iteration, self._end_ns, tokens, n_bytes, busy_ns, self._wait_ns.copy())

    def frames(self) -> list[Frame]:
        """At the ends of some iterations, at most MOST_FRAMES, the last one among them."""
        every = [*self._frames, self._frame()] if self._iteration >= 0 else []
        while len(every) > MOST_FRAMES:
            every = every[-1::-2][::-1]
        return every

    def columns(self) -> Mapping[str, np.ndarray]:
        """Name → one value a step, in their order; none for more than MOST_STEPS. ``layer`` counts the layers that run;
        ``bound_ns`` float64[step, state + 1] as in the tally; ``hbm_bytes`` int64[step, 4] by field of
        ``archsim.engine.state.DIE``; ``moved`` int64[step, class] by `MOVED`, 0 for machines of more than MOST_DIES
        dies; ``link`` -1: none was busy.
        """
        if not 0 < self._steps <= MOST_STEPS:
            return {name: np.array([]) for name in NAMES}
        rows, *several = (column[: self._steps] for column in self._columns)
        wide = dict(zip(("bound_ns", "hbm_bytes", "moved"), several, strict=True))
        return {name: wide[name].copy() if name in wide else rows[name].copy() for name in NAMES}


@kernel
def _grow(tally, pair_bytes, before, grown):
    """Replace ``before`` by what the tally holds now; leave in ``grown`` how much more that is. ``pair_bytes``: of the
    tally, or without pairs.
    """
    for r in range(len(tally.resources)):
        row = tally.resources[r]
        grown.resource_bytes[r], before.resource_bytes[r] = row.bytes - before.resource_bytes[r], row.bytes
        grown.busy_ns[r], before.busy_ns[r] = row.busy_ns - before.busy_ns[r], row.busy_ns
    for cause in range(len(tally.bound_ns)):
        grown.bound_ns[cause] = tally.bound_ns[cause] - before.bound_ns[cause]
        before.bound_ns[cause] = tally.bound_ns[cause]
    for part in range(len(tally.part_ns)):
        grown.part_ns[part] = tally.part_ns[part] - before.part_ns[part]
        before.part_ns[part] = tally.part_ns[part]
    local, remote, written, activations = 0, 0, 0, 0
    for die in range(len(tally.dies)):
        row = tally.dies[die]
        local += row.local_read_bytes
        remote += row.remote_read_bytes
        written += row.write_bytes
        activations += row.activation_bytes
    _replace(before.hbm_bytes, grown.hbm_bytes, 0, local)
    _replace(before.hbm_bytes, grown.hbm_bytes, 1, remote)
    _replace(before.hbm_bytes, grown.hbm_bytes, 2, written)
    _replace(before.hbm_bytes, grown.hbm_bytes, 3, activations)
    for what in range(len(pair_bytes)):
        sent = 0
        for src in range(pair_bytes.shape[1]):
            for dst in range(pair_bytes.shape[2]):
                sent += pair_bytes[what, src, dst]
        _replace(before.moved, grown.moved, what, sent)


@kernel
def _add(tally, pair_bytes, before, grown, load, resource_bytes, busy_ns, tokens, part_ns):
    """As `_grow`; add what it found to the sums of a phase, int64[resource], float64[resource], int64[die] and
    float64[PARTS].
    """
    _grow(tally, pair_bytes, before, grown)
    for r in range(len(resource_bytes)):
        resource_bytes[r] += grown.resource_bytes[r]
        busy_ns[r] += grown.busy_ns[r]
    for die in range(len(load)):
        tokens[die] += load[die]
    for part in range(len(part_ns)):
        part_ns[part] += grown.part_ns[part]


@inner
def _replace(before, grown, at, now):
    grown[at], before[at] = now - before[at], now


@kernel
def _add_padded(die, tokens, rows, padded):
    """Add the rows that are empty in the tiles, of so many ``rows``, of a plan's products, to int64[die]."""
    for at in range(len(die)):
        padded[die[at]] += -tokens[at] % rows


@kernel
def _note(columns, at, known, grown, links, load, wanted):
    """Fill in a row of all ``columns``. ``known``: step, layer, time and time of the decision; ``links``: first
    resource that is one.
    """
    rows, bound_ns, hbm_bytes, moved = columns
    _copy(grown.bound_ns, bound_ns[at])
    _copy(grown.hbm_bytes, hbm_bytes[at])
    _copy(grown.moved, moved[at])
    row = rows[at]
    row.step, row.layer, row.time_ns, row.decision_ns = known
    hottest = _fullest(grown.busy_ns[links:])
    row.link = -1
    if hottest >= 0 and grown.busy_ns[links + hottest] != 0.0:
        row.link, row.link_bytes = hottest, grown.resource_bytes[links + hottest]
        row.link_busy_ns = grown.busy_ns[links + hottest]
    row.die, row.expert = _fullest(load), _fullest(wanted)
    row.die_tokens, row.expert_tokens = load[row.die], wanted[row.expert]
    for die in range(len(load)):
        row.tokens += load[die]


@inner
def _copy(values, to):
    for at in range(len(values)):
        to[at] = values[at]


@inner
def _fullest(values):
    """Index of the largest value, the first of equal ones; -1 without values."""
    fullest = -1
    for at in range(len(values)):
        if fullest < 0 or values[at] > values[fullest]:
            fullest = at
    return fullest


# ---- loop


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run.

    ``step_ns``: float64[step, layer], decisions included; ``load``: int64[step, layer, die] tokens assigned to each
    die; ``decision``: time of decisions by state; ``heatmap_dropped``: token transitions that the heatmap dropped;
    ``decode_residual_ns``: how much less and more the GEMMs on the critical path of decode would take at the 5 % and
    95 % residuals of their calibration; ``gemm_extrapolated``: share of GEMM time at sizes outside it. None without
    one. ``gemm_law``: the measured kernels behind GEMMs. ``migrations``: what rebalancing moved. Times, counts
    and loads are those of the steps that count (``workload.warmup_steps``); elsewhere ``step_ns`` and ``load`` are 0.
    ``balancing``: what moving weights between steps cost. ``ceilings``: float64[step, layer, 3], the fields of
    `Ceilings` for every step; 0 where nothing ran. ``counts``: what every step counted. ``counted``: columns
    of a user's own execution. ``power``: of a system with limits, its ``archsim.runs.energy.PowerState``.
    """

    machine: Machine
    fabric: Fabric
    fit: Fit
    memory: Memory
    tally: Tally
    step_ns: np.ndarray
    load: np.ndarray
    prefill_ns: float
    decode_ns: float
    decision: DecisionTotals
    heatmap_dropped: int
    decode_residual_ns: tuple[float, float] | None
    gemm_extrapolated: float | None
    migrations: tuple[Migration, ...]
    balancing: BalancingTotals
    ceilings: np.ndarray
    counts: StepCounts
    gemm_law: str = ""
    power: Any = None
    counted: Mapping[str, float] = field(default_factory=dict)


class Migration(NamedTuple):
    """A new placement from iteration ``step`` on. ``moves``: archsim.policies.placement.WEIGHT_MOVE[n]."""

    step: int
    moves: np.ndarray


class StepResult(NamedTuple):
    """A step that has run: its position in the run, its demand and its times."""

    layer: int
    demand: StepDemand
    times: StepTimes

    @property
    def step(self) -> int:
        """Iteration."""
        return self.demand.step


class LimitedHeatmap:
    """``heatmap_update: limited``: the heatmap behind its port, which can update only for as long as the step takes.
    It is asked before each step, and updated after it.
    """

    def __init__(self, engine: EventEngine, predictor: Predictor, routing: Iterable[StepTokens]):
        model, fsm = engine.scenario.model, engine.scenario.system.decision.fsm
        self._map = PortedHeatmap(
            iter(routing),
            engine.scenario.batch,
            engine.layers,
            model.experts,
            model.top_k,
            predictor,
            max(1, fsm.heatmap_port_bits // COUNTER_BITS),
            engine.count_pairs,
        )
        cycles = cycles_per_transition(model.experts, model.top_k, fsm.heatmap_port_bits)
        self._ns_per_transition = cycles * NS_PER_S / fsm.clock_hz
        halving = cycles_per_halving(model.experts, fsm.heatmap_port_bits)
        self._ns_per_halving = halving * NS_PER_S / fsm.clock_hz
        self._owed_ns = 0.0  # halvings of the step before take the port first
        self.dropped = 0

    def begin(self, step: int) -> None:
        """An iteration begins."""
        self._map.begin(step)

    def predicted(self, layer: int) -> Predicted:
        """The prediction for a step."""
        begin = time.perf_counter_ns()
        rows = self._map.hot(layer)
        return Predicted(rows, time.perf_counter_ns() - begin)

    def update(self, layer: int, step_ns: float) -> None:
        """A step has taken ``step_ns``, decisions excluded."""
        free_ns, before = max(0.0, step_ns - self._owed_ns), self._map.halvings
        self._owed_ns = max(0.0, self._owed_ns - step_ns)
        self.dropped += self._map.take_in(layer, int(free_ns / self._ns_per_transition))
        self._owed_ns += (self._map.halvings - before) * self._ns_per_halving


class Balancer:
    """Calls the policy's rebalancing between iterations, and has the engine migrate."""

    def __init__(self, engine: EventEngine, rebalancing: Rebalancing):
        self._engine, self._rebalancing = engine, rebalancing
        self._steps: list[list[StepResult]] = []
        self._since = 0  # iterations since the last call
        self.migrations: list[Migration] = []

    def add(self, result: StepResult) -> None:
        """A step has run."""
        if not self._steps or self._steps[-1][0].step != result.step:
            self._steps.append([])
            self._since += 1
            if self._rebalancing.window_steps is not None:
                del self._steps[: -self._rebalancing.window_steps]
        self._steps[-1].append(result)

    def next_step(self, step: int, now_ns: float) -> float:
        """Iteration ``step`` is about to begin; returns the time from which it may."""
        engine, settled = self._engine, self._engine.settle()
        if not settled or self._since < self._rebalancing.due(len(self.migrations)):
            return now_ns
        old, found = engine.placement, self._rebalancing.rule(self._history(), engine.placement)
        new, effort = found if isinstance(found, Rebalanced) else Rebalanced(found)
        new = replace(new, buffers=old.buffers)
        moves = moves_between(old, new, engine.expert_bytes, engine.fabric.hops)
        self._since = 0
        if self._rebalancing.window_steps is None:
            self._steps.clear()
        self.migrations.append(Migration(step, moves))
        return engine.migrate(new, moves, now_ns, effort)

    def _history(self) -> History:
        engine, steps = self._engine, len(self._steps)
        shape = steps, engine.layers
        history = History(
            engine.rows.copy(),
            np.zeros((*shape, engine.scenario.model.experts), np.int32),
            np.zeros((*shape, engine.machine.dies), np.int64),
            np.zeros(shape),
            engine.costs,
            engine.array_speeds(DECODE) if engine.scenario.policy.needs_speeds("rebalancing") else None,
        )
        for step, results in enumerate(self._steps):
            for result in results:
                at = step, result.layer
                history.tokens[at] = result.demand.tokens
                history.load[at] = load_of(result.times.plan, engine.machine.dies)
                history.step_ns[at] = result.times.step_ns
        return history


@dataclass
class Elapsed:
    """Time of a run so far, in ns: of one machine, or float64[machine] each."""

    _end_ns: Any = 0.0
    _exposed_ns: Any = 0.0
    _prefill_end_ns: Any = 0.0
    _prefill_exposed_ns: Any = 0.0

    def add(self, end_ns: Any, exposed_ns: Any, prefill: bool) -> None:
        """A step of the prefill, or of decode, ended ``end_ns`` after the run began; its decision added to it."""
        self._end_ns, self._exposed_ns = end_ns, self._exposed_ns + exposed_ns
        if prefill:
            self._prefill_end_ns, self._prefill_exposed_ns = self._end_ns, self._exposed_ns

    @property
    def prefill_ns(self) -> Any:
        return self._prefill_end_ns + self._prefill_exposed_ns

    @property
    def decode_ns(self) -> Any:
        return self._end_ns - self._prefill_end_ns + (self._exposed_ns - self._prefill_exposed_ns)


def load_of(plan: Plan, dies: int) -> np.ndarray:
    """Tokens assigned to each die, int64[die]."""
    load = np.zeros(dies, np.int64)
    _add_up(plan.die, plan.tokens, load)
    return load


@kernel
def _add_up(die, tokens, load):
    for at in range(len(die)):
        load[die[at]] += tokens[at]


class Replay:
    """A run of an engine through ``demands``: (MoE layer, ``StepDemand``) in the order of time, steps without tokens
    left out.

    With ``workload.warmup_steps``, the prefill and that many decode iterations run without being counted. ``routing``:
    the batch's ``StepTokens`` in order of iteration; required if a policy predicts and heatmap updates are limited
    (ValueError if missing).
    """

    def __init__(
        self,
        engine: EventEngine,
        demands: Iterable[tuple[int, StepDemand]],
        routing: Iterable[StepTokens] | None = None,
    ):
        self.engine, self.demands = engine, demands
        policy = engine.policy
        # a policy that predicts nothing sees no predictions, even if the demand, shared with another one, has them
        self._predicts = policy.predictor is not None
        self._heatmap: LimitedHeatmap | None = None
        if policy.predictor is not None and engine.scenario.assumptions.heatmap_update == "limited":
            if routing is None:
                raise ValueError("heatmap_update: limited needs the routing of the batch")
            self._heatmap = LimitedHeatmap(engine, policy.predictor, routing)
        self._balancer = Balancer(engine, policy.rebalancing) if policy.rebalancing is not None else None
        self._warmup_left = engine.scenario.workload.warmup_steps
        self._counts, self._begin_ns = not self._warmup_left, 0.0
        self._of_steps = StepCounts(engine.machine, engine.tally)

    def steps(self) -> Iterator[StepResult]:
        """Run every step, in order."""
        now_ns, iteration = 0.0, None
        for layer, demand in self.demands:
            if demand.step != iteration:
                iteration = demand.step
                if self._balancer is not None:
                    now_ns = self._balancer.next_step(iteration, now_ns)
                if self._heatmap is not None:
                    self._heatmap.begin(iteration)
                if not self._counts and not demand.prefill_tokens.any():
                    self._warm_up(now_ns)
            if self._heatmap is not None:
                demand = demand._replace(predicted=self._heatmap.predicted(layer))
            elif not self._predicts and demand.predicted is not None:
                demand = demand._replace(predicted=None)
            result = StepResult(layer, demand, self.engine.step(layer, demand, now_ns))
            now_ns = result.times.end_ns
            if self._heatmap is not None:
                self._heatmap.update(layer, result.times.end_ns - result.times.begin_ns)
            if self._balancer is not None:
                self._balancer.add(result)
            yield result

    def _warm_up(self, now_ns: float) -> None:
        """A decode iteration begins: it belongs to the warm-up, or counting begins with it."""
        if self._warmup_left:
            self._warmup_left -= 1
            return
        self._count_anew()
        self._counts, self._begin_ns = True, now_ns

    def _count_anew(self) -> None:
        self.engine.count_anew()
        if self._heatmap is not None:
            self._heatmap.dropped = 0
        self._of_steps.forget()

    def run(self) -> RunOutcome:
        """Run all steps; raises ArchsimError if the user's policy returns a plan that does not fit the demand."""
        engine, tally = self.engine, self.engine.tally
        took: list[tuple[int, int, float]] = []
        loads: list[np.ndarray] = []
        least: list[Ceilings] = []
        elapsed = Elapsed()
        prefill_residual_ns = np.zeros(2)
        for result in self.steps():
            if not self._counts:
                continue
            took.append((result.step, result.layer, result.times.step_ns))
            loads.append(load_of(result.times.plan, engine.machine.dies))
            prefill, times = bool(result.demand.prefill_tokens.any()), result.times
            exposed, loaded = times.exposed_ns, (loads[-1], result.demand.tokens, times.plan)
            elapsed.add(times.end_ns - self._begin_ns, exposed, prefill)
            end_ns = elapsed.prefill_ns + elapsed.decode_ns
            self._of_steps.add(result.step, result.layer, prefill, times.step_ns, exposed, end_ns, *loaded)
            least.append(ceilings(result.demand.tokens, result.times.holders, result.times.slots))
            if prefill:
                prefill_residual_ns = tally.residual_ns.copy()
        if not self._counts:  # the run ended before its warm-up did
            self._count_anew()
        steps = max((step for step, *_ in took), default=-1) + 1
        step_ns, load = (
            np.zeros((steps, engine.layers)),
            np.zeros((steps, engine.layers, engine.machine.dies), np.int64),
        )
        bounds = np.zeros((steps, engine.layers, len(Ceilings._fields)))
        for (step, layer, ns), tokens, each in zip(took, loads, least, strict=True):
            step_ns[step, layer], load[step, layer], bounds[step, layer] = ns, tokens, each
        gemm, residual_ns = engine.execution.gemm_time(), tally.residual_ns - prefill_residual_ns
        return RunOutcome(
            engine.machine,
            engine.fabric,
            engine.fit,
            engine.memory,
            tally,
            step_ns,
            load,
            prefill_ns=elapsed.prefill_ns,
            decode_ns=elapsed.decode_ns,
            decision=engine.decision.totals,
            heatmap_dropped=0 if self._heatmap is None else self._heatmap.dropped,
            decode_residual_ns=(float(residual_ns[0]), float(residual_ns[1])) if gemm.calibrated_ns else None,
            gemm_extrapolated=gemm.extrapolated_ns / gemm.calibrated_ns if gemm.calibrated_ns else None,
            migrations=() if self._balancer is None else tuple(self._balancer.migrations),
            balancing=engine.balancing.totals,
            ceilings=bounds,
            counts=self._of_steps,
            gemm_law=gemm.law,
            counted=getattr(engine.execution, "counted", dict)(),
        )

    def trace_step(self, step: int, layer: int) -> dict[str, np.ndarray]:
        """Run up to a step and return its log (``archsim.engine.event.explained``). ``layer`` counts the layers that
        run.

        Raises ArchsimError if the step has no demand, or the execution no log.
        """
        execution = self.engine.execution
        if not hasattr(execution, "log"):
            raise ArchsimError(
                f"execution {type(execution).__name__} has no method 'log', which timelines need "
                "(archsim.engine.execution.Execution). Add it, or take execution: weight_streaming"
            )
        for result in self.steps():
            if (result.step, result.layer) == (step, layer):
                return execution.log(result.times.begin_ns)
        raise ArchsimError(f"step {step}, MoE layer {layer} of the trace: nothing is routed there")

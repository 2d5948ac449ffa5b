"""The expert layers of one engine while it serves: their time by the engine's execution, and rebalancing.

A group of ranks shares the experts. Every ``routing.every`` iterations (and after a sixteenth of those so far, if that
is more), and with each new placement, its tokens are drawn anew from the traffic, and the engine runs the sampled
layers for numbers of tokens an octave apart, prompts and decodes apart, under the policy and the placement of that
time. Between them times are interpolated in logarithms. An iteration sums all MoE layers, so that chance in single
layers averages out; the mean of the sampled layers stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from archsim.base.causes import Cause
from archsim.engine import executed_pairs, loop
from archsim.engine.engine import EventEngine
from archsim.policies.craft import AUTO_REPLICAS
from archsim.policies.placement import Placement, moves_between
from archsim.policies.rebalancing import History, Rebalanced
from archsim.policies.routing import Pass
from archsim.serving.records import EXPERTS
from archsim.serving.requests import TokenPool
from archsim.specs import policies, serving_files
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import StepDemand, TokenRouting

Say = Callable[[str], None]
"""Receives what a long drawing of experts does."""
DECODES, PROMPTS = 0, 1
SELDOM = 16  # tokens are drawn anew after this part of the iterations so far, if that is more than ``every``
FEWEST_PROMPT_TOKENS = 16  # below, prompts are taken for decodes
MOST_RECORDED = 8192  # tokens that are counted for a rebalancing, scaled to those served
MOST_ROUTED = 1 << 14  # tokens whose single routing an engine is given, as in sweeps
LEAST_NS = 1e-3
AT_START = 1  # first_steps of a rule that is called before requests are served


class Gathered(NamedTuple):
    """float64[tokens of a rank] ns of all layers."""

    dispatch: np.ndarray
    combine: np.ndarray

    def at(self, tokens: int) -> tuple[float, float]:
        """(dispatch, combine); beyond the end those of the end."""
        at = min(tokens, len(self.dispatch) - 1)
        return float(self.dispatch[at]), float(self.combine[at])


class Parts(NamedTuple):
    """What a group adds to the time of its layers. ``moved``: in place of the engine's dispatch and combine; None:
    these count. ``inside``: these count as experts, beside ``moved``, which leads to them. ``rest_ns``:
    float64[tokens of a rank], of a layer beside experts, during which weights may move. ``factor``: of kernels, fitted.
    """

    moved: Gathered | None
    rest_ns: np.ndarray
    factor: float
    ranks: int  # that have tokens of their own
    most_decodes: int
    most_tokens: int
    inside: bool = False


class MigrationCost(NamedTuple):
    """A migration. ``stall_ns``: how long the engine waits; ``later_ns``: after which the placement holds."""

    time_ns: float
    instance: int
    n_bytes: int
    stall_ns: float
    later_ns: float


@dataclass
class _Pending:
    placement: Placement
    at_ns: float


class ExpertGroup:
    """The experts of one engine. ``table``: EXPERTS[phase, point], for 1, 2, 4, ... tokens of all ranks."""

    def __init__(
        self, scenario: Scenario, pool: TokenPool, parts: Parts, every: int, instance: int, say: Say = lambda text: None
    ):
        serving_files.refuse_unserved(scenario.policy)
        self._say = say
        self._engine = EventEngine(scenario, pool.layer_ids.tolist())
        self._pool, self._parts, self._every, self._instance = pool, parts, every, instance
        self._rule = self._engine.policy.rebalancing
        self._layers = len(scenario.model.moe_layer_ids)
        self._records: list[tuple[float, np.ndarray]] = []
        self._turn, self._calls, self._since, self.asked_at = 101 * instance, 0, 0, 0
        self._pending: _Pending | None = None
        points = int(np.ceil(np.log2(max(parts.most_tokens, 2)))) + 1
        self.table = np.zeros((2, points), EXPERTS)
        self.moves: list[MigrationCost] = []
        self._busy = 0.0
        if self._rule is not None and self._rule.first_steps == AT_START:
            self._place_first()
        self._fill()

    def copy(self, say: Say) -> ExpertGroup:
        """One that goes on from where this one is."""
        shared = {id(each): each for each in (self._pool, self._parts)}
        found = deepcopy(self, shared)
        found._say = say
        return found

    @property
    def next_pause(self) -> int:
        """Iterations until the tokens are drawn anew, or experts rebalanced."""
        draws = max(self._every, self.asked_at // SELDOM)
        if self._rule is None or self._pending is not None:
            return draws
        return int(max(1, min(draws, self._rule.due(self._calls) - self._since)))

    @property
    def switch_ns(self) -> float:
        """When a placement that is on its way holds."""
        return np.inf if self._pending is None else self._pending.at_ns

    def pause(self, now_ns: float, iterations: int, tokens: Sequence[float]) -> float:
        """ns that the next iteration waits, after so many ``iterations`` since the start and (decoded, prompt)
        ``tokens`` since the last call.
        """
        ran, self.asked_at = iterations - self.asked_at, iterations
        self._since += ran
        if ran and self._rule is not None:
            self._record(ran, tokens, self._rule.window_steps)
        stall_ns = 0.0
        if self._pending is not None and now_ns >= self._pending.at_ns:
            self._switch(self._pending.placement)
            self._pending = None
        elif self._rule is not None and self._pending is None and self._since >= self._rule.due(self._calls):
            stall_ns = self._rebalance(now_ns)
        if self._pending is None:  # else the placement is as it was, and changes soon
            self._fill()
        return stall_ns

    def settle(self) -> None:
        """Rebalance once by the loads of drawn tokens, at no cost; after that the placement stays."""
        if self._rule is None:
            return
        if not self._calls:
            self._place_first()
            self._fill()
        self._rule = None

    def _place_first(self) -> None:
        """Place by the loads of sampled tokens, at no cost, before any request (SGLang, --init-expert-location)."""
        assert self._rule is not None
        self._record(1, (MOST_RECORDED, MOST_RECORDED), self._rule.window_steps)
        self._rebalance(0.0)
        if self._pending is not None:
            self._switch(self._pending.placement)
        self._pending = None
        self.moves.clear()

    def _record(self, ran: float, tokens: Sequence[float], window: int | None) -> None:
        """Loads of the iterations since the last call: as many tokens as were served, from where they were drawn."""
        counts = np.zeros((len(self._pool.layer_ids), self._engine.scenario.model.experts))
        for phase, count in enumerate(tokens):
            if count:
                drawn = self._pool.draw(int(min(max(count, 1), MOST_RECORDED)), phase == PROMPTS, self._turn - 1)
                for layer in range(drawn.shape[1]):
                    chosen = np.bincount(drawn[:, layer].ravel(), minlength=counts.shape[1])
                    counts[layer] += chosen * (count / len(drawn))
        self._records.append((ran, np.rint(counts).astype(np.int64)))
        while len(self._records) > 1 and window is not None and sum(ran for ran, _ in self._records[1:]) >= window:
            del self._records[0]

    def _rebalance(self, now_ns: float) -> float:
        engine, rule = self._engine, self._rule
        assert rule is not None
        tokens = np.stack([counts for _, counts in self._records])
        shape = tokens.shape[:2]
        load = np.zeros((*shape, engine.machine.dies), np.int64)
        history = History(engine.rows.copy(), tokens, load, np.zeros(shape), engine.costs, call=self._calls)
        found = rule.rule(history, engine.placement)
        new, effort = found if isinstance(found, Rebalanced) else Rebalanced(found)
        new = replace(new, buffers=engine.placement.buffers)
        moves = moves_between(engine.placement, new, engine.expert_bytes, engine.fabric.hops)
        self._calls, self._since = self._calls + 1, 0
        stall_ns = engine.migrate(new, moves, 0.0, effort)
        scale = self._layers / len(engine.rows)  # of the layers that are not simulated
        n_bytes = int(int(moves["bytes"].sum()) * scale)
        later_ns = 0.0
        if (pending := engine.balancing.pending) is not None:
            engine.balancing.pending = None
            later_ns = scale * (pending.decision_ns + pending.transfer.ns / max(1.0 - self._busy, 0.05))
            self._pending = _Pending(new, now_ns + later_ns)
        stall_ns *= scale
        self.moves.append(MigrationCost(now_ns, self._instance, n_bytes, stall_ns, later_ns))
        return stall_ns

    def _switch(self, placement: Placement) -> None:
        """Weights have arrived: they hold without a further move."""
        self._engine.placement = placement

    def _fill(self) -> None:
        parts, table = self._parts, self.table
        for phase in (DECODES, PROMPTS):
            for at in range(table.shape[1]):
                tokens = 1 << at
                if phase == DECODES and tokens >= 2 * parts.most_decodes:
                    continue
                if phase == PROMPTS and tokens < FEWEST_PROMPT_TOKENS:
                    table[phase, at] = table[DECODES, at]
                    continue
                self._say(f"experts of {tokens:,} tokens, engine {self._instance}")
                table[phase, at] = self._layers_of(tokens, phase == PROMPTS)
        for at in range(table.shape[1]):  # more decodes than there can be are looked up for mixed batches alone
            if (1 << at) >= 2 * parts.most_decodes:
                table[DECODES, at] = table[PROMPTS, at]
        self._turn += 1

    def _layers_of(self, tokens: int, prompt: bool) -> tuple[float, ...]:
        """A record of EXPERTS, of so many tokens: the mean of the sampled layers."""
        engine, parts, drawn = self._engine, self._parts, self._pool.draw(tokens, prompt, self._turn)
        each = -(-tokens // parts.ranks)
        rest_ns = parts.rest_ns[min(each, len(parts.rest_ns) - 1)]
        balance, before, step_ns = 0.0, _spent(engine), 0.0
        for layer in range(engine.layers):
            times = engine.step(layer, self._demand(drawn[:, layer], layer, prompt), 0.0, rest_ns)
            load = loop.load_of(times.plan, engine.machine.dies)
            balance += load.mean() / max(load.max(), 1)
            step_ns += times.step_ns
        spent = Spent(*(now - then for now, then in zip(_spent(engine), before, strict=True)))
        more, away = (parts.factor - 1) * spent.experts, spent.dispatch + spent.combine
        total = step_ns + more - (away if parts.moved is not None and not parts.inside else 0.0)
        self._busy = away / max(total + engine.layers * rest_ns, 1.0) if parts.moved is None else 0.0
        scale = self._layers / engine.layers
        dispatch, combine = scale * spent.dispatch, scale * spent.combine
        ns = scale * total
        if parts.moved is not None:
            dispatch, combine = parts.moved.at(each)
            dispatch = max(0.0, dispatch - scale * spent.first)
            ns += dispatch + combine
        ns = max(ns, LEAST_NS)
        taken = (scale * sms / ns if parts.moved is None else 0.0 for sms in (spent.dispatch_sms, spent.combine_sms))
        multiply = scale * spent.multiply / ns
        return float(np.log(ns)), balance / engine.layers, dispatch / ns, combine / ns, *taken, multiply

    def _demand(self, chosen: np.ndarray, layer: int, prompt: bool) -> StepDemand:
        """Tokens live on dies in equal parts."""
        model, dies = self._engine.scenario.model, self._engine.machine.dies
        die = (np.arange(len(chosen)) * dies // len(chosen)).astype(np.int32)
        executed = chosen
        if (routing := self._engine.policy.routing) is not None:
            executed = routing.rule(Pass(chosen, model.experts, (self._turn, 0, layer))).experts
        executed, origins = np.ascontiguousarray(executed), np.zeros((dies, model.experts), np.int32)
        executed_pairs.count_pairs(executed, die, origins)
        tokens = origins.sum(axis=0, dtype=np.int32)
        first_seen = np.full(model.experts, -1, np.int16)
        active = np.flatnonzero(tokens)
        first_seen[: len(active)] = active
        whole = routing is None and len(chosen) <= MOST_ROUTED
        return StepDemand(
            self._turn,
            tokens,
            tokens if prompt else np.zeros_like(tokens),
            first_seen,
            model.top_k,
            origins,
            routing=TokenRouting(executed, die) if whole else None,
            residents=None if routing is None else np.bincount(die, minlength=dies).astype(np.int64),
        )


class Spent(NamedTuple):
    """ns of an engine since its start: parts of its layers, transfers that take all SMs, and products at peak."""

    dispatch: float
    shared: float
    experts: float
    combine: float
    dispatch_sms: float
    combine_sms: float
    multiply: float
    first: float  # kernels beside which a dispatch hides


def _spent(engine: EventEngine) -> Spent:
    tally, first_ns = engine.tally, getattr(engine.execution, "first_ns", 0.0)
    return Spent(*map(float, (*tally.part_ns, *tally.sms_ns, tally.bound_ns[Cause.COMPUTE], first_ns)))


class Fixed(ExpertGroup):
    """Experts as a group last had them: they are drawn no more."""

    next_pause = 1 << 62

    def __init__(self, table: np.ndarray):
        self.table, self.moves = table, []


def slots_of(policy: policies.PolicySpec, placement: Placement, layers: int) -> int:
    """Expert slots of the fullest rank over all layers, with those that a rebalancing adds, which KV may not take."""
    rule = policy.rebalancing
    replicas = rule.params.get("replicas", 0)
    if isinstance(replicas, str):  # CRAFT's own choice, which is known only while serving: at most so many
        replicas = max(AUTO_REPLICAS)
    later = {"craft": replicas, "dup": layers * rule.params.get("slots", 0)}
    return int(placement.slots.max()) + int(later.get(rule.name, 0))

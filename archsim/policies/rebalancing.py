"""Rebalancing: a new placement every few steps, from the loads under the previous one.

A rule is a pure function ``(history: History, placement: Placement, **parameters)`` that returns a `Placement`, or a
`Rebalanced`, which also says what it cost; those of papers are below, others are a
user's own ``package.module:function``. The loop that drives an engine calls it (``archsim.engine.loop``) and hands
the difference between both placements to the engine as weight moves.
"""

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.policies.allocation import NO_EFFORT, SLICES, Costs, Effort
from archsim.policies.placement import Placement

# ---- rules


class History(NamedTuple):
    """Loads since the last call of the rule; steps are iterations, layers those that the run simulates."""

    rows: np.ndarray  # int64[layer]: index of each layer in the placement
    tokens: np.ndarray  # int32[step, layer, expert]
    load: np.ndarray  # int64[step, layer, die]: tokens assigned to each die
    step_ns: np.ndarray  # float64[step, layer], decisions included
    costs: Costs | None = None  # what a rule may assume about the machine
    speed: np.ndarray | None = None  # float64[die] of arrays, of a rule that ``needs: speeds``


class Rebalanced(NamedTuple):
    """A placement, and the work of finding it."""

    placement: Placement
    effort: Effort = NO_EFFORT


class Rebalancing(NamedTuple):
    """A rule, and the iterations after which it is called: ``first_steps`` (None: ``every_steps``) after the start,
    then every ``every_steps`` (0: never again); it sees the latest ``window_steps`` (None: all since the last call).
    """

    every_steps: int
    rule: Callable[[History, Placement], Placement | Rebalanced]
    first_steps: int | None = None
    window_steps: int | None = None

    def due(self, calls: int) -> float:
        """Iterations until the next call, after ``calls`` calls."""
        if not calls and self.first_steps is not None:
            return self.first_steps
        return self.every_steps or float("inf")


# ---- published
# Rebalancing of published balancers: each calls the function that ``archsim.balancers`` exports and says what it did.
#
# All see only loads of iterations that have run. The layers that a run does not simulate stay as they are. Work is
# counted in operations (a comparison, an addition), from the complexities in each function.

COUNT_BYTES = 4  # of a load of an expert in the statistics that dies add up


def eplb(history: History, placement: Placement, groups: int = 1, nodes: int = 1) -> Rebalanced:
    """EPLB with the slots that the placement gives: in equal numbers a die by `eplb`, else by the same greedy steps.

    Operations a layer: every extra slot searches all experts, every slot all dies, and both sort.
    """
    from archsim.policies.craft import greedy_placement
    from archsim.policies.eplb import eplb as place_by_eplb

    load = history.tokens.sum(axis=0, dtype=np.int64).astype(float)
    dies, experts = placement.dies, placement.experts
    held = []
    for at, row in enumerate(history.rows):
        slots = placement.layer_slots[row]
        if (slots == slots[0]).all():
            placed = place_by_eplb(load[at][None], int(slots.sum()), groups, nodes, dies, speed=history.speed)
            held.append(np.split(placed.physical_to_logical[0], dies))
        else:
            held.append(greedy_placement(load[at], dies, int(slots.sum()) - experts, slots, history.speed).experts)
    total = placement.layer_slots[history.rows].sum(axis=1)
    looks = dies if history.speed is None else 2 * dies  # with a speed, a multiplication for every die
    operations = sum((each - experts) * experts + each * looks + _sort(int(each)) for each in total.tolist())
    return Rebalanced(
        _with_layers(placement, history.rows, held, placement.layer_slots), _effort(operations, len(load), experts)
    )


def craft(history: History, placement: Placement, replicas: int = 8, nodes: int = 1) -> Rebalanced:
    """CRAFT: ``replicas`` a die over all of the model's layers; a run of some layers gets its share.

    Every iteration of the window is a batch. Replicas are at most as many as gain anything. Operations: K + 1
    placements a layer and a replay of every batch with each, then the knapsack.
    """
    from archsim.policies.craft import craft_assign, craft_budget, craft_gain, greedy_placement

    loads = history.tokens.astype(float)
    batches, layers, experts = loads.shape
    dies = placement.dies
    gain = craft_gain(loads, dies, nodes, speed=history.speed)
    budget = replicas * dies * layers // placement.layers
    given = craft_budget(gain, budget)
    room = craft_assign(given + experts, dies, nodes)
    total = loads.sum(axis=0)
    of_layer = (greedy_placement(total[at], dies, int(given[at]), room[at], history.speed) for at in range(layers))
    held = [each.experts for each in of_layer]
    every = placement.layer_slots.copy()
    every[history.rows] = room
    tried = len(gain) + 1
    looks = dies if history.speed is None else 2 * dies
    operations = layers * tried * (batches * experts + (experts + dies) * looks + _sort(experts))
    operations += layers * budget * len(gain)
    return Rebalanced(
        _with_layers(placement, history.rows, held, every), _effort(operations, layers * batches, experts)
    )


def remap(history: History, placement: Placement) -> Rebalanced:
    """Remap: experts by cost, each to the least loaded die with room."""
    from archsim.policies.remap import remap as place_by_remap

    cost, dies = _cost_of(history), placement.dies
    load = history.tokens.mean(axis=0)
    held = [place_by_remap([cost(each) for each in layer.tolist()], dies).experts for layer in load]
    operations = len(load) * (placement.experts * dies + _sort(placement.experts))
    return Rebalanced(_with_layers(placement, history.rows, held), _effort(operations, len(load), placement.experts))


def dup(history: History, placement: Placement, slots: int = 1) -> Rebalanced:
    """Dup: contiguous experts and ``slots`` replicas a die, each where it lowers the largest load most."""
    from archsim.policies.remap import dup as place_by_dup

    cost, dies, experts = _cost_of(history), placement.dies, placement.experts
    load = history.tokens.mean(axis=0)
    held = [place_by_dup(layer, dies, slots, cost).experts for layer in load]
    operations = len(load) * slots * dies * experts * dies
    return Rebalanced(_with_layers(placement, history.rows, held), _effort(operations, len(load), experts))


def _cost_of(history: History):
    """Roofline time of one expert's tokens in ns: reading its weights, or computing; 0 without tokens."""
    costs = history.costs
    if costs is None:
        return float
    read_ns = SLICES * costs.slice_bytes / costs.hbm_bytes_per_ns
    token_ns = costs.flop_per_token / costs.flop_per_ns
    return lambda tokens: max(read_ns, tokens * token_ns) if tokens else 0.0


def _with_layers(
    placement: Placement, rows: np.ndarray, held: Sequence[Sequence[np.ndarray]], room: np.ndarray | None = None
) -> Placement:
    """The placement with other holders in some layers: ``held[row][die]`` are experts, perhaps one twice."""
    holds = placement.holds.copy()
    holds[rows] = False
    for row, by_die in zip(rows.tolist(), held, strict=True):
        for die, experts in enumerate(by_die):
            holds[row, experts, die] = True
    return Placement.of_holds(holds, placement.home, room)


def _sort(n: int) -> int:
    return n * ceil(log2(n)) if n > 1 else 0


def _effort(operations: int, rows: int, experts: int) -> Effort:
    return NO_EFFORT._replace(
        global_demand=True, operations=int(operations), statistics_bytes=rows * experts * COUNT_BYTES
    )


# ---- replication
# Replication for the next layer: further holders of a layer for one step, fetched while the step before runs.
#
# A rule is a function ``(layer: LayerView, **parameters) -> Replicas``; ``libra``, ``lina``, or a user's own
# ``package.module:function``, which returns bool[expert, die]. It sees predictions, not the demand of the layer: Lina's
# are counted from the paths of tokens (``archsim.policies.lina``). Libra's look-ahead asks the next layer's router with
# this layer's hidden states, which no trace has: `look_ahead` draws predictions of a stated accuracy instead.


class LayerView(NamedTuple):
    """What is known of a layer before it runs."""

    origins: np.ndarray  # int32[die, expert] tokens that it will get, for accuracy models alone; [0, 0]: not known
    expected: np.ndarray  # float32[expert] tokens that a predictor expects; all 0 if it expects nothing
    home: np.ndarray  # int32[expert]
    holders: np.ndarray  # bool[expert, die] by placement
    layer: int  # MoE layer of the run
    step: int  # iteration


class Replicas(NamedTuple):
    """``holds``: bool[expert, die], replicas to fetch, beside the holders."""

    holds: np.ndarray
    effort: Effort = NO_EFFORT
    # Time of the layer that waits for the decision itself, beside what hides behind the layer before.
    in_sight_ns: float = 0.0


class Replication(NamedTuple):
    """A rule; a die has two sets of ``slots``, one for the layer that runs and one for the next."""

    slots: int
    rule: Callable[[LayerView], Replicas]


def look_ahead(origins: np.ndarray, accuracy: float, generator: np.random.Generator) -> np.ndarray:
    """Predicted tokens, int64[die, expert], of a predictor that is right for a share of the pairs of token and expert.

    Every pair is predicted rightly with probability ``accuracy``; the others fall on any expert alike. Libra measures
    86.5 to 91.7 % for Qwen3MoE and 72.7 to 79.6 % for GLM-4.5 (Table 1).
    """
    actual = origins.astype(np.int64)
    right = generator.binomial(actual, accuracy)
    experts = origins.shape[1]
    wrong = actual.sum(axis=1) - right.sum(axis=1)
    return right + generator.multinomial(wrong, np.full(experts, 1 / experts))


def table_of_paths(load: np.ndarray, accuracy: float, generator: np.random.Generator) -> np.ndarray:
    """Tokens of every expert that Lina's table predicts, float64[expert], where it is right for a share of the pairs.

    ``load``: tokens that they will get. The table is built of other text (Libra, 5.2): wrong predictions are of what is
    popular there, as skewed as here, but other experts; the same ones in every step. Predictions that are wrong by
    chance would keep the order of the experts, however few are right.
    """
    return accuracy * load + (1 - accuracy) * generator.permutation(load)


def libra(
    layer: LayerView,
    slots: int = 8,
    local_share: float = 0.5,
    accuracy: float = 0.87,
    rule: str = "literal",
    seed: int = 0,
    host_ns: float = 0.0,
    local_pair_ns: float = 0.0,
) -> Replicas:
    """Libra's Algorithm 1 on what the look-ahead predicts: ``slots`` experts a die, some for its own tokens.

    ``host_ns``: of broadcasting, metadata and sharding for a layer, which run beside a die's local experts. The layer
    waits for what these do not hide, at ``local_pair_ns`` for every pair of token and expert that a die holds itself.
    """
    from archsim.policies.libra import libra_plan

    predicted = look_ahead(layer.origins, accuracy, np.random.default_rng([seed, layer.step, layer.layer]))
    holds = libra_plan(predicted, layer.home, slots, int(slots * local_share), rule).holds.T > 0
    dies, experts = predicted.shape
    operations = dies * experts * ceil(log2(max(2, experts))) + slots * dies * (dies + experts)
    hidden_ns = local_pair_ns * float((layer.origins * (holds | layer.holders).T).sum(axis=1).min(initial=2**62))
    return Replicas(holds & ~layer.holders, _replication_effort(operations, experts), max(0.0, host_ns - hidden_ns))


def lina(layer: LayerView, slots: int = 8, accuracy: float = 0.0, seed: int = 0, pair_ns: float = 0.0) -> Replicas:
    """Popular experts as predicted from paths: the largest load per instance to the least loaded die that has room.

    ``accuracy``: of a prediction by `table_of_paths`, in place of paths; 0: by paths. ``pair_ns``: of looking up,
    sharding and planning, which the layer waits for, for every pair of token and expert of the busiest rank.
    """
    holds, (experts, dies) = layer.holders.copy(), layer.holders.shape
    load = layer.expected.astype(np.float64)
    if accuracy:
        load = table_of_paths(layer.origins.sum(axis=0), accuracy, np.random.default_rng([seed, layer.layer]))
    added = _replicate(load, holds, np.full(dies, slots, np.int64), np.zeros(dies), np.zeros(experts, np.int64))
    in_sight_ns = pair_ns * float(layer.origins.sum(axis=1).max(initial=0))
    return Replicas(holds & ~layer.holders, _replication_effort(int(added) * (experts + dies), experts), in_sight_ns)


def _replication_effort(operations: int, experts: int) -> Effort:
    return NO_EFFORT._replace(global_demand=True, operations=operations, statistics_bytes=experts * COUNT_BYTES)


@kernel
def _replicate(load, holds, free, die_load, copies):
    """Add replicas to ``holds``: bool[expert, die] until ``free``: int64[die] is used up; returns how many."""
    experts, dies = holds.shape
    for expert in range(experts):
        for die in range(dies):
            copies[expert] += holds[expert, die]
        for die in range(dies):
            if holds[expert, die]:
                die_load[die] += load[expert] / copies[expert]
    added = 0
    while True:
        best, to = -1, -1
        for expert in range(experts):
            if load[expert] > 0 and copies[expert] < dies:
                if best < 0 or load[expert] / copies[expert] > load[best] / copies[best]:
                    taker = -1
                    for die in range(dies):
                        if free[die] > 0 and not holds[expert, die]:
                            if taker < 0 or die_load[die] < die_load[taker]:
                                taker = die
                    if taker >= 0:
                        best, to = expert, taker
        if best < 0:
            return added
        before, after = load[best] / copies[best], load[best] / (copies[best] + 1)
        for die in range(dies):
            if holds[best, die]:
                die_load[die] += after - before
        holds[best, to] = True
        die_load[to] += after
        free[to] -= 1
        copies[best] += 1
        added += 1

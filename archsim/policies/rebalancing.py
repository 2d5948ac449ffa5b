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

from archsim.policies.allocation import NO_EFFORT, SLICES, Costs, Effort
from archsim.policies.placement import Placement
from archsim.policies.seen_routing import SeenRouting


class History(NamedTuple):
    """Loads since the last call of the rule; steps are iterations, layers those that the run simulates."""

    rows: np.ndarray  # int64[layer]: index of each layer in the placement
    tokens: np.ndarray  # int32[step, layer, expert]
    load: np.ndarray  # int64[step, layer, die]: tokens assigned to each die
    step_ns: np.ndarray  # float64[step, layer], decisions included
    costs: Costs | None = None  # what a rule may assume about the machine
    speed: np.ndarray | None = None  # float64[die] of arrays, of a rule that ``needs: speeds``
    # The tokens of the steps, of a rule that ``needs: routing``: pairs, transitions, origins, subjects, scores, phases
    seen: SeenRouting | None = None
    call: int = 0  # calls of the rule before this one


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
        with_layers(placement, history.rows, held, placement.layer_slots), effort_of(operations, len(load), experts)
    )


def craft(history: History, placement: Placement, replicas: int | str = 8, nodes: int = 1) -> Rebalanced:
    """CRAFT: ``replicas`` a die over all of the model's layers; a run of some layers gets its share. ``auto``, or
    ``literal``: as `craft_replicas` chooses.

    Every iteration of the window is a batch. Replicas are at most as many as gain anything. Operations: K + 1
    placements a layer and a replay of every batch with each, then the knapsack.
    """
    from archsim.policies.craft import craft_assign, craft_budget, craft_gain, craft_replicas, greedy_placement

    loads = history.tokens.astype(float)
    batches, layers, experts = loads.shape
    dies = placement.dies
    gain = craft_gain(loads, dies, nodes, speed=history.speed)
    if isinstance(replicas, str):
        replicas = craft_replicas(gain, dies, placement.layers, replicas)
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
        with_layers(placement, history.rows, held, every), effort_of(operations, layers * batches, experts)
    )


def remap(history: History, placement: Placement) -> Rebalanced:
    """Remap: experts by cost, each to the least loaded die with room."""
    from archsim.policies.remap import remap as place_by_remap

    cost, dies = _cost_of(history), placement.dies
    load = history.tokens.mean(axis=0)
    held = [place_by_remap([cost(each) for each in layer.tolist()], dies).experts for layer in load]
    operations = len(load) * (placement.experts * dies + _sort(placement.experts))
    return Rebalanced(with_layers(placement, history.rows, held), effort_of(operations, len(load), placement.experts))


def dup(history: History, placement: Placement, slots: int = 1) -> Rebalanced:
    """Dup: contiguous experts and ``slots`` replicas a die, each where it lowers the largest load most."""
    from archsim.policies.remap import dup as place_by_dup

    cost, dies, experts = _cost_of(history), placement.dies, placement.experts
    load = history.tokens.mean(axis=0)
    held = [place_by_dup(layer, dies, slots, cost).experts for layer in load]
    operations = len(load) * slots * dies * experts * dies
    return Rebalanced(with_layers(placement, history.rows, held), effort_of(operations, len(load), experts))


def _cost_of(history: History):
    """Roofline time of one expert's tokens in ns: reading its weights, or computing; 0 without tokens."""
    costs = history.costs
    if costs is None:
        return float
    read_ns = SLICES * costs.slice_bytes / costs.hbm_bytes_per_ns
    token_ns = costs.flop_per_token / costs.flop_per_ns
    return lambda tokens: max(read_ns, tokens * token_ns) if tokens else 0.0


def with_layers(
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


def effort_of(operations: int, rows: int, experts: int) -> Effort:
    return NO_EFFORT._replace(
        global_demand=True, operations=int(operations), statistics_bytes=rows * experts * COUNT_BYTES
    )

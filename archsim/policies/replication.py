"""Replication for the next layer: further holders of a layer for one step, fetched while the step before runs.

A rule is a function ``(layer: LayerView, **parameters) -> Replicas``; ``libra``, ``lina``, or a user's own
``package.module:function``, which returns bool[expert, die]. It sees predictions, not the demand of the layer: Lina's
are counted from the paths of tokens (``archsim.policies.lina``). Libra's look-ahead asks the next layer's router with
this layer's hidden states, which no trace has: `look_ahead` draws predictions of a stated accuracy instead.
"""

from collections.abc import Callable
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.policies.allocation import NO_EFFORT, Effort
from archsim.policies.rebalancing import COUNT_BYTES

BOTH = "both"  # phases in which a rule acts


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
    phase: str = BOTH  # in which it acts


def acts_in(phase: str, prompt: bool) -> bool:
    """Whether a rule of a phase (prompts, decode, both) acts in an iteration with prompts, or without."""
    return phase == BOTH or (phase == "prompts") == prompt


def look_ahead(origins: np.ndarray, accuracy: float, generator: np.random.Generator) -> np.ndarray:
    """Predicted tokens, int64[die, expert], of a predictor that is right for a share of the pairs of token and expert.

    Every pair is predicted rightly with probability ``accuracy``; the others fall on any expert with
    equal probability. Libra measures 86.5 to 91.7 % for Qwen3MoE and 72.7 to 79.6 % for GLM-4.5 (Table 1).
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


def lina(layer: LayerView, slots: int = 8, accuracy: float = 0.0, seed: int = 0, in_sight_ns: float = 0.0) -> Replicas:
    """Popular experts as predicted from paths: the largest load per instance to the least loaded die that has room.

    ``accuracy``: of a prediction by `table_of_paths`, in place of paths; 0: by paths. ``in_sight_ns``: of looking
    up, sharding and planning, which the layer waits for, however many tokens it has.
    """
    holds, (experts, dies) = layer.holders.copy(), layer.holders.shape
    load = layer.expected.astype(np.float64)
    if accuracy:
        load = table_of_paths(layer.origins.sum(axis=0), accuracy, np.random.default_rng([seed, layer.layer]))
    added = _replicate(load, holds, np.full(dies, slots, np.int64), np.zeros(dies), np.zeros(experts, np.int64))
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

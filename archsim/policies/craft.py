"""CRAFT: how many replicas each layer gets, and where they go (CRAFT, section 4 and appendix A).

Estimate what replicas gain in each layer, divide a budget of replicas among layers, spread each layer's experts over
GPUs, place instances greedily. Where the printed algorithms contradict the text, the text is followed: a baseline for
each layer, gains summed without the factor of replicas, experts and replicas assigned together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.sums import sum
from archsim.policies.load import balancedness, checked_count, checked_load, checked_name


class GreedyPlacement(NamedTuple):
    copies: np.ndarray  # int64[expert]
    experts: list[np.ndarray]  # [gpu] int64: what a GPU holds, one entry per instance, in the order of assignment


def craft_balancedness(
    loads: ArrayLike, plan: Sequence[Sequence[ArrayLike]], speed: np.ndarray | None = None
) -> np.ndarray:
    """Balancedness of every batch under a placement, float64[batch, layer] (CRAFT, Algorithm 1, the inner loops).

    ``loads[batch, layer, expert]``; ``plan[layer][gpu]`` lists experts, one entry per instance (two on one GPU count
    twice). A load divides evenly over an expert's instances. With ``speed: float64[gpu]``, of times. A layer without
    tokens in a batch counts as 1.
    ValueError: an expert without an instance, an unknown expert, or a plan with a different number of layers.
    """
    loads = checked_load(loads, ("batch", "layer", "expert"), "loads")
    batches, layers, experts = loads.shape
    if len(plan) != layers:
        raise ValueError(
            f"plan has {len(plan)} layers, loads {layers}; expected plan[layer][gpu] for each layer of loads"
        )
    result = np.ones((batches, layers))
    for layer, gpus in enumerate(plan):
        of_gpus = loads[:, layer] @ _shares(gpus, experts, layer)
        result[:, layer] = balancedness(of_gpus if speed is None else of_gpus / speed)
    return result


def _shares(gpus: Sequence[ArrayLike], experts: int, layer: int) -> np.ndarray:
    """float64[expert, gpu] the share of an expert's load that a GPU gets."""
    count = np.zeros((experts, len(gpus)))
    for gpu, held in enumerate(gpus):
        ids = np.asarray(held, dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < experts:
            raise ValueError(f"plan of layer {layer}, GPU {gpu}: expert ids outside 0..{experts - 1}")
        count[:, gpu] = np.bincount(ids, minlength=experts)
    copies = count.sum(axis=1)
    if (copies == 0).any():
        raise ValueError(
            f"plan of layer {layer}: no instance of expert {int(np.argmin(copies))}; every expert needs one"
        )
    return count / copies[:, None]


def craft_gain(
    loads: ArrayLike, gpus: int, nodes: int = 1, counts: Sequence[int] | None = None, speed: np.ndarray | None = None
) -> dict[int, np.ndarray]:
    """Mean balancedness that r replicas in a layer gain over none, {r: float64[layer]} (CRAFT, Algorithm 1).

    ``loads[batch, layer, expert]``. ``counts``: the r to try, by default 1, 2, 4, ... up to ``gpus`` (section 4.2.1).
    Each placement is chosen by the sum over batches and evaluated batch by batch. GPU capacities are those of
    `craft_assign` for experts + r in every layer: they differ by one expert where that is not a multiple of the GPUs.
    """
    loads = checked_load(loads, ("batch", "layer", "expert"), "loads")
    gpus = checked_count(gpus, "gpus")
    counts = [2**i for i in range(gpus.bit_length())] if counts is None else [checked_count(r, "count") for r in counts]
    _, layers, experts = loads.shape
    total, reached = loads.sum(axis=0), {}
    for r in (0, *counts):
        capacity = craft_assign(np.full(layers, experts + r), gpus, nodes)
        placed = (greedy_placement(total[layer], gpus, r, capacity[layer], speed) for layer in range(layers))
        reached[r] = craft_balancedness(loads, [each.experts for each in placed], speed).mean(axis=0)
    return {r: reached[r] - reached[0] for r in counts}


def craft_budget(
    gain: Mapping[int, ArrayLike], capacity: int, objective: str = "gain", budget: str = "at_most"
) -> np.ndarray:
    """Replicas of every layer, int64[layer]: 0 or one of ``gain``'s counts, with the largest total gain.

    ``gain[replicas][layer]``: gain of that many replicas in a layer. ``objective``: "gain" sums gains (CRAFT, section
    4.2.1); "replicas_times_gain" sums replicas * gain (as Algorithm 2 is printed). ``budget``: "at_most" or "exactly"
    ``capacity``. Dynamic programming, exact; ties go to the plan with fewer replicas in later layers.

    ValueError: unknown names, gains of unequal length, or a capacity that no choice uses exactly.
    """
    checked_name(objective, "objective", ("gain", "replicas_times_gain"))
    checked_name(budget, "budget", ("at_most", "exactly"))
    checked_count(capacity, "capacity", least=0)
    counts = sorted(checked_count(int(r), "replicas of gain") for r in gain)
    value = {int(r): np.asarray(gains, dtype=np.float64) for r, gains in gain.items()}
    shapes = {gains.shape for gains in value.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(
            f"gain has rows of shapes {sorted(shapes)}; expected {{replicas: [gain of layer, ...]}} of one length"
        )
    if not all(np.isfinite(gains).all() for gains in value.values()):
        raise ValueError("gain has entries that are not finite")
    if objective == "replicas_times_gain":
        value = {r: r * gains for r, gains in value.items()}
    return _best_counts(counts, value, capacity, exactly=budget == "exactly")


AUTO_REPLICAS = (1, 2, 4, 8, 16)  # replicas a GPU that are tried; CRAFT shows 1 to 16 (figure 9)
LEAST_GAIN = (
    0.05  # of the first replica's gain, that a further one must bring; a choice of archsim, 2 to 10 % give the same
)


def craft_replicas(gain: Mapping[int, ArrayLike], gpus: int, layers: int, rule: str = "auto") -> int:
    """CRAFT's own number of replicas a GPU, over all ``layers`` of the model, by what `craft_gain` has of some of them.

    ``auto``: the largest whose further replicas each gain LEAST_GAIN of what the first ones do; ``literal``: that with
    the highest gain a replica (section 4.2.1), which is the smallest where gains fall. 0 where no replica gains.
    """
    checked_name(rule, "rule", ("auto", "literal"))
    value = {int(r): np.asarray(gains, dtype=np.float64) for r, gains in gain.items()}
    some = len(next(iter(value.values())))
    chosen, reached, first, best = 0, 0.0, 0.0, 0.0
    before = 0
    for each in AUTO_REPLICAS:
        budget = each * gpus * some // layers
        if not budget or budget > some * max(value):
            continue
        given = craft_budget(value, budget)
        total = sum(float(value[int(r)][layer]) for layer, r in enumerate(given) if r)
        further = (total - reached) / (each - before)
        first = first or further
        if rule == "literal":
            if total / each > best:
                chosen, best = each, total / each
        elif further <= 0 or further < LEAST_GAIN * first:
            break
        else:
            chosen = each
        reached, before = total, each
    return chosen


def _best_counts(counts: list[int], value: dict[int, np.ndarray], capacity: int, exactly: bool) -> np.ndarray:
    """Multiple-choice knapsack over layers (CRAFT, Algorithm 2, with at-most budgets as well)."""
    layers = len(value[counts[0]])
    best = np.full(capacity + 1, -np.inf if exactly else 0.0)
    best[0] = 0.0
    choice = np.zeros((layers, capacity + 1), np.int64)
    for layer in range(layers):
        before = best
        best = before.copy()
        for r in (r for r in counts if r <= capacity):
            tried = before[: capacity + 1 - r] + value[r][layer]
            better = tried > best[r:]
            best[r:][better] = tried[better]
            choice[layer, r:][better] = r
    if not np.isfinite(best[capacity]):
        reached = np.flatnonzero(np.isfinite(best))
        raise ValueError(
            f"no choice of {counts} for {layers} layers adds up to exactly {capacity} replicas; "
            f"the closest below is {reached[-1]}"
        )
    replicas, left = np.zeros(layers, np.int64), capacity
    for layer in reversed(range(layers)):
        replicas[layer] = choice[layer, left]
        left -= replicas[layer]
    return replicas


def craft_assign(experts_per_layer: ArrayLike, gpus: int, nodes: int = 1) -> np.ndarray:
    """How many experts every GPU holds in every layer, int64[layer, gpu] (CRAFT, Algorithm 3).

    ``experts_per_layer``: experts and replicas together, so that every remainder is spread. Each layer's
    remainder goes to the GPUs with the fewest so far; among ties to every floor(i * tied / needed)-th, which
    spreads it over nodes, whose GPUs are neighbours (Figure 7; the wording of the appendix, "including endpoints",
    does not yield it). Totals of GPUs differ by at most 1 after every layer.
    """
    experts = np.asarray(experts_per_layer)
    if experts.ndim != 1 or (experts.size and experts.dtype.kind not in "iu") or (experts < 0).any():
        raise ValueError("experts_per_layer: expected whole numbers >= 0, one per layer")
    checked_count(gpus, "gpus")
    checked_count(nodes, "nodes")
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs do not divide among {nodes} nodes")
    assigned = np.repeat(experts.astype(np.int64)[:, None] // gpus, gpus, axis=1)
    extra = np.zeros(gpus, np.int64)
    for layer, needed in enumerate(experts % gpus):
        if needed:
            cutoff = np.partition(extra, needed - 1)[needed - 1]
            below, tied = np.flatnonzero(extra < cutoff), np.flatnonzero(extra == cutoff)
            rest = needed - len(below)
            chosen = np.concatenate([below, tied[np.arange(rest) * len(tied) // rest]])
            assigned[layer, chosen] += 1
            extra[chosen] += 1
    return assigned


def greedy_placement(
    load: ArrayLike, gpus: int, extra: int, capacity: ArrayLike, speed: np.ndarray | None = None
) -> GreedyPlacement:
    """Instances of a layer's experts and their GPUs (CRAFT, section 4.2.2, greedy placement).

    ``load[expert]``. ``extra`` replicas go one by one to the expert with the largest load per instance; then the most
    loaded instance goes to the least loaded GPU that holds fewer than ``capacity[gpu]``. Ties to the lowest index. With
    ``speed: float64[gpu]`` it goes to the GPU that is then through first. ValueError: too little capacity.
    """
    load = checked_load(load, ("expert",))
    checked_count(gpus, "gpus")
    checked_count(extra, "extra", least=0)
    capacity = np.asarray(capacity, dtype=np.int64)
    if capacity.shape != (gpus,) or (capacity < 0).any():
        raise ValueError(f"capacity has shape {capacity.shape}; expected slots >= 0 for each of {gpus} GPUs")
    copies = len(load) + extra
    if capacity.sum() < copies or not len(load):
        raise ValueError(
            f"{len(load)} experts and {extra} replicas in {capacity.sum()} slots; "
            f"expected one expert or more, and {copies} slots or more"
        )

    from archsim.base.packing import pack
    from archsim.base.replication import replicate

    given = replicate(load[None], copies)
    into, place = (each[0] for each in pack(given.load, capacity, speed))
    in_order = given.expert[0][np.lexsort((place, into))]
    ends = np.cumsum(np.bincount(into, minlength=gpus))
    return GreedyPlacement(given.number[0], np.split(in_order, ends[:-1]))

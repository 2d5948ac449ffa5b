"""Remap and Dup: a placement from the experts' frequencies in prefill (Yu et al., arXiv 2510.05497v4, Algorithm 2).

Remap moves experts, a fixed number per GPU; Dup leaves them in place and replicates some into extra slots.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.load import checked_count, checked_load

# Loads are sums of rounded costs: relative differences below this are ties.
TIE = 1e-12


class PrefillPlacement(NamedTuple):
    experts: list[np.ndarray]  # [gpu] int64, ascending: what a GPU holds
    steps: np.ndarray  # float64[step, 4] in order: expert, GPU, change of the largest load, largest load after
    load: np.ndarray  # float64[gpu]


def remap(cost: ArrayLike, gpus: int) -> PrefillPlacement:
    """Experts by falling ``cost[expert]``, each to the least loaded GPU with fewer than ceil(experts / gpus).

    ``cost``: cost of an expert with its prefill tokens, in any unit, >= 0. Ties to the lowest expert and GPU.
    """
    cost = checked_load(cost, ("expert",), "cost")
    most = -(-len(cost) // checked_count(gpus, "gpus"))
    held: list[list[int]] = [[] for _ in range(gpus)]
    load, steps = np.zeros(gpus), np.zeros((len(cost), 4))
    for step, expert in enumerate(np.argsort(-cost, kind="stable")):
        before = load.max()
        open_load = np.where([len(each) < most for each in held], load, np.inf)
        gpu = int(np.argmax(open_load <= open_load.min() * (1 + TIE)))
        held[gpu].append(int(expert))
        load[gpu] += cost[expert]
        steps[step] = expert, gpu, load.max() - before, load.max()
    return PrefillPlacement([np.sort(np.array(each, np.int64)) for each in held], steps, load)


def dup(load: ArrayLike, gpus: int, slots: int, cost: Callable[[float], float]) -> PrefillPlacement:
    """Contiguous experts and ``slots`` replicas per GPU, each where it leaves the largest load lowest.

    ``load[expert]``: tokens. ``cost(tokens)`` >= 0: cost of one instance; each of c instances has 1 / c of the tokens.
    Expert e starts on GPU e // ceil(experts / gpus). As in the printed algorithm, all slots are filled, even if
    the largest load grows, until every GPU holds every expert. Ties to the lowest expert, then to the lowest GPU.
    """
    tokens = checked_load(load, ("expert",))
    checked_count(gpus, "gpus")
    checked_count(slots, "slots", least=0)
    experts = len(tokens)
    holds = np.arange(experts)[:, None] // max(1, -(-experts // gpus)) == np.arange(gpus)
    free, steps = np.full(gpus, slots), []
    now, after = (_costs(cost, tokens, copies) for copies in (1, 2))
    held_cost = holds * now[:, None]
    while True:
        total = held_cost.sum(axis=0)
        feasible = ~holds & (free > 0)
        if not feasible.any():
            break
        most = _largest_after(total, holds, now, after)
        least = most[feasible].min()
        expert, gpu = divmod(int(np.argmax(feasible & (most <= least * (1 + TIE)))), gpus)
        holds[expert, gpu] = True
        free[gpu] -= 1
        steps.append((expert, gpu, most[expert, gpu] - total.max(), most[expert, gpu]))
        copies = int(holds[expert].sum())
        now[expert] = after[expert]
        after[expert] = _costs(cost, tokens[expert : expert + 1], copies + 1)[0]
        held_cost[expert] = holds[expert] * now[expert]
    held = [np.flatnonzero(column) for column in holds.T]
    return PrefillPlacement(held, np.array(steps, float).reshape(-1, 4), held_cost.sum(axis=0))


def _largest_after(total: np.ndarray, holds: np.ndarray, now: np.ndarray, after: np.ndarray) -> np.ndarray:
    """float64[expert, gpu] the largest load if the expert were replicated on the GPU."""
    eased = total + holds * (after - now)[:, None]  # load left on the expert's holders
    return np.maximum(eased.max(axis=1, keepdims=True), eased + after[:, None])


def _costs(cost: Callable[[float], float], tokens: np.ndarray, copies: int) -> np.ndarray:
    """Cost of one instance of each expert, float64[expert]."""
    return checked_load([float(cost(each)) for each in (tokens / copies).tolist()], ("expert",), "cost of tokens")

"""The exact minimum of the largest load when loads are shared among given holders: maximum flow in a compiled loop.

The loads of experts are poured into their GPUs up to a common level. If no path of shares leads from an expert with
load left to a GPU with room, the GPUs reached are full and hold nothing but the experts reached: the level rises by
the load left over a GPU of that set, which is a lower bound on any solution (Dinkelbach, On nonlinear fractional
programming, 1967). Earlier shares remain valid. The final level is that of the tightest set, the optimum.
Import this module where it is used: it loads numba.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel

LEFT_OVER = 1e-13  # of the whole load: remainders and room below this are rounding errors
SOURCE, UNREACHED = -1, -2


class _Net(NamedTuple):
    """Instances of experts; shares and the tree of the last search, which change."""

    begin: np.ndarray  # int64[expert + 1] first instance of an expert
    gpu: np.ndarray  # int64[copy]
    expert: np.ndarray  # int64[copy]
    by_gpu: np.ndarray  # int64[copy] instances in order of GPU
    gpu_begin: np.ndarray  # int64[gpu + 1] into by_gpu
    share: np.ndarray  # float64[copy]
    used: np.ndarray  # float64[gpu]
    left: np.ndarray  # float64[expert] not yet assigned
    entered: np.ndarray  # int64[expert] the instance through which the search reached it, SOURCE or UNREACHED
    came_by: np.ndarray  # int64[gpu] the instance through which the search reached it, or UNREACHED
    queue: np.ndarray  # int64[expert]
    speed: np.ndarray  # float64[gpu]: load that it works off in a unit of time


def share_out(
    load: np.ndarray, begin: np.ndarray, gpu: np.ndarray, gpus: int, speed: np.ndarray | None = None
) -> np.ndarray:
    """Shares float64[instance] that add up to ``load[expert]`` and minimise the load of the fullest GPU, or with
    ``speed: float64[gpu]`` the time of the one that ends last.

    Instances ``begin[e]:begin[e + 1]`` are expert e's, on GPUs ``gpu[copy]``; every expert has one. All loads >= 0.
    """
    experts, count, total = len(load), np.diff(begin), load.sum()
    expert = np.repeat(np.arange(experts), count)
    alone = count[expert] == 1
    share = np.where(alone, load[expert], 0.0)
    used = np.bincount(gpu, weights=share, minlength=gpus).astype(np.float64)  # of no instances int64
    by_gpu = np.argsort(gpu, kind="stable")
    gpu_begin = np.searchsorted(gpu[by_gpu], np.arange(gpus + 1))
    first, second, third = (np.zeros(n, np.int64) for n in (experts, gpus, experts))
    speed = np.ones(gpus) if speed is None else np.ascontiguousarray(speed, np.float64)
    left = np.where(count == 1, 0.0, load)
    net = _Net(begin, gpu, expert, by_gpu, gpu_begin, share, used, left, first, second, third, speed)
    order = np.argsort(-load, kind="stable")
    _share_out(net, order, max(total / speed.sum(), (used / speed).max()), LEFT_OVER * total)
    return share


@kernel
def _share_out(net, order, level, least):
    """Pour the largest expert first, then move shares along paths; raise the level when there is none."""
    for expert in order:
        for copy in range(net.begin[expert], net.begin[expert + 1]):
            _pour(net, copy, min(net.left[expert], _room(net, net.gpu[copy], level)))
    while True:
        found, reached = _search(net, level, least)
        if found >= 0:
            _augment(net, found, level)
        elif reached > 0:
            level += max(_left_over(net.left, least) / reached, 2 * least)
        else:
            break
    for expert in order:
        _pour(net, net.begin[expert], net.left[expert])


@inner
def _room(net, gpu, level):
    return level * net.speed[gpu] - net.used[gpu]


@inner
def _pour(net, copy, amount):
    if amount > 0.0:
        net.share[copy] += amount
        net.used[net.gpu[copy]] += amount
        net.left[net.expert[copy]] -= amount


@inner
def _left_over(left, least):
    total = 0.0
    for amount in left:
        total += amount if amount > least else 0.0
    return total


@inner
def _search(net, level, least):
    """Breadth first from experts with load left: (the nearest GPU with room or UNREACHED, speed of those reached)."""
    tail = head = 0
    reached = 0.0
    net.came_by[:] = UNREACHED
    for expert in range(len(net.left)):
        net.entered[expert] = UNREACHED
        if net.left[expert] > least:
            net.entered[expert] = SOURCE
            net.queue[tail] = expert
            tail += 1
    while head < tail:
        expert = net.queue[head]
        head += 1
        for copy in range(net.begin[expert], net.begin[expert + 1]):
            near = net.gpu[copy]
            if net.came_by[near] != UNREACHED:
                continue
            net.came_by[near] = copy
            reached += net.speed[near]
            if _room(net, near, level) > least:
                return near, reached
            for at in range(net.gpu_begin[near], net.gpu_begin[near + 1]):
                back = net.by_gpu[at]
                other = net.expert[back]
                if net.entered[other] == UNREACHED and net.share[back] > least:
                    net.entered[other] = back
                    net.queue[tail] = other
                    tail += 1
    return UNREACHED, reached


@inner
def _augment(net, found, level):
    """Move along the path to a GPU with room as much as its bottleneck allows."""
    amount, at = _room(net, found, level), found
    expert = net.expert[net.came_by[at]]
    while net.entered[expert] != SOURCE:
        amount = min(amount, net.share[net.entered[expert]])
        at = net.gpu[net.entered[expert]]
        expert = net.expert[net.came_by[at]]
    amount = min(amount, net.left[expert])
    net.left[expert] -= amount
    net.used[found] += amount
    at = found
    expert = net.expert[net.came_by[at]]
    net.share[net.came_by[at]] += amount
    while net.entered[expert] != SOURCE:
        net.share[net.entered[expert]] -= amount
        at = net.gpu[net.entered[expert]]
        expert = net.expert[net.came_by[at]]
        net.share[net.came_by[at]] += amount

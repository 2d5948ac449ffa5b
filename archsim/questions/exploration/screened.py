"""From a screened space to the points that go on: on the front by the analytical engine, or nearest to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import errors, tables
from archsim.questions.exploration.pareto import every_is_finite, pareto
from archsim.questions.exploration.screening import PointBlock, Screen
from archsim.runs.columns import BY_NAME
from archsim.specs.plan import SweepPlan

FILE = "screened.parquet"
MEASURED = ("tokens_per_s", "decode_ns", "energy_per_token_j", "power_w", "die_mm2", "silicon_mm2", "cost_usd")
_OF_POINT = {"model": tables.TEXT, "batch": tables.INTEGER, "policy": tables.TEXT, "layers": tables.INTEGER}
_MEMBERS, _AT_ONCE = 64, 4096  # of the front, and points that are held against them at a time


def screened_points(
    screen: Screen, costs_of: Callable[[PointBlock], np.ndarray], count: int, folder: Path, watcher: Any
) -> list[int]:
    """Numbers of about ``count`` points, shared evenly by the models; writes all that the constraints keep to ``FILE``.
    ``costs_of``: of a block, float64[point, objective]. Raises ArchsimError if the constraints keep none.
    """
    known: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def seen() -> Iterator[tuple[int, dict[str, Any]]]:
        done = 0
        for block in screen.blocks():
            done += len(block.numbers)
            known.setdefault(block.model.name, []).append((block.numbers, costs_of(block)))
            yield len(block.numbers), {"point": block.numbers, **block.axes, **block.columns}
            watcher.at(f"screened {done:,} points", block.share)

    folder.mkdir(parents=True, exist_ok=True)
    tables.write_parquet_columns(folder / FILE, columns_of(screen.plan), seen())
    if not known:
        raise errors.ArchsimError(f"no point is left of {screen.plan.combinations:,}")
    chosen = [_chosen(blocks, -(-count // len(known))) for blocks in known.values()]
    return sorted(np.concatenate(chosen).tolist())


def columns_of(plan: SweepPlan) -> dict[str, str]:
    """Columns of ``FILE`` and their kinds."""
    axes = {column.name: column.kind for column in plan.columns}
    return {"point": tables.INTEGER} | axes | _OF_POINT | {name: BY_NAME[name].kind for name in MEASURED}


def _chosen(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Of the points of a model. A point of the front is on that of its block."""
    numbers, costs = (np.concatenate(each) for each in zip(*blocks, strict=True))
    front = np.concatenate([pareto(own) for _, own in blocks])
    front[front] = pareto(costs[front])
    ran = every_is_finite(costs)
    return numbers[ran][nearest(costs[ran], front[ran], count)]


def nearest(costs: np.ndarray, front: np.ndarray, count: int) -> np.ndarray:
    """Indices, ascending, of the front and the points that take the least share of every cost to reach it, ``count`` in
    all; of a larger front `_spread_over`. ``costs: float64[point, objective]``, finite; ``front``: bool[point].
    """
    members = np.flatnonzero(front)
    if len(members) > count:
        return np.sort(members[_spread_over(costs[members], count)])
    members = members[np.linspace(0, len(members) - 1, min(len(members), _MEMBERS)).astype(np.int64)]
    lacking = np.zeros(len(costs))
    for begin in range(0, len(costs), _AT_ONCE):
        share = np.full((len(costs[begin : begin + _AT_ONCE]), len(members)), np.inf)
        for own, member in zip(costs[begin : begin + _AT_ONCE].T, costs[members].T, strict=True):
            size = np.maximum(np.abs(own), np.finfo(np.float64).tiny)
            np.minimum(share, (own[:, None] - member) / size[:, None], out=share)
        lacking[begin : begin + _AT_ONCE] = share.max(axis=1)
    lacking[front] = -np.inf
    return np.sort(np.argsort(lacking, kind="stable")[:count])


def _spread_over(costs: np.ndarray, count: int) -> np.ndarray:
    """Indices of ``count`` points of a front: the best by each objective and others at even ranks; equal costs last."""
    _, first = np.unique(costs, axis=0, return_index=True)
    first.sort()
    if len(first) <= count:
        return np.concatenate([first, np.setdiff1d(np.arange(len(costs)), first)[: count - len(first)]])
    orders = [first[np.argsort(own, kind="stable")] for own in costs[first].T]
    best = np.array([order[0] for order in orders])
    ranks = np.linspace(0, len(first) - 1, max(1, count // len(orders))).astype(np.int64)
    chosen = np.concatenate([best, *(order[ranks] for order in orders)])
    chosen = chosen[np.sort(np.unique(chosen, return_index=True)[1])][:count]
    others = np.setdiff1d(first, chosen)
    more = others[np.linspace(0, len(others) - 1, count - len(chosen)).astype(np.int64)]
    return np.concatenate([chosen, more])

"""From a screened space to the points that go on: those that are on the front by the analytical engine, or nearest to
it. All are written to a file, in row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.tables import INTEGER, TEXT, write_parquet_columns
from archsim.runs.columns import BY_NAME
from archsim.specs.sweeps.plan import SweepPlan
from archsim.studies.exploration.front import pareto
from archsim.studies.exploration.screening import Block, Screen

FILE = "screened.parquet"
MEASURED = ("tokens_per_s", "decode_ns", "energy_per_token_j", "power_w", "die_mm2", "silicon_mm2", "cost_usd")
_OF_POINT = {"model": TEXT, "batch": INTEGER, "policy": TEXT, "layers": INTEGER}
_MEMBERS, _AT_ONCE = 64, 4096  # of the front, and points that are held against them at a time


def screened_points(
    screen: Screen, costs_of: Callable[[Block], np.ndarray], count: int, folder: Path, watcher: Any
) -> list[int]:
    """Numbers of about ``count`` points, shared evenly by the models; writes all that the constraints keep to ``FILE``.

    ``costs_of``: of a block, float64[point, objective]. Raises ArchsimError if the constraints keep none.
    """
    known: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def seen() -> Iterator[tuple[int, dict[str, Any]]]:
        for block in _told(screen, watcher):
            known.setdefault(block.model.name, []).append((block.numbers, costs_of(block)))
            yield len(block.numbers), {"point": block.numbers, **block.axes, **block.columns}

    folder.mkdir(parents=True, exist_ok=True)
    write_parquet_columns(folder / FILE, columns_of(screen.plan), seen())
    if not known:
        raise ArchsimError(f"no point is left of {screen.plan.combinations:,}")
    chosen = [_chosen(blocks, -(-count // len(known))) for blocks in known.values()]
    return sorted(np.concatenate(chosen).tolist())


def columns_of(plan: SweepPlan) -> dict[str, str]:
    """Columns of ``FILE`` and their kinds."""
    axes = {column.name: column.kind for column in plan.columns}
    return {"point": INTEGER} | axes | _OF_POINT | {name: BY_NAME[name].kind for name in MEASURED}


def _told(screen: Screen, watcher: Any) -> Iterator[Block]:
    done = 0
    for block in screen.blocks():
        yield block
        done += len(block.numbers)
        watcher.at(f"screened {done:,} points", block.share)


def _chosen(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Of the points of a model. A point of the front is on that of its block."""
    numbers, costs = (np.concatenate(each) for each in zip(*blocks, strict=True))
    front = np.concatenate([pareto(own) for _, own in blocks])
    front[front] = pareto(costs[front])
    ran = np.isfinite(costs).all(axis=1)
    return numbers[ran][nearest(costs[ran], front[ran], count)]


def nearest(costs: np.ndarray, front: np.ndarray, count: int) -> np.ndarray:
    """Indices of the front and of the points that it takes least to bring there, ``count`` of them, ascending.

    ``costs: float64[point, objective]``, finite; ``front``: bool[point]. What it takes: the share of every cost after
    which no point of the front is better in all; of a large front, an even sample of it is asked.
    """
    members = np.flatnonzero(front)
    members = members[np.linspace(0, len(members) - 1, min(len(members), _MEMBERS)).astype(np.int64)]
    lacking = np.zeros(len(costs))
    for begin in range(0, len(costs), _AT_ONCE):
        own = costs[begin : begin + _AT_ONCE, None, :]
        share = (own - costs[None, members, :]) / np.maximum(np.abs(own), np.finfo(np.float64).tiny)
        lacking[begin : begin + _AT_ONCE] = share.min(axis=2).max(axis=1)
    lacking[front] = -np.inf
    return np.sort(np.argsort(lacking, kind="stable")[:count])

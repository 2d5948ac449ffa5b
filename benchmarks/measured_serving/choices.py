"""What it costs to choose a configuration by simulation: its measured throughput beside that of the best measured one.

A cohort is all points of a model, system, engine and lengths: parallel sizes, dtypes and numbers of clients to choose
from. What is asked for is the most output tokens a second and GPU, either with a given number of clients, or within a
limit of TPOT: then the choice is among points that are simulated within it, the best among those measured within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from measured_serving.accuracy import Point

COHORT = ("model", "system", "backend", "isl_tokens", "osl_tokens")
SIZES = ("tp", "attention_dp", "moe_tp", "moe_ep", "precision")  # of a configuration
LIMITS_MS = (8.0, 10.0, 12.0, 15.0, 20.0, 30.0, 50.0, 100.0)  # of TPOT: 125 to 10 tokens/s a user
NEAR = 0.10  # loss of a good choice
BROKEN = 1.1  # measured TPOT of a choice over its limit, beyond which it breaks it


class Losses(NamedTuple):
    """``mean``: share of throughput that choices lose; ``near``: share of them that lose no more than NEAR; ``broken``:
    that break their limit; ``fewest``: mean loss of the fewest GPUs.
    """

    choices: int
    mean: float
    near: float
    broken: float
    fewest: float

    @property
    def sentence(self) -> str:
        """A row of words."""
        return (
            f"{self.choices} choices: mean loss {self.mean:.1%}, {self.near:.0%} within {NEAR:.0%} of the best, "
            f"{self.broken:.0%} beyond the limit; fewest GPUs {self.fewest:.1%}"
        )


def with_clients(points: Iterable[Point]) -> Losses:
    """Among configurations with the same number of clients."""
    return _losses(_of(cohort, None) for cohort in _cohorts(points, (*COHORT, "concurrency")))


def within_limits(points: Iterable[Point]) -> Losses:
    """Among configurations and numbers of clients, within each of LIMITS_MS."""
    cohorts = list(_cohorts(points, COHORT))
    return _losses(_of(cohort, limit) for cohort in cohorts for limit in LIMITS_MS)


def _cohorts(points: Iterable[Point], keys: Sequence[str]) -> Iterator[list[Point]]:
    """Those with several configurations."""
    found: dict[tuple, list[Point]] = {}
    for point in points:
        found.setdefault(tuple(point.row[key] for key in keys), []).append(point)
    return (each for each in found.values() if len({tuple(str(p.row[key]) for key in SIZES) for p in each}) > 1)


def _of(cohort: Sequence[Point], limit_ms: float | None) -> tuple[float, bool, float] | None:
    """(loss, whether the limit is broken, loss of the fewest GPUs); None where nothing is within the limit."""
    real = np.array([_throughput(point, point.row["ttft_ms"], point.row["tpot_ms"]) for point in cohort])
    ours = np.array([_throughput(point, point.ttft, point.tpot) for point in cohort])
    tpot = np.array([(point.row["tpot_ms"], point.tpot) for point in cohort]).T
    there, chosen = tpot <= (np.inf if limit_ms is None else limit_ms)
    if not there.any() or not chosen.any():
        return None
    gpus = np.array([point.row["gpus"] for point in cohort])
    choice = int(np.where(chosen, ours, -1.0).argmax())
    fewest = int(np.where(there & (gpus == gpus[there].min()), real, -1.0).argmax())
    best = real[there].max()
    broken = limit_ms is not None and tpot[0, choice] > BROKEN * limit_ms
    return max(0.0, 1 - real[choice] / best), broken, 1 - real[fewest] / best


def _losses(found: Iterable[tuple[float, bool, float] | None]) -> Losses:
    each = np.array([one for one in found if one is not None], float).reshape(-1, 3)
    mean, broken, fewest = each.mean(axis=0) if len(each) else (float("nan"),) * 3
    return Losses(len(each), float(mean), float((each[:, 0] <= NEAR).mean()), float(broken), float(fewest))


def _throughput(point: Point, ttft_ms: float, tpot_ms: float) -> float:
    """Output tokens a second and GPU of a closed loop whose clients wait for nothing else."""
    row = point.row
    return row["concurrency"] * row["osl_tokens"] * 1e3 / (ttft_ms + tpot_ms * row["osl_tokens"]) / row["gpus"]

"""Sampled machines of one system, model, batch, policy, assumptions and choice of other axes: distribution of what they
deliver, bins that could be sold, price of a good token. Quantiles and bins are of working machines, which pay for
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.runs.plan import plan_of, why_scrapped
from archsim.specs.axes import WAFER
from archsim.specs.plan import SweepPlan

FILE = "wafers.csv"  # beside the results
QUANTILES = (5, 50, 95)
BIN = 0.05  # of the best machine: width of a bin
BINS = 4  # with their own price; what is slower is one more
_Row = Mapping[str, Any]


@dataclass(frozen=True)
class Wafers:
    """A distribution over wafers."""

    shared: Mapping[str, str]  # name → value that these wafers share
    made: int  # drawn wafers
    working: int  # of these
    dies: tuple[int, int]  # least and most on a working wafer
    tokens_per_s: tuple[float, ...]  # at `QUANTILES`
    best: float  # tokens/s of all that work
    mean: float  # the same, mean
    bins: tuple[float, ...]  # share of machines at ≥ 95 %, 90 to 95 %, … of the best, the last with all that are slower
    usd: float  # price of one that was made

    @property
    def usd_per_token_per_s(self) -> float:
        return self.usd * self.made / (self.working * self.mean)

    @property
    def name(self) -> str:
        return " ".join(value for value in self.shared.values() if value)


def is_drawn(plan: SweepPlan) -> bool:
    return any(axis.path == WAFER for axis in plan.sweep.axes)


def distributions(plan: SweepPlan, rows: Iterable[_Row]) -> list[Wafers]:
    """The distributions of the results of a sweep, in their order. ``rows``: of runs that decoded, with ``point``."""
    plan = plan_of(plan)
    groups: dict[tuple[tuple[str, str], ...], list[tuple[_Row, int, Any]]] = {}
    for row in rows:
        point = plan.point(int(row["point"]))
        drawn = point.system.drawn
        if drawn is None or drawn.wafers < 2 or not row.get("tokens_per_s"):
            continue
        axes = {name: shown for name, shown in plan.shown(point).items() if name != ".".join(WAFER)}
        shared = {
            "system": point.variants["system"].name, "model": point.variants["model"].name,
            "batch": f"batch {point.batch}", "policy": point.variants["policy"].name,
            "assumptions": point.assumptions.label, **{name: f"{name} {shown}" for name, shown in axes.items()},
        }  # fmt: skip
        groups.setdefault(tuple(shared.items()), []).append((row, drawn.wafer, point.system))
    varies = {name for shared in groups for name, _ in shared if len({dict(each).get(name) for each in groups}) > 1}
    shown = varies or {"policy"}
    return [_of({name: value for name, value in shared if name in shown}, each) for shared, each in groups.items()]


def _of(shared: Mapping[str, str], runs: Sequence[tuple[_Row, int, Any]]) -> Wafers:
    system = runs[0][2]
    there, drawn = {wafer for _, wafer, _ in runs}, system.drawn
    others = (drawn.model_copy(update={"wafer": wafer}) for wafer in range(drawn.wafers) if wafer not in there)
    scrapped = sum(bool(why_scrapped(system.model_copy(update={"drawn": each}))) for each in others)
    rates = np.array([float(row["tokens_per_s"]) for row, _, _ in runs])
    made, best = len(runs) + scrapped, float(rates.max())
    below = np.minimum(((1 - rates / best) / BIN).astype(int), BINS)
    bins = np.bincount(below, minlength=BINS + 1) / made
    dies = [each.dies for _, _, each in runs]
    return Wafers(
        shared=shared, made=made, working=len(runs), dies=(min(dies), max(dies)),
        tokens_per_s=tuple(np.percentile(rates, QUANTILES).tolist()), best=best, mean=float(rates.mean()),
        bins=tuple(bins.tolist()), usd=float(runs[0][0]["cost_usd"]),
    )  # fmt: skip

"""Drawn machines: the distribution of what they deliver, bins that could be sold, the price of a good token.

And what a die that dies tonight costs (`death_of`).

A distribution is over the wafers of one system, model, batch, policy, set of assumptions and choice of all other axes.
Quantiles and bins are of all machines that work; those that do not are scrapped, and the others pay for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import errors, files, tables, units
from archsim.engine import state, weight_moves
from archsim.policies.placement import Placement, moves_between
from archsim.report.plots import PlotAxis, Ranges
from archsim.report.units import percent, signed_percent, significant
from archsim.runs.plan import plan_of, prepare, why_scrapped
from archsim.runs.simulator import Simulator
from archsim.specs.as_built import DiesAsBuiltSpec
from archsim.specs.axes import WAFER
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec

FILE = "wafers.csv"  # beside the results
QUANTILES = (5, 50, 95)
BIN = 0.05  # of the best machine: width of a bin
BINS = 4  # with their own price; what is slower is one more
_Row = Mapping[str, Any]


@dataclass(frozen=True)
class Wafers:
    """A distribution. ``told``: what its wafers share; ``tokens_per_s``: at `QUANTILES`; ``best``, ``mean``: of all
    that work; ``bins``: share of all machines that reach ≥ 95 %, 90 to 95 %, … of the best, the last with all that are
    slower; ``usd``: price of one that was made; ``usd_per_token_per_s``: of all, over what those that work deliver.
    """

    told: Mapping[str, str]
    made: int
    working: int
    dies: tuple[int, int]
    tokens_per_s: tuple[float, ...]
    best: float
    mean: float
    bins: tuple[float, ...]
    usd: float

    @property
    def usd_per_token_per_s(self) -> float:
        return self.usd * self.made / (self.working * self.mean)

    @property
    def name(self) -> str:
        """What its wafers share, in a line."""
        return " ".join(value for value in self.told.values() if value)


def is_drawn(plan: SweepPlan) -> bool:
    """Whether a sweep has an axis of drawn machines."""
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
        told = {
            "system": point.variants["system"].name, "model": point.variants["model"].name,
            "batch": f"batch {point.batch}", "policy": point.variants["policy"].name,
            "assumptions": point.assumptions.label, **{name: f"{name} {shown}" for name, shown in axes.items()},
        }  # fmt: skip
        groups.setdefault(tuple(told.items()), []).append((row, drawn.wafer, point.system))
    varies = {name for told in groups for name, _ in told if len({dict(each).get(name) for each in groups}) > 1}
    shown = varies or {"policy"}
    return [_of({name: value for name, value in told if name in shown}, each) for told, each in groups.items()]


def _of(told: Mapping[str, str], runs: Sequence[tuple[_Row, int, Any]]) -> Wafers:
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
        told, made, len(runs), (min(dies), max(dies)), tuple(np.percentile(rates, QUANTILES).tolist()), best,
        float(rates.mean()), tuple(bins.tolist()), float(runs[0][0]["cost_usd"]),
    )  # fmt: skip


# ---- shown

COLUMNS = (
    "machines made", "work", "dies", *(f"p{each} tokens/s" for each in QUANTILES), "best tokens/s",
    *(f"≥ {1 - BIN * (each + 1):.0%} of the best" for each in range(BINS)), "slower", "USD a machine",
    "USD per token/s",
)  # fmt: skip


def cells_of(each: Wafers) -> list[str]:
    """The cells of a row, in the order of `COLUMNS`."""
    low, high = each.dies
    rates = (*each.tokens_per_s, each.best)
    return [
        str(each.made), percent(each.working / each.made), str(low) if low == high else f"{low}–{high}",
        *(f"{rate:,.0f}" for rate in rates), *map(percent, each.bins), f"{each.usd:,.0f}",
        significant(each.usd_per_token_per_s),
    ]  # fmt: skip


def csv_of(found: Sequence[Wafers]) -> str:
    """One row for every distribution."""
    names = list(dict.fromkeys(name for each in found for name in each.told))
    quantiles = [f"p{each}_tokens_per_s" for each in QUANTILES]
    bins = [f"share_from_{round(100 * (1 - BIN * (each + 1)))}_percent" for each in range(BINS)]
    rows: list[list[Any]] = [[
        *names, "made", "working", "least_dies", "most_dies", *quantiles, "best_tokens_per_s", "mean_tokens_per_s",
        *bins, "share_slower", "usd", "usd_per_token_per_s",
    ]]  # fmt: skip
    for each in found:
        numbers = (*each.tokens_per_s, each.best, each.mean, *each.bins, each.usd, each.usd_per_token_per_s)
        told = [each.told.get(name, "") for name in names]
        rows.append([*told, each.made, each.working, *each.dies, *(f"{value:.6g}" for value in numbers)])
    return tables.csv_text(rows)


def write_distributions(plan: SweepPlan, rows: Iterable[_Row], folder: Path) -> list[Wafers]:
    """Write `FILE` of a sweep over drawn machines; nothing of another sweep."""
    if not is_drawn(plan):
        return []
    found = distributions(plan, rows)
    files.write_text(folder / FILE, csv_of(found))
    return found


def section_of(found: Sequence[Wafers]) -> dict[str, Any] | None:
    """What the section of a page shows; None without distributions."""
    if not found:
        return None
    return {"columns": COLUMNS, "rows": [(each.name, cells_of(each)) for each in found], "drawing": drawing(found)}


def drawing(found: Sequence[Wafers]) -> Ranges:
    """A band from the 5th to the 95th percentile of every distribution, its median, and the best machine."""
    rows = []
    for each in found:
        low, middle, high = each.tokens_per_s
        told = f"{low:,.0f} to {high:,.0f}, median {middle:,.0f}, best {each.best:,.0f}"
        rows.append({"name": each.name, "low": low, "value": middle, "high": high, "best": each.best, "told": told})
    return Ranges(
        question="How much do machines differ that were built to the same design?", rows=rows, y="name",
        x=PlotAxis(
            "value", "tokens/s of drawn machines: 5th to 95th percentile, median, and the best", ".3~s", low=0.0
        ),
        low="low", high="high", best="best", tips=(("name", "machine"), ("told", "tokens/s")),
    )  # fmt: skip


# ---- a die that dies
# What a die that dies tonight costs: the step before, the step after with its experts on whoever has room, and the step
# once the policy's own placement holds for the dies that are left; and what moves for it.


@dataclass(frozen=True)
class Death:
    """``before_ns``, ``after_ns``, ``balanced_ns``: of a decode iteration with all dies, with the dead die's experts on
    the dies with fewest, and under the policy's placement for those that are left. ``lost``: experts of which no copy
    was left; ``lost_bytes``: of these, which come from outside, over the host's link in ``lost_ns``. ``moved_bytes``:
    from die to die for the last placement, in ``moved_ns``.
    """

    die: int
    dies: int
    before_ns: float
    after_ns: float
    balanced_ns: float
    lost: int
    lost_bytes: int
    lost_ns: float
    moved_bytes: int
    moved_ns: float

    @property
    def steps(self) -> int:
        """Iterations that the moves take beside them, if they hinder nothing."""
        return math.ceil(self.moved_ns / self.after_ns) if self.moved_bytes else 0

    @property
    def lines(self) -> list[str]:
        """What it says, a line each."""
        change = [signed_percent(ns / self.before_ns - 1) for ns in (self.after_ns, self.balanced_ns)]
        lost = f"{self.lost} experts lose their only copy: {self.lost_bytes / 1e9:,.2f} GB come from outside"
        moved = f"{self.moved_bytes / 1e9:,.2f} GB move between dies, {self.moved_ns / 1e6:,.2f} ms alone on the links"
        return [
            f"before:   {self.before_ns / 1e6:.3f} ms a decode iteration on {self.dies} dies",
            f"after:    {self.after_ns / 1e6:.3f} ms ({change[0]}): die {self.die} is dead, its experts are on the "
            f"dies with fewest; {lost}" + (f", {self.lost_ns / 1e6:,.0f} ms over the host's link" if self.lost else ""),
            f"balanced: {self.balanced_ns / 1e6:.3f} ms ({change[1]}): the policy's placement for {self.dies - 1} "
            f"dies; {moved}, "
            f"so it holds after {self.steps} iteration{'s' * (self.steps != 1)} or more",
        ]


def death_of(experiment: ExperimentSpec, die: int) -> Death:
    """What the death of a die does to an experiment with one of each (``archsim.runs.plan.choose``), whose machine
    loses a die. Raises SpecError for a die that does not work already, or without which the machine does not.
    """
    system = experiment.systems[0]
    living = list(range(system.sites)) if system.built is None else list(system.built.living)
    if die not in living:
        near = min(living, key=lambda other: abs(other - die))
        raise errors.SpecError(
            f"die {die} is none of the {len(living)} that work of {system.name}; the nearest is {near}"
        )
    own = system.dies_as_built or DiesAsBuiltSpec()
    dead = own.model_copy(update={"dead": (*own.dead, die)})
    less = SystemSpec.model_validate(system.model_copy(update={"dies_as_built": dead}).model_dump(by_alias=True))
    before, after = (prepare(experiment.model_copy(update={"systems": (each,)})) for each in (system, less))
    whole = Simulator(before.traces).replay(before.runs[0])
    held = np.delete(whole.engine.placement.holds, living.index(die), axis=2)
    adopted, lost = _adopted(held)
    simulator = Simulator(after.traces)
    balanced, orphaned = (simulator.replay(after.runs[0]) for _ in range(2))
    orphaned.engine.use(adopted)
    engine = orphaned.engine
    moves = moves_between(adopted, balanced.engine.placement, engine.expert_bytes, engine.fabric.hops)
    mover = weight_moves.WeightMover(engine.machine, engine.fabric, state.new_tally(engine.machine))
    transfer = mover.transfer(moves["src"], moves["dst"], engine.expert_bytes)
    steps = max(1, experiment.workload.decode_steps)
    before_ns, after_ns, balanced_ns = (float(each.run().decode_ns) / steps for each in (whole, orphaned, balanced))
    lost_bytes = lost * engine.expert_bytes
    host = system.decision.host.pcie_bandwidth_bytes_per_s
    return Death(
        die,
        len(living),
        before_ns,
        after_ns,
        balanced_ns,
        lost,
        lost_bytes,
        lost_bytes / host * units.NS_PER_S,
        transfer.total_bytes,
        transfer.ns,
    )


def _adopted(held: np.ndarray) -> tuple[Placement, int]:
    """The placement with experts that nobody holds on the dies that hold fewest, ties to the lowest; and how many they
    were. ``held``: bool[layer, expert, die].
    """
    held, lost = held.copy(), 0
    for layer in held:
        for expert in np.flatnonzero(~layer.any(axis=1)):
            layer[expert, int(layer.sum(axis=0).argmin())] = True
            lost += 1
    return Placement(held.argmax(axis=2).astype(np.int32), held), lost

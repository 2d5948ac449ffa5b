"""Compares the analytical engine with the event engine on a sample of an experiment's runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base import files, sums
from archsim.base.case import Case, frame_of
from archsim.base.case import errors as errors_of
from archsim.runs.run import Record, Run
from archsim.runs.simulator import Simulator

if TYPE_CHECKING:
    import pandas

FILE = "comparison.json"
# an error above it is listed with its reason: the bar for the 95th percentile under ``contention: shared``
OUTSIDE = 0.15
SEED = 0  # of the sample
ENGINES = ("event", "analytical")
AGREES = 1e-9  # the same, but for the order in which floats are added


@dataclass(frozen=True)
class Compared:
    """One run on both engines."""

    run: str  # its name
    assumptions: str  # label of the set
    event_ns: float  # time of decode
    analytical_ns: float  # time of decode
    event_bounds_ns: Mapping[str, float]  # cause (a bound_* column without bound_) → ns, with the prefill
    analytical_bounds_ns: Mapping[str, float]  # likewise

    @property
    def error(self) -> float:
        """Signed, as a share of the event engine's time."""
        return self.analytical_ns / self.event_ns - 1

    @property
    def reason(self) -> str:
        differences = {name: self.analytical_bounds_ns[name] - ns for name, ns in self.event_bounds_ns.items()}
        total_ns = sums.sum(self.event_bounds_ns.values())
        # An excess on one bound and a deficit on another cancel: consider only bounds with the sign of the error.
        side = {name: ns for name, ns in differences.items() if ns * self.error > 0} or differences
        name = max(side, key=lambda each: abs(side[each]))
        estimated = "too long" if side[name] > 0 else "too short"
        return f"{name} estimated {estimated}, by {abs(side[name]) / total_ns:.0%} of the time"


def sample(runs: Sequence[Any], size: int) -> list[Any]:
    """At most ``size`` runs (or numbers of points), always the same sample, in the order of the experiment."""
    drawn = np.random.default_rng(SEED).permutation(len(runs))[:size]
    return [runs[index] for index in sorted(drawn)]


def shorten(run: Run, decode_steps: int) -> Run:
    """The run with at most ``decode_steps`` decode steps."""
    steps = min(run.workload.decode_steps, decode_steps)
    warmup = min(run.workload.warmup_steps, steps - 1)
    workload = run.workload.model_copy(update={"decode_steps": steps, "warmup_steps": warmup})
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload))


def compare_engines(
    runs: Iterable[Run], simulator: Simulator, report: Callable[[Run, Record], None] = lambda run, record: None
) -> Iterable[Compared]:
    """Each run on both engines, as they finish; runs without decode are left out. report: called after each of both."""
    for run in runs:
        event, analytical = (_told_row(replace(run, engine=engine), simulator, report) for engine in ENGINES)
        if event["decode_ns"]:
            yield Compared(
                run.name,
                run.assumptions.label,
                event["decode_ns"],
                analytical["decode_ns"],
                _bounds(event),
                _bounds(analytical),
            )


def _told_row(run: Run, simulator: Simulator, report: Callable[[Run, Record], None]) -> Mapping[str, Any]:
    record = simulator.record(run)
    report(run, record)
    return record["row"]


def errors(compared: Sequence[Compared]) -> pandas.DataFrame:
    """A row an assumption set, in order of appearance: columns of `archsim.base.case.errors` of decode times, as
    shares of the event engine's, and ``rank``: their correlation; nan for fewer than three runs, or equal times.
    """
    from scipy.stats import spearmanr

    cases = frame_of(
        Case("engines", each.assumptions, each.run, "ns", each.event_ns, each.analytical_ns) for each in compared
    )
    ranks = [
        spearmanr(mine["measured"], mine["predicted"]).statistic
        if len(mine) > 2 and min(mine["measured"].nunique(), mine["predicted"].nunique()) > 1
        else nan
        for _, mine in cases.groupby("group", sort=False)
    ]
    return errors_of(cases, ["group"], sort=False).assign(rank=ranks)


def outside(compared: Iterable[Compared]) -> list[Compared]:
    """Runs with an error above `OUTSIDE`, the largest first."""
    return sorted((each for each in compared if abs(each.error) > OUTSIDE), key=lambda each: -abs(each.error))


def write_comparison(folder: Path, compared: Sequence[Compared], decode_steps: int, of: int) -> None:
    """Keep a comparison beside the results of an analytical sweep. ``of``: runs that the sample was drawn from."""
    text = json.dumps({"decode_steps": decode_steps, "of": of, "runs": [asdict(each) for each in compared]}, indent=1)
    files.write_text(folder / FILE, text)


def read_comparison(folder: Path) -> tuple[list[Compared], dict[str, Any]] | None:
    """The comparison that ``write_comparison`` wrote: runs, and the rest; None if there is none."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return [Compared(**each) for each in kept.pop("runs")], kept


def _bounds(row: Mapping[str, Any]) -> dict[str, float]:
    total_ns = row["prefill_ns"] + row["decode_ns"]
    shares = {name.removeprefix("bound_"): row[name] for name in row if name.startswith("bound_")}
    return {name: (share or 0.0) * total_ns for name, share in shares.items()}

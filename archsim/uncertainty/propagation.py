"""Runs of an experiment in many worlds: the fast engine in all of them, the experiment's own engine in the first few.

A world is a run with another scenario, so that it goes through the pool, the store and the cache of any sweep: it may
be interrupted and resumed, and does not depend on the number of jobs. Where the experiment's engine corrects, the fast
engine runs at most `THINNED` layers: as a control variate it need only go up and down with the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from archsim.base.errors import FailedRuns
from archsim.base.host import available_cores
from archsim.runs import store as cache
from archsim.runs.pool import simulate_all
from archsim.runs.results import Record
from archsim.runs.run import Run
from archsim.runs.simulator import ENGINES
from archsim.runs.store import RecordStore
from archsim.runs.sweep import Unwatched, Watcher, complete
from archsim.runs.worker import Failure
from archsim.uncertainty.estimate import agreement, corrected
from archsim.uncertainty.worlds import Worlds
from archsim.workload import Trace

FAST = "analytical"
CORRECTING = 16  # worlds that the experiment's own engine runs, too
THINNED = 16  # layers of the fast engine, where another one corrects it
KEPT_FROM_S = 0.02  # of simulation: shorter runs are done again sooner than read


@dataclass(frozen=True)
class InWorlds:
    """One run in all worlds. ``row``: of the run itself; ``ns``: float64[sample], time of decode (of prefill, if it has
    no decode); ``agreement``: see `archsim.uncertainty.estimate.agreement`; None: one engine ran all.
    """

    run: Run
    row: Record
    ns: np.ndarray
    agreement: float | None

    @property
    def value_ns(self) -> float:
        return time_of(self.row)

    @property
    def tokens_per_s(self) -> np.ndarray:
        """Throughput in every world, float64[sample]; 0 without decode."""
        value = self.row["throughput_tokens_per_s"]
        return np.full(len(self.ns), 0.0) if not value else value * self.value_ns / self.ns


def time_of(row: Record) -> float:
    """ns of decode, or of prefill where there is no decode."""
    return float(row["decode_ns"] or row["prefill_ns"])


def planned(runs: Sequence[Run], worlds: Worlds) -> list[Run]:
    """All runs that `propagate` needs, each once: the experiment's own, then those in worlds."""
    every: dict[str, Run] = {run.key: run for run in runs}
    for run in runs:
        for each in _in_worlds(run, worlds):
            every.setdefault(each.key, each)
    return list(every.values())


def propagate(
    runs: Sequence[Run], worlds: Worlds, folder: Path, traces: dict[tuple[str, str], Trace], jobs: int | None,
    watcher: Watcher,
) -> list[InWorlds]:
    """The runs in all worlds. ``folder``: of the records, which a later call finds. Raises FailedRuns."""
    every = planned(runs, worlds)
    failures: list[str] = []
    simulated = partial(simulate_all, jobs=jobs or available_cores(), traces=traces, verb="row")
    shares = _Shares(watcher, len(every))
    records = complete(every, simulated, RecordStore(folder), shares, failures, kept_from_s=KEPT_FROM_S)
    cache.remove_oldest()
    if failures:
        told = f"{len(failures)} of {len(every)} runs failed; the others are kept"
        raise FailedRuns("\n".join([told, *failures[:20]]))
    return [_gathered(run, worlds, records) for run in runs]


class _Shares(Unwatched):
    """Tells a watcher how much of many short runs is done, and not each of them."""

    def __init__(self, watcher: Watcher, runs: int) -> None:
        self._watcher, self._runs, self._done = watcher, runs, 0

    def kept(self, runs: int) -> None:
        self._done += runs
        self._say()

    def finished(self, run: Run, record: Record) -> None:
        self._done += 1
        self._say()

    def failed(self, run: Run, failure: Failure) -> None:
        self._watcher.failed(run, failure)

    def _say(self) -> None:
        self._watcher.at(f"{self._runs:,} runs in many worlds", self._done / self._runs)


def _gathered(run: Run, worlds: Worlds, records: dict[str, Record]) -> InWorlds:
    fast = _times(_fast(run, worlds), records)
    few = _correcting(run, worlds)
    row = records[run.key]["row"]
    if not few:
        return InWorlds(run, row, fast, None)
    better = _times(few, records)
    return InWorlds(run, row, corrected(fast, better), agreement(fast, better))


def _times(runs: Iterable[Run], records: dict[str, Record]) -> np.ndarray:
    return np.array([time_of(records[run.key]["row"]) for run in runs])


def _in_worlds(run: Run, worlds: Worlds) -> list[Run]:
    return [*_fast(run, worlds), *_correcting(run, worlds)]


def _fast(run: Run, worlds: Worlds) -> list[Run]:
    """The run of the fast engine, in all worlds."""
    return worlds.runs(replace(_thinned(run), engine=FAST) if run.engine != FAST else run, run.engine)


def _correcting(run: Run, worlds: Worlds) -> list[Run]:
    """The run of its own engine, in the first worlds; none if that is the fast one."""
    return [] if run.engine == FAST else worlds.runs(run, run.engine, CORRECTING)


def _thinned(run: Run) -> Run:
    """The run with few layers."""
    layers = run.workload.layers or len(run.model.moe_layer_ids)
    if layers <= THINNED or ENGINES[run.engine].name == FAST:
        return run
    workload = run.workload.model_copy(update={"layers": THINNED})
    scenario, demand = replace(run.scenario, workload=workload), replace(run.demand, workload=workload)
    return replace(run, scenario=scenario, demand=demand)

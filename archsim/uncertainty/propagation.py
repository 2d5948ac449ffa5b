"""Runs of an experiment in many worlds: the fast engine in all of them, the experiment's own engine in the first few.

A world is a run with another scenario, so that it goes through the pool, the store and the cache of any sweep: it may
be interrupted and resumed, and does not depend on the number of jobs. Where the experiment's engine corrects, the
fast engine runs at most `THINNED` layers: as a control variate it need only go up and down with the whole.

Two more causes of spread multiply the time of a world, the same for all options. *Traffic*: the fast engine runs some
draws of the traffic on the machine as it is; each world has one of them. *Layers*: where some of the layers ran, the
mean of those that a world draws among them, with replacement, over the mean of all (a bootstrap; its spread is that
of a sample without replacement from all layers of the model, Cochran, Sampling Techniques, 1977, section 2.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archsim.base.errors import FailedRuns
from archsim.base.host import available_cores
from archsim.runs import executor, pool, sweep
from archsim.runs import store as cache
from archsim.runs.packed_steps import unpack
from archsim.runs.run import Job, Record, Run, Workspace, generated_digest
from archsim.runs.store import RecordStore
from archsim.traffic import Trace
from archsim.uncertainty.correction import agreement, correct
from archsim.uncertainty.worlds import TRAFFIC, Worlds

FAST = "analytical"
CORRECTING = 16  # worlds that the experiment's own engine runs, too
THINNED = 8  # layers of the fast engine, where another one corrects it
KEPT_FROM_S = 0.02  # of simulation: shorter runs are done again sooner than read


@dataclass(frozen=True)
class InWorlds:
    """One run in all worlds."""

    run: Run  # in the nominal world
    row: Record  # of the run itself
    ns: np.ndarray  # float64[sample]: of decode, or of the prefill if it has no decode
    agreement: float | None  # see `archsim.uncertainty.correction.agreement`; None: one engine ran all
    by_layers: np.ndarray | None = None  # float64[sample]: factor on ns, of the layers' sample; None: all ran

    @property
    def layers(self) -> float:
        return float(self.row.get("layers_error") or 0.0)

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


def plan_runs(runs: Sequence[Run], worlds: Worlds) -> list[Run]:
    """All runs that `propagate` needs, each once: the experiment's own, then those in worlds."""
    every: dict[str, Run] = {run.key: run for run in runs}
    for run in runs:
        for each in (*_in_worlds(run, worlds), *runs_of_traffic(run, worlds)):
            every.setdefault(each.key, each)
    return list(every.values())


def propagate(
    runs: Sequence[Run],
    worlds: Worlds,
    folder: Path,
    traces: dict[tuple[str, str], Trace],
    jobs: int | None,
    watcher: sweep.Watcher,
) -> list[InWorlds]:
    """The runs in all worlds. ``folder``: of the records, which a later call finds. Raises FailedRuns."""
    every = plan_runs(runs, worlds)
    failures: list[str] = []
    records = sweep.complete(
        every, RecordStore(folder), SharedProgress(watcher, len(every)), failures, jobs or available_cores(),
        workspace=Workspace(traces=traces), kept_from_s=KEPT_FROM_S,
    )  # fmt: skip
    cache.remove_oldest()
    sweep.refuse_failed(failures, len(every))
    found = [_gather(run, worlds, records) for run in runs]
    return over_layers(over_traffic(found, worlds, records), traces)


class SharedProgress(sweep.Unwatched):
    """Tells a watcher how much of many short runs is done, and not each of them."""

    def __init__(self, watcher: sweep.Watcher, runs: int) -> None:
        self._watcher, self._runs, self._done = watcher, runs, 0

    def kept(self, runs: int) -> None:
        self._done += runs
        self._say()

    def on_finished(self, job: Job, record: Record) -> None:
        self._done += 1
        self._say()

    def on_failed(self, job: Job, failure: pool.Failure) -> None:
        self._watcher.on_failed(job, failure)

    def _say(self) -> None:
        self._watcher.at(f"{self._runs:,} runs in many samples", self._done / self._runs)


def _gather(run: Run, worlds: Worlds, records: dict[str, Record]) -> InWorlds:
    fast = _times(_fast(run, worlds), records)
    few = _correcting(run, worlds)
    row = records[run.key]["row"]
    if not few:
        return InWorlds(run, row, fast, None)
    better = _times(few, records)
    return InWorlds(run, row, correct(fast, better), agreement(fast, better))


def runs_of_traffic(run: Run, worlds: Worlds) -> list[Run]:
    """The run of the fast engine on the machine as it is: with its own traffic, and with other draws of it."""
    return [_with_traffic(_on_fast(run), at) for at in range(worlds.traffics)]


def layers_of(run: Run) -> int:
    return run.workload.layers or len(run.model.moe_layer_ids)


def _with_traffic(run: Run, at: int) -> Run:
    """The run with the ``at``-th draw of its traffic; 0: its own."""
    if not at:
        return run
    workload = run.workload.drawn(at)
    trace = run.trace if isinstance(workload.trace, str) else generated_digest(workload, run.model)
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload), trace=trace)


def over_traffic(found: list[InWorlds], worlds: Worlds, records: dict[str, Record]) -> list[InWorlds]:
    """With the traffic of every world. Draws of it are ordered by the mean time of all options, so that a draw between
    0 and 1 stands for the same traffic in each. Layers have traffic of their own: the mean of few varies by the root of
    their number more.
    """
    if not worlds.traffics:
        return found
    logs = np.log([_times(runs_of_traffic(each.run, worlds), records) for each in found])
    logs -= logs[:, :1]
    logs *= [[np.sqrt(layers_of(_on_fast(each.run)) / layers_of(each.run))] for each in found]
    order = np.argsort(logs.mean(axis=0), kind="stable")
    at = (np.arange(worlds.traffics) + 0.5) / worlds.traffics
    factors = (np.exp(np.interp(worlds.draws[TRAFFIC], at, own[order])) for own in logs)
    return [replace(each, ns=each.ns * factor) for each, factor in zip(found, factors, strict=True)]


def over_layers(found: list[InWorlds], traces: dict[tuple[str, str], Trace]) -> list[InWorlds]:
    """With the sample of layers that a world draws, the same for all options of equal layers."""
    some = [each for each in found if layers_of(each.run) < len(each.run.model.moe_layer_ids)]
    if not some:
        return found
    asked = [(replace(each.run, engine=FAST, details=True), each) for each in some]
    changed = {}
    for run, record in executor.simulate_all([run for run, _ in asked], 1, Workspace(traces=traces)):
        if isinstance(record, pool.Failure):
            raise FailedRuns(record.message)
        if record["steps"]:  # of very many steps none are kept
            columns = unpack(record["steps"])
            step, (_, layer) = np.array(columns["step"]), np.unique(columns["layer"], return_inverse=True)
            counted = np.isin(step, np.unique(step)[-int(record["row"]["decode_steps"] or 1) :])
            each = next(of for own, of in asked if own is run)
            of_layer = np.bincount(layer[counted], np.array(columns["time_ns"])[counted])
            changed[id(each)] = _sampled_layers(each, of_layer, len(run.model.moe_layer_ids))
    return [changed.get(id(each), each) for each in found]


def _sampled_layers(each: InWorlds, of_layer: np.ndarray, every: int) -> InWorlds:
    """``of_layer``: ns of every layer that ran, of ``every`` that the model has."""
    count = len(of_layer)
    if count < 2:
        return each
    rng = np.random.default_rng(count)
    means = of_layer[rng.integers(0, count, (len(each.ns), count))].mean(axis=1) / of_layer.mean()
    means = 1 + (means - 1) * np.sqrt((1 - count / every) * count / (count - 1))
    return replace(each, ns=each.ns * means, by_layers=means)


def _times(runs: Iterable[Run], records: dict[str, Record]) -> np.ndarray:
    return np.array([time_of(records[run.key]["row"]) for run in runs])


def _in_worlds(run: Run, worlds: Worlds) -> list[Run]:
    return [*_fast(run, worlds), *_correcting(run, worlds)]


def _fast(run: Run, worlds: Worlds) -> list[Run]:
    return worlds.runs(_on_fast(run), run.engine)


def _on_fast(run: Run) -> Run:
    return replace(_thin(run), engine=FAST) if run.engine != FAST else run


def _correcting(run: Run, worlds: Worlds) -> list[Run]:
    """The run of its own engine, in the first worlds; none if that is the fast one."""
    return [] if run.engine == FAST else worlds.runs(run, run.engine, CORRECTING)


def _thin(run: Run) -> Run:
    if layers_of(run) <= THINNED or run.engine == FAST:
        return run
    workload = run.workload.model_copy(update={"layers": THINNED})
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload))

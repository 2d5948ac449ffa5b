"""Ranges of a first page: a few runs in samples, each as one iteration of LAYERS layers on the analytical engine. A run
keeps its own time, multiplied by the factor of its short run, as a control variate does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from archsim.base.errors import FailedRuns
from archsim.runs import executor, pool
from archsim.runs.run import Job, Record, Run, Workspace
from archsim.traffic import Trace
from archsim.uncertainty.estimate import SURE, OptionPair
from archsim.uncertainty.propagation import FAST, InWorlds, layers_of, over_layers, over_traffic, runs_of_traffic
from archsim.uncertainty.worlds import Worlds

WORLDS = 32
LAYERS = 3  # of a short run: with 8 layers and 3 iterations, the ends of ratios on dojo differ by 0.02, most of them


@dataclass(frozen=True, eq=False)
class ShortRun(Job):
    """A run of which only the time counts. ``number``: among those of a call, which its key is."""

    run: Run
    number: int

    @property
    def key(self) -> str:
        return f"short-{self.number}"

    @property
    def code(self) -> str:
        return self.run.code

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def cacheable(self) -> bool:
        return self.run.cacheable

    @property
    def group(self) -> Hashable:
        return self.run.group

    @property
    def kernel(self) -> Hashable:
        return self.run.kernel

    @property
    def family(self) -> Hashable | None:
        return self.run.family

    @property
    def traffic(self) -> Hashable | None:
        return self.run.traffic

    @property
    def size(self) -> float:
        return self.run.size

    def simulate(self, workspace: Workspace) -> Record:
        """The record: its row has the times of decode and prefill, ns."""
        decode_ns, prefill_ns = workspace.of(self.run.simulator).times(self.run)
        row = {"decode_ns": decode_ns, "prefill_ns": prefill_ns}
        return {"run": self.key, "row": row, "host": {"wall_s": 0.0}}

    def summary(self, row: Mapping[str, Any]) -> str:
        return f"decode {row['decode_ns'] / 1e6:.3f} ms"

    def warm_up(self, workspace: Workspace) -> None:
        self.run.warm_up(workspace)

    def gather(self, workspace: Workspace, together: Sequence[Job]) -> None:
        self.run.gather(workspace, [each.run for each in together if isinstance(each, ShortRun)])


def quick_worlds(
    runs: Sequence[Run], rows: Sequence[Record], traces: dict[tuple[str, str], Trace], samples: int, jobs: int
) -> list[InWorlds]:
    """The runs in ``samples`` worlds; ``rows``: their results. Raises FailedRuns for a world that cannot run."""
    worlds = Worlds(runs, samples)
    short = [shorten(run) for run in runs]
    places = [[one, *worlds.runs(one, run.engine)] for one, run in zip(short, runs, strict=True)]
    traffics = [runs_of_traffic(one, worlds) for one in short]
    asked = [each for group in (*places, *traffics) for each in group]
    records: dict[int, Record] = {}
    listed = [ShortRun(run, number) for number, run in enumerate(asked)]
    for job, record in executor.simulate_all(listed, jobs, Workspace(traces=traces)):
        if isinstance(record, pool.Failure):
            raise FailedRuns(f"{job.name}: {record.message}")
        records[job.number] = record
    remaining = iter(records[number] for number in range(len(asked)))
    found = [InWorlds(one, row, _factors(remaining, len(place)), None)
             for one, row, place in zip(short, rows, places, strict=True)]  # fmt: skip
    by_key = {run.key: next(remaining) for traffic in traffics for run in traffic}
    ordered = over_traffic(found, worlds, by_key)
    whole = []
    for run, row, alone, each in zip(runs, rows, found, ordered, strict=True):
        own = np.log(each.ns / alone.ns) * np.sqrt(layers_of(each.run) / layers_of(run))  # more layers vary less
        value_ns = float(row["decode_ns"] or row["prefill_ns"])
        whole.append(InWorlds(run, row, value_ns * alone.ns * np.exp(own - own.mean()), None))
    return over_layers(whole, traces)


def tie(pair: OptionPair, worlds: int) -> bool:
    """Whether an order is a tie: its share of samples is below SURE plus the standard error of such a share."""
    return pair.probability < SURE + float(np.sqrt(SURE * (1 - SURE) / worlds))


def shorten(run: Run) -> Run:
    steps = min(run.workload.warmup_steps + 1, run.workload.decode_steps)
    changed = {"layers": min(LAYERS, layers_of(run)), "decode_steps": steps}
    workload = run.workload.model_copy(update=changed)
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload), engine=FAST, details=False)


def _factors(remaining: Iterator[Record], count: int) -> np.ndarray:
    """Times of the next ``count - 1`` worlds over that of the machine as it is, float64[world]."""
    ns = np.array(
        [float(row["decode_ns"] or row["prefill_ns"]) for row in (next(remaining)["row"] for _ in range(count))]
    )
    return ns[1:] / ns[0]

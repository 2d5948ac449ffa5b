"""From an experiment to its results: expand to runs, refuse what cannot run, simulate what is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from archsim.base.cores import available_cores
from archsim.base.errors import ArchsimError
from archsim.base.files import sole_writer
from archsim.base.nearest import did_you_mean
from archsim.runs.capacity import refuse_misfits, refuse_misroutes
from archsim.runs.pool.dask_cluster import simulate_on_cluster
from archsim.runs.pool.processes import simulate_all
from archsim.runs.pool.worker import Failure
from archsim.runs.results import Record, Results, collect, run_table
from archsim.runs.run import Run, expand, generated_digest, trace_label
from archsim.runs.store import RunStore
from archsim.specs.experiment import ExperimentSpec
from archsim.workload import Trace, open_trace
from archsim.workload.layers import some_layers


class Watcher(Protocol):
    """Hears how a sweep goes on; see ``archsim.cli.progress``."""

    def begin(self, runs: int, kept: int) -> None: ...

    def kept(self, runs: int) -> None: ...

    def finished(self, run: Run, record: Record) -> None: ...

    def failed(self, run: Run, failure: Failure) -> None: ...


class Unwatched:
    """Watches nothing."""

    def begin(self, runs: int, kept: int) -> None:
        pass

    def kept(self, runs: int) -> None:
        pass

    def finished(self, run: Run, record: Record) -> None:
        pass

    def failed(self, run: Run, failure: Failure) -> None:
        pass


@dataclass(frozen=True)
class Prepared:
    """The runs of an experiment in the order of the results, and its open traces.

    traces: by path and model name; digests (names of the routing): by model name.
    """

    runs: tuple[Run, ...]
    traces: dict[tuple[str, str], Trace]
    digests: dict[str, str]


def prepare(experiment: ExperimentSpec) -> Prepared:
    """Expand an experiment and open its trace. Raises TraceError if that is malformed, or of another model."""
    workload, traces = experiment.workload, {}
    if isinstance(workload.trace, str):
        traces = {(workload.trace, model.name): open_trace(workload.trace, model, workload.reader) for model in experiment.models}
        for trace in traces.values():
            some_layers(trace, workload.layers)  # refuses more than there are
        label = trace_label(workload)
        digests = {name: f"{label} {trace.digest}" for (_, name), trace in traces.items()}
    else:
        digests = {model.name: generated_digest(workload) for model in experiment.models}
    return Prepared(expand(experiment, digests), traces, digests)


def sweep(
    experiment: ExperimentSpec,
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    scheduler: str | None = None,
) -> Results:
    """Simulate every run of an experiment that is not kept in ``out`` (default: ``reports/<name>``).

    jobs: runs side by side (default: available cores); scheduler: address of a Dask cluster that does them instead. The tables in ``out`` do not depend on
    ``jobs``, on the order in which runs finish, or on what was kept. Raises CapacityError and TraceError before
    anything runs; ArchsimError at the end if runs have failed: the others are kept.
    """
    watcher = watcher or Unwatched()
    prepared = prepare(experiment)
    refuse_misfits(prepared.runs)
    refuse_misroutes(prepared.runs)
    with sole_writer(report_folder(experiment, out)):
        store = RunStore(report_folder(experiment, out))
        store.write_manifest(experiment, prepared.runs, prepared.digests)
        records = {run.key: record for run in prepared.runs if (record := store.load(run))}
        waiting = [run for run in prepared.runs if run.key not in records]
        watcher.begin(len(prepared.runs), len(records))
        if waiting:
            store.remove_outdated()
        if scheduler is None:
            replies = simulate_all(waiting, jobs or available_cores(), prepared.traces)
        else:
            replies = simulate_on_cluster(waiting, scheduler)
        _keep(replies, prepared, store, records, watcher)
        results = collect([records[run.key] for run in prepared.runs])
        results.write(store.folder)
    return results


def simulate(
    experiment: ExperimentSpec,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
) -> Results:
    """One run of an experiment, in this process; nothing is written. What is not named is the experiment's first.

    Raises ArchsimError for a name that the experiment does not have.
    """
    from archsim.runs.simulator import Simulator

    one = choose(experiment, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    prepared = prepare(one)
    return collect([Simulator(prepared.traces).record(prepared.runs[0])])


def choose(
    experiment: ExperimentSpec,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
) -> ExperimentSpec:
    """The experiment with one of everything: what is named, else the first. Raises ArchsimError for an unknown name."""
    workload = experiment.workload
    one_batch = _one("batch size", workload.batch, batch, lambda each: each)
    return experiment.model_copy(
        update={
            "systems": (_one("system", experiment.systems, system, _name),),
            "models": (_one("model", experiment.models, model, _name),),
            "policies": (_one("policy", experiment.policies, policy, _name),),
            "assumptions": (_one("assumption set", experiment.assumptions, assumptions, lambda each: each.label),),
            "workload": workload.model_copy(update={"batch": (one_batch,)}),
        }
    )


def report_folder(experiment: ExperimentSpec, out: str | Path | None) -> Path:
    return Path("reports") / experiment.name if out is None else Path(out)


def _keep(
    replies: Iterable[tuple[Run, Record | Failure]],
    prepared: Prepared,
    store: RunStore,
    records: dict[str, Record],
    watcher: Watcher,
) -> None:
    """Add the records of runs as they finish, keeping each and rewriting results.csv."""
    failures = []
    for run, reply in replies:
        if isinstance(reply, Failure):
            failures.append(f"{run.name}: {reply.message}")
            watcher.failed(run, reply)
            continue
        store.save(run, reply)
        records[run.key] = reply
        finished = [records[each.key] for each in prepared.runs if each.key in records]
        run_table(finished).write_csv(store.folder / "results.csv")
        watcher.finished(run, reply)
    if failures:
        count = f"{len(failures)} of {len(prepared.runs)} runs failed"
        raise ArchsimError("\n".join([f"{count}; the others are kept in {store.folder}", *failures]))


def _one(kind: str, items: Sequence, wanted, name_of: Callable):
    if wanted is None:
        return items[0]
    names = [name_of(item) for item in items]
    if wanted not in names:
        hint = "" if isinstance(wanted, int) else did_you_mean(wanted, names)
        raise ArchsimError(f"{kind} {wanted!r} is not in the experiment{hint} (it has: {', '.join(map(str, names))})")
    return items[names.index(wanted)]


def _name(spec) -> str:
    return spec.name

"""Completes jobs: those that are kept are found, others simulated (`complete`). A sweep selects the runs of an
experiment, completes them in chunks and writes the tables.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from archsim.base import errors, files, host
from archsim.runs import executor, plan, pool, results
from archsim.runs import store as cache
from archsim.runs.run import ROW, Job, Record, Run, Workspace
from archsim.runs.store import PART_RUNS, RecordStore, SweepStore
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.plan import Point, SweepPlan

# Without details, shorter runs are kept with their chunk only: writing one to disk takes as long.
KEPT_ALONE_S = 0.05
_MOST_SHOWN = 20  # failures reported one by one


class Watcher(Protocol):
    """Observes the progress of jobs; see ``archsim.cli.progress``."""

    def phase(self, text: str) -> None:
        """A long operation begins, such as ``opening trace …``."""

    def begin(self, runs: int) -> None: ...

    def kept(self, runs: int) -> None:
        """``runs`` results exist already."""

    def on_finished(self, job: Job, record: Record) -> None: ...

    def on_failed(self, job: Job, failure: pool.Failure) -> None: ...

    def at(self, text: str, share: float) -> None:
        """What a long job does, and how much of it is done."""


class Unwatched:
    """Watches nothing."""

    def phase(self, text: str) -> None:
        pass

    def begin(self, runs: int) -> None:
        pass

    def kept(self, runs: int) -> None:
        pass

    def on_finished(self, job: Job, record: Record) -> None:
        pass

    def on_failed(self, job: Job, failure: pool.Failure) -> None:
        pass

    def at(self, text: str, share: float) -> None:
        pass


def sweep(
    experiment: ExperimentSpec | SweepPlan,
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> results.Results:
    """Simulate every run that is not kept in ``out`` (default: ``reports/<name>``), ``jobs`` at a time (default:
    cores), on which no table depends. Raises CapacityError and TraceError before anything runs; FailedRuns at the end.
    """
    watcher = watcher or Unwatched()
    selection = plan.select(experiment, watcher.phase)
    return sweep_selected(selection, report_folder(selection.plan.experiment, out), jobs, watcher)


def sweep_selected(selection: plan.Selection, folder: Path, jobs: int | None, watcher: Watcher) -> results.Results:
    """Like `sweep`, but for runs that are selected already."""
    with files.sole_writer(folder):
        kept = SweepStore(folder, selection)
        workspace = Workspace(watcher.at, selection.maker.traces)
        kept.write_manifest()
        watcher.begin(len(selection))
        failures: list[str] = []
        parts = 0
        for points, runs in selection.blocks(PART_RUNS, kept.details):
            _do_part(parts, points, runs, kept, watcher, failures, jobs or host.available_cores(), workspace)
            parts += 1
        cache.remove_oldest()
        refuse_failed(failures, len(selection), folder)
        if parts > 1:
            watcher.phase("writing the tables")
        kept.finish(parts)
    return results.Results.load(folder)


def report_folder(experiment: ExperimentSpec, out: str | Path | None) -> Path:
    """``out``, or a folder named after the experiment. Raises ArchsimError for an empty name."""
    if out == "":
        raise errors.ArchsimError("--out: an empty name; expected a folder")
    return Path("reports") / experiment.name if out is None else Path(out)


def complete(
    jobs: Sequence[pool.AnyJob],
    store: RecordStore | None,
    watcher: Watcher,
    failures: list[str],
    processes: int = 1,
    *,
    workspace: Workspace | None = None,
    kept_from_s: float = 0.0,
    found: Callable[[pool.AnyJob, Record], None] = lambda job, record: None,
    outdate: Callable[[], None] = lambda: None,
) -> dict[str, Record]:
    """Records by key, without details: of the folder ``store`` (or None), of the cache, or simulated now, at most
    ``processes`` at a time. ``failures`` gets reasons of missing ones. Jobs with details, or over ``kept_from_s``, are
    kept as they finish. ``found`` gets every record; ``outdate`` is called before anything runs.
    """
    records: dict[str, Record] = {}
    waiting = []
    for job in jobs:
        record = _found(job, store)
        if record is None:
            waiting.append(job)
        else:
            records[job.key] = _row_of(record)
    watcher.kept(len(records))
    if waiting:
        outdate()
    for job in jobs:
        if job.key in records:
            found(job, records[job.key])
    if not waiting:
        return records
    for job, reply in executor.simulate_all(waiting, processes, workspace or Workspace(watcher.at)):
        if isinstance(reply, pool.Failure):
            failures.append(f"{job.name}: {reply.message}")
            watcher.on_failed(job, reply)
            continue
        if store is not None and (job.details or reply["host"]["wall_s"] >= kept_from_s):
            store.save(job, reply)
        cache.keep(job, reply)
        records[job.key] = _row_of(reply)
        found(job, records[job.key])
        watcher.on_finished(job, records[job.key])
    return records


def refuse_failed(failures: Sequence[str], of: int, folder: Path | None = None) -> None:
    """Raise FailedRuns if there are failures of ``of`` jobs. ``folder``: where the others are kept."""
    if failures:
        kept = "" if folder is None else f" in {folder}"
        more = [f"and {len(failures) - _MOST_SHOWN} more"] if len(failures) > _MOST_SHOWN else []
        head = f"{len(failures)} of {of} runs failed; the others are kept{kept}"
        raise errors.FailedRuns("\n".join([head, *failures[:_MOST_SHOWN], *more]))


def _do_part(
    number: int,
    points: Sequence[Point],
    runs: Sequence[Run],
    store: SweepStore,
    watcher: Watcher,
    failures: list[str],
    jobs: int,
    workspace: Workspace,
) -> None:
    if store.has_part(number, points, runs):
        watcher.kept(len(runs))
        return
    at = {run.key: point for point, run in zip(points, runs, strict=True)}
    records = complete(
        runs, store.records, watcher, failures, jobs,
        workspace=workspace,
        kept_from_s=KEPT_ALONE_S,
        found=lambda run, record: store.log(at[run.key], record),
        outdate=store.outdate,
    )  # fmt: skip
    if len(records) == len(at):
        store.write_part(number, points, runs, records)


def _found(job: Job, store: RecordStore | None) -> Record | None:
    record = None if store is None else store.load(job)
    if record is not None:
        return record
    record = cache.find(job)
    if record is not None and store is not None and job.details:
        store.save(job, record)
    return record


def _row_of(record: Record) -> Record:
    return {name: record[name] for name in ROW}  # details are many times as large

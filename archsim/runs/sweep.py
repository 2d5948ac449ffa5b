"""Turns an experiment, with or without axes, into results: it selects the runs, simulates the missing ones and writes
the tables.

Runs are processed in chunks: memory does not grow with the sweep, and finished runs are kept.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from archsim.base.errors import ArchsimError, FailedRuns
from archsim.base.files import sole_writer
from archsim.base.host import available_cores
from archsim.runs import store as cache
from archsim.runs.plan import Selection, select
from archsim.runs.pool import Failure, simulate_all, simulate_on_cluster
from archsim.runs.results import NO_DETAILS, Record, Results
from archsim.runs.run import Run
from archsim.runs.store import PART_RUNS, RecordStore, SweepStore
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.plan import Point, SweepPlan

Simulate = Callable[[Sequence[Run]], Iterable[tuple[Run, Record | Failure]]]
# Without details, shorter runs are kept with their chunk only: writing one to disk takes as long.
KEPT_ALONE_S = 0.05
_MOST_SHOWN = 20  # failures reported one by one


class Watcher(Protocol):
    """Observes the progress of a sweep; see ``archsim.cli.progress``."""

    def phase(self, text: str) -> None:
        """A long operation begins, such as ``opening trace …``."""

    def begin(self, runs: int) -> None: ...

    def kept(self, runs: int) -> None:
        """``runs`` results exist already."""

    def finished(self, run: Run, record: Record) -> None: ...

    def failed(self, run: Run, failure: Failure) -> None: ...

    def at(self, text: str, share: float) -> None:
        """What a long run does, and how much of it is done."""


class Unwatched:
    """Watches nothing."""

    def phase(self, text: str) -> None:
        pass

    def begin(self, runs: int) -> None:
        pass

    def kept(self, runs: int) -> None:
        pass

    def finished(self, run: Run, record: Record) -> None:
        pass

    def failed(self, run: Run, failure: Failure) -> None:
        pass

    def at(self, text: str, share: float) -> None:
        pass


def sweep(
    experiment: ExperimentSpec | SweepPlan,
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    scheduler: str | None = None,
) -> Results:
    """Simulate every run of an experiment that is not kept in ``out`` (default: ``reports/<name>``).

    jobs: parallel runs (default: available cores); scheduler: address of a Dask cluster to use instead. The tables in
    ``out`` do not depend on ``jobs``, on the order in which runs finish, or on kept results. Raises CapacityError and
    TraceError before anything runs; FailedRuns at the end if runs have failed: the others are kept.
    """
    watcher = watcher or Unwatched()
    selection = select(experiment, watcher.phase)
    return sweep_selected(selection, report_folder(selection.plan.experiment, out), jobs, watcher, scheduler)


def sweep_selected(
    selection: Selection, folder: Path, jobs: int | None, watcher: Watcher, scheduler: str | None = None
) -> Results:
    """Like `sweep`, but for runs that are selected already."""
    with sole_writer(folder):
        kept = SweepStore(folder, selection)
        verb = "record" if kept.details else "row"
        if scheduler is None:
            jobs, traces = jobs or available_cores(), selection.maker.traces
            simulated: Simulate = partial(simulate_all, jobs=jobs, traces=traces, verb=verb)
        else:
            simulated = partial(simulate_on_cluster, address=scheduler, verb=verb)
        kept.write_manifest()
        watcher.begin(len(selection))
        failures: list[str] = []
        parts = 0
        for points, runs in selection.blocks(PART_RUNS):
            _do_part(parts, points, runs, kept, simulated, watcher, failures)
            parts += 1
        cache.remove_oldest()
        if failures:
            raise FailedRuns(_failures_told(failures, len(selection), folder))
        if parts > 1:
            watcher.phase("writing the tables")
        kept.finish(parts)
    return Results.load(folder)


def report_folder(experiment: ExperimentSpec, out: str | Path | None) -> Path:
    """``out``, or a folder named after the experiment. Raises ArchsimError for an empty name."""
    if out == "":
        raise ArchsimError("--out: an empty name; expected a folder")
    return Path("reports") / experiment.name if out is None else Path(out)


def complete(
    runs: Sequence[Run],
    simulated: Simulate,
    store: RecordStore,
    watcher: Watcher,
    failures: list[str],
    *,
    details: bool = False,
    kept_from_s: float = 0.0,
    found: Callable[[Run, Record], None] = lambda run, record: None,
    outdate: Callable[[], None] = lambda: None,
) -> dict[str, Record]:
    """Records by key, without dies and links: of this folder, of the cache, or simulated now. Reasons for missing ones
    are added to ``failures``.

    Runs of at least ``kept_from_s`` are kept in the folder, with ``details`` including dies and links. ``found`` is
    called with every record; ``outdate`` is called before anything is simulated.
    """
    records: dict[str, Record] = {}
    waiting = []
    for run in runs:
        record = _found(run, store, details)
        if record is None:
            waiting.append(run)
        else:
            records[run.key] = _without_details(record)
    watcher.kept(len(records))
    if not waiting:
        return records
    outdate()
    for run in runs:
        if run.key in records:
            found(run, records[run.key])
    for run, reply in simulated(waiting):
        if isinstance(reply, Failure):
            failures.append(f"{run.name}: {reply.message}")
            watcher.failed(run, reply)
            continue
        record = reply if details else _without_details(reply)
        if record["host"]["wall_s"] >= kept_from_s:
            store.save(run, record)
        cache.keep(run, record)
        records[run.key] = _without_details(record)
        found(run, record)
        watcher.finished(run, record)
    return records


def _do_part(
    number: int,
    points: Sequence[Point],
    runs: Sequence[Run],
    store: SweepStore,
    simulated: Simulate,
    watcher: Watcher,
    failures: list[str],
) -> None:
    if store.has_part(number, points, runs):
        watcher.kept(len(runs))
        return
    at = {run.key: point for point, run in zip(points, runs, strict=True)}
    records = complete(
        runs, simulated, store.records, watcher, failures,
        details=store.details,
        kept_from_s=0.0 if store.details else KEPT_ALONE_S,
        found=lambda run, record: store.log(at[run.key], record),
        outdate=store.outdate,
    )  # fmt: skip
    if len(records) == len(at):
        store.write_part(number, points, runs, records)


def _found(run: Run, store: RecordStore, details: bool) -> Record | None:
    record = store.load(run)
    if record is not None and (record["dies"] or not details):
        return record
    record = cache.find(run, details)
    if record is not None and details:
        store.save(run, record)
    return record


def _without_details(record: Record) -> Record:
    return {**record, **NO_DETAILS}  # many times the row


def _failures_told(failures: list[str], of: int, folder: Path) -> str:
    more = [f"and {len(failures) - _MOST_SHOWN} more"] if len(failures) > _MOST_SHOWN else []
    return "\n".join(
        [f"{len(failures)} of {of} runs failed; the others are kept in {folder}", *failures[:_MOST_SHOWN], *more]
    )

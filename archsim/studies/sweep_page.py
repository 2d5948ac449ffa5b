"""The report of a sweep: a page of runs if dies and links are kept, else a page of points; a sample on both engines."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsim.base.errors import FailedRuns
from archsim.base.files import write_text
from archsim.base.tables import read_parquet
from archsim.report.page import PAGES, rendered, write_report
from archsim.runs.columns import RUN_COLUMNS
from archsim.runs.notes import die_of, result_notes, traffic_notes
from archsim.runs.plan import Selection
from archsim.runs.results import PARQUET
from archsim.runs.store import keeps_details
from archsim.specs.system import SystemSpec
from archsim.studies.comparison import Comparison, write_sample
from archsim.studies.exploration.page import write_points_page

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SweepReport:
    """``page``: its path; ``notes``: caveats of the results; ``sample``: None if no run is analytical."""

    page: Path
    notes: tuple[str, ...]
    sample: Comparison | None


def write_sweep_report(selection: Selection, folder: Path) -> SweepReport:
    """Run a sample of the analytical runs on both engines; write the page beside the results in ``folder``."""
    sample = write_sample(selection, folder)
    page, notes = write_sweep_page(selection, folder)
    return SweepReport(page, notes, sample)


@contextmanager
def failures_on_page(name: str, folder: Path) -> Iterator[None]:
    """Where runs of experiment ``name`` fail in this context, write ``index.html`` in ``folder``: which, and why.
    Passes FailedRuns on.
    """
    try:
        yield
    except FailedRuns as error:
        write_text(folder / PAGES[0], rendered("failed.html.j2", {"name": name, "failed": str(error).splitlines()}))
        raise


def shows_runs(selection: Selection) -> bool:
    """Whether the page shows every run with its dies and links (few runs, no axes) or points over their axes."""
    return not selection.plan.sweep.axes and keeps_details(selection.plan, len(selection))


def write_sweep_page(selection: Selection, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write ``index.html`` beside the results in ``folder``; returns its path and the caveats of the results."""
    rows = read_parquet(folder / PARQUET, RUN_COLUMNS).rows
    if shows_runs(selection):
        traffic = traffic_notes(selection.plan.experiment.workload.model_dump(mode="json")["trace"])
        experiment = selection.plan.experiment
        return write_report(folder), (*notes_of(rows, experiment.systems), *traffic, *experiment.unread)
    numbered = [{"point": number, **row} for number, row in zip(selection.kept, rows, strict=True)]
    return write_points_page(selection.plan, numbered, selection.dropped.by_constraint, folder)


def notes_of(rows: Iterable[Row], systems: Iterable[SystemSpec]) -> tuple[str, ...]:
    """Caveats of the calibrations and batches behind rows of results."""
    return tuple(result_notes(rows, [(system.name, die_of(system)) for system in systems]))

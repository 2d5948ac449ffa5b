"""Run a sample of runs or points on both engines: the error of the analytical engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import host
from archsim.base.answer import Answer, Grid, Part
from archsim.base.errors import FailedRuns
from archsim.base.files import write_text
from archsim.base.tables import DataFrame, Shown, frame_of, read_parquet
from archsim.machine.system import SystemSpec
from archsim.questions.exploration.axes_answer import answer_axes
from archsim.questions.exploration.page import write_points_page
from archsim.questions.ranges import write_ranges
from archsim.runs import columns, results, simulator, store, sweep
from archsim.runs.calibration_notes import die_of
from archsim.runs.engine_comparison import (
    ENGINES,
    OUTSIDE,
    Compared,
    compare_engines,
    errors,
    outside,
    sample,
    shorten,
    write_comparison,
)
from archsim.runs.notes import result_notes
from archsim.runs.plan import Selection
from archsim.runs.traffic_notes import traffic_notes
from archsim.show.answers import sentences
from archsim.show.page import PAGES, write_report
from archsim.show.rendering import render
from archsim.show.report import Report
from archsim.show.sections import ERROR_NAMES, error_rows
from archsim.show.units import count_of, percent, signed_percent

SAMPLE_OF_REPORT, STEPS_OF_REPORT = 12, 1  # small, as event runs are slow


@dataclass(frozen=True)
class Comparison(Shown):
    """``runs``: a sample of ``drawn_from`` runs or points, at most ``decode_steps`` decode steps each."""

    name: str
    runs: tuple[Compared, ...]
    drawn_from: int
    decode_steps: int

    def __repr__(self) -> str:
        return f"Comparison({self.name!r}, {len(self.runs)} of {self.drawn_from:,} runs on both engines)"

    @property
    def errors(self) -> DataFrame:
        """Errors of decode time by assumption set (``group``), as shares of the event engine's."""
        return errors(self.runs)

    @property
    def outside(self) -> list[Compared]:
        """Runs with an error above `archsim.runs.engine_comparison.OUTSIDE`, the largest first."""
        return outside(self.runs)

    def as_answer(self, kind: str = "runs") -> Answer:
        """The errors by assumption set, then every run outside the limit with the reason. ``kind``: runs or points."""
        off = [abs(each.error) for each in self.runs]
        said = (
            f"The analytical engine differs by {percent(float(np.median(off)), 1)} in the median and by "
            f"{percent(max(off), 1)} at most from the event engine in the time of decode of {len(self.runs)} of "
            f"{self.drawn_from:,} {kind} of {self.name}, with at most {count_of(self.decode_steps, 'decode step')}."
        )
        return Answer((said, *errors_of(self.runs)), result=self.to_pandas().to_dict("records"))

    def to_pandas(self) -> DataFrame:
        """One row per run: run, assumptions, event_ns, analytical_ns (decode), error (signed share), reason."""
        return frame_of(self.runs, ("run", "assumptions", "event_ns", "analytical_ns", "error", "reason"))


def errors_of(compared: Sequence[Compared]) -> list[Part]:
    """A table with a row for each assumption set, then the runs outside the limit."""
    found: list[Part] = [Grid(("error of decode time",), error_rows(compared), ERROR_NAMES)]
    if far := outside(compared):
        found.append(f"The engines differ by more than {OUTSIDE:.0%} in {len(far)} of {len(compared)} runs:")
    return [*found, *(f"  {each.run}: {signed_percent(each.error)} ({each.reason})" for each in far)]


def compare(selection: Selection, size: int, decode_steps: int, watcher: sweep.Watcher | None = None) -> Comparison:
    """Compares a fixed random sample of at most ``size`` runs, with at most ``decode_steps`` decode steps each."""
    return _compare(selection, selection.kept, size, decode_steps, watcher or sweep.Unwatched())


def _compare(
    selection: Selection, numbers: Sequence[int], size: int, decode_steps: int, watcher: sweep.Watcher
) -> Comparison:
    """numbers: of the points to draw the sample from."""
    plan, maker = selection.plan, selection.maker
    drawn = [shorten(run, decode_steps) for run in maker.runs(map(plan.point, sample(numbers, size)))]
    watcher.phase(f"{len(drawn)} runs on both engines")
    watcher.begin(len(ENGINES) * len(drawn))
    compared = tuple(compare_engines(drawn, simulator.Simulator(maker.traces), watcher.on_finished))
    fewest = min(decode_steps, plan.experiment.workload.decode_steps)
    return Comparison(plan.experiment.name, compared, len(numbers), fewest)


Row = Mapping[str, Any]


@dataclass(frozen=True)
class SweepReport:
    """``page``: its path; ``notes``: caveats of the results; ``sample``: None if no run is analytical; ``answer``: the
    first paragraph of the page, '' where nothing was decoded.
    """

    page: Path
    notes: tuple[str, ...]
    sample: Comparison | None
    answer: str = ""


def write_sweep_report(
    selection: Selection, folder: Path, samples: int = 0, jobs: int | None = None, watcher: sweep.Watcher | None = None
) -> SweepReport:
    """Run a sample of the analytical runs on both engines; write the page beside the results in ``folder``: every run
    with its dies and links (few runs, no axes), or points over their axes. ``samples``: worlds in which runs that the
    first sentences name get a range; 0: none.
    """
    plan, found = selection.plan, None
    if analytical := [number for number in selection.kept if plan.point(number).engine == "analytical"]:
        found = _compare(selection, analytical, SAMPLE_OF_REPORT, STEPS_OF_REPORT, sweep.Unwatched())
        write_comparison(folder, found.runs, STEPS_OF_REPORT, found.drawn_from)
    rows = read_parquet(folder / results.PARQUET, columns.RUN_COLUMNS).rows
    if not plan.sweep.axes and store.keeps_details(plan, len(selection)):
        experiment = plan.experiment
        left_out = write_ranges(selection, folder, samples, jobs, watcher or sweep.Unwatched())
        notes = (*notes_of(rows, experiment.systems), *traffic_notes(experiment.workload), *experiment.unread)
        answer = next(iter(sentences(Report(folder))), "")
        return SweepReport(write_report(folder), (*notes, *left_out), found, answer)
    numbered = [{"point": number, **row} for number, row in zip(selection.kept, rows, strict=True)]
    said = answer_axes(selection, numbered, samples, jobs or host.available_cores())
    page, notes = write_points_page(plan, numbered, selection.dropped.by_constraint, folder, said.sentences)
    return SweepReport(page, (*notes, *said.notes), found, " ".join(said.sentences))


@contextmanager
def failures_on_page(name: str, folder: Path) -> Iterator[None]:
    """Where runs fail in this context, write which and why to ``index.html``. Passes FailedRuns on."""
    try:
        yield
    except FailedRuns as error:
        write_text(folder / PAGES[0], render("failed.html.j2", {"name": name, "failed": str(error).splitlines()}))
        raise


def notes_of(rows: Iterable[Row], systems: Iterable[SystemSpec]) -> tuple[str, ...]:
    """Caveats of the calibrations and batches behind rows of results."""
    return tuple(result_notes(rows, [(system.name, die_of(system)) for system in systems]))

"""Run a sample of runs or points on both engines: the error of the analytical engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.tables import Shown
from archsim.runs.engine_comparison import (
    ENGINES,
    OUTSIDE,
    Compared,
    Errors,
    compare_engines,
    errors,
    sample,
    shortened,
    write_comparison,
)
from archsim.runs.plan import Selection
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import Unwatched, Watcher

if TYPE_CHECKING:
    import pandas


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
    def errors(self) -> list[Errors]:
        """Errors of decode time by assumption set, as shares of the event engine's."""
        return errors(self.runs)

    @property
    def outside(self) -> list[Compared]:
        """Runs with an error above `archsim.runs.engine_comparison.OUTSIDE`, the largest first."""
        outside = [each for each in self.runs if abs(each.error) > OUTSIDE]
        return sorted(outside, key=lambda each: -abs(each.error))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run: run, assumptions, event_ns, analytical_ns (decode), error (signed share), reason."""
        import pandas

        names = ("run", "assumptions", "event_ns", "analytical_ns", "error", "reason")
        return pandas.DataFrame([{name: getattr(each, name) for name in names} for each in self.runs], columns=names)


def compare(selection: Selection, size: int, decode_steps: int, watcher: Watcher | None = None) -> Comparison:
    """At most ``size`` runs drawn at random (always the same ones), at most ``decode_steps`` decode steps of each."""
    return _compare(selection, selection.kept, size, decode_steps, watcher or Unwatched())


def write_sample(selection: Selection, folder: Path) -> Comparison | None:
    """Compare the engines on a few analytical runs of a sweep, write that beside its results.

    None without such runs.
    """
    plan = selection.plan
    analytical = [number for number in selection.kept if plan.point(number).engine == "analytical"]
    if not analytical:
        return None
    found = _compare(selection, analytical, SAMPLE_OF_REPORT, STEPS_OF_REPORT, Unwatched())
    write_comparison(folder, found.runs, STEPS_OF_REPORT, found.drawn_from)
    return found


def _compare(
    selection: Selection, numbers: Sequence[int], size: int, decode_steps: int, watcher: Watcher
) -> Comparison:
    """numbers: of the points to draw the sample from."""
    plan, maker = selection.plan, selection.maker
    drawn = [shortened(run, decode_steps) for run in maker.runs(map(plan.point, sample(numbers, size)))]
    watcher.phase(f"{len(drawn)} runs on both engines")
    watcher.begin(len(ENGINES) * len(drawn))
    compared = tuple(compare_engines(drawn, Simulator(maker.traces), watcher.finished))
    fewest = min(decode_steps, plan.experiment.workload.decode_steps)
    return Comparison(plan.experiment.name, compared, len(numbers), fewest)

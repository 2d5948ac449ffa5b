"""Both engines on a sample of an experiment's runs or of a sweep's points: how far the analytical engine is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.runs.engine_comparison import (
    OUTSIDE,
    Compared,
    Errors,
    compare_engines,
    errors,
    sample,
    shortened,
    write_comparison,
)
from archsim.runs.point_runs import PointRuns
from archsim.runs.point_sweep import select
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import prepare
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.sweeps.plan import SweepPlan

if TYPE_CHECKING:
    import pandas

SAMPLE_OF_REPORT, STEPS_OF_REPORT = 12, 1  # small: the event engine takes its time for each


@dataclass(frozen=True)
class Comparison:
    """``runs``: the sample, drawn from ``drawn_from`` runs or points; at most ``decode_steps`` decode steps of each."""

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
        """One row a run: run, assumptions, event_ns, analytical_ns (decode), error (signed share), reason."""
        import pandas

        names = ("run", "assumptions", "event_ns", "analytical_ns", "error", "reason")
        return pandas.DataFrame([{name: getattr(each, name) for name in names} for each in self.runs], columns=names)


def compare(planned: ExperimentSpec | SweepPlan, size: int, decode_steps: int) -> Comparison:
    """At most ``size`` runs drawn at random (always the same ones), at most ``decode_steps`` decode steps of each.

    Raises what preparing the runs raises.
    """
    if isinstance(planned, SweepPlan):
        return _compare_points(planned, select(planned).kept, size, decode_steps)
    prepared = prepare(planned)
    drawn = [shortened(run, decode_steps) for run in sample(prepared.runs, size)]
    compared = tuple(compare_engines(drawn, Simulator(prepared.traces)))
    return Comparison(planned.name, compared, len(prepared.runs), _at_most(decode_steps, planned))


def write_sample(
    planned: ExperimentSpec | SweepPlan, folder: Path, numbers: Sequence[int] | None = None
) -> Comparison | None:
    """Compare the engines on a few analytical runs of a report, and keep that beside its results.

    numbers: points of a sweep that ran. None where no run is analytical.
    """
    if isinstance(planned, SweepPlan):
        kept = select(planned).kept if numbers is None else numbers
        analytical = [number for number in kept if planned.point(number).engine == "analytical"]
        if not analytical:
            return None
        found = _compare_points(planned, analytical, SAMPLE_OF_REPORT, STEPS_OF_REPORT)
    elif planned.engine == "analytical":
        found = compare(planned, SAMPLE_OF_REPORT, STEPS_OF_REPORT)
    else:
        return None
    write_comparison(folder, found.runs, STEPS_OF_REPORT, found.drawn_from)
    return found


def _compare_points(plan: SweepPlan, numbers: Sequence[int], size: int, decode_steps: int) -> Comparison:
    makers = PointRuns()
    drawn = [shortened(makers.run(plan.point(number)), decode_steps) for number in sample(numbers, size)]
    compared = tuple(compare_engines(drawn, Simulator(makers.traces)))
    return Comparison(plan.experiment.name, compared, len(numbers), _at_most(decode_steps, plan.experiment))


def _at_most(decode_steps: int, experiment: ExperimentSpec) -> int:
    return min(decode_steps, experiment.workload.decode_steps)

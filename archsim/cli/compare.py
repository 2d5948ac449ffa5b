"""What ``archsim compare`` does, and the sample that the report of an analytical sweep carries."""

from __future__ import annotations

from pathlib import Path

from archsim.cli.printing import tell_compiling
from archsim.specs.experiment import ExperimentSpec

SAMPLE_OF_REPORT, STEPS_OF_REPORT = 12, 1  # small: the event engine takes its time for each


def compare_command(experiment: ExperimentSpec, size: int, decode_steps: int) -> int:
    """Run a sample on both engines; print the errors by assumption set, and the runs outside with the reason."""
    tell_compiling()
    compared, of = _compare(experiment, size, decode_steps)
    print(f"{experiment.name}: {len(compared)} of {of} runs on both engines, {_at_most(decode_steps, experiment)}")
    print_errors(compared)
    return 0


def write_sample(experiment: ExperimentSpec, folder: Path) -> None:
    """Compare the engines on a few runs of an analytical sweep, for its report; prints the errors."""
    from archsim.runs.engine_comparison import write_comparison

    compared, of = _compare(experiment, SAMPLE_OF_REPORT, STEPS_OF_REPORT)
    write_comparison(folder, compared, STEPS_OF_REPORT, of)
    print(f"{len(compared)} of {of} runs also on the event engine, {STEPS_OF_REPORT} decode step each:")
    print_errors(compared)


def compare_points(plan, numbers, size: int, decode_steps: int):
    """Of the points of a sweep (by number), a sample on both engines: (compared, how many it was drawn from)."""
    from archsim.runs.engine_comparison import compare_engines, sample, shortened
    from archsim.runs.plan import RunMaker
    from archsim.runs.simulator import Simulator

    maker = RunMaker()
    drawn = [shortened(run, decode_steps) for run in maker.runs(map(plan.point, sample(numbers, size)))]
    return list(compare_engines(drawn, Simulator(maker.traces))), len(numbers)


def write_sample_of_points(plan, numbers, folder: Path) -> None:
    """As ``write_sample``, for the analytical points of a sweep; nothing where there are none."""
    from archsim.runs.engine_comparison import write_comparison

    analytical = [number for number in numbers if plan.point(number).engine == "analytical"]
    if analytical:
        compared, of = compare_points(plan, analytical, SAMPLE_OF_REPORT, STEPS_OF_REPORT)
        write_comparison(folder, compared, STEPS_OF_REPORT, of)
        print(f"{len(compared)} of {of:,} points also on the event engine, {STEPS_OF_REPORT} decode step each:")
        print_errors(compared)


def compare_points_command(plan, size: int, decode_steps: int) -> int:
    """Run a sample of a sweep's points on both engines; print as ``compare_command``."""
    from archsim.runs.plan import select

    tell_compiling()
    compared, of = compare_points(plan, select(plan).kept, size, decode_steps)
    print(f"{plan.experiment.name}: {len(compared)} of {of:,} points on both engines, {_at_most(decode_steps, plan.experiment)}")
    print_errors(compared)
    return 0


def print_errors(compared) -> None:
    """A line for every assumption set, then those outside."""
    from archsim.runs.engine_comparison import OUTSIDE, errors

    for each in errors(compared):
        rank = "–" if each.rank is None else f"{each.rank:.3f}"
        print(f"  {each.assumptions}: {each.runs} runs, error of decode time: median {each.median:.1%}, p95 {each.p95:.1%}, "
              f"max {each.largest:.1%}, signed median {each.signed_median:+.1%}; rank correlation {rank}")
    outside = sorted((each for each in compared if abs(each.error) > OUTSIDE), key=lambda each: -abs(each.error))
    for each in outside:
        print(f"  outside {OUTSIDE:.0%}: {each.run}: {each.error:+.1%}; {each.reason}")


def _at_most(decode_steps: int, experiment: ExperimentSpec) -> str:
    fewest = min(decode_steps, experiment.workload.decode_steps)
    return f"at most {fewest} decode {'step' if fewest == 1 else 'steps'}"


def _compare(experiment, size, decode_steps):
    from archsim.runs.engine_comparison import compare_engines, sample, shortened
    from archsim.runs.simulator import Simulator
    from archsim.runs.sweep import prepare

    prepared = prepare(experiment)
    drawn = [shortened(run, decode_steps) for run in sample(prepared.runs, size)]
    return list(compare_engines(drawn, Simulator(prepared.traces))), len(prepared.runs)

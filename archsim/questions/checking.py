"""Checks a file before anything is simulated: whether it is valid, whether it fits, and what it contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archsim.base.errors import ArchsimError, align
from archsim.base.own_code import CodeNotImported
from archsim.machine.system import SystemSpec
from archsim.runs.notes import system_notes
from archsim.specs.describe import summary, summary_of_serving, summary_of_sweep
from archsim.specs.library import Source
from archsim.specs.plan import SweepPlan

if TYPE_CHECKING:
    from archsim.runs.run import Run


MOST_SYSTEMS = 4  # whose ranges are listed
MOST_POINTS = 2000  # some seconds to check


@dataclass(frozen=True)
class Checked:
    """A valid file that can run."""

    content: Any  # what ``archsim.load`` gives
    summary: str  # a line on it
    details: tuple[str, ...]  # room for KV, and what its machines are as built
    notes: tuple[str, ...]  # what a reader should know first
    ranges: tuple[str, ...] = ()  # lines of tables of the numbers that `archsim sure` draws

    def __repr__(self) -> str:
        return "\n  ".join((self.summary, *self.details))


def check(
    found: Any, of: Source, overrides: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> Checked:
    """What ``archsim.load`` found in ``of`` after ``overrides``, checked as a run would check it; ``say``: hears of
    long work. Raises ArchsimError for what cannot run, with a line for each run or point that would fail.
    """
    planned = getattr(found, "plan", found)
    systems = systems_of(found)
    notes = [*system_notes(systems), *getattr(getattr(planned, "experiment", planned), "unread", ())]
    try:
        takes, details = _points(found, of, overrides, say)
    except CodeNotImported as error:
        takes, details = f". Points were not checked: {error}", []
    from archsim.runs.clocks import full_load_note
    from archsim.runs.plan import as_built_note
    from archsim.runs.prices import build_costs, carrier_note, making_notes

    def of_carrier(system: SystemSpec) -> Iterable[str]:
        machine = build_costs(system)
        return filter(None, [carrier_note(system.name, machine.carrier_share), *making_notes(machine)])

    def of_limits(system: SystemSpec) -> Iterable[str]:
        return (f"{system.name}: {line}" for line in full_load_note(system))

    notes += [*_of_each(systems, of_carrier), *_of_each(systems, of_limits)]
    details += _of_each(systems, as_built_note)
    return Checked(found, _summary(found, str(of)) + takes, tuple(details), tuple(notes), tuple(_ranges(systems)))


def systems_of(found: Any) -> list[SystemSpec]:
    """The machines of a file: its own, those of an experiment or of the points' base, or that of a deployment."""
    found = getattr(found, "plan", found)
    found = getattr(found, "experiment", found)
    alone = found if isinstance(found, SystemSpec) else getattr(found, "system", None)
    return [alone] if isinstance(alone, SystemSpec) else list(getattr(found, "systems", ()))


def _ranges(systems: list[SystemSpec]) -> Iterator[str]:
    """What numbers of a file's machines may be, and which count as exact, as `archsim sure` takes them."""
    from archsim.runs.prices import Coefficients
    from archsim.show.units import in_base_unit
    from archsim.specs.uncertainty import load_widths
    from archsim.uncertainty.system_quantities import economics_of, exact_of, ranges_of

    for system in systems[:MOST_SYSTEMS]:
        of = f"{system.name}: " if len(systems) > 1 else ""
        yield f"{of}`archsim sure` samples these numbers, beside those of kernels and fitted curves:"
        rows = []
        for each in ranges_of(system):
            low, high = (in_base_unit(end, each.unit) for end in (each.distribution.low, each.distribution.high))
            key, source = each.key.removeprefix("system."), each.source
            source = source.partition(": ")[0] if source.startswith("default of ") else source
            value = in_base_unit(each.value, each.unit)
            rows.append((f"  {key}", value, f"{low} to {high}", each.distribution.shape, source))
        yield from align([("  key", "value", "range", "shape", "source"), *rows]).splitlines()
        exact = [key.removeprefix("system.") for key in exact_of(system)]
        yield f"{of}These numbers count as exact: {', '.join(exact)}"
    if systems:
        traffics = load_widths().traffic
        draws = f"samples the traffic {traffics} times" if traffics else "keeps the traffic as it is"
        yield f"It {draws} and takes the layers that run as a sample of all."
        yield "Energy, area and price of all machines rest on these coefficients:"
        coefficients = [
            (
                f"  {each.key}", f"{each.value:.4g} {each.unit}".strip(),
                f"{each.distribution.low:.4g} to {each.distribution.high:.4g}", each.distribution.shape, each.source,
            )
            for each in economics_of(Coefficients())
        ]  # fmt: skip
        yield from align([("  key", "value", "range", "shape", "source"), *coefficients]).splitlines()


def _of_each(systems: Iterable[SystemSpec], lines_of: Callable[[SystemSpec], Iterable[str]]) -> Iterator[str]:
    """What there is to say of every machine. Machines whose fabric is own code that is not imported are left out."""
    for system in systems:
        with suppress(CodeNotImported):
            yield from lines_of(system)


def _points(found: Any, of: Source, overrides: Sequence[str], say: Callable[[str], None]) -> tuple[str, list[str]]:
    """(what its runs take, details): the quick checks of ``archsim sweep`` before it simulates."""
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.serving_files import Serving

    if isinstance(found, Serving):
        from archsim.serving.answers.runs import refused_points, serve_plan
        from archsim.serving.serving import check_serving, room_notes

        if found.axes:
            _refuse(refused_points(serve_plan(of, overrides)), len(found.spec.sweep.cells) if found.spec.sweep else 0)
        of_requests = check_serving(found)
        return "", [*found.recipe, *room_notes(found), *of_requests]
    if isinstance(found, SystemSpec):
        from archsim.runs.clocks import refuse_unpowered
        from archsim.runs.fabric_checks import refuse_own_fabric

        refuse_own_fabric(found)
        refuse_unpowered(found)
        return "", []
    planned = getattr(found, "plan", found)
    if not isinstance(planned, ExperimentSpec | SweepPlan):
        return "", []
    from archsim.base.host import available_cores
    from archsim.runs.feasibility import doubts_sentence, kv_room_notes
    from archsim.runs.plan import plan_of, select
    from archsim.runs.run_cost import cost_sentence

    plan = plan_of(planned)
    takes = f". To simulate: {cost_sentence(plan, available_cores())}"
    if plan.combinations > MOST_POINTS:
        return f"{takes}. `archsim sweep --dry-run` checks whether the points can run", []
    runs = select(plan, say).runs()
    _refuse(_refused_runs(plan, runs), len(runs))
    drawn = [run.system.drawn for run in runs if run.system.drawn is not None]
    first = min((each.wafer for each in drawn), default=0)  # of drawn machines, which have nearly the same room
    same_machines = [run for run in runs if run.system.drawn is None or run.system.drawn.wafer == first]
    return takes, [*kv_room_notes(same_machines), *doubts_sentence(same_machines)]


def _refused_runs(plan: SweepPlan, runs: Sequence[Run]) -> Iterator[str]:
    """A line for each run that would fail: where its system is written, its point or parts, and why."""
    from archsim.runs.plan import axes_text
    from archsim.runs.simulator import refusals

    for run, why in refusals(runs):
        if run.point is None:
            at = plan.experiment.limits_at.get((run.system.name, ""), "")
            which = f"{run.model.name} by {run.policy.name}, {run.assumptions.label}"
        else:
            point = plan.point(run.point)
            at, which = plan.system_at(point), f"point {run.point} ({axes_text(plan, point)})"
        yield f"{at}: {which}: {why}".removeprefix(": ")


def _refuse(lines: Iterable[str], of: int) -> None:
    """Raise ArchsimError for runs that would fail, a line each."""
    if found := list(dict.fromkeys(lines)):
        raise ArchsimError("\n".join([f"{len(found)} of {of} {'run' if of == 1 else 'runs'} would fail", *found]))


def _summary(found: Any, file: str) -> str:
    from archsim.base.fields import Spec
    from archsim.specs.serving_files import Serving

    planned = getattr(found, "plan", found)
    match planned:
        case Spec():
            return summary(planned)
        case SweepPlan():
            return summary_of_sweep(planned)
        case Serving():
            return summary_of_serving(planned)
    from archsim.traffic.traffic_presets import model_of

    return f"ok, a valid traffic preset of {model_of(file)}"

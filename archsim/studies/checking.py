"""What can be said of a file before anything is simulated: whether it is valid, fits, and what it contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from archsim.base.own_code import CodeNotImported
from archsim.specs.describe import summary, summary_of_serving, summary_of_sweep
from archsim.specs.library import Source
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec

MOST_SYSTEMS = 4  # whose ranges are listed
MOST_POINTS = 2000  # some seconds to check


@dataclass(frozen=True)
class Checked:
    """A valid file that can run. ``content``: what ``archsim.load`` gives; ``summary``: a line on it; ``details``: room
    for KV, what its machines are as built, ranges of their numbers; ``notes``: what a reader should know first.
    """

    content: Any
    summary: str
    details: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n  ".join((self.summary, *self.details))


def check(found: Any, of: Source, say: Callable[[str], None] = lambda text: None) -> Checked:
    """What ``archsim.load`` found in ``of``, checked as a run would check it; ``say``: told of long work. Raises
    ArchsimError for what cannot run.
    """
    planned = getattr(found, "plan", found)
    systems = systems_of(found)
    notes = [*system_notes(systems), *getattr(getattr(planned, "experiment", planned), "unread", ())]
    try:
        takes, details = _points(found, say)
    except CodeNotImported as error:
        takes, details = f"; points were not checked: {error}", []
    notes += [*_carrier_notes(systems), *_limit_notes(systems)]
    details += [*_as_built(systems), *_ranges(systems)]
    return Checked(found, _summary(found, str(of)) + takes, tuple(details), tuple(notes))


def system_notes(systems: Iterable[SystemSpec]) -> list[str]:
    """A sentence for every system whose state machine is clocked higher than its RTL, and for every value that is far
    from known machines.
    """
    from archsim.specs.plausible import plausibility_notes
    from microarch.silicon.synthesis import clock_note

    systems = list(systems)
    found = (clock_note(each.name, each.decision.executor, each.decision.fsm.clock_hz) for each in systems)
    odd = (note for each in systems for note in plausibility_notes(each.name, each.model_dump(by_alias=True)))
    return [note for note in dict.fromkeys([*found, *odd]) if note]


def systems_of(found: Any) -> list[SystemSpec]:
    """The machines of a file: its own, those of an experiment or of the points' base, or that of a deployment."""
    found = getattr(found, "plan", found)
    found = getattr(found, "experiment", found)
    alone = found if isinstance(found, SystemSpec) else getattr(found, "system", None)
    return [alone] if isinstance(alone, SystemSpec) else list(getattr(found, "systems", ()))


def _ranges(systems: list[SystemSpec]) -> Iterator[str]:
    """What numbers of a file's machines may be, and which count as exact, as `archsim sure` takes them."""
    from archsim.runs.energy import Coefficients
    from archsim.specs.uncertainty import load_widths
    from archsim.uncertainty.worlds import economics_of, exact_of, ranges_of

    for system in systems[:MOST_SYSTEMS]:
        of = f" of {system.name}" if len(systems) > 1 else ""
        yield f"ranges{of} that `archsim sure` draws from, beside those of kernels and measured laws:"
        for each in ranges_of(system):
            low, high = (_amount(end, each.unit) for end in (each.distribution.low, each.distribution.high))
            key, source = each.key.removeprefix("system."), each.source
            source = source.partition(": ")[0] if source.startswith("default of ") else source
            yield f"  {key} {_amount(each.value, each.unit)}: {low} to {high}, {each.distribution.shape}; {source}"
        exact = [key.removeprefix("system.") for key in exact_of(system)]
        yield f"exact{of}: {', '.join(exact)}"
    if systems:
        traffics = load_widths().traffic
        yield f"traffic: {f'{traffics} draws of it' if traffics else 'its own draw'}; layers: a sample of all"
        yield "energy, area and price, the same for all machines:"
        for each in economics_of(Coefficients()):
            spread = f"{each.distribution.low:.4g} to {each.distribution.high:.4g}, {each.distribution.shape}"
            yield f"  {each.key} {each.value:.4g} {each.unit}: {spread}; {each.source}"


def _amount(value: float, unit: str) -> str:
    """``1.5 TB/s``, ``300 ns``, ``0.9``."""
    from archsim.report.units import prefixed, significant

    if unit in ("B", "B/s", "FLOP/s", "Hz"):
        number, _, prefix = prefixed(value).partition("\u00a0")
        return f"{number} {prefix}{unit}"
    return f"{significant(value)} {unit}".strip()


def _as_built(systems: Iterable[SystemSpec]) -> Iterator[str]:
    """What is left of machines that are not perfect. Fabrics of own code are left out."""
    from archsim.runs.wafers import told_as_built

    for system in systems:
        with suppress(CodeNotImported):
            yield from told_as_built(system)


def _carrier_notes(systems: Iterable[SystemSpec]) -> Iterator[str]:
    """Of machines that do not fit on the carrier on which their links are. Fabrics of own code are left out."""
    from archsim.runs.energy import build_costs, carrier_note

    for system in systems:
        with suppress(CodeNotImported):
            if note := carrier_note(system.name, build_costs(system).carrier_share):
                yield note


def _limit_notes(systems: Iterable[SystemSpec]) -> Iterator[str]:
    """What machines with limits of power or heat can do at once."""
    from archsim.runs.power import full_load_told

    for system in systems:
        with suppress(CodeNotImported):
            yield from (f"{system.name}: {line}" for line in full_load_told(system))


def _points(found: Any, say: Callable[[str], None]) -> tuple[str, list[str]]:
    """(what its runs take, details): the checks of ``archsim sweep`` before it simulates, where they are quick, else
    what makes them.
    """
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.serving_files import Serving

    if isinstance(found, Serving):
        from archsim.serving.serving import check_serving, rooms_told

        of_requests = check_serving(found)
        return "", [*found.recipe, *rooms_told(found), *of_requests]
    if isinstance(found, SystemSpec):
        from archsim.runs.feasibility import refuse_own_fabric
        from archsim.runs.power import refuse_unpowered

        refuse_own_fabric(found)
        refuse_unpowered(found)
        return "", []
    planned = getattr(found, "plan", found)
    if not isinstance(planned, ExperimentSpec | SweepPlan):
        return "", []
    from archsim.base.host import available_cores
    from archsim.runs.feasibility import kv_rooms_told, told
    from archsim.runs.plan import plan_of, select

    plan = plan_of(planned)
    takes = f"; {told(plan, available_cores())}"
    if plan.combinations > MOST_POINTS:
        return f"{takes}; `archsim sweep --dry-run` checks whether points can run", []
    runs = select(plan, say).runs()
    drawn = [run.system.drawn for run in runs if run.system.drawn is not None]
    first = min((each.wafer for each in drawn), default=0)  # of drawn machines, which have nearly the same room
    alike = [run for run in runs if run.system.drawn is None or run.system.drawn.wafer == first]
    return takes, list(kv_rooms_told(alike))


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
    from archsim.workload.traffic_presets import model_of

    return f"ok, a valid traffic preset of {model_of(file)}"

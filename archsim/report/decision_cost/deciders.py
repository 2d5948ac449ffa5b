"""The executor of decisions in each system of a report: systems that differ in it alone, and the area a policy adds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archsim.report.data import Report
from archsim.report.units import TIME_UNITS, plain, scaled
from archsim.specs.machine.decision import DecisionSpec
from archsim.specs.machine.system import SystemSpec
from microarch.silicon.decision_area import CORES, added_cost

NEED_NO_ALLOCATOR = ("first_seen", "home")
GHZ = 1e9


@dataclass(frozen=True)
class Family:
    """Systems that differ in ``decision`` alone, by name; the first is the reference."""

    systems: Mapping[str, SystemSpec]

    @cached_property
    def lead(self) -> str:
        return next(iter(self.systems))

    def alike(self, *but: str) -> dict[str, SystemSpec]:
        """The lead, and the systems whose decision differs from the lead's in the named fields alone (``fsm.lanes``,
        ``executor``).
        """

        def rest(system: SystemSpec) -> dict[str, Any]:
            return {field: value for field, value in _flat(system.decision).items() if not field.startswith(but)}

        wanted = rest(self.systems[self.lead])
        return {name: system for name, system in self.systems.items() if rest(system) == wanted}


def families(report: Report) -> list[Family]:
    """The systems of a report, grouped by hardware."""
    return [
        Family({name: SystemSpec.model_validate(report.systems[name]) for name in names}) for names in report.families()
    ]


def deciders(report: Report) -> dict[str, str]:
    """System → its executor, in words."""
    return {name: words(system.decision) for family in families(report) for name, system in family.systems.items()}


def words(decision: DecisionSpec) -> str:
    """``state machine, 8 lanes at 2 GHz``."""
    if decision.executor == "fsm":
        lanes = "1 lane" if decision.fsm.lanes == 1 else f"{decision.fsm.lanes} lanes"
        return f"state machine, {lanes} at {clock(decision.fsm.clock_hz)}"
    if decision.executor == "firmware":
        return f"firmware on {CORES[decision.firmware.core].name} at {clock(decision.firmware.clock_hz)}"
    if decision.executor == "gpu":
        return "a kernel on every GPU"
    taken = decision.host.time_ns
    return f"host, {'timed during the run' if taken is None else scaled(taken, TIME_UNITS)}"


def clock(hz: float) -> str:
    return f"{plain(hz / GHZ)} GHz"


def added_mm2(system: SystemSpec, policy: Mapping[str, Any]) -> float:
    """Area that a policy adds to ``base``, without Local CPs: tables and the executor.

    policy: its mapping in the manifest. A host keeps the distribution table and the heatmap in its own memory.
    """
    allocates = policy["allocation"]["name"] not in NEED_NO_ALLOCATOR
    predicts = policy["prediction"]["name"] != "none"
    return added_cost(system, allocates, predicts).area_mm2


def _flat(decision: DecisionSpec) -> dict[str, Any]:
    """``fsm.lanes`` → value, for every field."""
    flat = {}
    for field, value in decision.model_dump(by_alias=True).items():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{field}.{name}": each for name, each in inner} if inner else {field: value}
    return flat

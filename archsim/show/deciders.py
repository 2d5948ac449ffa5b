"""The executor of decisions in each system of a report: systems that differ in it alone, and the area a policy adds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archsim.machine.decision import DecisionSpec
from archsim.machine.system import SystemSpec
from archsim.runs import results
from archsim.show.report import Report
from archsim.show.units import BYTE_UNITS, TIME_UNITS, percent, plain, significant, with_unit
from archsim.specs.policies import RULE_TYPES, PolicySpec
from microarch.silicon.area import WAFER_MM2
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

    def identical(self, *but: str) -> dict[str, SystemSpec]:
        """The lead, and systems whose decision differs from its in the named fields alone (``fsm.lanes``)."""

        def rest(system: SystemSpec) -> dict[str, Any]:
            return {field: value for field, value in _flat(system.decision).items() if not field.startswith(but)}

        wanted = rest(self.systems[self.lead])
        return {name: system for name, system in self.systems.items() if rest(system) == wanted}


def families(report: Report) -> list[Family]:
    return [Family({name: report.systems[name] for name in names}) for names in report.families()]


def deciders(report: Report) -> dict[str, str]:
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
    return f"host, {'timed during the run' if taken is None else with_unit(taken, TIME_UNITS)}"


def clock(hz: float) -> str:
    return f"{plain(hz / GHZ)} GHz"


def added_mm2(system: SystemSpec, policy: PolicySpec) -> float:
    """Area that a policy adds to ``base``, without Local CPs: tables (a host has them in its memory) and executor."""
    return added_cost(system, policy.allocation.name not in NEED_NO_ALLOCATOR, policy.predicts).area_mm2


def _flat(decision: DecisionSpec) -> dict[str, Any]:
    """``fsm.lanes`` → value, for every field."""
    flat: dict[str, Any] = {}
    for field, value in decision.model_dump(by_alias=True).items():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{field}.{name}": each for name, each in inner} if inner else {field: value}
    return flat


THROUGHPUT = "throughput_tokens_per_s"
PPM = 1e6


def rows(report: Report, family: Family) -> Iterator[dict[str, Any]]:
    """Every run of a policy that predicts, on every system of the family, beside that of its counterpart."""
    pairs = list(_pairs(report.experiment.policies))
    for name, system in family.systems.items():
        for run in report.of_system(name):
            for policy, reference in pairs:
                other = report.beside(run, policy=reference.name)
                if run["policy"] == policy.name and other is not None and other[THROUGHPUT]:
                    yield _row(run, other, system, policy)


def _pairs(policies: Sequence[PolicySpec]) -> Iterator[tuple[PolicySpec, PolicySpec]]:
    """(a policy that predicts, the same without)."""
    for policy in policies:
        for other in policies:
            identical = all(
                getattr(policy, part) == getattr(other, part) for part in RULE_TYPES if part != "prediction"
            )
            if identical and policy.predicts > other.predicts:
                yield policy, other


def _row(run: results.Row, other: results.Row, system: SystemSpec, policy: PolicySpec) -> dict[str, Any]:
    allocates = policy.allocation.name not in NEED_NO_ALLOCATOR
    added = added_cost(system, allocates, predicts=True).minus(added_cost(system, allocates, predicts=False))
    copied, gain = run["local_hbm_write_bytes"], run[THROUGHPUT] / other[THROUGHPUT]
    return {
        "run": run,
        "against": other["policy"],
        "who": words(system.decision),
        "mm2": f"{significant(added.area_mm2, 2)} mm²",
        "ppm": f"{significant(added.area_mm2 / WAFER_MM2 * PPM, 2)} ppm",
        "mw": f"{significant(added.power_mw, 2)} mW",
        "copies": with_unit(copied, BYTE_UNITS) if copied else "none",
        "throughput": percent(gain, 1),
        "gains": gain > 1.0,
    }

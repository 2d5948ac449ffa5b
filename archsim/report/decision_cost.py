"""The section on decisions: their cost on a host, as firmware and as a state machine, and the gain of cheaper ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from archsim.base.fields import Spec
from archsim.report.figures import policy_colours
from archsim.report.plots import PlotAxis, Points
from archsim.report.tables import Panel, Report
from archsim.report.units import BYTE_UNITS, TIME_UNITS, factor, percent, plain, scaled, significant
from archsim.runs import columns, results
from archsim.specs.decision import DecisionSpec
from archsim.specs.library import load_system
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.system import SystemSpec
from microarch.silicon.area import WAFER_MM2
from microarch.silicon.decision_area import CORES, added_cost

# ---- deciders
# The executor of decisions in each system of a report: systems that differ in it alone, and the area a policy adds.

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
    return [Family({name: report.systems[name] for name in names}) for names in report.families()]


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


def added_mm2(system: SystemSpec, policy: PolicySpec) -> float:
    """Area that a policy adds to ``base``, without Local CPs: tables and the executor. A host keeps the distribution
    table and the heatmap in its own memory.
    """
    return added_cost(system, policy.allocation.name not in NEED_NO_ALLOCATOR, policy.predicts).area_mm2


def _flat(decision: DecisionSpec) -> dict[str, Any]:
    """``fsm.lanes`` → value, for every field."""
    flat: dict[str, Any] = {}
    for field, value in decision.model_dump(by_alias=True).items():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{field}.{name}": each for name, each in inner} if inner else {field: value}
    return flat


# ---- design_map
# The co-design map: speed-up of a policy over base, decisions included, against the area it adds.

EXECUTORS = MappingProxyType({"fsm": "state machine", "firmware": "firmware", "host": "host", "gpu": "kernel"})


@dataclass(frozen=True)
class CostPoint:
    """One configuration: a system and a policy. ``mm2``: added area, ``speedup``: over base on the family's first
    system.
    """

    run: results.Row
    who: str
    executor: str
    mm2: float
    speedup: float


@dataclass(frozen=True)
class Map:
    """The co-design maps of a family: ``fronts``: (place, its front in words)."""

    figure: Points
    fronts: tuple[tuple[str, str], ...]


def map_of(report: Report, family: Family) -> Map | None:
    """Every configuration by added area and speed-up, a panel for every place; None of a family of one system."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    fronts = []
    for label in report.compared() if len(family.systems) > 1 else ():
        for model in report.models:
            points = points_of(report, family, Panel(label, family.lead, model))
            areas = sorted({point.mm2 for point in points})
            if len(areas) < 2:
                continue
            least = min(area for area in areas if area) / 2  # where points that add nothing stand
            place, best = f"{model} on {family.lead} and its family, {label}", front(points)
            rows += [_shown(point, place, least, point in best) for point in points]
            ends = [*(max(point.mm2, least) for point in best), areas[-1]]
            for at, point in enumerate(best):
                curves += [
                    {"place": place, "line": place, "mm2": mm2, "speedup": point.speedup}
                    for mm2 in dict.fromkeys((ends[at], ends[at + 1]))
                ]
            told = (f"{point.run['policy']} on {point.run['system']} {factor(point.speedup)}" for point in best)
            fronts.append((place, "; ".join(told)))
    if not rows:
        return None
    figure = Points(
        question="Which way of deciding is worth its area?", rows=rows, curves=curves, panel="place", zero=False,
        x=PlotAxis("mm2", "added area, mm²", "~s", log=True),
        y=PlotAxis("speedup", "speed-up over base, ×"), shape="executor",
        colours=policy_colours(report.policies), tips=_MAP_TIPS,
    )  # fmt: skip
    return Map(figure, tuple(fronts))


_MAP_TIPS = (
    ("policy", "policy"), ("system", "system"), ("who", "decided by"), ("told", "speed-up"), ("adds", "added area"),
    ("front", "on the front"),
)  # fmt: skip


def _shown(point: CostPoint, place: str, least: float, best: bool) -> dict[str, Any]:
    return {
        "place": place, "policy": point.run["policy"], "system": point.run["system"], "who": point.who,
        "mm2": max(point.mm2, least), "speedup": point.speedup, "told": factor(point.speedup),
        "adds": f"{significant(point.mm2)} mm²" if point.mm2 else "nothing", "front": "yes" if best else "no",
        "executor": EXECUTORS.get(point.executor, point.executor),
    }  # fmt: skip


def points_of(report: Report, family: Family, place: Panel) -> list[CostPoint]:
    """Every configuration at the largest batch at which the family's first system ran base."""
    runs = [run for run in report.at(place) if run["policy"] == "base" and run["throughput_tokens_per_s"]]
    if not runs:
        return []
    base = max(runs, key=lambda run: run["batch"])
    policies = {each.name: each for each in report.experiment.policies}
    points = []
    for name, system in family.systems.items():
        for run in report.at(place._replace(system=name)):
            rate = run["throughput_tokens_per_s"]
            if run["batch"] == base["batch"] and run["policy"] != "base" and rate:
                mm2, decision = added_mm2(system, policies[run["policy"]]), system.decision
                points.append(
                    CostPoint(run, words(decision), decision.executor, mm2, rate / base["throughput_tokens_per_s"])
                )
    return points


def front(points: list[CostPoint]) -> list[CostPoint]:
    """The Pareto-optimal points, sorted by area."""
    best: list[CostPoint] = []
    for point in sorted(points, key=lambda each: (each.mm2, -each.speedup)):
        if not best or point.speedup > best[-1].speedup:
            best.append(point)
    return best


# ---- published_overhead
# Published cost of decisions on a host, compared with the runs of a report.
#
# Yu et al., arXiv 2510.05497v2, figure 14: overhead of allocation on a host CPU in percent, over batches 4096, 8192 and
# 16384.

# (system of configs/systems, model) → percent, smallest and largest
PUBLISHED = MappingProxyType(
    {
        ("dojo", "deepseek-v3"): (5.2, 6.4),
        ("dojo", "qwen3-235b-a22b"): (11.1, 14.2),
        ("dojo_enhanced", "deepseek-v3"): (19.3, 23.8),
        ("dojo_enhanced", "qwen3-235b-a22b"): (42.0, 51.6),
    }
)
BATCHES = (4096, 8192, 16384)
POLICIES = ("allo", "allo+pred")  # the published range covers allocation only


@dataclass(frozen=True)
class OverheadComparison:
    """Overhead of a run and the published range, both in percent of the rest of a step."""

    low: float
    high: float
    simulated: float
    moved_by: str  # the change that moves it into the range
    host_ns: tuple[float, float]  # the host decision times that do

    @property
    def published(self) -> str:
        return f"{self.low:g} to {self.high:g}\u00a0%"

    @property
    def kind(self) -> str:
        """'met', 'above' or 'below'."""
        if self.low <= self.simulated <= self.high:
            return "met"
        return "above" if self.simulated > self.high else "below"

    @property
    def away(self) -> float:
        """Distance in percentage points from the nearer end of the range; 0 within it."""
        return max(self.simulated - self.high, self.low - self.simulated, 0.0)

    @property
    def verdict(self) -> str:
        return "met" if self.kind == "met" else f"not met: {significant(self.away, 2)} points {self.kind}"


def compare_run(run: results.Row, system: SystemSpec) -> OverheadComparison | None:
    """None if nothing was published for the wafer, model, batch and policy."""
    published = PUBLISHED.get((published_as(system) or "", run["model"]))
    if published is None or run["policy"] not in POLICIES or run["batch"] not in BATCHES:
        return None
    low, high = published
    simulated = run["decision_overhead_percent"]
    exposed_ns = run["decision_exposed_ns"] / decisions_of(run)
    host_ns = run["exposed_evaluate_ns"] / decisions_of(run)  # given, or the mean of the timed calls
    times_ns = _host_times_ns(low, high, simulated, exposed_ns, host_ns)
    return OverheadComparison(low, high, simulated, _moved_by(low, high, simulated, times_ns), times_ns)


def common_host_times(compared: Iterable[tuple[str, int, OverheadComparison]]) -> list[str]:
    """For every wafer and batch, the host decision time that meets all ranges. compared: (wafer, batch, comparison)."""
    by_place: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for wafer, batch, comparison in compared:
        by_place.setdefault((wafer, batch), []).append(comparison.host_ns)
    sentences = []
    for (wafer, batch), times in sorted(by_place.items()):
        least, most = max(low for low, _ in times), min(high for _, high in times)
        if least <= most:
            sentences.append(f"{scaled(least, TIME_UNITS)} to {scaled(most, TIME_UNITS)} at batch {batch:,} on {wafer}")
        else:
            sentences.append(f"none at batch {batch:,} on {wafer}")
    return sentences


def misses(compared: Iterable[OverheadComparison]) -> str:
    """``1 of 6 in the published range; 4 above it by 0.8 to 24 points; 1 below it by 0.1 points``."""
    compared = list(compared)
    parts = [f"{sum(each.kind == 'met' for each in compared)} of {len(compared)} in the published range"]
    for kind in ("above", "below"):
        away = sorted(each.away for each in compared if each.kind == kind)
        if away:
            least, most = (significant(each, 2) for each in (away[0], away[-1]))
            parts.append(f"{len(away)} {kind} it by {least if least == most else f'{least} to {most}'} points")
    return "; ".join(parts)


def decisions_of(run: results.Row) -> int:
    """Number of steps of a run, each with one decision."""
    iterations = int(run["decode_steps"]) + (run["prefill_ns"] > 0)
    return max(1, iterations * run["layers"])


def _host_times_ns(low: float, high: float, simulated: float, exposed_ns: float, host_ns: float) -> tuple[float, float]:
    """Host decision times that give the published overhead, negative where none does.

    Exposed time is nearly the same in every step, so overhead is exposed time over the (harmonic) mean of the rest of a
    step.
    """
    path_ns, rest_ns = exposed_ns - host_ns, exposed_ns / simulated * 100
    return low / 100 * rest_ns - path_ns, high / 100 * rest_ns - path_ns


def _moved_by(low: float, high: float, simulated: float, times_ns: tuple[float, float]) -> str:
    """The host decision time, or else the step time, that gives the published overhead."""
    length = f"a step {factor(simulated / high)} to {factor(simulated / low)} as long"
    least, most = times_ns
    if most <= 0:
        return f"no host decision time: PCIe, launch and messages alone take too long; {length}"
    return f"{scaled(max(least, 0.0), TIME_UNITS)} to {scaled(most, TIME_UNITS)} host decision time, or {length}"


def published_as(system: SystemSpec) -> str | None:
    """The shipped system (configs/systems) with the same hardware."""
    return next((name for name, _ in PUBLISHED if _same_hardware(load_named(name), system)), None)


@lru_cache
def load_named(name: str) -> SystemSpec:
    return load_system(name)


def _same_hardware(one: SystemSpec, other: SystemSpec) -> bool:
    """Whether their values are equal; ranges of numbers say how sure they are, not what was built."""
    parts = ("mesh", "topology", "fabric", "hbm", "d2d", "llc", "compute")
    both = ((getattr(one, part), getattr(other, part)) for part in parts)
    return all(first.has_values_of(second) if isinstance(first, Spec) else first == second for first, second in both)


# ---- worth
# What prediction costs in area and power, beside what it is worth in time: a policy that predicts, and the one that
# differs from it in that alone.

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
            alike = all(getattr(policy, part) == getattr(other, part) for part in RULE_TYPES if part != "prediction")
            if alike and policy.predicts > other.predicts:
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
        "copies": scaled(copied, BYTE_UNITS) if copied else "none",
        "throughput": percent(gain, 1),
        "gains": gain > 1.0,
    }


# ---- decisions

HIDDEN_PERCENT = 1.0  # a decision is hidden if it adds less to a step
AS_GOOD = 0.01  # firmware is sufficient if it loses less throughput
OVERHEAD, P50, P99 = "decision_overhead_percent", "decision_overhead_percent_p50", "decision_overhead_percent_p99"
NO_TIME = "–"


@dataclass(frozen=True)
class HeatCell:
    """A cell: its text, and the intensity of its colour, 0 to 1 (None: the decision is hidden)."""

    text: str
    share: float | None


@dataclass(frozen=True)
class Datapath:
    """Overhead by lanes (rows) and clock (columns) of one place, batch and policy."""

    title: str
    clocks: tuple[str, ...]
    rows: tuple[tuple[int, tuple[HeatCell, ...]], ...]
    note: str


def section(report: Report) -> dict[str, Any] | None:
    """Every part of the section that the report has systems for; None if no decision took time."""
    if not any((run[OVERHEAD] or 0.0) > 0 for run in report.runs):
        return None
    groups = families(report)
    hosts = [row for family in groups for row in _host_rows(report, family)]
    compared = [(row["wafer"], row["run"]["batch"], row["claim"]) for row in hosts if row["claim"]]
    parts = {
        "hosts": hosts,
        "host_misses": _host_misses(hosts),
        "host_times": common_host_times(compared),
        "pcie": [row for family in groups for row in _pcie_rows(family)],
        "datapaths": [each for family in groups for each in _datapaths(report, family)],
        "executors": [row for family in groups for row in _executor_rows(report, family)],
        "ports": [row for family in groups for row in _table_rows(report, family, "heatmap_port_bits")],
        "atus": [row for family in groups for row in _table_rows(report, family, "atu_entries")],
        "worth": [row for family in groups for row in rows(report, family)],
        "maps": [each for family in groups if (each := map_of(report, family)) is not None],
    }
    return parts if any(parts.values()) else None


def step_exposed_ns(run: results.Row) -> float:
    """Mean exposed time per decision."""
    return run["decision_exposed_ns"] / decisions_of(run)


def _percent(value: float | None) -> str:
    return NO_TIME if value is None else f"{significant(value, 2 if value < 10 else 3)}\u00a0%"


def _host_rows(report: Report, family: Family) -> Iterator[dict[str, Any]]:
    """Overhead on a host, with the published range for the same wafer, model and policy."""
    for name, system in family.systems.items():
        if system.decision.executor != "host":
            continue
        for run in _balanced(report, name):
            if not run[OVERHEAD]:
                continue
            yield {
                "run": run,
                "overhead": [_percent(run[column]) for column in (OVERHEAD, P50, P99)],
                "exposed": scaled(step_exposed_ns(run), TIME_UNITS),
                "decided": _decided(run, system),
                "wafer": published_as(system),
                "claim": compare_run(run, system),
            }


def _decided(run: results.Row, system: SystemSpec) -> str:
    """The given decision time, or the distribution of the times measured on the machine that ran archsim."""
    if system.decision.host.time_ns is not None:
        return scaled(system.decision.host.time_ns, TIME_UNITS)
    if run["host_p50_ns"] is None:
        return NO_TIME
    return ", ".join(scaled(run[f"host_p{at}_ns"], TIME_UNITS) for at in columns.HOST_PERCENTILES)


def _host_misses(hosts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(system, how far its runs are from the published range), for systems with a published range."""
    by_system: dict[str, list[OverheadComparison]] = {}
    for row in hosts:
        if row["claim"]:
            by_system.setdefault(row["run"]["system"], []).append(row["claim"])
    return [(name, misses(compared)) for name, compared in by_system.items()]


def _pcie_rows(family: Family) -> Iterator[dict[str, str]]:
    """Assumptions on the path to the host."""
    for name, system in family.systems.items():
        if system.decision.executor == "host":
            host = system.decision.model_dump(mode="json", by_alias=True)["host"]
            host["time"] = host["time"] or "timed during the run"
            yield {"system": name} | host


def _datapaths(report: Report, family: Family) -> Iterator[Datapath]:
    """A table of lanes by clock for every place, batch and policy, if systems differ in them."""
    systems = {
        name: each for name, each in family.alike("fsm.lanes", "fsm.clock").items() if each.decision.executor == "fsm"
    }
    by_design = {(each.decision.fsm.lanes, each.decision.fsm.clock_hz): name for name, each in systems.items()}
    if len(by_design) < 3:
        return
    for run in _balanced(report, next(iter(by_design.values()))):
        overheads: dict[tuple[int, float], float] = {}
        for design, name in by_design.items():
            other = report.beside(run, system=name)
            if other is not None and other[OVERHEAD] is not None:
                overheads[design] = other[OVERHEAD]
        if overheads and max(overheads.values()) > 0:
            title = f"{run['policy']}, {run['model']} on {family.lead}, batch {run['batch']:,}"
            yield _datapath(title, overheads)


def _datapath(title: str, overheads: dict[tuple[int, float], float]) -> Datapath:
    """overheads: (lanes, clock in Hz) → percent of a step."""
    lanes, clocks = sorted({design[0] for design in overheads}), sorted({design[1] for design in overheads})
    largest = max(overheads.values())

    def cell(design: tuple[int, float]) -> HeatCell:
        value = overheads.get(design)
        if value is None:
            return HeatCell(NO_TIME, 0.0)
        return HeatCell(_percent(value), None if value < HIDDEN_PERCENT else value / largest)

    rows = tuple((lane, tuple(cell((lane, hz)) for hz in clocks)) for lane in lanes)
    return Datapath(title, tuple(clock(hz) for hz in clocks), rows, _where_hidden(overheads))


def _where_hidden(overheads: dict[tuple[int, float], float]) -> str:
    """The fewest lanes at every clock from which on a decision is hidden."""
    fewest: dict[float, int] = {}
    for (lanes, hz), value in sorted(overheads.items()):
        if value < HIDDEN_PERCENT:
            fewest.setdefault(hz, lanes)
    if not fewest:
        least = min(overheads.values())
        return (
            f"Not hidden by any design: {_percent(least)} remain at the most lanes and the highest clock, mostly "
            f"messages over the fabric."
        )
    designs = " or ".join(
        f"{lanes} {'lane' if lanes == 1 else 'lanes'} at {clock(hz)}" for hz, lanes in sorted(fewest.items())
    )
    return f"Hidden from {designs} on."


def _executor_rows(report: Report, family: Family) -> Iterator[dict[str, Any]]:
    """State machine and firmware side by side, for systems that differ in nothing else."""
    systems = {
        name: each
        for name, each in family.alike("executor", "firmware", "host").items()
        if each.decision.executor != "host"
    }
    machine = next((name for name, each in systems.items() if each.decision.executor == "fsm"), None)
    if machine is None or len(systems) < 2:
        return
    for run in _balanced(report, machine):
        cells = []
        for name, system in systems.items():
            other = report.beside(run, system=name)
            if other is not None and other[OVERHEAD] is not None and name != machine:
                cells.append({"who": words(system.decision), **_executor_cell(other, run)})
        if cells and run[OVERHEAD] is not None:
            yield {"run": run, "machine": _executor_cell(run, run), "firmware": cells}


def _executor_cell(run: results.Row, machine: results.Row) -> dict[str, Any]:
    fast, slow = machine["throughput_tokens_per_s"], run["throughput_tokens_per_s"]
    return {
        "exposed": scaled(step_exposed_ns(run), TIME_UNITS),
        "overhead": _percent(run[OVERHEAD]),
        "enough": bool(fast and slow and slow >= fast * (1 - AS_GOOD)),
        "throughput": percent(slow / fast, 1) if fast and slow else NO_TIME,
    }


def _table_rows(report: Report, family: Family, field: str) -> Iterator[dict[str, Any]]:
    """Systems that differ in the port width of the heatmap, or in the entries of the ATU."""
    read: Callable[[SystemSpec], int]
    if field == "heatmap_port_bits":
        systems, read = family.alike("fsm.heatmap_port_bits"), lambda system: system.decision.fsm.heatmap_port_bits
    else:
        systems, read = family.alike("atu_entries"), lambda system: system.decision.atu_entries
    ordered = sorted(systems, key=lambda name: read(systems[name]))
    if len(ordered) < 2:
        return
    for lead in _balanced(report, family.lead):
        policy = next(each for each in report.experiment.policies if each.name == lead["policy"])
        if field == "heatmap_port_bits" and not policy.predicts:
            continue
        for name in ordered:
            run = report.beside(lead, system=name)
            if run is not None:
                row = _table_row(run, read(systems[name]))
                yield row | {"lead": family.lead, "first": name == ordered[0], "rows": len(ordered)}


def _table_row(run: results.Row, value: int) -> dict[str, Any]:
    speedup = run["speedup_vs_base"]
    copied = run["local_hbm_write_bytes"]
    return {
        "run": run,
        "value": f"{value:,}",
        "dropped": f"{run['heatmap_dropped']:,.0f}",
        "misses": f"{run['atu_misses']:,.0f}",
        "copies": scaled(copied, BYTE_UNITS) if copied else "none",
        "overhead": _percent(run[OVERHEAD]),
        "speedup": NO_TIME if speedup is None else factor(speedup),
    }


def _balanced(report: Report, system: str) -> list[results.Row]:
    """Runs of a system with a policy other than base."""
    return [run for run in report.of_system(system) if run["policy"] != "base"]

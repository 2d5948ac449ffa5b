"""The section on decisions: their cost on a host, as firmware and as a state machine, and the gain of cheaper ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from archsim.machine.system import SystemSpec
from archsim.runs import results
from archsim.runs.measures.decisions import HOST_PERCENTILES
from archsim.show import published_overhead
from archsim.show.deciders import Family, clock, families, rows, words
from archsim.show.design_map import map_of
from archsim.show.report import Report
from archsim.show.units import BYTE_UNITS, TIME_UNITS, factor, percent, significant, with_unit

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
    if not any((run[OVERHEAD] or 0.0) > 0 for run in report.runs):
        return None
    groups = families(report)
    hosts = [row for family in groups for row in _host_rows(report, family)]
    compared = [(row["wafer"], row["run"]["batch"], row["claim"]) for row in hosts if row["claim"]]
    parts = {
        "hosts": hosts,
        "host_misses": _host_misses(hosts),
        "host_times": published_overhead.common_host_times(compared),
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
    return run["decision_exposed_ns"] / published_overhead.decisions_of(run)


def _percent(value: float | None) -> str:
    return NO_TIME if value is None else f"{significant(value, 2 if value < 10 else 3)}\u00a0%"


def _host_rows(report: Report, family: Family) -> Iterator[dict[str, Any]]:
    """Overhead on a host, with the published range for the same wafer, model and policy."""
    for name, system in family.systems.items():
        if system.decision.executor != "host":
            continue
        for run in _balanced_runs(report, name):
            if not run[OVERHEAD]:
                continue
            yield {
                "run": run,
                "overhead": [_percent(run[column]) for column in (OVERHEAD, P50, P99)],
                "exposed": with_unit(step_exposed_ns(run), TIME_UNITS),
                "decided": _decision_text(run, system),
                "wafer": published_overhead.published_as(system),
                "claim": published_overhead.compare_run(run, system),
            }


def _decision_text(run: results.Row, system: SystemSpec) -> str:
    """The given decision time, or the distribution of the times measured on the machine that ran archsim."""
    if system.decision.host.time_ns is not None:
        return with_unit(system.decision.host.time_ns, TIME_UNITS)
    if run["host_p50_ns"] is None:
        return NO_TIME
    return ", ".join(with_unit(run[f"host_p{at}_ns"], TIME_UNITS) for at in HOST_PERCENTILES)


def _host_misses(hosts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(system, how far its runs are from the published range), for systems with a published range."""
    by_system: dict[str, list[published_overhead.OverheadComparison]] = {}
    for row in hosts:
        if row["claim"]:
            by_system.setdefault(row["run"]["system"], []).append(row["claim"])
    return [(name, published_overhead.misses(compared)) for name, compared in by_system.items()]


def _pcie_rows(family: Family) -> Iterator[dict[str, str]]:
    for name, system in family.systems.items():
        if system.decision.executor == "host":
            host = system.decision.model_dump(mode="json", by_alias=True)["host"]
            host["time"] = host["time"] or "timed during the run"
            yield {"system": name} | host


def _datapaths(report: Report, family: Family) -> Iterator[Datapath]:
    systems = {
        name: each
        for name, each in family.identical("fsm.lanes", "fsm.clock").items()
        if each.decision.executor == "fsm"
    }
    by_design = {(each.decision.fsm.lanes, each.decision.fsm.clock_hz): name for name, each in systems.items()}
    if len(by_design) < 3:
        return
    for run in _balanced_runs(report, next(iter(by_design.values()))):
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
        for name, each in family.identical("executor", "firmware", "host").items()
        if each.decision.executor != "host"
    }
    machine = next((name for name, each in systems.items() if each.decision.executor == "fsm"), None)
    if machine is None or len(systems) < 2:
        return
    for run in _balanced_runs(report, machine):
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
        "exposed": with_unit(step_exposed_ns(run), TIME_UNITS),
        "overhead": _percent(run[OVERHEAD]),
        "enough": bool(fast and slow and slow >= fast * (1 - AS_GOOD)),
        "throughput": percent(slow / fast, 1) if fast and slow else NO_TIME,
    }


def _table_rows(report: Report, family: Family, field: str) -> Iterator[dict[str, Any]]:
    """Systems that differ in the port width of the heatmap, or in the entries of the ATU."""
    read: Callable[[SystemSpec], int]
    if field == "heatmap_port_bits":
        systems, read = family.identical("fsm.heatmap_port_bits"), lambda system: system.decision.fsm.heatmap_port_bits
    else:
        systems, read = family.identical("atu_entries"), lambda system: system.decision.atu_entries
    ordered = sorted(systems, key=lambda name: read(systems[name]))
    if len(ordered) < 2:
        return
    for lead in _balanced_runs(report, family.lead):
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
        "copies": with_unit(copied, BYTE_UNITS) if copied else "none",
        "overhead": _percent(run[OVERHEAD]),
        "speedup": NO_TIME if speedup is None else factor(speedup),
    }


def _balanced_runs(report: Report, system: str) -> list[results.Row]:
    return [run for run in report.of_system(system) if run["policy"] != "base"]

"""Published cost of decisions on a host (Yu et al., arXiv 2510.05497v2, figure 14: percent over batches 4096, 8192 and
16384), beside the runs of a report.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from archsim.base.fields import Spec
from archsim.machine.system import SystemSpec
from archsim.runs import results
from archsim.show.units import TIME_UNITS, factor, significant, with_unit
from archsim.specs.library import load_system

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
    def published_text(self) -> str:
        return f"{self.low:g} to {self.high:g}\u00a0%"

    @property
    def kind(self) -> str:
        if self.low <= self.simulated <= self.high:
            return "met"
        return "above" if self.simulated > self.high else "below"

    @property
    def away(self) -> float:
        """Distance in percentage points from the nearer end of the range; 0 within it."""
        return max(self.simulated - self.high, self.low - self.simulated, 0.0)

    @property
    def verdict(self) -> str:
        return "reproduced" if self.kind == "met" else f"not reproduced: {significant(self.away, 2)} points {self.kind}"


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
            sentences.append(
                f"{with_unit(least, TIME_UNITS)} to {with_unit(most, TIME_UNITS)} at batch {batch:,} on {wafer}"
            )
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
    iterations = int(run["decode_steps"]) + (run["prefill_ns"] > 0)
    return max(1, iterations * run["layers"])


def _host_times_ns(low: float, high: float, simulated: float, exposed_ns: float, host_ns: float) -> tuple[float, float]:
    """Host decision times, ns, that give the published overhead, negative where none does. Overhead is exposed time,
    nearly the same in every step, over the (harmonic) mean of the rest of a step.
    """
    path_ns, rest_ns = exposed_ns - host_ns, exposed_ns / simulated * 100
    return low / 100 * rest_ns - path_ns, high / 100 * rest_ns - path_ns


def _moved_by(low: float, high: float, simulated: float, times_ns: tuple[float, float]) -> str:
    """The host decision time, or else the step time, that gives the published overhead."""
    length = f"a step {factor(simulated / high)} to {factor(simulated / low)} as long"
    least, most = times_ns
    if most <= 0:
        return f"no host decision time: PCIe, launch and messages alone take too long; {length}"
    return f"{with_unit(max(least, 0.0), TIME_UNITS)} to {with_unit(most, TIME_UNITS)} host decision time, or {length}"


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

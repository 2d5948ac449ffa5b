"""Which numbers of a machine and of the laws of a run are uncertain, and within what range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from math import log2
from typing import NamedTuple

from archsim.base.fields import Spec, dimension_of_field
from archsim.base.quantities import BANDWIDTH, CLOCK, COMPUTE, FRACTION, TIME, Dimension
from archsim.base.uncertain import Distribution, Quantity
from archsim.engine import fabrics, grouped_gemm, mesh_laws
from archsim.engine.cluster import moves, ports
from archsim.engine.cluster.laws import KERNELS
from archsim.engine.transfer_kernels import own_calibration
from archsim.iteration.machine import is_measured
from archsim.laws import die, moe
from archsim.laws.calibration_files import calibration_named
from archsim.machine.system import SystemSpec
from archsim.runs.prices import Coefficients
from archsim.specs.assumptions import GATHERING
from archsim.specs.scenario import Scenario
from archsim.specs.uncertainty import SUBSTITUTIONS, UncertaintySpec, load_widths
from archsim.specs.unread import ROWS, Chosen

VECTORS, PRODUCTS = (
    "kernels.vectors",
    "kernels.multiply",
)  # groups: measured together, one cannot be known without the other
_PARTS = {"permute": VECTORS, "quantise": VECTORS, "finalise": VECTORS, "multiply": PRODUCTS, "single": PRODUCTS}
_OF_HOST = ("system.decision.host.", "system.decision.gpu.")
_OF_DIMENSION = {COMPUTE.name: "peak", BANDWIDTH.name: "bandwidth", TIME.name: "latency", CLOCK.name: "clock"}
_EXECUTORS = ("fsm", "firmware", "host", "gpu")
_SAME_GPU = 0.01  # of rates: a die that differs by less is the GPU that was measured
# Key → the name of the command that measures it, of configs/uncertainty/widths.yaml.
_MEASURED_BY = {
    "system.hbm.*": "memory", "system.llc.*": "memory", "system.d2d.*": "p2p", "system.fabric.*": "p2p",
    "system.decision.host.*": "hostpath", "system.decision.gpu.*": "launch", "kernels.*": "moe",
    "system.compute.*": "gemm", "measured.moe.*": "moe", "measured.wide_ep.*": "moe", "measured.gemm.*": "gemm",
}  # fmt: skip


class SystemQuantity(NamedTuple):
    """A quantity of a system. ``path``: of attributes to its value; ``factors``: a draw multiplies it, is not it."""

    quantity: Quantity
    path: tuple[str, ...]
    factors: bool = False


def quantities_of(
    scenario: Scenario, engine: str = "event", widths: UncertaintySpec | None = None
) -> list[SystemQuantity]:
    """What is uncertain in a scenario and read by its run, in the order of its file. Raises SpecError."""
    widths = widths or load_widths()
    unread = _unread(scenario, engine)
    found = [
        each for each in _written(scenario.system, scenario, widths)
        if not any(fnmatchcase(each.quantity.key, pattern) for pattern in unread)
    ]  # fmt: skip
    ranged = {each.path for each in found}
    found += [each for each in _of_laws(scenario, widths) if each.path not in ranged or each.factors]
    return [each._replace(quantity=measurable(each.quantity)) for each in found if not each.quantity.exact]


def exact_of(system: SystemSpec) -> list[str]:
    """Keys of a system's numbers that count as exact: they have no range, and their kind has no default."""
    found = [key for key, _, spec, name, kind in _numbers(system) if name not in spec.ranges and not _kind(key, kind)]
    others = [f"system.decision.{name}." for name in _EXECUTORS if name != system.decision.executor]
    return [key for key in found if not key.startswith((*others, "system.compute.kernel"))]  # laws of their own


def ranges_of(system: SystemSpec, widths: UncertaintySpec | None = None) -> list[Quantity]:
    """Ranges of a system's numbers, own or by kind; without executors of decisions that it does not have."""
    others = [f"system.decision.{name}." for name in _EXECUTORS if name != system.decision.executor]
    every = [each.quantity for each in _written(system, None, widths or load_widths())]
    return [each for each in every if not each.key.startswith(tuple(others))]


def _unread(scenario: Scenario, engine: str) -> list[str]:
    run = Chosen(scenario.system, scenario.model, scenario.assumptions, scenario.policy, scenario.workload, engine)
    found = [pattern for row in ROWS if row.message(run) for pattern in row.keys]
    decides = scenario.assumptions.decision_cost == "charged" and scenario.system.decision.executor == "host"
    aside = () if decides else (f"{_OF_HOST[0]}*",)  # MoE layers tell worlds apart, which no host starts
    return [*found, *aside]


def _written(system: SystemSpec, scenario: Scenario | None, widths: UncertaintySpec) -> Iterator[SystemQuantity]:
    """Numbers with a range, own or by kind; without links between carriers where one holds all dies."""
    alone = fabrics.carriers_needed(system) == 1
    for key, path, spec, name, dimension in _numbers(system):
        if alone and key.startswith("system.d2d.off_carrier."):
            continue
        value, own = float(getattr(spec, name)), spec.ranges.get(name)
        distribution, group, source = None, _cause(key), ""
        if own is not None and own.distribution.centre == value:
            distribution, group = own.distribution, own.group or group
            source = own.source or f"range beside its value in {system.name}"
        elif (kind := _kind(key, dimension)) and value and not (_is_belief(key, scenario) or _is_timed(key, scenario)):
            distribution, source = widths.defaults[kind].of(value), f"default of {kind}: {widths.defaults[kind].source}"
            distribution = _within(spec, name, distribution)
        if distribution is not None:
            yield SystemQuantity(Quantity(key, value, _unit(dimension), source, distribution, group), path)


def _numbers(system: SystemSpec) -> Iterator[tuple[str, tuple[str, ...], Spec, str, Dimension]]:
    """(Key, path, spec, its attribute, dimension) of every number of a system that may have a range."""
    waiting: list[tuple[Spec, str, tuple[str, ...]]] = [(system, "system", ())]
    while waiting:
        spec, above, path = waiting.pop(0)
        for name, info in type(spec).model_fields.items():
            value, key = getattr(spec, name), f"{above}.{info.alias or name}"
            if isinstance(value, Spec):
                waiting.append((value, key, (*path, name)))
            elif isinstance(value, tuple):
                items = [(each, f"{key}.{at}", (*path, name, str(at))) for at, each in enumerate(value)]
                waiting += [each for each in items if isinstance(each[0], Spec)]
            elif value is not None and (dimension := dimension_of_field(info)) is not None:
                yield key, (*path, name), spec, name, dimension


def _kind(key: str, dimension: Dimension) -> str:
    """Kind of a number that has a default; '' of others, which are exact."""
    if dimension is FRACTION:
        return "efficiency" if key.endswith(".efficiency") else ""
    if key.endswith((".cost_quantum", "copies.bandwidth")):  # a choice, and the unit of a measured law
        return ""
    if key.startswith(_OF_HOST) and dimension.name == TIME.name:
        return "host"
    return _OF_DIMENSION.get(dimension.name, "")


def _is_belief(key: str, scenario: Scenario | None) -> bool:
    return key == "system.compute.efficiency" and scenario is not None and scenario.assumptions.gemm != "roofline"


def _is_timed(key: str, scenario: Scenario | None) -> bool:
    """Whether a number is in kernels' times measured on this very GPU, which `_off` has, and in little else."""
    if key != "system.hbm.efficiency" or scenario is None or scenario.system.launch != "gpu":
        return False
    kernels = scenario.assumptions.gemm in ("grouped", "calibrated")
    return kernels and scenario.assumptions.execution == "expert_parallel" and is_measured(scenario.system)


def _cause(key: str) -> str:
    """Name of the cause that several keys share; '' for a key of its own."""
    innermost = "system.fabric.levels.0."
    return f"system.d2d.{key.removeprefix(innermost)}" if key.startswith(innermost) else ""


def _unit(dimension: Dimension) -> str:
    return next((unit for unit, worth in dimension.units.items() if worth == 1), "")


def _within(spec: Spec, name: str, distribution: Distribution) -> Distribution:
    """A default, cut to what the key allows: a share is at most 1."""
    try:
        for end in distribution.ends:
            spec.with_value((name,), end)
    except ValueError:
        high = min(distribution.high, max(1.0, distribution.centre))
        low = distribution.low if distribution.low > 0 else distribution.centre
        return Distribution("uniform", low, distribution.centre, high)
    return distribution


def measurable(quantity: Quantity) -> Quantity:
    for pattern, command in _MEASURED_BY.items():
        if fnmatchcase(quantity.draws_as, pattern) or fnmatchcase(quantity.key, pattern):
            return replace(quantity, measured_by=command)
    return quantity


def _of_laws(scenario: Scenario, widths: UncertaintySpec) -> Iterator[SystemQuantity]:
    """What laws of kernels may be off: those of a die that is no GPU, and those measured on a GPU."""
    system, gemm = scenario.system, scenario.assumptions.gemm
    yield from _of_transfers(scenario, widths)
    if gemm not in ("grouped", "calibrated"):
        return
    if system.launch == "local_cp":
        yield from _of_own_kernels(scenario, widths)
        return
    if gemm == "grouped":
        law = grouped_gemm.law_of_ranks(system, scenario.model, system.dies, scenario.assumptions.receives)
        way = "fit" if law.measured else "nearest_shape"
        yield from _off(scenario, widths, "moe", way, law.tables[0].scaled_from, ("compute", "kernel_factor"))
    if gemm == "calibrated" or scenario.model.shared_experts:
        yield from _off(scenario, widths, "gemm", "fit", None, ("compute", "kernels", "single"))


def _of_own_kernels(scenario: Scenario, widths: UncertaintySpec) -> Iterator[SystemQuantity]:
    system, model = scenario.system, scenario.model
    compute, slowest = system.compute, widths.kernels
    rates = system.kernel_rates
    sizes = moe.MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k)
    vectors = die.Vectors(compute.lanes or 0, compute.clock_hz or 1.0)
    shares = slowest["vectors"].slowest, slowest["multiply"].slowest
    calibration = calibration_named(compute.calibration)
    bounds = die.kernel_bounds(calibration, sizes, compute.dtype, rates, shares, vectors, compute.library)
    bounds["single"] = bounds["multiply"]
    for part, (least, most) in bounds.items():
        value = getattr(compute.kernels, part)
        kind = "multiply" if _PARTS[part] == PRODUCTS else "vectors"
        source = f"roofline of the die, and {slowest[kind].source}"
        spread = Distribution("loguniform", min(least, value), value, max(most, value))
        yield SystemQuantity(
            Quantity(f"system.compute.kernels.{part}", value, "", source, spread, _PARTS[part]),
            ("compute", "kernels", part),
        )


def _of_transfers(scenario: Scenario, widths: UncertaintySpec) -> Iterator[SystemQuantity]:
    """What measured transfers may be off: dispatch, combine, collectives, or copies over links of a die."""
    system, assumptions = scenario.system, scenario.assumptions
    if system.endpoint is not None and assumptions.activations == "dispatched":
        low, high = mesh_laws.other_versions(system)
        text = f"other versions of the kernels of {system.endpoint}, and their errors of cases left out"
        spread = Distribution("loguniform", low, 1.0, high)
        yield SystemQuantity(
            Quantity("measured.endpoint", 1.0, "", text, spread), ("d2d", "measured_factor"), factors=True
        )
        return
    charged = system.launch == "gpu" and assumptions.transfer_software == "charged"
    if charged and assumptions.activations == "dispatched":
        gathers, kernel = assumptions.dispatch in GATHERING, KERNELS.get(assumptions.dispatch)
        ops = ("all_gather", GATHERING[assumptions.dispatch]) if gathers else ("all_to_all",)
        table = "nccl" if gathers or (kernel is not None and "nccl" in kernel.names) else "dispatch"
        ways = [_way_of_collective(system, op) for op in ops] if table == "nccl" else []
        ways += ["sibling_gpu"] if not gathers and _is_carried_over(scenario) else ["fit"]
        way = max(ways, key=SUBSTITUTIONS.index)
    elif system.d2d.copies is not None:
        table, way = "copies", "fit"
    else:
        return
    for quantity in measured_off(widths, table, way, scenario.model.name):
        yield SystemQuantity(quantity, ("d2d", "measured_factor"), factors=True)


def _way_of_collective(system: SystemSpec, op: str) -> str:
    """How the nearest law was had: on this GPU, on one that multiplies the same dtypes, or on another."""
    own = calibration_named(own_calibration(system))
    tables = [table for table in own.collectives if table.of.get("op") == op and "num_gpus" in table.of]
    if not tables:
        return "fit"  # its run refuses it
    near = min(tables, key=lambda each: (abs(log2(int(each.of["num_gpus"]) / system.dies)), bool(each.scaled_from)))
    if not near.scaled_from:
        return "fit"
    base = calibration_named(near.scaled_from).reference
    return "sibling_gpu" if set(base.peak_flop_per_s) == set(own.reference.peak_flop_per_s) else "scaled"


def measured_off(widths: UncertaintySpec, table: str, way: str, model: str) -> Iterator[Quantity]:
    """Two levels of a measured law: common to its table, and of the shape of the model."""
    levels = widths.levels(table, way)
    for level, of in (("common", ""), ("shape", f".{model}")):
        yield Quantity(f"measured.{table}.{way}.{level}{of}", 1.0, "", levels.learned, levels.level(level))


def _is_carried_over(scenario: Scenario) -> bool:
    """Whether kernels of transfers were measured on another GPU, shape or number of ranks."""
    return ports.grid_of(scenario.system) is not None and moves.kernels_carried(scenario)


def _off(
    scenario: Scenario, widths: UncertaintySpec, table: str, way: str, scaled_from: str | None, path: tuple[str, ...]
) -> Iterator[SystemQuantity]:
    """What a law of the die's kernels is off."""
    system, compute = scenario.system, scenario.system.compute
    reference = calibration_named(compute.calibration).reference
    peak = reference.peak_flop_per_s.get(compute.dtype)
    same = peak is not None and abs(compute.peak_flop_per_s / peak - 1) < _SAME_GPU
    way = "scaled" if scaled_from or not same else way
    table = widths.table_of_experts(way, system.dies) if table == "moe" else table
    for quantity in measured_off(widths, table, way, scenario.model.name):
        yield SystemQuantity(quantity, path, factors=True)


def economics_of(coefficients: Coefficients) -> list[Quantity]:
    """Prices, areas, energies, by their ranges; the value is the most likely. A user's own are exact."""
    return [
        Quantity(f"economics.{name}", each.value, each.unit, each.source,
                 Distribution("triangular", each.low, each.value, each.high))
        for name, each in coefficients.by_name().items() if each.low < each.high
    ]  # fmt: skip

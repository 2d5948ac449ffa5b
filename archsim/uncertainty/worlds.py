"""Worlds: scenarios whose uncertain numbers are drawn, the same draws for all policies, batches and systems.

What may be uncertain is found in a scenario (`quantities_of`): numbers with a range of their own; numbers without one
that have a default of their kind (configs/uncertainty/widths.yaml); kernels of a die that is no GPU
(`archsim.laws.die.kernel_bounds`); and what measured laws are off on points that no fit saw. What no run reads is left
out. A world is a scenario with other values: every engine runs it as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, FailedRuns
from archsim.base.fields import Spec, dimension_of_field
from archsim.base.host import available_cores
from archsim.base.quantities import BANDWIDTH, CLOCK, COMPUTE, FRACTION, TIME, Dimension
from archsim.engine import fabrics, grouped_gemm, mesh_laws
from archsim.engine.cluster import moves, ports
from archsim.laws import die, moe
from archsim.runs import pool, sweep
from archsim.runs import store as cache
from archsim.runs.energy import Coefficients
from archsim.runs.packed_steps import unpack
from archsim.runs.run import Job, Record, Run, Workspace, generated_digest
from archsim.runs.store import RecordStore
from archsim.specs.assumptions import GATHERING
from archsim.specs.calibration_files import calibration_named
from archsim.specs.scenario import Scenario
from archsim.specs.system import SystemSpec
from archsim.specs.uncertainty import LevelsSpec, UncertaintySpec, load_widths
from archsim.specs.unread import ROWS, Chosen
from archsim.uncertainty.estimate import agreement, correct
from archsim.uncertainty.quantities import Distribution, Quantity
from archsim.workload import Trace

LEAST_SAMPLES = 16
TRAFFIC = "traffic"  # name of the draw of which traffic runs, and its key
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
    "system.compute.*": "gemm", "measured.moe.*": "moe", "measured.gemm.*": "gemm",
}  # fmt: skip


class SystemQuantity(NamedTuple):
    """A quantity of a scenario's system. ``path``: of attributes, where its value stands; ``factors``: whether a draw
    multiplies what stands there, in place of being it.
    """

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
    """What a system's numbers may be, by their own ranges and by the defaults of their kinds; without those of
    executors of decisions that it does not have.
    """
    others = [f"system.decision.{name}." for name in _EXECUTORS if name != system.decision.executor]
    every = [each.quantity for each in _written(system, None, widths or load_widths())]
    return [each for each in every if not each.key.startswith(tuple(others))]


def _unread(scenario: Scenario, engine: str) -> list[str]:
    """Patterns of the keys that the run does not read."""
    run = Chosen(scenario.system, scenario.model, scenario.assumptions, scenario.policy, scenario.workload, engine)
    found = [pattern for row in ROWS if row.message(run) for pattern in row.keys]
    decides = scenario.assumptions.decision_cost == "charged" and scenario.system.decision.executor == "host"
    aside = () if decides else (f"{_OF_HOST[0]}*",)  # MoE layers tell worlds apart, which no host starts
    return [*found, *aside]


def _written(system: SystemSpec, scenario: Scenario | None, widths: UncertaintySpec) -> Iterator[SystemQuantity]:
    """Numbers with a range of their own, and those whose kind has a default; without those of links between carriers,
    where one carrier has room for all dies.
    """
    alone = fabrics.carriers_needed(system) == 1
    for key, path, spec, name, dimension in _numbers(system):
        if alone and key.startswith("system.d2d.off_carrier."):
            continue
        value, own = float(getattr(spec, name)), spec.ranges.get(name)
        distribution, group, source = None, _cause(key), ""
        if own is not None and own.distribution.centre == value:
            distribution, group = own.distribution, own.group or group
            source = own.source or f"range beside its value in {system.name}"
        elif (kind := _kind(key, dimension)) and value and not _is_belief(key, scenario):
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
    """Whether a number is what a policy believes, not what the machine does."""
    return key == "system.compute.efficiency" and scenario is not None and scenario.assumptions.gemm != "roofline"


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
    """The quantity with the command that measures it."""
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
    rates = system.nominal_rates
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
    """What measured transfers may be off: kernels of dispatch and combine and collectives of GPUs, or copies of slices
    over the links of a die.
    """
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
        table, carried = "collectives", assumptions.dispatch not in GATHERING and _is_carried_over(scenario)
        way = "sibling_gpu" if carried else "fit"
    elif system.d2d.copies is not None:
        table, way = "copies", "fit"
    else:
        return
    levels = widths.measured[table][way]
    source = f"{levels.source} ({levels.points} points that no fit saw)"
    for level, of in (("common", ""), ("shape", f".{scenario.model.name}")):
        key = f"measured.{table}.{way}.{level}{of}"
        yield SystemQuantity(
            Quantity(key, 1.0, "", source, levels.level(level)), ("d2d", "measured_factor"), factors=True
        )


def _is_carried_over(scenario: Scenario) -> bool:
    """Whether kernels of transfers were measured on another GPU, shape or number of ranks."""
    return ports.grid_of(scenario.system) is not None and moves.kernels_carried(scenario)


def _off(
    scenario: Scenario, widths: UncertaintySpec, table: str, way: str, scaled_from: str | None, path: tuple[str, ...]
) -> Iterator[SystemQuantity]:
    """Two levels of a measured law: common to its table, and of the shape of the model."""
    compute = scenario.system.compute
    reference = calibration_named(compute.calibration).reference
    peak = reference.peak_flop_per_s.get(compute.dtype)
    same = peak is not None and abs(compute.peak_flop_per_s / peak - 1) < _SAME_GPU
    way = "scaled" if scaled_from or not same else way
    levels: LevelsSpec = widths.measured[table].get(way) or widths.measured[table]["fit"]
    for level, name in (("common", f"measured.{table}.{way}.common"), ("shape", f"measured.{table}.{way}.shape")):
        of_shape = f".{scenario.model.name}" if level == "shape" else ""
        source = f"{levels.source} ({levels.points} points that no fit saw)"
        yield SystemQuantity(Quantity(f"{name}{of_shape}", 1.0, "", source, levels.level(level)), path, factors=True)


def economics_of(coefficients: Coefficients) -> list[Quantity]:
    """Prices, areas and energies, by their own ranges: the value is the most likely. Those that a user set have none,
    and are exact.
    """
    return [
        Quantity(f"economics.{name}", each.value, each.unit, each.source,
                 Distribution("triangular", each.low, each.value, each.high))
        for name, each in coefficients.by_name().items() if each.low < each.high
    ]  # fmt: skip


def refuse_few(samples: int) -> None:
    """Raise ArchsimError for samples too few for ends of 5 %."""
    if samples < LEAST_SAMPLES:
        raise ArchsimError(f"--samples {samples}: expected at least {LEAST_SAMPLES}, so that the 5 % ends are known")


def draws_of(names: Sequence[str], samples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Name of a draw → float64[sample] in (0, 1), of a scrambled Sobol' sequence. Raises ArchsimError for few samples.

    Equal names, samples and seed give equal numbers. The first 2**k samples are themselves spread evenly.
    """
    refuse_few(samples)
    if not names:
        return {}
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(names), scramble=True, seed=np.random.default_rng(seed))
    power = int(np.ceil(np.log2(samples)))
    points = sequence.random_base2(power)[:samples]
    return dict(zip(names, np.clip(points, 1e-9, 1 - 1e-9).T, strict=True))


class Worlds:
    """``samples`` worlds of the scenarios of an experiment. ``draws``: name of a draw → float64[sample]."""

    def __init__(self, runs: Iterable[Run], samples: int, seed: int = 0) -> None:
        """Raises SpecError, and ArchsimError for few samples."""
        self.samples, self._widths = samples, load_widths()
        self._found: dict[tuple[int, ...], tuple[Scenario, list[SystemQuantity]]] = {}
        self._systems: dict[tuple, list[SystemSpec]] = {}
        self._runs: dict[tuple[object, ...], tuple[Run, list[Run]]] = {}
        runs = list(runs)
        names = {each.quantity.draws_as for run in runs for each in self.quantities(run, run.engine)}
        self.traffics = self._widths.traffic if any(_drawn_anew(run) for run in runs) else 0
        names |= {TRAFFIC} if self.traffics else set()
        self.draws = draws_of(sorted(names), samples, seed)

    def quantities(self, scenario: Scenario, engine: str) -> list[SystemQuantity]:
        """What is uncertain in a scenario of the experiment."""
        parts = scenario.system, scenario.model, scenario.assumptions, scenario.policy
        key = (*map(id, parts), hash(engine))
        if key not in self._found:
            self._found[key] = scenario, quantities_of(scenario, engine, self._widths)
        return self._found[key][1]

    def runs(self, run: Run, engine: str, most: int | None = None) -> list[Run]:
        """A run in every world, or in the first ``most``. ``engine``: of the experiment, which says what is read; so
        that another engine has the same worlds.
        """
        parts = run.system, run.model, run.policy, run.assumptions, run.workload
        key = (*map(id, parts), run.batch, run.engine, engine)
        if key not in self._runs:
            systems = self._drawn_systems(run, engine)
            made = [replace(run, system=system) for system in systems]
            self._runs[key] = run, made
        return self._runs[key][1][:most]

    def _drawn_systems(self, scenario: Scenario, engine: str) -> list[SystemSpec]:
        """The system in every world; one object where scenarios read the same of it."""
        found = self.quantities(scenario, engine)
        key = (id(scenario.system), *(each.quantity for each in found))
        if key not in self._systems:
            self._systems[key] = [drawn(scenario.system, found, self.draws, at) for at in range(self.samples)]
        return self._systems[key]


def _drawn_anew(run: Run) -> bool:
    """Whether another seed gives the run other traffic that is as likely. Of a recorded trace, other requests of it."""
    return run.cacheable


def drawn(
    system: SystemSpec, found: Sequence[SystemQuantity], draws: Mapping[str, np.ndarray], sample: int
) -> SystemSpec:
    """The system with the numbers of a world. ``draws``: as of `draws_of`."""
    factors: dict[tuple[str, ...], float] = {}
    for each in found:
        value = value_of(each.quantity, draws, sample)
        if each.factors:
            factors[each.path] = factors.get(each.path, float(_at(system, each.path))) * value
        else:
            system = system.with_value(each.path, value)
    for path, value in factors.items():
        system = system.with_value(path, value)
    return system


def value_of(quantity: Quantity, draws: Mapping[str, np.ndarray], sample: int) -> float:
    """A quantity in a world."""
    return float(quantity.distribution.at(draws[quantity.draws_as][sample : sample + 1])[0])


def _at(spec: Spec, path: tuple[str, ...]) -> float:
    value: object = spec
    for key in path:
        value = value[int(key)] if isinstance(value, tuple) else getattr(value, key)
    return float(value)  # type: ignore[arg-type]


# Runs of an experiment in many worlds: the fast engine in all of them, the experiment's own engine in the first few.
#
# A world is a run with another scenario, so that it goes through the pool, the store and the cache of any sweep: it may
# be interrupted and resumed, and does not depend on the number of jobs. Where the experiment's engine corrects, the
# fast engine runs at most `THINNED` layers: as a control variate it need only go up and down with the whole.
#
# Two more causes of spread multiply the time of a world, the same for all options. *Traffic*: the fast engine runs some
# draws of the traffic on the machine as it is; each world has one of them. *Layers*: where some of the layers ran, the
# mean of those that a world draws among them, with replacement, over the mean of all (a bootstrap; its spread is that
# of a sample without replacement from all layers of the model, Cochran, Sampling Techniques, 1977, section 2.6).

FAST = "analytical"
CORRECTING = 16  # worlds that the experiment's own engine runs, too
THINNED = 8  # layers of the fast engine, where another one corrects it
KEPT_FROM_S = 0.02  # of simulation: shorter runs are done again sooner than read


@dataclass(frozen=True)
class InWorlds:
    """One run in all worlds."""

    run: Run  # in the nominal world
    row: Record  # of the run itself
    ns: np.ndarray  # float64[sample]: of decode, or of the prefill if it has no decode
    agreement: float | None  # see `archsim.uncertainty.estimate.agreement`; None: one engine ran all
    by_layers: np.ndarray | None = None  # float64[sample]: factor on ns, of the layers' sample; None: all ran

    @property
    def layers(self) -> float:
        return float(self.row.get("layers_error") or 0.0)

    @property
    def value_ns(self) -> float:
        return time_of(self.row)

    @property
    def tokens_per_s(self) -> np.ndarray:
        """Throughput in every world, float64[sample]; 0 without decode."""
        value = self.row["throughput_tokens_per_s"]
        return np.full(len(self.ns), 0.0) if not value else value * self.value_ns / self.ns


def time_of(row: Record) -> float:
    """ns of decode, or of prefill where there is no decode."""
    return float(row["decode_ns"] or row["prefill_ns"])


def plan_runs(runs: Sequence[Run], worlds: Worlds) -> list[Run]:
    """All runs that `propagate` needs, each once: the experiment's own, then those in worlds."""
    every: dict[str, Run] = {run.key: run for run in runs}
    for run in runs:
        for each in (*_in_worlds(run, worlds), *runs_of_traffic(run, worlds)):
            every.setdefault(each.key, each)
    return list(every.values())


def propagate(
    runs: Sequence[Run],
    worlds: Worlds,
    folder: Path,
    traces: dict[tuple[str, str], Trace],
    jobs: int | None,
    watcher: sweep.Watcher,
    scheduler: str | None = None,
) -> list[InWorlds]:
    """The runs in all worlds. ``folder``: of the records, which a later call finds; ``scheduler``: address of a Dask
    cluster that simulates, in place of ``jobs`` processes. Raises FailedRuns.
    """
    every = plan_runs(runs, worlds)
    failures: list[str] = []
    records = sweep.complete(
        every, RecordStore(folder), SharedProgress(watcher, len(every)), failures, jobs or available_cores(), scheduler,
        workspace=Workspace(traces=traces), kept_from_s=KEPT_FROM_S,
    )  # fmt: skip
    cache.remove_oldest()
    sweep.refuse_failed(failures, len(every))
    found = [_gather(run, worlds, records) for run in runs]
    return over_layers(over_traffic(found, worlds, records), traces)


class SharedProgress(sweep.Unwatched):
    """Tells a watcher how much of many short runs is done, and not each of them."""

    def __init__(self, watcher: sweep.Watcher, runs: int) -> None:
        self._watcher, self._runs, self._done = watcher, runs, 0

    def kept(self, runs: int) -> None:
        self._done += runs
        self._say()

    def on_finished(self, job: Job, record: Record) -> None:
        self._done += 1
        self._say()

    def on_failed(self, job: Job, failure: pool.Failure) -> None:
        self._watcher.on_failed(job, failure)

    def _say(self) -> None:
        self._watcher.at(f"{self._runs:,} runs in many samples", self._done / self._runs)


def _gather(run: Run, worlds: Worlds, records: dict[str, Record]) -> InWorlds:
    fast = _times(_fast(run, worlds), records)
    few = _correcting(run, worlds)
    row = records[run.key]["row"]
    if not few:
        return InWorlds(run, row, fast, None)
    better = _times(few, records)
    return InWorlds(run, row, correct(fast, better), agreement(fast, better))


def runs_of_traffic(run: Run, worlds: Worlds) -> list[Run]:
    """The run of the fast engine on the machine as it is: with its own traffic, and with other draws of it."""
    return [_with_traffic(_on_fast(run), at) for at in range(worlds.traffics)]


def layers_of(run: Run) -> int:
    """MoE layers that it runs."""
    return run.workload.layers or len(run.model.moe_layer_ids)


def _with_traffic(run: Run, at: int) -> Run:
    """The run with the ``at``-th draw of its traffic; 0: its own."""
    if not at:
        return run
    workload = run.workload.drawn(at)
    trace = run.trace if isinstance(workload.trace, str) else generated_digest(workload, run.model)
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload), trace=trace)


def over_traffic(found: list[InWorlds], worlds: Worlds, records: dict[str, Record]) -> list[InWorlds]:
    """With the traffic of every world. Draws of it are ordered by the mean time of all options, so that a draw between
    0 and 1 stands for the same traffic in each. Layers have traffic of their own: the mean of few varies by the root of
    their number more.
    """
    if not worlds.traffics:
        return found
    logs = np.log([_times(runs_of_traffic(each.run, worlds), records) for each in found])
    logs -= logs[:, :1]
    logs *= [[np.sqrt(layers_of(_on_fast(each.run)) / layers_of(each.run))] for each in found]
    order = np.argsort(logs.mean(axis=0), kind="stable")
    at = (np.arange(worlds.traffics) + 0.5) / worlds.traffics
    factors = (np.exp(np.interp(worlds.draws[TRAFFIC], at, own[order])) for own in logs)
    return [replace(each, ns=each.ns * factor) for each, factor in zip(found, factors, strict=True)]


def over_layers(found: list[InWorlds], traces: dict[tuple[str, str], Trace]) -> list[InWorlds]:
    """With the sample of layers that a world draws, the same for all options of equal layers."""
    some = [each for each in found if layers_of(each.run) < len(each.run.model.moe_layer_ids)]
    if not some:
        return found
    asked = [(replace(each.run, engine=FAST, details=True), each) for each in some]
    changed = {}
    for run, record in pool.simulate_all([run for run, _ in asked], 1, Workspace(traces=traces)):
        if isinstance(record, pool.Failure):
            raise FailedRuns(record.message)
        if record["steps"]:  # of very many steps none are kept
            columns = unpack(record["steps"])
            step, (_, layer) = np.array(columns["step"]), np.unique(columns["layer"], return_inverse=True)
            counted = np.isin(step, np.unique(step)[-int(record["row"]["decode_steps"] or 1) :])
            each = next(of for own, of in asked if own is run)
            of_layer = np.bincount(layer[counted], np.array(columns["time_ns"])[counted])
            changed[id(each)] = _sampled_layers(each, of_layer, len(run.model.moe_layer_ids))
    return [changed.get(id(each), each) for each in found]


def _sampled_layers(each: InWorlds, of_layer: np.ndarray, every: int) -> InWorlds:
    """``of_layer``: ns of every layer that ran, of ``every`` that the model has."""
    count = len(of_layer)
    if count < 2:
        return each
    rng = np.random.default_rng(count)
    means = of_layer[rng.integers(0, count, (len(each.ns), count))].mean(axis=1) / of_layer.mean()
    means = 1 + (means - 1) * np.sqrt((1 - count / every) * count / (count - 1))
    return replace(each, ns=each.ns * means, by_layers=means)


def _times(runs: Iterable[Run], records: dict[str, Record]) -> np.ndarray:
    return np.array([time_of(records[run.key]["row"]) for run in runs])


def _in_worlds(run: Run, worlds: Worlds) -> list[Run]:
    return [*_fast(run, worlds), *_correcting(run, worlds)]


def _fast(run: Run, worlds: Worlds) -> list[Run]:
    """The run of the fast engine, in all worlds."""
    return worlds.runs(_on_fast(run), run.engine)


def _on_fast(run: Run) -> Run:
    return replace(_thin(run), engine=FAST) if run.engine != FAST else run


def _correcting(run: Run, worlds: Worlds) -> list[Run]:
    """The run of its own engine, in the first worlds; none if that is the fast one."""
    return [] if run.engine == FAST else worlds.runs(run, run.engine, CORRECTING)


def _thin(run: Run) -> Run:
    """The run with few layers."""
    if layers_of(run) <= THINNED or run.engine == FAST:
        return run
    workload = run.workload.model_copy(update={"layers": THINNED})
    return replace(run, workload=workload, demand=replace(run.demand, workload=workload))

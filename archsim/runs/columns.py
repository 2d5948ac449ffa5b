"""The columns of results: one row each, read by whoever measures, stores, shows or documents them.

To add one, add a row with its function; a user's own is a function ``(outcome, scenario) -> value`` that the
experiment names::

    columns: [my_columns:longest_step_ns]

Its name is the function's, its kind what the function is annotated to return (``int``, ``float`` or ``str``; default
``float``), its meaning the first line of its docstring, its unit the end of its name (``_ns``, ``_bytes``, …).
"""

from __future__ import annotations

import base64
import inspect
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.files import unpacked as unpacked_bytes
from archsim.base.own_code import import_function
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.units import NS_PER_S
from archsim.specs.assumptions import columns_of

if TYPE_CHECKING:
    from archsim.engine.demand import RunDemand
    from archsim.engine.loop import Outcome
    from archsim.iteration.memory import Fit
    from archsim.runs.run import Run
    from archsim.specs.as_built import AsBuilt
    from archsim.specs.experiment import Scenario
    from archsim.workload import TokenSource
    from microarch.silicon.energy import Activity


# ---- measure
# Measures of a finished run: functions of a `Finished` run, one per column or group of columns.
#
# The table of columns below says which column each of them is. Times in ns, shares as fractions; ``None`` if there is
# nothing to measure.

MESSAGES, BYTES = 0, 1  # columns of Tally.hops
HOST_PERCENTILES = (10, 50, 90, 99)

@dataclass(frozen=True)
class Finished:
    """A run that has ended: its inputs (``run``, ``demand``, ``source`` of its routing) and its ``outcome``.

    Values shared by several columns are computed once.
    """

    run: Run
    demand: RunDemand
    source: TokenSource
    outcome: Outcome

    @property
    def scenario(self) -> Scenario:
        return self.run.scenario

    @property
    def total_ns(self) -> float:
        return self.outcome.prefill_ns + self.outcome.decode_ns

    @cached_property
    def decode(self) -> np.ndarray:
        """Iterations that have tokens and count: not the prefill, nor the warm-up. int64[n]."""
        routed = np.flatnonzero(self.demand.tokens.any(axis=(1, 2)))
        decode = routed[routed > 0] if self.demand.has_prefill else routed
        return decode[self.run.workload.warmup_steps :]

    @cached_property
    def bound_ns(self) -> dict[str, float]:
        """Time on the critical path by cause (names of columns)."""
        bound_ns = {cause.column: float(self.outcome.tally.bound_ns[cause]) for cause in CAUSES}
        return bound_ns | {Cause.DECISION.column: float(self.outcome.decision.exposed_ns.sum())}

    @cached_property
    def bound_shares(self) -> dict[str, float]:
        """The shares that the entries of ``bound_ns`` have in their sum. Empty where the sum is 0."""
        every = sum(self.bound_ns.values())
        return {name: each / every for name, each in self.bound_ns.items()} if every else {}

    @cached_property
    def decision_overhead_percent(self) -> np.ndarray:
        """The exposed part of decisions over the rest of each step: float64[step and layer that took time]."""
        exposed_ns = np.array(self.outcome.decision.by_step)
        step_ns = self.outcome.step_ns[self.outcome.step_ns > 0]
        return 100 * exposed_ns / (step_ns - exposed_ns)

    @cached_property
    def dies(self) -> dict[str, list]:
        """Columns over the dies, list[die] each; see ``archsim.runs.columns.DIES``."""
        return measure_dies(self.outcome, self.run.system.built)

    @cached_property
    def links(self) -> dict[str, list]:
        """Columns over the links, list[link] each; see ``archsim.runs.columns.LINKS``."""
        return measure_links(self.outcome)

    @cached_property
    def frames(self) -> dict[str, list]:
        """What dies and links did between some iterations; see ``archsim.runs.columns.measure_frames``."""
        return measure_frames(self.outcome)

    @cached_property
    def pairs(self) -> dict[str, list]:
        """Columns over pairs of dies, list[pair] each; see ``archsim.runs.columns.PAIRS``."""
        return measure_pairs(self.outcome)

    @cached_property
    def steps(self) -> dict[str, np.ndarray]:
        """Columns over the steps; see ``archsim.runs.columns.STEPS``; empty for very many."""
        return measure_steps(self)

    @cached_property
    def beside_experts(self) -> Fit:
        """What dies hold without routed experts."""
        from archsim.iteration.memory import fit_of_slots

        run = self.run
        slots = np.zeros(run.system.dies, np.int64)
        deployed = run.workload, run.batch, run.scenario.deployment
        return fit_of_slots(run.system, run.model, run.assumptions, slots, *deployed)

    @cached_property
    def work(self) -> dict[str, float]:
        """Work that energy is computed from, prefill included; see ``archsim.runs.energy.work_of``."""
        from archsim.runs.energy import work_of

        padded = int(self.outcome.counts.padded.sum())
        return work_of(self.run.model, self.run.assumptions, self.dies, self.links, padded)

    @cached_property
    def iteration(self) -> dict[str, dict[str, float]]:
        """See ``archsim.runs.columns.iterations_of``."""
        return iterations_of(self)

    @cached_property
    def economics(self) -> dict[str, float | None]:
        """See ``archsim.runs.energy.economics``."""
        from archsim.runs.energy import build_costs, economics

        return economics(self.activity, build_costs(self.run.system))

    @cached_property
    def activity(self) -> Activity:
        """What energy is computed from."""
        from archsim.runs.energy import activity_of

        tally, outcome = self.outcome.tally, self.outcome
        read = {f"{place}_hbm_read_bytes": tally.dies[f"{place}_read_bytes"].sum() for place in ("local", "remote")}
        times = {
            "prefill_ns": outcome.prefill_ns,
            "decode_ns": outcome.decode_ns,
            "decision_ns": outcome.decision.states_ns.sum(),
        }
        lost = {"pairs_lost": pairs_lost(self)}
        limits = {f"{name}_energy_factor": power_of(f"{name}_factor")(self) for name in ("core", "idle")}
        row = {name: plain(value) for name, value in {**read, **times, **lost, **limits}.items()} | self.work
        return activity_of(self.run.model, row)


def plain(value: Any) -> Any:
    """A Python value instead of a NumPy scalar."""
    return value.item() if isinstance(value, np.generic) else value


def mesh_side(side: str) -> Callable[[Finished], int | None]:
    """Dies along ``x`` or ``y``; None for a system without a mesh."""
    return lambda run: None if run.run.system.mesh is None else getattr(run.run.system.mesh, side)


def trace(run: Finished) -> str:
    from archsim.runs.run import trace_label

    workload = run.run.workload
    return trace_label(workload) if isinstance(workload.trace, str) else run.source.label


def throughput(run: Finished) -> float | None:
    """Tokens per second of decode; see the assumption ``throughput``."""
    if not run.outcome.decode_ns:
        return None
    if run.run.assumptions.throughput == "nominal":
        tokens = run.run.batch * (len(run.decode) if run.run.workload.warmup_steps else run.demand.steps)
    else:
        tokens = int(run.demand.tokens_of_step[run.decode].sum())
    return tokens / (run.outcome.decode_ns / NS_PER_S)


def hops(of: int) -> Callable[[Finished], int]:
    """MESSAGES or BYTES times hops, of the types that the assumption ``hops`` counts."""

    def measured(run: Finished) -> int:
        from archsim.engine.state import DATA_MESSAGES, HIDDEN, REQUESTS

        counted = [REQUESTS] if run.run.assumptions.hops == "requests" else [REQUESTS, DATA_MESSAGES, HIDDEN]
        return run.outcome.tally.hops[counted, of].sum()

    return measured


def hop_messages(kind: str) -> Callable[[Finished], int]:
    """Messages times hops of one type of ``archsim.engine.state``: REQUESTS, DATA_MESSAGES or HIDDEN."""

    def measured(run: Finished) -> int:
        from archsim.engine import state

        return run.outcome.tally.hops[getattr(state, kind), MESSAGES]

    return measured


def over_dies(column: str) -> Callable[[Finished], int]:
    """The sum of a column of ``Tally.dies``."""
    return lambda run: run.outcome.tally.dies[column].sum()


def copies(what: str) -> Callable[[Finished], int]:
    """Bytes of cached copies on all dies: ``saved``, ``evicted_unused``, ``evicted_used`` or ``held``."""

    def measured(run: Finished) -> int:
        room = run.outcome.memory.copies.room
        slices = {
            "saved": room["hits"],
            "evicted_unused": room["unused"],
            "evicted_used": room["evictions"] - room["unused"],
        }
        return room["used_bytes"].sum() if what == "held" else slices[what].sum() * run.outcome.machine.slice_bytes

    return measured


def power_of(field: str) -> Callable[[Finished], Any]:
    """A field of ``archsim.runs.energy.PowerState``; None without limits."""
    return lambda run: None if run.outcome.power is None else getattr(run.outcome.power, field)


def plans_by_speeds(run: Finished) -> int | None:
    """1 where a rule sees dies that differ, as they are built or by their clocks; else None."""
    unequal = np.ptp(run.outcome.machine.array_speeds) > 0 or np.ptp(run.outcome.machine.hbm_rates) > 0
    power = run.outcome.power
    unequal = unequal or (power is not None and any(np.ptp(each.die_clock) > 0 for each in power.classes.values()))
    asks = any(run.run.policy.needs_speeds(part) for part in ("allocation", "rebalancing"))
    return 1 if unequal and asks else None


def clock_in(phase: int) -> Callable[[Finished], float | None]:
    """Clock of a phase, a share of the full one; None without limits."""
    return lambda run: None if run.outcome.power is None else run.outcome.power.clock(phase)


def most_over_classes(value: Callable[[Any], Any]) -> Callable[[Finished], float | None]:
    """The largest of a die in any class of steps; None without limits, or where there is none."""

    def measured(run: Finished) -> float | None:
        found = None if run.outcome.power is None else run.outcome.power.most(value)
        return None if found is None or np.isnan(found).any() else found.max()

    return measured


def die_utilisation(run: Finished) -> float:
    return share_of_time(per_die(run.outcome, ARRAYS)["busy_ns"], run.total_ns).mean()


def load_max_over_mean(run: Finished) -> float | None:
    """Mean over steps of the largest over the mean load of a die."""
    load = run.outcome.load[run.decode]
    steps = load.reshape(-1, load.shape[-1])
    steps = steps[steps.any(axis=1)]
    return (steps.max(axis=1) / steps.mean(axis=1)).mean() if len(steps) else None


def load_ceiling(name: str) -> Callable[[Finished], float | None]:
    """Mean over steps of a ceiling (``archsim.engine.loop.Ceilings``) over the mean load of a die."""

    def measured(run: Finished) -> float | None:
        from archsim.engine.loop import Ceilings

        steps = run.outcome.ceilings[run.decode].reshape(-1, len(Ceilings._fields))
        steps = steps[steps[:, 0] > 0]
        column = Ceilings._fields.index(name)
        return (steps[:, column] / steps[:, 0]).mean() if len(steps) else None

    return measured


def balancing(field: str) -> Callable[[Finished], float]:
    """A total of ``archsim.engine.engine.BalancingTotals``."""
    return lambda run: getattr(run.outcome.balancing, field)


def pairs_lost(run: Finished) -> int:
    return 0 if run.demand.lost_pairs is None else run.demand.lost_pairs.sum()


def gate_mass_lost(run: Finished) -> float:
    """Mean over steps and layers, prefill included."""
    if run.demand.lost_mass is None:
        return 0.0
    ran = run.demand.rows > 0
    return run.demand.lost_mass[ran].mean() if ran.any() else 0.0


def replica_hbm(run: Finished) -> int:
    """Slots of the last placement beyond one for each expert: replicas, slots left empty, and those for fetched ones.
    """
    from archsim.engine.machine import slice_bytes
    from archsim.engine.state import SLICES
    from archsim.iteration.memory import EXPERTS

    model = run.run.model
    once = len(model.moe_layer_ids) * model.experts * SLICES * slice_bytes(run.run.system, model)
    return run.outcome.fit.parts[EXPERTS].sum() - once


def bound(name: str) -> Callable[[Finished], float | None]:
    """The share of a cause."""
    return lambda run: run.bound_shares.get(name)


def bounded_by(run: Finished) -> str | None:
    return max(run.bound_shares, key=run.bound_shares.__getitem__) if run.bound_shares else None


def bounded_by_margin(run: Finished) -> float | None:
    """Difference between the largest and the next bound."""
    if not run.bound_shares:
        return None
    first, second = sorted(run.bound_shares.values(), reverse=True)[:2]
    return first - second


def overhead_mean(run: Finished) -> float | None:
    overhead = run.decision_overhead_percent
    return overhead.mean() if len(overhead) else None


def overhead_percentile(percent: int) -> Callable[[Finished], float | None]:
    def measured(run: Finished) -> float | None:
        overhead = run.decision_overhead_percent
        return np.percentile(overhead, percent) if len(overhead) else None

    return measured


def decision_exposed_ns(run: Finished) -> float:
    return np.array(run.outcome.decision.by_step).sum()


def exposed(state: str) -> Callable[[Finished], float]:
    """Exposed time of decisions in a state of ``microarch.blocks.global_cp``."""

    def measured(run: Finished) -> float:
        from microarch.blocks.global_cp import State

        return run.outcome.decision.exposed_ns[State[state]]

    return measured


def host_percentile(percent: int) -> Callable[[Finished], float | None]:
    """Percentile of the timed calls of a policy function; None if its time was given or no host decided."""

    def measured(run: Finished) -> float | None:
        called_ns = run.outcome.decision.called_ns
        return np.percentile(called_ns, percent) if called_ns else None

    return measured


def decode_low_ns(run: Finished) -> float | None:
    """Decode with GEMMs at the 5 % end of their residuals, on an unchanged critical path."""
    residual_ns = run.outcome.decode_residual_ns
    return None if residual_ns is None else max(run.outcome.decode_ns - residual_ns[0], 0.0)


def decode_high_ns(run: Finished) -> float | None:
    """Like `decode_low_ns`, but at the 95 % end."""
    residual_ns = run.outcome.decode_residual_ns
    return None if residual_ns is None else run.outcome.decode_ns + residual_ns[1]


OTHER_CHIP = 0.1  # relative; a peak or HBM that differs more from a calibration's is that of another chip


def scaled_from(run: Finished) -> str | None:
    """The calibration of another chip whose laws are scaled to the run's dies; None where it is their own."""
    from archsim.specs.calibration_files import DEFAULT_CALIBRATION, calibration_named

    system = run.run.system
    if run.outcome.decode_residual_ns is None:
        return None
    reference, compute = calibration_named(system.compute.calibration).reference, system.compute
    pairs = (
        (compute.peak_flop_per_s, reference.peak_flop_per_s.get(compute.dtype)),
        (system.hbm.bandwidth_bytes_per_s, reference.hbm_bytes_per_s),
    )
    other = system.datasheet_only or any(there and abs(here / there - 1) > OTHER_CHIP for here, there in pairs)
    return (compute.calibration or DEFAULT_CALIBRATION) if other else None


def gemm_extrapolated(run: Finished) -> float | None:
    """All of it where the law is another chip's."""
    return 1.0 if scaled_from(run) else run.outcome.gemm_extrapolated


def copies_extrapolated(run: Finished) -> float | None:
    """Share of the run's slices of a size outside the measured copies; all have the same size."""
    from archsim.engine.machine import slice_bytes

    law = run.run.system.d2d.copies
    outside = None if law is None else law.extrapolates(slice_bytes(run.run.system, run.run.model))
    return None if outside is None else float(outside)


def drawn_from(run: Finished) -> float | None:
    from archsim.workload.demand import recorded_requests

    recorded = recorded_requests(run.source)
    return float(recorded) if run.run.batch > recorded else None


def extended_by(run: Finished) -> str | None:
    return None if drawn_from(run) is None else run.run.workload.extend


def active_experts(run: Finished) -> float | None:
    """Mean over decode steps and layers of the experts that have tokens."""
    tokens = run.demand.tokens[int(run.demand.has_prefill) :]
    return float((tokens > 0).sum(axis=2).mean()) if len(tokens) else None


def active_if_distinct(run: Finished) -> float | None:
    """How many experts would be active if all requests were different: each token–expert pair picks an expert in
    proportion to its load over all decode steps of the layer. This is an upper estimate, because the loads of one step
    are less even than those of all steps.
    """
    tokens = run.demand.tokens[int(run.demand.has_prefill) :].sum(axis=0, dtype=np.float64)
    if drawn_from(run) is None or not tokens.any():
        return None
    share = tokens / tokens.sum(axis=1, keepdims=True)
    return float((1 - (1 - share) ** (run.run.batch * run.demand.top_k)).sum(axis=1).mean())


def uncharged(run: Finished) -> str | None:
    """Own functions of the policy that decided without an Effort, by name; None where none did."""
    from archsim.engine.decision import ALLOCATION, ASIDE

    uncounted, policy = run.outcome.decision.uncounted, run.run.policy
    rules = ([policy.allocation] if ALLOCATION in uncounted else []) + (
        [policy.rebalancing, policy.replication] if ASIDE in uncounted else []
    )
    return ", ".join(rule.name for rule in rules if rule.is_function) or None


def beside_experts(kind: str) -> Callable[[Finished], int | None]:
    """Bytes of a kind of ``archsim.iteration.memory`` on the die with most of it."""
    return lambda run: run.beside_experts.of(kind)


def hbm_all_counted(run: Finished) -> int | None:
    """Whether ``memory: all`` could be followed; None where it is not assumed."""
    return int(not run.run.model.missing_geometry) if run.run.assumptions.memory == "all" else None


def approximate(run: Finished) -> str | None:
    """What the model's file says that is not modelled."""
    return "; ".join(run.run.model.approximate) or None


def context_from(run: Finished) -> str | None:
    """What says how many tokens of KV cache a request holds; None where experts alone are counted."""
    return None if run.beside_experts.context is None else run.run.context_from


def transfer_law(run: Finished) -> str | None:
    """The kernels that hidden vectors wait for; None where no GPU's are charged."""
    scenario = run.run.scenario
    if scenario.assumptions.execution == "expert_parallel":
        from archsim.engine.cluster.moves import told_kernels
    else:
        from archsim.engine.moves import told_kernels
    return told_kernels(scenario)


def transfer_extrapolated(run: Finished) -> float | None:
    """1 where the law of dispatch and combine is that of another GPU, shape or number of ranks or nodes, else 0."""
    if not transfer_law(run):
        return None
    from archsim.engine.cluster.moves import kernels_carried
    from archsim.engine.moves import kernels_stand_in

    scenario = run.run.scenario
    carried = kernels_carried if scenario.assumptions.execution == "expert_parallel" else kernels_stand_in
    return float(carried(scenario))


GEMMS_OF = "GEMMs take the times of "
STAND_INS_APART = " | "


def stand_ins(run: Finished) -> str | None:
    """What was not measured for this run, and whose law it takes; None where all was."""
    from archsim.laws.die import NEAREST, OTHER_DTYPE

    found, law = [], run.outcome.gemm_law
    if other := scaled_from(run):
        found.append(f"{GEMMS_OF}{other}, scaled to the die's peak and HBM")
    if law.startswith((NEAREST, OTHER_DTYPE)):
        found.append(f"fused layers of {run.run.model.name} take the law of the {law}")
    if transfer_extrapolated(run):
        found.append(f"dispatch and combine of {run.run.model.name} take the times of {transfer_law(run)}")
    return STAND_INS_APART.join(found) or None


def copy_room(run: Finished) -> int | None:
    bounded = run.run.assumptions.capacity == "finite"
    return run.outcome.memory.copies.room["limit_bytes"].min() if bounded else None


# ---- measure_iteration
# Measures of a whole iteration on a cluster: MoE layers as the run has them, all else by laws.
#
# A run has MoE layers alone, often some of them: its time an iteration counts for all of the model's. Decoded requests
# hold `WorkloadSpec.context_tokens` each; prompts are all as long as their mean. Empty unless experts ran under
# ``execution: expert_parallel``, and where attention of the GPU was not measured.

DECODE, PREFILL = "decode", "prefill"
# Columns, and what they say; the causes of each: archsim.iteration.times.COLUMNS.
PARTS_OF_ITERATION = MappingProxyType(
    {
        "attention": "attention",
        "projections": "projections of attention",
        "dense": "dense layers, router, norms, and shared experts that the run leaves out",
        "experts": "routed and shared experts",
        "transfers": "dispatch and combine that nothing hides",
        "all_reduce": "all-reduces of tensor parallelism",
        "head": "LM head and sampling",
        "host": "the host; 0 where nothing says",
    }
)


def of_iteration(column: str, phase: str = DECODE) -> Callable[[Finished], float | None]:
    """The ns of a column of `archsim.iteration.times.COLUMNS`."""

    def measured(run: Finished) -> float | None:
        from archsim.iteration.times import COLUMNS

        found = run.iteration[phase]
        return sum(found[cause] for cause in COLUMNS[column]) if found else None

    return measured


def whole_iteration(phase: str = DECODE) -> Callable[[Finished], float | None]:
    """All causes together."""
    return lambda run: sum(run.iteration[phase].values()) if run.iteration[phase] else None


def iteration_energy(bound: str) -> Callable[[Finished], float | None]:
    """J a token with coefficients at their ``value``, ``low`` or ``high``."""

    def measured(run: Finished) -> float | None:
        from archsim.runs.energy import Coefficients, build_costs, iteration_energy_j

        known = Coefficients()
        at = known if bound == "value" else Coefficients(known.energy.at(bound), known.area, known.cost)
        return iteration_energy_j(run, run.activity, build_costs(run.run.system), whole_iteration()(run), at)

    return measured


def attention_law(run: Finished) -> str | None:
    """What pages print of attention that was not measured."""
    from archsim.iteration.times import laws_of

    laws = laws_of(run.scenario) if any(run.iteration.values()) else None
    return "; ".join(laws.notes) or None if laws else None


def iterations_of(run: Finished) -> dict[str, dict[str, float]]:
    """Cause → ns of one decode iteration, and of the prefill; empty where there is none."""
    from archsim.engine.loop import DECODE as DECODES
    from archsim.engine.loop import PREFILL as PROMPTS

    tokens = run.demand.tokens_of_step
    groups, outcome = run.scenario.parallel.dp, run.outcome
    prompted = float(tokens[0]) / groups if len(tokens) else 0.0
    return {
        DECODE: _iteration(run, DECODES, outcome.decode_ns, len(run.decode), run.run.batch / groups),
        PREFILL: _iteration(run, PROMPTS, outcome.prefill_ns, 1, prompted),
    }


def _iteration(run: Finished, phase: int, ns: float, iterations: int, tokens: float) -> dict[str, float]:
    from archsim.engine.cluster.moves import sms_share
    from archsim.engine.loop import PREFILL as PROMPTS
    from archsim.iteration.overlap import Layer
    from archsim.iteration.times import batch_of, iteration_ns, laws_of

    scenario, parts = run.scenario, run.outcome.counts.part_ns[phase]
    laws = laws_of(scenario) if parts.any() and iterations and ns else None
    if laws is None:
        return {}
    layers = run.outcome.step_ns.shape[1]
    all_ns = ns / iterations * len(scenario.model.moe_layer_ids) / layers
    batch = batch_of(scenario, tokens, prompts=phase == PROMPTS)
    moe = Layer(*(all_ns * parts / parts.sum()).tolist())
    return iteration_ns(scenario, laws, batch, moe, sms_share(scenario.system, scenario.assumptions))


# ---- measure_rates
# Measures that stand side by side on pages: one definition of throughput, time of a step, and use of the machine.
#
# Throughput and time of a step are those of all MoE layers of the model, whichever ran, and count the tokens that
# decode generates under every set of assumptions. Use of the machine is over the whole run, prefill included.

def decode_step_ns(run: Finished) -> float | None:
    """Mean time of a decode step."""
    return run.outcome.decode_ns / len(run.decode) / _layers_share(run) if len(run.decode) else None


def decode_batch_token_ns(run: Finished) -> float | None:
    """Time of decode over the tokens that it generates: the reciprocal of `tokens_per_s`."""
    tokens = int(run.demand.tokens_of_step[run.decode].sum())
    return run.outcome.decode_ns / tokens / _layers_share(run) if tokens else None


def tokens_per_s(run: Finished) -> float | None:
    """Tokens that decode generates over its time."""
    ns = decode_batch_token_ns(run)
    return NS_PER_S / ns if np.any(ns) else None


def mfu(run: Finished) -> float | None:
    """FLOP of experts over what all dies could do in the time, at their peak."""
    return _flop_ns(run) / run.total_ns if run.total_ns else None


def hbm_use(run: Finished) -> float | None:
    """Bytes of HBM over what all dies could move in the time, at nominal bandwidth."""
    return _hbm_ns(run) / run.total_ns if run.total_ns else None


def over_roofline(run: Finished) -> float | None:
    """Time over the least in which evenly loaded dies could do the same FLOP and move the same bytes of HBM."""
    least_ns = max(_flop_ns(run), _hbm_ns(run))
    return run.total_ns / least_ns if least_ns else None


def _flop_ns(run: Finished) -> float:
    system = run.run.system
    return run.work["flop"] / (system.compute.peak_flop_per_s * system.whole[0]) * NS_PER_S


def _hbm_ns(run: Finished) -> float:
    system = run.run.system
    return run.work["hbm_bytes"] / (system.hbm.bandwidth_bytes_per_s * system.whole[1]) * NS_PER_S


def layers_error(run: Finished) -> float | None:
    """Standard error of the time of all MoE layers of the model that is concluded from those that ran, as a share of
    it: of a mean of n of N layers that are drawn without replacement, s / √n · √(1 − n / N) (Cochran, Sampling
    Techniques, 3rd ed., eq. 2.20), s between the layers' times in decode, else in the prefill.
    """
    counted = run.decode if len(run.decode) else [0]
    ns = run.outcome.step_ns[counted].sum(axis=0)
    if _layers_share(run) >= 1:
        return 0.0
    if len(ns) < 2 or not ns.any():
        return None
    return float(ns.std(ddof=1) / ns.mean() * np.sqrt((1 - _layers_share(run)) / len(ns)))


def _layers_share(run: Finished) -> float:
    """MoE layers that ran, of the model's."""
    return run.demand.layers / len(run.run.model.moe_layer_ids)


# ---- packing
# How a record carries the steps of a run, which are many: a compressed array a column, as text.

NO_LINK = -1  # in the columns OF_LINKS: no link was busy
OF_LINKS = ("link", "link_src", "link_dst")

Packed = Mapping[str, tuple[str, str]]
"""Name of a column → its dtype and its compressed values as text."""


def packed(columns: Mapping[str, np.ndarray]) -> Packed:
    """Columns as text, equal for equal columns."""
    kept = {}
    for name, values in columns.items():
        little = values.astype(values.dtype.newbyteorder("<"))
        kept[name] = little.dtype.str, base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()
    return kept


def unpacked(kept: Packed) -> dict[str, list[Any]]:
    """The columns that `packed` packed, as plain values; None where there is no link."""
    columns = {
        name: np.frombuffer(unpacked_bytes(base64.b64decode(text), "zlib"), dtype).tolist()
        for name, (dtype, text) in kept.items()
    }
    return columns | {
        name: [None if value == NO_LINK else value for value in columns[name]] for name in OF_LINKS if name in columns
    }


# ---- measure_steps
# The steps of a finished run, one row a layer of an iteration.
#
# A run of more than `archsim.engine.loop.MOST_STEPS` steps has none.

# Classes of archsim.engine.demand, without requests, whose bytes are next to nothing.
_AS_COUNTED = ("link_bytes", "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens")
CLASSES = ("weight", "dispatch", "combine", "replica", "statistics")


def measure_steps(run: Finished) -> dict[str, np.ndarray]:
    """Columns over the steps, one value each; see ``archsim.runs.columns.STEPS``. Empty where none are kept."""
    from archsim.engine.loop import MOVED

    counts = run.outcome.counts.columns()
    if not len(counts["step"]):
        return {}
    layers, bound_ns = np.array(run.demand.layer_ids), counts["bound_ns"]
    columns = {"step": counts["step"], "layer": layers[counts["layer"]], "time_ns": counts["time_ns"]}
    columns |= {f"bound_{cause.column}_ns": bound_ns[:, cause] for cause in CAUSES}
    columns[f"bound_{Cause.DECISION.column}_ns"] = counts["decision_ns"]
    for at, name in enumerate(("local_read", "remote_read", "write", "activation")):
        columns[f"hbm_{name}_bytes"] = counts["hbm_bytes"][:, at]
    for name in CLASSES:
        columns[f"{name}_bytes"] = counts["moved"][:, MOVED.index(name)]
    src, dst = _ends(run, counts["link"])
    columns |= {"link": counts["link"], "link_src": src, "link_dst": dst}
    return columns | {name: counts[name] for name in _AS_COUNTED}


def _ends(run: Finished, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of these links begins and ends, int64[n]; NO_LINK where there is none."""
    shown = shown_links(run.outcome)
    if not len(shown):
        return links, links
    fabric, there = run.outcome.fabric, shown[np.maximum(links, 0)]
    ends = (np.where(links >= 0, end[there], NO_LINK).astype(np.int64) for end in (fabric.link_src, fabric.link_dst))
    src, dst = ends
    return src, dst


# ---- columns

# ruff: noqa: E501  (one row a column: a table is read across)



Measure = Callable[[Finished], Any]
LAYOUT = 7  # of results: raised when columns are added or change meaning; stored in manifests
# Layouts of results from which on a cause has a column, where not from the first
_SINCE = MappingProxyType({Cause.LAUNCH: 3, Cause.INEFFICIENCY: 5, Cause.PERMUTE: 5, Cause.BLOCKS: 5})


@dataclass(frozen=True)
class Column:
    """A column of the results.

    ``kind``: INTEGER, REAL or TEXT. ``unit``: as in names (``ns``, ``bytes``, ``share`` of 1, ``percent``, …).
    ``measure``: returns its value for a finished run; None if it follows from other rows. ``optional``: the cell is
    empty where ``meaning`` says so. ``since``: the first layout that has it. ``header``: what tables of the page and
    the terminal call it, '' for those that leave it out; ``after``: the column that it stands behind there, if that is
    another than here. ``page``: the page's figures read it.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    measure: Measure | None
    header: str = ""
    page: bool = False
    optional: bool = False
    since: int = 1
    after: str = ""


COLUMNS: tuple[Column, ...] = (
    Column("system", TEXT, "", "name of the system", lambda run: run.run.system.name),
    Column("mesh_x", INTEGER, "dies", "dies along x; empty for a system without a mesh", mesh_side("x"), page=True, optional=True),
    Column("mesh_y", INTEGER, "dies", "dies along y; empty for a system without a mesh", mesh_side("y"), page=True, optional=True),
    Column("model", TEXT, "", "name of the model", lambda run: run.run.model.name),
    Column("trace", TEXT, "", "the routing: last two names of the trace's path, or what was generated", trace),
    Column("batch", INTEGER, "requests", "requests that are served together", lambda run: run.run.batch),
    Column("policy", TEXT, "", "name of the policy", lambda run: run.run.policy.name),
    Column("engine", TEXT, "", "event or analytical", lambda run: run.run.engine),
    Column("assumptions", TEXT, "", "label of the assumption set", lambda run: run.run.assumptions.label),
    Column("decode_steps", INTEGER, "steps", "decode iterations, without prefill and warm-up", lambda run: len(run.decode), "decode steps", True),
    Column("prefill_ns", REAL, "ns", "time of the prefill; 0 where none ran, or a warm-up follows it", lambda run: run.outcome.prefill_ns, "prefill", True),
    Column("decode_ns", REAL, "ns", "time of all decode steps", lambda run: run.outcome.decode_ns, "decode", True),
    Column("throughput_tokens_per_s", REAL, "tokens/s", "decode throughput of the layers that ran, as the assumption throughput counts it; tables show tokens_per_s; empty without decode",
           throughput, page=True, optional=True),
    Column("speedup_vs_base", REAL, "×", "decode throughput relative to policy base, with all else equal; empty without such a run", None,
           "speed-up over base", True, True),
    Column("speedup_vs_ep", REAL, "×", "decode throughput relative to policy ep, with all else equal; empty without such a run", None,
           "speed-up over ep", True, True, 2, "decode_ns"),
    Column("hop_messages", INTEGER, "message hops", "messages multiplied by their hops (dies that they enter); the assumption hops says which of them count",
           hops(MESSAGES), "hops, messages", True),
    Column("hop_bytes", INTEGER, "byte hops", "bytes of these messages multiplied by their hops", hops(BYTES), "hops, bytes", True),
    Column("local_hbm_read_bytes", INTEGER, "bytes", "what dies read from their own HBM", over_dies("local_read_bytes"), "local HBM reads", True),
    Column("remote_hbm_read_bytes", INTEGER, "bytes", "what dies read from the HBM of other dies", over_dies("remote_read_bytes"), "remote HBM reads", True),
    Column("local_hbm_write_bytes", INTEGER, "bytes", "what is written to HBM as cached copies", over_dies("write_bytes"), "HBM writes of copies", True),
    Column("activation_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die", lambda run: run.outcome.tally.moved_bytes.sum(),
           "activations between dies", True),
    Column("die_utilisation", REAL, "share", "share of the time in which the compute array is busy, as a mean over dies", die_utilisation, "die utilisation", True),
    Column("load_max_over_mean", REAL, "×", "tokens of the busiest die relative to the mean of all dies, as a mean over steps; empty without decode",
           load_max_over_mean, "load, max over mean", True, True),
    Column("replicas_max_bytes_per_die", INTEGER, "bytes", "largest size of the cached copies on a die",
           lambda run: run.outcome.memory.copies.room["peak_bytes"].max(), "copies on the fullest die", True),
    Column("events", INTEGER, "events", "events of the event engine, or steps of the analytical engine's walk", lambda run: run.outcome.tally.events[0], "events", True),
    Column("hop_request_messages", INTEGER, "message hops", "requests for slices, multiplied by their hops", hop_messages("REQUESTS")),
    Column("hop_data_messages", INTEGER, "message hops", "slices, multiplied by their hops", hop_messages("DATA_MESSAGES")),
    Column("hop_activation_messages", INTEGER, "message hops", "messages of hidden vectors, multiplied by their hops", hop_messages("HIDDEN")),
    Column("replicas_evicted", INTEGER, "replicas", "cached copies that were evicted", lambda run: run.outcome.memory.copies.room["evictions"].sum()),
    *(
        Column(f"copies_{name}_bytes", INTEGER, "bytes", meaning, copies(name), page=True, since=2)
        for name, meaning in (
            ("saved", "slices of other dies' experts that a die found among its cached copies, and did not read remotely"),
            ("evicted_unused", "cached copies that were evicted without having been read"),
            ("evicted_used", "cached copies that were evicted after having been read"),
            ("held", "cached copies on all dies at the end of the run"),
        )
    ),
    *(
        Column(f"bound_{cause.column}", REAL, "share", f"time on the critical path that {about.meaning} takes; empty for a run without time",
               bound(cause.column), page=True, optional=True, since=_SINCE.get(cause, 1))
        for cause, about in CAUSES.items()
    ),
    Column("bounded_by", TEXT, "", "which cause has the largest of these shares; empty for a run without time", bounded_by, optional=True),
    Column("bounded_by_margin", REAL, "share", "by how much it is larger than the next one", bounded_by_margin, optional=True),
    Column("decision_ns", REAL, "ns", "time of decisions, whether steps wait for it or not", lambda run: run.outcome.decision.states_ns.sum()),
    Column("decision_exposed_ns", REAL, "ns", "time that steps wait for decisions", decision_exposed_ns, page=True),
    Column("decision_overhead_percent", REAL, "percent", "time that a step waits for decisions relative to the rest of the step, as a mean", overhead_mean,
           "overhead of decisions", True, True, after="replicas_max_bytes_per_die"),
    *(
        Column(f"decision_overhead_percent_p{at}", REAL, "percent", f"as above, {at}th percentile over steps", overhead_percentile(at), page=True, optional=True)
        for at in (50, 99)
    ),
    *(
        Column(f"host_p{at}_ns", REAL, "ns", f"{at}th percentile of the calls of a policy function timed on this machine; empty where none was",
               host_percentile(at), page=True, optional=True)
        for at in HOST_PERCENTILES
    ),
    Column("host_calls", INTEGER, "calls", "calls of a policy function that were timed", lambda run: len(run.outcome.decision.called_ns)),
    *(
        Column(f"exposed_{state.lower()}_ns", REAL, "ns", f"exposed time of decisions in state {state}", exposed(state), page=state == "EVALUATE")
        for state in ("READ", "UPDATE", "RECEIVE", "ORDER", "GENERATE", "EVALUATE", "MERGE", "DISPATCH", "COLLECT")
    ),
    Column("heatmap_dropped", INTEGER, "transitions", "token transitions that the heatmap dropped", lambda run: run.outcome.heatmap_dropped, page=True),
    Column("atu_misses", INTEGER, "misses", "misses of the address translation units", lambda run: run.outcome.memory.atu.misses.sum(), page=True),
    Column("expert_tokens", INTEGER, "tokens", "pairs of token and routed expert that ran, over all layers, prefill included", lambda run: run.work["expert_tokens"], page=True, since=2),
    Column("hbm_bytes", INTEGER, "bytes", "what HBM reads and writes, hidden vectors included", lambda run: run.work["hbm_bytes"], since=2),
    Column("link_bytes", INTEGER, "bytes", "bytes multiplied by the links that they crossed", lambda run: run.work["link_bytes"], since=2),
    Column("flop", REAL, "flop", "FLOP of expert GEMMs", lambda run: run.work["flop"], page=True, since=2),
    Column("padded_flop", REAL, "flop", "of rows that are empty in the tiles of 64 rows of expert GEMMs; energy counts them, times do not", lambda run: run.work["padded_flop"], since=7),
    Column("decode_ns_low", REAL, "ns", "time of decode with GEMMs at the 5 % residual of their calibration; empty without one", decode_low_ns,
           "decode, low", True, True, 2, "decode_ns"),
    Column("decode_ns_high", REAL, "ns", "time of decode with GEMMs at the 95 % residual of their calibration; empty without one", decode_high_ns,
           "decode, high", True, True, 2, "decode_ns_low"),
    Column("gemm_law", TEXT, "", "measured kernels whose fitted laws time the experts: fused layers (gemm: grouped) or products (gemm: calibrated); empty for a roofline",
           lambda run: run.outcome.gemm_law or None, optional=True, since=3),
    Column("transfer_law", TEXT, "", "measured kernels that hidden vectors wait for; empty unless a GPU's transfer software is charged",
           transfer_law, optional=True, since=3),
    Column("transfer_extrapolated", REAL, "share", "time of dispatch and combine by the law of another GPU, shape or number of ranks or nodes; empty unless a GPU's transfer software is charged",
           transfer_extrapolated, optional=True, since=7),
    Column("stand_ins", TEXT, "", "what was not measured, and whose law it takes, of which all time counts as extrapolated; empty where all was measured",
           stand_ins, optional=True, since=7),
    Column("gemm_extrapolated", REAL, "share", "share of the GEMM time at sizes that were not measured, or by the law of another chip; empty without a calibration", gemm_extrapolated,
           "GEMMs extrapolated", True, True, 2, "decode_ns_high"),
    Column("copies_extrapolated", REAL, "share", "share of the slices whose size was not measured when copying; empty where links are not calibrated",
           copies_extrapolated, "copies extrapolated", True, True, 2, "gemm_extrapolated"),
    Column("dispatch_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die, to their experts", lambda run: run.outcome.tally.moved_bytes[0],
           "dispatched between dies", True, False, 2, "activation_bytes"),
    Column("combine_bytes", INTEGER, "bytes", "results of experts that are sent from die to die, back to their tokens", lambda run: run.outcome.tally.moved_bytes[1],
           "combined between dies", True, False, 2, "dispatch_bytes"),
    Column("drawn_from", REAL, "requests", "requests of the trace that the batch, which is larger, is made from; else empty",
           drawn_from, page=True, optional=True, since=2),
    Column("extend", TEXT, "", "how it is made from them: redraw, shifted or fitted; else empty", extended_by, optional=True, since=4),
    Column("active_experts", REAL, "experts", "experts with tokens, mean over decode steps and layers; empty without decode steps",
           active_experts, optional=True, since=4),
    Column("active_if_distinct", REAL, "experts", "upper estimate of the same if all requests of such a batch were different ones; else empty",
           active_if_distinct, optional=True, since=4),
    *(
        Column(name, REAL, unit, meaning, lambda run, name=name: run.economics[name], optional=name in ("energy_per_token_j", "power_w"), since=2)
        for name, unit, meaning in (
            ("energy_per_token_j", "J/token", "energy of the MoE layers, prefill included, for each token that passed all of them; empty without tokens"),
            ("power_w", "W", "mean power of the MoE layers over the whole run; empty for a run without time"),
            ("die_mm2", "mm²", "estimated area of one die"),
            ("silicon_mm2", "mm²", "estimated area of all dies, without HBM"),
            ("cost_usd", "USD", "estimated price of making one machine"),
        )
    ),
    Column("carrier_share", REAL, "share", "area of dies that are linked as on one carrier, and their HBM, over that of the largest carrier: above 1, links from one carrier to the next are slower under `carriers: as_needed`",
           lambda run: run.economics["carrier_share"], optional=True, since=5),
    *(
        Column(f"iteration_energy_per_token_j{end}", REAL, "J/token", meaning, iteration_energy(bound), optional=True, since=5)
        for end, bound, meaning in (
            ("", "value", "of a whole decode iteration: attention, dense layers, head and waiting included; empty where it is not known"),
            ("_low", "low", "as iteration_energy_per_token_j, all coefficients of energy at their low bound"),
            ("_high", "high", "as iteration_energy_per_token_j, all coefficients of energy at their high bound"),
        )
    ),
    *(
        column
        for phase, prefix, what, since in ((DECODE, "", "decode iteration", 3), (PREFILL, "prefill_", "prefill", 5))
        for column in (
            Column(f"{prefix}iteration_ns", REAL, "ns", f"a whole {what} under execution: expert_parallel, attention and head included; else empty",
                   whole_iteration(phase), optional=True, since=since),
            *(
                Column(f"{prefix}iteration_{part}_ns", REAL, "ns", f"of it: {meaning}", of_iteration(part, phase), optional=True, since=since)
                for part, meaning in PARTS_OF_ITERATION.items()
            ),
        )
    ),
    *(
        Column(f"{name}_{bound}", REAL, unit, f"as {name}, all coefficients of energy at their {bound} bound", lambda run, name=f"{name}_{bound}": run.economics[name], optional=True, since=3)
        for name, unit in (("energy_per_token_j", "J/token"), ("power_w", "W"))
        for bound in ("low", "high")
    ),
    Column("hbm_all_counted", INTEGER, "", "1: KV cache, attention and activations are counted in HBM beside experts; 0: the model lacks what that needs; empty under memory: experts",
           hbm_all_counted, page=True, optional=True, since=3),
    Column("approximate", TEXT, "", "what the model has and nothing here reads, of a model imported with --accept-approximate; else empty",
           approximate, optional=True, since=3),
    Column("attention_law", TEXT, "", "what the times of attention rest on where its kind was not measured; else empty",
           attention_law, optional=True, since=5),
    Column("context_tokens", INTEGER, "tokens", "KV cache of a request; empty where experts alone are counted", lambda run: run.beside_experts.context, page=True, optional=True, since=3),
    Column("context_from", TEXT, "", "what says it: the workload, or the longest request of the batch; empty where experts alone are counted",
           context_from, optional=True, since=3),
    *(
        Column(name, INTEGER, "bytes", f"{what} on the die with most of it; empty where experts alone are counted", beside_experts(kind), optional=True, since=3)
        for name, kind, what in (
            ("hbm_kv_bytes", "KV cache", "KV cache"),
            ("hbm_attention_bytes", "attention", "weights of attention, dense layers, routers and embeddings"),
            ("hbm_activation_bytes", "activations", "bound for activations of a step"),
        )
    ),
    Column("copy_room_bytes", INTEGER, "bytes", "left for cached copies on the die with least; empty where capacity is unbounded", copy_room, optional=True, since=3),
    *(
        Column(f"load_ceiling_{name}", REAL, "×", f"least load of the busiest die over the mean, {meaning}; mean over steps, empty without decode",
               load_ceiling(name), page=True, optional=True, since=3)
        for name, meaning in (
            ("slots", "with any placement of as many slots: a lower bound"),
            ("placement", "with tokens divided at best among holders"),
        )
    ),
    Column("migrated_bytes", INTEGER, "bytes", "weights that rebalancing has moved", balancing("migrated_bytes"), page=True, since=3),
    Column("migration_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision", balancing("migration_exposed_ns"), page=True, since=3),
    Column("prefetched_bytes", INTEGER, "bytes", "weights that were fetched as replicas for the next layer", balancing("replicated_bytes"), page=True, since=3),
    Column("prefetch_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision", balancing("replication_exposed_ns"), page=True, since=3),
    Column("pairs_lost", INTEGER, "pairs", "pairs of token and expert that the router chose and no die executed", pairs_lost, page=True, since=3),
    Column("gate_mass_lost", REAL, "share", "gate mass of pairs that are not executed, less that of those executed instead; scores are the trace's, else generated",
           gate_mass_lost, page=True, since=3),
    Column("uncharged", TEXT, "", "own functions of the policy that return no Effort, so that their decisions take no time; empty: none", uncharged, optional=True, since=3),
    Column("replica_hbm_bytes", INTEGER, "bytes", "HBM of all dies for slots beyond one for each expert, of all MoE layers of the model, at the end", replica_hbm,
           page=True, since=3),
    Column("run", TEXT, "", "key of the run, a digest of everything that it is made of", None),
    Column("layers", INTEGER, "layers", "MoE layers that ran; times, counts and throughput_tokens_per_s are those of these layers alone", lambda run: run.demand.layers, page=True, since=2),
    Column("tokens_per_s", REAL, "tokens/s", "tokens that decode generates, divided by its time and scaled to all MoE layers of the model; empty without decode",
           tokens_per_s, "throughput", True, True, 4, "copies_extrapolated"),
    Column("decode_step_ns", REAL, "ns", "mean time of a decode step through all MoE layers of the model; empty without decode",
           decode_step_ns, "a decode step", True, True, 4, "tokens_per_s"),
    Column("decode_batch_token_ns", REAL, "ns", "time of a decode step divided by the requests of its batch, which is not the TPOT of a request; empty without decode", decode_batch_token_ns, "time a token of the batch", True, True, 4, "decode_step_ns"),
    Column("mfu", REAL, "share", "FLOP of experts relative to what all dies could do at their peak in the time of the run, prefill included", mfu, "MFU", True, True, 4, "decode_batch_token_ns"),
    Column("hbm_bandwidth_utilisation", REAL, "share", "bytes of HBM relative to what all dies could move at nominal bandwidth in the time of the run, prefill included",
           hbm_use, "HBM bandwidth used", True, True, 4, "mfu"),
    Column("over_roofline", REAL, "×", "time of the run relative to the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM",
           over_roofline, "over its roofline", True, True, 4, "hbm_bandwidth_utilisation"),
    Column("clock", REAL, "share", "clock of the arrays in decode, relative to the full clock; empty for a system without power and cooling", clock_in(1), "clock", True, optional=True, since=7),
    Column("prefill_clock", REAL, "share", "clock of the arrays in the prefill, relative to the full clock; empty as clock", clock_in(0), page=True, optional=True, since=7),
    Column("plans_by_speeds", INTEGER, "", "1 where the policy sees the speeds of dies that differ, and plans anew for them; else empty", plans_by_speeds, page=True, optional=True, since=7),
    Column("held_by", TEXT, "", "which limit lowers the clock, in decode if in either phase; empty without a limit that is reached", power_of("held_by"), optional=True, since=7),
    Column("throttled_share", REAL, "share", "share of the time in which the clock is below the full one; empty for a system without power and cooling", power_of("throttled_share"),
           "throttled", True, optional=True, since=7),
    Column("die_power_max_w", REAL, "W", "power of the die that draws most, as a mean over a class of steps; empty for a system without power and cooling",
           most_over_classes(lambda each: each.die_w), "peak power of a die", optional=True, since=7),
    Column("die_temperature_max_c", REAL, "C", "temperature of the hottest place of a die, in the hotter class of steps; empty for a system without cooling",
           most_over_classes(lambda each: each.heat and each.heat.die_c), "hottest die", optional=True, since=7),
    Column("hbm_temperature_max_c", REAL, "C", "temperature of the hottest HBM, in the hotter class of steps; empty for a system without cooling",
           most_over_classes(lambda each: each.heat and each.heat.hbm_c), "hottest HBM", optional=True, since=7),
    *(
        Column(f"{name}_energy_factor", REAL, "×", f"energy of {of} over that at full clock, by voltage, clock and temperature; empty for a system without power and cooling",
               power_of(f"{name}_factor"), optional=True, since=7)
        for name, of in (("core", "arrays and LLCs"), ("idle", "waiting"))
    ),
    Column("model_layers", INTEGER, "layers", "MoE layers that the model has", lambda run: len(run.run.model.moe_layer_ids), page=True, since=6),
    Column("layers_error", REAL, "share", "relative standard error of times that are scaled from the layers that ran to all MoE layers, from the spread between layers; 0 where all ran, empty for one layer",
           layers_error, page=True, optional=True, since=6),
)  # fmt: skip

_OF_RUN = tuple(
    column
    for name in ("run", "system", "model", "batch", "policy", "assumptions")
    for column in COLUMNS
    if column.name == name
)


def _each(kind: str, unit: str, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, unit, meaning, None) for name, meaning in meanings.items())


_MOVED = {
    "request": "requests for slices of weights",
    "weight": "slices of weights that were streamed",
    "dispatch": "hidden vectors on their way to experts",
    "combine": "results of experts",
    "replica": "weights of experts that rebalancing moved or replication fetched",
    "statistics": "counts of loads for decisions (latency alone, not among the bytes of a link)",
}  # class of archsim.engine.demand → meaning
DIES: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", die="number of the die", x="its column", y="its row"),
    *_each(REAL, "ns", compute_busy_ns="the compute array works", compute_wait_ns="work waits for it", hbm_busy_ns="HBM works", hbm_wait_ns="transfers wait for it"),
    *_each(INTEGER, "bytes", hbm_bytes="that HBM moves"),
    *_each(REAL, "ns", llc_busy_ns="the port of the LLC works", llc_wait_ns="transfers wait for it"),
    *_each(REAL, "share", compute_utilisation="time that the compute array is busy", hbm_utilisation="bytes moved, as a share of what HBM could move in this time"),
    *_each(INTEGER, "tokens", tokens="pairs of token and expert assigned to the die"),
    *_each(INTEGER, "bytes", local_hbm_read_bytes="read from its own HBM", remote_hbm_read_bytes="read from its HBM by other dies", local_hbm_write_bytes="written as cached copies"),
    *_each(INTEGER, "bytes", activation_bytes="hidden vectors sent and received", replica_peak_bytes="peak size of cached copies"),
    Column("power_w", REAL, "W", "mean of the run, with its HBM; empty for a system without power and cooling", None, optional=True),
    Column("temperature_c", REAL, "C", "of its hottest place, in the hotter of prefill and decode; empty without cooling", None, optional=True),
    Column("hbm_temperature_c", REAL, "C", "of its HBM, likewise", None, optional=True),
    Column("site", INTEGER, "", "its number in the perfect machine; dead and spare dies have no row", None),
    Column("array_speed", REAL, "share", "clock of its array over the nominal one, as it was built", None),
    Column("hbm_speed", REAL, "share", "bandwidth of its HBM over the nominal one, as it was built", None),
    *(Column(f"{prefix}clock", REAL, "share", f"to which limits lower the clock of its array in {phase}; empty for a system without power and cooling", None, optional=True)
      for prefix, phase in (("", "decode"), ("prefill_", "the prefill"))),
    *(column for phase in ("prefill", "decode") for column in (
        Column(f"{phase}_hbm_bytes", INTEGER, "bytes", f"of hbm_bytes, in {phase}", None),
        Column(f"{phase}_tokens", INTEGER, "tokens", f"of tokens, in {phase}", None),
    )),
)  # fmt: skip
LINKS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", link="number of the link", src="from die (or switch)", dst="to die (or switch)", src_x="", src_y="", dst_x="", dst_y=""),
    *_each(TEXT, "", direction="one way, or both ways for an edge that is held as a whole"),
    *_each(INTEGER, "bytes", bytes="that crossed it"),
    *_each(REAL, "ns", busy_ns="it is held or transfers", wait_ns="transfers wait for it; empty for engines that do not measure it"),
    *_each(REAL, "share", utilisation="time that it is busy"),
    *(column for name, meaning in _MOVED.items() for column in (
        Column(f"{name}_bytes", INTEGER, "bytes", f"that crossed it: {meaning}", None),
        Column(f"{name}_ns", REAL, "ns", "time that they take at its full rate", None),
    )),
)  # fmt: skip
PAIRS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", src="from die", dst="to die"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", meaning, None) for name, meaning in _MOVED.items()),
)
STEPS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", step="iteration; 0 is the prefill, where there is one", layer="the model's number of the MoE layer"),
    *_each(REAL, "ns", time_ns="of the layer in this iteration, exposed time of decisions included"),
    *(Column(f"bound_{cause.column}_ns", REAL, "ns", f"of the critical path: {about.meaning}", None) for cause, about in CAUSES.items()),
    *_each(INTEGER, "bytes", hbm_local_read_bytes="weights read by dies from their own HBM", hbm_remote_read_bytes="weights read from the HBM of others",
           hbm_write_bytes="cached copies written", hbm_activation_bytes="hidden vectors through HBM"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", f"sent from die to die: {_MOVED[name]}; 0 for more than 128 dies", None) for name in CLASSES),
    *_each(INTEGER, "", link="number of the busiest link, as in links.csv; empty where none was busy", link_src="from die (or switch)", link_dst="to die (or switch)"),
    *_each(INTEGER, "bytes", link_bytes="that crossed it"),
    *_each(REAL, "ns", link_busy_ns="it is held or transfers"),
    *_each(INTEGER, "", die="the die with most tokens"),
    *_each(INTEGER, "tokens", die_tokens="its pairs of token and expert", tokens="those of all dies"),
    *_each(INTEGER, "", expert="the expert with most tokens"),
    *_each(INTEGER, "tokens", expert_tokens="its tokens"),
)  # fmt: skip
# Facts of the host, which differ from run to run.
TIMINGS: tuple[Column, ...] = (
    Column("run", TEXT, "", "key of the run", None),
    Column("wall_s", REAL, "s", "time of the simulation, without that of the demand", None),
    *_each(TEXT, "", host="where it ran", started="when it started, in UTC"),
)

Kinds = Mapping[str, str]
"""Name of a column → its kind; see `archsim.base.tables.Table`."""


def kinds_of(columns: Iterable[Column]) -> Kinds:
    return MappingProxyType({column.name: column.kind for column in columns})


BY_NAME: Mapping[str, Column] = MappingProxyType({column.name: column for column in COLUMNS})
RUN_COLUMNS, DIE_COLUMNS, LINK_COLUMNS, PAIR_COLUMNS, STEP_COLUMNS, TIMING_COLUMNS = map(
    kinds_of, (COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS)
)


@lru_cache(maxsize=64)
def columns_with(functions: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of an experiment that measures more by ``functions`` (``package.module:function``), theirs last.

    Raises SpecError for a name already in use, or a return type without a kind.
    """
    own = tuple(column for target in functions for column in _own_columns(target))
    for column in own:
        if column.name in BY_NAME or column.name in TIMING_COLUMNS:
            raise SpecError(
                f"columns: {column.name!r} is a column of the results already. Give the function another name"
            )
    return COLUMNS + own


def measured(run: Finished) -> dict[str, Any]:
    """The row of a finished run, without the columns that need other rows. Raises ArchsimError if a user's function
    fails.
    """
    columns = columns_with(run.run.columns)
    return {column.name: plain(column.measure(run)) for column in columns if column.measure is not None}


def shown_columns() -> tuple[Column, ...]:
    """The columns that tables on the page and in the terminal show, in their order there."""
    order: list[Column] = []
    waiting = [column for column in COLUMNS if column.header]
    for column in waiting:
        names = [each.name for each in order]
        order.insert(names.index(column.after) + 1 if column.after in names else len(order), column)
    return tuple(order)


_KINDS = MappingProxyType({int: INTEGER, float: REAL, str: TEXT})
_UNITS = ("ns", "bytes", "percent", "flop")


def _own_columns(target: str) -> list[Column]:
    """Of a function, or of a user's own execution."""
    if isinstance(import_function(target), type):
        return [_counted(target, name, meaning) for name, meaning in columns_of(target).items()]
    return [_own_column(target)]


def _counted(target: str, name: str, meaning: str) -> Column:
    def value(run: Finished) -> float | None:
        found = run.outcome.counted.get(name)
        if found is None and run.scenario.assumptions.execution == target:
            raise ArchsimError(f"{target}: counted() gives {', '.join(run.outcome.counted) or 'nothing'}; lacks {name}")
        return None if found is None else float(found)

    return Column(name, REAL, _unit_of(name), meaning, value, optional=True, since=LAYOUT)


def _unit_of(name: str) -> str:
    return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")


def _own_column(target: str) -> Column:
    function, name = import_function(target), target.partition(":")[2]
    returned = typing.get_type_hints(function).get("return", float)
    if returned not in _KINDS:
        raise SpecError(f"columns: {target}: returns {returned!r}; a column holds int, float or str")
    meaning = (inspect.getdoc(function) or "").partition("\n")[0]

    def value(run: Finished) -> Any:
        try:
            found = function(run.outcome, run.scenario)
            return None if found is None else returned(found)
        except Exception as error:  # a user's function may raise anything
            raise ArchsimError(f"{target}: {type(error).__name__}: {error}") from error

    return Column(name, _KINDS[returned], _unit_of(name), meaning, value, optional=True, since=LAYOUT)


# ---- measure_units
# Measures of the dies and the links of a finished run: columns, list[die] and list[link].

LLC_PORTS, HBM, ARRAYS = range(3)  # archsim.engine.state.UNITS, which loads numba
MOST_DIES = 32  # of a machine whose pairs of dies are kept: 992 rows a run


def measure_dies(outcome: Outcome, built: AsBuilt | None = None) -> dict[str, list]:
    """Columns over the dies of a run, list[die] each. ``built``: the machine as it is built; None: perfect."""
    from archsim.engine.loop import DECODE as DECODE_step_counts
    from archsim.engine.loop import PREFILL as PREFILL_step_counts

    total_ns = outcome.prefill_ns + outcome.decode_ns
    port, hbm, compute = (per_die(outcome, unit) for unit in (LLC_PORTS, HBM, ARRAYS))
    dies, fabric = outcome.tally.dies, outcome.fabric
    columns = {
        "die": np.arange(fabric.dies),
        "x": _at(fabric.node_x, np.arange(fabric.dies)),
        "y": _at(fabric.node_y, np.arange(fabric.dies)),
        "compute_busy_ns": compute["busy_ns"],
        "compute_wait_ns": compute["wait_ns"],
        "hbm_busy_ns": hbm["busy_ns"],
        "hbm_wait_ns": hbm["wait_ns"],
        "hbm_bytes": hbm["bytes"],
        "llc_busy_ns": port["busy_ns"],
        "llc_wait_ns": port["wait_ns"],
        "compute_utilisation": share_of_time(compute["busy_ns"], total_ns),
        "hbm_utilisation": share_of_time(hbm["bytes"] / outcome.machine.hbm_rates, total_ns),
        "tokens": outcome.load.sum(axis=(0, 1)),
        "local_hbm_read_bytes": dies["local_read_bytes"],
        "remote_hbm_read_bytes": dies["remote_read_bytes"],
        "local_hbm_write_bytes": dies["write_bytes"],
        "activation_bytes": dies["activation_bytes"],
        "replica_peak_bytes": outcome.memory.copies.room["peak_bytes"],
    }
    nothing, power = np.full(fabric.dies, np.nan), outcome.power
    kelvin = [None if power is None else power.most(get) for get in (lambda each: each.heat and each.heat.die_c, lambda each: each.heat and each.heat.hbm_c)]
    columns["power_w"] = nothing if power is None or not power.classes else power.die_w
    columns |= {name: nothing if each is None else each for name, each in zip(("temperature_c", "hbm_temperature_c"), kelvin, strict=True)}
    machine = outcome.machine
    columns["site"] = np.arange(fabric.dies) if built is None else np.array(built.living)
    columns["array_speed"], columns["hbm_speed"] = machine.array_speeds, machine.hbm_rates / machine.hbm_bytes_per_ns
    for prefix, row in (("", DECODE_step_counts), ("prefill_", PREFILL_step_counts)):
        known = power is not None and row in power.classes
        columns[f"{prefix}clock"] = power.classes[row].die_clock if known else nothing
    for phase, row in (("prefill", PREFILL_step_counts), ("decode", DECODE_step_counts)):
        columns[f"{phase}_hbm_bytes"] = outcome.counts.hbm_bytes[row]
        columns[f"{phase}_tokens"] = outcome.counts.tokens[row]
    return {name: _as_list(column) for name, column in columns.items()}


def measure_links(outcome: Outcome) -> dict[str, list]:
    """Columns over the links of a run, list[link] each: one way each, or edges that are held both ways at once."""
    from archsim.engine.demand import link_traffic
    from archsim.engine.state import UNITS

    fabric, total_ns = outcome.fabric, outcome.prefill_ns + outcome.decode_ns
    counted = outcome.tally.resources[UNITS * fabric.dies :]
    one_way, shown = len(counted) == fabric.links, shown_links(outcome)
    src, dst = fabric.link_src[shown], fabric.link_dst[shown]
    columns = {
        "link": np.arange(len(counted)),
        "src": src,
        "dst": dst,
        "src_x": _at(fabric.node_x, src),
        "src_y": _at(fabric.node_y, src),
        "dst_x": _at(fabric.node_x, dst),
        "dst_y": _at(fabric.node_y, dst),
        "bytes": counted["bytes"],
        "busy_ns": counted["busy_ns"],
        "wait_ns": counted["wait_ns"],
        "utilisation": share_of_time(counted["busy_ns"], total_ns),
    }
    rates = _rates_of_links(outcome, one_way)
    for name, (n_bytes, ns) in link_traffic(outcome.machine, outcome.tally, rates).items():
        columns |= {f"{name}_bytes": n_bytes, f"{name}_ns": ns}
    direction = np.where(src == dst, "port", "one way" if one_way else "both ways").tolist()
    return {name: _as_list(column) for name, column in columns.items()} | {"direction": direction}


MOST_IN_FRAMES = 1024  # dies and links of a machine whose frames are kept


def measure_frames(outcome: Outcome) -> dict[str, list]:
    """What dies and links did between some iterations, list[frame] each: ``last`` iteration, ``time_ns``, and in every
    frame a list over the dies (``tokens``, ``hbm`` and ``array`` as shares of the time, ``queue``: stages that wait for
    the HBM, on average) or over the links, in the order of `measure_links` (``link``: share of the time that each is
    busy, ``link_queue``; None where an engine does not measure it). Empty for machines of more than MOST_IN_FRAMES.
    """
    from archsim.engine.state import UNITS

    dies, every = outcome.fabric.dies, outcome.counts.frames()
    resources = len(outcome.tally.resources)
    if not every or resources - (UNITS - 1) * dies > MOST_IN_FRAMES:
        return {}
    hbm, arrays, links = (slice(HBM * dies, (HBM + 1) * dies), slice(ARRAYS * dies, (ARRAYS + 1) * dies),
                          slice(UNITS * dies, resources))  # fmt: skip
    zero = every[0]._replace(
        time_ns=0.0, **{name: np.zeros_like(getattr(every[0], name)) for name in ("tokens", "bytes", "busy_ns", "wait_ns")}
    )
    found: dict[str, list] = {name: [] for name in ("last", "time_ns", "tokens", "hbm", "array", "queue", "link", "link_queue")}
    for before, now in zip((zero, *every), every, strict=False):
        took_ns = max(now.time_ns - before.time_ns, 1e-9)
        busy, waits = (now.busy_ns - before.busy_ns) / took_ns, (now.wait_ns - before.wait_ns) / took_ns
        found["last"].append(now.step)
        found["time_ns"].append(took_ns)
        found["tokens"].append((now.tokens - before.tokens).tolist())
        n_bytes = (now.bytes - before.bytes)[hbm]
        for name, values in (
            ("hbm", n_bytes / outcome.machine.hbm_rates / took_ns), ("array", busy[arrays]), ("queue", waits[hbm]),
            ("link", busy[links]), ("link_queue", waits[links]),
        ):  # fmt: skip
            found[name].append([None if value != value else float(f"{value:.3g}") for value in values])
    return found


def shown_links(outcome: Outcome) -> np.ndarray:
    """int64[resource]: the link of the fabric by which each is named; of an edge, the one from the lower die."""
    one_way = outcome.machine.link_resources == outcome.fabric.links
    if one_way:
        return np.arange(outcome.fabric.links)
    return np.unique(outcome.fabric.link_edge, return_index=True)[1]  # of a die's two ports, the one out of it


def measure_pairs(outcome: Outcome) -> dict[str, list]:
    """Columns over the ordered pairs of dies between which anything moved, list[pair] each; none for more than
    MOST_DIES.
    """
    from archsim.engine.demand import pair_bytes

    moved = pair_bytes(outcome.tally)
    if outcome.fabric.dies > MOST_DIES:
        moved = {name: n_bytes[:0] for name, n_bytes in moved.items()}
    src, dst = np.nonzero(sum(moved.values()))
    columns = {"src": src, "dst": dst} | {f"{name}_bytes": n_bytes[src, dst] for name, n_bytes in moved.items()}
    return {name: _as_list(column) for name, column in columns.items()}


def _rates_of_links(outcome: Outcome, one_way: bool) -> np.ndarray:
    """float64[link]: bytes per ns; of an edge that is held both ways, those of its narrower link."""
    fabric = outcome.fabric
    if one_way:
        return fabric.link_bytes_per_ns
    rates = np.full(fabric.edges, np.inf)
    np.minimum.at(rates, fabric.link_edge, fabric.link_bytes_per_ns)
    return rates


def _as_list(column: np.ndarray) -> list:
    """Plain values; None where the engine reports none (NaN)."""
    values = column.tolist()
    return values if column.dtype.kind in "iu" else [None if value != value else value for value in values]


def per_die(outcome: Outcome, unit: int) -> np.ndarray:
    """RESOURCE[die]: LLC ports (0), HBM (1) or compute arrays (2)."""
    return outcome.tally.resources[unit * outcome.fabric.dies : (unit + 1) * outcome.fabric.dies]


def share_of_time(busy_ns: np.ndarray, total_ns: float) -> np.ndarray:
    return busy_ns / total_ns if total_ns else np.zeros(len(busy_ns))


def _at(place: np.ndarray | None, nodes: np.ndarray) -> np.ndarray:
    """Column or row of some nodes, NaN in a fabric without coordinates."""
    return np.full(len(nodes), np.nan) if place is None else place[nodes]



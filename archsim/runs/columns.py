"""The columns of results: one row each, read by whoever measures, stores, shows or documents them.

To add one, add a row, and its value to the function of its topic (`MEASURES`). A user's own is a function
``(outcome, scenario) -> value`` that the experiment names::

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
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.files import unpacked as unpacked_bytes
from archsim.base.own_code import import_function
from archsim.base.sums import sum
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.units import NS_PER_S
from archsim.specs.assumptions import columns_of

if TYPE_CHECKING:
    from archsim.engine.demand import RunDemand
    from archsim.engine.loop import RunOutcome
    from archsim.runs.run import Run
    from archsim.specs.system import SystemSpec
    from archsim.workload import TokenSource


# ---- measure
# What results say of a finished run: a function a topic, each of which gives the values of some columns by name.
#
# The table of columns below says what they mean. Times in ns, shares as fractions; ``None`` if there is nothing to
# measure.

MESSAGES, BYTES = 0, 1  # columns of Tally.hops
HOST_PERCENTILES = (10, 50, 90, 99)
# Of microarch.blocks.global_cp.State: those that steps may wait for
EXPOSED_STATES = ("READ", "UPDATE", "RECEIVE", "ORDER", "GENERATE", "EVALUATE", "MERGE", "DISPATCH", "COLLECT")


class Finished:
    """A run that has ended: its inputs (``run``, ``demand``, ``source`` of its routing) and its ``outcome``.

    ``decode``: its iterations that have tokens and count: not the prefill, nor the warm-up. int64[n]. ``counted``: with
    the prefill, where no warm-up follows it.
    """

    def __init__(self, run: Run, demand: RunDemand, source: TokenSource | None, outcome: RunOutcome) -> None:
        self.run, self.demand, self.source, self.outcome = run, demand, source, outcome
        routed = np.flatnonzero(demand.tokens.any(axis=(1, 2)))
        self.decode = (routed[routed > 0] if demand.has_prefill else routed)[run.workload.warmup_steps :]
        self.counted = self.decode if run.workload.warmup_steps else routed


def plain(value: Any) -> Any:
    """A Python value instead of a NumPy scalar."""
    return value.item() if isinstance(value, np.generic) else value


def inputs(run: Finished) -> dict[str, Any]:
    """What was simulated."""
    from archsim.runs.run import trace_label

    scenario, workload, mesh = run.run, run.run.workload, run.run.system.mesh
    assert run.source is not None
    return {
        "system": scenario.system.name,
        "mesh_x": None if mesh is None else mesh.x,
        "mesh_y": None if mesh is None else mesh.y,
        "model": scenario.model.name,
        "trace": trace_label(workload) if isinstance(workload.trace, str) else run.source.label,
        "batch": scenario.batch,
        "policy": scenario.policy.name,
        "engine": scenario.engine,
        "assumptions": scenario.assumptions.label,
        "decode_steps": len(run.decode),
        "layers": run.demand.layers,
        "model_layers": len(scenario.model.moe_layer_ids),
        "approximate": "; ".join(scenario.model.approximate) or None,
    }


def times(run: Finished) -> dict[str, Any]:
    """Times of the run and rates that follow from them. ``decode_ns_low`` and ``_high`` shift the GEMMs on the critical
    path, which stays the same, to their 5 % and 95 % residuals.
    """
    outcome, assumptions = run.outcome, run.run.assumptions
    nominal = run.run.batch * len(run.counted)
    tokens = nominal if assumptions.throughput == "nominal" else int(run.demand.tokens_of_step[run.decode].sum())
    residual_ns = outcome.decode_residual_ns
    return {
        "prefill_ns": outcome.prefill_ns,
        "decode_ns": outcome.decode_ns,
        "decode_ns_low": None if residual_ns is None else max(outcome.decode_ns - residual_ns[0], 0.0),
        "decode_ns_high": None if residual_ns is None else outcome.decode_ns + residual_ns[1],
        "throughput_tokens_per_s": tokens / (outcome.decode_ns / NS_PER_S) if outcome.decode_ns else None,
        **decode_rates(run),
        "layers_error": _layers_error(run),
        "events": outcome.tally.events[0],
    }


def decode_rates(run: Finished) -> dict[str, Any]:
    """Throughput and times of a step, of all MoE layers of the model, whichever ran; they count the tokens that decode
    generates under every set of assumptions.
    """
    share = run.demand.layers / len(run.run.model.moe_layer_ids)
    tokens = int(run.demand.tokens_of_step[run.decode].sum())
    token_ns = run.outcome.decode_ns / tokens / share if tokens else None
    return {
        "tokens_per_s": NS_PER_S / token_ns if token_ns is not None and np.any(token_ns) else None,
        "decode_step_ns": run.outcome.decode_ns / len(run.decode) / share if len(run.decode) else None,
        "decode_batch_token_ns": token_ns,
    }


def _layers_error(run: Finished) -> float | None:
    """Standard error of the time of all MoE layers of the model that is concluded from those that ran, as a share of
    it: of a mean of n of N layers that are drawn without replacement, s / √n · √(1 − n / N) (Cochran, Sampling
    Techniques, 3rd ed., eq. 2.20), s between the layers' times in decode, else in the prefill.
    """
    share = run.demand.layers / len(run.run.model.moe_layer_ids)
    ns = run.outcome.step_ns[run.decode if len(run.decode) else [0]].sum(axis=0)
    if share >= 1:
        return 0.0
    if len(ns) < 2 or not ns.any():
        return None
    return float(ns.std(ddof=1) / ns.mean() * np.sqrt((1 - share) / len(ns)))


def traffic(run: Finished) -> dict[str, Any]:
    """What moved through HBM and between dies, and the copies that dies keep."""
    from archsim.engine.state import DATA_MESSAGES, HIDDEN, REQUESTS

    outcome, tally, room = run.outcome, run.outcome.tally, run.outcome.memory.copies.room
    counted = [REQUESTS] if run.run.assumptions.hops == "requests" else [REQUESTS, DATA_MESSAGES, HIDDEN]
    slice_bytes = outcome.machine.slice_bytes
    return {
        "hop_messages": tally.hops[counted, MESSAGES].sum(),
        "hop_bytes": tally.hops[counted, BYTES].sum(),
        "hop_request_messages": tally.hops[REQUESTS, MESSAGES],
        "hop_data_messages": tally.hops[DATA_MESSAGES, MESSAGES],
        "hop_activation_messages": tally.hops[HIDDEN, MESSAGES],
        "local_hbm_read_bytes": tally.dies["local_read_bytes"].sum(),
        "remote_hbm_read_bytes": tally.dies["remote_read_bytes"].sum(),
        "local_hbm_write_bytes": tally.dies["write_bytes"].sum(),
        "activation_bytes": tally.moved_bytes.sum(),
        "dispatch_bytes": tally.moved_bytes[0],
        "combine_bytes": tally.moved_bytes[1],
        "replicas_max_bytes_per_die": room["peak_bytes"].max(),
        "replicas_evicted": room["evictions"].sum(),
        "copies_saved_bytes": room["hits"].sum() * slice_bytes,
        "copies_evicted_unused_bytes": room["unused"].sum() * slice_bytes,
        "copies_evicted_used_bytes": (room["evictions"] - room["unused"]).sum() * slice_bytes,
        "copies_held_bytes": room["used_bytes"].sum(),
        "copy_room_bytes": room["limit_bytes"].min() if run.run.assumptions.capacity == "finite" else None,
        "atu_misses": outcome.memory.atu.misses.sum(),
    }


def critical_path(run: Finished) -> dict[str, Any]:
    """What the time of the critical path goes to, and which of its causes takes most; None for a run without time."""
    bound_ns = {cause: float(run.outcome.tally.bound_ns[cause]) for cause in CAUSES}
    bound_ns[Cause.DECISION] = float(run.outcome.decision.exposed_ns.sum())
    every = sum(bound_ns.values())
    shares = {cause.column: ns / every for cause, ns in bound_ns.items()} if every else {}
    first, second = sorted(shares.values(), reverse=True)[:2] if shares else (None, None)
    return {f"bound_{cause.column}": shares.get(cause.column) for cause in CAUSES} | {
        "bounded_by": max(shares, key=shares.__getitem__) if shares else None,
        "bounded_by_margin": None if first is None or second is None else first - second,
    }


def decisions(run: Finished) -> dict[str, Any]:
    """What deciding takes, and what balancing moves; times of timed calls are None if none was: their time was given,
    or no host decided.
    """
    from archsim.engine.decision import ALLOCATION, ASIDE
    from microarch.blocks.global_cp import State

    outcome, decision, policy = run.outcome, run.outcome.decision, run.run.policy
    exposed_ns, called_ns, moved = np.array(decision.by_step), decision.called_ns, outcome.balancing
    step_ns = outcome.step_ns[outcome.step_ns > 0]
    overhead = 100 * exposed_ns / (step_ns - exposed_ns)  # of each step and layer that took time
    own = [policy.allocation] if ALLOCATION in decision.uncharged else []
    own += [policy.rebalancing, policy.replication] if ASIDE in decision.uncharged else []
    return {
        "decision_ns": decision.states_ns.sum(),
        "decision_exposed_ns": exposed_ns.sum(),
        "decision_overhead_percent": overhead.mean() if len(overhead) else None,
        **{
            f"decision_overhead_percent_p{at}": np.percentile(overhead, at) if len(overhead) else None
            for at in (50, 99)
        },
        **{f"host_p{at}_ns": np.percentile(called_ns, at) if called_ns else None for at in HOST_PERCENTILES},
        "host_calls": len(called_ns),
        **{f"exposed_{state.lower()}_ns": decision.exposed_ns[State[state]] for state in EXPOSED_STATES},
        "heatmap_dropped": outcome.heatmap_dropped,
        "uncharged": ", ".join(rule.name for rule in own if rule.is_function) or None,
        "migrated_bytes": moved.migrated_bytes,
        "under_way_bytes": moved.under_way_bytes,
        "migration_exposed_ns": moved.migration_exposed_ns,
        "prefetched_bytes": moved.replicated_bytes,
        "prefetch_exposed_ns": moved.replication_exposed_ns,
    }


def loads(run: Finished) -> dict[str, Any]:
    """How evenly work is spread: means over steps of the load of the busiest die, and of what it could be at least."""
    from archsim.engine.ceilings import Ceilings

    load = run.outcome.load[run.decode]
    steps = load.reshape(-1, load.shape[-1])
    steps = steps[steps.any(axis=1)]
    ceilings = run.outcome.ceilings[run.decode].reshape(-1, len(Ceilings._fields))
    ceilings = ceilings[ceilings[:, 0] > 0]
    least = {name: ceilings[:, Ceilings._fields.index(name)] / ceilings[:, 0] for name in ("slots", "placement")}
    total_ns = run.outcome.prefill_ns + run.outcome.decode_ns
    return {
        "die_utilisation": share_of_time(per_die(run.outcome, ARRAYS)["busy_ns"], total_ns).mean(),
        "load_max_over_mean": (steps.max(axis=1) / steps.mean(axis=1)).mean() if len(steps) else None,
        **{f"load_ceiling_{name}": each.mean() if len(each) else None for name, each in least.items()},
    }


def requests(run: Finished) -> dict[str, Any]:
    """What the batch is made of, and which of its pairs of token and expert run.

    ``active_if_distinct``: how many experts would be active if all requests were different: each token–expert pair
    picks an expert in proportion to its load over all decode steps of the layer. This is an upper estimate, because the
    loads of one step are less even than those of all steps.
    """
    from archsim.workload.demand import recorded_requests

    demand, batch = run.demand, run.run.batch
    assert run.source is not None
    recorded = recorded_requests(run.source)
    tokens = demand.tokens[run.decode]
    of_layers = tokens.sum(axis=0, dtype=np.float64)
    distinct = None
    if batch > recorded and of_layers.any():
        share = of_layers / of_layers.sum(axis=1, keepdims=True)
        distinct = float((1 - (1 - share) ** (batch * demand.top_k)).sum(axis=1).mean())
    lost_mass = 0.0
    if demand.lost_mass is not None and len(run.counted):
        lost_mass = demand.lost_mass[run.counted].mean()  # over steps and layers
    return {
        "drawn_from": float(recorded) if batch > recorded else None,
        "extend": run.run.workload.extend if batch > recorded else None,
        "active_experts": float((tokens > 0).sum(axis=2).mean()) if len(tokens) else None,
        "first_steps": _first_steps(run, tokens) or None,
        "active_if_distinct": distinct,
        "pairs_lost": 0 if demand.lost_pairs is None else demand.lost_pairs[run.counted].sum(),
        "gate_mass_lost": lost_mass,
    }


OTHER_CHIP = 0.1  # relative; a peak or HBM that differs more from a calibration's is that of another chip
GEMMS_OF = "GEMMs take the times of "
STAND_INS_APART = " | "


def laws(run: Finished) -> dict[str, Any]:
    """Which measurements the times rest on, and how far beyond them they are."""
    from archsim.engine.machine import slice_bytes
    from archsim.laws.die import NEAREST, OTHER_DTYPE

    scenario, outcome = run.run, run.outcome
    if scenario.assumptions.execution == "expert_parallel":
        from archsim.engine.cluster.moves import kernels_carried as are_carried
        from archsim.engine.cluster.moves import name_kernels
    else:
        from archsim.engine.transfer_kernels import kernels_stand_in as are_carried
        from archsim.engine.transfer_kernels import name_kernels
    transfers = name_kernels(scenario)
    carried = float(are_carried(scenario)) if transfers else None
    other_chip = None if outcome.decode_residual_ns is None else _scaled_from(scenario.system)
    copies = scenario.system.d2d.copies
    outside = None if copies is None else copies.extrapolates(slice_bytes(scenario.system, scenario.model))
    stand_ins = []
    if other_chip:
        stand_ins.append(f"{GEMMS_OF}{other_chip}, scaled to the die's peak and HBM")
    if outcome.gemm_law.startswith((NEAREST, OTHER_DTYPE)):
        stand_ins.append(f"fused layers of {scenario.model.name} take the law of the {outcome.gemm_law}")
    if carried:
        stand_ins.append(f"dispatch and combine of {scenario.model.name} take the times of {transfers}")
    return {
        "gemm_law": outcome.gemm_law or None,
        "gemm_extrapolated": 1.0 if other_chip else outcome.gemm_extrapolated,  # all of it
        "transfer_law": transfers,
        "transfer_extrapolated": carried,
        "copies_extrapolated": None if outside is None else float(outside),  # all slices have the same size
        "stand_ins": STAND_INS_APART.join(stand_ins) or None,
    }


def _scaled_from(system: SystemSpec) -> str | None:
    """The calibration of another chip whose laws are scaled to the dies; None where it is their own."""
    from archsim.specs.calibration_files import DEFAULT_CALIBRATION, calibration_named

    reference, compute = calibration_named(system.compute.calibration).reference, system.compute
    pairs = (
        (compute.peak_flop_per_s, reference.peak_flop_per_s.get(compute.dtype)),
        (system.hbm.bandwidth_bytes_per_s, reference.hbm_bytes_per_s),
    )
    other = system.datasheet_only or any(there and abs(here / there - 1) > OTHER_CHIP for here, there in pairs)
    return (compute.calibration or DEFAULT_CALIBRATION) if other else None


def limits(run: Finished) -> dict[str, Any]:
    """Clocks, power and heat; None without limits, or where there is none. ``plans_by_speeds``: a rule sees dies that
    differ, as they are built or by their clocks.
    """
    power, machine = run.outcome.power, run.outcome.machine
    unequal = np.ptp(machine.array_speeds) > 0 or np.ptp(machine.hbm_rates) > 0
    unequal = unequal or (power is not None and any(np.ptp(each.die_clock) > 0 for each in power.classes.values()))
    asks = any(run.run.policy.needs_speeds(part) for part in ("allocation", "rebalancing"))
    found: dict[str, Any] = {"plans_by_speeds": 1 if unequal and asks else None}
    if power is None:
        return found | dict.fromkeys(_OF_LIMITS)
    hottest = {
        "die_power_max_w": power.most(lambda each: each.die_w),
        "die_temperature_max_c": power.most(lambda each: each.heat and each.heat.die_c),
        "hbm_temperature_max_c": power.most(lambda each: each.heat and each.heat.hbm_c),
    }
    return found | {
        "clock": power.clock(1),
        "prefill_clock": power.clock(0),
        "held_by": power.held_by,
        "throttled_share": power.throttled_share,
        "core_energy_factor": power.core_factor,
        "idle_energy_factor": power.idle_factor,
        **{name: None if each is None or np.isnan(each).any() else each.max() for name, each in hottest.items()},
    }


def _first_steps(run: Finished, tokens: np.ndarray) -> str:
    """What is said of a run whose first decode steps are not like those after them; ''. ``tokens``: of its decode."""
    from archsim.workload.demand import LOOKED, active_by_step, unsettled_steps
    from archsim.workload.trace import draw_requests

    workload, source = run.run.workload, run.source
    if source is None or not (isinstance(workload.trace, str) or workload.trace.synthetic.like):
        return ""  # generated without a model's traffic, it begins as it goes on
    tokens = tokens[tokens.any(axis=(1, 2))]  # a prompt of no tokens is no step
    active = (tokens[:LOOKED] > 0).sum(axis=2).mean(axis=1)
    if len(active) < LOOKED:  # its requests go on
        active = active_by_step(source, draw_requests(source.requests, run.run.batch, workload.seed))
    first = unsettled_steps(active)
    counted = min(first, len(tokens)) - workload.warmup_steps
    if counted <= 0:
        return ""
    few, later = active[:first].mean(), np.median(active[first:])
    return (
        f"{counted} of {len(tokens) - workload.warmup_steps:,} decode steps of {run.run.model.name} that are counted "
        f"are no steady state: in the first {first} steps of its answers {few / later:.0%} as many experts are active as "
        f"later. workload.warmup_steps: {first} leaves them out"
    )


_OF_LIMITS = (
    "clock", "prefill_clock", "held_by", "throttled_share", "core_energy_factor", "idle_energy_factor",
    "die_power_max_w", "die_temperature_max_c", "hbm_temperature_max_c",
)  # fmt: skip


def memory(run: Finished) -> dict[str, Any]:
    """HBM beside routed experts, on the die with most of each; and that of slots beyond one for each expert: replicas,
    slots left empty, and those for fetched ones, of the last placement.
    """
    from archsim.engine.machine import slice_bytes
    from archsim.iteration.memory import KV, memory_fit
    from archsim.iteration.rank_memory import ACTIVATIONS, ATTENTION, EXPERTS
    from microarch.blocks.hbm import SLICES

    of, model, system = run.run, run.run.model, run.run.system
    slots = np.zeros(system.dies, np.int64)
    beside = memory_fit(system, model, of.assumptions, slots, of.workload, of.batch, of.deployment)
    once = len(model.moe_layer_ids) * model.experts * SLICES * slice_bytes(system, model)
    return {
        "hbm_all_counted": int(not model.missing_geometry) if of.assumptions.memory == "all" else None,
        "context_tokens": beside.context,
        "context_from": None if beside.context is None else of.context_from,
        "hbm_kv_bytes": beside.of(KV),
        "hbm_attention_bytes": beside.of(ATTENTION),
        "hbm_activation_bytes": beside.of(ACTIVATIONS),
        "memory_doubt": run.outcome.fit.doubtful(f"{model.name} on {system.name}") or None,
        "replica_hbm_bytes": run.outcome.fit.parts[EXPERTS].sum() - once,
    }


def use(run: Finished, row: Mapping[str, Any]) -> dict[str, Any]:
    """Use of the machine over the whole run, prefill included, by its work in ``row``. Its roofline is the least time in which evenly loaded
    dies could do the same FLOP and move the same bytes of HBM, without weights that move in no time.
    """
    system, total_ns = run.run.system, run.outcome.prefill_ns + run.outcome.decode_ns
    arrays, hbms = system.whole
    flop_ns = row["flop"] / (system.compute.peak_flop_per_s * arrays) * NS_PER_S
    hbm_ns = int(per_die(run.outcome, HBM)["bytes"].sum()) / (system.hbm.bandwidth_bytes_per_s * hbms) * NS_PER_S
    least_ns = max(flop_ns, hbm_ns)
    return {
        "mfu": flop_ns / total_ns if total_ns else None,
        "hbm_bandwidth_utilisation": hbm_ns / total_ns if total_ns else None,
        "over_roofline": total_ns / least_ns if least_ns else None,
    }


ALL_EXPERTS = np.array([0.0, 0.0, 1.0, 0.0])  # of a layer that is not told apart: its `archsim.engine.state.PARTS`
_ITERATIONS = {"": "decode iteration", "prefill_": "prefill"}  # begin of columns → what it is
# Columns, and what they say; the causes of each: archsim.iteration.run_iteration.COLUMNS.
PARTS = MappingProxyType(
    {
        "attention": "attention",
        "projections": "projections of attention",
        "dense": "dense layers, router, norms, and shared experts that the run leaves out",
        "experts": "routed and shared experts",
        "transfers": "dispatch and combine that nothing hides",
        "all_reduce": "all-reduces of tensor parallelism",
        "head": "LM head and sampling",
        "host": "the host, of wafers its way there and back; 0 where nothing says",
    }
)


def whole_iteration(run: Finished) -> dict[str, Any]:
    """A whole iteration: MoE layers as the run has them, all else by laws; and what pages print of parts that were not
    measured.

    A run has MoE layers alone, often some of them: its time an iteration counts for all of the model's. Decoded
    requests hold `WorkloadSpec.context_tokens` each; prompts are all as long as their mean. None where attention does
    not count (``memory: experts`` without ``execution: expert_parallel``), or was not measured on the GPU.
    """
    from archsim.engine.step_counts import DECODE, PREFILL

    outcome, scenario = run.outcome, run.run
    names = [f"{prefix}iteration{part}_ns" for prefix in _ITERATIONS for part in ("", *(f"_{each}" for each in PARTS))]
    found: dict[str, Any] = {"attention_law": None, **dict.fromkeys(names)}
    for prefix, phase, ns, iterations in (
        ("", DECODE, outcome.decode_ns, len(run.decode)), ("prefill_", PREFILL, outcome.prefill_ns, 1),
    ):  # fmt: skip
        parts = outcome.counts.part_ns[phase]
        if not (iterations and ns and (parts.any() or scenario.assumptions.counts_attention)):
            continue
        parts = parts if parts.any() else ALL_EXPERTS
        from archsim.engine.cluster.moves import sms_share
        from archsim.engine.machine import links_of
        from archsim.iteration.overlap import ExpertLayer
        from archsim.iteration.run_iteration import COLUMNS as CAUSES_OF
        from archsim.iteration.run_iteration import batch_of, iteration_ns, laws_of

        if (laws := laws_of(scenario, links_of(scenario.system, scenario.assumptions))) is None:
            continue
        tokens = run.demand.tokens_of_step[0] if phase == PREFILL else scenario.batch
        all_ns = ns / iterations * len(scenario.model.moe_layer_ids) / outcome.step_ns.shape[1]
        batch = batch_of(scenario, float(tokens) / scenario.parallel.dp, prompts=phase == PREFILL)
        moe = ExpertLayer(*(all_ns * parts / parts.sum()).tolist())
        causes = iteration_ns(scenario, laws, batch, moe, sms_share(scenario.system, scenario.assumptions))
        found["attention_law"] = "; ".join(laws.notes) or None
        found[f"{prefix}iteration_ns"] = sum(causes.values())
        found |= {f"{prefix}iteration_{part}_ns": sum(causes[each] for each in CAUSES_OF[part]) for part in PARTS}
    return found


def energy(run: Finished, row: Mapping[str, Any]) -> dict[str, Any]:
    """Energy, power, area and price, by the work and the times in ``row``."""
    from archsim.runs.energy import activity_of, build_costs, economics, iteration_energy

    activity, costs = activity_of(run.run.model, row), build_costs(run.run.system)
    return economics(activity, costs) | iteration_energy(run.run, activity, costs, row["iteration_ns"])


MEASURES = (
    inputs, times, traffic, critical_path, decisions, loads, requests, laws, limits, memory, whole_iteration,
)  # fmt: skip


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
# A run of more than `archsim.engine.step_counts.MOST_STEPS` steps has none.

# Classes of archsim.engine.demand, without requests, whose bytes are next to nothing.
_AS_COUNTED = ("link_bytes", "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens")
CLASSES = ("weight", "dispatch", "combine", "replica", "statistics")


def measure_steps(run: Finished) -> dict[str, np.ndarray]:
    """Columns over the steps, one value each; see ``archsim.runs.columns.STEPS``. Empty where none are kept."""
    from archsim.engine.step_counts import MOVED

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
    busiest, shown, fabric = counts["link"], shown_links(run.outcome), run.outcome.fabric
    columns["link"] = busiest
    for name, ends in (("link_src", fabric.link_src), ("link_dst", fabric.link_dst)):
        columns[name] = busiest
        if len(shown):
            columns[name] = np.where(busiest >= 0, ends[shown[np.maximum(busiest, 0)]], NO_LINK).astype(np.int64)
    return columns | {name: counts[name] for name in _AS_COUNTED}


# ---- columns

# ruff: noqa: E501  (one row a column: a table is read across)

LAYOUT = 8  # of results: raised when columns are added or change meaning; stored in manifests


class Column(NamedTuple):
    """A column of the results.

    ``kind``: INTEGER, REAL or TEXT. ``unit``: as in names (``ns``, ``bytes``, ``share`` of 1, ``percent``, …).
    ``measure``: of a user's own, its value for a finished run; the others are in `MEASURES`, or follow from other rows.
    ``optional``: the cell is empty where ``meaning`` says so. ``header``: what tables of the page and the terminal call
    it, '' for those that leave it out; ``after``: the column that it stands behind there, if that is another than here.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    header: str = ""
    optional: bool = False
    after: str = ""
    measure: Callable[[Finished], Any] | None = None


COLUMNS: tuple[Column, ...] = (
    Column("system", TEXT, "", "name of the system"),
    Column("mesh_x", INTEGER, "dies", "dies along x; empty for a system without a mesh", optional=True),
    Column("mesh_y", INTEGER, "dies", "dies along y; empty for a system without a mesh", optional=True),
    Column("model", TEXT, "", "name of the model"),
    Column("trace", TEXT, "", "the routing: last two names of the trace's path, or what was generated"),
    Column("batch", INTEGER, "requests", "requests that are served together"),
    Column("policy", TEXT, "", "name of the policy"),
    Column("engine", TEXT, "", "event or analytical"),
    Column("assumptions", TEXT, "", "label of the assumption set"),
    Column("decode_steps", INTEGER, "steps", "decode iterations, without prefill and warm-up", "decode steps"),
    Column("prefill_ns", REAL, "ns", "time of the prefill; 0 where none ran, or a warm-up follows it", "prefill"),
    Column("decode_ns", REAL, "ns", "time of all decode steps", "decode"),
    Column("throughput_tokens_per_s", REAL, "tokens/s", "decode throughput of the layers that ran, as the assumption throughput counts it; tables show tokens_per_s; empty without decode", optional=True),
    Column("speedup_vs_base", REAL, "×", "decode throughput relative to policy base, with all else equal; empty without such a run",
           "speed-up over base", optional=True),
    Column("speedup_vs_ep", REAL, "×", "decode throughput relative to policy ep, with all else equal; empty without such a run",
           "speed-up over ep", optional=True, after="decode_ns"),
    Column("hop_messages", INTEGER, "message hops", "messages multiplied by their hops (dies that they enter); the assumption hops says which of them count", "hops, messages"),
    Column("hop_bytes", INTEGER, "byte hops", "bytes of these messages multiplied by their hops", "hops, bytes"),
    Column("local_hbm_read_bytes", INTEGER, "bytes", "what dies read from their own HBM", "local HBM reads"),
    Column("remote_hbm_read_bytes", INTEGER, "bytes", "what dies read from the HBM of other dies", "remote HBM reads"),
    Column("local_hbm_write_bytes", INTEGER, "bytes", "what is written to HBM as cached copies", "HBM writes of copies"),
    Column("activation_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die",
           "activations between dies"),
    Column("die_utilisation", REAL, "share", "share of the time in which the compute array is busy, as a mean over dies", "die utilisation"),
    Column("load_max_over_mean", REAL, "×", "tokens of the busiest die relative to the mean of all dies, as a mean over steps; empty without decode", "load, max over mean", optional=True),
    Column("replicas_max_bytes_per_die", INTEGER, "bytes", "largest size of the cached copies on a die", "copies on the fullest die"),
    Column("events", INTEGER, "events", "events of the event engine, or steps of the analytical engine's walk", "events"),
    Column("hop_request_messages", INTEGER, "message hops", "requests for slices, multiplied by their hops"),
    Column("hop_data_messages", INTEGER, "message hops", "slices, multiplied by their hops"),
    Column("hop_activation_messages", INTEGER, "message hops", "messages of hidden vectors, multiplied by their hops"),
    Column("replicas_evicted", INTEGER, "replicas", "cached copies that were evicted"),
    *(
        Column(f"copies_{name}_bytes", INTEGER, "bytes", meaning)
        for name, meaning in (
            ("saved", "slices of other dies' experts that a die found among its cached copies, and did not read remotely"),
            ("evicted_unused", "cached copies that were evicted without having been read"),
            ("evicted_used", "cached copies that were evicted after having been read"),
            ("held", "cached copies on all dies at the end of the run"),
        )
    ),
    *(
        Column(f"bound_{cause.column}", REAL, "share", f"time on the critical path that {about.meaning} takes; empty for a run without time", optional=True)
        for cause, about in CAUSES.items()
    ),
    Column("bounded_by", TEXT, "", "which cause has the largest of these shares; empty for a run without time", optional=True),
    Column("bounded_by_margin", REAL, "share", "by how much it is larger than the next one", optional=True),
    Column("decision_ns", REAL, "ns", "time of decisions, whether steps wait for it or not"),
    Column("decision_exposed_ns", REAL, "ns", "time that steps wait for decisions"),
    Column("decision_overhead_percent", REAL, "percent", "time that a step waits for decisions relative to the rest of the step, as a mean",
           "overhead of decisions", optional=True, after="replicas_max_bytes_per_die"),
    *(
        Column(f"decision_overhead_percent_p{at}", REAL, "percent", f"as above, {at}th percentile over steps", optional=True)
        for at in (50, 99)
    ),
    *(
        Column(f"host_p{at}_ns", REAL, "ns", f"{at}th percentile of the calls of a policy function timed on this machine; empty where none was", optional=True)
        for at in HOST_PERCENTILES
    ),
    Column("host_calls", INTEGER, "calls", "calls of a policy function that were timed"),
    *(
        Column(f"exposed_{state.lower()}_ns", REAL, "ns", f"exposed time of decisions in state {state}")
        for state in EXPOSED_STATES
    ),
    Column("heatmap_dropped", INTEGER, "transitions", "token transitions that the heatmap dropped"),
    Column("atu_misses", INTEGER, "misses", "misses of the address translation units"),
    Column("expert_tokens", INTEGER, "tokens", "pairs of token and routed expert that ran, over all layers, prefill included"),
    Column("hbm_bytes", INTEGER, "bytes", "what HBM reads and writes, hidden vectors included"),
    Column("link_bytes", INTEGER, "bytes", "bytes multiplied by the links that they crossed"),
    Column("flop", REAL, "flop", "FLOP of expert GEMMs"),
    Column("padded_flop", REAL, "flop", "of rows that are empty in the tiles of 64 rows of expert GEMMs; energy counts them, times do not"),
    Column("decode_ns_low", REAL, "ns", "time of decode with GEMMs at the 5 % residual of their calibration; empty without one",
           "decode, low", optional=True, after="decode_ns"),
    Column("decode_ns_high", REAL, "ns", "time of decode with GEMMs at the 95 % residual of their calibration; empty without one",
           "decode, high", optional=True, after="decode_ns_low"),
    Column("gemm_law", TEXT, "", "measured kernels whose fitted laws time the experts: fused layers (gemm: grouped) or products (gemm: calibrated); empty for a roofline", optional=True),
    Column("transfer_law", TEXT, "", "measured kernels that hidden vectors wait for; empty unless a GPU's transfer software is charged", optional=True),
    Column("transfer_extrapolated", REAL, "share", "time of dispatch and combine by the law of another GPU, shape or number of ranks or nodes; empty unless a GPU's transfer software is charged", optional=True),
    Column("stand_ins", TEXT, "", "what was not measured, and whose law it takes, of which all time counts as extrapolated; empty where all was measured", optional=True),
    Column("gemm_extrapolated", REAL, "share", "share of the GEMM time at sizes that were not measured, or by the law of another chip; empty without a calibration",
           "GEMMs extrapolated", optional=True, after="decode_ns_high"),
    Column("copies_extrapolated", REAL, "share", "share of the slices whose size was not measured when copying; empty where links are not calibrated", "copies extrapolated", optional=True, after="gemm_extrapolated"),
    Column("dispatch_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die, to their experts",
           "dispatched between dies", after="activation_bytes"),
    Column("combine_bytes", INTEGER, "bytes", "results of experts that are sent from die to die, back to their tokens",
           "combined between dies", after="dispatch_bytes"),
    Column("drawn_from", REAL, "requests", "requests of the trace that the batch, which is larger, is made from; else empty", optional=True),
    Column("extend", TEXT, "", "how it is made from them: redraw, shifted or fitted; else empty", optional=True),
    Column("active_experts", REAL, "experts", "experts with tokens, mean over decode steps and layers; empty without decode steps", optional=True),
    Column("active_if_distinct", REAL, "experts", "upper estimate of the same if all requests of such a batch were different ones; else empty", optional=True),
    *(
        Column(name, REAL, unit, meaning, optional=name in ("energy_per_token_j", "power_w"))
        for name, unit, meaning in (
            ("energy_per_token_j", "J/token", "energy of the MoE layers, prefill included, for each token that passed all of them; empty without tokens"),
            ("power_w", "W", "mean power of the MoE layers over the whole run; empty for a run without time"),
            ("die_mm2", "mm²", "estimated area of one die"),
            ("silicon_mm2", "mm²", "estimated area of all dies, without HBM"),
            ("cost_usd", "USD", "estimated price of making one machine"),
        )
    ),
    Column("carrier_share", REAL, "share", "area of dies that are linked as on one carrier, and their HBM, over that of the largest carrier: above 1, links from one carrier to the next are slower under `carriers: as_needed`", optional=True),
    *(
        Column(f"iteration_energy_per_token_j{end}", REAL, "J/token", meaning, optional=True)
        for end, meaning in (
            ("", "of a whole decode iteration: attention, dense layers, head and waiting included; empty where it is not known"),
            ("_low", "as iteration_energy_per_token_j, all coefficients of energy at their low bound"),
            ("_high", "as iteration_energy_per_token_j, all coefficients of energy at their high bound"),
        )
    ),
    *(
        column
        for prefix, what in _ITERATIONS.items()
        for column in (
            Column(f"{prefix}iteration_ns", REAL, "ns", f"a whole {what}: attention, dense layers, head and host included; empty under memory: experts, but for execution: expert_parallel", optional=True),
            *(
                Column(f"{prefix}iteration_{part}_ns", REAL, "ns", f"of it: {meaning}", optional=True)
                for part, meaning in PARTS.items()
            ),
        )
    ),
    *(
        Column(f"{name}_{bound}", REAL, unit, f"as {name}, all coefficients of energy at their {bound} bound", optional=True)
        for name, unit in (("energy_per_token_j", "J/token"), ("power_w", "W"))
        for bound in ("low", "high")
    ),
    Column("hbm_all_counted", INTEGER, "", "1: KV cache, attention and activations are counted in HBM beside experts; 0: the model lacks what that needs; empty under memory: experts", optional=True),
    Column("approximate", TEXT, "", "what the model has and nothing here reads, of a model imported with --accept-approximate; else empty", optional=True),
    Column("memory_doubt", TEXT, "", "in how many samples of what an engine takes of HBM the run fits, where these are fewer than 90 %; else empty", optional=True),
    Column("first_steps", TEXT, "", "what is counted of first decode steps that have fewer active experts than those after them, as where answers begin with a template; else empty", optional=True),
    Column("attention_law", TEXT, "", "what the times of attention rest on where its kind was not measured; else empty", optional=True),
    Column("context_tokens", INTEGER, "tokens", "KV cache of a request; empty where experts alone are counted", optional=True),
    Column("context_from", TEXT, "", "what says it: the workload, or the longest request of the batch; empty where experts alone are counted", optional=True),
    *(
        Column(name, INTEGER, "bytes", f"{what} on the die with most of it; empty where experts alone are counted", optional=True)
        for name, what in (
            ("hbm_kv_bytes", "KV cache"),
            ("hbm_attention_bytes", "weights of attention, dense layers, routers and embeddings"),
            ("hbm_activation_bytes", "bound for activations of a step"),
        )
    ),
    Column("copy_room_bytes", INTEGER, "bytes", "left for cached copies on the die with least; empty where capacity is unbounded", optional=True),
    *(
        Column(f"load_ceiling_{name}", REAL, "×", f"least load of the busiest die over the mean, {meaning}; mean over steps, empty without decode", optional=True)
        for name, meaning in (
            ("slots", "with any placement of as many slots: a lower bound"),
            ("placement", "with tokens divided at best among holders"),
        )
    ),
    Column("migrated_bytes", INTEGER, "bytes", "weights that rebalancing has moved when the run ends"),
    Column("migration_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision"),
    Column("under_way_bytes", INTEGER, "bytes", "weights that rebalancing was still moving when the run ended: their placement was not used"),
    Column("prefetched_bytes", INTEGER, "bytes", "weights that were fetched as replicas for the next layer"),
    Column("prefetch_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision"),
    Column("pairs_lost", INTEGER, "pairs", "pairs of token and expert that the router chose and no die executed"),
    Column("gate_mass_lost", REAL, "share", "gate mass of pairs that are not executed, less that of those executed instead; scores are the trace's, else generated"),
    Column("uncharged", TEXT, "", "own functions of the policy that return no Effort, so that their decisions take no time; empty: none", optional=True),
    Column("replica_hbm_bytes", INTEGER, "bytes", "HBM of all dies for slots beyond one for each expert, of all MoE layers of the model, at the end"),
    Column("run", TEXT, "", "key of the run, a digest of everything that it is made of"),
    Column("layers", INTEGER, "layers", "MoE layers that ran; times, counts and throughput_tokens_per_s are those of these layers alone"),
    Column("tokens_per_s", REAL, "tokens/s", "tokens that decode generates, divided by its time and scaled to all MoE layers of the model; empty without decode", "throughput", optional=True, after="copies_extrapolated"),
    Column("decode_step_ns", REAL, "ns", "mean time of a decode step through all MoE layers of the model; empty without decode", "a decode step", optional=True, after="tokens_per_s"),
    Column("decode_batch_token_ns", REAL, "ns", "time of a decode step divided by the requests of its batch, which is not the TPOT of a request; empty without decode", "time a token of the batch", optional=True, after="decode_step_ns"),
    Column("mfu", REAL, "share", "FLOP of experts relative to what all dies could do at their peak in the time of the run, prefill included", "MFU", optional=True, after="decode_batch_token_ns"),
    Column("hbm_bandwidth_utilisation", REAL, "share", "bytes of HBM relative to what all dies could move at nominal bandwidth in the time of the run, prefill included", "HBM bandwidth used", optional=True, after="mfu"),
    Column("over_roofline", REAL, "×", "time of the run relative to the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM", "over its roofline", optional=True, after="hbm_bandwidth_utilisation"),
    Column("clock", REAL, "share", "clock of the arrays in decode, relative to the full clock; empty for a system without power and cooling", "clock", optional=True),
    Column("prefill_clock", REAL, "share", "clock of the arrays in the prefill, relative to the full clock; empty as clock", optional=True),
    Column("plans_by_speeds", INTEGER, "", "1 where the policy sees the speeds of dies that differ, and plans anew for them; else empty", optional=True),
    Column("held_by", TEXT, "", "which limit lowers the clock, in decode if in either phase; empty without a limit that is reached", optional=True),
    Column("throttled_share", REAL, "share", "share of the time in which the clock is below the full one; empty for a system without power and cooling",
           "throttled", optional=True),
    Column("die_power_max_w", REAL, "W", "power of the die that draws most, as a mean over a class of steps; empty for a system without power and cooling", "peak power of a die", optional=True),
    Column("die_temperature_max_c", REAL, "C", "temperature of the hottest place of a die, in the hotter class of steps; empty for a system without cooling", "hottest die", optional=True),
    Column("hbm_temperature_max_c", REAL, "C", "temperature of the hottest HBM, in the hotter class of steps; empty for a system without cooling", "hottest HBM", optional=True),
    *(
        Column(f"{name}_energy_factor", REAL, "×", f"energy of {of} over that at full clock, by voltage, clock and temperature; empty for a system without power and cooling", optional=True)
        for name, of in (("core", "arrays and LLCs"), ("idle", "waiting"))
    ),
    Column("model_layers", INTEGER, "layers", "MoE layers that the model has"),
    Column("layers_error", REAL, "share", "relative standard error of times that are scaled from the layers that ran to all MoE layers, from the spread between layers; 0 where all ran, empty for one layer", optional=True),
    Column("broken_laws", TEXT, "", "laws of physics that the row, or its dies and links, disobey, by a defect of archsim; else empty", optional=True),
)  # fmt: skip

_OF_RUN = tuple(
    column
    for name in ("run", "system", "model", "batch", "policy", "assumptions")
    for column in COLUMNS
    if column.name == name
)


def _each(kind: str, unit: str, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, unit, meaning) for name, meaning in meanings.items())


_MOVED = {
    "request": "requests for slices of weights",
    "weight": "slices of weights that were streamed",
    "dispatch": "hidden vectors on their way to experts",
    "combine": "results of experts",
    "replica": "weights of experts that rebalancing moved or replication fetched",
    "statistics": "counts of loads for decisions (a decision waits for them, and they slow no transfer)",
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
    *_each(INTEGER, "bytes", activation_bytes="hidden vectors sent and received", moved_weight_bytes="weights that rebalancing, replication or a step's fetches read and wrote, beside those reads and copies", replica_peak_bytes="peak size of cached copies"),
    Column("power_w", REAL, "W", "mean of the run, with its HBM; empty for a system without power and cooling", optional=True),
    Column("temperature_c", REAL, "C", "of its hottest place, in the hotter of prefill and decode; empty without cooling", optional=True),
    Column("hbm_temperature_c", REAL, "C", "of its HBM, likewise", optional=True),
    Column("site", INTEGER, "", "its number in the perfect machine; dead and spare dies have no row"),
    Column("array_speed", REAL, "share", "clock of its array over the nominal one, as it was built"),
    Column("hbm_speed", REAL, "share", "bandwidth of its HBM over the nominal one, as it was built"),
    *(Column(f"{prefix}clock", REAL, "share", f"to which limits lower the clock of its array in {phase}; empty for a system without power and cooling", optional=True)
      for prefix, phase in (("", "decode"), ("prefill_", "the prefill"))),
    *(column for phase in ("prefill", "decode") for column in (
        Column(f"{phase}_hbm_bytes", INTEGER, "bytes", f"of hbm_bytes, in {phase}, without weights that move in no time (migration: free)"),
        Column(f"{phase}_tokens", INTEGER, "tokens", f"of tokens, in {phase}"),
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
        Column(f"{name}_bytes", INTEGER, "bytes", f"that crossed it: {meaning}"),
        Column(f"{name}_ns", REAL, "ns", "time that they take at its full rate"),
    )),
)  # fmt: skip
PAIRS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", src="from die", dst="to die"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", meaning) for name, meaning in _MOVED.items()),
)
STEPS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", step="iteration; 0 is the prefill, where there is one", layer="the model's number of the MoE layer"),
    *_each(REAL, "ns", time_ns="of the layer in this iteration, exposed time of decisions included"),
    *(Column(f"bound_{cause.column}_ns", REAL, "ns", f"of the critical path: {about.meaning}") for cause, about in CAUSES.items()),
    *_each(INTEGER, "bytes", hbm_local_read_bytes="weights read by dies from their own HBM", hbm_remote_read_bytes="weights read from the HBM of others",
           hbm_write_bytes="cached copies written", hbm_activation_bytes="hidden vectors through HBM"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", f"sent from die to die: {_MOVED[name]}; 0 for more than 128 dies") for name in CLASSES),
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
    Column("run", TEXT, "", "key of the run"),
    Column("wall_s", REAL, "s", "time of the simulation, without that of the demand"),
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


def measured(run: Finished) -> tuple[dict[str, Any], dict[str, list], dict[str, list]]:
    """The row of a finished run, without the columns that need other rows; columns over its dies, and over its links.
    Raises ArchsimError if a user's function fails.
    """
    from archsim.runs.energy import work_of

    dies, links = measure_dies(run), measure_links(run.outcome)
    padded = int(run.outcome.counts.padded.sum())
    row: dict[str, Any] = {**work_of(run.run.model, run.run.assumptions, dies, links, padded)}
    for measure in MEASURES:
        row |= {name: plain(value) for name, value in measure(run).items()}
    row |= {name: plain(value) for name, value in use(run, row).items()} | energy(run, row)
    columns = columns_with(run.run.columns)
    row |= {column.name: plain(column.measure(run)) for column in columns if column.measure is not None}
    return {column.name: row[column.name] for column in columns if column.name in row}, dies, links


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
        if found is None and run.run.assumptions.execution == target:
            raise ArchsimError(f"{target}: counted() gives {', '.join(run.outcome.counted) or 'nothing'}; lacks {name}")
        return None if found is None else float(found)

    return Column(name, REAL, _unit_of(name), meaning, optional=True, measure=value)


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
            found = function(run.outcome, run.run)
            return None if found is None else returned(found)
        except Exception as error:  # a user's function may raise anything
            raise ArchsimError(f"{target}: {type(error).__name__}: {error}") from error

    return Column(name, _KINDS[returned], _unit_of(name), meaning, optional=True, measure=value)


# ---- measure_units
# Measures of the dies and the links of a finished run: columns, list[die] and list[link].

LLC_PORTS, HBM, ARRAYS = range(3)  # archsim.engine.state.UNITS, which loads numba
MOST_DIES = 32  # of a machine whose pairs of dies are kept: 992 rows a run


def measure_dies(run: Finished) -> dict[str, list]:
    """Columns over the dies of a run, list[die] each."""
    from archsim.engine.pair_traffic import pair_bytes
    from archsim.engine.step_counts import DECODE, PREFILL

    outcome, built = run.outcome, run.run.system.built
    total_ns = outcome.prefill_ns + outcome.decode_ns
    port, hbm, compute = (per_die(outcome, unit) for unit in (LLC_PORTS, HBM, ARRAYS))
    dies, fabric, sent = outcome.tally.dies, outcome.fabric, pair_bytes(outcome.tally)
    moved = sent["replica"].sum(axis=0) + sent["replica"].sum(axis=1)
    if run.run.assumptions.execution == "expert_parallel":  # which keeps what it fetches for a step in HBM
        moved += sent["weight"].sum(axis=0)
    columns = {
        "die": np.arange(fabric.dies),
        "x": _at(fabric.node_x, np.arange(fabric.dies)),
        "y": _at(fabric.node_y, np.arange(fabric.dies)),
        "compute_busy_ns": compute["busy_ns"],
        "compute_wait_ns": compute["wait_ns"],
        "hbm_busy_ns": hbm["busy_ns"],
        "hbm_wait_ns": hbm["wait_ns"],
        "hbm_bytes": hbm["bytes"] + untimed_bytes(outcome)[HBM * fabric.dies : ARRAYS * fabric.dies],
        "llc_busy_ns": port["busy_ns"],
        "llc_wait_ns": port["wait_ns"],
        "compute_utilisation": share_of_time(compute["busy_ns"], total_ns),
        "hbm_utilisation": share_of_time(hbm["bytes"] / outcome.machine.hbm_rates, total_ns),
        "tokens": outcome.load.sum(axis=(0, 1)),
        "local_hbm_read_bytes": dies["local_read_bytes"],
        "remote_hbm_read_bytes": dies["remote_read_bytes"],
        "local_hbm_write_bytes": dies["write_bytes"],
        "activation_bytes": dies["activation_bytes"],
        "moved_weight_bytes": moved,
        "replica_peak_bytes": outcome.memory.copies.room["peak_bytes"],
    }
    nothing, power = np.full(fabric.dies, np.nan), outcome.power
    kelvin = [
        None if power is None else power.most(get)
        for get in (lambda each: each.heat and each.heat.die_c, lambda each: each.heat and each.heat.hbm_c)
    ]
    columns["power_w"] = nothing if power is None or not power.classes else power.die_w
    columns |= {
        name: nothing if each is None else each
        for name, each in zip(("temperature_c", "hbm_temperature_c"), kelvin, strict=True)
    }
    machine = outcome.machine
    columns["site"] = np.arange(fabric.dies) if built is None else np.array(built.living)
    columns["array_speed"], columns["hbm_speed"] = machine.array_speeds, machine.hbm_rates / machine.hbm_bytes_per_ns
    for prefix, row in (("", DECODE), ("prefill_", PREFILL)):
        known = power is not None and row in power.classes
        columns[f"{prefix}clock"] = power.classes[row].die_clock if known else nothing
    for phase, row in (("prefill", PREFILL), ("decode", DECODE)):
        columns[f"{phase}_hbm_bytes"] = outcome.counts.hbm_bytes[row]
        columns[f"{phase}_tokens"] = outcome.counts.tokens[row]
    return {name: _as_list(column) for name, column in columns.items()}


def measure_links(outcome: RunOutcome) -> dict[str, list]:
    """Columns over the links of a run, list[link] each: one way each, or edges that are held both ways at once."""
    from archsim.engine.pair_traffic import link_traffic
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
    rates = fabric.link_bytes_per_ns
    if not one_way:  # of an edge that is held both ways, those of its narrower link
        rates = np.full(fabric.edges, np.inf)
        np.minimum.at(rates, fabric.link_edge, fabric.link_bytes_per_ns)
    for name, (n_bytes, ns) in link_traffic(outcome.machine, outcome.tally, rates).items():
        columns |= {f"{name}_bytes": n_bytes, f"{name}_ns": ns}
    # engines put neither statistics on links, nor weights that take no time
    columns["bytes"] = counted["bytes"] + untimed_bytes(outcome)[UNITS * fabric.dies :] + columns["statistics_bytes"]
    direction = np.where(src == dst, "port", "one way" if one_way else "both ways").tolist()
    return {name: _as_list(column) for name, column in columns.items()} | {"direction": direction}


MOST_IN_FRAMES = 1024  # dies and links of a machine whose frames are kept


def measure_frames(outcome: RunOutcome) -> dict[str, list]:
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
    took_ns = np.maximum(np.diff([each.time_ns for each in every], prepend=0.0), 1e-9)[:, None]
    tokens, n_bytes, busy_ns, wait_ns = (
        np.diff([getattr(each, name) for each in every], axis=0, prepend=0)
        for name in ("tokens", "bytes", "busy_ns", "wait_ns")
    )
    moved, busy = _no_later(n_bytes[:, hbm] / outcome.machine.hbm_rates, took_ns), _no_later(busy_ns, took_ns)
    found: dict[str, list] = {
        "last": [each.step for each in every],
        "time_ns": took_ns[:, 0].tolist(),
        "tokens": tokens.tolist(),
    }
    for name, values in (
        ("hbm", moved), ("array", busy[:, arrays]), ("queue", (wait_ns / took_ns)[:, hbm]),
        ("link", busy[:, links]), ("link_queue", (wait_ns / took_ns)[:, links]),
    ):  # fmt: skip
        found[name] = [[None if value != value else float(f"{value:.3g}") for value in row] for row in values]
    return found


def _no_later(busy_ns: np.ndarray, took_ns: np.ndarray) -> np.ndarray:
    """float64[frame, n], shares of the time of each frame: what a frame had no time for was in the one before, as
    weights that arrive behind a step are counted with the step that they are for.
    """
    left = busy_ns.astype(float)
    for frame in range(len(left) - 1, 0, -1):
        later = np.maximum(left[frame] - took_ns[frame], 0.0)
        left[frame] -= later
        left[frame - 1] += later
    return left / took_ns


def shown_links(outcome: RunOutcome) -> np.ndarray:
    """int64[resource]: the link of the fabric by which each is named; of an edge, the one from the lower die."""
    one_way = outcome.machine.link_resources == outcome.fabric.links
    if one_way:
        return np.arange(outcome.fabric.links)
    return np.unique(outcome.fabric.link_edge, return_index=True)[1]  # of a die's two ports, the one out of it


def measure_pairs(outcome: RunOutcome) -> dict[str, list]:
    """Columns over the ordered pairs of dies between which anything moved, list[pair] each; none for more than
    MOST_DIES.
    """
    from archsim.engine.pair_traffic import pair_bytes

    moved = pair_bytes(outcome.tally)
    if outcome.fabric.dies > MOST_DIES:
        moved = {name: n_bytes[:0] for name, n_bytes in moved.items()}
    src, dst = np.nonzero(np.sum(list(moved.values()), axis=0))
    columns = {"src": src, "dst": dst} | {f"{name}_bytes": n_bytes[src, dst] for name, n_bytes in moved.items()}
    return {name: _as_list(column) for name, column in columns.items()}


def _as_list(column: np.ndarray) -> list:
    """Plain values; None where the engine reports none (NaN)."""
    values = column.tolist()
    return values if column.dtype.kind in "iu" else [None if value != value else value for value in values]


def per_die(outcome: RunOutcome, unit: int) -> np.ndarray:
    """RESOURCE[die]: LLC ports (0), HBM (1) or compute arrays (2)."""
    return outcome.tally.resources[unit * outcome.fabric.dies : (unit + 1) * outcome.fabric.dies]


def untimed_bytes(outcome: RunOutcome) -> np.ndarray:
    """int64[resource]: of weights whose moves take no time (``migration: free``)."""
    return np.broadcast_to(np.asarray(outcome.balancing.untimed_bytes), len(outcome.tally.resources))


def share_of_time(busy_ns: np.ndarray, total_ns: float) -> np.ndarray:
    return busy_ns / total_ns if total_ns else np.zeros(len(busy_ns))


def _at(place: np.ndarray | None, nodes: np.ndarray) -> np.ndarray:
    """Column or row of some nodes, NaN in a fabric without coordinates."""
    return np.full(len(nodes), np.nan) if place is None else place[nodes]

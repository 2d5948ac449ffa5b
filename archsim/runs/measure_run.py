"""What a run did: its inputs, times, traffic, causes, decisions, loads and requests, with what each column means."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.sums import sum
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.units import NS_PER_S
from archsim.runs.finished import ARRAYS, Column, Finished, per_die, share_of_time
from archsim.specs.workload import trace_label

RUN = Column("run", TEXT, "", "key of the run, a digest of everything that it is made of")
MESSAGES, BYTES = 0, 1  # columns of Tally.hops
HOST_PERCENTILES = (10, 50, 90, 99)
# Of microarch.blocks.global_cp.State: those that steps may wait for
EXPOSED_STATES = ("READ", "UPDATE", "RECEIVE", "ORDER", "GENERATE", "EVALUATE", "MERGE", "DISPATCH", "COLLECT")


INPUTS: tuple[Column, ...] = (
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
    Column("approximate", TEXT, "", "what the model has and nothing here reads, of a model imported with --accept-approximate; else empty", optional=True),
    Column("layers", INTEGER, "layers", "MoE layers that ran; times, counts and throughput_tokens_per_s are those of these layers alone"),
    Column("model_layers", INTEGER, "layers", "MoE layers that the model has"),
)  # fmt: skip
# Begins the rows of dies, links, pairs and steps, too
OF_RUN = (RUN, *(each for each in INPUTS if each.name in ("system", "model", "batch", "policy", "assumptions")))


def inputs(run: Finished) -> dict[str, Any]:
    """What was simulated."""
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


TIMES: tuple[Column, ...] = (
    Column("prefill_ns", REAL, "ns", "time of the prefill; 0 where none ran, or a warm-up follows it", "prefill"),
    Column("decode_ns", REAL, "ns", "time of all decode steps", "decode"),
    Column("throughput_tokens_per_s", REAL, "tokens/s", "decode throughput of the layers that ran, as the assumption throughput counts it; tables show tokens_per_s; empty without decode", optional=True),
    Column("events", INTEGER, "events", "events of the event engine, or steps of the analytical engine's walk", "events"),
    Column("decode_ns_low", REAL, "ns", "time of decode with GEMMs at the 5 % residual of their calibration; empty without one",
           "decode, low", optional=True, after="decode_ns"),
    Column("decode_ns_high", REAL, "ns", "time of decode with GEMMs at the 95 % residual of their calibration; empty without one",
           "decode, high", optional=True, after="decode_ns_low"),
    Column("tokens_per_s", REAL, "tokens/s", "tokens that decode generates, divided by its time and scaled to all MoE layers of the model; empty without decode", "throughput", optional=True, after="copies_extrapolated"),
    Column("decode_step_ns", REAL, "ns", "mean time of a decode step through all MoE layers of the model; empty without decode", "a decode step", optional=True, after="tokens_per_s"),
    Column("decode_batch_token_ns", REAL, "ns", "time of a decode step divided by the requests of its batch, which is not the TPOT of a request; empty without decode", "time per token of the batch", optional=True, after="decode_step_ns"),
    Column("layers_error", REAL, "share", "relative standard error of times that are scaled from the layers that ran to all MoE layers, from the spread between layers; 0 where all ran, empty for one layer", optional=True),
)  # fmt: skip


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


TRAFFIC: tuple[Column, ...] = (
    Column("hop_messages", INTEGER, "message hops", "messages multiplied by their hops (dies that they enter); the assumption hops says which of them count", "hops, messages"),
    Column("hop_bytes", INTEGER, "byte hops", "bytes of these messages multiplied by their hops", "hops, bytes"),
    Column("local_hbm_read_bytes", INTEGER, "bytes", "what dies read from their own HBM", "local HBM reads"),
    Column("remote_hbm_read_bytes", INTEGER, "bytes", "what dies read from the HBM of other dies", "remote HBM reads"),
    Column("local_hbm_write_bytes", INTEGER, "bytes", "what is written to HBM as cached copies", "HBM writes of copies"),
    Column("activation_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die",
           "activations between dies"),
    Column("replicas_max_bytes_per_die", INTEGER, "bytes", "largest size of the cached copies on a die", "copies on the fullest die"),
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
    Column("atu_misses", INTEGER, "misses", "misses of the address translation units"),
    Column("dispatch_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die, to their experts",
           "dispatched between dies", after="activation_bytes"),
    Column("combine_bytes", INTEGER, "bytes", "results of experts that are sent from die to die, back to their tokens",
           "combined between dies", after="dispatch_bytes"),
    Column("copy_room_bytes", INTEGER, "bytes", "left for cached copies on the die with least; empty where capacity is unbounded", optional=True),
)  # fmt: skip


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


CRITICAL_PATH: tuple[Column, ...] = (
    *(
        Column(f"bound_{cause.column}", REAL, "share", f"time on the critical path that {about.meaning} takes; empty for a run without time", optional=True)
        for cause, about in CAUSES.items()
    ),
    Column("bounded_by", TEXT, "", "which cause has the largest of these shares; empty for a run without time", optional=True),
    Column("bounded_by_margin", REAL, "share", "by how much it is larger than the next one", optional=True),
)  # fmt: skip


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


DECISIONS: tuple[Column, ...] = (
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
    Column("migrated_bytes", INTEGER, "bytes", "weights that rebalancing has moved when the run ends"),
    Column("migration_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision"),
    Column("under_way_bytes", INTEGER, "bytes", "weights that rebalancing was still moving when the run ended: their placement was not used"),
    Column("prefetched_bytes", INTEGER, "bytes", "weights that were fetched as replicas for the next layer"),
    Column("prefetch_exposed_ns", REAL, "ns", "time that steps waited for these weights and for the decision"),
    Column("uncharged", TEXT, "", "own functions of the policy that return no Effort, so that their decisions take no time; empty: none", optional=True),
)  # fmt: skip


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


LOADS: tuple[Column, ...] = (
    Column("die_utilisation", REAL, "share", "share of the time in which the compute array is busy, as a mean over dies", "die utilisation"),
    Column("load_max_over_mean", REAL, "×", "tokens of the busiest die relative to the mean of all dies, as a mean over steps; empty without decode", "load, max over mean", optional=True),
    *(
        Column(f"load_ceiling_{name}", REAL, "×", f"least load of the busiest die over the mean, {meaning}; mean over steps, empty without decode", optional=True)
        for name, meaning in (
            ("slots", "with any placement of as many slots: a lower bound"),
            ("placement", "with tokens divided at best among holders"),
        )
    ),
)  # fmt: skip


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


REQUESTS: tuple[Column, ...] = (
    Column("drawn_from", REAL, "requests", "requests of the trace that the batch, which is larger, is made from; else empty", optional=True),
    Column("extend", TEXT, "", "how it is made from them: redraw, shifted or fitted; else empty", optional=True),
    Column("active_experts", REAL, "experts", "experts with tokens, mean over decode steps and layers; empty without decode steps", optional=True),
    Column("active_if_distinct", REAL, "experts", "upper estimate of the same if all requests of such a batch were different ones; else empty", optional=True),
    Column("first_steps", TEXT, "", "what is counted of first decode steps that have fewer active experts than those after them, as where answers begin with a template; else empty", optional=True),
    Column("pairs_lost", INTEGER, "pairs", "pairs of token and expert that the router chose and no die executed"),
    Column("gate_mass_lost", REAL, "share", "gate mass of pairs that are not executed, less that of those executed instead; scores are the trace's, else generated"),
)  # fmt: skip


def requests(run: Finished) -> dict[str, Any]:
    """What the batch is made of, and which of its pairs of token and expert run.

    ``active_if_distinct``: how many experts would be active if all requests were different: each token–expert pair
    picks an expert in proportion to its load over all decode steps of the layer. This is an upper estimate, because the
    loads of one step are less even than those of all steps.
    """
    from archsim.workload.larger_batches import recorded_requests

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

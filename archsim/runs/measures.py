"""What is read off a finished run: its row of the results, its dies and its links, as plain Python values."""

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.engine.loop import Outcome
from archsim.engine.machine import NS_PER_S, slice_bytes
from archsim.engine.state import DATA_MESSAGES, HIDDEN, REQUESTS, UNITS
from archsim.runs.run import Run, trace_label
from archsim.workload.demand import Demand
from microarch.blocks.global_cp import EXPOSABLE
from microarch.blocks.request import State

MESSAGES, BYTES = 0, 1  # columns of Tally.hops
HOST_PERCENTILES = (10, 50, 90, 99)

# What a state of a request is waiting for, as far as the step as a whole is concerned.
BOUND_BY = {
    "llc": (State.LOOKUP, State.REMOTE_LLC, State.LLC_FILL),
    "hbm": (State.LOCAL_HBM, State.REMOTE_HBM, State.COPY),
    "link": (State.REQUEST, State.DATA),
    "compute": (State.COMPUTE,),
    "activations": (State.ACT_READ, State.ACT_MOVE, State.ACT_WRITE),
}


def measure_run(run: Run, demand: Demand, label: str, outcome: Outcome) -> dict[str, Any]:
    """The run's row, without the columns that need other runs or the trace. ``label``: of generated routing.

    Times in ns, ratios as fractions; ``None`` where there is nothing to measure.
    """
    tally, room, mesh = outcome.tally, outcome.memory.copies.room, run.system.mesh
    decode = decode_iterations(demand)
    hops = tally.hops[:, MESSAGES]
    counted = [REQUESTS] if run.assumptions.hops == "requests" else [REQUESTS, DATA_MESSAGES, HIDDEN]
    total_ns = outcome.prefill_ns + outcome.decode_ns
    row = {
        "system": run.system.name,
        "mesh_x": mesh and mesh.x,
        "mesh_y": mesh and mesh.y,
        "model": run.model.name,
        "trace": trace_label(run.workload) if isinstance(run.workload.trace, str) else label,
        "batch": run.batch,
        "policy": run.policy.name,
        "engine": run.engine,
        "assumptions": run.assumptions.label,
        "decode_steps": len(decode),
        "layers": demand.layers,
        "prefill_ns": outcome.prefill_ns,
        "decode_ns": outcome.decode_ns,
        "throughput_tokens_per_s": _throughput(run, demand, decode, outcome.decode_ns),
        "hop_messages": hops[counted].sum(),
        "hop_bytes": tally.hops[counted, BYTES].sum(),
        "local_hbm_read_bytes": tally.dies["local_read_bytes"].sum(),
        "remote_hbm_read_bytes": tally.dies["remote_read_bytes"].sum(),
        "local_hbm_write_bytes": tally.dies["write_bytes"].sum(),
        "activation_bytes": tally.moved_bytes[0],
        "die_utilisation": _of_time(_per_die(outcome, 2)["busy_ns"], total_ns).mean(),
        "load_max_over_mean": _imbalance(outcome.load[decode]),
        "replicas_max_bytes_per_die": room["peak_bytes"].max(),
        "events": tally.events[0],
        "hop_request_messages": hops[REQUESTS],
        "hop_data_messages": hops[DATA_MESSAGES],
        "hop_activation_messages": hops[HIDDEN],
        "replicas_evicted": room["evictions"].sum(),
    }
    bound_ns = {name: tally.bound_ns[list(states)].sum() for name, states in BOUND_BY.items()}
    bound_ns["decision"] = outcome.decision.exposed_ns.sum()
    every = sum(bound_ns.values())
    row |= {f"bound_{name}": each / every if every else None for name, each in bound_ns.items()}
    row |= _largest({name: each / every for name, each in bound_ns.items()} if every else {})
    row |= _decision_columns(outcome)
    row |= _calibration_columns(outcome) | {"copies_extrapolated": _copies_extrapolated(run)}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}


def _largest(shares: dict[str, float]) -> dict[str, Any]:
    """Which bound has the largest share, and how far the next one is behind."""
    if not shares:
        return {"bounded_by": None, "bounded_by_margin": None}
    first, second = sorted(shares, key=shares.get, reverse=True)[:2]
    return {"bounded_by": first, "bounded_by_margin": shares[first] - shares[second]}


def _decision_columns(outcome: Outcome) -> dict[str, Any]:
    """What decisions took, what of it was exposed, and the exposed part over the rest of each step, in percent."""
    exposed_ns = np.array(outcome.decision.by_step)
    step_ns = outcome.step_ns[outcome.step_ns > 0]
    overhead = 100 * exposed_ns / (step_ns - exposed_ns)
    p50, p99 = np.percentile(overhead, [50, 99]) if len(overhead) else (None, None)
    return {
        "decision_ns": outcome.decision.states_ns.sum(),
        "decision_exposed_ns": exposed_ns.sum(),
        "decision_overhead_percent": overhead.mean() if len(overhead) else None,
        "decision_overhead_percent_p50": p50,
        "decision_overhead_percent_p99": p99,
        **_host_columns(outcome.decision.called_ns),
        **{f"exposed_{state.name.lower()}_ns": outcome.decision.exposed_ns[state] for state in EXPOSABLE},
        "heatmap_dropped": outcome.heatmap_dropped,
        "atu_misses": outcome.memory.atu.misses.sum(),
    }


def _host_columns(called_ns: list[int]) -> dict[str, Any]:
    """How long a policy function took whenever it was timed; None where its time was given, or no host decided."""
    quantiles = np.percentile(called_ns, HOST_PERCENTILES) if called_ns else [None] * len(HOST_PERCENTILES)
    columns = {f"host_p{percent}_ns": value for percent, value in zip(HOST_PERCENTILES, quantiles, strict=True)}
    return columns | {"host_calls": len(called_ns)}


def _calibration_columns(outcome: Outcome) -> dict[str, float | None]:
    """Decode with GEMMs at the ends of their residuals, the critical path staying what it is; and what was extrapolated."""
    if outcome.decode_residual_ns is None:
        return dict.fromkeys(("decode_ns_low", "decode_ns_high", "gemm_extrapolated"))
    less_ns, more_ns = outcome.decode_residual_ns
    return {
        "decode_ns_low": max(outcome.decode_ns - less_ns, 0.0),
        "decode_ns_high": outcome.decode_ns + more_ns,
        "gemm_extrapolated": outcome.gemm_extrapolated,
    }


def _copies_extrapolated(run: Run) -> float | None:
    """Share of the run's slices that are of a size outside the measured ones of copies; they all have one size."""
    law = run.system.d2d.copies
    outside = None if law is None else law.extrapolates(slice_bytes(run.system, run.model))
    return None if outside is None else float(outside)


def measure_dies(outcome: Outcome) -> dict[str, list]:
    """Columns over the dies of a run, list[die] each."""
    total_ns = outcome.prefill_ns + outcome.decode_ns
    port, hbm, compute = (_per_die(outcome, unit) for unit in range(UNITS))
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
        "compute_utilisation": _of_time(compute["busy_ns"], total_ns),
        "hbm_utilisation": _of_time(hbm["bytes"] / outcome.machine.hbm_bytes_per_ns, total_ns),
        "tokens": outcome.load.sum(axis=(0, 1)),
        "local_hbm_read_bytes": dies["local_read_bytes"],
        "remote_hbm_read_bytes": dies["remote_read_bytes"],
        "local_hbm_write_bytes": dies["write_bytes"],
        "activation_bytes": dies["activation_bytes"],
        "replica_peak_bytes": outcome.memory.copies.room["peak_bytes"],
    }
    return {name: _as_list(column) for name, column in columns.items()}


def measure_links(outcome: Outcome) -> dict[str, list]:
    """Columns over the links of a run, list[link] each: one way each, or edges that are held both ways at once."""
    fabric, total_ns = outcome.fabric, outcome.prefill_ns + outcome.decode_ns
    counted = outcome.tally.resources[UNITS * fabric.dies :]
    one_way = len(counted) == fabric.links
    # Of the two links of an edge, the one from the lower die names it.
    shown = np.arange(fabric.links) if one_way else _first_link_of_edges(fabric)
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
        "utilisation": _of_time(counted["busy_ns"], total_ns),
    }
    direction = ["one way" if one_way else "both ways"] * len(counted)
    return {name: _as_list(column) for name, column in columns.items()} | {"direction": direction}


def _as_list(column: np.ndarray) -> list:
    """Plain values; None where an engine does not know (NaN)."""
    return [None if value != value else value for value in column.tolist()]


def decode_iterations(demand: Demand) -> np.ndarray:
    """Iterations that have tokens and are not the prefill, int64[n]."""
    routed = np.flatnonzero(demand.tokens.any(axis=(1, 2)))
    return routed[routed > 0] if demand.has_prefill else routed


def _throughput(run: Run, demand: Demand, decode: np.ndarray, decode_ns: float) -> float | None:
    """Tokens per second of decode; see the assumption ``throughput``."""
    if not decode_ns:
        return None
    if run.assumptions.throughput == "nominal":
        tokens = run.batch * demand.steps
    else:
        tokens = int(demand.tokens[decode, 0].sum(dtype=np.int64)) // demand.top_k
    return tokens / (decode_ns / NS_PER_S)


def _imbalance(load: np.ndarray) -> float | None:
    """Mean over steps of the largest over the mean load of a die. load: int64[step, layer, die]."""
    steps = load.reshape(-1, load.shape[-1])
    steps = steps[steps.any(axis=1)]
    return (steps.max(axis=1) / steps.mean(axis=1)).mean() if len(steps) else None


def _per_die(outcome: Outcome, unit: int) -> np.ndarray:
    """RESOURCE[die]: LLC ports (0), HBM (1) or compute arrays (2)."""
    return outcome.tally.resources[unit * outcome.fabric.dies : (unit + 1) * outcome.fabric.dies]


def _of_time(busy_ns: np.ndarray, total_ns: float) -> np.ndarray:
    return busy_ns / total_ns if total_ns else np.zeros(len(busy_ns))


def _at(place: np.ndarray | None, nodes: np.ndarray) -> np.ndarray:
    """Column or row of some nodes, NaN in a fabric without coordinates."""
    return np.full(len(nodes), np.nan) if place is None else place[nodes]


def _first_link_of_edges(fabric) -> np.ndarray:
    """int64[edge]: the link of each edge that leaves the lower node."""
    lower = np.flatnonzero(fabric.link_src < fabric.link_dst)
    return lower[np.argsort(fabric.link_edge[lower])]

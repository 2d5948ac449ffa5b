"""What the batch is made of, and which of its pairs of token and expert run."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs.finished import Column, Finished, measures

REQUESTS: tuple[Column, ...] = (
    Column("drawn_from", REAL, "requests", "requests of the trace that the batch, which is larger, is made from; else empty", optional=True),
    Column("extend", TEXT, "", "how it is made from them: redraw, shifted or fitted; else empty", optional=True),
    Column("active_experts", REAL, "experts", "experts with tokens, mean over decode steps and layers; empty without decode steps", optional=True),
    Column("active_if_distinct", REAL, "experts", "upper estimate of the same if all requests of such a batch were different ones; else empty", optional=True),
    Column("first_steps", TEXT, "", "what is counted of first decode steps that have fewer active experts than those after them, as where answers begin with a template; else empty", optional=True),
    Column("pairs_lost", INTEGER, "pairs", "pairs of token and expert that the router chose and no die executed"),
    Column("gate_mass_lost", REAL, "share", "gate mass of pairs that are not executed, less that of those executed instead; scores are the trace's, else generated"),
)  # fmt: skip


@measures(REQUESTS)
def requests(run: Finished) -> dict[str, Any]:
    """What the batch is made of, and which of its pairs of token and expert run.

    ``active_if_distinct``: how many experts would be active if all requests were different: each token–expert pair
    picks an expert in proportion to its load over all decode steps of the layer. This is an upper estimate, because the
    loads of one step are less even than those of all steps.
    """
    from archsim.traffic.larger_batches import recorded_requests

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
    from archsim.traffic.demand import LOOKED, active_by_step, unsettled_steps
    from archsim.traffic.trace import draw_requests

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

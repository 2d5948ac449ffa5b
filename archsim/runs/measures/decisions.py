"""What deciding takes, and what balancing moves."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs.finished import Column, Finished, measures

HOST_PERCENTILES = (10, 50, 90, 99)

# Of microarch.blocks.global_cp.State: those that steps may wait for
EXPOSED_STATES = ("READ", "UPDATE", "RECEIVE", "ORDER", "GENERATE", "EVALUATE", "MERGE", "DISPATCH", "COLLECT")

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


@measures(DECISIONS)
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

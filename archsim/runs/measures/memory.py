"""HBM beside routed experts, and that of slots beyond one for each expert."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.tables import INTEGER, TEXT
from archsim.runs.finished import Column, Finished, measures

MEMORY: tuple[Column, ...] = (
    Column("hbm_all_counted", INTEGER, "", "1: KV cache, attention and activations are counted in HBM beside experts; 0: the model lacks what that needs; empty under memory: experts", optional=True),
    Column("memory_doubt", TEXT, "", "in how many samples of what an engine takes of HBM the run fits, where these are fewer than 90 %; else empty", optional=True),
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
    Column("replica_hbm_bytes", INTEGER, "bytes", "HBM of all dies for slots beyond one for each expert, of all MoE layers of the model, at the end"),
)  # fmt: skip


@measures(MEMORY)
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

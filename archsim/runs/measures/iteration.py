"""A whole iteration around the MoE layers that ran."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from archsim.base.sums import sum
from archsim.base.tables import REAL, TEXT
from archsim.runs.finished import Column, Finished, measures

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

WHOLE_ITERATION: tuple[Column, ...] = (
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
    Column("attention_law", TEXT, "", "what the times of attention rest on where its kind was not measured; else empty", optional=True),
)  # fmt: skip


@measures(WHOLE_ITERATION)
def whole_iteration(run: Finished) -> dict[str, Any]:
    """A whole iteration: MoE layers as the run has them, scaled to all of the model's, all else by laws; and notes on
    parts that were not measured. Decoded requests hold `WorkloadSpec.context_tokens` each, prompts are as long as their
    mean. None where attention does not count (``memory: experts`` without ``execution: expert_parallel``) or was not
    measured on the GPU.
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
        batch = batch_of(scenario, float(tokens) / min(scenario.parallel.dp, scenario.batch), prompts=phase == PREFILL)
        moe = ExpertLayer(*(all_ns * parts / parts.sum()).tolist())
        causes = iteration_ns(scenario, laws, batch, moe, sms_share(scenario.system, scenario.assumptions))
        found["attention_law"] = "; ".join(laws.notes) or None
        found[f"{prefix}iteration_ns"] = sum(causes.values())
        found |= {f"{prefix}iteration_{part}_ns": sum(causes[each] for each in CAUSES_OF[part]) for part in PARTS}
    return found

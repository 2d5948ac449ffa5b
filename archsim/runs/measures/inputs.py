"""What was simulated: the columns that name a run."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

from archsim.base.tables import INTEGER, TEXT
from archsim.runs.finished import Column, Finished, measures
from archsim.specs.workload import trace_label

RUN = Column("run", TEXT, "", "key of the run, a digest of everything that it is made of")

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


@measures(INPUTS)
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

"""Energy of a whole decode iteration, a token: MoE layers as the run has them, attention and all else by their work.

Each rank reads the weights that are not routed experts once an iteration, and the KV cache of its requests; a token
computes with each of these weights once. Waiting is paid for the whole iteration. Weights in the die's dtype, attention
and its cache in BF16 (``microarch.silicon.energy`` has the coefficients and their sources).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from archsim.base.units import NS_PER_S
from archsim.runs.economics import FLOP_PER_WEIGHT, Coefficients, Machine, energy_of
from microarch.silicon.energy import SIXTEEN_BIT, Activity

if TYPE_CHECKING:
    from archsim.runs.measure import Finished

BF16 = "bf16"
WAITING = "idle"  # of microarch.silicon.energy.run_energy
GATHERED = "all_gather"


def iteration_energy_j(
    run: Finished, activity: Activity, machine: Machine, iteration_ns: float | None, coefficients: Coefficients
) -> float | None:
    """J a token; None where the whole iteration is not known. ``activity``: of the run."""
    if iteration_ns is None or not activity.tokens:
        return None
    energy = energy_of(activity, machine, coefficients)
    moe = sum(joule for block, joule in energy.items() if block != WAITING) / activity.tokens
    rest = energy_of(_beside_experts(run, iteration_ns), machine, coefficients)
    return moe + sum(rest.values()) / run.run.batch


def _beside_experts(run: Finished, iteration_ns: float) -> Activity:
    """What one iteration does beside its MoE layers, and its time."""
    model, system, batch = run.run.model, run.run.system, run.run.batch
    weights = model.attention_weights + model.dense_weights + (model.output_weights or model.input_weights)
    if run.run.assumptions.weights != "all":  # else shared experts are in the run
        weights += model.shared_weights
    ranks = 1 if run.run.assumptions.dispatch == GATHERED else system.dies
    attention = _attention(run)
    dtype_bytes = system.compute.dtype_bytes
    read = ranks * weights * dtype_bytes + attention["bytes"]
    # energy_of takes FLOP in the dtype of the die: one in 16 bits counts as often as its energy
    flop = FLOP_PER_WEIGHT * weights * batch + attention["flop"] * SIXTEEN_BIT / dtype_bytes
    return Activity(iteration_ns / NS_PER_S, read, 0.0, 2 * read, flop, 0.0, batch)


def _attention(run: Finished) -> Mapping[str, float]:
    """FLOP and bytes of attention kernels in all layers and ranks."""
    context, batch = float(max(run.run.workload.context_tokens or 1, 1)), float(run.run.batch)
    found = {"flop": 0.0, "bytes": 0.0}
    for kind, layers in run.run.model.attention_layers:
        work = kind.work("decode", 1, batch, 1.0, context, BF16)
        found["flop"] += layers * float(work.flop)
        found["bytes"] += layers * float(work.moved_bytes)
    return found

"""Energy of a run by block, from its record: of its MoE layers, prefill included; a token has passed all of the
model's. Without attention (`iteration_energy` adds it), host, cooling and LLC hits. Source:
``microarch.silicon.energy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.fabrics import build_fabric
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.runs.finished import plain
from archsim.runs.prices import Coefficients, SystemHardware
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.scenario import Scenario
from microarch.fabric.grid import ROW_MAJOR
from microarch.silicon.energy import CROWDED_ROWS, SIXTEEN_BIT, Activity, EnergyEstimates, multiplying, run_energy
from microarch.silicon.memories import SRAM

MW_PER_W = 1e3
MATRICES = 3  # gate, up and down of an expert
FLOP_PER_WEIGHT = 2  # of one token: a product and a sum


def work_of(
    model: ModelSpec, assumptions: AssumptionsSpec, dies: Mapping[str, list], links: Mapping[str, list], padded: int
) -> dict[str, float]:
    """Columns that energy follows from, prefill included. ``dies``, ``links``: as in the record of the run; ``padded``:
    rows that are empty in the tiles of its products.
    """
    routed = sum(dies["tokens"])
    weights: float = model.expert_ffn
    if assumptions.weights == "all":
        weights += model.shared_experts * model.shared_ffn / model.top_k
    return {
        "expert_tokens": routed,
        "hbm_bytes": sum(dies["hbm_bytes"]),
        "link_bytes": sum(
            n for n, src, dst in zip(links["bytes"], links["src"], links["dst"], strict=True) if src != dst
        ),  # ports are no links
        "flop": float(FLOP_PER_WEIGHT * MATRICES * model.hidden * weights * routed),
        "padded_flop": float(FLOP_PER_WEIGHT * MATRICES * model.hidden * model.expert_ffn * padded),
    }


def activity_of(model: ModelSpec, row: Mapping[str, Any]) -> Activity:
    """Activity of a run, from its row of the results."""
    return Activity(
        time_s=(row["prefill_ns"] + row["decode_ns"]) / NS_PER_S,
        hbm_bytes=row["hbm_bytes"],
        d2d_byte_hops=row["link_bytes"],
        llc_bytes=2 * (row["local_hbm_read_bytes"] + row["remote_hbm_read_bytes"]),
        flop=row["flop"],
        decision_s=row["decision_ns"] / NS_PER_S,
        tokens=(row["expert_tokens"] + row.get("pairs_lost", 0)) / model.top_k / len(model.moe_layer_ids),
        padded_flop=row.get("padded_flop") or 0.0,
        core_factor=1.0 if row.get("core_energy_factor") is None else row["core_energy_factor"],
        idle_factor=1.0 if row.get("idle_energy_factor") is None else row["idle_energy_factor"],
        rows=row["batch"],
    )


def full_load_w(machine: SystemHardware, coefficients: Coefficients | None = None) -> float:
    """W with every die, the reachable share of memory, and every link at its peak: an upper bound."""
    return sum(full_load_blocks_w(machine, coefficients).values())


def full_load_blocks_w(machine: SystemHardware, coefficients: Coefficients | None = None) -> Mapping[str, float]:
    """Block → W of `full_load_w`."""
    system = machine.system
    read = system.dies * system.hbm.bandwidth_bytes_per_s * system.hbm.efficiency
    moved = float(build_fabric(system, ROW_MAJOR).link_bytes_per_ns.sum()) / system.d2d.efficiency * NS_PER_S
    second = Activity(1.0, read, moved, 2 * read, system.dies * system.compute.peak_flop_per_s, 1.0, 1.0)
    return energy_of(second, machine, coefficients)


def energy_of(
    activity: Activity, machine: SystemHardware, coefficients: Coefficients | None = None
) -> Mapping[str, float]:
    """Block → J of a run. Kernels of a GPU run all the time; a Local CP starts work when its operands are there."""
    return run_energy(
        with_kernels(machine.system, activity, machine.system.dies),
        dtype_bytes=machine.system.compute.dtype_bytes,
        die_mm2=machine.powered_mm2,
        dies=machine.system.dies,
        decision_w=machine.decision.power_mw / MW_PER_W,
        pieces=machine.pieces,
        estimates=(coefficients or Coefficients()).of(machine.system).energy,
        cached=machine.system.hbm.kind != SRAM,
    )


def with_kernels(system: SystemSpec, activity: Activity, dies: int, rows: float | None = None) -> Activity:
    """An activity with the time of kernels that multiply little, on dies that run kernels all the time; one that has
    it stays as it is. ``rows``: of the kernels of a die; None: those of the activity, which are of all.
    """
    if system.launch != "gpu" or np.any(activity.kernel_s) or not np.any(activity.time_s):
        return activity
    share = multiplying(activity.flop / dies / activity.time_s, system.compute.peak_flop_per_s)
    kernel_s = dies * activity.time_s * (1 - share)
    of_rows = activity.rows / dies if rows is None else rows
    return replace(activity, kernel_s=kernel_s, crowded_s=kernel_s * of_rows / (of_rows + CROWDED_ROWS))


def economics(
    activity: Activity, machine: SystemHardware, coefficients: Coefficients | None = None
) -> dict[str, float | None]:
    """Columns of a run: ``energy_per_token_j`` and ``power_w`` (mean), with ``_low`` and ``_high``; ``die_mm2``,
    ``silicon_mm2``, ``cost_usd``, ``carrier_share``. None without tokens or time. Of many runs, float64[machine].
    """
    known = coefficients or Coefficients()
    row: dict[str, float | None] = {}
    for name, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
        joule = sum(energy_of(activity, machine, known._replace(energy=known.energy.at(bound))).values())
        row[f"energy_per_token_j{name}"] = joule / activity.tokens if activity.tokens else None
        row[f"power_w{name}"] = joule / activity.time_s if np.any(activity.time_s) else None
    row |= {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
    row["carrier_share"] = machine.carrier_share
    return {name: plain(value) for name, value in row.items()}


# Energy of a whole decode iteration, a token: MoE layers as the run has them, attention and all else by their work.
#
# Each rank reads the weights that are not routed experts once an iteration, and the KV cache of its requests; a token
# computes with each of these weights once. Waiting is paid for the whole iteration. Weights in the die's dtype,
# attention and its cache in BF16 (``microarch.silicon.energy`` has the coefficients and their sources).

BF16 = "bf16"
WAITING = ("idle", "busy")  # of microarch.silicon.energy.run_energy: what time costs


def iteration_energy(
    scenario: Scenario, activity: Activity, machine: SystemHardware, iteration_ns: float | None
) -> dict[str, float | None]:
    """J a token, at values, low and high bounds; None for unknown iterations. ``activity``: of the run."""
    found: dict[str, float | None] = {}
    for end, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
        found[f"iteration_energy_per_token_j{end}"] = None
        if iteration_ns is not None and activity.tokens:
            known = Coefficients(EnergyEstimates().at(bound))
            energy = energy_of(activity, machine, known)
            moe = sum(joule for block, joule in energy.items() if block not in WAITING) / activity.tokens
            rest = energy_of(_beside_experts(scenario, iteration_ns), machine, known)
            found[f"iteration_energy_per_token_j{end}"] = moe + sum(rest.values()) / scenario.batch
    return found


def _beside_experts(scenario: Scenario, iteration_ns: float) -> Activity:
    """What one iteration does beside its MoE layers, and its time."""
    model, system, batch = scenario.model, scenario.system, scenario.batch
    weights = model.attention_weights + model.dense_weights + (model.output_weights or model.input_weights)
    if scenario.assumptions.weights != "all":  # else shared experts are in the run
        weights += model.shared_weights
    ranks = 1 if scenario.assumptions.dispatch in GATHERING else system.dies
    context, attention_flop, attention_bytes = float(max(scenario.workload.context_tokens or 1, 1)), 0.0, 0.0
    kind: Any  # archsim.iteration.attention.Kind
    for kind, layers in model.attention_layers:
        work = kind.work("decode", 1, float(batch), 1.0, context, BF16)
        attention_flop += layers * float(work.flop)
        attention_bytes += layers * float(work.moved_bytes)
    dtype_bytes = system.compute.dtype_bytes
    read = ranks * weights * dtype_bytes + attention_bytes
    # energy_of takes FLOP in the dtype of the die: one in 16 bits counts as often as its energy
    flop = FLOP_PER_WEIGHT * weights * batch + attention_flop * SIXTEEN_BIT / dtype_bytes
    return Activity(iteration_ns / NS_PER_S, read, 0.0, 2 * read, flop, 0.0, batch)

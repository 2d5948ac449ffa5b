"""What a run took of its machine: laws, clocks, heat, memory, use, a whole iteration, energy; what each column means."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.sums import sum
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.units import NS_PER_S
from archsim.runs.finished import HBM, Column, Finished, per_die

if TYPE_CHECKING:
    from archsim.specs.system import SystemSpec


OTHER_CHIP = 0.1  # relative; a peak or HBM that differs more from a calibration's is that of another chip
GEMMS_OF = "GEMMs take the times of "
STAND_INS_APART = " | "


LAWS: tuple[Column, ...] = (
    Column("gemm_law", TEXT, "", "measured kernels whose fitted curves time the experts: fused layers (gemm: grouped) or GEMMs (gemm: calibrated); empty for a roofline", optional=True),
    Column("transfer_law", TEXT, "", "measured kernels that hidden vectors wait for; empty unless a GPU's transfer software is charged", optional=True),
    Column("transfer_extrapolated", REAL, "share", "time of dispatch and combine by the curve of another GPU, shape or number of ranks or nodes; empty unless a GPU's transfer software is charged", optional=True),
    Column("stand_ins", TEXT, "", "what was not measured, and whose curve it takes, of which all time counts as extrapolated; empty where all was measured", optional=True),
    Column("gemm_extrapolated", REAL, "share", "share of the GEMM time at sizes that were not measured, or by the curve of another chip; empty without a calibration",
           "GEMMs extrapolated", optional=True, after="decode_ns_high"),
    Column("copies_extrapolated", REAL, "share", "share of the slices whose size was not measured when copying; empty where links are not calibrated", "copies extrapolated", optional=True, after="gemm_extrapolated"),
)  # fmt: skip


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
        stand_ins.append(f"fused layers of {scenario.model.name} take the curve of the {outcome.gemm_law}")
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


LIMITS: tuple[Column, ...] = (
    Column("clock", REAL, "share", "clock of the arrays in decode, relative to the full clock; empty for a system without power and cooling", "clock", optional=True),
    Column("prefill_clock", REAL, "share", "clock of the arrays in the prefill, relative to the full clock; empty as clock", optional=True),
    Column("plans_by_speeds", INTEGER, "", "1 where the policy sees the speeds of dies that differ, and plans anew for them; else empty", optional=True),
    Column("held_by", TEXT, "", "which limit lowers the clock, in decode if in either phase; empty without a limit that is reached", optional=True),
    Column("throttled_share", REAL, "share", "share of the time in which the clock is below the full one; empty for a system without power and cooling",
           "throttled", optional=True),
    Column("die_power_max_w", REAL, "W", "power of the die that draws most, as a mean over a class of steps; empty for a system without power and cooling", "peak power of a die", optional=True),
    Column("die_temperature_max_c", REAL, "C", "temperature of the hottest spot of a die, in the hotter class of steps; empty for a system without cooling", "hottest die", optional=True),
    Column("hbm_temperature_max_c", REAL, "C", "temperature of the hottest HBM, in the hotter class of steps; empty for a system without cooling", "hottest HBM", optional=True),
    *(
        Column(f"{name}_energy_factor", REAL, "×", f"energy of {of} over that at full clock, by voltage, clock and temperature; empty for a system without power and cooling", optional=True)
        for name, of in (("core", "arrays and LLCs"), ("idle", "waiting"))
    ),
)  # fmt: skip


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


_OF_LIMITS = (
    "clock", "prefill_clock", "held_by", "throttled_share", "core_energy_factor", "idle_energy_factor",
    "die_power_max_w", "die_temperature_max_c", "hbm_temperature_max_c",
)  # fmt: skip


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


USE: tuple[Column, ...] = (
    Column("mfu", REAL, "share", "FLOP of experts relative to what all dies could do at their peak in the time of the run, prefill included", "MFU", optional=True, after="decode_batch_token_ns"),
    Column("hbm_bandwidth_utilisation", REAL, "share", "bytes of HBM relative to what all dies could move at nominal bandwidth in the time of the run, prefill included", "HBM bandwidth used", optional=True, after="mfu"),
    Column("over_roofline", REAL, "×", "time of the run relative to the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM", "over its roofline", optional=True, after="hbm_bandwidth_utilisation"),
)  # fmt: skip


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


ENERGY: tuple[Column, ...] = (
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
        Column(f"{name}_{bound}", REAL, unit, f"as {name}, all coefficients of energy at their {bound} bound", optional=True)
        for name, unit in (("energy_per_token_j", "J/token"), ("power_w", "W"))
        for bound in ("low", "high")
    ),
)  # fmt: skip


def energy(run: Finished, row: Mapping[str, Any]) -> dict[str, Any]:
    """Energy, power, area and price, by the work and the times in ``row``."""
    from archsim.runs.energy import activity_of, economics, iteration_energy
    from archsim.runs.prices import build_costs

    activity, costs = activity_of(run.run.model, row), build_costs(run.run.system)
    return economics(activity, costs) | iteration_energy(run.run, activity, costs, row["iteration_ns"])

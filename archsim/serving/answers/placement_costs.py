"""Balance of ranks, expert time, memory and moves of a placement; copies of an expert share its load evenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archsim.laws import gemm, tables
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.policies.load import balancedness
from archsim.traffic.placements import PhysicalMap

MOST_TIMED = 32  # matrices whose time is evaluated, evenly spread
PRODUCTS = 3  # gate, up and down


@dataclass(frozen=True)
class JudgedPlacement:
    """A placement on held-out loads. max_over_mean: sum of the ranks' largest loads over the sum of their means, 1 is
    perfect; balancedness: mean over matrices and layers of mean / max, as SGLang logs it; experts_ns: expected time of
    the experts' products in one pass through the layers, None without a calibrated law.
    """

    name: str
    max_over_mean: float
    balancedness: float
    experts_ns: float | None


@dataclass(frozen=True)
class PlacementCost:
    """What a placement takes over the default one."""

    expert_bytes: int  # of one expert
    rank_bytes: int  # of the experts of a rank, all layers
    extra_bytes: int  # of these, in slots beyond one an expert
    hbm_share: float  # of a rank's HBM that extra_bytes take
    moved: int  # experts that ranks get over the default placement, all together
    moved_bytes: int  # of these
    busiest_bytes: int  # of those that the rank which gets most gets


def rank_loads(placed: PhysicalMap, loads: np.ndarray) -> np.ndarray:
    """float64[time, layer, rank] of loads [time, layer, expert]."""
    copies = placed.copies()
    share = copies / copies.sum(axis=2, keepdims=True)
    return np.einsum("tle,ler->tlr", loads, share, optimize=True)


def judge(name: str, placed: PhysicalMap, loads: np.ndarray, experts: gemm.ExpertGemm | None) -> JudgedPlacement:
    """loads: float64[time, layer, expert]; experts: law of an expert's products, None: no time."""
    of_rank = rank_loads(placed, loads)
    mean = of_rank.mean(axis=2).sum()
    return JudgedPlacement(
        name,
        float(of_rank.max(axis=2).sum() / mean),
        float(np.mean(balancedness(of_rank))),
        None if experts is None else experts_ns(placed, loads, experts),
    )


def experts_ns(placed: PhysicalMap, loads: np.ndarray, experts: gemm.ExpertGemm) -> float:
    """Mean over matrices of the sum over layers of the slowest rank's products."""
    chosen = loads[np.unique(np.linspace(0, len(loads) - 1, MOST_TIMED).round().astype(int))]
    copies = placed.copies().sum(axis=2)
    per_copy = np.ceil(chosen / copies - 1e-9).astype(np.int64)
    tokens = np.take_along_axis(per_copy, np.broadcast_to(placed.experts, (len(chosen), *placed.experts.shape)), axis=2)
    values, inverse = np.unique(tokens, return_inverse=True)
    ns = np.where(values > 0, PRODUCTS * experts.times(np.maximum(values, 1)), 0.0)[inverse.reshape(tokens.shape)]
    of_rank = ns.reshape(*tokens.shape[:2], placed.ranks, placed.slots_per_rank).sum(axis=3)
    return float(of_rank.max(axis=2).sum(axis=1).mean())


def law_of(system: SystemSpec, model: ModelSpec) -> tuple[gemm.ExpertGemm | None, str]:
    """The calibrated law of an expert's products on a die, and why there is none."""
    compute = system.compute
    rates = system.kernel_rates
    try:
        laws = Laws(calibration_named(compute.calibration))
        found = laws.expert_gemm(
            model.hidden, model.expert_ffn, dtype=compute.dtype, rates=rates, library=compute.library
        )
    except tables.LawMissing as error:
        return None, str(error)
    return found, ""


def cost_of(placed: PhysicalMap, before: PhysicalMap, system: SystemSpec, model: ModelSpec) -> PlacementCost:
    """Memory, and moves from ``before``."""
    layers = len(placed.experts)
    expert_bytes = system.compute.bytes_of(PRODUCTS * model.slice_weights)
    rank_bytes = placed.slots_per_rank * layers * expert_bytes
    extra_bytes = round((placed.slots - model.experts) / placed.ranks * layers * expert_bytes)
    new = ((placed.copies() > 0) & (before.copies() == 0)).sum(axis=(0, 1))
    share = extra_bytes / system.hbm.capacity_bytes
    moved = int(new.sum())
    return PlacementCost(
        expert_bytes, rank_bytes, extra_bytes, share, moved, moved * expert_bytes, int(new.max()) * expert_bytes
    )

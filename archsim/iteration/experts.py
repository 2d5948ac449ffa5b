"""Routed experts of all MoE layers, by tokens of a group of ranks: one protocol, whoever times them.

===========  =========================================================================================================
`FusedLaw`   the fused MoE law of the calibration, under a distribution of routing that was measured
`ByChance`   every token draws its experts by chance, and engines tune: the fastest measured kernel at each size
===========  =========================================================================================================

Experts that an engine runs (`archsim.engine`) or a measurement gives come as ns.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.errors import SpecError
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes
from archsim.laws.tables import LawMissing
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Parallelism

UNIFORM_TOLD = "uniform"
NOT_GATED = "nongated"  # ending of kernels without the product of a gate
# Kernels that vLLM, SGLang and TensorRT-LLM have in common, by whichever they were measured: FlashInfer packs those of
# TensorRT-LLM (flashinfer/fused_moe: trtllm-gen, CUTLASS).
SHARED = "flashinfer"


class ExpertTimes(NamedTuple):
    """``ns``: float64[tokens] of all MoE layers, from 0 on; ``outside``: bool, extrapolated; ``library``: whose."""

    ns: np.ndarray
    outside: np.ndarray
    library: str


class Experts(Protocol):
    """Who times routed experts."""

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        """Times for 0 to ``sizes`` - 1 tokens of one group of tensor-parallel ranks. Raises LawMissing."""
        ...


class FusedLaw(NamedTuple):
    """``routing``: of the law (``balanced``, ``power_law_1.2``, ...)."""

    routing: str = "balanced"

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        points = _points(sizes, 60)
        if model.zero_experts:
            raise SpecError(
                f"{model.name}: zero_experts: {model.zero_experts} experts do nothing, and how often routers take them "
                f"was not measured. Give routing: {UNIFORM_TOLD}"
            )
        found = laws.fused_moe(
            points * parallel.dp, parallel.ep, parallel.expert_tp, dtype=dtype, sizes=_shape(model),
            distribution=self.routing,
        )  # fmt: skip
        beyond = _any_beside(points, found.extrapolated, sizes)
        return ExpertTimes(_between(model, points, found.ns, sizes), beyond, found.table.library)


BALANCED = FusedLaw()


class ByChance(NamedTuple):
    """Of the E / ep experts of a rank, (1 - top_k / E)^tokens stay idle; E includes experts that do nothing, which the
    router takes as often as others (LongCat-Flash, arXiv 2509.01322, section 2.1, controls their share). ``library``:
    an engine's, which takes its own kernels and FlashInfer's where they were measured; else those of all.
    """

    library: str | None = None

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        points = _points(sizes, 80)
        whole = points * parallel.dp
        share = model.top_k / (model.experts + model.zero_experts)
        taken = model.top_k * (model.experts / (model.experts + model.zero_experts))
        active = model.experts / parallel.ep * (1 - (1 - share) ** whole)
        kernels = _kernels(laws, model, dtype, self.library)
        each = [
            laws.fused_moe(
                whole, parallel.ep, parallel.expert_tp, dtype=dtype, sizes=_shape(model),
                pairs=whole * taken / parallel.ep, active_experts=active, library=library, kernel=kernel,
            )
            for library, kernel in kernels
        ]  # fmt: skip
        ns, outside = np.stack([found.ns for found in each]), np.stack([found.extrapolated for found in each])
        fastest = ns.argmin(axis=0), np.arange(len(points))
        beyond = _any_beside(points, outside[fastest], sizes)
        libraries = ", ".join(sorted({library for library, _ in kernels}))
        return ExpertTimes(_between(model, points, ns[fastest], sizes), beyond, libraries)


def _points(sizes: int, count: int) -> np.ndarray:
    return np.unique(np.rint(np.geomspace(1, sizes - 1, count)))


def _any_beside(points: np.ndarray, outside: np.ndarray, sizes: int) -> np.ndarray:
    """bool[tokens]: whether a point beside is extrapolated."""
    return np.interp(np.arange(sizes), points, outside.astype(float)) > 0


def _between(model: ModelSpec, points: np.ndarray, ns: np.ndarray, sizes: int) -> np.ndarray:
    """All MoE layers at every size, interpolated in logarithms."""
    at = np.arange(sizes)
    found = np.exp(np.interp(np.log(np.maximum(at, 1)), np.log(points), np.log(ns)))
    return np.where(at > 0, len(model.moe_layer_ids) * found, 0.0)


def _shape(model: ModelSpec) -> MoeSizes:
    return MoeSizes(model.expert_width, model.expert_ffn, model.experts, model.top_k)


def _kernels(laws: Laws, model: ModelSpec, dtype: str, own: str | None) -> list[tuple[str, str]]:
    """(library, kernel) measured at these sizes and dtype: SHARED and ``own``, else all. Raises LawMissing."""
    asked = (*_shape(model), dtype, "balanced")
    there = {
        (table.library, table.kernel)
        for table in laws.calibration.moe
        if (table.hidden, table.ffn, table.experts, table.top_k, table.dtype, table.distribution) == asked
        and table.kernel.endswith(NOT_GATED) != model.gated
    }
    if not there:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no fused MoE table of {dtype} for the experts of {model.name}"
        )
    known = any(library == own for library, _ in there)
    return sorted(each for each in there if not known or each[0] == own or SHARED in each[1])

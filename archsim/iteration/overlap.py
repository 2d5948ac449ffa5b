"""A whole iteration of an expert-parallel group: what its MoE layers take, and all else by the laws of iterations.

Attention is parallel as the deployment says. Of a group of tensor-parallel ranks each dispatches its share of the
tokens, whatever the assumption ``dispatch``. Causes follow each other, except for what ``overlap`` hides:

===================  =================================================================================================
``none``             dispatch, experts and combine follow attention
``shared_expert``    shared experts, which belong to ``dense``, run while hidden vectors are dispatched
``two_batch``        all of a layer's transfers run beside its attention, projections and experts: the longer counts
===================  =================================================================================================
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archsim.iteration.times import (
    Batches,
    IterationLaws,
    iteration_laws,
    iteration_times,
)
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.loading.calibrations import calibration_digest, calibration_named
from archsim.specs.model import ModelSpec
from archsim.specs.scenario import Scenario
from calibration.laws.choosing import LawMissing
from calibration.laws.expert_gemm import Rates

TWO_BATCH = "two_batch"
ITERATION = ("attention", "projections", "dense", "experts", "transfers", "all_reduce", "head", "host")


class MoeTimes(NamedTuple):
    """Of all MoE layers of an iteration, ns: dispatch, shared experts, experts, combine, as the engine says."""

    dispatch: float
    shared: float
    experts: float
    combine: float

    @property
    def transfers(self) -> float:
        return self.dispatch + self.combine


def laws_of(scenario: Scenario) -> IterationLaws | None:
    """Laws of the rank's other work; None where the calibration or the model lacks them."""
    system, model = scenario.system, scenario.model
    if model.missing_geometry or model.attention is None:
        return None
    rates = Rates(system.compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s)
    name, sizes = system.compute.calibration, (scenario.parallel, scenario.precision)
    return _laws(model.model_dump_json(by_alias=True), name, calibration_digest(name), *sizes, rates)


@lru_cache(maxsize=16)
def _laws(model: str, name: str | None, digest: str, parallel: Parallelism, precision: Precision, rates: Rates):
    """As `laws_of`; ``model``: as JSON, ``digest``: of the calibration's file. Experts are timed elsewhere, and may be
    replicated: here they are as many as divide.
    """
    given = ModelSpec.model_validate_json(model)
    of = given.model_copy(update={"experts": -(-given.experts // parallel.ep) * parallel.ep})
    try:
        return iteration_laws(
            of, calibration_named(name), parallel, precision, routing=None, rates=rates, combined_apart=True
        )
    except LawMissing:
        return None


def iteration_ns(
    laws: IterationLaws, batch: Batches, moe: MoeTimes, overlap: str, host_ns: float = 0.0
) -> dict[str, float]:
    """Cause of ITERATION → ns of one iteration with its critical path; ``batch``: of one rank (or tensor-parallel
    group), one iteration. Transfers are what is not hidden.
    """
    halves = 2 if overlap == TWO_BATCH else 1
    of_layers = _of_one(laws, batch if halves == 1 else half_of(batch), host_ns)
    found = {cause: halves * ns for cause, ns in of_layers.items()} | {
        cause: ns for cause, ns in _of_one(laws, batch, host_ns).items() if cause in ("lm_head", "sampling", "host")
    }
    dense = sum(found[cause] for cause in ("dense_ffn", "router", "elementwise"))
    transfers = moe.transfers
    if overlap == "shared_expert":
        transfers -= min(moe.dispatch, shared_ns(laws, batch))
    if overlap == TWO_BATCH:
        beside = found["attention"] + found["projections"] + dense + moe.experts
        transfers = max(transfers - beside, 0.0)
    return {
        "attention": found["attention"],
        "projections": found["projections"],
        "dense": dense,
        "experts": moe.experts,
        "transfers": transfers,
        "all_reduce": found["all_reduce"],
        "head": found["lm_head"] + found["sampling"],
        "host": found["host"],
    }


def half_of(batch: Batches) -> Batches:
    """Half of the requests of an iteration."""
    return batch._replace(decodes=batch.decodes / 2, chunks=batch.chunks / 2, sampled=batch.sampled / 2)


def _of_one(laws: IterationLaws, batch: Batches, host_ns: float) -> dict[str, float]:
    return {cause: float(ns[0]) for cause, ns in iteration_times(laws, batch, moe_ns=0.0, host_ns=host_ns).ns.items()}


def shared_ns(laws: IterationLaws, batch: Batches) -> float:
    """Share of dense FFNs that shared experts take, by their width; ns."""
    model: ModelSpec = laws.model
    times = iteration_times(laws, batch, moe_ns=0.0).ns["dense_ffn"]
    width = len(model.moe_layer_ids) * model.shared_experts * model.shared_ffn
    every = width + model.dense_layers * (model.dense_ffn or 0)
    return float(times[0]) * width / every if every else 0.0


def decode_batch(scenario: Scenario, context: float) -> Batches:
    """One decode iteration of the batch on a rank, or group of tensor-parallel ranks (all alike)."""
    requests = np.array([scenario.batch / scenario.parallel.dp])
    none = np.zeros(1)
    return Batches(requests, np.array([max(context, 1.0)]), none, np.ones(1), np.ones(1), requests)

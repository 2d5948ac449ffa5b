"""One engine of a deployment: the laws of its iterations, its KV blocks, and what these rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.errors import CapacityError
from archsim.iteration.layers import ACTIVATION_BYTES, LOGIT_BYTES, has_experts
from archsim.iteration.times import IterationLaws, iteration_laws
from archsim.serving.simulate import Pool, Scheduler
from archsim.serving.stand_ins import with_stand_ins
from archsim.serving.tables import Host, prepare
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.model import ModelSpec
from calibration.laws.choosing import LawMissing
from calibration.laws.expert_gemm import Rates
from calibration.laws.laws import Laws, MoeSizes
from calibration.laws.tables import CalibrationSpec

UNIFORM = "uniform"  # every token draws its experts by chance; other routings are those of the fused MoE law
NO_HOST = Host()
ACTIVATION_VECTORS = 8  # of the hidden size, of a token in flight: residual, norms, queries to values, FFN halves


class Engine(NamedTuple):
    """``library``: whose attention; None: any. ``utilisation``: share of HBM for weights, activations and KV.
    ``routing``: None where experts come from traffic. ``rates``: of a die that is not the calibrated GPU.
    ``expert_slots``: of the fullest rank, all layers together; None: its share of the experts.
    """

    model: ModelSpec
    calibration: CalibrationSpec
    hbm_bytes: float
    parallel: Parallelism = Parallelism()
    precision: Precision = Precision()
    routing: str | None = UNIFORM
    library: str | None = None
    utilisation: float = 0.9
    rates: Rates | None = None
    expert_slots: int | None = None


class Built(NamedTuple):
    """A pool with the laws behind it. ``errors``: of interpolation, (median, largest) share; ``extrapolated``: share of
    the time that laws give outside their measured sizes.
    """

    pool: Pool
    laws: IterationLaws
    errors: tuple[float, float]
    extrapolated: float
    notes: tuple[str, ...]


def build(engine: Engine, scheduler: Scheduler, host: Host = NO_HOST, instances: int = 1) -> Built:
    """A pool of ``instances`` of an engine. Raises SpecError for sizes that do not divide, LawMissing for what was not
    measured, CapacityError for weights that leave no room for KV.
    """
    laws, notes = laws_of(engine, scheduler)
    return with_host(laws, notes, engine, scheduler, host, instances)


def laws_of(engine: Engine, scheduler: Scheduler) -> tuple[IterationLaws, tuple[str, ...]]:
    """The laws of an engine's iterations, with experts, and what stands in for what was not measured, in words."""
    precision = engine.precision
    found = with_stand_ins(engine.calibration, engine.model, precision.products, precision.experts)
    precision = precision._replace(products=found.products, experts=found.experts)
    most = scheduler.max_num_batched_tokens + scheduler.max_num_seqs
    model = engine.model
    if engine.routing is None:  # experts are timed elsewhere, and may be shared unevenly
        model = model.model_copy(update={"experts": -(-model.experts // engine.parallel.ep) * engine.parallel.ep})
    laws = iteration_laws(
        model, found.calibration, engine.parallel, precision,
        routing=None if engine.routing == UNIFORM else engine.routing, library=engine.library, rates=engine.rates,
        most_tokens=min(most, 32768),
    )  # fmt: skip
    if engine.routing == UNIFORM and has_experts(engine.model):
        moe = _by_chance(engine._replace(calibration=found.calibration, precision=precision), len(laws.by_tokens))
        by_tokens = laws.by_tokens.copy()
        by_tokens[:, -2] = moe
        laws = replace(laws, by_tokens=by_tokens)
    return laws, (*found.notes, *laws.notes)


def _by_chance(engine: Engine, sizes: int) -> np.ndarray:
    """float64[tokens of a rank] ns of all MoE layers if every token draws its experts by chance: of the E / ep experts
    of a rank, (1 - top_k / E)^tokens stay idle. Engines tune: the fastest measured kernel at each size.
    """
    model, parallel = engine.model, engine.parallel
    tokens = np.unique(np.rint(np.geomspace(1, sizes - 1, 80)))
    whole = tokens * parallel.dp
    pairs = whole * model.top_k / parallel.ep
    active = model.experts / parallel.ep * (1 - (1 - model.top_k / model.experts) ** whole)
    shape = MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k)
    fastest = np.min([
        Laws(engine.calibration).fused_moe(
            whole, parallel.ep, parallel.expert_tp, dtype=engine.precision.experts, sizes=shape, pairs=pairs,
            active_experts=active, library=library, kernel=kernel,
        ).ns
        for library, kernel in _kernels(engine, shape)
    ], axis=0)  # fmt: skip
    at = np.arange(sizes)
    ns = np.exp(np.interp(np.log(np.maximum(at, 1)), np.log(tokens), np.log(fastest)))
    return np.where(at > 0, len(model.moe_layer_ids) * ns, 0.0)


def _kernels(engine: Engine, shape: MoeSizes) -> list[tuple[str, str]]:
    """(library, kernel) of all measured ones of these sizes and dtype. Raises LawMissing for none."""
    asked = (*shape, engine.precision.experts, "balanced")
    there = [
        (table.library, table.kernel)
        for table in engine.calibration.moe
        if (table.hidden, table.ffn, table.experts, table.top_k, table.dtype, table.distribution) == asked
    ]
    if not there:
        raise LawMissing(
            f"calibration {engine.calibration.gpu} has no fused MoE table of {engine.precision.experts} for the "
            f"experts of {engine.model.name}"
        )
    return sorted(set(there))


def with_host(
    laws: IterationLaws, notes: tuple[str, ...], engine: Engine, scheduler: Scheduler, host: Host, instances: int
) -> Built:
    """A pool from laws that are known."""
    moved = None if engine.routing is None else moved_ns(engine, len(laws.by_tokens))
    table, errors, extrapolated = prepare(laws, host, scheduler.max_num_seqs, moved)
    pool = Pool(instances, engine.parallel.dp, kv_blocks(engine, scheduler), table)
    return Built(pool, laws, errors, extrapolated, notes)


def kv_token_bytes(engine: Engine) -> float:
    """KV of a token on one rank; KV heads are not split further than one a rank."""
    value_bytes, tp = int(WEIGHT_BYTES[engine.precision.kv]), engine.parallel.tp
    return sum(
        layers * kind.kv_bytes_per_token(value_bytes) / kind.kv_ranks(tp)
        for kind, layers in engine.model.attention_layers
    )


def weight_bytes(engine: Engine) -> float:
    """Weights on one rank."""
    model, parallel = engine.model, engine.parallel
    products, experts = WEIGHT_BYTES[engine.precision.products], WEIGHT_BYTES[engine.precision.experts]
    if not has_experts(model):
        rest = (model.all_weights - model.embedding_weights) * products
        return (rest + model.embedding_weights * WEIGHT_BYTES["bf16"]) / parallel.tp
    dense = (model.attention_weights + model.dense_weights + model.shared_weights) * products
    embedding = model.embedding_weights * WEIGHT_BYTES["bf16"]
    if engine.expert_slots is not None:
        routed = engine.expert_slots * expert_bytes(engine)
    else:
        routed = model.routed_weights * experts / (parallel.ep * parallel.expert_tp)
    return (dense + embedding) / parallel.tp + routed


def expert_bytes(engine: Engine) -> float:
    """Weights of one routed expert in one layer."""
    model = engine.model
    each = model.routed_weights / (model.experts * len(model.moe_layer_ids))
    return each * WEIGHT_BYTES[engine.precision.experts]


def kv_blocks(engine: Engine, scheduler: Scheduler) -> int:
    """KV blocks of a rank: what HBM leaves after weights and activations. Raises CapacityError."""
    model = engine.model
    activations = scheduler.max_num_batched_tokens * ACTIVATION_VECTORS * model.hidden * ACTIVATION_BYTES
    logits = scheduler.max_num_seqs * (model.vocabulary or 0) * LOGIT_BYTES / engine.parallel.tp
    weights = weight_bytes(engine)
    states = scheduler.max_num_seqs * model.state_bytes / engine.parallel.tp
    left = engine.hbm_bytes * engine.utilisation - weights - activations - logits - states
    # A model of linear attention alone keeps no tokens: a byte each, so that blocks stay countable.
    blocks = int(left // (max(kv_token_bytes(engine), 1) * scheduler.block_tokens))
    if blocks < 1:
        raise CapacityError(
            f"{model.name}: {weights / 1e9:.1f} GB of weights and {(activations + logits) / 1e9:.1f} GB of activations "
            f"on a rank leave no room for KV in {engine.utilisation:.0%} of {engine.hbm_bytes / 1e9:.0f} GB; use more "
            "devices, or narrower weights"
        )
    return blocks


def moved_ns(engine: Engine, sizes: int) -> np.ndarray | None:
    """float64[tokens of a rank] ns of all MoE layers: hidden vectors gathered before the experts and scattered after
    them, where ranks have requests of their own; None where all ranks have the same.

    Collectives of all ranks of the EP group, as vLLM, SGLang and TensorRT-LLM do without DeepEP. Between nodes, the law
    of the largest measured number of ranks.
    """
    parallel, model = engine.parallel, engine.model
    if parallel.dp == 1 or not has_experts(model):
        return None
    laws, tokens = Laws(engine.calibration), np.arange(sizes)
    size = np.maximum(tokens * parallel.dp * model.hidden * ACTIVATION_BYTES, 1)
    found = np.zeros(sizes)
    for op in ("all_gather", "reduce_scatter"):
        found += _collective_ns(laws, op, size, parallel.tp * parallel.dp)
    return np.where(tokens > 0, len(model.moe_layer_ids) * found, 0.0)


def _collective_ns(laws: Laws, op: str, size: np.ndarray, ranks: int) -> np.ndarray:
    for measured in (ranks, *(n for n in (64, 32, 16, 8, 4, 2) if n < ranks)):
        try:
            return laws.collective(op, size, ranks=measured).ns
        except LawMissing:
            continue
    raise LawMissing(f"calibration {laws.calibration.gpu} has no {op}")

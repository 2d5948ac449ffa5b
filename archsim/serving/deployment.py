"""One engine of a deployment: the laws of its iterations, its KV blocks, and what these rest on."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.errors import CapacityError
from archsim.iteration import account
from archsim.iteration.layers import ACTIVATION_BYTES, has_experts
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

    @property
    def bound_bytes(self) -> int:
        """What a rank may use."""
        return int(self.hbm_bytes * self.utilisation)


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
    """KV of a token on one rank."""
    return account.kv_token_bytes(engine.model, engine.parallel, engine.precision)


def weight_bytes(engine: Engine) -> int:
    """Weights on one rank."""
    model, (tp, _, ep, expert_tp), precision = engine.model, engine.parallel, engine.precision
    rest = account.other_bytes(model, precision, tp) + account.shared_bytes(model, precision, tp)
    expert = account.expert_bytes(model, precision)
    if engine.expert_slots is not None:
        return rest + engine.expert_slots * expert
    ranks = ep * expert_tp if has_experts(model) else tp
    return rest + ceil(model.experts * len(model.moe_layer_ids) * expert / ranks)


def activation_bytes(engine: Engine, scheduler: Scheduler) -> int:
    """Of the largest step on one rank, with what linear attention keeps of all requests."""
    tokens, requests = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    states = requests * account.state_bytes(engine.model, engine.parallel)
    return account.activation_bytes(engine.model, engine.parallel, engine.precision, tokens, requests) + states


def kv_blocks(engine: Engine, scheduler: Scheduler) -> int:
    """KV blocks of a rank: what HBM leaves after weights and activations. Raises CapacityError."""
    demand, bound = weight_bytes(engine) + activation_bytes(engine, scheduler), engine.bound_bytes
    # A model of linear attention alone keeps no tokens: a byte each, so that blocks stay countable.
    block = max(kv_token_bytes(engine), 1) * scheduler.block_tokens
    blocks = int((bound - demand) // block)
    if blocks < 1:
        raise CapacityError(_no_room(engine, scheduler, demand, block))
    return blocks


def _no_room(engine: Engine, scheduler: Scheduler, demand: int, block: float) -> str:
    """Demand, bound, gap, and single changes that leave room for a block."""
    weights, bound = weight_bytes(engine), engine.bound_bytes
    gap, found = demand + block - bound, []
    ep = engine.parallel.ep
    for times in (2, 4, 8, 16) if has_experts(engine.model) and engine.expert_slots is None else ():
        more = engine._replace(parallel=engine.parallel._replace(dp=engine.parallel.dp * times, ep=ep * times))
        if not engine.model.experts % (ep * times) and _fits(more, scheduler, block):
            found.append(f"attention dp {more.parallel.dp} and experts ep {ep * times}")
            break
    tokens = next((each for each in _halves(scheduler.max_num_batched_tokens)
                   if _fits(engine, scheduler._replace(max_num_batched_tokens=each), block)), None)  # fmt: skip
    if tokens is not None:
        found.append(f"max_num_batched_tokens: {tokens}")
    if WEIGHT_BYTES[engine.precision.experts] > 1:
        narrow = engine._replace(precision=engine.precision._replace(products="fp8", experts="fp8"))
        found += ["precision: {products: fp8, experts: fp8}"] if _fits(narrow, scheduler, block) else []
    found.append(f"HBM of at least {(demand + block) / engine.utilisation / 1e9:.1f} GB a device")
    return (
        f"{engine.model.name}: {weights / 1e9:.1f} GB of weights and {(demand - weights) / 1e9:.1f} GB of activations "
        f"on a rank leave no room for KV: with a block of it they need {(demand + block) / 1e9:.1f} GB, HBM has "
        f"{bound / 1e9:.1f} ({engine.utilisation:.0%} of {engine.hbm_bytes / 1e9:.0f} GB), {gap / 1e9:.1f} GB too "
        f"little; it would fit with {', or '.join(found)}"
    )


def _fits(engine: Engine, scheduler: Scheduler, block: float) -> bool:
    return weight_bytes(engine) + activation_bytes(engine, scheduler) + block <= engine.bound_bytes


def _halves(most: int) -> list[int]:
    return [most >> by for by in range(1, 8) if most >> by >= 64]


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

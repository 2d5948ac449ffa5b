"""One engine of a deployment: the laws of its iterations, its KV blocks, and what these rest on."""

from math import ceil
from typing import NamedTuple

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.errors import CapacityError
from archsim.base.units import NS_PER_S
from archsim.iteration import account
from archsim.iteration.collectives import gathered_ns
from archsim.iteration.experts import ByChance, Experts, FusedLaw
from archsim.iteration.layers import ACTIVATION_BYTES, ELSEWHERE, has_experts
from archsim.iteration.times import IterationLaws, iteration_laws
from archsim.laws.expert_gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.tables import CalibrationSpec
from archsim.serving.groups import Gathered
from archsim.serving.records import Transfer
from archsim.serving.simulate import KvUnits, Pool, Scheduler
from archsim.serving.stand_ins import with_stand_ins
from archsim.serving.tables import Host, Overlap, prepare
from archsim.specs.deployment import Parallelism, Precision, refuse_cut_blocks
from archsim.specs.model import ModelSpec

UNIFORM = "uniform"  # every token draws its experts by chance; other routings are those of the fused MoE law
NO_HOST = Host()
STATIC = "sglang"  # whose share of HBM is for weights and KV
# Units a block: the share of a window's block, or of a state, in a block is exact to a thousandth.
UNITS = 1024


class Engine(NamedTuple):
    """``library``: whose attention; None: any. ``utilisation``: share of HBM for weights, activations and KV.
    ``routing``: None where experts come from traffic. ``rates``: of a die that is not the calibrated GPU.
    ``expert_slots``: of the fullest rank, all layers together; None: its share of the experts. ``overlap``: what runs
    beside what. ``mtp_layers``: of multi-token prediction, which draft. ``profiled_seqs``:
    requests whose sampling the engine keeps room for; 0: those that its scheduler may run.
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
    overlap: Overlap = Overlap()
    mtp_layers: int = 0
    profiled_seqs: int = 0

    @property
    def bound_bytes(self) -> int:
        """What a rank may use. SGLang's share is of what is free before the weights, and bounds weights and KV alone:
        activations are beyond it (model_executor/model_runner.py, profile_max_num_token).
        """
        taken = account.COLLECTIVE_BYTES if self.library == STATIC and self.parallel.ranks > 1 else 0
        return int((self.hbm_bytes - taken) * self.utilisation)


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
    refuse_cut_blocks(engine.model, engine.parallel, precision)
    found = with_stand_ins(engine.calibration, engine.model, precision.products, precision.experts)
    precision = precision._replace(products=found.products, experts=found.experts)
    most = scheduler.max_num_batched_tokens + scheduler.max_num_seqs
    model, apart = engine.model, engine.routing is None
    if apart:  # experts are timed elsewhere, and may be shared unevenly
        model = model.model_copy(update={"experts": -(-model.experts // engine.parallel.ep) * engine.parallel.ep})
    laws = iteration_laws(
        model, found.calibration, engine.parallel, precision, experts=experts_of(engine.routing, engine.library),
        moves=ELSEWHERE if apart and engine.parallel.dp > 1 else None, library=engine.library, rates=engine.rates,
        most_tokens=min(most, 32768),
    )  # fmt: skip
    return laws, (*found.notes, *laws.notes)


def experts_of(routing: str | None, library: str | None = None) -> Experts | None:
    """Who times the experts of a routing, served by an engine with kernels of ``library``."""
    if routing is None:
        return None
    return ByChance(library) if routing == UNIFORM else FusedLaw(routing)


def with_host(
    laws: IterationLaws, notes: tuple[str, ...], engine: Engine, scheduler: Scheduler, host: Host, instances: int
) -> Built:
    """A pool from laws that are known."""
    table, errors, extrapolated = prepare(laws, host, scheduler.max_num_seqs, engine.overlap)
    blocks, units = kv_blocks(engine, scheduler), kv_units(engine)
    pool = Pool(instances, engine.parallel.dp, blocks, table, units=units)
    return Built(pool, laws, errors, extrapolated, notes)


def request_kv(engine: Engine) -> account.RequestKv:
    """What a request keeps on one rank."""
    return account.request_kv(engine.model, engine.parallel, engine.precision, engine.mtp_layers)


def kv_units(engine: Engine) -> KvUnits:
    """The same in units of a block of the layers that keep all tokens; a byte stands for each of its tokens where the
    model keeps none.
    """
    kv = request_kv(engine)
    if not kv.windows and not kv.fixed_bytes:
        return KvUnits()
    of_token = max(kv.token_bytes, 1)
    windows = tuple((tokens, ceil(UNITS * each / of_token)) for tokens, each in kv.windows)
    return KvUnits(UNITS, ceil(UNITS * kv.fixed_bytes / of_token), windows)


def handed_over(engine: Engine, bytes_per_s: float, latency_ns: float, host: Host) -> Transfer:
    """Of a prefill engine's requests: every rank sends its part of the KV at once; the host hands the request over."""
    kv, ns_per_byte = request_kv(engine), NS_PER_S / bytes_per_s
    windows = np.array([(tokens, each * ns_per_byte) for tokens, each in kv.windows], float).reshape(-1, 2)
    return Transfer(
        np.float64(latency_ns + host.handoff_ns), np.float64(kv.token_bytes * ns_per_byte),
        np.float64(kv.fixed_bytes * ns_per_byte), windows,
    )  # fmt: skip


def kept(engine: Engine, scheduler: Scheduler) -> dict[str, int]:
    """Kind → bytes on one rank that are no KV: weights, and activations of the largest step."""
    model, parallel, precision = engine.model, engine.parallel, engine.precision
    ranks = parallel.ep * parallel.expert_tp if has_experts(model) else parallel.tp
    share = model.experts * len(model.moe_layer_ids) / ranks
    slots = share if engine.expert_slots is None else engine.expert_slots
    tokens, requests = scheduler.max_num_batched_tokens, engine.profiled_seqs or scheduler.max_num_seqs
    activations = 0
    if engine.library != STATIC:
        activations = int(account.activation_bytes(model, parallel, precision, tokens, requests, engine.rates is None))
    weights = account.weights(model, parallel, precision, slots, engine.mtp_layers)
    return weights | {account.ACTIVATIONS: activations}


def kv_room(engine: Engine, scheduler: Scheduler) -> account.Room:
    """What HBM of a rank leaves for KV."""
    return account.room(kept(engine, scheduler), engine.bound_bytes, int(engine.hbm_bytes), request_kv(engine))


def kv_blocks(engine: Engine, scheduler: Scheduler) -> int:
    """KV blocks of a rank: what HBM leaves after weights and activations. Raises CapacityError."""
    found = kv_room(engine, scheduler)
    # A model of linear attention alone keeps no tokens: a byte each, so that blocks stay countable.
    block = max(found.kv.token_bytes, 1) * scheduler.block_tokens
    blocks = int(found.free_bytes // block)
    if kv_units(engine).most_tokens(blocks, scheduler.block_tokens, 1) < 1:
        block += found.kv.fixed_bytes + sum(each * scheduler.block_tokens for _, each in found.kv.windows)
        raise CapacityError(_no_room(engine, scheduler, engine.bound_bytes - found.free_bytes, block))
    return blocks


def _no_room(engine: Engine, scheduler: Scheduler, demand: int, block: float) -> str:
    """Demand, bound, gap, and single changes that leave room for a block."""
    activations, bound = kept(engine, scheduler)[account.ACTIVATIONS], engine.bound_bytes
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
    seqs = next((each for each in _halves(engine.profiled_seqs or scheduler.max_num_seqs, 16)
                 if _fits(engine._replace(profiled_seqs=each), scheduler, block)), None)  # fmt: skip
    if seqs is not None:
        found.append(f"max_num_seqs: {seqs}")
    if WEIGHT_BYTES[engine.precision.experts] > 1:
        narrow = engine._replace(precision=engine.precision._replace(products="fp8", experts="fp8"))
        found += ["precision: {products: fp8, experts: fp8}"] if _fits(narrow, scheduler, block) else []
    found.append(f"HBM of at least {(demand + block) / engine.utilisation / 1e9:.1f} GB a device")
    return (
        f"{engine.model.name}: {(demand - activations) / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of "
        f"activations on a rank leave no room for KV: with a block of it they need {(demand + block) / 1e9:.1f} GB, "
        f"HBM has {bound / 1e9:.1f} ({engine.utilisation:.0%} of {engine.hbm_bytes / 1e9:.0f} GB), {gap / 1e9:.1f} GB "
        f"too little; it would fit with {', or '.join(found)}"
    )


def _fits(engine: Engine, scheduler: Scheduler, block: float) -> bool:
    return kv_room(engine, scheduler).free_bytes >= block


def _halves(most: int, least: int = 64) -> list[int]:
    return [most >> by for by in range(1, 8) if most >> by >= least]


def gathered(engine: Engine, sizes: int) -> Gathered:
    """Hidden vectors gathered before the experts and scattered after them, where ranks have requests of their own; 0
    where all ranks have the same.
    """
    parallel, model, tokens = engine.parallel, engine.model, np.arange(sizes)
    if parallel.dp == 1 or not has_experts(model):
        return Gathered(np.zeros(sizes), np.zeros(sizes))
    size = np.maximum(tokens * parallel.dp * model.hidden * ACTIVATION_BYTES, 1)
    layers = len(model.moe_layer_ids) * (tokens > 0)
    ops = ("all_gather", "reduce_scatter")
    return Gathered(*(layers * gathered_ns(Laws(engine.calibration), op, size, parallel.ranks) for op in ops))

"""What HBM of a rank leaves for KV, in blocks, and what hands KV over or keeps it elsewhere."""

from math import ceil

import numpy as np

from archsim.base.errors import CapacityError, SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.iteration import rank_memory
from archsim.iteration.constants import Host
from archsim.iteration.layers import has_experts
from archsim.serving.engine import ServingEngine, StaticBatch
from archsim.serving.records import KvTransfer
from archsim.serving.simulate import KvStore, KvUnits, Scheduler
from archsim.specs.deployment import Parallelism
from archsim.specs.serving import KvStoreSpec

# Units a block: the share of a window's block, or of a state, in a block is exact to a thousandth.
UNITS = 1024


def request_kv(engine: ServingEngine, hybrid: bool = True) -> rank_memory.RequestKv:
    """What a request keeps on one rank. Layers with a window keep all tokens in vLLM where its manager is not
    ``hybrid``, as with attention in chunks (vllm/config/vllm.py, attention_chunk_size).
    """
    all_kept = "none" if engine.library != "vllm" else "chunks" if hybrid else "windows"
    return rank_memory.request_kv(engine.model, engine.parallel, engine.precision, engine.mtp_layers, all_kept)


def kv_units(engine: ServingEngine) -> KvUnits:
    """`request_kv` in units of a block of the layers that keep all tokens; in bytes where the model keeps none."""
    kv = request_kv(engine)
    if not kv.windows and not kv.fixed_bytes:
        return KvUnits()
    of_token = max(kv.token_bytes, 1)
    windows = tuple((tokens, ceil(UNITS * each / of_token)) for tokens, each in kv.windows)
    return KvUnits(UNITS, ceil(UNITS * kv.fixed_bytes / of_token), windows)


def store_of(
    engine: ServingEngine, blocks_of_tokens: int, given: KvStoreSpec, engines: int, bytes_per_s: float
) -> KvStore:
    """A store of KV beside the HBM of ``engines`` engines, in blocks of a rank. A block is kept once, whatever the
    ranks that have copies of it; every device loads what it keeps, with ``bytes_per_s``. Raises SpecError for KV that
    is not of every token.
    """
    kv = request_kv(engine)
    if kv.windows or kv.fixed_bytes or not kv.token_bytes:
        raise SpecError(
            f"kv_store: {engine.model.name} has layers that keep a window or a state; stores of these are not modelled"
        )
    whole = rank_memory.request_kv(engine.model, Parallelism(), engine.precision, engine.mtp_layers).token_bytes
    blocks = int(given.capacity_bytes // (whole * blocks_of_tokens))
    if blocks < 1:
        raise SpecError(f"kv_store: a block of {blocks_of_tokens} tokens takes {whole * blocks_of_tokens / 1e6:.1f} "
                        "MB. Give more capacity")  # fmt: skip
    ns = kv.token_bytes * blocks_of_tokens / bytes_per_s * NS_PER_S
    return KvStore(blocks, given.shared == "all" or engines == 1, ns, given.latency_ns)


def handed_over(engine: ServingEngine, bytes_per_s: float, latency_ns: float, host: Host) -> KvTransfer:
    """How a prefill engine hands over: every rank sends its part of the KV at once, the host passes it on."""
    copies = engine.parallel.dp if engine.shares_prompts else 1  # each sends a part of what all have
    kv, ns_per_byte = request_kv(engine), NS_PER_S / bytes_per_s / copies
    windows = np.array([(tokens, each * ns_per_byte) for tokens, each in kv.windows], float).reshape(-1, 2)
    return KvTransfer(
        np.float64(latency_ns + host.handoff_ns), np.float64(kv.token_bytes * ns_per_byte),
        np.float64(kv.fixed_bytes * ns_per_byte), windows,
    )  # fmt: skip


def kept(engine: ServingEngine, scheduler: Scheduler) -> dict[str, int]:
    """Kind → bytes on one rank that are no KV: weights, and activations of the largest step."""
    model, parallel, precision = engine.model, engine.parallel, engine.precision
    ranks = parallel.ep * parallel.expert_tp if has_experts(model) else parallel.tp
    share = model.experts * len(model.moe_layer_ids) / ranks
    slots = share if engine.expert_slots is None else engine.expert_slots
    tokens, requests = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    activations = 0
    if engine.static is not None:
        activations = engine.static.buffer_bytes(model, parallel, precision)
    elif engine.library != rank_memory.SGLANG:  # whose share of HBM is for weights and KV
        activations = int(
            rank_memory.activation_bytes(model, parallel, precision, tokens, requests, engine.rates is None)
        )
    weights = rank_memory.weights_by_kind(model, parallel, precision, slots, engine.mtp_layers)
    return weights | {rank_memory.ACTIVATIONS: activations}


def kv_room(engine: ServingEngine, scheduler: Scheduler) -> rank_memory.KvRoom:
    """What HBM of a rank leaves for KV; vLLM may start without its hybrid manager (connectors of KV turn it off)."""
    whole = request_kv(engine, hybrid=False)
    return rank_memory.room_left(kept(engine, scheduler), engine.budget, request_kv(engine), whole)


def kv_blocks(engine: ServingEngine, scheduler: Scheduler) -> int:
    """KV blocks of a rank: what HBM leaves after weights and activations. Raises CapacityError."""
    found = kv_room(engine, scheduler)
    # A model of linear attention alone keeps no tokens: a byte each, so that blocks stay countable.
    block = max(found.kv.token_bytes, 1) * scheduler.block_tokens
    if engine.static is not None:
        _refuse_batch(engine, engine.static, found)
    blocks = int(found.usable_bytes // block)
    least = least_kv(engine, scheduler)
    if not found.fits(least) or kv_units(engine).most_tokens(blocks, scheduler.block_tokens, 1) < 1:
        raise CapacityError(_no_room(engine, scheduler, found, least))
    return blocks


def least_kv(engine: ServingEngine, scheduler: Scheduler) -> float:
    """Bytes of a block of KV, with what one request keeps besides."""
    kv = request_kv(engine)
    return scheduler.block_tokens * (max(kv.token_bytes, 1) + sum(each for _, each in kv.windows)) + kv.fixed_bytes


def doubt_of(engine: ServingEngine, scheduler: Scheduler) -> str:
    """The note of an engine that fits in some samples alone of what it takes of HBM; ''."""
    return kv_room(engine, scheduler).doubtful(least_kv(engine, scheduler), engine.model.name)


def _refuse_batch(engine: ServingEngine, batch: StaticBatch, room: rank_memory.KvRoom) -> None:
    """Raise CapacityError for a static batch whose KV does not fit beside weights and buffers."""
    each = -(-batch.requests // engine.parallel.dp)
    needed = each * room.kv.held_bytes(batch.tokens)
    if needed > room.free_bytes:
        buffers = batch.buffer_bytes(engine.model, engine.parallel, engine.precision)
        raise CapacityError(
            f"{engine.model.name}: a static batch of {batch.requests} requests of {batch.tokens:,} tokens does not "
            f"fit: its buffers take {buffers / 1e9:.1f} GB of a rank, its KV {needed / 1e9:.1f} GB, and HBM has "
            f"{(room.free_bytes + buffers) / 1e9:.1f} GB for both, beside weights and a reserve of "
            f"{batch.reserve_bytes / 1e9:.1f} GB. Use fewer or shorter requests"
        )


def _no_room(engine: ServingEngine, scheduler: Scheduler, room: rank_memory.KvRoom, block: float) -> str:
    """Demand, bound, gap, and single changes that leave room for a block."""
    by_kind, found = kept(engine, scheduler), []
    activations, demand = by_kind[rank_memory.ACTIVATIONS], sum(by_kind.values())
    bound, gap = demand + room.free_bytes, block - room.free_bytes
    ep = engine.parallel.ep
    for times in (2, 4, 8, 16) if has_experts(engine.model) and engine.expert_slots is None else ():
        more = engine._replace(parallel=engine.parallel._replace(dp=engine.parallel.dp * times, ep=ep * times))
        if not engine.model.experts % (ep * times) and _fits(more, scheduler, block):
            devices = f"which take {times} times the devices"
            found.append(f"attention dp {more.parallel.dp} and experts ep {ep * times}, {devices}")
            break
    tokens = next((each for each in _halves(scheduler.max_num_batched_tokens)
                   if _fits(engine, scheduler._replace(max_num_batched_tokens=each), block)), None)  # fmt: skip
    if tokens is not None:
        found.append(f"max_num_batched_tokens: {tokens}")
    seqs = next((each for each in _halves(scheduler.max_num_seqs, 16)
                 if _fits(engine, scheduler._replace(max_num_seqs=each), block)), None)  # fmt: skip
    if seqs is not None:
        found.append(f"max_num_seqs: {seqs}")
    if WEIGHT_BYTES[engine.precision.experts] > 1:
        narrow = engine._replace(precision=engine.precision._replace(products="fp8", experts="fp8"))
        found += ["precision: {products: fp8, experts: fp8}"] if _fits(narrow, scheduler, block) else []
    found.append(f"HBM of at least {(demand + block) / engine.utilisation / 1e9:.1f} GB per device")
    return (
        f"{engine.model.name}: {(demand - activations) / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of "
        f"activations on a rank leave no room for KV: with a block of it they need {(demand + block) / 1e9:.1f} GB, "
        f"HBM has {bound / 1e9:.3g} ({engine.utilisation:.0%} of {engine.hbm_bytes / 1e9:.3g} GB{room.nowhere}), "
        f"{gap / 1e9:.1f} GB too little. It would fit with {', or '.join(found)}"
    )


def _fits(engine: ServingEngine, scheduler: Scheduler, block: float) -> bool:
    return not kv_room(engine, scheduler).doubtful(block, "")  # in nearly all samples


def _halves(most: int, least: int = 64) -> list[int]:
    return [most >> by for by in range(1, 8) if most >> by >= least]

"""The plan: which points each table gets, in a fixed order; the backend reports what it cannot measure."""

from collections.abc import Iterator, Sequence
from itertools import product
from types import MappingProxyType

from archsim.base.units import WEIGHT_BYTES
from archsim.model.spec import ModelSpec
from calibration.measure.backend import Point

KIB, MIB, GIB = 2**10, 2**20, 2**30
DTYPES = ("bf16", "fp8")
TILE_EDGES = (129, 257, 513)
GEMM_M = tuple(sorted({*(2**i for i in range(16)), *(48 * 2**i for i in range(10)), *TILE_EDGES}))
MOE_EP = (1, 8, 32, 128)
MOE_TOKENS = tuple(2**i for i in range(15))
MOE_KERNELS = MappingProxyType({"group": "grouped_mm", "received": "grouped_mm after dispatch"})  # by tokens seen
ALL_PAIRS_BYTES = (4 * KIB, MIB, 256 * MIB)
THOROUGH_PAIRS = ((0, 1), (0, 4), (0, 7))
KERNEL_BYTES = (8, 64 * KIB, MIB, 16 * MIB)
POWER_M = (1, 32, 128, 512, 8192)  # from decode, bound by HBM, to prefill
POWER_SIDE, POWER_READ_BYTES = 8192, GIB  # of square weights, and read in one go: past the L2


def _sizes(first: int, last: int) -> tuple[int, ...]:
    """Powers of two from first to last, and the values halfway between."""
    powers = [first * 2**i for i in range((last // first).bit_length())]
    return tuple(sorted({*powers, *(power * 3 // 2 for power in powers[:-1])}))


def gemm_shapes(models: Sequence[ModelSpec]) -> tuple[tuple[int, int], ...]:
    """(n, k) of the expert products of all models, each once: gate and up together, gate, down."""
    shapes = set()
    for model in models:
        for width in {model.expert_ffn, model.shared_ffn if model.shared_experts else model.expert_ffn}:
            shapes |= {(2 * width, model.hidden), (width, model.hidden), (model.hidden, width)}
    return tuple(sorted(shapes))


def gemm_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Every expert shape over M, in BF16 and in FP8 with static scales."""
    for dtype in DTYPES:
        for n, k in gemm_shapes(models):
            for m in GEMM_M:
                yield {"dtype": dtype, "quant_included": "0", "groups": 1, "m": m, "n": n, "k": k}


def moe_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Expert layers of one rank, BF16, balanced: with all tokens of the group, and with those received alone."""
    for model in models:
        for ep in MOE_EP:
            if model.experts % ep:
                continue
            for tokens, (seen, kernel) in product(MOE_TOKENS, MOE_KERNELS.items()):
                if tokens * model.top_k >= ep:
                    yield {
                        "model": model.name,
                        "dtype": "bf16",
                        "hidden": model.hidden,
                        "ffn": model.expert_ffn,
                        "experts": model.experts,
                        "top_k": model.top_k,
                        "ep": ep,
                        "tp": 1,
                        "distribution": "balanced",
                        "tokens_total": tokens,
                        "tokens_seen": seen,
                        "kernel": kernel,
                    }


def p2p_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Copies between pairs: all pairs at three sizes, some of them at every size one- and two-way."""
    thorough = [pair for pair in THOROUGH_PAIRS if max(pair) < max(gpus, 2)]
    for src in range(gpus):
        for dst in range(gpus):
            if src != dst and (src, dst) not in thorough:
                yield from (_copy(src, dst, "uni", size) for size in ALL_PAIRS_BYTES)
    for direction in ("uni", "bi"):
        for src, dst in thorough:
            for size in _sizes(4 * KIB, 4 * GIB):
                yield _copy(src, dst, direction, size)


def _copy(src: int, dst: int, direction: str, size: int) -> Point:
    return {
        "placement": "intra_node",
        "src": str(src),
        "dst": str(dst),
        "method": "ce",
        "direction": direction,
        "concurrent_pairs": 1,
        "bytes": size,
    }


def hostpath_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Host to device, device to host and both at once, from page-locked memory; and from pageable memory one way."""
    for pinned, directions in (("1", ("h2d", "d2h", "bi")), ("0", ("h2d", "d2h"))):
        for direction in directions:
            for size in _sizes(64, 4 * GIB):
                yield {"direction": direction, "pinned": pinned, "method": "ce", "bytes": size}


def launch_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Kernels back to back on a stream and in a graph, and launch to end of one kernel."""
    for kind in ("stream", "graph_node", "launch_to_sync"):
        yield from ({"kind": kind, "kernel_bytes": size} for size in KERNEL_BYTES)


def memory_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Bandwidth and latency over the working set, from what fits in the L2 to what does not."""
    for op in ("read", "write", "copy", "triad"):
        yield from (_memory(op, size, "bytes_per_s") for size in _sizes(MIB, 4 * GIB))
    yield from (_memory("chase", size, "latency_ns") for size in _sizes(64 * KIB, GIB))


def _memory(op: str, size: int, quantity: str) -> Point:
    return {"level": "any", "op": op, "working_set_bytes": size, "quantity": quantity}


def power_points(models: Sequence[ModelSpec], gpus: int) -> Iterator[Point]:
    """Idle, reading, reading half of the time, and products with square weights from one row to prefill."""
    for work, read_bytes in (("idle", 0), ("read", POWER_READ_BYTES), ("read_and_wait", POWER_READ_BYTES)):
        yield {"work": work, "dtype": "bf16", "m": 1, "flop": 0, "hbm_bytes": read_bytes}
    for dtype in DTYPES:
        for m in POWER_M:
            flop, operands = 2 * m * POWER_SIDE**2, (POWER_SIDE + m) * POWER_SIDE * WEIGHT_BYTES[dtype]
            result = m * POWER_SIDE * WEIGHT_BYTES["bf16"]
            yield {"work": "product", "dtype": dtype, "m": m, "flop": flop, "hbm_bytes": operands + result}


PLANS = {
    "gemm": gemm_points,
    "p2p": p2p_points,
    "hostpath": hostpath_points,
    "launch": launch_points,
    "memory": memory_points,
    "moe": moe_points,
    "power": power_points,
}

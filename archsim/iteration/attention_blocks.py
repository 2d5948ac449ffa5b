"""Measured laws of sparse, compressed and linear attention: a sum of terms, each a quantity of work times its price.

Kernels of a block follow each other, so their times add up: products, scores of an indexer, attention, and what goes
by tokens, requests or context. Prices are at least 0 and were chosen on whole models and head counts that a fit had
not seen (``calibration.fit.attention_blocks``). A sparse block has its projections; linear attention is its convolution
and its rule (scan), without projections.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.units import DTYPES, NS_PER_S, WEIGHT_BYTES
from archsim.laws.calibration_files import siblings_of
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.tables import BlockTable, CalibrationSpec

BLOCK, CONVOLUTION, RULE = "block", "convolution", "rule"
SHORT, LONG = "short", "long"  # reach of a table
PADDED_HEADS = 64  # to which FlashMLA's sparse kernel pads the heads of a rank (deepseek-ai/FlashMLA, README)
# Scans of the keys of a request and KV head that run at once. In SGLang's prompts of one token after 65,536 on B200,
# H200 and GB200 256 scans take as long as one, 512 twice as long, which no term has: sizes beyond are extrapolated.
SCANS_PER_SM = 2
CHUNK_TOKENS = 64  # of a prompt, between which a linear attention passes its state on
LIBRARIES = ("vllm", "sglang", "trtllm")  # in order of preference, where none is named
_FASTER = {"bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "nvfp4": 4.0}  # rate of products relative to BF16
BLACKWELL_FLOP_PER_S = 1.5e15  # of BF16: GPUs below do not multiply in FP4, and take FP8's rate


class GpuRates(NamedTuple):
    """Rates of a GPU: BF16 products, HBM; ``sms``: its multiprocessors."""

    flop_per_s: float
    bytes_per_s: float
    sms: int


def machine_of(calibration: CalibrationSpec, compute: float = 1.0, memory: float = 1.0) -> GpuRates:
    """Of a calibration's reference, scaled."""
    reference = calibration.reference
    peak = reference.peak_flop_per_s["bf16"]
    return GpuRates(peak * compute, reference.hbm_bytes_per_s * memory, reference.sms)


def block_terms(
    kind: Any, phase: str, hidden: int, tp: int, at: tuple[ArrayLike, ArrayLike, ArrayLike], dtypes: tuple[str, str],
    machine: GpuRates,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Terms of a block of sparse attention; ``at``: requests, new tokens, context; ``dtypes``: of products, of KV.

    Of products and attention ns at the datasheet's rates; of the others thousands.
    """
    requests, new, context = (np.asarray(each, float) for each in np.broadcast_arrays(*at))
    tokens, every = requests * new, requests * (new * (context - new) + new * (new + 1) / 2)
    faster = _FASTER[DTYPES[dtypes[0]].computes]
    if machine.flop_per_s < BLACKWELL_FLOP_PER_S:
        faster = min(faster, 2.0)
    products = np.zeros(tokens.shape)
    for product in kind.products(hidden, tp):
        if product.rows in ("tokens", phase):
            moved = product.n * product.k * WEIGHT_BYTES[dtypes[0]] + tokens * (product.n + product.k) * 2
            flop = 2 * tokens * product.n * product.k
            products += np.maximum(flop / (machine.flop_per_s * faster), moved / machine.bytes_per_s)
    work, index = kind.work(phase, tp, requests, new, context, dtypes[1]), kind.index_work(requests, new, context)
    heads = kind.heads / tp
    seconds = {
        "products": products,
        "attention_flop": (work.flop - index.flop) / machine.flop_per_s,
        "padded_flop": (work.flop - index.flop) / heads * PADDED_HEADS / machine.flop_per_s,
        "attention_bytes": (work.moved_bytes - index.moved_bytes) / machine.bytes_per_s,
        "index_flop": index.flop / (2 * machine.flop_per_s),
        "index_bytes": index.moved_bytes / machine.bytes_per_s,
    }
    near, first = np.minimum(context, kind.index_topk), np.minimum(new, kind.index_topk)
    few = requests * (first * (near - first) + first * (first + 1) / 2)  # while every token is chosen
    counts = {
        "tokens": tokens,
        "requests": requests,
        "context": requests * context,
        "scanned": tokens * context * (kind.index_topk > 0) / 1e3,
        "dense_pairs": every * heads / 1e3,
        "few_pairs": few * heads / 1e3,
        "pairs": every / 1e3,
        "rows": tokens * heads,
        "steps": new,
        "length": context,  # that a kernel scans one block of keys after the other, of up to `SCANS_PER_SM` at once
    }
    return _together(seconds, counts, tokens.shape)


def linear_terms(
    kind: Any, part: str, tp: int, at: tuple[ArrayLike, ArrayLike], machine: GpuRates
) -> dict[str, np.ndarray]:
    """Terms of a convolution or a rule; ``at``: requests, new tokens of each."""
    requests, new = (np.asarray(each, float) for each in np.broadcast_arrays(*at))
    tokens, channels = requests * new, kind.channels / tp
    if part == CONVOLUTION:
        seconds = {
            "values": tokens * channels * 4 / machine.bytes_per_s,
            "tail": requests * channels * 12 / machine.bytes_per_s,
        }
        return _together(seconds, {"tokens": tokens, "requests": requests, "steps": new}, tokens.shape)
    heads, state = kind.rule_heads / tp, kind.state_values / tp
    waves = requests * heads / machine.sms
    seconds = {
        "values": tokens * channels * 4 / machine.bytes_per_s,
        "states": np.ceil(new / CHUNK_TOKENS) * requests * state * 8 / machine.bytes_per_s,
        "state": requests * state * 8 / machine.bytes_per_s,
        "flop": tokens * (4 * state + 128 * heads * 256) / machine.flop_per_s,
    }
    counts = {
        "steps": new,
        "heads": requests * heads,
        "waves": new * np.maximum(waves, 1.0),
        "whole_waves": np.ceil(waves) * new,
    }
    return _together(seconds, counts, tokens.shape)


def _together(
    seconds: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    found = {"launch": np.full(shape, 1e3)}
    found |= {name: np.broadcast_to(value * NS_PER_S, shape) for name, value in seconds.items()}
    return found | {name: np.broadcast_to(value / 1e3, shape) for name, value in counts.items()}


def price_terms(terms: Mapping[str, np.ndarray], prices: Mapping[str, float]) -> np.ndarray:
    """The sum of terms x prices, ns."""
    return np.asarray(sum(price * terms[name] for name, price in prices.items()))


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """``archsim.iteration.attention.AttentionTimes`` of one or two measured tables."""

    kind: Any  # of attention
    phase: str  # prefill or decode
    hidden: int  # size of a hidden vector
    tp: int  # ranks that share the heads
    dtypes: tuple[str, str]  # of products, of KV
    machine: GpuRates  # rates of the GPU
    tables: tuple[BlockTable, ...]  # one for each part and reach

    @property
    def library(self) -> str:
        return self.tables[0].library

    @property
    def whole(self) -> bool:
        return self.tables[0].part == BLOCK

    @property
    def note(self) -> str:
        whose = self.tables[0].scaled_from
        return f"{self.kind.kind} attention: the curve of {whose}, at the rates of this GPU" if whose else ""

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests, new, context = np.broadcast_arrays(*(np.asarray(each, float) for each in (requests, new, context)))
        some, found = np.where(requests > 0, requests, 1.0), np.zeros(requests.shape)
        for table in self.tables:
            if table.reach != SHORT:
                found = found + self._of_table(table, some, new, context)
        for table in self.tables:
            if table.reach == SHORT:  # of a longer context it is the least: more context never takes less time
                most = most_short(self.kind)
                few = self._of_table(table, some, np.minimum(new, most), np.minimum(context, most))
                found = np.where(context <= most, few, np.maximum(few, found))
        return np.where(requests > 0, found, 0.0)

    def _of_table(self, table: BlockTable, requests: np.ndarray, new: np.ndarray, context: np.ndarray) -> np.ndarray:
        if table.part == BLOCK:
            at = requests, new, context
            terms = block_terms(self.kind, self.phase, self.hidden, self.tp, at, self.dtypes, self.machine)
        else:
            terms = linear_terms(self.kind, table.part, self.tp, (requests, new), self.machine)
        return np.maximum(price_terms(terms, table.prices), floor_ns(table.floors_ns, self.dtypes[0]))

    def _here(self, table: BlockTable, context: np.ndarray) -> np.ndarray:
        """bool: whether a table is of these contexts."""
        if not table.reach:
            return np.ones(context.shape, bool)
        return (context <= most_short(self.kind)) == (table.reach == SHORT)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests, context = np.broadcast_arrays(np.asarray(requests, float), np.asarray(context, float))
        beyond = np.zeros(requests.shape, bool)
        for table in self.tables:
            longest = context > table.most_context if table.part == BLOCK else np.zeros(context.shape, bool)
            far = (requests > table.most_requests) | longest | bool(table.scaled_from)
            if table.prices.get("length"):
                scans = requests * max(1.0, self.kind.kv_heads / self.tp)
                far = far | (scans > SCANS_PER_SM * self.machine.sms)
            beyond = beyond | (self._here(table, context) & far)
        return beyond


def most_short(kind: Any) -> float:
    """The longest context all of whose tokens every query attends to: ``index_topk`` entries of the cache."""
    return kind.index_topk * getattr(kind, "ratio", 1)


def floor_ns(floors: Mapping[str, float], products: str) -> float:
    """The least time for the products' dtype, else that of the slowest measured; 0 without any."""
    return floors.get(products, max(floors.values(), default=0.0))


def block_times(
    kind: Any, laws: Laws, phase: str, hidden: int, tp: int, dtypes: tuple[str, str], library: str | None,
    rates: Rates | None,
) -> BlockTimes | None:  # fmt: skip
    """From the library's tables of ``kind.measured_as``, another library's, or the nearest GPU's; None without."""
    machine = machine_of(laws.calibration, *laws.scale_of("bf16", rates))
    for calibration in chain([laws.calibration], siblings_of(laws.calibration)):  # read only if it is needed
        if found := _tables_of(kind, phase, dtypes[1], library, calibration):
            if calibration is not laws.calibration:
                found = tuple(table.model_copy(update={"scaled_from": calibration.gpu}) for table in found)
            return BlockTimes(kind, phase, hidden, tp, dtypes, machine, found)
    return None


def _tables_of(
    kind: Any, phase: str, kv_dtype: str, library: str | None, calibration: CalibrationSpec
) -> tuple[BlockTable, ...]:
    there = [table for table in calibration.blocks if (table.kind, table.phase) == (kind.measured_as, phase)]
    for choice in dict.fromkeys((library, *LIBRARIES)):
        parts = []
        for part in kind.measured_parts:
            mine = [table for table in there if table.library == choice and table.part == part]
            stored = {table.kv_dtype for table in mine}
            dtype = kv_dtype if kv_dtype in stored else min(stored, default="")
            mine = sorted((table for table in mine if table.kv_dtype == dtype), key=lambda table: -table.unseen.points)
            parts.append(
                {table.reach: table for table in reversed(mine)}.values() if mine and mine[0].reach else mine[:1]
            )
        if all(parts):
            return tuple(table for part in parts for table in part)
    return ()

"""What a rank keeps in HBM while it serves: one account for runs, serving and checks.

================  ==================================================================================================
experts           weights of the experts that it holds, replicas included, in all MoE layers of the model
shared experts    its share of a tensor-parallel group, or all of them; see `shared_ranks`
attention         and all other weights (dense layers, routers, embeddings): its share of a tensor-parallel group;
                  embeddings and routers in BF16
KV cache          of requests: `RequestKv`, by kind of layer, with what linear attention keeps of each
activations       a bound for one step of one layer, or for sampling, and buffers of collectives; see `activation_bytes`
================  ==================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import sums, units
from archsim.model.attention import AttentionKind
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Parallelism, Precision

# Fitted on what engines logged at their start (calibration/measurements/engine_memory.csv): a server profiles a step in
# which as many requests as it may run are sampled with top-k and top-p. Without FlashInfer's kernels that holds logits
# in BF16 and FP32, sorted, with indices, as probabilities and their sums: 38.5 bytes an entry (37 to 47 in eight logs
# of vLLM 0.6 to 0.31; 16 to 29 in others of 0.19 and later, which sample in place).
SAMPLED_BYTES = 38.5
# Buffers of NCCL and of copies between the ranks of a node (1.0 to 3.8 GB in six logs with NVLink; 0.2 GB with PCIe).
COLLECTIVE_BYTES = 2_600_000_000
# Of a hidden vector and of an FFN on a rank, in weights of MXFP4 for Marlin (vLLM, layers/quantization/mxfp4.py): 66.0
# GiB of gpt-oss-120b were loaded, 60.6 without.
MXFP4_WIDTHS = 256, 128
EXPERTS, SHARED, ATTENTION, ACTIVATIONS = "experts", "shared experts", "attention", "activations"
SGLANG, TRTLLM = "sglang", "trtllm"  # engines with rules of their own


class RequestKv(NamedTuple):
    """What a request keeps on one rank. ``token_bytes``: of every token, in layers that keep all of them (compressed
    entries at their mean); ``windows``: (tokens, bytes of a token) of layers that keep the last ones alone;
    ``fixed_bytes``: states of linear attention, however long the request is.
    """

    token_bytes: float
    windows: tuple[tuple[int, float], ...] = ()
    fixed_bytes: float = 0.0

    @property
    def filled_bytes(self) -> float:
        """What a request longer than every window keeps beside ``token_bytes`` of each of its tokens."""
        return self.fixed_bytes + sums.sum(tokens * of_token for tokens, of_token in self.windows)

    def held_bytes(self, tokens: int) -> float:
        near = sums.sum(min(tokens, window) * of_token for window, of_token in self.windows)
        return tokens * self.token_bytes + near + self.fixed_bytes


# What of an engine's memory on GPUs is not known before it has started, as the least and the most of each part. Every
# sample takes a value of each, independently; what a file gives is taken as it is.
SAMPLES = 256
# Loaded weights over those counted here: 1.001 to 1.008 in five logs (norms, scales), more with parts for images.
LOADED = (0.99, 1.03)
# `SAMPLED_BYTES` of the logs, 16 to 47, over the constant; TensorRT-LLM's sampler keeps less.
PROFILED: Mapping[str | None, tuple[float, float]] = MappingProxyType({None: (0.4, 1.25), TRTLLM: (0.1, 1.25)})
# Contexts and graphs of a GPU alone (0.1 to 2.0 GB in twelve logs and runs), and with what ranks keep for each other
# (0.6 to 7.5 GB in ten: logs, of which GLM-5.2's holds 5.4 GB of graphs, and runs of vLLM 0.15): by factors.
ALONE_BYTES, TOGETHER_BYTES = (0.1e9, 2.5e9), (0.35e9, 11e9)
# Where a file does not say it, the least below what a machine reserves, and the most: vLLM takes 0.9, 0.92 since 0.26;
# SGLang 0.81 on an H100 and 0.87 on an H200 (sgl-project/sglang#5893); TensorRT-LLM 0.9 of what is left (0.8 to 0.95 in
# scripts). Who needs room gives 0.95 (srt-slurm's example of DeepSeek-R1 in FP8 on GB200) or 0.97.
UTILISED: Mapping[str | None, tuple[float, float]] = MappingProxyType({
    None: (0.0, 0.97), SGLANG: (0.09, 0.97), TRTLLM: (0.1, 0.97),
})  # fmt: skip
LIKELY = 0.8  # share of samples in the intervals that are printed
LEAST_SHARE = 0.01  # of samples; what fits in fewer is refused
# Of the most that is likely to be left: the median of what leaves anything, if samples become rarer evenly up to it.
MIDDLE = 1 - 0.5**0.5


def _spread(base: int) -> np.ndarray:
    """float64[SAMPLES]: even numbers in 0..1 (van der Corput), independent between bases."""
    found, place, left = np.zeros(SAMPLES), 1.0, np.arange(1, SAMPLES + 1)
    while left.any():
        place /= base
        found += place * (left % base)
        left //= base
    return found


@dataclass(frozen=True)
class Budget:
    """Which share of HBM a rank may use, by the rule of its engine."""

    hbm_bytes: float  # of a device
    utilisation: float  # share of HBM, as the engine means it
    engine: str | None = None  # whose rule; None: vLLM's
    given: bool = False  # whether a file says ``utilisation``
    ranks: int = 1  # of its group
    exact: bool = False  # on machines and in batches whose memory is stated, not measured

    def free_bytes(self, weights: Any, activations: Any, besides: Any, utilisation: Any) -> Any:
        """What is left for KV. vLLM's share is of all HBM; SGLang's of what is free before the weights, and bounds
        weights and KV alone (model_executor/model_runner.py, profile_max_num_token); TensorRT-LLM's of what is free
        after a step was profiled (_torch/pyexecutor/_util.py, _cal_max_memory).
        """
        if self.engine == SGLANG:
            return (self.hbm_bytes - besides) * utilisation - weights - activations
        if self.engine == TRTLLM:
            return (self.hbm_bytes - weights - activations - besides) * utilisation
        return self.hbm_bytes * utilisation - weights - activations - besides


class KvRoom(NamedTuple):
    """What HBM of a device leaves for KV."""

    free_bytes: int  # as estimated
    hbm_bytes: int  # capacity of the device
    kv: RequestKv  # of a request, on one rank
    # float64[SAMPLES], ascending: ``free_bytes`` where what is not known takes other values; None: all is known
    samples: np.ndarray | None = None
    # ``kv`` where an engine keeps all tokens in layers with a window, as vLLM does without its hybrid manager; None:
    # none does
    whole: RequestKv | None = None

    def share(self, needed: float) -> float:
        """Of the samples, those that leave so many bytes."""
        if self.samples is None:
            return float(self.free_bytes >= needed)
        return float((self.samples >= needed).mean())

    def fits(self, needed: float) -> bool:
        return self.share(needed) >= LEAST_SHARE

    @property
    def likely_bytes(self) -> tuple[float, float]:
        """What is left in `LIKELY` of the samples, from and to; the estimate is in it."""
        if self.samples is None:
            return self.free_bytes, self.free_bytes
        low, high = np.quantile(self.samples, [(1 - LIKELY) / 2, (1 + LIKELY) / 2])
        return min(low, self.free_bytes), max(high, self.free_bytes)

    @property
    def usable_bytes(self) -> int:
        """The estimate or, if more, `MIDDLE` of the most that is likely: more memory never leaves less."""
        return self.free_bytes if self.samples is None else max(self.free_bytes, int(MIDDLE * self.likely_bytes[1]))

    @property
    def tokens(self) -> int:
        """Tokens whose KV fits: in layers that keep all, else in those with a window; a byte each without any."""
        return _tokens(self.usable_bytes, self.kv)

    @property
    def report(self) -> str:
        """The sentence that ``archsim check``, ``run`` and ``serve`` print."""
        besides = self.kv.filled_bytes
        more = f" A request takes {besides / 1e6:,.1f} MB of that for windows and states." if besides else ""
        within, (low, high) = "", self.likely_bytes
        if self.samples is not None:
            least, most = _tokens(low, self.whole or self.kv), _tokens(high, self.kv)
            within = f", in {LIKELY:.0%} of samples {least:,} to {most:,}"
        return (
            f"A device has room for {self.tokens:,} tokens of KV cache ({max(self.usable_bytes, 0) / 1e9:.1f} GB of "
            f"its {self.hbm_bytes / 1e9:.1f} GB{within}).{more}"
        )

    @property
    def nowhere(self) -> str:
        return "" if self.samples is None else f"; it fits in fewer than {LEAST_SHARE:.0%} of {SAMPLES} samples"

    def doubtful(self, needed: float, what: str) -> str:
        """The note of what fits in some of the samples alone; ''."""
        share = self.share(needed)
        if self.samples is None or share >= (1 + LIKELY) / 2:
            return ""
        low, high = (each / 1e9 for each in self.likely_bytes)
        asked = f" It needs {needed / 1e9:.1f} GB." if needed >= 5e7 else ""
        return (
            f"{what} fits in {share:.0%} of {SAMPLES} samples of what an engine takes of HBM. The estimate leaves "
            f"{self.free_bytes / 1e9:.1f} GB for KV, {LIKELY:.0%} of the samples {low:.1f} to {high:.1f} GB.{asked} It "
            f"runs as if {self.usable_bytes / 1e9:.1f} GB were left."
        )


def _tokens(n_bytes: float, kv: RequestKv) -> int:
    return int(max(n_bytes, 0) // max(kv.token_bytes or sums.sum(each for _, each in kv.windows), 1))


def room_left(kept: Mapping[str, Any], budget: Budget, kv: RequestKv, whole: RequestKv | None = None) -> KvRoom:
    """``kept``: kind → bytes without KV of a rank, or int64[rank] (the fullest counts). ``whole``: see `KvRoom`."""
    by_kind = {kind: np.atleast_1d(np.asarray(each)) for kind, each in kept.items()}
    demand = np.atleast_1d(sums.sum(by_kind.values()))
    at, together = int(demand.argmax()), budget.ranks > 1 and not budget.exact
    activations = float(np.broadcast_to(by_kind.get(ACTIVATIONS, 0), demand.shape)[at])
    weights, besides = float(demand[at]) - activations, COLLECTIVE_BYTES if together else 0
    activations -= 0 if budget.engine == SGLANG else besides  # SGLang's are beyond its budget
    free = int(budget.free_bytes(weights, activations, besides, budget.utilisation))
    if budget.exact:
        return KvRoom(free, int(budget.hbm_bytes), kv)
    drawn, (least, most) = _spread(2), UTILISED.get(budget.engine, UTILISED[None])
    lowest = budget.utilisation - (0 if budget.given else least)
    used = lowest + (0 if budget.given else max(most, budget.utilisation) - lowest) * drawn
    drawn, (least, most) = _spread(3), PROFILED.get(budget.engine, PROFILED[None])
    stepping = activations * (least + (most - least) * drawn)
    drawn, (least, most) = _spread(5), TOGETHER_BYTES if together else ALONE_BYTES
    taken = least * (most / least) ** drawn
    loaded = weights * (LOADED[0] + (LOADED[1] - LOADED[0]) * _spread(7))
    samples = np.sort(budget.free_bytes(loaded, stepping, taken, used))
    return KvRoom(free, int(budget.hbm_bytes), kv, samples, whole)


def weights_by_kind(
    model: ModelSpec, parallel: Parallelism, precision: Precision, slots: Any, mtp_layers: int = 0
) -> dict[str, Any]:
    """Kind → bytes of weights on a rank that holds so many experts, all layers together: a number, or int64[rank]. Of
    a pipeline, those of the mean stage; its embeddings, which the first and last stage hold, are divided likewise.
    ``mtp_layers``: of multi-token prediction, each with an attention, the FFN of the model's last layer and a product
    of 2 hidden vectors to one; they share the embeddings (DeepSeek-V3, section 2.2).
    """
    if mtp_layers:
        more = mtp_layers / len(model.moe_layer_ids)
        found = weights_by_kind(model, parallel, precision, slots * (1 + more))
        found[SHARED] = ceil(found[SHARED] * (1 + more))
        own = sums.sum(
            layers * attention_bytes(kind, model.hidden, precision) for kind, layers in mtp_attention(model, mtp_layers)
        )
        own += mtp_layers * 2 * model.hidden**2 * units.WEIGHT_BYTES[precision.products]
        found[ATTENTION] += ceil((own + mtp_layers * model.hidden * model.experts * units.BF16_BYTES) / parallel.tp)
        return found
    stages = parallel.stages
    return {
        EXPERTS: np.ceil(slots * expert_bytes(model, precision, parallel.expert_tp) / stages).astype(np.int64),
        SHARED: ceil(shared_bytes(model, precision, shared_ranks(parallel)) / stages),
        ATTENTION: ceil(other_bytes(model, precision, parallel.tp) / stages),
    }


def shared_ranks(parallel: Parallelism) -> int:
    """Ranks that divide each shared expert. Where all ranks have all tokens, those of the tensor-parallel group; where
    each rank of a group brings its share of the tokens to experts that all groups share, every rank has them whole:
    vLLM's use_sequence_parallel_moe (vllm/config/parallel.py: expert parallelism, tp > 1 and dp > 1), and SGLang's
    tp_size = 1 under DeepEP (models/deepseek_v2.py).
    """
    return 1 if parallel.dp > 1 and parallel.ep > 1 else parallel.tp


def expert_bytes(model: ModelSpec, precision: Precision, expert_tp: int = 1) -> int:
    """Weights of one routed expert in one layer on all its ``expert_tp`` ranks; MXFP4 pads (`MXFP4_WIDTHS`)."""
    values = model.slice_weights
    if precision.experts.startswith("mxfp4"):
        hidden, ffn = model.expert_width, ceil(model.expert_ffn / expert_tp)
        values = _pad(hidden, MXFP4_WIDTHS[0]) * _pad(ffn, MXFP4_WIDTHS[1]) * expert_tp
    return ceil(model.slices * values * units.WEIGHT_BYTES[precision.experts])


def _pad(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def shared_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of the shared experts of all layers that each of ``ranks`` holds."""
    return ceil(model.shared_weights * units.WEIGHT_BYTES[precision.of("shared_experts")] / ranks)


def other_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of attention, dense layers, routers and embeddings that each of ``ranks`` holds."""
    each = units.WEIGHT_BYTES
    attention = sums.sum(
        layers * attention_bytes(kind, model.hidden, precision) for kind, layers in model.attention_layers
    )
    dense = (model.dense_weights - model.router_weights) * each[precision.of("dense_ffn")]
    return ceil((ceil(attention + dense) + (model.embedding_weights + model.router_weights) * each["bf16"]) / ranks)


def attention_bytes(kind: AttentionKind, hidden: int, precision: Precision) -> float:
    """Weights of one attention."""
    inputs, output = (units.WEIGHT_BYTES[precision.of(part)] for part in ("attention_inputs", "attention_output"))
    products = kind.products(hidden, 1) if inputs != output else ()  # type: ignore[attr-defined]
    back = sums.sum(each.n * each.k for each in products if each.back)
    return kind.weights(hidden) * inputs + back * (output - inputs)


def request_kv(
    model: ModelSpec, parallel: Parallelism, precision: Precision, mtp_layers: int = 0, all_kept: str = "none"
) -> RequestKv:
    """What a request keeps on one rank; KV heads are not split further than one a rank, but ranks of ``context`` share
    its tokens, and stages its layers (of the mean stage). ``mtp_layers``: of multi-token
    prediction, with the attention of the model's last layer and a cache of their own. ``all_kept``: the layers with a
    window that keep all tokens in an engine: none, chunks or windows.
    """
    value_bytes = int(units.WEIGHT_BYTES[precision.kv])
    token_bytes, windows = 0.0, dict[int, float]()
    for kind, layers in (*model.attention_layers, *mtp_attention(model, mtp_layers)):
        share = layers / (kind.kv_ranks(parallel.tp) * parallel.context * parallel.stages)
        kept, whole = kind.kept_bytes_per_token(value_bytes), kind.kv_bytes_per_token(value_bytes)
        chunked = all_kept == "chunks" and getattr(kind, "chunked", False)
        if not kept and (chunked or all_kept == "windows"):
            kept = whole
        token_bytes += share * kept
        if kind.kept_window and kept < whole:
            windows[kind.kept_window] = windows.get(kind.kept_window, 0.0) + share * (whole - kept)
    state_bytes = ceil(model.state_bytes / parallel.tp / parallel.stages)
    return RequestKv(token_bytes, tuple(sorted(windows.items())), state_bytes)


def mtp_attention(model: ModelSpec, mtp_layers: int) -> tuple[tuple[AttentionKind, int], ...]:
    """Attention of layers of multi-token prediction: that of the model's last layer that keeps tokens (DeepSeek-V3,
    section 2.2; GLM-4.5 and Qwen3-Next, too).
    """
    keeping = [kind for kind in model.attention_by_layer if kind is not None and kind.kv_bytes_per_token()]
    return ((keeping[-1], mtp_layers * keeping[-1].per_layer),) if mtp_layers and keeping else ()


def activation_bytes(
    model: ModelSpec, parallel: Parallelism, precision: Precision, tokens, requests, collectives: bool = True
):
    """A bound for the activations of one step on a rank, and buffers of collectives: int or int64[rank], of the shape
    of ``tokens`` and ``requests``, those of its tensor-parallel group.

    Of every token in one layer: its hidden vector before and after, in BF16; of every pair of token and expert on the
    rank the vector sent, in the data type, and returned, in BF16, and the products with gate and up, in BF16. Or, where
    that is more, after the last layer: `SAMPLED_BYTES` of every request and entry of the vocabulary, which every rank
    of a tensor-parallel group samples. Ranks are taken to receive as many pairs as they send; skew is in the reserve.
    ``collectives``: whether ranks of a group keep `COLLECTIVE_BYTES`.
    """
    ffn = model.expert_ffn / (parallel.expert_tp if model.experts > 1 else parallel.tp)
    of_pair = ceil(model.hidden * units.WEIGHT_BYTES[precision.experts]) + model.hidden * units.BF16_BYTES
    pairs = model.top_k * parallel.dp / parallel.ep if model.experts > 1 else 1.0
    of_token = ceil(2 * model.hidden * units.BF16_BYTES + pairs * (of_pair + 2 * ceil(ffn) * units.BF16_BYTES))
    sampled = requests * ceil((model.vocabulary or 0) * SAMPLED_BYTES)
    return np.maximum(tokens * of_token, sampled) + (COLLECTIVE_BYTES if collectives and parallel.ranks > 1 else 0)

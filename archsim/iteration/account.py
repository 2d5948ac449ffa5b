"""What a rank keeps in HBM while it serves: one account for runs, serving and checks.

================  ==================================================================================================
experts           weights of the experts that it holds, replicas included, in all MoE layers of the model
shared experts    its share of a tensor-parallel group, or all of them; see `shared_ranks`
attention         and all other weights (dense layers, routers, embeddings): its share of a tensor-parallel group;
                  embeddings in BF16
KV cache          of requests: `RequestKv`, by kind of layer, with what linear attention keeps of each
activations       a bound for one step of one layer, or for sampling, and buffers of collectives; see `activation_bytes`
================  ==================================================================================================
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from archsim.base.dtypes import BF16_BYTES, WEIGHT_BYTES
from archsim.specs.attention import AttentionKind
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.model import ModelSpec

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
        return self.fixed_bytes + sum(tokens * of_token for tokens, of_token in self.windows)

    def held_bytes(self, tokens: int) -> float:
        """Of a request of so many tokens."""
        near = sum(min(tokens, window) * of_token for window, of_token in self.windows)
        return tokens * self.token_bytes + near + self.fixed_bytes


class Room(NamedTuple):
    """What HBM of a device leaves for KV. ``hbm_bytes``: its capacity; ``kv``: of a request, on one rank."""

    free_bytes: int
    hbm_bytes: int
    kv: RequestKv

    @property
    def tokens(self) -> int:
        """Tokens whose KV fits in layers that keep all of them; without such a layer, in those with a window; a byte
        stands for each where a model keeps none.
        """
        of_token = self.kv.token_bytes or sum(each for _, each in self.kv.windows)
        return int(max(self.free_bytes, 0) // max(of_token, 1))

    @property
    def told(self) -> str:
        """As ``archsim check``, ``run`` and ``serve`` print it."""
        besides = self.kv.filled_bytes
        more = f"; a request takes {besides / 1e6:,.1f} MB of it for windows and states" if besides else ""
        return (
            f"room for {self.tokens:,} tokens of KV a device ({max(self.free_bytes, 0) / 1e9:.1f} GB of "
            f"{self.hbm_bytes / 1e9:.1f} GB){more}"
        )


def room(kept: Mapping[str, Any], bound: int, hbm_bytes: int, kv: RequestKv) -> Room:
    """``kept``: kind → bytes of what is no KV, of a rank, or int64[rank], of which the fullest counts; ``bound``: bytes
    that a rank may use.
    """
    demand = sum(np.asarray(each) for each in kept.values())
    return Room(int(bound - np.max(demand)), hbm_bytes, kv)


def weights(
    model: ModelSpec, parallel: Parallelism, precision: Precision, slots: Any, mtp_layers: int = 0
) -> dict[str, Any]:
    """Kind → bytes of weights on a rank that holds so many experts, all layers together: a number, or int64[rank].
    ``mtp_layers``: of multi-token prediction, each with an attention, the FFN of the model's last layer and a product
    of 2 hidden vectors to one; they share the embeddings (DeepSeek-V3, section 2.2).
    """
    if mtp_layers:
        more = mtp_layers / len(model.moe_layer_ids)
        found = weights(model, parallel, precision, slots * (1 + more))
        found[SHARED] = ceil(found[SHARED] * (1 + more))
        own = sum(layers * kind.weights(model.hidden) for kind, layers in mtp_attention(model, mtp_layers))
        own += mtp_layers * (2 * model.hidden**2 + model.hidden * model.experts)
        found[ATTENTION] += ceil(own * WEIGHT_BYTES[precision.products] / parallel.tp)
        return found
    return {
        EXPERTS: np.ceil(slots * expert_bytes(model, precision, parallel.expert_tp)).astype(np.int64),
        SHARED: shared_bytes(model, precision, shared_ranks(parallel)),
        ATTENTION: other_bytes(model, precision, parallel.tp),
    }


def shared_ranks(parallel: Parallelism) -> int:
    """Ranks that divide each shared expert. Where all ranks have all tokens, those of the tensor-parallel group; where
    each rank of a group brings its share of the tokens to experts that all groups share, every rank has them whole:
    vLLM's use_sequence_parallel_moe (vllm/config/parallel.py: expert parallelism, tp > 1 and dp > 1), and SGLang's
    tp_size = 1 under DeepEP (models/deepseek_v2.py).
    """
    return 1 if parallel.dp > 1 and parallel.ep > 1 else parallel.tp


def expert_bytes(model: ModelSpec, precision: Precision, expert_tp: int = 1) -> int:
    """Weights of one routed expert in one layer, on all of the ``expert_tp`` ranks that share it. MXFP4 kernels take
    widths that are padded (`MXFP4_WIDTHS`).
    """
    values = model.slice_weights
    if precision.experts.startswith("mxfp4"):
        hidden, ffn = model.expert_hidden or model.hidden, ceil(model.expert_ffn / expert_tp)
        values = _padded(hidden, MXFP4_WIDTHS[0]) * _padded(ffn, MXFP4_WIDTHS[1]) * expert_tp
    return ceil(model.slices * values * WEIGHT_BYTES[precision.experts])


def _padded(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def shared_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of the shared experts of all layers that each of ``ranks`` holds."""
    return ceil(model.shared_weights * WEIGHT_BYTES[precision.products] / ranks)


def other_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of attention, dense layers, routers and embeddings that each of ``ranks`` holds."""
    products = ceil((model.attention_weights + model.dense_weights) * WEIGHT_BYTES[precision.products])
    return ceil((products + model.embedding_weights * BF16_BYTES) / ranks)


def request_kv(model: ModelSpec, parallel: Parallelism, precision: Precision, mtp_layers: int = 0) -> RequestKv:
    """What a request keeps on one rank; KV heads are not split further than one a rank. ``mtp_layers``: of multi-token
    prediction, with the attention of the model's last layer and a cache of their own.
    """
    value_bytes = int(WEIGHT_BYTES[precision.kv])
    token_bytes, windows = 0.0, dict[int, float]()
    for kind, layers in (*model.attention_layers, *mtp_attention(model, mtp_layers)):
        share = layers / kind.kv_ranks(parallel.tp)
        kept = kind.kept_bytes_per_token(value_bytes)
        token_bytes += share * kept
        if kind.kept_window:
            near = share * (kind.kv_bytes_per_token(value_bytes) - kept)
            windows[kind.kept_window] = windows.get(kind.kept_window, 0.0) + near
    return RequestKv(token_bytes, tuple(sorted(windows.items())), ceil(model.state_bytes / parallel.tp))


def mtp_attention(model: ModelSpec, mtp_layers: int) -> tuple[tuple[AttentionKind, int], ...]:
    """Attention of layers of multi-token prediction: that of the model's last layer that keeps tokens (DeepSeek-V3,
    section 2.2; GLM-4.5 and Qwen3-Next alike).
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
    of_pair = ceil(model.hidden * WEIGHT_BYTES[precision.experts]) + model.hidden * BF16_BYTES
    pairs = model.top_k * parallel.dp / parallel.ep if model.experts > 1 else 1.0
    of_token = ceil(2 * model.hidden * BF16_BYTES + pairs * (of_pair + 2 * ceil(ffn) * BF16_BYTES))
    sampled = requests * ceil((model.vocabulary or 0) * SAMPLED_BYTES)
    return np.maximum(tokens * of_token, sampled) + (COLLECTIVE_BYTES if collectives and parallel.ranks > 1 else 0)

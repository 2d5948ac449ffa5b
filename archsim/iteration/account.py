"""What a rank keeps in HBM while it serves: one account for runs, serving and checks.

================  ==================================================================================================
experts           weights of the experts that it holds, replicas included, in all MoE layers of the model
shared experts    its share of a tensor-parallel group, or all of them; see `shared_ranks`
attention         and all other weights (dense layers, routers, embeddings): its share of a tensor-parallel group;
                  embeddings in BF16
KV cache          of requests: `RequestKv`, by kind of layer, with what linear attention keeps of each
activations       a bound for one step of one layer; see `activation_bytes`
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

FP32_BYTES = 4
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
        EXPERTS: np.ceil(slots * expert_bytes(model, precision)).astype(np.int64),
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


def expert_bytes(model: ModelSpec, precision: Precision) -> int:
    """Weights of one routed expert in one layer."""
    return ceil(model.slices * model.slice_weights * WEIGHT_BYTES[precision.experts])


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


def activation_bytes(model: ModelSpec, parallel: Parallelism, precision: Precision, tokens, requests):
    """A bound for the activations of one step on a rank: int or int64[rank], of the shape of ``tokens`` and
    ``requests``, those of its tensor-parallel group.

    Of every token in one layer: its hidden vector before and after, in BF16; of every pair of token and expert on the
    rank the vector sent, in the data type, and returned, in BF16, and the products with gate and up, in BF16; and of
    every request its logits in FP32. Ranks are taken to receive as many pairs as they send; skew, and the fixed buffers
    of communication libraries, are in the reserve.
    """
    ffn = model.expert_ffn / (parallel.expert_tp if model.experts > 1 else parallel.tp)
    of_pair = ceil(model.hidden * WEIGHT_BYTES[precision.experts]) + model.hidden * BF16_BYTES
    pairs = model.top_k * parallel.dp / parallel.ep if model.experts > 1 else 1.0
    of_token = ceil(2 * model.hidden * BF16_BYTES + pairs * (of_pair + 2 * ceil(ffn) * BF16_BYTES))
    return tokens * of_token + requests * ceil((model.vocabulary or 0) * FP32_BYTES / parallel.tp)

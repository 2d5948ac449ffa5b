"""Grouped queries (Ainslie et al., arXiv 2305.13245): multi-head and multi-query attention among them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import model_validator

from archsim.base.fields import Count, KeyProblem, MaybeSize, MaybeTokens, Size, Tokens, Whole
from archsim.base.units import WEIGHT_BYTES
from archsim.iteration.attention import ACTIVATION_BYTES, Kind, Product, Streams, Work, measured, pairs
from archsim.laws.attention import GQA, MLA, AttentionSizes, LatentSizes, work_of
from archsim.specs.deployment import BF16

# ---- grouped

ROPE_PASSES = 2  # reads and writes queries and keys


class Grouped(Kind):
    """``heads`` queries in groups that share ``kv_heads`` keys and values; with a ``window``, the last tokens alone."""

    table: ClassVar[str | None] = GQA
    heads: Count
    kv_heads: Count
    head_dim: Size
    # Size of a value; null: head_dim.
    value_dim: MaybeSize = None
    # Tokens that a query sees, and that the cache keeps; null: all.
    window: MaybeTokens = None
    # Whether the window is a chunk: a query sees the tokens of its own chunk, the last of them (Llama 4).
    chunked: bool = False
    # Whether a gate as wide as the output is projected, too (Qwen3-Next).
    output_gate: bool = False
    # Whether values are the projected keys, without a product of their own (Gemma 4). The cache holds both: keys are
    # rotated, values are not.
    values_are_keys: bool = False

    @model_validator(mode="after")
    def _whole_groups(self) -> Grouped:
        if self.heads % self.kv_heads:
            raise KeyProblem(("kv_heads",), f"{self.kv_heads} KV heads do not divide {self.heads} heads")
        return self

    @property
    def split_heads(self) -> int:
        return self.heads

    def shard_widths(self, tp: int) -> dict[str, int]:
        heads = self.heads // tp  # keys and values of few heads are whole on every rank
        return {"queries": heads * self.head_dim, "the output": heads * self._value}

    @property
    def _value(self) -> int:
        return self.value_dim or self.head_dim

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1))

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        return self.kv_heads * (self.head_dim + self._value) * value_bytes

    def kept_bytes_per_token(self, value_bytes: int = 2) -> int:
        return 0 if self.window else self.kv_bytes_per_token(value_bytes)

    @property
    def kept_window(self) -> int:
        return self.window or 0

    def kv_ranks(self, tp: int) -> int:
        return min(tp, self.kv_heads)

    def _sizes(self, tp: int) -> AttentionSizes:
        return AttentionSizes(self.heads // tp, max(1, self.kv_heads // tp), self.head_dim, self.window or 0, GQA)

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        heads, kv_heads = self.heads // tp, max(1, self.kv_heads // tp)
        gate = heads * self._value if self.output_gate else 0
        values = 0 if self.values_are_keys else kv_heads * self._value
        into = (heads + kv_heads) * self.head_dim + values + gate
        return Product(into, hidden), Product(hidden, heads * self._value)

    def streams(self, tp: int) -> Streams:
        return Streams(1, ROPE_PASSES * (self.heads // tp + max(1, self.kv_heads // tp)) * self.head_dim)

    def context_values(self, tp: int) -> tuple[int, int]:
        if self.window or type(self) is not Grouped:
            return super().context_values(tp)
        return self.heads // tp * self.head_dim, self.heads // tp * self._value

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        return Work(*work_of(phase, self._sizes(tp), requests, new, context, kv_dtype))

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return measured(laws, phase, self._sizes(tp), precision, library, rates)


# ---- latent
# Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).


class Latent(Kind):
    """The cache holds of a token a latent vector of ``kv_lora_rank``, and one rotated key of ``qk_rope_head_dim``."""

    table: ClassVar[str | None] = MLA
    heads: Count
    # A query is projected from the hidden vector through this rank; null: directly.
    q_lora_rank: MaybeSize = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    # 0: without positions (Kimi-Linear keeps the key, and does not rotate it).
    qk_rope_head_dim: Whole
    v_head_dim: Size
    # Whether a gate as wide as the output is projected, too (Kimi-K3).
    output_gate: bool = False

    @property
    def split_heads(self) -> int:
        return self.heads

    def shard_widths(self, tp: int) -> dict[str, int]:
        heads, key = self.heads // tp, self.qk_nope_head_dim
        widths = {"queries": heads * (key + self.qk_rope_head_dim), "keys and values": heads * (key + self.v_head_dim)}
        return widths | {"the output": heads * self.v_head_dim}

    @property
    def width(self) -> int:
        """Values that the cache keeps of a token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1) if product.rows != "decode")

    def kv_bytes_per_token(self, value_bytes: int = 2) -> float:
        return self.width * value_bytes

    def kv_ranks(self, tp: int) -> int:
        return 1  # all heads share the latent vector

    def sizes(self, tp: int) -> AttentionSizes:
        """The sizes of one rank."""
        own = LatentSizes(self.kv_lora_rank, self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim)
        return AttentionSizes(self.heads // tp, 1, self.width, 0, MLA, own)

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        heads, rank, low = self.heads // tp, self.kv_lora_rank, self.q_lora_rank
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        found = [Product((query if low is None else low) + self.width, hidden)]
        if low is not None:
            found.append(Product(query, low))
        # Prompts expand the latent vector to keys and values; decodes absorb both products into queries and outputs
        # (DeepSeek-V2, section 2.1.2), with the same weights.
        up = heads * (self.qk_nope_head_dim + self.v_head_dim)
        if self.output_gate:
            found.append(Product(heads * self.v_head_dim, hidden))
        return (
            *found,
            Product(up, rank, "prefill"),
            Product(up, rank, "decode"),
            Product(hidden, heads * self.v_head_dim),
        )

    def streams(self, tp: int) -> Streams:
        return Streams(1, ROPE_PASSES * (self.heads // tp + 1) * self.qk_rope_head_dim)

    def context_values(self, tp: int) -> tuple[int, int]:
        """Of the absorbed form, in which decodes attend to latent vectors."""
        if type(self) is not Latent:
            return super().context_values(tp)
        return self.heads // tp * self.width, self.heads // tp * self.kv_lora_rank

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        return Work(*work_of(phase, self.sizes(tp), requests, new, context, kv_dtype))

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return measured(laws, phase, self.sizes(tp), precision, library, rates)


# ---- sparse
# Latent attention to the tokens that an indexer chooses (DeepSeek-V3.2, arXiv 2512.02556, section 2.1; GLM-5).

SCALED_VALUES = 128  # of a latent vector in 8 bits that share a scale of FP32
KEY_SCALE_BYTES = 4  # an indexer's key is kept in 8 bits a value, with one scale of FP32 (vLLM; DeepGEMM's fp8 logits)


class Indexer(Kind):
    """The keys of an indexer: heads that score every token with one key a token, and choose ``index_topk`` of them."""

    index_heads: Count
    index_head_dim: Size
    # Tokens that a query attends to.
    index_topk: Tokens
    # False: the layer takes the tokens that an earlier layer's indexer chose, and keeps no keys for it.
    own_indexer: bool = True

    @property
    def index_key_bytes(self) -> int:
        """An indexer's key of a token in the cache."""
        return self.index_head_dim + KEY_SCALE_BYTES if self.own_indexer else 0

    def index_work(self, requests, new, context) -> Work:
        """Scores of every token: FP8 products of all heads of the indexer, which every rank computes whole."""
        if not self.own_indexer:
            return Work(np.zeros(()), np.zeros(()))
        requests, context = np.asarray(requests, float), np.asarray(context, float)
        flop = 2.0 * requests * self.index_heads * self.index_head_dim * pairs(new, context)
        queries = np.asarray(new, float) * self.index_heads * self.index_head_dim
        return Work(flop, requests * (context * self.index_key_bytes + queries))


class Sparse(Latent, Indexer):
    """Latent attention whose queries see ``index_topk`` tokens; it runs on the latent vectors, as in decode."""

    table: ClassVar[str | None] = None

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        """With 8 bits, a latent vector has a scale of FP32 for every 128 values, and the rotated key stays in BF16: 656
        bytes for 512 + 64 values (FlashMLA's sparse FP8 cache; vLLM's fp8_ds_mla, SGLang's nsa).
        """
        entry = self.width * value_bytes
        if value_bytes == 1:
            scales = -(-self.kv_lora_rank // SCALED_VALUES) * KEY_SCALE_BYTES
            entry = self.kv_lora_rank + scales + self.qk_rope_head_dim * ACTIVATION_BYTES
        return entry + self.index_key_bytes

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        base = super().products(hidden, tp)
        if not self.own_indexer:
            return base
        low = self.q_lora_rank or hidden
        into = Product(self.index_head_dim + self.index_heads, hidden)  # the key, and a weight of every head
        return *base, into, Product(self.index_heads * self.index_head_dim, low)

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        requests = np.asarray(requests, float)
        heads, per_head = self.heads // tp, self.width + self.kv_lora_rank
        chosen = pairs(new, context, self.index_topk)
        seen = np.minimum(chosen, context)  # at most every token once, if the cache holds what queries share
        index = self.index_work(requests, new, context)
        moved = seen * self.width * WEIGHT_BYTES[kv_dtype] + np.asarray(new) * heads * per_head * ACTIVATION_BYTES
        return Work(2.0 * requests * heads * per_head * chosen + index.flop, requests * moved + index.moved_bytes)

    @property
    def measured_as(self) -> str | None:
        return "sparse" if self.own_indexer else "sparse_reused"

    def sizes(self, tp: int) -> AttentionSizes:
        raise NotImplementedError("sparse attention has tables of its own")

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return Kind.times(self, laws, phase, hidden, tp, precision, library=library, rates=rates)


# ---- block_sparse
# Grouped attention to the blocks of tokens that an indexer chooses (MiniMax-M3).


class BlockSparse(Grouped, Indexer):
    """Grouped queries that see ``index_topk`` tokens, in blocks."""

    table: ClassVar[str | None] = None

    @property
    def index_key_bytes(self) -> int:
        """Its keys are BF16 (vLLM's cache of MiniMax-M3's indexer)."""
        return self.index_head_dim * ACTIVATION_BYTES if self.own_indexer else 0

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        return super().kv_bytes_per_token(value_bytes) + self.index_key_bytes

    @property
    def measured_as(self) -> str | None:
        return "block_sparse"

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        base = super().products(hidden, tp)
        if not self.own_indexer:
            return base
        return *base, Product((self.index_heads + 1) * self.index_head_dim + self.index_heads, hidden)

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        sizes = self._sizes(tp)
        dense = Work(*work_of(phase, sizes, requests, new, context, kv_dtype))
        share = pairs(new, context, self.index_topk) / pairs(new, context)
        seen = np.minimum(1.0, pairs(new, context, self.index_topk) / np.asarray(context, float))
        index = self.index_work(requests, new, context)
        return Work(dense.flop * share + index.flop, dense.moved_bytes * seen + index.moved_bytes)

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return Kind.times(self, laws, phase, hidden, tp, precision, library=library, rates=rates)


# ---- compressed
# Compressed attention of DeepSeek-V4: one entry of the cache for ``ratio`` tokens, and a window of whole ones.
#
# Its two forms: compressed sparse attention (an entry of 4 tokens; an indexer chooses entries) and heavily compressed
# attention (an entry of 128 tokens, all of them seen). Geometry: config.json and inference/model.py of DeepSeek-V4.

COMPRESSED_SCALED_VALUES, SCALE_WORD_BYTES = 64, 8  # of an entry in 8 bits


class Compressed(Kind):
    """All ``heads`` share one entry of ``head_dim`` values, which is key and value.

    ``ratio`` tokens make an entry (0: none, the window alone). ``index_topk``: entries that an indexer of
    ``index_heads`` chooses for a query; 0: a query sees all.
    """

    heads: Count
    head_dim: Size
    q_lora_rank: Size
    o_lora_rank: Size
    o_groups: Count
    window: Tokens
    ratio: Whole = 0
    # Whether entries overlap: they are made from twice as many tokens, with twice as many weights.
    overlapping: bool = False
    index_heads: Whole = 0
    index_head_dim: Whole = 0
    index_topk: Whole = 0
    # Values of an entry that are rotated; a cache in 8 bits keeps them in BF16.
    qk_rope_head_dim: Whole = 64

    @property
    def split_heads(self) -> int:
        return self.heads

    @property
    def _index_key_bytes(self) -> int:
        return self.index_head_dim + KEY_SCALE_BYTES if self.index_topk else 0

    def entry_bytes(self, value_bytes: int = 2) -> int:
        """An entry of the cache. In 8 bits every 64 values that are not rotated have a scale of a byte, in whole words
        of 8: 584 bytes for 512 values (vLLM's fp8_ds_mla of DeepSeek-V4).
        """
        if value_bytes != 1:
            return self.head_dim * value_bytes
        rotated = min(self.qk_rope_head_dim, self.head_dim)
        still = self.head_dim - rotated
        scales = -(-still // COMPRESSED_SCALED_VALUES)
        return still + rotated * ACTIVATION_BYTES + -(-scales // SCALE_WORD_BYTES) * SCALE_WORD_BYTES

    def kv_bytes_per_token(self, value_bytes: int = 2) -> float:
        return self.kept_bytes_per_token(value_bytes) + self.entry_bytes(value_bytes)

    def kept_bytes_per_token(self, value_bytes: int = 2) -> float:
        return (self.entry_bytes(value_bytes) + self._index_key_bytes) / self.ratio if self.ratio else 0.0

    @property
    def kept_window(self) -> int:
        return self.window

    def kv_bytes(self, context: int, value_bytes: int = 2) -> int:
        compressed = context // self.ratio if self.ratio else 0
        width = self.entry_bytes(value_bytes)
        return compressed * (width + self._index_key_bytes) + min(context, self.window) * width

    @property
    def measured_as(self) -> str | None:
        """A layer with the window alone was not measured."""
        return ("compressed_sparse" if self.index_topk else "compressed") if self.ratio else None

    def index_work(self, requests, new, context) -> Work:
        """Scores of every entry, by all heads of the indexer."""
        requests, context = np.asarray(requests, float), np.asarray(context, float)
        if not self.index_topk:
            return Work(np.zeros(()), np.zeros(()))
        scored = pairs(new, context) / self.ratio
        flop = 2.0 * requests * self.index_heads * self.index_head_dim * scored
        return Work(flop, requests * context / self.ratio * self._index_key_bytes)

    def kv_ranks(self, tp: int) -> int:
        return 1

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1))

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        heads, groups = self.heads // tp, max(1, self.o_groups // tp)
        into = self.q_lora_rank + self.head_dim
        found = [Product(heads * self.head_dim, self.q_lora_rank)]
        if self.ratio:
            into += 2 * self.head_dim * (1 + self.overlapping)  # values and gates of an entry
        if self.index_topk:
            into += 2 * self.index_head_dim * (1 + self.overlapping) + self.index_heads
            found.append(Product(self.index_heads * self.index_head_dim, self.q_lora_rank))
        grouped = Product(self.o_lora_rank, heads * self.head_dim)  # every group of heads by its own matrix
        return Product(into, hidden), *found, grouped, Product(hidden, groups * self.o_lora_rank)

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        requests, new, context = (np.asarray(each, float) for each in (requests, new, context))
        heads, near = self.heads // tp, pairs(new, context, self.window)
        far, index = np.zeros_like(near), self.index_work(requests, new, context)
        if self.ratio:
            far = pairs(new, context, self.index_topk * self.ratio or np.inf) / self.ratio
        flop = 4.0 * heads * self.head_dim * (near + far)
        entries = np.minimum(context, self.window + new)
        compressed = context / self.ratio if self.ratio else 0.0
        entries = entries + (np.minimum(far, compressed) if self.ratio else 0.0)
        moved = entries * self.head_dim * WEIGHT_BYTES[kv_dtype] + 2 * new * heads * self.head_dim * ACTIVATION_BYTES
        return Work(requests * flop + index.flop, requests * moved + index.moved_bytes)

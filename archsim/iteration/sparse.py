"""Attention to the tokens that an indexer chooses: latent (DeepSeek-V3.2, arXiv 2512.02556, section 2.1; GLM-5) and
grouped (MiniMax-M3).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from archsim.base import fields, units
from archsim.iteration.attention import ACTIVATION_BYTES, Kind, Product, Work, pairs
from archsim.iteration.grouped import Grouped
from archsim.iteration.latent import Latent
from archsim.laws.attention import AttentionSizes, work_of
from archsim.specs.deployment import BF16

SCALED_VALUES = 128  # of a latent vector in 8 bits that share a scale of FP32
KEY_SCALE_BYTES = 4  # an indexer's key is kept in 8 bits a value, with one scale of FP32 (vLLM; DeepGEMM's fp8 logits)


class Indexer(Kind):
    """The keys of an indexer: heads that score every token with one key a token, and choose ``index_topk`` of them."""

    index_heads: fields.Count
    index_head_dim: fields.Size
    # Tokens that a query attends to.
    index_topk: fields.Tokens
    # False: the layer takes the tokens that an earlier layer's indexer chose, and keeps no keys for it.
    own_indexer: bool = True

    @property
    def index_key_bytes(self) -> int:
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
        moved = seen * self.width * units.WEIGHT_BYTES[kv_dtype] + np.asarray(new) * heads * per_head * ACTIVATION_BYTES
        return Work(2.0 * requests * heads * per_head * chosen + index.flop, requests * moved + index.moved_bytes)

    @property
    def measured_as(self) -> str | None:
        return "sparse" if self.own_indexer else "sparse_reused"

    def sizes(self, tp: int) -> AttentionSizes:
        raise NotImplementedError("sparse attention has separate tables")

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return Kind.times(self, laws, phase, hidden, tp, precision, library=library, rates=rates)


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

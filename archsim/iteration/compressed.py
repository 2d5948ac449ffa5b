"""Compressed attention of DeepSeek-V4: one entry of the cache for ``ratio`` tokens, and a window of whole ones.

Its two forms: compressed sparse attention (an entry of 4 tokens; an indexer chooses entries) and heavily compressed
attention (an entry of 128 tokens, all of them seen). Geometry: config.json and inference/model.py of DeepSeek-V4.
"""

from __future__ import annotations

import numpy as np

from archsim.base.fields import Count, Size, Tokens, Whole
from archsim.base.units import WEIGHT_BYTES
from archsim.iteration.attention import ACTIVATION_BYTES, Kind, Product, Work, pairs
from archsim.iteration.sparse import KEY_SCALE_BYTES

COMPRESSED_SCALED_VALUES, SCALE_WORD_BYTES = 64, 8  # of an entry in 8 bits


class Compressed(Kind):
    """All ``heads`` share one entry of ``head_dim`` values, which is key and value."""

    heads: Count  # of queries
    head_dim: Size  # size of a query and of an entry
    q_lora_rank: Size  # through which queries are projected
    o_lora_rank: Size  # of each group of the output
    o_groups: Count  # groups of heads of the output
    window: Tokens  # whole tokens that a query sees
    ratio: Whole = 0  # tokens that make an entry; 0: none, the window alone
    # Whether entries overlap: they are made from twice as many tokens, with twice as many weights.
    overlapping: bool = False
    index_heads: Whole = 0  # of the indexer
    index_head_dim: Whole = 0  # size of its keys
    index_topk: Whole = 0  # entries that the indexer chooses for a query; 0: a query sees all
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
        return Product(into, hidden), *found, grouped, Product(hidden, groups * self.o_lora_rank, back=True)

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

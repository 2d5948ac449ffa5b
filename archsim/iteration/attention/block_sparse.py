"""Grouped attention to the blocks of tokens that an indexer chooses (MiniMax-M3)."""

from typing import ClassVar

import numpy as np

from archsim.iteration.attention.grouped import Grouped
from archsim.iteration.attention.kind import ACTIVATION_BYTES, Kind, Product, Work, pairs
from archsim.iteration.attention.sparse import Indexer
from archsim.laws.attention import work_of
from archsim.specs.deployment import BF16


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

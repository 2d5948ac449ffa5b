"""Grouped queries (Ainslie et al., arXiv 2305.13245): multi-head and multi-query attention among them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from archsim.base.fields import Count, KeyProblem, MaybeSize, MaybeTokens, Size
from archsim.iteration.attention import Kind, Product, Streams, Work, measured_times
from archsim.iteration.latent import ROPE_PASSES
from archsim.laws.attention import GQA, AttentionSizes, work_of
from archsim.specs.deployment import BF16


class Grouped(Kind):
    """``heads`` queries in groups that share ``kv_heads`` keys and values; with a ``window``, the last tokens alone."""

    table: ClassVar[str | None] = GQA  # measured tables
    heads: Count  # of queries
    kv_heads: Count  # of keys and values
    head_dim: Size  # size of a query and a key
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
        return Product(into, hidden), Product(hidden, heads * self._value, back=True)

    def streams(self, tp: int) -> Streams:
        return Streams(1, ROPE_PASSES * (self.heads // tp + max(1, self.kv_heads // tp)) * self.head_dim)

    def context_values(self, tp: int) -> tuple[int, int]:
        if self.window or type(self) is not Grouped:
            return super().context_values(tp)
        return self.heads // tp * self.head_dim, self.heads // tp * self._value

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        return Work(*work_of(phase, self._sizes(tp), requests, new, context, kv_dtype))

    def times(self, laws, phase, hidden, tp=1, precision=BF16, *, library=None, rates=None):
        return measured_times(laws, phase, self._sizes(tp), precision, library, rates)


# Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).


# Latent attention to the tokens that an indexer chooses (DeepSeek-V3.2, arXiv 2512.02556, section 2.1; GLM-5).


# Grouped attention to the blocks of tokens that an indexer chooses (MiniMax-M3).

"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from typing import ClassVar

from archsim.base.fields import Count, MaybeSize, Size, Whole
from archsim.iteration.attention import Kind, Product, Streams, Work, measured_times
from archsim.laws.attention import MLA, AttentionSizes, LatentSizes, work_of
from archsim.specs.deployment import BF16

ROPE_PASSES = 2  # reads and writes queries and keys


class Latent(Kind):
    """The cache holds of a token a latent vector of ``kv_lora_rank``, and one rotated key of ``qk_rope_head_dim``."""

    table: ClassVar[str | None] = MLA  # measured tables
    heads: Count  # of queries
    # A query is projected from the hidden vector through this rank; null: directly.
    q_lora_rank: MaybeSize = None
    kv_lora_rank: Size  # size of the latent vector
    qk_nope_head_dim: Size  # size of a query and a key without positions
    # 0: without positions (Kimi-Linear keeps the key, and does not rotate it).
    qk_rope_head_dim: Whole
    v_head_dim: Size  # size of a value
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
        return self.kv_lora_rank + self.qk_rope_head_dim

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1) if product.rows != "decode")

    def kv_bytes_per_token(self, value_bytes: int = 2) -> float:
        return self.width * value_bytes

    def kv_ranks(self, tp: int) -> int:
        return 1  # all heads share the latent vector

    def sizes(self, tp: int) -> AttentionSizes:
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
            Product(hidden, heads * self.v_head_dim, back=True),
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
        return measured_times(laws, phase, self.sizes(tp), precision, library, rates)

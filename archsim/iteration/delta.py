"""Delta rules: the gated delta net (Qwen3-Next; arXiv 2412.06464) and Kimi delta attention (arXiv 2510.26692)."""

from archsim.base.fields import Count, Few, Size
from archsim.iteration.attention import Product
from archsim.iteration.linear import Convolved


class GatedDeltaNet(Convolved):
    """``v_heads`` states of ``k_dim`` × ``v_dim``; ``k_heads`` queries and keys; a short convolution."""

    k_heads: Count
    v_heads: Count
    k_dim: Size
    v_dim: Size

    @property
    def measured_as(self) -> str | None:
        return "gated_delta_net"

    @property
    def rule_heads(self) -> int:
        return self.v_heads

    @property
    def split_heads(self) -> int:
        return self.k_heads

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def state_values(self) -> int:
        return self.v_heads * self.v_dim * self.k_dim

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        values = self.v_heads * self.v_dim
        into = self.channels + values + 2 * self.v_heads  # queries, keys, values; gates; decay and rate of a head
        return Product(into // tp, hidden), Product(hidden, values // tp, back=True)

    def read_values(self, tp: int) -> int:
        return (2 * self.channels + 2 * self.v_heads * self.v_dim) // tp

    def chunk_width(self, tp: int) -> int:
        return self.v_heads * (self.k_dim + self.v_dim) // tp


class KimiDelta(Convolved):
    """``heads`` states of ``head_dim`` × ``head_dim``, with a decay of every key channel; the state is FP32."""

    heads: Count
    head_dim: Size
    state_value_bytes: Few = 4

    @property
    def measured_as(self) -> str | None:
        return "kda"

    @property
    def channels(self) -> int:
        return 3 * self._wide

    @property
    def split_heads(self) -> int:
        return self.heads

    @property
    def _wide(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_values(self) -> int:
        return self._wide * self.head_dim

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        wide = self._wide // tp
        low = 2 * self.head_dim  # decay and output gate pass through head_dim values each
        into = Product(3 * wide + low + self.heads // tp, hidden)
        return into, Product(wide, self.head_dim), Product(wide, self.head_dim), Product(hidden, wide, back=True)

    def read_values(self, tp: int) -> int:
        return 8 * self._wide // tp

    def chunk_width(self, tp: int) -> int:
        return 2 * self._wide // tp

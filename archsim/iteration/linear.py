"""What all kinds of linear attention share: no cache that grows, a state for each request, and the tail of a short
convolution.
"""

import numpy as np

from archsim.base.fields import Count, Few, Size
from archsim.iteration.attention import ACTIVATION_BYTES, CONVOLUTION, DECODE, RULE, Kind, Product, Work

# ---- linear

CHUNK_TOKENS = 64  # prompts are computed in chunks: products inside a chunk, and a state passed on (arXiv 2406.06484)


class Linear(Kind):
    """``heads`` states of key size × value size; ``state_value_bytes`` a value, as the engine keeps them."""

    # Bytes of a value of the recurrent state: 2 for BF16, 4 for FP32.
    state_value_bytes: Few = 2

    @property
    def state_values(self) -> int:
        """Values of the recurrent state of one request, all heads."""
        raise NotImplementedError

    @property
    def tail_values(self) -> int:
        """Values of the convolution's tail of one request, in BF16."""
        return 0

    @property
    def channels(self) -> int:
        """Values of a token that the convolution passes over."""
        return 0

    @property
    def rule_heads(self) -> int:
        """Heads with a state of their own."""
        raise NotImplementedError

    @property
    def measured_parts(self) -> tuple[str, ...]:
        return CONVOLUTION, RULE

    @property
    def state_bytes(self) -> int:
        return self.tail_values * ACTIVATION_BYTES + self.state_values * self.state_value_bytes

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        return 0

    def read_values(self, tp: int) -> int:
        """Values read and written a token: queries, keys, values and gates."""
        raise NotImplementedError

    def chunk_width(self, tp: int) -> int:
        """Key size + value size of a token, over all heads: products of pairs inside a chunk."""
        raise NotImplementedError

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        """Every token reads and updates the state, which takes two products of its size. In prompts, the pairs inside a
        chunk come on top. A decode reads and writes the state once for each request.
        """
        requests, new = np.asarray(requests, float), np.asarray(new, float)
        state = self.state_values // tp
        inside = 0.0 if phase == DECODE else 2.0 * CHUNK_TOKENS * self.chunk_width(tp)
        flop = requests * new * (4.0 * state + inside)
        passes = np.ceil(new / CHUNK_TOKENS) if phase != DECODE else new
        moved = requests * (new * self.read_values(tp) * ACTIVATION_BYTES + passes * 2 * state * self.state_value_bytes)
        return Work(*np.broadcast_arrays(flop, moved))


class Convolved(Linear):
    """Linear attention with a short convolution over ``conv`` tokens of every channel before its rule."""

    conv: Few = 4

    @property
    def rule_heads(self) -> int:
        return self.split_heads

    @property
    def tail_values(self) -> int:
        return self.channels * (self.conv - 1)

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1)) + self.channels * self.conv


class ShortConv(Convolved):
    """A gated convolution over the last ``conv`` tokens of ``width`` channels, without a recurrent state (LFM2)."""

    width: Size
    conv: Few = 3

    @property
    def split_heads(self) -> int:
        return self.width

    @property
    def channels(self) -> int:
        return self.width

    @property
    def state_values(self) -> int:
        return 0

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        return Product(3 * self.width // tp, hidden), Product(hidden, self.width // tp)

    def read_values(self, tp: int) -> int:
        return 4 * self.width // tp  # two gates, what is convolved, and what comes of it

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        """As all linear attentions, and the convolution, which is all that it computes."""
        base = super().work(phase, tp, requests, new, context, kv_dtype)
        convolved = 2.0 * np.asarray(requests, float) * new * self.conv * self.width / tp
        return Work(base.flop + convolved, base.moved_bytes)

    def chunk_width(self, tp: int) -> int:
        return 0


# ---- mamba
# State-space layers: Mamba (arXiv 2312.00752; Jamba) and Mamba-2 (arXiv 2405.21060; Nemotron 3, Granite 4).


class Mamba(Convolved):
    """``inner`` channels with a state of ``state`` values each; a convolution over ``conv`` tokens."""

    inner: Size
    state: Size
    # Rank of the step sizes.
    dt_rank: Size

    @property
    def split_heads(self) -> int:
        return self.inner

    @property
    def state_values(self) -> int:
        return self.inner * self.state

    @property
    def channels(self) -> int:
        return self.inner

    def weights(self, hidden: int) -> int:
        return super().weights(hidden) + self.state_values  # a matrix of decays

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        inner = self.inner // tp
        return (
            Product(2 * inner, hidden),
            Product(self.dt_rank + 2 * self.state, inner),
            Product(inner, self.dt_rank),
            Product(hidden, inner),
        )

    def read_values(self, tp: int) -> int:
        return 5 * self.inner // tp

    def chunk_width(self, tp: int) -> int:
        return 0  # a scan, token by token


class Mamba2(Convolved):
    """``heads`` states of ``head_dim`` × ``state``; ``groups`` share their input and output vectors."""

    heads: Count
    head_dim: Size
    groups: Count
    state: Size

    @property
    def measured_as(self) -> str | None:
        return "mamba2"

    @property
    def split_heads(self) -> int:
        return self.heads

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        return self._inner + 2 * self.groups * self.state

    @property
    def state_values(self) -> int:
        return self._inner * self.state

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        into = (self._inner + self.channels + self.heads) // tp  # gate; convolved values, inputs, outputs; step sizes
        return Product(into, hidden), Product(hidden, self._inner // tp)

    def read_values(self, tp: int) -> int:
        return (2 * self.channels + 2 * self._inner) // tp

    def chunk_width(self, tp: int) -> int:
        return (self.groups * self.state + self._inner) // tp


# ---- delta
# Delta rules: the gated delta net (Qwen3-Next; arXiv 2412.06464) and Kimi delta attention (arXiv 2510.26692).


class GatedDeltaNet(Convolved):
    """``v_heads`` states of ``k_dim`` × ``v_dim``; ``k_heads`` queries and keys; a convolution over ``conv`` tokens."""

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
        return Product(into // tp, hidden), Product(hidden, values // tp)

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
        return into, Product(wide, self.head_dim), Product(wide, self.head_dim), Product(hidden, wide)

    def read_values(self, tp: int) -> int:
        return 8 * self._wide // tp

    def chunk_width(self, tp: int) -> int:
        return 2 * self._wide // tp


# ---- lightning
# Lightning attention (arXiv 2401.04658; MiniMax-01, arXiv 2501.08313): linear attention with a fixed decay a head.


class Lightning(Linear):
    """``heads`` states of ``head_dim`` × ``head_dim``; no convolution; the output passes a gate."""

    heads: Count
    head_dim: Size

    @property
    def split_heads(self) -> int:
        return self.heads

    @property
    def state_values(self) -> int:
        return self.heads * self.head_dim**2

    def weights(self, hidden: int) -> int:
        return sum(product.n * product.k for product in self.products(hidden, 1))

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        wide = self.heads * self.head_dim // tp
        return Product(4 * wide, hidden), Product(hidden, wide)

    def read_values(self, tp: int) -> int:
        return 5 * self.heads * self.head_dim // tp

    def chunk_width(self, tp: int) -> int:
        return 2 * self.heads * self.head_dim // tp

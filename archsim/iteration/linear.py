"""What all kinds of linear attention share: a state for each request and the tail of a short convolution."""

import numpy as np

from archsim.base.fields import Count, Few, Size
from archsim.iteration.attention import ACTIVATION_BYTES, DECODE, Kind, Product, Work
from archsim.iteration.attention_blocks import CONVOLUTION, RULE

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
        return Product(3 * self.width // tp, hidden), Product(hidden, self.width // tp, back=True)

    def read_values(self, tp: int) -> int:
        return 4 * self.width // tp  # two gates, what is convolved, and what comes of it

    def work(self, phase, tp, requests, new, context, kv_dtype) -> Work:
        """As all linear attentions, and the convolution, which is all that it computes."""
        base = super().work(phase, tp, requests, new, context, kv_dtype)
        convolved = 2.0 * np.asarray(requests, float) * new * self.conv * self.width / tp
        return Work(base.flop + convolved, base.moved_bytes)

    def chunk_width(self, tp: int) -> int:
        return 0


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
        return Product(4 * wide, hidden), Product(hidden, wide, back=True)

    def read_values(self, tp: int) -> int:
        return 5 * self.heads * self.head_dim // tp

    def chunk_width(self, tp: int) -> int:
        return 2 * self.heads * self.head_dim // tp

"""Lightning attention (arXiv 2401.04658; MiniMax-01, arXiv 2501.08313): linear attention with a fixed decay a head."""

from archsim.base.text.fields import Count, Size
from archsim.iteration.attention.kind import Product
from archsim.iteration.attention.linear import Linear


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

"""State-space layers: Mamba (arXiv 2312.00752; Jamba) and Mamba-2 (arXiv 2405.21060; Nemotron 3, Granite 4)."""

from archsim.base.fields import Count, Size
from archsim.iteration import attention, linear


class Mamba(linear.Convolved):
    """``inner`` channels with a state of ``state`` values each; a short convolution."""

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

    def products(self, hidden: int, tp: int) -> tuple[attention.Product, ...]:
        inner = self.inner // tp
        return (
            attention.Product(2 * inner, hidden),
            attention.Product(self.dt_rank + 2 * self.state, inner),
            attention.Product(inner, self.dt_rank),
            attention.Product(hidden, inner, back=True),
        )

    def read_values(self, tp: int) -> int:
        return 5 * self.inner // tp

    def chunk_width(self, tp: int) -> int:
        return 0  # a scan, token by token


class Mamba2(linear.Convolved):
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

    def products(self, hidden: int, tp: int) -> tuple[attention.Product, ...]:
        into = (self._inner + self.channels + self.heads) // tp  # gate; convolved values, inputs, outputs; step sizes
        return attention.Product(into, hidden), attention.Product(hidden, self._inner // tp, back=True)

    def read_values(self, tp: int) -> int:
        return (2 * self.channels + 2 * self._inner) // tp

    def chunk_width(self, tp: int) -> int:
        return (self.groups * self.state + self._inner) // tp

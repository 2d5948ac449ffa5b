"""Attention by kind: what each keeps, what it computes, and how long that takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.errors import SpecError
from archsim.iteration import attention_blocks, recorded, roofline
from archsim.laws import gemm, tables
from archsim.laws.attention import AttentionGrid, AttentionSizes, attention_grid, choose_attention, grid_ns, outside
from archsim.laws.laws import Laws
from archsim.model.attention import AttentionKind
from archsim.model.spec import KeptPart
from archsim.specs.deployment import BF16, Precision

# What a kind of attention tells an iteration: its products, its work, and how long its kernels take.
#
# A new kind is one class below ``Kind`` in a user's own file, named ``package.module:Class`` in a model file.

ACTIVATION_BYTES = 2  # hidden vectors, queries and outputs are BF16
PREFILL, DECODE = "prefill", "decode"
PHASES = (PREFILL, DECODE)


class Product(NamedTuple):
    """A product with k x n weights; ``rows``: of all, prefill or decode; ``back``: gives the vector after attention."""

    n: int
    k: int
    rows: str = "tokens"
    back: bool = False

    @property
    def part(self) -> KeptPart:
        return "attention_output" if self.back else "attention_inputs"


class Streams(NamedTuple):
    """Memory-bound kernels beside the products: ``kernels`` launches, ``values`` BF16 values moved a token."""

    kernels: int
    values: int


class Work(NamedTuple):
    """What the kernels of one attention do: float64 of the shape of the requests."""

    flop: np.ndarray
    moved_bytes: np.ndarray


class AttentionTimes(Protocol):
    """The kernels of one attention of one rank in one phase.

    ``library``: whose times they are. ``whole``: with the projections (a measured block), so that ``Kind.products`` and
    ``Kind.streams`` are not added. ``note``: what every page prints of them; empty for times that were measured.
    """

    @property
    def library(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    @property
    def note(self) -> str: ...

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        """ns of ``requests`` with ``new`` tokens each at the end of ``context`` (which includes them); 0 for none."""
        ...

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        """bool: outside what was measured."""
        ...


class Kind(AttentionKind):
    """A kind of attention that an iteration can time. Sizes are those of a rank that has 1/``tp`` of the heads.

    ``table``: kind of the measured tables that it takes (gqa, mla), None for none of them. ``measurements``: its own,
    (phase, requests, new tokens of each, context, us) of one rank (`archsim.iteration.attention.AttentionPoint`).
    """

    table: ClassVar[str | None] = None
    measurements: ClassVar[Sequence[tuple[str, float, float, float, float]]] = ()

    @property
    def measured_as(self) -> str | None:
        """Name of its kind in the section ``blocks`` of a calibration; None: it has no tables there."""
        return None

    @property
    def measured_parts(self) -> tuple[str, ...]:
        """The parts that its tables there have."""
        return (attention_blocks.BLOCK,)

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        raise NotImplementedError

    def context_values(self, tp: int) -> tuple[int, int]:
        """Values of the queries and of the partial outputs of a token, of 1/``tp`` of the heads, that ranks exchange
        which share the tokens of a request. Raises SpecError for a kind whose cache is not divided that way.
        """
        raise SpecError(
            f"parallel.attention.context: attention of kind {self.kind} whose ranks share the tokens of a request is "
            "not modelled: its cache is no plain list of tokens. Leave context out"
        )

    def streams(self, tp: int) -> Streams:
        """Memory-bound kernels of one attention but for its norm: positions, gates, norms of heads."""
        return Streams(0, 0)

    def work(self, phase: str, tp: int, requests: ArrayLike, new: ArrayLike, context: ArrayLike, kv_dtype: str) -> Work:
        """FLOP and bytes of the kernels of ``requests``, without projections."""
        raise NotImplementedError

    def times(
        self,
        laws: Laws,
        phase: str,
        hidden: int,
        tp: int = 1,
        precision: Precision = BF16,
        *,
        library: str | None = None,
        rates: gemm.Rates | None = None,
    ) -> AttentionTimes:
        """Times of one kind of attention on a GPU, or on a die of ``rates``. They come from its own measurements, from
        those of its kind, or from a roofline. Raises LawMissing.
        """
        if own := recorded.recorded_times(self, laws, phase, tp, precision, rates):
            return own
        if self.measured_as is not None:
            dtypes = precision.of("attention_inputs"), precision.kv
            if found := attention_blocks.block_times(self, laws, phase, hidden, tp, dtypes, library, rates):
                return found
        return roofline.roofline(self.kind, self.work, laws, phase, tp, precision, rates)


def pairs(new: ArrayLike, context: ArrayLike, most: float = np.inf) -> np.ndarray:
    """Query-key pairs of one request, causal, each query seeing its last ``most`` tokens: float64."""
    new, context = np.asarray(new, float), np.asarray(context, float)
    before = context - new
    growing = np.clip(most - before, 0.0, new)  # queries that see fewer than `most`
    full = new - growing
    return growing * before + growing * (growing + 1) / 2 + (full * most if np.isfinite(most) else 0.0)


# Times of grouped and latent attention: a measured table and its law (``archsim.laws.attention``).


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """``AttentionTimes`` of a table at the sizes of a rank."""

    grid: AttentionGrid
    note: str = ""
    whole: bool = False

    @property
    def library(self) -> str:
        return self.grid.table.library

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        return grid_ns(self.grid, requests, new, context)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return outside(self.grid, requests, context)


def measured_times(
    laws: Laws, phase: str, sizes: AttentionSizes, precision: Precision, library: str | None, rates: gemm.Rates | None
) -> MeasuredTimes:
    """Times from the library's table, or from that of another library where it has none. Raises LawMissing."""
    try:
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv, library)
    except tables.LawMissing:
        if library is None:
            raise
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv)
    grid = attention_grid(table, sizes, *laws.scale_of(table.dtype, rates))
    stands_in = phase == PREFILL and (table.dtype, table.kv_dtype) != (precision.attention, precision.kv)
    return MeasuredTimes(grid._replace(far=grid.far or stands_in))

"""The tables of a calibration file (``configs/calibrations/<gpu>.yaml``): the parameters fitted to the measurements of
a GPU.

Sections may be files of their own (``archsim.laws.calibration_files``), long rows of numbers beside them
(``archsim.laws.stored``). In YAML, a row of numbers is one string of space-separated numbers.
Every table names its source, library and version. Times are in ns, sizes in bytes, rates per second.
``archsim.laws.laws`` evaluates them; ``archsim.laws.calibration_files`` finds and reads files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from archsim.base import errors, fields
from archsim.base.units import DTYPES

HBM = "hbm"  # in ``fitted`` of a reference
SECTIONS = ("gemm", "moe", "attention", "p2p", "collectives", "pcie", "hbm", "launch", "blocks")  # of a calibration
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


def _known(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}{errors.did_you_mean(name, DTYPES)} (known: {', '.join(DTYPES)})")
    return name


DtypeName = Annotated[str, AfterValidator(_known)]


def _numbers(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(float(word) for word in value.split())
    except ValueError:
        raise ValueError("expected numbers separated by spaces") from None


def _written(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.12g}" for value in values)


Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers), PlainSerializer(_written, when_used="json")]


def _increasing(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or any(b <= a for a, b in zip(values, values[1:], strict=False)):
        raise ValueError("expected increasing numbers")
    return values


def _three_positive(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) != 3 or min(values) <= 0:
        raise ValueError("expected three numbers above 0")
    return values


Axis = Annotated[Numbers, AfterValidator(_increasing)]
Reach = Annotated[Numbers, AfterValidator(_three_positive)]


class ResidualQuantiles(fields.Spec):
    """Quantiles (5 %, 50 %, 95 %) of measured / predicted - 1 over ``points`` points."""

    p05: float
    p50: float
    p95: float
    points: int = Field(ge=0)


class TableOrigin(fields.Spec):
    """The origin of a table. ``sweeps``: its runs; ``source``: the files of the runs; ``note``: what was decided where
    runs disagree.

    ``scaled_from``: the GPU on which it was measured, where its rates are scaled to another one; '': measured here.
    """

    library: str
    version: str
    source: str
    sweeps: tuple[str, ...] = ()
    note: str = ""
    scaled_from: str = ""


class ReferenceRates(fields.Spec):
    """Peak rates of the measured GPU; for another die, terms scale by the ratio of the rates.

    ``fitted``: dtypes (or HBM) without a given nominal rate; the fitted rate stands in for it.
    """

    peak_flop_per_s: dict[DtypeName, Positive]
    hbm_bytes_per_s: Positive
    sms: int = Field(gt=0)
    fitted: tuple[str, ...] = ()


class GemmLaw(fields.Spec):
    """t = launch + ns_per_k k + ns_per_input m k + ((flop / rate)^order + (bytes / bandwidth)^order)^(1/order).

    flop = 2 m n k; bytes = weights, inputs and outputs once.
    """

    launch_ns: NotNegative
    ns_per_k: NotNegative
    ns_per_input: NotNegative
    flop_per_s: Positive
    bytes_per_s: Positive
    order: Annotated[float, Field(ge=1, le=20)]


@lru_cache(maxsize=512)
def _shapes_of(names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Of rows by their names: every product that reads a table asks for them."""
    return tuple(shape_of(name) for name in names)


class GemmTable(TableOrigin):
    """GEMM times of one library, version and dtype: a law, and corrections to it."""

    dtype: DtypeName  # of weights and inputs
    quantisation: Literal["included", "apart"]  # of inputs: in the times, or measured apart
    groups: int = Field(1, ge=1)  # products of a grouped GEMM; 1: a plain one
    law: GemmLaw  # in ns
    m: Axis  # rows of inputs
    shapes: dict[str, Numbers]  # 'n x k' → 10000 ln(measured / law) at each of m
    ends: dict[str, Numbers] = {}  # measured range of m of shapes that were not measured over all of it
    # of the fitted times of each of sweeps, rows of shapes by m (`calibration.measurements.schema`)
    prints: tuple[str, ...] = ()
    # residuals of single sweeps at points of the table (repeatability); None: a single sweep
    seen: ResidualQuantiles | None = None
    unseen: ResidualQuantiles  # residuals of shapes left out of the fit

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(n, k) of every row of ``shapes``."""
        return _shapes_of(tuple(self.shapes))

    def range_of(self, n: int, k: int) -> tuple[float, float]:
        """The first and last measured m of a shape; for a shape that was not measured, those of the table."""
        ends = self.ends.get(f"{n}x{k}", self.m)
        return ends[0], ends[-1]


class MoeLaw(fields.Spec):
    """Time of the slowest rank, from its token-expert pairs and its active experts (those that receive any pair).

    t = launch + ns_per_token tokens + ns_per_pair pairs + ns_per_expert experts / ep + ((flop / rate)^order + (bytes /
    bandwidth)^order)^(1/order), and at least ``floor_ns``: host time where the host launches the kernels one by one.
    tokens: those that pass the rank (``MoeTable.seen``); flop = 6 pairs hidden ffn / tp; bytes = 3 slices of each
    active expert. ``spread``: for routing by chance, where pairs = tokens top_k / ep^spread. No rate is above the peak
    of the GPU. On another GPU: ``archsim.laws.scaling``.
    """

    launch_ns: NotNegative
    ns_per_token: NotNegative
    ns_per_pair: NotNegative = 0.0
    ns_per_expert: NotNegative = 0.0
    flop_per_s: Positive
    bytes_per_s: Positive
    order: Annotated[float, Field(ge=1, le=20)]
    floor_ns: NotNegative = 0.0
    spread: Annotated[float, Field(gt=0, le=1)] = 1.0


class Kriging(fields.Spec):
    """How corrections are interpolated to EP and TP sizes that were not measured; chosen by leaving sizes out of the
    fit.

    ``reach``: correlation length in octaves of ep, tp and tokens; ``noise``: variance of a point relative to that of
    the corrections; ``outlier``: ln difference between a rank and its prediction from the other ranks beyond which its
    weight drops (None: all ranks have equal weight).
    """

    reach: Reach
    noise: Positive
    outlier: Positive | None = None


class MoeTable(TableOrigin):
    """Fused MoE layers of one model, library, version, kernel, dtype and distribution of the routing."""

    model: str  # whose layers were measured
    dtype: DtypeName  # of the experts
    distribution: str  # name of the routing
    kernel: str = ""  # '': the library has one
    # of the EP group, over which EPLB spread replicas of experts by load; 0: no replicas
    eplb_slots: int = Field(0, ge=0)
    routing: str = ""  # behind distribution (`archsim.laws.moe`)
    # tokens that pass the rank: all of the group, or those received from a dispatch, each once
    seen: Literal["group", "received"] = "group"
    hidden: int = Field(gt=0)  # size of a vector
    ffn: int = Field(gt=0)  # inner size of an expert
    experts: int = Field(gt=0)  # of a layer
    top_k: int = Field(gt=0)  # experts of a token
    law: MoeLaw  # in ns
    tokens: Axis  # of the whole EP group
    ranks: dict[str, Numbers]  # 'ep x tp' → 10000 ln(measured / law) at each of tokens
    # of the fitted times of each of sweeps, rows of ranks by tokens (`calibration.measurements.schema`)
    prints: tuple[str, ...] = ()
    kriging: Kriging | None = None  # None where the law alone predicts better
    unseen: ResidualQuantiles  # residuals of what was left out of the fit


class AttentionLaw(fields.Spec):
    """t = launch + ns_per_request batch + ns_per_head batch heads
    + ((flop / rate)^order + (bytes / bandwidth)^order)^(1 / order).

    flop and bytes: ``archsim.laws.attention.work_of``.
    """

    launch_ns: NotNegative
    ns_per_request: NotNegative
    ns_per_head: NotNegative
    flop_per_s: Positive
    bytes_per_s: Positive
    order: Annotated[float, Field(ge=1, le=20)]


class AttentionTable(TableOrigin):
    """Attention of one library, phase, kind, dtypes, head size and window: a law, and corrections to it.

    Kinds: gqa (grouped queries; multi-head and multi-query among them), mla (latent KV; ``head_dim`` is that of the
    latent vector with RoPE), mla_block (latent KV with its projections, in ``products``), mla_pre and mla_post (the
    products of heads before and after an absorbed decode).
    """

    phase: Literal["prefill", "decode"]  # prefill: causal, of whole prompts; decode: one new token of each request
    kind: Literal["gqa", "mla", "mla_block", "mla_pre", "mla_post"]
    dtype: DtypeName  # of queries
    kv_dtype: DtypeName  # of the cache
    products: str = ""  # dtype of the projections of an mla_block; ''
    head_dim: int = Field(gt=0)  # of queries and keys
    window: int = Field(0, ge=0)  # of sliding-window attention, tokens; 0: none
    law: AttentionLaw  # in ns
    batch: Axis  # requests
    tokens: Axis  # of a prompt or a context
    most_tokens: Numbers  # the longest measured context at each of batch
    # 'heads x kv_heads' (of one rank) → 1000 ln(measured / law) at each of batch x tokens, all tokens of the
    # first batch first
    shapes: dict[str, Numbers]
    unseen: ResidualQuantiles  # residuals of (batch, tokens) left out of every shape
    unseen_shapes: ResidualQuantiles  # residuals of shapes left out

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(heads, kv_heads) of every row of ``shapes``."""
        return tuple(shape_of(name) for name in self.shapes)


class BlockTable(TableOrigin):
    """Sparse or linear attention of one library and kernel: ns = sum of price x term (``archsim.iteration.attention.
    blocks``), and at least a floor: the time of the host where it launches the kernels one by one.
    """

    # sparse, sparse_reused (an earlier layer's tokens), compressed_sparse, compressed, block_sparse,
    # gated_delta_net, kda or mamba2
    kind: str
    part: Literal["block", "convolution", "rule"]  # a whole block with its projections, or a convolution or rule alone
    phase: Literal["prefill", "decode", "verify"]  # verify: several tokens of each request
    kernel: str  # as its library names it
    kv_dtype: str = ""  # of the cache, where libraries have a kernel for each; '': one law for all
    # whether the context is so short that queries attend to all of it; '': one law for all
    reach: Literal["", "short", "long"] = ""
    prices: dict[str, NotNegative]  # term → ns
    floors_ns: dict[str, NotNegative] = {}  # by dtype of the products
    most_requests: Positive  # the largest measured
    most_context: Positive  # the largest measured, tokens
    residuals: ResidualQuantiles  # of the fitted cases
    unseen: ResidualQuantiles  # residuals of models and heads left out


class TransferTable(TableOrigin):
    """Time of S bytes: latency_ns[i] + S ns_per_byte[i] from from_bytes[i] on; measured from first_ to last_bytes.

    ``of``: the measured configuration (method, direction, ranks, ...).
    """

    of: dict[str, str]
    from_bytes: Axis
    latency_ns: Numbers
    ns_per_byte: Numbers
    first_bytes: Positive
    last_bytes: Positive
    residuals: ResidualQuantiles
    held_out_error: NotNegative = 0.0


class ScalarTable(TableOrigin):
    """One number with its range over the measurements. ``of``: the measured configuration."""

    of: dict[str, str]
    unit: Literal["ns", "bytes_per_s", "ratio"]
    value: Positive
    low: Positive
    high: Positive


class ScaledSections(fields.Spec):
    """Sections whose missing tables come from the calibration of another GPU, scaled by nominal rates
    (``archsim.laws.scaling``).
    """

    gpu: fields.Name
    sections: tuple[Literal["gemm", "moe", "attention", "collectives", "blocks"], ...]


class CalibrationSpec(fields.Spec):
    """All fitted parameters of one GPU."""

    gpu: fields.Name
    reference: ReferenceRates
    scaled: ScaledSections | None = None
    gemm: tuple[GemmTable, ...] = ()
    moe: tuple[MoeTable, ...] = ()
    attention: tuple[AttentionTable, ...] = ()
    p2p: tuple[TransferTable, ...] = ()
    collectives: tuple[TransferTable, ...] = ()
    pcie: tuple[TransferTable | ScalarTable, ...] = ()
    hbm: tuple[TransferTable | ScalarTable, ...] = ()
    launch: tuple[ScalarTable, ...] = ()
    blocks: tuple[BlockTable, ...] = ()

    @property
    def measured_rates(self) -> ReferenceRates:
        return self.reference


class MachineCalibration(CalibrationSpec):
    """The tables of a GPU at the rates of a machine that is another one (`archsim.laws.scaling.at_rates`)."""

    measured: CalibrationSpec  # of the GPU, at its own rates
    link_bytes_per_s: Positive  # of a device into its node, one direction
    pair_bytes_per_s: Positive  # between two devices of a node
    nic_bytes_per_s: Positive  # of a device to other nodes
    hop_ns: float  # latency of a hop in a node, beyond that of the measured node
    nic_hop_ns: float  # of one between nodes
    domain: int = Field(ge=1)  # devices of a node
    linked: bool  # each device of a node has a link to each other, and no switch

    @property
    def measured_rates(self) -> ReferenceRates:
        return self.measured.reference


class Same:
    """A key of a cache for what takes long to hash: equal to itself alone, and kept as long as the key is."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


@lru_cache(maxsize=4096)  # tables ask for the same few hundred names again and again
def shape_of(name: str) -> tuple[int, int]:
    """The two numbers of a name such as '4096x7168' or '8x1'."""
    found = re.fullmatch(r"(\d+)x(\d+)", name)
    if not found:
        raise ValueError(f"{name!r} is not two numbers such as '4096x7168'")
    return int(found[1]), int(found[2])


# Selects tables of a calibration by name; a missing one raises an error that lists the available ones.

Table = TypeVar("Table", bound=TableOrigin)
# Libraries that are used only by name, or if there is no other: the bandwidth of NCCL under XLA depends on XLA's
# channel settings (docs/calibration.md), and wide-EP experts were timed without the parts of a layer other than its
# products.
ONLY_BY_NAME = ("nccl-xla", "trtllm-wideep")
# Experts after a dispatch kernel, without the permutation and the sum of a fused layer: used if named, or alone.
PARTS_OF_LAYERS = ("sglang-deepep", *ONLY_BY_NAME)


class LawMissing(errors.SpecError):
    """A calibration has no table for the request."""


def newest_first(version: str) -> tuple:
    """A sort key of versions, for ``reverse=True``: 1.10.0 before 1.9.0, 1.3.0 before 1.3.0rc10."""
    release, _, candidate = version.partition("rc")
    numbers = tuple(int(word) for word in re.findall(r"\d+", release))
    return numbers, int(candidate) if candidate.isdecimal() else 10**9, version


def newest(tables: Iterable[Table]) -> Table:
    """The table of the newest version. Raises ValueError if there is no table."""
    return max(tables, key=lambda table: newest_first(table.version))


def matching(gpu: str, what: str, tables: Sequence[Table], asked: Mapping[str, object]) -> list[Table]:
    """The tables that match all values of ``asked``; None matches everything, and case is ignored.

    A key is an attribute of the table or a key of its ``of``. Raises LawMissing at the first value without a matching
    table: it lists the available values, given the previous ones, and the nearest.
    """
    if not tables:
        raise LawMissing(f"calibration {gpu} has no {what} tables")
    before: list[str] = []
    for key, value in asked.items():
        if value is None:
            continue
        wanted = _written_names(value).casefold()
        found = [table for table in tables if name_of(table, key).casefold() == wanted]
        if not found:
            there = sorted({name_of(table, key) for table in tables}, key=_by_number)
            given = f" for {', '.join(before)}" if before else ""
            near = "" if isinstance(value, int | float) else errors.did_you_mean(_written_names(value), there)
            raise LawMissing(
                f"calibration {gpu} has no {what} table of {key} {_written_names(value)!r}{given}{near} "
                f"(it has: {', '.join(name or 'none' for name in there)})"
            )
        tables = found
        before.append(f"{key} {_written_names(value)}")
    return list(tables)


def name_of(table: TableOrigin, key: str) -> str:
    """The value of ``key`` in a table, as text; '' for none."""
    own = vars(table)
    return _written_names(own[key] if key in own else own.get("of", {}).get(key, ""))


def _written_names(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_number(name: str) -> tuple:
    return (0, float(name), "") if re.fullmatch(r"\d+(\.\d+)?", name) else (1, 0.0, name)

"""Transfers between GPUs: their law by size, which copies (``p2p``) calibrate a link and how their time splits into
latency and bandwidth, and which tables collectives, dispatches and reads of a GPU's memory take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from archsim.base.quantities import SIZE, format_quantity
from archsim.base.units import NS_PER_S, VECTOR_BYTES
from archsim.laws.tables import (
    ONLY_BY_NAME,
    CalibrationSpec,
    LawMissing,
    MachineCalibration,
    ScalarTable,
    TransferTable,
    newest,
    newest_first,
)

# Transfers by size: contiguous pieces of the size axis, each with its own line ``latency + size / bandwidth``.
#
# Hockney's model (Parallel Computing 20, 1994), piece by piece, as communication libraries change protocol with size.
# Pieces need not be continuous: a library that switches protocol too early or too late causes a jump in the
# measurements.
# ``calibration.fit.transfers`` finds the pieces; this module evaluates them.


class TransferNumbers(Protocol):
    """Anything with the numbers of a law: a ``TransferTable``, or the copies of a system."""

    @property
    def from_bytes(self) -> tuple[float, ...]: ...

    @property
    def latency_ns(self) -> tuple[float, ...]: ...

    @property
    def ns_per_byte(self) -> tuple[float, ...]: ...

    @property
    def first_bytes(self) -> float | None: ...

    @property
    def last_bytes(self) -> float | None: ...


@dataclass(frozen=True)
class PiecewiseLaw:
    """Time of S bytes: ``latency_ns[i] + S * ns_per_byte[i]`` from ``from_bytes[i]`` on.

    ``first_bytes``, ``last_bytes``: smallest and largest size measured. If the last measured piece is short, a separate
    piece follows it.
    """

    from_bytes: tuple[float, ...]
    latency_ns: tuple[float, ...]
    ns_per_byte: tuple[float, ...]
    first_bytes: float
    last_bytes: float

    def time_ns(self, size_bytes) -> np.ndarray:
        """float64, the shape of ``size_bytes``: below the smallest measured its time, above the last piece's line."""
        size = np.maximum(np.asarray(size_bytes, dtype=np.float64), self.first_bytes)
        latency_ns, ns_per_byte = self.line(size)
        return latency_ns + size * ns_per_byte

    def line(self, size_bytes) -> tuple[np.ndarray, np.ndarray]:
        """(latency in ns, ns per byte) of the piece of each size, float64 each, the shape of ``size_bytes``."""
        piece = np.maximum(np.searchsorted(self.from_bytes, size_bytes, side="right") - 1, 0)
        return np.asarray(self.latency_ns)[piece], np.asarray(self.ns_per_byte)[piece]

    def extrapolates(self, size_bytes) -> np.ndarray:
        """bool: outside the measured range."""
        size = np.asarray(size_bytes)
        return (size < self.first_bytes) | (size > self.last_bytes)


def law_of(pieces: TransferNumbers) -> PiecewiseLaw:
    """The law of a table; if the measured sizes are unknown, the starts of its pieces stand in for them."""
    first = pieces.from_bytes[0] if pieces.first_bytes is None else pieces.first_bytes
    last = pieces.from_bytes[-1] if pieces.last_bytes is None else pieces.last_bytes
    return PiecewiseLaw(pieces.from_bytes, pieces.latency_ns, pieces.ns_per_byte, first, last)


AROUND = 4.0  # the rate of a link is that of copies from size / AROUND to size * AROUND
SLICES_BYTES = 2**20, 2**26  # weight slices of the models in configs/models, 1.5 to 42 MB; a law must cover these sizes
# NVLink, one direction, bytes/s: half of what NVIDIA's datasheets give for both (A100 600 GB/s; H100, H200 and H20 900;
# H800 400; B200, B300, GB200 and GB300 1800). Without cards whose bridge is optional (H100 PCIe, H100 NVL): their
# copies may go over PCIe.
NVLINK_BYTES_PER_S = MappingProxyType({
    "a100": 300e9, "h100": 450e9, "h200": 450e9, "h20": 450e9, "h800": 200e9,
    "b200": 900e9, "b300": 900e9, "gb200": 900e9, "gb300": 900e9,
})  # fmt: skip
# Links inside the measured nodes, one direction; PCIe 5.0 x16 (RTX PRO 6000 Blackwell Server Edition datasheet).
LINK_BYTES_PER_S = MappingProxyType({**NVLINK_BYTES_PER_S, "rtx-pro-6000-server": 64e9})
# ConnectX-7, 400 Gb/s, one a GPU: the network of DeepEP's own table (deepseek-ai/DeepEP, docs/legacy.md), which the
# inter-node measurements fit (their source does not describe it).
NIC_BYTES_PER_S = 50e9
NODE = 8  # GPUs behind one NVSwitch, one NIC each (NVIDIA, DGX H100 and HGX B200 user guides)
# Ranks behind one NVLink switch (datasheets of GB200 and GB300 NVL72); NODE elsewhere.
NVLINK_RANKS = MappingProxyType({"gb200": 72, "gb300": 72})


def domain_of(calibration: CalibrationSpec) -> int:
    """Devices of one node: those of the machine, else of the node on which the GPU was measured."""
    if isinstance(calibration, MachineCalibration):
        return calibration.domain
    return NVLINK_RANKS.get(calibration.gpu, NODE)


def link_of(calibration: CalibrationSpec, ranks: int) -> float:
    """Bytes/s of a device to the others of ``ranks`` in its node, one direction; 0 where it is unknown."""
    if isinstance(calibration, MachineCalibration):
        return linked_share(calibration, ranks) * calibration.link_bytes_per_s
    return LINK_BYTES_PER_S.get(calibration.gpu, 0.0)


def linked_share(rates: Any, ranks: int) -> float:
    """Of a device's bytes/s into its node, what leads to the others of ``ranks``: all (switch), or a link to each."""
    return (ranks - 1) / (rates.domain - 1) if rates.linked and 1 < ranks < rates.domain else 1.0


def link_table(calibration: CalibrationSpec) -> TransferTable | None:
    """The law of one-way copies between a pair of GPUs of a node that covers SLICES_BYTES, or None."""
    tables = [table for table in calibration.p2p if all(holds(table) for holds in WANTED.values())]
    return preferred_copy(tables) if tables else None


def preferred_copy(tables: Sequence[TransferTable]) -> TransferTable:
    """Preferred: several sizes, one pair at a time, copy engine, the library with most points, the newest version."""
    best = min(
        tables,
        key=lambda table: (
            table.library in ONLY_BY_NAME,
            table.first_bytes == table.last_bytes,
            table.of.get("concurrent_pairs", "1") != "1",
            table.of.get("method") != "ce",
            -table.residuals.points,
        ),
    )
    return newest(
        table for table in tables if (table.library, table.of.get("method")) == (best.library, best.of.get("method"))
    )


def why_no_link(calibration: CalibrationSpec) -> str:
    """What a calibration lacks if ``link_table`` returns None."""
    tables: Sequence[TransferTable] = calibration.p2p
    reason = "no measurements of copies between GPUs (p2p.csv)"
    for asked, holds in WANTED.items():
        if tables:
            reason = (
                f"measurements of copies between GPUs, but none {asked}{_sizes(tables) if holds is _covers else ''}"
            )
        tables = [table for table in tables if holds(table)]
    return reason


def nominal_bytes_per_s(gpu: str, table: TransferTable) -> float:
    """The nominal rate of the link between two GPUs of a server node; if unknown, the rate of the fastest copy."""
    return NVLINK_BYTES_PER_S.get(gpu) or fastest_bytes_per_s(table)


def fastest_bytes_per_s(table: TransferTable) -> float:
    """The rate of the fastest whole copy at the ends of pieces, to four digits (slopes of short pieces are noise)."""
    law = law_of(table)
    sizes = [size for size in (*law.from_bytes, law.last_bytes) if law.first_bytes <= size <= law.last_bytes]
    return float(f"{max(size / float(law.time_ns(size)) for size in sizes) * NS_PER_S:.4g}")


def link_of_copy(law: PiecewiseLaw, nominal_bytes_per_s: float, size_bytes: int) -> tuple[float, float]:
    """(hop latency in ns, share of the bandwidth) with which a remote read of ``size_bytes`` takes as long as the copy.

    The latency of a copy includes its request (NCCL's receiver announces its buffer, a copy engine reads), and a remote
    read crosses the link twice, with the request and with the data: each direction gets half. The rate is that of
    copies AROUND the size, as slopes of short pieces are mostly noise. Where their times hardly rise, or rise more than
    in proportion, the rate is that of the link, or of the whole copy, and the rest is latency.
    """
    size = max(float(size_bytes), law.first_bytes)
    low, high = max(size / AROUND, law.first_bytes), size * AROUND
    whole_ns, low_ns, high_ns = (float(law.time_ns(each)) for each in (size, low, high))
    slope_ns = (high_ns - low_ns) / (high - low)
    nominal_ns = NS_PER_S / nominal_bytes_per_s
    ns_per_byte = max(nominal_ns, min(slope_ns, whole_ns / size))
    return max(0.0, whole_ns - size_bytes * ns_per_byte) / 2, nominal_ns / ns_per_byte


def _covers(table: TransferTable) -> bool:
    return table.first_bytes <= SLICES_BYTES[0] and table.last_bytes >= SLICES_BYTES[1]


def _sizes(tables: Sequence[TransferTable]) -> str:
    spans = sorted({(table.first_bytes, table.last_bytes) for table in tables})
    return "; it has " + ", ".join(" to ".join(format_quantity(size, SIZE) for size in span) for span in spans)


# Conditions on a law that calibrates links: description → predicate.
WANTED: MappingProxyType[str, Callable[[TransferTable], bool]] = MappingProxyType({
    "within a node": lambda table: table.of.get("placement", "intra_node") == "intra_node",
    "other than XLA's, whose bandwidth depends on its channel settings": (
        lambda table: table.library not in ONLY_BY_NAME
    ),
    "one way (direction uni)": lambda table: table.of.get("direction") == "uni",
    "of one pair at a time (concurrent_pairs 1)": lambda table: table.of.get("concurrent_pairs", "1") == "1",
    "from 1 MiB to 64 MiB": _covers,
})  # fmt: skip


# Collectives, and dispatch and combine of MoE libraries: which table, and how many bytes a rank sends.

DISPATCH, COMBINE = "dispatch", "combine"
# TensorRT-LLM operations: the exchange of counts and indices before a dispatch, and a combine in the dtype of the
# layer.
PREPARE, COMBINE_LOW_PRECISION = "prepare", "combine_low_precision"
# Of DeepEP's normal kernels between nodes, apart from the vectors that follow: ranks tell each other how many come, and
# wait for all (deepseek-ai/DeepEP, csrc/kernels/internode.cu, notify_dispatch and cached_notify).
NOTIFY_OF = MappingProxyType({DISPATCH: "dispatch_notify", COMBINE: "combine_notify"})
# Default payload of operations: DeepEP dispatches FP8 and combines BF16 (deepseek-ai/DeepEP, README).
PAYLOAD_OF = MappingProxyType(
    {
        DISPATCH: "fp8",
        COMBINE: "bf16",
        PREPARE: "bf16",
        COMBINE_LOW_PRECISION: "nvfp4",
        NOTIFY_OF[DISPATCH]: "fp8",
        NOTIFY_OF[COMBINE]: "bf16",
    }
)

GROUPS_TAKEN = 4  # DeepEP's benchmark routes to at most 4 of the nodes (num_topk_groups of its test_internode.py)


def nodes_away(nodes: int, top_k: int, experts: int) -> float:
    """Other nodes that a token of DeepEP's benchmark is sent to, on average: ``top_k`` of the experts of at most
    GROUPS_TAKEN nodes, all equally popular, each node once (hypergeometric).
    """
    groups, each = min(nodes, GROUPS_TAKEN), experts / nodes
    none = prod(((groups - 1) * each - drawn) / (groups * each - drawn) for drawn in range(top_k))
    return groups * (1 - max(none, 0.0)) * (nodes - 1) / nodes


def collectives(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of collectives; sizes are message bytes as the library counts them."""
    return [table for table in calibration.collectives if table.of.get("op") not in PAYLOAD_OF]


def dispatches(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of dispatch and combine; sizes are bytes that one rank sends."""
    return [table for table in calibration.collectives if table.of.get("op") in PAYLOAD_OF]


def sent_bytes(payload: str, tokens, top_k, hidden):
    """Bytes that one rank sends for its own ``tokens``, each to ``top_k`` experts on other ranks. ``payload``: a key of
    archsim.base.units.VECTOR_BYTES.

    Laws of dispatch and combine use this size, whatever a library really sends (TensorRT-LLM: each vector once per
    rank). Raises LawMissing.
    """
    if payload not in VECTOR_BYTES:
        raise LawMissing(
            f"unknown payload {payload!r}: its bytes per value are not known (known: {', '.join(VECTOR_BYTES)})"
        )
    return tokens * top_k * hidden * VECTOR_BYTES[payload]


def payload_of(table: TransferTable) -> str:
    """The payload of a table of ``dispatches``."""
    return table.of.get("dtype") or PAYLOAD_OF[table.of["op"]]


def preferred_collective(tables: Sequence[TransferTable]) -> TransferTable:
    """The preferred table: fewest nodes, most SMs, most points, newest version; ONLY_BY_NAME last; default payload."""

    def rank(table: TransferTable) -> tuple:
        of, listed = table.of, table.library not in ONLY_BY_NAME
        usual = of.get("dtype") == PAYLOAD_OF.get(of["op"])
        sms, points = float(of.get("sms", 0)), table.residuals.points
        return not table.scaled_from, listed, -float(of.get("nodes", 1)), sms, points, usual, table.library

    best = max(tables, key=rank)
    return newest(table for table in tables if (table.library, table.of) == (best.library, best.of))


# The path to a host and back: time of a transfer over PCIe, of a launch and of its synchronisation.
#
# A calibration has laws of transfers by size, direction and method (``pcie``, from ``hostpath.csv``) and launch costs
# (``launch``, from ``launch.csv``). A decision sends small messages, 1 KiB to 1 MiB (demand of all dies, plan,
# ``cp_en`` bits), so each law is reduced to the line through its smallest size and 1 MiB: latency + bytes / bandwidth.
# Each decision crosses once in both directions; their latencies and times per byte are averaged.


# The memory of a GPU: latency and rates of its levels (``hbm``), and which of them apply to the HBM of a die.


class HbmReads(NamedTuple):
    """``latency_ns`` of a dependent load; ``efficiency``: share of the reference's bandwidth. None: not measured."""

    latency_ns: float | None
    efficiency: float | None


# Of measured GPUs that have no such number: of an RTX PRO 6000 (configs/systems/rtx_pro_6000_pair.yaml), and of an
# H100 (mt4g). Measured GPUs reach 0.81 to 0.85, and a Blackhole 0.977.
READ_SHARES, READ_SHARE = MappingProxyType({"rtx-pro-6000-server": 0.9}), 0.82


def read_share(calibration: CalibrationSpec) -> float:
    """Share of its HBM bandwidth that reads of the measured GPU reach, in hundredths as machines give theirs."""
    return round(hbm_reads(calibration).efficiency or READ_SHARES.get(calibration.gpu, READ_SHARE), 2)


def hbm_reads(calibration: CalibrationSpec) -> HbmReads:
    tables = [table for table in calibration.hbm if isinstance(table, ScalarTable) and table.of.get("level") == "hbm"]
    latencies = [table for table in tables if table.of.get("quantity") == "latency_ns"]
    shares = [table for table in tables if (table.of.get("op"), table.of.get("quantity")) == ("read", "efficiency")]
    return HbmReads(
        preferred_number(latencies).value if latencies else None, preferred_number(shares).value if shares else None
    )


def preferred_number(tables: list[ScalarTable]) -> ScalarTable:
    """The library that sorts last by name, in its newest version. Raises ValueError if empty."""
    return max(tables, key=lambda table: (table.library, newest_first(table.version)))

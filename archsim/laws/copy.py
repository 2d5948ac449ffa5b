"""Copies between two GPUs (``p2p``): which law calibrates a link, and how the time of a copy splits into link latency
and bandwidth.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType

from archsim.base.text.quantities import SIZE, format_quantity
from archsim.base.units import NS_PER_S
from archsim.laws.choosing import ONLY_BY_NAME, newest
from archsim.laws.piecewise import PiecewiseLaw, law_of
from archsim.laws.tables import CalibrationSpec, TransferTable

AROUND = 4.0  # the rate of a link is that of copies from size / AROUND to size * AROUND
SLICES_BYTES = 2**20, 2**26  # weight slices of the models in configs/models, 1.5 to 42 MB; a law must cover these sizes
# NVLink, one direction, bytes/s: half of what NVIDIA's datasheets give for both (A100 600 GB/s; H100, H200 and H20 900;
# H800 400; B200, B300, GB200 and GB300 1800). Without cards whose bridge is optional (H100 PCIe, H100 NVL): their
# copies may go over PCIe.
NVLINK_BYTES_PER_S = MappingProxyType({
    "a100": 300e9, "h100": 450e9, "h200": 450e9, "h20": 450e9, "h800": 200e9,
    "b200": 900e9, "b300": 900e9, "gb200": 900e9, "gb300": 900e9,
})  # fmt: skip


def link_table(calibration: CalibrationSpec) -> TransferTable | None:
    """The law of one-way copies between one pair of GPUs of a server node that covers SLICES_BYTES; None if there is
    none.
    """
    tables = [table for table in calibration.p2p if all(holds(table) for holds in WANTED.values())]
    return preferred_copy(tables) if tables else None


def preferred_copy(tables: Sequence[TransferTable]) -> TransferTable:
    """Preference: more than one size, then one pair of GPUs at a time, then copy engine, then the library with most
    points, in its newest version.
    """
    best = min(tables, key=lambda table: (
        table.library in ONLY_BY_NAME, table.first_bytes == table.last_bytes,
        table.of.get("concurrent_pairs", "1") != "1", table.of.get("method") != "ce", -table.residuals.points,
    ))
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
    """The rate of the fastest copy by a law, at the ends of its pieces, to four digits.

    From whole copies, not slopes: slopes of short pieces are mostly noise.
    """
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

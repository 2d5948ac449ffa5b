"""HBM and die-to-die links from a calibration: the latency and the share of the nominal bandwidth that were measured.

The HBM's are those of reads (``hbm``: pointer chase, streaming read). A link's come from the law of one-way copies between two
GPUs of a node (``p2p``), pieces of latency + size / bandwidth, its rate as a share of NVLink's nominal one; where that is not
known, of the rate of the fastest copy. A run has slices of one size, and its links are the piece in which that size lies, so that
a slice takes the time of a measured copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from archsim.base.errors import SpecError
from archsim.specs.calibration import (
    HBM,
    Axis,
    CalibrationSpec,
    Numbers,
    Positive,
    ScalarTable,
    TransferTable,
    calibration_named,
    newest_first,
)
from archsim.specs.machine.fabric import Bandwidth
from archsim.specs.text.fields import KeyProblem, Spec
from archsim.specs.text.quantities import BANDWIDTH, SIZE, format_quantity

NS_PER_S = 1e9
SLICES_BYTES = 2**20, 2**26  # weight slices of the models in configs/models, 1.5 to 42 MB; a law must have these sizes
NO_LAW = ("nccl-xla",)  # its bandwidth depends on XLA's channel settings (docs/calibration.md)
# NVLink, one direction, bytes/s: half of what NVIDIA's datasheets give for both (A100 600 GB/s; H100, H200 and H20 900; H800 400;
# B200, B300 and GB200 1800). Not of cards whose bridge is an option (H100 PCIe, H100 NVL): their copies may go over PCIe.
NVLINK_BYTES_PER_S = MappingProxyType({
    "a100": 300e9, "h100": 450e9, "h200": 450e9, "h20": 450e9, "h800": 200e9, "b200": 900e9, "b300": 900e9, "gb200": 900e9,
})  # fmt: skip


class Found(NamedTuple):
    """What a calibration gives to ``hbm`` or ``d2d``: its keys there, and what the source says of them. Nothing: not measured."""

    values: dict[str, Any]
    told: str


class CopyLaw(Spec):
    """Measured time of copies between two GPUs: latency_ns[i] + bytes ns_per_byte[i] from from_bytes[i] on, float64[piece].

    ``bandwidth``: the nominal one of the link that was measured. ``first_bytes``, ``last_bytes``: the measured sizes; None: not
    known.
    """

    from_bytes: Axis
    latency_ns: Numbers
    ns_per_byte: Numbers
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")
    first_bytes: Positive | None = None
    last_bytes: Positive | None = None

    @model_validator(mode="after")
    def _as_long(self) -> CopyLaw:
        if not len(self.from_bytes) == len(self.latency_ns) == len(self.ns_per_byte):
            raise ValueError("from_bytes, latency_ns and ns_per_byte need as many numbers each")
        return self

    def link(self, size_bytes: int) -> tuple[float, float]:
        """(hop latency in ns, share of the bandwidth) with which a remote read of so many bytes takes what its copy took.

        The latency of a copy holds asking for it (NCCL's receiver announces its buffer, a copy engine reads), and a remote read
        crosses the link twice, with the request and with the data: each way has half. Where a piece hardly rises with the
        size, or its line begins below 0, the rate is that of the link, or that of the whole copy, and the rest is latency.
        """
        size = max(float(size_bytes), self.from_bytes[0])
        latency_ns, slope_ns = line_at(self, size)
        whole_ns = latency_ns + size * slope_ns
        nominal_ns = NS_PER_S / self.bandwidth_bytes_per_s
        ns_per_byte = max(nominal_ns, min(slope_ns, whole_ns / size))
        return max(0.0, whole_ns - size_bytes * ns_per_byte) / 2, nominal_ns / ns_per_byte

    def extrapolates(self, size_bytes: int) -> bool | None:
        """Whether no copies of this size, or of smaller and larger ones, were measured; None where that is not known."""
        if self.first_bytes is None or self.last_bytes is None:
            return None
        return not self.first_bytes <= size_bytes <= self.last_bytes


def line_at(law: CopyLaw | TransferTable, size_bytes: float) -> tuple[float, float]:
    """(latency in ns, ns per byte) of the piece of a law in which a size lies."""
    piece = max(bisect_right(law.from_bytes, size_bytes) - 1, 0)
    return law.latency_ns[piece], law.ns_per_byte[piece]


def hbm_fitted(calibration: CalibrationSpec) -> Found:
    """``latency`` and ``efficiency``, as far as they were measured; of several, of the newest version."""
    values, reference = {}, calibration.reference
    tables = [table for table in calibration.hbm if isinstance(table, ScalarTable) and table.of.get("level") == "hbm"]
    latency = newest([table for table in tables if table.of.get("quantity") == "latency_ns"])
    efficiency = newest([table for table in tables if (table.of.get("op"), table.of.get("quantity")) == ("read", "efficiency")])
    if latency is not None:
        values["latency"] = f"{latency.value:.4g} ns"
    if efficiency is not None:
        values["efficiency"] = float(f"{min(efficiency.value, 1.0):.4g}")
    told = ", ".join(values)
    if efficiency is not None and HBM in reference.fitted:
        told += f" (of {format_quantity(reference.hbm_bytes_per_s, BANDWIDTH)}, which was fitted)"
    return Found(values, told)


def newest(tables: list[ScalarTable]) -> ScalarTable | None:
    """Of several libraries the last by name, of its versions the newest; None of none."""
    return max(tables, key=lambda table: (table.library, newest_first(table.version)), default=None)


def no_hbm(calibration: CalibrationSpec) -> str:
    """Why ``hbm_fitted`` gives nothing."""
    return "no measurements of HBM, neither latency nor reads (memory.csv)"


def link_fitted(calibration: CalibrationSpec) -> Found:
    """``copies``, the keys of a CopyLaw; nothing where no law is as ``copies_of`` wants it."""
    law = copies_of(calibration)
    if law is None:
        return Found({}, "")
    nominal = NVLINK_BYTES_PER_S.get(calibration.gpu)
    rate = format_quantity(nominal or fastest_bytes_per_s(law), BANDWIDTH)
    pieces = {key: " ".join(f"{value:.12g}" for value in getattr(law, key)) for key in ("from_bytes", "latency_ns", "ns_per_byte")}
    measured = {"bandwidth": rate, "first_bytes": law.first_bytes, "last_bytes": law.last_bytes}
    told = "copies" if nominal else f"copies, as a share of {rate}: the fastest copy, as no nominal rate of {calibration.gpu} is known"
    return Found({"copies": pieces | measured}, told)


def fastest_bytes_per_s(law: TransferTable) -> float:
    """The rate of the fastest copy by a law, at the ends of its pieces, to four digits.

    Of whole copies and not of slopes: those of short pieces are mostly noise.
    """
    sizes = [size for size in (*law.from_bytes, law.last_bytes) if law.first_bytes <= size <= law.last_bytes]
    return float(f"{max(size / _time_ns(law, size) for size in sizes) * NS_PER_S:.4g}")


def _time_ns(law: TransferTable, size_bytes: float) -> float:
    latency_ns, ns_per_byte = line_at(law, size_bytes)
    return latency_ns + size_bytes * ns_per_byte


def copies_of(calibration: CalibrationSpec) -> TransferTable | None:
    """The law of one-way copies of one pair of GPUs of a node that covers SLICES_BYTES.

    Of several a copy engine's, then of the library with most points, of which the newest version counts.
    """
    laws = [table for table in calibration.p2p if all(holds(table) for holds in WANTED.values())]
    if not laws:
        return None
    best = min(laws, key=lambda table: (table.of.get("method") != "ce", -table.residuals.points))
    same = [table for table in laws if (table.library, table.of.get("method")) == (best.library, best.of.get("method"))]
    return max(same, key=lambda table: newest_first(table.version))


def no_copies(calibration: CalibrationSpec) -> str:
    """Why ``copies_of`` gives nothing."""
    laws, reason = calibration.p2p, "no measurements of copies between GPUs (p2p.csv)"
    for asked, holds in WANTED.items():
        if laws:
            reason = f"measurements of copies between GPUs, but none {asked}{_sizes(laws) if holds is _covers else ''}"
        laws = [table for table in laws if holds(table)]
    return reason


def _covers(table: TransferTable) -> bool:
    return table.first_bytes <= SLICES_BYTES[0] and table.last_bytes >= SLICES_BYTES[1]


def _sizes(tables: Sequence[TransferTable]) -> str:
    spans = sorted({(table.first_bytes, table.last_bytes) for table in tables})
    return "; it has " + ", ".join(" to ".join(format_quantity(size, SIZE) for size in span) for span in spans)


# What a law must be for links to take it: how that is said → whether it holds.
WANTED: MappingProxyType[str, Callable[[TransferTable], bool]] = MappingProxyType({
    "within a node": lambda table: table.of.get("placement", "intra_node") == "intra_node",
    "other than XLA's, whose bandwidth depends on its channel settings": lambda table: table.library not in NO_LAW,
    "one way (direction uni)": lambda table: table.of.get("direction") == "uni",
    "of one pair at a time (concurrent_pairs 1)": lambda table: table.of.get("concurrent_pairs", "1") == "1",
    "from 1 MiB to 64 MiB": _covers,
})  # fmt: skip


def from_calibration(
    given: Any, fitted: Callable[[CalibrationSpec], Found], missing: Callable[[CalibrationSpec], str]
) -> Any:
    """A mapping of ``hbm`` or ``d2d`` with what its ``calibration`` gives put in, in place of what was given.

    ``fitted``: ``hbm_fitted`` or ``link_fitted``; ``missing``: why it gives nothing. Raises KeyProblem at ``calibration``.
    """
    name = given.get("calibration") if isinstance(given, dict) else None
    if not isinstance(name, str):
        return given
    try:
        calibration = calibration_named(name)
    except (SpecError, OSError) as error:
        raise KeyProblem(("calibration",), str(error)) from None
    found = fitted(calibration)
    if not found.values:
        raise KeyProblem(("calibration",), f"{name!r} has {missing(calibration)}")
    rest = {key: value for key, value in given.items() if key not in ("calibration", "latency_ns")}
    return rest | found.values | {"source": f"calibration {name}: {found.told}"}

"""HBM and die-to-die links from a calibration: the latency and the share of the nominal bandwidth that were measured.

The HBM's are those of reads (``hbm``: pointer chase, streaming read). A link's come from the law of one-way copies between two
GPUs of a node (``p2p``), pieces of latency + size / bandwidth, its rate as a share of NVLink's nominal one. A run has slices of
one size, and its links are the piece in which that size lies, so that a slice takes the time of a measured copy.
"""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import Any

from pydantic import Field, model_validator

from archsim.specs.base import KeyProblem, Spec
from archsim.specs.calibration import (
    Axis,
    CalibrationSpec,
    Numbers,
    Positive,
    ScalarTable,
    TransferTable,
    calibration_named,
)
from archsim.specs.errors import SpecError
from archsim.specs.quantities import BANDWIDTH, format_quantity
from archsim.specs.topology import Bandwidth

NS_PER_S = 1e9
SLICES_BYTES = 2**20, 2**26  # weight slices of the models in configs/models, 1.5 to 42 MB; a law must have these sizes
NO_LAW = ("nccl-xla",)  # its bandwidth depends on XLA's channel settings (docs/calibration.md)
# NVLink, one direction, bytes/s: half of what NVIDIA's datasheets give for both (600, 900, 900, 400, 1800 GB/s).
NVLINK_BYTES_PER_S = MappingProxyType({"a100": 300e9, "h100": 450e9, "h200": 450e9, "h800": 200e9, "b200": 900e9})


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
        piece = max(bisect_right(self.from_bytes, size) - 1, 0)
        whole_ns = self.latency_ns[piece] + size * self.ns_per_byte[piece]
        nominal_ns = NS_PER_S / self.bandwidth_bytes_per_s
        ns_per_byte = max(nominal_ns, min(self.ns_per_byte[piece], whole_ns / size))
        return max(0.0, whole_ns - size_bytes * ns_per_byte) / 2, nominal_ns / ns_per_byte

    def extrapolates(self, size_bytes: int) -> bool | None:
        """Whether no copies of this size, or of smaller and larger ones, were measured; None where that is not known."""
        if self.first_bytes is None or self.last_bytes is None:
            return None
        return not self.first_bytes <= size_bytes <= self.last_bytes


def hbm_fitted(calibration: CalibrationSpec) -> dict[str, Any]:
    """``latency`` and ``efficiency``, as far as they were measured."""
    found = {}
    for table in calibration.hbm:
        if isinstance(table, ScalarTable) and table.of.get("level") == "hbm":
            if table.of.get("quantity") == "latency_ns":
                found["latency"] = f"{table.value:.4g} ns"
            elif (table.of.get("op"), table.of.get("quantity")) == ("read", "efficiency"):
                found["efficiency"] = float(f"{min(table.value, 1.0):.4g}")
    return found


def link_fitted(calibration: CalibrationSpec) -> dict[str, Any]:
    """``copies``, the keys of a CopyLaw; empty where there is no law over those sizes, or no nominal rate."""
    law, nominal = copies_of(calibration), NVLINK_BYTES_PER_S.get(calibration.gpu)
    if law is None or nominal is None:
        return {}
    pieces = {key: " ".join(f"{value:.12g}" for value in getattr(law, key)) for key in ("from_bytes", "latency_ns", "ns_per_byte")}
    measured = {"bandwidth": format_quantity(nominal, BANDWIDTH), "first_bytes": law.first_bytes, "last_bytes": law.last_bytes}
    return {"copies": pieces | measured}


def copies_of(calibration: CalibrationSpec) -> TransferTable | None:
    """The law of one-way copies between two GPUs of a node that covers SLICES_BYTES; of several, a copy engine's."""
    small, large = SLICES_BYTES
    laws = [
        table
        for table in calibration.p2p
        if isinstance(table, TransferTable) and table.of.get("placement", "intra_node") == "intra_node"
        if table.library not in NO_LAW and table.of.get("direction") == "uni" and table.first_bytes <= small and table.last_bytes >= large
    ]
    return min(laws, key=lambda table: (table.of.get("method") != "ce", -table.residuals.points), default=None)


def from_calibration(given: Any, fitted, what: str) -> Any:
    """A mapping of ``hbm`` or ``d2d`` with what its ``calibration`` gives put in, in place of what was given.

    ``fitted``: ``hbm_fitted`` or ``link_fitted``. Raises KeyProblem at ``calibration``.
    """
    name = given.get("calibration") if isinstance(given, dict) else None
    if not isinstance(name, str):
        return given
    try:
        values = fitted(calibration_named(name))
    except (SpecError, OSError) as error:
        raise KeyProblem(("calibration",), str(error)) from None
    if not values:
        raise KeyProblem(("calibration",), f"{name!r} has no measurements of {what}")
    rest = {key: value for key, value in given.items() if key not in ("calibration", "latency_ns")}
    return rest | values | {"source": f"calibration {name}: {', '.join(values)}"}

"""HBM and die-to-die links from a calibration: the latency and the share of the nominal bandwidth that were measured.

The HBM's are those of reads (``hbm``: pointer chase, streaming read). A link's are the line through 1 MiB and 64 MiB, the sizes
of weight slices, of the law of one-way copies between two GPUs of a node (``p2p``), its rate as a share of NVLink's nominal one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from archsim.specs.base import KeyProblem
from archsim.specs.calibration import CalibrationSpec, ScalarTable, TransferTable, calibration_named
from archsim.specs.errors import SpecError
from archsim.specs.host_path import time_ns

NS_PER_S = 1e9
SLICES_BYTES = 2**20, 2**26
NO_LAW = ("nccl-xla",)  # its bandwidth depends on XLA's channel settings (docs/calibration.md)
# NVLink, one direction, bytes/s: half of what NVIDIA's datasheets give for both (600, 900, 900, 400, 1800 GB/s).
NVLINK_BYTES_PER_S = MappingProxyType({"a100": 300e9, "h100": 450e9, "h200": 450e9, "h800": 200e9, "b200": 900e9})


def hbm_fitted(calibration: CalibrationSpec) -> dict[str, float]:
    """``latency`` (ns) and ``efficiency``, as far as they were measured."""
    found = {}
    for table in calibration.hbm:
        if isinstance(table, ScalarTable) and table.of.get("level") == "hbm":
            if table.of.get("quantity") == "latency_ns":
                found["latency"] = table.value
            elif (table.of.get("op"), table.of.get("quantity")) == ("read", "efficiency"):
                found["efficiency"] = min(table.value, 1.0)
    return found


def link_fitted(calibration: CalibrationSpec) -> dict[str, float]:
    """``hop_latency`` (ns) and ``efficiency``; empty where there is no law over those sizes, or no nominal rate."""
    small, large = SLICES_BYTES
    laws = [
        table
        for table in calibration.p2p
        if isinstance(table, TransferTable) and table.of.get("placement", "intra_node") == "intra_node"
        if table.library not in NO_LAW and table.of.get("direction") == "uni" and table.first_bytes <= small and table.last_bytes >= large
    ]
    nominal = NVLINK_BYTES_PER_S.get(calibration.gpu)
    if not laws or nominal is None:
        return {}
    law = min(laws, key=lambda table: (table.of.get("method") != "ce", -table.residuals.points))
    ns_per_byte = (time_ns(law, large) - time_ns(law, small)) / (large - small)
    latency_ns = max(0.0, time_ns(law, small) - small * ns_per_byte)
    return {"hop_latency": latency_ns, "efficiency": min(NS_PER_S / ns_per_byte / nominal, 1.0)}


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
    written = {key: f"{value:.4g} ns" if key.endswith("latency") else float(f"{value:.4g}") for key, value in values.items()}
    rest = {key: value for key, value in given.items() if key not in ("calibration", "latency_ns", "hop_latency_ns")}
    return rest | written | {"source": f"calibration {name}: {', '.join(written)}"}

"""The memory of a GPU: latency and rates of its levels (``hbm``), and which of them apply to the HBM of a die."""

from typing import NamedTuple

from archsim.laws.choosing import newest_first
from archsim.laws.tables import CalibrationSpec, ScalarTable


class HbmReads(NamedTuple):
    """``latency_ns`` of a dependent load; ``efficiency``: share of the reference's bandwidth that streaming reads
    reach.

    None: not measured.
    """

    latency_ns: float | None
    efficiency: float | None


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

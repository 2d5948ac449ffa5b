"""The path to a host and back: time of a transfer over PCIe, of a launch and of its synchronisation.

A calibration has laws of transfers by size, direction and method (``pcie``, from ``hostpath.csv``) and launch costs
(``launch``, from ``launch.csv``). A decision sends small messages, 1 KiB to 1 MiB (demand of all dies, plan,
``cp_en`` bits), so each law is reduced to the line through its smallest size and 1 MiB: latency + bytes / bandwidth.
Each decision crosses once in both directions; their latencies and times per byte are averaged.
"""

from typing import NamedTuple

from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.laws.tables import CalibrationSpec, ScalarTable, TransferTable, newest
from archsim.laws.transfers import law_of

SMALL_BYTES = 64 * 2**10  # a law that starts above this does not give the latency of small messages
LARGE_BYTES = 2**20
DIRECTIONS = {"d2h": "to the host", "h2d": "from the host"}
STREAM, AND_WAIT = "stream", "launch_to_sync"


class HostPath(NamedTuple):
    """The path to a host and back. None: not in the calibration."""

    pcie_latency_ns: float | None  # of a small message
    pcie_bandwidth_bytes_per_s: float | None  # mean of both directions
    launch_ns: float | None  # of a kernel
    sync_ns: float | None  # of its synchronisation
    source: str  # origin of the fitted values
    missing: dict[str, str]  # name of a parameter → why it is None


def path_of(calibration: CalibrationSpec) -> HostPath:
    """The parameters of the path in ``calibration``."""
    by_direction = {direction: _smallest(calibration, direction) for direction in DIRECTIONS}
    chosen = [table for table in by_direction.values() if table is not None]
    launches = {table.of.get("kind", ""): table for table in calibration.launch}
    missing: dict[str, str] = {}
    latency_ns = bandwidth = launch_ns = sync_ns = None
    if len(chosen) < len(DIRECTIONS):
        there = next(DIRECTIONS[direction] for direction, table in by_direction.items() if table is None)
        missing = dict.fromkeys(("pcie_latency", "pcie_bandwidth"), f"no pinned transfers {there} (hostpath.csv)")
    else:
        lines = [_line(table) for table in chosen]
        bandwidth = NS_PER_S / (sum(ns_per_byte for _, ns_per_byte in lines) / len(lines))
        least = max(table.first_bytes for table in chosen)
        if least <= SMALL_BYTES:
            latency_ns = max(0.0, sum(latency for latency, _ in lines) / len(lines))
        else:
            missing["pcie_latency"] = (
                f"no transfers of at most {SMALL_BYTES // 2**10} KiB (hostpath.csv); the smallest is "
                f"{least / 2**20:g} MiB"
            )
    if STREAM in launches:
        launch_ns = launches[STREAM].value
        sync_ns = max(0.0, launches[AND_WAIT].value - launch_ns) if AND_WAIT in launches else launch_ns
    else:
        known = ", ".join(sorted(launches)) or "nothing"
        missing |= dict.fromkeys(("launch", "sync"), f"no launch on a stream (launch.csv); it has {known}")
    return HostPath(latency_ns, bandwidth, launch_ns, sync_ns, _source(calibration.gpu, chosen, launches), missing)


def _smallest(calibration: CalibrationSpec, direction: str) -> TransferTable | None:
    """One-way pinned transfers from the smallest size: a copy engine's, then the newest version."""
    laws = [
        table
        for table in calibration.pcie
        if isinstance(table, TransferTable)
        and table.of.get("direction") == direction
        and table.of.get("pinned", "1") == "1"
    ]
    if not laws:
        return None
    best = min(laws, key=lambda table: (table.first_bytes, table.of.get("method") != "ce"))
    same = [table for table in laws if (table.library, table.of.get("method")) == (best.library, best.of.get("method"))]
    small = [table for table in same if table.first_bytes <= max(SMALL_BYTES, best.first_bytes)]
    return newest(small)


def _line(table: TransferTable) -> tuple[float, float]:
    """(latency in ns, ns per byte) through the smallest size and LARGE_BYTES, or the largest measured size."""
    small, large = table.first_bytes, min(max(LARGE_BYTES, table.first_bytes), table.last_bytes)
    least_ns, most_ns = (float(law_of(table).time_ns(size)) for size in (small, large))
    if large <= small:
        return 0.0, least_ns / small
    ns_per_byte = (most_ns - least_ns) / (large - small)
    return least_ns - small * ns_per_byte, ns_per_byte


def _source(gpu: str, transfers: list[TransferTable], launches: dict[str, ScalarTable]) -> str:
    found = [
        f"{table.of['direction']} {table.of.get('method', '')} by {table.library}".replace("  ", " ")
        for table in transfers
    ]
    found += [
        f"{kind} launch of {launches[kind].of.get('measured_on', gpu)} by {launches[kind].library}"
        for kind in (STREAM, AND_WAIT)
        if kind in launches
    ]
    return f"calibration {gpu}: {', '.join(found)}"

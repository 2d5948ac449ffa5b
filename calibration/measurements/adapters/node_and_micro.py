"""Summary numbers of server nodes and micro-benchmarks, as tidy CSV.

NVIDIA's nvbandwidth and p2pBandwidthLatencyTest as quoted in public issues, caps-tum/mt4g (Apache-2.0) and
te42kyfo/gpu-benches (GPL-3.0: only what is fitted to it is kept here). Rows of unknown origin are not used, nor is the
occupancy sweep of gpu-benches, which does not state its working set.
"""

import pandas as pd

from calibration.measurements.layouts import frame, layout, translate

ORIGIN_UNKNOWN = ("A", "F")  # source keys of the node file
# Default copy sizes of these tools
TOOL_BYTES = {"p2pBandwidthLatencyTest": 40_000_000.0, "nvbandwidth": 512.0 * 2**20}
COPIES = {"p2p_unidirectional": ("uni", 1), "p2p_bidirectional": ("bi", 2)}  # metric → direction, directions in the sum
HOST_COPIES = {
    "h2d_memcpy_sm": ("h2d", "sm"),
    "d2h_memcpy_sm": ("d2h", "sm"),
    "h2d_memcpy_ce_pinned": ("h2d", "ce"),
    "d2h_memcpy_ce_pinned": ("d2h", "ce"),
}
LAUNCHES = {"stream_launch": "stream", "graph_launch": "graph_node", "persistent_gridsync": "grid_sync"}
LEVELS = {"l1": "l1", "l2": "l2", "dram": "hbm"}


def _endpoints(rows: pd.DataFrame, metrics) -> pd.DataFrame:
    """Bandwidths of known origin, from a tool with a known copy size."""
    known = ~rows["source_key"].isin(ORIGIN_UNKNOWN) & rows["tool"].isin(TOOL_BYTES) & (rows["unit"] == "GB/s")
    return rows[known & rows["metric"].isin(metrics)]


def _who(rows: pd.DataFrame, library: pd.Series | str, version: str = "unknown", run: pd.Series | str = "1") -> dict:
    gpu = rows["system"] if "system" in rows else rows["gpu"]
    return {"run_id": run, "gpu_name": gpu, "library": library, "library_version": version}


def _of_metric(rows: pd.DataFrame, metrics: dict[str, tuple], at: int) -> pd.Series:
    return rows["metric"].map(lambda metric: metrics[metric][at])


def _copies(rows: pd.DataFrame) -> pd.DataFrame:
    rows = _endpoints(rows, COPIES)
    size = rows["tool"].map(TOOL_BYTES)
    return frame(
        rows, **_who(rows, rows["tool"]), placement="intra_node", src="any", dst="any", method="ce",
        direction=_of_metric(rows, COPIES, 0), concurrent_pairs=1.0, bytes=size,
        latency_us_median=size * _of_metric(rows, COPIES, 1) / (rows["mean"] * 1e3),
    )  # fmt: skip


def _host_copies(rows: pd.DataFrame) -> pd.DataFrame:
    rows = _endpoints(rows, HOST_COPIES)
    size = rows["tool"].map(TOOL_BYTES)
    return frame(
        rows, **_who(rows, rows["tool"]), direction=_of_metric(rows, HOST_COPIES, 0), pinned="1",
        method=_of_metric(rows, HOST_COPIES, 1), bytes=size, latency_us_median=size / (rows["mean"] * 1e3),
    )  # fmt: skip


def _launches(rows: pd.DataFrame) -> pd.DataFrame:
    """One run per block size."""
    run = "block-" + rows["block_size"].astype(int).astype(str)
    return frame(
        rows,
        "kernel_bytes=bytes_moved latency_us_median=time_per_kernel_us_derived",
        **_who(rows, "gpu-benches", run=run),
        kind=translate(rows["mode"], LAUNCHES),
    )


def _memory(rows: pd.DataFrame, library, level, op, size, quantity, value) -> pd.DataFrame:
    what = {"level": level, "op": op, "working_set_bytes": size, "quantity": quantity, "value": value}
    return frame(rows, **_who(rows, library), **what)


def _bandwidth(rows: pd.DataFrame) -> pd.DataFrame:
    size, rate = rows["working_set_bytes"], rows["read_gbytes_per_s"]
    return _memory(rows, "gpu-benches", "any", "read", size, "bytes_per_s", rate * 1e9)


def _chase(rows: pd.DataFrame) -> pd.DataFrame:
    size, latency = rows["buffer_bytes"], rows["latency_ns_derived"]
    return _memory(rows, "gpu-benches", "any", "chase", size, "latency_ns", latency)


def _nothing(rows: pd.DataFrame) -> pd.DataFrame:
    return _memory(rows.iloc[:0], "gpu-benches", "any", "read", 1.0, "bytes_per_s", 1.0)


def _mt4g(rows: pd.DataFrame) -> pd.DataFrame:
    """Latencies in cycles of the clock that the report names, bandwidths in GiB/s; working set: the level's size."""
    figures = rows.set_index(["gpu", "level", "quantity"])["value"]
    found = []
    for line, row in rows[rows["level"].isin(LEVELS)].iterrows():
        gpu, level, quantity = row["gpu"], row["level"], row["quantity"]
        size, clock_mhz = figures.get((gpu, level, "size")), figures.get((gpu, "gpu", "clock"))
        if size is None or clock_mhz is None:
            continue
        if quantity == "latency":
            figure = ("chase", "latency_ns", row["value"] / clock_mhz * 1e3)
        elif quantity in ("read_bandwidth", "write_bandwidth"):
            figure = (quantity.removesuffix("_bandwidth"), "bytes_per_s", row["value"] * 2**30)
        else:
            continue
        found.append((line, LEVELS[level], size, *figure))
    found = pd.DataFrame(found, columns=["line", "level", "size", "op", "quantity", "value"]).set_index("line")
    return _memory(
        rows.loc[found.index], "mt4g", found["level"], found["op"], found["size"], found["quantity"], found["value"]
    )


NODE_LAYOUTS = (
    layout("node p2p", "p2p", _copies, "system metric unit tool source_key", "mean"),
    layout("node host path", "hostpath", _host_copies, "system metric unit tool source_key", "mean"),
    layout("gpu-benches launch", "launch", _launches, "gpu mode", "block_size bytes_moved time_per_kernel_us_derived"),
    layout("gpu-benches bandwidth", "memory", _bandwidth, "gpu", "working_set_bytes read_gbytes_per_s"),
    layout("gpu-benches chase", "memory", _chase, "gpu", "clock_mhz buffer_bytes latency_ns_derived"),
    layout(
        "gpu-benches occupancy",
        "memory",
        _nothing,
        "gpu",
        "block_size occupancy_pct read_gbytes_per_s",
        leaves_out="bandwidth over occupancy, which has no table",
    ),
    layout("mt4g", "memory", _mt4g, "gpu level quantity unit", "value"),
)

"""Tables of DeepGEMM's README (deepseek-ai/DeepGEMM, MIT): dense and grouped FP8 products on H800, as tidy CSV."""

import pandas as pd

from calibration.measurements.layouts import FileLayout, frame, layout, renamed

# ---- deepgemm


def _deepgemm_products(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows,
        "dtype groups m=m_per_group n k kernel=kind latency_us_median=latency_us_derived",
        run_id="readme",
        gpu_name="H800",
        library="deepgemm-" + rows["kind"].str.replace("_", "-"),
        library_version="readme",
        quant_included="0",
    )


DEEPGEMM_LAYOUTS = (
    layout("DeepGEMM README", "gemm", _deepgemm_products, "kind dtype", "groups m_per_group n k latency_us_derived"),
)


# ---- xla_gemm
# Batched products of openxla/xla's matmul interpolator (Apache-2.0), as tidy CSV: a batch is a grouped GEMM.
#
# BF16 only: FP8 rows exceed the tensor core peak (2.4 PFLOP/s at 4096^3 on an H100). Weights may stay in the L2.

DTYPES = {"bfloat16": "bf16"}


def _xla_products(rows: pd.DataFrame) -> pd.DataFrame:
    """Batches of two or more; other sources measure single products better, with weights from memory."""
    rows = rows[rows["dtype"].isin(DTYPES) & (rows["batch"] > 1)]
    return frame(
        rows,
        "gpu_name=gpu groups=batch m n k latency_us_median=latency_us_derived",
        run_id="xla",
        library="xla",
        library_version="xla",
        dtype=rows["dtype"].map(DTYPES),
        quant_included="0",
    )


XLA_LAYOUTS = (
    layout(
        "xla matmul",
        "gemm",
        _xla_products,
        "gpu dtype",
        "batch m n k flop_per_s latency_us_derived",
        leaves_out="FP8 rows (above the tensor core peak) and batches of one",
    ),
)


# ---- transfers
# P2P copies and collectives of public sets, as tidy CSV: NCCL in microsoft/vidur (MIT), NCCL in openxla/xla
# (Apache-2.0), nccl-tests and all-reduce kernels in ai-dynamo/aiconfigurator (Apache-2.0).

PLACEMENTS = {"intra_node_nvlink": "intra_node", "intra_node": "intra_node", "inter_node": "inter_node"}
OPERATIONS = {"alltoall": "all_to_all", "all-to-all": "all_to_all"}
PATTERNS = {"one_way_pairs": "uni", "two_way_pairs": "bi", "ring": "ring"}


def repetition(rows: pd.DataFrame) -> pd.Series:
    """Rows of the same point in one file are repetitions: '1', '2', ... in file order."""
    named = [name for name in rows.columns if not name.endswith("_us") and name != "repeat"]
    return (rows.groupby(named, dropna=False, sort=False).cumcount() + 1).astype(str)


def _op(names: pd.Series) -> pd.Series:
    return names.replace(OPERATIONS).str.replace("-", "_")


def _vidur_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Kernel times at a resolution of 1 us."""
    return frame(
        rows,
        _VIDUR_ROWS,
        **_VIDUR,
        placement=renamed(rows["placement"], PLACEMENTS),
        src="0",
        dst="1",
        method="nccl",
        direction="uni",
        concurrent_pairs=1.0,
    )


def _vidur_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(rows, f"{_VIDUR_ROWS} num_gpus", **_VIDUR, op="all_reduce", variant="", nodes=1.0, dtype="")


def _xla_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Eight GPUs of a server node, in pairs or in a ring."""
    rows = rows[rows["op"] == "p2p_send_recv"]
    return frame(
        rows,
        _XLA_ROWS,
        **_XLA,
        placement="intra_node",
        src="any",
        dst="any",
        method="nccl",
        direction=renamed(rows["pattern"], PATTERNS),
        concurrent_pairs=4.0,
    )


def _xla_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["op"] != "p2p_send_recv"]
    ranks = pd.to_numeric(rows["group_size"]).astype(float)
    return frame(rows, _XLA_ROWS, **_XLA, op=_op(rows["op"]), variant="", num_gpus=ranks, nodes=1.0, dtype="")


def _nccl_tests(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows,
        f"{_MESSAGE_ROWS} library_version=nccl_version",
        run_id=repetition(rows),
        library="nccl",
        op=_op(rows["op"]),
        variant="",
        nodes=1.0,
    )


def _all_reduce_kernels(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows,
        f"{_MESSAGE_ROWS} library=framework library_version=framework_version variant",
        run_id=repetition(rows),
        op="all_reduce",
        nodes=1.0,
    )


_VIDUR = {"run_id": "vidur", "library": "nccl", "library_version": "vidur"}
_VIDUR_ROWS = "gpu_name=system bytes=message_bytes latency_us_median=median_us"
_XLA = {"run_id": "xla", "library": "nccl-xla", "library_version": "xla"}
_XLA_ROWS = "gpu_name=gpu bytes=tensor_bytes latency_us_median=latency_us_derived"
_XLA_COLUMNS = ("gpu op pattern group_size", "tensor_bytes throughput_bytes_per_s latency_us_derived")
_MESSAGE = "num_gpus message_bytes latency_us"
_MESSAGE_ROWS = "gpu_name=gpu num_gpus bytes=message_bytes dtype latency_us_median=latency_us"
TRANSFER_LAYOUTS = (
    layout("vidur send_recv", "p2p", _vidur_copies, "system placement", "message_bytes median_us"),
    layout("vidur all_reduce", "collective", _vidur_all_reduce, "system", "num_gpus message_bytes median_us"),
    layout("xla send_recv", "p2p", _xla_copies, *_XLA_COLUMNS),
    layout("xla collectives", "collective", _xla_collectives, *_XLA_COLUMNS),
    layout("nccl-tests", "collective", _nccl_tests, "gpu nccl_version op dtype", _MESSAGE),
    layout(
        "all-reduce kernels",
        "collective",
        _all_reduce_kernels,
        "gpu framework framework_version variant dtype",
        _MESSAGE,
    ),
)


# ---- node_and_micro
# Summary numbers of server nodes and micro-benchmarks, as tidy CSV: NVIDIA's nvbandwidth and p2pBandwidthLatencyTest
# as quoted in public issues, caps-tum/mt4g (Apache-2.0) and te42kyfo/gpu-benches (GPL-3.0: only what is fitted to it is
# kept here).
#
# Rows of unknown origin are not used, nor is the occupancy sweep of gpu-benches, which does not state its working set.

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
        rows,
        **_who(rows, rows["tool"]),
        placement="intra_node",
        src="any",
        dst="any",
        method="ce",
        direction=_of_metric(rows, COPIES, 0),
        concurrent_pairs=1.0,
        bytes=size,
        latency_us_median=size * _of_metric(rows, COPIES, 1) / (rows["mean"] * 1e3),
    )


def _host_copies(rows: pd.DataFrame) -> pd.DataFrame:
    rows = _endpoints(rows, HOST_COPIES)
    size = rows["tool"].map(TOOL_BYTES)
    return frame(
        rows,
        **_who(rows, rows["tool"]),
        direction=_of_metric(rows, HOST_COPIES, 0),
        pinned="1",
        method=_of_metric(rows, HOST_COPIES, 1),
        bytes=size,
        latency_us_median=size / (rows["mean"] * 1e3),
    )


def _launches(rows: pd.DataFrame) -> pd.DataFrame:
    """One run per block size."""
    run = "block-" + rows["block_size"].astype(int).astype(str)
    return frame(
        rows,
        "kernel_bytes=bytes_moved latency_us_median=time_per_kernel_us_derived",
        **_who(rows, "gpu-benches", run=run),
        kind=renamed(rows["mode"], LAUNCHES),
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


# ---- not_fitted
# Public layouts that are recognised but not read, each with the reason: no law takes them, or no times.

# ruff: noqa: E501  (one row a layout: a table is read across)


ATTENTION = "attention of prompts and decodes in one kernel; tables have each apart"
NO_TIMES = "model sizes without times"
OPERATORS = "single operators of an MoE layer; laws cover whole layers, or the experts after a dispatch"
SERVING = "layers of one serving engine, from a profiler; not fitted yet"


def _never(rows: pd.DataFrame) -> pd.DataFrame:
    raise AssertionError("files of this layout are skipped")


def _skipped(name: str, columns: str, why: str) -> FileLayout:
    return layout(name, "", _never, columns, "", skip=why)


NOT_FITTED_LAYOUTS = (
    _skipped("LLMServingSim attention", "profile prefill_chunk kv_prefill n_decode kv_decode latency_us", ATTENTION),
    _skipped(
        "LLMServingSim mixed context", "regime n_decode n_decode_long kv_short kv_long latency_skewed_us", ATTENTION
    ),
    _skipped("LLMServingSim dense layers", "profile layer tokens latency_us", SERVING),
    _skipped("LLMServingSim layers of sequences", "profile layer sequences latency_us", SERVING),
    _skipped("LLMServingSim MoE", "profile tokens activated_experts latency_us", SERVING),
    _skipped(
        "Frontier MoE",
        "gpu model measurement experts_on_rank ep tp num_tokens shuffling_median_us grouped_gemm_median_us",
        OPERATORS,
    ),
    _skipped(
        "DeepEP README",
        "gpu kernel scope ep tokens_per_rank phase dtype latency_us bottleneck",
        "one size for each number of ranks; a law needs several",
    ),
    _skipped(
        "aiconfigurator GEMM grid of three engines",
        "gpu dtype n k m latency_us_sglang_0_5_10 latency_us_vllm_0_14_0 latency_us_trtllm_1_0_0",
        "a GEMM grid of three engines; fitting it would change the GEMM times of A100 systems, so it waits for a "
        "release that may do so",
    ),
    _skipped("dense shapes", "model projection tp n k on_grid", NO_TIMES),
    _skipped("expert shapes", "model projection n k in_dataset", NO_TIMES),
    _skipped("sizes of models", "model hidden_size inter_size topk num_experts", NO_TIMES),
)

"""P2P copies and collectives of public sets, as tidy CSV: NCCL in microsoft/vidur (MIT), NCCL in openxla/xla
(Apache-2.0), nccl-tests and all-reduce kernels in ai-dynamo/aiconfigurator (Apache-2.0)."""

import pandas as pd

from calibration.measurements.layouts import Layout

PLACEMENTS = {"intra_node_nvlink": "intra_node", "intra_node": "intra_node", "inter_node": "inter_node"}
OPERATIONS = {"alltoall": "all_to_all", "all-to-all": "all_to_all"}
PATTERNS = {"one_way_pairs": "uni", "two_way_pairs": "bi", "ring": "ring"}


def _frame(rows: pd.DataFrame, **columns) -> pd.DataFrame:
    return pd.DataFrame(columns, index=rows.index)


def repetition(rows: pd.DataFrame) -> pd.Series:
    """Rows of the same point in one file are repetitions: '1', '2', ... in file order."""
    named = [name for name in rows.columns if not name.endswith("_us") and name != "repeat"]
    return (rows.groupby(named, dropna=False, sort=False).cumcount() + 1).astype(str)


def _op(names: pd.Series) -> pd.Series:
    return names.replace(OPERATIONS).str.replace("-", "_")


def _vidur_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Kernel times at a resolution of 1 us."""
    return _frame(
        rows,
        run_id="vidur",
        gpu_name=rows["system"],
        library="nccl",
        library_version="vidur",
        placement=rows["placement"].map(PLACEMENTS).fillna(rows["placement"]),
        src="0",
        dst="1",
        method="nccl",
        direction="uni",
        concurrent_pairs=1.0,
        bytes=rows["message_bytes"],
        latency_us_median=rows["median_us"],
    )


def _vidur_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    return _frame(
        rows, run_id="vidur", gpu_name=rows["system"], library="nccl", library_version="vidur", op="all_reduce",
        variant="", num_gpus=rows["num_gpus"], nodes=1.0, bytes=rows["message_bytes"], dtype="",
        latency_us_median=rows["median_us"],
    )


def _xla_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Eight GPUs of a server node, in pairs or in a ring."""
    rows = rows[rows["op"] == "p2p_send_recv"]
    return _frame(
        rows,
        run_id="xla",
        gpu_name=rows["gpu"],
        library="nccl-xla",
        library_version="xla",
        placement="intra_node",
        src="any",
        dst="any",
        method="nccl",
        direction=rows["pattern"].map(PATTERNS).fillna(rows["pattern"]),
        concurrent_pairs=4.0,
        bytes=rows["tensor_bytes"],
        latency_us_median=rows["latency_us_derived"],
    )


def _xla_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["op"] != "p2p_send_recv"]
    return _frame(
        rows,
        run_id="xla",
        gpu_name=rows["gpu"],
        library="nccl-xla",
        library_version="xla",
        op=_op(rows["op"]),
        variant="",
        num_gpus=pd.to_numeric(rows["group_size"]).astype(float),
        nodes=1.0,
        bytes=rows["tensor_bytes"],
        dtype="",
        latency_us_median=rows["latency_us_derived"],
    )


def _nccl_tests(rows: pd.DataFrame) -> pd.DataFrame:
    return _frame(
        rows, run_id=repetition(rows), gpu_name=rows["gpu"], library="nccl", library_version=rows["nccl_version"],
        op=_op(rows["op"]), variant="", num_gpus=rows["num_gpus"], nodes=1.0, bytes=rows["message_bytes"],
        dtype=rows["dtype"], latency_us_median=rows["latency_us"],
    )


def _all_reduce_kernels(rows: pd.DataFrame) -> pd.DataFrame:
    return _frame(
        rows, run_id=repetition(rows), gpu_name=rows["gpu"], library=rows["framework"],
        library_version=rows["framework_version"], op="all_reduce", variant=rows["variant"], num_gpus=rows["num_gpus"],
        nodes=1.0, bytes=rows["message_bytes"], dtype=rows["dtype"], latency_us_median=rows["latency_us"],
    )


_XLA = ("gpu", "op", "pattern", "group_size", "tensor_bytes", "throughput_bytes_per_s", "latency_us_derived")
_XLA_FIGURES = ("tensor_bytes", "throughput_bytes_per_s", "latency_us_derived")
_MESSAGE = ("num_gpus", "message_bytes", "latency_us")
LAYOUTS = (
    Layout(
        "vidur send_recv",
        "p2p",
        ("system", "placement", "message_bytes", "median_us"),
        ("message_bytes", "median_us"),
        _vidur_copies,
    ),
    Layout(
        "vidur all_reduce",
        "collective",
        ("system", "num_gpus", "message_bytes", "median_us"),
        ("num_gpus", "message_bytes", "median_us"),
        _vidur_all_reduce,
    ),
    Layout("xla send_recv", "p2p", _XLA, _XLA_FIGURES, _xla_copies),
    Layout("xla collectives", "collective", _XLA, _XLA_FIGURES, _xla_collectives),
    Layout("nccl-tests", "collective", ("gpu", "nccl_version", "op", "dtype", *_MESSAGE), _MESSAGE, _nccl_tests),
    Layout(
        "all-reduce kernels",
        "collective",
        ("gpu", "framework", "framework_version", "variant", "dtype", *_MESSAGE),
        _MESSAGE,
        _all_reduce_kernels,
    ),
)

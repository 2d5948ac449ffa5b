"""P2P copies and collectives of public sets, as tidy CSV: NCCL in microsoft/vidur (MIT), NCCL in openxla/xla
(Apache-2.0), nccl-tests and all-reduce kernels in ai-dynamo/aiconfigurator (Apache-2.0).
"""

import pandas as pd

from calibration.measurements.layouts import frame, layout, translate

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
        rows, _VIDUR_ROWS, **_VIDUR, placement=translate(rows["placement"], PLACEMENTS), src="0", dst="1",
        method="nccl", direction="uni", concurrent_pairs=1.0,
    )  # fmt: skip


def _vidur_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(rows, f"{_VIDUR_ROWS} num_gpus", **_VIDUR, op="all_reduce", variant="", nodes=1.0, dtype="")


def _xla_copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Eight GPUs of a server node, in pairs or in a ring."""
    rows = rows[rows["op"] == "p2p_send_recv"]
    return frame(
        rows, _XLA_ROWS, **_XLA, placement="intra_node", src="any", dst="any", method="nccl",
        direction=translate(rows["pattern"], PATTERNS), concurrent_pairs=4.0,
    )  # fmt: skip


def _xla_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["op"] != "p2p_send_recv"]
    ranks = pd.to_numeric(rows["group_size"]).astype(float)
    return frame(rows, _XLA_ROWS, **_XLA, op=_op(rows["op"]), variant="", num_gpus=ranks, nodes=1.0, dtype="")


def _nccl_tests(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows, f"{_MESSAGE_ROWS} library_version=nccl_version", run_id=repetition(rows), library="nccl",
        op=_op(rows["op"]), variant="", nodes=1.0,
    )  # fmt: skip


def _all_reduce_kernels(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows, f"{_MESSAGE_ROWS} library=framework library_version=framework_version variant", run_id=repetition(rows),
        op="all_reduce", nodes=1.0,
    )  # fmt: skip


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

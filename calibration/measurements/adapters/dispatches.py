"""Dispatch and combine of MoE libraries in ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: DeepEP within a node and
between nodes, and TensorRT-LLM's all-to-all within an NVL72.

``bytes`` is what one rank sends if every expert of a token is on another rank
(``archsim.laws.transfers.sent_bytes``).
"""

import pandas as pd

from archsim.laws.transfers import COMBINE, COMBINE_LOW_PRECISION, DISPATCH, NOTIFY_OF, PAYLOAD_OF, PREPARE, sent_bytes
from calibration.measurements.adapters.transfers import repetition
from calibration.measurements.layouts import frame, layout

# DeepEP builds that sglang ships; not in a column (README of the tidy set).
WITHIN_A_NODE, BETWEEN_NODES = "sglang-0.5.12", "sglang-0.5.6.post2"
ALL_TO_ALL_VERSION = "1.3.0rc10"  # TensorRT-LLM, likewise
ALL_TO_ALL = {
    "alltoall_prepare": PREPARE,
    "alltoall_dispatch": DISPATCH,
    "alltoall_combine": COMBINE,
    "alltoall_combine_low_precision": COMBINE_LOW_PRECISION,
}
KERNELS = {"NVLinkOneSided": "nvlink_one_sided", "NVLinkTwoSided": "nvlink_two_sided"}
DISPATCH_DTYPES = {"bfloat16": "bf16"}


def _phases(rows: pd.DataFrame, version: str, variant: str, latency_us: dict[str, pd.Series]) -> pd.DataFrame:
    """Rows of every operation; ``latency_us``: operation → its times."""
    sms = rows["comm_sms"] if "comm_sms" in rows else float("nan")
    found = [
        frame(
            rows,
            f"{_ROWS} num_gpus tokens_per_rank",
            run_id=repetition(rows),
            library="deepep",
            library_version=version,
            op=op,
            variant=variant,
            nodes=rows["nodes"] if "nodes" in rows else 1.0,
            bytes=sent_bytes(PAYLOAD_OF[op], rows["tokens_per_rank"], rows["topk"], rows["hidden_size"]).round(),
            dtype=PAYLOAD_OF[op],
            sms=sms,
            latency_us_median=times,
        )
        for op, times in latency_us.items()
    ]
    return pd.concat(found)


def _within_a_node(rows: pd.DataFrame) -> pd.DataFrame:
    variant = "normal" if "comm_sms" in rows else "low_latency"
    return _phases(rows, WITHIN_A_NODE, variant, {op: rows[f"{op}_us"] for op in (DISPATCH, COMBINE)})


def _low_latency_between(rows: pd.DataFrame) -> pd.DataFrame:
    return _phases(rows, BETWEEN_NODES, "low_latency", {op: rows[f"{op}_us"] for op in (DISPATCH, COMBINE)})


def _normal_between(rows: pd.DataFrame) -> pd.DataFrame:
    """Exchange of hidden vectors (transmit) and, apart from it, of counts (notify), which one node does not have."""
    sent = _phases(rows, BETWEEN_NODES, "normal", {op: rows[f"{op}_transmit_us"] for op in (DISPATCH, COMBINE)})
    several = rows[rows["nodes"] > 1]
    notified = {NOTIFY_OF[op]: several[f"{op}_notify_us"] for op in (DISPATCH, COMBINE)}
    return pd.concat([sent, _phases(several, BETWEEN_NODES, "normal", notified)])


def _all_to_all(rows: pd.DataFrame) -> pd.DataFrame:
    """Tokens are per rank. Only dispatch and low-precision combine send the layer's dtype; others are repetitions."""
    op = rows["op"].map(ALL_TO_ALL).fillna(rows["op"])
    layer = rows["dtype"].replace(DISPATCH_DTYPES)
    sent = layer.where(op.isin([DISPATCH, COMBINE_LOW_PRECISION]), PAYLOAD_OF[COMBINE])
    sizes = [
        sent_bytes(dtype, *row)
        for dtype, row in zip(sent, rows[["num_tokens", "topk", "hidden_size"]].to_numpy(), strict=True)
    ]
    return frame(
        rows, f"{_ROWS} num_gpus=ep tokens_per_rank=num_tokens latency_us_median=latency_us", run_id=layer,
        library="trtllm", library_version=ALL_TO_ALL_VERSION, op=op, variant=rows["kernel_source"].replace(KERNELS),
        nodes=1.0, bytes=pd.Series(sizes, index=rows.index, dtype=float).round(), dtype=sent,
    )  # fmt: skip


_ROWS = "gpu_name=gpu hidden=hidden_size top_k=topk experts=num_experts"
_LAYER = "num_gpus hidden_size topk num_experts tokens_per_rank"
_WHOLE = f"{_LAYER} dispatch_us combine_us"
_PARTS = "nodes comm_sms dispatch_transmit_us dispatch_notify_us combine_transmit_us combine_notify_us"
DISPATCH_LAYOUTS = (
    layout("DeepEP low latency", "collective", _within_a_node, "gpu", _WHOLE),
    layout("DeepEP normal", "collective", _within_a_node, "gpu", f"comm_sms {_WHOLE}"),
    layout("DeepEP low latency between nodes", "collective", _low_latency_between, "gpu", f"nodes {_WHOLE}"),
    layout("DeepEP normal between nodes", "collective", _normal_between, "gpu", f"{_LAYER} {_PARTS}"),
    layout(
        "TensorRT-LLM all-to-all",
        "collective",
        _all_to_all,
        "gpu op kernel_source dtype distribution",
        "hidden_size topk num_experts ep num_tokens latency_us",
    ),
)

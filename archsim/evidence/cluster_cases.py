"""Dispatch and combine as the engine takes them, by the bytes of a port, against every measured number of ranks and
nodes, or against what stands in for them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_US, VECTOR_BYTES
from archsim.engine import moves
from archsim.engine.cluster import between_nodes, laws
from archsim.laws import calibration_files, tables, transfers
from calibration.measurements import reading

GROUP = ["op", "variant", "library", "library_version", "num_gpus", "nodes", "hidden", "top_k", "experts"]


class TransferCase(NamedTuple):
    """One kernel on some ranks and nodes. ``tokens``, ``us``: float64[size], with notify; ``error``: predicted /
    measured - 1, None where no law covers it.
    """

    of: dict[str, str | int]
    tokens: np.ndarray
    us: np.ndarray
    error: np.ndarray | None


def transfer_cases(name: str, measurements: reading.Measurements, gpu: str) -> Iterator[TransferCase]:
    """Every kernel measured on a GPU, with its default payload and most SMs; ``name``: of the calibration."""
    rows = measurements.table("collective", gpu)
    rows = rows[
        rows["op"].isin([transfers.DISPATCH, transfers.COMBINE])
        & (rows["dtype"] == rows["op"].map(transfers.PAYLOAD_OF))
    ]
    whole = measurements.table("collective", gpu)
    rows = rows.assign(nodes=rows["nodes"].astype(float).fillna(1.0))
    for key, mine in rows.groupby(GROUP, sort=True):
        of = dict(zip(GROUP, key, strict=True)) | {
            each: int(value) for each, value in zip(GROUP[4:], key[4:], strict=True)
        }
        most = mine["sms"].astype(float).max()
        mine = mine if np.isnan(most) else mine[mine["sms"].astype(float) == most]
        times = mine.groupby(mine["tokens_per_rank"].astype(float))["latency_us_median"].median()
        tokens, us = times.index.to_numpy(float), times.to_numpy(float) + _notify_us(whole, of, most)
        law = _law(name, of)
        predicted = None if law is None else (law.fixed_ns + law.busy(tokens * _token_bytes(of))) / NS_PER_US
        yield TransferCase(of, tokens, us, None if predicted is None else predicted / us - 1)


def _notify_us(rows: pd.DataFrame, of: dict, sms: float) -> float:
    """The median notify of the same number of nodes; 0 where none was measured."""
    notified = rows[(rows["op"] == transfers.NOTIFY_OF[of["op"]]) & (rows["variant"] == of["variant"])]
    notified = notified[(notified["nodes"].astype(float) == of["nodes"]) & (notified["sms"].astype(float) == sms)]
    return float(notified["latency_us_median"].astype(float).median()) if len(notified) else 0.0


def _way(of: dict) -> tuple[str, str] | None:
    """(dispatch, library) that takes a kernel."""
    found = (
        (dispatch, library)
        for dispatch, kernel in laws.KERNELS.items()
        for library, variant in kernel.names.items()
        if variant == of["variant"]
    )
    return next(found, None)


def _law(name: str, of: dict) -> laws.PortLaw | None:
    way = _way(of)
    if way is None:
        return None
    shape, digest = (of["hidden"], of["top_k"], of["experts"]), calibration_files.calibration_digest(name)
    try:
        if of["nodes"] == 1:
            return laws.node_law(name, digest, of["op"], *way, shape, of["num_gpus"])
        return between_nodes.between_law(name, digest, of["op"], *way, shape, of["nodes"])
    except tables.LawMissing:
        return None


def _token_bytes(of: dict) -> float:
    """Bytes that pass a port (between nodes: a NIC) for every token of a rank, all experts equally popular."""
    nodes, ranks = of["nodes"], of["num_gpus"]
    way = _way(of)
    once = way is not None and laws.KERNELS[way[0]].once
    vector_bytes = of["hidden"] * VECTOR_BYTES[transfers.PAYLOAD_OF[of["op"]]]
    if nodes > 1:
        away = transfers.nodes_away(nodes, of["top_k"], of["experts"]) if once else of["top_k"] * (nodes - 1) / nodes
        return vector_bytes * away
    vectors = moves.expected_ranks(moves.Sizes(of["experts"], of["top_k"]), ranks) if once else of["top_k"]
    return vector_bytes * vectors * (ranks - 1) / ranks

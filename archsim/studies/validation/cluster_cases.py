"""Dispatch and combine as the engine takes them, by the bytes of a port, against every measured number of ranks and
nodes: those without a table of their own are judged by what stands in for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.dtypes import VECTOR_BYTES
from archsim.base.units import NS_PER_US
from archsim.engine.cluster.between_nodes import between_law
from archsim.engine.cluster.port_laws import KERNELS, PortLaw, node_law
from archsim.engine.hidden import Sizes, expected_ranks
from archsim.laws.choosing import LawMissing
from archsim.laws.collective import COMBINE, DISPATCH, NOTIFY_OF, PAYLOAD_OF, nodes_away
from archsim.specs.loading.calibrations import calibration_digest
from calibration.measurements.reading import Measurements

GROUP = ["op", "variant", "library", "library_version", "num_gpus", "nodes", "hidden", "top_k", "experts"]


class Moved(NamedTuple):
    """One kernel on some ranks and nodes. ``tokens``, ``us``: float64[size], a notify included; ``error``: predicted /
    measured - 1, None where no law covers it.
    """

    of: dict[str, str | int]
    tokens: np.ndarray
    us: np.ndarray
    error: np.ndarray | None


def moved(name: str, measurements: Measurements, gpu: str) -> Iterator[Moved]:
    """Every kernel measured on a GPU, with its default payload and most SMs; ``name``: of the calibration."""
    rows = measurements.table("collective", gpu)
    rows = rows[rows["op"].isin([DISPATCH, COMBINE]) & (rows["dtype"] == rows["op"].map(PAYLOAD_OF))]
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
        yield Moved(of, tokens, us, None if predicted is None else predicted / us - 1)


def _notify_us(rows: pd.DataFrame, of: dict, sms: float) -> float:
    """The median notify of the same number of nodes; 0 where none was measured."""
    told = rows[(rows["op"] == NOTIFY_OF[of["op"]]) & (rows["variant"] == of["variant"])]
    told = told[(told["nodes"].astype(float) == of["nodes"]) & (told["sms"].astype(float) == sms)]
    return float(told["latency_us_median"].astype(float).median()) if len(told) else 0.0


def _way(of: dict) -> tuple[str, str] | None:
    """(dispatch, library) that takes a kernel."""
    found = (
        (dispatch, library)
        for dispatch, kernel in KERNELS.items()
        for library, variant in kernel.names.items()
        if variant == of["variant"]
    )
    return next(found, None)


def _law(name: str, of: dict) -> PortLaw | None:
    way = _way(of)
    if way is None:
        return None
    shape, digest = (of["hidden"], of["top_k"], of["experts"]), calibration_digest(name)
    try:
        if of["nodes"] == 1:
            return node_law(name, digest, of["op"], *way, shape, of["num_gpus"])
        return between_law(name, digest, of["op"], *way, shape, of["nodes"])
    except LawMissing:
        return None


def _token_bytes(of: dict) -> float:
    """Bytes that pass a port (between nodes: a NIC) for every token of a rank, all experts equally popular."""
    nodes, ranks = of["nodes"], of["num_gpus"]
    way = _way(of)
    once = way is not None and KERNELS[way[0]].once
    vector_bytes = of["hidden"] * VECTOR_BYTES[PAYLOAD_OF[of["op"]]]
    if nodes > 1:
        away = nodes_away(nodes, of["top_k"], of["experts"]) if once else of["top_k"] * (nodes - 1) / nodes
        return vector_bytes * away
    vectors = expected_ranks(Sizes(of["experts"], of["top_k"]), ranks) if once else of["top_k"]
    return vector_bytes * vectors * (ranks - 1) / ranks

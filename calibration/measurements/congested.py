"""DeepEP's normal kernels between nodes, where a network was congested: rows that contradict those of fewer nodes.

A NIC passes the same bytes in about the same time whatever the number of nodes. DeepEP's own table
(deepseek-ai/DeepEP, docs/legacy.md: 4,096 tokens a rank, one NIC of 400 Gb/s each, 58 GB/s on 4 nodes and 51 on 8,
which count what stays in a node) comes to PUBLISHED_BYTES_PER_S past a NIC; public rows of 2 nodes reach 40 to 44
GB/s, those of 8 nodes 16. A notify passes counts, whose number does not depend on the tokens: what takes longer waits
for a rank that is late.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.laws.transfers import COMBINE, DISPATCH, NOTIFY_OF, nodes_away
from calibration.measurements.schema import MeasurementProblem

# 4,096 tokens x 2.70 nodes away x 7,392 B in 1.88 ms (4 nodes); 3.15 in 2.14 ms (8 nodes)
PUBLISHED_BYTES_PER_S = 44e9
MOST_SLOWER = 1.5  # than the fewest nodes at equal bytes of a NIC, and than the published rate
FEW_TOKENS = 8  # up to which a time is a fixed cost
MOST_NOTIFY = 2.0  # times the shortest of a number of nodes
_SERIES = ["gpu", "library", "library_version", "variant", "sms", "hidden", "top_k", "experts", "dtype"]


def without_congested(rows: pd.DataFrame, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """Rows of collectives without those that a congested network slowed; each of these is a problem (quarantined)."""
    between = rows[(rows["variant"] == "normal") & (rows["nodes"].astype(float) > 1)]
    bad = np.zeros(len(rows), bool)
    for at, reason in [*_slow_vectors(between), *_late_notifies(between)]:
        problems.append(MeasurementProblem(rows["file"][at], int(rows["line"][at]), reason))
        bad[at] = True
    return rows[~bad].reset_index(drop=True)


def _slow_vectors(rows: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(row, why) of vectors that take longer than on the fewest nodes, at equal bytes of a NIC."""
    sent = rows[rows["op"].isin([DISPATCH, COMBINE])]
    for (op, *_), series in sent.groupby(["op", *_SERIES], dropna=False, sort=True):
        by_nodes = {nodes: _of_nodes(each) for nodes, each in series.groupby(series["nodes"].astype(float))}
        fewest = min(by_nodes)
        base_bytes, _, base_busy, _ = by_nodes.pop(fewest)
        for nodes, (n_bytes, fixed, busy, at) in by_nodes.items():
            usual = np.interp(n_bytes, base_bytes, base_busy)
            slow = busy > MOST_SLOWER * np.maximum(usual, n_bytes / PUBLISHED_BYTES_PER_S * 1e6)
            for row in np.flatnonzero(slow):
                yield (
                    int(at[row]),
                    f"{op} on {nodes:g} nodes: {busy[row]:,.0f} us beyond the {fixed:,.0f} us of few tokens, "
                    f"{n_bytes[row] / busy[row] / 1e3:.0f} GB/s a NIC, where {fewest:g} nodes take "
                    f"{usual[row]:,.0f} us for these bytes, and DeepEP's own table has "
                    f"{PUBLISHED_BYTES_PER_S / 1e9:g} GB/s: congested",
                )


def _of_nodes(rows: pd.DataFrame) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """(bytes of a NIC, fixed us, us beyond it, rows), by rising bytes."""
    rows = rows.assign(tokens=rows["tokens_per_rank"].astype(float)).sort_values("tokens")
    nodes, top_k, experts = (int(rows[name].iloc[0]) for name in ("nodes", "top_k", "experts"))
    share = nodes_away(nodes, top_k, experts) / top_k
    us = rows["latency_us_median"].astype(float)
    fixed = float(us[rows["tokens"] <= FEW_TOKENS].median()) if (rows["tokens"] <= FEW_TOKENS).any() else us.iloc[0]
    return (rows["bytes"] * share).to_numpy(float), fixed, np.maximum(us - fixed, 0.0).to_numpy(), rows.index.to_numpy()


def _late_notifies(rows: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(row, why) of notifies that wait."""
    notifies = rows[rows["op"].isin(NOTIFY_OF.values())]
    for (op, nodes, *_), series in notifies.groupby(["op", "nodes", *_SERIES], dropna=False, sort=True):
        us = series["latency_us_median"].astype(float)
        for at, each in us[us > MOST_NOTIFY * us.min()].items():
            yield (
                int(at),
                f"{op} on {float(nodes):g} nodes: {each:,.0f} us, where the shortest takes {us.min():.0f}: it waits",
            )

"""Transfers (P2P, collectives, dispatch and combine, host path) as laws of ``archsim.laws.transfers``.

Points are grouped into series, in each of which only the size varies; a series has one law. Its held-out error comes
from leaving sizes out in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from archsim.laws import tables, transfers
from calibration.fit.segments import fit_segments

# What distinguishes series, besides the library and its version. Sources, destinations and element types of collectives
# are pooled; the dtype of dispatch and combine is their payload.
SERIES = {
    "p2p": ("placement", "method", "direction", "concurrent_pairs"),
    "collective": ("op", "variant", "num_gpus", "nodes", "sms", "hidden", "top_k", "experts", "dtype"),
    "hostpath": ("direction", "method", "pinned"),
}
LIBRARY = ("library", "library_version")


@dataclass(frozen=True)
class Series:
    """Points of one curve."""

    kind: str  # of measurements: p2p, collective, hostpath, memory
    gpu: str  # short name
    library: str  # that was timed
    version: str  # of the library
    of: dict[str, str]  # what identifies the curve beside it: name → value, as text
    source: str  # names of the files, with blanks between
    sweeps: tuple[str, ...]  # runs, sorted
    size_bytes: np.ndarray  # float64[point]
    time_ns: np.ndarray  # float64[point]

    @property
    def name(self) -> str:
        """All that identifies the series, in one line."""
        of = " ".join(f"{key}={value}" for key, value in self.of.items())
        return f"{self.gpu} {self.library} {self.version} {of}"


def series_of(rows: pd.DataFrame, kind: str) -> Iterator[Series]:
    """The series of a table of measurements, in a fixed order."""
    names = SERIES[kind]
    if kind == "collective":
        of_vectors = rows["op"].isin(list(transfers.PAYLOAD_OF))
        rows = rows.assign(nodes=rows["nodes"].astype(float).fillna(1.0), dtype=rows["dtype"].where(of_vectors, ""))
    for key, points in rows.groupby(["gpu", *LIBRARY, *names], dropna=False, sort=True):
        gpu, library, version, *values = key
        yield Series(
            kind=kind, gpu=gpu, library=library, version=version,
            of={name: _text(value) for name, value in zip(names, values, strict=True) if _text(value)},
            source=" ".join(sorted(set(points["file"]))), sweeps=tuple(sorted(set(points["run_id"]))),
            size_bytes=points["bytes"].to_numpy(np.float64),
            time_ns=points["latency_us_median"].to_numpy(np.float64) * 1e3,
        )  # fmt: skip


def _text(value) -> str:
    """'' for an attribute that a series does not have."""
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:g}"
    return str(value)


def fit_transfers(rows: pd.DataFrame, kind: str) -> tuple[tables.TransferTable, ...]:
    return tuple(transfer_table(series) for series in series_of(rows, kind))


def transfer_table(series: Series) -> tables.TransferTable:
    """The law of a series, with its source."""
    law = fit_segments(series.size_bytes, series.time_ns)
    low, middle, high = law.residual_quantiles
    return tables.TransferTable(
        library=series.library, version=series.version, source=series.source, sweeps=series.sweeps, of=series.of,
        from_bytes=law.from_bytes, latency_ns=law.latency_ns, ns_per_byte=law.ns_per_byte, first_bytes=law.first_bytes,
        last_bytes=law.last_bytes, residuals=tables.ResidualQuantiles(p05=low, p50=middle, p95=high, points=law.points),
        held_out_error=law.held_out_error,
    )  # fmt: skip

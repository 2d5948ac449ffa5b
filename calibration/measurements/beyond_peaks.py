"""Measurements that are faster than their GPU can be (a wrong unit, dtype or shape, or a wrong peak), and memory that
is far slower.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.text.quantities import BANDWIDTH, COMPUTE, format_quantity
from calibration.measurements.checking import Problem
from calibration.measurements.datasheets import DATASHEETS, Nominal, peak_of

TOLERANCE = 1.05  # boost clocks above those of the datasheet's peak
MOST_BEYOND = 0.05  # share of the rows with a known peak, above which a file is refused
LEAST_OF_HBM = 1 / 3  # median share of the bandwidth; public sets reach 0.81 to 0.99
PAST_CACHES_BYTES = 2**30  # working sets of HBM on every known GPU


@dataclass(frozen=True)
class Peaks:
    """Peaks of the user (``named``) for a GPU, None: for all; of other GPUs those of the datasheets."""

    named: Nominal = Nominal()
    gpu: str | None = None

    def flop_per_s(self, gpu: str, dtype: str) -> float | None:
        """None if not known."""
        peaks = DATASHEETS[gpu].peak_flop_per_s if gpu in DATASHEETS else {}
        return peak_of({**peaks, **self._of(gpu).peak_flop_per_s}, dtype)

    def hbm_bytes_per_s(self, gpu: str) -> float | None:
        """None if not known."""
        return self._of(gpu).hbm_bytes_per_s or (DATASHEETS[gpu].hbm_bytes_per_s if gpu in DATASHEETS else None)

    def _of(self, gpu: str) -> Nominal:
        return self.named if self.gpu in (None, gpu) else Nominal()


def within_peaks(kind: str, rows: pd.DataFrame, peaks: Peaks, problems: list[Problem]) -> pd.DataFrame:
    """The rows of one file that are not above the peaks; the others are problems, each for itself, or the file is
    refused if more than MOST_BEYOND of its rows are.

    rows: of the schema's table, with ``gpu``, ``file``, ``line``. Other kinds than those of _SHARES have no peak here.
    """
    if kind not in _SHARES or not len(rows):
        return rows
    share, found = pd.Series(np.nan, index=rows.index), []
    for of_peak, named in _SHARES[kind](rows, peaks, problems):
        share[of_peak.index] = of_peak
        over = of_peak[of_peak > TOLERANCE]
        if len(over):
            found.append((over, f"{len(over):,} of {len(of_peak):,} rows of {named}, up to {over.max():.1f} times"))
    beyond = (share > TOLERANCE).to_numpy()
    if beyond.sum() > MOST_BEYOND * share.notna().sum():
        first = rows[beyond].iloc[0]
        told = "; ".join(reason for _, reason in found)
        problems.append(Problem(first["file"], int(first["line"]), f"{told}: {_ASKED[kind]}", "refused"))
        return rows
    for over, reason in found:
        for at, times in over.items():
            told = f"{times:.1f} times its peak ({reason}): {_ASKED[kind]}"
            problems.append(Problem(rows["file"][at], int(rows["line"][at]), told))
    return rows[~beyond].reset_index(drop=True)


_ASKED = {
    "gemm": "are unit, dtype and shape right, and the peak (--peak)?",
    "moe": "are unit, dtype and sizes right, and the peak (--peak)?",
    "memory": "are unit and working set right, and the bandwidth (--hbm)?",
}


def _gemm_shares(rows: pd.DataFrame, peaks: Peaks, problems: list[Problem]) -> Iterator[tuple[pd.Series, str]]:
    groups, m, n, k = (rows[name].astype(float) for name in ("groups", "m", "n", "k"))
    return _shares_of_flop(rows, 2 * groups * m * n * k, peaks)


def _moe_shares(rows: pd.DataFrame, peaks: Peaks, problems: list[Problem]) -> Iterator[tuple[pd.Series, str]]:
    """Of a rank with its equal part of the pairs; with skewed routing the slowest one has more, after EPLB as many."""
    tokens, top_k, hidden, ffn, ep, tp = (
        rows[name].astype(float) for name in ("tokens_total", "top_k", "hidden", "ffn", "ep", "tp")
    )
    return _shares_of_flop(rows, 6 * tokens * top_k / ep * hidden * ffn / tp, peaks)


def _shares_of_flop(rows: pd.DataFrame, flop: pd.Series, peaks: Peaks) -> Iterator[tuple[pd.Series, str]]:
    for (gpu, dtype), mine in rows.groupby(["gpu", "dtype"], sort=True):
        peak = peaks.flop_per_s(gpu, dtype)
        if peak:
            named = f"{gpu} in {dtype} are faster than its peak of {format_quantity(peak, COMPUTE)}"
            yield 1e6 * flop[mine.index] / mine["latency_us_median"].astype(float) / peak, named


def _memory_shares(rows: pd.DataFrame, peaks: Peaks, problems: list[Problem]) -> Iterator[tuple[pd.Series, str]]:
    of_hbm = (rows["level"] == "hbm") | (
        (rows["level"] == "any") & (rows["working_set_bytes"].astype(float) >= PAST_CACHES_BYTES)
    )
    for (gpu, op), mine in rows[of_hbm & (rows["quantity"] == "bytes_per_s")].groupby(["gpu", "op"], sort=True):
        peak = peaks.hbm_bytes_per_s(gpu)
        if not peak:
            continue
        share, rate = mine["value"].astype(float) / peak, format_quantity(peak, BANDWIDTH)
        if share.median() < LEAST_OF_HBM:
            told = f"HBM of {gpu}: {op} at {share.median():.0%} of its {rate}: was the whole GPU measured, and alone?"
            problems.append(Problem(mine["file"].iloc[0], int(mine["line"].iloc[0]), told, "warning"))
        yield share, f"{gpu}, {op}, are faster than its HBM of {rate}"


_SHARES = MappingProxyType({"gemm": _gemm_shares, "moe": _moe_shares, "memory": _memory_shares})

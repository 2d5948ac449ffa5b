"""Measurements that are faster than their GPU can be (a wrong unit, dtype, shape or column, a kernel that did nothing,
or a wrong peak), and memory that is far slower. A bound is what every algorithm needs: products at the peak, bytes
past the caches at the bandwidth of HBM, and the bytes that must leave or enter a GPU at the rate of its link.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.quantities import BANDWIDTH, COMPUTE, Dimension, format_quantity
from archsim.base.units import WEIGHT_BYTES
from archsim.laws.transfers import COMBINE, COMBINE_LOW_PRECISION, DISPATCH, NVLINK_BYTES_PER_S, nodes_away
from calibration.measurements.datasheets import DATASHEETS, Nominal, peak_of
from calibration.measurements.schema import TABLES, MeasurementProblem

TOLERANCE = 1.05  # boost clocks above those of the datasheet's peak
MOST_BEYOND = 0.05  # share of the rows with a known peak, above which a file is refused
LINKS = ("p2p", "collective", "hostpath")
MOST_BEYOND_LINKS = 0.5  # the same of transfers, of which only large ones could show a wrong unit
LEAST_OF_HBM = 1 / 3  # median share of the bandwidth; public sets reach 0.81 to 0.99
PAST_CACHES_BYTES = 2**30  # working sets of HBM on every known GPU
CACHE_BYTES = 2**28  # the largest last cache of a known GPU: MI300X's Infinity Cache
# What no GPU of 2026 exceeds, for one without a datasheet here: NVIDIA's Rubin (NVFP4, HBM4, NVLink 6, NVLink-C2C).
MOST_FLOP_PER_S, MOST_HBM_BYTES_PER_S, MOST_LINK_BYTES_PER_S, MOST_HOST_BYTES_PER_S = 50e15, 22e12, 1.8e12, 0.9e12
# One direction, of GPUs without NVLink: PCIe x16 (gen 4 has 31.5 GB/s, gen 5 63), the bridge of an H100 PCIe, and seven
# Infinity Fabric links of 64 GB/s (datasheets).
OTHER_LINKS = {"h100-pcie": 300e9, "h100-nvl": 300e9, "l40": 31.5e9, "rtx-pro-6000-server": 63e9, "mi300x": 448e9}
# To the host, one direction: PCIe x16, gen 6 of a B300, and NVLink-C2C of a Grace.
HOSTS = {
    **dict.fromkeys(("a100", "l40"), 31.5e9), "b300": 126e9, **dict.fromkeys(("gb200", "gb300"), 450e9),
    **dict.fromkeys(("h100", "h100-pcie", "h100-nvl", "h200", "h800", "h20", "b200", "mi300x"), 63e9),
    "rtx-pro-6000-server": 63e9,
}  # fmt: skip
# A GPU's port to other nodes: 400 Gb/s; of Blackwell, and of what has no datasheet here, 800 (ConnectX-7, ConnectX-8).
PORTS = dict.fromkeys(("a100", "h100", "h100-pcie", "h200", "h800", "h20", "l40", "mi300x"), 50e9)
MOST_PORT_BYTES_PER_S, PORTS_OF_NODE = 100e9, 8
# Operation -> bytes that leave or enter some GPU of n, as a share of the message. An all-reduce in a ring, or added up
# by the switch (NVLink SHARP: everything leaves a GPU once, and the sum comes back to it).
_SCATTERED = dict.fromkeys(("all_to_all", "all_gather", "reduce_scatter", "gather", "scatter"), lambda n: (n - 1) / n)
_WHOLE = dict.fromkeys(("broadcast", "reduce", "send_recv", "sendrecv"), lambda n: np.where(n > 1, 1.0, 0.0))
DISPATCHED = (DISPATCH, COMBINE, COMBINE_LOW_PRECISION)  # a token goes to every rank with one of its experts once
MUST_PASS = {**_SCATTERED, **_WHOLE, "all_reduce": lambda n: np.minimum(2 * (n - 1) / n, 1 + 1 / n)}


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


class Bound(NamedTuple):
    """What some rows cannot be faster than."""

    needed_us: pd.Series  # float64[row], the least time, by the index of the rows
    who: str  # GPU and dtype or operation, in words
    what: str  # that it is bound by, in words
    peak: float  # rate of ``what``, per second
    dimension: Dimension  # of the rate


def within_peaks(kind: str, rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """The rows of one file that are not above the peaks; the others are problems, each for itself, or the file is
    refused if too many of its rows are (MOST_BEYOND).

    rows: of the schema's table, with ``gpu``, ``file``, ``line``. Other kinds than those of _BOUNDS have no peak here.
    """
    if kind not in _BOUNDS or not len(rows):
        return rows
    index, rows = rows.index, rows.reset_index(drop=True)
    share, found = pd.Series(np.nan, index=rows.index), []
    for bound in _BOUNDS[kind](rows, peaks, problems):
        taken = bound.needed_us / rows.loc[bound.needed_us.index, TABLES[kind].value].astype(float)
        share[taken.index] = np.fmax(share[taken.index], taken)
        over = taken[taken > TOLERANCE]
        if len(over):
            rows_of = f"{len(over):,} of {len(taken):,} rows of {bound.who} are faster than its {bound.what} of "
            peak = f"{format_quantity(bound.peak, bound.dimension)}, up to {over.max():.1f} times"
            found.append((over, bound, rows_of + peak))
    beyond = (share > TOLERANCE).to_numpy()
    if beyond.sum() > (MOST_BEYOND_LINKS if kind in LINKS else MOST_BEYOND) * share.notna().sum():
        first_row = rows[beyond].iloc[0]
        reason = f"{'; '.join(each for _, _, each in found)}: {_ASKED[kind]}"
        problems.append(MeasurementProblem(first_row["file"], int(first_row["line"]), reason, "refused"))
        return rows.set_axis(index)
    for over, bound, reason in found:
        for at, times in over[over == share[over.index]].items():  # of two bounds of a row the stricter one
            rate = format_quantity(float(f"{times * bound.peak:.3g}"), bound.dimension)
            message = f"{rate}, {times:.1f} times its peak ({reason}): {_ASKED[kind]}"
            problems.append(MeasurementProblem(rows["file"][at], int(rows["line"][at]), message))
    return rows.set_axis(index)[~beyond]


_TRANSFERS = "are unit, bytes, operation and ranks right, and did it transfer anything?"
_ASKED = {
    "gemm": "are unit, dtype and shape right, and the peak (--peak, --hbm)?",
    "moe": "are unit, dtype and sizes right, and the peak (--peak, --hbm)?",
    "attention": "are unit, dtype and sizes right, and the peak (--peak, --hbm)?",
    "memory": "are unit and working set right, and the bandwidth (--hbm)?",
    **dict.fromkeys(LINKS, _TRANSFERS),
}


def _numbers(rows: pd.DataFrame, names: str) -> list[pd.Series]:
    return [rows[name].astype(float) for name in names.split()]


def _gemm_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    groups, m, n, k = _numbers(rows, "groups m n k")
    weights = groups * n * k * rows["dtype"].map(WEIGHT_BYTES)
    yield from _of_work(rows, 2 * groups * m * n * k, weights, peaks)


def _moe_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Of a rank with its equal part of the pairs; with skewed routing the slowest one has more, after EPLB as many."""
    tokens, top_k, hidden, ffn, ep, tp = _numbers(rows, "tokens_total top_k hidden ffn ep tp")
    yield from _of_work(rows, 6 * tokens * top_k / ep * hidden * ffn / tp, 0 * tokens, peaks)


def _attention_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Products of grouped queries in prompts; KV of decodes, once, past the caches."""
    batch, tokens, heads, kv_heads, size, window = _numbers(rows, "batch tokens heads kv_heads head_dim window")
    seen = tokens.where(~((window > 0) & (window < tokens)), window)
    pairs = seen * (seen + 1) / 2 + (tokens - seen) * seen
    grouped, decode = rows["kind"] == "gqa", rows["phase"] == "decode"
    flop = 4 * batch * heads * size * pairs * (grouped & ~decode)
    vectors = kv_heads * (1 + grouped) * (decode & (grouped | (rows["kind"] == "mla")))
    yield from _of_work(rows, flop, batch * seen * size * vectors * rows["kv_dtype"].map(WEIGHT_BYTES), peaks)


def _of_work(rows: pd.DataFrame, flop: pd.Series, read: pd.Series, peaks: Peaks) -> Iterator[Bound]:
    """Of products at the peak, and of bytes that are read from HBM, but for those that a cache may hold."""
    for (gpu, dtype), mine in rows.groupby(["gpu", "dtype"], sort=True):
        peak = peaks.flop_per_s(gpu, dtype) or MOST_FLOP_PER_S
        yield Bound(1e6 * flop[mine.index] / peak, f"{gpu} in {dtype}", "peak", peak, COMPUTE)
        rate = peaks.hbm_bytes_per_s(gpu) or MOST_HBM_BYTES_PER_S
        past = (read[mine.index] - CACHE_BYTES).clip(lower=0)
        yield Bound(1e6 * past[past > 0] / rate, f"{gpu} in {dtype}", "HBM", rate, BANDWIDTH)


def _memory_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """The column is a rate: its share of the peak takes the place of a time."""
    of_hbm = (rows["level"] == "hbm") | (
        (rows["level"] == "any") & (rows["working_set_bytes"].astype(float) >= PAST_CACHES_BYTES)
    )
    for (gpu, op), mine in rows[of_hbm & (rows["quantity"] == "bytes_per_s")].groupby(["gpu", "op"], sort=True):
        known, value = peaks.hbm_bytes_per_s(gpu), mine["value"].astype(float)
        peak = known or MOST_HBM_BYTES_PER_S
        if known and value.median() < LEAST_OF_HBM * known:
            message = (
                f"HBM of {gpu}: {op} at {value.median() / peak:.0%} of its {format_quantity(peak, BANDWIDTH)}: was the "
                "whole GPU measured, and alone?"
            )
            problems.append(MeasurementProblem(mine["file"].iloc[0], int(mine["line"].iloc[0]), message, "warning"))
        yield Bound(value**2 / peak, f"{gpu}, {op},", "HBM", peak, BANDWIDTH)


def _copy_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Bytes of one direction of a pair."""
    for (gpu, placement), mine in rows.groupby(["gpu", "placement"], sort=True):
        (size,), rate = _numbers(mine, "bytes"), _link(gpu)
        if placement == "inter_node" and not gpu.startswith("gb"):
            rate = min(rate, PORTS_OF_NODE * PORTS.get(gpu, MOST_PORT_BYTES_PER_S))
        yield Bound(1e6 * size / rate, f"{gpu} ({placement})", "link", rate, BANDWIDTH)


def _collective_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Of every GPU's link, and of its node's ports where ranks span several nodes."""
    for (gpu, op, ranks, nodes), mine in rows.groupby(["gpu", "op", "num_gpus", "nodes"], dropna=False, sort=True):
        n, nodes = float(ranks), max(float(nodes), 1.0) if float(nodes) == float(nodes) else 1.0
        of_node = n / nodes if op in ("all_to_all", *DISPATCHED) else 1.0  # ranks whose messages leave a node
        if op in DISPATCHED:
            mine = mine[(mine["top_k"].astype(float) >= 1) & (mine["experts"].astype(float) >= n)]
            sizes = list(zip(*_numbers(mine, "top_k experts"), strict=True))
            out, across = (np.array([nodes_away(int(of), int(k), int(e)) / k for k, e in sizes]) for of in (n, nodes))
        elif op in MUST_PASS:
            out, across = MUST_PASS[op](n), MUST_PASS[op](nodes)
        else:
            continue
        (size,), who = _numbers(mine, "bytes"), f"{gpu}, {op} of {n:g} ranks,"
        rate, port = _link(gpu), PORTS.get(gpu, MOST_PORT_BYTES_PER_S)
        yield Bound(1e6 * size * out / rate, who, "link", rate, BANDWIDTH)
        if nodes > 1 and not gpu.startswith("gb"):
            us = 1e6 * size * across * of_node / max(n / nodes, PORTS_OF_NODE) / port
            yield Bound(us, who, "port to other nodes", port, BANDWIDTH)


def _host_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    for gpu, mine in rows.groupby("gpu", sort=True):
        (size,), rate = _numbers(mine, "bytes"), HOSTS.get(gpu, MOST_HOST_BYTES_PER_S)
        yield Bound(1e6 * size / rate, str(gpu), "path to the host", rate, BANDWIDTH)


def _link(gpu: str) -> float:
    return NVLINK_BYTES_PER_S.get(gpu) or OTHER_LINKS.get(gpu, MOST_LINK_BYTES_PER_S)


_BOUNDS = MappingProxyType({
    "gemm": _gemm_bounds, "moe": _moe_bounds, "attention": _attention_bounds, "memory": _memory_bounds,
    "p2p": _copy_bounds, "collective": _collective_bounds, "hostpath": _host_bounds,
})  # fmt: skip

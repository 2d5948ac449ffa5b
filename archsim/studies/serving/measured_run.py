"""A measured run of a user: the JSON of ``vllm bench serve``, with its lists or not, of AIPerf, or of InferenceX."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.units import NS_PER_S
from archsim.serving.requests import Requests, without_hashes

NEEDED = ("completed", "mean_ttft_ms", "mean_tpot_ms")
LISTS = ("input_lens", "output_lens", "ttfts")
MS_PER_S = 1e3
# AIPerf's profile_export_aiperf.json: its metrics (docs/metrics-reference.md), whose inter-token latency is a request's
# mean, and so TPOT; statistics of each.
AIPERF = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
AIPERF_STATISTICS = {"avg": "mean", "p50": "median", "p99": "p99"}


class Lists(NamedTuple):
    """Of every request that ended, in the order in which they were sent. ``start_ns``: float64[request] from the first
    one on, None where the file lacks it; ``ttft_ms``, ``tpot_ms``: float64[request], nan where a file has null.
    """

    input: np.ndarray
    output: np.ndarray
    start_ns: np.ndarray | None
    ttft_ms: np.ndarray
    tpot_ms: np.ndarray


class MeasuredRun(NamedTuple):
    """``values``: by the keys of ``vllm bench serve``, in its units; ``gaps``: of its lists; None: unknown."""

    values: dict[str, Any]
    lists: Lists | None
    gaps: int | None = None


def read_measured(path: Path) -> MeasuredRun:
    """Raises TraceError for a file that is of none of the three, or whose lists contradict each other."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: cannot be read as the JSON of `vllm bench serve`: {error}") from None
    if isinstance(found, dict) and isinstance(found.get("time_to_first_token"), dict):
        found = _of_aiperf(found)
    elif isinstance(found, dict) and "mean_ttft" in found and "conc" in found:
        found = _of_inferencex(found)
    lacking = [key for key in NEEDED if not isinstance(found, dict) or not isinstance(found.get(key), int | float)]
    if lacking:
        raise TraceError(
            f"{path}: not of `vllm bench serve`, AIPerf (profile_export_aiperf.json) or InferenceX (agg_*.json): it "
            f"lacks {', '.join(lacking)}"
        )
    itls = found.get("itls")
    several = isinstance(itls, list) and all(isinstance(each, list) for each in itls)
    return MeasuredRun(found, _lists(path, found), sum(map(len, itls)) if several and itls else None)


def _of_aiperf(found: dict[str, Any]) -> dict[str, Any]:
    """Times as its units say."""
    scale = {"ms": 1.0, "s": MS_PER_S, "sec": MS_PER_S, "us": 1 / MS_PER_S, "ns": 1e-6}
    values: dict[str, Any] = {}
    for name, short in AIPERF.items():
        each = found.get(name) or {}
        for statistic, kind in AIPERF_STATISTICS.items():
            if isinstance(each.get(statistic), int | float):
                values[f"{kind}_{short}_ms"] = each[statistic] * scale.get(each.get("unit", "ms"), 1.0)
    for name, key in (
        ("request_count", "completed"), ("request_throughput", "request_throughput"),
        ("output_token_throughput", "output_throughput"), ("benchmark_duration", "duration"),
    ):  # fmt: skip
        each = found.get(name)
        value = each.get("avg") if isinstance(each, dict) else each
        if isinstance(value, int | float):
            values[key] = value
    return values


def _of_inferencex(found: dict[str, Any]) -> dict[str, Any]:
    """Its process_result.py divides the times of ``vllm bench serve`` by 1000, and leaves counts out."""
    values = {
        f"{key}_ms": value * MS_PER_S
        for key, value in found.items()
        if key.rpartition("_")[2] in ("ttft", "tpot", "itl", "e2el") and isinstance(value, int | float)
    }
    return values | {"completed": 10 * int(found["conc"]), "max_concurrency": int(found["conc"])}


def _lists(path: Path, found: dict[str, Any]) -> Lists | None:
    if not all(isinstance(found.get(key), list) and found[key] for key in LISTS):
        return None
    input_lens, output_lens, ttfts = (np.asarray(found[key], float) for key in LISTS)
    if not len(input_lens) == len(output_lens) == len(ttfts):
        raise TraceError(f"{path}: {', '.join(LISTS)} have {len(input_lens)}, {len(output_lens)} and {len(ttfts)} rows")
    itls, starts = found.get("itls"), found.get("start_times")
    if isinstance(itls, list) and len(itls) == len(ttfts):
        # Of tokens, also where a gap is of a chunk of several.
        pairs = zip(itls, output_lens, strict=True)
        tpots = np.array([np.sum(gaps) / max(n - 1, 1) if gaps else np.nan for gaps, n in pairs])
    elif isinstance(found.get("tpots"), list) and len(found["tpots"]) == len(ttfts):
        tpots = np.asarray(found["tpots"], float)
    else:
        tpots = np.full(len(ttfts), np.nan)
    ended = (output_lens > 0) & (input_lens > 0)
    start = np.asarray(starts, float) if isinstance(starts, list) and len(starts) == len(ttfts) else None
    order = np.flatnonzero(ended) if start is None else np.flatnonzero(ended)[np.argsort(start[ended], kind="stable")]
    return Lists(
        input_lens[order].astype(np.int64), output_lens[order].astype(np.int64),
        None if start is None else (start[order] - start[order][0]) * NS_PER_S,
        ttfts[order] * MS_PER_S, tpots[order] * MS_PER_S,
    )  # fmt: skip


def requests_measured(asked: Requests, lists: Lists | None) -> Requests:
    """The requests of a file with the lengths, and the times of arrival where they are known, of those measured."""
    if lists is None:
        return asked
    n = len(lists.input)
    if lists.start_ns is not None and not asked.concurrency:
        return without_hashes(lists.start_ns, lists.input, lists.output)
    if len(asked.input) < n and not asked.concurrency:
        raise TraceError(
            f"{n} requests were measured, the file has {len(asked.input)}, and the measurement lacks start_times: set "
            f"requests.count: {n}"
        )
    arrivals = np.zeros(n) if asked.concurrency else asked.arrival_ns[:n]
    return without_hashes(arrivals, lists.input, lists.output, asked.concurrency)

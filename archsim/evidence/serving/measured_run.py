"""What a load generator measured of one run."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base import evidence, sums, units
from archsim.base.errors import TraceError
from archsim.serving.file_requests import requests_of
from archsim.serving.requests import Requests, without_hashes
from archsim.specs.serving_files import Serving

NEEDED = ("mean_ttft_ms", "mean_tpot_ms")
MOST_MS = 1e12  # thirty years, which a clock that began in 1970 exceeds
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
    """The one run of a file. Raises TraceError for a file of no format, of several runs, or that contradicts itself."""
    runs = [run for row in rows_of(path) for run in runs_of(str(path), row)]
    if len(runs) > 1:
        raise TraceError(
            f"{path}: has {len(runs)} runs; expected one. Give a file of one line or benchmark, or compare all of them "
            "with `archsim calibrate --validate --served`"
        )
    ((where, run),) = runs
    numbers = (number_of(run.values, key) for key in ("mean_ttft_ms", "mean_tpot_ms", "output_throughput", "duration"))
    evidence.refuse_broken(where, claims_of_times(*numbers))
    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a table, objects of JSON lines or a list, or one object. Raises TraceError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if path.suffix.lower() == ".csv":
        rows: list[Any] = list(csv.DictReader(text.splitlines()))
    else:
        try:
            found = json.loads(text)
            rows = found if isinstance(found, list) else [found]
        except json.JSONDecodeError as whole:
            try:
                rows = [json.loads(line) for line in text.splitlines() if line.strip()]
            except json.JSONDecodeError:
                raise TraceError(f"{path}: is no JSON, no JSON lines and no .csv: {whole}") from None
    if not rows or not all(isinstance(each, dict) for each in rows):
        raise TraceError(f"{path}: has no measured run: expected an object, a list of objects, or a table")
    return rows


def runs_of(where: str, row: Mapping[str, Any]) -> list[tuple[str, MeasuredRun]]:
    """(place, run) of a result of a load generator: several of a report of GuideLLM. Raises TraceError."""
    if "benchmarks" not in row:
        return [(where, measured_of(where, dict(row)))]
    return [
        (at, measured_of(at, _of_guidellm(each)))
        for n, each in enumerate(row["benchmarks"], 1)
        for at in [f"{where}, benchmark {n} ({_strategy(each).get('type_') or 'unnamed'})"]
    ]


def measured_of(path: str, found: Any) -> MeasuredRun:
    """What a file holds, as it was read. Raises as ``read_measured``."""
    if isinstance(found, dict) and isinstance(found.get("time_to_first_token"), dict):
        found = _of_aiperf(found)
    elif isinstance(found, dict) and "mean_ttft" in found and "conc" in found:
        found = _of_inferencex(found)
    lacking = [key for key in NEEDED if not isinstance(found, dict) or not isinstance(found.get(key), int | float)]
    if lacking:
        raise TraceError(
            f"{path}: not of `vllm bench serve`, AIPerf (profile_export_aiperf.json), GuideLLM or InferenceX "
            f"(agg_*.json): it lacks {', '.join(lacking)}"
        )
    itls = found.get("itls")
    several = isinstance(itls, list) and all(isinstance(each, list) for each in itls)
    lists = _lists(path, found)
    evidence.refuse_broken(path, (*_claims(found), *_claims_of_lists(found, lists)))
    return MeasuredRun(found, lists, sums.sum(map(len, itls)) if several and itls else None)


LEAST_COMPLETED = 0.95  # of the requests that were sent: times are of those that ended, the load was of all
SAME_RATE = 0.05  # of rates and means that a file has twice; load generators round durations
_TIME = re.compile(r"(mean|median|std|p\d+)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
# Rate, and what is divided by the duration.
_RATES = {
    "request_throughput": ("completed",), "output_throughput": ("total_output_tokens",),
    "input_throughput": ("total_input_tokens",),
    "total_token_throughput": ("total_input_tokens", "total_output_tokens"),
}  # fmt: skip


def _claims(values: Mapping[str, Any]) -> Iterator[evidence.Claim]:
    found = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    for key, value in found.items():
        if _TIME.fullmatch(key):
            yield evidence.Claim(key, value, "a time", 0.0, MOST_MS, "ms")
    for low, high in (("median", "p99"), ("p90", "p99"), ("p95", "p99")):
        for name in ("ttft", "tpot", "itl", "e2el"):
            less, more = found.get(f"{low}_{name}_ms"), found.get(f"{high}_{name}_ms")
            if less is not None and more is not None:
                yield evidence.Claim(f"{low}_{name}_ms", less, f"{high}_{name}_ms", most=more * (1 + 1e-6), unit="ms")
    for kind in ("mean", "median"):
        whole = found.get(f"{kind}_e2el_ms", found.get(f"{kind}_e2e_latency_ms"))
        if whole is not None and (first := found.get(f"{kind}_ttft_ms")) is not None:
            why = "the time of the whole request"
            yield evidence.Claim(f"{kind}_ttft_ms", first, why, most=whole * (1 + 1e-6), unit="ms")
    ended, sent, failed = (found.get(key) for key in ("completed", "num_prompts", "failed"))
    if ended is not None:
        why = f"num_prompts is {sent:g}, and the load was of all" if sent is not None else "a run has requests"
        yield evidence.Claim(
            "completed", ended, why, max(1, LEAST_COMPLETED * (sent or 0)), inf if sent is None else sent
        )
        if sent is not None and failed is not None:
            yield evidence.Claim("completed and failed", ended + failed, "num_prompts", sent, sent)
    duration = found.get("duration")
    if duration is not None:
        yield evidence.Claim("duration", duration, "a time", evidence.ABOVE_ZERO, MOST_MS, "s")
        for rate, parts in _RATES.items():
            counts = [found.get(part) for part in parts]
            if (given := found.get(rate)) is not None and None not in counts:
                each = sums.sum(count for count in counts if count is not None) / duration
                why = f"{' and '.join(parts)} over a duration of {duration:g} s"
                yield evidence.Claim(rate, given, why, each * (1 - SAME_RATE), each * (1 + SAME_RATE))
    for key in ("request_rate", "max_concurrency", "burstiness"):
        if values.get(key) is not None:
            why = "a load" if key != "request_rate" else "a rate, or inf: all at once"
            number = number_of(values, key)
            yield evidence.Claim(key, nan if number is None else number, why, least=evidence.ABOVE_ZERO)


def claims_of_times(
    ttft: float | None, tpot: float | None, output_per_s: float | None, duration_s: float | None
) -> Iterator[evidence.Claim]:
    """Of every point, in ms and tokens a second, once its unit is known."""
    why, most = ("a time", MOST_MS) if duration_s is None else ("the duration of the run", MS_PER_S * duration_s)
    for name, each, unit in (("TTFT", ttft, "ms"), ("TPOT", tpot, "ms")):
        if each is not None:
            yield evidence.Claim(name, each, why, 0.0, most, unit)
    if output_per_s is not None:
        yield evidence.Claim("output tokens per second", output_per_s, "a rate", 0.0, MOST_MS)


def _claims_of_lists(values: Mapping[str, Any], lists: Lists | None) -> Iterator[evidence.Claim]:
    if lists is None:
        return
    for name, key, scale, each in (
        ("requests in lists", "completed", 0.0, np.ones(len(lists.input))),
        ("sum of input_lens", "total_input_tokens", 0.0, lists.input),
        ("sum of output_lens", "total_output_tokens", 0.0, lists.output),
        ("mean of ttfts", "mean_ttft_ms", 1.0, lists.ttft_ms),
    ):
        known = each[np.isfinite(each)]
        if len(known):
            why = "times of single requests"
            yield evidence.Claim(f"least of {name.rpartition(' ')[2]}", float(known.min()), why, least=0.0)
        if len(known) == len(each) and (stated := number_of(values, key)) is not None:
            total = float(each.mean() if scale else each.sum())
            yield evidence.Claim(name, total, key, stated * (1 - SAME_RATE), stated * (1 + SAME_RATE))


def under_load(given: Mapping[str, Any], run: MeasuredRun) -> dict[str, Any]:
    """A file of ``archsim serve`` with the requests that a result says: its load, and its counts and lengths."""
    loop, own = _loop(run), dict(given.get("requests") or {})
    if run.lists is not None and "input" in own and "output" in own:
        loop = {key: each for key, each in loop.items() if key not in ("input", "output")}  # those of the lists count
    if "concurrency" in loop or "arrivals" in loop:
        own = {key: value for key, value in own.items() if key not in ("concurrency", "arrivals", "trace")}
    kept = {key: value for key, value in given.items() if key not in ("sweep", "search", "loads")}
    return kept | {"requests": own | loop}


def _loop(run: MeasuredRun) -> dict[str, Any]:
    """Of requests, what a result says: at a rate, under a cap only where the rate would keep more requests in flight
    (Little's law); else of so many clients. At an infinite rate all requests are sent at once.
    """
    values, loop = run.values, dict[str, Any]()
    clients, rate, ended = (number_of(values, key) for key in ("max_concurrency", "request_rate", "completed"))
    if rate is not None and np.isfinite(rate):
        tokens = number_of(values, "total_output_tokens")
        later = (tokens / ended - 1 if tokens and ended else 0.0) * (number_of(values, "mean_tpot_ms") or 0.0)
        in_flight = rate * ((number_of(values, "mean_ttft_ms") or 0.0) + later) / MS_PER_S
        if clients and in_flight > clients:
            loop["concurrency"] = int(clients)
        else:
            loop["arrivals"] = {"rate": f"{rate:.6g}/s", "burstiness": number_of(values, "burstiness") or 1.0}
    elif clients:
        loop["concurrency"] = int(clients)
    elif rate is not None and (sent := number_of(values, "num_prompts") or ended):
        loop["concurrency"] = int(sent)
    for key, total in (("input", "total_input_tokens"), ("output", "total_output_tokens")):
        nominal, ratio = number_of(values, f"random_{key}_len"), number_of(values, "random_range_ratio")
        mean = number_of(values, f"mean_{key}_tokens")
        if nominal and ratio is not None:  # SGLang draws from ratio times the length to the length
            loop[key] = {"uniform": [max(1, int(ratio * nominal)), int(nominal)]}
        elif mean is None and ended and (tokens := number_of(values, total)):
            mean = tokens / ended
        if mean is not None:
            loop.setdefault(key, {"mean": max(mean, 1.0)})
    if ended:
        loop["count"] = int(ended)
    return loop


def number_of(row: Mapping[str, Any], key: str, scale: float = 1.0) -> float | None:
    """A number, also as text; None for one that is absent, empty or nan."""
    value = row.get(key)
    if isinstance(value, str):
        value = float(value) if value.strip() else None
    return float(value) * scale if isinstance(value, int | float) and value == value else None


def _of_guidellm(each: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark of ``benchmarks.json``, with metrics of successful, incomplete and errored requests."""
    metrics, strategy = each["metrics"], _strategy(each)

    def mean(name: str) -> float | None:
        of = metrics.get(name) or {}
        return number_of(of.get("successful", of), "mean")

    kind, rate = str(strategy.get("type_", "")), strategy.get("rate") or mean("requests_per_second")
    values: dict[str, Any] = {
        "mean_ttft_ms": mean("time_to_first_token_ms"), "output_throughput": mean("output_tokens_per_second"),
        "mean_tpot_ms": mean("inter_token_latency_ms"), "mean_e2el_ms": (mean("request_latency") or nan) * MS_PER_S,
        "mean_input_tokens": mean("prompt_token_count"), "mean_output_tokens": mean("output_token_count"),
    }  # fmt: skip
    if values["mean_tpot_ms"] is None:
        values["mean_tpot_ms"] = mean("time_per_output_token_ms")
    if kind in ("concurrent", "synchronous", "throughput"):
        together = 1 if kind == "synchronous" else round(mean("request_concurrency") or 1)
        values["max_concurrency"] = int(strategy.get("streams") or together)
    elif rate is not None:
        values |= {"request_rate": rate, "burstiness": 1000.0 if kind == "constant" else 1.0}
    return {key: value for key, value in values.items() if value == value}


def _strategy(each: Mapping[str, Any]) -> Mapping[str, Any]:
    return (each.get("config") or each.get("args") or {}).get("strategy") or {}


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
    for name, key in (("input_sequence_length", "input"), ("output_sequence_length", "output")):
        if isinstance(each := found.get(name), dict) and (mean := number_of(each, "avg")) is not None:
            values[f"mean_{key}_tokens"] = mean
    config = found.get("input_config")
    for at in ((), ("loadgen",), ("perf_analyzer", "stimulus")):  # of AIPerf, and of GenAI-Perf before it
        part: Any = config
        for key in at:
            part = part.get(key) if isinstance(part, dict) else None
        for name, key in (("concurrency", "max_concurrency"), ("request_rate", "request_rate")):
            if isinstance(part, dict) and isinstance(part.get(name), int | float):
                values[key] = part[name]
    return values


def _of_inferencex(found: dict[str, Any]) -> dict[str, Any]:
    """Its process_result.py divides the times of ``vllm bench serve`` by 1000, and leaves counts out."""
    values = {
        f"{key}_ms": value * MS_PER_S
        for key, value in found.items()
        if key.rpartition("_")[2] in ("ttft", "tpot", "itl", "e2el") and isinstance(value, int | float)
    }
    return values | {"max_concurrency": int(found["conc"])}


def _lists(path: str, found: dict[str, Any]) -> Lists | None:
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
        None if start is None else (start[order] - start[order][0]) * units.NS_PER_S,
        ttfts[order] * MS_PER_S, tpots[order] * MS_PER_S,
    )  # fmt: skip


def requests_measured(serving: Serving, lists: Lists | None) -> Requests:
    """The requests of a file with the lengths, and the times of arrival where they are known, of those measured. All
    clients begin at once, as those of `vllm bench serve`, InferenceX and SGLang do, unless the file says it.
    """
    asked = requests_of(serving)
    if "start" not in serving.spec.requests.model_fields_set:
        asked = asked._replace(apart=False)
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
    return without_hashes(arrivals, lists.input, lists.output, asked.concurrency)._replace(apart=asked.apart)

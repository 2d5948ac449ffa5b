"""The host's constants that a measured run implies: fitted to its first half where it has single requests, and judged
on the other.

Least squares of logarithms of times. What a run cannot tell apart stays as the engine's constants are, to which a weak
prior draws; the engine's factors on laws, of iterations without and with prompts, move only where no constant of the
host can close the gap.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base import evidence, sums, tables, units
from archsim.base.errors import TraceError
from archsim.base.files import drafted
from archsim.serving.constants import Host
from archsim.serving.deployment import Built
from archsim.serving.measures import PERCENTILES, Spread, spread_of_gaps, times_ns, within_limits
from archsim.serving.requests import Requests, without_hashes
from archsim.serving.serving import (
    Deployment,
    Outcome,
    deploy,
    host_for,
    requests_of,
    serve_requests,
    simulated,
    slo_of,
)
from archsim.serving.simulate import Served
from archsim.specs.serving_files import Serving, load_serving

if TYPE_CHECKING:
    import pandas


# ---- measured_run
# A measured run of a user: the JSON of ``vllm bench serve``, with its lists or not, of AIPerf, or of InferenceX.

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


# ---- evidence
# Whether a result can be: its counts, rates, times and load beside each other. In units of its own keys, as
# ``--time-unit`` may name others.

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
        yield evidence.Claim("output tokens a second", output_per_s, "a rate", 0.0, MOST_MS)


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
        if len(known) == len(each) and (told := number_of(values, key)) is not None:
            total = float(each.mean() if scale else each.sum())
            yield evidence.Claim(name, total, key, told * (1 - SAME_RATE), told * (1 + SAME_RATE))


# ---- load


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


# ---- formats


def _of_guidellm(each: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark of a report (``benchmarks.json``), whose metrics have successful, incomplete and errored requests
    apart.
    """
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


# ---- bench_json
# The JSON of ``vllm bench serve`` for a simulated run; `read_measured` reads those measured.

METRICS = ("ttft", "tpot", "itl", "e2el")


def bench(outcome: Outcome) -> dict[str, Any]:
    """The keys of ``vllm bench serve`` (v0.11, vllm/benchmarks/serve.py), times in ms; those of requests are arrays.
    ``itls`` and the texts of single requests are not kept.
    """
    measures, spec = outcome.measures, outcome.serving.spec
    given = spec.requests
    found: dict[str, Any] = {
        "backend": f"archsim-{spec.engine}",
        "model_id": outcome.serving.model.name,
        "num_prompts": measures.requests + measures.rejected,
        "request_rate": given.arrivals.rate if given.arrivals else outcome.requests.offered_per_s or "inf",
        "burstiness": given.arrivals.burstiness if given.arrivals else 1.0,
        "max_concurrency": given.concurrency,
        "duration": measures.duration_s,
        "completed": measures.requests,
        "failed": measures.rejected,
        "total_input_tokens": measures.input_tokens,
        "total_output_tokens": measures.output_tokens,
        # Over the whole duration, drain included, as `vllm bench serve` counts.
        "request_throughput": measures.requests / measures.duration_s,
        "request_goodput": int(within_limits(outcome.served, slo_of(outcome.serving)).sum()) / measures.duration_s,
        "output_throughput": measures.output_tokens / measures.duration_s,
        "total_token_throughput": (measures.output_tokens + measures.input_tokens) / measures.duration_s,
    }
    for name, each in zip(METRICS, (measures.ttft, measures.tpot, measures.itl, measures.e2e), strict=True):
        found |= _metric(name, each)
    served = outcome.served.requests
    found["input_lens"], found["output_lens"] = served["input"], served["output"]
    times = times_ns(outcome.served)
    found["start_times"] = served["arrival_ns"] / units.NS_PER_S
    found["ttfts"] = times["ttft"] / units.NS_PER_S
    # Null of requests of one token. Not of vLLM, which has a list of gaps (itls) instead.
    found["tpots"] = np.where(served["output"] > 1, times["tpot"] / units.NS_PER_S, np.array(None))
    return found


def write_bench(outcome: Outcome, path: Path) -> None:
    """Write the JSON, with one key's text in memory at a time; the file is replaced atomically."""
    with drafted(path) as draft, draft.open("w", encoding="utf-8") as stream:
        before = "{"
        for key, value in bench(outcome).items():
            stream.write(f"{before}{json.dumps(key)}: {json.dumps(value, default=np.ndarray.tolist)}")
            before = ", "
        stream.write("}\n")


def _metric(name: str, spread: Spread) -> dict[str, float | None]:
    found = {f"mean_{name}_ms": spread.mean, f"median_{name}_ms": spread.percentiles[0], f"std_{name}_ms": spread.std}
    found |= {f"p{p}_{name}_ms": value for p, value in zip(PERCENTILES, spread.percentiles, strict=True)}
    return {key: None if value != value else value for key, value in found.items()}


def request_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """A row a request; times in ns."""
    served, times = outcome.served.requests, times_ns(outcome.served)
    return (
        {
            "request": at,
            "arrival_ns": float(row["arrival_ns"]),
            "input_tokens": int(row["input"]),
            "output_tokens": int(row["output"]),
            "cached_tokens": int(row["hit"]),
            "preemptions": int(row["preempted"]),
            "scheduled_ns": float(row["scheduled_ns"]),
            "first_token_ns": float(row["first_ns"]),
            "last_token_ns": float(row["last_ns"]),
            "ttft_ns": float(times["ttft"][at]),
            "tpot_ns": float(times["tpot"][at]) if row["output"] > 1 else None,
        }
        for at, row in enumerate(np.asarray(served))
    )


REQUEST_COLUMNS = {
    "request": "integer", "arrival_ns": "real", "input_tokens": "integer", "output_tokens": "integer",
    "cached_tokens": "integer", "preemptions": "integer", "scheduled_ns": "real", "first_token_ns": "real",
    "last_token_ns": "real", "ttft_ns": "real", "tpot_ns": "real",
}  # fmt: skip


# ---- comparison
# A user's own measurement beside the simulation of it.

_TOLD = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
ALL_GAPS = 0.75  # of the tokens after the first; below, chunks have several tokens
CLOSE_SHARE = 0.10  # within which nothing need be fitted


class ComparedValue(NamedTuple):
    """``error``: simulated / measured - 1; None where the measurement lacks the key."""

    key: str
    measured: float | None
    simulated: float | None
    error: float | None


@dataclass(frozen=True, eq=False)
class ServingComparison(tables.Shown):
    """``advice``: which constants to fit, in words."""

    outcome: Outcome
    rows: tuple[ComparedValue, ...]
    advice: tuple[str, ...]

    def __repr__(self) -> str:
        off = {row.key: row.error for row in self.rows if row.key in _TOLD and row.error is not None}
        errors = ", ".join(f"{key} {error:+.1%}" for key, error in off.items())
        return f"{type(self).__name__}({errors}: simulated over measured)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per key of ``vllm bench serve``: key, measured, simulated, error."""
        import pandas

        return pandas.DataFrame([row._asdict() for row in self.rows])


def compare_bench(serving: Serving, path: Path) -> ServingComparison:
    """Raises TraceError for a file that is no measurement."""
    measured = read_measured(path)
    serving = _under_load(serving, measured)
    requests = requests_measured(serving, measured.lists)
    return compared(serve_requests(serving, deploy(serving), requests), measured)


def _under_load(serving: Serving, run: MeasuredRun) -> Serving:
    """With the load of a result, which a trace of the file's own has already."""
    return serving if serving.trace is not None else load_serving(under_load(serving.given, run))


def compared(outcome: Outcome, run: MeasuredRun) -> ServingComparison:
    """A simulated run beside a measured one."""
    measured, simulated, rows = run.values, bench(outcome), []
    chunks = _tokens_a_chunk(run, outcome)
    keys = [f"{kind}_{name}_ms" for name in METRICS for kind in ("mean", "median", "p99")]
    for key in ("duration", "request_throughput", "output_throughput", *keys):
        other, ours = measured.get(key), simulated[key]
        alike = not (chunks and key.endswith("_itl_ms"))
        error = ours / other - 1 if alike and isinstance(other, int | float) and other and ours is not None else None
        rows.append(ComparedValue(key, other, ours, error))
    advice = _advice({row.key: row.error for row in rows}, measured, outcome)
    return ServingComparison(outcome, tuple(rows), (*((chunks,) if chunks else ()), *advice))


def _tokens_a_chunk(run: MeasuredRun, outcome: Outcome) -> str:
    """Why gaps that were measured are not those between tokens, in words: fewer gaps than tokens; '' if they are, and
    where drafts make several tokens of an iteration one gap in the simulation, too.
    """
    if outcome.served.totals["drafted"]:
        return ""
    if run.lists is not None and run.gaps:
        gaps, tokens = run.gaps, int((run.lists.output - 1).clip(0).sum())
        if gaps < ALL_GAPS * tokens:
            return (
                f"ITL: {gaps:,} gaps were measured for {tokens:,} tokens after the first: the server sent "
                f"{tokens / gaps:.1f} tokens a chunk, and its gaps are not compared with those between tokens"
            )
    itl, tpot = run.values.get("mean_itl_ms"), run.values.get("mean_tpot_ms")
    if run.gaps is not None or not isinstance(itl, int | float) or not isinstance(tpot, int | float):
        return ""
    if itl * ALL_GAPS > tpot > 0:
        return (
            f"ITL: its mean of {itl:,.2f} ms is {itl / tpot:.1f} times the time per output token: gaps were measured "
            "between chunks of several tokens, and are not compared with those between tokens"
        )
    return ""


def _advice(errors: dict[str, float | None], measured: dict, outcome: Outcome) -> tuple[str, ...]:
    found = []
    tpot, ttft = errors.get("mean_tpot_ms"), errors.get("mean_ttft_ms")
    if measured.get("completed", outcome.measures.requests) != outcome.measures.requests:
        found.append(
            f"{measured['completed']} requests were measured, {outcome.measures.requests} simulated: set count"
        )
    prompts = measured.get("total_input_tokens")
    if prompts and abs(outcome.measures.input_tokens / prompts - 1) > 0.02:
        found.append(f"{prompts:,} prompt tokens were measured, {outcome.measures.input_tokens:,} simulated: set input")
    if tpot is not None and abs(tpot) > CLOSE_SHARE:
        found.append("TPOT: fit host.iteration and host.sequence (archsim serve FILE --calibrate bench.json)")
    if ttft is not None and abs(ttft) > 2 * CLOSE_SHARE:
        found.append("TTFT: fit host.request and host.prompt; it also measures the queue, so fit TPOT first")
    return tuple(found)


# ---- calibrating

# Constants in the order of the fit, and their scales in ns: a prior of this size.
CONSTANTS = ("iteration_ns", "sequence_ns", "prompt_ns", "request_ns")
SCALES = np.array([1e6, 2e4, 5e6, 2e7])
FACTORS = ("decodes", "prompts")
STEPS = np.array([1.0] * len(CONSTANTS) + [0.3] * len(FACTORS))  # first ones, of constants in scales, of ln of factors
# Of ln time: how far a mean may be off before it outweighs one scale of a constant, and a factor e on laws.
SURE, SURE_OF_LAWS = 0.02, 0.2
MOST_OF_LAWS = 1.5  # ln of a factor on laws, from the engine's
MEANS, CLOSE = 2, 0.03  # MEANS: of `_off`, first: TTFT and TPOT
MOST_A_CONSTANT, XATOL, FATOL = 40, 1e-3, 1e-4  # simulations of a fit, and when it ends
MOST_SIMULATIONS = MOST_A_CONSTANT * (2 * len(CONSTANTS) + len(STEPS)) + 1
FEWEST = 20  # requests of which a half tells anything


@dataclass(frozen=True, eq=False)
class FittedConstants(tables.Shown):
    """``halves``: in words, how far the fitted half and the other one are off; or why there are none."""

    host: Host
    compared: ServingComparison
    halves: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host.told}; {self.compared!r})"

    def to_pandas(self) -> pandas.DataFrame:
        """As of ``compared``."""
        return self.compared.to_pandas()


def calibrate_host(serving: Serving, path: Path, told: Callable[[str], None] = lambda text: None) -> FittedConstants:
    """Raises TraceError for a file that is no measurement."""
    measured = read_measured(path)
    serving = _under_load(serving, measured)
    start = host_for(serving)
    deployment = deploy(serving)
    requests = requests_measured(serving, measured.lists)
    half = _half(measured.lists)

    count = itertools.count(1)

    def off(host: Host) -> np.ndarray:
        told(f"simulation {next(count)} of the measured run, of at most {MOST_SIMULATIONS}")
        return _off(simulated(serving, hosted(deployment, host), requests), measured, half)

    host = _fitted(start, off)
    outcome = serve_requests(serving, hosted(deployment, host), requests)
    return FittedConstants(host, compared(outcome, measured), _told(outcome.served, measured, half))


def hosted(deployment: Deployment, host: Host) -> Deployment:
    """A deployment with other host constants: its tables keep their laws."""

    def of(built: Built) -> Built:
        table = built.pool.table._replace(host=host.of_iterations(deployment.scheduler.max_num_seqs))
        return built._replace(pool=built.pool._replace(table=table))

    decode = of(deployment.decode) if deployment.decode else None
    return replace(deployment, host=host, prefill=of(deployment.prefill), decode=decode)


def _fitted(start: Host, off: Callable[[Host], np.ndarray]) -> Host:
    """The constants; and factors on laws besides where these alone leave a mean further off than ``CLOSE``. A client
    may see a token with its iteration, or as late as with the engine: what is nearer.
    """
    known = np.append(
        [getattr(start, name) / scale for name, scale in zip(CONSTANTS, SCALES, strict=True)],
        np.log([getattr(start, name) for name in FACTORS]),
    )

    def host_at(x: np.ndarray, first_after: int) -> Host:
        values = np.append(x[: len(CONSTANTS)] * SCALES, np.exp(x[len(CONSTANTS) :])).tolist()
        return start._replace(first_after=first_after, **dict(zip(CONSTANTS + FACTORS, values, strict=True)))

    def solved(first_after: int, free: int) -> tuple[float, np.ndarray]:
        return _solved(known, lambda x: off(host_at(x, first_after)), free)

    tried = {after: solved(after, len(CONSTANTS)) for after in sorted({1, start.first_after}, reverse=True)}
    first_after = min(tried, key=lambda after: tried[after][0])
    x = tried[first_after][1]
    if np.abs(off(host_at(x, first_after))[:MEANS]).max() > CLOSE:
        _, x = min(tried[first_after], solved(first_after, len(known)), key=lambda each: each[0])
    return host_at(x, first_after)


def _solved(known: np.ndarray, off: Callable[[np.ndarray], np.ndarray], free: int) -> tuple[float, np.ndarray]:
    """The least sum of squares, and where: of what ``off`` gives, and of how far the first ``free`` are from what is
    known; the others stay. Schedules make times jump, so nothing is derived (Nelder and Mead, 1965).
    """
    from scipy.optimize import minimize

    split = len(CONSTANTS)
    sure = np.append(SURE / np.maximum(known[:split], 1.0), np.full(len(FACTORS), SURE_OF_LAWS))
    low = np.append(np.zeros(split), known[split:] - MOST_OF_LAWS)

    def cost(x: np.ndarray) -> float:
        whole = np.append(x, known[free:])
        return float((off(whole) ** 2).sum() + ((sure * (whole - known)) ** 2).sum())

    corners = known[:free] + np.concatenate([np.zeros((1, free)), np.diag(STEPS[:free])])
    options = {"initial_simplex": corners, "maxfev": MOST_A_CONSTANT * free, "xatol": XATOL, "fatol": FATOL}
    found = minimize(cost, known[:free], method="Nelder-Mead", bounds=[(each, None) for each in low[:free]],
                     options=options)  # fmt: skip
    return float(found.fun), np.append(found.x, known[free:])


def _half(lists: Lists | None) -> int | None:
    """The first request of the second half of those whose times are known; None for too few."""
    if lists is None:
        return None
    known = np.flatnonzero(np.isfinite(lists.ttft_ms))
    return int(known[len(known) // 2]) if len(known) >= 2 * FEWEST else None


def _off(served: Served, measured: MeasuredRun, half: int | None) -> np.ndarray:
    """ln (simulated / measured) of what is fitted: means, then single requests, together as much as a mean."""
    if half is None or measured.lists is None:
        return np.log([
            max(ours, 1e-6) / measured.values[key]
            for key, ours in _means(served).items()
            if isinstance(measured.values.get(key), int | float) and measured.values[key] > 0
        ])  # fmt: skip
    pairs = _pairs(served, measured.lists, slice(0, half))
    means = np.log([ours.mean() / theirs.mean() for ours, theirs in pairs])
    single = [np.log(np.maximum(ours, 1e-6) / theirs) / np.sqrt(len(ours)) for ours, theirs in pairs]
    return np.concatenate([means, *single])


def _means(served: Served) -> dict[str, float]:
    times = times_ns(served)
    several = served.requests["output"] > 1
    ttft, tpot = times["ttft"] / units.NS_PER_MS, times["tpot"][several] / units.NS_PER_MS
    return {
        "mean_ttft_ms": float(ttft.mean()), "mean_tpot_ms": float(tpot.mean()),
        "median_ttft_ms": float(np.median(ttft)), "median_tpot_ms": float(np.median(tpot)),
        "p99_itl_ms": spread_of_gaps(served.gaps).percentiles[-1],
    }  # fmt: skip


def _pairs(served: Served, lists: Lists, which: slice) -> list[tuple[np.ndarray, np.ndarray]]:
    """(simulated, measured) ms of TTFT, and of TPOT where it is known."""
    times = times_ns(served)
    found = []
    for name, theirs in (("ttft", lists.ttft_ms), ("tpot", lists.tpot_ms)):
        ours, real = times[name][which] / units.NS_PER_MS, theirs[which]
        known = np.isfinite(real) & (real > 0)
        if known.any():
            found.append((ours[known], real[known]))
    return found


def _told(served: Served, measured: MeasuredRun, half: int | None) -> tuple[str, ...]:
    if half is None or measured.lists is None:
        return ("fitted on the means of the whole run: nothing is left to judge on; save single requests "
                "(`vllm bench serve --save-detailed`) to have a half that is not fitted",)  # fmt: skip
    found = []
    for what, which in (("fitted", slice(0, half)), ("not fitted", slice(half, None))):
        each = _pairs(served, measured.lists, which)
        told = (
            f"{name} {ours.mean() / real.mean() - 1:+.1%} (mean), {np.median(np.abs(ours / real - 1)):.1%} a request "
            "(median)" for name, (ours, real) in zip(("TTFT", "TPOT"), each, strict=False)
        )  # fmt: skip
        found.append(f"half that was {what}, {len(each[0][0])} requests: {'; '.join(told)}")
    return tuple(found)

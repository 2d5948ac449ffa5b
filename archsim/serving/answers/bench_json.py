"""A run of serving as the result file of vllm bench serve, and what such files claim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import units
from archsim.base.files import write_draft
from archsim.serving.measures import PERCENTILES, Spread, times_ns, within_limits
from archsim.serving.outcome import Outcome, slo_of

METRICS = ("ttft", "tpot", "itl", "e2el")


def bench(outcome: Outcome) -> dict[str, Any]:
    """The keys of ``vllm bench serve`` (v0.11, vllm/benchmarks/serve.py), times in ms, those of requests as arrays;
    ``itls`` and texts are left out.
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
    with write_draft(path) as draft, draft.open("w", encoding="utf-8") as stream:
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

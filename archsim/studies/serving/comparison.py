"""A user's own measurement beside the simulation of it, and the host's time that would close the gap."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from archsim.base.errors import SpecError
from archsim.serving.serving import Outcome, deploy, requests_of, serve_requests
from archsim.serving.tables import Host
from archsim.specs.loading.serving import Serving
from archsim.specs.serving import HostSpec
from archsim.studies.serving.bench_json import METRICS, bench, read_bench

CLOSE = 0.10  # within which nothing need be fitted
ROUNDS = 6  # of secant steps; TPOT and TTFT are nearly linear in the host's time


class Row(NamedTuple):
    """``error``: simulated / measured - 1; None where the measurement lacks the key."""

    key: str
    measured: float | None
    simulated: float
    error: float | None


class Comparison(NamedTuple):
    """``advice``: which constants to fit, in words."""

    outcome: Outcome
    rows: tuple[Row, ...]
    advice: tuple[str, ...]


def compare_bench(serving: Serving, path: Path) -> Comparison:
    """Raises TraceError for a file that is no measurement."""
    return _compared(_served(serving, None), read_bench(path))


def calibrate_host(serving: Serving, path: Path) -> tuple[Host, Comparison]:
    """The host's time an iteration and a request with which mean TPOT and TTFT are those measured, at least 0.

    Raises SpecError if the simulation takes longer even without them.
    """
    measured = read_bench(path)
    found = Host()
    for _ in range(ROUNDS):
        measures = _served(serving, found).measures
        iteration = measured["mean_tpot_ms"] - measures.tpot.mean
        request = measured["mean_ttft_ms"] - measures.ttft.mean
        found = found._replace(
            iteration_ns=max(0.0, found.iteration_ns + iteration * 1e6),
            request_ns=max(0.0, found.request_ns + (request - iteration) * 1e6),
        )
    compared = _compared(_served(serving, found), measured)
    if found.iteration_ns == 0 and compared.outcome.measures.tpot.mean > (1 + CLOSE) * measured["mean_tpot_ms"]:
        raise SpecError(
            f"{path}: measured TPOT is {measured['mean_tpot_ms']:.2f} ms, but laws alone give "
            f"{compared.outcome.measures.tpot.mean:.2f} ms; check model, precision, parallel sizes and lengths"
        )
    return found, compared


def _served(serving: Serving, host: Host | None) -> Outcome:
    if host is not None:
        given = HostSpec(iteration=host.iteration_ns, sequence=0.0, prompt=0.0, request=host.request_ns)
        serving = serving._replace(spec=serving.spec.model_copy(update={"host": given}))
    return serve_requests(serving, deploy(serving), requests_of(serving))


def _compared(outcome: Outcome, measured: dict) -> Comparison:
    simulated, rows = bench(outcome), []
    keys = [f"{kind}_{name}_ms" for name in METRICS for kind in ("mean", "median", "p99")]
    for key in ("duration", "request_throughput", "output_throughput", *keys):
        other = measured.get(key)
        error = simulated[key] / other - 1 if isinstance(other, int | float) and other else None
        rows.append(Row(key, other, simulated[key], error))
    return Comparison(outcome, tuple(rows), _advice({row.key: row.error for row in rows}, measured, outcome))


def _advice(errors: dict[str, float | None], measured: dict, outcome: Outcome) -> tuple[str, ...]:
    found = []
    tpot, ttft = errors.get("mean_tpot_ms"), errors.get("mean_ttft_ms")
    if measured["completed"] != outcome.measures.requests:
        found.append(
            f"{measured['completed']} requests were measured, {outcome.measures.requests} simulated: set count"
        )
    prompts = measured.get("total_input_tokens")
    if prompts and abs(outcome.measures.input_tokens / prompts - 1) > 0.02:
        found.append(f"{prompts:,} prompt tokens were measured, {outcome.measures.input_tokens:,} simulated: set input")
    if tpot is not None and abs(tpot) > CLOSE:
        found.append("TPOT: fit host.iteration and host.sequence (archsim serve FILE --calibrate bench.json)")
    if ttft is not None and abs(ttft) > 2 * CLOSE:
        found.append("TTFT: fit host.request and host.prompt; it also measures the queue, so fit TPOT first")
    return tuple(found)

"""A user's own measurement beside the simulation of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsim.base.shown import Shown
from archsim.serving.serving import Outcome, deploy, requests_of, serve_requests
from archsim.specs.loading.serving import Serving
from archsim.studies.serving.bench_json import METRICS, bench
from archsim.studies.serving.measured_run import MeasuredRun, read_measured, requests_measured

if TYPE_CHECKING:
    import pandas

_TOLD = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
CLOSE = 0.10  # within which nothing need be fitted


class Row(NamedTuple):
    """``error``: simulated / measured - 1; None where the measurement lacks the key."""

    key: str
    measured: float | None
    simulated: float
    error: float | None


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """``advice``: which constants to fit, in words."""

    outcome: Outcome
    rows: tuple[Row, ...]
    advice: tuple[str, ...]

    def __repr__(self) -> str:
        off = {row.key: row.error for row in self.rows if row.key in _TOLD and row.error is not None}
        return f"Comparison({', '.join(f'{key} {error:+.1%}' for key, error in off.items())}: simulated over measured)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per key of ``vllm bench serve``: key, measured, simulated, error."""
        import pandas

        return pandas.DataFrame([row._asdict() for row in self.rows])


def compare_bench(serving: Serving, path: Path) -> Comparison:
    """Raises TraceError for a file that is no measurement."""
    measured = read_measured(path)
    requests = requests_measured(requests_of(serving), measured.lists)
    return compared(serve_requests(serving, deploy(serving), requests), measured)


def compared(outcome: Outcome, run: MeasuredRun) -> Comparison:
    """A simulated run beside a measured one."""
    measured, simulated, rows = run.values, bench(outcome), []
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

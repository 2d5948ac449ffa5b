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
ALL_GAPS = 0.75  # of the tokens after the first; below, chunks have several tokens
CLOSE = 0.10  # within which nothing need be fitted


class Row(NamedTuple):
    """``error``: simulated / measured - 1; None where the measurement lacks the key."""

    key: str
    measured: float | None
    simulated: float | None
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
    chunks = _tokens_a_chunk(run, outcome)
    keys = [f"{kind}_{name}_ms" for name in METRICS for kind in ("mean", "median", "p99")]
    for key in ("duration", "request_throughput", "output_throughput", *keys):
        other, ours = measured.get(key), simulated[key]
        alike = not (chunks and key.endswith("_itl_ms"))
        error = ours / other - 1 if alike and isinstance(other, int | float) and other and ours is not None else None
        rows.append(Row(key, other, ours, error))
    advice = _advice({row.key: row.error for row in rows}, measured, outcome)
    return Comparison(outcome, tuple(rows), (*((chunks,) if chunks else ()), *advice))


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
    known = isinstance(itl, int | float) and isinstance(tpot, int | float)
    if run.gaps is None and known and itl * ALL_GAPS > tpot > 0:
        return (
            f"ITL: its mean of {itl:,.2f} ms is {itl / tpot:.1f} times the time per output token: gaps were measured "
            "between chunks of several tokens, and are not compared with those between tokens"
        )
    return ""


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

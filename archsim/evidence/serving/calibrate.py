"""The host's constants that a measured run implies: fitted to its first half where it has single requests, tested on
the other. Least squares of logarithms of times, with the engine's constants as a weak prior; factors on laws move only
where no constant of the host can close the gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base import tables, units
from archsim.base.answer import Answer, Grid
from archsim.base.tables import DataFrame, frame_of
from archsim.evidence.serving.measured_run import Lists, MeasuredRun, read_measured, requests_measured, under_load
from archsim.iteration.constants import Host
from archsim.serving.answers.bench_json import METRICS, bench
from archsim.serving.deployment import Built
from archsim.serving.file_engines import host_for
from archsim.serving.measures import spread_of_gaps, times_ns
from archsim.serving.outcome import Deployment, Outcome
from archsim.serving.serving import deploy, serve_requests, simulate_requests
from archsim.serving.simulate import Served
from archsim.specs.serving_files import Serving, load_serving

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

    def as_answer(self) -> Answer:
        """Every key measured, simulated and how far off; which constants to fit."""
        rows = [
            (
                row.key, *("–" if each is None else f"{each:,.2f}" for each in (row.measured, row.simulated)),
                "–" if row.error is None else f"{row.error:+.1%}",
            )
            for row in self.rows
        ]  # fmt: skip
        heads = ("measured", "simulated", "error")
        table = Grid(("vllm bench serve",), rows, heads, title="measured and simulated")
        return Answer((table,), (*self.advice, *self.outcome.notes), self)

    def to_pandas(self) -> DataFrame:
        """One row per key of ``vllm bench serve``: key, measured, simulated, error."""
        return frame_of(self.rows)


def compare_bench(serving: Serving, path: Path) -> ServingComparison:
    """Raises TraceError for a file that is no measurement."""
    measured = read_measured(path)
    serving = _under_load(serving, measured)
    requests = requests_measured(serving, measured.lists)
    return compare_run(serve_requests(serving, deploy(serving), requests), measured)


def _under_load(serving: Serving, run: MeasuredRun) -> Serving:
    """With the load of a result, which a trace of the file's own has already."""
    return serving if serving.trace is not None else load_serving(under_load(serving.given, run))


def compare_run(outcome: Outcome, run: MeasuredRun) -> ServingComparison:
    measured, simulate_requests, rows = run.values, bench(outcome), []
    chunks = _tokens_a_chunk(run, outcome)
    keys = [f"{kind}_{name}_ms" for name in METRICS for kind in ("mean", "median", "p99")]
    for key in ("duration", "request_throughput", "output_throughput", *keys):
        other, ours = measured.get(key), simulate_requests[key]
        same = not (chunks and key.endswith("_itl_ms"))
        error = ours / other - 1 if same and isinstance(other, int | float) and other and ours is not None else None
        rows.append(ComparedValue(key, other, ours, error))
    advice = _advice({row.key: row.error for row in rows}, measured, outcome)
    return ServingComparison(outcome, tuple(rows), (*((chunks,) if chunks else ()), *advice))


def _tokens_a_chunk(run: MeasuredRun, outcome: Outcome) -> str:
    """Why measured gaps are not those between tokens, in words: fewer gaps than tokens. '' if they are, or with drafts,
    whose tokens share a gap in the simulation, too.
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
        return f"{type(self).__name__}({self.host.as_written}; {self.compared!r})"

    def to_pandas(self) -> DataFrame:
        """As of ``compared``."""
        return self.compared.to_pandas()


def calibrate_host(serving: Serving, path: Path, report: Callable[[str], None] = lambda text: None) -> FittedConstants:
    """Raises TraceError for a file that is no measurement."""
    measured = read_measured(path)
    serving = _under_load(serving, measured)
    start = host_for(serving)
    deployment = deploy(serving)
    requests = requests_measured(serving, measured.lists)
    half = _half(measured.lists)

    count = itertools.count(1)

    def off(host: Host) -> np.ndarray:
        report(f"simulation {next(count)} of the measured run, of at most {MOST_SIMULATIONS}")
        return _off(simulate_requests(serving, with_host(deployment, host), requests), measured, half)

    host = _fit_host(start, off)
    outcome = serve_requests(serving, with_host(deployment, host), requests)
    return FittedConstants(host, compare_run(outcome, measured), _sentence(outcome.served, measured, half))


def with_host(deployment: Deployment, host: Host) -> Deployment:
    def of(built: Built) -> Built:
        table = built.pool.table._replace(host=host.of_iterations(deployment.scheduler.max_num_seqs))
        return built._replace(pool=built.pool._replace(table=table))

    decode = of(deployment.decode) if deployment.decode else None
    return replace(deployment, host=host, prefill=of(deployment.prefill), decode=decode)


def _fit_host(start: Host, off: Callable[[Host], np.ndarray]) -> Host:
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

    def solve(first_after: int, free: int) -> tuple[float, np.ndarray]:
        return _solve(known, lambda x: off(host_at(x, first_after)), free)

    tried = {after: solve(after, len(CONSTANTS)) for after in sorted({1, start.first_after}, reverse=True)}
    first_after = min(tried, key=lambda after: tried[after][0])
    x = tried[first_after][1]
    if np.abs(off(host_at(x, first_after))[:MEANS]).max() > CLOSE:
        _, x = min(tried[first_after], solve(first_after, len(known)), key=lambda each: each[0])
    return host_at(x, first_after)


def _solve(known: np.ndarray, off: Callable[[np.ndarray], np.ndarray], free: int) -> tuple[float, np.ndarray]:
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


def _sentence(served: Served, measured: MeasuredRun, half: int | None) -> tuple[str, ...]:
    if half is None or measured.lists is None:
        return ("fitted on the means of the whole run: nothing is left to test on; save single requests "
                "(`vllm bench serve --save-detailed`) to have a half that is not fitted",)  # fmt: skip
    found = []
    for what, which in (("fitted", slice(0, half)), ("not fitted", slice(half, None))):
        each = _pairs(served, measured.lists, which)
        sentences = (
            f"{name} {ours.mean() / real.mean() - 1:+.1%} (mean), {np.median(np.abs(ours / real - 1)):.1%} per request "
            "(median)" for name, (ours, real) in zip(("TTFT", "TPOT"), each, strict=False)
        )  # fmt: skip
        found.append(f"half that was {what}, {len(each[0][0])} requests: {'; '.join(sentences)}")
    return tuple(found)

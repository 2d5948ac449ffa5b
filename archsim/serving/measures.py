"""What serving is judged by: times to and between tokens, throughput, goodput, KV use, saturation.

TTFT: from arrival to the first token. TPOT: (last - first) / (tokens - 1). ITL: every gap by itself. E2E: from arrival
to the last token. Goodput: requests a second within all limits.

Rates leave out the drain at the end, in which no request comes (``counted``).
"""

from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.serving.records import GAP_FIRST_NS, GAP_STEP
from archsim.serving.simulate import Served

PERCENTILES = (50, 90, 95, 99)
# A queue that grows: what ends while requests come is less than this share of what comes.
SATURATED = 0.95
FEWEST = 10  # requests that end in the time that rates count


class Slo(NamedTuple):
    """Limits in ns; infinite: none."""

    ttft_ns: float = np.inf
    tpot_ns: float = np.inf
    e2e_ns: float = np.inf


NO_LIMITS = Slo()


class Spread(NamedTuple):
    """ms. ``percentiles``: of PERCENTILES."""

    mean: float
    std: float
    percentiles: tuple[float, ...]


class Measures(NamedTuple):
    """``duration_s``: from the first arrival to the last token. ``balancedness``: mean over largest number of
    token-expert pairs of a rank, mean of the iterations; 0 where experts are not from traffic. ``migrations``,
    ``moved_bytes``: of experts while serving; ``stalled_ns``: engines waited for them. ``saturated``: why the times
    measure the length of the trace, in words; ''.
    """

    duration_s: float
    requests: int
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    goodput_per_s: float
    within_slo: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    output_tokens_per_s_device: float
    tokens_per_s_user: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    kv_mean: float
    kv_peak: float
    prefix_hits: float
    preemptions: int
    iterations: int
    balancedness: float
    migrations: int
    moved_bytes: int
    stalled_ns: float
    saturated: str


def times_ns(served: Served) -> dict[str, np.ndarray]:
    """``ttft``, ``tpot`` (of requests with two tokens or more; else 0), ``e2e``: float64[request]."""
    requests = served.requests
    gaps = np.maximum(requests["output"] - 1, 1)
    return {
        "ttft": requests["first_ns"] - requests["arrival_ns"],
        "tpot": (requests["last_ns"] - requests["first_ns"]) / gaps,
        "e2e": requests["last_ns"] - requests["arrival_ns"],
    }


def measure(served: Served, devices: int, slo: Slo = NO_LIMITS, longer: Served | None = None) -> Measures:
    """All measures of a run on ``devices`` devices. ``longer``: a saturated run of more requests, whose rates are told:
    the ends of few requests come in a burst.
    """
    steady = longer or served
    saturated = saturation(steady) + (f"; rates are of {len(steady.requests):,} requests" if longer else "")
    requests, times = served.requests, times_ns(served)
    several = requests["output"] > 1
    span = max(float(requests["last_ns"].max() - requests["arrival_ns"].min()), 1.0) / NS_PER_S
    of_rates, seconds = counted(steady, bool(saturated))
    within = _within(times, slo)
    ended, ended_within = int(of_rates.sum()), _within(times_ns(longer) if longer else times, slo) & of_rates
    output, prompt = int(requests["output"].sum()), int(requests["input"].sum())
    out, in_ = (float(steady.requests[name][of_rates].sum()) / seconds for name in ("output", "input"))
    tpot = spread(times["tpot"][several])
    return Measures(
        span, len(requests), prompt, output, ended / seconds,
        float(ended_within.sum()) / seconds, float(within.mean()),
        out, out + in_, out / devices, 1e3 / tpot.mean if tpot.mean else 0.0,
        spread(times["ttft"]), tpot, spread_of_gaps(served.gaps), spread(times["e2e"]),
        float(served.series[:, 0].mean()), float(served.series[:, 0].max()), float(requests["hit"].sum() / prompt),
        int(served.totals["preemptions"]), int(served.totals["iterations"]),
        float(served.totals["balance"] / max(served.totals["iterations"], 1)), len(served.moves),
        sum(each.n_bytes for each in served.moves), sum(each.stall_ns for each in served.moves), saturated,
    )  # fmt: skip


def _within(times: dict[str, np.ndarray], slo: Slo) -> np.ndarray:
    """bool[request] that is within all limits."""
    return (times["ttft"] <= slo.ttft_ns) & (times["tpot"] <= slo.tpot_ns) & (times["e2e"] <= slo.e2e_ns)


def counted(served: Served, saturated: bool) -> tuple[np.ndarray, float]:
    """(bool[request], seconds) of which rates are told. Open loops: all requests, over the time in which they came; of
    saturated ones, those that ended from the first to the last tenth. Closed loops: those that ended while others came.
    """
    requests = served.requests
    arrivals, ends = requests["arrival_ns"], requests["last_ns"]
    every, whole_ns = np.ones(len(requests), bool), max(float(ends.max() - arrivals.min()), 1.0)
    begin, end = float(arrivals.min()), float(arrivals.max())
    if not served.concurrency and not saturated and end > begin:
        return every, (end - begin) * len(requests) / (len(requests) - 1) / NS_PER_S
    if not served.concurrency:
        begin, end = (float(each) for each in np.quantile(ends, (0.1, 0.9)))
    else:
        begin = float(ends.min())
    chosen = (ends > begin) & (ends <= end)
    return (chosen, (end - begin) / NS_PER_S) if chosen.sum() >= FEWEST else (every, whole_ns / NS_PER_S)


def spread(ns: np.ndarray) -> Spread:
    """Of times in ns, in ms; zeros for none."""
    if not len(ns):
        return Spread(0.0, 0.0, (0.0,) * len(PERCENTILES))
    ms = ns / NS_PER_MS
    return Spread(float(ms.mean()), float(ms.std()), tuple(float(each) for each in np.percentile(ms, PERCENTILES)))


def spread_of_gaps(gaps: np.ndarray) -> Spread:
    """Of gaps counted in bins of 0.5 %, in ms."""
    total = gaps.sum()
    if not total:
        return Spread(0.0, 0.0, (0.0,) * len(PERCENTILES))
    ms = GAP_FIRST_NS * np.exp((np.arange(len(gaps)) + 0.5) * GAP_STEP) / NS_PER_MS
    mean = float((ms * gaps).sum() / total)
    std = float(np.sqrt((gaps * (ms - mean) ** 2).sum() / total))
    at = np.searchsorted(np.cumsum(gaps), np.array(PERCENTILES) / 100 * total)
    return Spread(mean, std, tuple(float(ms[min(each, len(ms) - 1)]) for each in at))


def saturation(served: Served) -> str:
    """Why times depend on the length of the trace: requests come faster than they end."""
    requests = served.requests
    arrivals = requests["arrival_ns"]
    span = arrivals.max() - arrivals.min()
    if served.concurrency or span <= 0:
        return ""
    end = arrivals.max()
    started = requests["first_ns"] <= end
    late = arrivals > arrivals.min() + span / 2
    begun = float(started.mean())
    ttft = requests["first_ns"] - arrivals
    growing = ttft[late].mean() > 2 * ttft[~late].mean() if late.any() and not late.all() else False
    if begun >= SATURATED or not growing:
        return ""
    return (
        f"saturated: {1 - begun:.0%} of {len(requests):,} requests had no token when the last one came, and TTFT grows "
        f"from {ttft[~late].mean() / NS_PER_S:.1f} s in the first half to {ttft[late].mean() / NS_PER_S:.1f} s in the "
        "second; TTFT, E2E and goodput depend on the length of the trace"
    )

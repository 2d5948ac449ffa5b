"""What serving is judged by: times to and between tokens, throughput, goodput, KV use, saturation.

TTFT: from arrival to the first token. TPOT: (last - first) / (tokens - 1). ITL: every gap by itself. E2E: from arrival
to the last token. Goodput: requests a second within all limits.

Rates are those of a steady state, without the start and the drain at the end (``rates``); a run whose halves differ
says so (``unsteadiness``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.serving.records import GAP_FIRST_NS, GAP_STEP
from archsim.serving.requests import first_turns
from archsim.serving.simulate import Served

PERCENTILES = (50, 90, 95, 99)
# A queue that grows: what ends while requests come is less than this share of what comes.
SATURATED = 0.95
FEWEST = 10  # requests that end in the time that rates count
# Halves of a run differ by more than this, and by more than chance: of times a token, and of the time that a client
# waits for one.
HALVES, HALVES_OF_CLIENTS, CHANCE_OF_CLIENTS = 0.03, 0.05, 2.0  # the last: standard errors
# Chance is known from lots of requests in a row (batch means: Law and Kelton, Simulation Modeling and Analysis, ch. 9),
# not from single ones: requests that run together share their iterations, so that their times are similar. Quantiles of
# Student's t: 99.5 % of 8 and of 9 degrees of freedom (1 % of false alarms on two sides), and 99 % of 14 (on one side).
# Measured (tests/serving/test_serving_laws.py): at most 3 % of Poisson runs of 300 to 3,000 requests at 30 to 80 % of
# capacity are called unsteady; by the spread of single requests, it was up to 57 %.
LOTS, APART = 5, 3.355  # of a half
OF_ALL = 3.250  # standard errors of the mean of twice as many
LOTS_OF_QUEUE, GROWS, MORE_QUEUE = 8, 2.624, 1.5  # of a half; the second waits so many times as long
LIKE_LONGER = 0.015  # times a token of a run and of a longer one count as equal
# Times that a request, or a session, takes: for so many of them, requests come at full load in a run that has a steady
# state. In twice as many requests as clients, they come so for less than one, and rates are 11 % too high.
WINDOW = 4.0
# Clients move in step where so many times as many requests as by chance come in an iteration, or those of most clients.
IN_STEP, MORE_THAN_CHANCE, MOST_CLIENTS = 2.5, 1.5, 0.75
MIDDLE = (0.2, 0.8)  # of the output tokens of a run that never is steady: what was emitted between counts


class Slo(NamedTuple):
    """Limits in ns; infinite: none. Of requests of several classes: float64[class]."""

    ttft_ns: float | np.ndarray = np.inf
    tpot_ns: float | np.ndarray = np.inf
    e2e_ns: float | np.ndarray = np.inf


NO_LIMITS = Slo()
NO_NUMBER = float("nan")  # of a time that no request has; one object, so that equal measures are equal


class Spread(NamedTuple):
    """ms. ``percentiles``: of PERCENTILES. All NO_NUMBER where there is no such time."""

    mean: float
    std: float
    percentiles: tuple[float, ...]


UNDEFINED = Spread(NO_NUMBER, NO_NUMBER, (NO_NUMBER,) * len(PERCENTILES))


def number(value: float, form: str) -> str:
    """A number as text; a dash where there is none."""
    return "–" if value != value else format(value, form)


class Measures(NamedTuple):
    """What was measured of a run: times of requests, rates, use of the cache and of engines."""

    duration_s: float  # from the first arrival to the last token
    requests: int  # without those that were rejected
    input_tokens: int  # of prompts, all requests
    output_tokens: int  # of outputs, all requests
    requests_per_s: float  # requests over duration_s
    goodput_per_s: float  # requests a second within the limits of the file
    within_slo: float  # share of the requests, 0 to 1
    output_tokens_per_s: float  # of all devices
    total_tokens_per_s: float  # prompts and outputs, of all devices
    output_tokens_per_s_device: float  # of a device, mean
    tokens_per_s_user: float  # output tokens a second that a user sees
    ttft: Spread  # time to first token, ms
    tpot: Spread  # time per output token of a request, ms
    itl: Spread  # time between two tokens, ms
    e2e: Spread  # from arrival to last token, ms
    kv_mean: float  # share of the KV cache in use, mean over time
    kv_peak: float  # largest share of the KV cache in use
    prefix_hits: float  # share of prompt tokens found in the cache
    preemptions: int  # requests whose KV was given up and computed again
    iterations: int  # of all engines
    # mean over largest number of token-expert pairs of a rank, mean of the iterations; 0: not from traffic
    balancedness: float
    migrations: int  # of experts while serving
    moved_bytes: int  # of experts while serving
    stalled_ns: float  # engines waited for moving experts
    saturated: str  # why the times measure the length of the trace, in words; ''
    unsteady: str  # why they depend on the number of requests or on a fault, in words; ''
    rejected: int = 0  # requests that the server refuses; not among requests
    # Of a device, mean, and of an output token with its prompt; with all coefficients of energy low and high. NO_NUMBER
    # where they are not estimated (`archsim.serving.power`).
    device_w: float = NO_NUMBER
    device_w_low: float = NO_NUMBER
    device_w_high: float = NO_NUMBER
    output_token_j: float = NO_NUMBER
    output_token_j_low: float = NO_NUMBER
    output_token_j_high: float = NO_NUMBER


def times_ns(served: Served) -> dict[str, np.ndarray]:
    """``ttft``, ``tpot`` (of requests with two tokens or more; else 0), ``e2e``: float64[request]."""
    requests = served.requests
    gaps = np.maximum(requests["output"] - 1, 1)
    return {
        "ttft": requests["first_ns"] - requests["arrival_ns"],
        "tpot": (requests["last_ns"] - requests["first_ns"]) / gaps,
        "e2e": requests["last_ns"] - requests["arrival_ns"],
    }


def measure(
    served: Served, devices: int, slo: Slo = NO_LIMITS, longer: Served | None = None, rejected: int = 0
) -> Measures:
    """All measures of a run on ``devices`` devices. ``longer``: a run of more requests, by which it is judged whether a
    shorter one is steady, and whose rates count if it is not: the ends of few requests come in a burst.
    """
    saturated, differs = saturation(longer or served), unsteadiness(served, longer)
    unsteady = differs or short_note(served)
    steady = longer if longer and (saturated or unsteady) else served
    if longer and (saturated or unsteady):
        whose = f" The rates shown are those of {len(longer.requests):,} requests."
        saturated, unsteady = (each + whose if each else "" for each in (saturated, unsteady))
    requests, times = served.requests, times_ns(served)
    several = requests["output"] > 1
    span = max(float(requests["last_ns"].max() - requests["arrival_ns"].min()), 1.0) / NS_PER_S
    within = within_limits(served, slo)
    flawed = differs if steady is served else unsteadiness(steady)
    of_rates = rates(steady, not saturated and not flawed)
    good = within if steady is served else within_limits(steady, slo)
    share = float(good[of_rates.counted].mean())
    prompt, output = int(requests["input"].sum()), int(requests["output"].sum())
    tpot = spread(times["tpot"][several])
    return Measures(
        duration_s=span,
        requests=len(requests),
        input_tokens=prompt,
        output_tokens=output,
        requests_per_s=of_rates.requests,
        goodput_per_s=of_rates.requests * share,
        within_slo=float(within.mean()) if steady is served else share,
        output_tokens_per_s=of_rates.output,
        total_tokens_per_s=of_rates.output + of_rates.input,
        output_tokens_per_s_device=of_rates.output / devices,
        tokens_per_s_user=1e3 / tpot.mean if several.any() else NO_NUMBER,
        ttft=spread(times["ttft"] if served.ttft else times["ttft"][:0]),
        tpot=tpot,
        itl=spread_of_gaps(served.gaps),
        e2e=spread(times["e2e"]),
        kv_mean=float(served.series[:, 0].mean()),
        kv_peak=float(served.series[:, 0].max()),
        prefix_hits=float(requests["hit"].sum() / prompt),
        preemptions=int(served.totals["preemptions"]),
        iterations=int(served.totals["iterations"]),
        balancedness=float(served.totals["balance"] / max(served.totals["iterations"], 1)),
        migrations=len(served.moves),
        moved_bytes=sum(each.n_bytes for each in served.moves),
        stalled_ns=sum(each.stall_ns for each in served.moves),
        saturated=saturated,
        unsteady=unsteady,
        rejected=rejected,
    )


def within_limits(served: Served, slo: Slo) -> np.ndarray:
    """bool[request] that is within all limits, those of its class."""
    times, kinds = times_ns(served), served.requests["kind"]
    limits = (np.broadcast_to(each, kinds.shape) if np.ndim(each) == 0 else np.asarray(each)[kinds] for each in slo)
    return np.all([times[name] <= limit for name, limit in zip(("ttft", "tpot", "e2e"), limits, strict=True)], axis=0)


class RequestRates(NamedTuple):
    """``requests``, ``output``, ``input`` (tokens) a second; ``counted``: bool[request], whose limits count."""

    requests: float
    output: float
    input: float
    counted: np.ndarray


def rates(served: Served, steady: bool) -> RequestRates:
    """Of a closed loop: its clients over the mean time from arrival to last token, and in sessions to the next turn
    (Little's law); where that changes, of whole rounds of its clients, all of whom wait for a request. Of an open loop:
    as requests, or sessions, come; where it is not steady, what was emitted in its middle. Of requests that come all at
    once, and of a run with a fault: over the whole duration.
    """
    requests, clients = served.requests, served.concurrency
    arrivals, ends, n = requests["arrival_ns"], requests["last_ns"], len(requests)
    begin, end = float(arrivals.min()), float(arrivals.max())
    if served.failed:
        return _all_in(requests, float(ends.max()) - begin)
    if clients and len(follows := _follows(requests)):
        return _all_in(requests, float((ends - arrivals).sum() + follows.sum()) / min(clients, n - len(follows)))
    if clients and n > clients:
        rounds = (n - 1 - clients) // clients
        if not steady and rounds and arrivals[clients + rounds * clients] > arrivals[clients]:
            return _between(requests, float(arrivals[clients]), float(arrivals[clients + rounds * clients]))
        return _all_in(requests, float((ends - arrivals).sum()) / clients)
    if not clients and steady and end > begin:
        heads = _heads(requests)  # which come, while later turns follow
        if len(heads) > 1 and heads[-1] > begin:
            return _all_in(requests, float(heads[-1] - begin) * len(heads) / (len(heads) - 1))
    if not clients and end > begin:
        low, high = (_emitted_at(requests, share) for share in MIDDLE)
        served_ns = float((ends - requests["scheduled_ns"]).mean())
        if high - low > 2 * served_ns and ((ends > low) & (ends <= high)).sum() >= FEWEST:
            return _between(requests, low, high)
    return _all_in(requests, float(ends.max()) - begin)


def _heads(requests: np.ndarray) -> np.ndarray:
    """float64[session] ns at which first turns come, or requests without sessions, in order."""
    return np.sort(requests["arrival_ns"][first_turns(len(requests), requests["follower"])])


def _follows(requests: np.ndarray) -> np.ndarray:
    """float64[turn] ns from a last token to the next turn of its session, of turns that have one."""
    return requests["think_ns"][requests["follower"] >= 0]


def _all_in(requests: np.ndarray, ns: float) -> RequestRates:
    per_s = NS_PER_S / max(ns, 1.0)
    every = np.ones(len(requests), bool)
    return RequestRates(
        len(requests) * per_s, float(requests["output"].sum()) * per_s, float(requests["input"].sum()) * per_s, every
    )


def _between(requests: np.ndarray, begin: float, end: float) -> RequestRates:
    """Output tokens count when they are emitted, requests and their prompts when they end."""
    ended = (requests["last_ns"] > begin) & (requests["last_ns"] <= end)
    per_s = NS_PER_S / (end - begin)
    output = tokens_until(requests, end) - tokens_until(requests, begin)
    return RequestRates(
        float(ended.sum()) * per_s, output * per_s, float(requests["input"][ended].sum()) * per_s, ended
    )


def tokens_until(requests: np.ndarray, until_ns: float) -> float:
    """Output tokens up to a time: those after the first of a request come evenly until its last."""
    first, last = requests["first_ns"], requests["last_ns"]
    later = (np.minimum(last, until_ns) - first) / np.maximum(last - first, 1e-3) * (requests["output"] - 1)
    return float(np.where(first <= until_ns, 1 + later, 0.0).sum())


def _emitted_at(requests: np.ndarray, share: float) -> float:
    """ns at which a share of all output tokens was emitted, to a thousandth of the duration."""
    low, high, most = float(requests["first_ns"].min()), float(requests["last_ns"].max()), requests["output"].sum()
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_until(requests, middle) < share * most else (low, middle)
    return high


def unsteadiness(served: Served, longer: Served | None = None) -> str:
    """Why times depend on the number of requests: those of its halves differ, or from those of a longer run."""
    requests, times = served.requests, times_ns(served)
    several, n = requests["output"] > 1, len(requests)
    if served.failed:
        return (
            "A fault came while requests were served, so there is no steady state. Rates are therefore over the whole "
            "duration, from the first arrival to the last token, and times are of all requests."
        )
    if longer is not None and several.any():
        here, there, chance = _beside_longer(served, longer)
        if abs(here - there) > max(LIKE_LONGER * there, chance):
            return _sentence(f"{n:,} requests", f"{len(longer.requests):,}", "the time per output token", here, there)
    if 1 < n <= served.concurrency:
        return (
            f"The run is a single batch: there are as many clients as requests ({n:,}), and each sends one. Rates are "
            "therefore over the whole duration. Give more requests (requests.count) for a steady state."
        )
    at_full_load = _at_full_load(served)
    tpot, e2e, output = (each[at_full_load] for each in (times["tpot"], times["e2e"], requests["output"]))
    several, n = output > 1, len(output)
    late, whose = np.arange(n) >= n // 2, ("the first half of the requests", "the second")
    if min((several & ~late).sum(), (several & late).sum()) >= FEWEST // 2:
        one, other = (tpot[several & half] for half in (~late, late))
        apart = abs(float(one.mean() - other.mean()))
        if apart > max(HALVES * float(tpot[several].mean()), APART * _off(one, other)):
            return _sentence(*whose, "the time per output token", float(one.mean()), float(other.mean()))
    if served.concurrency and n >= 2 * (FEWEST // 2):
        halves = [_time_per_token(e2e[half], output[half]) for half in (~late, late)]
        (first, off), (second, other_off) = halves  # of single requests: the first round shows, and is no chance
        chance = CHANCE_OF_CLIENTS * float(np.hypot(off, other_off))
        if abs(first - second) > max(HALVES_OF_CLIENTS * (first + second) / 2, chance):
            return _sentence(
                *whose, "the time from arrival to last token, divided by the output tokens,", first, second
            )
    return ""


def _at_full_load(served: Served) -> np.ndarray:
    """bool[request]: of clients that begin in turn, those after all have begun, before the last round; else all."""
    requests, clients, n = served.requests, served.concurrency, len(served.requests)
    if not clients or n < 4 * clients:
        return np.ones(n, bool)
    arrivals = requests["arrival_ns"]
    heads = _heads(requests)
    if heads[clients - 1 : clients] <= heads[0]:
        return np.ones(n, bool)
    return (arrivals > heads[clients - 1]) & (arrivals < np.sort(arrivals)[n - clients])


def short_note(served: Served) -> str:
    """Why a run is too short for rates of a steady state: requests come at full load, after all clients have begun and
    until the last request comes, for less than WINDOW times as long as a request, or a session, takes. ''.
    """
    requests, clients, follows = served.requests, served.concurrency, _follows(served.requests)
    arrivals, n = requests["arrival_ns"], len(requests)
    begun = n - len(follows)  # requests, or sessions
    one, several = ("session", "sessions") if len(follows) else ("request", "requests")
    takes = (float((requests["last_ns"] - arrivals).sum()) + float(follows.sum())) / begun
    first = float(arrivals.min()) + takes
    if clients:
        first = float(_heads(requests)[clients]) if begun > clients else np.inf
    elif arrivals.max() <= arrivals.min():  # all at once: rates are over the whole duration
        return ""
    window = max(float(arrivals.max()) - first, 0.0)
    if takes <= 0 or window >= WINDOW * takes:
        return ""
    inside = float(clients or begun / max(float(arrivals.max() - arrivals.min()), 1.0) * takes)
    enough = int(np.ceil((WINDOW + 2) * inside * n / begun))
    return (
        f"The run is short: {several} come at full load for {window / NS_PER_S:,.1f} s, and a {one} takes "
        f"{takes / NS_PER_S:,.1f} s. Rates of a steady state need {WINDOW:g} times as long. Give {enough:,} requests "
        "or more (requests.count)."
    )


def in_step_note(served: Served) -> str:
    """That clients of a closed loop send their requests together, iteration for iteration. ''."""
    requests, clients = served.requests, served.concurrency
    later = np.sort(requests["arrival_ns"])[clients:]
    if clients < 2 or len(later) <= clients or len(_follows(requests)):
        return ""
    width = float(served.totals["busy_ns"]) / max(int(served.totals["iterations"]), 1)
    low, high = np.searchsorted(later, later - width / 2), np.searchsorted(later, later + width / 2, "right")
    at_once = float((high - low).mean())
    by_chance = 1 + len(later) * width / max(float(later[-1] - later[0]), width)
    if at_once < max(MORE_THAN_CHANCE * by_chance, min(IN_STEP * by_chance, MOST_CLIENTS * clients)):
        return ""
    return (
        f"Clients move in step: on average, {at_once:,.1f} of {clients:,} send their next request within one "
        f"iteration, where {by_chance:,.1f} would by chance, because requests of one length that begin together end "
        "together. Their prompts wait for each other. Clients that start apart (requests.start: apart), or lengths "
        "that differ, have shorter times to the first token."
    )


def _means(values: np.ndarray, lots: int) -> np.ndarray:
    """Means of so many lots of values in a row, float64[lot]; of fewer values, the values."""
    return np.array([lot.mean() for lot in np.array_split(values, min(lots, len(values)))])


def _off(one: np.ndarray, other: np.ndarray, lots: int = LOTS) -> float:
    """The standard error of the difference of the means of two halves, from lots of each. Infinite of single values."""
    means = [_means(half, lots) for half in (one, other)]
    if min(map(len, means)) < 2:
        return float("inf")
    return float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in means)))


def _beside_longer(served: Served, longer: Served) -> tuple[float, float, float]:
    """(time per output token of a run, that of a longer one, how far these are apart by chance at most), ns."""
    of_both = [times_ns(each)["tpot"][each.requests["output"] > 1] for each in (served, longer)]
    means = [_means(each, 2 * LOTS) for each in of_both]
    variance = sum(float(each.var(ddof=1)) / len(each) if len(each) > 1 else float("inf") for each in means)
    here, there = (float(each.mean()) for each in of_both)
    return here, there, OF_ALL * float(np.sqrt(variance))


def few_note(served: Served, longer: Served | None) -> str:
    """That the time per output token differs from that of a longer run by no more than chance explains; '' where it
    hardly differs, or by more.
    """
    if longer is None or not (served.requests["output"] > 1).any() or unsteadiness(served, longer):
        return ""
    here, there, _ = _beside_longer(served, longer)
    if abs(here / there - 1) <= LIKE_LONGER:
        return ""
    return (
        f"The time per output token is {here / NS_PER_MS:,.2f} ms in these {len(served.requests):,} requests and "
        f"{there / NS_PER_MS:,.2f} ms in {len(longer.requests):,} at the same rate, which is within chance. More "
        "requests (requests.count) tell it more closely."
    )


def _time_per_token(e2e: np.ndarray, output: np.ndarray) -> tuple[float, float]:
    """(ratio of sums, its standard error) of times and tokens."""
    ratio = float(e2e.sum() / output.sum())
    return ratio, float(np.std(e2e - ratio * output) / output.mean() / np.sqrt(len(output)))


def _sentence(one: str, other: str, what: str, here: float, there: float) -> str:
    return (
        f"The run is not steady: {what} is {here / NS_PER_MS:,.2f} ms in {one} and {there / NS_PER_MS:,.2f} ms in "
        f"{other}. The run is too short, or requests come faster than this deployment sustains. Give more requests "
        "(requests.count) or a lower load."
    )


def spread(ns: np.ndarray) -> Spread:
    """The spread of times that are given in ns, in ms. UNDEFINED without times."""
    if not len(ns):
        return UNDEFINED
    ms = ns / NS_PER_MS
    return Spread(float(ms.mean()), float(ms.std()), tuple(float(each) for each in np.percentile(ms, PERCENTILES)))


def spread_of_gaps(gaps: np.ndarray) -> Spread:
    """The spread in ms of gaps that are counted in bins of 0.5 %."""
    total = gaps.sum()
    if not total:
        return UNDEFINED
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
    if not (begun < SATURATED and growing) and not _queue_grows(ttft[np.argsort(arrivals, kind="stable")]):
        return ""
    return (
        f"The deployment is saturated: when the last of {len(requests):,} requests came, {1 - begun:.0%} of them had "
        f"no token yet. TTFT grows from {ttft[~late].mean() / NS_PER_S:.1f} s in the first half of the trace to "
        f"{ttft[late].mean() / NS_PER_S:.1f} s in the second. TTFT, E2E and goodput therefore depend on how long the "
        "trace is."
    )


def _queue_grows(ttft: np.ndarray) -> bool:
    """Whether requests wait ever longer: in the second half by more than chance explains, and in each of its lots for
    longer than in the first half, so that the queue is never worked off. It shows a rate a few percent above capacity,
    of which nearly all requests still begin while others come. ``ttft``: float64[request] in the order of arrivals.
    """
    half = len(ttft) // 2
    if half < 2 * LOTS_OF_QUEUE:
        return False
    early, late = ttft[:half], ttft[half:]
    apart = float(late.mean() - early.mean())
    if late.mean() < MORE_QUEUE * early.mean() or apart <= GROWS * _off(early, late, LOTS_OF_QUEUE):
        return False
    return bool(_means(late, LOTS_OF_QUEUE).min() > early.mean())


# What a deployment costs while it serves: rent of its GPUs (`archsim.serving.power` has its energy).

SECONDS_PER_HOUR = 3600.0
TOKENS_PRICED = 1e6


class Rent(NamedTuple):
    """USD an hour of one GPU with its share of host, network and power. ``low``: what a hyperscaler's own cost;
    ``usd_per_hour``: rented for three years; ``high``: the dearest of these and of a small provider's own.
    """

    usd_per_hour: float
    low: float
    high: float


# SemiAnalysis, market surveys of August 2025 and AI Cloud TCO Model, as InferenceX's page has them
# (SemiAnalysisAI/InferenceX-app, GPU_SPECS: costr, costh, costn); B300 and GB300 there are 1.2 times B200 and GB200,
# until prices are known.
RENTS: Mapping[str, Rent] = MappingProxyType({
    "h100": Rent(1.30, 1.30, 1.69), "h200": Rent(1.60, 1.41, 1.74), "b200": Rent(2.90, 1.95, 2.90),
    "b300": Rent(3.48, 2.34, 3.48), "gb200": Rent(3.30, 2.21, 3.30), "gb300": Rent(3.96, 2.65, 3.96),
    "mi300x": Rent(1.55, 1.12, 1.55), "mi355x": Rent(2.10, 1.48, 2.10),
})  # fmt: skip


def rent_of(gpu: str, given: Mapping[str, float]) -> Rent | None:
    """The user's rent of a GPU, else the known one, or None. Raises SpecError for a price of 0 or less."""
    if gpu in given:
        if not given[gpu] > 0:
            raise SpecError(f"--price {gpu}={given[gpu]:g}: expected USD an hour of one GPU, above 0")
        return Rent(given[gpu], given[gpu], given[gpu])
    return RENTS.get(gpu)


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """USD for a million tokens at this rate; infinite where none come."""
    if tokens_per_s <= 0:
        return float("inf")
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PRICED

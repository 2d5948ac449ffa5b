"""Requests: arrival, prompt, output and hash ids of each; drawn from distributions, or read (``traces``)."""

from typing import NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.units import NS_PER_S
from archsim.specs.model import ModelSpec


class Requests(NamedTuple):
    """In order of arrival. ``arrival_ns``: float64[request]; ``input``, ``output``: int64[request] tokens.

    ``hash_ids``: int64[id] from 0 on, of full and partly filled blocks of ``hash_tokens``; ``hash_from``:
    int64[request + 1] where those of a request begin. ``concurrency``: clients of a closed loop, each of which sends
    its next request when the last one ends; 0: requests come at ``arrival_ns``. ``lines``: int64[request], those of a
    trace's file; none where requests are drawn. ``told``: what a trace was read as, in words.
    """

    arrival_ns: np.ndarray
    input: np.ndarray
    output: np.ndarray
    hash_ids: np.ndarray
    hash_from: np.ndarray
    hash_tokens: int = 0
    concurrency: int = 0
    lines: np.ndarray = np.zeros(0, np.int64)
    told: str = ""

    def place(self, whose: str, at: int) -> str:
        """Where request ``at`` was read: file and line; else the number of the request."""
        return f"{whose}:{self.lines[at]}" if len(self.lines) else f"{whose}: request {at}"

    @property
    def offered_per_s(self) -> float:
        """Requests a second over the span of arrivals; 0 for a closed loop or a single time."""
        span = self.arrival_ns[-1] - self.arrival_ns[0]
        return 0.0 if self.concurrency or span <= 0 else (len(self.arrival_ns) - 1) / span * NS_PER_S


def without_hashes(arrival_ns: np.ndarray, input: np.ndarray, output: np.ndarray, concurrency: int = 0) -> Requests:
    """Requests that share no prefix."""
    n = len(input)
    return Requests(
        np.asarray(arrival_ns, float),
        np.asarray(input, np.int64),
        np.asarray(output, np.int64),
        np.zeros(0, np.int64),
        np.zeros(n + 1, np.int64),
        0,
        concurrency,
    )


def gamma_arrivals(count: int, per_s: float, burstiness: float, seed: int) -> np.ndarray:
    """float64[request] ns: gaps of a gamma distribution with shape ``burstiness`` and mean 1 / rate, as `vllm bench
    serve`; 1 is a Poisson process, less is burstier.
    """
    draw = _generator(seed, 0)
    gaps = draw.gamma(burstiness, 1.0 / (per_s * burstiness), count)
    return np.cumsum(gaps) * NS_PER_S


def lengths(count: int, kind: str, values: tuple[float, ...], seed: int, stream: int) -> np.ndarray:
    """int64[request], at least 1. ``fixed``: (tokens,); ``uniform``: (low, high), both included; ``lognormal``: (mean,
    coefficient of variation).
    """
    draw = _generator(seed, stream)
    if kind == "fixed":
        return np.full(count, int(values[0]), np.int64)
    if kind == "uniform":
        return draw.integers(int(values[0]), int(values[1]) + 1, count)
    mean, variation = values
    sigma2 = np.log1p(variation**2)
    drawn = draw.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def scaled(requests: Requests, speed: float) -> Requests:
    """The same requests at ``speed`` times their rate."""
    return requests._replace(arrival_ns=requests.arrival_ns / speed)


def first(requests: Requests, count: int) -> Requests:
    """The first ``count`` requests."""
    end = requests.hash_from[min(count, len(requests.input))]
    return requests._replace(
        arrival_ns=requests.arrival_ns[:count],
        input=requests.input[:count],
        output=requests.output[:count],
        hash_ids=requests.hash_ids[:end],
        hash_from=requests.hash_from[: count + 1],
        lines=requests.lines[:count],
    )


def refuse_too_long(
    requests: Requests, kv_tokens: int, budget: int, chunked: bool, whose: str, *, preempted: bool = True
) -> None:
    """Raise TraceError for the first request that can never be served: beyond KV, or beyond the budget of one iteration
    where prompts are not split. ``preempted``: whether a prompt may be computed anew, with its output.
    """
    whole = requests.input + requests.output
    at_once = whole if preempted else requests.input
    limits = ((kv_tokens, "KV cache holds", whole), (budget, "iterations take", at_once))
    for most, what, tokens in limits[:1] if chunked else limits:
        wrong = np.flatnonzero(tokens > most)
        if len(wrong):
            at = int(wrong[0])
            raise TraceError(
                f"{requests.place(whose, at)}: {requests.input[at]} prompt and {requests.output[at]} output tokens, "
                f"but {what} {most} tokens; {len(wrong)} of {len(whole)} requests can never be served. Use more "
                "devices or a larger budget, or leave these requests out"
            )


def refuse_beyond_positions(requests: Requests, model: ModelSpec, whose: str) -> None:
    """Raise TraceError for the first request that is longer, with its output, than the model's positions reach."""
    most = model.extended_positions or model.positions
    tokens = requests.input + requests.output
    wrong = np.flatnonzero(tokens > most) if most is not None else ()
    if len(wrong):
        at = int(wrong[0])
        scaled_to = f" ({most:,} if scaled)" if model.extended_positions else ""
        raise TraceError(
            f"{requests.place(whose, at)}: {requests.input[at]:,} prompt and {requests.output[at]:,} output tokens, "
            f"but {model.name} has {model.positions:,} positions{scaled_to}, and an engine refuses more; "
            f"{len(wrong):,} of {len(tokens):,} requests are longer. Leave them out, or give the model more "
            "`positions:` if it was trained for more"
        )


def scaled_positions_told(requests: Requests, model: ModelSpec) -> str:
    """A note for requests that need a scaling of the model's positions; '' without."""
    if model.positions is None:
        return ""
    longer = int((requests.input + requests.output > model.positions).sum())
    if not longer:
        return ""
    return (
        f"{longer:,} of {len(requests.input):,} requests are longer than the {model.positions:,} positions of "
        f"{model.name}: an engine takes them only with scaled positions (such as YaRN), up to "
        f"{model.extended_positions:,}"
    )

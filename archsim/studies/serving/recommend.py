"""Recommends how to serve a model. It finds the engine, GPU, parallel sizes, precision, batch limits and pools that
serve the most requests within limits and a budget, or at the least price or energy, and says how sure that is.

The engines and their batch limits are those of a search (`archsim.studies.serving.search`). Here a search races: the
rate of all sizes is estimated from the times of their iterations, the best of each engine are served at rates that
bisection chooses, the best of these with other batch limits, and what is left on a grid of rates. A run has so many
requests that a queue which grows shows: RESIDENCES times those that are in the engine at a time.

**How sure.** Measured times over simulated ones have a log-normal distribution in each cell of engine, GPU and dtype
(``residuals`` of configs/serving/hosts.yaml, by constants of other folds). A system that takes f times as long at all
it does serves at rate r as the simulated one does at rate f r, with all times multiplied by f: its highest rate within
limits L is R(L / f) / f, where R is read off the simulated times on the grid. TTFT has a factor of its own, by which
its limit is divided. Factors are drawn: a share 1/n of the variance of a cell of n groups is common to all sizes of the
cell, the rest is drawn for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, SpecError, TraceError, did_you_mean
from archsim.base.fields import TIME, format_quantity, parse_quantity
from archsim.base.tables import INTEGER, REAL, TEXT, Shown, Table
from archsim.base.units import NS_PER_S
from archsim.iteration.layers import has_experts
from archsim.runs.pool import in_copies
from archsim.serving.deployment import WITH_KERNELS, Built, ServingEngine, residual_of
from archsim.serving.measures import (
    Measures,
    Rent,
    Upkeep,
    board_w,
    rent_of,
    saturation,
    times_ns,
    upkeep,
    usd_per_million,
)
from archsim.serving.requests import Requests, first, lengths, rejected_told, scaled
from archsim.serving.serving import (
    INPUT_STREAM,
    OUTPUT_STREAM,
    Deployment,
    decodes_alone,
    requests_of,
    serve_requests,
    simulated,
)
from archsim.specs.config_files import named_files
from archsim.specs.deployment import ParallelSpec, PrecisionSpec
from archsim.specs.library import Source, load_model, load_system
from archsim.specs.model import ModelSpec
from archsim.specs.serving import LengthSpec, RequestSpec
from archsim.specs.serving_files import Serving, load_serving
from archsim.specs.system import SystemSpec
from archsim.studies.serving.configuration import Configuration, describe_sizes, sizes_of, with_choice
from archsim.studies.serving.engines import RateEstimate, deployment_of, estimate_rate, largest
from archsim.studies.serving.highest_rate import WITHIN, share_within
from archsim.studies.serving.start import (
    BOTH,
    DECODE,
    OPTIONS_OF,
    PREFILL,
    Started,
    gpus_of_host,
    options_file,
    script,
)

if TYPE_CHECKING:
    import pandas

# ---- the question

THROUGHPUT, PRICE, ENERGY = "throughput", "price", "energy"
OBJECTIVES = (THROUGHPUT, PRICE, ENERGY)
ENGINES: Mapping[str, str] = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
NAMES: Mapping[str, str] = MappingProxyType({"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"})
# Where a user says nothing: a chat with a page of context.
INPUT_TOKENS, OUTPUT_TOKENS, SPREAD = 1024, 512, 0.5
LENGTH_STEP = 16  # tokens, in which usual lengths are made shorter
NVIDIA_ONLY = ("trtllm",)
AMD = ("mi300x", "mi355x")
# Checkpoints whose experts come in one dtype (model cards).
NATIVE: Mapping[str, str] = MappingProxyType({"gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4"})
FP8, NVFP4, BF16, MXFP4 = "fp8", "nvfp4", "bf16", "mxfp4"
PRECISIONS = (BF16, FP8, NVFP4, MXFP4)
FP8_GPUS = ("h100", "h200", "h800", "h20")
BLACKWELL = ("b200", "b300", "gb200", "gb300")
MOST_RANKS = 64  # of one engine
MACHINES = ("node", "cluster", "nvl72")  # ends of the names of shipped systems of a GPU, the smallest first
SEQS, TOKENS = (32, 64, 128, 256, 512), (2048, 4096, 8192, 16384)
USUAL_SEQS, USUAL_TOKENS = 256, 8192


class Offer(NamedTuple):
    """GPUs that may be used. ``name``: as asked; ``gpu``: of its calibration; ``devices``: how many at most."""

    name: str
    gpu: str
    devices: int
    system: SystemSpec
    source: Any
    rent: Rent | None


class Asked(NamedTuple):
    """``slo``, ``requests``: as of a file of ``archsim serve``. ``rate``: requests a second that have to be served; 0:
    as many as possible. ``loads``: recorded loads of experts, from which a placement is chosen.
    """

    model: ModelSpec
    model_source: Any
    offers: tuple[Offer, ...]
    slo: Mapping[str, Any]
    requests: Mapping[str, Any]
    engines: tuple[str, ...]
    precisions: tuple[str, ...]
    objective: str
    rate: float
    pools: bool
    max_num_seqs: tuple[int, ...] = SEQS
    max_num_batched_tokens: tuple[int, ...] = TOKENS
    note: str = ""  # on the lengths of requests, where they are shorter than usual


def asked_of(
    model: Source,
    on: Sequence[str],
    *,
    ttft: str | None = None,
    tpot: str | None = None,
    e2e: str | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    spread: float = SPREAD,
    requests: str | None = None,
    rate: float = 0.0,
    usd_per_hour: float | None = None,
    watts: float | None = None,
    engines: Sequence[str] = (),
    precisions: Sequence[str] = (),
    objective: str | None = None,
    prices: Mapping[str, float] | None = None,
    pools: bool = False,
) -> Asked:
    """The question as it is asked on the command line. ``input_tokens``, ``output_tokens``: None for the usual ones, or
    what fits the model. Raises SpecError for what is unknown or contradictory.
    """
    if not on:
        raise SpecError("--on: name the GPUs and how many there are, such as --on h200:32")
    if ttft is None and tpot is None and e2e is None:
        raise SpecError(
            "a recommendation needs limits: give --ttft (time to first token, such as 2s), --tpot (time per output "
            "token, such as 50ms) or --e2e, or more of them"
        )
    for name, text in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        _time_ns(f"--{name}", text)
    for name, given, known in (("--engine", engines, tuple(ENGINES)), ("--precision", precisions, PRECISIONS)):
        for each in given:
            if each not in known:
                raise SpecError(f"{name}: unknown {each!r}{did_you_mean(each, known)} (known: {', '.join(known)})")
    if objective is not None and objective not in OBJECTIVES:
        raise SpecError(f"--best: unknown {objective!r} (known: {', '.join(OBJECTIVES)})")
    offers = tuple(_offer(each, usd_per_hour, watts, prices or {}) for each in on)
    if objective is None:
        objective = PRICE if rate or len({offer.gpu for offer in offers}) > 1 else THROUGHPUT
    for offer in offers:
        if objective == PRICE and offer.rent is None:
            raise SpecError(f"the price of {offer.gpu} is not known: give --price {offer.gpu}=USD (an hour of one GPU)")
    slo = {name: given for name, given in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)) if given is not None}
    whose = load_model(model) if isinstance(model, str | Path) else _model_of(model)
    prompt, answer, note = _lengths(whose, input_tokens, output_tokens, spread)
    traffic: dict[str, Any] = {
        "arrivals": {"rate": "1/s"}, "input": {"mean": prompt, "cv": spread},
        "output": {"mean": answer, "cv": spread}, "count": MOST_REQUESTS,
    } if requests is None else {"trace": requests}  # fmt: skip
    return Asked(
        whose, str(model) if isinstance(model, Path) else model, offers, slo, traffic, tuple(engines),
        tuple(precisions), objective, rate, pools, note=note if requests is None else "",
    )  # fmt: skip


def _lengths(model: ModelSpec, prompt: float | None, answer: float | None, spread: float) -> tuple[float, float, str]:
    """Mean tokens of prompts and of outputs, and a note. Those that a user leaves open (None) are the usual ones, or
    shorter, so that the longest request that is drawn fits the model's positions.
    """
    usual: tuple[float, float] = (prompt or INPUT_TOKENS, answer or OUTPUT_TOKENS)
    positions = model.extended_positions or model.positions
    if positions is None:
        return *usual, ""

    def shortened(tokens: float, given: float | None) -> float:
        return given or max(LENGTH_STEP, int(tokens * positions / longest) // LENGTH_STEP * LENGTH_STEP)

    means, before = usual, None
    while (longest := _longest(*means, spread)) > positions and means != before:
        before, means = means, (shortened(means[0], prompt), shortened(means[1], answer))
    if means == usual or longest > positions:  # lengths of the user's own that are too long are refused as requests
        return *usual, ""
    return *means, (
        f"Prompts have {means[0]:,g} tokens and outputs {means[1]:,g} on average, not {usual[0]:,g} and {usual[1]:,g}, "
        f"so that the longest request fits the {positions:,} positions of {model.name}."
    )


def _longest(prompt: float, answer: float, spread: float) -> int:
    """Tokens of the longest request that is drawn, with its output."""
    sides = ((prompt, INPUT_STREAM), (answer, OUTPUT_STREAM))
    seed = RequestSpec.model_fields["seed"].default
    prompts, answers = (
        lengths(MOST_REQUESTS, *LengthSpec(mean=mean, cv=spread).drawn, seed, stream) for mean, stream in sides
    )
    return int((prompts + answers).max())


def _time_ns(option: str, text: str | None) -> float:
    """Raises SpecError for what is no time above 0."""
    try:
        value = float("inf") if text is None else float(parse_quantity(text, TIME))
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None
    if not value > 0:
        raise SpecError(f"{option} {text}: expected a time above 0")
    return value


def _model_of(source: Any) -> ModelSpec:
    if isinstance(source, ModelSpec):
        return source
    return ModelSpec.model_validate(source)


def _offer(text: str, usd_per_hour: float | None, watts: float | None, prices: Mapping[str, float]) -> Offer:
    """``h200:32``; without a number, as many as a budget of USD an hour or W allows, or one machine has."""
    name, colon, number = text.rpartition(":") if ":" in text else (text, "", "")
    if colon and not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise SpecError(f"--on {text}: expected GPU:NUMBER, such as h200:32; {number!r} is no number of GPUs")
    devices = int(number) if colon else None
    source = _system_named(name, devices or 1)
    system = load_system(source)
    if system.launch != WITH_KERNELS:
        raise SpecError(
            f"--on {name}: {system.name} runs no serving engine whose host is known; `archsim serve` simulates it"
        )
    stem, _, end = system.name.rpartition("_")
    gpu = stem if end in MACHINES else system.compute.calibration or system.name  # its laws may be of another GPU
    rent = rent_of(gpu, prices)
    bounds = [devices] if devices is not None else []
    if usd_per_hour is not None:
        if rent is None:
            raise SpecError(f"--usd: the price of {gpu} is not known: give --price {gpu}=USD (an hour of one GPU)")
        bounds.append(int(usd_per_hour / rent.usd_per_hour))
    if watts is not None:
        bounds.append(int(watts / board_w(gpu)))
    most = min(bounds) if bounds else system.dies
    if most < 1:
        raise SpecError(f"--on {text}: the budget does not pay for one {gpu}: raise --usd or --watts")
    return Offer(name, gpu, most, system, source, rent)


def _system_named(name: str, devices: int) -> str:
    """A shipped system with so many GPUs of a name, or the system of this name or file."""
    known, key = named_files("systems"), name.lower()
    kinds = [each for end in MACHINES if (each := f"{key}_{end}") in known]
    for each in kinds:
        if load_system(each).dies >= devices:
            return each
    if kinds:
        return kinds[-1]  # engines are no larger than this; more of them stand beside each other
    if name in known or Path(name).is_file():
        return name
    gpus = [each.rpartition("_")[0] for each in known if each.rpartition("_")[2] in MACHINES]
    told = ", ".join(dict.fromkeys(gpus))
    raise SpecError(f"--on {name}: unknown GPU{did_you_mean(name, gpus)} (known: {told}; or a system by name or file)")


# ---- kinds: an engine with a precision on a GPU


class SearchedServing(NamedTuple):
    """``serving``: its file, read, with the search of its sizes and limits."""

    offer: Offer
    engine: str
    precision: str
    dtypes: PrecisionSpec
    serving: Serving


def kinds_of(asked: Asked) -> list[SearchedServing]:
    """The kinds of all engines and precisions that may be chosen. Raises SpecError."""
    found = []
    for offer in asked.offers:
        engines = asked.engines or tuple(each for each in ENGINES if not (each in NVIDIA_ONLY and offer.gpu in AMD))
        for engine, precision in product(engines, asked.precisions or _usual(asked.model, offer.gpu)):
            dtypes = _dtypes(asked.model, offer.gpu, engine, precision)
            given = _file(asked, offer, engine, dtypes) | {"search": {
                "devices": offer.devices, "max_num_seqs": list(asked.max_num_seqs),
                "max_num_batched_tokens": list(asked.max_num_batched_tokens),
            }}  # fmt: skip
            found.append(SearchedServing(offer, engine, precision, dtypes, load_serving(given)))
    return found


def _usual(model: ModelSpec, gpu: str) -> tuple[str, ...]:
    """Precisions in which a model is served on a GPU where the user names none: its own; FP8; NVFP4 on Blackwell."""
    if model.name in NATIVE:
        return (NATIVE[model.name],)
    if gpu in BLACKWELL:
        return (FP8, NVFP4)
    return (FP8,) if gpu in (*FP8_GPUS, *AMD) else (BF16,)


def _dtypes(model: ModelSpec, gpu: str, engine: str, precision: str) -> PrecisionSpec:
    """The dtypes with which engines serve the published checkpoints: FP8 of mixtures of experts has a scale a block,
    that of dense models one a tensor; TensorRT-LLM keeps KV in FP8 beside narrow weights (NVIDIA's checkpoints say so).
    """
    narrow, moe = precision != BF16, has_experts(model)
    products = experts = {FP8: "fp8_block" if moe else "fp8"}.get(precision, precision)
    if precision == MXFP4:
        products, experts = BF16, "mxfp4_mxfp8" if gpu in BLACKWELL else MXFP4
        narrow = False
    kv = FP8 if narrow and engine == "trtllm" else BF16
    return PrecisionSpec.model_validate({"products": products, "experts": experts if moe else products, "kv": kv})


def _file(asked: Asked, offer: Offer, engine: str, dtypes: PrecisionSpec) -> dict[str, Any]:
    """Of ``archsim serve``, without sizes and batch limits."""
    return {
        "system": offer.source, "model": asked.model_source, "engine": engine,
        "precision": dtypes.model_dump(exclude_none=True), "requests": dict(asked.requests),
        "scheduler": {"name": ENGINES[engine]}, "slo": dict(asked.slo),
    }  # fmt: skip


# ---- the race

RESIDENCES = 3.0
FEWEST, FULL_REQUESTS, MOST_REQUESTS = 320, 2000, 6000  # of a run; of that which is shown; of any
QUICK_CLOSE = 0.06  # to which a rate is found among sizes
RACED_OF_KIND, RACED = 3, 9  # sizes that are served, by their estimates: of an engine and precision, and in all
LEFT_BELOW = 0.7  # of the best rate a GPU: sizes that serve no more are left after a run
BETTER = 1.02  # batch limits are better by so much
LIMITED, FINALISTS = 3, 5  # sizes with all batch limits, and on the grid
MOST_OF_KIND = 3  # of these, of one engine and precision
ROOM = 1.3  # of the requests that an engine has: a batch limit beyond that changes nothing
GRID = (0.6, 0.8, 0.9, 1.0, 1.12, 1.3)  # of the rate found
DRAWS = 2000


class Tried(NamedTuple):
    """One engine's sizes with the best batch limits so far. ``rate``: of one instance, or of all where ``choice`` has
    pools, 0: none, or far below others; ``residence_ns``: about the time of a request in it; ``simulated``: runs;
    ``configurations``: sizes and limits that were looked at; ``refused``: why none runs.
    """

    kind: int
    choice: Configuration
    rate: float
    residence_ns: float
    simulated: int
    configurations: int
    refused: str = ""

    def per_gpu(self) -> float:
        """Requests a second."""
        return self.rate / (self.choice.devices if self.choice.prefill else self.choice.parallel.ranks)


class _Race:
    """What all processes know: kinds, their requests, the engines that they have built."""

    def __init__(self, asked: Asked, kinds: Sequence[SearchedServing], requests: Requests) -> None:
        self.asked, self.kinds, self.requests = asked, kinds, requests
        self.built: dict[tuple[int, ParallelSpec, bool], tuple[ServingEngine, Built]] = {}

    def side(self, kind: int, parallel: ParallelSpec, alone: bool = False) -> tuple[ServingEngine, Built]:
        """An engine; ``alone``: that only decodes. Raises ArchsimError."""
        key = kind, parallel, alone
        if key not in self.built:
            serving = self.kinds[kind].serving
            one = decodes_alone(serving, parallel) if alone else serving
            self.built[key] = largest(one, parallel, alone)
        return self.built[key]

    def deployment(self, kind: int, choice: Configuration) -> Deployment:
        """Raises ArchsimError."""
        sides = [self.side(kind, choice.parallel)]
        if choice.prefill:
            sides.append(self.side(kind, choice.decode or choice.parallel, True))
        return deployment_of(self.kinds[kind].serving, sides, choice)

    def asked_at(self, rate: float, residence_ns: float) -> Requests:
        """As many requests at a rate as are needed to see a queue grow."""
        count = RESIDENCES * rate * residence_ns / NS_PER_S
        some = first(self.requests, int(min(max(count, FEWEST), MOST_REQUESTS)))
        return scaled(some, rate / some.offered_per_s)

    def share(self, kind: int, deployment: Deployment, rate: float, residence_ns: float) -> float:
        """The share of requests that are within the limits at a rate. It is 0 where requests come
        faster than they end.
        """
        serving = self.kinds[kind].serving
        return share_within(serving, deployment, self.asked_at(rate, residence_ns))

    def warm_up(self, every: Sequence[tuple[int, ParallelSpec]]) -> None:
        """Serve a few requests with the first sizes that can, so that processes begin with compiled functions."""
        for kind, parallel in every:
            try:
                deployment = self.deployment(kind, Configuration(parallel, 1, USUAL_SEQS, USUAL_TOKENS))
                estimate_rate(self.kinds[kind].serving, *self.side(kind, parallel), self.requests)
                simulated(self.kinds[kind].serving, deployment, first(self.requests, 8))
                return
            except ArchsimError:
                continue

    # Each of the following is the work of one task.

    def estimate(self, task: tuple[int, ParallelSpec]) -> RateEstimate:
        """The estimate for some sizes, from their laws."""
        kind, parallel = task
        try:
            return estimate_rate(self.kinds[kind].serving, *self.side(kind, parallel), self.requests)
        except ArchsimError as error:
            return RateEstimate(0.0, 0.0, str(error))

    def sizes(self, task: tuple[int, ParallelSpec, RateEstimate, float]) -> Tried:
        """The rate of sizes with the usual batch limits, and the fewest requests that do not bound it. The last of the
        task: requests a second a GPU that are known to be served.
        """
        kind, parallel, guess, best = task
        given = self.asked
        running = ROOM * guess.rate * guess.residence_ns / NS_PER_S / parallel.attention.dp
        enough = [each for each in sorted(given.max_num_seqs) if each >= running]
        choice = Configuration(parallel, 1, enough[0] if enough else max(given.max_num_seqs),
                        _nearest(given.max_num_batched_tokens, USUAL_TOKENS),
                        precision=self.kinds[kind].dtypes)  # fmt: skip
        try:
            return self._rate(kind, choice, LEFT_BELOW * best * parallel.ranks, guess)
        except ArchsimError as error:
            return Tried(kind, choice, 0.0, guess.residence_ns, 0, 1, str(error))

    def _rate(self, kind: int, choice: Configuration, least: float, guess: RateEstimate) -> Tried:
        """By bisection, unless not even ``least`` is within the limits. Raises ArchsimError."""
        deployment, runs = self.deployment(kind, choice), 0

        def fits(rate: float) -> bool:
            nonlocal runs
            runs += 1
            return self.share(kind, deployment, rate, guess.residence_ns) >= WITHIN

        if least and not fits(least):
            return Tried(kind, choice, 0.0, guess.residence_ns, runs, 1)
        low, high = least, 0.0
        rate = max(guess.rate, least * BETTER)
        for _ in range(MOST_STEPS):
            if fits(rate):
                low = rate
            else:
                high = rate
            if low and high:
                break
            rate = rate * STEP if not high else rate / STEP
        while low and high and high / low > 1 + QUICK_CLOSE:
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return Tried(kind, choice, low, guess.residence_ns, runs, 1)

    def limits(self, task: Tried) -> Tried:
        """The best batch limits of sizes whose rate with the usual ones is known. A limit of requests that is beyond
        what the engine has changes nothing, and is not served.
        """
        best, runs, seen = task, 0, 0
        for seqs, tokens in product(self.asked.max_num_seqs, self.asked.max_num_batched_tokens):
            choice = task.choice._replace(max_num_seqs=seqs, max_num_batched_tokens=tokens)
            if choice == task.choice:
                continue
            seen += 1
            if seqs > task.choice.max_num_seqs or 2 * seqs < task.choice.max_num_seqs:
                continue
            try:
                guess = RateEstimate(best.rate * (1 + 2 * QUICK_CLOSE), task.residence_ns)
                found = self._rate(task.kind, choice, best.rate * BETTER, guess)
            except ArchsimError:
                continue
            runs += found.simulated
            if found.rate > best.rate * BETTER:
                best = found
        return best._replace(simulated=runs, configurations=seen)

    def pool(self, task: tuple[int, Configuration, RateEstimate, float]) -> Tried:
        """The rate of engines that prefill with others that decode, all together. The last of the task: requests a
        second that other pools of these GPUs serve.
        """
        kind, choice, guess, best = task
        try:
            return self._rate(kind, choice, max(0.5 * guess.rate, POOLS_LEFT_BELOW * best), guess)
        except ArchsimError as error:
            return Tried(kind, choice, 0.0, guess.residence_ns, 0, 1, str(error))

    def shown(self, task: Tried) -> tuple[Curve, Upkeep]:
        """All that is told of one of the best: its times at rates around that found, and its energy at its rate."""
        curve = self._grid(task)
        return curve, self._energy(task, curve.highest(limits_of(self.kinds[task.kind].serving)))

    def _grid(self, task: Tried) -> Curve:
        """Times at rates around that found, with the same requests."""
        serving, rates, times = self.kinds[task.kind].serving, [], []
        deployment = self.deployment(task.kind, task.choice)
        asked = self.asked_at(task.rate, task.residence_ns)
        for share in GRID:
            served = simulated(serving, deployment, scaled(asked, share))
            found, lost = times_ns(served), bool(saturation(served))
            rates.append(share * task.rate)
            times.append(np.stack([np.full_like(found[each], np.inf) if lost else found[each] for each in TIMES]))
        return Curve(np.array(rates), np.stack(times))

    def _energy(self, tried: Tried, rate: float) -> Upkeep:
        """Under load, at a rate."""
        kind, asked = self.kinds[tried.kind], self.asked_at(max(rate, 1e-3), tried.residence_ns)
        served = simulated(kind.serving, self.deployment(tried.kind, tried.choice), asked, logged=MOST_LOGGED)
        engine = self.side(tried.kind, tried.choice.parallel)[0]
        return upkeep(served, engine, kind.offer.system, tried.choice.devices, kind.offer.gpu)


STEP, MOST_STEPS = 1.3, 12  # by which a rate is raised or lowered until it is bracketed
TIMES = ("ttft", "tpot", "e2e")
MOST_LOGGED = 500_000


def limits_of(serving: Serving) -> np.ndarray:
    """float64[3]: ns of TIMES, infinite where there is none."""
    slo = serving.spec.slo
    return np.array([np.inf if each is None else each for each in (slo.ttft_ns, slo.tpot_ns, slo.e2e_ns)])


def _nearest(values: Sequence[int], usual: int) -> int:
    return min(values, key=lambda each: abs(log(each / usual)))


class Curve(NamedTuple):
    """``rates``: float64[rate]; ``times_ns``: float64[rate, TIMES, request], infinite where requests pile up."""

    rates: np.ndarray
    times_ns: np.ndarray

    def highest(self, limits: np.ndarray) -> float:
        """The highest rate at which WITHIN of the requests are within limits in ns; interpolated."""
        shares = (self.times_ns <= limits[None, :, None]).all(axis=1).mean(axis=1)
        good = np.flatnonzero(shares >= WITHIN)
        if not len(good):
            return float(self.rates[0] * shares[0] / WITHIN)  # below the grid: in proportion
        at = int(good[-1])
        if at == len(self.rates) - 1:
            return float(self.rates[at])
        over, under = shares[at] - WITHIN, WITHIN - shares[at + 1]
        return float(self.rates[at] + (self.rates[at + 1] - self.rates[at]) * over / max(over + under, 1e-9))

    def shares_at(self, rate: float, limits: np.ndarray) -> np.ndarray:
        """float64[TIMES]: of requests within each limit, at the next rate of the grid above ``rate``."""
        at = min(int(np.searchsorted(self.rates, rate, side="right")), len(self.rates) - 1)
        return (self.times_ns[at] <= limits[:, None]).mean(axis=1)


# ---- how sure

QUANTILE = 1.2816  # standard deviations within which 80 % of a normal distribution lie
# Of pools, no cell has residuals: medians of absolute errors of docs/accuracy.csv (disaggregated all) over 0.6745.
POOL_SPREAD = MappingProxyType({"tpot": 0.080 / 0.6745, "ttft": 0.323 / 0.6745})


class Factors(NamedTuple):
    """Measured times over simulated ones: mean and standard deviation of logarithms of (TTFT, TPOT); ``groups``: of
    measurements, 0: none.
    """

    mean: tuple[float, float]
    spread: tuple[float, float]
    groups: int


def factors_of(kind: SearchedServing, choice: Configuration) -> Factors:
    """The factors of its cell, or those of pools if it has none."""
    dtypes = kind.dtypes
    found = residual_of(kind.engine, kind.serving.model, kind.offer.gpu, str(dtypes.experts), str(dtypes.products))
    if choice.prefill or found is None:
        return Factors((0.0, 0.0), (POOL_SPREAD["ttft"], POOL_SPREAD["tpot"]), 0)
    ranges = (found.ttft, found.tpot)
    mean = [(log(low) + log(high)) / 2 for low, high in ranges]
    spread = [log(high / low) / 2 / QUANTILE for low, high in ranges]
    return Factors((mean[0], mean[1]), (spread[0], spread[1]), found.groups)


def drawn_rates(
    kinds: Sequence[SearchedServing], finalists: Sequence[Tried], curves: Sequence[Curve], seed: int = 0
) -> np.ndarray:
    """float64[finalist, draw]: the highest rate of each, see the module."""
    draw = np.random.default_rng(seed)
    common: dict[tuple, np.ndarray] = {}
    rates = np.empty((len(finalists), DRAWS))
    for at, (tried, curve) in enumerate(zip(finalists, curves, strict=True)):
        kind = kinds[tried.kind]
        found = factors_of(kind, tried.choice)
        key = kind.engine, kind.offer.gpu, kind.precision, bool(tried.choice.prefill)
        if key not in common:
            common[key] = draw.standard_normal((2, DRAWS))
        shared = 1 / max(found.groups, 1)
        own = draw.standard_normal((2, DRAWS))
        z = sqrt(shared) * common[key] + sqrt(1 - shared) * own
        ttft, tpot = (np.exp(found.mean[i] + found.spread[i] * z[i]) for i in (0, 1))
        limits = limits_of(kind.serving)
        for n in range(DRAWS):
            asked = limits / np.array([ttft[n], tpot[n], tpot[n]])
            rates[at, n] = curve.highest(asked) / tpot[n]
    return rates


# ---- the answer


@dataclass(frozen=True, eq=False)
class Recommended:
    """One configuration. ``instances``: on all GPUs of its offer, or as many as the asked rate needs; ``rate_per_s``:
    of all, with 80 % range ``low`` to ``high``; ``probability``: that it is the best of those compared.
    """

    kind: SearchedServing
    choice: Configuration
    rate_per_s: float
    low: float
    high: float
    probability: float
    upkeep: Upkeep
    usd_per_million: float
    limited: np.ndarray

    @property
    def devices(self) -> int:
        return self.choice.devices

    @property
    def sizes(self) -> str:
        """``4 x attention TP 8, experts EP 8``."""
        return describe_sizes(self.choice)

    def row(self) -> dict[str, Any]:
        """COLUMNS of it."""
        choice, attention, experts = self.choice, self.choice.parallel.attention, self.choice.parallel.experts
        return {
            "engine": self.kind.engine, "gpu": self.kind.offer.gpu, "gpus": self.devices,
            "precision": self.kind.precision, "instances": choice.instances, "prefill": choice.prefill,
            "tp": attention.tp, "dp": attention.dp, "ep": experts.ep if experts else None,
            "expert_tp": experts.tp if experts else None, "max_num_seqs": choice.max_num_seqs,
            "max_num_batched_tokens": choice.max_num_batched_tokens, "rate_per_s": self.rate_per_s,
            "rate_low_per_s": self.low, "rate_high_per_s": self.high, "probability": self.probability,
            "usd_per_million_output_tokens": self.usd_per_million, "j_per_output_token": self.upkeep.j_per_token[0],
            "w_per_gpu": self.upkeep.w_per_gpu[0], "sizes": self.sizes,
        }  # fmt: skip


COLUMNS = {
    "engine": TEXT, "gpu": TEXT, "gpus": INTEGER, "precision": TEXT, "instances": INTEGER, "prefill": INTEGER,
    "tp": INTEGER, "dp": INTEGER, "ep": INTEGER, "expert_tp": INTEGER, "max_num_seqs": INTEGER,
    "max_num_batched_tokens": INTEGER, "rate_per_s": REAL, "rate_low_per_s": REAL, "rate_high_per_s": REAL,
    "probability": REAL, "usd_per_million_output_tokens": REAL, "j_per_output_token": REAL, "w_per_gpu": REAL,
    "sizes": TEXT,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Recommendation(Shown):
    """``best``: the most likely best; ``others``: in order of probability, then of what was asked. ``measures``: of the
    best, all of its instances served at 95 % of its rate. ``configurations``, ``simulated``: looked at, and runs;
    ``ended``: whether Ctrl-C ended the race. ``notes``: what a reader has to know.
    """

    asked: Asked
    best: Recommended
    others: tuple[Recommended, ...]
    measures: Measures
    configurations: int
    simulated: int
    refused: tuple[tuple[str, str], ...]
    ended: bool
    notes: tuple[str, ...]

    @property
    def started(self) -> list[Started]:
        """How the engines of the best are started."""
        return started_of(self.best)

    @property
    def table(self) -> Table:
        """A row a configuration that was compared."""
        return Table(dict(COLUMNS), tuple(each.row() for each in (self.best, *self.others)))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per configuration that was compared, the best first."""
        return self.table.to_pandas()

    def __repr__(self) -> str:
        return f"Recommendation({answer(self)})"

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "answer": answer(self), "why": list(why(self)), "best": self.best.row(),
            "compared": [each.row() for each in (self.best, *self.others)],
            "configurations": self.configurations, "simulated_runs": self.simulated, "ended": self.ended,
            "measures": self.measures, "start": start_script(self.best), "serve_file": serve_file(self),
            "notes": list(self.notes),
        }  # fmt: skip


def recommend(asked: Asked, told: Callable[[str], None] = lambda text: None, jobs: int = 1) -> Recommendation:
    """Race all configurations, and compare the best. Raises SpecError where none serves within the limits, TraceError
    where an engine would reject requests.
    """
    kinds = kinds_of(asked)
    requests = requests_of(kinds[0].serving)
    if requests.rejected:  # else the shorter ones alone would decide
        raise TraceError(f"{next(rejected_told(requests))} Draw shorter ones (--input, --output), or leave them out")
    if not requests.offered_per_s:
        raise SpecError("a recommendation needs requests that arrive over time: this trace has them all at once")
    race = _Race(asked, kinds, requests)
    every = [
        (kind, parallel) for kind, each in enumerate(kinds)
        for parallel in sizes_of(each.serving, _most_ranks(each.offer))
    ]  # fmt: skip
    told(f"estimating {len(every)} {'size' if len(every) == 1 else 'sizes'} of engines")
    race.warm_up(every)  # here, so that no process compiles or loads what another one does
    done, ended = _raced(race, every, told, jobs)
    served = sorted((each for each in done if each.rate > 0), key=_by_rate)
    if not served:
        raise SpecError(_none_told(asked, kinds, done))
    if not ended:
        served = _with_limits(race, served, done, told, jobs)
    if asked.pools and not ended:
        served = sorted([*served, *_with_pools(race, served, done, told, jobs)], key=_by_rate)
    finalists = _chosen(race, served, FINALISTS)
    told(f"serving the {len(finalists)} best at {len(GRID)} rates each")
    shown: dict[int, tuple[Curve, Upkeep]] = {}
    try:
        for at, each in in_copies(lambda at: race.shown(finalists[at]), range(len(finalists)), jobs):
            shown[at] = each
    except KeyboardInterrupt:
        if not shown:
            raise
        ended = True
        told(f"ended: the {len(shown)} of the {len(finalists)} best that were served are compared")
    order = sorted(shown)
    return _compared(race, [finalists[at] for at in order], [shown[at] for at in order], done, ended)


def _most_ranks(offer: Offer) -> int:
    most = min(offer.devices, offer.system.dies, MOST_RANKS)
    return 1 << (most.bit_length() - 1)


def _by_rate(tried: Tried) -> tuple:
    return -tried.per_gpu(), tried.kind, tried.choice.name


def _raced(
    race: _Race, every: Sequence[tuple[int, ParallelSpec]], told: Callable[[str], None], jobs: int
) -> tuple[list[Tried], bool]:
    """The sizes that were served, with their rates, and all others; and whether the race was ended. The best rate of a
    GPU is known to those that are served later: what is far below it is left.
    """
    guesses: list[tuple[int, ParallelSpec, RateEstimate]] = []
    done: list[Tried] = []
    best: dict[str, float] = {}
    ended = False
    try:
        for (kind, parallel), guess in in_copies(race.estimate, every, jobs):
            guesses.append((kind, parallel, guess))
            told(f"{len(guesses)} of {len(every)} sizes of engines estimated")
    except KeyboardInterrupt:
        ended = True
    guesses.sort(key=lambda each: (-each[2].rate / each[1].ranks, each[0], str(each[1])))
    chosen = _raced_of(guesses, race)
    others = [each for each in guesses if each not in chosen]
    left = [
        Tried(kind, Configuration(parallel, 1, USUAL_SEQS, USUAL_TOKENS), 0.0, 0.0, 0, 1, guess.refused)
        for kind, parallel, guess in others
    ]  # fmt: skip

    def tasks() -> Iterator[tuple[int, ParallelSpec, RateEstimate, float]]:
        begun: set[int] = set()  # the first of each kind is served to the end, so that engines can be compared
        for kind, parallel, guess in chosen:
            yield kind, parallel, guess, best.get(race.kinds[kind].offer.gpu, 0.0) if kind in begun else 0.0
            begun.add(kind)

    try:
        for _, tried in in_copies(race.sizes, tasks(), jobs):
            done.append(tried)
            gpu = race.kinds[tried.kind].offer.gpu
            best[gpu] = max(best.get(gpu, 0.0), tried.per_gpu())
            told(f"{len(done)} of the {len(chosen)} best sizes served")
    except KeyboardInterrupt:
        ended = True
    if ended and not any(each.rate for each in done):
        raise KeyboardInterrupt
    if ended:
        told(f"ended after {len(done)} sizes were served: these are compared")
    return [*done, *left], ended


def _raced_of(
    guesses: Sequence[tuple[int, ParallelSpec, RateEstimate]], race: _Race
) -> list[tuple[int, ParallelSpec, RateEstimate]]:
    """The best estimates of each engine, precision and GPU, RACED for each GPU."""
    counts: dict[Any, int] = {}
    kept = []
    for each in guesses:
        gpu = race.kinds[each[0]].offer.gpu
        fits = counts.get(each[0], 0) < RACED_OF_KIND and counts.get(gpu, 0) < RACED
        if each[2].rate and not each[2].refused and fits:
            kept.append(each)
            counts[each[0]], counts[gpu] = counts.get(each[0], 0) + 1, counts.get(gpu, 0) + 1
    return kept


def _with_limits(
    race: _Race, served: Sequence[Tried], done: list[Tried], told: Callable[[str], None], jobs: int
) -> list[Tried]:
    """The best sizes with their best batch limits; adds what was tried to ``done``."""
    found: dict[tuple[int, ParallelSpec], Tried] = {(each.kind, each.choice.parallel): each for each in served}
    chosen = _chosen(race, served, LIMITED)
    try:
        for at, (_, tried) in enumerate(in_copies(race.limits, chosen, jobs), 1):
            done.append(tried)
            found[tried.kind, tried.choice.parallel] = tried
            told(f"batch limits of {at} of the {len(chosen)} best sizes compared")
    except KeyboardInterrupt:
        told("ended: the batch limits found so far are compared")
    return sorted(found.values(), key=_by_rate)


def _chosen(race: _Race, served: Sequence[Tried], most: int) -> list[Tried]:
    """The best of each engine on each GPU, so that these can be compared, and as many more as make it ``most`` and two
    beyond these, no more than MOST_OF_KIND of one engine and precision.
    """
    first_of = {(race.kinds[each.kind].engine, race.kinds[each.kind].offer.gpu): each for each in reversed(served)}
    kept = list(first_of.values())
    for each in served:
        of_kind = [other for other in kept if other.kind == each.kind and bool(other.choice.prefill) == bool(
            each.choice.prefill)]  # fmt: skip
        if each not in kept and len(of_kind) < MOST_OF_KIND and len(kept) < max(most, len(first_of) + 2):
            kept.append(each)
    return sorted(kept, key=_by_rate)


POOL_SHARES = (0.25, 0.5, 0.75)  # of the GPUs that prefill
POOLS_LEFT_BELOW = 0.9  # of the best pools of the same GPUs: those that serve no more are left after a run


def _with_pools(
    race: _Race, served: Sequence[Tried], done: list[Tried], told: Callable[[str], None], jobs: int
) -> list[Tried]:
    """Pools of engines that prefill and others that decode, of the two best sizes of the best engine of each GPU."""
    tasks: list[tuple[int, Configuration, RateEstimate]] = []
    for gpu in dict.fromkeys(race.kinds[each.kind].offer.gpu for each in served):
        mine = [each for each in served if race.kinds[each.kind].offer.gpu == gpu]
        mine = [each for each in mine if each.kind == mine[0].kind][:2]
        devices = race.kinds[mine[0].kind].offer.devices
        for one, other in product(mine, mine):
            prefill, decode = one.choice.parallel, other.choice.parallel
            for number in sorted({max(1, round(share * devices / prefill.ranks)) for share in POOL_SHARES}):
                left = (devices - number * prefill.ranks) // decode.ranks
                if left >= 1:
                    choice = other.choice._replace(
                        parallel=prefill, instances=number + left, prefill=number,
                        decode=decode if decode != prefill else None,
                    )  # fmt: skip
                    tasks.append((one.kind, choice, RateEstimate(mine[0].per_gpu() * devices, mine[0].residence_ns)))
    found = []
    best: dict[str, float] = {}

    def with_best() -> Iterator[tuple[int, Configuration, RateEstimate, float]]:
        for kind, choice, guess in tasks:
            yield kind, choice, guess, best.get(race.kinds[kind].offer.gpu, 0.0)

    try:
        for at, (_, tried) in enumerate(in_copies(race.pool, with_best(), jobs), 1):
            done.append(tried)
            found.append(tried)
            gpu = race.kinds[tried.kind].offer.gpu
            best[gpu] = max(best.get(gpu, 0.0), tried.rate)
            told(f"{at} of {len(tasks)} pools compared")
    except KeyboardInterrupt:
        told("ended: the pools found so far are compared")
    return [each for each in found if each.rate > 0 and not each.refused]


def _compared(
    race: _Race, finalists: Sequence[Tried], shown: Sequence[tuple[Curve, Upkeep]], done: Sequence[Tried], ended: bool
) -> Recommendation:
    asked, kinds, curves, costs = race.asked, race.kinds, [each for each, _ in shown], [each for _, each in shown]
    limits = [limits_of(kinds[each.kind].serving) for each in finalists]
    nominal = [curve.highest(limit) for curve, limit in zip(curves, limits, strict=True)]
    drawn = drawn_rates(kinds, finalists, curves)
    counts = [_instances(asked, kinds[each.kind].offer, each, rate)
              for each, rate in zip(finalists, nominal, strict=True)]  # fmt: skip
    scores = np.stack([
        _score(asked, kinds[each.kind].offer, each, drawn[at], nominal[at], costs[at])
        for at, each in enumerate(finalists)
    ])  # fmt: skip
    probability = np.bincount(scores.argmax(axis=0), minlength=len(finalists)) / scores.shape[1]
    mine = np.array([
        _score(asked, kinds[each.kind].offer, each, np.array([nominal[at]]), nominal[at], costs[at])[0]
        for at, each in enumerate(finalists)
    ])  # fmt: skip
    output = float(race.requests.output.mean())
    rows = []
    for at, each in enumerate(finalists):
        kind, number = kinds[each.kind], counts[at]
        choice = each.choice if each.choice.prefill else each.choice._replace(instances=number)
        times = 1 if each.choice.prefill else number
        low, high = (float(np.percentile(drawn[at], p)) * times for p in (10, 90))
        rent = kind.offer.rent.usd_per_hour if kind.offer.rent else float("nan")
        rate = nominal[at] * times
        loaded = min(rate, asked.rate) if asked.rate else rate
        rows.append(Recommended(
            kind, choice, rate, low, high, float(probability[at]), costs[at],
            usd_per_million(rent * choice.devices, loaded * output),
            curves[at].shares_at(nominal[at], limits[at]),
        ))  # fmt: skip
    order = sorted(range(len(rows)), key=lambda at: (-round(float(probability[at]), 2), -mine[at]))
    if asked.rate and not any(rows[at].rate_per_s >= asked.rate for at in order):
        most = max(row.rate_per_s for row in rows)
        raise SpecError(f"--rate {asked.rate:g}: at most {most:.1f} requests/s are within the limits on these GPUs; "
                        "offer more GPUs, or raise the limits")  # fmt: skip
    best = rows[order[0]]
    measures = _served(race, finalists[order[0]], best)
    refused = tuple(
        (f"{NAMES[kinds[each.kind].engine]}, {each.choice.ranks}", each.refused) for each in done if each.refused
    )
    return Recommendation(
        asked, best, tuple(rows[at] for at in order[1:]), measures, sum(each.configurations for each in done),
        sum(each.simulated for each in done) + len(GRID) * len(finalists), refused, ended,
        tuple(_notes(race, best, measures)),
    )  # fmt: skip


def _instances(asked: Asked, offer: Offer, tried: Tried, rate: float) -> int:
    """Engines alike on the GPUs of an offer, or as many of them as the asked rate needs."""
    if tried.choice.prefill:
        return tried.choice.instances
    most = offer.devices // tried.choice.parallel.ranks
    return min(most, max(1, -int(-asked.rate // rate))) if asked.rate and rate > 0 else most


def _score(asked: Asked, offer: Offer, tried: Tried, rates: np.ndarray, nominal: float, cost: Upkeep) -> np.ndarray:
    """float64[draw]: what is to be largest: requests a second, or minus the price or energy of a token."""
    together = bool(tried.choice.prefill)
    most = 1 if together else offer.devices // tried.choice.parallel.ranks
    ranks = tried.choice.devices if together else tried.choice.parallel.ranks
    if asked.rate:
        needed = np.ceil(asked.rate / np.maximum(rates, 1e-9))
        usd = needed * ranks * (offer.rent.usd_per_hour if offer.rent else 1.0)
        served = asked.rate / NS_PER_S  # fewer requests come than could be served: a tie goes to the higher rate
        return np.where(needed <= most, -usd + served * rates, -1e12 + rates)
    if asked.objective == THROUGHPUT:
        return rates * most
    if asked.objective == PRICE:
        assert offer.rent is not None
        return -offer.rent.usd_per_hour * ranks / np.maximum(rates, 1e-9)
    # Power hardly depends on how long an iteration takes: energy a token goes with the time.
    return -cost.j_per_token[0] * nominal / np.maximum(rates, 1e-9)


LOADED = 0.95  # of the highest rate, at which the best is served to be shown


def _served(race: _Race, tried: Tried, best: Recommended) -> Measures:
    """All of its instances, at LOADED of its rate, or at the rate that is asked."""
    asked, serving = race.asked, race.kinds[tried.kind].serving
    rate = min(asked.rate, best.rate_per_s) if asked.rate else LOADED * best.rate_per_s
    deployment = race.deployment(tried.kind, best.choice)
    some = first(race.requests, FULL_REQUESTS)
    return serve_requests(serving, deployment, scaled(some, rate / some.offered_per_s)).measures


def _none_told(asked: Asked, kinds: Sequence[SearchedServing], done: Sequence[Tried]) -> str:
    refused = [each for each in done if each.refused]
    where = ", ".join(f"{each.devices} {each.gpu}" for each in asked.offers)
    if len(refused) == len(done) and refused:
        last = max(refused, key=lambda each: each.choice.parallel.ranks)
        return f"{asked.model.name} cannot be served on {where}: {last.refused}"
    return (
        f"no configuration of {asked.model.name} on {where} serves {WITHIN:.0%} of the requests with "
        f"{limits_told(asked)}. Raise the limits, or offer other GPUs"
    )


# ---- in words


def limits_told(asked: Asked) -> str:
    """``a first token within 2 s and a token every 50 ms``."""
    said = {"ttft": "a first token within {}", "tpot": "a token every {}", "e2e": "all of the answer within {}"}
    each = [said[name].format(format_quantity(_time_ns(name, value), TIME)) for name, value in asked.slo.items()]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)


def answer(found: Recommendation) -> str:
    """One sentence."""
    best, asked = found.best, found.asked
    rate = asked.rate or best.rate_per_s
    end = {
        THROUGHPUT: "serves most", PRICE: "is the cheapest", ENERGY: "takes the least energy",
    }[asked.objective]  # fmt: skip
    return (
        f"Serve {asked.model.name} with {NAMES[best.kind.engine]} on {best.devices} {best.kind.offer.gpu.upper()} "
        f"({best.sizes}, {precision_told(best)}). Let each rank run up to {best.choice.max_num_seqs} requests and "
        f"{best.choice.max_num_batched_tokens:,} tokens in a step. It answers {_rate(rate)} requests a second with "
        f"{limits_told(asked)} for {WITHIN:.0%} of them. Of {found.configurations} configurations, it {end} with a "
        f"probability of {best.probability:.0%}."
    )


def precision_told(each: Recommended) -> str:
    """``weights in FP8, KV in BF16``."""
    dtypes, model = each.kind.dtypes, each.kind.serving.model
    weights = (
        f"products in {dtypes.products}, experts in {dtypes.experts}"
        if has_experts(model) and dtypes.products != dtypes.experts
        else f"weights in {dtypes.products}"
    )
    return f"{weights}, KV in {dtypes.kv}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def why(found: Recommendation) -> Iterator[str]:
    """Sentences: the range, what limits it, what others lose, price and energy."""
    best, asked, measures = found.best, found.asked, found.measures
    factors = factors_of(best.kind, best.choice)
    by = (
        f"judging by {factors.groups} groups of measurements of {NAMES[best.kind.engine]}"
        if factors.groups
        else "judging by the errors for measured pools"
        if best.choice.prefill
        else "judging by the errors for measured pools, as nothing was measured of this engine"
    )
    yield (
        f"The simulation says {_rate(best.rate_per_s)} requests/s. With 80 % probability, a real system of this kind "
        f"would serve {_rate(best.low)} to {_rate(best.high)}, {by}."
    )
    names = dict(zip(TIMES, ("the time to first token", "the time per output token", "the whole time"), strict=True))
    bound = [name for name in TIMES if name in asked.slo]
    worst = min(bound, key=lambda name: best.limited[TIMES.index(name)])
    share = best.limited[TIMES.index(worst)]
    kept = f"only {share:.0%}" if share >= 0.005 else "hardly any"
    yield (
        f"The limit is {names[worst]}. With slightly more requests, {kept} of them would keep it."
        if share < 1 else "The limit is its throughput. With more requests, a queue would grow."
    )  # fmt: skip
    preempted = {0: "no request is preempted", 1: "1 request is preempted"}
    yield (
        f"At {'the asked rate' if asked.rate else f'{LOADED:.0%} of that rate'}, the mean TTFT is "
        f"{measures.ttft.mean:,.0f} ms and the mean TPOT {measures.tpot.mean:.1f} ms. The KV cache is at most "
        f"{measures.kv_peak:.0%} full, and "
        f"{preempted.get(measures.preemptions, f'{measures.preemptions:,} requests are preempted')}."
    )
    said = set()
    for other in found.others:
        key = other.kind.engine, other.kind.precision, other.kind.offer.gpu
        mine = best.kind.engine, best.kind.precision, best.kind.offer.gpu
        if key in said or (key == mine and "sizes" in said):
            continue
        said.add("sizes" if key == mine else key)
        yield f"{_beside(best, other, asked)}."
    joule, watt = best.upkeep.j_per_token, best.upkeep.w_per_gpu
    if (rent := best.kind.offer.rent) is not None:
        yield (
            f"A million output tokens cost {best.usd_per_million:.2f} USD, if an hour of a GPU costs "
            f"{rent.usd_per_hour:.2f} USD ({rent.low:.2f} to {rent.high:.2f})."
        )
    yield (
        f"An output token takes {joule[0]:.2f} J ({joule[1]:.2f} to {joule[2]:.2f}), with its prompt included. A GPU "
        f"draws {watt[0]:.0f} W under load. Hosts and cooling are not counted."
    )


def _beside(best: Recommended, other: Recommended, asked: Asked) -> str:
    gpus = f"{other.devices} {other.kind.offer.gpu.upper()}"
    what = f"{NAMES[other.kind.engine]} on {gpus} ({other.sizes}, {other.kind.precision})"
    here, there = best.rate_per_s / best.devices, other.rate_per_s / other.devices
    change = there / here - 1
    serves = f"serves {abs(change):.0%} {'fewer' if change < 0 else 'more'} requests a GPU in the simulation"
    if asked.objective == PRICE:
        serves += f" at {other.usd_per_million:.2f} USD a million tokens"
    return f"{what} {serves}. It is the best with a probability of {other.probability:.0%}"


def _notes(race: _Race, best: Recommended, measures: Measures) -> Iterator[str]:
    asked, kind = race.asked, best.kind
    if asked.note:
        yield asked.note
    if "trace" not in asked.requests:
        yield (
            f"Requests come at random times, with a mean of {race.requests.input.mean():,.0f} prompt tokens and "
            f"{race.requests.output.mean():,.0f} output tokens. --input and --output change that, and --requests "
            "takes a trace of your own."
        )
    if kind.precision != BF16:
        yield (
            f"Precision {kind.precision} needs a checkpoint in it, whose quality is not simulated. Give --precision to "
            "choose another."
        )
    if has_experts(kind.serving.model):
        yield (
            "Experts are drawn by chance (routing: uniform), so no balancer would gain anything. `archsim serve` with "
            "routing: {like: model} compares policies, and --loads FILE --out DIR writes a placement."
        )
    if not factors_of(kind, best.choice).groups:
        yield (
            "The probability rests on the errors for measured pools, as nothing was measured with this engine, GPU "
            "and dtype."
        )
    deployment = race.deployment(race.kinds.index(kind), best.choice)
    yield from deployment.notes


# ---- files


def started_of(best: Recommended) -> list[Started]:
    """How its engines are started."""
    kind, choice = best.kind, best.choice
    spec = kind.serving.spec
    precision = kind.dtypes.dtypes(kind.offer.system.compute.dtype)
    one = Started(
        kind.engine, kind.serving.model, choice.parallel, precision, choice.instances, choice.max_num_seqs,
        choice.max_num_batched_tokens, BOTH, bool(spec.scheduler.chunked_prefill), spec.utilisation,
    )  # fmt: skip
    if not choice.prefill:
        return [one]
    decode = one._replace(
        parallel=choice.decode or choice.parallel, instances=choice.instances - choice.prefill, role=DECODE
    )
    return [one._replace(instances=choice.prefill, role=PREFILL), decode]


def start_script(best: Recommended) -> str:
    """The script that starts its engines."""
    return script(started_of(best), gpus_of_host(best.kind.offer.system))


def serve_file(found: Recommendation) -> dict[str, Any]:
    """The best as a file of ``archsim serve``, at the rate at which it is shown."""
    best, asked = found.best, found.asked
    choice = best.choice
    given = _file(asked, best.kind.offer, best.kind.engine, best.kind.dtypes)
    rate = min(asked.rate, best.rate_per_s) if asked.rate else LOADED * best.rate_per_s
    if "arrivals" in given["requests"]:
        given["requests"]["count"] = FULL_REQUESTS
        given["requests"]["arrivals"] = {"rate": f"{rate:.4g}/s"}
    else:
        given["requests"]["speed"] = float(f"{rate / _offered(found):.4g}")
    return with_choice(given, choice)


def _offered(found: Recommendation) -> float:
    return requests_of(found.best.kind.serving).offered_per_s


def write_recommendation(found: Recommendation, folder: Path, loads: Sequence[Path] = ()) -> list[Path]:
    """The files to start the best with: ``serve.yaml`` of ``archsim serve``, ``start.sh`` with the engine's arguments,
    TensorRT-LLM's options, a placement of experts where ``loads`` were recorded, and ``recommendation.json`` and
    ``configurations.csv`` with what was compared. Raises PlacementError and TraceError for loads.
    """
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    started, written = started_of(found.best), []

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)

    rest = "\n".join(f"# {line}" for line in why(found))
    write("serve.yaml", f"# {answer(found)}\n{rest}\n{yaml.safe_dump(serve_file(found), sort_keys=False)}")
    write("start.sh", start_script(found.best))
    for each in started:
        if options := options_file(each):
            write(OPTIONS_OF.format(role=each.role), options)
    if loads:
        from archsim.studies.place import place_experts, read_history, write_placed

        model, ranks = found.asked.model, (found.best.choice.decode or found.best.choice.parallel).sizes().ep
        slots = -(-model.experts // ranks) * ranks
        placed = place_experts(
            read_history(list(loads), model), model, found.best.kind.offer.system, "eplb", slots, ranks, 0.25, None
        )
        written += write_placed(placed, folder / "placement").files
    found.table.write_csv(folder / "configurations.csv")
    written.append(folder / "configurations.csv")
    from archsim.base.files import write_text

    rows = [each.row() for each in (found.best, *found.others)]
    document = {"answer": answer(found), "why": list(why(found)), "compared": rows, "notes": list(found.notes)}
    write_text(folder / "recommendation.json", json.dumps(document, indent=1, ensure_ascii=False))
    return [*written, folder / "recommendation.json"]

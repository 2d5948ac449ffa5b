"""What is asked of a recommendation, and the kinds of engines that may answer it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base import config_files
from archsim.base.errors import SpecError, did_you_mean
from archsim.base.quantities import TIME, format_quantity, parse_quantity
from archsim.base.units import DTYPES
from archsim.base.verbs import caller_name, known_value
from archsim.iteration.constants import shape_of
from archsim.iteration.layers import has_experts
from archsim.machine.system import SystemSpec
from archsim.model.checkpoints import dtypes_in, precision_named
from archsim.model.spec import ModelSpec
from archsim.serving import expert_groups, measures
from archsim.serving.file_requests import INPUT_STREAM, OUTPUT_STREAM
from archsim.serving.power import board_w
from archsim.serving.requests import lengths
from archsim.show.units import count_of
from archsim.specs import library, serving_files
from archsim.specs.deployment import Precision, PrecisionSpec
from archsim.specs.recipes import unserved
from archsim.specs.serving import LengthSpec, RequestSpec
from archsim.specs.unread import unread_everywhere

THROUGHPUT, PRICE, ENERGY = "throughput", "price", "energy"
OBJECTIVES = (THROUGHPUT, PRICE, ENERGY)
ENGINES: Mapping[str, str] = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
NAMES: Mapping[str, str] = MappingProxyType({"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"})
# Where a user says nothing: a chat with a page of context.
INPUT_TOKENS, OUTPUT_TOKENS, SPREAD = 1024, 512, 0.5
# Limits of such a chat: MLPerf Inference v5.1 has 2 s to the first token and 80 ms per token for the server scenario of
# DeepSeek-R1, and 450 ms and 40 ms for interactive Llama-2-70B; 50 ms is 20 tokens/s per user, faster than people read.
USUAL_LIMITS: Mapping[str, str] = MappingProxyType({"ttft": "2 s", "tpot": "50 ms"})
LENGTH_STEP = 16  # tokens, in which usual lengths are made shorter
NVIDIA_ONLY = ("trtllm",)
AMD = ("mi300x", "mi355x")
# Shapes of checkpoints whose experts come in one dtype (model cards of gpt-oss-120b and gpt-oss-20b).
NATIVE: Mapping[str, str] = MappingProxyType({"128/4 2880x2880 grouped": "mxfp4", "32/4 2880x2880 grouped": "mxfp4"})
FP8, NVFP4, BF16, MXFP4 = "fp8", "nvfp4", "bf16", "mxfp4"
PRECISIONS = (BF16, FP8, NVFP4, MXFP4)
FP8_GPUS = ("h100", "h200", "h800", "h20")
BLACKWELL = ("b200", "b300", "gb200", "gb300")
MOST_RANKS = 64  # of one engine
MOST_DEVICES = 4096  # of an offer without a number, where a rate says how many are needed
SEQS, TOKENS = (32, 64, 128, 256, 512), (2048, 4096, 8192, 16384)
USUAL_SEQS, USUAL_TOKENS = 256, 8192
MOST_REQUESTS = 6000  # of a run


class Offer(NamedTuple):
    """GPUs that may be used."""

    name: str  # as asked
    gpu: str  # of its calibration
    devices: int  # at most
    system: SystemSpec
    source: Any  # name, path or content of the system
    rent: measures.Rent | None  # USD an hour of a GPU; None: unknown


class Asked(NamedTuple):
    """What is to be served, on what, within which limits, and which of the answers is the best."""

    model: ModelSpec
    model_source: Any  # name, path or content of the model
    offers: tuple[Offer, ...]
    slo: Mapping[str, Any]  # ttft, tpot, e2e, as of a file of `archsim serve`
    requests: Mapping[str, Any]  # as of a file of `archsim serve`
    engines: tuple[str, ...]  # keys of ENGINES that may be chosen; (): all that run on the GPU
    precisions: tuple[str, ...]  # of PRECISIONS; (): the usual ones of model and GPU
    objective: str  # of OBJECTIVES
    rate: float  # requests a second that have to be served; 0: as many as possible
    pools: bool  # whether engines that prefill, with others that decode, are tried too
    max_num_seqs: tuple[int, ...] = SEQS  # limits of requests that are tried
    max_num_batched_tokens: tuple[int, ...] = TOKENS  # limits of tokens that are tried
    notes: tuple[str, ...] = ()  # on lengths of requests that are shorter than usual, and on how many GPUs are meant
    stages: tuple[int, ...] = (1,)  # of a pipeline, that are tried
    context: tuple[int, ...] = (1,)  # ranks that share the tokens of a request, that are tried
    drafts: tuple[int, ...] = ()  # of every decode, that are tried; 0: none
    acceptance: float | None = None  # of a draft
    assumed: bool = False  # whether the limits are USUAL_LIMITS, as none was given
    budget: tuple[str, ...] = ()  # of usd_per_hour and watts, those that bound the GPUs
    overrides: tuple[str, ...] = ()  # ``system.KEY=VALUE`` of every machine

    @property
    def model_name(self) -> str:
        """The model as it was asked for, with the name of the shape that stands for it."""
        given, own = self.model_source, self.model.name
        if not isinstance(given, str) or Path(given).exists():
            return own
        named = given.rpartition("/")[2]
        return own if named.casefold() == own else f"{named} (as {own})"


def asked_of(
    model: library.Source,
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
    stages: Sequence[int] = (),
    context: Sequence[int] = (),
    drafts: Sequence[int] = (),
    acceptance: float | None = None,
    overrides: Sequence[str] = (),
) -> Asked:
    """The question as it is asked on the command line. ``input_tokens``, ``output_tokens``: None for the usual ones, or
    what fits the model; ``ttft``, ``tpot``, ``e2e``: without any of them USUAL_LIMITS; ``stages``, ``context``,
    ``drafts``: tried beside none. Raises SpecError for what is unknown or contradictory.
    """
    if not on:
        raise SpecError(f"{caller_name('on')}: name the GPUs and how many there are, such as h200:32")
    assumed = ttft is None and tpot is None and e2e is None
    if assumed:
        ttft, tpot = USUAL_LIMITS["ttft"], USUAL_LIMITS["tpot"]
    for name, text in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        time_ns(caller_name(name), text)
    numbers = {"usd_per_hour": usd_per_hour, "watts": watts, "input_tokens": input_tokens,
               "output_tokens": output_tokens, "rate": rate or None}  # fmt: skip
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise SpecError(f"{caller_name(name)} {number:g}: expected a number above 0")
    for name, given, known in (
        ("engines", engines, tuple(ENGINES)), ("precisions", precisions, PRECISIONS),
        ("objective", [] if objective is None else [objective], OBJECTIVES),
    ):  # fmt: skip
        for each in given:
            known_value(name, each, known)
    for text in overrides:
        if not text.startswith("system."):
            raise SpecError(
                f"{caller_name('overrides')} {text}: a recommendation takes keys of the machine, such as "
                "system.hbm.bandwidth=2TB/s. All else is chosen here, or by another option"
            )
    if any(drafts) and acceptance is None:
        raise SpecError(
            f"{caller_name('drafts')} {max(drafts)}: how many are accepted is not known. Give "
            f"{caller_name('acceptance')}, such as 0.8"
        )
    if acceptance is not None and not any(drafts):
        raise SpecError(
            f"{caller_name('acceptance')} {acceptance:g}: of which drafts? Give {caller_name('drafts')}, such as 2"
        )
    if any(each > 1 for each in context) and "vllm" not in (engines or ENGINES):
        told = "only vLLM shares the tokens of a request among ranks when it decodes"
        raise SpecError(f"{caller_name('context')} {max(context)}: {told}")
    bought = tuple(name for name in ("usd_per_hour", "watts") if numbers[name] is not None)
    is_open = bool(rate) and not bought and not pools  # as many GPUs as the rate needs
    offers = tuple(_offer(each, usd_per_hour, watts, prices or {}, MOST_DEVICES if is_open else None) for each in on)
    taken = [f"`--on {each.name}` means {_one_machine(each)}" for text, each in zip(on, offers, strict=True)
             if ":" not in text and not bought and not is_open]  # fmt: skip
    most = max(each.devices for each in offers)
    for name, widest in (("stages", max((1, *stages))), ("context", max((1, *context)))):
        if widest > most:
            raise SpecError(
                f"{caller_name(name)} {widest}: more than the {count_of(most, 'GPU')} that may be used. Give more"
            )
    taken += [f"The machine has {text}, which its files do not say." for text in overrides]
    gpus = {each.gpu for each in offers}
    taken += [f"{caller_name('prices')} {gpu} has no effect: it is not among the GPUs that may be used"
              for gpu in prices or {} if gpu not in gpus]  # fmt: skip
    if rate and objective not in (None, PRICE):
        raise SpecError(
            f"{caller_name('objective')} {objective}: {caller_name('rate')} finds the cheapest GPUs that answer it. "
            f"Leave out {caller_name('objective')} or {caller_name('rate')}"
        )
    if objective is None:
        objective = PRICE if rate or len(gpus) > 1 else THROUGHPUT
    for offer in offers:
        if objective == PRICE and offer.rent is None and (not rate or len(gpus) > 1):
            raise SpecError(f"the price of {offer.gpu} is not known: give {_price(offer.gpu)}")
    slo = {name: given for name, given in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)) if given is not None}
    whose = library.load_model(model) if isinstance(model, str | Path) else _model_of(model)
    if (precision := precision_named(model, whose.name)) and not precisions:
        if precision not in PRECISIONS:
            raise SpecError(f"{model}: {precision} is not compared (known: {', '.join(PRECISIONS)})")
        precisions = (precision,)
    drafting = whose.mtp_layers
    if any(drafts) and drafting == 0:
        raise SpecError(f"{caller_name('drafts')} {max(drafts)}: {whose.name} has no MTP layer to draft with")
    heads = f"It is not known whether the checkpoint of {whose.name} has an MTP layer, which drafts need."
    prompt, output, note = _mean_lengths(whose, input_tokens, output_tokens, spread)
    if requests is not None and not Path(requests).exists():
        raise SpecError(f"{caller_name('requests')} {requests}: no such file")
    traffic: dict[str, Any] = {
        "arrivals": {"rate": "1/s"}, "input": {"mean": prompt, "cv": spread},
        "output": {"mean": output, "cv": spread}, "count": MOST_REQUESTS,
    } if requests is None else {"trace": requests}  # fmt: skip
    return Asked(
        whose, str(model) if isinstance(model, Path) else model, offers, slo=slo, requests=traffic,
        engines=tuple(engines), precisions=tuple(precisions), objective=objective, rate=rate, pools=pools,
        notes=(
            *([note] if note and requests is None else []), *taken,
            *([heads] if any(drafts) and drafting is None else []),
        ), assumed=assumed,
        stages=tuple(dict.fromkeys((1, *stages))), context=tuple(dict.fromkeys((1, *context))),
        drafts=tuple(dict.fromkeys((0, *drafts))) if any(drafts) else (), acceptance=acceptance,
        budget=bought, overrides=tuple(overrides),
    )  # fmt: skip


def _mean_lengths(
    model: ModelSpec, prompt: float | None, output: float | None, spread: float
) -> tuple[float, float, str]:
    """Mean tokens of prompts and outputs, and a note. Those left open (None) are the usual ones, or shorter, so that
    the longest request fits the model's positions.
    """
    usual: tuple[float, float] = (prompt or INPUT_TOKENS, output or OUTPUT_TOKENS)
    positions = model.most_positions
    if positions is None:
        return *usual, ""

    def shorten(tokens: float, given: float | None) -> float:
        return given or max(LENGTH_STEP, int(tokens * positions / longest) // LENGTH_STEP * LENGTH_STEP)

    means, before = usual, None
    while (longest := _longest(*means, spread)) > positions and means != before:
        before, means = means, (shorten(means[0], prompt), shorten(means[1], output))
    if means == usual or longest > positions:  # lengths of the user's own that are too long are refused as requests
        return *usual, ""
    return *means, (
        f"Prompts have {means[0]:,g} tokens and outputs {means[1]:,g} on average, not {usual[0]:,g} and {usual[1]:,g}, "
        f"so that the longest request fits the {positions:,} positions of {model.name}."
    )


def _longest(prompt: float, output: float, spread: float) -> int:
    sides = ((prompt, INPUT_STREAM), (output, OUTPUT_STREAM))
    seed = RequestSpec.model_fields["seed"].default
    prompts, answers = (
        lengths(MOST_REQUESTS, *LengthSpec(mean=mean, cv=spread).drawn, seed, stream) for mean, stream in sides
    )
    return int((prompts + answers).max())


def time_ns(option: str, text: str | None) -> float:
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


def _offer(
    text: str, usd_per_hour: float | None, watts: float | None, prices: Mapping[str, float], most_open: int | None
) -> Offer:
    """``h200:32``; without a number ``most_open``, or what a budget of USD an hour or W allows, or one machine has."""
    name, colon, number = text.rpartition(":") if ":" in text else (text, "", "")
    if colon and not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise SpecError(
            f"{caller_name('on')} {text}: expected GPU:NUMBER, such as h200:32; {number!r} is no number of GPUs"
        )
    devices = int(number) if colon else most_open
    source = _system_named(name, devices or 1)
    system = library.load_system(source)
    if system.launch != expert_groups.WITH_KERNELS:
        raise SpecError(
            f"{caller_name('on')} {name}: {system.name} runs no serving engine whose host is known; `archsim serve` "
            "simulates it"
        )
    stem, _, end = system.name.rpartition("_")
    gpu = stem if end in library.OF_GPU else system.compute.calibration or system.name  # its laws may be of another GPU
    rent = measures.rent_of(gpu, prices)
    bounds = [devices] if devices is not None else []
    if usd_per_hour is not None:
        if rent is None:
            raise SpecError(f"{caller_name('usd_per_hour')}: the price of {gpu} is not known: give {_price(gpu)}")
        bounds.append(int(usd_per_hour / rent.usd_per_hour))
    if watts is not None:
        bounds.append(int(watts / board_w(gpu)))
    most = min(bounds) if bounds else system.dies
    if most < 1:
        raise SpecError(
            f"{caller_name('on')} {text}: the budget does not buy one {gpu}: raise {caller_name('usd_per_hour')} or "
            f"{caller_name('watts')}"
        )
    return Offer(name, gpu, most, system, source, rent)


def _price(gpu: str) -> str:
    """How a caller says it: ``--price h200=USD``, or ``prices={'h200': USD}`` in Python."""
    name = caller_name("prices")
    given = f"{name} {gpu}=USD" if name.startswith("--") else f"{name}={{{gpu!r}: USD}}"
    return f"{given} (an hour of one GPU)"


def _one_machine(offer: Offer) -> str:
    """``one h200_node of 8 GPUs. Give `--on h200:N` for N GPUs.``"""
    gpus = f"{offer.devices} GPU{'s' * (offer.devices > 1)}"
    return f"one {offer.system.name} of {gpus}. Give `--on {offer.name}:N` for N GPUs."


def _system_named(name: str, devices: int) -> str:
    """A shipped system with so many GPUs of a name, or the system of this name or file."""
    known, kinds = config_files.named_files("systems"), library.machines_of_gpu(name)
    if kinds:  # engines are no larger than the largest; more of them stand beside each other
        return library.smallest_machine(kinds, devices)
    if name in known or Path(name).is_file():
        return name
    gpus = library.known_gpus()
    if name in config_files.named_files("models"):
        raise SpecError(f"{caller_name('on')} {name}: a model, not a GPU. Write `archsim recommend {name} --on GPU:N`")
    raise SpecError(
        f"{caller_name('on')} {name}: unknown GPU{did_you_mean(name, gpus)} (known: {', '.join(gpus)}; or a system by "
        "name or file)"
    )


class SearchedServing(NamedTuple):
    """A kind: an engine with a precision on a GPU."""

    offer: Offer
    engine: str  # key of ENGINES
    precision: str  # of PRECISIONS
    dtypes: PrecisionSpec  # of its checkpoint
    serving: serving_files.Serving  # its file, read, with the search of its sizes and limits
    drafts: int | None = None  # of every decode; None: none is asked for

    @property
    def weights(self) -> Precision:
        """The dtypes with what its checkpoint leaves in BF16."""
        return self.dtypes.dtypes(self.offer.system.compute.dtype, self.serving.model)

    @property
    def recipe(self) -> str:
        """The precision, and what it is multiplied in where only weights have it."""
        multiplied = self.serving.precision.experts
        alone = multiplied != BF16 and DTYPES[multiplied].computes == BF16
        return f"{self.precision.upper()} weights, BF16 arithmetic" if alone else self.precision


def kinds_of(asked: Asked) -> list[SearchedServing]:
    """The kinds of all engines and precisions that may be chosen. Raises SpecError for one that is named, or a
    precision on a GPU, that nobody serves.
    """
    found = []
    for offer in asked.offers:
        engines = asked.engines or tuple(each for each in ENGINES if not (each in NVIDIA_ONLY and offer.gpu in AMD))
        usual = asked.precisions or _usual_precisions(asked.model, offer.gpu)
        for engine, precision, drafts in product(engines, usual, asked.drafts or (None,)):
            dtypes = _dtypes(asked, offer.gpu, engine, precision)
            stored = dtypes.dtypes(offer.system.compute.dtype, asked.model)
            if why := unserved(engine, stored, offer.system):
                if engine in asked.engines or all(unserved(each, stored, offer.system) for each in engines):
                    raise SpecError(why)
                continue
            given = file_of(asked, offer, engine, dtypes, drafts) | {"search": {
                "devices": offer.devices, "max_num_seqs": list(asked.max_num_seqs),
                "max_num_batched_tokens": list(asked.max_num_batched_tokens), "pp": list(asked.stages),
                "context": list(asked.context) if engine == "vllm" else [1],
            }}  # fmt: skip
            serving = serving_files.load_serving(given, asked.overrides)
            own = offer._replace(system=serving.system, source=serving.given["system"]) if asked.overrides else offer
            found.append(SearchedServing(own, engine, precision, dtypes, serving, drafts))
    return found


def unread_by(kinds: Sequence[SearchedServing]) -> Iterator[str]:
    """Sentences on the keys of each offer's files that no kind on it reads."""
    offers = dict.fromkeys(kind.offer.name for kind in kinds)
    for name in offers:
        for each in unread_everywhere([kind.serving.unread for kind in kinds if kind.offer.name == name]):
            yield f"{name}: {each}" if len(offers) > 1 else each


def _usual_precisions(model: ModelSpec, gpu: str) -> tuple[str, ...]:
    """Precisions in which a model is served on a GPU where the user names none: its own; FP8; NVFP4 on Blackwell."""
    if (shape := shape_of(model)) in NATIVE:
        return (NATIVE[shape],)
    if gpu in BLACKWELL:
        return (FP8, NVFP4)
    return (FP8,) if gpu in (*FP8_GPUS, *AMD) else (BF16,)


def _dtypes(asked: Asked, gpu: str, engine: str, precision: str) -> PrecisionSpec:
    """Dtypes of published checkpoints. TensorRT-LLM keeps KV in FP8 beside narrow weights (NVIDIA's checkpoints)."""
    products, experts = dtypes_in(precision, has_experts(asked.model))
    if experts == MXFP4 and gpu in BLACKWELL:
        experts = "mxfp4_mxfp8"
    kv = FP8 if products != BF16 and engine == "trtllm" else BF16
    kept = asked.model.kept_in(str(asked.model_source), products)
    return PrecisionSpec.model_validate({"products": products, "experts": experts, "kv": kv, "bf16": kept})


def file_of(
    asked: Asked, offer: Offer, engine: str, dtypes: PrecisionSpec, drafts: int | None = None
) -> dict[str, Any]:
    """Of ``archsim serve``, without sizes and batch limits."""
    speculation = {"speculation": {"draft_tokens": drafts, "acceptance": asked.acceptance}} if drafts else {}
    return speculation | {
        "system": offer.source, "model": asked.model_source, "engine": engine,
        "precision": dtypes.model_dump(mode="json", exclude_none=True), "requests": dict(asked.requests),
        "scheduler": {"name": ENGINES[engine]}, "slo": dict(asked.slo),
    }  # fmt: skip


def describe_limits(asked: Asked) -> str:
    """``a first token within 2 s and a token every 50 ms``."""
    said = {"ttft": "a first token within {}", "tpot": "one token every {}", "e2e": "all of the answer within {}"}
    each = [said[name].format(format_quantity(time_ns(name, value), TIME)) for name, value in asked.slo.items()]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)

"""What a deployment costs while it serves: power and energy a token under load, and rent of its GPUs.

Energy follows from what the iterations of a run did: weights that each rank read, experts that the tokens of an
iteration hit, KV that decodes read, FLOP of all tokens, and time for which every GPU waits
(``microarch.silicon.energy`` has the coefficients, their ranges and sources; docs/economics.md checks them against
whole GPUs). Links between GPUs are left out (below 1 % of the energy of a token), and so are hosts and cooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.iteration.layers import SAMPLED, TOKENS, attentions, has_experts, row_flop
from archsim.runs.energy import Coefficients, build_costs
from archsim.serving.deployment import Engine
from archsim.serving.simulate import Served
from archsim.specs.system import SystemSpec
from microarch.silicon.energy import SIXTEEN_BIT, Activity, run_energy

# ---- rent

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
# W of a board at its limit: datasheets of H100 and H200 SXM (700), HGX B200 (1,000), HGX B300 (1,100), GB200 and GB300
# NVL72 (1,200 and 1,400), A100 SXM (400), MI300X (750), MI355X (1,400).
BOARD_W: Mapping[str, float] = MappingProxyType({
    "a100": 400.0, "h100": 700.0, "h200": 700.0, "h800": 700.0, "h20": 500.0, "b200": 1000.0, "b300": 1100.0,
    "gb200": 1200.0, "gb300": 1400.0, "mi300x": 750.0, "mi355x": 1400.0,
})  # fmt: skip


def rent_of(gpu: str, given: Mapping[str, float]) -> Rent | None:
    """Of a GPU, the user's where there is one; None where none is known. Raises SpecError for a price of 0 or less."""
    if gpu in given:
        if not given[gpu] > 0:
            raise SpecError(f"--price {gpu}={given[gpu]:g}: expected USD an hour of one GPU, above 0")
        return Rent(given[gpu], given[gpu], given[gpu])
    return RENTS.get(gpu)


def board_w(gpu: str) -> float:
    """Raises SpecError for a GPU whose limit is not known."""
    if gpu not in BOARD_W:
        raise SpecError(
            f"the power limit of {gpu} is not known{did_you_mean(gpu, BOARD_W)} (known: {', '.join(BOARD_W)}); give a "
            "budget of GPUs in place of W"
        )
    return BOARD_W[gpu]


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """USD for a million tokens at this rate; infinite where none come."""
    if tokens_per_s <= 0:
        return float("inf")
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PRICED


# ---- energy


class Upkeep(NamedTuple):
    """Under load. ``w_per_gpu``: mean; ``j_per_token``: of an output token, prompts included; each (value, all
    coefficients low, all high). ``limited``: whether a board's limit bounds the power.
    """

    w_per_gpu: tuple[float, float, float]
    j_per_token: tuple[float, float, float]
    limited: bool


# dtypes whose products are in as many bits as their weights; others multiply in 16.
_NARROW_PRODUCTS = ("fp8", "fp8_block", "nvfp4", "mxfp4_mxfp8")


def upkeep(served: Served, engine: Engine, system: SystemSpec, devices: int, gpu: str) -> Upkeep:
    """Of a run of engines alike on ``devices`` GPUs, whose log has all of its iterations."""
    done, machine = activity(served, engine, devices), build_costs(system)
    dtype = engine.precision.experts if has_experts(engine.model) else engine.precision.products
    dtype_bytes = WEIGHT_BYTES["fp8" if dtype == "mxfp4_mxfp8" else dtype] if dtype in _NARROW_PRODUCTS else SIXTEEN_BIT
    most, watts = BOARD_W.get(gpu, np.inf), []
    for coefficients in (Coefficients(), Coefficients().at("low"), Coefficients().at("high")):
        joule = run_energy(
            done, dtype_bytes=dtype_bytes, die_mm2=machine.die_mm2, dies=devices, decision_w=0.0,
            pieces=machine.pieces, estimates=coefficients.energy,
        )  # fmt: skip
        watts.append(sum(joule.values()) / done.time_s / devices)
    bound = [min(each, most) for each in watts]
    tokens_per_s = max(done.tokens, 1.0) / done.time_s
    each_token = [each * devices / tokens_per_s for each in bound]
    return Upkeep((bound[0], bound[1], bound[2]), (each_token[0], each_token[1], each_token[2]), bound[0] < watts[0])


def activity(served: Served, engine: Engine, devices: int) -> Activity:
    """What all GPUs of engines alike did in a run with a log; ``tokens``: of outputs."""
    model, parallel, precision = engine.model, engine.parallel, engine.precision
    requests, log = served.requests, served.log
    prompt, output = requests["input"].astype(float), requests["output"].astype(float)
    computed = float((prompt - requests["hit"]).sum() + (output - 1).sum())
    flop = row_flop(model, parallel)
    of_tokens = sum(each for (rows, _), each in flop.items() if rows == TOKENS)
    of_sampled = sum(each for (rows, _), each in flop.items() if rows == SAMPLED)
    weights = (of_tokens + of_sampled) / 2 * WEIGHT_BYTES[precision.products]
    hbm_bytes = float(len(log)) * parallel.ranks * weights
    total_flop = parallel.tp * (computed * of_tokens + float(output.sum()) * of_sampled)
    if has_experts(model):
        layers, expert = len(model.moe_layer_ids), model.slices * model.slice_weights
        tokens = log["decodes"] + log["chunk_tokens"]
        active = model.experts * (1 - (1 - model.top_k / model.experts) ** tokens)
        hbm_bytes += float(active.sum()) * layers * expert * WEIGHT_BYTES[precision.experts]
        total_flop += 2.0 * computed * layers * model.top_k * expert
    steps = np.maximum(output - 1, 0)
    seen = float((steps * prompt + steps * (steps + 1) / 2).sum())  # tokens of KV that decodes read
    for kind, number in attentions(model):
        decodes = kind.work("decode", parallel.tp, steps.sum(), 1.0, seen / max(steps.sum(), 1.0), precision.kv)
        prompts = kind.work("prefill", parallel.tp, 1.0, prompt, prompt, precision.kv)
        for work in (decodes, prompts):
            hbm_bytes += number * parallel.tp * float(np.sum(work.moved_bytes))
            total_flop += number * parallel.tp * float(np.sum(work.flop))
    begin, end = float(requests["arrival_ns"].min()), float(requests["last_ns"].max())
    return Activity(
        max(end - begin, 1.0) / NS_PER_S, hbm_bytes, 0.0, 2 * hbm_bytes, total_flop, 0.0, float(output.sum())
    )

"""Power of a deployment and energy of a token under load, from what the iterations of a run did.

An iteration reads the weights of every rank, the experts that its tokens hit, the KV cache of its decodes, and moves
its activations; it multiplies its tokens, in the dtype of each product, in whole tiles. Beside that every GPU waits,
and while its kernels multiply little, they draw power that rises with their rows (``microarch.silicon.energy`` has the
coefficients, their ranges and sources; docs/economics.md holds them against whole GPUs). Links between GPUs are left
out (below 1 % of the energy of a token), and so are hosts and cooling. Dies that are no GPUs have the same account,
without the power of busy kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.iteration.layers import (
    DECODES,
    PROMPTS,
    SAMPLED,
    TOKENS,
    LayerProduct,
    Stream,
    attentions,
    count_operators,
    dtype_of,
    has_experts,
    program,
)
from archsim.machine.system import SystemSpec
from archsim.runs.prices import Coefficients, build_costs
from archsim.serving.engine import ServingEngine
from archsim.serving.simulate import Served
from microarch.silicon.energy import CROWDED_ROWS, SIXTEEN_BIT, TILE_ROWS, Activity, multiplying, run_energy
from microarch.silicon.memories import SRAM

# W of a board at its limit: datasheets of H100 and H200 SXM (700), HGX B200 (1,000), HGX B300 (1,100), GB200 and GB300
# NVL72 (1,200 and 1,400), A100 SXM (400), MI300X (750), MI355X (1,400).
BOARD_W: Mapping[str, float] = MappingProxyType({
    "a100": 400.0, "h100": 700.0, "h200": 700.0, "h800": 700.0, "h20": 500.0, "b200": 1000.0, "b300": 1100.0,
    "gb200": 1200.0, "gb300": 1400.0, "mi300x": 750.0, "mi355x": 1400.0,
})  # fmt: skip


def board_w(gpu: str) -> float:
    """Raises SpecError for a GPU whose limit is not known."""
    if gpu not in BOARD_W:
        raise SpecError(
            f"the power limit of {gpu} is not known{did_you_mean(gpu, BOARD_W)} (known: {', '.join(BOARD_W)}). Give a "
            "budget of GPUs in place of W"
        )
    return BOARD_W[gpu]


class Upkeep(NamedTuple):
    """Under load. ``w_per_gpu``: mean; ``j_per_token``: of an output token, prompts included; each (value, all
    coefficients low, all high). ``limited``: whether a board's limit bounds the power.
    """

    w_per_gpu: tuple[float, float, float]
    j_per_token: tuple[float, float, float]
    limited: bool


# Bytes of a number in the products of weights of a dtype; of others, products are in 16 bits.
PRODUCT_BYTES: Mapping[str, float] = MappingProxyType({"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "mxfp4_mxfp8": 1.0})


def energy(
    served: Served, engine: ServingEngine, system: SystemSpec, devices: int, coefficients: Coefficients | None = None
) -> tuple[Mapping[str, float], Activity]:
    """Block → J of a run of identical engines on ``devices`` GPUs (log: all iterations or the first), and its work."""
    done, machine = activity(served, engine, system, devices), build_costs(system)
    if engine.rates is not None:  # a Local CP starts work when its operands are there
        done = replace(done, kernel_s=0.0, crowded_s=0.0)
    joule = run_energy(
        done, dtype_bytes=SIXTEEN_BIT, die_mm2=machine.powered_mm2, dies=devices, decision_w=0.0,
        pieces=machine.pieces, estimates=(coefficients or Coefficients()).of(system).energy,
        cached=system.hbm.kind != SRAM,
    )  # fmt: skip
    return joule, done


def upkeep(
    served: Served,
    engine: ServingEngine,
    system: SystemSpec,
    devices: int,
    most_w: float,
    clocked_w: float | None = None,
) -> Upkeep:
    """The upkeep of the run of `energy`. ``most_w``: W that one GPU may draw; ``clocked_w``: W that one draws at a
    clock below the full one, at which the run took place.
    """
    watts = []
    for coefficients in (Coefficients(), Coefficients().at("low"), Coefficients().at("high")):
        joule, done = energy(served, engine, system, devices, coefficients)
        watts.append(sum(joule.values()) / done.time_s / devices)
    if clocked_w is not None:
        watts = [each * clocked_w / watts[0] for each in watts]
    bound = [min(each, most_w) for each in watts]
    tokens_per_s = max(done.tokens, 1.0) / done.time_s
    each_token = [each * devices / tokens_per_s for each in bound]
    return Upkeep((bound[0], bound[1], bound[2]), (each_token[0], each_token[1], each_token[2]), bound[0] < watts[0])


def _product(dtype: str) -> float:
    """Energy of a product with weights of a dtype over that in 16 bits."""
    return PRODUCT_BYTES.get(dtype, SIXTEEN_BIT) / SIXTEEN_BIT


class _Pass(NamedTuple):
    """Passes of tokens through layers, in the iterations of a log."""

    layers: float  # share of the model's layers
    times: int  # one after the other, in an iteration
    tokens: np.ndarray  # float64[iteration], of all ranks, in each of the times
    rows: Mapping[str, tuple[int, float]]  # rows of products: (iterations of the log that have some, how many in all)

    def layers_of(self, rows: str) -> float:
        """Share of the layers; what follows them is there once."""
        return 1.0 if rows == SAMPLED else self.layers


def _passes(served: Served, decodes: float) -> list[_Pass]:
    """What is computed and verified, then the layers that draft: those of decodes, and of prompts, whose KV they keep
    (``archsim.serving.speculation``). ``decodes``: of a request in an iteration.
    """
    requests, log, totals = served.requests, served.log, served.totals
    output, drafted = requests["output"].astype(float), float(totals["drafted"])
    prompted, refused = float((requests["input"].astype(float) - requests["hit"]).sum()), drafted - totals["accepted"]
    of_log, chunks = log["decodes"].astype(float), log["chunk_tokens"].astype(float)
    tokens = of_log * (1.0 + drafted / max(decodes, 1.0)) + chunks
    every, decoding, prompting = len(log), int((of_log > 0).sum()), int((chunks > 0).sum())
    computed, sampled = prompted + float((output - 1).sum()) + refused, float(output.sum()) + refused
    of_decodes, of_prompts = (decoding, decodes + drafted), (prompting, prompted)
    rows = {TOKENS: (every, computed), DECODES: of_decodes, PROMPTS: of_prompts, SAMPLED: (every, sampled)}
    found = [_Pass(1.0, 1, tokens, rows)]
    if share := float(totals["draft_share"]):
        depth, drafts = int(totals["depth"]), float(totals["drafts"])
        of_drafts = dict.fromkeys((TOKENS, DECODES, SAMPLED), (decoding, decodes * drafts))
        found.append(_Pass(share, depth, of_log * drafts / depth, of_drafts))
        found.append(_Pass(share, 1, chunks, dict.fromkeys((TOKENS, PROMPTS), of_prompts)))
    return found


def activity(served: Served, engine: ServingEngine, system: SystemSpec, devices: int) -> Activity:
    """What all GPUs of identical engines did in a run with a log; ``tokens``: of outputs. FLOP count as in 16 bits."""
    model, parallel, precision = engine.model, engine.parallel, engine.precision
    requests, log, totals = served.requests, served.log, served.totals
    share = max(int(totals["iterations"]), 1) / max(len(log), 1)  # of all iterations over those in the log
    prompt, output = requests["input"].astype(float), requests["output"].astype(float)
    operators, of_experts = count_operators(program(model, parallel)), _product(precision.experts)
    flop, weights = defaultdict[str, float](float), defaultdict[str, float](float)  # of a row; bytes of an iteration
    for product, copies in operators.items():
        if isinstance(product, LayerProduct):
            dtype, values = dtype_of(product, precision), product.n * product.k * copies
            flop[product.rows] += 2.0 * values / product.sharing * _product(dtype)
            weights[product.rows] += values * WEIGHT_BYTES[dtype]
    streams = [each for each in operators if isinstance(each, Stream)]
    hbm_bytes = total_flop = padded = 0.0
    steps = np.maximum(output - 1, 0)
    decodes = float(steps.sum()) - float(totals["accepted"])
    passes = _passes(served, decodes)
    for each in passes:
        for of, (iterations, number) in each.rows.items():
            layers = each.layers_of(of)
            hbm_bytes += share * each.times * iterations * parallel.ranks * layers * weights[of]
            moved = sum(stream.row_bytes for stream in streams if stream.rows == of)
            hbm_bytes += parallel.tp * layers * number * moved
            total_flop += parallel.tp * layers * number * flop[of]
        rows = each.tokens / parallel.dp  # of a rank
        empty = share * each.times * each.layers * float((_whole_tiles(rows) - rows).sum())
        padded += parallel.ranks * empty * flop[TOKENS]
        if has_experts(model):
            layers, expert = len(model.moe_layer_ids) * each.layers, model.slices * model.slice_weights
            active = model.experts * (1 - (1 - model.top_k / model.experts) ** each.tokens)
            read = share * each.times * float(active.sum()) * layers * expert
            hbm_bytes += read * WEIGHT_BYTES[precision.experts]
            total_flop += 2.0 * each.rows[TOKENS][1] * layers * model.top_k * expert * of_experts
            pairs = np.divide(each.tokens * model.top_k, active, out=np.zeros_like(active), where=active > 0)
            empty = share * each.times * float((active * (_whole_tiles(pairs) - pairs)).sum())
            padded += 2.0 * empty * layers * expert * of_experts
    context = float((steps * prompt + steps * (steps + 1) / 2).sum()) / max(steps.sum(), 1.0)  # that a decode reads
    verified, drafting = float(totals["drafted"]) / max(decodes, 1.0), float(totals["draft_share"])
    for kind, number in attentions(model):
        works = [
            (1.0, kind.work("decode", parallel.tp, decodes, 1.0 + verified, context + verified, precision.kv)),
            (1.0 + drafting, kind.work("prefill", parallel.tp, 1.0, prompt, prompt, precision.kv)),
        ]
        if drafting:
            depth, at_once = int(totals["depth"]), float(totals["drafts"]) / float(totals["depth"])
            work = kind.work("decode", parallel.tp, decodes * depth, at_once, context + at_once - 1, precision.kv)
            works.append((drafting, work))
        for layers, work in works:
            hbm_bytes += layers * number * parallel.tp * float(np.sum(work.moved_bytes))
            total_flop += layers * number * parallel.tp * float(np.sum(work.flop)) * _product(precision.attention)
    begin, end = float(requests["arrival_ns"].min()), float(requests["last_ns"].max())
    seconds = np.maximum(log["end_ns"] - log["begin_ns"], 1.0) / NS_PER_S
    tokens, rows = passes[0].tokens, passes[0].tokens / parallel.dp
    each_token = total_flop / max(passes[0].rows[TOKENS][1], 1.0) / parallel.ranks
    peak = system.compute.peak_flop_per_s * system.compute.dtype_bytes / SIXTEEN_BIT
    little_s = share * parallel.ranks * seconds * (1 - multiplying(tokens * each_token / seconds, peak))
    return Activity(
        max(end - begin, 1.0) / NS_PER_S, hbm_bytes, 0.0, 2 * hbm_bytes, total_flop, 0.0, float(output.sum()),
        padded_flop=padded, kernel_s=float(little_s.sum()),
        crowded_s=float((little_s * rows / (rows + CROWDED_ROWS)).sum()),
    )  # fmt: skip


def _whole_tiles(rows: np.ndarray) -> np.ndarray:
    """Rows that tensor cores multiply for so many."""
    return np.ceil(rows / TILE_ROWS) * TILE_ROWS

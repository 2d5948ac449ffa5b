"""Rows of papers' numbers that no sweep gives, called by ``table: {function: archsim.evidence.claim_tables:NAME}``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from archsim import balancers
from archsim.base.units import NS_PER_S
from archsim.laws import calibration_files
from archsim.laws.gemm import dense_product
from archsim.laws.laws import Laws
from archsim.machine import decision
from archsim.policies import allocation, libra, lina, replication
from archsim.specs import library, workload
from archsim.traffic import statistics, subjects, synthetic
from archsim.traffic.imbalance import expected_loads, fitted_skew
from archsim.traffic.trace import Trace
from archsim.traffic.traffic_model import QUANTILES, TrafficModel
from archsim.traffic.traffic_presets import generated_traffic, load_traffic, map_models, of_layers
from microarch.silicon.area import parts_of, total
from microarch.silicon.published_area import PUBLISHED_DESIGN
from microarch.silicon.technology import TECHNOLOGIES

Rows = list[dict[str, Any]]


def decision_hardware(technology: str = "n5") -> Rows:
    """A row a part of table II of the wafer paper, by its parameters: ``area_mm2`` and ``power_mw`` of all copies,
    ``mib`` of a table; and a row ``total``. technology: n5, or scaled: older cells shrunk by the node's name.
    """
    parts = parts_of(PUBLISHED_DESIGN, TECHNOLOGIES[technology])
    costs = {part.name: part.cost for part in parts} | {"total": total(part.cost for part in parts)}
    sizes = {part.name: part.table.bits / 8 / 2**20 for part in parts if part.table is not None}
    return [
        {"part": name, "area_mm2": cost.area_mm2, "power_mw": cost.power_mw, "mib": sizes.get(name)}
        for name, cost in costs.items()
    ]


_TOP_EXPERTS = (5, 10, 20)


def routing_statistics(models: Sequence[str], requests: int = 2000, layers: int = 3, seed: int = 1) -> Rows:
    """A row a traffic preset, measured on pairs of adjacent MoE layers that are spread over the model.

    Means over layers: ``pairs_across_*``, % of selections in the most frequent 20 % of pairs; ``following_across_*``, %
    of the selections after an expert in the 20 % of experts that follow it most often; ``together_10``, % of
    co-selections in the most frequent 10 % of pairs; ``bright``, the pair at 99.9 % over the mean pair;
    ``prefill_top_N``, % of the N most loaded experts of prefill that are among those of decode. ``hottest_most``,
    ``hottest_least``: hottest expert over the mean in the most and the least skewed layer; ``hottest_peak``: in the
    most skewed layer of a task. ``heatmap_rank``: median over layers and both heatmaps, across layers and across
    tokens, of Spearman's correlation of prefill and decode.
    """
    return [{"model": name} | _statistics_of(*_spread_pairs(name, requests, layers, seed)) for name in models]


def _statistics_of(trace: Trace, pairs: list[int]) -> dict[str, float]:
    """Of pairs of layers: rows ``pairs`` of `statistics.cross_layer`."""
    across, following = statistics.cross_layer(trace)[pairs], statistics.cross_token(trace)
    hottest = statistics.max_over_mean(statistics.loads(trace))
    found = {
        "pairs_across_layers": 100 * statistics.coverage(across).mean(),
        "pairs_across_tokens": 100 * statistics.coverage(following).mean(),
        "following_across_layers": 100 * statistics.predictable(across, across).mean(),
        "following_across_tokens": 100 * statistics.predictable(following, following).mean(),
        "hottest_most": hottest.max(), "hottest_least": hottest.min(),
        "hottest_peak": np.nanmax([statistics.max_over_mean(task) for task in statistics.subject_loads(trace)]),
    }  # fmt: skip
    if trace.top_k > 1:
        above = np.triu_indices(trace.num_experts, 1)
        together = statistics.coactivation(trace)[:, above[0], above[1]].astype(np.float64)
        found["together_10"] = 100 * statistics.coverage(together, 0.1).mean()
        found["bright"] = (np.quantile(together, 0.999, axis=1) / together.mean(axis=1)).mean()
    prefill = trace.iteration == 0
    if prefill.any() and not prefill.all():
        phases = [statistics.rows_of(trace, rows) for rows in (prefill, ~prefill)]
        ranks = statistics.heatmap_agreement(trace)
        found["heatmap_rank"] = np.median(np.concatenate([ranks["cross_layer"][pairs], ranks["cross_token"]]))
        order = [np.argsort(-statistics.loads(phase), axis=1, kind="stable") for phase in phases]
        for top in _TOP_EXPERTS:
            common = [len(np.intersect1d(*both)) for both in zip(*(each[:, :top] for each in order), strict=True)]
            found[f"prefill_top_{top}"] = 100 * np.mean(common) / top
    return {name: float(value) for name, value in found.items()}


def _spread_pairs(name: str, requests: int, layers: int, seed: int) -> tuple[Trace, list[int]]:
    traffic = load_traffic(name, library.load_model(name))
    assert isinstance(traffic, TrafficModel)
    first = np.unique(np.linspace(0, len(traffic.layer_ids) - 2, layers).astype(int))
    at = np.unique(np.concatenate([first, first + 1]))
    trace = subjects.collect(subjects.traffic_of(of_layers(traffic, traffic.layer_ids[at], name), requests, seed))
    return trace, np.flatnonzero(np.isin(at[:-1], first) & (np.diff(at) == 1)).tolist()


def skewed_loads(model: str, skew: float | Sequence[float], gamma: float = 2.0, seed: int = 0) -> Rows:
    """A row a ``skew`` (standard deviation of log popularity) with loads as generated traffic expects them, means over
    the model's MoE layers: ``hottest`` expert over the mean, and ``dropped``, % of all above ``gamma`` times the mean.
    Of single layers: ``hottest_most``, ``hottest_least``, and ``two_most``, % of all that the two hottest have.
    """
    shape, rows = library.load_model(model), []
    ids = np.array(shape.moe_layer_ids, np.int32)
    for each in [skew] if isinstance(skew, int | float) else skew:
        shares = synthetic.popularity(seed, ids, shape.experts, float(each))
        loads = np.sort(expected_loads(shares, shape.top_k, 0, 0), axis=1)
        mean, whole = loads.mean(axis=1, keepdims=True), loads.sum(axis=1)
        hottest = loads[:, -1] / mean[:, 0]
        rows.append({
            "skew": each, "hottest": float(hottest.mean()), "hottest_most": float(hottest.max()),
            "hottest_least": float(hottest.min()), "two_most": float(100 * (loads[:, -2:].sum(axis=1) / whole).max()),
            "dropped": float(100 * (np.maximum(loads - gamma * mean, 0).sum(axis=1) / whole).mean()),
        })  # fmt: skip
    return rows


def skewed_pairs(skews: dict[str, float], layers: int = 8, seed: int = 0) -> Rows:
    """A row a model of ``skews`` (standard deviation of log popularity) with what generated traffic expects in adjacent
    MoE layers, means over as many: ``pairs_across_layers``, % of selections in the most frequent 20 % of pairs.
    """
    rows = []
    for name, skew in skews.items():
        shape = library.load_model(name)
        ids = np.array(shape.moe_layer_ids[:layers], np.int32)
        loads = expected_loads(synthetic.popularity(seed, ids, shape.experts, skew), shape.top_k, 0, 0)
        pairs = loads[:-1, :, None] * loads[1:, None, :]
        rows.append({"model": name, "pairs_across_layers": float(100 * statistics.coverage(pairs).mean())})
    return rows


def path_tables(models: Sequence[str], tokens: int = 40_000, path_length: int = 4, seed: int = 1) -> Rows:
    """A row a traffic preset: ``accuracy``, % of a token's experts that Lina's table of paths predicts.

    The table is counted over the top-1 experts of as many ``tokens`` of other requests, in layers of the middle of the
    model; popularity alone predicts ``popular`` %.
    """
    rows = []
    for name in models:
        traffic = load_traffic(name, library.load_model(name))
        assert isinstance(traffic, TrafficModel)
        middle = len(traffic.layer_ids) // 2
        ids = traffic.layer_ids[middle : middle + path_length + 1]
        prompts = map_models(of_layers(traffic, ids, name), _prompts)
        trace = subjects.collect(subjects.traffic_of(prompts, 2 * tokens // _PROMPT, seed))
        half = trace.request_offsets[trace.requests // 2]
        top1 = trace.experts[:, :, 0].T.astype(np.int64)
        actual = trace.experts[half:, -1].astype(np.int64)
        table = lina.lina_fit(top1[:, :half], path_length, trace.num_experts)
        predicted = table.predict(top1[:, half:], trace.top_k)[-1]
        rows.append({"model": name, "accuracy": 100 * lina.prediction_accuracy(predicted, actual)[0]})
    return rows


_PROMPT = 128  # tokens


def _prompts(traffic: TrafficModel) -> TrafficModel:
    return replace(traffic, prompt_tokens=np.full(QUANTILES, float(_PROMPT)), decode_steps=np.zeros(QUANTILES))


def placed_by_load(model: str, gpus: int, imbalance: dict[str, Any], layers: int = 8, seed: int = 0) -> Rows:
    """A row a placement, ``default`` (contiguous), ``remap``, ``worst`` (the hottest experts together) and ``best``
    (the mean), with ``max_over_mean`` of the GPUs' tokens, mean over layers whose popularity has this ``imbalance``.
    """
    shape = library.load_model(model)
    ids = np.array(shape.moe_layer_ids[:layers], np.int32)
    spec = workload.SyntheticSpec.model_validate(
        {"prompt_tokens": 0, "imbalance": imbalance | {"ranks": gpus}, "seed": seed}
    )
    skew = np.array(fitted_skew(spec, tuple(ids.tolist()), shape.experts, shape.top_k))
    loads = expected_loads(synthetic.popularity(seed, ids, shape.experts, skew[:, None]), shape.top_k, 0, 0)
    found: dict[str, list[float]] = {"default": [], "remap": [], "worst": [], "best": []}
    for load in loads:
        placed = {"default": load, "worst": np.sort(load)}
        most = {name: each.reshape(gpus, -1).sum(axis=1).max() for name, each in placed.items()}
        most |= {"remap": balancers.remap(load, gpus).load.max(), "best": load.sum() / gpus}
        for name, value in most.items():
            found[name].append(value * gpus / load.sum())
    return [{"placement": name, "max_over_mean": float(np.mean(values))} for name, values in found.items()]


def shared_by_graph(spread: float = 0.3, draws: int = 100, seed: int = 0) -> Rows:
    """A row a graph of DeepSeek's LPLB: ``max_over_mean`` of GPUs after the linear programme, and ``before`` it. An
    edge is a redundant expert of its first GPU, copied to the second; loads are normal (1, spread).
    """
    generator = np.random.default_rng(seed)
    rows = []
    for name, edges in _GRAPHS.items():
        gpus = max(max(edge) for edge in edges) + 1
        after, before = [], []
        for _ in range(draws):
            load = np.maximum(generator.normal(1, spread, len(edges)), 0)
            home = np.bincount([one for one, _ in edges], weights=load, minlength=gpus)
            mean = load.sum() / gpus
            before.append(home.max() / mean)
            after.append(balancers.lplb(load, edges, gpus).max_load / mean)
        rows.append({"graph": name, "max_over_mean": float(np.mean(after)), "before": float(np.mean(before))})
    return rows


SOLVER_NS, OPERATIONS_PER_NS = 100_000, 190.0  # README of deepseek-ai/LPLB: about 100 us within a node; GpuSpec's rate


def lplb_of_100_us(step: allocation.StepView) -> allocation.Plan:
    """Allocation ``lplb``, charged what DeepSeek's README states of its solver, also for a small programme."""
    plan = allocation.lplb(step)
    least = int(SOLVER_NS * OPERATIONS_PER_NS)
    return plan._replace(effort=plan.effort._replace(operations=max(least, plan.effort.operations)))


def _hypercube(dimensions: int) -> list[tuple[int, int]]:
    return [(gpu, gpu ^ (1 << bit)) for gpu in range(1 << dimensions) for bit in range(dimensions)]


_GRAPHS = {
    "ring": [(gpu, (gpu + step) % 8) for gpu in range(8) for step in (1, -1)],
    "cube": _hypercube(3),
    "hypercube": _hypercube(4),
    "torus": [
        (4 * x + y, 4 * ((x + a) % 4) + (y + b) % 4) for x in range(4) for y in range(4) for a, b in ((0, 1), (1, 0))
    ],
}  # fmt: skip


def replicated_loads(load: Sequence[float], gpus: int, slots: int) -> Rows:
    """One row: the largest load of a GPU, ``most``, after EPLB with ``slots`` experts a GPU; ``mean`` of all."""
    placed = balancers.eplb([list(load)], gpus * slots, 1, 1, gpus)
    each = np.array(load) / placed.copies[0]
    of_gpu = each[placed.physical_to_logical[0]].reshape(gpus, slots).sum(axis=1)
    return [{"most": float(of_gpu.max()), "mean": float(of_gpu.mean())}]


_ID_BYTES = 8  # an expert's id, int64 in PyTorch
_COUNT_BYTES = 4


def parts_of_layer(model: str, gpu: str, tokens: int, ranks: int) -> Rows:
    """A row a ``part`` of a prefill's MoE layer beside its experts, ``ns``: ``dispatch``, an all-gather of hidden
    vectors in BF16; ``combine``, an all-reduce; ``predict``, the product of the next layer's router; ``broadcast``, an
    all-gather of the predicted ids; ``to_host``, ids of all tokens over PCIe; ``to_gpu``, tokens of every pair of GPU,
    expert and holder. tokens: of all ranks. Times are those of the GPU's calibration; of PCIe, of a Gen5 slot.
    """
    shape, host = library.load_model(model), decision.HostSpec()
    laws = Laws(calibration_files.calibration_named(gpu))
    ids = float(tokens * shape.top_k * _ID_BYTES)
    plan = float(ranks * ranks * shape.experts * _COUNT_BYTES)
    router = dense_product(laws.calibration, shape.experts, shape.hidden, "bf16", tuned=True)

    def collective(op: str, n_bytes: float) -> float:
        return float(laws.collective(op, n_bytes, ranks=ranks).ns)

    def over_pcie(n_bytes: float) -> float:
        return host.pcie_latency_ns + n_bytes / host.pcie_bandwidth_bytes_per_s * NS_PER_S

    found = {
        "dispatch": collective("all_gather", 2.0 * tokens * shape.hidden),
        "combine": collective("all_reduce", 2.0 * tokens * shape.hidden),
        "broadcast": collective("all_gather", ids),
        "predict": float(router.ns(np.array([tokens / ranks]))[0]),
        "to_host": over_pcie(ids), "to_gpu": over_pcie(plan),
    }  # fmt: skip
    return [{"part": name, "ns": value} for name, value in found.items()]


def two_stages(
    model: str, ranks: int, traffic: dict[str, Any], accuracy: float, slots: int = 8, layers: int = 12
) -> Rows:
    """One row: ``local``, the share of pairs of token and expert that Libra's first stage runs, whose expert the
    token's own GPU holds after Algorithm 1 (alpha 0.5); ``imbalance``, the busiest GPU over the mean, unbalanced. Means
    over layers of prompts of generated ``traffic``, the keys of a trace's ``synthetic``.
    """
    shape, spec = library.load_model(model), workload.SyntheticSpec.model_validate(traffic)
    source = generated_traffic(shape, spec, ranks, layers)
    pieces = list(source.steps(np.arange(source.requests), 0))
    rank = np.concatenate([piece.request for piece in pieces]) * ranks // source.requests
    experts, seed = np.concatenate([piece.experts for piece in pieces]), spec.seed
    home = np.arange(shape.experts) * ranks // shape.experts
    local, imbalance = [], []
    for layer in range(layers):
        load = np.stack(
            [np.bincount(experts[rank == each, layer].ravel(), minlength=shape.experts) for each in range(ranks)]
        )
        predicted = replication.look_ahead(load, accuracy, np.random.default_rng([seed, layer]))
        holds = libra.libra_plan(predicted, home, slots, slots // 2).holds > 0
        local.append(load[holds].sum() / load.sum())
        imbalance.append(np.bincount(home, weights=load.sum(axis=0)).max() * ranks / load.sum())
    return [{"local": float(np.mean(local)), "imbalance": float(np.mean(imbalance))}]

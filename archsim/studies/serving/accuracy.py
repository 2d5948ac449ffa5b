"""Simulated against measured serving: points of closed loops, with their model, machine and parallel sizes.

The table is that of ``silicon_agg.csv`` (aiconfigurator's sample of InferenceX and of NVIDIA's own runs); its README
tells how each point was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.engine.iteration import Precision
from archsim.engine.iteration_parts import Parallel
from archsim.serving.deployment import Engine, build
from archsim.serving.hosts import host_file, host_of
from archsim.serving.measures import NS_PER_MS, times_ns
from archsim.serving.requests import lengths, without_hashes
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.loading.library import load_model

MODELS = MappingProxyType({
    "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b",
    "DeepSeek-R1/V3": "deepseek-v3", "Kimi-K2.5": "kimi-k2", "MiniMax-M2.5": "minimax-m2.5",
    "Qwen3-235B-A22B": "qwen3-235b-a22b", "gpt-oss-120b": "gpt-oss-120b",
})  # fmt: skip
# Calibration and HBM (datasheets) of a system.
SYSTEMS = MappingProxyType(
    {"H100-SXM5-80GB": ("h100", 80e9), "H200-SXM-141GB": ("h200", 141e9), "B200-SXM": ("b200", 180e9)}
)
SCHEDULERS = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
UNFIT = ("host_bound_suspect", "nonmonotone")  # notes of points that nothing should be judged on
LOW_SHARE = 0.8  # InferenceX draws lengths from this share of the nominal on
STREAMED = 10  # tokens at once from TensorRT-LLM in InferenceX's MoE runs (README, section 4)
FEWEST = 300  # requests of a point, where it had more


class Point(NamedTuple):
    """ms; ``fitted``: whether its group was used to fit constants."""

    row: Mapping[str, Any]
    ttft: float
    tpot: float
    fitted: bool

    @property
    def errors(self) -> tuple[float, float]:
        """(TTFT, TPOT): simulated / measured - 1."""
        return self.ttft / self.row["ttft_ms"] - 1, self.tpot / self.row["tpot_ms"] - 1


def judged_rows(path: Path) -> list[dict[str, Any]]:
    """Points of the table that can be simulated and are fit to judge on."""
    import pandas

    table = pandas.read_csv(path)
    fit = ~table.notes.fillna("").str.contains("|".join(UNFIT))
    return table[fit & table.model.isin(MODELS) & table.system.isin(SYSTEMS)].to_dict("records")


def simulated(rows: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """Points in order of their groups; those that do not fit into HBM by our count are left out."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for group, points in groups.items():
        try:
            yield from _group(points, group in host_file().fitted_on)
        except ArchsimError:
            continue


def precision_of(row: Mapping[str, Any]) -> Precision:
    """dtypes by the labels of the table; KV as the engines' recipes: FP8 with NVIDIA's checkpoints in TensorRT-LLM, and
    on B200 with 4 bits, and in vLLM on B200 but for Llama.
    """
    labels = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4"}
    products, experts = (labels.get(row[key], "bf16") for key in ("gemm_quant", "moe_quant"))
    blackwell = row["system"].startswith("B")
    narrow = row["backend"] == "trtllm" and products != "bf16" or (blackwell and products == "nvfp4")
    narrow = narrow or (row["backend"] == "vllm" and blackwell and "Llama" not in row["model"])
    if row["model"] == "gpt-oss-120b":
        products, experts = "bf16", "mxfp4"
        narrow = narrow and row["backend"] == "vllm" and blackwell
    elif row["model"] == "Kimi-K2.5":
        products = "bf16"
    elif row["model"] in ("DeepSeek-R1/V3", "MiniMax-M2.5") and products == "fp8":
        products = experts = "fp8_block"
    return Precision(products, "bf16", "fp8" if narrow else "bf16", experts)


def _group(rows: list[Mapping[str, Any]], fitted: bool) -> Iterator[Point]:
    row = rows[0]
    gpu, hbm_bytes = SYSTEMS[row["system"]]
    sizes = (row["moe_ep"], row["moe_tp"]) if row["is_moe"] else (1, 1)
    parallel = Parallel(*(int(each) for each in (row["tp"], row["attention_dp"], *sizes)))
    model, precision = load_model(MODELS[row["model"]]), precision_of(row)
    engine = Engine(model, calibration_named(gpu), hbm_bytes, parallel, precision, library=row["backend"])
    scheduler = Scheduler(
        SCHEDULERS[row["backend"]], max_num_seqs=max(256, *(int(each["concurrency"]) for each in rows)),
        balance="least_loaded",
    )  # fmt: skip
    host = host_of(row["backend"], model, gpu, precision.experts)
    pool = build(engine, scheduler, host).pool
    for each in rows:
        open_source = each["origin"] == "inferencex_db"
        streamed = STREAMED if open_source and row["is_moe"] and row["backend"] == "trtllm" else host.first_after
        requests = _requests(each, LOW_SHARE if open_source else 1.0)
        times = times_ns(simulate(requests, scheduler, pool, request_ns=host.request_ns, first_after=streamed))
        yield Point(each, times["ttft"].mean() / NS_PER_MS, times["tpot"].mean() / NS_PER_MS, fitted)


def _requests(row: Mapping[str, Any], low: float):
    clients = int(row["concurrency"])
    count = min(10 * clients, max(4 * clients, FEWEST))
    sizes = (
        lengths(count, "uniform", (max(1, int(low * row[key])), row[key]), clients, stream)
        for stream, key in enumerate(("isl_tokens", "osl_tokens"), 1)
    )
    return without_hashes(np.zeros(count), *sizes, clients)


def median_errors(points: Iterable[Point]) -> tuple[float, float, float, int]:
    """(TPOT, TTFT, TTFT of warmed-up points; median of absolute errors; points); nan for none."""
    found = list(points)
    errors = np.abs([point.errors for point in found]).reshape(-1, 2)
    warm = np.array([point.row["warmed_up"] == "yes" for point in found], bool)

    def median(values: np.ndarray) -> float:
        return float(np.median(values)) if len(values) else float("nan")

    return median(errors[:, 1]), median(errors[:, 0]), median(errors[warm, 0]), len(found)

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
from archsim.engine.iteration import IterationLaws, Precision
from archsim.engine.iteration_parts import Parallel
from archsim.serving.deployment import Engine, laws_of, with_host
from archsim.serving.hosts import host_file, host_of
from archsim.serving.measures import NS_PER_MS, times_ns
from archsim.serving.requests import lengths, without_hashes
from archsim.serving.simulate import Pool, Scheduler, simulate
from archsim.serving.tables import Host
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
INFERENCEX = "inferencex_db"  # origin of its nightly runs
UNFIT = ("host_bound_suspect", "nonmonotone")  # notes of points that nothing should be judged on
# InferenceX draws lengths from this share of the nominal on, and serves ten requests a client. NVIDIA's own runs, whose
# method is not stated, are taken to do so too: with fixed lengths clients stay in step, so that prompts never meet
# decodes, and TPOT of dense models is 14 % short where it was measured (5 % with lengths that differ).
LOW_SHARE, REQUESTS_A_CLIENT = 0.8, 10
# SGLang's settings for DeepSeek in InferenceX (benchmarks/dsr1_*.sh @ 1fc5d73): tokens of a batch of prompts by GPU and
# dtype; on B200, looks for new requests only every 10 decodes, 30 from 16 clients on.
PROMPT_TOKENS = MappingProxyType({("b200", "fp8_block"): 32768, ("b200", "nvfp4"): 16384, ("h200", "fp8_block"): 32768})
POLLS, POLLS_BUSY, BUSY = 10, 30, 16
STREAMED = 10  # tokens at once from TensorRT-LLM in InferenceX's MoE runs (README, section 4)


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


class Case(NamedTuple):
    """A group of points with the engine that serves them, before host constants."""

    rows: list[Mapping[str, Any]]
    engine: Engine
    scheduler: Scheduler
    laws: IterationLaws
    notes: tuple[str, ...]


def case_of(rows: list[Mapping[str, Any]]) -> Case:
    """Raises ArchsimError for what cannot be simulated."""
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
    if row["origin"] == INFERENCEX and row["backend"] == "sglang":
        tokens = PROMPT_TOKENS.get((gpu, precision.experts), scheduler.max_num_batched_tokens)
        scheduler = scheduler._replace(max_num_batched_tokens=tokens)
    return Case(rows, engine, scheduler, *laws_of(engine, scheduler))


def host_of_case(case: Case) -> Host:
    """The shipped constants."""
    engine = case.engine
    return host_of(case.rows[0]["backend"], engine.model, engine.calibration.gpu, engine.precision.experts)


def times_of(case: Case, pool: Pool, host: Host, row: Mapping[str, Any]) -> tuple[float, float]:
    """Mean (TTFT, TPOT) of a point, ms."""
    nightly, scheduler = row["origin"] == INFERENCEX, case.scheduler
    streamed = STREAMED if nightly and row["is_moe"] and row["backend"] == "trtllm" else host.first_after
    if nightly and row["backend"] == "sglang" and row["system"].startswith("B"):
        scheduler = scheduler._replace(poll_every=POLLS_BUSY if row["concurrency"] >= BUSY else POLLS)
    served = simulate(_requests(row), scheduler, pool, request_ns=host.request_ns, first_after=streamed)
    times = times_ns(served)
    return times["ttft"].mean() / NS_PER_MS, times["tpot"].mean() / NS_PER_MS


def _group(rows: list[Mapping[str, Any]], fitted: bool) -> Iterator[Point]:
    case = case_of(rows)
    host = host_of_case(case)
    pool = with_host(case.laws, case.notes, case.engine, case.scheduler, host, 1).pool
    for row in rows:
        yield Point(row, *times_of(case, pool, host, row), fitted)


def _requests(row: Mapping[str, Any]):
    clients = int(row["concurrency"])
    sizes = (
        lengths(REQUESTS_A_CLIENT * clients, "uniform", (max(1, int(LOW_SHARE * row[key])), row[key]), clients, stream)
        for stream, key in enumerate(("isl_tokens", "osl_tokens"), 1)
    )
    return without_hashes(np.zeros(REQUESTS_A_CLIENT * clients), *sizes, clients)


def median_errors(points: Iterable[Point]) -> tuple[float, float, float, int]:
    """(TPOT, TTFT, TTFT of warmed-up points; median of absolute errors; points); nan for none."""
    found = list(points)
    errors = np.abs([point.errors for point in found]).reshape(-1, 2)
    warm = np.array([point.row["warmed_up"] == "yes" for point in found], bool)

    def median(values: np.ndarray) -> float:
        return float(np.median(values)) if len(values) else float("nan")

    return median(errors[:, 1]), median(errors[:, 0]), median(errors[warm, 0]), len(found)

"""How far simulated serving is from what was measured: results of users and of public benchmarks, each simulated.

A point is one measured run: a closed or an open loop of requests of some lengths on a deployment, with its mean (else
median) TTFT and TPOT. Tables of InferenceX have the deployment in their rows; a result of a load generator has none, so
that a file of ``archsim serve`` says it. Each point is served as that file would be: the errors are those that a user
meets. Constants of the host were fitted on some of the public points; docs/accuracy.md has errors by cross-validation.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base import files, tables, yaml
from archsim.base.errors import ArchsimError, SpecError, TraceError, did_you_mean
from archsim.base.evidence import refuse_broken
from archsim.runs.pool import in_copies
from archsim.serving.constants import host_file, residual_of
from archsim.serving.serving import deploy, serve_requests
from archsim.specs.calibration_files import DEFAULT_CALIBRATION
from archsim.specs.config_files import shipped_configs
from archsim.specs.library import Source, load_system, tree_of
from archsim.specs.serving_files import Serving, load_serving
from archsim.studies.serving.calibrate import (
    Lists,
    claims_of_times,
    number_of,
    requests_measured,
    rows_of,
    runs_of,
    under_load,
)

if TYPE_CHECKING:
    import pandas

# ---- points

INFERENCEX, INFERENCEX_JSON, AIPERF = "inferencex", "inferencex-json", "aiperf"
GUIDELLM, VLLM, SGLANG, GPUSTACK = "guidellm", "vllm", "sglang", "gpustack"
SCHEDULERS: Mapping[str, str] = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
MOST_REQUESTS = 256  # that a rank may run, where a row does not say it
# Lengths over the nominal ones: InferenceX's, those of other runs under SGLang, whose clients stay in step, and others'
# (benchmarks/measured_serving/recipes.py).
# All clients begin at once: InferenceX's do; those of NVIDIA's own runs show it in times a token, which are 3.6 % off
# (median of 14 of SGLang's), and 37 % where clients start apart.
NIGHTLY, EQUAL, OTHER = (0.8, 1.0), (1.0, 1.0), (0.9, 1.1)
REQUESTS_A_CLIENT = 10
# InferenceX's scripts (SemiAnalysisAI/InferenceX, benchmarks/*.sh of 2025 and 2026). SGLang: tokens of a batch of
# prompts by GPU and label of products; on B200 it looks for new requests only every 10 decodes, 30 from 16 clients on
# (--scheduler-recv-interval).
PROMPT_TOKENS = MappingProxyType({
    ("b200", "fp8"): 32768, ("b200", "fp8_block"): 32768, ("b200", "nvfp4"): 16384, ("h200", "fp8"): 32768,
    ("h200", "fp8_block"): 32768,
})  # fmt: skip
POLLS, POLLS_BUSY, BUSY = 10, 30, 16
# TensorRT-LLM: --max_num_tokens.
GPT_OSS_TOKENS, LLAMA_FP8_TOKENS, OTHER_TOKENS = 20_000, 16_384, 8192


class MeasuredPoint(NamedTuple):
    """``where``: file and row; ``given``: a file of ``archsim serve``, or why there is none: ``refused``. Times in ms;
    None: not measured. ``mean``: whether these are means; else medians. ``lists``: of every request. ``duration_s``: of
    the run.
    """

    where: str
    engine: str
    gpu: str
    model: str
    precision: str
    given: Mapping[str, Any] | None
    ttft: float | None
    tpot: float | None
    output_per_s: float | None
    mean: bool = True
    lists: Lists | None = None
    refused: str = ""
    duration_s: float | None = None


class Read(NamedTuple):
    """``told``: as what a file was read, and by which evidence."""

    points: tuple[MeasuredPoint, ...]
    told: str


def read_served(path: Path, deployment: Source | None = None, name: str | None = None, unit: str | None = None) -> Read:
    """Measured points of a file, in the format ``name``, or in that which its keys show. ``deployment``: a file of
    ``archsim serve``, for formats that have none. ``unit``: of its times, of UNITS; None: that of the format, if rates
    do not contradict it. Raises TraceError for files of no format, or whose times cannot be in that unit, SpecError for
    an unknown name, or where a deployment is needed.
    """
    if unit is not None and unit not in UNITS:
        raise SpecError(f"--time-unit: unknown {unit!r} (known: {', '.join(UNITS)})")
    if name is not None and name not in FORMATS:
        raise SpecError(f"--format: unknown {name!r}{did_you_mean(name, FORMATS)} (known: {', '.join(FORMATS)})")
    rows = rows_of(path)
    evidence = {each: key for each, form in FORMATS.items() if (key := form.shown_by(rows[0]))}
    if name is None and len(evidence) != 1:
        said = " and ".join(f"{each} ({key})" for each, key in evidence.items())
        raise TraceError(
            f"{path}: cannot tell whose result this is: "
            + (f"its keys are those of {said}" if said else f"none of {', '.join(FORMATS)} has its keys")
            + f". Name it with --format ({', '.join(FORMATS)})"
        )
    chosen = name or next(iter(evidence))
    form = FORMATS[chosen]
    if name is not None and name not in evidence:
        raise TraceError(f"{path}: --format {name}: it lacks what shows that format: {form.needs}")
    if not form.deployed and deployment is None:
        raise SpecError(
            f"{path}: a result of {form.title} does not say on what it was measured: give --deployment FILE, a file of "
            "`archsim serve`"
        )
    base = None if form.deployed else dict(tree_of(deployment).data)  # type: ignore[arg-type]
    points = []
    for at, row in enumerate(form.prepared(rows), 1):
        try:
            points += form.points(f"{path}:{at}" if len(rows) > 1 else str(path), row, base)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{path}: row {at} of {form.title}: {what}") from None
    how = f"by --format {name}" if name else f"by {evidence[chosen]}"
    points, times = _in_unit(path, points, form.unit, unit)
    return Read(tuple(points), f"{path}: read as {form.title}, {how}: {len(points)} points, {times}")


UNITS: Mapping[str, float] = MappingProxyType({"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6})  # ms
# A client of a closed loop has one token every TPOT while it decodes, and none while it waits for its first: its tokens
# a second times TPOT are 1 at most, and some hundredths where most of the time passes in queues.
CLIENT_SHARE = (0.01, 1.5)


def _in_unit(
    path: Path, points: Sequence[MeasuredPoint], own: str, given: str | None
) -> tuple[list[MeasuredPoint], str]:
    """Points with times in ms, and by which evidence. Raises TraceError where rates contradict the unit."""
    factor = UNITS[given] / UNITS[own] if given else 1.0
    found = [
        each._replace(**{name: value * factor for name in ("ttft", "tpot") if (value := getattr(each, name))})
        for each in points
    ]
    for each in found:
        refuse_broken(each.where, claims_of_times(each.ttft, each.tpot, each.output_per_s, each.duration_s))
    shares = [
        each.tpot / 1e3 * each.output_per_s / clients for each in found
        if each.given is not None and each.tpot and each.output_per_s
        and (clients := each.given["requests"].get("concurrency"))
    ]  # fmt: skip
    told = f"times in {given}, as --time-unit says" if given else f"times in {own}, by its keys"
    if not shares:
        return found, told
    share = float(np.median(shares))
    low, high = CLIENT_SHARE
    if low <= share <= high:
        return found, f"{told}, and its clients' tokens a second agree"
    likely = [unit for unit, ms in UNITS.items() if low <= share * ms / UNITS[given or own] <= high]
    raise TraceError(
        f"{path}: {told}: a client would have {share:.3g} tokens in a time per output token, where it has one at most"
        + (f"; in {likely[0]} it would have {share * UNITS[likely[0]] / UNITS[given or own]:.2g}" if likely else "")
        + ". Name the unit: --time-unit s, or ms, us, ns"
    )


class ResultFormat(NamedTuple):
    """``shown_by(row)``: the key that shows it; ''. ``points(where, row, base)``; ``deployed``: whether rows say on
    what they were measured; ``needs``: the keys that show it, in words; ``unit``: of its times by its keys, of UNITS.
    """

    title: str
    needs: str
    shown_by: Callable[[Mapping[str, Any]], str]
    points: Callable[[str, Mapping[str, Any], dict[str, Any] | None], list[MeasuredPoint]]
    deployed: bool
    prepared: Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any]]] = list
    unit: str = "ms"


# ---- rows with their deployment

MODELS: Mapping[str, str] = MappingProxyType({
    "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b",
    "DeepSeek-R1/V3": "deepseek-v3", "Kimi-K2.5": "kimi-k2", "MiniMax-M2.5": "minimax-m2.5",
    "Qwen3-235B-A22B": "qwen3-235b-a22b", "gpt-oss-120b": "gpt-oss-120b", "GLM-5": "glm-5",
    "Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b",
    "llama70b": "llama-3.1-70b", "minimaxm2.5": "minimax-m2.5", "kimik2.5": "kimi-k2", "glm5": "glm-5",
    "qwen3.5": "qwen3.5-397b-a17b",
})  # fmt: skip
SYSTEMS: Mapping[str, tuple[str, str]] = MappingProxyType({  # label → GPU, system
    "H100": ("h100", "h100_node"), "H200": ("h200", "h200_node"), "B200": ("b200", "b200_node"),
    "B300": ("b300", "b300_node"), "GB200": ("gb200", "gb200_nvl72"), "GB300": ("gb300", "gb300_nvl72"),
    "MI300X": ("mi300x", "mi300x_node"), "MI355X": ("mi355x", "mi355x_node"),
})  # fmt: skip
FRAMEWORKS: Mapping[str, str] = MappingProxyType({"trt": "trtllm", "dynamo-trt": "trtllm", "dynamo-sglang": "sglang"})
IN_BLOCKS = ("deepseek-v3", "minimax-m2.5", "glm-5", "qwen3.5-397b-a17b")  # whose FP8 has a scale a block
KV_BF16 = ("kimi-k2", "minimax-m2.5")


def as_served(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of SGLang's pools, whose first ones say neither the numbers of attention nor those of experts: their labels
    have as many ranks of data-parallel attention as the experts are cut into, which no recipe does. Those with several
    small decode engines are the recipes of low latency, tensor-parallel alone (srt-slurm, recipes/gb200-fp8/1k1k/
    low-latency.yaml: tensor-parallel-size 4, data-parallel-size 1; with the attention of every rank, DeepSeek's weights
    in FP8 would not fit 4 GB200). The others share whole experts (recipes/gb200-fp4/1k1k/max-tpt.yaml: tp-size,
    dp-size and ep-size alike).
    """
    if "prefill_workers" not in row or row["backend"] != "sglang":
        return row
    found, several = dict(row), int(float(row["decode_workers"])) > 1
    for side in ("prefill", "decode"):
        dp, tp, ep = (int(float(row[f"{side}_{name}"])) for name in ("attention_dp", "moe_tp", "moe_ep"))
        if dp == tp > 1 and ep == 1:
            kept = {"tp": dp, "attention_dp": 1} if several else {"moe_tp": 1, "moe_ep": dp}
            found |= {f"{side}_{name}": each for name, each in kept.items()}
    return found | ({"tp": found["decode_tp"]} if "tp" in row else {})


def _of_table(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A row of aiconfigurator's table of InferenceX's nightly runs (silicon_agg.csv, silicon_disagg.csv)."""
    row, nightly = as_served(row), row.get("origin", "inferencex_db") == "inferencex_db"
    shares = NIGHTLY if nightly else EQUAL if row["backend"] == "sglang" else OTHER
    apart = "prefill_workers" in row
    sides = [_sizes(row, f"{side}_") for side in ("prefill", "decode")] if apart else [_sizes(row, "")]
    counts = [int(float(row[f"{side}_workers"])) for side in ("prefill", "decode")] if apart else [1]
    labels = row["gemm_quant"], row["moe_quant"]
    return [_deployed_point(
        f"{where} ({row['point']})" if row.get("point") else where, str(row["backend"]), str(row["system"]),
        str(row["model"]), str(row["precision"]), labels, sides, counts, int(float(row["concurrency"])),
        (int(float(row["isl_tokens"])), int(float(row["osl_tokens"]))), shares,
        number_of(row, "ttft_ms"), number_of(row, "tpot_ms"), None, int(row.get("decode_most", 0)),
        str(row.get("backend_version")),
    )]  # fmt: skip


def _of_inferencex(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A result of InferenceX (its process_result.py: agg_*.json, in seconds)."""
    moe = str(row["model"]) not in ("llama70b",)
    ranks, ep = int(row["tp"]), int(row.get("ep", 1) or 1)
    dp = ranks if str(row.get("dp_attention", "false")).lower() == "true" else 1
    parallel: dict[str, Any] = {"attention": {"tp": ranks // dp, "dp": dp}}
    if moe:
        parallel["experts"] = {"ep": ep, "tp": ranks // ep}
    label = str(row["precision"])
    quant = {"fp8": "fp8", "fp4": "nvfp4"}.get(label, "bf16")
    per_gpu = number_of(row, "output_tput_per_gpu")
    return [_deployed_point(
        where, str(row["framework"]), str(row["hw"]).split("-")[0].upper(), str(row["model"]), label, (quant, quant),
        [parallel], [1], int(row["conc"]), (int(row["isl"]), int(row["osl"])), NIGHTLY,
        number_of(row, "mean_ttft", 1e3), number_of(row, "mean_tpot", 1e3),
        None if per_gpu is None else per_gpu * ranks,
    )]  # fmt: skip


def _sizes(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    tp, dp = (int(float(row[f"{side}{name}"])) for name in ("tp", "attention_dp"))
    found: dict[str, Any] = {"attention": {"tp": tp, "dp": dp}}
    if row["is_moe"] in ("1", 1, "1.0", True, "True"):
        found["experts"] = {"ep": int(float(row[f"{side}moe_ep"])), "tp": int(float(row[f"{side}moe_tp"]))}
    return found


def _deployed_point(
    where: str,
    backend: str,
    system: str,
    label: str,
    precision: str,
    quants: tuple[Any, Any],
    sides: Sequence[Mapping[str, Any]],
    counts: Sequence[int],
    clients: int,
    lengths: tuple[int, int],
    shares: tuple[float, float],
    ttft: float | None,
    tpot: float | None,
    output_per_s: float | None,
    most: int = 0,
    version: str = "",
) -> MeasuredPoint:
    """``most``: requests of a decode rank; 0: as many as there are clients. ``version``: of the engine, as far as the
    constants know it; else the newest that they were fitted on, as they were to this source.
    """
    engine = FRAMEWORKS.get(backend, backend)
    named = engine if len(sides) == 1 else f"{engine}, {DISAGGREGATED}"
    gpu, machine = SYSTEMS.get(system.split("-")[0], ("", ""))
    model = MODELS.get(label, label)
    point = MeasuredPoint(where, named, gpu or system, model, precision, None, ttft, tpot, output_per_s)
    devices = sum(count * ranks_of(side) for count, side in zip(counts, sides, strict=True))
    if engine not in SCHEDULERS:
        return point._replace(refused=f"the engine {backend} is not simulated (known: {', '.join(SCHEDULERS)})")
    if not gpu:
        return point._replace(refused=f"the system {system} is not known (known: {', '.join(SYSTEMS)})")
    low, high = shares
    drawn = [{"uniform": [max(1, int(low * each)), max(1, int(high * each))]} for each in lengths]
    given: dict[str, Any] = {
        "system": large_enough(machine, devices), "model": model, "engine": engine,
        "precision": _dtypes(model, gpu, engine, quants, shares == NIGHTLY),
        "requests": {
            "concurrency": clients, "start": "together", "input": drawn[0], "output": drawn[1],
            "count": REQUESTS_A_CLIENT * clients, "seed": clients,
        },
        "engine_version": version if version in (known := host_file().versions[engine]) else known[-1],
        "scheduler": scripted_scheduler(engine, gpu, model, quants[0], clients, lengths, shares == NIGHTLY),
    }  # fmt: skip
    if len(sides) == 1:
        given |= {"parallel": sides[0], "instances": counts[0]}
    else:
        names = zip(("prefill", "decode"), sides, counts, strict=True)
        given["disaggregated"] = {name: {"parallel": side, "instances": count} for name, side, count in names}
        if most:
            given["disaggregated"]["decode"]["max_num_seqs"] = most
    return point._replace(given=given)


def scripted_scheduler(
    engine: str, gpu: str, model: str, label: Any, clients: int, lengths: tuple[int, int], nightly: bool
) -> dict[str, Any]:
    """Keys of the scheduler as a run of the table was started: by InferenceX's scripts, or by its engine's defaults of
    that time. ``label``: of the dtype of products; ``lengths``: nominal tokens of prompt and output.
    """
    found: dict[str, Any] = {"name": SCHEDULERS[engine], "max_num_seqs": max(MOST_REQUESTS, clients)}
    tokens = OTHER_TOKENS
    if engine == "sglang" and nightly:
        tokens = PROMPT_TOKENS.get((gpu, str(label)), tokens)
        if gpu == "b200":
            found["poll_every"] = POLLS_BUSY if clients >= BUSY else POLLS
    elif engine == "trtllm" and nightly:
        tokens = max(tokens, (clients + lengths[0] + 127) // 64 * 64)
        if model == "gpt-oss-120b":
            tokens = GPT_OSS_TOKENS
        elif model == "llama-3.1-70b":
            tokens = LLAMA_FP8_TOKENS if (gpu, label) == ("b200", "fp8") else sum(lengths) + 200
    return found | {"max_num_batched_tokens": tokens}


def ranks_of(parallel: Mapping[str, Any]) -> int:
    """Devices of an engine."""
    return int(parallel["attention"]["tp"] * parallel["attention"].get("dp", 1))


def large_enough(node: str, devices: int) -> Any:
    """The system of a node or, where it has too few devices, as many nodes as are needed of the cluster."""
    dies = load_system(node).dies
    cluster = node.replace("_node", "_cluster")
    if devices <= dies or cluster == node or not (file := shipped_configs() / "systems" / f"{cluster}.yaml").is_file():
        return node
    inner, outer = yaml.read_yaml(file, cluster).data["fabric"]["levels"]
    return {"like": cluster, "name": cluster, "fabric": {"levels": [inner, outer | {"switch": -(-devices // dies)}]}}


# Disaggregated TensorRT-LLM: the decode engines' largest batch, which NVIDIA's recipes have in their names
# (srt-slurm, recipes/trtllm/*/ctx1_gen4_tep8_batch32_eplb0_mtp0.yaml, with numbers of clients in InferenceX's
# nvidia-master.yaml): clients fill it, and are up to half more; two a rank have a batch of one. Those of FP8 are of one
# number of clients each; others of several, of which only the most fill it, but for those of about one a rank.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024)
TWO, FEW = 2.0, 1.5  # clients a rank


def decode_batches(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Most requests of a decode rank, of each point of a deployment; 0: more than all clients."""
    first = rows[0]
    if first["backend"] != "trtllm":
        return [0] * len(rows)
    ranks = int(float(first["decode_workers"]) * float(first["decode_attention_dp"]))
    clients = [int(float(row["concurrency"])) for row in rows]
    if first["precision"] == "fp8":
        return [_batch(each / ranks) for each in clients]
    return [1 if each < FEW * ranks else _batch(max(clients) / ranks) for each in clients]


def _batch(clients: float) -> int:
    """The largest batch that so many clients of a rank fill."""
    return 1 if clients == TWO else max(each for each in BATCHES if each <= max(clients, 1))


OF_POINTS = ("point", "concurrency", "decode_batch_per_rank", "aic_reference_point")  # columns, and measured ones
MEASURED = ("ttft", "tpot", "n_repeats", "measured", "image", "warmed_up", "prefill_label")


def with_batches(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of pools with the largest batch of their decode engines (`decode_most`); rows of one deployment differ in
    their clients alone.
    """
    if "decode_workers" not in rows[0]:
        return list(rows)
    deployments: dict[tuple, list[int]] = {}
    for at, row in enumerate(rows):
        own = {key: each for key, each in row.items() if key not in OF_POINTS and not key.startswith(MEASURED)}
        deployments.setdefault(tuple(map(str, own.values())), []).append(at)
    found = list(rows)
    for places in deployments.values():
        for at, most in zip(places, decode_batches([rows[at] for at in places]), strict=True):
            found[at] = dict(rows[at]) | {"decode_most": most}
    return found


def _dtypes(model: str, gpu: str, engine: str, quants: tuple[Any, Any], nightly: bool) -> dict[str, str]:
    """By the labels of the table, as engines serve these checkpoints; benchmarks/measured_serving/recipes.py names the
    scripts. KV is in FP8 in TensorRT-LLM beside narrow weights; under InferenceX on other GPUs than H100 with NVFP4 and
    with Llama 70B, and on Blackwell but for two models.
    """
    names = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4"}
    products, experts = (names.get(str(each), "bf16") for each in quants)
    blackwell, four_bits = "b200" in gpu or "b300" in gpu, "nvfp4" in (products, experts)
    if model == "gpt-oss-120b":
        kv = nightly and blackwell
    elif engine == "trtllm":
        kv = products != "bf16" or four_bits
    else:
        narrow = model == "llama-3.1-70b" or four_bits or (blackwell and model not in KV_BF16)
        kv = nightly and gpu != "h100" and narrow
    if model == "gpt-oss-120b":
        products, experts = "bf16", "mxfp4_mxfp8" if blackwell else "mxfp4"
    elif model == "kimi-k2":
        products = "bf16"
    elif model in IN_BLOCKS and products == "fp8":
        products = experts = "fp8_block"
    return {"products": products, "experts": experts, "kv": "fp8" if kv else "bf16"}


# ---- rows with the command that started their engine

COMMANDS = MappingProxyType({"vllm serve": "vllm", "trtllm-serve": "trtllm", "sglang.launch_server": "sglang"})
VERSIONS = MappingProxyType({"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"})  # as the lab names engines
CHECKPOINTS = MappingProxyType({  # of models → model and dtypes of products and experts
    "DeepSeek-R1-0528": ("deepseek-v3", "fp8_block"), "GLM-4.5-Air": ("glm-4.5-air", "bf16"),
    "GLM-4.5-Air-FP8": ("glm-4.5-air", "fp8"), "GLM-4.6-FP8": ("glm-4.5", "fp8"),
    "Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b-a22b", "bf16"), "Qwen3-30B-A3B": ("qwen3-30b-a3b", "bf16"),
    "Qwen3-235B-A22B-Instruct-2507-FP8": ("qwen3-235b-a22b", "fp8_block"), "Qwen3-32B": ("qwen3-32b", "bf16"),
    "Qwen3-32B-FP8": ("qwen3-32b", "fp8_block"), "gpt-oss-20b": ("gpt-oss-20b", "mxfp4"),
    "gpt-oss-120b": ("gpt-oss-120b", "mxfp4"), "Qwen3-14B": ("qwen3-14b", "bf16"), "Qwen3-8B": ("qwen3-8b", "bf16"),
    "Qwen3-14B-FP8": ("qwen3-14b", "fp8_block"), "Qwen3-8B-FP8": ("qwen3-8b", "fp8_block"),
})  # fmt: skip
# Dense models without a file: layers, hidden, width of the FFN and heads (their config.json at Hugging Face).
DENSE_QWEN3 = MappingProxyType({"qwen3-14b": (40, 5120, 17_408, 40), "qwen3-8b": (36, 4096, 12_288, 32)})
LAB_SYSTEMS = MappingProxyType({"a100": "a100_cluster", "h100": "h100_node", "h200": "h200_node"})
# Options that change an engine beyond what is modelled here, and those that set a key of a file, each as the engines
# spell it.
BEYOND = (
    "speculative",
    "enable-torch-compile",
    "performance-mode",
    "attention-backend",
    "cuda-graph-max-bs",
    "moe-a2a",
)
FEW_CLIENTS = 0.1  # of the requests: runs that begin with all of them have more than half under way on average
SHAREGPT_CV = 1.2  # of the lengths of ShareGPT's conversations, of which rows have the sums alone


def _of_gpustack(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A row of GPUStack's performance lab (gpustack_shared.csv): `vllm bench serve` with all requests at once, or, on
    its pages of latency, with a few clients, whose number Little's law gives. Where all requests of ShareGPT come at
    once, whose lengths are not stated, tokens per second alone are judged.
    """
    command, gpu = str(row["command"]), Path(str(row["file"])).stem.split("-")[0]
    engine = next((each for key, each in COMMANDS.items() if key in command), "")
    options = {name.replace("_", "-"): value for name, value in _OPTION.findall(command)}  # the last of each
    checkpoint = found[1] if (found := _CHECKPOINT_OF.search(command)) else ""
    model, dtype = CHECKPOINTS.get(checkpoint, ("", ""))
    label = dtype or checkpoint
    requests, lengths_open = float(row["ok"]), row["case"] == "sharegpt"
    clients = _clients_of(row)
    many = lengths_open and clients == int(requests)
    point = MeasuredPoint(
        where, engine, gpu, model or checkpoint, label, None, None if many else number_of(row, "ttft"),
        None if many else number_of(row, "tpot"), number_of(row, "out_tps"), duration_s=number_of(row, "duration_s"),
    )  # fmt: skip
    odd = next((each for each in options if each.startswith(BEYOND)), "")
    for wrong, why in (
        (gpu not in LAB_SYSTEMS, f"the GPU {gpu} is not known (known: {', '.join(LAB_SYSTEMS)})"),
        (not model, f"the checkpoint {checkpoint} is not known (known: {', '.join(CHECKPOINTS)})"),
        (bool(odd), f"--{odd} is not modelled"),
    ):
        if wrong:
            return [point._replace(refused=why)]
    tp = int(options.get("tp") or options.get("tp-size") or 1)
    pp = int(options.get("pp-size") or 1)
    ep = tp if "enable-expert-parallel" in options else int(options.get("ep-size") or options.get("ep") or 1)
    parallel: dict[str, Any] = {"attention": {"tp": tp}} | ({"pp": pp} if pp > 1 else {})
    if model != "qwen3-32b" and model not in DENSE_QWEN3:
        parallel["experts"] = {"ep": ep, "tp": tp // ep}
    lengths = [float(row[each]) / requests for each in ("input", "output")]
    sampled = [
        {"mean": each, "cv": SHAREGPT_CV} if lengths_open else {"fixed": max(round(each), 1)} for each in lengths
    ]
    given: dict[str, Any] = {
        "system": LAB_SYSTEMS[gpu], "engine": engine, "parallel": parallel,
        "model": _dense_qwen3(model) if model in DENSE_QWEN3 else model,
        "precision": {"products": "bf16" if dtype == "mxfp4" else dtype, "experts": dtype},
        "requests": {
            "concurrency": clients, "start": "together", "input": sampled[0], "output": sampled[1],
            "count": int(requests),
        },
    }  # fmt: skip
    version = re.search(rf"'{VERSIONS[engine]}': '(\d+(?:\.\d+)*)", str(row["versions"]))
    given |= {"engine_version": version[1]} if version else {}
    share = options.get("gpu-memory-utilization") or options.get("mem-fraction-static")
    given |= {"utilisation": float(share)} if share else {}
    keys = {"max-num-batched-tokens": "max_num_batched_tokens", "max-num-tokens": "max_num_batched_tokens",
            "max-running-requests": "max_num_seqs"}  # fmt: skip
    scheduler: dict[str, Any] = {key: int(options[name]) for name, key in keys.items() if name in options}
    scheduler |= {"chunked_prefill": True} if "enable-chunked-prefill" in options else {}
    given |= {"scheduler": {"name": SCHEDULERS[engine]} | scheduler} if scheduler else {}
    return [point._replace(given=given)]


def _clients_of(row: Mapping[str, Any]) -> int:
    """Requests that are under way on average (Little's law), where they are so few that a client's limit and not the
    end of the run says how many; else all of them.
    """
    requests = float(row["ok"])
    each_ms = (number_of(row, "ttft") or 0.0) + (number_of(row, "tpot") or 0.0) * (float(row["output"]) / requests - 1)
    # As clients end one after the other, 5 % fewer are under way than there are.
    under_way = requests * each_ms / 1e3 / float(row["duration_s"])
    return max(round(1.05 * under_way), 1) if under_way < FEW_CLIENTS * requests else int(requests)


def _dense_qwen3(name: str) -> dict[str, Any]:
    layers, hidden, ffn, heads = DENSE_QWEN3[name]
    return {
        "name": name, "source": "config.json (Hugging Face)", "layers": layers, "hidden": hidden, "expert_ffn": ffn,
        "moe_layers": {"first": 0, "last": layers - 1, "every": 1}, "experts": 1, "top_k": 1,
        "attention": {"heads": heads, "kv_heads": 8, "head_dim": 128}, "vocabulary": 151_936, "positions": 40_960,
    }  # fmt: skip


_OPTION = re.compile(r"(?:^|\s)--?([a-z][\w-]*)(?:[= ]+(?!-)(\S+))?")
_CHECKPOINT_OF = re.compile(r"(?:serve|--model-path|--model)[ =]+(?:\S*/)?([\w.-]+)")


# ---- results of load generators


def _of_bench(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A row of a load generator's result beside a deployment; of GuideLLM every benchmark of a report."""
    assert base is not None
    found = []
    for at, run in runs_of(where, row):
        values, given = run.values, under_load(base, run)
        serving = load_serving(given)
        gpu = serving.system.compute.calibration or DEFAULT_CALIBRATION
        precision = serving.spec.precision
        label = precision.experts or precision.products or serving.system.compute.dtype
        mean = number_of(values, "mean_ttft_ms") is not None
        kind = "mean" if mean else "median"
        ttft, tpot = (number_of(values, f"{kind}_{name}_ms") for name in ("ttft", "tpot"))
        found.append(MeasuredPoint(
            at, serving.spec.engine, gpu, serving.model.name, str(label), given, ttft, tpot,
            number_of(values, "output_throughput"), mean, run.lists, duration_s=number_of(values, "duration"),
        ))  # fmt: skip
    return found


def _has(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"its keys {', '.join(keys)}" if all(key in row for key in keys) else ""


def _of_vllm(row: Mapping[str, Any]) -> str:
    own = "mean_ttft_ms" in row and "completed" in row and not _of_sglang(row)
    return "its keys completed, mean_ttft_ms" if own else ""


def _of_sglang(row: Mapping[str, Any]) -> str:
    named = "mean_ttft_ms" in row and ("random_input_len" in row or "sharegpt_output_len" in row)
    return "its keys mean_ttft_ms, random_input_len" if named else ""


FORMATS: Mapping[str, ResultFormat] = MappingProxyType({
    INFERENCEX: ResultFormat(
        "InferenceX rows", "columns isl_tokens, concurrency, backend",
        _has("isl_tokens", "concurrency", "backend", "system"), _of_table, True, with_batches,
    ),
    GPUSTACK: ResultFormat(
        "rows of GPUStack's performance lab", "columns command, case, out_tps", _has("command", "case", "out_tps"),
        _of_gpustack, True,
    ),
    INFERENCEX_JSON: ResultFormat(
        "InferenceX (agg_*.json)", "keys hw, conc, framework, mean_ttft", _has("hw", "conc", "framework", "mean_ttft"),
        _of_inferencex, True, unit="s",
    ),
    AIPERF: ResultFormat(
        "AIPerf (profile_export_aiperf.json)", "keys time_to_first_token, request_throughput",
        _has("time_to_first_token", "request_throughput"), _of_bench, False,
    ),
    GUIDELLM: ResultFormat("GuideLLM", "key benchmarks", _has("benchmarks"), _of_bench, False),
    VLLM: ResultFormat("`vllm bench serve`", "keys completed, mean_ttft_ms", _of_vllm, _of_bench, False),
    SGLANG: ResultFormat(
        "SGLang's bench_serving", "keys mean_ttft_ms, random_input_len", _of_sglang, _of_bench, False
    ),
})  # fmt: skip


# ---- simulation


class JudgedPoint(NamedTuple):
    """A point with what was simulated, in ms and tokens a second; ``ranges``: of measured means as every page prints
    them, of TTFT and TPOT; None where there are none. ``refused``: why it was not simulated; ''.
    """

    point: MeasuredPoint
    ttft: float | None = None
    tpot: float | None = None
    output_per_s: float | None = None
    ranges: tuple[tuple[float, float], tuple[float, float]] | None = None
    refused: str = ""

    def error(self, name: str) -> float | None:
        """Simulated over measured, less one; None where either is unknown."""
        ours, theirs = getattr(self, name), getattr(self.point, name)
        return ours / theirs - 1 if ours is not None and theirs else None

    def within(self, name: str) -> bool | None:
        """Whether the measured mean lies in the printed range."""
        theirs = getattr(self.point, name)
        if self.ranges is None or theirs is None or not self.point.mean:
            return None
        low, high = self.ranges[0 if name == "ttft" else 1]
        return low <= theirs <= high


def simulated_point(point: MeasuredPoint) -> JudgedPoint:
    """Serve what was measured."""
    if point.given is None:
        return JudgedPoint(point, refused=point.refused)
    try:
        serving = load_serving(point.given)
        requests = requests_measured(serving, point.lists)
        found = serve_requests(serving, deploy(serving), requests).measures
    except ArchsimError as error:
        return JudgedPoint(point, refused=str(error))
    pick = (lambda each: each.mean) if point.mean else (lambda each: each.percentiles[0])
    ttft, tpot = (None if pick(each) != pick(each) else pick(each) for each in (found.ttft, found.tpot))
    return JudgedPoint(point, ttft, tpot, found.output_tokens_per_s, _ranges(serving, ttft, tpot))


def _ranges(
    serving: Serving, ttft: float | None, tpot: float | None
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    spec, gpu = serving.spec, serving.system.compute.calibration or DEFAULT_CALIBRATION
    products = spec.precision.products or serving.system.compute.dtype
    pools = spec.disaggregated != "none"
    found = residual_of(
        spec.engine, serving.model, gpu, spec.precision.experts or products, products, pools, spec.engine_version
    )
    if found is None or spec.host is not None or ttft is None or tpot is None:
        return None
    return (found.ttft[0] * ttft, found.ttft[1] * ttft), (found.tpot[0] * tpot, found.tpot[1] * tpot)


# ---- cells

KEYS = ("engine", "gpu", "model", "precision")
TIMES = ("tpot", "ttft", "output_per_s")
ALL, DISAGGREGATED = "all", "disaggregated"
WORSE_POINTS, WORSE_SHARE = 0.02, 0.10  # by both of which a cell's median error has to grow to have worsened
FAR, MOST_FAR = 0.25, 5  # error of TPOT of points that are named, and of how many


class AccuracyCell(NamedTuple):
    """``errors``, ``biases``: medians of absolute and of signed errors, of TIMES; None: not measured. ``hits``: share
    of means in the printed 80 % range, of TTFT and TPOT together; None: no range.
    """

    key: tuple[str, ...]
    points: int
    errors: tuple[float | None, ...]
    biases: tuple[float | None, ...]
    hits: float | None


def cells_of(judged: Iterable[JudgedPoint]) -> list[AccuracyCell]:
    """The cells by engine, GPU, model and precision, then those by engine. The last cell is that of all points."""
    found = [each for each in judged if not each.refused]
    groups: dict[tuple[str, ...], list[JudgedPoint]] = {}
    for each in found:
        groups.setdefault(tuple(str(getattr(each.point, key)) for key in KEYS), []).append(each)
    cells = [_cell(key, mine) for key, mine in sorted(groups.items())]
    engines = sorted({each.point.engine for each in found})
    if len(groups) > 1:
        cells += [_cell((name, ALL, ALL, ALL), [each for each in found if each.point.engine == name])
                  for name in engines]  # fmt: skip
        apart = [each for each in found if each.point.engine.endswith(DISAGGREGATED)]
        if 0 < len(apart) < len(found):
            cells.append(_cell((f"{ALL}, {DISAGGREGATED}", ALL, ALL, ALL), apart))
        cells.append(_cell((ALL,) * len(KEYS), found))
    return cells


def _cell(key: tuple[str, ...], mine: Sequence[JudgedPoint]) -> AccuracyCell:
    errors, biases = [], []
    for name in TIMES:
        off = [error for each in mine if (error := each.error(name)) is not None]
        errors.append(float(np.median(np.abs(off))) if off else None)
        biases.append(float(np.median(off)) if off else None)
    hits = [hit for each in mine for name in ("ttft", "tpot") if (hit := each.within(name)) is not None]
    return AccuracyCell(key, len(mine), tuple(errors), tuple(biases), float(np.mean(hits)) if hits else None)


COLUMNS = {
    **dict.fromkeys(KEYS, tables.TEXT), "points": tables.INTEGER, **dict.fromkeys(TIMES, tables.REAL),
    **{f"{name}_bias": tables.REAL for name in TIMES}, "hits": tables.REAL,
}  # fmt: skip


def table_of(cells: Sequence[AccuracyCell]) -> tables.Table:
    """A row a cell; shares of 1."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = dict(zip(KEYS, cell.key, strict=True)) | {"points": cell.points}
        row |= dict(zip(TIMES, cell.errors, strict=True))
        row |= {f"{name}_bias": bias for name, bias in zip(TIMES, cell.biases, strict=True)}
        rows.append(row | {"hits": cell.hits})
    return tables.Table(dict(COLUMNS), tuple(rows))


def worse(before: Path, now: Sequence[AccuracyCell]) -> list[str]:
    """Cells whose median error grew by more than 2 points and by more than 10 % of it against a table of this command
    (or of docs/accuracy.csv), in words. Raises TraceError for a file that is no such table.
    """
    with before.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {}
    for row in rows:
        try:
            known[_key_of(row)] = row
        except KeyError as error:
            command = "`archsim validate --served --page`"
            raise TraceError(f"{before}: is no table of {command}: it lacks {error}") from None
    if now and not {cell.key for cell in now} & set(known):
        told = ", ".join(now[0].key)
        raise TraceError(f"{before}: has none of these cells, such as {told}: nothing could be compared with it")
    found: list[str] = []
    for cell in now:
        row = known.get(cell.key, {})
        for name, off in zip(TIMES, cell.errors, strict=True):
            then = number_of(row, name)
            if then is None or off is None:
                continue
            if off - then > WORSE_POINTS and off > (1 + WORSE_SHARE) * then:
                found.append(f"{', '.join(cell.key)}: {name.upper()} {then:.1%} before, {off:.1%} now")
    return found


def _key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a row of such a table, or of docs/accuracy.csv, which has labels of systems and models. Raises KeyError."""
    if "engine" in row:
        return tuple(str(row[key]) for key in KEYS)
    engine, system, model = (str(row[key]) for key in ("backend", "system", "model"))
    if model == DISAGGREGATED:  # all of its points
        return f"{ALL}, {DISAGGREGATED}", ALL, ALL, ALL
    gpu, _ = SYSTEMS.get(system.split("-")[0], (system, ""))
    return engine, gpu, MODELS.get(model, model), str(row["precision"])


@dataclass(frozen=True, eq=False)
class ServedAccuracy(tables.Shown):
    """``told``: as what each file was read; ``worsened``: cells, in words, where there was a table to compare with."""

    judged: tuple[JudgedPoint, ...]
    told: tuple[str, ...]
    worsened: tuple[str, ...] = ()

    @property
    def cells(self) -> list[AccuracyCell]:
        return cells_of(self.judged)

    @property
    def refused(self) -> dict[str, int]:
        """Why points were not simulated → how many."""
        found: dict[str, int] = {}
        for each in self.judged:
            if each.refused:
                found[each.refused] = found.get(each.refused, 0) + 1
        return found

    def __repr__(self) -> str:
        return f"ServedAccuracy({summary(self)})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per point."""
        import pandas

        return pandas.DataFrame([row_of(each) for each in self.judged])


def row_of(each: JudgedPoint) -> dict[str, Any]:
    """A point in words and numbers."""
    point = each.point
    row: dict[str, Any] = {"where": point.where, **{key: getattr(point, key) for key in KEYS}}
    for name in ("ttft", "tpot", "output_per_s"):
        row |= {
            f"{name}_measured": getattr(point, name), f"{name}_simulated": getattr(each, name),
            f"{name}_error": each.error(name),
        }  # fmt: skip
    return row | {"refused": each.refused}


def summary(found: ServedAccuracy) -> str:
    """One sentence."""
    simulated = [each for each in found.judged if not each.refused]
    if not simulated:
        why = next(iter(found.refused), "there are none")
        return f"none of {len(found.judged)} measured points could be simulated: {why}"
    cell = _cell((ALL,) * len(KEYS), simulated)
    names = ("the time per output token", "the time to first token", "the output tokens a second")
    said = [
        f"{what} by {error:.1%} ({bias:+.1%})"
        for what, error, bias in zip(names, cell.errors, cell.biases, strict=True) if error is not None
    ]  # fmt: skip
    hits = "" if cell.hits is None else f"; {cell.hits:.0%} of the measured means lie in the printed 80 % ranges"
    return (
        f"Of {len(simulated)} of {len(found.judged)} measured points the simulation misses {', '.join(said)} in the "
        f"median (with sign){hits}."
    )


def validate_served(
    paths: Sequence[Path],
    deployment: Source | None = None,
    *,
    name: str | None = None,
    unit: str | None = None,
    most_clients: int | None = None,
    against: Path | None = None,
    jobs: int = 1,
    told: Callable[[str], None] = lambda text: None,
) -> ServedAccuracy:
    """Read, simulate and compare all points; ``most_clients``: leave closed loops of more out. Raises TraceError and
    SpecError for files that cannot be read.
    """
    read = [read_served(path, deployment, name, unit) for path in paths]
    points = [
        each for one in read for each in one.points
        if most_clients is None or each.given is None or each.given["requests"].get("concurrency", 0) <= most_clients
    ]  # fmt: skip
    found: dict[int, JudgedPoint] = {}
    if points:
        found[0] = simulated_point(points[0])  # here, so that processes begin with compiled functions
    for at, judged in in_copies(lambda at: simulated_point(points[at]), range(1, len(points)), jobs):
        found[at] = judged
        told(f"{len(found)} of {len(points)} measured points simulated")
    judged_points = tuple(found[at] for at in range(len(points)))
    worsened = worse(against, cells_of(judged_points)) if against else []
    return ServedAccuracy(judged_points, tuple(each.told for each in read), tuple(worsened))


# ---- page


def page(found: ServedAccuracy) -> str:
    """Markdown: the answer, all cells, and what was refused."""
    lines = ["# How far simulated serving is off", "", summary(found), ""]
    lines += [f"- {each}" for each in found.told]
    lines += ["", "Errors are medians of absolute errors, in percent; in brackets the median with its sign.", ""]
    lines += ["| engine, GPU, model, precision | points | TPOT | TTFT | tokens/s | in range |"]
    lines += ["|---|---|---|---|---|---|"]
    for cell in found.cells:
        lines.append("| " + " | ".join(cell_texts(cell)) + " |")
    if found.refused:
        lines += ["", "Not simulated:", ""]
        lines += [f"- {count} points: {why}" for why, count in sorted(found.refused.items())]
    return "\n".join([*lines, ""])


def cell_texts(cell: AccuracyCell) -> list[str]:
    """``vllm h200 …``, points, and errors with their biases."""
    errors = [
        "–" if error is None or bias is None else f"{100 * error:.1f} ({100 * bias:+.1f})"
        for error, bias in zip(cell.errors, cell.biases, strict=True)
    ]
    hits = "–" if cell.hits is None else f"{cell.hits:.0%}"
    return [" ".join(dict.fromkeys(cell.key)), str(cell.points), *errors, hits]


def write_page(found: ServedAccuracy, path: Path) -> None:
    """The page, and beside it the table of its cells (``.csv``), with which a later run is compared."""
    files.write_text(path, page(found))
    table_of(found.cells).write_csv(path.with_suffix(".csv"))


def far_told(found: ServedAccuracy) -> Iterator[str]:
    """Points that are far off, in words, the farthest first."""
    off = [(abs(error), at, error) for at, each in enumerate(found.judged) if (error := each.error("tpot")) is not None]
    for size, at, error in sorted(off, reverse=True)[:MOST_FAR]:
        each = found.judged[at]
        if size > FAR:
            times = f"{each.point.tpot:,.2f} ms measured, {each.tpot:,.2f} simulated"
            yield f"{each.point.where}: TPOT {times} ({error:+.0%})"

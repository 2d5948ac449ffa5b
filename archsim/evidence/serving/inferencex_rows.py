"""Rows of InferenceX and aiconfigurator, each with the deployment that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from archsim.base import yaml
from archsim.base.config_files import shipped_configs
from archsim.evidence.serving.measured_points import DISAGGREGATED, SCHEDULERS, MeasuredPoint
from archsim.evidence.serving.measured_run import number_of
from archsim.iteration.constants import host_file
from archsim.specs.library import load_system

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


def table_points(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
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


def inferencex_points(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
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
    point = MeasuredPoint(
        where=where,
        engine=named,
        gpu=gpu or system,
        model=model,
        precision=precision,
        given=None,
        ttft=ttft,
        tpot=tpot,
        output_per_s=output_per_s,
    )
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
    """Rows of pools with their deployment's largest decode batch (`decode_most`); they differ in clients alone."""
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

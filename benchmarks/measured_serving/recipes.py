"""How the measured engines were started: dtypes, budgets of tokens, and looks for requests, by InferenceX's scripts.

Scripts are those of SemiAnalysisAI/InferenceX, ``benchmarks/*.sh`` (dsr1_*, gptoss_*: @ 1fc5d73, 6320e9b; 70b_*: @
73ef922, a267b4b, 409e9a4, bb4c7f9). All send the first token at once, though some stream the others in groups
(TensorRT-LLM, ``py_executor.py``: ``py_decoding_iter == 1``; SGLang: ``len(output_ids) == 1``). Other runs take the
engines' defaults.
"""

from collections.abc import Mapping
from typing import Any

from archsim.evidence.serving.inferencex_rows import MODELS, scripted_scheduler
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import Precision
from archsim.specs.schedulers import SchedulerSpec

INFERENCEX = "inferencex_db"  # origin of its nightly runs
BLOCKS = ("DeepSeek-R1/V3", "MiniMax-M2.5", "GLM-5", "Qwen3.5-397B-A17B")  # whose FP8 checkpoints have a scale a block
KV_BF16 = ("Kimi-K2.5", "MiniMax-M2.5")  # whose scripts leave KV as it is
# Lengths relative to the nominal ones. InferenceX draws them from 0.8 to 1. The method of NVIDIA's own runs is not
# stated. Under SGLang, clients stay in step as equal lengths have them: a request waits for half of all prompts (TTFT
# and TPOT 9 and 4 % off with equal ones, 70 and 33 with unequal ones, of 18 points). Under the others prompts meet
# decodes, as unequal ones have them.
NIGHTLY_SHARES, EQUAL_SHARES, OTHER_SHARES = (0.8, 1.0), (1.0, 1.0), (0.9, 1.1)
# vLLM: cuda-graph-sizes of gpt-oss (gptoss_fp4_*), of which FlashAttention 3 captures less (v0.11, models/config.py).
GPT_OSS_CAPTURED, GPT_OSS_CAPTURED_HOPPER = 2048, 992
# KV between engines: over a NIC of 400 Gb/s a GPU, or inside an NVL72 over NVLink 5 (datasheets of DGX H100 and B200,
# and of GB200 NVL72).
NIC_BYTES_PER_S, NVLINK_BYTES_PER_S = 50e9, 900e9


def precision_of(row: Mapping[str, Any]) -> Precision:
    """dtypes by the labels of the table, and KV as the scripts say. Activations of gpt-oss's experts are MXFP8 on
    Blackwell (vLLM: VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8; TensorRT-LLM: moe_config.backend TRTLLM).
    """
    labels = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4"}
    products, experts = (labels.get(row[key], "bf16") for key in ("gemm_quant", "moe_quant"))
    kv = "fp8" if _narrow_kv(row, "nvfp4" if experts == "nvfp4" else products) else "bf16"
    if row["model"] == "gpt-oss-120b":
        products, experts = "bf16", "mxfp4_mxfp8" if row["system"].startswith("B") else "mxfp4"
    elif row["model"] == "Kimi-K2.5":
        products = "bf16"
    elif row["model"] in BLOCKS and products == "fp8":
        products = experts = "fp8_block"
    return Precision(products, "bf16", kv, experts)


def _narrow_kv(row: Mapping[str, Any], products: str) -> bool:
    """FP8: in TensorRT-LLM with NVIDIA's checkpoints, but for gpt-oss on Hopper; in InferenceX with NVFP4, whose
    checkpoints say so, of Llama on H200 and B200, and on B200 but for MiniMax and Kimi. Its script for Llama on H100
    says FP8, too, but its KV filled up as BF16 does (of the points that constants are fitted on).
    """
    system, nightly = row["system"], row["origin"] == INFERENCEX
    if row["model"] == "gpt-oss-120b":
        return nightly and system.startswith("B")
    if row["backend"] == "trtllm":
        return products != "bf16"
    if not nightly or system.startswith("H100"):
        return False
    if row["model"] == "Llama-3.1-70B" or products == "nvfp4":
        return True
    return not system.startswith("H") and row["model"] not in KV_BF16


def scheduler_of(row: Mapping[str, Any]) -> Scheduler:
    """Of a point; TensorRT-LLM takes prompts whole."""
    gpu, model = row["system"].split("-")[0].lower(), MODELS.get(row["model"], row["model"])
    found = scripted_scheduler(
        row["backend"], gpu, model, row["gemm_quant"], int(row["concurrency"]), (row["isl_tokens"], row["osl_tokens"]),
        row["origin"] == INFERENCEX,
    )  # fmt: skip
    return Scheduler.of(SchedulerSpec.model_validate(found))


def shares_of(row: Mapping[str, Any]) -> tuple[float, float]:
    """Least and largest length of requests of a point, relative to the nominal one."""
    if row["origin"] == INFERENCEX:
        return NIGHTLY_SHARES
    return EQUAL_SHARES if row["backend"] == "sglang" else OTHER_SHARES


def captured_of(row: Mapping[str, Any]) -> int | None:
    """Tokens of the largest captured graph where the scripts say; None: as the engine does by itself."""
    if (row["backend"], row["model"], row["origin"]) != ("vllm", "gpt-oss-120b", INFERENCEX):
        return None
    return GPT_OSS_CAPTURED if row["system"].startswith("B") else GPT_OSS_CAPTURED_HOPPER


def link_bytes_per_s(row: Mapping[str, Any]) -> float:
    """Of a GPU, one way, to another engine."""
    return NVLINK_BYTES_PER_S if row["system"].startswith("GB") else NIC_BYTES_PER_S

"""Rows of GPUStack's performance lab, each with the command that started its engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.evidence.serving.measured_points import SCHEDULERS, MeasuredPoint
from archsim.evidence.serving.measured_run import number_of

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
LAB_SYSTEMS = MappingProxyType({
    "a100": "a100_cluster", "h100": "h100_node", "h100_pcie": "h100_pcie_node", "h200": "h200_node",
})  # fmt: skip
# Cases that ran on another GPU than their page says, by what the lab itself prints (page → beginning of the case, GPU):
# the random cases of GLM-4.5-Air are those of its page of an A100 to the last digit, and the page's own summary has
# others (docs.gpustack.ai/latest/performance-lab/glm-4.5-air/h100: 22,582 tokens/s of random2000, not 8,643). A request
# of Qwen3-32B alone reads 65.5 GB of weights and 8.4 GB of KV in 43.4 ms, 1.7 TB/s: 84 % of what a PCIe card has, half
# of an SXM's. Qwen3-14B and gpt-oss-20b were measured on one card with the same versions.
RAN_ON = MappingProxyType({
    "glm-4.5-air/h100": ("random", "a100"), "qwen3-32b/h100": ("", "h100_pcie"),
    "qwen3-14b/h100": ("", "h100_pcie"), "gpt-oss-20b/h100": ("", "h100_pcie"),
})  # fmt: skip
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


def gpustack_points(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A row of GPUStack's performance lab (gpustack_shared.csv): `vllm bench serve` with all requests at once, or, on
    its pages of latency, with a few clients, whose number Little's law gives. Where all requests of ShareGPT come at
    once, whose lengths are not stated, tokens per second alone are judged.
    """
    command, page = str(row["command"]), Path(str(row["file"])).with_suffix("")
    gpu = page.name.split("-")[0]
    begins, other = RAN_ON.get(page.as_posix(), ("", gpu))
    gpu = other if str(row["case"]).startswith(begins) else gpu
    engine = next((each for key, each in COMMANDS.items() if key in command), "")
    options = {name.replace("_", "-"): value for name, value in _OPTION.findall(command)}  # the last of each
    checkpoint = found[1] if (found := _CHECKPOINT_OF.search(command)) else ""
    model, dtype = CHECKPOINTS.get(checkpoint, ("", ""))
    label = dtype or checkpoint
    requests, lengths_open = float(row["ok"]), row["case"] == "sharegpt"
    clients = _clients_of(row)
    many = lengths_open and clients == int(requests)
    point = MeasuredPoint(
        where=where,
        engine=engine,
        gpu=gpu,
        model=model or checkpoint,
        precision=label,
        given=None,
        ttft=None if many else number_of(row, "ttft"),
        tpot=None if many else number_of(row, "tpot"),
        output_per_s=number_of(row, "out_tps"),
        duration_s=number_of(row, "duration_s"),
    )
    odd = next((each for each in options if each.startswith(BEYOND)), "")
    for wrong, why in (
        (gpu not in LAB_SYSTEMS, f"the GPU {gpu} is not known (known: {', '.join(LAB_SYSTEMS)})"),
        (not model, f"the checkpoint {checkpoint} is not known (known: {', '.join(CHECKPOINTS)})"),
        (bool(odd), f"--{odd} is not modelled"),
        (page.parent.name.rstrip("x") not in checkpoint.lower(), f"{checkpoint} is not the model of {page.parent}"),
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
    """Requests under way on average (Little's law), if few enough to be a client's limit; else all of them."""
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

"""How an engine is started as a deployment says: arguments of vLLM, SGLang and TensorRT-LLM.

Sources: vLLM 0.11 to 0.25, ``vllm/engine/arg_utils.py``; SGLang 0.5, ``server_args.py`` (with ``--enable-dp-attention``
``--tp-size`` is of all ranks, and ``--max-running-requests`` and ``--chunked-prefill-size`` are of all of them, too);
TensorRT-LLM 1.0 to 1.2, ``trtllm-serve`` and ``llm_args.py``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from archsim.iteration.layers import has_experts
from archsim.specs.deployment import ParallelSpec, Precision
from archsim.specs.model import ModelSpec

BOTH, PREFILL, DECODE = "both", "prefill", "decode"
FIRST_PORT = 8000
OPTIONS_OF = "trtllm_{role}.yaml"  # file of TensorRT-LLM's further options
_CHECKPOINT = re.compile(r"[\w.-]+/[\w.-]+")
# Values of --kv-cache-dtype, and of kv_cache_config.dtype.
_KV = {"vllm": {"bf16": "auto", "fp8": "fp8"}, "sglang": {"bf16": "auto", "fp8": "fp8_e4m3"},
       "trtllm": {"bf16": "auto", "fp8": "fp8"}}  # fmt: skip


class Started(NamedTuple):
    """``role``: of BOTH, PREFILL and DECODE; ``max_num_seqs``: of a rank of data-parallel attention;
    ``max_num_batched_tokens``: of a rank. ``utilisation``: share of HBM; None: as the engine does by itself.
    """

    engine: str
    model: ModelSpec
    parallel: ParallelSpec
    precision: Precision
    instances: int
    max_num_seqs: int
    max_num_batched_tokens: int
    role: str = BOTH
    chunked_prefill: bool = True
    utilisation: float | None = None


def checkpoint_of(model: ModelSpec) -> str:
    """Its name at Hugging Face, from the source of the model file; else the name of the model."""
    found = _CHECKPOINT.match(model.source or "")
    return found[0] if found else model.name


def arguments(started: Started) -> list[str]:
    """The command that starts one engine."""
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[started.engine](started)


def options_file(started: Started) -> str:
    """TensorRT-LLM's file of further options, as YAML; '' for other engines."""
    if started.engine != "trtllm":
        return ""
    kv = {"dtype": _KV["trtllm"][started.precision.kv]}
    if started.utilisation is not None:
        kv["free_gpu_memory_fraction"] = f"{started.utilisation:g}"
    lines = [
        f"enable_attention_dp: {str(started.parallel.attention.dp > 1).lower()}",
        f"enable_chunked_prefill: {str(started.chunked_prefill).lower()}",
        "kv_cache_config:",
        *(f"  {key}: {value}" for key, value in kv.items()),
    ]
    if started.role != BOTH:
        lines += ["cache_transceiver_config:", "  backend: DEFAULT"]
    return "\n".join([*lines, ""])


def script(every: Sequence[Started]) -> str:
    """A shell script with the command of each instance; every one is run on GPUs of its own, where it says."""
    first = every[0]
    lines = [
        "#!/usr/bin/env bash",
        f"# {first.model.name}: one line starts one engine; run each on the node that has its GPUs.",
        f"# The checkpoint has products in {first.precision.products}"
        + (f" and experts in {first.precision.experts}" if has_experts(first.model) else "")
        + "; set MODEL to it.",
        f"MODEL=${{MODEL:-{checkpoint_of(first.model)}}}",
        "",
    ]
    port = FIRST_PORT
    for started in every:
        ranks = started.parallel.ranks
        for instance in range(started.instances):
            name = "engine" if started.role == BOTH else f"engine that does {started.role} alone"
            lines.append(f"# {name}, {instance + 1} of {started.instances}: {ranks} GPUs")
            words = [*arguments(started), "--port", str(port)]
            lines.append(" ".join('"$MODEL"' if each == MODEL else shlex.quote(each) for each in words) + " &")
            port += 1
    return "\n".join([*lines, "wait", ""])


MODEL = "$MODEL"


def _vllm(started: Started) -> list[str]:
    attention, experts = started.parallel.attention, started.parallel.experts
    found = ["vllm", "serve", MODEL, "--tensor-parallel-size", str(attention.tp)]
    if attention.dp > 1:
        found += ["--data-parallel-size", str(attention.dp)]
    if experts is not None and experts.ep > 1:
        found += ["--enable-expert-parallel"]
    found += ["--max-num-seqs", str(started.max_num_seqs)]
    found += ["--max-num-batched-tokens", str(started.max_num_batched_tokens)]
    found += ["--kv-cache-dtype", _KV["vllm"][started.precision.kv]]
    if started.utilisation is not None:
        found += ["--gpu-memory-utilization", f"{started.utilisation:g}"]
    if started.role != BOTH:
        connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        found += ["--kv-transfer-config", json.dumps(connector)]
    return found


def _sglang(started: Started) -> list[str]:
    attention, experts = started.parallel.attention, started.parallel.experts
    found = ["python", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp-size", str(started.parallel.ranks)]
    if attention.dp > 1:
        found += ["--enable-dp-attention", "--dp-size", str(attention.dp)]
    if experts is not None and experts.ep > 1:
        found += ["--ep-size", str(experts.ep)]
    found += ["--max-running-requests", str(started.max_num_seqs * attention.dp)]
    found += ["--chunked-prefill-size", str(started.max_num_batched_tokens * attention.dp)]
    found += ["--kv-cache-dtype", _KV["sglang"][started.precision.kv]]
    if started.utilisation is not None:
        found += ["--mem-fraction-static", f"{started.utilisation:g}"]
    if started.role != BOTH:
        found += ["--disaggregation-mode", started.role]
    return found


def _trtllm(started: Started) -> list[str]:
    experts = started.parallel.experts
    found = ["trtllm-serve", MODEL, "--tp_size", str(started.parallel.ranks)]
    if experts is not None:
        found += ["--ep_size", str(experts.ep)]
    found += ["--max_batch_size", str(started.max_num_seqs), "--max_num_tokens", str(started.max_num_batched_tokens)]
    return [*found, "--extra_llm_api_options", OPTIONS_OF.format(role=started.role)]

"""What a file leaves open, as engines are started: by InferenceX's scripts (SemiAnalysisAI/InferenceX, benchmarks/*.sh
of 2025 and 2026, of vLLM 0.10 to 0.19, SGLang 0.5 and TensorRT-LLM 1.0 to 1.3) and by the engines' defaults. A key
that the file gives is taken as it is. The measured errors of docs/accuracy.md are of engines that were started so.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from archsim.specs.model import ModelSpec
from archsim.specs.schedulers import SchedulerSpec
from archsim.specs.serving import LengthSpec, ServeSpec
from archsim.specs.system import SystemSpec

SCHEDULER_OF = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
# SGLang, --chunked-prefill-size of the scripts by GPU and dtype of products: tokens of a batch of prompts.
SGLANG_TOKENS = MappingProxyType({
    ("b200", "fp8"): 32768, ("b200", "fp8_block"): 32768, ("b200", "nvfp4"): 16384, ("h200", "fp8"): 32768,
    ("h200", "fp8_block"): 32768,
})  # fmt: skip
SGLANG_ELSEWHERE = ("qwen3-235b-a22b", "qwen3-32b")  # models without a script: by the engine's default
# SGLang on B200 looks for new requests only every 10 decodes, 30 from 16 clients on (--scheduler-recv-interval).
SGLANG_POLLS, SGLANG_POLLS_BUSY, SGLANG_BUSY = 10, 30, 16
# TensorRT-LLM, --max_num_tokens: of gpt-oss, and of others the least; more where clients and a whole prompt are more.
TRTLLM_GPT_OSS_TOKENS, TRTLLM_TOKENS, TRTLLM_STEP = 20_000, 8192, 64
# Of Llama-3.1-70B: 16,384 in FP8 on B200, elsewhere a whole request and some.
LLAMA, TRTLLM_LLAMA_TOKENS, TRTLLM_BEYOND = "llama-3.1-70b", 16_384, 200
KV_OF_BF16 = ("kimi", "minimax")  # models whose scripts leave the KV cache as it is
VARIED = (0.9, 1.1)  # lengths over their mean where a file gives a mean alone: fitted engines but SGLang were served so
FP4_FROM_CHECKPOINT = ("nvfp4", "mxfp4_mxfp8")  # weights whose checkpoints or scripts keep KV in FP8


def with_recipe(spec: ServeSpec, system: SystemSpec, model: ModelSpec) -> tuple[ServeSpec, tuple[str, ...]]:
    """A file with what it leaves open, and what that is, a sentence for each key."""
    if spec.engine not in SCHEDULER_OF or system.launch != "gpu":
        return spec, ()
    gpu, words = system.compute.calibration or "", []
    precision = spec.precision.dtypes(system.compute.dtype)
    changes: dict[str, Any] = {}

    def fill(keys: str, value: object, why: str) -> None:
        words.append(f"{keys}: {value} ({why})")

    if spec.precision.kv is None and (kv := _kv_of(spec.engine, gpu, precision.products, precision.experts, model)):
        changes["precision"] = spec.precision.model_copy(update={"kv": kv})
        fill("precision.kv", kv, f"as {spec.engine} keeps KV of such weights")
    scheduler = _scheduler_of(spec, gpu, precision.products, model)
    if scheduler:
        changes["scheduler"] = _with_changes(spec.scheduler, scheduler)
        for key, value in scheduler.items():
            fill(f"scheduler.{key}", value, f"as {spec.engine} is started")
    lengths = {
        key: LengthSpec(uniform=tuple(max(1, round(each * given.mean)) for each in VARIED))
        for key in ("input", "output")
        if (given := getattr(spec.requests, key)) and given.mean is not None and "cv" not in given.model_fields_set
    }
    if lengths and spec.requests.concurrency is not None and spec.engine != "sglang":
        changes["requests"] = spec.requests.model_copy(update=lengths)
        fill(" and ".join(f"requests.{key}" for key in lengths), "uniform, 0.9 to 1.1 of the mean",
               "cv is not given; `fixed` for equal lengths")  # fmt: skip
    return (spec.model_copy(update=changes) if changes else spec), tuple(words)


def _with_changes(scheduler: SchedulerSpec, changes: Mapping[str, Any]) -> SchedulerSpec:
    """With changes that do not count as given by the file."""
    given = {key: getattr(scheduler, key) for key in scheduler.model_fields_set - {"params"}}
    own = scheduler.params if scheduler.name == changes.get("name", scheduler.name) else {}
    copy = SchedulerSpec.model_validate(dict(own) | given | dict(changes))
    copy.model_fields_set.intersection_update(scheduler.model_fields_set)
    return copy


def _kv_of(engine: str, gpu: str, products: str, experts: str, model: ModelSpec) -> str | None:
    """FP8 where the engine's checkpoints or scripts say so: TensorRT-LLM's of all weights of 8 bits and fewer, those of
    NVFP4, and InferenceX's on B200 and B300 but for some models, and of Llama-3.1-70B on H200.
    """
    narrow = experts in FP4_FROM_CHECKPOINT or products in FP4_FROM_CHECKPOINT
    if engine == "trtllm":
        narrow |= products != "bf16"
    else:
        kept = any(name in model.name.lower() for name in KV_OF_BF16)
        narrow |= gpu in ("b200", "b300") and products.startswith("fp8") and not kept
        narrow |= (engine, gpu, model.name) == ("vllm", "h200", LLAMA) and products.startswith("fp8")
    return "fp8" if narrow else None


def _scheduler_of(spec: ServeSpec, gpu: str, products: str, model: ModelSpec) -> dict[str, Any]:
    """Keys of the scheduler that the file leaves open and that differ from their defaults."""
    given, name = spec.scheduler.model_fields_set, SCHEDULER_OF[spec.engine]
    found: dict[str, Any] = {}
    if "name" in given and spec.scheduler.name != name:
        return {}  # another engine's scheduler: as it is written
    if spec.scheduler.name != name:
        found["name"] = name
    clients = spec.requests.concurrency or 0
    if "max_num_batched_tokens" not in given:
        tokens = TRTLLM_TOKENS
        if spec.engine == "sglang" and model.name not in SGLANG_ELSEWHERE:
            tokens = SGLANG_TOKENS.get((gpu, products), tokens)
        elif spec.engine == "trtllm":
            tokens = _trtllm_tokens(spec, gpu, products, model)
        if tokens != spec.scheduler.max_num_batched_tokens:
            found["max_num_batched_tokens"] = tokens
    polled = spec.scheduler.name == name and spec.scheduler.params.get("poll_every", 1) != 1
    if spec.engine == "sglang" and gpu == "b200" and not polled:
        found["poll_every"] = SGLANG_POLLS_BUSY if clients >= SGLANG_BUSY or not clients else SGLANG_POLLS
    if "max_num_seqs" not in given and clients > spec.scheduler.max_num_seqs:
        found["max_num_seqs"] = min(clients, 65_536)
    return found


def _trtllm_tokens(spec: ServeSpec, gpu: str, products: str, model: ModelSpec) -> int:
    """``--max_num_tokens``: no less than the longest prompt, which is taken whole, beside a decode of every client."""
    if model.name.startswith("gpt-oss"):
        return TRTLLM_GPT_OSS_TOKENS
    if (model.name, gpu, products) == (LLAMA, "b200", "fp8"):
        return TRTLLM_LLAMA_TOKENS
    longest, answer = (_longest(each) for each in (spec.requests.input, spec.requests.output))
    if not longest:
        return TRTLLM_TOKENS
    if model.name == LLAMA:
        return longest + answer + TRTLLM_BEYOND
    most = (spec.requests.concurrency or 0) + longest + 2 * TRTLLM_STEP - 1
    return max(TRTLLM_TOKENS, most // TRTLLM_STEP * TRTLLM_STEP)


def _longest(given: LengthSpec | None) -> int:
    """Tokens of the longest prompt or output where it is stated, else 0."""
    if given is None:
        return 0
    return given.fixed or (given.uniform or (0, 0))[1] or (0 if given.cv else round(VARIED[1] * (given.mean or 0)))

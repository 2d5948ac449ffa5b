"""What a file leaves open, as engines take it by themselves: by engine, version, and what its source computes from the
machine, and by no model's or GPU's name. A key that the file gives is taken as it is.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.units import WEIGHTS_ALONE
from archsim.laws.calibration_files import reference_of
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Precision
from archsim.specs.schedulers import JOIN, SchedulerSpec
from archsim.specs.serving import LengthSpec, ServeSpec

SCHEDULER_OF = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})
TRTLLM_TOKENS, TRTLLM_STEP = 8192, 64
GIB = 2**30


class EngineDefault(NamedTuple):
    """A default of an engine from a version on, on devices with at least so much memory. ``needs_fp8``: and with FP8
    products, which is what an A100, that vLLM's source names, lacks of its successors. ``a_rank``: whether ranks of
    data-parallel attention divide it.
    """

    engine: str
    key: str
    value: int
    source: str  # file and function of the engine
    since: str = "0"
    least_gib: int = 0
    needs_fp8: bool = False
    a_rank: bool = False

    def of_rank(self, ranks: int) -> int:
        """Of each of so many ranks of data-parallel attention."""
        return max(self.value // ranks, 1) if self.a_rank else self.value

    def sentence(self, value: int) -> str:
        """``1024 (vllm from 0.28 on, …: 160 GiB per device or more)``"""
        of = f"{self.engine} from {self.since} on" if self.since != "0" else self.engine
        memory = f": {self.least_gib} GiB per device or more" if self.least_gib else ""
        divided = ", divided by the ranks of attention" if self.a_rank else ""
        return f"{value} ({of}, {self.source}{memory}{' and FP8' * self.needs_fp8}{divided})"


TOKENS, SEQS = "max_num_batched_tokens", "max_num_seqs"
_VLLM, _SGLANG = "vllm/engine/arg_utils.py, get_batch_defaults", "server_args.py, _handle_gpu_memory_settings"
_PREBUILT = "disaggregation/decode.py, get_next_disagg_decode_batch_to_run"
# The first one of an engine and key that fits. TensorRT-LLM: BuildConfig. SGLang: requests of a pool of KV, at least.
ENGINE_DEFAULTS = (
    EngineDefault("vllm", TOKENS, 16_384, _VLLM, "0.28", 160),
    EngineDefault("vllm", TOKENS, 8192, _VLLM, "0", 70, needs_fp8=True),
    EngineDefault("vllm", TOKENS, 2048, _VLLM),
    EngineDefault("vllm", SEQS, 1024, _VLLM, "0.28", 160),
    EngineDefault("vllm", SEQS, 1024, _VLLM, "0", 70, needs_fp8=True),
    EngineDefault("vllm", SEQS, 256, _VLLM),
    *(EngineDefault("sglang", TOKENS, tokens, _SGLANG, "0", least, a_rank=True)
      for least, tokens in ((160, 16_384), (60, 8192), (20, 4096), (0, 2048))),
    EngineDefault("sglang", SEQS, 2048, "model_runner.py, init_memory_pool"),
    EngineDefault("sglang", JOIN, 1, _PREBUILT, "0.5.10"), EngineDefault("sglang", JOIN, 0, _PREBUILT),
    EngineDefault("trtllm", TOKENS, TRTLLM_TOKENS, "llmapi/llm_args.py, max_num_tokens"),
    EngineDefault("trtllm", SEQS, 2048, "llmapi/llm_args.py, max_batch_size"),
)  # fmt: skip
VARIED = (0.9, 1.1)  # lengths over their mean where a file gives a mean alone: fitted engines but SGLang were served so
FP4_FROM_CHECKPOINT = ("nvfp4", "mxfp4_mxfp8")  # weights whose checkpoints keep KV in FP8


def with_recipe(spec: ServeSpec, system: SystemSpec, model: ModelSpec) -> tuple[ServeSpec, tuple[str, ...]]:
    """A file with what it leaves open, and what that is, a sentence for each key."""
    precision = spec.precision.dtypes(system.compute.dtype, model)
    dtypes = precision.products, precision.experts
    if system.launch != "gpu":
        return spec, ()
    alone = spec.engine == "none"
    words: list[str] = []
    changes: dict[str, Any] = {}

    def fill(keys: str, value: object, why: str) -> None:
        words.append(f"{keys}: {value} ({why})")

    if spec.precision.kv is None and all(
        _narrow_kv(name, *dtypes) for name in (SCHEDULER_OF if alone else [spec.engine])
    ):
        changes["precision"] = spec.precision.model_copy(update={"kv": "fp8"})
        fill("precision.kv", "fp8", f"as {'every engine' if alone else spec.engine} keeps KV of such weights")
    if spec.precision.bf16 is None and precision.kept:
        kept = next(each for each in model.kept_bf16 if each.weights == precision.products)
        whose = kept.checkpoint or f"checkpoints of {model.name} in {precision.products}"
        why = f"as in {whose}: kept_bf16 of its file"
        fill("precision.bf16", f"[{', '.join(precision.kept)}]", why)
    scheduler = _scheduler_of(spec, system)
    if scheduler:
        changes["scheduler"] = _with_changes(spec.scheduler, {key: value for key, (value, _) in scheduler.items()})
        words += [f"scheduler.{key}: {report}" for key, (_, report) in scheduler.items()]
    lengths = {
        key: LengthSpec(uniform=tuple(max(1, round(each * given.mean)) for each in VARIED))
        for key in ("input", "output")
        if (given := getattr(spec.requests, key)) and given.mean is not None and "cv" not in given.model_fields_set
    }
    if lengths and spec.requests.concurrency is not None and spec.engine not in ("sglang", "none"):
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


def _narrow_kv(engine: str, products: str, experts: str) -> bool:
    """Whether KV is in FP8: checkpoints of 4 bits say so, and those of TensorRT-LLM of all weights below 16 bits."""
    four_bits = experts in FP4_FROM_CHECKPOINT or products in FP4_FROM_CHECKPOINT
    return four_bits or (engine == "trtllm" and products != "bf16")


def _scheduler_of(spec: ServeSpec, system: SystemSpec) -> dict[str, tuple[Any, str]]:
    """Keys of the scheduler that the file leaves open → (value, it and its origin in words)."""
    given, name = spec.scheduler.model_fields_set, SCHEDULER_OF.get(spec.engine, spec.scheduler.name)
    if "name" in given and spec.scheduler.name != name:
        return {}  # another engine's scheduler: as it is written
    found: dict[str, tuple[Any, str]] = {}
    if spec.scheduler.name != name:
        found["name"] = name, f"{name} (that of {spec.engine})"
    ranks = max(side.parallel.attention.dp for side in spec.pools)
    for key in (TOKENS, SEQS):
        if key not in given:
            # Without an engine, the most of all: a limit of its own would make it slower than an engine under load.
            rows = [default_of(each, key, spec.engine_version, system)
                    for each in ([spec.engine] if spec.engine in SCHEDULER_OF else SCHEDULER_OF)]  # fmt: skip
            value, row = max(((each.of_rank(ranks), each) for each in rows), key=lambda each: each[0])
            found[key] = value, row.sentence(value)
    if spec.engine == "sglang" and spec.disaggregated != "none" and JOIN not in spec.scheduler.params:
        row = default_of(spec.engine, JOIN, spec.engine_version, system)
        found[JOIN] = row.value, row.sentence(row.value)
    if spec.engine == "trtllm" and TOKENS in found and not spec.scheduler.chunked_prefill:
        most = (spec.requests.concurrency or 0) + _longest(spec.requests.input) + 2 * TRTLLM_STEP - 1
        if (whole := most // TRTLLM_STEP * TRTLLM_STEP) > TRTLLM_TOKENS:
            found[TOKENS] = whole, f"{whole} (a prompt, which trtllm takes whole, and a decode of every client)"
    return found


def default_of(engine: str, key: str, version: str | None, system: SystemSpec) -> EngineDefault:
    """The default of an engine of a version (None: of the newest) on a machine."""
    return next(
        row for row in ENGINE_DEFAULTS
        if (row.engine, row.key) == (engine, key) and system.hbm.capacity_bytes >= row.least_gib * GIB
        and not (row.needs_fp8 and lacks("fp8", system))
        and (version is None or _numbers(version) >= _numbers(row.since))
    )  # fmt: skip


def lacks(dtype: str, system: SystemSpec) -> bool:
    """Whether a GPU has no arithmetic of a format of WEIGHTS_ALONE. All that have FP4's have FP8's."""
    compute, peaks = system.compute, reference_of(system.compute.calibration).peak_flop_per_s
    if system.launch != "gpu" or dtype not in WEIGHTS_ALONE or compute.dtype == dtype:
        return False
    fp4 = "nvfp4" in peaks if compute.fp4 is None else compute.fp4
    return not (fp4 or (dtype.startswith("fp8") and (compute.dtype.startswith("fp8") or "fp8" in peaks)))


def multiplies(precision: Precision, system: SystemSpec) -> Precision:
    """What a GPU multiplies a checkpoint as: a format that it lacks is of its weights alone."""
    products, experts = (
        WEIGHTS_ALONE[dtype] if lacks(dtype, system) else dtype for dtype in (precision.products, precision.experts)
    )
    return precision._replace(products=products, experts=experts)


def unserved(engine: str, precision: Precision, system: SystemSpec) -> str:
    """Why an engine does not serve a checkpoint of a format that a GPU lacks; '' if it does. vLLM has Marlin's kernels
    for that, of NVIDIA's GPUs with BF16 (csrc/quantization/marlin: from sm80 on).
    """
    for key, dtype in (("products", precision.products), ("experts", precision.experts)):
        if not lacks(dtype, system):
            continue
        form, has = ("FP8", "compute.dtype: fp8") if dtype.startswith("fp8") else ("FP4", "compute.fp4: true")
        said = f"precision.{key}: {dtype}: {system.name} has no {form} arithmetic"
        if system.datasheet_only:
            return f"{said}, and nobody knows its kernels (datasheet_only). Give bf16, or {has} where it has it"
        if system.compute.dtype == "fp16":
            return f"{said}, and no BF16 to multiply such weights in (compute.dtype: fp16). Give bf16"
        if engine not in ("vllm", "none"):
            return f"{said}, and no kernel of {engine} multiplies such weights in BF16. Give engine: vllm, or bf16"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))[:3]


def _longest(given: LengthSpec | None) -> int:
    """Tokens of the longest prompt or output where it is stated, else 0."""
    if given is None:
        return 0
    return given.fixed or (given.uniform or (0, 0))[1] or (0 if given.cv else round(VARIED[1] * (given.mean or 0)))

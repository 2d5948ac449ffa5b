"""What a quantised checkpoint leaves in BF16, by the modules that its configuration excludes."""

import fnmatch
import re
from collections.abc import Mapping
from types import MappingProxyType

from archsim.model.config_keys import ConfigKeys, read_keys
from archsim.model.spec import KeptPart, KeptParts, ModelSpec

# Names of modules inside a layer that belong to a part, one of each family.
_MODULES: Mapping[KeptPart, tuple[str, ...]] = MappingProxyType({
    "attention_inputs": (
        "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_b_proj", "linear_attn.in_proj_qkvz",
        "linear_attn.in_proj_qkv",
    ),
    "attention_output": ("self_attn.o_proj", "linear_attn.out_proj"),
    "shared_experts": tuple(f"{each}.up_proj" for each in (
        "mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "block_sparse_moe.shared_experts",
    )),
    "dense_ffn": ("mlp.up_proj", "feed_forward.up_proj"),
})  # fmt: skip
# Keys of transformers, of NVIDIA's Model Optimizer (hf_quant_config.json), and of it and of compressed-tensors.
_EXCLUDED = ("modules_to_not_convert", "exclude_modules", "ignore")


def kept_parts(keys: ConfigKeys, model: ModelSpec) -> tuple[tuple[KeptParts, ...], list[str]]:
    """Of the checkpoint of ``keys``: the parts in BF16, and, in words, parts that some of their layers alone have so.
    Raises SpecError for lists that are none.
    """
    method = _method(keys)
    weights, excluded = _weights(method), [_excluding(str(each)) for key in _EXCLUDED for each in method.list_of(key)]
    if weights is None or not excluded:
        return (), []
    moe = set(model.moe_layer_ids)
    has = {"shared_experts": moe if model.shared_experts else set(), "dense_ffn": {*range(model.layers)} - moe}
    kept, partly = list[KeptPart](), list[str]()
    for part, modules in _MODULES.items():
        layers = has.get(part, {*range(model.layers)})
        found = sum(
            any(each.fullmatch(f"model.layers.{layer}.{module}") for module in modules for each in excluded)
            for layer in layers
        )
        if found and found == len(layers):
            kept.append(part)
        elif found:
            partly.append(
                f"{part.replace('_', ' ')} stay in 16 bits in {found} of {len(layers)} layers, which is not supported"
            )
    return ((KeptParts.model_validate({"weights": weights, "parts": kept}),) if kept else ()), partly


def _method(keys: ConfigKeys) -> ConfigKeys:
    """How it is quantised, by its own file or by hf_quant_config.json beside it."""
    own = ConfigKeys(keys.path, {**keys.outer, **keys.keys})
    beside = keys.path.with_name("hf_quant_config.json")
    if own.said("quantization_config") or not beside.is_file():
        return own.part("quantization_config")
    return read_keys(beside).part("quantization")


def _weights(method: ConfigKeys) -> str | None:
    """The dtype of products; None where they are in 16 bits or the kind is not known."""
    named = " ".join(str(method.any(key) or "") for key in ("quant_method", "quant_algo", "format")).lower()
    if "nvfp4" in named:
        return "nvfp4"
    if "fp8" in named or "float-quantized" in named:
        return "fp8_block" if method.any("weight_block_size") else "fp8"
    return "int4" if "pack-quantized" in named else None


def _excluding(written: str) -> re.Pattern[str]:
    """Of full names of modules: a regular expression after ``re:``, else a glob of some of the name's words."""
    if written.startswith("re:"):
        return re.compile(written[3:])
    words = fnmatch.translate(written.removeprefix("language_model."))[:-2]  # without the end of text
    return re.compile(rf"(.*\.)?{words}(\..*)?")

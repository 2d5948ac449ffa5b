"""What a quantised checkpoint leaves in BF16, by the modules that its configuration excludes."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

from archsim.model.attention import AttentionKind, by_layer
from archsim.model.config_keys import ConfigKeys, read_keys
from archsim.model.spec import KeptPart, KeptParts, ModelSpec

_FFN: Mapping[KeptPart, tuple[str, ...]] = MappingProxyType({
    "shared_experts": (
        "mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "block_sparse_moe.shared_experts",
    ),
    "dense_ffn": ("mlp", "feed_forward"),
})  # fmt: skip
# Keys of transformers, of NVIDIA's Model Optimizer (hf_quant_config.json), and of it and of compressed-tensors.
_EXCLUDED = ("modules_to_not_convert", "exclude_modules", "ignore")


def kept_parts(keys: ConfigKeys, model: ModelSpec) -> tuple[tuple[KeptParts, ...], list[str]]:
    """Of the checkpoint of ``keys``: parts in BF16, and in words those of some layers alone. Raises SpecError."""
    method = _method(keys)
    weights, excluded = _weights(method), [_excluding(str(each)) for key in _EXCLUDED for each in method.list_of(key)]
    if weights == "bf16" or not excluded:
        return (), []
    moe = set(model.moe_layer_ids)
    kinds = by_layer(model.attention or (), model.layers)
    has = {"shared_experts": moe if model.shared_experts else set(), "dense_ffn": {*range(model.layers)} - moe}
    attending = {layer for layer, kind in enumerate(kinds) if kind is not None}
    kept, partly = list[KeptPart](), list[str]()
    for part in get_args(KeptPart):
        layers = has.get(part, attending)
        shares = [_share(excluded, part, layer, kinds[layer], model.gated) for layer in layers]
        if weights is not None and shares and min(shares) == 1:
            kept.append(part)
        elif found := sum(share > 0 for share in shares):
            some = "some modules of " if {*shares} - {0, 1} else ""
            beside = "" if weights else " beside weights of a kind that is not known"
            partly.append(
                f"{some}{part.replace('_', ' ')} stay in 16 bits in {found} of {len(shares)} layers{beside}, which is "
                "not supported"
            )
    return ((KeptParts.model_validate({"weights": weights, "parts": kept}),) if kept else ()), partly


def _share(
    excluded: Sequence[re.Pattern[str]], part: KeptPart, layer: int, kind: AttentionKind | None, gated: bool
) -> float:
    """Of the modules of a part in a layer, those that are excluded, by their own names or that of several together."""
    places = _FFN.get(part) or ("linear_attn" if _is_linear(kind) else "self_attn",)
    modules = _modules(part, kind, gated)

    def leaves_out(place: str, module: str) -> bool:
        name = f"model.layers.{layer}.{place}.{module}"
        return any(each.match(name) for each in excluded)

    def number(place: str, together: str, own: Sequence[str]) -> int:
        return sum(leaves_out(place, each) for each in own) or len(own) * leaves_out(place, together)

    most = max(sum(number(place, *each) for each in modules.items()) for place in places)
    return most / sum(map(len, modules.values()))


def _is_linear(kind: AttentionKind | None) -> bool:
    return kind is not None and kind.kind == "gated_delta_net"


def _modules(part: KeptPart, kind: AttentionKind | None, gated: bool) -> Mapping[str, tuple[str, ...]]:
    """Name of several modules together → their own names. Small ones (gates of heads, indexers) are left out."""
    if part in _FFN:
        return {"gate_up_proj": ("gate_proj", "up_proj") if gated else ("up_proj",), "down_proj": ("down_proj",)}
    if part == "attention_output":
        return {"out_proj": ("out_proj",)} if _is_linear(kind) else {"o_proj": ("o_proj",)}
    if _is_linear(kind):
        return {"in_proj_qkvz": ("in_proj_qkv", "in_proj_z")}
    if not hasattr(kind, "kv_lora_rank"):
        return {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
    into = {"kv_b_proj": ("kv_b_proj",)}
    if getattr(kind, "q_lora_rank", None) is None:
        return into | {"q_proj": ("q_proj",), "kv_a_proj_with_mqa": ("kv_a_proj_with_mqa",)}
    return into | {"fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"), "q_b_proj": ("q_b_proj",)}


def _method(keys: ConfigKeys) -> ConfigKeys:
    """How it is quantised, by its own file or by hf_quant_config.json beside it."""
    own = ConfigKeys(keys.path, {**keys.outer, **keys.keys})
    beside = keys.path.with_name("hf_quant_config.json")
    if own.said("quantization_config") or not beside.is_file():
        return own.part("quantization_config")
    return read_keys(beside).part("quantization")


def _weights(method: ConfigKeys) -> str | None:
    """The dtype of products; None where the kind is not known."""
    named = " ".join(str(method.any(key) or "") for key in ("quant_method", "quant_algo", "format")).lower()
    if "mxfp4" in named:  # experts alone
        return "bf16"
    if "nvfp4" in named:
        return "nvfp4"
    if "fp8" in named or "float-quantized" in named:
        return "fp8_block" if method.any("weight_block_size") else "fp8"
    return "int4" if "pack-quantized" in named else None


def _excluding(written: str) -> re.Pattern[str]:
    """Of full names from their begin: a regular expression after ``re:``, else a glob of some words."""
    if written.startswith("re:"):
        return re.compile(written[3:])
    words = fnmatch.translate(written.removeprefix("language_model."))[:-2]  # without the end of text
    return re.compile(rf"(.*\.)?{words}(\..*)?\Z")

"""Converts a Hugging Face ``config.json`` of a mixture-of-experts model to a ModelSpec.

Keys are those of the configurations of transformers (github.com/huggingface/transformers, src/transformers/models):
those of ``KNOWN`` and jamba's MoE layers. A key has several names; the first that a file has counts. Nothing is
guessed: what a file does not say must be given. Other types are read by the same keys, and `doubts` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.models.onnx_import import FLAGS
from archsim.specs.model import ModelSpec

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "experts": _EXPERTS,
    "top_k": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "expert_groups": ("n_group",),
    "top_groups": ("topk_group",),
    "vocabulary": ("vocab_size",),
}
KNOWN = (
    "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "gpt_oss",
    "llama4", "llama4_text",
)  # fmt: skip
_SHARED_IN_EVERY_LAYER = ("llama4", "llama4_text")  # one shared expert of the routed experts' width, without a key


# Keys that this module computes with.
_WHOLE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "first_k_dense_replace",
    "decoder_sparse_step", "interleave_moe_layer_step", "num_key_value_heads", "sliding_window", "attention_chunk_size",
    "expert_layer_period", "expert_layer_offset",
)  # fmt: skip
_LISTS = ("mlp_only_layers", "layer_types", "no_rope_layers", "moe_layers")


def import_config(path: Path, name: str | None = None, given: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model of a ``config.json``. given: fields of the ModelSpec that replace those of the file.

    Raises SpecError for a file that cannot be read, a model without experts, and keys that are missing.
    """
    config = _read(path)
    if not any(config.get(key) for key in _EXPERTS):
        raise SpecError(
            f"{path}: no experts (none of the keys {', '.join(_EXPERTS)}); archsim models MoE layers, and a dense "
            f"model has none"
        )
    fields = _fields(config) | {key: value for key, value in (given or {}).items() if value is not None}
    needed = ("layers", "moe_layers", "hidden", "expert_ffn", "experts", "top_k")
    if missing := [field for field in needed if fields.get(field) is None]:
        lines = (f"{path}: does not say {field}; give {FLAGS[field]}" for field in missing)
        raise SpecError("\n".join(lines))
    origin = config.get("_name_or_path") or config.get("model_type") or path.parent.name
    called = name or str(origin).rstrip("/").rpartition("/")[2].lower()
    try:
        return ModelSpec(name=called, source=f"{origin}, {path.name} (Hugging Face)", **fields)
    except ValidationError as error:
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise SpecError(f"{path}: the keys found do not form a valid model: {text}") from error


def doubts(path: Path) -> list[str]:
    """What a user should compare with the model's code, as lines of text; none for the types that are known."""
    config = _read(path)
    kind = config.get("model_type")
    if kind in KNOWN:
        return []
    told = f"model_type {kind!r} is not among those known ({', '.join(KNOWN)})" if kind else "no model_type is given"
    lines = [f"{path}: {told}; compare moe_layers, shared_experts, expert_ffn and attention with the model's code"]
    if config.get("attn_layer_period"):
        lines.append(f"{path}: attn_layer_period: only some layers have attention; it is left out")
    return lines


def _read(path: Path) -> Mapping[str, Any]:
    """The keys of the language model: those of ``text_config`` where there is one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected an object with keys such as num_hidden_layers")
    inner = config.get("text_config")
    config = {"_name_or_path": config.get("_name_or_path")} | inner if isinstance(inner, dict) else config
    for key, value in config.items():
        if key in _WHOLE and value is not None and (type(value) is not int or value < 0):
            raise SpecError(f"{path}: {key} is {value!r}; expected a whole number")
        if key in _LISTS and value is not None and not isinstance(value, list):
            raise SpecError(f"{path}: {key} is {value!r}; expected a list")
    return config


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field: value for field, names in _NAMES.items() if (value := _first(config, names)) is not None}
    # moe_intermediate_size where dense layers or shared experts have a width of their own.
    fields["expert_ffn"] = _first(config, ("moe_intermediate_size", "intermediate_size"))
    fields["moe_layers"] = _moe_layers(config)
    fields |= _shared(config, fields["expert_ffn"])
    if isinstance(fields.get("layers"), int) and not _all_moe(fields["moe_layers"], fields["layers"]):
        fields["dense_ffn"] = _first(config, ("intermediate_size_mlp", "intermediate_size"))
    fields["attention"] = _attention(config)
    fields["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    return {field: value for field, value in fields.items() if value is not None}


def _all_moe(moe_layers: Mapping[str, int] | None, layers: int) -> bool:
    return moe_layers == {"first": 0, "last": layers - 1, "every": 1}


def _moe_layers(config: Mapping[str, Any]) -> dict[str, int] | None:
    """First, last and spacing of the MoE layers; None if they are not evenly spaced."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        return None
    listed = config.get("moe_layers")
    first, every = config.get("first_k_dense_replace") or 0, config.get("moe_layer_freq") or 1
    numbers = [layer for layer in range(layers) if layer >= first and _is_moe(config, layer, every)]
    if isinstance(listed, list) and listed:
        numbers = sorted(layer for layer in listed if type(layer) is int)
    spacing = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    even = numbers and numbers == list(range(numbers[0], numbers[-1] + 1, spacing))
    return {"first": numbers[0], "last": numbers[-1], "every": spacing} if even else None


def _is_moe(config: Mapping[str, Any], layer: int, every: Any) -> bool:
    """Whether a layer has experts, by the rule of its model type."""
    if isinstance(every, list):  # one flag a layer
        return layer < len(every) and bool(every[layer])
    if type(every) is not int or every < 1:
        return False
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    if period := config.get("expert_layer_period"):  # jamba
        return layer % period == (config.get("expert_layer_offset") or 0)
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step")
    return (layer + 1) % step == 0 if step else layer % every == 0


def _shared(config: Mapping[str, Any], expert_ffn: Any) -> dict[str, Any]:
    if width := config.get("shared_expert_intermediate_size"):
        return {"shared_experts": 1, "shared_ffn": width}
    if config.get("model_type") in _SHARED_IN_EVERY_LAYER:
        return {"shared_experts": 1, "shared_ffn": expert_ffn}
    return {"shared_experts": config.get("n_shared_experts") or 0}


def _attention(config: Mapping[str, Any]) -> Any:
    """The keys of ``attention:``; None if the file does not state its heads, or if some layers have none."""
    heads = config.get("num_attention_heads")
    if not heads or config.get("attn_layer_period"):
        return None
    if config.get("kv_lora_rank"):
        latent = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {"heads": heads} | {key: config.get(key) for key in latent}
    hidden = config.get("hidden_size")
    size = config.get("head_dim") or (hidden // heads if isinstance(hidden, int) and hidden % heads == 0 else None)
    grouped = {"heads": heads, "kv_heads": config.get("num_key_value_heads") or heads, "head_dim": size}
    window, full = _window(config)
    return [grouped | {"window": window}, grouped | {"layers": full}] if full else grouped


def _window(config: Mapping[str, Any]) -> tuple[int, list[int]]:
    """The window, and the layers without one; no layers where the file tells of none."""
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    kinds = config.get("layer_types")
    if kinds is None and isinstance(config.get("no_rope_layers"), list):  # 0: attends to all tokens
        kinds = ["full_attention" if not each else "chunked" for each in config["no_rope_layers"]]
    if not window or not kinds or config.get("use_sliding_window") is False:
        return 0, []
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    return window, full

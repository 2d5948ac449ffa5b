"""Fields of a ModelSpec that many families of models say in the same way: common sizes, experts, heads, which layers.

Keys are those of the configuration classes of transformers (github.com/huggingface/transformers, src/transformers/
models) and, where a model ships its own, of that (configuration_*.py beside its weights).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from archsim.base.errors import SpecError
from archsim.model.config_keys import EXPERTS, SHARED, TOP_K, ConfigKeys, squeeze_name

Fields = dict[str, Any]
VALUE_BYTES = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
"""Bytes of a value of a state, by its type."""
_KV_HEADS = "num_key_value_heads", "num_attention_groups"
# Keys that say which layers have experts.
_WHICH = (
    "first_k_dense_replace", "num_dense_layers", "moe_layer_freq", "mlp_layer_types", "mlp_only_layers",
    "decoder_sparse_step", "interleave_moe_layer_step", "moe_layers_enum", "moe_layer_num_skipped",
    "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "expert_layer_period", "expert_layer_offset",
)  # fmt: skip


def common_fields(c: ConfigKeys, layers: int | None = None) -> Fields:
    """Layers, hidden size, embeddings (not tied unless the file says so). ``layers``: in place of num_hidden_layers."""
    tied = c.flag("tie_word_embeddings", "tie_embedding")
    if c.outer.get("tie_word_embeddings") is not None:
        tied = ConfigKeys(c.path, c.outer).flag("tie_word_embeddings")
    return {
        "layers": layers or c.layers("num_hidden_layers"),
        "hidden": c.size("hidden_size"),
        "vocabulary": c.size("vocab_size"),
        "tied_embeddings": bool(tied),
    }


def expert_fields(c: ConfigKeys, width: tuple[str, ...] = ("moe_intermediate_size",)) -> Fields:
    """Routed experts; ``width``: keys of their FFN width."""
    found: Fields = {"experts": c.whole(*EXPERTS), "top_k": c.one(*TOP_K), "expert_ffn": c.one(*width)}
    groups, top = c.whole("n_group", "num_expert_group"), c.whole("topk_group")
    if groups and groups > 1:
        if not top:
            raise c.unsaid("topk_group")
        found |= {"expert_groups": groups, "top_groups": top}
    return found


def shared_experts(c: ConfigKeys, width: str = "") -> Fields:
    """Shared experts: their number, each as wide as a routed one; or one of the width that the key says."""
    if wide := c.whole(width, least=0) if width else None:
        c.one(*SHARED, least=0)
        return {"shared_experts": 1, "shared_ffn": wide}
    c.decides(*SHARED, *filter(None, [width]))
    return {"shared_experts": c.one(*SHARED, least=0) or 0}


def with_experts(c: ConfigKeys, ids: Iterable[int], fields: Fields, *dense: str) -> Fields:
    """Layers with experts, and the width of the others, which ``dense`` are the keys of."""
    ids = list(ids)
    if not ids:
        decided = [name for name in _WHICH if c.said(name)]
        raise SpecError(f"{c.path}: no layer has experts, by {', '.join(decided) or 'num_hidden_layers'}")
    if dense and len(ids) == fields["layers"]:
        c.whole(*dense, least=0)
    return fields | {"moe_layers": ids} | ({"dense_ffn": c.size(*dense)} if len(ids) < fields["layers"] else {})


def grouped_heads(c: ConfigKeys) -> Fields:
    """Heads, and the keys and values that they share."""
    heads, hidden = c.size("num_attention_heads"), c.size("hidden_size")
    if squeeze_name(c.model_type) != "deepseek":  # whose attention has no such key (DeepSeekMoE, modeling_deepseek.py)
        c.decides("head_dim", "attention_head_dim")
    size = c.whole("head_dim", "attention_head_dim") or (hidden // heads if hidden % heads == 0 else None)
    if size is None:
        raise SpecError(f"{c.path}: does not say head_dim, and num_attention_heads, {heads}, do not divide {hidden}")
    kv_heads = c.stated_whole(*_KV_HEADS) or heads
    if heads % kv_heads:
        name = c.said(*_KV_HEADS) or _KV_HEADS[0]
        raise SpecError(f"{c.path}: {name} is {kv_heads}; expected KV heads that divide {heads} (num_attention_heads)")
    return {"kind": "grouped", "heads": heads, "kv_heads": kv_heads, "head_dim": size}


def latent_heads(c: ConfigKeys) -> Fields:
    """Latent attention of DeepSeek."""
    for key in ("num_key_value_heads", "head_dim", "qk_head_dim"):  # of the expanded form
        c.whole(key)
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    return {
        "kind": "latent",
        "heads": c.size("num_attention_heads"),
        "q_lora_rank": c.stated_whole("q_lora_rank"),
        "qk_rope_head_dim": c.stated_whole("qk_rope_head_dim", least=0) or 0,
        **{key: c.size(key) for key in sizes},
    }


def with_window(c: ConfigKeys, base: Fields, full: list[int], layers: int, window: int) -> list[Fields]:
    """Layers ``full`` see all tokens, the others a window."""
    if not full:
        return [base | {"window": window}]
    return [base] if len(full) == layers else [base | {"window": window}, base | {"layers": full}]


def refuse_window(c: ConfigKeys) -> None:
    """Raise SpecError for a window where no key says which layers have it."""
    if window := c.whole("sliding_window", least=0):
        raise SpecError(f"{c.path}: sliding_window = {window}: no key says which layers have a window")


def one_expert(layers: int, width: int, gated: bool = True) -> Fields:
    """A dense model: one expert, which all tokens use."""
    return {"experts": 1, "top_k": 1, "expert_ffn": width, "moe_layers": list(range(layers)), "gated": gated}

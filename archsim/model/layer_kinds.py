"""Which layers of a Hugging Face configuration are of which kind."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from archsim.base.errors import SpecError
from archsim.model.config_keys import ConfigKeys

# Other names of a kind of layer in ``layer_types`` (transformers, configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP).
_ALSO = MappingProxyType({
    "mamba": "linear_attention", "attention": "full_attention", "deepseek_sparse_attention": "indexed_attention",
})  # fmt: skip


def layer_kinds(c: ConfigKeys, layers: int, *known: str, key: str = "layer_types") -> list[str]:
    """The kind of every layer, or none without the key. Raises SpecError for one that is not ``known``."""
    found = [_ALSO.get(str(kind), str(kind)) for kind in c.by_layer(key, layers)]
    if unknown := sorted(set(found) - set(known)):
        raise SpecError(f"{c.path}: {key} has {', '.join(unknown)}; expected {', '.join(known)} for {c.model_type}")
    return found


def at_kind(found: list[str], *wanted: str) -> list[int]:
    """The layers of a kind."""
    return [layer for layer, kind in enumerate(found) if kind in wanted]


def after_dense(c: ConfigKeys, layers: int) -> list[int]:
    """Layers with experts where the first are dense, and every so many after them, or a flag a layer, says which."""
    listed = layer_kinds(c, layers, "dense", "sparse", key="mlp_layer_types")
    every: Any = c.any("moe_layer_freq")
    flags = c.flags("moe_layer_freq", layers) if isinstance(every, list) else []
    if listed or flags:
        c.any("first_k_dense_replace", "num_dense_layers")
        return at_kind(listed, "sparse") if listed else [layer for layer, flag in enumerate(flags) if flag]
    every = c.whole("moe_layer_freq") or 1
    first = c.stated_whole("first_k_dense_replace", "num_dense_layers", least=0) or 0
    return [layer for layer in range(layers) if layer >= first and layer % every == 0]


def every_full(c: ConfigKeys, layers: int, every: int | None) -> list[int] | None:
    """Layers that see all tokens: by layer, or one of ``every``; None: the file says neither. Raises SpecError."""
    names = "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"
    given = c.any(*names)
    if found := layer_kinds(c, layers, "full_attention", "sliding_attention"):
        return at_kind(found, "full_attention")
    if given is not None and (type(given) is not int or given < 1):
        raise c.wrong(c.said(*names) or names[0], "a number of layers, or layer_types")
    every = given or every
    return [layer for layer in range(layers) if (layer + 1) % every == 0] if every else None

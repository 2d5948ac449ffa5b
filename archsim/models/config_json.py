"""Converts a Hugging Face ``config.json`` of a mixture-of-experts model to a ModelSpec: all of it, or not at all.

The reader of its family says what its keys mean. A type that is not known, and a key
with a value that no reader asks for and that is not known to be harmless, are refused by name: each may change
attention, experts or layers. ``accept_approximate`` goes on without them and notes them in the model.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.base.files import drafted, write_text
from archsim.base.yaml import dump_yaml
from archsim.models.onnx import FLAGS, OPERATOR_COLUMNS
from archsim.specs.model import MOST_LAYERS, ModelSpec

# ---- config_keys
# The keys of a ``config.json``: read with their types, and remembered, so that what nobody read can be refused.

# Keys that change neither attention, experts, layers nor parameters by 0.1 %: names, tokens, initial values, dropout,
# training, positions, norms' epsilon, activation limits, scores of routers, number formats, and MTP, which is counted
# nowhere (its layers are extra).
HARMLESS = frozenset(Path(__file__).with_name("harmless_keys.txt").read_text("utf-8").split())

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


class ConfigKeys:
    """The keys of one configuration; every key that is asked for counts as read."""

    def __init__(self, path: Path, keys: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> None:
        """``outer``: of the file around a language model's own keys, which may say whether embeddings are tied."""
        self.path, self.keys, self.outer = path, keys, outer or {}
        self._read: set[str] = set()

    @property
    def model_type(self) -> str:
        """The type of the language model, or that of the file around it. Without a type, it follows from the name of
        the architecture. Empty if there is neither.
        """
        if kind := self.keys.get("model_type") or self.outer.get("model_type"):
            return str(kind)
        named = self.keys.get("architectures") or self.outer.get("architectures") or [""]
        return str(named[0]).removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")

    @property
    def has_experts(self) -> bool:
        """Whether a key says how many experts a layer has; a dense model has none."""
        return any(self.keys.get(each) for each in EXPERTS)

    def any(self, *names: str) -> Any:
        """The first of the keys that has a value, else None; all count as read."""
        self._read.update(names)
        return next((self.keys[name] for name in names if self.keys.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is None:
            return default
        if type(value) is not int or value < 0:
            name = next(name for name in names if self.keys.get(name) is not None)
            raise SpecError(f"{self.path}: {name} is {value!r}; expected a whole number")
        return value

    def size(self, *names: str) -> int:
        """A whole number that the file must state. Raises SpecError without it."""
        value = self.whole(*names)
        if not value:
            raise SpecError(f"{self.path}: does not say {' or '.join(names)}")
        return value

    def layers(self, *names: str) -> int:
        """The number of layers. Raises SpecError without it, or for more than a ModelSpec can have."""
        layers = self.size(*names)
        if layers > MOST_LAYERS:
            name = next(name for name in names if self.keys.get(name))
            raise SpecError(f"{self.path}: {name} is {layers}; expected at most {MOST_LAYERS}")
        return layers

    def one(self, *names: str) -> int | None:
        """A whole number, or a list with one for each layer, all the same. Raises SpecError for a list that differs."""
        value = self.any(*names)
        if not isinstance(value, list):
            return self.whole(*names)
        if len(set(map(str, value))) != 1:
            name = next(name for name in names if self.keys.get(name) is not None)
            raise SpecError(f"{self.path}: {name} differs from layer to layer: {value}; no model file can say this")
        return ConfigKeys(self.path, {names[0]: value[0]}).whole(names[0])

    def listed(self, *names: str) -> list[Any]:
        """A list; empty without one. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is not None and not isinstance(value, list):
            raise SpecError(f"{self.path}: {names[0]} is {value!r}; expected a list")
        return value or []

    def part(self, name: str) -> ConfigKeys:
        """The keys of a mapping inside; none without it. What is not read of them is named with its place."""
        value = self.any(name)
        if value is not None and not isinstance(value, dict):
            raise SpecError(f"{self.path}: {name} is {value!r}; expected an object")
        inside = ConfigKeys(self.path, value or {})
        return inside

    def unread(self) -> list[str]:
        """Keys with a value that nobody has read and that are not known to be harmless: ``name = value``."""
        return [
            f"{name} = {_short(value)}"
            for name, value in self.keys.items()
            if name not in self._read
            and name not in HARMLESS
            and not (value is None or value is False or value == [] or value == {})
        ]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_keys(path: Path) -> ConfigKeys:
    """The keys of the language model: those of ``text_config`` where there is one. Raises SpecError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected an object with keys such as num_hidden_layers")
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            inner = config[name]
            if isinstance(inner.get("text_config"), dict):
                inner = inner["text_config"]
            return ConfigKeys(path, {"_name_or_path": config.get("_name_or_path")} | inner, config)
    return ConfigKeys(path, config)


# ---- families
# How each family of models names its layers: readers of ``config.json``, one row of ``FAMILIES`` a family.
#
# Keys are those of the configuration classes of transformers (github.com/huggingface/transformers, src/transformers/
# models) and, where a model ships its own, of that (configuration_*.py beside its weights). A reader returns fields of
# a ModelSpec; a key that it does not ask for is refused unless ``config_keys.HARMLESS`` has it.

Fields = dict[str, Any]
_FP32 = {"float32": 4, "bfloat16": 2, "float16": 2}


def _common(c: ConfigKeys, layers: int | None = None, tied_unless_said: bool = False) -> Fields:
    """``tied_unless_said``: what a file without the key means, as its configuration class has it."""
    tied = c.any("tie_word_embeddings", "tie_embedding")
    if c.outer.get("tie_word_embeddings") is not None:
        tied = c.outer["tie_word_embeddings"]
    tied = tied_unless_said if tied is None else tied
    return {
        "layers": layers or c.layers("num_hidden_layers"), "hidden": c.size("hidden_size"),
        "vocabulary": c.whole("vocab_size"), "tied_embeddings": bool(tied),
    }


def _experts(c: ConfigKeys, width: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")) -> Fields:
    """Routed experts; ``width``: keys of their FFN width."""
    found: Fields = {
        "experts": c.whole("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
        "top_k": c.one(
            *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k"),
            *("moe_top_k", "top_k_experts"),
        ),
        "expert_ffn": c.one(*width),
    }
    groups, top = c.whole("n_group", "num_expert_group"), c.whole("topk_group")
    if groups and top and groups > 1:
        found |= {"expert_groups": groups, "top_groups": top}
    return found


def _shared(c: ConfigKeys, width: str = "") -> Fields:
    """Shared experts: their number, each as wide as a routed one; or one of the width that the key says."""
    number = c.one("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts") or 0
    wide = c.whole(width) if width else None
    return {"shared_experts": 1, "shared_ffn": wide} if wide else {"shared_experts": number}


def _kinds(c: ConfigKeys, layers: int, *known: str, key: str = "layer_types") -> list[str]:
    """The kind of every layer, or none without the key. Raises SpecError for one that is not ``known``."""
    kinds = c.listed(key)
    if kinds and len(kinds) < layers:
        raise SpecError(f"{c.path}: {key} has {len(kinds)} layers of {layers}")
    if unknown := sorted(set(map(str, kinds)) - set(known)):
        raise SpecError(f"{c.path}: {key} has {', '.join(unknown)}; expected {', '.join(known)} for {c.model_type}")
    return kinds[:layers]


def _moe(c: ConfigKeys, ids: Iterable[int], fields: Fields, *dense: str) -> Fields:
    """Layers with experts, and the width of the others."""
    ids = list(ids)
    if not ids:
        raise SpecError(f"{c.path}: no layer has experts")
    width = c.whole(*dense) if dense else None
    return fields | {"moe_layers": ids} | ({"dense_ffn": width} if len(ids) < fields["layers"] else {})


def _after_dense(c: ConfigKeys, layers: int) -> list[int]:
    """Layers with experts where the first are dense, and every so many after them, or a flag a layer, says which."""
    first = c.whole("first_k_dense_replace", "num_dense_layers", default=0) or 0
    every: Any = c.any("moe_layer_freq")
    if kinds := _kinds(c, layers, "dense", "sparse", key="mlp_layer_types"):
        return [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
    if isinstance(every, list):
        return [layer for layer, flag in enumerate(every[:layers]) if flag]
    if every is not None and (type(every) is not int or every < 1):
        raise SpecError(f"{c.path}: moe_layer_freq is {every!r}; expected a whole number, or a flag for each layer")
    return [layer for layer in range(layers) if layer >= first and layer % (every or 1) == 0]


def _grouped(c: ConfigKeys) -> Fields:
    heads = c.size("num_attention_heads")
    hidden = c.size("hidden_size")
    size = c.whole("head_dim", "attention_head_dim") or (hidden // heads if hidden % heads == 0 else None)
    if size is None:
        raise SpecError(f"{c.path}: does not say head_dim, and {heads} heads do not divide {hidden}")
    kv_heads = c.whole("num_key_value_heads", "num_attention_groups") or heads
    return {"kind": "grouped", "heads": heads, "kv_heads": kv_heads, "head_dim": size}


def _latent(c: ConfigKeys) -> Fields:
    c.any("num_key_value_heads", "head_dim", "qk_head_dim")  # of the expanded form
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    return {
        "kind": "latent",
        "heads": c.size("num_attention_heads"),
        "q_lora_rank": c.whole("q_lora_rank"),
        "qk_rope_head_dim": c.whole("qk_rope_head_dim", default=0),
        **{key: c.size(key) for key in sizes},
    }


def _windowed(c: ConfigKeys, base: Fields, full: list[int], layers: int, window: int) -> list[Fields]:
    """Layers ``full`` see all tokens, the others a window."""
    if not full:
        return [base | {"window": window}]
    return [base] if len(full) == layers else [base | {"window": window}, base | {"layers": full}]


def _deepseek(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c) | _shared(c)
    if not c.any("kv_lora_rank"):
        raise SpecError(f"{c.path}: does not say kv_lora_rank")
    attention: Any = _latent(c)
    if chosen := c.whole("index_topk"):
        attention |= {"kind": "sparse", "index_topk": chosen}
        attention |= {"index_heads": c.size("index_n_heads"), "index_head_dim": c.size("index_head_dim")}
        if len(set(_kinds(c, fields["layers"], "indexed_attention", "full_attention"))) > 1:
            raise SpecError(f"{c.path}: layer_types: layers with and without an indexer are not read")
        if shared := _shared_indexers(c, fields["layers"]):
            attention = [attention, attention | {"own_indexer": False, "layers": shared}]
    fields = _moe(c, _after_dense(c, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": attention}


def _shared_indexers(c: ConfigKeys, layers: int) -> list[int]:
    """Layers that take the tokens of an earlier indexer (GLM-5.2): listed by layer, or all but every so many after an
    offset. Raises SpecError where a file says both and they differ.
    """
    c.any("index_share_for_mtp_iteration")  # of layers of multi-token prediction
    listed = _kinds(c, layers, "full", "shared", key="indexer_types")
    shared = [layer for layer, kind in enumerate(listed) if kind == "shared"]
    every, offset = c.whole("index_topk_freq", default=1) or 1, c.whole("index_skip_topk_offset", default=1) or 0
    spaced = [layer for layer in range(layers) if max(layer - offset + 1, 0) % every]
    if listed and every > 1 and shared != spaced:
        raise SpecError(
            f"{c.path}: indexer_types has {len(shared)} shared layers, and index_topk_freq {every} with "
            f"index_skip_topk_offset {offset} others; expected the same layers"
        )
    return shared if listed else spaced


def _glm(c: ConfigKeys) -> Fields:
    """Grouped heads; the first layers are dense (GLM-4.5, dots.llm1, Ling and Ring, DeepSeekMoE)."""
    if c.any("sliding_window") and c.any("use_sliding_window") is not False:
        raise SpecError(f"{c.path}: sliding_window = {c.any('sliding_window')}: no key says which layers have a window")
    shared = _shared(c)
    if wide := c.whole("moe_shared_expert_intermediate_size"):
        shared = {"shared_experts": shared["shared_experts"], "shared_ffn": wide} if shared["shared_experts"] else {}
    fields = _common(c) | _experts(c) | shared
    _kinds(c, fields["layers"], "full_attention")
    fields = _moe(c, _after_dense(c, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": _grouped(c)}


def _exaone(c: ConfigKeys) -> Fields:
    """K-EXAONE: layers with a window, and a full one at the end of every pattern."""
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c)
    layers, pattern = fields["layers"], c.any("sliding_window_pattern")
    kinds = _kinds(c, layers, "full_attention", "sliding_attention")
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have a window (pattern {pattern!r})")
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    fields = _moe(c, _after_dense(c, layers), fields, "intermediate_size")
    if len(full) == layers:
        return fields | {"attention": _grouped(c)}
    return fields | {"attention": _windowed(c, _grouped(c), full, layers, c.size("sliding_window"))}


def _minimax_m3(c: ConfigKeys) -> Fields:
    """MiniMax-M3: grouped heads, in most layers to the blocks of tokens that an indexer chooses."""
    fields = _common(c) | _experts(c, ("intermediate_size",)) | _shared(c, "shared_intermediate_size")
    if (width := c.whole("moe_intermediate_size")) not in (None, fields["expert_ffn"]):
        raise SpecError(
            f"{c.path}: moe_intermediate_size is {width} and intermediate_size {fields['expert_ffn']}; expected the "
            "same width of an expert"
        )
    layers, base, inside = fields["layers"], _grouped(c), c.part("sparse_attention_config")
    flags = inside.listed("sparse_attention_freq")
    if kinds := _kinds(c, layers, "full_attention", "minimax_m3_sparse"):
        flags = [kind == "minimax_m3_sparse" for kind in kinds]
    if len(flags) < layers:
        raise SpecError(f"{c.path}: neither layer_types nor sparse_attention_freq says which of {layers} layers choose")
    sparse = [layer for layer, flag in enumerate(flags[:layers]) if flag]
    without_values = inside.listed("sparse_disable_index_value") or [1] * layers
    if not all(without_values[layer] for layer in sparse):
        raise SpecError(f"{c.path}: sparse_disable_index_value: an indexer's own values are not read")
    inside.any("use_sparse_attention", "sparse_init_block", "sparse_local_block", "sparse_score_type")
    c.any("index_local_blocks")
    fields = _moe(c, _after_dense(c, layers), fields, "dense_intermediate_size")
    if not sparse:
        return fields | {"attention": base}
    index = {
        "index_heads": inside.whole("sparse_num_index_heads") or c.size("index_n_heads"),
        "index_head_dim": inside.whole("sparse_index_dim") or c.size("index_head_dim"),
        "index_topk": (inside.whole("sparse_topk_blocks") or c.size("index_topk_blocks"))
        * (inside.whole("sparse_block_size") or c.size("index_block_size")),
    }
    _refuse_unread(inside, "sparse_attention_config.")
    chosen = base | index | {"kind": "block_sparse"}
    return fields | {"attention": [base, chosen | {"layers": sparse}] if len(sparse) < layers else chosen}


def _qwen_layers(c: ConfigKeys, layers: int) -> list[int]:
    only, step = c.listed("mlp_only_layers"), c.whole("decoder_sparse_step", default=1) or 1
    return [layer for layer in range(layers) if layer not in only and (layer + 1) % step == 0]


def _qwen(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c, "shared_expert_intermediate_size")
    layers, base = fields["layers"], _grouped(c)
    window, kinds = c.whole("sliding_window"), _kinds(c, layers, "full_attention", "sliding_attention")
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    if not kinds:
        full = list(range(min(layers, c.whole("max_window_layers", default=layers) or 0)))
    windowed = bool(c.any("use_sliding_window")) and window
    if "sliding_attention" in kinds and not windowed:
        raise SpecError(f"{c.path}: layer_types has sliding_attention, and no sliding_window is used")
    fields = _moe(c, _qwen_layers(c, layers), fields, "intermediate_size")
    return fields | {"attention": _windowed(c, base, full, layers, window) if windowed and window else base}


def _qwen_next(c: ConfigKeys) -> Fields:
    """Qwen3-Next and Qwen3.5: gated delta nets, and every few layers attention with an output gate; with experts or
    dense.
    """
    fields = _common(c)
    layers = fields["layers"]
    if c.has_experts:
        fields |= _experts(c, ("moe_intermediate_size",)) | _shared(c, "shared_expert_intermediate_size")
    else:
        fields |= _one_expert(layers, c.size("intermediate_size"))
    kinds = _kinds(c, layers, "full_attention", "linear_attention")
    every = c.whole("full_attention_interval", default=4)
    if not every:
        raise SpecError(f"{c.path}: full_attention_interval is {every}; expected 1 or more, one layer of which is full")
    full = [at for at in range(layers) if (kinds[at] == "full_attention" if kinds else (at + 1) % every == 0)]
    if c.any("use_sliding_window"):
        raise SpecError(f"{c.path}: use_sliding_window = true: no key says which layers have a window")
    c.any("sliding_window")
    gate = c.any("attn_output_gate")
    delta = {
        "kind": "gated_delta_net",
        "k_heads": c.size("linear_num_key_heads"),
        "v_heads": c.size("linear_num_value_heads"),
        "k_dim": c.size("linear_key_head_dim"),
        "v_dim": c.size("linear_value_head_dim"),
        "conv": c.size("linear_conv_kernel_dim"),
        "state_value_bytes": _FP32.get(str(c.any("mamba_ssm_dtype")), 2),
    }
    attention = _grouped(c) | {"output_gate": gate is None or bool(gate), "layers": full}
    if c.has_experts:
        fields = _moe(c, _qwen_layers(c, layers), fields, "intermediate_size")
    return fields | {"attention": [delta, attention]}


def _mixtral(c: ConfigKeys) -> Fields:
    """Experts in every layer; a window, if any, in every layer as well (Mixtral, Phi-3.5-MoE, OLMoE, Granite)."""
    fields = _common(c) | _experts(c, ("intermediate_size",)) | _shared(c, "shared_intermediate_size")
    window, base = c.whole("sliding_window"), _grouped(c)
    if window and window < (c.whole("max_position_embeddings") or 0):
        base |= {"window": window}
    return _moe(c, range(fields["layers"]), fields) | {"attention": base}


def _llama4(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("intermediate_size",))
    layers, listed = fields["layers"], c.listed("moe_layers")
    step = c.whole("interleave_moe_layer_step", default=1) or 1
    ids = listed or [layer for layer in range(layers) if (layer + 1) % step == 0]
    fields |= {"shared_experts": 1, "shared_ffn": fields["expert_ffn"]}  # in every layer with experts, without a key
    rotated, kinds = c.listed("no_rope_layers"), _kinds(c, layers, "full_attention", "chunked_attention")
    every = c.whole("no_rope_layer_interval", default=4) or 4
    if kinds:
        full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    elif rotated:
        if len(rotated) != layers:
            raise SpecError(f"{c.path}: no_rope_layers has {len(rotated)} layers of {layers}")
        full = [layer for layer, flag in enumerate(rotated) if not flag]  # without positions: sees all tokens
    else:
        full = list(range(every - 1, layers, every))
    chunk, base = c.whole("attention_chunk_size"), _grouped(c)
    fields = _moe(c, ids, fields, "intermediate_size_mlp")
    kinds_of_layers = _windowed(c, base, full, layers, chunk) if chunk else [base]
    chunked: Fields = {"chunked": True}
    return fields | {"attention": [each | (chunked if "window" in each else {}) for each in kinds_of_layers]}


def _gpt_oss(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("intermediate_size",))
    layers = fields["layers"]
    kinds = _kinds(c, layers, "full_attention", "sliding_attention")
    full = [at for at in range(layers) if (kinds[at] == "full_attention" if kinds else at % 2)]
    attention = _windowed(c, _grouped(c), full, layers, c.size("sliding_window"))
    return _moe(c, range(layers), fields) | {"attention": attention}


def _minimax(c: ConfigKeys) -> Fields:
    """MiniMax-01, M1 and M2: lightning attention (0) and softmax attention (1) by layer; M2 has the latter alone."""
    fields = _common(c) | _experts(c, ("intermediate_size",)) | _shared(c, "shared_intermediate_size")
    layers, base = fields["layers"], _grouped(c)
    c.any("shared_moe_mode", "block_size")  # of the scan: tokens of one block
    kinds = _kinds(c, layers, "full_attention", "linear_attention")
    flags = c.listed("attn_type_list") or [kind == "full_attention" for kind in kinds]
    if not flags and c.model_type.lower() not in ("minimax_m2", "minimaxm2"):
        raise SpecError(f"{c.path}: does not say attn_type_list: which layers have lightning attention")
    if window := c.whole("sliding_window"):
        raise SpecError(f"{c.path}: sliding_window = {window}: no key says which layers have a window")
    full = [layer for layer, flag in enumerate(flags[:layers]) if flag]
    lightning = {"kind": "lightning", "heads": base["heads"], "head_dim": base["head_dim"]}
    mixed = len(full) < layers and flags
    fields = _moe(c, range(layers), fields)
    return fields | {"attention": [lightning, base | {"layers": full}] if mixed else base}


def _longcat(c: ConfigKeys) -> Fields:
    """LongCat-Flash: a layer has two attentions, two dense FFNs and one set of experts, some of which do nothing."""
    layers = c.layers("num_layers", "num_hidden_layers")
    fields = _common(c, layers) | _experts(c, ("expert_ffn_hidden_size", "moe_intermediate_size"))
    c.any("zero_expert_type")
    fields |= {"zero_experts": c.whole("zero_expert_num", default=0)}
    fields |= {"dense_ffn": c.size("ffn_hidden_size", "intermediate_size"), "dense_per_layer": 2}
    fields |= {"moe_layers": list(range(layers)), "dense_in": list(range(layers))}
    if ratio := c.any("ngram_vocab_size_ratio"):
        # Tables of n-grams: splits x (neighbours - 1), with the hidden size shared among them, of ratio x vocabulary
        # rows and an odd number more each, and products back to the hidden size (arXiv 2601.21204).
        number = c.size("emb_split_num") * (c.size("emb_neighbor_num") - 1)
        rows = number * int(ratio * fields["vocabulary"]) + number**2
        fields["more_embedding_weights"] = (rows * fields["hidden"]) // number + fields["hidden"] ** 2
    return fields | {"attention": _latent(c) | {"per_layer": 2}}


def _nemotron(c: ConfigKeys) -> Fields:
    """One mixer a layer: Mamba-2 (M), attention (*), experts without a gate (E) or a dense FFN (-)."""
    named = {"mamba": "M", "mamba2": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
    named |= {"moe": "E", "mlp": "-"}
    listed = c.listed("layers_block_type") or c.listed("layer_types")
    pattern = c.any("hybrid_override_pattern") or "".join(named.get(kind, "?") for kind in listed)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*E-"):
        raise SpecError(f"{c.path}: hybrid_override_pattern is {pattern!r}; expected letters M, *, E and -")
    if (c.whole("num_hidden_layers") or len(pattern)) != len(pattern):
        raise SpecError(f"{c.path}: hybrid_override_pattern has {len(pattern)} layers, num_hidden_layers others")
    c.any("expand", "mamba_expand")
    at = {letter: [layer for layer, each in enumerate(pattern) if each == letter] for letter in "M*E-"}
    fields = _common(c, len(pattern)) | _experts(c, ("moe_intermediate_size",))
    fields |= _shared(c, "moe_shared_expert_intermediate_size")
    act = c.any("mlp_hidden_act") or "relu2"
    fields |= {"gated": act in ("silu", "swiglu"), "expert_hidden": c.whole("moe_latent_size"), "dense_in": at["-"]}
    width = c.whole("intermediate_size")
    fields |= {"moe_layers": at["E"], "dense_ffn": width if at["-"] else None}
    mamba = {
        "kind": "mamba2",
        "heads": c.size("mamba_num_heads"),
        "head_dim": c.size("mamba_head_dim"),
        "groups": c.size("n_groups", "mamba_n_groups"),
        "state": c.size("ssm_state_size", "mamba_d_state"),
        "conv": c.whole("conv_kernel", "mamba_d_conv", default=4),
        "state_value_bytes": _FP32.get(str(c.any("mamba_ssm_cache_dtype")), 2),
    }
    if window := c.whole("sliding_window"):
        raise SpecError(f"{c.path}: sliding_window = {window}: no key says which layers have a window")
    mixers = [mamba | {"layers": at["M"]}, _grouped(c) | {"layers": at["*"]}]
    return fields | {"attention": [mixer for mixer in mixers if mixer["layers"]]}


def _kimi_linear(c: ConfigKeys) -> Fields:
    """Kimi-Linear and K3: delta attention, and latent attention in the layers of ``full_attn_layers``, counted from 1;
    K3's experts work on vectors of ``routed_expert_hidden_size``.
    """
    fields = _common(c) | _experts(c) | _shared(c)
    fields["expert_hidden"] = c.whole("routed_expert_hidden_size")
    c.any("latent_moe_use_norm")
    if kinds := _kinds(c, fields["layers"], "full_attention", "linear_attention"):
        full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
        sizes = c.size("linear_num_heads"), c.size("linear_head_dim"), c.size("linear_conv_kernel_dim")
    else:
        linear = c.part("linear_attn_config")
        full = [layer - 1 for layer in linear.listed("full_attn_layers")]
        sizes = linear.size("num_heads"), linear.size("head_dim"), linear.size("short_conv_kernel_size")
        counted = sorted([*linear.listed("kda_layers"), *linear.listed("full_attn_layers")])
        if counted != list(range(1, fields["layers"] + 1)):
            raise SpecError(f"{c.path}: linear_attn_config: kda_layers and full_attn_layers are not every layer once")
        linear.any("gate_lower_bound")  # of the decay
        _refuse_unread(linear, "linear_attn_config.")
    delta = {"kind": "kda", "heads": sizes[0], "head_dim": sizes[1], "conv": sizes[2]}
    fields = _moe(c, _after_dense(c, fields["layers"]), fields, "intermediate_size")
    latent = _latent(c) | {"layers": full, "output_gate": bool(c.any("mla_use_output_gate"))}
    return fields | {"attention": [delta, latent]}


def _hunyuan(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c)
    if c.any("use_mixed_mlp_moe"):
        fields |= {"shared_experts": c.one("num_shared_expert") or 1, "shared_ffn": c.size("intermediate_size")}
    skipped = c.whole("moe_layer_num_skipped", default=0) or 0
    fields = _moe(c, range(skipped, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": _grouped(c)}


def _ernie(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c)
    if c.any("tie_word_embeddings") is None:
        raise SpecError(f"{c.path}: does not say tie_word_embeddings")
    layers = fields["layers"]
    first, last = c.one("moe_layer_start_index") or 0, c.any("moe_layer_end_index")
    last = layers - 1 if last in (None, -1) else last
    every = c.whole("moe_layer_interval", default=1) or 1
    ids = [layer for layer in range(layers) if (layer + 1) % every == 0 and first <= layer <= last]
    fields = _moe(c, ids, fields, "intermediate_size")
    return fields | {"attention": _grouped(c)}


def _granite(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("intermediate_size",)) | _shared(c, "shared_intermediate_size")
    layers = fields["layers"]
    key = "layer_types" if c.any("layer_types") else "layers_block_type"
    kinds = _kinds(c, layers, "mamba", "linear_attention", "attention", "full_attention", key=key)
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have attention")
    full = [layer for layer, kind in enumerate(kinds) if kind in ("attention", "full_attention")]
    expand, heads = c.whole("mamba_expand", default=2) or 2, c.size("mamba_n_heads")
    size = c.any("mamba_d_head")
    size = expand * fields["hidden"] // heads if size in (None, "auto") else size
    mamba = {
        "kind": "mamba2", "heads": heads, "head_dim": size, "groups": c.size("mamba_n_groups"),
        "state": c.size("mamba_d_state"), "conv": c.whole("mamba_d_conv", default=4),
    }
    fields = _moe(c, range(layers), fields)
    return fields | {"attention": [mamba, _grouped(c) | {"layers": full}]}


def _jamba(c: ConfigKeys) -> Fields:
    fields = _common(c) | _experts(c, ("intermediate_size",))
    layers = fields["layers"]
    period, offset = c.size("attn_layer_period"), c.whole("attn_layer_offset", default=0)
    full = [layer for layer in range(layers) if layer % period == offset]
    every, first = c.size("expert_layer_period"), c.whole("expert_layer_offset", default=0)
    rank, expand = c.any("mamba_dt_rank"), c.size("mamba_expand")
    mamba = {
        "kind": "mamba",
        "inner": expand * fields["hidden"],
        "state": c.size("mamba_d_state"),
        "dt_rank": ceil(fields["hidden"] / 16) if rank in (None, "auto") else rank,
        "conv": c.size("mamba_d_conv"),
    }
    c.any("layers_block_type", "layer_types")  # what the periods say
    if window := c.whole("sliding_window"):
        raise SpecError(f"{c.path}: sliding_window = {window}: no key says which layers have a window")
    fields = _moe(c, [at for at in range(layers) if at % every == first], fields, "intermediate_size")
    return fields | {"attention": [mamba, _grouped(c) | {"layers": full}]}


def _deepseek_v4(c: ConfigKeys) -> Fields:
    """A window in every layer, and entries of ``compress_ratios`` tokens: 4 (overlapping, with an indexer) or more."""
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c)
    layers, ratios = fields["layers"], c.listed("compress_ratios")
    _kinds(c, layers, "hash_moe", "moe", key="mlp_layer_types")  # both have the same experts
    if not ratios:
        rates = c.any("compress_rates") or {}
        compressed = "compressed_sparse_attention", "heavily_compressed_attention"
        ratios = [rates.get(kind, 0) for kind in _kinds(c, layers, *compressed, "sliding_attention")]
    if len(ratios) < layers:
        raise SpecError(f"{c.path}: compress_ratios has {len(ratios)} layers of {layers}")
    c.any("num_key_value_heads", "qk_rope_head_dim")  # one entry for all heads; a part of it is rotated
    base = {"kind": "compressed", "heads": c.size("num_attention_heads"), "window": c.size("sliding_window")}
    base |= {key: c.size(key) for key in ("head_dim", "q_lora_rank", "o_lora_rank", "o_groups")}
    index = {"index_heads": c.size("index_n_heads"), "index_head_dim": c.size("index_head_dim")}
    index |= {"index_topk": c.size("index_topk"), "overlapping": True}
    attention = []
    for ratio in sorted(set(ratios[:layers])):
        own = {"ratio": ratio, "layers": [layer for layer in range(layers) if ratios[layer] == ratio]}
        attention.append(base | own | (index if ratio == 4 else {}))
    fields |= {"streams": c.whole("hc_mult", default=1)}
    return _moe(c, range(layers), fields) | {"attention": attention}


def _mimo(c: ConfigKeys) -> Fields:
    """MiMo-V2: layers with a window have heads of their own."""
    fields = _common(c) | _experts(c) | _shared(c)
    layers, flags = fields["layers"], c.listed("hybrid_layer_pattern")
    if len(flags) != layers:
        raise SpecError(f"{c.path}: hybrid_layer_pattern has {len(flags)} layers of {layers}")
    full = _grouped(c) | {"value_dim": c.whole("v_head_dim")}
    near = {
        "kind": "grouped",
        "heads": c.whole("swa_num_attention_heads") or full["heads"],
        "kv_heads": c.whole("swa_num_key_value_heads") or full["kv_heads"],
        "head_dim": c.whole("swa_head_dim") or full["head_dim"],
        "value_dim": c.whole("swa_v_head_dim") or full["value_dim"],
        "window": c.size("sliding_window", "sliding_window_size"),
    }
    c.any("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_rope_theta", "attention_value_scale")
    c.any("sliding_window_size", "attention_chunk_size")
    fields = _moe(c, _after_dense(c, layers), fields, "intermediate_size")
    return fields | {"attention": [near, full | {"layers": [at for at, flag in enumerate(flags) if not flag]}]}


def _every_full(c: ConfigKeys, layers: int, every: int | None) -> list[int] | None:
    """Layers that see all tokens, the others having a window: by layer, or one of ``every``. None where the file says
    neither. Raises SpecError for a pattern that is no number.
    """
    given = c.any("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    if kinds := _kinds(c, layers, "full_attention", "sliding_attention"):
        return [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    if given is not None and (type(given) is not int or given < 1):
        raise SpecError(f"{c.path}: sliding_window_pattern is {given!r}; expected a number of layers, or layer_types")
    every = given or every
    return [layer for layer in range(layers) if (layer + 1) % every == 0] if every else None


def _afmoe(c: ConfigKeys) -> Fields:
    """Trinity: attention with an output gate, with a window but in every fourth layer."""
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c)
    layers, base = fields["layers"], _grouped(c) | {"output_gate": True}
    c.any("num_expert_groups", "num_limited_groups", "mup_enabled", "route_norm", "route_scale", "load_balance_coeff")
    c.any("score_func", "score_before_experts", "global_attn_every_n_layers")
    full = _every_full(c, layers, 4)
    fields = _moe(c, _after_dense(c, layers), fields, "intermediate_size")
    return fields | {"attention": _windowed(c, base, full or [], layers, c.size("sliding_window"))}


def _lfm2(c: ConfigKeys) -> Fields:
    """LFM2: short convolutions, and attention in some layers; with experts or dense."""
    fields = _common(c, tied_unless_said=True)
    layers, base = fields["layers"], _grouped(c)
    c.any("conv_dim", "conv_dim_out", "block_mlp_init_scale", "block_norm_eps", "block_use_swiglu")
    c.any("block_out_init_scale")
    c.any("block_use_xavier_init", "conv_use_xavier_init", "theta", "use_pos_enc", "num_heads", "block_dim")
    kinds = _kinds(c, layers, "conv", "full_attention")
    full = c.listed("full_attn_idxs") or [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    if not full:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have attention")
    conv = {"kind": "short_conv", "width": fields["hidden"], "conv": c.whole("conv_L_cache", default=3)}
    c.any("conv_bias")
    attention = [conv, base | {"layers": full}]
    if c.any("num_experts"):
        fields = _moe(c, _after_dense(c, layers), fields | _experts(c, ("moe_intermediate_size",)), "intermediate_size")
        return fields | {"attention": attention}
    width = c.size("block_ff_dim", "intermediate_size")
    c.any("intermediate_size", "block_ff_dim")
    if c.any("block_auto_adjust_ff_dim"):  # Lfm2MLP of transformers
        width = int(2 * width / 3 * (c.any("block_ffn_dim_multiplier") or 1.0))
        multiple = c.whole("block_multiple_of", default=256) or 256
        width = -(-width // multiple) * multiple
    c.any("block_ffn_dim_multiplier", "block_multiple_of")
    return fields | _one_expert(layers, width) | {"attention": attention}


def _one_expert(layers: int, width: int, gated: bool = True) -> Fields:
    """A dense model: one expert, which all tokens use."""
    return {"experts": 1, "top_k": 1, "expert_ffn": width, "moe_layers": list(range(layers)), "gated": gated}


def _gemma4(c: ConfigKeys) -> Fields:
    """Gemma 4: layers with a window, and full ones with heads of their own, whose values are their projected keys; a
    layer with experts has a dense FFN beside them.
    """
    fields = _common(c, tied_unless_said=True)
    layers, near = fields["layers"], _grouped(c)
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp"):
        if value := c.any(key):
            raise SpecError(
                f"{c.path}: {key} = {value}: embeddings of each layer and caches shared between layers are not counted"
            )
    c.any("vocab_size_per_layer_input", "use_bidirectional_attention", "final_logit_softcapping", "enable_moe_block")
    c.any("expert_intermediate_size", "moe_intermediate_size", "num_experts", "top_k_experts")
    same = bool(c.any("attention_k_eq_v"))
    own = {"head_dim": c.whole("global_head_dim") or 512, "values_are_keys": same}
    if same:
        own["kv_heads"] = c.whole("num_global_key_value_heads") or near["kv_heads"]
    c.any("num_global_key_value_heads")
    full = _every_full(c, layers, 6) or []
    full = full if layers - 1 in full else [*full, layers - 1]  # the last layer always is
    attention = [near | {"window": c.size("sliding_window")}, near | own | {"layers": full}]
    width = c.size("intermediate_size")
    if not c.any("enable_moe_block"):
        return fields | _one_expert(layers, width) | {"attention": attention}
    fields |= _experts(c, ("moe_intermediate_size", "expert_intermediate_size"))
    every = list(range(layers))
    return fields | {"moe_layers": every, "dense_in": every, "dense_ffn": width, "attention": attention}


def _step(c: ConfigKeys) -> Fields:
    """Step-3.5 and 3.7: layers with a window may have heads of their own; layers with experts are listed as text."""
    fields = _common(c) | _experts(c, ("moe_intermediate_size",))
    layers, base = fields["layers"], _grouped(c)
    other = c.part("attention_other_setting")
    near = base | {"window": c.size("sliding_window")}
    near["heads"] = other.whole("num_attention_heads") or base["heads"]
    near["kv_heads"] = other.whole("num_attention_groups", "num_key_value_heads") or base["kv_heads"]
    near["head_dim"] = other.whole("head_dim") or base["head_dim"]
    other.any("attention_type", "true_head_dim")
    _refuse_unread(other, "attention_other_setting.")
    kinds = _kinds(c, layers, "full_attention", "sliding_attention")
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have a window")
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    c.any("use_head_wise_attn_gate", "head_wise_attn_gate", "partial_rotary_factors", "yarn_only_types")
    c.any("swiglu_limits", "swiglu_limits_shared", "use_moe", "moe_every_n_layer", "moe_router_activation")
    c.any("moe_router_scaling_factor", "use_moe_router_bias", "need_fp32_gate", "norm_expert_weight")
    c.any("moe_layer_offset", "att_impl_type")
    listed = c.any("moe_layers_enum")
    if isinstance(listed, str) and all(each.strip().isdigit() for each in listed.split(",")):
        listed = [int(each) for each in listed.split(",")]
    if listed is not None and not (isinstance(listed, list) and all(type(each) is int for each in listed)):
        raise SpecError(f"{c.path}: moe_layers_enum is {listed!r}; expected numbers of layers")
    ids = [each for each in listed if each < layers] if listed else _after_dense(c, layers)
    wide = c.whole("share_expert_dim", "share_expert_dims")
    number = c.whole("n_shared_experts", default=1)
    fields |= {"shared_experts": number if wide else 0} | ({"shared_ffn": wide} if wide and number else {})
    attention = [near, base | {"layers": full}]
    return _moe(c, ids, fields, "intermediate_size") | {"attention": attention}


def _laguna(c: ConfigKeys) -> Fields:
    """Laguna: layers with a window have more heads; a gate a head, or as wide as the output."""
    fields = _common(c) | _experts(c, ("moe_intermediate_size",)) | _shared(c, "shared_expert_intermediate_size")
    layers, base = fields["layers"], _grouped(c)
    kinds, heads = _kinds(c, layers, "full_attention", "sliding_attention"), c.listed("num_attention_heads_per_layer")
    kinds, heads = kinds or ["full_attention"] * layers, heads or [base["heads"]] * layers
    wide = {str(each) for each in (c.listed("gating_types") or [c.any("gating")])} & {"per_element", "per-element"}
    c.any("gating", "moe_apply_router_weight_on_input", "moe_routed_scaling_factor", "moe_router_logit_softcapping")
    if len(heads) < layers:
        raise SpecError(f"{c.path}: num_attention_heads_per_layer has {len(heads)} layers of {layers}")
    window, attention = c.whole("sliding_window"), []
    for own in sorted(set(zip(kinds, heads[:layers], strict=True))):
        ids = [layer for layer in range(layers) if (kinds[layer], heads[layer]) == own]
        near = {"window": c.size("sliding_window")} if own[0] == "sliding_attention" and window else {}
        attention.append(base | near | {"heads": own[1], "layers": ids, "output_gate": bool(wide)})
    dense = _kinds(c, layers, "dense", "sparse", key="mlp_layer_types")
    by_kind = [layer for layer, kind in enumerate(dense) if kind == "sparse"]
    only = _qwen_layers(c, layers)
    return _moe(c, by_kind if dense else only, fields, "intermediate_size") | {"attention": attention}


# Of a family whose file says neither layer_types nor a pattern: one of so many layers sees all tokens.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3text": 6, "cohere2": 4, "olmo3": 4}
# Without the key, these share one matrix between embedding and output (their configuration classes).
_TIED = ("gemma", "gemma2", "gemma3", "gemma3text", "cohere", "cohere2")
# Two matrices of an FFN, up and down (their modelling code).
_UNGATED = ("starcoder2", "nemotron", "arcee", "apertus")


def _dense(c: ConfigKeys) -> Fields:
    """Dense models of grouped heads: Llama, Mistral, Qwen2 and 3, Gemma, Phi-3, OLMo, Granite, Cohere and others."""
    kind = c.model_type.lower().replace("_", "")
    fields = _common(c, tied_unless_said=kind in _TIED)
    layers = fields["layers"]
    if kind == "starcoder2" and c.any("tie_word_embeddings") is None:
        raise SpecError(f"{c.path}: does not say tie_word_embeddings")
    if kind.startswith("gemma") and c.any("head_dim") is None:
        raise SpecError(f"{c.path}: does not say head_dim")
    base = _grouped(c)
    c.any("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "rope_scaling")
    c.any("no_rope_layers", "no_rope_layer_interval", "residual_dropout", "mscale_all_dim")
    c.any("attention_out_bias", "use_parallel_residual", "norm_elementwise_affine", "norm_eps", "attn_bias")
    c.any("use_parallel_block", "use_parallel_embedding", "use_embedding_sharing", "rotary_pct", "layer_switch")
    c.any("order_of_interleaved_layers", "sliding_window_size", "norm_epsilon", "activation_function")
    c.any("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights", "vision_token_id")
    c.any("vision_start_token_id", "vision_end_token_id")
    gated = kind not in _UNGATED
    if c.any("use_gated_activation") is False or c.any("mlp_type") == "default":
        gated = False
    gated = gated or c.any("mlp_type") == "gated"
    if c.any("use_cla"):
        raise SpecError(f"{c.path}: use_cla = true: caches shared between layers are not counted")
    uses, window = c.any("use_sliding_window"), c.whole("sliding_window")
    every = _PATTERNS.get(kind)
    full = _every_full(c, layers, every)
    if uses is False or not window:
        if full is not None and len(full) < layers and "layer_types" in c.keys:
            raise SpecError(f"{c.path}: layer_types has sliding_attention, and no sliding_window is used")
        window = None
    elif full is None:
        first = c.whole("max_window_layers") if uses else None
        full = list(range(min(first, layers))) if first is not None else []
        if not full and window >= (c.whole("max_position_embeddings") or 0):
            window = None
    attention = _windowed(c, base, full or [], layers, window) if window else base
    width = c.size("intermediate_size", "ffn_hidden_size")
    return fields | _one_expert(layers, width, gated) | {"attention": attention}


FAMILIES: Mapping[Callable[[ConfigKeys], Fields], tuple[str, ...]] = {
    _deepseek: (
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa", "glm4_moe_lite"),
        *("deepseek_v2_text", "deepseek_v3_text", "mistral4"),
    ),
    _glm: ("glm4_moe", "glm4v_moe_text", "dots1", "bailing_moe", "bailing_moe_v2", "solar_open", "hy_v3", "deepseek"),
    _afmoe: ("afmoe",),
    _lfm2: ("lfm2_moe", "lfm2"),
    _gemma4: ("gemma4", "gemma4_text"),
    _step: ("step3p5", "step3p7", "step3p5_flash", "step3p7_flash"),
    _laguna: ("laguna",),
    _dense: (
        *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "qwen3_vl_text", "qwen2_5_vl_text"),
        *("qwen2_vl_text", "qwen2_vl", "qwen2_5_vl"),
        *("gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "olmo", "olmo2", "olmo3", "granite"),
        *("cohere", "cohere2", "starcoder2", "nemotron", "seed_oss", "smollm3", "exaone4", "internlm3", "ernie4_5"),
        *("hunyuan_v1_dense", "glm4", "mimo", "arcee", "apertus", "helium"),
    ),
    _qwen: ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"),
    _qwen_next: ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_text"),
    _exaone: ("exaone_moe",),
    _mixtral: ("mixtral", "phimoe", "olmoe", "granitemoe", "granitemoeshared"),
    _llama4: ("llama4", "llama4_text"),
    _gpt_oss: ("gpt_oss",),
    _minimax_m3: ("minimax_m3", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3_sparse"),
    _minimax: ("minimax", "minimax_text_01", "minimax_m1", "minimax_m2"),
    _longcat: ("longcat_flash", "longcat_flash_ngram", "longcat"),
    _nemotron: ("nemotron_h",),
    _kimi_linear: ("kimi_linear", "kimi_k3"),
    _hunyuan: ("hunyuan_v1_moe", "hunyuan", "hunyuan_moe_v1"),
    _ernie: ("ernie4_5_moe",),
    _granite: ("granitemoehybrid",),
    _jamba: ("jamba",),
    _deepseek_v4: ("deepseek_v4",),
    _mimo: ("mimo_v2_flash",),
}
"""Reader → values of ``model_type``; without one, a file's architecture is compared without underscores."""
KNOWN = tuple(sorted(name for names in FAMILIES.values() for name in names))


def reader_of(model_type: str) -> Callable[[ConfigKeys], Fields] | None:
    """The reader of a type or architecture; None for one that is not known."""
    wanted = model_type.lower().replace("_", "")
    for reader, names in FAMILIES.items():
        if any(name.replace("_", "") == wanted for name in names):
            return reader
    return None


def as_others(c: ConfigKeys) -> Fields:
    """Reads a type that is not known by the keys that most files have. The result is approximate."""
    if not c.has_experts:
        return _dense(c)
    fields = _common(c) | _experts(c) | _shared(c, "shared_expert_intermediate_size")
    ids = _after_dense(c, fields["layers"])
    attention = _latent(c) if c.any("kv_lora_rank") else _grouped(c)
    return _moe(c, ids, fields, "intermediate_size") | {"attention": attention}


def _refuse_unread(c: ConfigKeys, place: str) -> None:
    if unread := c.unread():
        raise SpecError(f"{c.path}: {place}{unread[0]}: archsim does not read this key")


# ---- config_import

# Keys of config.json that hold the longest sequence, as vLLM looks for them.
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
_GO_ON = "--accept-approximate goes on without, and every page says so"


def import_config(
    path: Path, name: str | None = None, given: Mapping[str, Any] | None = None, accept_approximate: bool = False
) -> ModelSpec:
    """The model of a ``config.json``. given: fields of the ModelSpec that replace those of the file.

    Raises SpecError for a file that cannot be read, a model without experts, keys that are missing, and, unless
    ``accept_approximate``, a type or keys that are not known.
    """
    keys = read_keys(path)
    asked = {key: value for key, value in (given or {}).items() if value is not None}
    reader = reader_of(keys.model_type)
    unknown = []
    if reader is None:
        unknown.append(f"model_type {keys.model_type!r} is not known")
        if not accept_approximate:
            raise SpecError(f"{path}: {unknown[0]} (known: {', '.join(KNOWN)}); {_GO_ON}")
    fields = {"positions": _positions(keys)} | (reader or as_others)(keys) | asked
    unknown += [f"{each} is not read" for each in keys.unread()]
    if unknown and not accept_approximate:
        lines = (f"{path}: {each}: it may change attention, experts or layers; {_GO_ON}" for each in unknown)
        raise SpecError("\n".join(lines))
    needed = ("layers", "moe_layers", "hidden", "expert_ffn", "experts", "top_k")
    if missing := [field for field in needed if fields.get(field) is None]:
        raise SpecError("\n".join(f"{path}: does not say {field}. Give {FLAGS[field]}" for field in missing))
    return _model(keys, name, fields | {"approximate": tuple(unknown)})


def _positions(keys: ConfigKeys) -> int | None:
    """The longest sequence that engines take: the smallest number that a key gives, multiplied by the factor of a
    scaling that the key does not include (vLLM, `_get_and_verify_max_len`: llama3 and longrope are within it; YaRN
    starts from the original positions). None without a key.
    """
    named = [keys.any(name) for name in _POSITIONS]
    most = min((each for each in named if isinstance(each, int | float) and each > 0), default=None)
    scaling = keys.any("rope_scaling", "rope_parameters")
    if isinstance(scaling, dict) and isinstance(scaling.get("full_attention"), dict):  # one for each kind of layer
        scaling = scaling["full_attention"]
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    kind = (scaling.get("rope_type") or scaling.get("type")) if isinstance(scaling, dict) else None
    if most is None or not isinstance(factor, int | float) or factor <= 1:
        return None if most is None else int(most)
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings") or keys.any("original_max_position_embeddings")
        return int(original * factor) if isinstance(original, int) else int(most)
    return int(most * factor) if kind in ("linear", "dynamic") else int(most)


def _model(keys: ConfigKeys, name: str | None, fields: Mapping[str, Any]) -> ModelSpec:
    origin = keys.keys.get("_name_or_path") or keys.outer.get("model_type") or keys.model_type or keys.path.parent.name
    called = name or str(origin).rstrip("/").rpartition("/")[2].lower()
    stated = {field: value for field, value in fields.items() if value is not None}
    try:
        return ModelSpec(name=called, source=f"{origin}, {keys.path.name} (Hugging Face)", **stated)
    except ValidationError as error:
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise SpecError(f"{keys.path}: the keys found do not form a valid model: {text}") from error


# ---- files
# Imported models in files: the model as YAML, its operators as CSV.

def write_model(model: ModelSpec, path: Path) -> None:
    write_text(path, dump_yaml(model.model_dump(mode="json", by_alias=True, exclude={"aliases"}, exclude_none=True)))


def write_operators(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write a table of the columns ``OPERATOR_COLUMNS`` as a whole."""
    with drafted(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, OPERATOR_COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)

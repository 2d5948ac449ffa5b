"""How each family of models names its layers: readers of ``config.json``, one row of ``FAMILIES`` a family.

A reader returns fields of a ModelSpec. A key that it does not ask for is refused, unless it is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from archsim.base.errors import SpecError
from archsim.model.config_fields import (
    VALUE_BYTES,
    Fields,
    common_fields,
    expert_fields,
    grouped_heads,
    latent_heads,
    one_expert,
    refuse_window,
    shared_experts,
    with_experts,
    with_window,
)
from archsim.model.config_keys import ConfigKeys, squeeze_name
from archsim.model.layer_kinds import after_dense, at_kind, every_full, layer_kinds


def _deepseek(c: ConfigKeys) -> Fields:
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    attention: Any = latent_heads(c)
    if chosen := c.whole("index_topk"):
        attention |= {"kind": "sparse", "index_topk": chosen}
        attention |= {"index_heads": c.size("index_n_heads"), "index_head_dim": c.size("index_head_dim")}
        if len(set(layer_kinds(c, fields["layers"], "indexed_attention", "full_attention"))) > 1:
            raise SpecError(f"{c.path}: layer_types: layers with and without an indexer are not supported")
        if shared := _shared_indexers(c, fields["layers"]):
            attention = [attention, attention | {"own_indexer": False, "layers": shared}]
    fields = with_experts(c, after_dense(c, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": attention}


def _shared_indexers(c: ConfigKeys, layers: int) -> list[int]:
    """Layers that take an earlier indexer's tokens (GLM-5.2), listed or periodic. SpecError where both differ."""
    c.any("index_share_for_mtp_iteration")  # of layers of multi-token prediction
    listed = layer_kinds(c, layers, "full", "shared", key="indexer_types")
    shared = at_kind(listed, "shared")
    every, offset = c.whole("index_topk_freq") or 1, c.whole("index_skip_topk_offset", least=0)
    if every > 1 and offset is None and not listed:
        raise c.unsaid("index_skip_topk_offset", "indexer_types")
    spaced = [layer for layer in range(layers) if max(layer - (offset or 0) + 1, 0) % every]
    if listed and every > 1 and shared != spaced:
        raise SpecError(
            f"{c.path}: indexer_types has {len(shared)} shared layers, and index_topk_freq {every} with "
            f"index_skip_topk_offset {offset} others; expected the same layers"
        )
    return shared if listed else spaced


def _glm(c: ConfigKeys) -> Fields:
    """Grouped heads; the first layers are dense (GLM-4.5, dots.llm1, Ling and Ring, DeepSeekMoE)."""
    if c.flag("use_sliding_window") is not False:
        refuse_window(c)
    c.whole("sliding_window", least=0)
    shared = shared_experts(c)
    if wide := c.whole("moe_shared_expert_intermediate_size", least=0):
        shared = {"shared_experts": shared["shared_experts"], "shared_ffn": wide} if shared["shared_experts"] else {}
    fields = common_fields(c) | expert_fields(c) | shared
    layer_kinds(c, fields["layers"], "full_attention")
    fields = with_experts(c, after_dense(c, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": grouped_heads(c)}


def _exaone(c: ConfigKeys) -> Fields:
    """K-EXAONE: layers with a window, and a full one at the end of every pattern."""
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    layers, pattern = fields["layers"], c.any("sliding_window_pattern")
    kinds = layer_kinds(c, layers, "full_attention", "sliding_attention")
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have a window (pattern {pattern!r})")
    full = at_kind(kinds, "full_attention")
    fields = with_experts(c, after_dense(c, layers), fields, "intermediate_size")
    if len(full) == layers:
        return fields | {"attention": grouped_heads(c)}
    return fields | {"attention": with_window(c, grouped_heads(c), full, layers, c.size("sliding_window"))}


def _minimax_m3(c: ConfigKeys) -> Fields:
    """MiniMax-M3: grouped heads, in most layers to the blocks of tokens that an indexer chooses."""
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",)) | shared_experts(c, "shared_intermediate_size")
    if (width := c.whole("moe_intermediate_size")) not in (None, fields["expert_ffn"]):
        raise SpecError(
            f"{c.path}: moe_intermediate_size is {width} and intermediate_size {fields['expert_ffn']}; expected the "
            "same width of an expert"
        )
    layers, base, inside = fields["layers"], grouped_heads(c), c.part("sparse_attention_config")
    whole = len(inside.list_of("sparse_attention_freq")) >= layers
    flags = inside.flags("sparse_attention_freq", layers) if whole else []
    if kinds := layer_kinds(c, layers, "full_attention", "minimax_m3_sparse"):
        flags = [kind == "minimax_m3_sparse" for kind in kinds]
    if not flags:
        raise SpecError(f"{c.path}: neither layer_types nor sparse_attention_freq says which of {layers} layers choose")
    sparse = [layer for layer, flag in enumerate(flags) if flag]
    without_values = inside.flags("sparse_disable_index_value", layers) or [True] * layers
    if not all(without_values[layer] for layer in sparse):
        raise SpecError(f"{c.path}: sparse_disable_index_value: values of the indexer are not supported")
    inside.any("use_sparse_attention", "sparse_init_block", "sparse_local_block", "sparse_score_type")
    c.any("index_local_blocks")
    fields = with_experts(c, after_dense(c, layers), fields, "dense_intermediate_size")
    if not sparse:
        return fields | {"attention": base}
    index = {
        "index_heads": inside.whole("sparse_num_index_heads") or c.size("index_n_heads"),
        "index_head_dim": inside.whole("sparse_index_dim") or c.size("index_head_dim"),
        "index_topk": (inside.whole("sparse_topk_blocks") or c.size("index_topk_blocks"))
        * (inside.whole("sparse_block_size") or c.size("index_block_size")),
    }
    inside.refuse_unread()
    chosen = base | index | {"kind": "block_sparse"}
    return fields | {"attention": [base, chosen | {"layers": sparse}] if len(sparse) < layers else chosen}


def _qwen_layers(c: ConfigKeys, layers: int) -> list[int]:
    only, step = c.ids("mlp_only_layers", 0, layers - 1), c.whole("decoder_sparse_step") or 1
    return [layer for layer in range(layers) if layer not in only and (layer + 1) % step == 0]


def _qwen(c: ConfigKeys) -> Fields:
    shared = shared_experts(c, "shared_expert_intermediate_size")
    fields = common_fields(c) | expert_fields(c) | shared
    layers, base = fields["layers"], grouped_heads(c)
    window, kinds = c.whole("sliding_window", least=0), layer_kinds(c, layers, "full_attention", "sliding_attention")
    first = c.whole("max_window_layers", least=0) or 0
    full = at_kind(kinds, "full_attention") if kinds else list(range(min(layers, first)))
    used = c.flag("use_sliding_window") and window
    if "sliding_attention" in kinds and not used:
        raise SpecError(f"{c.path}: layer_types has sliding_attention, and no sliding_window is used")
    fields = with_experts(c, _qwen_layers(c, layers), fields, "intermediate_size")
    return fields | {"attention": with_window(c, base, full, layers, window) if used and window else base}


def _qwen_next(c: ConfigKeys) -> Fields:
    """Qwen3-Next and Qwen3.5: gated delta nets, every few layers gated attention; with experts or dense."""
    fields = common_fields(c)
    layers = fields["layers"]
    kinds = layer_kinds(c, layers, "full_attention", "linear_attention")
    every = c.whole("full_attention_interval") or 4
    if every > layers and not kinds:
        raise c.wrong("full_attention_interval", f"a number of layers, of {layers}")
    full = [at for at in range(layers) if (kinds[at] == "full_attention" if kinds else (at + 1) % every == 0)]
    if c.flag("use_sliding_window"):
        raise SpecError(f"{c.path}: use_sliding_window = true: no key says which layers have a window")
    c.whole("sliding_window", least=0)
    delta = {
        "kind": "gated_delta_net",
        "k_heads": c.size("linear_num_key_heads"),
        "v_heads": c.size("linear_num_value_heads"),
        "k_dim": c.size("linear_key_head_dim"),
        "v_dim": c.size("linear_value_head_dim"),
        "conv": c.size("linear_conv_kernel_dim"),
        "state_value_bytes": c.chosen("mamba_ssm_dtype", VALUE_BYTES, 2),
    }
    attention = grouped_heads(c) | {"output_gate": c.flag("attn_output_gate") is not False, "layers": full}
    fields["attention"] = [delta, attention]
    if squeeze_name(c.model_type) in ("qwen35", "qwen35text"):
        return fields | one_expert(layers, c.size("intermediate_size"))
    fields |= expert_fields(c) | shared_experts(c, "shared_expert_intermediate_size")
    return with_experts(c, _qwen_layers(c, layers), fields, "intermediate_size")


def _mixtral(c: ConfigKeys) -> Fields:
    """Experts in every layer; a window, if any, in every layer as well (Mixtral, Phi-3.5-MoE, OLMoE, Granite)."""
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",)) | shared_experts(c, "shared_intermediate_size")
    window, base = c.whole("sliding_window", least=0), grouped_heads(c)
    if window and _is_shorter(c, window):
        base |= {"window": window}
    return with_experts(c, range(fields["layers"]), fields) | {"attention": base}


def _is_shorter(c: ConfigKeys, window: int) -> bool:
    """Whether a window leaves out tokens of the longest sequence."""
    longest = c.whole("max_position_embeddings")
    return longest is None or window < longest


def _llama4(c: ConfigKeys) -> Fields:
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",))
    layers = fields["layers"]
    step = c.whole("interleave_moe_layer_step") or 1
    ids = c.ids("moe_layers", 0, layers - 1) or [layer for layer in range(layers) if (layer + 1) % step == 0]
    fields |= {"shared_experts": 1, "shared_ffn": fields["expert_ffn"]}  # in every layer with experts, without a key
    kinds = layer_kinds(c, layers, "full_attention", "chunked_attention")
    rotated = c.flags("no_rope_layers", layers)
    every = c.whole("no_rope_layer_interval") or 4
    if kinds:
        full = at_kind(kinds, "full_attention")
    elif rotated:
        full = [layer for layer, flag in enumerate(rotated) if not flag]  # without positions: sees all tokens
    else:
        full = list(range(every - 1, layers, every))
    chunk, base = c.whole("attention_chunk_size"), grouped_heads(c)
    if "chunked_attention" in kinds and not chunk:
        raise c.unsaid("attention_chunk_size")
    fields = with_experts(c, ids, fields, "intermediate_size_mlp")
    kinds_of_layers = with_window(c, base, full, layers, chunk) if chunk else [base]
    chunked: Fields = {"chunked": True}
    return fields | {"attention": [each | (chunked if "window" in each else {}) for each in kinds_of_layers]}


def _gpt_oss(c: ConfigKeys) -> Fields:
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",))
    layers = fields["layers"]
    kinds = layer_kinds(c, layers, "full_attention", "sliding_attention")
    full = [at for at in range(layers) if (kinds[at] == "full_attention" if kinds else at % 2)]
    attention = with_window(c, grouped_heads(c), full, layers, c.size("sliding_window"))
    return with_experts(c, range(layers), fields) | {"attention": attention}


def _minimax(c: ConfigKeys) -> Fields:
    """MiniMax-01, M1 and M2: lightning attention (0) and softmax attention (1) by layer; M2 has the latter alone."""
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",)) | shared_experts(c, "shared_intermediate_size")
    layers, base = fields["layers"], grouped_heads(c)
    c.any("shared_moe_mode", "block_size")  # of the scan: tokens of one block
    kinds = layer_kinds(c, layers, "full_attention", "linear_attention")
    flags = c.flags("attn_type_list", layers) or [kind == "full_attention" for kind in kinds]
    if not flags and squeeze_name(c.model_type) != "minimaxm2":
        raise SpecError(f"{c.path}: does not say attn_type_list: which layers have lightning attention")
    refuse_window(c)
    full = [layer for layer, flag in enumerate(flags) if flag]
    lightning = {"kind": "lightning", "heads": base["heads"], "head_dim": base["head_dim"]}
    mixed = len(full) < layers and flags
    fields = with_experts(c, range(layers), fields)
    return fields | {"attention": [lightning, base | {"layers": full}] if mixed else base}


def _longcat(c: ConfigKeys) -> Fields:
    """LongCat-Flash: a layer has two attentions, two dense FFNs and one set of experts, some of which do nothing."""
    layers = c.layers("num_layers")
    if (attentions := c.whole("num_hidden_layers")) not in (None, layers, 2 * layers):
        raise c.wrong("num_hidden_layers", f"num_layers ({layers}), or twice as many, not {attentions}")
    fields = common_fields(c, layers) | expert_fields(c, ("expert_ffn_hidden_size", "moe_intermediate_size"))
    c.any("zero_expert_type")
    fields |= {"zero_experts": c.stated_whole("zero_expert_num", least=0) or 0}
    fields |= {"dense_ffn": c.size("ffn_hidden_size", "intermediate_size"), "dense_per_layer": 2}
    fields |= {"moe_layers": list(range(layers)), "dense_in": list(range(layers))}
    if c.said("ngram_vocab_size_ratio"):
        # Tables of n-grams: splits x (neighbours - 1), with the hidden size shared among them, of ratio x vocabulary
        # rows and an odd number more each, and products back to the hidden size (arXiv 2601.21204).
        neighbours = c.size("emb_neighbor_num")
        if neighbours < 2:
            raise c.wrong("emb_neighbor_num", "2 or more")
        number = c.size("emb_split_num") * (neighbours - 1)
        rows = number * int(c.factor("ngram_vocab_size_ratio", 0.0) * fields["vocabulary"]) + number**2
        fields["more_embedding_weights"] = (rows * fields["hidden"]) // number + fields["hidden"] ** 2
    return fields | {"attention": latent_heads(c) | {"per_layer": 2}}


def _nemotron(c: ConfigKeys) -> Fields:
    """One mixer a layer: Mamba-2 (M), attention (*), experts (E) or a dense FFN (-), both of them without a gate
    (NemotronHMLP of transformers); Nemotron-H has dense FFNs alone, Nemotron 3 experts.
    """
    named = {"linear_attention": "M", "mamba2": "M", "full_attention": "*", "moe": "E", "mlp": "-"}
    names = "hybrid_override_pattern", "layers_block_type", "layer_types"
    key, pattern = c.said(*names) or names[0], c.any(names[0])
    if pattern is None:
        pattern = "".join(named[kind] for kind in layer_kinds(c, len(c.list_of(key)), *named, key=key))
    c.any(*names)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*E-"):
        raise c.wrong(key, "letters M, *, E and -, one for each layer, or a list of kinds")
    if (c.whole("num_hidden_layers") or len(pattern)) != len(pattern):
        raise SpecError(f"{c.path}: {key} has {len(pattern)} layers, num_hidden_layers others")
    c.any("expand", "mamba_expand", "mlp_hidden_act")
    at = {letter: [layer for layer, each in enumerate(pattern) if each == letter] for letter in "M*E-"}
    fields = common_fields(c, len(pattern)) | {"gated": False, "dense_in": at["-"]}
    if at["E"]:
        fields |= expert_fields(c)
        fields |= shared_experts(c, "moe_shared_expert_intermediate_size")
        fields |= {"expert_hidden": c.whole("moe_latent_size"), "moe_layers": at["E"]}
        fields["dense_ffn"] = c.size("intermediate_size") if at["-"] else None
        c.any("intermediate_size")
    else:
        if not at["-"]:
            raise c.wrong(key, "a layer with experts (E) or a dense FFN (-)")
        c.any("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "moe_latent_size")
        c.any("moe_shared_expert_intermediate_size", "n_group", "topk_group")
        dense = one_expert(len(pattern), c.size("intermediate_size"), gated=False)
        fields |= dense | {"moe_layers": at["-"], "dense_in": []}
    mamba = {
        "kind": "mamba2",
        "heads": c.size("mamba_num_heads"),
        "head_dim": c.size("mamba_head_dim"),
        "groups": c.size("n_groups", "mamba_n_groups"),
        "state": c.size("ssm_state_size", "mamba_d_state"),
        "conv": c.whole("conv_kernel", "mamba_d_conv") or 4,
        "state_value_bytes": c.chosen("mamba_ssm_cache_dtype", VALUE_BYTES, 2),
    }
    refuse_window(c)
    mixers = [mamba | {"layers": at["M"]}, grouped_heads(c) | {"layers": at["*"]}]
    return fields | {"attention": [mixer for mixer in mixers if mixer["layers"]]}


def _kimi_linear(c: ConfigKeys) -> Fields:
    """Kimi-Linear and K3: delta attention, and latent attention in the layers of ``full_attn_layers``, counted from 1;
    K3's experts work on vectors of ``routed_expert_hidden_size``.
    """
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    fields["expert_hidden"] = c.whole("routed_expert_hidden_size")
    layers = fields["layers"]
    c.any("latent_moe_use_norm")
    kinds, linear = layer_kinds(c, layers, "full_attention", "linear_attention"), c.part("linear_attn_config")
    full = at_kind(kinds, "full_attention")
    named = "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"
    if linear.keys:
        listed = [layer - 1 for layer in linear.ids("full_attn_layers", 1, layers)]
        counted = sorted([*linear.ids("kda_layers", 1, layers), *(layer + 1 for layer in listed)])
        if counted != list(range(1, layers + 1)) or (kinds and sorted(listed) != full):
            raise SpecError(f"{c.path}: linear_attn_config: kda_layers and full_attn_layers are not every layer once")
        full, sizes = listed, [linear.size(key) for key in ("num_heads", "head_dim", "short_conv_kernel_size")]
        if [c.whole(name) or size for name, size in zip(named, sizes, strict=True)] != sizes:
            raise c.wrong("linear_attn_config", f"what {', '.join(named)} say")
        linear.any("gate_lower_bound")  # of the decay
        linear.refuse_unread()
    elif kinds:
        sizes = [c.size(name) for name in named]
    else:
        raise c.unsaid("linear_attn_config", "layer_types")
    delta = {"kind": "kda", "heads": sizes[0], "head_dim": sizes[1], "conv": sizes[2]}
    fields = with_experts(c, after_dense(c, layers), fields, "intermediate_size")
    latent = latent_heads(c) | {"layers": full, "output_gate": bool(c.flag("mla_use_output_gate"))}
    return fields | {"attention": [delta, latent]}


def _hunyuan(c: ConfigKeys) -> Fields:
    fields = common_fields(c) | expert_fields(c, ("moe_intermediate_size", "intermediate_size"))
    if not c.said("use_mixed_mlp_moe"):
        raise c.unsaid("use_mixed_mlp_moe")
    if c.flag("use_mixed_mlp_moe"):
        fields |= {"shared_experts": c.one("num_shared_expert") or 1, "shared_ffn": c.size("intermediate_size")}
    skipped = c.whole("moe_layer_num_skipped", least=0) or 0
    fields = with_experts(c, range(skipped, fields["layers"]), fields, "intermediate_size")
    return fields | {"attention": grouped_heads(c)}


def _ernie(c: ConfigKeys) -> Fields:
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    if not c.said("tie_word_embeddings"):
        raise c.unsaid("tie_word_embeddings")
    layers = fields["layers"]
    first, last = c.one("moe_layer_start_index", least=0) or 0, c.one("moe_layer_end_index", least=-1)
    last = layers - 1 if last in (None, -1) else last
    every = c.whole("moe_layer_interval") or 1
    ids = [layer for layer in range(layers) if (layer + 1) % every == 0 and first <= layer <= last]
    fields = with_experts(c, ids, fields, "intermediate_size")
    return fields | {"attention": grouped_heads(c)}


def _granite(c: ConfigKeys) -> Fields:
    """Granite 4: Mamba-2 and some attention; without routed experts (num_local_experts: 0), the shared FFN is alone."""
    key = "layer_types" if c.said("layer_types") else "layers_block_type"
    fields = common_fields(c)
    layers = fields["layers"]
    if c.whole("num_local_experts", least=0) == 0:
        c.any("num_experts_per_tok", "intermediate_size")
        fields |= one_expert(layers, c.size("shared_intermediate_size"))
    else:
        fields |= expert_fields(c, ("intermediate_size",)) | shared_experts(c, "shared_intermediate_size")
        fields = with_experts(c, range(layers), fields)
    kinds = layer_kinds(c, layers, "linear_attention", "full_attention", key=key)
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have attention")
    full = at_kind(kinds, "full_attention")
    inner, heads = (c.whole("mamba_expand") or 2) * fields["hidden"], c.size("mamba_n_heads")
    size = inner // heads if c.any("mamba_d_head") in (None, "auto") else c.size("mamba_d_head")
    if size * heads != inner:
        raise c.wrong("mamba_d_head", f"{inner} (mamba_expand times hidden_size) over mamba_n_heads, {heads}")
    mamba = {
        "kind": "mamba2", "heads": heads, "head_dim": size, "groups": c.size("mamba_n_groups"),
        "state": c.size("mamba_d_state"), "conv": c.whole("mamba_d_conv") or 4,
    }  # fmt: skip
    return fields | {"attention": [mamba, grouped_heads(c) | {"layers": full}]}


def _jamba(c: ConfigKeys) -> Fields:
    """Mamba, and attention in one of so many layers; with one expert, every layer has the same dense FFN."""
    fields = common_fields(c) | expert_fields(c, ("intermediate_size",))
    layers = fields["layers"]
    period, offset = c.size("attn_layer_period"), c.whole("attn_layer_offset", least=0) or 0
    full = [layer for layer in range(layers) if layer % period == offset]
    every, first = c.size("expert_layer_period"), c.whole("expert_layer_offset", least=0) or 0
    rank, expand = c.any("mamba_dt_rank"), c.size("mamba_expand")
    mamba = {
        "kind": "mamba",
        "inner": expand * fields["hidden"],
        "state": c.size("mamba_d_state"),
        "dt_rank": ceil(fields["hidden"] / 16) if rank in (None, "auto") else c.size("mamba_dt_rank"),
        "conv": c.size("mamba_d_conv"),
    }
    c.any("layers_block_type", "layer_types")  # what the periods say
    refuse_window(c)
    if fields["experts"] == 1:
        fields |= one_expert(layers, c.size("intermediate_size"))
    else:
        fields = with_experts(c, [at for at in range(layers) if at % every == first], fields, "intermediate_size")
    return fields | {"attention": [mamba, grouped_heads(c) | {"layers": full}]}


# Of DeepSeek-V4: how many tokens an entry stands for by kind of layer (DeepseekV4Config of transformers).
_V4_RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _deepseek_v4(c: ConfigKeys) -> Fields:
    """A window in every layer, and entries of so many tokens, overlapping with an indexer, or heavily compressed."""
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    layers, ratios = fields["layers"], c.by_layer("compress_ratios", fields["layers"])
    layer_kinds(c, layers, "hash_moe", "moe", key="mlp_layer_types")  # both have the same experts
    kind_of = {ratio: kind for kind, ratio in _V4_RATES.items()}
    if any(type(ratio) is not int or ratio not in kind_of for ratio in ratios):
        raise c.wrong("compress_ratios", f"{', '.join(map(str, kind_of))} for each layer")
    kinds = layer_kinds(c, layers, *_V4_RATES) or [kind_of[ratio] for ratio in ratios]
    if not kinds:
        raise c.unsaid("compress_ratios", "layer_types")
    if ratios and kinds != [kind_of[ratio] for ratio in ratios]:
        raise SpecError(f"{c.path}: layer_types and compress_ratios differ; expected the same layers")
    said = c.part("compress_rates")
    rates = {kind: said.whole(kind) or rate for kind, rate in _V4_RATES.items()}
    said.refuse_unread()
    for key in ("num_key_value_heads", "qk_rope_head_dim"):  # one entry for all heads; a part of it is rotated
        c.whole(key)
    base = {"kind": "compressed", "heads": c.size("num_attention_heads"), "window": c.size("sliding_window")}
    base |= {key: c.size(key) for key in ("head_dim", "q_lora_rank", "o_lora_rank", "o_groups")}
    index = {"index_heads": c.size("index_n_heads"), "index_head_dim": c.size("index_head_dim")}
    index |= {"index_topk": c.size("index_topk"), "overlapping": True}
    attention = []
    for kind in (each for each in _V4_RATES if each in kinds):
        own = {"ratio": rates[kind], "layers": at_kind(kinds, kind)}
        attention.append(base | own | (index if kind == "compressed_sparse_attention" else {}))
    fields |= {"streams": c.whole("hc_mult") or 1}
    return with_experts(c, range(layers), fields) | {"attention": attention}


def _mimo(c: ConfigKeys) -> Fields:
    """MiMo-V2: layers with a window have heads of their own."""
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    layers, flags = fields["layers"], c.flags("hybrid_layer_pattern", fields["layers"])
    if not flags:
        raise c.unsaid("hybrid_layer_pattern")
    full = grouped_heads(c) | {"value_dim": c.whole("v_head_dim")}
    near = {
        "kind": "grouped",
        "heads": c.whole("swa_num_attention_heads") or full["heads"],
        "kv_heads": c.size("swa_num_key_value_heads"),
        "head_dim": c.whole("swa_head_dim") or full["head_dim"],
        "value_dim": c.whole("swa_v_head_dim") or full["value_dim"],
        "window": c.size("sliding_window", "sliding_window_size"),
    }
    c.any("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_rope_theta", "attention_value_scale")
    c.any("sliding_window_size", "attention_chunk_size")
    fields = with_experts(c, after_dense(c, layers), fields, "intermediate_size")
    return fields | {"attention": [near, full | {"layers": [at for at, flag in enumerate(flags) if not flag]}]}


def _afmoe(c: ConfigKeys) -> Fields:
    """Trinity: attention with an output gate, with a window but in every fourth layer."""
    fields = common_fields(c) | expert_fields(c) | shared_experts(c)
    layers, base = fields["layers"], grouped_heads(c) | {"output_gate": True}
    c.any("num_expert_groups", "num_limited_groups", "mup_enabled", "route_norm", "route_scale", "load_balance_coeff")
    c.any("score_func", "score_before_experts", "global_attn_every_n_layers")
    full = every_full(c, layers, 4)
    fields = with_experts(c, after_dense(c, layers), fields, "intermediate_size")
    return fields | {"attention": with_window(c, base, full or [], layers, c.size("sliding_window"))}


def _lfm2(c: ConfigKeys) -> Fields:
    """LFM2: short convolutions, and attention in some layers; with experts or dense."""
    fields = common_fields(c)
    layers, base = fields["layers"], grouped_heads(c)
    c.any("conv_dim", "conv_dim_out", "block_mlp_init_scale", "block_norm_eps", "block_use_swiglu")
    c.any("block_out_init_scale")
    c.any("block_use_xavier_init", "conv_use_xavier_init", "theta", "use_pos_enc", "num_heads", "block_dim")
    kinds = layer_kinds(c, layers, "conv", "full_attention")
    full = c.ids("full_attn_idxs", 0, layers - 1) or at_kind(kinds, "full_attention")
    if not full:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have attention")
    if kinds and full != at_kind(kinds, "full_attention"):
        raise SpecError(f"{c.path}: layer_types and full_attn_idxs differ; expected the same layers")
    conv = {"kind": "short_conv", "width": fields["hidden"], "conv": c.whole("conv_L_cache") or 3}
    c.any("conv_bias")
    fields["attention"] = [conv, base | {"layers": full}]
    if squeeze_name(c.model_type) == "lfm2moe":
        fields |= expert_fields(c)
        return with_experts(c, after_dense(c, layers), fields, "intermediate_size")
    width = c.size("block_ff_dim", "intermediate_size")
    if c.flag("block_auto_adjust_ff_dim"):  # Lfm2MLP of transformers
        width = int(2 * width / 3 * c.factor("block_ffn_dim_multiplier", 1.0))
        multiple = c.whole("block_multiple_of") or 256
        width = -(-width // multiple) * multiple
    c.any("block_ffn_dim_multiplier", "block_multiple_of")
    return fields | one_expert(layers, width)


def _gemma4(c: ConfigKeys) -> Fields:
    """Gemma 4: layers with a window, and full ones with heads of their own, whose values are their projected keys; a
    layer with experts has a dense FFN beside them.
    """
    fields = common_fields(c)
    layers, near, moe = fields["layers"], grouped_heads(c), c.flag("enable_moe_block")
    if not moe and "hidden_size_per_layer_input" not in c.keys:  # its class says 256, models with experts 0
        raise c.unsaid("hidden_size_per_layer_input")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp"):
        if value := c.flag(key) if key.startswith("use") else c.whole(key, least=0):
            raise SpecError(
                f"{c.path}: {key} = {value}: embeddings of each layer and caches shared between layers are not counted"
            )
    c.any("vocab_size_per_layer_input", "use_bidirectional_attention", "final_logit_softcapping")
    c.any("expert_intermediate_size", "moe_intermediate_size", "num_experts", "top_k_experts")
    same = bool(c.flag("attention_k_eq_v"))
    own = {"head_dim": c.whole("global_head_dim") or 512, "values_are_keys": same}
    if same:
        own["kv_heads"] = c.whole("num_global_key_value_heads") or near["kv_heads"]
    c.any("num_global_key_value_heads")
    full = every_full(c, layers, 6) or []
    full = full if layers - 1 in full else [*full, layers - 1]  # the last layer always is
    attention = [near | {"window": c.size("sliding_window")}, near | own | {"layers": full}]
    width = c.size("intermediate_size")
    if not moe:
        return fields | one_expert(layers, width) | {"attention": attention}
    fields |= expert_fields(c, ("moe_intermediate_size", "expert_intermediate_size"))
    every = list(range(layers))
    return fields | {"moe_layers": every, "dense_in": every, "dense_ffn": width, "attention": attention}


def _step(c: ConfigKeys) -> Fields:
    """Step-3.5 and 3.7: layers with a window may have heads of their own; layers with experts are listed as text."""
    fields = common_fields(c) | expert_fields(c)
    layers, base = fields["layers"], grouped_heads(c)
    other = c.part("attention_other_setting")
    near = base | {"window": c.size("sliding_window")}
    near["heads"] = other.whole("num_attention_heads") or base["heads"]
    near["kv_heads"] = other.whole("num_attention_groups", "num_key_value_heads") or base["kv_heads"]
    near["head_dim"] = other.whole("head_dim") or base["head_dim"]
    other.any("attention_type", "true_head_dim")
    other.refuse_unread()
    kinds = layer_kinds(c, layers, "full_attention", "sliding_attention")
    if not kinds:
        raise SpecError(f"{c.path}: does not say layer_types: which layers have a window")
    c.any("use_head_wise_attn_gate", "head_wise_attn_gate", "partial_rotary_factors", "yarn_only_types")
    c.any("swiglu_limits", "swiglu_limits_shared", "use_moe", "moe_every_n_layer", "moe_router_activation")
    c.any("moe_router_scaling_factor", "use_moe_router_bias", "need_fp32_gate", "norm_expert_weight")
    c.any("moe_layer_offset", "att_impl_type")
    ids = _layer_numbers(c, "moe_layers_enum", layers) or after_dense(c, layers)
    wide = c.whole("share_expert_dim", "share_expert_dims", least=0)
    number = c.whole("n_shared_experts", default=1, least=0)
    fields |= {"shared_experts": number if wide else 0} | ({"shared_ffn": wide} if wide and number else {})
    attention = [near, base | {"layers": at_kind(kinds, "full_attention")}]
    return with_experts(c, ids, fields, "intermediate_size") | {"attention": attention}


def _layer_numbers(c: ConfigKeys, name: str, layers: int) -> list[int]:
    """Numbers of layers, in a list or with commas as text, without those of multi-token prediction."""
    listed = c.any(name)
    if isinstance(listed, str) and all(each.strip().isdecimal() and len(each) < 6 for each in listed.split(",")):
        listed = [int(each) for each in listed.split(",")]
    whole = isinstance(listed, list) and all(type(each) is int and each >= 0 for each in listed)
    if listed is not None and not (whole and len(set(listed)) == len(listed)):
        raise c.wrong(name, "numbers of layers, each once")
    return [each for each in listed or () if each < layers]


def _laguna(c: ConfigKeys) -> Fields:
    """Laguna: layers with a window have more heads; a gate a head, or as wide as the output."""
    shared = shared_experts(c, "shared_expert_intermediate_size")
    fields = common_fields(c) | expert_fields(c) | shared
    layers, base = fields["layers"], grouped_heads(c)
    kinds = layer_kinds(c, layers, "full_attention", "sliding_attention") or ["full_attention"] * layers
    heads = c.by_layer("num_attention_heads_per_layer", layers) or [base["heads"]] * layers
    if any(type(each) is not int or each < 1 or each % base["kv_heads"] for each in heads):
        raise c.wrong("num_attention_heads_per_layer", f"heads that {base['kv_heads']} KV heads divide, for each layer")
    wide = {str(each) for each in (c.list_of("gating_types") or [c.any("gating")])} & {"per_element", "per-element"}
    c.any("gating", "moe_apply_router_weight_on_input", "moe_routed_scaling_factor", "moe_router_logit_softcapping")
    window, attention = c.whole("sliding_window", least=0), []
    if "sliding_attention" in kinds and not window:
        raise c.unsaid("sliding_window")
    for own in sorted(set(zip(kinds, heads, strict=True))):
        ids = [layer for layer in range(layers) if (kinds[layer], heads[layer]) == own]
        near = {"window": window} if own[0] == "sliding_attention" else {}
        attention.append(base | near | {"heads": own[1], "layers": ids, "output_gate": bool(wide)})
    dense, only = layer_kinds(c, layers, "dense", "sparse", key="mlp_layer_types"), _qwen_layers(c, layers)
    fields = with_experts(c, at_kind(dense, "sparse") if dense else only, fields, "intermediate_size")
    return fields | {"attention": attention}


# Of a family whose file says neither layer_types nor a pattern: one of so many layers sees all tokens.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3text": 6, "cohere2": 4, "olmo3": 4}
# Two matrices of an FFN, up and down (their modelling code).
_UNGATED = ("starcoder2", "nemotron", "arcee", "apertus")


def _dense(c: ConfigKeys) -> Fields:
    """Dense models of grouped heads: Llama, Mistral, Qwen2 and 3, Gemma, Phi-3, OLMo, Granite, Cohere and others."""
    kind = squeeze_name(c.model_type)
    fields = common_fields(c)
    layers = fields["layers"]
    if kind == "starcoder2" and not c.said("tie_word_embeddings"):
        raise c.unsaid("tie_word_embeddings")
    if kind.startswith("gemma") and not c.said("head_dim"):
        raise c.unsaid("head_dim")
    base = grouped_heads(c)
    c.any("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "rope_scaling")
    c.any("no_rope_layers", "no_rope_layer_interval", "residual_dropout", "mscale_all_dim")
    c.any("attention_out_bias", "use_parallel_residual", "norm_elementwise_affine", "norm_eps", "attn_bias")
    c.any("use_parallel_block", "use_parallel_embedding", "use_embedding_sharing", "rotary_pct", "layer_switch")
    c.any("order_of_interleaved_layers", "sliding_window_size", "norm_epsilon", "activation_function")
    c.any("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights", "vision_token_id")
    c.any("vision_start_token_id", "vision_end_token_id")
    gated = c.flag("use_gated_activation") is not False and kind not in _UNGATED
    gated = c.chosen("mlp_type", {"gated": True, "default": False}, gated)
    if c.flag("use_cla"):
        raise SpecError(f"{c.path}: use_cla = true: caches shared between layers are not counted")
    uses, window = c.flag("use_sliding_window"), c.whole("sliding_window", least=0)
    full, first = every_full(c, layers, _PATTERNS.get(kind)), c.whole("max_window_layers", least=0)
    if uses is False or not window or ("layer_types" in c.keys and not c.said("sliding_window")):
        if full is not None and len(full) < layers and "layer_types" in c.keys:
            raise SpecError(f"{c.path}: layer_types has sliding_attention, and no sliding_window is used")
        window = None
    elif full is None:
        full = list(range(min(first, layers))) if uses and first is not None else []
        if not full and not _is_shorter(c, window):
            window = None
    attention = with_window(c, base, full or [], layers, window) if window else base
    width = c.size("intermediate_size", "ffn_hidden_size")
    return fields | one_expert(layers, width, gated) | {"attention": attention}


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
    wanted = squeeze_name(model_type)
    for reader, names in FAMILIES.items():
        if any(squeeze_name(name) == wanted for name in names):
            return reader
    return None


def as_others(c: ConfigKeys) -> Fields:
    """Reads a type that is not known by the keys that most files have. The result is approximate."""
    if not c.has_experts:
        return _dense(c)
    fields = common_fields(c) | expert_fields(c, ("moe_intermediate_size", "intermediate_size"))
    fields |= shared_experts(c, "shared_expert_intermediate_size")
    ids = after_dense(c, fields["layers"])
    attention = latent_heads(c) if c.said("kv_lora_rank") else grouped_heads(c)
    return with_experts(c, ids, fields, "intermediate_size") | {"attention": attention}

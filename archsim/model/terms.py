"""Keys of a ``config.json`` and words for them that are no keys of a model file: what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

IMPORT = "or make the file from a config.json: `archsim new --from config.json`"
_ATTENTION = (
    "attention is a mapping: attention: {heads: 64, kv_heads: 8, head_dim: 128}, or of MLA "
    "{heads: 128, kv_lora_rank: 512, ...}"
)
_ROWS: tuple[tuple[str, str], ...] = (
    ("num_hidden_layers n_layers num_layers n_layer depth", f"write layers, {IMPORT}"),
    ("num_experts n_routed_experts num_local_experts moe_num_experts n_experts", f"write experts, {IMPORT}"),
    ("num_experts_per_tok num_experts_per_token moe_top_k moe_topk topk k experts_per_token", f"write top_k, {IMPORT}"),
    ("hidden_size d_model n_embd dim", f"write hidden, {IMPORT}"),
    ("moe_intermediate_size expert_ffn_hidden_size expert_intermediate_size", f"write expert_ffn, {IMPORT}"),
    (
        "intermediate_size ffn ffn_dim ffn_size d_ff",
        f"write expert_ffn for the width of an expert, dense_ffn for that of dense layers, {IMPORT}",
    ),
    ("n_shared_experts num_shared_experts", f"write shared_experts, {IMPORT}"),
    ("shared_expert_intermediate_size", f"write shared_ffn, {IMPORT}"),
    (
        "num_attention_heads n_heads num_heads num_key_value_heads heads kv_heads head_dim q_lora_rank kv_lora_rank "
        "mla gqa rope rope_theta",
        f"{_ATTENTION}, {IMPORT}",
    ),
    ("vocab_size", f"write vocabulary, {IMPORT}"),
    ("max_position_embeddings max_seq_len max_model_len context context_length", f"write positions, {IMPORT}"),
    (
        "first_k_dense_replace moe_layer_freq decoder_sparse_step mlp_only_layers",
        f"write moe_layers: {{first: 3, last: 60}}, {IMPORT}",
    ),
    ("n_group topk_group", f"write expert_groups and top_groups, {IMPORT}"),
    ("num_nextn_predict_layers mtp nextn", f"write mtp_layers, {IMPORT}"),
    (
        "dtype torch_dtype quantization quantization_config precision params parameters weights",
        "a model file has sizes in elements; write precision: {products: fp8_block, experts: nvfp4} in what runs it",
    ),
)
TERMS: Mapping[str, str] = MappingProxyType({term: way for terms, way in _ROWS for term in terms.split()})

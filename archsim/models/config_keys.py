"""The keys of a ``config.json``: read with their types, and remembered, so that what nobody read can be refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archsim.base.errors import SpecError
from archsim.specs.model import MOST_LAYERS

# Keys that change neither attention, experts, layers nor parameters by 0.1 %: names, tokens, initial values, dropout,
# training, positions, norms' epsilon, activation limits, scores of routers, number formats, and MTP, which is counted
# nowhere (its layers are extra).
HARMLESS = frozenset(
    """_name_or_path architectures model_type auto_map transformers_version torch_dtype dtype name_or_path id2label
    label2id     bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id image_token_id
    video_token_id im_start_id im_end_id hidden_act hidden_activation initializer_range attention_dropout dropout
    hidden_dropout resid_dropout resid_pdrop embd_pdrop embedding_dropout output_dropout emb_pdrop mlp_dropout
    max_position_embeddings initial_context_length max_model_len max_seq_len max_length rope_theta rope_scaling
    rope_parameters rope_type rotary_dim rope_interleave rope_local_base_freq global_rope_theta local_rope_theta
    partial_rotary_factor original_max_position_embeddings rope_ratio rotary_base position_embedding_type
    compress_rope_theta indexer_rope_interleave num_logits_to_keep logits_to_keep num_key_value_groups
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps layernorm_epsilon use_cache use_rmsnorm use_qk_norm
    qk_norm_type qk_norm use_qkv_bias use_bias attention_bias add_qkv_bias qkv_bias mlp_bias lm_head_bias use_rope
    output_router_logits output_attentions output_hidden_states router_aux_loss_coef aux_loss_alpha aux_loss_coef
    router_z_loss_coef seq_aux norm_topk_prob routed_scaling_factor scoring_func score_function topk_method
    router_jitter_noise input_jitter_noise router_dtype moe_router_dtype router_bias use_routing_bias
    moe_router_enable_expert_bias moe_router_use_sigmoid moe_router_topk_scaling_factor moe_router_activation_func
    moe_router_score_function moe_renormalize use_grouped_topk use_expert_bias num_experts_per_tok_scale
    moe_use_aux_free moe_capacity moe_gate moe_gate_act moe_norm_min moe_multimodal_dispatch_use_allgather
    moe_layer_interval_loss ep_size pretraining_tp tensor_parallel_degree quantization_config compression_config
    expert_dtype ms_scale mscale swiglu_limit swiglu_alpha num_nextn_predict_layers use_mtp mtp_transformer_layers
    num_mtp_modules mtp_num_hidden_layers mtp_use_dedicated_embeddings mtp_num_layers mtp_loss_scaling_factor
    mtp_replicate_modules mtp_hybrid_override_pattern mtp_layers_block_type keep_mtp_layers attn_implementation
    _attn_implementation attn_scale attn_temperature_tuning floor_scale for_llm_compressor cache_implementation
    chunk_size mamba_chunk_size mamba_conv_bias use_conv_bias mamba_proj_bias mamba_hidden_act mamba_act
    use_mamba_kernels time_step_floor time_step_limit time_step_max time_step_min time_step_rank
    mamba_inner_layernorms residual_in_fp32 rescale_prenorm_residual layernorm_full_attention_alpha
    layernorm_full_attention_beta layernorm_linear_attention_alpha layernorm_linear_attention_beta
    layernorm_mlp_alpha layernorm_mlp_beta postnorm full_attn_alpha_factor full_attn_beta_factor
    linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor embedding_multiplier
    attention_multiplier residual_multiplier logits_scaling init_method normalization_function hc_eps
    hc_sinkhorn_iters num_hash_layers clip_qkv z_loss_coef max_window_layers_note mla_scale_q_lora mla_scale_kv_lora
    mla_use_nope attention_method routed_scaling norm_type use_rms_norm rmsnorm_eps use_gemma_norm
    weight_init tokenizer_class vision_config audio_config language_model_only moe_shared_expert_overlap
    use_aux_loss_free router_scale rounter_params_dtype params_dtype moe_impl use_grouped_mm
    moe_dropout_prob moe_lambda moe_orthogonal_loss_lambda norm_before_gate image_token_index bias
    projector_hidden_act mm_projector_type is_decoder is_encoder_decoder tf_legacy_loss pruned_heads torchscript
    return_dict problem_type task_specific_params calc_logits_for_entire_prompt num_nextn_layers nextn_use_scmoe
    moe_random_routing_dropped_token sandwich_norm group_max_len text_start_id text_end_id pad_id eod_token_id
    mask_init_id sep_id org_vocab_size cla_share_factor max_window_layers
    add_cross_attention chunk_size_feed_forward length_penalty num_beams num_beam_groups temperature top_k top_p
    typical_p repetition_penalty num_return_sequences diversity_penalty encoder_no_repeat_ngram_size min_length
    no_repeat_ngram_size early_stopping do_sample finetuning_task remove_invalid_values prefix suppress_tokens
    begin_suppress_tokens bad_words_ids cross_attention_hidden_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id output_scores return_dict_in_generate tie_encoder_decoder use_bfloat16
    model_max_length output_gate_type hidden_dropout_prob attention_probs_dropout_prob compression_ratio
    fuse_softmax_mask fuse_linear sequence_parallel micro_batch_size rope_reorder ignored_index norm_head
    norm_softmax class_num dense_list num_media_embeds pool_type use_rotary_pos_emb router_aux_loss_weight
    norm_dropout language_model_type rotary_type
    use_mambapy use_associative_scan router_scaling_factor enable_moe_fp32_combine attention_projection_layout
    hybrid_block_size kv_cache_dtype kv_cache_quant_algo""".split()
)


class ConfigKeys:
    """The keys of one configuration; every key that is asked for counts as read."""

    def __init__(self, path: Path, keys: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> None:
        """``outer``: of the file around a language model's own keys, which may say whether embeddings are tied."""
        self.path, self.keys, self.outer = path, keys, outer or {}
        self._read: set[str] = set()

    @property
    def model_type(self) -> str:
        """That of the file; without one, from the name of its architecture. Empty if it has neither."""
        if kind := self.keys.get("model_type"):
            return str(kind)
        named = self.keys.get("architectures") or self.outer.get("architectures") or [""]
        return str(named[0]).removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")

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

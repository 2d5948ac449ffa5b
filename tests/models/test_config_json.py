"""Models from Hugging Face's ``config.json``: the keys of every family give the shipped model."""

import csv
import json
from pathlib import Path

import pytest
from support.shared import shared_path

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.models.config_json import import_config, write_model
from archsim.runs.notes import memory_notes
from archsim.specs.deployment import Parallelism, refuse_uneven
from archsim.specs.library import load_model

DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
    "num_local_experts": 32, "experts_per_token": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
}  # fmt: skip
LLAMA_4 = {
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "interleave_moe_layer_step": 2, "hidden_size": 5120,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 128, "num_experts_per_tok": 1,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192,
        "no_rope_layers": [1, 1, 1, 0] * 12, "vocab_size": 202048,
    },
}  # fmt: skip
QWEN_3 = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
    "num_experts_per_tok": 8, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {"deepseek-v3": DEEPSEEK, "gpt-oss-20b": GPT_OSS, "llama-4-maverick": LLAMA_4, "qwen3-235b-a22b": QWEN_3}


def written(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_gives_the_shipped_model(name, tmp_path):
    found = import_config(written(tmp_path, FAMILIES[name]), name)
    left_out = {"source", "aliases", "positions", "extended_positions"}  # which these configurations leave out
    assert found.model_dump(exclude=left_out) == load_model(name).model_dump(exclude=left_out)


def test_the_command_writes_a_model_that_checks(tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    config = written(tmp_path, QWEN_3 | {"_name_or_path": "Qwen/Qwen3-235B-A22B"})
    assert main(["model", "import", str(config), "--out", str(out)]) == 0
    assert main(["check", str(out)]) == 0
    assert "235.1 billion parameters" in capsys.readouterr().out
    assert "name: qwen3-235b-a22b" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "llama", "hidden_size": 4096}, "does not say num_hidden_layers"),
    (QWEN_3 | {"num_experts_per_tok": None}, "does not say top_k. Give --top-k"),
    (QWEN_3 | {"num_experts_per_tok": 200}, "top_k: Value error, 200 experts per token exceed"),
    (QWEN_3 | {"num_attention_heads": "many"}, "num_attention_heads is 'many'; expected a whole"),
    ([1], "expected an object"),
])
def test_what_cannot_be_a_model_is_told(config, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        import_config(written(tmp_path, config))


def test_layers_that_are_not_evenly_spaced_are_listed(tmp_path):
    model = import_config(written(tmp_path, QWEN_3 | {"mlp_only_layers": [3]}))
    assert model.moe_layer_ids == tuple(layer for layer in range(94) if layer != 3)
    assert model.dense_layers == 1 and model.dense_ffn == 12288


def test_a_known_type_gets_no_note(tmp_path, capsys):
    assert main(["model", "import", str(written(tmp_path, QWEN_3)), "--out", str(tmp_path / "mine.yaml")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "minimax_m9"}, "model_type 'minimax_m9' is not known"),
    ({"zero_expert_num": 64}, "zero_expert_num = 64 is not read"),
    ({"moe_latent_size": 1024}, "moe_latent_size = 1024 is not read"),
    ({"cross_layer_kv": {"share": 2}}, 'cross_layer_kv = {"share": 2} is not read'),
])
def test_what_nothing_reads_is_refused_by_name_or_noted(config, said, tmp_path, capsys):
    path, out = written(tmp_path, QWEN_3 | config), tmp_path / "mine.yaml"
    assert main(["model", "import", str(path), "--out", str(out)]) != 0
    assert said in capsys.readouterr().err and not out.exists()
    assert main(["model", "import", str(path), "--out", str(out), "--accept-approximate"]) == 0
    printed = capsys.readouterr()
    assert f"approximate: {said}" in printed.err and f"approximate: {said}" in printed.out
    assert load_model(out).approximate[0] == said


@pytest.mark.parametrize(("config", "said"), [
    ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 40}, None),
    ({"layer_types": ["full_attention"] * 94}, None),
])
def test_windows_by_layer(config, said, tmp_path):
    model = import_config(written(tmp_path, QWEN_3 | config))
    windowed = 54 if config.get("use_sliding_window") else 0
    assert sum(layers for kind, layers in model.attention_layers if kind.window) == windowed


KIMI_LINEAR = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "intermediate_size": 9216,
    "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 32, "num_key_value_heads": 32,
    "head_dim": 72, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "mla_use_nope": True, "vocab_size": 163840, "tie_word_embeddings": False,
    "num_expert_group": 1, "topk_group": 1,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [each for each in range(1, 28) if each % 4 and each != 27],
    },
}  # fmt: skip
GLM_5 = {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
    "vocab_size": 154880, "tie_word_embeddings": False, "head_dim": 64,
}  # fmt: skip
QWEN_3_5 = {
    "model_type": "qwen3_5_moe", "tie_word_embeddings": False, "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 60, "hidden_size": 4096, "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024, "num_experts": 512, "num_experts_per_tok": 10,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "attn_output_gate": True,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 15,
        "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "vocab_size": 248320,
    },
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "num_hidden_layers": 72, "expert_layer_period": 2, "expert_layer_offset": 1,
    "attn_layer_period": 8, "attn_layer_offset": 4, "hidden_size": 8192, "intermediate_size": 24576, "num_experts": 16,
    "num_experts_per_tok": 2, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 65536,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 512,
}  # fmt: skip
GRANITE = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096, "intermediate_size": 768,
    "shared_intermediate_size": 1536, "num_local_experts": 72, "num_experts_per_tok": 10, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 100352, "tie_word_embeddings": True, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
}  # fmt: skip
ERNIE = {
    "model_type": "ernie4_5_moe", "num_hidden_layers": 54, "hidden_size": 8192, "intermediate_size": 28672,
    "moe_intermediate_size": 3584, "moe_num_experts": 64, "moe_k": 8, "moe_num_shared_experts": 0,
    "moe_layer_start_index": 3, "moe_layer_end_index": 53, "moe_layer_interval": 1, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 103424, "tie_word_embeddings": False, "use_bias": False,
}  # fmt: skip
SUPER = {
    "model_type": "nemotron_h", "num_hidden_layers": 88, "hidden_size": 4096, "intermediate_size": 2688,
    "hybrid_override_pattern": "MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME",
    "moe_intermediate_size": 2688, "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376,
    "n_routed_experts": 512, "num_experts_per_tok": 22, "n_shared_experts": 1, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072,
    "mlp_hidden_act": "relu2", "tie_word_embeddings": False, "n_group": 1, "topk_group": 1, "expand": 2,
}  # fmt: skip
LONGCAT_LITE = {
    "architectures": ["LongcatFlashNgramForCausalLM"], "num_layers": 14, "hidden_size": 3072, "ffn_hidden_size": 6144,
    "expert_ffn_hidden_size": 1024, "n_routed_experts": 256, "zero_expert_num": 128, "zero_expert_type": "identity",
    "moe_topk": 12, "num_attention_heads": 32, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072, "ngram_vocab_size_ratio": 78,
    "emb_neighbor_num": 4, "emb_split_num": 4,
}  # fmt: skip
V4_PRO = {
    "model_type": "deepseek_v4", "num_hidden_layers": 61, "hidden_size": 7168, "moe_intermediate_size": 3072,
    "n_routed_experts": 384, "num_experts_per_tok": 6, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1536, "o_lora_rank": 1024, "o_groups": 16,
    "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 1024, "sliding_window": 128,
    "compress_ratios": [128, 128, *([4, 128] * 29), 4, 0], "hc_mult": 4, "vocab_size": 129280,
}  # fmt: skip
M3_TEXT = {
    "moe_layer_freq": [0] * 3 + [1] * 57, "moe_intermediate_size": 3072, "n_shared_experts": 1,
    "num_hidden_layers": 60, "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072, "num_local_experts": 128, "num_experts_per_tok": 4, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 200064,
    "sparse_attention_config": {
        "sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128, "sparse_topk_blocks": 16,
        "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_disable_index_value": [0] * 3 + [1] * 57,
    },
}  # fmt: skip
M3_NVFP4 = {  # its text has no type of its own
    "model_type": "minimax_m3_vl", "text_config": M3_TEXT, "vision_config": {"hidden_size": 1280},
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}  # fmt: skip
GLM_5_2 = GLM_5 | {
    "index_topk_freq": 4, "index_skip_topk_offset": 3, "index_share_for_mtp_iteration": True,
    "indexer_types": ["shared" if layer > 2 and (layer - 2) % 4 else "full" for layer in range(78)],
}  # fmt: skip
KIMI_K3 = {
    "model_type": "kimi_k3", "text_config": {
        "model_type": "kimi_linear", "num_hidden_layers": 93, "hidden_size": 7168, "intermediate_size": 33792,
        "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True,
        "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_use_nope": True, "mla_use_output_gate": True, "vocab_size": 163840,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93], "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4,
            "kda_layers": [each for each in range(1, 93) if each % 4], "gate_lower_bound": -5.0,
        },
    },
}  # fmt: skip
GEMMA_4 = {
    "model_type": "gemma4", "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112,
        "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8, "enable_moe_block": True,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
        "global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024, "vocab_size": 262144,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    },
}  # fmt: skip
LFM2 = {
    "model_type": "lfm2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 7168,
    "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
    "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "vocab_size": 65536,
    "layer_types": ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
}  # fmt: skip
TRINITY = {
    "model_type": "afmoe", "num_hidden_layers": 32, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 1024, "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "num_dense_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "n_group": 1,
    "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1, "global_attn_every_n_layers": 4,
    "sliding_window": 2048, "mup_enabled": True, "route_norm": True, "route_scale": 2.8, "score_func": "sigmoid",
    "vocab_size": 200192,
}  # fmt: skip
STEP = {
    "model_type": "step3p7", "text_config": {
        "model_type": "step3p5", "num_hidden_layers": 45, "hidden_size": 4096, "intermediate_size": 11264,
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "moe_layers_enum": ",".join(map(str, range(3, 45))), "num_attention_heads": 64, "num_attention_groups": 8,
        "head_dim": 128, "sliding_window": 512, "vocab_size": 128896, "use_head_wise_attn_gate": True,
        "layer_types": ["sliding_attention" if layer % 4 else "full_attention" for layer in range(48)],
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
        },
    },
}  # fmt: skip
LAGUNA = {
    "model_type": "laguna", "num_hidden_layers": 48, "hidden_size": 3072, "intermediate_size": 12288,
    "num_experts": 256, "num_experts_per_tok": 10, "moe_intermediate_size": 1024, "gating": "per-head",
    "shared_expert_intermediate_size": 1024, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
    "sliding_window": 512, "vocab_size": 100352, "mlp_layer_types": ["dense"] + ["sparse"] * 47,
    "layer_types": ["sliding_attention" if layer % 4 else "full_attention" for layer in range(48)],
    "num_attention_heads_per_layer": [72 if layer % 4 else 48 for layer in range(48)], "mlp_only_layers": [0],
}  # fmt: skip
DEEPSEEK_MOE = {
    "model_type": "deepseek", "num_hidden_layers": 28, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 16, "num_key_value_heads": 16,
    "vocab_size": 102400,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
        "vocab_size": 262208, "query_pre_attn_scalar": 168,
    },
}  # fmt: skip
QWEN_2_5 = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
QWEN_3_5_DENSE = {
    "model_type": "qwen3_5", "text_config": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17408,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": True,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "vocab_size": 248320,
    },
}  # fmt: skip
LFM2_DENSE = {
    "model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "block_ff_dim": 12288, "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "vocab_size": 65536,
    "num_attention_heads": 32, "num_key_value_heads": 8, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip
COMMAND_A = {
    "model_type": "cohere2", "num_hidden_layers": 64, "hidden_size": 12288, "intermediate_size": 36864,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096, "layer_switch": 4,
    "use_gated_activation": True, "use_parallel_block": True, "max_position_embeddings": 131072, "vocab_size": 256000,
}  # fmt: skip
PHI_3 = {
    "model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047, "max_position_embeddings": 4096,
    "vocab_size": 32064, "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON_4 = {
    "model_type": "nemotron", "num_hidden_layers": 96, "hidden_size": 18432, "intermediate_size": 73728,
    "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "relu2", "vocab_size": 256000,
    "tie_word_embeddings": False,
}  # fmt: skip
# Total and used by a token, in 1e9: model cards; of Kimi-Linear and V4-Pro the checkpoint; LongCat-Flash-Lite uses 2.9
# to 4.5. Bytes a token kept for good and of state a request: by hand.
CARDS = {
    "kimi-linear": (KIMI_LINEAR, 49.1, 3.0, 7 * 1152, 20 * (3 * 4096 * 3 * 2 + 4096 * 128 * 4)),
    "glm-5": (GLM_5, 744, 40, 78 * (1152 + 132), 0),
    "qwen3.5": (QWEN_3_5, 397, 17, 15 * 2048, 45 * (12288 * 3 * 2 + 64 * 128 * 128 * 4)),
    "jamba-1.5-large": (JAMBA, 398, 94, 9 * 4096, 63 * 16384 * (3 * 2 + 16 * 2)),
    "granite-4.0-h-small": (GRANITE, 32.2, 9, 4 * 4096, 36 * (8448 * 3 * 2 + 8192 * 128 * 2)),
    "ernie-4.5": (ERNIE, 300, 47, 54 * 4096, 0),
    "nemotron-3-super": (SUPER, 120.6, 12.5, 8 * 1024, 40 * (10240 * 3 * 2 + 8192 * 128 * 4)),
    "longcat-flash-lite": (LONGCAT_LITE, 68.5, 3.9, 28 * 1152, 0),
    "minimax-m3-nvfp4": (M3_NVFP4, 426.2, 24.7, 60 * 2048 + 57 * 256, 0),
    "glm-5.2": (GLM_5_2, 743.4, 40.3, 78 * 1152 + 21 * 132, 0),
    "kimi-k3": (KIMI_K3, 2780, 98, 24 * 1152, 69 * (96 * 128 * 128 * 4 + 3 * 12288 * 3 * 2)),
    "gemma-4-26b": (GEMMA_4, 25.23, 3.82, 5 * 2 * 1024 * 2, 0),
    "lfm2-8b": (LFM2, 8.34, 1.56, 6 * 2048, 18 * 2048 * 2 * 2),
    "trinity-mini": (TRINITY, 26.1, 3.0, 8 * 2048, 0),
    "step-3.5-flash": (STEP, 196.8, 11, 12 * 4096, 0),
    "laguna-s": (LAGUNA, 117.6, 8, 12 * 4096, 0),
    "deepseek-moe-16b": (DEEPSEEK_MOE, 16.4, 2.6, 28 * 8192, 0),
    "llama-3.1-70b": (LLAMA, 70.55, 69.5, 327_680, 0),
    "gemma-3-27b": (GEMMA_3, 27.0, 27.0, 10 * 8192, 0),
    "qwen2.5-7b": (QWEN_2_5, 7.6, 7.1, 28 * 2048, 0),
    "lfm2-1.2b": (LFM2_DENSE, 1.17, 1.17, 6 * 2048, 10 * 2048 * 2 * 2),
    "command-a": (COMMAND_A, 111, 111, 16 * 4096, 0),
    "phi-3-mini-4k": (PHI_3, 3.82, 3.72, 0, 0),
    "nemotron-4-340b": (NEMOTRON_4, 341, 336, 96 * 6144, 0),
    "qwen3.5-27b": (QWEN_3_5_DENSE, 27, 25.7, 16 * 4096, 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)),
    "deepseek-v4-pro": (V4_PRO, 1573, 49, 30 * (1024 + 132) / 4 + 31 * 1024 / 128, 0),
}


@pytest.mark.parametrize("name", CARDS)
def test_other_families_give_what_their_cards_say(name, tmp_path):
    config, total, active, kept_bytes, state_bytes = CARDS[name]
    model = import_config(written(tmp_path, config), name)
    assert (model.kept_bytes_per_token(), model.state_bytes) == (kept_bytes, state_bytes)
    assert model.all_weights / 1e9 == pytest.approx(total, rel=0.01)
    assert model.active_weights / 1e9 == pytest.approx(active, rel=0.06)
    again = tmp_path / f"{name}.yaml"
    write_model(model, again)
    assert load_model(again).all_weights == model.all_weights and load_model(again).state_bytes == model.state_bytes


# The same models as newer versions of transformers write them: kinds by layer under other names, no nested keys.
NATIVE = {
    "glm-5": {
        "layer_types": ["indexed_attention"] * 78, "indexer_types": ["full"] * 78, "moe_layer_freq": None,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
    },
    "kimi-linear": {
        "linear_attn_config": None, "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4,
        "layer_types": ["full_attention" if at % 4 == 0 or at == 27 else "linear_attention" for at in range(1, 28)],
    },
    "granite-4.0-h-small": {
        "layer_types": ["full_attention" if at in (5, 15, 25, 35) else "linear_attention" for at in range(40)],
    },
    "deepseek-v4-pro": {
        "compress_ratios": None, "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 58,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "layer_types": ["heavily_compressed_attention"] * 2
        + ["compressed_sparse_attention", "heavily_compressed_attention"] * 29 + ["compressed_sparse_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_kinds_by_layer_under_their_newer_names_are_the_same_model(name, tmp_path):
    published = import_config(written(tmp_path, CARDS[name][0]), name)
    native = {key: value for key, value in (CARDS[name][0] | NATIVE[name]).items() if value is not None}
    assert import_config(written(tmp_path, native), name) == published


M3 = {
    "model_type": "minimax_m3", "num_hidden_layers": 60, "hidden_size": 6144, "intermediate_size": 3072,
    "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "num_local_experts": 128,
    "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 200064, "moe_layer_freq": [0] * 3 + [1] * 57,
    "sparse_attention_config": {
        "sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128, "sparse_topk_blocks": 16,
        "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_disable_index_value": [0] * 3 + [1] * 57,
    },
}  # fmt: skip


def test_blocks_that_an_indexer_chooses_are_imported(tmp_path):
    model = import_config(written(tmp_path, M3), "m3")
    assert model.kept_bytes_per_token() == 60 * 2048 + 57 * 256
    assert [(kind.kind, layers) for kind, layers in model.attention_layers] == [("grouped", 3), ("block_sparse", 57)]
    assert model.attention_layers[1][0].index_topk == 2048 and model.dense_layers == 3


def test_indexers_that_are_shared_are_derived_where_they_are_not_listed(tmp_path):
    listed = import_config(written(tmp_path, GLM_5_2), "glm")
    spaced = {key: value for key, value in GLM_5_2.items() if key != "indexer_types"}
    assert import_config(written(tmp_path, spaced), "glm") == listed


def test_experts_on_latent_vectors_are_served_and_not_run_by_the_engine(tmp_path):
    model = import_config(written(tmp_path, KIMI_K3), "kimi-k3")
    refuse_uneven(model, Parallelism())
    assert model.unmodelled_experts == ("expert_hidden",) and model.expert_width < model.hidden


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-32b"])
def test_a_dense_config_gives_the_shipped_model(name, tmp_path):
    qwen = LLAMA | {
        "model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600,
        "head_dim": 128, "vocab_size": 151936, "max_window_layers": 64, "use_sliding_window": False,
    }  # fmt: skip
    found = import_config(written(tmp_path, LLAMA if name.startswith("llama") else qwen), name)
    left_out = {"source", "aliases", "positions", "extended_positions"}
    assert found.model_dump(exclude=left_out) == load_model(name).model_dump(exclude=left_out)


@pytest.mark.parametrize(("base", "changed", "said"), [
    (GLM_5_2, {"index_topk_freq": 3}, "expected the same layers"),
    (M3_TEXT, {"model_type": "minimax_m3", "moe_intermediate_size": 1024}, "expected the same width of an expert"),
    (LLAMA, {"model_type": "gemma2", "sliding_window": 4096}, "does not say head_dim"),
    (LLAMA, {"model_type": "mistral", "layer_types": ["sliding_attention"] * 80}, "no sliding_window is used"),
    (GEMMA_4["text_config"], {"num_kv_shared_layers": 20}, "num_kv_shared_layers = 20: .*not counted"),
    (STEP["text_config"], {"moe_layers_enum": "all"}, "moe_layers_enum is 'all'; expected numbers of layers"),
    (QWEN_3, {"layer_types": ["linear_attention"] * 94}, "layer_types has linear_attention"),
    (LLAMA_4["text_config"], {"no_rope_layers": [0] * 5}, "no_rope_layers has 5 layers of 48"),
    (QWEN_3, {"layer_types": ["full_attention"] * 9}, "layer_types has 9 layers of 94"),
    (QWEN_3, {"layer_types": ["sliding_attention"] * 94}, "no sliding_window is used"),
    (GLM_5, {"mlp_layer_types": ["banded"] * 78}, "mlp_layer_types has banded"),
    (M3, {"sparse_attention_config": {"sparse_attention_freq": [1] * 6}}, "which of 60 layers choose"),
    ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, {}, "model_type 'dbrx' is not known"),
    ({"model_type": "step3_text", "moe_num_experts": 48}, {}, "model_type 'step3_text' is not known"),
])
def test_kinds_of_layers_that_no_reader_knows_are_refused(base, changed, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        import_config(written(tmp_path, base | changed))


def truth():
    folder = shared_path() / "data" / "models"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: the configurations and their truth are not part of the repository")
    with (folder / "truth.csv").open(encoding="utf-8") as stream:
        return folder, list(csv.DictReader(stream))


def test_fifteen_published_models_within_a_thousandth():
    """Bytes to the byte; parameters lack norms, biases and sinks."""
    folder, rows = truth()
    for row in rows:
        model = import_config(folder / Path(row["file"]).name)
        windowed = model.kv_bytes_per_token() - model.kept_bytes_per_token()
        assert model.kept_bytes_per_token() == int(row["kv_bytes_per_token_bf16_unwindowed"]), row["name"]
        assert windowed == int(row["kv_bytes_per_token_windowed_layers"]), row["name"]
        assert model.state_bytes == int(row["state_bytes_per_request"]), row["name"]
        assert model.all_weights == pytest.approx(int(row["total_params"]), rel=1e-3), row["name"]
        assert model.active_weights == pytest.approx(int(row["active_params"]), rel=1e-3), row["name"]


def test_a_page_says_what_is_not_modelled():
    rows = [{"model": "a", "approximate": "x = 1 is not read"}, {"model": "b", "approximate": None}]
    assert memory_notes(rows) == ["The model a is approximate: x = 1 is not read."]


@pytest.mark.parametrize(("scaling", "positions"), [
    ({}, 4096), ({"max_position_embeddings": 8192, "model_max_length": 6000}, 6000),
    ({"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 163840),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 2048}, 8192),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 8192),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}}, 4096),
    ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 4096),
])  # fmt: skip
def test_positions_follow_from_embeddings_and_scaling(scaling, positions):
    from archsim.models.config_json import ConfigKeys, _positions

    assert _positions(ConfigKeys(Path("c"), {"max_position_embeddings": 4096} | scaling)) == positions

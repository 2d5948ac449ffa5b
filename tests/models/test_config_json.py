"""Models from Hugging Face's ``config.json``: the keys of every family give the shipped model."""

import json

import pytest

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.models.config_import import import_config
from archsim.specs.loading.library import load_model

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
    left_out = {"source", "aliases"}
    assert found.model_dump(exclude=left_out) == load_model(name).model_dump(exclude=left_out)


def test_the_command_writes_a_model_that_checks(tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    config = written(tmp_path, QWEN_3 | {"_name_or_path": "Qwen/Qwen3-235B-A22B"})
    assert main(["model", "import", str(config), "--out", str(out)]) == 0
    assert main(["check", str(out)]) == 0
    assert "235.1 billion parameters" in capsys.readouterr().out
    assert "name: qwen3-235b-a22b" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama", "hidden_size": 4096}, "no experts"),
        (QWEN_3 | {"num_experts_per_tok": None}, "does not say top_k; give --top-k"),
        (QWEN_3 | {"num_experts_per_tok": 200}, "top_k: Value error, 200 experts per token exceed"),
        (QWEN_3 | {"num_attention_heads": "many"}, "num_attention_heads is 'many'; expected a whole"),
        ([1], "expected an object"),
    ],
)
def test_what_cannot_be_a_model_is_told(config, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        import_config(written(tmp_path, config))


def test_uneven_layers_are_not_guessed(tmp_path):
    uneven = QWEN_3 | {"mlp_only_layers": [3]}
    with pytest.raises(SpecError, match="does not say moe_layers; give --moe-layers"):
        import_config(written(tmp_path, uneven))


JAMBA = {
    "model_type": "jamba", "num_hidden_layers": 32, "expert_layer_period": 2, "expert_layer_offset": 1,
    "attn_layer_period": 8, "attn_layer_offset": 4, "hidden_size": 4096, "intermediate_size": 14336, "num_experts": 16,
    "num_experts_per_tok": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
}  # fmt: skip


def test_a_type_that_is_not_known_is_read_with_a_note(tmp_path, capsys):
    config, out = written(tmp_path, JAMBA), tmp_path / "mine.yaml"
    assert main(["model", "import", str(config), "--out", str(out)]) == 0
    told = capsys.readouterr().err
    assert "model_type 'jamba' is not among those known" in told and "only some layers have attention" in told
    model = load_model(out)
    assert model.moe_layer_ids == tuple(range(1, 32, 2)) and model.attention is None


def test_a_known_type_gets_no_note(tmp_path, capsys):
    assert main(["model", "import", str(written(tmp_path, QWEN_3)), "--out", str(tmp_path / "mine.yaml")]) == 0
    assert capsys.readouterr().err == ""

"""Attention geometry of models: published parameter counts, hand cases of the KV cache, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsim.base.errors import SpecError
from archsim.models.files import write_model
from archsim.specs.describe import summary
from archsim.specs.library import load_model
from archsim.specs.model import read_kind

# Published parameters in 1e9. Model cards on Hugging Face; of Kimi-K2 its safetensors index (its report has 1.04 T).
# None counts heads of multi-token prediction but GLM-4.5's, whose layer is 1.4 % of it.
PUBLISHED = {
    "deepseek-v2-lite": 15.7, "deepseek-v3": 671, "deepseek-v3.2": 671.9, "glm-4.5": 355, "glm-4.5-air": 106.85,
    "glm-5": 744, "kimi-linear-48b-a3b": 49.1, "qwen3-next-80b-a3b": 79.67, "qwen3.5-397b-a17b": 397,
    "gpt-oss-20b": 20.9, "kimi-k2": 1026, "llama-4-maverick": 400, "mixtral-8x7b": 46.7, "olmoe-1b-7b": 6.92,
    "qwen1.5-moe-a2.7b": 14.3, "qwen3-235b-a22b": 235, "deepseek-v4-flash": 284,
}
GROUPED = {"heads": 8, "kv_heads": 2, "head_dim": 64}
LATENT = {"heads": 8, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_count(name):
    model = load_model(name)
    assert model.missing_geometry == ()
    assert model.all_weights == pytest.approx(PUBLISHED[name] * 1e9, rel=0.01)


@pytest.mark.parametrize(("name", "file"), [("deepseek-r1", "deepseek-v3"), ("MiniMax-M2", "minimax-m2.5")])
def test_a_model_has_its_other_names(name, file):
    assert load_model(name) == load_model(file)


def test_kv_cache_of_a_token_by_hand():
    assert load_model("deepseek-v3").kv_bytes_per_token() == (512 + 64) * 61 * 2 == 70_272
    assert load_model("qwen3-235b-a22b").kv_bytes_per_token() == 2 * 4 * 128 * 94 * 2 == 192_512
    assert load_model("qwen3-235b-a22b").kv_bytes_per_token(1) == 96_256


def test_attention_weights_of_deepseek_v3_by_hand():
    """7168·1536 + 1536·128·192 queries, 7168·576 + 512·128·256 keys and values, 128·128·7168 output; 61 layers."""
    layer = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert load_model("deepseek-v3").attention_weights == 61 * layer


def test_windowed_layers_keep_no_more_than_the_window():
    model = load_model("gpt-oss-20b")
    assert model.kv_bytes(100) == 100 * model.kv_bytes_per_token()
    assert model.kv_bytes(1128) == (12 * 1128 + 12 * 128) * (2 * 8 * 64) * 2


@given(name=st.sampled_from(sorted(PUBLISHED)), context=st.integers(0, 10**6), more=st.integers(0, 10**5))
def test_a_longer_context_never_takes_less(name, context, more):
    model = load_model(name)
    assert model.kv_bytes(context) <= model.kv_bytes(context + more) <= (context + more) * model.kv_bytes_per_token()


def test_a_model_without_geometry_is_valid_and_says_what_is_missing():
    model = load_model("deepseek-v3").model_copy(update={"attention": None, "dense_ffn": None, "vocabulary": None})
    assert model.missing_geometry == ("attention", "vocabulary", "dense_ffn")
    with pytest.raises(SpecError, match="deepseek-v3: without `attention:`"):
        model.kv_bytes_per_token()
    with pytest.raises(SpecError, match="lacks attention, vocabulary, dense_ffn"):
        _ = model.dense_weights


@pytest.mark.parametrize(("given_keys", "problem"), [
    ({"heads": 8, "kv_heads": 2}, "head_dim\n  Field required"),
    ({**LATENT, "v_head_dim": None}, "v_head_dim\n  .* expected an integer"),
    ({**LATENT, "kv_heads": 2}, "unknown key of latent attention"),
    ({**GROUPED, "kind": "groped"}, "unknown kind 'groped'; did you mean 'grouped'"),
    ({**GROUPED, "kind": "archsim.specs.model:ModelSpec"}, "is not a kind of attention"),
    ({**GROUPED, "kv_heads": 3}, "3 KV heads do not divide 8 heads"),
])
def test_refuses(given_keys, problem):
    with pytest.raises(ValueError, match=problem):
        read_kind(given_keys)


def test_check_tells_what_a_model_holds(tmp_path):
    model = load_model("deepseek-v3")
    told = "671.0 billion parameters (36.6 used by a token), KV cache of 70.3 kB a token in BF16"
    assert summary(model).endswith(told)
    bare = model.model_copy(update={"attention": None})
    assert summary(bare).endswith("without attention: of its memory, experts alone are counted")
    write_model(bare, tmp_path / "bare.yaml")
    assert load_model(str(tmp_path / "bare.yaml")).missing_geometry == ("attention",)
    write_model(model, tmp_path / "whole.yaml")
    assert load_model(str(tmp_path / "whole.yaml")).all_weights == model.all_weights

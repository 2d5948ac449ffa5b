"""Models from Hugging Face's ``config.json``: the keys of every family give the shipped model."""

import csv
import json
from pathlib import Path

import pytest
from support.shared import shared_path
from support.tables import read_beside, table_of

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.model.config_json import import_config, write_model
from archsim.model.config_keys import class_defaults, squeeze_name
from archsim.runs.notes import memory_notes
from archsim.specs.deployment import Parallelism, refuse_uneven
from archsim.specs.library import load_model

CONFIGS = read_beside(__file__, "configs.yaml")
FAMILIES = {
    "deepseek-v3": "deepseek", "gpt-oss-20b": "gpt-oss", "llama-4-maverick": "llama-4", "qwen3-235b-a22b": "qwen-3",
}  # fmt: skip


def written(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_gives_the_shipped_model(name, tmp_path):
    found = import_config(written(tmp_path, CONFIGS[FAMILIES[name]]), name)
    left_out = {
        "source",
        "aliases",
        "positions",
        "extended_positions",
        "mtp_layers",
        "kept_bf16",
    }  # which these configurations leave out
    assert found.model_dump(exclude=left_out) == load_model(name).model_dump(exclude=left_out)


ATTENTION = ("attention_inputs", "attention_output")
EXCLUDED = {  # as published: the key and kind of each list
    "nvidia/DeepSeek-R1-FP4": (
        "hf", {"quant_algo": "NVFP4"}, "exclude_modules", "model.layers.{}.self_attn*", ATTENTION,
    ),
    "its second version": (
        "hf", {"quant_algo": "NVFP4"}, "exclude_modules", "model.layers.{}.self_attn.[qk]*", ATTENTION[:1],
    ),
    "compressed-tensors": (
        "own", {"format": "pack-quantized"}, "ignore", "re:.*(self_attn|shared_experts|mlp\\.(gate_up|down)_proj)",
        (*ATTENTION, "shared_experts", "dense_ffn"),
    ),
    "of an image model": (
        "own", {"quant_algo": "NVFP4"}, "ignore", "language_model.model.layers.{}.self_attn*", ATTENTION,
    ),
    "transformers": (
        "own", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "modules_to_not_convert", "gate", (),
    ),
    "a glob of transformers": (
        "own", {"quant_method": "fp8"}, "modules_to_not_convert", "model.layers.*.self_attn", ATTENTION,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXCLUDED)
def test_what_a_checkpoint_does_not_quantise_stays_in_bf16(case, tmp_path):
    where, method, key, pattern, parts = EXCLUDED[case]
    method = method | {key: ["lm_head", *dict.fromkeys(pattern.format(layer) for layer in range(61))]}
    own = {"quantization_config": method} if where == "own" else {}
    if where == "hf":
        (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": method}), "utf-8")
    found = import_config(written(tmp_path, CONFIGS["deepseek"] | own))
    assert [each.parts for each in found.kept_bf16] == ([parts] if parts else [])


@pytest.mark.parametrize(("method", "pattern", "said"), [
    ({"quant_algo": "NVFP4"}, "*.self_attn.q_b_proj", "some modules of attention inputs"),
    ({"quant_algo": "NVFP4"}, "re:.*self_attn.kv_", "some modules of attention inputs"),
    ({"quant_method": "fp8"}, "re:.*mlp.gate_up_proj$", "some modules of dense ffn"),
    ({"quant_algo": "NVFP4"}, "re:.*mlp.gate_", "some modules of dense ffn"),
    ({"quant_method": "awq"}, "self_attn", "attention output stay in 16 bits .* kind that is not known"),
    ({"quant_method": "gptq"}, "self_attn", "attention inputs stay in 16 bits .* kind that is not known"),
    ({"quant_method": "gptq"}, "gate", ""),
    ({"quant_method": "mxfp4"}, "self_attn", ""),
])  # fmt: skip
def test_what_of_an_exclusion_cannot_be_kept_is_refused(method, pattern, said, tmp_path):
    method = method | {"modules_to_not_convert": [pattern]}
    path = written(tmp_path, CONFIGS["deepseek"] | {"quantization_config": method})
    if said:
        with pytest.raises(SpecError, match=said):
            import_config(path)
    assert not import_config(path, accept_approximate=True).kept_bf16


def test_parts_that_are_quantised_in_some_layers_alone_are_refused(tmp_path):
    method = {"quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*", "model.layers.60.self_attn*"]}
    path = written(tmp_path, CONFIGS["deepseek"] | {"quantization_config": method})
    with pytest.raises(SpecError, match="attention inputs stay in 16 bits in 2 of 61 layers, which is not supported"):
        import_config(path)
    found = import_config(path, accept_approximate=True)
    assert not found.kept_bf16 and len(found.approximate) == 2


def test_the_command_writes_a_model_that_checks(tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    config = written(tmp_path, CONFIGS["qwen-3"] | {"_name_or_path": "Qwen/Qwen3-235B-A22B"})
    assert main(["model", "import", str(config), "--out", str(out)]) == 0
    assert main(["check", str(out)]) == 0
    assert "235.1 billion parameters" in capsys.readouterr().out
    assert "name: qwen3-235b-a22b" in out.read_text(encoding="utf-8")


@table_of(__file__, "refused")
def test_what_cannot_be_a_model_is_told(family, changed, said, tmp_path):
    name, _, inner = (family or "").partition("/")
    keys = {} if family is None else CONFIGS[name][inner] if inner else CONFIGS[name]
    with pytest.raises(SpecError, match=said):
        import_config(written(tmp_path, keys | changed if isinstance(changed, dict) else changed))


def test_layers_that_are_not_evenly_spaced_are_listed(tmp_path):
    model = import_config(written(tmp_path, CONFIGS["qwen-3"] | {"mlp_only_layers": [3]}))
    assert model.moe_layer_ids == tuple(layer for layer in range(94) if layer != 3)
    assert model.dense_layers == 1 and model.dense_ffn == 12288


def test_a_known_type_gets_no_note(tmp_path, capsys):
    path = written(tmp_path, CONFIGS["qwen-3"])
    assert main(["model", "import", str(path), "--out", str(tmp_path / "mine.yaml")]) == 0
    assert capsys.readouterr().err == ""


@table_of(__file__, "not_read")
def test_what_nothing_reads_is_refused_by_name_or_noted(changed, said, tmp_path, capsys):
    path, out = written(tmp_path, CONFIGS["qwen-3"] | changed), tmp_path / "mine.yaml"
    assert main(["model", "import", str(path), "--out", str(out)]) != 0
    assert said in capsys.readouterr().err and not out.exists()
    assert main(["model", "import", str(path), "--out", str(out), "--accept-approximate"]) == 0
    printed = capsys.readouterr()
    assert f"approximate: {said}" in printed.err and f"approximate: {said}" in printed.out
    assert load_model(out).approximate[0] == said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 40}, None),
        ({"layer_types": ["full_attention"] * 94}, None),
    ],
)
def test_windows_by_layer(config, said, tmp_path):
    model = import_config(written(tmp_path, CONFIGS["qwen-3"] | config))
    windowed = 54 if config.get("use_sliding_window") else 0
    assert sum(layers for kind, layers in model.attention_layers if kind.window) == windowed


# Total and used by a token, in 1e9: model cards; of Kimi-Linear and V4-Pro the checkpoint; of Nemotron-H
# the class of transformers 5.24 on the meta device (8,100,852,736 and 1,968,355,712); LongCat-Flash-Lite uses 2.9
# to 4.5. Bytes a token kept for good and of state a request: by hand.
CARDS = {
    "kimi-linear": (CONFIGS["kimi-linear"], 49.1, 3.0, 7 * 1152, 20 * (3 * 4096 * 3 * 2 + 4096 * 128 * 4)),
    "glm-5": (CONFIGS["glm-5"], 744, 40, 78 * (1152 + 132), 0),
    "qwen3.5": (CONFIGS["qwen-3-5"], 397, 17, 15 * 2048, 45 * (12288 * 3 * 2 + 64 * 128 * 128 * 4)),
    "jamba-1.5-large": (CONFIGS["jamba"], 398, 94, 9 * 4096, 63 * 16384 * (3 * 2 + 16 * 2)),
    "granite-4.0-h-small": (CONFIGS["granite"], 32.2, 9, 4 * 4096, 36 * (8448 * 3 * 2 + 8192 * 128 * 2)),
    "ernie-4.5": (CONFIGS["ernie"], 300, 47, 54 * 4096, 0),
    "nemotron-3-super": (CONFIGS["super"], 120.6, 12.5, 8 * 1024, 40 * (10240 * 3 * 2 + 8192 * 128 * 4)),
    "nemotron-h-8b": (CONFIGS["nemotron-h"], 8.1, 7.56, 4 * 4096, 24 * (10240 * 3 * 2 + 8192 * 128 * 4)),
    "nemotron-h-of-every-kind": (CONFIGS["nemotron-h-moe"], 1.968, 1.054, 4096, 10240 * 3 * 2 + 8192 * 128 * 4),
    "longcat-flash-lite": (CONFIGS["longcat-lite"], 68.5, 3.9, 28 * 1152, 0),
    "minimax-m3-nvfp4": (CONFIGS["m3-nvfp4"], 426.2, 24.7, 60 * 2048 + 57 * 256, 0),
    "glm-5.2": (CONFIGS["glm-5-2"], 743.4, 40.3, 78 * 1152 + 21 * 132, 0),
    "kimi-k3": (CONFIGS["kimi-k3"], 2780, 98, 24 * 1152, 69 * (96 * 128 * 128 * 4 + 3 * 12288 * 3 * 2)),
    "gemma-4-26b": (CONFIGS["gemma-4"], 25.23, 3.82, 5 * 2 * 1024 * 2, 0),
    "lfm2-8b": (CONFIGS["lfm2"], 8.34, 1.56, 6 * 2048, 18 * 2048 * 2 * 2),
    "trinity-mini": (CONFIGS["trinity"], 26.1, 3.0, 8 * 2048, 0),
    "step-3.5-flash": (CONFIGS["step"], 196.8, 11, 12 * 4096, 0),
    "laguna-s": (CONFIGS["laguna"], 117.6, 8, 12 * 4096, 0),
    "deepseek-moe-16b": (CONFIGS["deepseek-moe"], 16.4, 2.6, 28 * 8192, 0),
    "llama-3.1-70b": (CONFIGS["llama"], 70.55, 69.5, 327_680, 0),
    "gemma-3-27b": (CONFIGS["gemma-3"], 27.0, 27.0, 10 * 8192, 0),
    "qwen2.5-7b": (CONFIGS["qwen-2-5"], 7.6, 7.1, 28 * 2048, 0),
    "lfm2-1.2b": (CONFIGS["lfm2-dense"], 1.17, 1.17, 6 * 2048, 10 * 2048 * 2 * 2),
    "command-a": (CONFIGS["command-a"], 111, 111, 16 * 4096, 0),
    "phi-3-mini-4k": (CONFIGS["phi-3"], 3.82, 3.72, 0, 0),
    "nemotron-4-340b": (CONFIGS["nemotron-4"], 341, 336, 96 * 6144, 0),
    "qwen3.5-27b": (CONFIGS["qwen-3-5-dense"], 27, 25.7, 16 * 4096, 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)),
    "deepseek-v4-pro": (CONFIGS["v4-pro"], 1573, 49, 30 * (1024 + 132) / 4 + 31 * 1024 / 128, 0),
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
    "glm-5.2": {"layer_types": ["deepseek_sparse_attention"] * 78},
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


def test_blocks_that_an_indexer_chooses_are_imported(tmp_path):
    model = import_config(written(tmp_path, CONFIGS["m3"]), "m3")
    assert model.kept_bytes_per_token() == 60 * 2048 + 57 * 256
    assert [(kind.kind, layers) for kind, layers in model.attention_layers] == [("grouped", 3), ("block_sparse", 57)]
    assert model.attention_layers[1][0].index_topk == 2048 and model.dense_layers == 3


def test_indexers_that_are_shared_are_derived_where_they_are_not_listed(tmp_path):
    listed = import_config(written(tmp_path, CONFIGS["glm-5-2"]), "glm")
    spaced = {key: value for key, value in CONFIGS["glm-5-2"].items() if key != "indexer_types"}
    assert import_config(written(tmp_path, spaced), "glm") == listed


def test_experts_on_latent_vectors_are_served_and_not_run_by_the_engine(tmp_path):
    model = import_config(written(tmp_path, CONFIGS["kimi-k3"]), "kimi-k3")
    refuse_uneven(model, Parallelism())
    assert model.unmodelled_experts == ("expert_hidden",) and model.expert_width < model.hidden


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-32b"])
def test_a_dense_config_gives_the_shipped_model(name, tmp_path):
    qwen = CONFIGS["llama"] | {
        "model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600,
        "head_dim": 128, "vocab_size": 151936, "max_window_layers": 64, "use_sliding_window": False,
    }  # fmt: skip
    found = import_config(written(tmp_path, CONFIGS["llama"] if name.startswith("llama") else qwen), name)
    left_out = {"source", "aliases", "positions", "extended_positions"}
    assert found.model_dump(exclude=left_out) == load_model(name).model_dump(exclude=left_out)


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


def flat(config):
    """The keys of the language model, with the type of the file around them."""
    inner = config.get("text_config", config)
    return inner if inner is config else {"model_type": config["model_type"]} | inner


def told(folder, config):
    """The model of a configuration, or what is said of it."""
    try:
        return import_config(written(folder, config), "m")
    except SpecError as error:
        return str(error)


@pytest.mark.parametrize("name", CARDS)
def test_a_key_that_is_left_out_has_the_value_of_its_class(name, tmp_path):
    """Stated with that value, it changes nothing; where no class is known, it is asked for by name."""
    config = flat(CARDS[name][0])
    given = class_defaults().get(squeeze_name(config.get("model_type") or "longcat_flash_ngram"))
    for key, value in given.values.items() if given else ():
        if key in ("mamba_d_head", "mamba_dt_rank"):
            continue
        without = {other: kept for other, kept in config.items() if other != key}
        absent, stated = told(tmp_path, without), told(tmp_path, without | {key: value})
        assert absent == stated or any(isinstance(each, str) and key in each for each in (absent, stated)), key


ODD = (-5, 2.5, "x", True, [], {"x": 1}, float("inf"), float("nan"), 10**30, [None])


@pytest.mark.parametrize("name", CARDS)
def test_a_value_that_cannot_be_is_refused_by_its_key(name, tmp_path):
    """Whatever key changes the model; one that changes nothing may have any value."""
    config = flat(CARDS[name][0])
    good = told(tmp_path, config)
    for at, key in enumerate(each for each in config if each not in ("model_type", "architectures")):
        odd, value = ODD[(at + len(name)) % len(ODD)], config[key]
        if isinstance(value, bool) and odd is True or isinstance(value, list) and odd == []:
            odd = -5
        said = told(tmp_path, config | {key: odd})
        decides = isinstance(value, int) and said != good and told(tmp_path, config | {key: 2 * value}) != good
        assert said == good or (isinstance(said, str) and key in said), (key, odd)
        assert said != good or not decides, (key, odd)


def test_a_page_says_what_is_not_modelled():
    rows = [{"model": "a", "approximate": "x = 1 is not supported"}, {"model": "b", "approximate": None}]
    assert memory_notes(rows) == ["The model a is approximate: x = 1 is not supported."]


@table_of(__file__, "positions")
def test_positions_follow_from_embeddings_and_scaling(scaling, positions):
    from archsim.model.config_json import ConfigKeys, _positions

    assert _positions(ConfigKeys(Path("c"), {"max_position_embeddings": 4096} | scaling)) == positions


def test_layers_that_draft_are_those_of_the_configuration():
    folder, _ = truth()
    for name, layers in (("DeepSeek-V3", 1), ("DeepSeek-V3.2", 1), ("GLM-4.5-Air", 1), ("MiniMax-M2.5", 3)):
        config = json.loads((folder / f"{name}.json").read_text())
        assert config.get("num_mtp_modules", config.get("num_nextn_predict_layers")) == layers
        assert load_model(name.lower()).mtp_layers == layers


@pytest.mark.parametrize(("use", "layers"), [({}, 3), ({"use_mtp": True}, 3), ({"use_mtp": False}, 0)])
def test_layers_that_draft_are_imported_and_written_where_they_are_used(use, layers, tmp_path):
    model = import_config(written(tmp_path, CONFIGS["qwen-3"] | {"num_mtp_modules": 3} | use))
    write_model(model, tmp_path / "mine.yaml")
    assert model.mtp_layers == load_model(tmp_path / "mine.yaml").mtp_layers == layers


def test_a_name_that_one_model_alone_continues_is_that_model():
    assert load_model("qwen3-235b").name == load_model("Qwen/Qwen3-235B").name == "qwen3-235b-a22b"
    with pytest.raises(SpecError, match="unknown model 'qwen3'"):
        load_model("qwen3")

"""What is fuzzed: files that are mutated, and the command that must take or refuse each of them.

A target makes its good files in an empty folder and says how to spoil one; the command runs in that folder.
"""

import json
import shutil
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.mutants import SPELLINGS, damaged, mutated, mutated_config, mutated_json, mutated_text, paths
from support.shared import shared_path
from support.stores import imported
from support.tables import read_beside
from support.torch_files import save_pt
from support.trace_files import TOY, json_request, save_npz, toy_requests

from archsim.base.config_files import shipped_configs
from archsim.base.errors import SpecError
from archsim.base.yaml import dump_yaml, read_yaml
from archsim.model.config_json import import_config
from archsim.model.config_keys import class_defaults, squeeze_name

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL_TESTS = Path(__file__).resolve().parents[1] / "model" / "test_config_json.py"
LAYERS = [1, 2, 3, 4]
# Constants that no command takes as a file; an experiment on a recorded trace.
_OTHERS = ("hosts.yaml", "published_llama4.yaml")
SMALL = """\
name: small
systems: [{like: dojo, name: own, hbm: {bandwidth: 2 TB/s, capacity: 96 GiB}, llc: {capacity: 64 MiB}}]
models: [{name: toy, source: made up, layers: 5, moe_layers: {first: 1, last: 4}, hidden: 64, expert_ffn: 64,
  experts: 8, top_k: 2}]
workload: {trace: {synthetic: {prompt_tokens: 4, decode_steps: 2}}, batch: 16, context: 64, decode_steps: 2}
policies: [{name: own, placement: linear, allocation: isca26, prediction: {name: heatmap}}, ep]
assumptions: [{set: physical, memory: experts}]
engine: analytical
"""
SERVE = """\
engine: vllm
model: qwen3-235b-a22b
system: h200_node
parallel: {attention: {tp: 8}, experts: {ep: 8}}
precision: {experts: fp8_block, kv: bf16, products: fp8_block}
requests: {trace: FILE}
scheduler: {name: vllm_v1, max_num_batched_tokens: 8192, max_num_seqs: 256, block_tokens: 16}
slo: {ttft: 2 s, tpot: 50 ms}
"""


class Target(NamedTuple):
    """make: writes the good files, returns those that may be spoilt; spoil: (content, rng) → mutant; command: of a
    file; shown: whether a refusal must name the file; law: of (file, good content, content, what was said or
    None where it was accepted), what is wrong although the command took the file or refused it by its name.
    """

    make: Callable[[Path], list[Path]]
    spoil: Callable[[bytes, object], bytes]
    command: Callable[[Path], str]
    shown: bool = True
    law: Callable[[Path, bytes, bytes, str | None], str] | None = None


def _yaml(content, rng):
    return dump_yaml(mutated(json.loads(content), rng)).encode("utf-8", "surrogateescape")


def _configs(folder):
    """All shipped files as JSON, which is YAML too and fast to read; of the slow calibrations, one."""
    shutil.copytree(shipped_configs(), folder / "configs")
    calibrations, found = folder / "configs" / "calibrations", []
    for file in sorted((folder / "configs").rglob("*.yaml")):
        if (calibrations in file.parents and file.name != "h20.yaml") or file.name in _OTHERS:
            continue
        tree = read_yaml(file).data
        if file.name == "design_space.yaml":
            tree["sweep"]["sample"]["count"] = 20  # a second to check otherwise
        file.write_text(json.dumps(tree))
        found.append(file)
    return found


def _small(folder):
    (folder / "plain.yaml").write_text(SMALL)
    (folder / "small.yaml").write_text(json.dumps(read_yaml(folder / "plain.yaml").data))
    return [folder / "small.yaml"]


def _models(folder):
    """Published configurations, and the keys of one of each family."""
    for file in [EXAMPLES / "config.json", *(shared_path() / "data" / "models").glob("*.json")]:
        shutil.copy(file, folder / file.name)
        (folder / file.name).chmod(0o644)
    for name, config in read_beside(str(MODEL_TESTS), "configs.yaml").items():
        if config.get("model_type") or config.get("text_config"):
            (folder / f"of_{name}.json").write_text(json.dumps(config))
    return sorted(folder.glob("*.json"))


def _law_of_configs(file, good, content, said):
    """One key that differs changes nothing that it decides without a word: a value that cannot be is refused by its
    key, and a key that is left out is as good as its class's value.
    """
    before, after = (_language_model(json.loads(each)) for each in (good, content))
    changed = [key for key in {**before, **after} if json.dumps(before.get(key, 0)) != json.dumps(after.get(key, 0))]
    if len(changed) != 1 or "model_type" in changed or "architectures" in changed:
        return ""
    (key,) = changed
    if said is not None:
        others = sum(SPELLINGS, ("head_dim", "layer_types", "hybrid_override_pattern"))
        inside = {str(name) for tree in (before, after) for at in paths(tree) for name in at}
        return "" if any(name in said for name in inside.union(others)) else "names no key"
    if key not in after:
        own = class_defaults().get(squeeze_name(str(before.get("model_type"))))
        same = next((group for group in SPELLINGS if key in group), (key,))
        value = next((own.values[name] for name in same if name in own.values), None) if own else None
        stated = _model_of(file, after | {key: value})
        return "" if _model_of(file, after) == stated else f"{key}: as if it were not {value!r}"
    nothing = after[key] in ([], {}) and not before.get(key)
    last = key == "moe_layer_end_index" and after[key] == -1
    if nothing or last or key == "_name_or_path" or not _cannot_be(before.get(key), after[key]):
        return ""
    model = _model_of(file, before)
    if _model_of(file, after) != model:
        return f"{key} = {after[key]!r} is taken for a number"
    others = [_model_of(file, before | {key: each}) for each in _others(before.get(key))]
    return f"{key} = {after[key]!r} is ignored" if any(each != model for each in others) else ""


def _language_model(config):
    """The keys of the language model; none of what is no object."""
    outer = config if isinstance(config, dict) else {}
    inner = outer.get("text_config", outer)
    return {"model_type": outer.get("model_type")} | inner if isinstance(inner, dict) else outer


def _model_of(file, config):
    """The model, or None where it is refused."""
    path = file.with_name("law.json")
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        return import_config(path, "law")
    except SpecError:
        return None


def _cannot_be(old, new):
    """Whether a value is of another type than the one that it replaces, or no length, number or share."""
    if old is None or new is None or (isinstance(old, list) and type(new) is int and new >= 0):
        return False  # one number for all layers
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int | float):
        return type(old) is not type(new)
    return not isinstance(new, int | float) or not isfinite(new) or new < 0 or (type(new), type(old)) == (float, int)


def _others(value):
    """Values of the same type that a key may have as well."""
    if isinstance(value, bool):
        return [not value]
    return [2 * value, value // 2] if isinstance(value, int) and value > 1 else []


def _onnx(folder):
    shutil.copy(EXAMPLES / "model.onnx", folder)
    return [folder / "model.onnx"]


def _toy(folder):
    (folder / "toy.yaml").write_text(dump_yaml(TOY.model_dump(mode="json", by_alias=True)))


def _traces(folder):
    _toy(folder)
    requests = toy_requests(["a/1", "a/2"])
    lines = [
        {"model": "toy", "prompt_tokens": 2, "layer_ids": LAYERS, "topk_ids": experts.tolist()}
        for experts, _ in requests.values()
    ]
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    experts, iteration = requests["a/1"]
    (folder / "0.json").write_text(json.dumps(json_request(experts, iteration, LAYERS, 5)))
    return [folder / "lines.jsonl", folder / "0.json"]


def _packed(folder):
    _toy(folder)
    save_npz(folder / "requests.npz", toy_requests(["a/1", "a/2"]), LAYERS)
    counts = np.arange(24.0).reshape(4, 6)
    np.save(folder / "loads.npy", counts)
    save_pt(folder / "dump.pt", {"logical_count": np.arange(48, dtype=np.int64).reshape(2, 4, 6)})
    return [folder / "requests.npz", folder / "loads.npy", folder / "dump.pt"]


def _store(folder):
    _toy(folder)
    imported(save_npz(folder / "good.npz", toy_requests(["a/1", "a/2"]), LAYERS), folder / "store")
    return [file for file in (folder / "store").iterdir() if file.is_file() and not file.name.startswith(".")]


def _loads(folder):
    _toy(folder)
    (folder / "loads.json").write_text(json.dumps({"logical_count": [[1, 2, 3, 4, 5, 6]] * 4}))
    rows = [f"{i // 6 + 1},{i % 6},{i}" for i in range(24)]
    (folder / "loads.csv").write_text("\n".join(["layer,expert,count", *rows]))
    return [folder / "loads.json", folder / "loads.csv"]


def _requests(folder):
    rows = [f"{at},{at * 100 + 50},{at + 10}" for at in range(5)]
    (folder / "azure.csv").write_text(
        "\n".join(
            [
                "TIMESTAMP,ContextTokens,GeneratedTokens",
                *(f"2023-11-16 18:15:{at:02d}.6805900,{at * 100 + 50},{at + 10}" for at in range(5)),
            ]
        )
    )
    (folder / "plain.csv").write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
    lines = [{"timestamp": 1000 * at, "input_length": 600, "output_length": 5, "hash_ids": [0, at]} for at in range(5)]
    (folder / "mooncake.jsonl").write_text("\n".join(map(json.dumps, lines)))
    turns = [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]
    (folder / "sharegpt.json").write_text(json.dumps([{"id": "1", "conversations": turns}] * 3))
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.yaml").write_text(SERVE.replace("FILE", file.name))
    return [folder / name for name in ("azure.csv", "plain.csv", "mooncake.jsonl", "sharegpt.json")]


def _measurements(folder):
    shutil.copy(EXAMPLES / "gpu_times" / "gemm.csv", folder / "gemm.csv")
    return [folder / "gemm.csv"]


def _any_text(content, rng):
    """Of JSON mostly a mutant of its tree, else of its text or its bytes; of tables a cell."""
    if content[:1] in (b"{", b"[") and rng.random() < 0.7:
        return mutated_json(content, rng)
    return (mutated_text if rng.random() < 0.7 else damaged)(content, rng)


_IMPORT = "trace import {} --model toy.yaml --out s --replace"
_PLACE = "place {} --model toy.yaml --system dojo --ranks 2 --out p"
_CALIBRATE = "calibrate {} --peak bf16=600TFLOP/s --hbm 2.4TB/s --out c.yaml"
TARGETS = {
    "specs": Target(_configs, _yaml, lambda file: f"check {file}"),
    "runs": Target(_small, _yaml, lambda file: f"run {file}", shown=False),
    "models": Target(_models, mutated_config, lambda file: f"model import {file} --out made.yaml", law=_law_of_configs),
    "onnx": Target(_onnx, damaged, lambda file: f"model import {file} --out made.yaml"),
    "traces": Target(_traces, _any_text, _IMPORT.format),
    "packed": Target(_packed, damaged, _IMPORT.format),
    "stores": Target(_store, damaged, lambda file: "trace head store"),
    "loads": Target(_loads, _any_text, _PLACE.format),
    "requests": Target(_requests, _any_text, lambda file: f"check {file}.yaml"),
    "measurements": Target(_measurements, mutated_text, _CALIBRATE.format),
}

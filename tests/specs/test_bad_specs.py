# ruff: noqa: E501  (one row a case: a table is read across)

"""What is refused, and the exact message each gets."""

import copy
import math
import os
import random
import re
import shutil
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bad_experiments import GOOD
from support.examples import sampled
from support.messages import parts_of
from support.mutants import mutated
from support.tables import read_beside
from support.toy import TOY

import archsim as ar
from archsim.base.config_files import shipped_configs
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.yaml import dump_yaml, parse_yaml, read_yaml
from archsim.cli.main import main
from archsim.machine.plausible import plausibility_notes
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import check_file, load_assumptions, load_experiment, load_model, load_planned, load_system
from archsim.specs.serving_files import load_serving
from archsim.specs.serving_terms import TERMS
from archsim.specs.unread import ROWS, keys_of
from archsim.traffic.formats.readers import open_trace


def refused(tmp_path: Path, text: str | bytes, overrides: tuple[str, ...] = ()) -> str:
    """The message for an experiment file of this content, without the file's folder."""
    file = tmp_path / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_experiment(file, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    "content",
    sampled(["[" * 1500, "\n" + "- " * 450 + "a", "[" * 20_000], lambda content: len(content) != 1500),
    ids=len,
)
def test_what_is_nested_too_deeply_is_refused(tmp_path, content):
    assert refused(tmp_path, f"name: {content}").startswith("bad.yaml:")


def test_missing_file_and_directory(tmp_path):
    for name in ("configs/none.yaml", "reports/none", tmp_path / "none" / "doj.yaml"):
        with pytest.raises(SpecError, match=f"^{name}: .*`archsim list"):
            load_experiment(name)
    (tmp_path / "dojo.yaml").write_text("")
    with pytest.raises(SpecError, match=r"/doj\.yaml: .*'.*/dojo\.yaml'"):
        load_experiment(tmp_path / "doj.yaml")
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "manifest.yaml").write_text("")
    with pytest.raises(SpecError, match=r"/exampel: .*'.*/example'"):
        load_experiment(tmp_path / "exampel")
    with pytest.raises(SpecError, match=f"{tmp_path}: .*directory"):
        load_experiment(tmp_path)


def test_values_of_a_key_that_may_be_null_are_listed():
    with pytest.raises(SpecError, match=r"'fp7'.*'fp8'.*bf16, fp8, fp8_block, "):
        ar.load("serve_h200", {"precision.experts": "fp7"})


def test_problem_in_a_named_file_names_that_file_and_line(tmp_path):
    system = GOOD.partition("- name: small\n")[2].partition("models:")[0].replace("bandwidth: 1", "bandwith: 1")
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "odd.yaml").write_text(system)
    text = "name: good\nsystems: [odd]\nmodels:" + GOOD.partition("models:")[2]
    found = refused(tmp_path, text)
    assert parts_of(found) == [("systems/odd.yaml:7", "d2d.bandwith", ["'bandwidth'"])]


def test_path_that_leads_nowhere(tmp_path):
    text = "name: good\nsystems: [./odd.yaml]\nmodels:" + GOOD.partition("models:")[2]
    assert parts_of(refused(tmp_path, text)) == [("bad.yaml:2", "systems.0", ["'./odd.yaml'"])]


def test_several_problems_each_get_a_line(tmp_path):
    text = GOOD.replace("x: 2", "x: 0").replace("top_k: 2", "top_k: 9").replace("engine: event", "engin: event")
    assert parts_of(refused(tmp_path, text)) == [
        ("bad.yaml:5", "systems.0.mesh.x", ["0", "1", "64"]),
        ("bad.yaml:22", "models.0.top_k", ["9", "8"]),
        ("bad.yaml:29", "engin", ["'engine'"]),
    ]


def test_several_unknown_names_each_get_a_line(tmp_path):
    text = GOOD.replace("[base, allo]", "[bsae, alo]").replace("physical", "fysical")
    assert [(place, key, hints[:2]) for place, key, hints in parts_of(refused(tmp_path, text))] == [
        ("bad.yaml:27", "policies.0", ["'bsae'", "'base'"]),
        ("bad.yaml:27", "policies.1", ["'alo'", "'allo'"]),
        ("bad.yaml:28", "assumptions", ["'fysical'", "'physical'"]),
    ]


def test_unknown_names_do_not_hide_other_problems(tmp_path):
    text = GOOD.replace("[base, allo]", "[base, alo]").replace("x: 2", "x: 0").replace("engine: event", "engin: event")
    assert [(place, key, hints[:3]) for place, key, hints in parts_of(refused(tmp_path, text))] == [
        ("bad.yaml:27", "policies.1", ["'alo'", "'allo'"]),
        ("bad.yaml:5", "systems.0.mesh.x", ["0", "1", "64"]),
        ("bad.yaml:29", "engin", ["'engine'"]),
    ]


def test_unknown_names_in_python():
    with pytest.raises(SpecError, match="'doja'.*'dojo'"):
        load_system("doja")
    with pytest.raises(SpecError, match="'deepseek_v3'.*'deepseek-v3'"):
        load_model("deepseek_v3")
    with pytest.raises(SpecError, match="assumptions.0.hop: .*'hops'"):
        load_assumptions("physical", hop="all")


def test_check_of_a_system_file_tells_its_keys(tmp_path):
    file = tmp_path / "odd.yaml"
    file.write_text("name: odd\nsource: test\nmesh: {x: 1, y: 1}\nhbm: 5\nd2d: {bandwith: 1 TB/s}\n")
    with pytest.raises(SpecError) as caught:
        check_file(file)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert parts_of(message) == [
        ("odd.yaml:4", "hbm", ["5"]), ("odd.yaml:5", "d2d.bandwith", ["'bandwidth'"]), ("odd.yaml:1", "compute", []),
    ]  # fmt: skip
    keys = ("bandwidth", "capacity", "reserved", "latency", "efficiency", "calibration", "stacks_on_carrier", "source")
    assert all(key in message.splitlines()[0] for key in keys)


def test_command_line_prints_the_message_alone(tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text(GOOD.replace("engine: event", "engin: event"))
    assert main(["check", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert parts_of(printed.err) == [(f"{file}:29", "engin", ["'engine'"])]


_JUNK = st.sampled_from(
    [None, True, -1, 0, 2.5, 1e300, "", "x", "-", "a/b", "a:b", [], [None], {}, {"x": {}}, {"name": []}, "1 B", "²"]
)


def _paths(tree: object, above: tuple = ()) -> list[tuple]:
    """Every path below the root of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in items for path in ((*above, key), *_paths(value, (*above, key)))]


@given(st.data())
def test_junk_anywhere_is_accepted_or_told_with_its_place(tmp_path_factory, data):
    """Whatever replaces whatever part of a resolved experiment: never another exception, always the file and a line."""
    file = tmp_path_factory.mktemp("junk") / "bad.yaml"
    tree = parse_yaml(GOOD, "good").data
    policy = {"name": "mine", "preset": "pred", "allocation": {"name": "isca26", "candidates": 3}, "prediction": "none"}
    tree |= {"policies": [*tree["policies"], policy], "assumptions": [{"set": "physical", "hops": "all"}]}
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(tree)))
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = copy.deepcopy(data.draw(_JUNK))
        if not _paths(tree):
            break
    file.write_text(dump_yaml(tree))
    lines = []
    try:
        load_experiment(file)
    except SpecError as error:
        lines = str(error).splitlines()
        assert lines
    assert [line for line in lines if not re.match(rf"{re.escape(str(file))}:\d+: ", line)] == []


# ---- Mutants of the shipped files: each loads, or is refused with file and line; none crashes, hangs or fills
# memory.

MUTANTS = [30, pytest.param(300, marks=pytest.mark.nightly)]
SEED = 21
PLACE = re.compile(r"\S*\.yaml:\d+: ")  # in the file, or in one that it takes
CALIBRATIONS = shipped_configs() / "calibrations"  # slow to read, and their tables are all alike: one without any


def shipped():
    """path below configs/ → its tree, of all files that one mutant may take"""
    every = shipped_configs().rglob("*.yaml")
    files = sorted(file for file in every if CALIBRATIONS not in file.parents or file.name == "h20.yaml")
    trees = {str(file.relative_to(shipped_configs())): read_yaml(file).data for file in files}
    trees["design_space.yaml"]["sweep"]["sample"]["count"] = 20  # loads in a second otherwise
    return trees


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A copy of configs/ in the current directory."""
    shutil.copytree(shipped_configs(), tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs"


def accepted(file):
    try:
        ar.load(file)
    except ArchsimError as error:
        assert any(line.startswith(f"{file}: ") or PLACE.match(line) for line in str(error).splitlines()), str(error)
        return False
    return True


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("count", MUTANTS)
def test_mutants_load_or_are_refused_with_a_place(configs, count):
    rng, trees, found = random.Random(SEED), shipped(), []
    for _ in range(count):
        name = rng.choice(list(trees))
        file, good = configs / name, (configs / name).read_bytes()
        file.write_text(dump_yaml(mutated(trees[name], rng)), encoding="utf-8", errors="surrogateescape")
        found.append(accepted(file))
        file.write_bytes(good)
    assert len(found) == count and count / 20 < sum(found) < count / 2


ODD_NUMBERS = {"5001 digits": 10**5000, "401 digits": -(10**400), "nan": float("nan"), "listed": [[10**5000]]}


@pytest.mark.parametrize("value", ODD_NUMBERS.values(), ids=ODD_NUMBERS)
@pytest.mark.parametrize("key", ["decode_steps", "batch", "trace", "layers"])
def test_numbers_that_yaml_does_not_have_are_refused_in_mappings(value, key):
    workload = {"trace": {"synthetic": {}}, "batch": [4]} | {key: value}
    mapping = {"name": "x", "systems": ["dojo"], "models": ["mixtral-8x7b"], "workload": workload, "policies": ["ep"]}
    with pytest.raises(SpecError, match="mapping: "):
        ar.load(mapping)


def test_a_mapping_that_contains_itself_is_refused():
    mapping = {"name": "x"}
    mapping["models"] = [mapping]
    with pytest.raises(SpecError, match="contains itself"):
        ar.load(mapping)


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nothing writes to: reading it never ends."""
    os.mkfifo(tmp_path / "pipe.yaml")
    return tmp_path / "pipe.yaml"


SMALL = "name: x\nsystems: [{system}]\nmodels: [{model}]\nworkload: {{trace: {trace}, batch: 1}}\npolicies: [ep]\n"
MUTANTS_GOOD = {"system": "dojo", "model": "mixtral-8x7b", "trace": "{synthetic: {}}"}


@pytest.mark.parametrize("key", MUTANTS_GOOD)
def test_pipes_and_devices_are_refused_where_they_are_named(key, pipe, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(SMALL.format(**MUTANTS_GOOD | {key: str(pipe)}))
    with pytest.raises(SpecError, match=r"x.yaml:\d: .*(not a file|neither a file nor a directory): "):
        ar.load(file)


def test_pipes_and_devices_are_refused_as_arguments(pipe, capsys):
    model = ar.load(shipped_configs() / "models" / "mixtral-8x7b.yaml")
    with pytest.raises(ArchsimError, match="neither a file nor a directory"):
        open_trace(pipe, model)
    for command in (["check", str(pipe)], ["run", str(pipe)], ["trace", "import", str(pipe), "--out", "x"]):
        assert main(command) == 2
        assert "not a regular file" in (said := capsys.readouterr().err) or "neither a file" in said


# ---- Values of machines that a mistyped unit explains are told by check, run and serve; shipped machines have none.

SYSTEMS = sorted((Path(__file__).resolve().parents[2] / "configs" / "systems").glob("*.yaml"))


def test_shipped_machines_are_plausible():
    for file in SYSTEMS:
        system = load_system(file)
        assert plausibility_notes(system) == []


@pytest.mark.parametrize("changes", sampled([
    {"systems.0.hbm.capacity": "80 TB"}, {"systems.0.d2d.bandwidth": "2 GB/s", "systems.0.d2d.hop_latency": "200 us"},
    {"systems.0.hbm.bandwidth": "3.35 GB/s"}, {"systems.0.llc.hit": "100 us"},
    {"systems.0.compute.peak": "989 GFLOP/s"},
], lambda changes: "systems.0.d2d.bandwidth" in changes))  # fmt: skip
def test_check_tells_values_that_are_far_from_machines(changes, capsys):
    overrides = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert main(["check", "dojo", "--set", "workload.batch=[64]", *overrides]) == 0
    told = capsys.readouterr()
    for key, value in changes.items():
        assert f"{key.removeprefix('systems.0.')}: {value} is taken as given" in told.err + told.out


def test_a_deployment_tells_them_too(capsys):
    slow = "system={name: odd, like: h200_node, hbm: {bandwidth: 4.8 GB/s}}"
    assert main(["check", "serve_h200", "--set", slow]) == 0
    told = capsys.readouterr()
    assert "hbm.bandwidth: 4.8 GB/s" in told.err + told.out


# ---- The table of keys that runs do not read says nothing false: under its condition, a changed key changes no
# result.

SYSTEM = {
    "name": "small", "source": "made up", "mesh": {"x": 3, "y": 2}, "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
    "d2d": {"bandwidth": "1 TB/s"}, "llc": {"capacity": "2 MiB", "segment": "64 KiB"},
    "compute": {"peak": "300 TFLOP/s", "dtype": "bf16"}, "launch": "local_cp",
}  # fmt: skip
(MODEL,) = TOY["models"]
# What makes keys dead (parts of the experiment), and another value of each key.
UNREAD = read_beside(__file__, "tables.yaml")["unread"]


def experiment_of(choice, changes=MappingProxyType({})):
    system = choice.get("system", {})
    system = deepcopy(system if {"like", "name"} & set(system) else SYSTEM | system)
    policy = choice.get("policy", "ep")
    parts = {
        "system": system, "model": MODEL | choice.get("model", {}), "assumptions": dict(choice.get("assumptions", {})),
        "policy": dict(policy) if isinstance(policy, dict) else {"preset": policy, "name": "mine"},
        "workload": {"trace": {"synthetic": {"prompt_tokens": 3}}, "batch": 12, "decode_steps": 2},
    }  # fmt: skip
    for key, value in changes.items():
        *above, last = key.split(".")
        at = parts
        for name in above:
            at[name] = dict(at.get(name, {}))
            at = at[name]
        at[last] = value
    engine = {"engine": choice["engine"]} if "engine" in choice else {}
    lists = {"systems": [parts["system"]], "models": [parts["model"]], "policies": [parts["policy"]]}
    return {"name": "t", "workload": parts["workload"], "assumptions": parts["assumptions"], **lists, **engine}


def numbers(given):
    row = ar.run(load_experiment(given)).runs.rows[0]
    return {
        name: None if isinstance(each, float) and math.isnan(each) else each
        for name, each in row.items() if isinstance(each, int | float) and not isinstance(each, bool)
    }  # fmt: skip


@pytest.mark.parametrize("case", sampled(range(len(UNREAD)), lambda at: at % 4 == 0))
def test_keys_that_are_told_as_unread_change_no_result(case):
    """All that are dead for one reason are changed at once."""
    choice, changes = UNREAD[case]
    given = experiment_of(choice, changes)
    assert set(changes) <= keys_of(load_experiment(given).unread)
    before, after = numbers(experiment_of(choice)), numbers(given)
    assert {name: (each, after[name]) for name, each in before.items() if after[name] != each} == {}


def test_every_row_of_the_table_has_a_case():
    keys = {key for _, changes in UNREAD for key in changes}
    lacking = [pattern for row in ROWS for pattern in row.keys if not any(fnmatchcase(key, pattern) for key in keys)]
    assert lacking == []


def test_only_what_the_user_wrote_is_told(tmp_path):
    """Defaults and keys of a shipped system are not told; those of an own file, of an axis and of --set are."""
    workload = {"trace": {"synthetic": {}}, "batch": 1}
    plain = {"name": "t", "systems": ["dojo"], "models": ["olmoe-1b-7b"], "policies": ["ep"], "workload": workload}
    assert load_experiment(plain).unread == ()
    assert keys_of(load_experiment(plain, ["systems.0.compute.efficiency=0.5"]).unread) == {"system.compute.efficiency"}
    own = tmp_path / "own.yaml"
    own.write_text(dump_yaml({**SYSTEM, "compute": {**SYSTEM["compute"], "efficiency": 0.5}}), encoding="utf-8")
    assert keys_of(load_experiment({**plain, "systems": [str(own)]}).unread) == {"system.compute.efficiency"}
    axes = {"sweep": {"grid": {"assumptions.overlap": ["none", "two_batch"]}}}
    assert keys_of(load_planned({**plain, **axes}).experiment.unread) == {"assumptions.overlap"}
    axes["sweep"]["grid"]["assumptions.execution"] = ["weight_streaming", "expert_parallel"]
    assert load_planned({**plain, **axes}).experiment.unread == ()


def test_a_manifest_keeps_what_its_file_told(tmp_path, capsys):
    file = tmp_path / "given.yaml"
    file.write_text(dump_yaml(experiment_of({}, {"assumptions.overlap": "two_batch"})), encoding="utf-8")
    for at in (file, tmp_path / "out" / "manifest.yaml"):
        assert main(["sweep", str(at), "--out", str(tmp_path / "out"), "--jobs", "1", "--samples", "0"]) == 0
        assert "assumptions.overlap" in capsys.readouterr().err
        assert "assumptions.overlap has no effect: " in (tmp_path / "out" / "files.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "command", sampled(["ablate", "optimum", "why", "compare"], lambda command: command != "ablate")
)
def test_every_command_that_reads_an_experiment_tells_what_it_does_not_read(command, tmp_path, capsys):
    """An axis of a sweep of which only the first value runs, and a key that no run reads."""
    file, given = tmp_path / "given.yaml", experiment_of({}, {"system.llc.ways": 4})
    given |= {"policies": ["base", "ep"], "sweep": {"grid": {"system.hbm.latency": ["100 ns", "200 ns"]}}}
    file.write_text(dump_yaml(given), encoding="utf-8")
    more = {
        "ablate": [str(file), "--jobs", "1", "--from", "physical", "--to", "physical+activations=ignored"],
        "optimum": [str(file), "--steps", "1"],
        "why": [str(file), "--policy", "ep"],
        "compare": ["base", "ep", "--in", str(file), "--samples", "0"],
    }
    if command == "ablate":
        given["assumptions"] = ["physical", {"set": "physical", "activations": "ignored"}]
        file.write_text(dump_yaml(given), encoding="utf-8")
    out = [] if command == "why" else ["--out", str(tmp_path / "out")]
    assert main([command, *more[command], *out]) == 0
    told = capsys.readouterr().err
    assert "system.llc.ways has no effect: llc: segments" in told
    assert "system.hbm.latency has no effect: `archsim sweep`" in told
    assert not out or "llc.ways has no effect" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


# What serving engineers write, by the part of a deployment in which they write it.
WRITTEN = {
    "": "tp ep dp tensor_parallel_size quantization dtype kv_cache_dtype max_num_seqs max_model_len gpu_memory_utilization "
    "mem_fraction_static enable_prefix_caching chunked_prefill batch gpu gpus replicas limits sla traffic workload mtp eplb "
    "redundant_experts backend framework version nodes attention_backend router lora",
    "requests": "rate qps rps isl osl input_len output_len request_rate max_concurrency num_prompts dataset file prefix "
    "poisson users prompt_tokens output_tokens burst duration",
    "parallel": "tp ep dp tensor data cp dcp tp_size dp_attention moe_tp",
    "scheduler": "max_batch max_batch_size chunk chunk_size chunked_prefill_size policy mem_fraction_static "
    "max_running_requests prefix_cache cuda_graph gpu_memory_utilization overlap max_model_len",
    "precision": "weights activations dtype moe kv_cache_dtype",
    "disaggregated": "prefill_gpus ratio kv_transfer network decode_instances",
    "slo": "ttft_p99 itl latency p99 tbt e2el",
}


DEPLOYED = {
    "model": "qwen3-30b-a3b", "system": "h200_node",
    "requests": {"arrivals": {"rate": "3/s"}, "input": {"fixed": 100}, "output": {"fixed": 10}},
}  # fmt: skip


@pytest.mark.parametrize("part", WRITTEN)
def test_terms_of_serving_engineers_say_what_to_write(part):
    base = DEPLOYED
    for term in WRITTEN[part].split():
        given = {**base, part: {**base.get(part, {}), term: 8}} if part else {**base, term: 8}
        with pytest.raises(SpecError) as caught:
            load_serving(given, [])
        said = [line for line in str(caught.value).splitlines() if f"{term}: " in line or repr(term) in line]
        assert said and "unknown key" in said[0] and "; " in said[0], (term, str(caught.value))
        assert "did you mean" not in said[0] and "(known:" not in said[0], said


ADVISED = (
    "policies: [{name: eplb, placement: {name: redundant, slots: 4}, allocation: even}]",
    "policies: [{name: eplb, allocation: even, rebalancing: {name: eplb, every_steps: 1000}}]",
    "slo: {ttft: 2 s, tpot: 50 ms, e2e: 60 s}",
    "requests: {arrivals: {rate: 4/s}, input: {mean: 1000}, output: {mean: 200}}",
    "precision: {products: fp8_block, experts: nvfp4, kv: fp8}",
    "parallel: {attention: {tp: 8, dp: 2}}",
)


@pytest.mark.parametrize("advice", ADVISED)
def test_what_a_term_says_to_write_is_loaded(advice):
    assert any(advice in way for way in TERMS.values())
    routing = {"routing": {"like": "model"}} if "policies" in advice else {}
    load_serving({**DEPLOYED, "system": "h200_cluster", **routing, **parse_yaml(advice, "x").data}, [])


def test_what_an_experiment_says_to_write_for_a_policy_is_loaded():
    given = parse_yaml(GOOD, "x").data
    policy = re.search(r"{name: mine.*}}", ExperimentSpec.WAYS["threshold"])[0]
    found = ar.load(given | {"policies": [parse_yaml(f"one: {policy}", "x").data["one"]]})
    assert [each.name for each in found.policies] == ["mine"]


@pytest.mark.parametrize(
    "part, key, said",
    [
        ("precision", "expert", "did you mean 'experts'"), ("loads", "rate", "did you mean 'rates'"),
        ("loads", "input", "did you mean 'inputs'"), ("routing", "file", "write trace"), ("search", "gpus", "write devices"),
        ("search", "batch", "write max_num_seqs"), ("scheduler", "policy", "scheduler.order"),
        ("disaggregated", "network", "without bandwidth"), ("", "expert_placement", "known: "),
    ],
)  # fmt: skip
def test_keys_of_the_place_come_before_terms(part, key, said):
    given = {**DEPLOYED, part: {**DEPLOYED.get(part, {}), key: 8}} if part else {**DEPLOYED, key: 8}
    with pytest.raises(SpecError, match=said):
        load_serving(given, [])


@pytest.mark.parametrize(
    "key, said", [("tp", "attention: {tp: 8}"), ("batch", "write max_num_seqs"), ("gpus", "times instances")]
)
def test_terms_of_a_side_are_written_as_in_the_side(key, said):
    side = {"parallel": {"attention": {"tp": 4}}}
    with pytest.raises(SpecError, match=re.escape(said)):
        load_serving(DEPLOYED | {"disaggregated": {"prefill": side | {key: 8}, "decode": side}}, [])


def test_a_file_with_keys_of_two_kinds_says_as_which_it_is_read():
    with pytest.raises(
        SpecError, match="it is read as a deployment, with which it shares the keys model, system; .*serve"
    ):
        ar.load({"name": "mine", "model": "mixtral-8x7b", "system": "dojo"})
    with pytest.raises(SpecError, match="as many as with"):
        ar.load({"hidden": 1, "mesh": {"x": 1, "y": 1}, "zzz": 2})
    with pytest.raises(SpecError) as caught:
        ar.load({"model": "mixtral-8x7b", "system": "dojo", "requests": {}, "schedular": {}})
    assert "it is read as" not in str(caught.value)


@pytest.mark.parametrize(
    "key, said",
    [
        ("num_hidden_layers", "write layers"), ("n_routed_experts", "write experts"), ("num_experts_per_tok", "write top_k"),
        ("max_position_embeddings", "write positions"), ("kv_lora_rank", "attention is a mapping"), ("head_dim", "attention is a mapping"),
        ("vocab_size", "write vocabulary"), ("moe_intermediate_size", "write expert_ffn"), ("params", "sizes in elements"),
    ],
)  # fmt: skip
def test_keys_of_a_config_json_say_what_a_model_file_calls_them(key, said):
    model = {"name": "m", "source": "x", "layers": 9, "moe_layers": {"first": 0, "last": 8}, "hidden": 64, "expert_ffn": 32,
             "experts": 16, "top_k": 2}  # fmt: skip
    with pytest.raises(SpecError, match=f"{key}: unknown key; .*{said}"):
        ar.load({**model, key: 8})


@pytest.mark.parametrize(
    "part, key, said",
    [
        ("", "skew", "popularity_skew"), ("", "tp", "parallel.attention.tp"), ("", "threshold", "of a policy"), ("", "dtype", "precision"),
        ("workload", "seq_len", "write context"), ("workload", "tokens", "write batch"), ("workload", "steps", "write decode_steps"),
        ("workload", "rate", "archsim serve"), ("workload", "prompt_tokens", "synthetic"),
    ],
)  # fmt: skip
def test_words_that_no_experiment_has_say_what_to_write(part, key, said):
    experiment = parse_yaml(GOOD, "x").data
    (experiment[part] if part else experiment)[key] = 8
    with pytest.raises(SpecError, match=f"{key}: unknown key; .*{said}"):
        ar.load(experiment)

"""Specs that are valid: what is read, found, overridden and written again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.tables import read_beside, table_of

import archsim
from archsim.base.config_files import named_files, shipped_configs
from archsim.base.errors import SpecError
from archsim.base.fields import with_ranges
from archsim.base.quantities import BANDWIDTH, COMPUTE, SIZE, TIME, format_quantity, parse_quantity
from archsim.base.yaml import dump_yaml, parse_yaml, read_yaml
from archsim.cli.main import main
from archsim.machine.system import D2DSpec, SystemSpec
from archsim.model.config_json import write_model
from archsim.specs import axis_values
from archsim.specs.assumptions import ASSUMPTIONS, published_utilisation, shipped_sets
from archsim.specs.axis_values import read_range
from archsim.specs.describe import summary
from archsim.specs.file_kinds import EXPERIMENT, TRAFFIC, kind_of
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.policies import PRESETS, RULES
from archsim.specs.serving_files import load_serving

ROOT = Path(__file__).resolve().parents[2]
DOJO = ROOT / "configs" / "dojo.yaml"

ON_CHIP = ("dojo_x4", "sow_x", "blackhole", "tpu7x", "wse3", "lpu576")  # which start kernels themselves
SHIPPED = read_beside(__file__, "tables.yaml")


def named(table):
    """The first column of a table."""
    return [name for name, *_ in SHIPPED[table][1:]]


@table_of(__file__, "systems")
def test_shipped_system(name, x, y, hbm_bytes_per_s, d2d_bytes_per_s, hbm_bytes, flop_per_s, dtype):
    system = load_system(name)
    assert (system.name, system.mesh.x, system.mesh.y, system.dies) == (name, x, y, x * y)
    assert (system.hbm.bandwidth_bytes_per_s, system.d2d.bandwidth_bytes_per_s) == (hbm_bytes_per_s, d2d_bytes_per_s)
    assert (system.hbm.capacity_bytes, system.hbm.reserved_fraction, system.hbm.latency_ns) == (hbm_bytes, 0.1, 300)
    assert (system.compute.peak_flop_per_s, system.compute.dtype) == (flop_per_s, dtype)
    llc, d2d = system.llc, system.d2d
    assert (llc.capacity_bytes, llc.hit_ns, llc.miss_ns, llc.write_ns) == (2**26, 100, 110, 30)
    assert (d2d.hop_latency_ns, d2d.request_bytes) == (200, 16)


@table_of(__file__, "clusters")
def test_shipped_cluster(name, dies, d2d_bytes_per_s, hbm_bytes_per_s, hbm_bytes, flop_per_s):
    system = load_system(name)
    assert (system.name, system.dies, system.d2d.bandwidth_bytes_per_s) == (name, dies, d2d_bytes_per_s)
    assert (system.hbm.bandwidth_bytes_per_s, system.hbm.capacity_bytes) == (hbm_bytes_per_s, hbm_bytes)
    assert system.compute.peak_flop_per_s == flop_per_s
    assert system.launch == ("local_cp" if name.startswith(ON_CHIP) else "gpu")


@table_of(__file__, "models")
def test_shipped_model(name, moe_layers, layers, first, hidden, ffn, experts, top_k, shared, shared_ffn):
    model = load_model(name)
    assert (model.name, len(model.moe_layer_ids), model.layers, model.moe_layer_ids[0]) == (
        name,
        moe_layers,
        layers,
        first,
    )
    assert (model.hidden, model.expert_ffn, model.experts, model.top_k) == (hidden, ffn, experts, top_k)
    assert (model.shared_experts, model.shared_ffn, model.slice_weights) == (shared, shared_ffn, hidden * ffn)


def test_no_shipped_file_is_left_out_of_the_tables():
    assert set(named_files("systems")) == {*named("systems"), *named("clusters")}
    assert set(named_files("models")) == set(named("models"))


def test_llama_4_has_moe_in_the_odd_layers():
    assert load_model("llama-4-maverick").moe_layer_ids == tuple(range(1, 48, 2))


# configs/serve_*.yaml are read by `archsim serve` (tests/serving).
EXPERIMENTS = [file for file in sorted((ROOT / "configs").rglob("*.yaml")) if file.parent.name == "configs"]
EXPERIMENTS = [file for file in EXPERIMENTS if not file.stem.startswith("serve_")]


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_shipped_experiment(file, request):
    overrides = []
    if file.stem == "published_llama4":
        trace = request.getfixturevalue("shared") / "data/traces/llama4-maverick/mmlu_abstract_algebra_anatomy.npz"
        overrides = [f"workload.trace={trace}"]
    experiment = load_experiment(file, overrides)
    alone = file.stem == "two_batches"  # as deployed: with EPLB's replicas
    assert experiment.policies[0].name in (("eplb",) if alone else ("base", "ep"))
    assert experiment.name.replace("-", "_") == file.stem


def test_system_like_another(tmp_path):
    file = tmp_path / "experiment.yaml"
    systems = "[{like: dojo, name: mine, mesh: {y: 3}, decision: {executor: host, host: {time: 50 us}}}, dojo]"
    file.write_text(re.sub(r"systems: .*", f"systems: {systems}", DOJO.read_text()))
    mine, dojo = load_experiment(file, ["systems.0.hbm.latency=400 ns"]).systems
    assert (mine.mesh.x, mine.mesh.y, mine.hbm.latency_ns, mine.decision.host.time_ns) == (5, 3, 400, 50e3)
    same = {"name": "dojo", "mesh": dojo.mesh, "decision": dojo.decision, "hbm": dojo.hbm}
    assert mine.model_copy(update=same) == dojo
    assert mine.hbm.model_copy(update={"latency_ns": 300.0}) == dojo.hbm
    written = tmp_path / "manifest.yaml"
    written.write_text(dump_yaml(load_experiment(file).resolved()))
    assert "like: dojo" not in written.read_text()
    assert load_experiment(written) == load_experiment(file)


def test_bytes_of_a_weight():
    assert load_system("dojo").compute.dtype_bytes == 1
    assert load_system("isca26_dojo").compute.dtype_bytes == 2


# --- quantities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "dimension", "value"), [
    ("3.35 TB/s", BANDWIDTH, 3.35e12),
    ("2TB/s", BANDWIDTH, 2e12),
    ("1 GiB/s", BANDWIDTH, 2.0**30),
    ("64 MiB", SIZE, 64 * 2**20),
    ("80 GB", SIZE, 80e9),
    ("1.5 kB", SIZE, 1500),
    ("16 B", SIZE, 16),
    ("1e3 B", SIZE, 1000),
    ("200 ns", TIME, 200),
    ("0.2 us", TIME, 200),
    ("0.2 \u00b5s", TIME, 200),
    ("0.2 \u03bcs", TIME, 200),
    ("1 ms", TIME, 1e6),
    ("1 s", TIME, 1e9),
    ("989 TFLOP/s", COMPUTE, 989e12),
    ("1 PFLOP/s", COMPUTE, 1e15),
])  # fmt: skip
def test_quantity(text, dimension, value):
    assert float(parse_quantity(text, dimension)) == value


@given(st.floats(min_value=1e-6, max_value=1e18, allow_nan=False), st.sampled_from([BANDWIDTH, COMPUTE, TIME]))
def test_written_quantity_reads_back_exactly(value, dimension):
    assert float(parse_quantity(format_quantity(value, dimension), dimension)) == value


@given(st.integers(min_value=1, max_value=10**15))
def test_written_size_reads_back_exactly(value):
    assert int(parse_quantity(format_quantity(value, SIZE), SIZE)) == value


def test_quantities_are_written_as_people_write_them():
    assert format_quantity(3.35e12, BANDWIDTH) == "3.35 TB/s"
    assert format_quantity(64 * 2**20, SIZE) == "64 MiB"
    assert format_quantity(80 * 10**9, SIZE) == "80 GB"
    assert format_quantity(200.0, TIME) == "200 ns"


def test_python_may_use_attribute_names_and_plain_numbers():
    by_name = D2DSpec(bandwidth_bytes_per_s=1.5e12, hop_latency_ns=200, request_bytes=16)
    assert by_name == D2DSpec(bandwidth="1.5 TB/s")


# --- YAML -------------------------------------------------------------------------------------------------------------


def test_quoted_scalars_are_text():
    assert parse_yaml("a: '1'\nb: \"true\"\nc: |\n  5\n", "t").data == {"a": "1", "b": "true", "c": "5\n"}


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_TRAPS = st.sampled_from(
    ["1e3", "on", "017", "1:30", "null", "~", "", " x ", "- a", "a: b", "1.7e12", "0x1F", "<<", "=", "\ufeff"]
)
_TREES = st.recursive(
    _SCALARS | _TRAPS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | _TRAPS, inner, max_size=3),
    max_leaves=8,
)


@given(_TREES)
def test_written_yaml_reads_back_equal(tree):
    assert parse_yaml(dump_yaml({"root": tree}), "t").data == {"root": tree}


# --- references and overrides -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["systems", "models", "assumptions", ""])
def test_libyaml_reads_what_the_parser_in_python_reads(folder, monkeypatch):
    texts = [path.read_text(encoding="utf-8") for path in sorted((shipped_configs() / folder).glob("*.yaml"))]
    texts += ["a: 'x'\nb: \"y\"\nc: |\n  z\nd: &e [1, ~]\nf: *e\n", "- " * 200 + "a"]
    fast = [parse_yaml(text, "file") for text in texts]
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    slow = [parse_yaml(text, "file") for text in texts]
    assert [(tree.data, tree.places) for tree in fast] == [(tree.data, tree.places) for tree in slow]


def test_named_path_and_inline_systems_are_the_same(tmp_path):
    dojo = load_system("dojo")
    inline = dump_yaml({"systems": [with_ranges(dojo, dojo.model_dump(mode="json", by_alias=True))]})
    rest = "name: x\nmodels: [olmoe-1b-7b]\nworkload: {trace: {synthetic: {}}, batch: 8}\npolicies: [base]\n"
    found = []
    for number, systems in enumerate((inline, "systems: [dojo]\n", f"systems: [{ROOT}/configs/systems/dojo.yaml]\n")):
        (tmp_path / f"{number}.yaml").write_text(rest + systems)
        found.append(load_experiment(tmp_path / f"{number}.yaml"))
    assert found[0] == found[1] == found[2]


def test_files_beside_the_experiment_come_first(tmp_path):
    (tmp_path / "systems").mkdir()
    text = (ROOT / "configs" / "systems" / "dojo.yaml").read_text().replace("{x: 5, y: 5}", "{x: 2, y: 2}")
    (tmp_path / "systems" / "dojo.yaml").write_text(text)
    (tmp_path / "e.yaml").write_text(DOJO.read_text())
    assert load_experiment(tmp_path / "e.yaml").systems[0].dies == 4
    assert load_experiment(DOJO).systems[0].dies == 25


def test_overrides():
    experiment = load_experiment(
        DOJO,
        [
            "workload.batch=[64]",
            "systems.0.d2d.bandwidth=2TB/s",
            "systems.0.llc.ways=4",
            "models=[mixtral-8x7b]",
            "models.0.top_k=1",
            "policies=[allo, base]",
            "policies.0.allocation.block_tokens=128",
            "assumptions=physical",
            "assumptions.contention=reserved",
            "workload.trace.synthetic.seed=1e3",
        ],
    )
    assert experiment.workload.batch == (64,)
    assert experiment.systems[0].d2d.bandwidth_bytes_per_s == 2e12
    assert experiment.systems[0].llc.ways == 4
    assert (experiment.models[0].name, experiment.models[0].top_k) == ("mixtral-8x7b", 1)
    assert experiment.policies[0].allocation.params == {"block_tokens": 128, "candidates": 5}
    assert [each.label for each in experiment.assumptions] == ["physical+contention=reserved"]
    assert experiment.workload.trace.synthetic.seed == 1000


def test_override_of_a_name_that_is_not_there_mends_it(tmp_path):
    (tmp_path / "e.yaml").write_text(DOJO.read_text().replace("systems: [dojo]", "systems: [gone]"))
    assert load_experiment(tmp_path / "e.yaml", ["systems=[dojo]"]).systems == load_experiment(DOJO).systems


def test_trace_is_found_from_the_current_directory_then_around_the_file(tmp_path, monkeypatch):
    (tmp_path / "reports" / "x").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.npz").touch()
    file = tmp_path / "reports" / "x" / "manifest.yaml"
    file.write_text(
        "name: x\nsystems: [dojo]\nmodels: [olmoe-1b-7b]\nworkload: {trace: data/t.npz, batch: 1}\npolicies: [base]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_experiment(file).workload.trace == "data/t.npz"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_experiment(file).workload.trace == os.path.join("..", "data", "t.npz")


# --- policies ---------------------------------------------------------------------------------------------------------


def test_presets_are_made_of_known_rules():
    rules = {(part, rule) for preset in PRESETS.values() for part, rule in preset.items()}
    assert rules
    assert rules <= {(part, rule) for part, known in RULES.items() for rule in known}


def _policies(tmp_path, text):
    (tmp_path / "e.yaml").write_text(
        DOJO.read_text().replace("policies: [base, ep, allo, pred, allo+pred]", f"policies: {text}")
    )
    return load_experiment(tmp_path / "e.yaml").policies


def test_a_policy_starts_from_a_preset(tmp_path):
    mine, paper = _policies(
        tmp_path,
        "[{name: mine, preset: allo+pred, allocation: {block_tokens: 64}, prediction: {top_n: 3}}, allo-paper]",
    )
    assert (mine.allocation.name, mine.allocation.params) == ("isca26", {"block_tokens": 64, "candidates": 5})
    assert (mine.prediction.name, mine.prediction.params) == ("heatmap", {"top_n": 3})
    assert (paper.allocation.name, paper.allocation.params) == ("paper", {"block_tokens": 50, "distance": 1})


def test_another_rule_takes_its_own_defaults(tmp_path):
    (mine,) = _policies(
        tmp_path, "[{name: mine, preset: allo, allocation: paper, prediction: {name: heatmap, top_fraction: 50 %}}]"
    )
    assert mine.allocation.params == {"block_tokens": 50, "distance": 1}
    assert mine.prediction.params == {"top_fraction": 0.5}


def test_own_function_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_rules_for_test.py").write_text("def allocate(step, greed):\n    return greed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (mine,) = _policies(tmp_path, "[{name: mine, allocation: {name: 'my_rules_for_test:allocate', greed: 2}}]")
    assert mine.allocation.is_function
    assert (mine.placement.name, mine.prediction.name) == ("linear", "none")
    assert mine.allocation.params == {"greed": 2}


# --- assumptions ------------------------------------------------------------------------------------------------------


def test_shipped_sets_differ_where_the_machine_description_says():
    physical, published = load_assumptions("physical"), load_assumptions("published")
    same = {field for field in ASSUMPTIONS if getattr(physical, field) == getattr(published, field)}
    assert same == {"execution", "arbitration", "rate_updates", "endpoint", "source", "overlap"}
    assert (published.contention, published.numbering, published.ties) == ("reserved", "column_major", "heapq")
    assert (physical.contention, physical.capacity, physical.gemm) == ("shared", "finite", "grouped")


def test_labels():
    assert load_assumptions("published").label == "published"
    assert load_assumptions("physical", contention="shared").label == "physical"
    assert load_assumptions("published", ties="sequence", hops="all").label == "published+hops=all+ties=sequence"
    own = {field: next(iter(values)) for field, values in ASSUMPTIONS.items()}
    assert load_assumptions("mine", **own).label == "mine"


def test_an_own_set_may_leave_out_fields_with_a_default(tmp_path):
    defaults = {
        "execution": "weight_streaming", "rate_updates": "instant", "endpoint": "unlimited", "overlap": "none",
        "copy_writes": "barrier", "carriers": "one",
    }  # fmt: skip
    own = {field: next(iter(values)) for field, values in ASSUMPTIONS.items() if field not in defaults}
    assert load_assumptions("mine", **own) == load_assumptions("mine", **own | defaults)
    (tmp_path / "mine.yaml").write_text(dump_yaml({"set": "mine", **own}))
    (tmp_path / "e.yaml").write_text(DOJO.read_text().replace("[published, physical]", "[./mine.yaml]"))
    assert load_experiment(tmp_path / "e.yaml").assumptions == (load_assumptions("mine", **own),)


def test_shipped_sets_say_every_field():
    for file in (shipped_configs() / "assumptions").glob("*.yaml"):
        assert set(ASSUMPTIONS) <= set(yaml.safe_load(file.read_text())), file.name


def test_a_mapping_without_a_set_starts_from_physical(tmp_path):
    (tmp_path / "e.yaml").write_text(DOJO.read_text().replace("[published, physical]", "{hops: requests}"))
    assert [each.label for each in load_experiment(tmp_path / "e.yaml").assumptions] == ["physical+hops=requests"]


def test_documentation_agrees_with_the_table_of_assumptions():
    """docs/assumptions.md: '## `field`', then an item '- `value` (sets): meaning' for every value."""
    documented: dict[str, dict[str, tuple[str, str]]] = {}
    for line in (ROOT / "docs" / "assumptions.md").read_text().splitlines():
        if line.startswith("## `"):
            field = line.split("`")[1]
            documented[field] = {}
        elif item := re.match(r"- `(\w+)`(?: \((.*?)\))?: (.*)", line):
            value, sets, meaning = item.groups()
            documented[field][value] = (sets or "", meaning)
    expected = {
        field: {
            value: (", ".join(name for name, each in shipped_sets().items() if getattr(each, field) == value), meaning)
            for value, meaning in values.items()
        }
        for field, values in ASSUMPTIONS.items()
    }
    assert documented == expected


def test_published_utilisation():
    llama = published_utilisation("llama-4-maverick")
    assert (llama.hbm, llama.bounds, llama.values) == (0.85, (128, 256, 512, 1024), (0.65, 0.65, 0.72, 0.70, 0.65))
    assert published_utilisation("qwen3-235b-a22b").values == (0.7, 0.6, 0.7, 0.7, 0.69, 0.71, 0.70)
    deepseek = published_utilisation("deepseek-v3")
    assert (deepseek.hbm, deepseek.bounds) == (0.9, (128, 256, 512, 1024, 4096))
    assert deepseek == published_utilisation("kimi-k2") == published_utilisation("mixtral-8x7b")


# --- round trip -------------------------------------------------------------------------------------------------------

ROUND_TRIPS = {
    "as shipped": [],
    "uneven numbers": ["systems.0.d2d.bandwidth=1.2345678901234 TB/s", "systems.0.hbm.latency=0.1 ns",
                       "systems.0.hbm.reserved=1 %"],
    "changed assumptions": ["assumptions=[{set: published, ties: sequence}, physical]"],
    "top n": ["policies=[base, {name: on, preset: pred, prediction: {top_n: 3}}]"],
    "name like a number": ["name='1e3'"],
}  # fmt: skip


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_resolved_experiment_loads_again_as_an_equal_one(tmp_path, case):
    experiment = load_experiment(DOJO, ROUND_TRIPS[case])
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        dump_yaml({"manifest": {"version": "0.2.0", "anything": [1, {"x": None}]}} | experiment.resolved())
    )
    again = load_experiment(manifest)
    assert again == experiment
    assert [each.label for each in again.assumptions] == [each.label for each in experiment.assumptions]
    assert dump_yaml(again.resolved()) == dump_yaml(experiment.resolved())


def test_specs_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_system("dojo").name = "other"
    assert SystemSpec.model_config["frozen"]


# --- command line -----------------------------------------------------------------------------------------------------


def test_check(capsys):
    assert main(["check", str(DOJO), "--set", "workload.batch=[64]"]) == 0
    said = f"{DOJO}: ok, 1 system × 2 models × 1 batch × 5 policies × 2 assumption sets = 20 runs. To simulate: about "
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize(("file", "kind"), [
    ("calibrations/h100.yaml", "calibration"),
    ("traffic/kimi-k2.yaml", "traffic preset of kimi-k2"),
    ("models/olmoe-1b-7b.yaml",
     "model\n  6.9 billion parameters (1.2 used per token), KV cache of 131.1 kB per token in BF16"),
    ("systems/dojo.yaml", "system: 25 dies, 5 × 5 mesh\n  links: 1.5 TB/s, 200 ns per link"),
])  # fmt: skip
def test_check_takes_every_kind(capsys, file, kind):
    path = shipped_configs() / file
    assert main(["check", str(path), "-v"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path}: ok, a valid {kind}\n")
    ranges = [line.split()[0] for line in said.splitlines() if "  uniform  " in line]
    assert ("hbm.efficiency" in ranges) is (file == "systems/dojo.yaml")


def test_what_experiments_ask_is_wrapped_not_cut(capsys):
    assert main(["list", "experiments"]) == 0
    said = capsys.readouterr().out
    assert "…" not in said and max(map(len, said.splitlines())) < 150
    assert "what it costs, and when it is not worth it" in " ".join(said.split())


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("systems", named_files("systems")),
        ("models", named_files("models")),
        ("policies", PRESETS),
        ("assumptions", [f"{field}:" for field in ASSUMPTIONS]),
        pytest.param(
            "calibrations",
            [file.stem for file in (shipped_configs() / "calibrations").glob("*.yaml")],
            marks=pytest.mark.nightly,
        ),  # reads all of them
        ("traffic", [file.stem for file in (shipped_configs() / "traffic").glob("*.yaml")]),
    ],
)
def test_list(capsys, what, names):
    assert main(["list", what]) == 0
    assert set(names) <= set(capsys.readouterr().out.split())


def _loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running ``code``."""
    probe = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stderr.split())


def test_specs_stay_light_and_help_waits_for_no_import():
    specs = "import archsim.specs.library, archsim.specs.describe, archsim.specs.assumptions"
    shown = "import archsim.cli.main\ntry: archsim.cli.main.main(['--help'])\nexcept SystemExit: pass"
    heavy = {"numpy", "numba", "pandas", "vl_convert", "pyarrow"}
    for code, light, absent in ((specs, "pydantic", heavy), (shown, "argparse", heavy | {"pydantic", "yaml", "rich"})):
        loaded = _loaded_by(code)
        assert light in loaded and not loaded & absent


def test_public_names():
    assert archsim.load_experiment is load_experiment
    with pytest.raises(AttributeError, match="no attribute 'load_experimnt'"):
        _ = archsim.load_experimnt


def test_shipped_configs_are_found():
    assert (shipped_configs() / "dojo.yaml").is_file()


# ---- A file is known by its keys: which kind it is, and where a file of another kind than asked for belongs.


def test_every_shipped_file_is_of_the_kind_of_its_folder():
    kinds = {
        "systems": "system",
        "models": "model",
        "assumptions": "assumption set",
        "calibrations": "calibration",
        "traffic": TRAFFIC,
        "papers": "paper",
        "fabrics": "calibration of a fabric",
        "uncertainty": "file of widths",
    }
    every = sorted(file for file in shipped_configs().rglob("*.yaml") if file.parent.parent.name != "calibrations")
    # those of `archsim serve` are its own
    files = [file for file in every if file.parent.name != "serving" and not file.stem.startswith("serve_")]
    folders = {file: file.relative_to(shipped_configs()).parts[0] for file in files}
    assert {kinds.get(folder, EXPERIMENT) for folder in folders.values()} == {*kinds.values(), EXPERIMENT}
    for file, folder in folders.items():
        assert kind_of(read_yaml(file).data) == kinds.get(folder, EXPERIMENT), file


# ---- Units that are not those of a quantity, and digits that are none: refused, with what to write instead.

SERVE = {"system": "h200_node", "model": "qwen3-235b-a22b"}
LENGTHS = {"input": {"fixed": 8}, "output": {"fixed": 8}}


@pytest.mark.parametrize("read", [
    lambda: load_serving(SERVE | {"requests": LENGTHS | {"arrivals": {"rate": "４/s"}}}),
    lambda: load_serving(SERVE | {"requests": LENGTHS | {"concurrency": "４"}}),
    lambda: load_serving("serve_h200", ["requests.count=４"]), lambda: load_serving("serve_h200", ["slo.ttft=４ s"]),
    lambda: load_experiment("dojo", ["systems.0.mesh=５x5"]),
    lambda: load_experiment("dojo", ["workload.batch=[６４]"]),
    lambda: load_experiment("dojo", ["systems.0.hbm.capacity=３２ GB"]),
    lambda: load_experiment("dojo", ["systems.0.hbm.reserved=１０ %"]),
])  # fmt: skip
def test_full_width_digits_are_refused_alike(read):
    with pytest.raises(SpecError, match="[０-９]: write digits as 0 to 9"):
        read()


RANGES = [
    {"from": "1 TB/s", "to": "4 TB/s"}, {"from": "50 ns", "to": "240 ns", "scale": "log"}, {"from": 1, "to": 64},
    {"from": -0.001, "to": 0.002}, {"from": 0.25, "to": 1e6, "scale": "log"}, {"from": "1 KiB", "to": "3 MiB"},
    {"from": 1, "to": 4096, "scale": "log"},
]  # fmt: skip


@pytest.mark.parametrize("given", RANGES, ids=str)
def test_numbers_of_a_sample_are_those_of_its_values_one_by_one(given):
    of, shares = read_range(given), np.append(np.random.default_rng(1).random(300), [0.0, 1 / 3, 0.5, 0.9999999])
    found, alone = of.numbers(shares), [of.number(share) for share in shares.tolist()]
    assert list(map(repr, found)) == list(map(repr, alone))


# ---- Where values were given, over other files, and of how many a file may be.

PLACES_EXPERIMENT = """\
name: x
systems:
- like: dojo
  name: mine
  mesh: 0x5
models: [olmoe-1b-7b]
workload: {trace: {synthetic: {}}, batch: [8]}
policies: [ep]
"""


def test_a_value_over_a_shipped_mapping_is_named_by_its_own_line(tmp_path):
    (tmp_path / "x.yaml").write_text(PLACES_EXPERIMENT)
    with pytest.raises(SpecError, match=r"x\.yaml:5: systems\.0\.mesh\.x: 0 "):
        load_experiment(tmp_path / "x.yaml")


# ---- Attention geometry of models: published parameter counts, hand cases of the KV cache, and what is refused.


@table_of(__file__, "parameters")
def test_parameters_are_the_published_count(name, published):
    model = load_model(name)
    assert model.missing_geometry == ()
    assert model.all_weights == pytest.approx(published * 1e9, rel=0.01)


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


@given(name=st.sampled_from(named("parameters")), context=st.integers(0, 10**6), more=st.integers(0, 10**5))
def test_a_longer_context_never_takes_less(name, context, more):
    model = load_model(name)
    assert model.kv_bytes(context) <= model.kv_bytes(context + more) <= (context + more) * model.kv_bytes_per_token()


def test_a_model_without_geometry_is_valid_and_says_what_is_missing():
    model = load_model("deepseek-v3").model_copy(update={"attention": None, "dense_ffn": None, "vocabulary": None})
    assert model.missing_geometry == ("attention", "vocabulary", "dense_ffn")
    with pytest.raises(SpecError, match="deepseek-v3.*`attention:`"):
        model.kv_bytes_per_token()
    with pytest.raises(SpecError, match="attention, vocabulary, dense_ffn"):
        _ = model.dense_weights


def test_check_tells_what_a_model_holds(tmp_path):
    model = load_model("deepseek-v3")
    told = "671.0 billion parameters (36.6 used per token), KV cache of 70.3 kB per token in BF16"
    assert summary(model).endswith(told)
    bare = model.model_copy(update={"attention": None})
    assert summary(bare).endswith("Only its experts are counted in memory, as the file does not give attention.")
    write_model(bare, tmp_path / "bare.yaml")
    assert load_model(str(tmp_path / "bare.yaml")).missing_geometry == ("attention",)
    write_model(model, tmp_path / "whole.yaml")
    assert load_model(str(tmp_path / "whole.yaml")).all_weights == model.all_weights


def test_many_numbers_are_rounded_as_their_text_is_read():
    """Six significant digits; near a half, of no size at all and of great size, too."""
    drawn = np.random.default_rng(0)
    numbers = drawn.choice([-1, 1], 3000) * 10 ** drawn.uniform(-14, 26, 3000)
    halves = np.array([123456.5, 0.1234565, 999999.5, 99999.95, 1e22, 1e5, 0.1, 1.0, 0.0, 1e300])
    every = np.concatenate([numbers, halves, -halves, np.round(numbers, 3), np.arange(0.0005, 1, 1 / 1024)])
    assert axis_values._short(every).tolist() == [float(f"{number:.6g}") for number in every.tolist()]


@pytest.mark.parametrize(("name", "model"), [
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
    ("nvidia/DeepSeek-R1-FP4", "deepseek-v3"),
    ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
    ("RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b"),
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ("openai/gpt-oss-120b", "gpt-oss-120b"),
])  # fmt: skip
def test_a_checkpoint_of_hugging_face_is_a_model(name, model):
    assert load_model(name).name == model


@pytest.mark.parametrize(("name", "said"), [
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "archsim new --from"),
    ("Qwen/Qwen3-33B", "did you mean 'qwen3-32b'"),
    ("Qwen/Qwen3-32B-AWQ", "weights in AWQ"),
    ("models/none.yaml", "no such file"),
])  # fmt: skip
def test_another_checkpoint_is_refused(name, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        load_model(name)


def test_the_precision_of_a_checkpoint_is_that_of_serving_and_has_to_be_that_of_an_experiments_system():
    requests = {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 12}, "count": 12}
    file = {"system": "h200_node", "engine": "vllm", "requests": requests}
    for name, dtype in (("Qwen/Qwen3-32B-FP8", "fp8"), ("Qwen/Qwen3-30B-A3B-FP8", "fp8_block")):
        read = load_serving(file | {"model": name})
        assert (read.spec.precision.products, read.spec.precision.experts) == (dtype, dtype)
        again = load_serving(dict(read.given))  # as from a manifest
        assert (again.model.name, again.spec.precision) == (read.model.name, read.spec.precision)
        own = load_serving(file | {"model": name, "precision": {"products": "bf16"}})
        assert own.spec.precision.products == "bf16"
    assert load_serving(file | {"model": "Qwen/Qwen3-32B"}).spec.precision.products is None
    for name, own, kept in (
        ("Qwen/Qwen3-32B-FP8", {"bf16": ["attention_inputs"]}, ("attention_inputs",)),
        ("nvidia/DeepSeek-R1-FP4", {}, ("attention_inputs", "attention_output")),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", {}, ("attention_inputs",)),
        ("nvidia/DeepSeek-R1-FP4", {"bf16": []}, ()),
    ):
        read = load_serving(file | {"model": name, "precision": own})
        for each in (read, load_serving(dict(read.given))):
            assert each.spec.precision.dtypes("bf16", read.model).kept == kept
    experiment = {"name": "x", "systems": ["h200_node"], "policies": ["ep"],
                  "workload": {"trace": {"synthetic": {}}, "batch": [64]}}  # fmt: skip
    assert load_experiment(experiment | {"models": ["zai-org/GLM-4.5-FP8"]}).models[0].name == "glm-4.5"
    with pytest.raises(SpecError, match="models.0: 'zai-org/GLM-4.5-BF16'"):
        load_experiment(experiment | {"models": ["zai-org/GLM-4.5-BF16"]})

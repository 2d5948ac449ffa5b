"""The table of keys that runs do not read says nothing false: under its condition, a changed key changes no result."""

import math
from copy import deepcopy
from fnmatch import fnmatchcase

import pytest

import archsim as ar
from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.specs.library import load_experiment, load_planned
from archsim.specs.unread import ROWS, keys_of

SYSTEM = {
    "name": "small", "source": "made up", "mesh": {"x": 3, "y": 2}, "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
    "d2d": {"bandwidth": "1 TB/s"}, "llc": {"capacity": "2 MiB", "segment": "64 KiB"},
    "compute": {"peak": "300 TFLOP/s", "dtype": "bf16"}, "launch": "local_cp",
}  # fmt: skip
RING = {key: value for key, value in SYSTEM.items() if key not in ("mesh", "d2d")} | {
    "fabric": {"levels": [{"ring": 4, "bandwidth": "1 TB/s", "hop_latency": "100 ns"}]}
}
MODEL = {
    "name": "toy", "source": "made up", "layers": 3, "moe_layers": {"first": 1, "last": 2}, "hidden": 512,
    "expert_ffn": 256, "experts": 16, "top_k": 2, "shared_experts": 1, "vocabulary": 1000, "dense_ffn": 512,
    "attention": {"heads": 8, "kv_heads": 2, "head_dim": 64},
}  # fmt: skip
H100 = {"like": "h100_node", "name": "node"}
GROUPS = {"assumptions": {"execution": "expert_parallel", "transfer_software": "free", "gemm": "grouped"}}
FREE = {"assumptions": {"decision_cost": "free"}}
# Pattern of keys → (a key and its other value, what makes it dead: parts of the experiment). Keys are as in ROWS.
CASES = [
    ("system.compute.efficiency", 0.3, {"assumptions": {"gemm": "grouped"}}),
    ("system.compute.efficiency", 0.3, {"assumptions": {"gemm": "calibrated"}}),
    ("system.compute.efficiency", 0.3, {"assumptions": {"gemm": "tables"}, "model": {"name": "deepseek-v3"}}),
    ("system.compute.kernel_factor", 2.0, {"assumptions": {"gemm": "roofline"}}),
    *[(f"system.compute.kernels.{kernel}", 2.0, {"assumptions": {"gemm": "roofline"}})
      for kernel in ("permute", "quantise", "finalise", "multiply")],
    ("system.dies_as_built.router", "bypass", {"system": {"dies_as_built": {"router": "dead"}}}),
    *[(f"system.drawn.{key}", value, {"system": {"drawn": {"defects_per_cm2": 0}}})
      for key, value in (("cluster", 3.0), ("die_area", "500 mm2"), ("core_area", "5 mm2"), ("wafers", 3),
                         ("seed", 7))],
    ("system.compute.kernels.single", 2.0, {"assumptions": {"gemm": "roofline"}}),
    ("system.compute.lanes", 64, {}),
    ("system.compute.clock", "1 GHz", {}),
    ("system.compute.library", "vllm", {"assumptions": {"gemm": "roofline"}}),
    ("system.compute.calibration", "b200", {"assumptions": {"gemm": "roofline"}}),
    ("system.hbm.efficiency", 0.3, {"assumptions": {"gemm": "tables"}, "model": {"name": "deepseek-v3"}}),
    *[("system.llc." + key, value, GROUPS) for key, value in
      (("ways", 4), ("hit", "900 ns"), ("miss", "900 ns"), ("write", "900 ns"), ("segment", "32 KiB"))],
    *[("assumptions." + key, value, GROUPS) for key, value in
      (("llc", "slices"), ("reads", "together"), ("source", "queued"), ("order", "as_created"),
       ("arbitration", "round_robin"), ("rate_updates", "per_round_trip"))],
    ("system.hbm.latency", "900 ns", GROUPS),
    ("system.d2d.request", "64 B", GROUPS),
    ("system.llc.ways", 4, {}),
    ("system.llc.segment", "32 KiB", {"assumptions": {"llc": "slices"}}),
    *[("assumptions." + key, value, {"assumptions": {"contention": "reserved"}}) for key, value in
      (("arbitration", "round_robin"), ("reads", "together"), ("rate_updates", "per_round_trip"))],
    ("assumptions.ties", "heapq", {}),
    ("assumptions.ties", "heapq", {"assumptions": {"contention": "reserved"}, "engine": "analytical"}),
    ("assumptions.arbitration", "round_robin", {"engine": "analytical"}),
    ("assumptions.rate_updates", "per_round_trip", {"engine": "analytical"}),
    ("assumptions.overlap", "two_batch", {}),
    ("assumptions.combine", "weights_dtype", {"assumptions": {"activations": "ignored"}}),
    ("assumptions.transfer_software", "free", {"assumptions": {"activations": "ignored"}}),
    ("assumptions.combine", "weights_dtype", {"assumptions": GROUPS["assumptions"] | {"activations": "ignored"}}),
    ("assumptions.transfer_software", "charged", {"assumptions": GROUPS["assumptions"] | {"activations": "ignored"}}),
    ("assumptions.dispatch", "per_token_expert", {"assumptions": {"activations": "replicated"}}),
    *[("assumptions." + key, value, {}) for key, value in
      (("heatmap_update", "free"), ("prediction_rows", "until_own_id"), ("copy_writes", "barrier"),
       ("tables", "unbounded"), ("migration", "blocking"))],
    ("assumptions.weights", "routed", {"model": {"shared_experts": 0}}),
    ("assumptions.numbering", "column_major", {"system": RING}),
    ("assumptions.endpoint", "as_measured", {"system": H100}),
    ("system.d2d.measured_factor", 2.0, {}),
    ("system.d2d.off_carrier.bandwidth", "1 GB/s", {"assumptions": {"carriers": "one"}}),
    *[("system.decision." + key, value, {}) for key, value in
      (("firmware.clock", "1 GHz"), ("firmware.core", "a72"), ("firmware.ipc", 0.5), ("firmware.per_candidate", 99),
       ("host.time", "9 us"), ("host.launch", "9 us"), ("gpu.launch", "9 us"), ("gpu.operations_per_ns", 10.0))],
    *[("system.decision.fsm." + key, value, {"system": {"decision": {"executor": "firmware"}}, "policy": "allo-paper"})
      for key, value in (("sorter", "merge"), ("pipeline", 0), ("cost_quantum", "10 ns"))],
    *[("system.decision." + key, value, FREE | {"system": {"decision": {"executor": key.partition(".")[0]}},
                                                "policy": "allo-paper"})
      for key, value in (("host.launch", "9 us"), ("gpu.launch", "9 us"), ("firmware.ipc", 0.5),
                         ("firmware.per_candidate", 99), ("fsm.cost_quantum", "10 ns"))],
    ("workload.seed", 5, {}),
    ("workload.attention_weights", "sharded", {"assumptions": {"memory": "experts"}}),
    ("assumptions.combine", "weights_dtype", {}),
    ("system.hbm.reserved", 0.3, {"assumptions": {"capacity": "unbounded"}}),
    ("system.hbm.reserved", 0.3, {"assumptions": {"capacity": "unbounded"}, "policy": "allo+pred"}),
    ("system.decision.fsm.cost_quantum", "10 ns", {"policy": "allo"}),
    *[("policy.replication." + key, value, {"policy": {"name": "mine", "allocation": "even",
                                                       "replication": {"name": "lina", "accuracy": 0.8}}})
      for key, value in (("path_length", 2), ("sample_tokens", 7))],
]  # fmt: skip


def experiment_of(choice, key=None, value=None):
    system = choice.get("system", {})
    system = deepcopy(system if {"like", "name"} & set(system) else SYSTEM | system)
    policy = choice.get("policy", "ep")
    parts = {
        "system": system, "model": MODEL | choice.get("model", {}), "assumptions": dict(choice.get("assumptions", {})),
        "policy": dict(policy) if isinstance(policy, dict) else {"preset": policy, "name": "mine"},
        "workload": {"trace": {"synthetic": {"prompt_tokens": 3}}, "batch": 12, "decode_steps": 2},
    }  # fmt: skip
    if key is not None:
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


BEFORE = {}


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda at: f"{CASES[at][0]}-{at}")
def test_a_key_that_is_told_as_unread_changes_no_result(case):
    key, value, choice = CASES[case]
    given = experiment_of(choice, key, value)
    assert key in keys_of(load_experiment(given).unread)
    before = BEFORE.setdefault(repr(choice), None) or numbers(experiment_of(choice))
    BEFORE[repr(choice)] = before
    after = numbers(given)
    assert {name: (each, after[name]) for name, each in before.items() if after[name] != each} == {}


def test_every_row_of_the_table_has_a_case():
    keys = {case[0] for case in CASES}
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
    file.write_text(dump_yaml(experiment_of({}, "assumptions.overlap", "two_batch")), encoding="utf-8")
    for at in (file, tmp_path / "out" / "manifest.yaml"):
        assert main(["sweep", str(at), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
        assert "note: assumptions.overlap is not read: " in capsys.readouterr().err
        assert "assumptions.overlap is not read: " in (tmp_path / "out" / "files.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["ablate", "optimum", "why", "compare"])
def test_every_command_that_reads_an_experiment_tells_what_it_does_not_read(command, tmp_path, capsys):
    """An axis of a sweep of which only the first value runs, and a key that no run reads."""
    file, given = tmp_path / "given.yaml", experiment_of({}, "system.llc.ways", 4)
    given |= {"policies": ["base", "ep"], "sweep": {"grid": {"system.hbm.latency": ["100 ns", "200 ns"]}}}
    file.write_text(dump_yaml(given), encoding="utf-8")
    more = {
        "ablate": [str(file), "--jobs", "1", "--from", "physical", "--to", "physical+activations=ignored"],
        "optimum": [str(file), "--steps", "1"],
        "why": [str(file), "--policy", "ep"],
        "compare": ["base", "ep", "--in", str(file)],
    }
    if command == "ablate":
        given["assumptions"] = ["physical", {"set": "physical", "activations": "ignored"}]
        file.write_text(dump_yaml(given), encoding="utf-8")
    out = [] if command == "why" else ["--out", str(tmp_path / "out")]
    assert main([command, *more[command], *out]) == 0
    told = capsys.readouterr().err
    assert "system.llc.ways is not read: llc: segments" in told
    assert "system.hbm.latency is not read: `archsim sweep`" in told
    assert not out or "llc.ways is not read" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")

# ruff: noqa: E501  (one row a case: a table is read across)

"""Sweeps: what axes, samples and constraints say, that points are what they say, and that results stream and are
found again.
"""

import re

import numpy as np
import pytest
from pyarrow import parquet
from support.dask_processes import Cluster
from support.sweeps import file_of, one_of_everything, points_of
from support.tiny import TINY, archsim
from support.watching import Heard

from archsim.base.errors import ArchsimError, CapacityError, SpecError
from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.runs import plan as planning
from archsim.runs import store
from archsim.runs import sweep as sweeping
from archsim.runs.plan import RunMaker, prepare, select
from archsim.runs.sweep import Unwatched, sweep
from archsim.specs.constraints import parse_constraint
from archsim.specs.library import load_experiment, load_planned
from archsim.specs.plan import SweepPlan
from archsim.specs.variants import in_words


def plan_of(folder, sweep, *overrides):
    return load_planned(file_of(folder, sweep), overrides)


@pytest.mark.parametrize(("text", "holds"), [
    ("a <= 2", True),
    ("a < 2", False),
    ("1 < a <= 2 < b", True),
    ("a + 1 >= b and b > a", True),
    ("a * (b - 1) == 4", True),
    ("b / a < 1.5", False),
    ("-a < 0", True),
    ("size == 1 kB and 1 TB/s == 1000 GB/s", True),
    ("word == torus", True),
    ("word != 'torus'", False),
    ("inside fits", True),
    ("nothing > 5", True),
])  # fmt: skip
def test_constraints_mean_what_they_say(text, holds):
    values = {"a": 2, "b": 3, "size": 1000, "word": "torus", "torus": "torus", "inside": True, "nothing": None}
    assert parse_constraint(text).holds(values.__getitem__) is holds


def test_every_combination_is_a_point_once(tmp_path):
    sweep = "  grid: {mesh: [3x2, 2x2], hbm: {bandwidth: [1 TB/s, 2 TB/s]}, topology: [mesh, ring]}\n"
    plan = plan_of(tmp_path, sweep, "policies=[base, ep]")
    points, dropped = points_of(plan)
    assert plan.combinations == 8 * 2 * 2 * 2 and dropped.total + len(points) == plan.combinations
    seen = {
        (
            p.system.mesh.x,
            p.system.hbm.bandwidth_bytes_per_s,
            p.system.topology.name,
            p.system.source,
            p.batch,
            p.policy.name,
        )
        for p in points
    }
    assert len(seen) == 8 * 2 * 2
    # The two systems of the experiment differ in their mesh, which the axis replaces: but their names differ, too.
    assert len(points) == plan.combinations
    assert [plan.point(p.index).system.name for p in points] == [p.system.name for p in points]
    assert load_experiment(tmp_path / "tiny.yaml", ["policies=[base, ep]"]) == plan.experiment


def test_linked_axes_move_together_and_groups_multiply(tmp_path):
    sweep = (
        "  zip:\n  - {mesh: [3x2, 4x2, 5x2], llc.capacity: [1 MiB, 2 MiB, 3 MiB]}\n  - {d2d.bandwidth: [1 TB/s, 2 "
        "TB/s], compute.dtype: [fp8, fp16]}\n"
    )
    points, _ = points_of(one_of_everything(tmp_path, sweep))
    assert [(p.system.mesh.x, p.system.llc.capacity_bytes >> 20) for p in points] == [
        (3, 1),
        (3, 1),
        (4, 2),
        (4, 2),
        (5, 3),
        (5, 3),
    ]
    assert {(p.system.d2d.bandwidth_bytes_per_s, p.system.compute.dtype) for p in points} == {
        (1e12, "fp8"),
        (2e12, "fp16"),
    }


SAMPLED = (
    "  sample: {{method: {}, count: 16, seed: {}, over: {{hbm.bandwidth: {{from: 1 TB/s, to: 16 TB/s, scale: log}}, "
    "decision.fsm.lanes: {{from: 1, to: 16}}, topology: [mesh, torus]}}}}\n"
)


@pytest.mark.parametrize("method", ["latin_hypercube", "sobol"])
def test_samples_are_seeded_and_fill_every_stratum(tmp_path, method):
    points, other = (points_of(one_of_everything(tmp_path, SAMPLED.format(method, seed)))[0] for seed in (3, 4))
    again, _ = points_of(one_of_everything(tmp_path, SAMPLED.format(method, 3)))
    values = [(p.system.hbm.bandwidth_bytes_per_s, p.system.decision.fsm.lanes, p.system.topology.name) for p in points]
    assert values == [
        (p.system.hbm.bandwidth_bytes_per_s, p.system.decision.fsm.lanes, p.system.topology.name) for p in again
    ]
    assert values != [
        (p.system.hbm.bandwidth_bytes_per_s, p.system.decision.fsm.lanes, p.system.topology.name) for p in other
    ]
    bandwidth, lanes, names = zip(*values, strict=True)
    assert sorted(np.floor(np.log2(np.array(bandwidth) / 1e12) * 4).astype(int)) == list(range(16))
    assert sorted(lanes) == list(range(1, 17)) and names.count("torus") == 8


def test_any_part_may_vary(tmp_path):
    sweep = (
        "  zip:\n    system: [dojo, {like: dojo, name: slow, hbm: {latency: 1 us}}]\n    model: [qwen3-235b-a22b, "
        "deepseek-v3]\n"
        "    policy: [ep, {preset: allo, name: blocks, allocation: {block_tokens: 9}}]\n    assumptions: [published, "
        "{set: physical, contention: reserved}]\n"
        "    workload.batch: [8, 16]\n    workload.trace.synthetic.popularity_skew: [0.0, 1.0]\n    workload.seed: "
        "[1, 2]\n    engine: [event, event]\n"
    )
    bare = "name: x\nworkload: {trace: {synthetic: {}}, decode_steps: 2}\n"
    plan = load_planned(file_of(tmp_path, sweep, bare))
    first, second = points_of(plan)[0]
    assert (first.system.name, second.system.name, second.system.hbm.latency_ns) == ("dojo", "slow", 1000)
    assert (first.model.name, second.model.name) == ("qwen3-235b-a22b", "deepseek-v3")
    assert second.policy.allocation.params["block_tokens"] == 9 and first.policy.name == "ep"
    assert (first.assumptions.label, second.assumptions.label) == ("published", "physical+contention=reserved")
    assert (first.batch, second.batch, first.workload.seed) == (8, 16, 1)
    assert [p.workload.trace.synthetic.popularity_skew for p in (first, second)] == [0, 1]


def test_a_parameter_leaves_policies_without_it_as_they_are(tmp_path):
    plan = plan_of(
        tmp_path, "  grid: {policy.allocation.block_tokens: [4, 8]}\n", "workload.batch=12", "policies=[base, allo]"
    )
    points, dropped = points_of(plan)
    assert dropped.repeats == 2 and len(points) == 2 * (1 + 2)
    cells = {(p.variants["policy"].name, plan.cells(p)["axis.policy.allocation.block_tokens"]) for p in points}
    assert cells == {("base", None), ("allo", 4), ("allo", 8)}
    assert {p.policy.name for p in points if p.variants["policy"].name == "base"} == {"base"}


def test_what_follows_from_a_key_follows_its_axis(tmp_path):
    plan = one_of_everything(tmp_path, "  grid: {decision.firmware.core: [a72, a76], model.expert_ffn: [256, 128]}\n")
    points, _ = points_of(plan)
    assert {(p.system.decision.firmware.core, p.system.decision.firmware.clock_hz) for p in points} == {
        ("a72", 2.5e9),
        ("a76", 3e9),
    }
    assert all(p.model.shared_ffn == p.model.expert_ffn for p in points)


def test_equal_parts_have_equal_names_in_any_sweep(tmp_path):
    one = one_of_everything(tmp_path, "  grid: {mesh: [2x2, 4x2], hbm.bandwidth: [1 TB/s]}\n")
    other = one_of_everything(tmp_path, "  grid: {hbm.bandwidth: [2 TB/s, 1 TB/s], mesh: [4x2]}\n")
    names = [{p.system.name: p.system for p in points_of(plan)[0]} for plan in (one, other)]
    (shared,) = names[0].keys() & names[1].keys()
    assert names[0][shared] == names[1][shared] and shared.startswith("small.")


def test_constraints_drop_what_breaks_them_and_count_it(tmp_path):
    sweep = (
        "  grid: {mesh: [2x2, 4x2, 8x2], hbm.bandwidth: [1 TB/s, 2 TB/s, 4 TB/s]}\n  where: [dies <= 8, hbm.bandwidth "
        ">= 2 * d2d.bandwidth, policy == base]\n"
    )
    points, dropped = points_of(one_of_everything(tmp_path, sweep))
    assert [(p.system.dies, p.system.hbm.bandwidth_bytes_per_s) for p in points] == [
        (4, 2e12),
        (4, 4e12),
        (8, 2e12),
        (8, 4e12),
    ]
    assert dropped.by_constraint == {"dies <= 8": 3, "hbm.bandwidth >= 2 * d2d.bandwidth": 2}


def test_a_combination_that_cannot_be_is_told_with_its_point(tmp_path):
    edges = "{name: edges, edges: [[0, 1], [1, 2], [2, 3]]}"
    plan = one_of_everything(
        tmp_path,
        "  grid: {topology: [mesh, ring], mesh: [2x2, 3x2]}\n  zip: {compute.dtype: [fp8]}\n".replace("ring", "torus"),
    )
    assert len(points_of(plan)[0]) == 4
    with pytest.raises(SpecError, match="no route from die 0 to dies 4, 5"):
        one_of_everything(tmp_path, f"  grid: {{topology: [{edges}], mesh: [2x2, 3x2]}}\n")
    head = (
        "name: x\nworkload: {trace: {synthetic: {}}, batch: 4}\nmodels: [qwen3-235b-a22b]\npolicies: [base]\nsystems: "
        "[{like: dojo, name: d, mesh: 2x2}]\n"
    )
    plan = load_planned(file_of(tmp_path, f"  grid: {{topology: [{edges}], mesh: [2x2, 3x2]}}\n", head))
    with pytest.raises(
        SpecError, match=r"no route from die 0 to dies 4, 5.* \(point 1: system.topology .*, system.mesh 3x2\)"
    ):
        points_of(plan)


SWEEP = "  grid: {mesh: [3x2, 2x2], topology: [mesh, switch], policy.allocation.block_tokens: [4, 512]}\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(plan, folder of its results), in parts of 7."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "PART_RUNS", 7)
        plan = plan_of(folder, SWEEP, *OF_ONE_SYSTEM)
        sweep(plan, folder / "out", 1, Unwatched())
    return plan, folder / "out"


OF_ONE_SYSTEM = ("workload.batch=[12]", "policies=[base, allo]", "details=dropped")


def rows_of(folder):
    return parquet.read_table(folder / "results.parquet").to_pylist()


def test_results_have_a_row_for_every_point_with_its_axes(swept):
    plan, folder = swept
    points, _ = points_of(plan)
    rows = rows_of(folder)
    assert [row["point"] for row in rows] == [p.index for p in points]
    for row, point in zip(rows, points, strict=True):
        assert row["axis.system.mesh"] == f"{point.system.mesh.x}x{point.system.mesh.y}"
        assert row["axis.system.topology"] == point.system.topology.name and row["batch"] == point.batch
        assert (row["speedup_vs_base"] == 1) == (row["policy"] == "base") and row["speedup_vs_base"] > 0
    assert len(list((folder / "parts").iterdir())) == -(-len(points) // 7)
    assert not list((folder / "runs").iterdir())


def test_a_point_is_an_experiment_that_can_be_run_alone(swept, tmp_path):
    plan, folder = swept
    row = rows_of(folder)[-1]
    file = tmp_path / "point.yaml"
    file.write_text(dump_yaml(plan.resolved(plan.point(row["point"]))), encoding="utf-8")
    alone = load_experiment(file)
    assert prepare(alone).runs[0].key == row["run"] == RunMaker().runs([plan.point(row["point"])])[0].key
    (result,) = sweep(alone, tmp_path / "out", jobs=1).runs.rows
    differ = {name for name, value in result.items() if value != row[name]}
    assert differ <= {"speedup_vs_base"}, "base is not in the experiment of one point"


def test_results_do_not_depend_on_what_was_kept_or_on_the_parts(swept, tmp_path, monkeypatch):
    plan, folder = swept
    out = tmp_path / "out"
    monkeypatch.setattr(sweeping, "PART_RUNS", 7)
    monkeypatch.setattr(store, "WORTH_S", np.inf)
    monkeypatch.setattr(sweeping, "KEPT_ALONE_S", 0.0)
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, out, 1, Heard(stop=10))
    assert not (out / "results.parquet").exists()
    assert len(list((out / "parts").iterdir())) == 1 and len(list((out / "runs").iterdir())) == 3
    heard = Heard()
    sweep(plan, out, 1, heard)
    assert heard.ended == len(rows_of(folder)) - 10
    assert (out / "results.parquet").read_bytes() == (folder / "results.parquet").read_bytes()
    part = sorted((out / "parts").iterdir())[1]
    whole = part.read_bytes()
    for torn, again in ((whole[:-100], 7), (whole[:100] + bytes(100) + whole[200:], 14)):
        part.write_bytes(torn)
        sweep(plan, out, 1, heard)
        assert heard.ended == len(rows_of(folder)) - 10 + again
    assert (out / "results.parquet").read_bytes() == (folder / "results.parquet").read_bytes()


def test_a_run_that_another_sweep_has_made_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "WORTH_S", 0.0)
    heard = Heard()
    narrow = one_of_everything(tmp_path, "  grid: {mesh: [3x2, 2x2], hbm.bandwidth: [2 TB/s]}\n")
    wide = one_of_everything(tmp_path, "  grid: {hbm.bandwidth: [1 TB/s, 2 TB/s], mesh: [2x2, 3x2]}\n")
    sweep(narrow, tmp_path / "narrow", 1, heard)
    assert heard.ended == 2
    sweep(wide, tmp_path / "wide", 1, heard)
    assert heard.ended == 4
    shared = {row["run"]: row for row in rows_of(tmp_path / "narrow")}
    again = [row for row in rows_of(tmp_path / "wide") if row["run"] in shared]
    assert len(again) == 2
    for row in again:
        assert {k: v for k, v in row.items() if k != "point"} == {
            k: v for k, v in shared[row["run"]].items() if k != "point"
        }


@pytest.mark.nightly  # of the same bytes: test_cluster
def test_a_cluster_gives_the_same_rows(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs Dask: pip install 'archsim[cluster]'")
    plan = one_of_everything(tmp_path, "  grid: {mesh: [3x2, 2x2], topology: [mesh, switch]}\n")
    for out in ("here", "there"):
        monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / f"cache of {out}"))
        cluster = Cluster(tmp_path, workers=1) if out == "there" else None
        try:
            sweep(plan, tmp_path / out, 1, Unwatched(), cluster and cluster.address)
        finally:
            if cluster:
                cluster.end()
    assert (tmp_path / "here" / "results.parquet").read_bytes() == (tmp_path / "there" / "results.parquet").read_bytes()


def test_points_that_do_not_fit_are_told_before_anything_runs(tmp_path):
    sweep = "  grid: {assumptions: [physical], hbm.capacity: [1 MB, 4 GB], mesh: [2x2, 3x2]}\n"
    with pytest.raises(
        CapacityError,
        match=r"2 of 4 points do not fit .* point 0 \(.*1 MB.*\): toy .* too little.*where: \[hbm_capacity fits\]",
    ):
        select(one_of_everything(tmp_path, sweep))
    assert len(select(one_of_everything(tmp_path, f"{sweep}  where: hbm_capacity fits\n")).kept) == 2
    with pytest.raises(ArchsimError, match="no point is left of 4: dropped 4 by `dies > 99`"):
        select(one_of_everything(tmp_path, f"{sweep}  where: dies > 99\n"))


def test_a_dry_run_of_a_million_points_looks_at_a_sample_of_them(tmp_path, monkeypatch, capsys):
    looked_at = []
    point = SweepPlan.point
    monkeypatch.setattr(SweepPlan, "point", lambda plan, index: looked_at.append(index) or point(plan, index))
    linear = "{{from: 1 TB/s, to: 9 TB/s, linear: {}}}".format
    axes = f"{{hbm.bandwidth: {linear(1000)}, d2d.bandwidth: {linear(100)}}}"
    file = file_of(tmp_path, f"  grid: {axes}\n  where: hbm.bandwidth > d2d.bandwidth\n")
    assert main(["sweep", str(file), "--dry-run", "--set", "policies=[base]", "--set", "assumptions=physical"]) == 0
    said = capsys.readouterr().out
    assert "400,000 points" in said and "200 points were sampled and checked" in said
    about, error = map(int, re.search(r"Of these, (\d+)% ± (\d+)% would run", said).groups())
    assert abs(about - 50) <= 2 * error and len(looked_at) < 1000


def test_runs_of_variants_are_named_with_their_points(tmp_path):
    plan = one_of_everything(tmp_path, "  grid: {system.hbm.bandwidth: [1 TB/s, 2 TB/s]}\n")
    selection = select(plan)
    assert [run.name.partition(": ")[0] for run in selection.runs()] == [f"point {at}" for at in selection.kept]
    alone = load_experiment(plan.resolved(plan.point(1)))
    named, plain = selection.runs()[1], prepare(alone).runs[0]
    assert plain.name.startswith("small.")
    assert named.name == f"point 1: system.hbm.bandwidth 2 TB/s, {plain.name.partition(' ')[2]}"
    assert named == plain and named.key == plain.key


def test_mappings_are_shown_in_words(tmp_path):
    topologies = "[torus, {name: mesh, vertical: {bandwidth: 300 GB/s, hop_latency: 700 ns}}]"
    plan = one_of_everything(tmp_path, f"  grid: {{system.topology: {topologies}}}\n")
    shown = [plan.shown(point)["system.topology"] for point in points_of(plan)[0]]
    assert shown == ["torus", "mesh, vertical bandwidth 300 GB/s, vertical hop latency 700 ns"]
    assert in_words({"levels": [1, 2]}) == "{levels: [1, 2]}"


def test_commands(tmp_path):
    few = TINY.replace("[base, ep, allo, pred, allo+pred]", "[base, allo]").replace("[12, 40]", "12")
    file_of(tmp_path, f"{SWEEP}  where: [dies < 6]\n", few)
    assert "a sweep over 3 axes: 32 points, before 1 constraint" in archsim(tmp_path, "check", "tiny.yaml").stdout
    listed = archsim(tmp_path, "sweep", "tiny.yaml", "--dry-run").stdout
    assert "12 of 32 points would run." in listed and "12 are dropped by `dies < 6`" in listed
    assert "8 repeat another point" in listed
    point = archsim(tmp_path, "sweep", "tiny.yaml", "--point", "31").stdout
    (tmp_path / "point.yaml").write_text(point, encoding="utf-8")
    assert load_experiment(tmp_path / "point.yaml").runs == 1
    axis = "sweep={grid: {workload.batch: [4, 8]}}"
    batches = archsim(tmp_path, "sweep", "tiny.yaml", "--dry-run", "--set", axis).stdout
    heads = next(line for line in batches.splitlines() if line.split()[:1] == ["point"]).split()
    assert heads.count("batch") == 1 and "8" in batches
    assert "the sweep has 32" in archsim(tmp_path, "sweep", "tiny.yaml", "--point", "32").stderr
    swept = archsim(tmp_path, "sweep", "tiny.yaml", "--jobs", "1", "--out", "out")
    assert swept.returncode == 0, swept.stderr
    assert "highest decode throughput" in swept.stdout and "results: out/results.parquet" in swept.stdout
    again = archsim(tmp_path, "sweep", "out/manifest.yaml", "--jobs", "1", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "results.parquet").read_bytes() == (tmp_path / "out" / "results.parquet").read_bytes()


def test_an_analytical_sweep_carries_a_sample_of_the_event_engine(tmp_path):
    one_of_everything(tmp_path, "  grid: {engine: [analytical, event], hbm.bandwidth: [1 TB/s, 2 TB/s, 4 TB/s]}\n")
    swept = archsim(tmp_path, "sweep", "tiny.yaml", "--jobs", "1", "--out", "out")
    assert swept.returncode == 0, swept.stderr
    assert "3 of 3 points also run on the event engine" in swept.stdout
    assert "error of decode time" in swept.stdout and "median" in swept.stdout
    engines = parquet.read_table(tmp_path / "out" / "results.parquet", columns=["engine", "axis.engine"]).to_pylist()
    assert [row["engine"] for row in engines] == ["analytical"] * 3 + ["event"] * 3
    assert (tmp_path / "out" / "comparison.json").is_file()


@pytest.mark.nightly
def test_the_shipped_design_space_has_ten_thousand_points():
    from archsim.base.config_files import shipped_configs

    plan = load_planned(shipped_configs() / "design_space.yaml")
    selection = select(plan)
    assert len(selection.kept) >= 10_000 and selection.dropped.total == plan.combinations - len(selection.kept)
    assert {plan.point(index).system.topology.name for index in selection.kept[::97]} >= {
        "mesh",
        "torus",
        "switch",
        "fully_connected",
    }


def test_a_slow_first_point_of_many_is_no_estimate(monkeypatch):
    monkeypatch.setattr(planning, "_SAID_S", 0.0)
    told = []
    checked = planning._Checked(5000, told.append)
    for index in (0, 1000):
        checked.say(index)
    assert told[0] == "checking 5,000 points" and len(told) == 2 and told[1].startswith("checked 1,000 of 5,000 points")


# ---- Before anything runs: functions of users that build no fabric, and axes that change no link, are refused by
# name.

FUNCTIONS = """\
from archsim.extend import FabricDescription, LinkClass

ARM = LinkClass("arm", 1e11, 250.0)

def star(dies, gigabytes=100.0):
    return FabricDescription(nodes=dies + 1, edges=[(die, dies) for die in range(dies)], classes=[ARM])

def nowhere(dies):
    return FabricDescription(nodes=dies, edges=[(die, die + 1) for die in range(dies)], classes=[ARM])

def apart(dies):
    return FabricDescription(nodes=dies, edges=[(0, 1)], classes=[ARM])

def wrong(dies):
    return 5
"""
SYSTEM = """\
name: own
source: made up
topology: {name: "mine:NAME", dies: 6}
hbm: {bandwidth: 2 TB/s, capacity: 80 GB}
d2d: {bandwidth: 1 TB/s}
compute: {peak: 300 TFLOP/s, dtype: fp16}
"""
EXPERIMENT = """\
name: own
systems: [own.yaml]
models: [olmoe-1b-7b]
workload: {trace: {synthetic: {prompt_tokens: 3}}, batch: [12, 40], decode_steps: 2, layers: 2}
policies: [ep, allo]
assumptions: published
engine: analytical
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)

    def written(function, sweep=""):
        system = SYSTEM.replace("NAME", function)
        (tmp_path / "own.yaml").write_text(system)
        (tmp_path / "experiment.yaml").write_text(EXPERIMENT + sweep)
        return tmp_path

    return written


@pytest.mark.parametrize(("function", "said"), [
    ("nowhere", "mine:nowhere: edges[5, 1]: 6; expected 0 to 5"),
    ("apart", "mine:apart: no route from die 2 to die 0"),
    ("wrong", "mine:wrong: returns int without 'nodes'"),
])  # fmt: skip
@pytest.mark.parametrize("file", ["own.yaml", "experiment.yaml"])
def test_check_calls_own_topologies_and_reports_once(here, function, said, file):
    done = archsim(here(function), "check", file)
    assert done.returncode == 2 and done.stderr.count(said) == 1


@pytest.mark.parametrize("axis", ["d2d.bandwidth: [1 TB/s, 2 TB/s]", "d2d.hop_latency: [100 ns, 200 ns]"])
def test_an_axis_that_changes_no_link_is_refused(here, axis):
    done = archsim(here("star", f"sweep: {{grid: {{{axis}}}}}\n"), "sweep", "experiment.yaml", "--out", "out")
    name = axis.partition(":")[0]
    assert done.returncode == 2
    assert f"system.{name} changes no link of own: mine:star gives every class (arm) its own" in done.stderr


def test_an_axis_that_changes_a_link_runs(here):
    """The system's own mesh has the bandwidth of ``d2d``."""
    folder = here("star", "sweep: {grid: {d2d.bandwidth: [1 TB/s, 2 TB/s]}}\n")
    plain = SYSTEM.replace('topology: {name: "mine:NAME", dies: 6}', "mesh: {x: 3, y: 2}")
    (folder / "own.yaml").write_text(plain)
    assert archsim(folder, "check", "experiment.yaml").returncode == 0
    own = "{bandwidth: 1 TB/s}"
    classes = f"mesh: {{x: 3, y: 2}}\ntopology: {{name: mesh, horizontal: {own}, vertical: {own}}}"
    (folder / "own.yaml").write_text(plain.replace("mesh: {x: 3, y: 2}", classes))
    done = archsim(folder, "check", "experiment.yaml")
    assert done.returncode == 2 and "leave bandwidth out of the classes" in done.stderr
    assert "every class of links (horizontal, vertical) has its own" in done.stderr  # no wrap, which a mesh lacks


def test_unknown_keys_list_the_known_ones_and_kinds_of_files_are_named(here):
    folder = here("star")
    (folder / "own.yaml").write_text(SYSTEM.replace("{bandwidth: 2 TB/s,", "{zzz: 4, bandwidth: 2 TB/s,"))
    assert "(known: bandwidth, capacity," in archsim(folder, "check", "own.yaml").stderr
    assert "dojo: this is an experiment; `archsim sweep` takes it" in archsim(folder, "serve", "dojo").stderr
    missing = archsim(folder, "sweep", "configs/dojo.yaml").stderr
    assert "configs/dojo.yaml: no such file; the experiment that ships under this name is `dojo`" in missing

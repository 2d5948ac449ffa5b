"""Systems of levels, and systems whose fabric a user's function builds: written, refused, run, shown."""

import shutil

import numpy as np
import pytest
import yaml
from support.examples import sampled
from support.fabrics import LEVELS, RAILS
from support.html_page import whole_report
from support.tiny import TINY, archsim, tiny, tiny_file

from archsim.base.config_files import shipped_configs
from archsim.base.errors import SpecError
from archsim.base.yaml import dump_yaml
from archsim.engine.event.step_networks import flow_network
from archsim.engine.fabrics import build_fabric
from archsim.engine.machine import build_machine
from archsim.machine.decision import HostSpec
from archsim.machine.system import SystemSpec
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import sweep
from archsim.show.layout import places
from archsim.show.page import write_report
from archsim.show.report import Report
from archsim.specs.library import check_file, load_experiment, load_planned
from microarch.fabric.fabric import narrowest

PLAIN = "hbm: {bandwidth: 2 TB/s, capacity: 4 GB}, d2d: {bandwidth: 1 TB/s}, compute: {peak: 300 TFLOP/s, dtype: fp16}"
BUILDER = '''\
from typing import NamedTuple


class Star(NamedTuple):
    nodes: int
    edges: list
    classes: list


def star(dies, gigabytes=100.0):
    """Every die at one switch."""
    return Star(dies + 1, [(die, dies) for die in range(dies)], [("arm", gigabytes * 1e9, 250.0)])
'''


def system_of(links, name="small"):
    return f"systems=[{{name: {name}, source: made up, {links}, {PLAIN}}}]"


def experiment_of(folder, links, *more):
    changes = system_of(links), "workload.batch=24", "policies=[allo+pred]", "assumptions=physical"
    return tiny(folder, *changes, *more)


def outcome_of(folder, links, *more):
    run = prepare(experiment_of(folder, links, *more)).runs[0]
    replay = Simulator().replay(run)
    return replay, replay.run()


@pytest.mark.parametrize("shape", LEVELS)
def test_levels_multiply_are_named_and_read_back(tmp_path, shape):
    system = experiment_of(tmp_path, f"fabric: {LEVELS[shape]}").systems[0]
    fabric = build_fabric(system, "row_major")
    assert (system.dies, system.shape, fabric.dies, fabric.name) == (
        fabric.dies,
        shape,
        np.prod([x.size for x in system.fabric.levels]),
        shape,
    )
    written = system.model_dump(mode="json", by_alias=True)
    assert "mesh" not in written and "topology" not in written
    assert SystemSpec.model_validate(written, context={"from_yaml": True}) == system


@pytest.mark.parametrize("contention", ["shared", "reserved"])
@pytest.mark.parametrize(("levels", "links"), [
    ("{levels: [{switch: 6}]}", "mesh: 6x1, topology: switch"),
    ("{levels: [{mesh: 3x2}]}", "mesh: 3x2"),
    ("{levels: [{ring: 6, bandwidth: 1 TB/s, hop_latency: 200 ns}]}", "mesh: 3x2, topology: ring"),
])  # fmt: skip
def test_one_level_runs_as_the_topology_of_that_name(tmp_path, levels, links, contention):
    physical = f"assumptions={{set: physical, contention: {contention}}}"
    (_, one), (_, named) = (outcome_of(tmp_path, each, physical) for each in (f"fabric: {levels}", links))
    assert one.step_ns.tobytes() == named.step_ns.tobytes() and one.decode_ns > 0
    assert one.tally.resources.tobytes() == named.tally.resources.tobytes()
    assert one.tally.hops.tobytes() == named.tally.hops.tobytes()
    assert one.load.tobytes() == named.load.tobytes()


def test_every_level_has_its_own_links_and_law(tmp_path):
    inner, outer = "bandwidth: 450 GB/s, law: h100/intra_node", "bandwidth: 50 GB/s, hop_latency: 2 us"
    levels = f"{{levels: [{{switch: 2, {inner}}}, {{switch: 2, {outer}}}]}}"
    fabric = build_fabric(experiment_of(tmp_path, f"fabric: {levels}").systems[0], "row_major")
    used = [fabric.classes[number] for number in np.unique(fabric.link_class)]
    assert [(each.name, each.bandwidth_bytes_per_s, each.latency_ns, each.law) for each in used] == [
        ("level 0", 450e9, 200.0, "h100/intra_node"), ("level 1", 50e9, 2000.0, None), ("level 1 port", 50e9, 0.0, None),  # noqa: E501
    ]  # fmt: skip
    assert fabric.pair_ns[0].tolist() == [0.0, 400.0, 4000.0, 4000.0]
    rates = narrowest(fabric, fabric.link_bytes_per_ns, here=np.inf)
    assert rates[0].tolist() == [np.inf, 450 * 0.9, 50 * 0.9, 50 * 0.9]


def test_without_d2d_it_is_a_link_of_the_first_level(tmp_path):
    text = system_of(f"fabric: {RAILS}").replace("d2d: {bandwidth: 1 TB/s}, ", "")
    d2d = tiny(tmp_path, text).systems[0].d2d
    assert (d2d.bandwidth_bytes_per_s, d2d.hop_latency_ns) == (450e9, 300.0)


def test_an_outsiders_builder_runs_end_to_end(tmp_path):
    """Two touch points: the function's file, and its name in the experiment."""
    (tmp_path / "mine.py").write_text(BUILDER, encoding="utf-8")
    file = tmp_path / "tiny.yaml"
    file.write_text(
        TINY.replace("mesh: {x: 3, y: 2}", "topology: {name: 'mine:star', dies: 6, params: {gigabytes: 200}}"),
        encoding="utf-8",
    )
    arguments = "--set", "workload.batch=[12]", "--set", "policies=[base, allo]"
    done = archsim(tmp_path, "sweep", "tiny.yaml", "--out", "out", "--jobs", "1", *arguments)
    assert done.returncode == 0, done.stderr
    page = whole_report(tmp_path / "out")
    assert "6, mine:star" in page and "<circle" in page
    report = Report(tmp_path / "out")
    mine = [run["run"] for run in report.runs.where(system="small")]
    assert len(mine) == 2 and all(len(report.dies[run].where(x=None)) == 6 for run in mine)
    assert len(report.links[mine[0]]) in (6, 12)
    again = archsim(tmp_path, "check", "out/manifest.yaml")
    assert again.returncode == 0, again.stderr
    (tmp_path / "mine.py").write_text(BUILDER.replace("(die, dies)", "(0, dies)"), encoding="utf-8")
    broken = archsim(tmp_path, "sweep", "tiny.yaml", "--out", "out2", "--jobs", "1", *arguments)
    assert (
        broken.returncode == 2
        and "mine:star: edges[0]: nodes 0 and 6 are linked more than once" in broken.stderr + broken.stdout
    )


def test_the_file_of_a_builder_is_part_of_what_names_a_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_builder.py").write_text(BUILDER, encoding="utf-8")
    own, plain = (
        prepare(experiment_of(tmp_path, links)).runs[0]
        for links in ("topology: {name: 'named_builder:star', dies: 6}", "mesh: 3x2")
    )
    assert own.code != plain.code and own.key != plain.key
    wider = prepare(
        experiment_of(tmp_path, "topology: {name: 'named_builder:star', dies: 6, params: {gigabytes: 9}}")
    ).runs[0]
    assert wider.key != own.key and wider.code == own.code


def test_a_report_of_levels_has_a_map_and_names_them(tmp_path):
    experiment = tiny(
        tmp_path, system_of(f"fabric: {RAILS}"), "workload.batch=12", "policies=[base]", "assumptions=physical"
    )
    sweep(experiment, tmp_path / "out", jobs=1)
    write_report(tmp_path / "out")
    page = whole_report(tmp_path / "out")
    assert "<td>2 × 4 switch</td>" in page and '"node","port","nic"]' in page
    manifest = yaml.safe_load((tmp_path / "out" / "manifest.yaml").read_text(encoding="utf-8"))
    assert manifest["systems"][0]["fabric"]["levels"][1]["per"] == "gpu"
    (run,) = Report(tmp_path / "out").runs
    assert run["mesh_x"] is None


def test_maps_without_coordinates_have_a_place_for_every_node():
    """Two nodes of three: a group a row, its switch beside it, the rails' switches below their columns."""
    links = [(0, 6), (1, 6), (2, 6), (3, 7), (4, 7), (5, 7), (0, 8), (3, 8), (1, 9), (4, 9), (2, 10), (5, 10)]
    assert places(6, links, 3) == {
        **{die: (die % 3, die // 3) for die in range(6)}, 6: (3, 0), 7: (3, 1), 8: (0, 2), 9: (1, 2), 10: (2, 2),
    }  # fmt: skip
    many = places(9, [(die, 9 + die % 4) for die in range(9)], 3)
    assert len(set(many.values())) == len(many) == 13


def test_check_and_list_say_what_a_system_is_made_of(tmp_path):
    (tmp_path / "node.yaml").write_text(
        "name: node\nsource: made up\n"
        "fabric: {levels: [{switch: 4, bandwidth: 450 GB/s, hop_latency: 300 ns, law: h100/intra_node}, "
        "{switch: 2, per: gpu, bandwidth: 50 GB/s, hop_latency: 2 us}]}\nhbm: {bandwidth: 2 TB/s, capacity: 4 GB}\n"
        "compute: {peak: 300 TFLOP/s, dtype: fp16}\n", encoding="utf-8"
    )  # fmt: skip
    said = archsim(tmp_path, "check", "node.yaml", "-v").stdout.splitlines()
    assert said[:4] == [
        "node.yaml: ok, a valid system: 8 dies, 2 × 4 switch",
        "  2 nodes of 4 GPUs, with 8 ports inside nodes and 8 NICs, one per GPU",
        "  level 0, 4 switch: 450 GB/s, 300 ns per link, law h100/intra_node",
        "  level 1, 2 switch per gpu: 50 GB/s, 2 µs per link",
    ]
    assert any(line.startswith("These numbers count as exact: ") for line in said)
    assert "5 × 5 mesh" in archsim(tmp_path, "list", "systems").stdout


def test_the_networks_of_a_machine_of_levels_have_all_links(tmp_path):
    experiment = experiment_of(tmp_path, f"fabric: {RAILS}")
    machine, fabric = build_machine(prepare(experiment).runs[0])
    assert len(flow_network(machine, fabric, np.arange(0)).resources) == fabric.dies + fabric.links
    assert machine.link_resources == fabric.links and np.array_equal(machine.route_ns, fabric.pair_ns)


# ---- Files of calibrations: found beside the experiment or system that names them, and part of a run's key by what
# is in them.

EXPERIMENT = """
name: mine
systems: [{system}]
models: [qwen3-235b-a22b]
workload: {{trace: {{synthetic: {{}}}}, batch: 1}}
policies: [base]
{more}
"""
SYSTEM = (
    "{{like: dojo, name: own, compute: {{peak: 989 TFLOP/s, dtype: bf16, calibration: {compute}}}, d2d: {{bandwidth: "
    "450 GB/s, calibration: {d2d}}}}}"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with calibrations in ``fits``; the current directory is another."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "fits").mkdir(parents=True)
    here.mkdir()
    for name in ("h100", "a100"):
        shipped = shipped_configs() / "calibrations"
        shutil.copy(shipped / f"{name}.yaml", there / "fits" / f"my_{name}.yaml")
        shutil.copytree(shipped / name, there / "fits" / name)
    monkeypatch.chdir(here)
    return there


def experiment(folder, system, more=""):
    file = folder / "experiment.yaml"
    file.write_text(EXPERIMENT.format(system=system, more=more))
    return file


def test_a_calibration_lies_beside_the_experiment(folder):
    file = experiment(folder, SYSTEM.format(compute="fits/my_a100.yaml", d2d="fits/my_h100.yaml"))
    system = load_experiment(file).systems[0]
    assert system.compute.calibration == "../there/fits/my_a100.yaml"
    assert system.d2d.copies.bandwidth_bytes_per_s == 450e9 and system.d2d.source.startswith("calibration ../there")


def test_a_calibration_lies_beside_the_system_that_names_it(folder):
    own = folder / "machines" / "own.yaml"
    own.parent.mkdir()
    text = (
        (shipped_configs() / "systems" / "dojo.yaml")
        .read_text()
        .replace("calibration: h100", "calibration: ../fits/my_h100.yaml")
    )
    own.write_text(text)
    assert check_file(own).compute.calibration == "../there/fits/my_h100.yaml"
    for system in ("machines/own.yaml", "{like: machines/own.yaml, name: other}"):
        assert (
            load_experiment(experiment(folder, system)).systems[0].compute.calibration == "../there/fits/my_h100.yaml"
        )


def test_an_axis_may_be_files_beside_the_experiment(folder):
    more = "sweep: {grid: {compute.calibration: [fits/my_h100.yaml, h100]}}"
    plan = load_planned(experiment(folder, SYSTEM.format(compute="h200", d2d="h100"), more))
    assert [point.system.compute.calibration for point in plan.points({})] == ["../there/fits/my_h100.yaml", "h100"]


@pytest.mark.parametrize(
    ("axis", "given"),
    sampled(
        [
            ("compute", "{{peak: 989 TFLOP/s, dtype: bf16, calibration: {}}}"),
            ("d2d", "{{bandwidth: 450 GB/s, calibration: {}}}"),
            ("hbm", "{{bandwidth: 3.35 TB/s, capacity: 80 GB, calibration: {}}}"),
        ],
        lambda case: case[0] == "hbm",
    ),
)
def test_an_axis_may_be_mappings_with_files_beside_the_experiment(folder, axis, given):
    more = "sweep: {{grid: {{{}: [{}]}}}}"
    system = SYSTEM.format(compute="h200", d2d="a100")
    plan = load_planned(experiment(folder, system, more.format(axis, given.format("fits/my_h100.yaml"))))
    named = load_planned(experiment(folder, system, more.format(axis, given.format("h100"))))
    found, wanted = (getattr(next(iter(each.points({}))).system, axis) for each in (plan, named))
    same = {"calibration": "h100"} if axis == "compute" else {"source": wanted.source}
    assert found.model_copy(update=same) == wanted and found != wanted
    file = experiment(folder, system, more.format(axis, given.format("fits/none.yaml")))
    with pytest.raises(
        SpecError, match=rf"experiment.yaml:\d+: .*{axis}.0.calibration: no such file: 'fits/none.yaml' \(searched"
    ):
        load_planned(file)


def test_a_file_that_is_nowhere_is_told_with_where_it_was_looked_for(folder):
    with pytest.raises(
        SpecError,
        match=(
            r"experiment.yaml:3: systems.0.compute.calibration: no such file: 'fits/none.yaml' \(searched the current "
            r"directory, "
        ),
    ):
        load_experiment(experiment(folder, SYSTEM.format(compute="fits/none.yaml", d2d="h100")))


def test_the_content_of_a_calibration_is_part_of_the_key(folder):
    file = experiment(folder, SYSTEM.format(compute="fits/my_h100.yaml", d2d="fits/my_h100.yaml"))
    fit = folder / "fits" / "h100" / "gemm.yaml"

    def key():
        return prepare(load_experiment(file)).runs[0].key

    first, text = key(), fit.read_text()
    assert key() == first
    fit.write_text(text.replace("launch_ns: ", "launch_ns: 1", 1))
    assert key() != first
    fit.write_text(text)
    assert key() == first


def test_a_dtype_that_nothing_knows_is_refused_with_its_line(folder):
    file = folder / "fits" / "my_a100.yaml"
    file.write_text(file.read_text().replace("bf16: ", "bf61: ", 1))
    with pytest.raises(SpecError, match=r"my_a100.yaml:\d+: reference.peak_flop_per_s.bf61: unknown dtype 'bf61'"):
        check_file(file)


# ---- The path to a host from a calibration: what is taken of its laws, and what is said where it lacks something.


def test_a_manifest_has_the_numbers_and_where_they_are_from(tmp_path):
    text = "{executor: host, host: {calibration: h100, pcie_latency: 2.1 us}}"
    tiny_file(tmp_path)
    experiment = load_experiment(tmp_path / "tiny.yaml", [f"systems.0.decision={text}"])
    host = experiment.systems[0].decision.host
    assert host.calibration is None and host.pcie_latency_ns == 2100.0 and host.launch_ns == 2534.0
    assert host.source.startswith("calibration h100: d2h sm by nvbandwidth") and host.source.endswith(
        "; given: pcie_latency"
    )
    assert host.pcie_bandwidth_bytes_per_s == 42.24e9  # of both directions
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(dump_yaml(experiment.resolved()))
    assert load_experiment(manifest).systems[0].decision.host == host


def test_python_may_name_a_calibration_too():
    assert HostSpec(calibration="h200", pcie_latency_ns=2000.0, pcie_bandwidth_bytes_per_s=50e9).launch_ns == 2534.0

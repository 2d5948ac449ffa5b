"""Before anything runs: functions of users that build no fabric, and axes that change no link, are refused by name."""

import pytest
from support.tiny import archsim

FUNCTIONS = """\
from microarch.fabric.topology import FabricDescription, LinkClass

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
    ("nowhere", "mine:nowhere: edges[5, 1]: 6; expected 0 to 5"), ("apart", "mine:apart: no route from die 2 to die 0"),
    ("wrong", "mine:wrong: returns int without 'nodes'"),
])
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

"""Files of calibrations: found beside the experiment or system that names them, and part of a run's key by what is in
them.
"""

import shutil

import pytest

from archsim.base.errors import SpecError
from archsim.runs.plan import prepare
from archsim.specs.config_files import shipped_configs
from archsim.specs.library import check_file, load_experiment, load_planned

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


@pytest.mark.parametrize(("axis", "given"), [
    ("compute", "{{peak: 989 TFLOP/s, dtype: bf16, calibration: {}}}"),
    ("d2d", "{{bandwidth: 450 GB/s, calibration: {}}}"),
    ("hbm", "{{bandwidth: 3.35 TB/s, capacity: 80 GB, calibration: {}}}"),
])
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
    with pytest.raises(SpecError, match=(
        r"experiment.yaml:3: systems.0.compute.calibration: no such file: 'fits/none.yaml' \(searched the current "
        r"directory, "
    )):
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

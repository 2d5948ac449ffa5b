"""A file is known by its keys: which kind it is, and where a file of another kind than asked for belongs."""

import pytest

from archsim.base.errors import SpecError
from archsim.base.yaml import read_yaml
from archsim.specs.config_files import shipped_configs
from archsim.specs.library import EXPERIMENT, TRAFFIC, kind_of, load_experiment


@pytest.mark.parametrize(("file", "message"), [
    ("systems/dojo.yaml", "this is a system; an experiment names it under `systems:`"),
    ("models/kimi-k2.yaml", "this is a model; an experiment names it under `models:`"),
    ("assumptions/physical.yaml", "this is an assumption set; an experiment names it under `assumptions:`"),
    ("calibrations/h100.yaml", "this is a calibration; a system names it under `compute.calibration`"),
    ("papers/craft.yaml", "this is a paper; `archsim compare --papers` takes it"),
    (
        "traffic/deepseek-v3.yaml",
        "this is a traffic preset; an experiment names it as `workload: {trace: {synthetic: {like: NAME}}}`",
    ),
])
def test_a_file_of_another_kind_is_recognised(file, message):
    path = shipped_configs() / file
    with pytest.raises(SpecError) as caught:
        load_experiment(path)
    assert str(caught.value) == f"{path}: {message}"


def test_every_shipped_file_is_of_the_kind_of_its_folder():
    kinds = {
        "systems": "system", "models": "model", "assumptions": "assumption set", "calibrations": "calibration",
        "traffic": TRAFFIC, "papers": "paper", "fabrics": "calibration of a fabric",
        "uncertainty": "file of widths",
    }
    every = sorted(file for file in shipped_configs().rglob("*.yaml") if file.parent.parent.name != "calibrations")
    # those of `archsim serve` are its own
    files = [file for file in every if file.parent.name != "serving" and not file.stem.startswith("serve_")]
    folders = {file: file.relative_to(shipped_configs()).parts[0] for file in files}
    assert {kinds.get(folder, EXPERIMENT) for folder in folders.values()} == {*kinds.values(), EXPERIMENT}
    for file, folder in folders.items():
        assert kind_of(read_yaml(file).data) == kinds.get(folder, EXPERIMENT), file

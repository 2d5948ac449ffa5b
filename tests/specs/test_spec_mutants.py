"""Mutants of the shipped files: each loads, or is refused with file and line; none crashes, hangs or fills memory."""

import os
import random
import re
import shutil

import pytest
from support.mutants import mutated

import archsim as ar
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.yaml import dump_yaml, read_yaml
from archsim.cli.main import main
from archsim.specs.config_files import shipped_configs
from archsim.workload import open_trace

MUTANTS = [60, pytest.param(300, marks=pytest.mark.nightly)]
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
GOOD = {"system": "dojo", "model": "mixtral-8x7b", "trace": "{synthetic: {}}"}


@pytest.mark.parametrize("key", GOOD)
def test_pipes_and_devices_are_refused_where_they_are_named(key, pipe, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(SMALL.format(**GOOD | {key: str(pipe)}))
    with pytest.raises(SpecError, match=r"x.yaml:\d: .*(not a file|neither a file nor a directory): "):
        ar.load(file)


def test_pipes_and_devices_are_refused_as_arguments(pipe, capsys):
    model = ar.load(shipped_configs() / "models" / "mixtral-8x7b.yaml")
    with pytest.raises(ArchsimError, match="neither a file nor a directory"):
        open_trace(pipe, model)
    for command in (["check", str(pipe)], ["run", str(pipe)], ["trace", "import", str(pipe), "--out", "x"]):
        assert main(command) == 2
        assert "not a regular file" in (said := capsys.readouterr().err) or "neither a file" in said

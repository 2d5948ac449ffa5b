"""Where values were given, over other files, and of how many a file may be."""

import pytest

from archsim.base.errors import SpecError
from archsim.base.yaml import parse_yaml
from archsim.specs.library import load_experiment

EXPERIMENT = """\
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
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    with pytest.raises(SpecError, match=r"x\.yaml:5: systems\.0\.mesh\.x: 0 is out of range"):
        load_experiment(tmp_path / "x.yaml")


def test_many_keys_are_no_alias_and_aliases_of_aliases_are_refused():
    assert len(parse_yaml("\n".join(f"k{n}: {n}" for n in range(60_000)), "x").data) == 60_000
    bomb = "a: &a [1,2,3,4,5,6,7,8,9]\n"
    for below, name in zip("abcde", "bcdef", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n"
    with pytest.raises(SpecError, match="aliases repeat what they name"):
        parse_yaml(bomb, "x")

"""``archsim.extend`` is the one door for users' code; paths that the documentation named before still work."""

import re
from pathlib import Path

import pytest

import archsim as ar
from archsim import extend
from archsim.base.errors import SpecError

DOCS = Path(__file__).parents[1] / "docs"


def test_every_name_is_there_and_told():
    for name in extend.__all__:
        assert getattr(extend, name) is not None and f"``{name}``" in extend.__doc__
    with pytest.raises(AttributeError, match="StepViw"):
        _ = extend.StepViw


def test_pages_for_own_code_import_from_the_door_alone():
    for page in ("own", "topologies", "blocks", "serving"):
        for line in re.findall(r"^from (\S+) import (.+)$", (DOCS / f"{page}.md").read_text(), re.M):
            if line[0].startswith(("archsim", "microarch")):
                names = [name.strip() for name in line[1].split(",")]
                assert line[0] in ("archsim", "archsim.extend") or not set(names) & set(extend.__all__), (page, line)


# ---- The page on own policies and blocks: its files run, both are charged, and unknown keys name the nearest way.

PAGE = Path(__file__).resolve().parents[1] / "docs" / "own.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    for kind, name in (("python", "mine.py"), ("yaml", "mine.yaml")):
        (tmp_path / name).write_text(re.search(f"```{kind}\\n(.*?)```", text, re.S)[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_files_of_the_page_run_and_both_functions_are_charged(here):
    ep, halves = (ar.run(here / "mine.yaml", policy=name).runs.rows[0] for name in ("ep", "halves"))
    assert not halves["uncharged"] and halves["decision_ns"] > 0
    assert ep["bound_blocks"] > 0 and halves["decode_ns"] != ep["decode_ns"]


@pytest.mark.parametrize(("key", "said"), [
    ("hbm: {stacks: 4}", r"hbm.stacks: unknown key; give the capacity and bandwidth of all stacks"),
    ("topology: {name: torus, broken: [[3, 4]]}", r"topology.broken: unknown key; list the links that are left"),
])  # fmt: skip
def test_an_unknown_key_names_the_nearest_way(key, said):
    with pytest.raises(SpecError, match=said):
        ar.load("dojo", [f"systems=[{{like: dojo, name: x, {key}}}]"])

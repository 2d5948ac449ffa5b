"""The reference and the JSON Schemas are those that the specs give, and accept every file that ships."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from archsim.base.fields import Spec
from archsim.base.yaml import read_yaml
from archsim.cli.main import main
from archsim.show import reference
from archsim.show.schema import FILES, schema_of, traffic_schema

jsonschema = pytest.importorskip("jsonschema", reason="comes with nbformat: pip install -e '.[test]'")
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [
    *((kind, file) for kind in ("system", "model") for file in sorted((ROOT / "configs" / f"{kind}s").glob("*.yaml"))),
    *(("assumptions", file) for file in sorted((ROOT / "configs" / "assumptions").glob("*.yaml"))),
    *(("experiment", file) for file in sorted((ROOT / "configs").glob("[!s]*.yaml"))),
    ("experiment", ROOT / "examples" / "mine.yaml"),
    *(("serve", file) for file in sorted((ROOT / "configs").glob("serve_*.yaml"))),
]


@cache
def validator(kind: str):
    return jsonschema.Draft202012Validator(schema_of(FILES[kind], kind))


def problems(kind: str, data: object) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(data)]


generated = cache(reference.generate)


def test_generated_files_are_up_to_date():
    files = generated()
    stale = [name for name, text in files.items() if (ROOT / "docs" / name).read_text(encoding="utf-8") != text]
    assert len(files) >= 8 and stale == [], "run: python -m archsim.show.reference"


def test_shipped_files_fit_their_schemas():
    misfits = {str(file): found for kind, file in SHIPPED if (found := problems(kind, read_yaml(file).data))}
    assert len(SHIPPED) > 60 and misfits == {}


@pytest.mark.parametrize("kind", ["system", "model", "experiment"])
def test_a_new_file_checks_and_fits_its_schema(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "mine"]) == 0
    assert main(["check", "mine.yaml"]) == 0
    assert "mine.yaml: ok" in capsys.readouterr().out
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "#" in text and problems(kind, read_yaml("mine.yaml").data) == []
    assert main(["new", kind, "mine"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("mine.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("kind", ["system", "model", "experiment"])
def test_keys_that_a_new_file_comments_out_are_keys(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "mine"]) == 0
    text = Path("mine.yaml").read_text(encoding="utf-8")
    whole, keys = re.subn(r"^( *)# (?=[a-z_]+:|  [a-z_]+: )", r"\1", text, flags=re.MULTILINE)
    assert keys >= 2
    Path("mine.yaml").write_text(whole, encoding="utf-8")
    assert main(["check", "mine.yaml"]) == 0, capsys.readouterr().err


def test_a_new_experiment_fits_in_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "experiment", "mine.yaml"]) == 0  # a name, or the file to write
    assert "name: mine\n" in Path("mine.yaml").read_text(encoding="utf-8")
    assert main(["sweep", "mine.yaml", "--dry-run"]) == 0, capsys.readouterr().err


def test_schemas_refuse_what_is_unknown_or_out_of_range():
    model = read_yaml(ROOT / "configs" / "models" / "olmoe-1b-7b.yaml").data
    assert any("exprts" in each for each in problems("model", model | {"exprts": 3}))
    assert problems("model", model | {"experts": 0}) == ["0 is less than the minimum of 1"]
    assert set(traffic_schema()["properties"]) >= {"source", "kinds", "prompt_tokens"}


def test_every_assumption_is_in_the_reference_with_its_values():
    text = generated()["reference.md"]
    assert "[`contention`](assumptions.md#contention)" in text and "`like`" in text and "`prompt_tokens`" in text


def test_files_have_no_two_mappings_of_one_name():
    """The reference would describe the keys of one by the other: decisions and engines both have a host."""
    names = [each.__name__ for each in _specs(Spec) if each.__module__.startswith("archsim.specs")]
    assert len(names) > 40 and sorted({name for name in names if names.count(name) > 1}) == []
    assert "`front_end" in generated()["reference.md"]


def _specs(base):
    return [found for each in base.__subclasses__() for found in (each, *_specs(each))]


def test_the_links_of_the_changelog_are_pages_of_the_site():
    """As the site's hook writes them; on GitHub they begin in the folder above."""
    spec = importlib.util.spec_from_file_location("public_names", ROOT / "docs" / "api" / "public_names.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = hook.on_page_markdown((ROOT / "docs" / "changelog.md").read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)#]*)", text) if link and not link.startswith("http")]
    assert len(links) > 5 and [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_pages_by_hand_stay_about_thirty_thousand_words():
    spec = importlib.util.spec_from_file_location("words", ROOT / "docs" / "words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.words()
    assert len(found) > 30 and sum(found.values()) < 31_500, found

# ruff: noqa: E501  (one row a case: a table is read across)
"""What is refused, and the exact message each gets."""

import copy
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bad_experiments import CHANGED, GOOD, KNOWN_SYSTEMS, PRESET_NAMES

import archsim as ar
from archsim.base.errors import SpecError
from archsim.base.yaml import dump_yaml, parse_yaml
from archsim.cli.main import main
from archsim.specs.library import check_file, load_assumptions, load_experiment, load_model, load_system


def refused(tmp_path: Path, text: str | bytes, overrides: tuple[str, ...] = ()) -> str:
    """The message for an experiment file of this content, without the file's folder."""
    file = tmp_path / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_experiment(file, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_unchanged_experiment_is_valid(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    assert load_experiment(tmp_path / "good.yaml").name == "good"


@pytest.mark.parametrize("case", CHANGED)
def test_changed_experiment(tmp_path, case):
    old, new, message = CHANGED[case]
    assert GOOD.count(old) == 1, "the case must change exactly one place"
    found = refused(tmp_path, GOOD.replace(old, new))
    assert re.fullmatch(re.escape(f"bad.yaml:{message}").replace(r"\*", ".*"), found), found


FILES = {
    "empty": (b"", "bad.yaml: is empty; expected a mapping"),
    "only a comment": (b"# nothing\n", "bad.yaml: is empty; expected a mapping"),
    "list": (b"- a\n- b\n", "bad.yaml:1: expected a mapping of keys at the top level"),
    "text": (b"hello\n", "bad.yaml:1: expected a mapping of keys at the top level"),
    "bad UTF-8": (b"name: \xff\n", "bad.yaml: not UTF-8 text (byte 0xff at offset 6); expected a YAML file"),
    "control character": (b"name: a\nb: \x01\n", "bad.yaml:2: invalid YAML: character U+0001 is not allowed"),
    "alias of itself": (b"name: &a [*a]\n", "bad.yaml:1: name.0: an alias refers to itself"),
    "unknown alias": (b"name: *a\n", "bad.yaml:1: invalid YAML: found undefined alias 'a'"),
    "nested too deeply": (b"name: " + b"[" * 1500, "bad.yaml: invalid YAML: nested too deeply"),
    "rows of rows": (b"name: \n" + b"- " * 450 + b"a", "bad.yaml: invalid YAML: nested too deeply"),
    "nested far too deeply": (b"name: " + b"[" * 100_000, "bad.yaml: invalid YAML: nested too deeply"),
}


@pytest.mark.parametrize("case", FILES)
def test_file_that_is_no_experiment(tmp_path, case):
    content, message = FILES[case]
    assert refused(tmp_path, content) == message


def test_aliases_that_unfold_without_end(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "aliases repeat what they name" in refused(tmp_path, "\n".join(lines))


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(SpecError, match=r"^configs/none\.yaml: no such file$"):
        load_experiment("configs/none.yaml")
    (tmp_path / "dojo.yaml").write_text("")
    with pytest.raises(SpecError, match=r"/doj\.yaml: no such file; did you mean '.*/dojo\.yaml'\?$"):
        load_experiment(tmp_path / "doj.yaml")
    with pytest.raises(SpecError, match=r"/none/doj\.yaml: no such file$"):
        load_experiment(tmp_path / "none" / "doj.yaml")
    with pytest.raises(SpecError, match=r": is a directory; expected a YAML file$"):
        load_experiment(tmp_path)


OVERRIDES = {
    "unknown key": ("systems.0.d2d.bandwith=2TB/s", "unknown key; did you mean 'bandwidth'?"),
    "unknown key above": ("sytems.0.d2d=1", "sytems: unknown key; did you mean 'systems'?"),
    "unknown key inside a value": ("systems.0.d2d={bandwidth: 1 TB/s, hop_latncy: 2}", "hop_latncy: unknown key; did you mean 'hop_latency'?"),
    "wrong dimension": ("systems.0.d2d.bandwidth=2 GB", "'2 GB' is a size; expected a bandwidth such as '3.35 TB/s'"),
    "path of an axis": ("hbm.bandwidth=3TB/s", "an experiment has no key 'hbm'; did you mean 'systems.0.hbm.bandwidth'?"),
    "singular": ("policy.allocation=home", "an experiment has no key 'policy'; did you mean 'policies.0.allocation'?"),
    "field of assumptions": ("gemm=roofline", "an experiment has no key 'gemm'; did you mean 'assumptions.gemm'?"),
    "half a mesh": ("systems.0.mesh=3x", "expected two sides such as 5x5, or {x: 5, y: 5}, not the text '3x'"),
    "cache below a segment": ("systems.0.llc={capacity: 1 KiB}", "capacity: 1 KiB is less than a segment, which is 1 MiB; give llc.segment as well"),
    "function in place of a policy": ("policies=[mymod:fn]", f"0: unknown policy 'mymod:fn' {PRESET_NAMES}your own function is {{name: mine, allocation: 'mymod:fn'}})"),
    "no such item": ("systems.1.mesh.x=2", "systems has no item 1; it has 1, numbered from 0"),
    "negative item": ("systems.-1.mesh.x=2", "systems is a list; say which item: systems.0.-1"),
    "item not said": ("systems.mesh.x=2", "systems is a list; say which item: systems.0.mesh"),
    "key of a scalar": ("workload.decode_steps.x=2", "workload.decode_steps is the number 2; it has no key 'x'"),
    "no value": ("workload.batch=", "expected key.path=value, such as workload.batch=[64]"),
    "no equals sign": ("workload.batch", "expected key.path=value, such as workload.batch=[64]"),
    "no key": ("=3", "expected key.path=value, such as workload.batch=[64]"),
    "empty key": ("workload..batch=3", "expected key.path=value, such as workload.batch=[64]"),
    "bad YAML": ("workload.batch=[64", "invalid YAML: expected ',' or ']', but got '<stream end>'"),
    "batch 0": ("workload.batch=0", "0 is out of range; expected 1 to 10000000"),
    "unknown system": ("systems=[dojoo]", f"0: unknown system 'dojoo'; did you mean 'dojo'? {KNOWN_SYSTEMS}"),
    "unknown parameter": ("policies.1.allocation.block=64", "unknown parameter; did you mean 'block_tokens'?"),
    "unknown value": ("assumptions.contention=sharde", "unknown value 'sharde'; did you mean 'shared'? (valid: shared, reserved)"),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_override(tmp_path, case):
    override, message = OVERRIDES[case]
    assert refused(tmp_path, GOOD, (override,)) == f"--set {override}: {message}"


def test_values_of_a_key_that_may_be_null_are_listed():
    with pytest.raises(SpecError, match=r"unknown value 'fp7'; did you mean 'fp8'\? \(valid: bf16, fp8, fp8_block, "):
        ar.load("serve_h200", {"precision.experts": "fp7"})


@pytest.mark.parametrize(("value", "told"), [
    ({"prefill": "none", "decode": {"count": 2}}, r"decode.count: unknown key \(known: system, parallel, [a-z_, ]*\)"),
    ({"prefill": "non", "decode": {}}, "prefill: expected a mapping with the keys .*, or none, not the text 'non'"),
    ("nonee", ": expected a mapping with the keys prefill, .*, or none, not the text 'nonee'"),
])  # fmt: skip
def test_a_mapping_or_a_word_is_one_problem(value, told):
    with pytest.raises(SpecError) as caught:
        ar.load("serve_h200", {"disaggregated": value})
    (line,) = str(caught.value).splitlines()
    assert re.search(f"{told}$", line), line


def test_problem_in_a_named_file_names_that_file_and_line(tmp_path):
    system = GOOD.partition("- name: small\n")[2].partition("models:")[0].replace("bandwidth: 1", "bandwith: 1")
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "odd.yaml").write_text(system)
    text = "name: good\nsystems: [odd]\nmodels:" + GOOD.partition("models:")[2]
    found = refused(tmp_path, text)
    assert found == "systems/odd.yaml:7: d2d.bandwith: unknown key; did you mean 'bandwidth'?"


def test_path_that_leads_nowhere(tmp_path):
    text = "name: good\nsystems: [./odd.yaml]\nmodels:" + GOOD.partition("models:")[2]
    assert refused(tmp_path, text) == "bad.yaml:2: systems.0: no such file: './odd.yaml'"


def test_several_problems_each_get_a_line(tmp_path):
    text = GOOD.replace("x: 2", "x: 0").replace("top_k: 2", "top_k: 9").replace("engine: event", "engin: event")
    assert refused(tmp_path, text).splitlines() == [
        "bad.yaml:5: systems.0.mesh.x: 0 is out of range; expected 1 to 64",
        "bad.yaml:22: models.0.top_k: 9 experts per token exceed the model's 8 experts",
        "bad.yaml:29: engin: unknown key; did you mean 'engine'?",
    ]


def test_several_unknown_names_each_get_a_line(tmp_path):
    text = GOOD.replace("[base, allo]", "[bsae, alo]").replace("physical", "fysical")
    assert [line.partition(" (")[0] for line in refused(tmp_path, text).splitlines()] == [
        "bad.yaml:27: policies.0: unknown policy 'bsae'; did you mean 'base'?",
        "bad.yaml:27: policies.1: unknown policy 'alo'; did you mean 'allo'?",
        "bad.yaml:28: assumptions: unknown assumption set 'fysical'; did you mean 'physical'?",
    ]


def test_unknown_names_do_not_hide_other_problems(tmp_path):
    text = GOOD.replace("[base, allo]", "[base, alo]").replace("x: 2", "x: 0").replace("engine: event", "engin: event")
    assert [line.partition(" (")[0] for line in refused(tmp_path, text).splitlines()] == [
        "bad.yaml:27: policies.1: unknown policy 'alo'; did you mean 'allo'?",
        "bad.yaml:5: systems.0.mesh.x: 0 is out of range; expected 1 to 64",
        "bad.yaml:29: engin: unknown key; did you mean 'engine'?",
    ]


def test_unknown_names_in_python():
    with pytest.raises(SpecError, match="unknown system 'doja'; did you mean 'dojo'"):
        load_system("doja")
    with pytest.raises(SpecError, match="unknown model 'deepseek_v3'; did you mean 'deepseek-v3'"):
        load_model("deepseek_v3")
    with pytest.raises(SpecError, match="assumptions.0.hop: unknown key; did you mean 'hops'"):
        load_assumptions("physical", hop="all")


def test_check_of_a_system_file_tells_its_keys(tmp_path):
    file = tmp_path / "odd.yaml"
    file.write_text("name: odd\nsource: test\nmesh: {x: 1, y: 1}\nhbm: 5\nd2d: {bandwith: 1 TB/s}\n")
    with pytest.raises(SpecError) as caught:
        check_file(file)
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "odd.yaml:4: hbm: expected a mapping with the keys bandwidth, capacity, reserved, latency, efficiency, "
        "calibration, stacks_on_carrier, source, "
        "not the number 5",
        "odd.yaml:5: d2d.bandwith: unknown key; did you mean 'bandwidth'?",
        "odd.yaml:1: compute: required key is missing",
    ]


def test_command_line_prints_the_message_alone(tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text(GOOD.replace("engine: event", "engin: event"))
    assert main(["check", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{file}:29: engin: unknown key; did you mean 'engine'?\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["sweep", "x.yaml", "--jobs", "0"], "argument --jobs: must be at least 1"),
    (["run", "x.yaml", "--step", "-1"], "argument --step: "),
    (["list", "dies"], "argument what: invalid choice: 'dies'"),
    (["nothing"], "invalid choice: 'nothing'"),
])
def test_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


_JUNK = st.sampled_from(
    [None, True, -1, 0, 2.5, 1e300, "", "x", "-", "a/b", "a:b", [], [None], {}, {"x": {}}, {"name": []}, "1 B", "²"]
)


def _paths(tree: object, above: tuple = ()) -> list[tuple]:
    """Every path below the root of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in items for path in ((*above, key), *_paths(value, (*above, key)))]


@given(st.data())
def test_junk_anywhere_is_accepted_or_told_with_its_place(tmp_path_factory, data):
    """Whatever replaces whatever part of a resolved experiment: never another exception, always the file and a line."""
    file = tmp_path_factory.mktemp("junk") / "bad.yaml"
    tree = parse_yaml(GOOD, "good").data
    policy = {"name": "mine", "preset": "pred", "allocation": {"name": "isca26", "candidates": 3}, "prediction": "none"}
    tree |= {"policies": [*tree["policies"], policy], "assumptions": [{"set": "physical", "hops": "all"}]}
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(tree)))
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = copy.deepcopy(data.draw(_JUNK))
        if not _paths(tree):
            break
    file.write_text(dump_yaml(tree))
    lines = []
    try:
        load_experiment(file)
    except SpecError as error:
        lines = str(error).splitlines()
        assert lines
    assert [line for line in lines if not re.match(rf"{re.escape(str(file))}:\d+: ", line)] == []

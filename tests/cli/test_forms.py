"""Every quantity, in every form in which a file may write it, in every command that reads such a file.

One law: how a number is written changes no result. What a command says of the plain file, it says of the others.
"""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from support.examples import sampled
from support.forms import EXPERIMENT, FORMS, SYSTEM_KEYS, system_with, write_experiment
from support.tiny import archsim

from archsim.base.yaml import dump_yaml
from archsim.specs.library import load_experiment, load_system

# Name → arguments, and what of its answer may differ: tables of ranges, and facts of a file.
COMMANDS = {
    "check": ("check e.yaml", ("details", "file")),
    "run": ("run e.yaml", ("tokens_per_s_p05", "tokens_per_s_p95")),  # the range of a number is among those of samples
    "why": ("why e.yaml --step 1", ()),
    "designs": ("compare e.yaml other.yaml", ("spec", "answer", "rates")),
    "policies": ("compare allo allo+pred --in e.yaml", ("answer", "rates")),
    "engines": ("compare --engines e.yaml", ()),
    "without": ("compare --without prediction --in e.yaml --jobs 1", ()),
    "bound": ("why --bound e.yaml --out bound", ()),
    "area": ("hardware area e.yaml", ()),
    "cost": ("hardware cost e.yaml", ()),
    "sweep": ("sweep e.yaml --out report --jobs 1", ()),
    "report": ("run report", ("tokens_per_s_p05", "tokens_per_s_p95")),
    "verify": ("check --report report", ("made", "now")),
}
OF_AXES = ("check", "sweep", "verify")  # what of an axis is the first of its values alone elsewhere


def answer(folder, command, added=()):
    """(status, JSON without what may differ, what a user is told) of a command."""
    text, differs = COMMANDS[command]
    takes = added if "e.yaml" in text and command not in ("engines", "without") else ()
    done = archsim(folder, *text.split(), *takes, "--json")
    found = json.loads(done.stdout) if done.stdout[:1] in ("{", "[") else done.stdout
    return done.returncode, {k: v for k, v in found.items() if k not in differs} if isinstance(found, dict) else found


def commands_of(form):
    if form == "set":  # where it is no option, or is one of both designs
        return [each for each in COMMANDS if each not in ("engines", "without", "designs")]
    return OF_AXES if form in ("axis", "ranges") else list(COMMANDS)


@cache
def plain_file(key):
    """The folder of the plain file."""
    folder = Path(mkdtemp(prefix="forms"))
    write_all(folder, key, "plain")
    return folder


@cache
def of_plain(key, command):
    """What a command says of the plain file; those that read a report come after the one that writes it."""
    return answer(plain_file(key), command)


def write_all(folder, key, form):
    other = system_with(key) | {"name": "other", "hbm": {"bandwidth": "3 TB/s", "capacity": "80 GB"}}
    (folder / "other.yaml").write_text(dump_yaml(EXPERIMENT | {"systems": [other]}), encoding="utf-8")
    return write_experiment(folder, key, form)


CASES = [(key, form) for key in SYSTEM_KEYS for form in FORMS[1:]]
AT_A_COMMIT = (("hbm", "bandwidth"), "range"), (("drawn", "die_area"), "ranges")
SLOW = ("without", "designs", "policies", "bound")


@pytest.mark.parametrize(("key", "form"), sampled(CASES, AT_A_COMMIT.__contains__))
def test_how_a_number_is_written_changes_no_result(tmp_path, key, form):
    """What takes most of the time is left to the nightly cases."""
    added = write_all(tmp_path, key, form)
    for command in (each for each in commands_of(form) if each not in SLOW or (key, form) not in AT_A_COMMIT):
        (status, found), (expected, plain) = answer(tmp_path, command, added), of_plain(key, command)
        assert status == expected and (status == 0 or command == "bound"), command  # not of machines as built
        if form not in ("axis", "ranges"):
            assert found == plain, command
        elif command == "sweep":
            rows, all_rows = plain["rows"], found["rows"]
            alike = set(all_rows[0]) & set(rows[0]) - {"run", "system"}
            firsts = [row for row in all_rows if row["point"] in (0, 1)]  # one for each policy
            assert [{name: row[name] for name in alike} for row in firsts] == [
                {name: row[name] for name in alike} for row in rows
            ]


def test_the_matrix_has_every_key_form_and_command():
    assert sum(len(commands_of(form)) for _, form in CASES) >= 2_000


def test_what_a_range_says_has_its_place_in_a_comparison(tmp_path):
    """A number that has a range in one design alone is one number, which does not differ."""
    write_all(tmp_path, ("hbm", "bandwidth"), "range")
    (tmp_path / "other.yaml").write_text(dump_yaml(EXPERIMENT | {"systems": [system_with(("llc", "hit"))]}))
    found = json.loads(archsim(tmp_path, *"compare e.yaml other.yaml --json".split()).stdout)
    assert "systems.hbm.bandwidth" not in {each["key"] for each in found["spec"]}


# ---- like, axes, and what check says


def test_a_file_of_a_system_may_be_like_another(tmp_path):
    for name, like in (("a", "dojo"), ("b", "./a.yaml"), ("loop", "./loop.yaml")):
        (tmp_path / f"{name}.yaml").write_text(f"like: {like}\nname: {name}\nhbm: {{latency: 250 ns}}\n")
    experiment = dict(EXPERIMENT) | {"systems": ["./b.yaml"]}
    (tmp_path / "e.yaml").write_text(dump_yaml(experiment))
    axes = {"sweep": {"grid": {"system": ["./a.yaml", "./b.yaml"]}}}
    (tmp_path / "sweep.yaml").write_text(dump_yaml(experiment | axes))
    (tmp_path / "in_list.yaml").write_text(dump_yaml(experiment | {"systems": [{"like": "./a.yaml", "name": "b"}]}))
    read = [load_experiment(tmp_path / file).systems[0] for file in ("e.yaml", "in_list.yaml")]
    assert read[0] == read[1] == load_system(tmp_path / "b.yaml") and read[0].dies == load_system("dojo").dies
    assert read[0].hbm.latency_ns == 250
    for file in ("b.yaml", "e.yaml", "sweep.yaml"):
        assert archsim(tmp_path, "check", file).returncode == 0, file
    refused = archsim(tmp_path, "check", "loop.yaml")
    assert refused.returncode == 2 and "loop.yaml:1: like: " in refused.stderr


def test_a_block_is_not_judged_over_axes(tmp_path):
    write_all(tmp_path, ("hbm", "bandwidth"), "axis")
    done = archsim(tmp_path, *"compare --without prediction --in e.yaml".split())
    assert done.returncode == 2 and "system.hbm.bandwidth" in done.stderr
    for command in ("hardware area e.yaml", "hardware cost e.yaml"):
        assert "system.hbm.bandwidth has no effect" in archsim(tmp_path, *command.split()).stderr


def test_a_key_of_a_machine_is_that_of_every_system_of_an_experiment(tmp_path):
    (tmp_path / "e.yaml").write_text(dump_yaml(EXPERIMENT | {"systems": ["dojo", "tsmc_sow"]}))

    def price(*given: str) -> dict[str, float]:
        done = archsim(tmp_path, "hardware", "cost", "e.yaml", *given, "--json")
        assert done.returncode == 0, done.stderr
        return {name: sum(found["value"]["usd"].values()) for name, found in json.loads(done.stdout).items()}

    own, finer = price(), price("--set", "made.node=n3")
    assert set(own) == {"dojo", "tsmc_sow"} and all(finer[name] != own[name] for name in own)
    assert price("--set", "systems=[dojo]", "--set", "made.node=n3") == {"dojo": finer["dojo"]}


GPUS = dict(EXPERIMENT) | {"models": ["olmoe-1b-7b"], "policies": ["base", "ep"], "systems": ["h100_node", "a30_node"]}
SERVED = {
    "system": "h100_node", "model": "olmoe-1b-7b", "parallel": {"attention": {"dp": 8}, "experts": {"ep": 8}},
    "engine": "none", "requests": {"arrivals": {"rate": "9/s"}, "input": {"fixed": 9}, "output": {"fixed": 9}},
    "sweep": {"grid": {"model": ["olmoe-1b-7b", "deepseek-v3"]}}, "precision": {"products": "bf16"},
}  # fmt: skip


@pytest.mark.parametrize(("content", "places"), [
    (GPUS, [r"e\.yaml:\d+: systems\.1: .* base", r"e\.yaml:\d+: systems\.1: .* ep"]),
    (GPUS | {"systems": ["h100_node"], "sweep": {"grid": {"system": ["h100_node", "a30_node"]}}},
     [r"e\.yaml:\d+: sweep\.grid\.system\.1: point 2 ", r"e\.yaml:\d+: sweep\.grid\.system\.1: point 3 "]),
    (SERVED, [r"e\.yaml:\d+: sweep: point 1 \(model deepseek-v3\)"]),
])  # fmt: skip
def test_check_names_each_run_that_would_fail(tmp_path, content, places):
    (tmp_path / "e.yaml").write_text(dump_yaml(content))
    done = archsim(tmp_path, "check", "e.yaml")
    lines = [line for line in done.stderr.splitlines() if re.match(r".*e\.yaml:\d+: ", line)]
    assert done.returncode == 2 and len(lines) == len(places), done.stderr
    assert all(re.match(place, line) for place, line in zip(places, lines, strict=True)), lines

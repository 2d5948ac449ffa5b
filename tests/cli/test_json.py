"""``--json``: the result alone on stdout, what is said beside it on stderr; ``--out``: one rule for all commands."""

import argparse
import json
import os
from pathlib import Path

import pytest
from support.explorations import EXPLORED, SWEPT
from support.tiny import TINY, archsim

from archsim.cli.main import every_command, main, parser_of
from archsim.show.units import significant

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FEW = ("--set", "workload.batch=[12]", "--set", "workload.decode_steps=2")
SYNTH = ("gpt-oss-20b", "--requests", "2")
SERVED = ("--set", "requests.count=20", "--set", "loads.factors=[]")
# Command → cases: its words, what its result says, and what it writes below the current folder.
CASES = {
    "run": [
        (("tiny.yaml", "--policy", "ep", *FEW), lambda found: found["policy"] == "ep", ()),
        (("tiny.yaml", "--die-dies", "1", *FEW), lambda found: found["answer"].startswith("If die 1 of 6 fails"), ()),
    ],
    "sweep": [
        (("tiny.yaml", "--jobs", "1", *FEW), lambda found: len(found["rows"]) == 10, ("reports/tiny/index.html",)),
        (("tiny.yaml", "--dry-run", *FEW), lambda found: len(found["runs"]) == 10, ()),
        (("swept.yaml", "--dry-run", *FEW), lambda found: found["points"] == found["of"], ()),
        (("swept.yaml", "--point", "0"), lambda found: found["name"] == "tiny.0", ()),
    ],
    "sweep --figure": [(("report",), lambda found: "throughput" in found["figures"], ())],
    "why": [(("tiny.yaml", *FEW), lambda found: found["rows"][0]["time_ns"] > 0 and "samples" in found["answer"], ())],
    "why --bound": [
        (("tiny.yaml", "--steps", "1", *FEW), lambda each: "distance" in each[0], ("reports/tiny-optimum/index.html",))
    ],
    "compare": [
        (
            ("ep", "base", "--in", "tiny.yaml", *FEW),
            lambda found: found["a"] == "ep",
            ("reports/tiny-ep-base-workload.batch=_12_-workload.decode_steps=2/index.html",),
        )
    ],
    "compare --engines": [(("tiny.yaml", "--runs", "2", *FEW), lambda found: len(found) == 2, ())],
    "new": [(("system", "wafer"), lambda found: found["file"] == "wafer.yaml", ("wafer.yaml",))],
    "new --from": [
        ((str(EXAMPLES / "config.json"),), lambda found: found["model"]["experts"] > 1, ("qwen1.5-moe-a2.7b.yaml",))
    ],
    "check": [(("tiny.yaml",), lambda found: found["summary"].startswith("ok, 2 systems"), ())],
    "check --trust": [(("tiny.yaml",), lambda found: found["answer"] and found["parts"][0]["share"] > 0, ())],
    "list": [(("systems",), lambda found: "dojo" in found["names"], ())],
    "trace import": [((str(EXAMPLES / "requests.jsonl"),), lambda found: "requests" in found, ("requests-store",))],
    "trace info": [(("store",), lambda found: found["store"] == "store", ())],
    "trace head": [(("store",), lambda found: len(found) > 1, ())],
    "trace slice": [(("store", "--requests", "0:1"), lambda found: found["store"] == "store-slice", ("store-slice",))],
    "trace merge": [(("first", "others"), lambda found: found["store"] == "first-merged", ("first-merged",))],
    "trace sample": [(("store", "-n", "1"), lambda found: found["store"] == "store-sample", ("store-sample",))],
    "trace synth": [(SYNTH, lambda found: found["requests"] == 2, ("gpt-oss-20b.npz",))],
    "trace profile": [
        (
            ("made.npz", "--model", "gpt-oss-20b"),
            lambda found: found["insights"] and found["means"],
            ("reports/made-profile/index.html",),
        )
    ],
    "hardware area": [(("tiny.yaml",), lambda found: _area_said(found["systems"][0]), ())],
    "hardware cost": [
        (("tiny.yaml",), lambda found: found["small"]["low"]["usd"] != found["small"]["high"]["usd"], ())
    ],
    "hardware power": [(("tiny.yaml",), lambda found: found["small"]["low"] != found["small"]["high"], ())],
    "hardware blocks": [(("pdu",), lambda found: found["block"] == "pdu" and found["text"], ())],
}
# Their results are read as JSON beside what else is tested of them, or they need minutes or a cell library.
ELSEWHERE = {
    "sweep --search", "serve", "why --ablate", "compare --papers", "compare --without", "recommend", "sure", "place",
    "check --report", "compile", "list --completion", "calibrate", "calibrate --validate", "trace fit",
    "hardware chips",
    "hardware rtl lockstep", "hardware rtl formal", "hardware rtl energy", "hardware rtl synth", "hardware rtl export",
}  # fmt: skip


def _area_said(system):
    """The sentence has the sum of the parts."""
    whole_mm2 = sum(part["area_mm2"] for part in system["parts"])
    return f"{system['name']} takes {significant(whole_mm2)} mm²" in system["answer"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "swept.yaml").write_text(SWEPT)
    (folder / "explored.yaml").write_text(EXPLORED)
    for words in (
        ("trace", "synth", *SYNTH, "--out", "made.npz"),
        ("trace", "import", "made.npz", "--model", "gpt-oss-20b", "--out", "store"),
        ("trace", "slice", "store", "--requests", "0:1", "--out", "first"),
        ("trace", "slice", "store", "--requests", "1:2", "--out", "others"),
        ("sweep", "tiny.yaml", "--jobs", "1", *FEW, "--out", "report"),
    ):
        assert archsim(folder, *words).returncode == 0
    return folder


def test_every_command_has_a_case():
    assert {words for words, _ in every_command()} == CASES.keys() | ELSEWHERE


@pytest.mark.parametrize(
    ("command", "words", "has", "writes"),
    [pytest.param(command, *case, id=f"{command} {case[0][0]}") for command, cases in CASES.items() for case in cases],
)
def test_stdout_is_the_result_and_the_current_folder_gets_what_the_rule_says(here, command, words, has, writes):
    before = set(os.listdir(here)) | {f"reports/{each}" for each in _listed(here / "reports")}
    done = archsim(here, *command.split(), *words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert has(found)
    if isinstance(found, dict) and command.split()[0] in ("run", "why", "compare", "hardware", "check", "trace"):
        silent = command == "hardware blocks"  # a table
        each_system = command in ("hardware cost", "hardware power")
        assert silent or (found["small"] if each_system else found)["answer"] in done.stderr
    after = set(os.listdir(here)) | {f"reports/{each}" for each in _listed(here / "reports")}
    made = {"/".join(each.split("/")[: 2 if each.startswith("reports/") else 1]) for each in writes}
    assert after - before - {"reports"} == made and all((here / each).exists() for each in writes)


def _listed(folder):
    return os.listdir(folder) if folder.is_dir() else []


def _own(words):
    """The options of a command, without those of every parser."""
    parser = parser_of(words.split())
    for word in words.split():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser


@pytest.mark.parametrize("words", [words for words, _ in every_command()])
def test_out_is_never_required_and_its_help_says_where_it_goes_without(words):
    options = {name: action for action in _own(words)._actions for name in action.option_strings}
    assert ("--json" in options) == (words != "list --completion")
    if "--out" in options:
        assert not options["--out"].required and "(default: " in options["--out"].help


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("mixtral-8x7b.npz", ("trace", "synth", "mixtral-8x7b", "--requests", "1")),
        ("throughput.pdf", ("sweep", "--figure", "report", "throughput")),
    ],
)
def test_a_file_that_nobody_asked_to_write_again_is_left_as_it_is(here, monkeypatch, capsys, file, words):
    monkeypatch.chdir(here)
    (here / file).write_text("mine")
    assert main(words) == 2 and f"{file} exists already and is left as it is" in capsys.readouterr().err
    assert (here / file).read_text() == "mine"


def test_a_page_goes_into_no_folder_of_others(here, monkeypatch, capsys):
    folder = here / "reports" / "first-profile"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("mine")
    monkeypatch.chdir(here)
    assert main(["trace", "profile", "first", "--model", "gpt-oss-20b"]) == 2
    assert "has files that archsim did not make" in capsys.readouterr().err
    assert (folder / "index.html").read_text() == "mine"


@pytest.mark.parametrize(("old", "now"), [("--sample", "--runs"), ("--sample=1", "--runs")])
def test_an_old_spelling_of_an_option_works_and_a_terminal_is_told_the_new(here, monkeypatch, capsys, old, now):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.chdir(here)
    words = (old,) if "=" in old else (old, "1")
    assert main(["compare", "--engines", "tiny.yaml", *FEW, *words]) == 0
    told = capsys.readouterr()
    assert "1 of 10 runs" in told.out
    assert f"`archsim compare --engines {old.partition('=')[0]}` is `archsim compare --engines {now}` now" in told.err

"""Inputs that once passed, crashed or hung: `reference/bad_inputs` of the shared folder; its table says what each must
get. Every command ends with status 2, a message that names the place, and nothing written.
"""

import shutil

import pytest
from support.shared import shared_path

from archsim.cli.main import main

INPUTS = shared_path() / "reference" / "bad_inputs"
pytestmark = pytest.mark.skipif(not INPUTS.is_dir(), reason=f"needs {INPUTS} (or $ARCHSIM_SHARED)")
IMPORT = "trace import {} --model olmoe-1b-7b --out out"
REFUSED = {
    "check zs.yaml": "deepseek-v2-lite.yaml: its requests have no decode steps",
    "sweep zs.yaml --out out": "give trace.synthetic.decode_steps",
    IMPORT.format("tree3"): "0.json: request sub/0, iteration 1, layer 3: expert 17 is chosen twice",
    IMPORT.format("dup.jsonl"): "dup.jsonl: line 1: token 0, layer 0: expert 25 is chosen twice",
    IMPORT.format("req_sur.jsonl"): "req_sur.jsonl: line 1: model is",
    IMPORT.format("bombpt.pt"): "1028 times the 194414 that it has",
    "trace head m802/s": "index-05963ad3006bcf6f.col: datasets: expected a list of printable names",
    "trace merge m802/s --out out": "index-05963ad3006bcf6f.col: datasets",
    "trace head m1413/s": "column 'experts' has 2 layers and top-4; the manifest has 4 layers and top-2",
    "trace merge m1413/s --out out": "column 'experts' has 2 layers and top-4",
    "model import bad2.onnx --out out": "bad2.onnx: node 0 ('MatMul'): the name",
    "serve sv_share_bad.yaml --out out": "share_bad.json: cannot be read",
    "serve sv_share_obj.yaml --out out": "share_obj.json: conversation 1: expected an object",
    "serve sv_share_int.yaml --out out": "share_int.json: conversation 1: expected an object",
    "serve sv_share_int2.yaml --out out": "share_int2.json: conversation 1: a turn is",
    "serve sv_burst.yaml --out out": "burst.csv:7: 1000000000000000019884624838656 tokens; expected at most",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with all inputs, and a serving file for the trace that has none."""
    folder = tmp_path / "inputs"
    shutil.copytree(INPUTS, folder)
    folder.chmod(0o755)
    text = (folder / "sv_share_bad.yaml").read_text()
    (folder / "sv_burst.yaml").write_text(text.replace("share_bad.json", "x455/burst.csv"))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", REFUSED)
def test_it_is_refused_with_its_place_and_nothing_is_written(here, capsys, command):
    assert main(command.split()) == 2
    assert REFUSED[command] in capsys.readouterr().err
    out = here / "out"
    assert not out.exists() or not [file for file in out.iterdir() if not file.name.startswith(".")]


def test_a_policy_that_exits_fails_its_run_alone(here, capsys):
    assert main("sweep p_bye.yaml --jobs 1 --out out".split()) == 1
    said = capsys.readouterr().err
    assert said.count("calls sys.exit(0)") >= 2 and "2 of 4 runs failed; the others are kept in out" in said

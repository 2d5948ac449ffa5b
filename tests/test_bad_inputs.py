"""Inputs that once passed, crashed or hung: `reference/bad_inputs` of the shared folder; its table says what each must
get. Every command ends with status 2, a message that names the place, and nothing written.
"""

import json
import os
import shutil
import socket
import threading

import pytest
from support.html_page import Page
from support.shared import shared_path
from support.tables import table_of

from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.runs.cluster import simulate_on_cluster

INPUTS = shared_path() / "reference" / "bad_inputs"
pytestmark = pytest.mark.skipif(not INPUTS.is_dir(), reason=f"needs {INPUTS} (or $ARCHSIM_SHARED)")
IMPORT = "trace import {} --model olmoe-1b-7b --out out"


@pytest.mark.nightly  # routes of 4,096 dies take 20 s
def test_a_mesh_of_4096_dies_runs_in_the_memory_that_check_says(here, capsys):
    assert main(["check", "sc_64.yaml"]) == 0
    assert "3.1 GB of memory per process" in capsys.readouterr().out


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


@table_of(__file__, "refused")
def test_it_is_refused_with_its_place_and_nothing_is_written(here, capsys, command, said):
    assert main(command.split()) == 2
    assert said in capsys.readouterr().err
    assert not [file for file in (here / "out").rglob("*") if file.is_file() and not file.name.startswith(".")]


def test_a_million_sampled_points_are_counted_and_estimated(here, capsys):
    assert main("check smp.yaml".split()) == 0
    said = capsys.readouterr().out
    assert "1 axis: 1,000,000 points. To simulate: no events, " in said
    assert "`archsim sweep --dry-run` checks whether the points can run" in said


def test_a_policy_that_exits_fails_its_run_alone(here, capsys):
    assert main("sweep p_bye.yaml --jobs 1 --out out".split()) == 1
    said = capsys.readouterr().err
    assert said.count("calls sys.exit(0)") >= 2 and "2 of 4 runs failed; the others are kept in out" in said
    page = Page((here / "out" / "index.html").read_text()).text
    assert "2 of 4 runs failed" in page and page.count("calls sys.exit(0)") == 2


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Three requests, of which another kind of file takes the place of the second."""
    one = json.dumps([{str(layer): [[*range(8)]] for layer in range(16)}] * 2)  # OLMoE-1B-7B: 16 layers, top-8
    folder = tmp_path / "tree" / "allenai" / "OLMoE-1B-7B" / "ds" / "sub"
    folder.mkdir(parents=True)
    for number in (0, 2):
        (folder / f"{number}.json").write_text(one)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_dangling_link_is_one_request_among_others(tree, capsys):
    (tree / "1.json").symlink_to("nowhere")
    assert main(IMPORT.format("tree --on-error skip").split()) == 0
    said = capsys.readouterr()
    assert "1.json: cannot be read" in said.err and "2" in said.out


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_devices_and_pipes_are_refused(tree, capsys, make):
    make(tree / "1.json")
    assert main(IMPORT.format("tree").split()) == 2
    assert "1.json: a directory, a device or a pipe; expected a file" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["tls://x:1", "ucx://x:1", "inproc://x", "foo", "tcp://", "tcp://x:y"])
def test_what_is_no_address_of_tcp_is_refused_at_once(address):
    with pytest.raises(ArchsimError, match="not an address of TCP"):
        list(simulate_on_cluster([], address))


def test_a_port_where_something_else_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as stream:
                stream.sendall(b"SSH-2.0-other")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ArchsimError, match="something else listens there"):
            list(simulate_on_cluster([], f"tcp://127.0.0.1:{server.getsockname()[1]}"))

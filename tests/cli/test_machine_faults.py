"""A full disk, a read-only or a removed folder end a command with a sentence, not with a traceback."""

import errno
import os
import subprocess
import sys

import pytest

import archsim.cli.new
from archsim.base.files import write_text
from archsim.cli.main import main

FULL = "/dev/full"


@pytest.mark.parametrize("number, file, said", [
    (errno.ENOSPC, None, "mine.yaml: No space left on device; what was finished before is kept: make room"),
    (errno.EROFS, "other.yaml", "other.yaml: cannot be read or written: Read-only file system"),
    (errno.ENOENT, None, "mine.yaml: cannot be read or written: No such file or directory"),
])
def test_what_the_machine_refuses_is_said_in_a_sentence(monkeypatch, capsys, tmp_path, number, file, said):
    def fail(args):
        raise OSError(number, os.strerror(number), file)

    monkeypatch.setattr(archsim.cli.new, "run_new", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "system", "mine", "--out", "mine.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_an_error_without_a_number_is_a_defect(monkeypatch):
    def fail(args):
        raise OSError("a message of the program")

    monkeypatch.setattr(archsim.cli.new, "run_new", fail)
    with pytest.raises(OSError, match="a message of the program"):
        main(["new", "system", "mine"])


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"this system has no {FULL}")
def test_a_full_disk_behind_the_output():
    with open(FULL, "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "archsim", "list", "policies"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2 and "No space left on device" in ended.stderr and "Traceback" not in ended.stderr


def test_a_draft_that_cannot_be_removed_hides_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as raised:
        write_text(tmp_path / "file" / "below.txt", "text")
    assert raised.value.errno == errno.ENOTDIR

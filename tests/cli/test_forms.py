"""Every quantity, in every form in which a file may write it, in every command that reads such a file.

One law: how a number is written changes no result. What a command says of the plain file, it says of the others.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from support.examples import sampled
from support.forms import EXPERIMENT, FORMS, SYSTEM_KEYS, system_with, write_experiment
from support.tiny import archsim

from archsim.base.yaml import dump_yaml

# Name → arguments, and what of its answer may differ: tables of ranges, and facts of a file.
COMMANDS = {
    "check": ("check e.yaml", ("details", "file")),
    "run": ("run e.yaml", ()),
    "why": ("why e.yaml --step 1", ()),
    "designs": ("compare e.yaml other.yaml", ("spec",)),
    "policies": ("compare allo allo+pred --in e.yaml", ()),
    "engines": ("compare --engines e.yaml", ()),
    "without": ("compare --without prediction --in e.yaml --jobs 1", ()),
    "bound": ("why --bound e.yaml --out bound", ()),
    "area": ("hardware area e.yaml", ()),
    "cost": ("hardware cost e.yaml", ()),
    "sweep": ("sweep e.yaml --out report --jobs 1", ()),
    "report": ("run report", ()),
    "verify": ("check --report report", ("made", "now")),
}
OF_AXES = ("check", "sweep", "verify")  # what of an axis is the first of its values alone elsewhere


def answer(folder, command, added=()):
    """(status, JSON without what may differ, what a user is told) of a command."""
    text, differs = COMMANDS[command]
    takes = added if "e.yaml" in text and command not in ("engines", "without") else ()
    done = archsim(folder, *text.split(), *takes, "--json")
    found = json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout
    return done.returncode, {k: v for k, v in found.items() if k not in differs} if isinstance(found, dict) else found


def commands_of(form):
    if form == "set":  # where it is no option, or is one of both designs
        return [each for each in COMMANDS if each not in ("engines", "without", "designs")]
    return OF_AXES if form in ("axis", "ranges") else list(COMMANDS)


@cache
def of_plain(key):
    """What every command says of the plain file."""
    folder = Path(mkdtemp(prefix="forms"))
    write_all(folder, key, "plain")
    return {command: answer(folder, command) for command in COMMANDS}


def write_all(folder, key, form):
    other = system_with(key) | {"name": "other", "hbm": {"bandwidth": "3 TB/s", "capacity": "80 GB"}}
    (folder / "other.yaml").write_text(dump_yaml(EXPERIMENT | {"systems": [other]}), encoding="utf-8")
    return write_experiment(folder, key, form)


CASES = [(key, form) for key in SYSTEM_KEYS for form in FORMS[1:]]
AT_A_COMMIT = (("hbm", "bandwidth"), "range"), (("drawn", "die_area"), "ranges")


@pytest.mark.parametrize(("key", "form"), sampled(CASES, AT_A_COMMIT.__contains__))
def test_how_a_number_is_written_changes_no_result(tmp_path, key, form):
    added, plain = write_all(tmp_path, key, form), of_plain(key)
    for command in commands_of(form):
        status, found = answer(tmp_path, command, added)
        assert status == plain[command][0] == 0, command
        if form in ("axis", "ranges"):
            continue
        assert found == plain[command][1], command
    if form in ("axis", "ranges"):
        pass


def test_the_matrix_has_every_key_form_and_command():
    assert sum(len(commands_of(form)) for _, form in CASES) >= 2_000

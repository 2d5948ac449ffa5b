"""Tables of bad input: what is refused, and what each is told.

A table of a YAML file beside this one names its door, which is what reads the input, and has a row for each fault: the
input and the message. A message is text that is said; ``*`` in it stands for anything, ``^`` in front and ``$`` behind
for its beginning and its end.
"""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.bad_experiments import CHANGED, GOOD, KNOWN_SYSTEMS, PRESET_NAMES
from support.explorations import SWEPT
from support.papers import small
from support.stores import imported
from support.tables import read_beside
from support.tiny import TINY, archsim
from support.torch_files import zip_pt
from support.trace_files import TOY

import archsim as ar
from archsim.base.config_files import shipped_configs
from archsim.base.errors import ArchsimError
from archsim.base.quantities import DIMENSIONS, parse_quantity
from archsim.base.validation import validate
from archsim.base.yaml import parse_yaml
from archsim.machine.system import SystemSpec
from archsim.model.attention import read_kind
from archsim.serving.answers.question import asked_of
from archsim.serving.requests import read_requests
from archsim.serving.serving import deploy
from archsim.specs.library import load_experiment, load_exploration, load_planned
from archsim.specs.papers import load_paper
from archsim.specs.serving_files import load_serving
from archsim.traffic.formats.load_files import read_loads
from archsim.traffic.formats.readers import open_trace
from archsim.traffic.placements import PhysicalMap, read_placement, sglang_default, write_placement

HERE = Path(__file__).parent
TABLES = {
    f"{file.stem}: {name}": table
    for file in sorted(HERE.glob("*.yaml"))
    for name, table in read_beside(__file__, file.name).items()
}
LINES = len(TINY.splitlines())  # of a file that begins as tiny.yaml does
RECORD = {"record_type": "eplb_load_stats", "step": 1, "expert_load": [[1] * 6] * 4, "p2l_map": [[*range(6)]] * 4}
PASS = {"forward_pass_id": 1, "rank": 0, "global_physical_count": [[0] * 6] + [[1] * 6] * 4}
RANGED = """\
name: small
source: a test
mesh: {{x: 2, y: 2}}
hbm: {{bandwidth: {}, capacity: 80 GB}}
d2d: {{bandwidth: 1 TB/s}}
compute: {{peak: 1000 TFLOP/s, dtype: fp8}}
"""


def written(name, text, folder=Path(".")):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def serving(read, given, table):
    """A deployment of which some keys are changed, or to which overrides apply."""
    if isinstance(given, str):
        return read(table["base"], [given])
    changed = table["base"] | given
    return read({key: value for key, value in changed.items() if value is not None or key not in table["base"]})


def at_tiny(given, table):
    """The axes of a sweep at the end of tiny.yaml; lines are counted from there on."""
    try:
        load_planned(written("tiny.yaml", f"{TINY}sweep:\n{given}\n"))
    except ArchsimError as error:
        raise ArchsimError(re.sub(r"^tiny.yaml:(\d+)", lambda at: f"line {int(at[1]) - LINES}", str(error))) from error


def placement(given, table):
    """A good placement in the format of an engine, one place of it replaced, or the end cut off."""
    engine, old, new = given
    rows = np.tile(sglang_default(12, 6), (4, 1)).astype(np.int32)
    file = next(each for each in write_placement(PhysicalMap(rows, 6, 4), TOY, Path(".")) if engine in each.name)
    text = file.read_text()
    assert old in text
    read_placement(written(file.name, text[: text.index(old)] if new is None else text.replace(old, new, 1)), TOY, 4)


def command(given, table):
    written("tiny.yaml", TINY)
    ended = archsim(Path("."), *given)
    assert ended.returncode == 2 and ended.stdout == "", ended
    raise ArchsimError("\n".join(line for line in ended.stderr.splitlines() if not line.startswith("compiling")))


def passes(given, table):
    content = {"records": [PASS | given.pop("record", {})], "last_physical_to_logical_map": [[*range(6)]] * 5} | given
    imported(written("p.json", json.dumps(content)), Path("store"))


DOORS = {
    "attention": lambda given, table: read_kind(given),
    "command": command,
    "deploy": partial(serving, lambda *given: deploy(load_serving(*given))),
    "disaggregated": lambda given, table: ar.load("serve_h200", {"disaggregated": given}),
    "exploration": lambda given, table: load_exploration(written("bad.yaml", f"{SWEPT}explore:\n  {given}\n")),
    "file": lambda given, table: load_experiment(written("bad.yaml", given.encode("latin-1"))),
    "load": partial(serving, load_serving),
    "loads": lambda given, table: imported(written(*given), Path("store")),
    "mesh": lambda given, table: load_experiment(written("tiny.yaml", TINY.replace("mesh: {x: 3, y: 2}", given))),
    "objective": lambda given, table: ar.load(yaml.safe_load(SWEPT) | {"explore": {"objectives": [given, "cost"]}}),
    "override": lambda given, table: load_experiment(written("good.yaml", GOOD), (given,)),
    "paper": lambda given, table: load_paper(
        written("p.yaml", yaml.safe_dump(small() | {"claims": [small()["claims"][0] | given]}))
    ),
    "passes": passes,
    "placement": placement,
    "pt": lambda given, table: read_loads(zip_pt(Path("x.pt"), given.encode("latin-1")), TOY),
    "quantity": lambda given, table: parse_quantity(
        given[0], next(each for each in DIMENSIONS if each.name == given[1])
    ),
    "ranged": lambda given, table: validate(SystemSpec, parse_yaml(RANGED.format(given), "small.yaml")),
    "recommend": lambda given, table: asked_of("llama-3.1-8b", **given),
    "records": lambda given, table: imported(
        written("r.jsonl", "".join(json.dumps(RECORD | each) + "\n" for each in given)), Path("store")
    ),
    "requests": lambda given, table: read_requests(written(table["into"], given), unit=table.get("unit")),
    "serve": partial(serving, ar.serve),
    "serve plan": partial(serving, ar.serve_plan),
    "shipped experiment": lambda given, table: load_experiment(shipped_configs() / given),
    "sweep": at_tiny,
    "system": lambda given, table: load_experiment(table["experiment"] | {"systems": [table["base"] | given]}),
    "tiny override": lambda given, table: load_experiment(written("tiny.yaml", TINY), [given]),
    "trace": lambda given, table: open_trace(written(*given), TOY),
    "usage": command,
}
ERRORS = {"attention": ValueError, "quantity": ValueError}  # others are of archsim


def agrees(message, found):
    """Whether a message is as its row says."""
    for name, known in (("<known systems>", KNOWN_SYSTEMS), ("<known presets>", PRESET_NAMES)):
        message = message.replace(name, known)
    begin, end = message.startswith("^"), message.endswith("$")
    text = ".*".join(map(re.escape, message[begin : len(message) - end].split("*")))
    return re.search(r"\A" * begin + text + r"\s*\Z" * end, found, re.S) is not None


@pytest.mark.parametrize("name", TABLES)
def test_what_is_wrong_is_refused_and_told(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table, wrong = TABLES[name], []
    for given, message in table["rows"]:
        try:
            DOORS[table["door"]](given, table)
        except ERRORS.get(table["door"], ArchsimError) as error:
            found = str(error).replace(f"{tmp_path}/", "").replace(f"{shipped_configs()}/", "")
        else:
            found = "accepted"
        if not agrees(message.replace("<given>", given if isinstance(given, str) else ""), found):
            wrong.append((given, message, found))
    assert not wrong, "\n".join(f"{given}\n  expected {message}\n  said     {found}" for given, message, found in wrong)
    assert table["rows"] and not (tmp_path / "store" / "manifest.json").exists() and not (tmp_path / "x").exists()


def test_a_valid_experiment_of_which_one_place_is_changed_is_told_with_that_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_experiment(written("good.yaml", GOOD)).name == "good"
    wrong = []
    for name, (old, new, message) in CHANGED.items():
        assert GOOD.count(old) == 1, name
        with pytest.raises(ArchsimError) as caught:
            load_experiment(written("bad.yaml", GOOD.replace(old, new)))
        if not agrees(f"^bad.yaml:{message}$", str(caught.value).replace(f"{tmp_path}/", "")):
            wrong.append((name, message, str(caught.value)))
    assert wrong == []


def test_rows_that_are_not_refused_or_told_otherwise_are_found():
    assert agrees("a * c", "a b c") and not agrees("^b", "a b") and not agrees("a$", "a b") and agrees("^a b$", "a b")

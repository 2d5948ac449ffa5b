"""``--json``: the result alone on stdout, what is said beside it on stderr."""

import json

import pytest
from support.explorations import EXPLORED
from support.tiny import TINY, archsim

FEW = ("--set", "workload.batch=[12]", "--set", "workload.decode_steps=2")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "explored.yaml").write_text(EXPLORED)
    return folder


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (("run", "tiny.yaml", "--policy", "ep", *FEW), lambda found: found["policy"] == "ep"),
        (("sweep", "tiny.yaml", "--jobs", "1", *FEW), lambda found: len(found) == 10),
        (("why", "tiny.yaml", *FEW), lambda found: found["rows"][0]["time_ns"] > 0 and found["levers"] is None),
        (("compare", "ep", "base", "--in", "tiny.yaml", *FEW), lambda found: found["a"] == "ep"),
        (("optimum", "tiny.yaml", "--steps", "2", *FEW), lambda found: "distance" in found[0]),
        (("engines", "tiny.yaml", "--sample", "2", *FEW), lambda found: len(found) == 2),
        (("hardware", "area", "tiny.yaml"), lambda found: found["systems"][0]["parts"][0]["area_mm2"] > 0),
        (("list", "systems"), lambda found: "dojo" in found["names"]),
        (("cost", "tiny.yaml"), lambda found: found["small"]["low"]["usd"] != found["small"]["high"]["usd"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_stdout_is_the_result(here, words, has):
    done = archsim(here, *words, "--json")
    assert done.returncode == 0, done.stderr
    assert has(json.loads(done.stdout))

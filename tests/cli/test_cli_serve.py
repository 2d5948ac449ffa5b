"""``archsim serve``: requests over time on a deployment."""

import json

import pytest

from archsim.base.answer import Answer
from archsim.cli.main import main
from archsim.specs.serving_files import load_serving

ONE = {"concurrency": 1, "input": {"fixed": 3}, "output": {"fixed": 3}}


@pytest.mark.parametrize(
    ("axis", "option", "refused"),
    [
        ({"rate": ["2/s", "4/s"]}, "--rate 9", True), ({"requests.arrivals.rate": ["2/s"]}, "--users 9", True),
        ({"slo.tpot": ["20 ms"]}, "--tpot 30ms", True), ({"requests": [ONE]}, "--rate 9", True),
        ({"experts": ["tp", "ep"]}, "--rate 9", False),
        ({"slo.tpot": ["20 ms"]}, "--ttft 3s", False), ({"requests.arrivals.burstiness": [1, 2]}, "--rate 9", False),
    ],
)  # fmt: skip
def test_an_option_that_an_axis_replaces_is_refused(axis, option, refused, tmp_path, monkeypatch, capsys):
    file = tmp_path / "swept.yaml"
    file.write_text(json.dumps(load_serving("serve_h200").given | {"sweep": {"grid": axis}}))
    monkeypatch.setattr("archsim.cli.serve._serve", lambda args: Answer(("served",)))
    assert main(["serve", str(file), *option.split()]) == (2 if refused else 0)
    assert (f"the axis {next(iter(axis))} " in capsys.readouterr().err) == refused

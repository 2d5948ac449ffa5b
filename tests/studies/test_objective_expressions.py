"""Objectives that are expressions of others: their sense, unit and values, and what is refused."""

import pytest
import yaml
from support.explorations import SWEPT

import archsim as ar
from archsim.base.errors import SpecError
from archsim.specs.explore import sense_of, with_expressions
from archsim.studies.exploration.analysis import unit_of


@pytest.mark.parametrize(("text", "sense", "unit"), [
    ("throughput", "max", "tokens/s"), ("throughput / area", "max", "tokens/s/mm²"),
    ("throughput / (cost + 20000)", "max", "tokens/s/USD"), ("energy / throughput", "min", "J/token/tokens/s"),
    ("2 * time * power", "min", "ns·W"),
])
def test_an_expression_has_a_sense_and_a_unit(text, sense, unit):
    assert (sense_of(text), unit_of(text)) == (sense, unit)


@pytest.mark.parametrize(("text", "said"), [
    ("throughput * area", "more of one part is better and of the other worse"),
    ("area / cost", "more of one part is better and of the other worse"),
    ("throughputt / area", "unknown objective 'throughputt'; did you mean 'throughput'"),
    ("throughput /", "expected a number, a name or '('"),
    ("3 + 4", "names no result"),
])
def test_what_has_no_sense_is_refused(text, said):
    tree = yaml.safe_load(SWEPT) | {"explore": {"objectives": [text, "cost"]}}
    with pytest.raises(SpecError) as refused:
        ar.load(tree)
    assert said in str(refused.value)


def test_values_of_expressions_are_those_of_their_parts():
    values = {"throughput": 100.0, "area": 8.0, "cost": 0.0}
    found = with_expressions(values, ["throughput", "throughput / area", "throughput / cost"])
    assert found["throughput / area"] == 12.5 and found["throughput / cost"] != found["throughput / cost"]
    assert set(found) == {*values, "throughput / area", "throughput / cost"}


def test_an_exploration_by_an_expression(tmp_path, monkeypatch):
    """The best by throughput per area is the point of which that ratio is largest; the page and the CSV name it."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / ".cache"))
    tree = yaml.safe_load(SWEPT)
    tree["explore"] = {"objectives": ["throughput / area", "cost"], "event_runs": 1.0}
    tree |= {"policies": ["ep"], "systems": tree["systems"][:1]}
    tree["workload"] |= {"batch": [40], "decode_steps": 2}
    found = ar.explore(tree, tmp_path / "out", jobs=1)
    ratios = {point.index: point.values["throughput"] / point.values["area"] for point in found.points}
    assert found.best(None, "throughput / area").index == max(ratios, key=ratios.__getitem__)
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "throughput / area (max)" in page
    assert "throughput / area (tokens/s/mm²)" in (tmp_path / "out" / "front.csv").read_text(encoding="utf-8")

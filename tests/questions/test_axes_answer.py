"""First sentences of sweeps with axes: the gain of the best value over the first, ties and their cheapest, draws."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from support.examples import sampled
from support.html_page import Page

import archsim as ar
from archsim.questions.comparison import write_sweep_report
from archsim.questions.exploration.axes_answer import _for_the_price
from archsim.runs.plan import plan_of, select
from archsim.runs.sweep import Unwatched, sweep_selected

BASE = {
    "name": "axes",
    "systems": ["dojo"],
    "models": ["olmoe-1b-7b"],
    "workload": {
        "trace": {"synthetic": {"like": "model", "prompt_tokens": 0}}, "batch": [256], "decode_steps": 1,
        "context": 512, "layers": 2,
    },
    "policies": ["ep", "allo"],
    "assumptions": "physical",
    "engine": "analytical",
}  # fmt: skip


@pytest.fixture
def answered(tmp_path):
    """Of a sweep of BASE with these axes: its answer, its page and its rows."""

    def run(grid, samples=16, **changes):
        file = tmp_path / "axes.yaml"
        axes = {"sweep": {"grid": grid}} if grid else {}
        file.write_text(yaml.safe_dump(BASE | changes | axes), encoding="utf-8")
        selection = select(plan_of(ar.load(file)))
        results = sweep_selected(selection, tmp_path / "out", 1, Unwatched())
        report = write_sweep_report(selection, tmp_path / "out", samples, 1)
        page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
        return report.answer, page, results.runs.rows

    return run


def numbers_of(text):
    """(Value, low, high) of every ``1.18 × (1.08–1.25``."""
    return [tuple(map(float, each)) for each in re.findall(r"([\d.]+)\u00a0× \(([\d.]+)–([\d.]+)", text)]


def test_the_best_value_of_a_key_is_held_against_the_first_with_its_range(answered):
    answer, page, rows = answered({"system.hbm.bandwidth": ["1 TB/s", "2 TB/s", "4 TB/s"]})
    first = answer.partition(". ")[0]
    rates = [[row["batch"] / row["iteration_ns"], row["tokens_per_s"]] for row in rows if row["policy"] == "ep"]
    assert "hbm.bandwidth 4 TB/s" in first and "1 TB/s" in first and first in page.replace("&nbsp;", "\u00a0")
    for (value, low, high), best, least in zip(numbers_of(first), rates[2], rates[0], strict=True):
        assert low <= value <= high and value == pytest.approx(best / least, rel=0.01)
    assert "standard error of 2 of 16 layers" in first


@pytest.mark.parametrize(("switch", "advice"), [
    ((1.16, 1.08, 1.01), ", and switch is 1.08\u00a0× as fast for the same price, so take switch"),
    ((1.16, 0.9, 1.01), ""),
    ((0.9, 1.08, 1.01), ", and switch is 1.08\u00a0× as fast for the same price, so take switch"),
])  # fmt: skip
def test_what_costs_less_is_held_against_the_first_by_the_same_measure(switch, advice):
    """Of a dearer best value, a cheaper one is chosen and named by whole iterations, as the best is."""
    rows = {"mesh": (1.0, 1.0, 1.0), "full": (1.2, 1.1, 5.2), "switch": switch}  # layers, whole, USD
    able = {
        (name,): (SimpleNamespace(name=name, row={
            "tokens_per_s": layers, "batch": 1, "iteration_ns": 1e9 / whole, "cost_usd": usd
        }), np.full(16, layers))
        for name, (layers, whole, usd) in rows.items()
    }  # fmt: skip
    rates = SimpleNamespace(rates=lambda ran, whole=False: np.full(16, rows[ran.name][whole]))
    said = _for_the_price(rates, able, lambda design: design[0], ("full",), ("mesh",))
    assert said == f"; it costs 5.2 × as much{advice}"


def test_values_that_gain_nothing_are_a_tie_and_the_cheapest_is_named(answered):
    answer, _, _ = answered({"system.llc.capacity": ["256 MiB", "1 GiB", "64 MiB"]})
    first = answer.partition(". ")[0]
    assert "no effect" in first and "64 MiB is the cheapest" in first


@pytest.mark.parametrize(("grid", "changes"), sampled([
    ({"workload.context": [512, 1024]}, {}),
    ({}, {"assumptions": "published"}),
    ({}, {"workload": BASE["workload"] | {"batch": [64, 256]}}),
], lambda case: case[0]))  # fmt: skip
def test_one_policy_alone_has_a_sentence_with_a_range(answered, grid, changes):
    answer, page, _ = answered(grid, policies=["ep"], **changes)
    first = re.split(r"\. (?=[A-Z])|\.$", answer)[0]
    number = r"([\d.]+)\u00a0[\wµ ]+(?:/s)?"
    value, low, high = map(float, re.search(rf"{number} \(([\d.]+)–{number} in 90", first).groups())
    assert low <= value <= high and first in " ".join(Page(page).text.split(" ")), answer


def test_a_part_of_a_policy_is_superfluous_from_a_value_on(answered):
    answer, _, _ = answered({"system.d2d.bandwidth": ["250 GB/s", "4 TB/s"]}, policies=["allo", "allo+pred"], samples=0)
    assert re.match(r"Prediction (adds less than the noise from|still adds)", answer)
    assert "allo+pred over allo" in answer


@pytest.mark.parametrize(("key", "values"), sampled(
    [("system.dies_as_built.dead", [[3, 7], [12, 13], [0, 24]]), ("system.drawn.wafer", [0, 1, 2])],
    lambda case: "drawn" in case[0],
))  # fmt: skip
def test_a_random_draw_is_never_the_best(answered, key, values):
    made = {"like": "dojo", "name": "wafer"}
    if "drawn" in key:
        made |= {"drawn": {"wafers": 3, "link_failure": 0.05}}
    answer, page, rows = answered({key: values}, systems=[made], samples=0)
    perfect = ar.sweep(BASE, jobs=1).runs.rows
    best = max(row["tokens_per_s"] for row in perfect)
    rates = [max(row["tokens_per_s"] for row in rows if row["point"] // 2 == at) for at in range(3)]
    assert answer.startswith("Defects cost") and "median and the central 90" in answer
    middle = 100 * (1 - sorted(rates)[1] / best)
    said = float(re.search(r"([−\d.]+)\u00a0% \(", answer)[1].replace("−", "-"))
    assert said == pytest.approx(abs(middle), abs=0.06 + 0.1 * abs(middle))
    assert "Best throughput" not in page


def test_dead_dies_are_held_against_the_perfect_machine(answered):
    made = {"like": "dojo", "name": "hurt", "dies_as_built": {"dead": [6, 18]}}
    answer, page, rows = answered({}, systems=[made], policies=["ep", "base"])
    policy = re.search(r"under (\w+), against", answer)[1]
    whole = ar.sweep(BASE | {"policies": ["ep", "base"]}, jobs=1).runs.rows
    best, perfect = (next(row["tokens_per_s"] for row in of if row["policy"] == policy) for of in (rows, whole))
    lost = 100 * (1 - best / perfect)
    said, low, high = (
        float(each.replace("−", "-")) * (-1 if "cost nothing" in answer else 1)
        for each in re.search(r"([−\d.]+)\u00a0% \(([−\d.]+)–([−\d.]+)", answer).groups()
    )
    assert answer.startswith("The 2 dead dies of hurt cost") and min(low, high) <= said <= max(low, high)
    assert said == pytest.approx(lost, abs=0.06 + 0.1 * abs(lost)) and "perfect machine" in page, answer

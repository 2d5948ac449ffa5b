"""Explorations end to end: the front is that of all points, event runs back every claim, bad input is reported."""

import csv
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.browser import run_in
from support.examples import sampled
from support.explorations import EXPLORED, SWEPT, unwatched
from support.hypervolume import hypervolume
from support.tiny import TINY

import archsim as ar
from archsim.base.tables import INTEGER, read_parquet
from archsim.cli.main import main
from archsim.questions.exploration.answers import collapse_sentence, merge_equal, wanted_designs
from archsim.questions.exploration.break_evens import break_evens, what_matters, what_pays
from archsim.questions.exploration.candidates import Candidate, Exploration, objectives_of
from archsim.questions.exploration.explore import explore
from archsim.questions.exploration.figures import tornado
from archsim.questions.exploration.levels import effects, levels_of_axis
from archsim.questions.exploration.page import (
    answer_heading,
    csv_of,
    name_points,
    render,
    unmet_budgets,
    with_units,
    write_exploration,
)
from archsim.questions.exploration.pareto import as_costs, fronts, pareto
from archsim.questions.exploration.search import search, search_each
from archsim.questions.exploration.sweep_view import SHOWN, idle_axes, view_of
from archsim.runs.columns import RUN_COLUMNS
from archsim.runs.prices import Coefficients, build_costs
from archsim.runs.sweep import sweep
from archsim.show.units import amount, unit_of_objective
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import OBJECTIVES, ExploreSpec, sense_of, with_expressions
from archsim.specs.library import load_exploration


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "explored.yaml"
    path.write_text(EXPLORED, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(file):
    plan, spec = load_exploration(file, ["policies=[base, ep]", "engine=analytical"])
    return plan, explore(plan, spec, file.parent / "out", 1, unwatched)


def test_every_claim_is_established_by_the_event_engine(found):
    _, outcome = found
    assert outcome.front and all(point.engine == "event" for point in outcome.front)
    assert len(outcome.known) <= outcome.budget == round(0.4 * len(outcome.points))


def test_front_is_that_of_the_event_engine_over_all_points(file, found):
    """If the search is stable, every point of the exhaustive front is matched by one that was found."""
    _, outcome = found
    plan, spec = load_exploration(file, ["policies=[base, ep]", "explore.event_runs=100 %"])
    everything = explore(plan, spec, file.parent / "all", 1, unwatched)
    costs = as_costs(
        np.array([[point.values[name] for name in spec.objectives] for point in everything.points]), spec.senses
    )
    best = costs[pareto(costs)]
    assert len(best) > 0
    reached = as_costs(
        np.array([[point.values[name] for name in spec.objectives] for point in outcome.front]), spec.senses
    )
    for point in best:
        assert (reached <= point + 0.02 * np.abs(point)).all(axis=1).any()


def test_a_best_design_runs_again_from_its_yaml(file, found):
    plan, outcome = found
    best = wanted_designs(outcome)["best throughput"]
    tree = plan.resolved(plan.point(best.index)._replace(engine="event"))
    row = sweep(ExperimentSpec.model_validate(tree), file.parent / "again", 1).runs.rows[0]
    assert row["tokens_per_s"] == best.values["throughput"] and row["run"] == best.run


def test_objectives_are_of_all_layers_however_few_ran(file, found):
    """Most columns are for the layers that ran; objectives do not depend on how many ran, so that budgets hold."""
    plan, outcome = found
    point = plan.point(outcome.front[0].index)
    row = {"tokens_per_s": 600.0, "decode_ns": 100.0, "energy_per_token_j": 0.5, "power_w": 90.0}
    row |= {"silicon_mm2": 1.0, "cost_usd": 2.0}
    every = len(point.model.moe_layer_ids)
    part = objectives_of(point.model, row | {"layers": 1})
    whole = objectives_of(point.model, row | {"layers": every})
    assert whole == objectives_of(point.model, row | {"layers": None})  # of an older version
    assert part["time"] == pytest.approx(whole["time"] * every)
    assert {name for name in OBJECTIVES if part[name] != whole[name]} == {"time"}
    changes = ["workload.layers=1", "workload.trace.synthetic.prompt_tokens=0", "assumptions=physical"]
    few, spec = load_exploration(file, ["policies=[ep]", "explore.event_runs=2", *changes])
    seen = explore(few, spec, file.parent / "few layers", 1, unwatched)
    assert all(
        each.values["throughput"] * each.values["energy"] == pytest.approx(each.values["power"]) for each in seen.points
    )
    page = render(seen, {}, {})
    ran = f"1 of {every} MoE layers of {point.model.name}"
    assert ran in page and ran not in render(outcome, {}, {})


def test_budgets_are_kept(found):
    _, outcome = found
    designs = wanted_designs(outcome)
    assert designs["best throughput with cost <= 4900"].values["cost"] <= 4900
    assert "best throughput with cost <= 1" not in designs


def test_page_and_csv_agree(found, tmp_path):
    plan, outcome = found
    designs = {point.index: plan.resolved(plan.point(point.index)) for point in wanted_designs(outcome).values()}
    page = write_exploration(outcome, designs, {}, tmp_path)
    rows = list(csv.DictReader((tmp_path / "front.csv").open(encoding="utf-8")))
    assert sorted(int(row["point"]) for row in rows) == sorted(point.index for point in outcome.known)
    assert sum(int(row["front"]) for row in rows) == len(outcome.front)
    text = page.read_text(encoding="utf-8")
    assert all(
        f"designs/point-{index}.yaml" in text and (tmp_path / "designs" / f"point-{index}.yaml").is_file()
        for index in designs
    )
    assert render(outcome, designs, {}) == text and csv_of(outcome) == (tmp_path / "front.csv").read_text(
        encoding="utf-8"
    )


def test_page_shows_units_and_the_range_of_a_price(found):
    plan, outcome = found
    best = wanted_designs(outcome)["best cost"]
    designs = {best.index: plan.resolved(plan.point(best.index))}
    page = render(outcome, designs, {})
    system = plan.point(best.index).system
    low, high = (
        amount("cost", sum(build_costs(system, Coefficients().at(bound)).usd.values())) for bound in ("low", "high")
    )
    assert f"cost {amount('cost', best.values['cost'])} ({low} to {high})" in page
    assert re.search("throughput.* cost ≤ 4900 USD", page) and "-0.0" not in page
    assert "energy, mJ/token" in page or "energy, µJ/token" in page  # the title of an axis
    assert with_units("cost <= 3 and power <= cost") == "cost <= 3 and power <= cost (cost in USD, power in W)"


def test_coefficients_change_what_they_price_and_nothing_else(file, found):
    plan, outcome = found
    _, spec = load_exploration(file, ["explore.coefficients={hbm_usd_per_gb: 10.5}"])
    dearer = explore(plan, spec, file.parent / "out", 1, unwatched)
    assert len(outcome.points) == len(dearer.points) == 48
    for one, other in zip(outcome.points, dearer.points, strict=True):
        assert other.cheap["cost"] > one.cheap["cost"]
        assert {name: other.cheap[name] for name in OBJECTIVES if name != "cost"} == {
            name: one.cheap[name] for name in OBJECTIVES if name != "cost"
        }


def test_where_keeps_points_off_the_front(file, found):
    plan, outcome = found
    most = max(point.values["throughput"] for point in outcome.known)
    _, spec = load_exploration(file, [f"explore.where=['throughput < {most}']"])
    limited = explore(plan, spec, file.parent / "out", 1, unwatched)
    assert limited.front and all(point.values["throughput"] < most for point in limited.front)


def test_optuna_chooses_where_not_all_can_run(file):
    pytest.importorskip("optuna", reason="needs optuna: pip install 'archsim[explore]'")
    plan, spec = load_exploration(
        file, ["explore.analytical_runs=12", "explore.event_runs=4", "sweep.where=[dies >= 6]", "engine=analytical"]
    )
    one, other = (explore(plan, spec, file.parent / name, 1, unwatched) for name in ("chosen", "chosen again"))
    assert plan.combinations == 120 and 8 <= len(one.points) <= 12  # half of them have six dies
    assert [point.index for point in one.points] == [point.index for point in other.points]
    assert one.front and all(plan.point(point.index).system.dies == 6 for point in one.points)


def test_point_numbers_follow_from_their_choices(file):
    plan, _ = load_exploration(file)
    for index in (0, 7, plan.combinations - 1):
        chosen, rest = [], index
        for size in reversed(plan.sizes):
            rest, at = divmod(rest, size)
            chosen.append(at)
        assert plan.index_of(tuple(reversed(chosen))) == index == plan.point(index).index


def test_sensitivities_are_ratios_of_geometric_means(found):
    _, outcome = found
    ratios = effects(outcome.points, "throughput")
    assert len(ratios) == 5 and all(each.error >= 0 for each in ratios)
    for axis, least, below, most, above, _ in ratios:
        values = {
            level: [p.values["throughput"] for p in outcome.points if p.axes[axis] == level] for level in (least, most)
        }
        ratio = np.exp(np.mean(np.log(values[most])) - np.mean(np.log(values[least])))
        assert above / below == pytest.approx(ratio) and below <= 1 <= above


def designs(values, axes, model="toy"):
    """Candidates with one objective and these axes."""
    return [
        Candidate(at, each, {"throughput": value}, {}, "event", True, True, ("hbm", 1.0), None, "", model)
        for at, (value, each) in enumerate(zip(values, axes, strict=True))
    ]


def test_values_of_a_sampled_axis_go_into_bins_with_an_error():
    rng = np.random.default_rng(2)
    rates = rng.uniform(0.5, 4.0, 400)
    written = [f"{rate:.4g} TB/s" if rate >= 1 else f"{1000 * rate:.4g} GB/s" for rate in rates]
    noise = np.exp(rng.normal(0, 0.2, 400))
    points = designs(rates * noise, [{"rate": each, "lanes": str(at % 3)} for at, each in enumerate(written)])
    bins = levels_of_axis(points, "rate")
    assert [level.name.endswith("TB/s") for level in bins] == [True] * 5 and bins[0].name.startswith("0.5")
    assert sum(level.members.sum() for level in bins) == 400 and min(level.members.sum() for level in bins) >= 75
    rate, lanes = effects(points, "throughput")
    assert rate.axis == "rate" and rate.shown and rate.most == bins[-1].name and 0 < rate.error < 0.1
    assert lanes.axis == "lanes" and not lanes.shown


def test_a_model_that_the_event_engine_did_not_reach_has_estimates():
    axes = [{"llc": str(at)} for at in range(2)]
    missed = [replace(each, engine="analytical", front=False) for each in designs([9.0, 8.0], axes, "late")]
    spec = ExploreSpec(objectives=("throughput",))
    found = Exploration("x", spec, (*designs([1.0, 2.0], axes), *missed), 4, {}, 2, False, (), ())
    headings = {answer_heading(found, heading, point): point for heading, point in wanted_designs(found).items()}
    assert headings["best throughput, toy"].values["throughput"] == 2.0
    (told,) = [heading for heading in headings if heading.startswith("best throughput, late")]
    assert "analytical" in told
    assert headings[told].values["throughput"] == 9.0
    assert found.best(None, "throughput").values["throughput"] == 2.0


def test_an_effect_between_single_designs_is_not_certain():
    one_each = designs([1.0, 1.1], [{"llc": "1"}, {"llc": "2"}])
    (llc,) = effects(one_each, "throughput")
    assert llc.error == np.inf and not llc.shown
    assert {row["error"].partition(":")[0] for row in tornado(one_each, "throughput").rows} == {"one design per value"}
    axes = [{"llc": each} for each in ("1", "1", "2", "2", "3")]
    (pooled,) = effects(designs([1.0, 2.0, 1.0, 2.0, 2.0], axes), "throughput")  # 3 is within what 1 and 2 vary
    assert pooled.most == "3" and not pooled.shown
    (clear,) = effects(designs([1.0, 1.01, 1.0, 1.01, 2.0], axes), "throughput")
    assert clear.most == "3" and clear.shown


def test_designs_with_equal_values_are_one_and_say_what_does_not_matter():
    axes = [{"llc": str(at), "links": "1" if at < 3 else "2"} for at in range(4)]
    one, other = merge_equal(designs([5.0, 5.0, 5.0, 7.0], axes), ["throughput"])
    assert one.sentence == "points 1, 2 (llc)" and other.sentence == ""
    assert re.search(r"\b4\b.*\b2\b.* llc\b", collapse_sentence(designs([5.0, 5.0, 5.0, 7.0], axes), ["throughput"]))
    assert collapse_sentence(designs([5.0, 6.0], axes[:2]), ["throughput"]) == ""


def test_an_exploration_needs_a_sweep_and_objectives(tmp_path, capsys):
    file = tmp_path / "lacking.yaml"
    file.write_text(TINY, encoding="utf-8")
    assert main(["explore", str(file)]) == 2
    assert "sweep:" in capsys.readouterr().err
    file.write_text(SWEPT, encoding="utf-8")
    assert main(["explore", str(file)]) == 2
    assert "explore: {objectives:" in capsys.readouterr().err


@pytest.mark.parametrize("engine", sampled(["event", "analytical"], {"event"}.__contains__))
def test_page_of_a_sweep_over_points(file, capsys, engine):
    """Every number of the page's table is in the results, and the front is that of all points."""
    words = "--set policies=[ep] --jobs 1 --samples 0".split()
    assert main(["sweep", str(file), *words, "--set", f"engine={engine}", "--out", str(file.parent / "swept")]) == 0
    assert f"report: {file.parent / 'swept' / 'index.html'}" in capsys.readouterr().out
    plan, _ = load_exploration(file, ["policies=[ep]"])
    rows = read_parquet(file.parent / "swept" / "results.parquet", {"point": INTEGER} | RUN_COLUMNS).rows
    view = view_of(plan, rows, {})
    costs = as_costs(
        np.array([[row[OBJECTIVES[name][0]] for name in SHOWN.objectives] for row in rows], float), SHOWN.senses
    )
    assert [point.front for point in view.points] == pareto(costs).tolist()
    page = (file.parent / "swept" / "index.html").read_text(encoding="utf-8")
    assert page.count("<td>front</td>") == len(view.front) and f"by the {engine} engine" in page
    assert ("Analytical and event engine" in page) == (engine == "analytical")


def test_without_event_runs_the_front_is_that_of_the_estimates(file, tmp_path, capsys):
    assert main(["explore", str(file), "--set", "explore.event_runs=0", "--set", "policies=[ep]",
                 "--set", "workload.batch=40", "--out", str(tmp_path), "--jobs", "1"]) == 0  # fmt: skip
    printed = " ".join(capsys.readouterr().out.split())
    assert "analytical" in printed and "; 0 of " in printed
    assert "no event runs were requested" in (tmp_path / "index.html").read_text(encoding="utf-8")
    rows = list(csv.DictReader((tmp_path / "front.csv").open(encoding="utf-8")))
    assert rows and {row["front"] for row in rows} == {"1"}


def test_objectives_over_worlds_rank_by_risk(tmp_path):
    risks, file = ["throughput.p10", "probability(throughput >= 1e5)"], tmp_path / "small.yaml"
    file.write_text(EXPLORED, encoding="utf-8")
    plan, spec = load_exploration(
        file, ["policies=[ep]", f"explore.objectives=[{risks[0]}, '{risks[1]}', cost]", "explore.event_runs=0",
               "explore.samples=16", "explore.drawn_designs=2", "explore.budgets=[]", "engine=analytical"],
    )  # fmt: skip
    found = explore(plan, spec, tmp_path / "out", 1, unwatched)
    assert len(found.points) == 2 and "16 samples" in " ".join(found.notes)
    for point in found.points:
        assert point.values[risks[0]] < point.values["throughput"] * 1.05 and 0 < point.values[risks[1]] < 1
    assert csv_of(found) and amount(risks[1], 0.97) == "97 %" or amount(risks[1], 0.97) == "97%"


def test_objectives_over_worlds_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="'cost' is not sampled"):
        ExploreSpec(objectives=("cost.p10",))
    with pytest.raises(ValueError, match="p1 to p99"):
        ExploreSpec(objectives=("throughput.p0",))


# ---- Fronts, volumes and the search with two fidelities, checked against definitions and exhaustive answers.

POINTS = st.integers(1, 3).flatmap(lambda m: st.lists(st.tuples(*[st.integers(0, 6)] * m), min_size=1, max_size=40))


def dominates(one, other) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


@given(POINTS)
def test_front_is_what_nothing_dominates(points):
    costs = np.array(points, float)
    expected = [not any(dominates(other, point) for other in points) for point in points]
    assert pareto(costs).tolist() == expected


def test_blocks_of_points_change_nothing():
    costs = np.random.default_rng(3).random((1700, 2))
    order = np.lexsort(costs.T[::-1])
    best = np.minimum.accumulate(costs[order][:, 1])
    expected = np.zeros(1700, bool)
    expected[order] = np.append(True, costs[order][1:, 1] < best[:-1])
    assert (pareto(costs) == expected).all()


@pytest.mark.parametrize("objectives", [2, 3, 4])
@pytest.mark.parametrize("levels", [6, 40, 10**9])
def test_many_points_have_the_front_that_comparing_each_with_all_finds(objectives, levels):
    costs = np.random.default_rng(objectives).integers(0, levels, (900, objectives)).astype(np.float64)
    costs[::50, 0] = np.inf
    beaten = [((costs <= own).all(axis=1) & (costs < own).any(axis=1)).any() for own in costs]
    assert (pareto(costs) == ~np.array(beaten) & np.isfinite(costs).all(axis=1)).all()


def test_unknown_and_failed_are_never_on_a_front():
    costs = as_costs(np.array([[1.0, 5.0], [np.nan, 9.0], [2.0, 4.0]]), ("min", "max"))
    assert costs[0].tolist() == [1.0, -5.0] and pareto(costs).tolist() == [True, False, False]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_volume_is_the_number_of_unit_cubes_that_are_dominated(points):
    cubes = {(x, y, z) for px, py, pz in points for x in range(px, 5) for y in range(py, 5) for z in range(pz, 5)}
    assert hypervolume(np.array(points, float), np.full(3, 5.0)) == pytest.approx(len(cubes))


def test_volume_ignores_what_is_beyond_the_reference():
    assert hypervolume(np.array([[1.0, 9.0]]), np.array([5.0, 5.0])) == 0.0


def space(seed: int, points: int = 500):
    """Throughput (to maximise), energy and area; estimates have an error per family and noise; area is exact."""
    rng = np.random.default_rng(seed)
    families = rng.integers(0, 5, points)
    area = rng.lognormal(0, 0.6, points)
    speed = area**0.7 * rng.lognormal(0, 0.35, points)
    energy = speed**0.4 / area**0.2 * rng.lognormal(0, 0.25, points)
    true = np.stack([-speed, energy, area], axis=1)
    error = np.exp(rng.normal(0, 0.15, (5, 2))[families] + rng.normal(0, 0.05, (points, 2)))
    return true * np.concatenate([error, np.ones((points, 1))], axis=1), true, families


@pytest.mark.parametrize("seed", range(6))
def test_search_finds_the_front_with_few_runs(seed):
    """At least 99 % of the volume of the exhaustive front with 15 % of the runs, about the size of the front."""
    cheap, true, families = space(seed)
    asked = []

    def run(points):
        asked.extend(points)
        return true[points]

    found = search(cheap, families, run, budget=75)
    reference = true.max(axis=0) + 1e-9
    best, reached = hypervolume(true[pareto(true)], reference), hypervolume(true[found.front], reference)
    assert len(asked) == len(set(asked)) == found.known.sum() <= 75
    assert reached >= 0.99 * best
    assert (found.values[found.known] == true[found.known]).all() and found.known[found.front].all()


def test_an_exact_estimate_needs_its_front_and_samples_only():
    _, true, families = space(1)
    found = search(true, families, lambda points: true[points], budget=500)
    assert found.stable and (found.front == pareto(true)).all()
    assert found.known.sum() <= pareto(true).sum() + 2 * 5


def test_failed_runs_are_skipped():
    cheap, true, families = space(2)
    broken = true.copy()
    broken[::3] = np.nan
    found = search(cheap, families, lambda points: broken[points], budget=200)
    assert found.front.any() and not found.front[::3].any()


def test_budget_is_kept_and_reported():
    cheap, true, families = space(0)
    found = search(cheap, families, lambda points: true[points], budget=20)
    assert found.known.sum() == 20 and not found.stable


def test_every_model_has_its_own_front():
    """The points of one model never keep those of another off the front, and the budget holds for all together."""
    cheap, true, families = space(3)
    models = ["small" if at % 3 else "large" for at in range(len(true))]
    larger = np.array([model == "large" for model in models])
    true[larger], cheap[larger] = true[larger] + 100.0, cheap[larger] + 100.0  # dominated by every small one
    asked = []

    def run(points):
        asked.extend(points)
        return true[points]

    found = search_each(cheap, families + 5 * larger, models, run, budget=120)
    assert len(asked) == len(set(asked)) == found.known.sum() <= 120
    assert found.front[larger].any() and found.front[~larger].any() and found.known[found.front].all()
    best = fronts(true, models)
    assert best[larger].sum() == pareto(true[larger]).sum() and best[~larger].sum() == pareto(true[~larger]).sum()


def test_search_is_deterministic():
    cheap, true, families = space(4)
    one, other = (search(cheap, families, lambda points: true[points], budget=75, seed=9) for _ in range(2))
    assert (one.known == other.known).all() and (one.front == other.front).all()


# ---- Objectives that are expressions of others: their sense, unit and values, and what is refused.


@pytest.mark.parametrize(("text", "sense", "unit"), [
    ("throughput", "max", "tokens/s"),
    ("throughput / area", "max", "tokens/s/mm²"),
    ("throughput / (cost + 20000)", "max", "tokens/s/USD"),
    ("energy / throughput", "min", "J/token/tokens/s"),
    ("2 * time * power", "min", "ns·W"),
])  # fmt: skip
def test_an_expression_has_a_sense_and_a_unit(text, sense, unit):
    assert (sense_of(text), unit_of_objective(text)) == (sense, unit)


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


# ---- Where a step of an axis pays, by pairs of designs that are equal otherwise; the answer of an exploration's
# page.

LLC, HBM = ("32 MiB", "64 MiB"), ("1 TB/s", "2 TB/s", "4 TB/s")


def _found(objective="throughput"):
    """An LLC of twice the size costs 1 %; it gains 5 % if HBM is below 4 TB/s. HBM gains 50 % a step, for 2 %."""
    points = []
    for llc in LLC:
        for at, hbm in enumerate(HBM):
            rate = 100.0 * 1.5**at * (1.05 if llc == LLC[1] and at < 2 else 1.0)
            values = {"throughput": rate, "time": 1e6 / rate, "cost": 1000 * 1.02**at * (1.01 if llc == LLC[1] else 1)}
            values |= {"energy": 1.0, "power": 1.0, "area": 1.0}
            axes, front = {"llc": llc, "hbm": hbm}, len(points) in (0, 5)
            points.append(
                Candidate(
                    len(points), axes, values, values, "event", front, True, ("hbm", 0.9), None, f"r{len(points)}", "m"
                )
            )
    spec = ExploreSpec(objectives=[objective, "cost"])
    return Exploration("made", spec, tuple(points), 6, {}, 6, True, (), ("physical",), (), {"m": ((1,), 1)})


@pytest.mark.parametrize("objective", ["throughput", "time"])
def test_a_step_pays_where_the_objective_gains_more_than_the_price_grows(objective):
    """A time that falls is the same gain as a throughput that rises."""
    llc, *hbm = break_evens(_found(objective))
    assert (llc.axis, llc.before, llc.after) == ("llc", *LLC)
    assert (
        re.match(r"is worth it below hbm 4 TB/s.* 2 TB/s \(2 of 3 .*0 to \+5.0.% .*\+1.0.%$", llc.sentence)
        and llc.paying == 2
    )
    assert [each.sentence.startswith("is worth it everywhere") for each in hbm] == [True, True]


def test_an_axis_without_an_order_has_no_above_and_below():
    """Policies where an HBM bandwidth was: named, not counted up to."""
    found, policies = _found(), dict(zip(HBM, ("ep", "allo", "base"), strict=True))
    points = [
        Candidate(**{**vars(each), "axes": {"llc": each.axes["llc"], "policy": policies[each.axes["hbm"]]}})
        for each in found.points
    ]
    told = break_evens(Exploration(**{**vars(found), "points": tuple(points)}))[0].sentence
    assert told.startswith("is worth it with policy ep or allo (2 of 3 pairs of designs): ")


def test_an_objective_with_a_price_in_it_is_taken_as_it_is():
    found = _found("throughput")
    points = [
        Candidate(**{**vars(each), "cheap": {**each.cheap, "throughput / cost": each.cheap["throughput"]}})
        for each in found.points
    ]
    spec = ExploreSpec(objectives=["throughput / cost", "cost"])
    told = break_evens(Exploration(**{**vars(found), "spec": spec, "points": tuple(points)}))[0].sentence
    assert "price" not in told and "(throughput / cost)" in told


def test_the_answer_names_what_matters_and_the_break_evens():
    found = _found()
    assert "hbm (2." in what_matters(found) and "between 1 TB/s and 4 TB/s" in what_matters(found)
    assert (
        what_pays(break_evens(found)) == "Changing llc from 32 MiB to 64 MiB is worth it below hbm 4 TB/s, up to 2 TB/s"
    )


def test_a_budget_that_no_design_keeps_is_told_with_what_there_is():
    found = _found()
    spec = ExploreSpec(objectives=["throughput", "cost"], budgets=["cost <= 1000", "cost <= 900"])
    told = unmet_budgets(Exploration(**{**vars(found), "spec": spec}))
    assert told == ["No design keeps cost ≤ 900 USD, as cost is 1.00 k USD to 1.05 k USD."]


def test_points_are_named_by_their_axes():
    note = "policy base is slower, at worst 0.2× (point 3: dojo.050e010ca2, toy, batch 4)"
    assert name_points(_found(), note) == "policy base is slower, at worst 0.2× (point 3 (64 MiB 1 TB/s), toy, batch 4)"


def test_a_pareto_point_has_its_numbers_and_nothing_is_cut(tmp_path):
    page = render(_found(), {}, {})
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    fits = run_in(tmp_path / "index.html", "return document.documentElement.scrollWidth <= innerWidth", 400)
    assert fits is True and ">64 MiB</td><td>4 TB/s</td>" in page


# ---- An axis that changes no number says so; one that changes any does not.


def test_an_axis_that_changes_no_number_is_told():
    groups = [SimpleNamespace(axes=[SimpleNamespace(name=name)]) for name in ("dead", "alive")]
    points = [SimpleNamespace(choice=(dead, alive)) for dead in range(2) for alive in range(2)]
    rows = [{"policy": "ep", "run": str(at), "decode_ns": 1.0 + each.choice[1]} for at, each in enumerate(points)]
    plan = SimpleNamespace(sweep=SimpleNamespace(groups=groups))
    assert [note.partition(" has no effect here: ")[0] for note in idle_axes(plan, points, rows)] == ["dead"]
    assert list(idle_axes(plan, points[:1], rows[:1])) == []

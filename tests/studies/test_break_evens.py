"""Where a step of an axis pays, by pairs of designs that are equal otherwise; the answer of an exploration's page."""

import pytest
from support.browser import run_in

from archsim.specs.explore import ExploreSpec
from archsim.studies.exploration.analysis import Candidate, Exploration, break_evens, what_matters, what_pays
from archsim.studies.exploration.page import named, render, unmet_budgets

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
    assert llc.told.startswith("pays below hbm 4 TB/s, up to 2 TB/s (2 of 3 pairs of designs): ")
    assert llc.told.endswith("0 to +5.0\u00a0% for price +1.0\u00a0%") and llc.paying == 2
    assert [each.told.startswith("pays everywhere") for each in hbm] == [True, True]


def test_an_axis_without_an_order_has_no_above_and_below():
    """Policies where an HBM bandwidth was: named, not counted up to."""
    found, policies = _found(), dict(zip(HBM, ("ep", "allo", "base"), strict=True))
    points = [
        Candidate(**{**vars(each), "axes": {"llc": each.axes["llc"], "policy": policies[each.axes["hbm"]]}})
        for each in found.points
    ]
    told = break_evens(Exploration(**{**vars(found), "points": tuple(points)}))[0].told
    assert told.startswith("pays with policy ep or allo (2 of 3 pairs of designs): ")


def test_an_objective_with_a_price_in_it_is_taken_as_it_is():
    found = _found("throughput")
    points = [
        Candidate(**{**vars(each), "cheap": {**each.cheap, "throughput / cost": each.cheap["throughput"]}})
        for each in found.points
    ]
    spec = ExploreSpec(objectives=["throughput / cost", "cost"])
    told = break_evens(Exploration(**{**vars(found), "spec": spec, "points": tuple(points)}))[0].told
    assert "price" not in told and "(throughput / cost)" in told


def test_the_answer_names_what_matters_and_the_break_evens():
    found = _found()
    assert "hbm (2." in what_matters(found) and "between 1 TB/s and 4 TB/s" in what_matters(found)
    assert what_pays(break_evens(found)) == "Break-evens: llc 32 MiB → 64 MiB pays below hbm 4 TB/s, up to 2 TB/s"


def test_a_budget_that_no_design_keeps_is_told_with_what_there_is():
    found = _found()
    spec = ExploreSpec(objectives=["throughput", "cost"], budgets=["cost <= 1000", "cost <= 900"])
    told = unmet_budgets(Exploration(**{**vars(found), "spec": spec}))
    assert told == ["No design is within cost ≤ 900 USD: cost is 1.00 k USD to 1.05 k USD."]


def test_points_are_named_by_their_axes():
    note = "policy base is slower, at worst 0.2× (point 3: dojo.050e010ca2, toy, batch 4)"
    assert named(_found(), note) == "policy base is slower, at worst 0.2× (point 3 (64 MiB 1 TB/s), toy, batch 4)"


def test_a_pareto_point_has_its_numbers_and_nothing_is_cut(tmp_path):
    page = render(_found(), {}, {})
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    fits = run_in(tmp_path / "index.html", "return document.documentElement.scrollWidth <= innerWidth", 400)
    assert fits is True and '>64 MiB</td><td>4 TB/s</td>' in page

"""The section on balancers: winners, distance to the bound, and reasons why one does not pay."""

import pytest

from archsim.report.sections import balancers_section, distance, reached, reason


def row(policy, throughput, load, **more):
    of_run = {"system": "dojo", "model": "toy", "trace": "made up", "batch": 64, "assumptions": "physical"}
    found = {"policy": policy, "throughput_tokens_per_s": throughput, "load_max_over_mean": load}
    return (
        of_run | found | {"load_ceiling_slots": 1.2, "decode_ns": 1000.0, "prefill_ns": 0.0, "decode_steps": 4} | more
    )


EP = row("ep", 100.0, 2.0)


def test_the_winner_executes_every_pair_and_its_share_of_the_ceiling_is_told():
    rows = [EP, row("eplb", 150.0, 1.4), row("capacity_drop", 200.0, 1.3, pairs_lost=7, gate_mass_lost=0.02)]
    found = balancers_section(rows)
    (win,) = found["wins"]
    assert (win.winner, win.gain, win.reached) == ("eplb", "1.50×", "75\u00a0%")
    assert [cell.text for cell in win.cells] == ["1.50*", "2.00"] and all(cell.step == 4 for cell in win.cells)
    assert found["policies"] == ["eplb", "capacity_drop"] and found["places"] == 1
    assert found["costs"][0].pays == "1 of 1" and found["costs"][1].lost == "2.0\u00a0%"


def test_there_is_no_section_without_ep_or_without_a_balancer():
    assert balancers_section([row("eplb", 150.0, 1.4)]) is None
    assert balancers_section([EP, row("base", 50.0, 1.1)]) is None
    assert balancers_section([EP, row("my-own", 50.0, 1.1, migrated_bytes=8)]) is not None


@pytest.mark.parametrize(("changes", "why"), [
    ({"migration_exposed_ns": 100.0}, "waits for moves"),
    ({"decision_exposed_ns": 100.0, "prefetch_exposed_ns": 50.0}, "waits for decisions"),
    ({"load_max_over_mean": 2.1}, "does not balance"),
    ({}, "load does not bound the step"),
])
def test_a_balancer_that_does_not_pay_has_a_reason(changes, why):
    slow = row("eplb", 90.0, 1.5) | changes
    assert reason(slow, EP) == why
    assert balancers_section([EP, slow])["costs"][0].why == f"{why}: 1"


def test_distance_and_share_of_the_ceiling():
    assert distance(row("eplb", 1.0, 1.8)) == pytest.approx(1.5)
    assert distance(row("eplb", 1.0, None)) is None
    assert reached(row("eplb", 1.0, 1.2), EP) == pytest.approx(1.0) and reached(EP, EP) == 0.0
    assert reached(EP, row("ep", 1.0, 1.2)) is None  # nothing to remove


def test_a_glance_names_the_fastest_of_every_machine_traffic_and_model():
    rows = [
        row(policy, throughput, load, system=system, trace=trace, **more)
        for system, speed in (("dojo", 1.0), ("node", 2.0))
        for trace in ("synthetic seed=0 skew=1", "synthetic seed=0 drift=1")
        for policy, throughput, load, more in (
            ("ep", 100.0, 2.0, {}), ("eplb", 100.0 * speed, 1.4, {"migrated_bytes": 8e9}),
            ("harmoeny", 110.0, 1.2, {"remote_hbm_read_bytes": 4e9}), ("capacity_drop", 900.0, 1.0, {"pairs_lost": 5}),
        )
    ]
    found = balancers_section(rows)
    told = {each.shared: (each.best, each.gain, each.wins, each.nothing) for each in found["glances"]}
    assert told["dojo"] == ("harmoeny", "1.10×", "2 of 2", "0 of 2") and told["node"][:2] == ("eplb", "2.00×")
    assert set(told) == {"dojo", "node", "synthetic skew=1", "synthetic drift=1"}
    dojo = next(each for each in found["glances"] if each.shared == "dojo")
    assert dojo.others == "ep 1.00×, eplb 1.00×" and dojo.moved.startswith("1") and dojo.reached.startswith("100")
    assert not balancers_section(rows[:4])["glances"]


def test_places_are_shown_together_by_the_imbalance_that_there_is_to_remove():
    """At an even load nothing pays; the range of a load is told."""
    rows = []
    for batch, load, speed in ((1, 1.05, 100.5), (2, 1.2, 104.0), (3, 1.25, 108.0), (4, 2.0, 150.0)):
        rows += [row("ep", 100.0, load, batch=batch), row("eplb", speed, 1.0, batch=batch)]
    glances = [each for each in balancers_section(rows)["glances"] if each.shared.startswith("load of ep")]
    assert [(each.shared, each.nothing) for each in glances] == [
        ("load of ep below 1.1", "1 of 1"), ("load of ep 1.1 to 1.3", "0 of 2"), ("load of ep above 1.6", "0 of 1"),
    ]  # fmt: skip
    assert glances[1].gain == "1.06×"
    even = [row(*run, batch=each) for each in (1, 2) for run in (("ep", 100.0, 2.0), ("eplb", 120.0, 1.4))]
    assert not any(each.shared.startswith("load of ep") for each in balancers_section(even)["glances"])

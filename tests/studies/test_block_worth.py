"""Whether a block of silicon pays: pairs that differ in it alone, costs as the area's, a verdict and break-evens."""

from dataclasses import replace

import pytest

import archsim as ar
from archsim.base.errors import SpecError
from archsim.report.decision_cost import added_mm2
from archsim.studies.worth import BlockRun, BlockWorth, cost_of, drawn, judge, pairs_of

DOJO = ar.load("dojo")
KEY = {"system": "dojo", "model": "deepseek-v3", "assumptions": "physical"}


def _rows(*given):
    """(policy, batch, throughput, energy) → rows of results."""
    for policy, batch, rate, joule in given:
        step_ns = 1e9 / rate
        numbers = {"decode_step_ns": step_ns, "throughput_tokens_per_s": rate, "energy_per_token_j": joule}
        yield KEY | {"policy": policy, "batch": batch} | numbers


def test_policies_are_compared_that_differ_in_the_block_alone():
    named = {
        block: [(a.name, b.name) for a, b in pairs_of(block, DOJO.policies)] for block in ("prediction", "allocator")
    }
    assert named == {"prediction": [("pred", "base"), ("allo+pred", "allo")], "allocator": [("allo", "ep")]}


def test_the_block_costs_what_the_area_model_says_of_the_policies():
    """One law: what `deciders.added_mm2` says of the policy with the block, less that of the one without."""
    by_name = {each.name: each for each in DOJO.policies}
    system = DOJO.systems[0]
    cost = cost_of("prediction", system, by_name["allo+pred"])
    mm2 = [added_mm2(system, by_name[name].model_dump()) for name in ("allo+pred", "allo")]
    assert cost.mm2 == pytest.approx(mm2[0] - mm2[1]) and cost.mm2 > 0.1 and cost.w > 0
    assert 0 < cost.usd[0] < cost.usd[1] < cost.usd[2] and 0 < cost.share["usd"] < cost.share["mm2"] < 1e-4


def test_it_pays_a_resource_only_where_a_unit_yields_more():
    rows = _rows(
        ("allo", 64, 100.0, 2.0), ("allo+pred", 64, 101.1, 1.9),
        ("allo", 128, 100.0, 2.0), ("allo+pred", 128, 100.001, 2.1),
        ("allo", 256, 100.0, 2.0), ("allo+pred", 256, 102.0, 2.1),
    )  # fmt: skip
    found = judge("prediction", DOJO, rows)
    assert [row.pays for row in found.rows] == [("mm2", "w", "usd"), (), ("mm2", "usd")]
    assert found.rows[0].gain == pytest.approx(0.011) and found.rows[1].gain == 0  # below NOTHING
    assert found.verdict.startswith("worth it in some: it pays a mm² in 2, a W in 1, a USD in 2 of 3 runs")
    assert any("stops paying a mm², a W and a USD between batch 64" in sentence for sentence in found.break_evens)
    assert any("pays a mm² and a USD between batch 128" in sentence for sentence in found.break_evens)
    assert "a block of up to" in found.break_evens[0]


def test_the_verdict_is_of_each_set_of_assumptions():
    run = BlockRun("dojo", "m", 64, "physical", "pred", "base", 0.0, 0.1, None, ("w",))
    runs = run, replace(run, assumptions="published", pays=(), gain=0.0)
    told = BlockWorth("prediction", (), runs).verdict
    assert "a W in 1, a USD in 0 of 1 runs" in told and "under physical; not worth it: " in told


@pytest.mark.parametrize(
    ("gains", "pays", "said"),
    [
        ((0.1, 0.2), ("mm2", "w", "usd"), "worth it: "),
        ((-0.1, 0.0), (), "not worth it: "),
        ((0.1,), ("mm2",), "worth it in some: it pays a mm² in 1, a W in 0, a USD in 0 of 1 runs"),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_the_runs(gains, pays, said):
    run = BlockRun("dojo", "m", 64, "physical", "pred", "base", 0.0, 0.0, None, pays)
    assert BlockWorth("prediction", (), tuple(replace(run, gain=each) for each in gains)).verdict.startswith(said)


@pytest.mark.parametrize(("block", "executor", "policies", "said"), [
    ("predicton", "fsm", "[allo, allo+pred]", "did you mean 'prediction'"),
    ("prediction", "fsm", "[ep, allo]", "no two differ in prediction alone"),
    ("prediction", "gpu", "[allo, allo+pred]", "no block of silicon"),
])
def test_what_cannot_be_judged_is_refused_by_name(block, executor, policies, said):
    overrides = [f"systems=[{{like: dojo, name: dojo, decision: {{executor: {executor}}}}}]", f"policies={policies}"]
    rows = _rows(("allo", 64, 1.0, 1.0), ("allo+pred", 64, 1.0, 1.0))
    with pytest.raises(SpecError, match=said):
        judge(block, ar.load("dojo", overrides), rows)


@pytest.mark.parametrize(("gains", "pays", "said"), [
    ((0.00079, 0.0009, 0.0008), (), "not worth it: it pays in none of 1 runs"),
    ((0.012, 0.03, 0.02), ("mm2", "usd"), ""),
    ((0.03, -0.02, 0.02), (), "throughput -2 % to 3 %, 3 draws"),
])  # fmt: skip
def test_it_pays_what_it_pays_in_every_draw_by_a_percent(gains, pays, said):
    draws = [_rows(("allo", 64, 100.0, 2.0), ("allo+pred", 64, 100.0 * (1 + each), 2.1)) for each in gains]
    found = judge("prediction", DOJO, *draws)
    assert found.rows[0].pays == pays and found.rows[0].draws == 3 and "3 draws" in found.verdict
    assert found.rows[0].gains == pytest.approx((min(gains), max(gains)))


def test_draws_differ_in_their_seeds_alone():
    seeds = [drawn(DOJO, at).workload.trace.synthetic.seed for at in range(3)]
    assert drawn(DOJO, 0) is DOJO and len(set(seeds)) == 3 and drawn(DOJO, 2).policies == DOJO.policies

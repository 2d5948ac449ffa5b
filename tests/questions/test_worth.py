"""Whether a balancer is worth it: tokens as the loads, a verdict by its range, a break-even, files to deploy."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import PlacementError, SpecError
from archsim.questions.block_worth import (
    BlockCost,
    BlockRun,
    BlockWorth,
    GainInWorlds,
    cost_of,
    drawn,
    judge,
    pairs_of,
)
from archsim.questions.worth import PAYS, _in_worlds, write_tokens
from archsim.show.deciders import added_mm2
from archsim.traffic.formats.readers import open_trace
from archsim.uncertainty import worlds
from archsim.uncertainty.estimate import interval

ROOT = Path(__file__).resolve().parents[2]
LOADS = ROOT / "examples" / "loads.npz"
FEW = ["requests.count=10", "routing.layers=1", "scheduler={max_num_seqs: 16, max_num_batched_tokens: 512}"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """In fewer samples than a range takes."""
    out = tmp_path_factory.mktemp("worth") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "LEAST_SAMPLES", 2)
        patch.setattr("archsim.serving.serving.ENOUGH", 10)
        for name in ("ENOUGH", "SUSTAINED"):  # requests of the rate that is sustained
            patch.setattr(f"archsim.serving.answers.highest_rate.{name}", 20)
        for name, few in (("SPARES", (0, 2)), ("DRAWS", 2), ("MOST_STEPS", 8)):
            patch.setattr(f"archsim.questions.worth.{name}", few)
        return ar.worth("eplb", LOADS, ROOT / "configs" / "serve_olmoe.yaml", FEW, out=out, samples=2)


def test_tokens_are_drawn_as_the_loads(tmp_path):
    """With uneven loads, experts are chosen about as often; one that was never chosen never is."""
    model = ar.load_model("olmoe-1b-7b")
    loads = np.zeros((40, 1, model.experts))
    loads[:, 0, :32] = np.arange(1, 33)
    write_tokens(tmp_path / "t.npz", model, model.moe_layer_ids[:1], loads, seed=1)
    trace = open_trace(str(tmp_path / "t.npz"), model)
    counts = np.bincount(trace.experts[:, 0].ravel(), minlength=model.experts)
    assert not counts[32:].any()
    assert np.corrcoef(counts[:32], np.arange(1, 33))[0, 1] > 0.97


def test_a_verdict_has_rows_by_spares_and_files_to_deploy(found):
    assert [row.spares for row in found.rows] == [None, 0, 2] and found.rows[0].name == "ep"
    assert found.rows[1].max_over_mean < found.rows[0].max_over_mean  # EPLB balances loads that it has not seen
    blocks = [row.kv_blocks for row in found.rows[1:]]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] > blocks[-1]  # spares take KV
    assert {"sglang_init_expert_location.json", "placement.json"} <= {file.name for file in found.placed.files}
    assert all(file.is_file() for file in found.placed.files) and found.best in found.rows[1:]
    gain = found.worlds.gain
    assert found.worlds.samples == 2 and gain.p05 < gain.p95 and (found.worlds.pays > 0) == (gain.p95 >= PAYS)


def test_a_sample_pays_by_goodput_or_by_the_time_of_a_token():
    """Four samples: no goodput before, less time, more goodput, and less goodput."""
    before, after = (
        SimpleNamespace(name=name, samples={"goodput_per_s": np.array(goodput), "tpot_mean_ms": np.array(tpot)})
        for name, goodput, tpot in (("no", [0, 2, 2, 2.0], [10.0] * 4), ("yes", [1, 2, 2.2, 1.9], [10, 9, 11, 10.0]))
    )
    found = _in_worlds("eplb", SimpleNamespace(options=(after, before), samples=4), ("no", "yes"))
    assert found.pays == 0.5 and (found.gain.p05, found.gain.p95) == pytest.approx((0.0, 0.1))


def test_an_unknown_name_is_told_balancers_and_blocks(tmp_path):
    with pytest.raises(SpecError, match="'prediction'.*eplb.*--in: prediction, allocator"):
        ar.worth("predict", LOADS, ROOT / "configs" / "serve_olmoe.yaml", FEW)


def test_no_note_names_an_option_that_worth_lacks(found):
    assert found.rows[0].experts_ms is None and not any("--tokens" in note for note in found.notes)


@pytest.mark.parametrize(
    ("tpot", "goodput", "said"),
    [
        ((-0.05, -0.02), (0.0, 0.0), "eplb is worth it, with"),
        ((-0.004, 0.004), (0.0, 0.0), "eplb is not worth it"),
        ((-0.05, 0.01), (-0.01, 0.0), "Whether eplb is worth it is undecided"),
        ((0.02, 0.03), (0.02, 0.04), "eplb is worth it, with"),
    ],
)
def test_the_verdict_follows_from_the_range(found, tpot, goodput, said):
    one = replace(found, tpot=tpot, goodput=goodput, worlds=None)
    assert one.verdict.startswith(said)
    for pays in (0.81, 0.95):
        sampled = replace(one, worlds=GainInWorlds("eplb", 16, interval(np.linspace(0, 0.03, 16)), pays))
        assert replace(sampled, answer="With eplb").as_answer().parts[0] == sampled.verdict  # what was asked, first
        assert ("undecided" in sampled.verdict) == ("undecided" in said or (" not " not in said and pays < 0.9))


def test_the_break_even_is_moves_and_search_over_what_an_iteration_saves(found):
    rows = (replace(found.rows[0], tpot_ms=2.0), *found.rows[1:])
    best = replace(found.best, tpot_ms=1.9)
    one = replace(found, rows=rows, best=best, tpot=(-0.06, -0.04), stall_ms=50.0, search_s=0.05)
    assert one.break_even == pytest.approx(1000)
    assert replace(one, best=replace(best, tpot_ms=2.0)).break_even is None
    assert replace(one, tpot=(-0.5, 0.1)).break_even is None  # a draw in which it gains nothing


def test_loads_of_one_matrix_are_refused(tmp_path):
    counts = np.load(LOADS)["counts"].sum(axis=0)
    np.savez(tmp_path / "one.npz", counts=counts, layer_ids=np.load(LOADS)["layer_ids"])
    with pytest.raises(PlacementError, match="one matrix"):
        ar.worth("eplb", tmp_path / "one.npz", ROOT / "configs" / "serve_olmoe.yaml", FEW)


def test_a_goodput_of_nothing_is_told(found):
    rows = tuple(replace(row, goodput_per_s=0.0) for row in found.rows)
    assert "Goodput is 0" in replace(found, rows=rows).verdict


# ---- Whether a block of silicon pays: pairs that differ in it alone, costs as the area's, a verdict and break-evens.

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


def test_a_balancer_is_no_block():
    with pytest.raises(SpecError, match="eplb .*--loads .*--deployment"):
        pairs_of("eplb", DOJO.policies)


def test_the_block_costs_what_the_area_model_says_of_the_policies():
    """One law: what `deciders.added_mm2` says of the policy with the block, less that of the one without."""
    by_name = {each.name: each for each in DOJO.policies}
    system = DOJO.systems[0]
    cost = cost_of("prediction", system, by_name["allo+pred"])
    mm2 = [added_mm2(system, by_name[name]) for name in ("allo+pred", "allo")]
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
    assert re.search("physical, prediction .* 3 runs.* area in 2,.* power in 1 .* price in 2", found.verdict)
    stops, starts = "stops .*area, power and price .*batch 64 ", "starts .*area and price .*batch 128 "
    assert all(any(re.search(each, said) for said in found.break_evens) for each in (stops, starts))
    assert "mm²" in found.break_evens[0]


def _timed(policy, rate, waits_ns, energy=2.0):
    """A row of results of which a decode step waits so long for decisions."""
    (row,) = _rows((policy, 64, rate, energy))
    return row | {"prefill_ns": 0.0, "decode_ns": row["decode_step_ns"], "decision_exposed_ns": waits_ns}


def _reason_of(*rows):
    (said,) = judge("prediction", DOJO, rows).reasons
    assert said.startswith("allo+pred over allo (dojo, deepseek-v3, batch 64, physical): It is not worth its area")
    return said.replace("\u00a0", " ")


def test_it_says_which_charge_is_larger_than_the_gain():
    """A step of 10 ms: what it saves elsewhere and how much longer it waits for decisions decide the reason."""
    step_ns = 1e7
    said = _reason_of(_timed("allo", 100.0, 0.0), _timed("allo+pred", 1e9 / (step_ns - 5e5 + 6e5), 6e5))
    assert "Time of decisions is the charge" in said and "saves 500 µs elsewhere, but waits 600 µs longer" in said
    assert "It would be worth it if it waited at most 401 µs longer" in said  # 1 % more throughput: a step of 9.90 ms
    said = _reason_of(_timed("allo", 100.0, 0.0), _timed("allo+pred", 100.5, 0.0))
    assert "Throughput changes by +0.50 %, and a gain counts from +1.0 %" in said and "is not the reason" in said
    said = _reason_of(_timed("allo", 100.0, 0.0), _timed("allo+pred", 1e9 / (step_ns + 2e5), 0.0))
    assert "It saves nothing that a charge could exceed: a decode step takes 200 µs longer outside" in said
    said = _reason_of(_timed("allo", 100.0, 0.0), _timed("allo+pred", 100.0, 0.0, energy=2.2))
    assert "takes the same time outside" in said and "A token takes 10 % more energy with it" in said
    assert not judge("prediction", DOJO, _rows(("allo", 64, 100.0, 2.0), ("allo+pred", 64, 102.0, 1.9))).reasons


def test_an_area_that_is_larger_than_the_gain_is_named():
    run = BlockRun("d", "m", 64, "physical", "pred", "base", 5e4, 0.05, -0.1, ("w",), before_ns=1e6, most_energy=-0.1)
    cost = BlockCost("d", "fsm", 1.0, 1.0, (1.0, 1.0, 1.0), {"mm2": 0.08, "usd": 0.02})
    (said,) = BlockWorth("prediction", (cost,), (run,)).reasons
    said = said.replace("\u00a0", " ")
    assert "but the area of the machine by +8.0 %. Above, it is worth it." in said and "power" not in said


def test_a_balancer_that_is_not_worth_it_says_why(found):
    flat = replace(found, tpot=(-0.001, 0.001), goodput=(0.0, 0.0))
    same = replace(flat, best=replace(found.best, max_over_mean=found.rows[0].max_over_mean))
    assert "balances the held-out loads no better" in same.reason and "hardly waits for the busiest rank" in flat.reason
    assert "if TPOT fell or goodput grew by 1\u00a0% or more" in flat.reason
    timed = replace(flat, rows=(replace(found.rows[0], experts_ms=1.0), *found.rows[1:]))
    assert "weights of replicas are read" in replace(timed, best=replace(found.best, experts_ms=1.2)).reason
    assert not replace(found, tpot=(-0.05, -0.02)).reason


def test_the_verdict_is_of_each_set_of_assumptions():
    run = BlockRun("dojo", "m", 64, "physical", "pred", "base", 0.0, 0.1, None, ("w",))
    runs = run, replace(run, assumptions="published", pays=(), gain=0.0)
    told = BlockWorth("prediction", (), runs).verdict
    assert re.search("physical, .*power in 1 .*price in none.*published, prediction is not", told)


@pytest.mark.parametrize(
    ("gains", "pays", "said"),
    [
        ((0.1, 0.2), ("mm2", "w", "usd"), "is worth its area, power and price in each of 2 runs: it changes"),
        ((-0.1, 0.0), (), "is not worth it in any of 2 runs: it changes"),
        ((0.1,), ("mm2",), "is worth it in part (of 1 run, its area in 1, "),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_the_runs(gains, pays, said):
    run = BlockRun("dojo", "m", 64, "physical", "pred", "base", 0.0, 0.0, None, pays)
    assert BlockWorth("prediction", (), tuple(replace(run, gain=each) for each in gains)).verdict.startswith(
        f"Under physical, prediction {said}"
    )


@pytest.mark.parametrize(
    ("block", "executor", "policies", "said"),
    [
        ("predicton", "fsm", "[allo, allo+pred]", "did you mean 'prediction'"),
        ("prediction", "fsm", "[ep, allo]", "prediction"),
        ("prediction", "gpu", "[allo, allo+pred]", "no block of silicon"),
    ],
)
def test_what_cannot_be_judged_is_refused_by_name(block, executor, policies, said):
    overrides = [f"systems=[{{like: dojo, name: dojo, decision: {{executor: {executor}}}}}]", f"policies={policies}"]
    rows = _rows(("allo", 64, 1.0, 1.0), ("allo+pred", 64, 1.0, 1.0))
    with pytest.raises(SpecError, match=said):
        judge(block, ar.load("dojo", overrides), rows)


@pytest.mark.parametrize(("gains", "pays", "said"), [
    ((0.00079, 0.0009, 0.0008), (), "is not worth it: it changes"),
    ((0.012, 0.03, 0.02), ("mm2", "usd"), ""),
    ((0.03, -0.02, 0.02), (), "by -2 % to 3 % over 3 samples"),
])  # fmt: skip
def test_it_pays_what_it_pays_in_every_draw_by_a_percent(gains, pays, said):
    draws = [_rows(("allo", 64, 100.0, 2.0), ("allo+pred", 64, 100.0 * (1 + each), 2.1)) for each in gains]
    found = judge("prediction", DOJO, *draws)
    assert found.rows[0].pays == pays and found.rows[0].draws == 3 and "3 samples" in found.verdict
    assert found.rows[0].gains == pytest.approx((min(gains), max(gains)))


def test_draws_differ_in_their_seeds_alone():
    seeds = [drawn(DOJO, at).workload.trace.synthetic.seed for at in range(3)]
    assert drawn(DOJO, 0) is DOJO and len(set(seeds)) == 3 and drawn(DOJO, 2).policies == DOJO.policies

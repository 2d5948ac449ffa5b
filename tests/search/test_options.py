"""Options, each as well as it can be used: cases with a derivation, refusals, and what a user sees first."""

import copy
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from support.examples import sampled

import archsim as ar
from archsim.api import EXAMPLE
from archsim.base.errors import ArchsimError, SpecError
from archsim.cli.main import main
from archsim.questions.machine_price import price_machine
from archsim.search import compare as sides
from archsim.search import door, machines, options
from archsim.search.answer import answer as answer_of
from archsim.search.beside import deployment_on
from archsim.search.best_deployment import best_sentence
from archsim.search.deployment_pair import MOVED, moved_limits, pair_sentence, short
from archsim.search.deployments import DeploymentComparison
from archsim.search.frontier import Curve, Frontier, crossing_of
from archsim.search.keys import KeyWorth, worths
from archsim.search.limits import Limits
from archsim.search.machines import NEAR, best_of
from archsim.search.options import Side, largest_model, load_system, side_of, vary_of
from archsim.search.page import frontier, rows_of
from archsim.search.reasons import reasons
from archsim.search.worlds import off_of
from archsim.serving.answers.sure import ServedOption, headline_sentence
from archsim.show.units import times_text, with_prefix
from archsim.specs.file_kinds import SERVE
from archsim.specs.scenario import Scenario
from archsim.specs.serving_files import load_serving
from archsim.uncertainty.estimate import Interval, interval

DIE4, TOY = EXAMPLE["systems"][0], EXAMPLE["models"][0]


def begin(patch, folder):
    """A machine of four dies, one with all rates twice as high, and one with another HBM; a toy model. Two ways to use
    a machine are enough.
    """
    patch.chdir(folder)
    for name, most in (("MOST_TP", 2), ("MOST_SIZES", 1)):
        patch.setattr(machines, name, most)
    twice = copy.deepcopy(dict(DIE4)) | {"name": "twice", "source": "made up"}
    twice["hbm"] = {"bandwidth": "2 TB/s", "capacity": "80 GB", "latency": "150 ns"}
    twice["d2d"] = {"bandwidth": "400 GB/s", "hop_latency": "100 ns"}
    twice["compute"] = {"peak": "400 TFLOP/s", "dtype": "fp8"}
    rival = copy.deepcopy(dict(DIE4)) | {"name": "rival"}
    rival["hbm"] = {"bandwidth": "1.05 TB/s", "capacity": "80 GB"}
    for name, given in (("die4", DIE4), ("twice", twice), ("rival", rival), ("toy", TOY)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(given))))


@pytest.fixture
def files(tmp_path, monkeypatch):
    begin(monkeypatch, tmp_path)
    return tmp_path


def compare(*sides, **more):
    """With a batch that is given, so that few runs are needed."""
    return ar.compare(*sides, **({"model": "toy.yaml", "jobs": 1, "policy": "ep", "batch": 64} | more))


THREE = ("die4.yaml", "rival.yaml:2", "twice.yaml")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three machines, compared once."""
    with pytest.MonkeyPatch.context() as patch:
        begin(patch, tmp_path_factory.mktemp("three"))
        return compare(*THREE, samples=16)


def law(fixed_ns, request_ns, batches):
    """A machine whose iteration takes ``fixed + request x batch``."""
    token = np.array([[fixed_ns + request_ns * each for each in batches]])
    return Curve(token, np.array(batches) / token * 1e9, np.zeros_like(token))


BATCHES = [2**at for at in range(0, 21)]


def test_two_machines_that_cross_do_so_where_algebra_says():
    """One has a low latency, the other a high rate: (L - a) / b of both are equal at L = (a b' - a' b) / (b' - b)."""
    quick, strong = (2e6, 2000.0), (10e6, 500.0)
    crossing_ns = (quick[0] * strong[1] - strong[0] * quick[1]) / (strong[1] - quick[1])
    grid = np.geomspace(10.1e6, 400e6, 160)
    rates = [Frontier([law(*each, BATCHES)]).at(grid)[0] for each in (quick, strong)]
    turn = crossing_of(grid, rates[0] / rates[1], np.zeros((0, len(grid))))
    assert turn is not None and turn.first_below
    assert turn.at == pytest.approx(crossing_ns, rel=0.05)


def test_a_machine_with_twice_the_rates_serves_twice_as_much_at_half_the_time():
    """Its iterations take half as long, so that it serves at L twice what the other serves at 2 L."""
    one, twice = law(2e6, 2000.0, BATCHES), law(1e6, 1000.0, BATCHES)
    grid = np.geomspace(3e6, 300e6, 40)
    assert Frontier([twice]).at(grid)[0] == pytest.approx(2 * Frontier([one]).at(2 * grid)[0])


def test_the_rate_at_a_limit_is_between_two_batches():
    curve = law(1e6, 1000.0, BATCHES)
    assert Frontier([curve]).at(np.array([0.9e6]))[0, 0] == 0  # faster than any batch
    assert Frontier([curve]).at(np.array([5e6]))[0, 0] == pytest.approx((5e6 - 1e6) / 1000.0 / 5e6 * 1e9, rel=0.02)


@pytest.mark.parametrize("laws", [
    [(1.9e6, 4000.0, 2), *((2e6 * 1.5**at, 2000.0 / 1.5**at, 21) for at in range(5))],
    [(1.9e6, 4000.0, 2), (2.5e6, 500.0, 11), (4e6, 110.0, 21), (8e6, 95.0, 21), (16e6, 85.0, 21)],
], ids=["alone at the shortest", "alone with the largest batches"])  # fmt: skip
def test_ways_that_are_kept_serve_nearly_as_much_as_all_at_any_limit_and_as_much_where_asked(laws):
    """Several ways share the limits of a machine; one alone keeps the shortest, or serves a little more at the end."""
    curves = [law(fixed, request, BATCHES[:count]) for fixed, request, count in laws]
    ways = [SimpleNamespace(nominal=lambda output, curve=curve: curve, name=at) for at, curve in enumerate(curves)]
    kept = [each.name for each in best_of(ways, 1.0, Limits())]
    grid = np.geomspace(1.91e6, 1e10, 200)
    every, some = (Frontier([curves[at] for at in of]).at(grid)[0] for of in (range(len(curves)), kept))
    assert len(kept) == 4 and (some >= NEAR * every).all() and some[-1] == every[-1]


@pytest.mark.parametrize("tpot_ns, batch", [(np.inf, 64), (1.5e6, 6)])
def test_a_side_is_the_way_that_is_best_as_simulated_with_the_batch_that_then_keeps_the_limit(
    monkeypatch, tpot_ns, batch
):
    """Two ways are estimated within 2 %; simulated, the first takes 1.3 times and the other 1.1 times its estimate. A
    token takes 1.1 ms (B^(1/6)) of the second, so that 6 requests keep 1.5 ms, and 11 would as estimated.
    """
    off = {"first": 1.3, "second": 1.1}
    sizes = (SimpleNamespace(batch=1), SimpleNamespace(batch=64))
    used = [
        SimpleNamespace(way=SimpleNamespace(label=name, groups=1, engine=SimpleNamespace(dies=1)), batches=sizes)
        for name in off
    ]

    def simulate(machine, used, batch, requests):
        file = SimpleNamespace(model_copy=lambda update: (used.way.label, batch))
        return SimpleNamespace(ns=off[used.way.label], batch=batch), file

    monkeypatch.setattr(sides, "_simulate", simulate)
    monkeypatch.setattr(sides, "_estimates", lambda *_: SimpleNamespace(batch=lambda *_: SimpleNamespace(ns=1.0)))
    monkeypatch.setattr(sides, "price_machine", lambda *_, **__: SimpleNamespace(own_usd=np.ones(1)))
    curves = [Curve(*(np.array([each]) for each in ((1e6, 2e6), (1e3 * by, 2e3 * by), (0.0, 0.0)))) for by in (1.02, 1)]
    machine = SimpleNamespace(used=used, side=SimpleNamespace(machines=1, name="m"), system=None)
    found = sides._compare_side(machine, Frontier(curves), Limits(tpot_ns), None, 0)
    assert (found.chosen.way.label, found.simulated) == ("second", 1.1)
    assert found.file == ("second", found.batch.batch) and found.batch.batch == batch
    assert found.rates[0] == pytest.approx(1e3 * min(2.0, tpot_ns / 1.1e6) / 1.1, rel=1e-6)


def test_of_ways_and_batches_that_serve_as_much_the_one_with_the_shortest_token_is_taken():
    """The last way serves 0.02 % more with a token that takes a quarter longer, and its largest batch serves less."""
    way = SimpleNamespace(groups=1, engine=SimpleNamespace(dies=1))
    used = SimpleNamespace(way=way, batches=[SimpleNamespace(batch=each) for each in (1, 8, 64)])
    token, rate = np.array([[1e6, 2e6, 9e6]]), np.array([[1e3, 4e3, 3.9e3]])
    curves = [Curve(token * times, rate * more, token * 0) for times, more in ((2, 0.9), (1, 1), (1.25, 1.0002))]
    machine = SimpleNamespace(used=[used] * 3)
    for limits in (Limits(), Limits(tpot_ns=20e6)):
        best = sides._best_at(machine, Frontier(curves), limits)
        assert best == 1 and sides._batch_at(used, curves[best], limits) == 8
    assert sides._batch_at(used, curves[1], Limits(tpot_ns=1.5e6)) == 3  # between two, as before


@pytest.mark.nightly
def test_a_node_with_links_twice_as_fast_is_nowhere_slower(tmp_path):
    """At 5 and 8 ms it served 0.4 and 0.8 % less, as the way that is best when simulated was estimated to be second."""
    node = load_system("h200_node")
    better = load_system("h200_node", ['fabric.levels.0.bandwidth="900 GB/s"']).model_copy(update={"name": "better"})
    for tpot in (None, "5 ms", "8 ms"):
        limits = {"tpot": tpot} if tpot else {}
        a, b = ar.compare(node, better, model="olmoe-1b-7b", samples=0, jobs=1, limits=limits).sides
        assert b.rates[0] >= a.rates[0] and (b.rates[0] > 1.001 * a.rates[0] or b.batch.ns <= a.batch.ns)


def test_a_way_that_wins_only_between_the_few_batches_at_first_is_kept(monkeypatch):
    """Three ways are estimated with three batches. The last seems behind, and serves twice as much between them."""
    few, laws = [1, 32, 1024], [(2e6 * 1.02**at, 2000.0 / 1.02**at) for at in range(2)] + [(2.3e6, 2200.0)]

    def used(way, batches):
        curve = law(*laws[way.at], batches)
        if way.at == 2:
            inner = np.isin(batches, few, invert=True)
            curve = Curve(curve.tpot_ns / (1 + inner), curve.tokens_per_s * (1 + inner), curve.ttft_ns)
        return SimpleNamespace(way=way, nominal=lambda output: curve)

    kind = {"policy": SimpleNamespace(name="ep"), "assumptions": SimpleNamespace(label="physical")}
    ways = [SimpleNamespace(at=at, label=str(at), **kind) for at in range(len(laws))]
    monkeypatch.setattr(machines, "ways_of", lambda *_: ways)
    monkeypatch.setattr(machines.Estimates, "coarse", lambda _, way: used(way, few))
    monkeypatch.setattr(machines.Estimates, "fine", lambda _, of: used(of.way, BATCHES[:11]))
    side = side_of("dojo", "deepseek-v3")
    base = machines.base_of(side, "deepseek-v3")
    kept = machines.machine_of(side, base, SimpleNamespace(output=1.0), Limits(), {}).used
    assert 2 in [each.way.at for each in kept]


def test_as_many_replicas_as_machines_serve_as_much(files):
    """Four machines serve four times as much, and cost as much more: per dollar, a machine is a tie with itself."""
    found = compare("die4.yaml:4", "die4.yaml", samples=0)
    a, b = found.sides
    assert a.rates / 4 == pytest.approx(b.rates)
    assert found.pair(0, 1, "machines").ratio == pytest.approx((4.0, 4.0, 4.0))
    assert found.pair(0, 1, "usd").ratio == pytest.approx((1.0, 1.0, 1.0))
    assert "a tie" in found.sentence


def test_three_machines_say_the_same_in_whichever_order_they_are_given(three):
    """JSON has every pair, that ahead first, with the ratios of the sentence; the price is of the first two in rank."""
    found = three
    other = replace(found, sides=found.sides[::-1])
    assert (answer_of(other), tuple(reasons(other))[-1]) == (found.sentence, found.reasons[-1])
    first, second, last = (found.sides[at].side.label for at in found.ranked)
    assert f"if {first} costs" in found.reasons[-1] and f"and {second} at" in found.reasons[-1]
    pairs = {(each["side"], each["over"]): each for each in found.as_json()["ratios"] if each["equal"] == "machines"}
    assert set(pairs) == {(first, second), (first, last), (second, last)}
    for (_, over), each in list(pairs.items())[:2]:
        assert each["p05"] <= each["p50"] <= each["p95"]
        assert re.search(rf"{each['p50']:.2f} × .*as many tokens per second as {over}", found.sentence)


def test_where_samples_cross_is_within_their_range():
    at = np.geomspace(1.0, 100.0, 50)
    turn = crossing_of(at, 20 / at, np.stack([value / at for value in (4.0, 5.0, 6.0, 7.0, 8.0)]))
    assert turn.at == turn.range.p50 == pytest.approx(6.0)


def test_who_is_ahead_throughout_is_of_the_budget_that_is_asked(files):
    """Three machines serve more than two, by as much as they cost more; per device, none is ahead."""
    said = {
        equal: compare("die4.yaml:3", "die4.yaml:2", samples=0, equal=equal).sentence for equal in ("machines", "usd")
    }
    assert "(3 die4 is ahead throughout)" in said["machines"] and "throughout" not in said["usd"]


def test_a_machine_is_never_ahead_of_itself(files):
    assert "ahead" not in compare("die4.yaml", "die4.yaml", samples=0, batch=64).sentence


def test_samples_that_cannot_hold_a_limit_of_power_serve_nothing_and_are_counted(files):
    """Without a draw die4 holds 17 W a die at its lowest clocks; in some samples its HBM is faster and takes more."""
    (files / "held.yaml").write_text(yaml.safe_dump({**DIE4, "name": "held", "power": {"die_limit": "17 W"}}))
    found = compare("held.yaml", "die4.yaml", samples=16)
    held = found.sides[0]
    lost = int((held.rates == 0).sum())
    assert 0 < lost < 8 and held.rates[0] > 0 and all(np.isfinite(row["tpot_ms"]) for row in found.table.rows)
    assert any(note.startswith(f"held: in {lost} of 16 samples") for note in found.notes)
    assert "(at least 1." in found.sentence or re.search(r"1\.\d+ × \(1\.\d+–1\.\d+\)", found.sentence)


def test_of_three_sides_the_one_that_keeps_no_limit_is_named_and_the_others_are_compared(files):
    found = compare("die4.yaml", "rival.yaml", "twice.yaml", samples=0, limits={"tpot": "1 s"})
    nothing = found.sides[0].rates * 0
    some = replace(found, sides=(replace(found.sides[0], rates=nothing), *found.sides[1:]))
    said = answer_of(some)
    assert said.endswith(", and die4 cannot keep that.") and "as die4" not in said and "0000" not in said
    assert "as many tokens per second as rival" in said
    assert [{each["side"], each["over"]} for each in some.as_json()["ratios"]] == [{"twice", "rival"}] * 5
    none = replace(found, sides=tuple(replace(each, rates=nothing) for each in found.sides))
    assert "die4, rival and twice cannot keep that: the fastest token takes " in answer_of(none)


def test_values_of_a_key_that_keep_no_limit_are_named(files):
    found = compare("die4.yaml", vary={"hbm.bandwidth": ["1 TB/s", "2 TB/s", "3 TB/s"]}, samples=0)
    first, *others = found.sides
    said = answer_of(replace(found, sides=(replace(first, rates=first.rates * 0), *others)))
    assert "as with 2 TB/s" in said and said.endswith(" With 1 TB/s it cannot keep the limits.")
    said = answer_of(replace(found, sides=(first, *(replace(each, rates=each.rates * 0) for each in others))))
    assert " tokens per second with hbm.bandwidth 1 TB/s. With 2 TB/s and 3 TB/s it cannot keep the limits." in said


def test_parts_that_are_shared_are_those_of_the_two_that_lead(files):
    (files / "slow.yaml").write_text(
        yaml.safe_dump({**DIE4, "name": "slow", "hbm": {"bandwidth": "10 GB/s", "capacity": "80 GB"}})
    )
    (note,) = (each for each in compare("slow.yaml", "die4.yaml", "twice.yaml", samples=0).notes if "parts" in each)
    assert "of twice and die4 are" in note


def test_the_price_at_which_two_serve_as_much_is_that_of_the_ratio_in_the_sentence(three):
    a, b = (three.sides[at] for at in three.ranked[:2])
    even = np.median(a.rates[1:] / b.rates[1:])
    assert abs(even - 1) > 0.2
    assert f"if {a.side.label} costs {with_prefix(even * b.usd[0])} USD" in three.reasons[-1]


def test_a_machine_with_all_rates_twice_as_high(files):
    """At a batch, where its fixed latencies hardly count; never more than twice."""
    found = compare("twice.yaml", "die4.yaml", samples=0, batch=4096)
    assert 1.7 < found.pair(0, 1, "machines").ratio.p50 < 2.001


def test_parts_that_two_products_share_have_common_draws(files):
    die4, rival = (side_of(f"{name}.yaml", "toy").system for name in ("die4", "rival"))
    assumptions = ar.load_assumptions("physical")
    base = ar.load_experiment(EXAMPLE)
    names = [
        off_of(Scenario(each, base.models[0], assumptions, base.policies[1], base.workload, 64), each).names
        for each in (die4, rival)
    ]
    only = {name.partition("@")[0] for name in names[0] ^ names[1]}
    assert only and all(name.startswith("system.hbm.") for name in only)


@pytest.mark.nightly
def test_another_product_has_draws_of_its_own(files):
    """A rival with 5 % more bandwidth in its datasheet is not ahead in all worlds, a variant of one design is; and the
    size that is recommended serves the rate in most worlds.
    """
    rival = compare("rival.yaml", "die4.yaml", limits={"rate": 1e7}, samples=16)
    assert 0 < rival.pair(0, 1, "machines").probability < 1
    rates = rival.sides[0].rates[1:] / rival.requests.output
    count = int(rival.sentence.partition("take ")[2].split()[0])
    assert np.mean(rates * count >= 1e7) >= 0.85 and np.mean(rates * (count - 1) >= 1e7) < 0.95
    found = compare("die4.yaml", vary={"hbm.bandwidth": ["1.05 TB/s", "1 TB/s"]}, samples=16)
    assert found.pair(0, 1, "machines").reverse == 0


def test_a_key_from_which_nothing_is_gained_names_the_cheapest(files):
    found = compare("die4.yaml", vary={"hbm.bandwidth": ["1 TB/s", "1.001 TB/s"]}, samples=0)
    assert "1 TB/s is the cheapest" in found.sentence


def test_values_of_a_key_are_divided_by_the_budget_that_is_asked(files):
    found = compare("die4.yaml", vary={"llc.capacity": ["64 MiB", "2 GiB"]}, samples=0, equal="mm2")
    gain = found.pair(0, 1, "mm2").ratio.p50
    assert f"serves {gain:.2f} × as many tokens per second per mm² of silicon with" in found.sentence
    assert gain > found.pair(0, 1, "machines").ratio.p50  # as a larger cache takes silicon


def test_a_gain_that_is_not_decided_is_no_effect_of_nothing(files):
    """HBM of 8 in place of 4.8 TB/s served 1.7 times as much in 84 % of samples, and "has no effect" was the answer."""
    found = compare("die4.yaml", vary={"hbm.bandwidth": ["1 TB/s", "2 TB/s"]}, samples=16)
    one, two = found.sides
    scales = np.r_[1.5, np.where(np.arange(16) < 13, 1.7, 0.9)]
    open_ = replace(found, sides=(one, replace(two, rates=one.rates * scales)))
    said = answer_of(open_)
    assert "1.7" in said and "a tie: ahead in 81" in said and "no effect" not in said and "not decided" in said
    same = answer_of(replace(found, sides=(one, replace(two, rates=one.rates, usd=one.usd))))
    assert "has no effect" in same and "cheapest" not in same  # as their price is the same


def test_of_two_keys_that_is_worth_more_whose_gain_over_its_budget_is_larger(files):
    vary = {"llc.capacity": ["64 MiB", "256 MiB"], "hbm.bandwidth": ["1 TB/s", "1.2 TB/s"]}
    found = compare("die4.yaml", vary=vary, samples=0, equal="mm2")
    base, hbm = found.sides[0], found.sides[-1]
    first, second = worths(found)
    growth = hbm.amount("mm2") / base.amount("mm2") - 1
    assert (first.key, second.key) == ("hbm.bandwidth", "llc.capacity")
    assert first.worth[0] == pytest.approx((hbm.rates[0] / base.rates[0] - 1) / growth)
    assert "more hbm.bandwidth is worth more than more llc.capacity" in found.sentence.partition(". ")[0]


def test_the_first_line_has_range_price_and_where_the_order_turns(files, capsys):
    words = (
        "compare die4.yaml rival.yaml:2 --model toy.yaml --samples 16 --policy ep --batch 64 --jobs 1 --out out".split()
    )
    assert main(words) == 0
    first = capsys.readouterr().out.splitlines()[0].partition(". ")[0]
    assert " × (" in first and "per dollar" in first and "tokens/s per user" in first
    written = {each.name for each in (files / "out").iterdir()}
    assert written >= {"index.html", "frontier.csv", "A-die4.yaml", "B-rival.yaml"}
    assert main(["check", "out/A-die4.yaml"]) == 0  # a file that runs


def test_a_page_and_json_give_the_rates_whose_ratio_the_sentence_has(three):
    for each, row, side in zip(three.sides, rows_of(three), three.as_json()["sides"], strict=True):
        assert side["tokens_per_s"] == np.median(each.rates[1:]) and with_prefix(side["tokens_per_s"]) in row[4]
    first, curve = three.table.rows[0], three.sides[0].frontier.curves[0]
    assert first["tokens_per_s"] == np.median(curve.tokens_per_s[1:, 0])
    assert first["tokens_per_s_per_usd"] == np.median(curve.tokens_per_s[1:, 0] / three.sides[0].usd[1:])
    rows = frontier(three, "machines").rows
    assert rows and all(row["low"] <= row["rate"] <= row["high"] for row in rows)


REFUSED = {
    "a limit that nothing keeps": (("die4.yaml", "twice.yaml"), {"limits": {"tpot": "1us"}}, "nearest is"),
    "an unknown budget": (("die4.yaml", "twice.yaml"), {"equal": "usdd"}, "did you mean 'usd'"),
    "a name that is nothing": (("die4.yaml", "nvl7"), {}, "gb300_nvl72"),
    "a name of two": (("die4.yaml", "nvl72"), {}, "gb300_nvl72"),
    "a number that is none": (("die4.yaml:0", "twice.yaml"), {}, "NAME:N"),
    "no time": (("die4.yaml", "twice.yaml"), {"limits": {"tpot": "50"}}, "tpot"),
    "a deployment beside an experiment": (("dojo", "serve_h200"), {"model": None}, "dojo is an experiment"),
    "one side": (("die4.yaml",), {}, "nothing beside it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_with_what_is_missing(files, name):
    sides, more, missing = REFUSED[name]
    with pytest.raises(SpecError, match=missing):
        compare(*sides, **({"samples": 0} | more))


def test_of_a_limit_that_the_smallest_batch_exceeds_no_larger_one_is_looked_at(files, monkeypatch):
    seen, batch = [], machines.Estimates.batch
    monkeypatch.setattr(machines.Estimates, "batch", lambda own, *of: seen.append(of) or batch(own, *of))
    with pytest.raises(SpecError, match="nearest is die4"):
        compare("die4.yaml", samples=0, batch=None, limits={"tpot": "1us"})
    assert seen and all(size == way.groups for way, size in seen)


def test_experiments_without_a_common_model_are_refused(files):
    other = json.loads(json.dumps(EXAMPLE))
    other["models"][0]["name"] = "other"
    with pytest.raises(SpecError, match="toy.*other"):
        ar.compare(EXAMPLE, other, limits={"tpot": "1 s"}, samples=0)


def test_an_experiment_beside_others_has_the_shared_model_alone_and_one_machine():
    side = options.side_of("dojo", False)
    assert [each.name for each in machines.base_of(side, "deepseek-v3").models] == ["deepseek-v3"]
    both = side.experiment.model_copy(update={"systems": side.experiment.systems * 2})
    with pytest.raises(SpecError, match="dojo has 2 systems"):
        machines.base_of(side._replace(experiment=both), "deepseek-v3")


def test_a_name_of_both_kinds_beside_a_machine_is_a_machine(monkeypatch):
    seen = []
    monkeypatch.setattr(door, "compare_options", lambda sides, *rest: seen.extend(sides))
    ar.compare("dojo", "b200_node")
    assert [each.kind for each in seen] == [options.SYSTEM, options.SYSTEM]


def test_machines_without_a_model_serve_the_largest_that_fits_on_all():
    small = load_system("dojo", ["hbm.capacity=2GB"])
    assert largest_model([load_system("dojo")]) == "deepseek-v3"
    assert largest_model([load_system("dojo"), small]) == largest_model([small]) != "deepseek-v3"


def test_values_of_a_key_may_share_a_unit():
    assert vary_of(["d2d.bandwidth=[1,2]TB/s"]) == {"d2d.bandwidth": ("1 TB/s", "2 TB/s")}
    assert vary_of(["a=[true, false]"]) == {"a": (True, False)}
    assert vary_of(["version=[0.10, '0.14', v1.2]"]) == {"version": ("0.10", "0.14", "v1.2")}
    assert vary_of(["version=[null,0.19.0,0.10 , '0.14.1 x y']"]) == {"version": (None, "0.19.0", "0.10", "0.14.1 x y")}
    with pytest.raises(SpecError, match="two values"):
        vary_of(["a=[1]"])


def test_a_gpu_names_its_smallest_machine():
    assert side_of("h200", True).label == side_of("h200:8", True).label == "h200_node"
    assert side_of("h200_node:3", True).label == "3 h200_node"
    assert [side_of(f"h200:{gpus}", True).system.dies for gpus in (2, 8, 32)] == [2, 8, 32]
    assert side_of("mi300x:16", True).label == "2 mi300x_node"
    assert (side_of("wse3:2", True).label, side_of("vr:4", True).system.dies) == ("2 wse3", 4)
    for gpus, said in (
        ("mi300x:12", "8 or 16"),
        ("mi300x:4", "Give 8 of"),
        ("b200:12", "8 or 16"),
        ("tpu7x:4", "2x2x4:4"),
    ):
        with pytest.raises(SpecError, match=said):
            side_of(gpus, True)
    with pytest.raises(SpecError, match="is a model.*model qwen3-30b-a3b"):
        side_of("qwen3-30b-a3b", True)


@pytest.mark.parametrize(
    "sides, asked, said",
    [
        (["h200", "b200"], {"overrides": ["hbm.bandwidth=9TB/s"]}, "hbm.bandwidth=9TB/s: h200_node is a machine"),
        (["h200", "b200"], {"system": "dojo"}, "is a machine already"),
        (["serve_olmoe", "h200"], {"policy": "allo"}, "has no choice of it"),
        (["serve_olmoe", "h200_node:2"], {}, "one machine serves the requests"),
        (["wafer_or_cluster"], {}, "archsim compare .* --in wafer_or_cluster"),
        (["h200", "b200"], {"model": "nope"}, "^model nope: unknown model"),
        (["dojo", "power", "dojo_enhanced"], {"policy": "nope"}, "nope"),
        (["dojo", "h200"], {"policy": "nope", "limits": {"tpot": "1 s"}}, "nope"),
        (["h200", "b200"], {"model": "olmoe-1b-7b", "input_tokens": 4000, "output_tokens": 97}, "4,097 tokens.* 4,096"),
    ],
)
def test_what_a_side_does_not_have_is_refused(sides, asked, said):
    with pytest.raises(ArchsimError, match=said):
        ar.compare(*sides, **asked)


SERVED = {
    "system": "h200_node", "model": "olmoe-1b-7b", "engine": "vllm", "slo": {"ttft": "2 s", "tpot": "50 ms"},
    "requests": {"arrivals": {"rate": "40/s"}, "input": {"fixed": 512}, "output": {"fixed": 32}, "count": 100},
    "parallel": {"attention": {"tp": 8}},
}  # fmt: skip
SHORT = {"max_num_batched_tokens": 1024}  # times are tabulated so far, in each of the samples


def test_a_machine_beside_a_deployment_serves_its_requests_in_sizes_of_its_own():
    """The same machine does at least as well as with the sizes of the file."""
    machine, deployment = side_of("h200_node", "x"), Side("file", 1, SERVE, SERVED)
    beside = deployment_on(machine, deployment)
    own, other = (ar.serve(each.source).measures for each in (deployment, beside))
    assert beside.kind == SERVE and beside.source["requests"] == SERVED["requests"]
    assert other.goodput_per_s >= 0.999 * own.goodput_per_s
    assert other.output_tokens_per_s >= 0.998 * own.output_tokens_per_s


@pytest.mark.usefixtures("few_samples")
def test_two_deployments_are_told_with_range_times_and_what_a_limit_decides():
    """A closed loop is compared by its output; a value of ``vary`` takes the place of the file's own ``sweep:``."""
    given = SERVED | {"sweep": {"grid": {"scheduler.max_num_seqs": [2, 4]}}, "scheduler": SHORT}
    requests = {key: SERVED["requests"][key] for key in ("input", "output")} | {"concurrency": 16, "count": 32}
    found = ar.compare(given | {"requests": requests}, vary={"scheduler.max_num_seqs": [4, 8]}, samples=4, jobs=1)
    first = found.sentence
    assert first.startswith("With 8 requests per rank instead of 4 requests per rank, output is ")
    assert "scheduler." not in first and " ×, " in first and "TTFT" in first and "TPOT" in first
    assert short("a.b False, c.d.e 1.5") == "b off and e 1.5" and short("rate 4/s") == "4 requests per second"
    assert short("system.hbm.bandwidth 8 TB/s") == "hbm.bandwidth 8 TB/s"
    assert short("scheduler.max_num_seqs 2048, x.max_num_batched_tokens 512") == (
        "2,048 requests per rank and 512 tokens per step"
    )


@pytest.mark.usefixtures("few_samples")
def test_deployments_that_do_not_sustain_their_rate_say_first_which_they_do():
    given = SERVED | {"scheduler": SHORT, "slo": {}}
    found = ar.compare(given, vary={"requests.arrivals.rate": ["6/s", "40000/s"]}, samples=4, jobs=1)
    begin = "The deployment does not sustain 40,000 requests per second, as the queue keeps growing, and sustains "
    assert found.sentence.startswith(begin)
    said = re.match(r"([\d,]+): with 40,000 requests per second instead of 6 ", found.sentence.removeprefix(begin))
    assert 6 < float(said[1].replace(",", "")) < 40000


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("equal, unit", sampled(
    [("w", "per watt"), ("mm2", "per mm² of silicon"), ("devices", "per device")], lambda case: case[0] == "mm2",
))  # fmt: skip
def test_deployments_are_divided_by_any_budget(equal, unit):
    """Half of the machine serves the same requests: per mm² and device it serves twice as much."""
    given = SERVED | {"scheduler": SHORT}
    found = ar.compare(given, vary={"tp": [8, 4]}, equal=equal, samples=4)
    one, two = (found.amounts[name] for name in found.names)
    assert one == 2 * two if equal != "w" else one > two > 0
    rate = np.median(found.sure.options[1].samples[found.sure.judged]) / two
    said = re.search(rf" {unit} is ([\d.,]+)", found.sentence)[1]
    assert float(said.replace(",", "")) == pytest.approx(rate, rel=0.05)


def of_samples(name, goodput, ttft, tpot):
    samples = {"goodput_per_s": goodput, "ttft_mean_ms": ttft, "tpot_mean_ms": tpot}
    return ServedOption(name, {}, {key: interval(each) for key, each in samples.items()}, 0.0, (0, 9), samples)


@pytest.mark.parametrize("spread", [0.0, 1e-5, 4e-3, 0.01, 0.1, 1.0])
def test_two_deployments_have_no_digits_beyond_their_range_and_no_number_instead_of_itself(spread):
    rng = np.random.default_rng(3)
    base, noise = rng.uniform(0.7, 1.4, 64), 1 + spread * rng.uniform(-1, 1, (3, 64))
    one, two = (of_samples(name, 88.24 * base * a, 29 * base * b, 3.8 * base * c) for name, a, b, c in (
        ("kv bf16", 1, 1, 1), ("kv fp8", *noise),
    ))  # fmt: skip
    both = SimpleNamespace(options=(one, two), judged="goodput_per_s")
    said = pair_sentence(both, "kv bf16", "kv fp8", {"kv bf16": 1, "kv fp8": 1}, "", {}, {}, False)
    assert not [each for each in re.findall(r"([\d.,]+) instead of ([\d.,]+)", said) if each[0] == each[1]]
    assert not re.search(r"\d\.\d{4}", said) and ("goodput stays at" in said) == (spread < 1e-3)
    assert (said.count(" stays at ") == 3) == (spread < 1e-3) and "0\u00a0% to +0\u00a0%" not in said
    assert times_text(1.02581, 1.02402, 1.02951) == "1.026\u00a0× (1.024–1.030)"


@pytest.mark.parametrize(
    ("goodputs", "tpots", "parts"),
    [
        (
            [[40] * 4, [0] * 4],
            [[29] * 4, [29.05, 29.06, 29.06, 29.07]],
            ["is 0 instead of 40", "(0 ×", "+0.2\u00a0% to"],
        ),
        (
            [[0] * 4, [40] * 4],
            [[29] * 4, [20, 29, 29, 40]],
            ["none with a in all samples", "TPOT is 29 ms with both ("],
        ),
        ([[0, 0, 0, 4], [0, 0, 4, 4]], [[29] * 4] * 2, ["none with a in 75", "TPOT stays at 29 ms"]),
        ([[0, 4, 4, 4], [4, 4, 4, 4]], [[29] * 4] * 2, ["1.00 ×, at least 1"]),
        ([[4] * 4] * 2, [[29] * 4, [28.95, 29, 29.5, 29.6]], ["(0\u00a0% to +2\u00a0%)"]),
    ],
)
def test_a_deployment_without_goodput_has_no_ratio_and_times_that_spread_do_not_stay(goodputs, tpots, parts):
    options = tuple(of_samples(name, *np.array([goodputs[at], [400] * 4, tpots[at]])) for at, name in enumerate("ab"))
    both = SimpleNamespace(options=options, judged="goodput_per_s")
    said = pair_sentence(both, "a", "b", {"a": 1, "b": 1}, "", {}, {}, False)
    assert all(each in said for each in parts) and "sample by sample" not in said and ",000" not in said, said


def test_a_headline_has_the_digits_of_its_range():
    option = ServedOption("a", {"tpot_mean_ms": 7.583}, {"tpot_mean_ms": Interval(6.3, 7.7, 12.6)}, 0.5, (0, 9), {})
    assert headline_sentence(option, "tpot_mean_ms") == "TPOT 7.7 ms (90 %: 6.3 to 12.6)"


def test_a_limit_that_some_samples_miss_is_not_called_the_value():
    one, two = (
        of_samples(name, *np.array([[0.9, 0.5], [400, low], [20, 30]])) for name, low in (("a", 2100), ("b", 5000))
    )
    both = SimpleNamespace(options=(one, two), judged="goodput_per_s")
    said = pair_sentence(both, "a", "b", {"a": 1, "b": 1}, "", {"ttft": 2000.0}, {0.9: 1.1, 1.1: 1.0}, False)
    assert "some samples miss the limit of 2,000 ms for TTFT" in said


def test_limits_that_no_deployment_keeps_name_the_nearest():
    both = tuple(of_samples(name, *np.array([[0, 0], [400, 500], [tpot, 30]])) for name, tpot in (("a", 40), ("b", 25)))
    found = DeploymentComparison(
        SimpleNamespace(options=both, judged="goodput_per_s"), ("a", "b"), (), "machines", {"a": 1, "b": 1},
        {"ttft": 2000.0, "tpot": 20.0}, {"a": 1, "b": 1}, False, {},
    )  # fmt: skip
    assert "nearest is b, with TTFT 450 of 2,000 ms and TPOT 28 of 20 ms" in found.sentence


@pytest.mark.usefixtures("few_samples")
def test_a_key_that_has_no_effect_is_said_to_have_none():
    requests = {"concurrency": 4, "input": {"fixed": 8}, "output": {"fixed": 4}, "count": 8}
    given = load_serving(SERVED).given | {"requests": requests, "scheduler": {"max_num_batched_tokens": 64}}
    found = ar.compare(given, vary={"prefix_cache": [True, False]}, samples=4, jobs=1)
    assert found.sentence.startswith("Prefix caching has no effect: ")
    given |= {"parallel": {"attention": {"tp": 1, "dp": 2}}}
    found = ar.compare(given, vary={"experts": ["tp", "ep"]}, samples=4, jobs=1)
    assert found.sentence.startswith("With experts ep instead of experts tp, ")


def test_moved_limits_change_the_goodput_of_a_deployment_that_is_at_one():
    serving = load_serving(SERVED)
    spec = serving.spec
    at = ar.serve(SERVED).measures.ttft.percentiles[1] * 1e6  # 90 % are within it
    tight = serving._replace(spec=spec.model_copy(update={"slo": spec.slo.model_copy(update={"ttft_ns": at})}))
    assert set(moved_limits(serving, serving).values()) == {1.0}
    low, high = (moved_limits(serving, tight)[each] for each in MOVED)
    assert low < high <= 1.0


def test_of_keys_that_cost_nothing_the_one_that_gains_more_is_worth_more():
    much, little, less = (KeyWorth(name, "1", np.full(4, gain), np.zeros(4)) for name, gain in (
        ("much", 0.5), ("little", 0.01), ("less", -0.1),
    ))  # fmt: skip
    assert (much.worth > little.worth).all() and (little.worth > less.worth).all()


def test_a_memory_of_its_own_counts_in_the_price_of_a_side(files):
    own = copy.deepcopy(dict(DIE4)) | {"name": "stacked"}
    own["hbm"] = {"bandwidth": "1 TB/s", "capacity": "80 GB", "kind": "hbm4"}
    (files / "stacked.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(own))))
    found = compare("die4.yaml", "stacked.yaml", samples=16)
    for each in found.sides:
        assert each.usd.tolist() == price_machine(each.machine.system, samples=16).own_usd.tolist()
    assert (found.sides[1].usd > found.sides[0].usd).all()


def test_a_best_value_that_is_the_same_in_all_samples_has_no_range():
    options = [
        SimpleNamespace(name=f"rate {rate}/s", samples={"requests_per_s": np.full(8, rate)}, intervals={})
        for rate in (2.0, 2.5)
    ]
    names = [each.name for each in options]
    sure, ones = SimpleNamespace(judged="requests_per_s", options=options), dict.fromkeys(names, 1.0)
    said = best_sentence(sure, names, ones, "", ones, {})
    assert "2.50 requests per second (in all samples)" in said and "(2.50–2.50)" not in said
    options[0].samples["requests_per_s"] = np.array([0.0, *[2.0] * 7])
    assert "(at least 1.25) that with 2" in (said := best_sentence(sure, names, ones, "", ones, {})), said

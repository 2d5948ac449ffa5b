"""Price of a good machine by spare dies, and power against a limit: closed forms and directions."""

import json
import math
from itertools import product

import numpy as np
import pytest
from support.examples import sampled

from archsim.base import config_files
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.questions.machine_price import price_machine
from archsim.runs.energy import full_load_w
from archsim.runs.prices import Coefficients, build_costs
from archsim.search.options import experiment_or_machine, load_system


def test_without_spares_a_good_machine_has_the_price_of_the_machine():
    dojo = load_system("dojo")
    found, costs = price_machine(dojo, samples=16), build_costs(dojo)
    assert found.usd[0] == pytest.approx(sum(costs.usd.values())) and found.watt == pytest.approx(full_load_w(costs))
    tested = sum(usd for name, usd in costs.usd.items() if name != "bonding")
    good = (tested / found.usd[0]) ** (1 / 25)  # of a die: all 25 are good in tested / price of machines
    each = (tested - costs.usd["carrier"]) / 25
    one = good**26 + 26 * good**25 * (1 - good)
    assert found.usd[1] == pytest.approx((26 * each + costs.usd["carrier"]) / one)


def test_spares_follow_what_fails():
    dojo = load_system("dojo")
    best = [
        price_machine(dojo, Coefficients().change({"bond_loss": loss}), 16).best_spares for loss in (0.0, 0.002, 0.02)
    ]
    assert best[0] == 0 < best[1] < best[2]
    drawn = load_system("dojo", ["drawn={defects_per_cm2: 0.1}"])
    assert price_machine(drawn, samples=16).best_spares > best[1]
    for package in ("h200_node", "blackhole_line8"):  # packages have no spare dies, in any sample
        assert price_machine(load_system(package), samples=64).samples_usd.shape == (64, 1)
    hopeless = price_machine(load_system("dojo", ["drawn={defects_per_cm2: 1}"]), samples=16)
    assert hopeless.price_sentence.startswith("Hardly any dojo is good")


def test_a_limit_is_kept_with_the_share_of_samples_below_it():
    found = [price_machine(load_system("dojo", [f"power.limit={kilo}kW"]), samples=32) for kilo in (12, 17, 30)]
    kept = [float(np.mean(each.samples_watt <= each.limit_w)) for each in found]
    assert kept[0] == 0 < kept[1] < kept[2] == 1
    for each, share in zip(found, kept, strict=True):
        assert f"probability of {100 * share:.0f}" in each.power_sentence
        side = "under" if share > 0.5 else "above"
        assert (f"is {side} its limit" if share in (0, 1) else f"more likely {side} than") in each.power_sentence
    assert math.isclose(found[0].watt, found[2].watt)


SYSTEMS = sorted(config_files.named_files("systems"))
DOORS = (["hardware", "cost"], ["hardware", "power"], ["hardware", "area"], ["check"])


def of_door(capsys, *words):
    """What a command prints as JSON; it must succeed."""
    assert main([*words, "--json"]) == 0, words
    return json.loads(capsys.readouterr().out)


def test_a_machine_has_one_price_and_a_model(capsys):
    for name in ("dojo_enhanced", "sow_x", "wse3"):
        system = load_system(name)
        own = sum(build_costs(system).usd.values())
        found = price_machine(system, samples=16)
        assert found.usd[min(found.spares, len(found.usd) - 1)] == pytest.approx(own), name
    for name, model in (("wse3", "olmoe-1b-7b"), ("blackhole_line8", "mixtral-8x7b"), ("h200_node", "deepseek-v3")):
        experiment, chosen = experiment_or_machine(name)
        assert experiment.models[0].name == model and model in chosen
    for name, model in (("h200_node", "qwen3-30b-a3b"), ("blackhole_line8", "deepseek-v3")):
        experiment, chosen = experiment_or_machine(name, named=model)
        assert experiment.models[0].name == model and (f"{model} does not fit" in chosen) == (name != "h200_node")
    for name, door in product(("cloudmatrix384", "wse3", "blackhole_line8"), DOORS):
        assert of_door(capsys, *door, name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_machine_passes_every_door_at_one_price(capsys, name):
    for door in (*DOORS, ["check", "--trust"]):
        found = of_door(capsys, *door, name)
        if door[-1] == "cost":
            own = sum(build_costs(load_system(name)).usd.values())
            assert sum(found[name]["value"]["usd"].values()) == pytest.approx(own)
            assert price_machine(load_system(name), samples=16).usd[0] == pytest.approx(own)


def test_a_wafer_that_is_not_cut_has_no_bonds():
    """Its price is that of whole wafers, whatever fails to be bonded; HBM has no place on it."""
    wse3 = load_system("wse3")
    for loss in (0.0, 0.01):
        known = Coefficients().change({"bond_loss": loss, "wafer_usd": 10_000, "test_share": 0.2})
        assert sum(build_costs(wse3, known).usd.values()) == pytest.approx(12_000)
    assert build_costs(wse3).pieces == 1 and price_machine(wse3, samples=16).usd[0] < 25_000
    assert build_costs(load_system("wse3", ["mesh={x: 8, y: 5}"])).usd["dies"] == 2 * build_costs(wse3).usd["dies"]
    with pytest.raises(SpecError, match="made"):
        load_system("dojo", ["made={carrier: monolithic}"])


@pytest.mark.parametrize("name", sampled(SYSTEMS, lambda name: SYSTEMS.index(name) % 5 == 0))
def test_every_shipped_machine_costs_the_same_at_both_doors(name):
    system = load_system(name)
    priced = price_machine(system, samples=16)
    assert priced.own_usd[0] == pytest.approx(sum(build_costs(system).usd.values()), rel=0.02)
    assert priced.own_usd[1:].min() <= priced.own_usd[0] <= priced.own_usd[1:].max()

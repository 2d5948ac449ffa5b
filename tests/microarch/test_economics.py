"""Energy, area and price: every coefficient has a source, totals are sums, every share is linear in its coefficient."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

import archsim as ar
from archsim import load_experiment
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.runs.energy import Activity, Coefficients, activity_of, build_costs, energy_of, full_load_w
from archsim.runs.notes import result_notes
from archsim.specs.library import load_system
from microarch.silicon.cost import (
    CARRIER_MM2,
    HBM_STACK_MM2,
    RETICLE_MM2,
    CostEstimates,
    Estimate,
    die_yield,
    dies_per_wafer,
    machine_cost,
)
from microarch.silicon.energy import EnergyEstimates, run_energy
from microarch.silicon.heat import HeatEstimates

ACTIVITY = Activity(
    time_s=2.0, hbm_bytes=3e12, d2d_byte_hops=5e12, llc_bytes=7e12, flop=1.1e15, decision_s=0.13, tokens=17.0,
    padded_flop=3e14,
)  # fmt: skip
MACHINE = {"dtype_bytes": 2, "die_mm2": 400.0, "dies": 25, "decision_w": 3.0}
DOJO = load_experiment("configs/dojo.yaml").systems[0]


def machine_of(system, coefficients=None):
    return build_costs(system, coefficients or Coefficients())


@pytest.mark.parametrize("name", Coefficients().named())
def test_every_coefficient_has_a_source_and_a_range(name):
    estimate = Coefficients().named()[name]
    assert estimate.source and estimate.low <= estimate.value <= estimate.high and estimate.low < estimate.high


def only(name: str) -> EnergyEstimates:
    """All coefficients of energy zero but one."""
    zero = {other: Estimate(0.0, 0.0, 0.0, "", "test") for other in EnergyEstimates().named() if other != name}
    return replace(EnergyEstimates(), **zero)


def test_energy_is_the_sum_of_what_its_coefficients_give():
    """Blocks add up, and so do coefficients: nothing is counted twice or left out."""
    whole = run_energy(ACTIVITY, **MACHINE)
    by_coefficient = [
        sum(run_energy(ACTIVITY, **(MACHINE | {"decision_w": 0.0}), estimates=only(name)).values())
        for name in EnergyEstimates().named()
    ]
    assert sum(whole.values()) == pytest.approx(sum(by_coefficient) + whole["decision"], rel=1e-12)


@pytest.mark.parametrize("name", EnergyEstimates().named())
def test_doubling_a_coefficient_doubles_its_share(name):
    value = EnergyEstimates().named()[name].value
    once, twice = (
        sum(run_energy(ACTIVITY, **MACHINE, estimates=EnergyEstimates().changed({name: factor * value})).values())
        for factor in (1, 2)
    )
    share = sum(run_energy(ACTIVITY, **(MACHINE | {"decision_w": 0.0}), estimates=only(name)).values())
    assert share > 0 and twice - once == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "part"), [("wafer_usd", "dies"), ("hbm_usd_per_gb", "hbm"), ("carrier_usd", "carrier")]
)
def test_doubling_a_price_doubles_its_part(name, part):
    machine = {"die_mm2": 400.0, "dies": 25, "stacks_per_die": 4, "hbm_bytes_per_die": 80e9}
    once = machine_cost(**machine).usd
    changed = CostEstimates().changed({name: 2 * CostEstimates().named()[name].value})
    twice = machine_cost(**machine, estimates=changed).usd
    assert twice[part] == pytest.approx(2 * once[part]) and sum(twice.values()) > sum(once.values())


def test_larger_dies_cost_more_and_fewer_work():
    """Also above the reticle, where a die is made in pieces, and whatever the coefficients are."""
    die_mm2 = np.linspace(10, 12 * RETICLE_MM2, 4000)
    assert np.all(np.diff(die_yield(die_mm2, CostEstimates())) < 0)
    for dies, stacks, side in ((1, 1, 0.0), (25, 4, 3.0), (72, 8, 40.0)):
        for estimates in (CostEstimates().at(bound) for bound in ("low", "value", "high")):
            made = machine_cost(
                die_mm2=die_mm2, dies=dies, stacks_per_die=stacks, hbm_bytes_per_die=80e9, side_mm2=side,
                across_bytes_per_s=1e13, estimates=estimates,
            )  # fmt: skip
            assert np.all(np.diff(sum(made.usd.values())) > 0)
            assert np.all(made.pieces * RETICLE_MM2 >= die_mm2)
            assert np.all(made.carriers * CARRIER_MM2 >= dies * (die_mm2 + stacks * HBM_STACK_MM2))


MORE = {
    "llc": lambda system, factor: ("llc", "capacity_bytes", int(system.llc.capacity_bytes * factor)),
    "HBM": lambda system, factor: ("hbm", "capacity_bytes", int(system.hbm.capacity_bytes * factor)),
    "HBM bandwidth": lambda system, factor: ("hbm", "bandwidth_bytes_per_s", system.hbm.bandwidth_bytes_per_s * factor),
    "FLOP/s": lambda system, factor: ("compute", "peak_flop_per_s", system.compute.peak_flop_per_s * factor),
    "links": lambda system, factor: ("d2d", "bandwidth_bytes_per_s", system.d2d.bandwidth_bytes_per_s * factor),
    "columns of dies": lambda system, factor: ("mesh", "x", system.mesh.x + ceil(factor)),
    "rows of dies": lambda system, factor: ("mesh", "y", system.mesh.y + ceil(factor)),
}


def with_more(system, what, factor):
    part, key, value = MORE[what](system, factor)
    return system.model_copy(update={part: getattr(system, part).model_copy(update={key: value})})


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(["low", "value", "high"]),
    st.dictionaries(st.sampled_from(list(MORE)), st.floats(0.2, 4.0), max_size=7),
    st.sampled_from(list(MORE)),
    st.floats(1.001, 4.0),
)
def test_more_of_anything_is_never_cheaper(bound, start, what, factor):
    """384 to 448 MB of LLC made the dies of a wafer a third cheaper, as they were cut in two that yielded better."""
    system = DOJO
    for name, scale in start.items():
        system = with_more(system, name, scale)
    coefficients = Coefficients().at(bound)
    less, more = (machine_of(each, coefficients) for each in (system, with_more(system, what, factor)))
    assert sum(more.usd.values()) >= sum(less.usd.values()) * (1 - 1e-12)
    assert more.carrier_mm2 >= less.carrier_mm2 * (1 - 1e-12) or more.pieces != less.pieces


def test_a_die_in_pieces_pays_for_the_interface():
    """In area, and in energy of the HBM's bytes that cross it: half of them between two pieces."""
    machine = machine_of(with_more(DOJO, "FLOP/s", 4.0))
    assert machine.pieces > 1 and machine.area_mm2["pieces"] > 0
    assert energy_of(ACTIVITY, machine)["pieces"] > 0 == energy_of(ACTIVITY, machine_of(DOJO))["pieces"]
    two = run_energy(ACTIVITY, **MACHINE, pieces=2)["pieces"]
    assert two == pytest.approx(8 * ACTIVITY.hbm_bytes / 2 * EnergyEstimates().d2d_pj_per_bit.value * 1e-12)


def test_the_least_price_is_that_of_all_numbers_of_pieces_and_carriers():
    """Against every number tried one by one."""
    estimates, dies, stacks, hbm, side, across = CostEstimates(), 16, 5, 240e9, 6.0, 1e12
    for die_mm2 in (300.0, 857.0, 859.0, 1600.0, 5000.0):
        prices = []
        for pieces in range(1, 40):
            whole = die_mm2 + 2 * (pieces - 1) * side
            if whole > pieces * RETICLE_MM2:
                continue
            good = dies_per_wafer(whole / pieces) * die_yield(whole / pieces, estimates)
            parts = 1.1 * dies * pieces * estimates.wafer_usd.value / good + dies * hbm / 1e9 * 10
            for carriers in range(ceil(dies * (whole + stacks * HBM_STACK_MM2) / CARRIER_MM2), 40):
                built = parts + 4000 * carriers + (carriers - 1) * across * 8 / 1e9 * 0.25
                prices.append(built / (1 - estimates.bond_loss.value) ** (dies * (pieces + stacks) / carriers))
        made = machine_cost(
            die_mm2=die_mm2, dies=dies, stacks_per_die=stacks, hbm_bytes_per_die=hbm, side_mm2=side,
            across_bytes_per_s=across,
        )  # fmt: skip
        assert float(sum(made.usd.values())) == pytest.approx(min(prices), rel=1e-9)


def test_a_machine_larger_than_its_carrier_says_so(capsys):
    """On every page and in `check`; wafers that are linked by a level of their own are within theirs."""
    large = machine_of(load_system("dojo_enhanced"))
    assert large.carrier_share > 1 and large.usd["cables"] > 0
    wafers = machine_of(load_system("dojo_x4"))
    assert wafers.carrier_share == pytest.approx(machine_of(DOJO).carrier_share, rel=0.01) and wafers.carriers == 4
    assert machine_of(load_system("sow_x")).carrier_share < 1  # TSMC puts it on one wafer
    row = {"system": "dojo_enhanced", "carrier_share": large.carrier_share}
    assert any("of the largest carrier" in note for note in result_notes([row], []))
    assert not result_notes([{"system": "dojo", "carrier_share": machine_of(DOJO).carrier_share}], [])
    changes = ["--set", "systems=[dojo_enhanced]", "--set", "models=[olmoe-1b-7b]"]
    assert main(["check", "configs/dojo.yaml", *changes]) == 0
    assert "links from one carrier to the next have the bandwidth and latency" in capsys.readouterr().err


def test_more_that_fails_costs_more():
    """``low`` and ``high`` of every coefficient point the same way: all low is the cheapest machine."""
    low, value, high = (
        sum(machine_of(DOJO, Coefficients().at(bound)).usd.values()) for bound in ("low", "value", "high")
    )
    assert low < value < high


def test_known_dies():
    """H100: 814 mm² in 5 nm, about 60 candidates a wafer. B200: two reticles that act as one GPU."""
    assert 58 < dies_per_wafer(814.0) < 68
    assert machine_of(load_system("b200_node")).pieces >= 2


def test_the_wafer_of_table_i_is_plausible():
    """Tesla's Dojo tile: 25 dies of 645 mm² in 7 nm (5 nm is 1.8 times denser: 358), 10 kW in dies and 15 kW in all
    at full load, of 9 PFLOP/s in BF16; the table's wafer has 25 in FP8, and all of its HBM is busy.
    """
    machine = machine_of(DOJO)
    assert 358 * 0.7 < machine.die_mm2 < 645
    assert machine.carriers == machine.pieces == 1 and machine.carrier_mm2 < CARRIER_MM2
    low, high = (full_load_w(machine, Coefficients().at(bound)) for bound in ("low", "high"))
    assert low < 15e3 < high
    assert 10e3 < full_load_w(machine) < 20e3


def test_sow_x_draws_three_times_what_tsmc_states():
    """17 kW a module (IEEE ECTC 2025), at the peak that we assume; configs/systems/sow_x.yaml says so."""
    machine = machine_of(load_system("sow_x"))
    assert full_load_w(machine) / 17e3 == pytest.approx(3.05, abs=0.05)


def test_columns_follow_from_what_moved():
    experiment = load_experiment("configs/dojo.yaml", ["workload.decode_steps=1", "workload.batch=[8]"])
    row = ar.run(experiment).runs.rows[0]
    activity = activity_of(experiment.models[0], row)
    moved = row["local_hbm_read_bytes"] + row["remote_hbm_read_bytes"]
    assert activity.hbm_bytes >= moved > 0 and activity.tokens > 0
    # DeepSeek-V3, under `published` without its shared expert
    assert row["flop"] == 6 * 7168 * 2048 * row["expert_tokens"]
    joule = sum(energy_of(activity, machine_of(DOJO)).values())
    assert row["energy_per_token_j"] == pytest.approx(joule / activity.tokens)
    assert row["power_w"] == pytest.approx(joule / activity.time_s)
    assert row["power_w_low"] < row["power_w"] < row["power_w_high"]
    assert row["energy_per_token_j_low"] < row["energy_per_token_j"] < row["energy_per_token_j_high"]
    assert row["silicon_mm2"] == pytest.approx(25 * row["die_mm2"])


@pytest.mark.parametrize(("changes", "says"), [
    ({"hbm_pj_per_bits": 5.0}, "unknown coefficient 'hbm_pj_per_bits'; did you mean 'hbm_pj_per_bit'?"),
    ({"wafer_usd": -1.0}, "wafer_usd must be above 0, got -1.0"),
])
def test_bad_coefficients_are_refused(changes, says):
    with pytest.raises(SpecError) as problem:
        Coefficients().changed(changes)
    assert says in str(problem.value)


def test_command_prints_blocks_parts_and_sources(capsys):
    assert main(["cost", "configs/dojo.yaml", "--sources", "--coefficient", "wafer_usd=20000"]) == 0
    printed = capsys.readouterr().out
    assert "compute" in printed and "bonding" in printed and "set by the user" in printed and "MICRO 2017" in printed
    assert main(["cost", "configs/dojo.yaml", "--coefficient", "wafer_usd"]) == 2
    assert "expected KEY=VALUE" in capsys.readouterr().err


def test_command_prints_and_changes_coefficients_of_power_and_heat(capsys):
    assert main(["cost", "configs/power.yaml", "--sources"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in HeatEstimates().named())
    for change, told in (("leakage_share=0.9", "are 1.34 together"), ("stack_share=-1", "stack_share must be above 0")):
        assert main(["cost", "configs/power.yaml", "--coefficient", change]) == 2
        assert told in capsys.readouterr().err
    assert main(["cost", "configs/power.yaml", "--coefficient", "lowest_voltage=0.9"]) == 0
    assert capsys.readouterr().out != printed

"""Energy, area and price: every coefficient has a source, totals are sums, every share is linear in its coefficient."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import archsim as ar
from archsim import load_experiment
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.runs.energy import Activity, Coefficients, activity_of, build_costs, energy_of, full_load_w
from archsim.specs.library import load_system
from microarch.silicon.cost import (
    CARRIER_MM2,
    RETICLE_MM2,
    CostEstimates,
    Estimate,
    die_yield,
    dies_per_wafer,
    machine_cost,
    tiles_of,
)
from microarch.silicon.energy import EnergyEstimates, run_energy

ACTIVITY = Activity(
    time_s=2.0, hbm_bytes=3e12, d2d_byte_hops=5e12, llc_bytes=7e12, flop=1.1e15, decision_s=0.13, tokens=17.0
)
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
    once = machine_cost(**machine)
    twice = machine_cost(**machine, estimates=CostEstimates().changed({name: 2 * CostEstimates().named()[name].value}))
    assert twice[part] == pytest.approx(2 * once[part]) and sum(twice.values()) > sum(once.values())


@given(st.floats(10, RETICLE_MM2 / 3), st.floats(1.01, 3))
def test_larger_dies_cost_more_and_fewer_work(die_mm2, factor):
    """Up to the reticle; above it a die is made in pieces, which may be cheaper."""
    estimates = CostEstimates()
    machine = {"dies": 4, "stacks_per_die": 1, "hbm_bytes_per_die": 1e9}
    assert 0 < die_yield(die_mm2 * factor, estimates) < die_yield(die_mm2, estimates) < 1
    assert sum(machine_cost(die_mm2=die_mm2 * factor, **machine).values()) > sum(
        machine_cost(die_mm2=die_mm2, **machine).values()
    )


def test_more_that_fails_costs_more():
    """``low`` and ``high`` of every coefficient point the same way: all low is the cheapest machine."""
    low, value, high = (
        sum(machine_of(DOJO, Coefficients().at(bound)).usd.values()) for bound in ("low", "value", "high")
    )
    assert low < value < high


def test_known_dies():
    """H100: 814 mm² in 5 nm, about 60 candidates a wafer. B200: two reticles that act as one GPU."""
    assert 58 < dies_per_wafer(814.0) < 68
    assert tiles_of(814.0) == 1 and tiles_of(1600.0) == 2


def test_the_wafer_of_table_i_is_plausible():
    """Tesla's Dojo tile: 25 dies of 645 mm² in 7 nm (5 nm is 1.8 times denser: 358), 10 kW in dies and 15 kW in all
    at full load, of 9 PFLOP/s in BF16; the table's wafer has 25 in FP8, and all of its HBM is busy.
    """
    machine = machine_of(DOJO)
    assert 358 * 0.7 < machine.die_mm2 < 645
    assert machine.carriers == 1 and machine.carrier_mm2 < CARRIER_MM2
    low, high = (full_load_w(machine, Coefficients().at(bound)) for bound in ("low", "high"))
    assert low < 15e3 < high
    assert 10e3 < full_load_w(machine) < 20e3


def test_sow_x_draws_three_times_what_tsmc_states():
    """17 kW a module (IEEE ECTC 2025), at the peak that we assume; configs/systems/sow_x.yaml says so."""
    machine = machine_of(load_system("sow_x"))
    assert full_load_w(machine) / 17e3 == pytest.approx(3.0, abs=0.05)


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

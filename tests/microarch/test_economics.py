"""Energy, area and price: every coefficient has a source, totals are sums, every share is linear in its coefficient."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import k1
from support.examples import examples, sampled

import archsim as ar
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.machine.made import MadeSpec
from archsim.runs.clocks import DieLoad, PowerLimits, heat_with
from archsim.runs.energy import Activity, activity_of, energy_of, full_load_blocks_w, full_load_w
from archsim.runs.notes import result_notes
from archsim.runs.prices import Coefficients, build_costs
from archsim.show.units import estimate_texts
from archsim.specs.library import load_experiment, load_system
from microarch.silicon.cost import (
    CARRIER_MM2,
    HBM_STACK_MM2,
    RETICLE_MM2,
    CostEstimates,
    die_yield,
    dies_per_wafer,
    machine_cost,
)
from microarch.silicon.energy import EnergyEstimates, run_energy
from microarch.silicon.estimates import Estimate
from microarch.silicon.heat import DieTemperatures, HeatEstimates, HeatGrid, neighbours, voltage

ACTIVITY = Activity(
    time_s=2.0, hbm_bytes=3e12, d2d_byte_hops=5e12, llc_bytes=7e12, flop=1.1e15, decision_s=0.13, tokens=17.0,
    padded_flop=3e14, kernel_s=11.0, crowded_s=5.0,
)  # fmt: skip
MACHINE = {"dtype_bytes": 2, "die_mm2": 400.0, "dies": 25, "decision_w": 3.0}
DOJO = load_experiment("configs/dojo.yaml").systems[0]


def machine_of(system, coefficients=None):
    return build_costs(system, coefficients or Coefficients())


@pytest.mark.parametrize("name", Coefficients().by_name())
def test_every_coefficient_has_a_source_and_a_range(name):
    estimate = Coefficients().by_name()[name]
    assert estimate.source and estimate.low <= estimate.value <= estimate.high and estimate.low < estimate.high


def only(name: str) -> EnergyEstimates:
    """All coefficients of energy zero but one."""
    zero = {other: Estimate(0.0, 0.0, 0.0, "", "test") for other in EnergyEstimates().by_name() if other != name}
    return replace(EnergyEstimates(), **zero)


def test_energy_is_the_sum_of_what_its_coefficients_give():
    """Blocks add up, and so do coefficients: nothing is counted twice or left out."""
    whole = run_energy(ACTIVITY, **MACHINE)
    by_coefficient = [
        sum(run_energy(ACTIVITY, **(MACHINE | {"decision_w": 0.0}), estimates=only(name)).values())
        for name in EnergyEstimates().by_name()
    ]
    assert sum(whole.values()) == pytest.approx(sum(by_coefficient) + whole["decision"], rel=1e-12)


@pytest.mark.parametrize("name", EnergyEstimates().by_name())
def test_doubling_a_coefficient_doubles_its_share(name):
    value = EnergyEstimates().by_name()[name].value
    once, twice = (
        sum(run_energy(ACTIVITY, **MACHINE, estimates=EnergyEstimates().change({name: factor * value})).values())
        for factor in (1, 2)
    )
    share = sum(run_energy(ACTIVITY, **(MACHINE | {"decision_w": 0.0}), estimates=only(name)).values())
    assert share > 0 and twice - once == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "part"), [("wafer_usd", "dies"), ("hbm_usd_per_gb", "hbm"), ("carrier_usd", "carrier")]
)
def test_doubling_a_price_doubles_its_part(name, part):
    machine = {"die_mm2": 400.0, "dies": 25, "stacks_per_die": 4, "hbm_bytes_per_die": 80e9, "pieces": 1}
    once = machine_cost(**machine).usd
    changed = CostEstimates().change({name: 2 * CostEstimates().by_name()[name].value})
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
    st.sampled_from([None, "hbm3e", "hbm4", "gddr7", "lpddr5x", "cxl", "sram"]),
    st.sampled_from([None, {"node": "n7"}, {"carrier": "package"}, {"carrier": "wafer", "node": "n3"}]),
    st.booleans(),
)
def test_more_of_anything_is_never_cheaper_smaller_or_cooler(bound, start, what, factor, kind, made, alone):
    """384 to 448 MB of LLC made the dies of a wafer a third cheaper, as they were cut in two that yielded better."""
    system = DOJO.model_copy(update={
        "hbm": DOJO.hbm.model_copy(update={"kind": kind}), "made": made and MadeSpec(**made),
        "mesh": DOJO.mesh.model_copy(update={"x": 1, "y": 1}) if alone else DOJO.mesh,
    })  # fmt: skip
    if kind == "sram":
        system = with_more(system, "HBM", 1 / 160)
    for name, scale in start.items():
        system = with_more(system, name, scale)
    coefficients = Coefficients().at(bound)
    less, more = (machine_of(each, coefficients) for each in (system, with_more(system, what, factor)))
    given = (made or {}) | {"pieces": less.pieces + 1}
    cut = machine_of(system.model_copy(update={"made": MadeSpec(**given)}), coefficients)
    for other in (more, cut):
        assert sum(other.usd.values()) >= sum(less.usd.values()) * (1 - 1e-12)
        assert other.carrier_mm2 >= less.carrier_mm2 * (1 - 1e-12) and other.die_mm2 >= less.die_mm2 * (1 - 1e-12)
        assert full_load_w(other, coefficients) >= full_load_w(less, coefficients) * (1 - 1e-12)


def test_a_die_in_pieces_pays_for_the_interface():
    """In area, and in energy of the HBM's bytes that cross it: half of them between two pieces."""
    machine = machine_of(with_more(DOJO, "FLOP/s", 4.0))
    assert machine.pieces > 1 and machine.area_mm2["pieces"] > 0
    assert energy_of(ACTIVITY, machine)["pieces"] > 0 == energy_of(ACTIVITY, machine_of(DOJO))["pieces"]
    two = run_energy(ACTIVITY, **MACHINE, pieces=2)["pieces"]
    assert two == pytest.approx(8 * ACTIVITY.hbm_bytes / 2 * EnergyEstimates().d2d_pj_per_bit.value * 1e-12)


def test_the_least_price_is_that_of_all_numbers_of_pieces_and_carriers():
    """Against every number tried one by one: pieces for the die, then carriers for the machine."""
    estimates, dies, stacks, hbm, side, across = CostEstimates(), 16, 5, 240e9, 6.0, 1e12
    for die_mm2 in (300.0, 857.0, 859.0, 1600.0, 5000.0):
        of_die = []
        for pieces in range(1, 40):
            whole = die_mm2 + 2 * (pieces - 1) * side
            if whole <= pieces * RETICLE_MM2:
                good = dies_per_wafer(whole / pieces) * die_yield(whole / pieces, estimates)
                price = 1.1 * pieces * estimates.wafer_usd.value / good + (pieces - 1) * estimates.piece_usd.value
                of_die.append((price, pieces, whole))
        price, pieces, whole = min(of_die)
        parts, prices = dies * (price + hbm / 1e9 * 10), []
        for carriers in range(ceil(dies * (whole + stacks * HBM_STACK_MM2) / CARRIER_MM2), 40):
            built = parts + 4000 * carriers + (carriers - 1) * across * 8 / 1e9 * 0.25
            prices.append(built / (1 - estimates.bond_loss.value) ** (dies * (pieces + stacks) / carriers))
        made = machine_cost(
            die_mm2=die_mm2, dies=dies, stacks_per_die=stacks, hbm_bytes_per_die=hbm, side_mm2=side,
            across_bytes_per_s=across,
        )  # fmt: skip
        assert made.pieces == pieces and float(sum(made.usd.values())) == pytest.approx(min(prices), rel=1e-9)


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


def test_sow_x_draws_nearly_three_times_what_tsmc_states():
    """17 kW a module (IEEE ECTC 2025), at the peak that we assume; configs/systems/sow_x.yaml says so."""
    machine = machine_of(load_system("sow_x"))
    assert full_load_w(machine) / 17e3 == pytest.approx(2.80, abs=0.05)


def test_memory_at_full_load_reads_the_share_of_its_bandwidth_that_is_reached():
    """The arrays of a Groq LPU take 6 % of what its SRAM could give: 140 kW of a machine were of bytes never read."""
    slow = DOJO.model_copy(update={"hbm": DOJO.hbm.model_copy(update={"efficiency": DOJO.hbm.efficiency / 2})})
    half, whole = (full_load_blocks_w(machine_of(each)) for each in (slow, DOJO))
    assert half["hbm"] == pytest.approx(whole["hbm"] / 2) and half["compute"] == whole["compute"]
    assert full_load_blocks_w(machine_of(load_system("lpu576")))["hbm"] < 10e3


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
])  # fmt: skip
def test_bad_coefficients_are_refused(changes, says):
    with pytest.raises(SpecError) as problem:
        Coefficients().change(changes)
    assert says in str(problem.value)


def test_command_prints_blocks_parts_and_sources(capsys):
    assert main(["cost", "configs/dojo.yaml", "--sources", "--coefficient", "wafer_usd=20000"]) == 0
    printed = capsys.readouterr().out
    assert "compute" in printed and "bonding" in printed and "set by the user" in printed and "MICRO 2017" in printed
    assert main(["cost", "configs/dojo.yaml", "--coefficient", "wafer_usd"]) == 2
    assert "expected NAME=NUMBER" in capsys.readouterr().err


def test_command_prints_and_changes_coefficients_of_power_and_heat(capsys):
    assert main(["cost", "configs/power.yaml", "--sources"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in HeatEstimates().by_name())
    for change, why in (
        ("leakage_share=0.9", "are 1.34 together"),
        ("stack_share=-1", "stack_share must be above 0"),
        ("lowest_voltage=-1", "lowest_voltage must be 0 or above"),
    ):
        assert main(["cost", "configs/power.yaml", "--coefficient", change]) == 2
        assert why in capsys.readouterr().err
    assert main(["cost", "configs/power.yaml", "--coefficient", "lowest_voltage=0.9"]) == 0
    assert capsys.readouterr().out != printed


# Energy of whole chips: power that the coefficients give for H100, H200 and Tesla's D1, beside what they draw.
# Chips are given by what they do in a second. The coefficients follow from four works of the H100; its others
# and all of the H200's were not used.


@pytest.mark.parametrize("at_no_clock", [0.0, 0.66])
def test_one_law_of_voltage_holds_clocks_of_machines_and_of_gpus(at_no_clock):
    """An operation takes V², and there are as many of them a second."""
    limits = PowerLimits(load_system("dojo"), heat_with({"lowest_voltage": at_no_clock}))
    blocks = dict.fromkeys(("llc", "hbm", "busy", "d2d", "pieces", "decision", "idle"), np.zeros(25))
    watt = limits.at(DieLoad(1e9, blocks | {"compute": np.full(25, 60.0)}), 0.5).die_w[0]
    assert watt == pytest.approx(60 * (at_no_clock + (1 - at_no_clock) / 2) ** 2)
    assert watt == pytest.approx(60 * voltage(0.5, at_no_clock) ** 2)


# Laws of the heat grid: conservation, closed forms, symmetry, and that more cooling never heats anything.

AREA = {"compute": 200.0, "llc": 80.0, "hbm": 70.0, "d2d": 50.0, "decision": 1.0}
MESH = [(x, y) for y in range(3) for x in range(4)]


def heat(cells=1, lateral=True, resistance=0.05, stacks=4, coolant=25.0, places=MESH):
    return DieTemperatures(places, [0] * len(places), AREA, stacks, resistance, coolant, cells, lateral)


def drawn(dies=12, seed=0):
    watt = np.random.default_rng(seed).uniform(5.0, 400.0, (3, dies))
    return {"compute": watt[0], "llc": watt[1] / 4, "": watt[2] / 8}, watt[1] / 3


@pytest.mark.parametrize(("cells", "lateral"), [(1, True), (3, True), (2, False)])
def test_heat_that_comes_in_leaves(cells, lateral):
    machine, (blocks, stacks) = heat(cells, lateral), drawn()
    found = machine.of(blocks, stacks, np.full(12, 30.0))
    every = np.concatenate([found.cells_c.ravel(), found.hbm_c]) - 25.0
    put_in = sum(each.sum() for each in blocks.values()) + stacks.sum() + found.leakage_w.sum()
    assert machine._grid.down @ every == pytest.approx(put_in, rel=1e-9)


def plane(columns, rows, square_w_per_k, down_w_per_k):
    pairs = np.concatenate(neighbours(columns, rows))
    return HeatGrid(pairs, np.full(len(pairs), square_w_per_k), np.full(columns * rows, down_w_per_k))


def test_a_slab_of_uniform_power_is_at_its_resistance_times_power():
    even = plane(7, 5, 0.09, 0.25).above_k(np.full(35, 3.0))
    assert even == pytest.approx(np.full(35, 12.0), rel=1e-12)
    found = heat(cells=4, stacks=0).of({"": np.full(12, 100.0)}, 0.0, np.zeros(12))
    assert found.die_c == pytest.approx(25.0 + 100.0 * 0.05, rel=1e-9)


def test_a_symmetric_map_has_a_symmetric_field():
    watt = np.arange(12.0).reshape(3, 4)
    watt = watt + watt[::-1] + (watt + watt[::-1])[:, ::-1]
    found = heat(cells=3).of({"compute": watt.ravel() * 5}, watt.ravel(), np.full(12, 10.0))
    field = found.cells_c.reshape(3, 4, 3, 3).transpose(0, 2, 1, 3).reshape(9, 12)
    assert field == pytest.approx(field[::-1], rel=1e-9) and field == pytest.approx(field[:, ::-1], rel=1e-9)
    assert found.hbm_c.reshape(3, 4) == pytest.approx(found.hbm_c.reshape(3, 4)[::-1, ::-1], rel=1e-9)


def test_a_hot_strip_is_that_of_a_fin_as_the_grid_is_refined():
    """A strip of half-width a on a long plate: q / h (1 - exp(-a / l)), l = sqrt(k t / h) (Incropera, 3.6)."""
    errors = []
    for n in (10, 20, 40):
        cell, sheet, h, a = 1 / n, 0.09, 0.01, 2.0
        columns = 60 * n + 1
        x = (np.arange(columns) - columns // 2) * cell
        inside = np.clip((a - np.abs(x)) / cell + 0.5, 0, 1)
        found = plane(columns, 1, sheet, h * cell**2).above_k(inside * 0.5 * cell**2)
        exact = 0.5 / h * (1 - np.exp(-a / np.sqrt(sheet / h)))
        errors.append(abs(found[columns // 2] / exact - 1))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.001


@pytest.mark.parametrize(("n", "most"), sampled([(4, 0.03), (10, 0.01)], lambda case: case[0] == 4))
def test_a_hot_disc_is_as_its_closed_form_the_nearer_the_finer_its_cells(n, most):
    """A disc of radius a on a wide plate: q / h (1 - a / l K1(a / l)) in its middle."""
    cell, sheet, h, a = 1 / n, 0.09, 0.01, 2.0
    side = 40 * n + 1
    x = (np.arange(side) - side // 2) * cell
    fine = (np.arange(8) - 3.5) / 8 * cell
    inside = (np.hypot.outer(x[:, None] + fine, x[:, None] + fine) < a).mean(axis=(1, 3))
    found = plane(side, side, sheet, h * cell**2).above_k(inside.ravel() * 0.5 * cell**2)
    length = np.sqrt(sheet / h)
    exact = 0.5 / h * (1 - a / length * k1(a / length))
    assert found[len(found) // 2] == pytest.approx(exact, rel=most)


def test_more_cooling_heats_nothing_and_leakage_cools_nothing():
    blocks, stacks = drawn(seed=3)
    hot, cool, colder = (
        heat(2, resistance=resistance, coolant=coolant).of(blocks, stacks, np.full(12, 40.0))
        for resistance, coolant in ((0.06, 25.0), (0.04, 25.0), (0.04, 15.0))
    )
    assert (hot.die_c > cool.die_c).all() and (cool.die_c > colder.die_c).all()
    assert (hot.hbm_c > cool.hbm_c).all() and (hot.leakage_w > cool.leakage_w).all()
    less = heat(2, resistance=0.04).of(blocks, stacks, np.full(12, 20.0))
    assert (less.die_c < cool.die_c).all()


def test_a_hot_die_warms_its_neighbours_only_through_the_carrier():
    watt = np.zeros(12)
    watt[5] = 300.0
    joined, apart = (heat(lateral=lateral).of({"compute": watt}, 0.0, np.zeros(12)) for lateral in (True, False))
    assert (joined.die_c > 25.0).all() and joined.die_c[5] < apart.die_c[5]
    assert apart.die_c == pytest.approx(25.0 + 0.05 * watt)
    assert joined.die_c[5] > joined.die_c[4] > joined.die_c[0]


def test_leakage_that_runs_away_is_infinite():
    found = heat(resistance=2.0).of({"": np.full(12, 60.0)}, 0.0, np.full(12, 40.0))
    assert np.isinf(found.die_c).all()


def test_estimates_have_no_more_digits_than_their_ranges_carry(capsys):
    """The last digit that is shown is worth at most a tenth of the range's width."""
    assert main(["hardware", "cost", "dojo"]) == 0
    said = capsys.readouterr().out
    (row,) = [line.split() for line in said.splitlines() if line.strip().startswith("sum") and "," in line]
    assert row == ["sum", "34,000", "20,000", "78,000"]
    assert estimate_texts("energy", 0.0512345, 0.030912, 0.068612) == ("51 mJ/token", "31 mJ/token", "69 mJ/token")

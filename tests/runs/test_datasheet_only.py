"""Systems on which nothing was measured say so wherever their results stand."""

import pytest

import archsim as ar
from archsim import load_experiment
from archsim.runs.notes import calibration_notes, die_of, written_die
from archsim.specs.library import load_system

SYSTEMS = ("mi355x_node", "vr_nvl144", "cloudmatrix384")


@pytest.mark.parametrize("name", SYSTEMS)
def test_pages_say_that_nothing_was_measured(name):
    system = load_system(name)
    (note,) = [
        each
        for each in calibration_notes([{"system": name, "gemm_extrapolated": 1.0}], [(name, die_of(system))])
        if "datasheet only" in each
    ]
    assert note.startswith(f"{name}: datasheet only: nothing was measured there")
    assert written_die(system.model_dump(mode="json", by_alias=True)) == die_of(system)


def test_measured_systems_do_not():
    die = die_of(load_system("h100_node"))
    notes = calibration_notes([{"system": "h100_node", "gemm_extrapolated": 0.0}], [("h100_node", die)])
    assert not any("datasheet only" in each for each in notes)


@pytest.fixture(scope="module")
def row():
    changes = ["systems=[mi355x_node]", "models=[qwen3-30b-a3b]", "workload.batch=[64]", "workload.layers=2"]
    return ar.run(load_experiment("configs/wafer_or_cluster.yaml", changes)).runs.rows[0]


def test_every_time_of_it_is_extrapolated(row):
    assert row["gemm_extrapolated"] == 1.0


def test_energy_of_a_whole_iteration_holds_more_than_moe_layers(row):
    """Attention, the head and waiting come on top; the ends of the coefficients lie around it."""
    assert row["energy_per_token_j"] < row["iteration_energy_per_token_j"]
    low, high = row["iteration_energy_per_token_j_low"], row["iteration_energy_per_token_j_high"]
    assert low < row["iteration_energy_per_token_j"] < high

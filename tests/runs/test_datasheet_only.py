"""What was not measured says so wherever its results stand, and whose law it takes."""

import pytest

import archsim as ar
from archsim import load_experiment
from archsim.runs.notes import calibration_notes, die_of, result_notes, written_die
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


@pytest.mark.parametrize(
    ("system", "model", "told"),
    [
        ("h100_node", "qwen3-30b-a3b", []),
        ("h100_node", "olmoe-1b-7b", ["fused layers of", "dispatch and combine of"]),
        ("dojo", "olmoe-1b-7b", ["GEMMs take the times of h100", "fused layers of"]),
    ],
)
def test_a_stand_in_counts_as_extrapolated_and_names_whose_law_it_is(system, model, told):
    changes = [f"systems=[{system}]", f"models=[{model}]", "workload.batch=[64]", "workload.layers=1"]
    row = ar.run(load_experiment("configs/wafer_or_cluster.yaml", changes)).runs.rows[0]
    pieces = row["stand_ins"].split(" | ") if row["stand_ins"] else []
    assert len(pieces) == len(told) and all(piece.startswith(each) for piece, each in zip(pieces, told, strict=True))
    assert (row["gemm_extrapolated"] == 1.0) == any("dispatch" not in each for each in told)
    assert row["transfer_extrapolated"] in (None, float(any("dispatch" in each for each in told)))
    notes = calibration_notes([row], [(system, die_of(load_system(system)))])
    assert all(any(note.startswith(piece) and "counts as extrapolated" in note for note in notes) for piece in pieces)


def test_a_step_of_more_requests_that_takes_less_time_says_that_its_plan_is_another():
    row = {"system": "x", "model": "m", "policy": "base", "engine": "event", "assumptions": "physical"}
    rows = [row | {"batch": batch, "decode_step_ns": ns} for batch, ns in ((64, 100.0), (128, 80.0), (256, 120.0))]
    (note,) = [each for each in result_notes(rows, []) if "another plan" in each]
    assert note.startswith("a decode step of 128 requests takes 20% less time than one of 64 under policy base")
    assert not any("another plan" in each for each in result_notes(rows[1:], []))

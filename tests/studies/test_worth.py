"""Whether a balancer is worth it: tokens as the loads, a verdict by its range, a break-even, files to deploy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import PlacementError, SpecError
from archsim.studies.worth import write_tokens
from archsim.workload import open_trace

ROOT = Path(__file__).resolve().parents[2]
LOADS = ROOT / "examples" / "loads.npz"
FEW = ["requests.count=10", "routing.layers=1", "scheduler.max_num_seqs=16"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("worth") / "out"
    return ar.worth("eplb", LOADS, ROOT / "configs" / "serve_olmoe.yaml", FEW, out=out)


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
    assert [row.spares for row in found.rows] == [None, 0, 1, 2, 4] and found.rows[0].name == "ep"
    assert found.rows[1].max_over_mean < found.rows[0].max_over_mean  # EPLB balances loads that it has not seen
    blocks = [row.kv_blocks for row in found.rows[1:]]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] > blocks[-1]  # spares take KV
    assert {"sglang_init_expert_location.json", "placement.json"} <= {file.name for file in found.placed.files}
    assert all(file.is_file() for file in found.placed.files) and found.best in found.rows[1:]


def test_an_unknown_name_is_told_balancers_and_blocks(tmp_path):
    with pytest.raises(SpecError, match="did you mean 'prediction'.*eplb.*; blocks, with --in: prediction, allocator"):
        ar.worth("predict", LOADS, ROOT / "configs" / "serve_olmoe.yaml", FEW)


def test_no_note_names_an_option_that_worth_lacks(found):
    assert found.rows[0].experts_ms is None and not any("--tokens" in note for note in found.notes)


@pytest.mark.parametrize(("tpot", "goodput", "said"), [
    ((-0.05, -0.02), (0.0, 0.0), "worth it, with"), ((-0.004, 0.004), (0.0, 0.0), "not worth it"),
    ((-0.05, 0.01), (-0.01, 0.0), "undecided"), ((0.02, 0.03), (0.02, 0.04), "worth it, with"),
])
def test_the_verdict_follows_from_the_range(found, tpot, goodput, said):
    assert replace(found, tpot=tpot, goodput=goodput).verdict.startswith(said)


def test_the_break_even_is_moves_and_search_over_what_an_iteration_saves(found):
    rows = (replace(found.rows[0], tpot_ms=2.0), *found.rows[1:])
    best = replace(found.best, tpot_ms=1.9)
    one = replace(found, rows=rows, best=best, stall_ms=50.0, search_s=0.05)
    assert one.break_even == pytest.approx(1000)
    assert replace(one, best=replace(best, tpot_ms=2.0)).break_even is None


def test_loads_of_one_matrix_are_refused(tmp_path):
    counts = np.load(LOADS)["counts"].sum(axis=0)
    np.savez(tmp_path / "one.npz", counts=counts, layer_ids=np.load(LOADS)["layer_ids"])
    with pytest.raises(PlacementError, match="one matrix: nothing is left to judge on"):
        ar.worth("eplb", tmp_path / "one.npz", ROOT / "configs" / "serve_olmoe.yaml", FEW)


def test_a_goodput_of_nothing_is_told(found):
    rows = tuple(replace(row, goodput_per_s=0.0) for row in found.rows)
    assert "goodput 0 (no request keeps the limits)" in replace(found, rows=rows).verdict

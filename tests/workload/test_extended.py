"""Batches larger than their trace: shifted copies do what was recorded, at other steps; fitted ones look like it."""

import csv

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.routing import trace_of
from support.tiny import archsim, tiny_file

from archsim.workload.demand import build_demand
from archsim.workload.extended import extended, recorded_requests
from archsim.workload.trace import some_layers


def random_trace(lengths, seed, experts=16, layers=3):
    draw = np.random.default_rng(seed)
    return trace_of(
        [[[draw.choice(experts, 2, replace=False) for _ in range(layers)] for _ in range(n)] for n in lengths], experts
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 12), st.integers(0, 99))
def test_every_shifted_copy_decodes_the_recorded_steps_once(lengths, more, seed):
    trace = random_trace(lengths, seed)
    batch = trace.requests + more
    source = extended(trace, batch, "shifted", 0)
    found = build_demand(source, batch, 20, 0).tokens
    of_one = np.stack([build_demand(trace, trace.requests, 20, 0).tokens])[0]
    copies = np.bincount(np.arange(batch) % trace.requests, minlength=trace.requests)
    length = np.diff(trace.request_offsets)
    assert found.sum() == (copies * length).sum() * 2 * 3
    chosen = {request: [] for request in range(batch)}
    for piece in source.steps(np.arange(batch), 20):
        for request, experts in zip(piece.request, piece.experts, strict=True):
            chosen[int(request)].append(experts.tolist())
    for request, rows in chosen.items():
        begin, end = trace.request_offsets[request % trace.requests : request % trace.requests + 2]
        recorded = trace.experts[begin:end].tolist()
        assert rows[0] == recorded[0] and sorted(rows) == sorted(recorded)
    if more == 0:
        assert source is trace and np.array_equal(found, of_one)
    assert found[0].sum() == batch * 2 * 3  # one row of prompt each
    assert recorded_requests(some_layers(source, 2)) == trace.requests


def test_copies_begin_a_part_of_the_steps_later():
    """Two copies of a request with four decode steps: the second begins with the third."""
    trace = trace_of([[[[0, 1]], [[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]], 8)
    pieces = list(extended(trace, 2, "shifted", 0).steps(np.arange(2), 4))
    assert [piece.iteration for piece in pieces] == [0, 1, 2, 3, 4]
    assert [piece.experts[1, 0, 0] for piece in pieces] == [0, 4, 6, 0, 2]
    assert [piece.experts[0, 0, 0] for piece in pieces] == [0, 0, 2, 4, 6]


def test_shifted_and_fitted_batches_have_more_active_experts_than_redrawn_ones():
    trace = random_trace([40] * 6, 1, experts=64)
    active = {}
    for how in ("redraw", "shifted", "fitted"):
        source = extended(trace, 96, how, 0)
        demand = build_demand(source, 96, 30, 0)
        active[how] = (demand.tokens[1:] > 0).sum(axis=2).mean()
    assert active["redraw"] < 13 and active["shifted"] > 40 and active["fitted"] > 40
    assert len({extended(trace, 96, how, 0).digest for how in active}) == 3


def test_a_sweep_says_how_its_batch_was_extended(tmp_path):
    trace = random_trace([9] * 4, 2, layers=2)
    np.savez(
        tmp_path / "few.npz", experts=trace.experts, request_offsets=trace.request_offsets, iteration=trace.iteration,
        layer_ids=np.array([1, 2]), num_experts=16, top_k=2, num_layers_total=3, model="toy",
    )  # fmt: skip
    tiny_file(tmp_path)
    changes = ("workload.trace=few.npz", "workload.batch=[40]", "policies=[ep]")
    options = ["--jobs", "1", *(word for change in changes for word in ("--set", change))]
    rows = {}
    for how in ("redraw", "shifted"):
        ended = archsim(tmp_path, "sweep", "tiny.yaml", *options, "--set", f"workload.extend={how}", "--out", how)
        assert ended.returncode == 0, ended.stderr
        with (tmp_path / how / "results.csv").open(newline="") as stream:
            rows[how] = next(csv.DictReader(stream))
        assert f"workload.extend: {how}" in ended.stdout + ended.stderr or how == "redraw"
        assert float(rows[how]["drawn_from"]) == 4 and rows[how]["extend"] == how
    few, more = (float(rows[how]["active_experts"]) for how in ("redraw", "shifted"))
    assert few < more <= float(rows["shifted"]["active_if_distinct"]) + 0.5


def test_generated_traffic_is_not_extended(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "check", "tiny.yaml", "--set", "workload.extend=shifted")
    assert ended.returncode != 0 and "needs a recorded trace" in ended.stderr

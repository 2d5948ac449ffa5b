"""Demand of a batch: agreement with a slow oracle, and laws."""

import csv
import io
import mmap
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.demand_oracle import oracle_demand, oracle_top_fraction, oracle_top_positive
from support.examples import examples
from support.routing import trace_of
from support.small_runs import demand_of, policy, small_model, small_system
from support.tiny import archsim, tiny, tiny_file
from support.trace_files import TOY, save_npz, toy_requests

import archsim as ar
import archsim.traffic.trace as trace_module
from archsim.base.errors import ArchsimError, SpecError, TraceError
from archsim.engine.demand import RunSum, build_run_demand
from archsim.model.spec import ModelSpec
from archsim.policies.heatmap import TopFraction, TopPositive
from archsim.runs.feasibility import rooms
from archsim.runs.measures.requests import _first_steps
from archsim.runs.notes import result_notes
from archsim.runs.plan import prepare, select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment, load_model, load_planned
from archsim.specs.workload import SyntheticSpec, SyntheticTrace, WorkloadSpec
from archsim.traffic import stacked
from archsim.traffic.demand import LOOKED, active_by_step, sum_together, unsettled_steps
from archsim.traffic.formats.readers import open_trace
from archsim.traffic.larger_batches import extend_trace, recorded_requests
from archsim.traffic.layer_subset import SomeLayers, representative_layers, seen_shares, some_layers, spread_layers
from archsim.traffic.synthetic import SyntheticTraffic
from archsim.traffic.trace import Trace, draw_requests, is_first_of
from archsim.traffic.traffic_presets import generated_traffic

SHARED_TRACES = [
    ("llama4-maverick/mmlu_abstract_algebra_anatomy.npz", "llama-4-maverick"),
    ("deepseek-v2-lite/moe_beyond_prompts.npz", "deepseek-v2-lite"),
]

GPT_OSS = ModelSpec(
    name="gpt-oss-20b",
    source="openai/gpt-oss-20b, config.json (Hugging Face)",
    layers=24,
    moe_layers={"first": 0, "last": 23},
    hidden=2880,
    expert_ffn=2880,
    experts=32,
    top_k=4,
)


def make_trace(lengths, layers=1, experts=8, top_k=1, seed=0, start=0):
    """A Trace with random routing. lengths: (prefill rows, decode steps) of every request."""
    iteration = [np.r_[np.zeros(prefill), np.arange(1, decode + 1) + start] for prefill, decode in lengths]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in iteration])]).astype(np.int64)
    rng = np.random.default_rng(seed)
    routing = rng.random((offsets[-1], layers, experts)).argsort(axis=2)[:, :, :top_k]
    return Trace(
        experts=routing.astype(np.int16),
        request_offsets=offsets,
        iteration=np.concatenate(iteration).astype(np.int16),
        layer_ids=np.arange(layers, dtype=np.int32),
        num_experts=experts,
        top_k=top_k,
        model="",
        source="made up",
        request_subject=np.zeros(len(lengths), np.int16),
        subject_names=("",),
    )


def one_request(trace, request):
    rows = slice(trace.request_offsets[request], trace.request_offsets[request + 1])
    return Trace(
        **{
            **{name: getattr(trace, name) for name in trace.__dataclass_fields__},
            "experts": trace.experts[rows],
            "iteration": trace.iteration[rows],
            "request_offsets": np.array([0, rows.stop - rows.start]),
        }
    )


def bits(hot_row, experts):
    return set(np.flatnonzero(np.unpackbits(hot_row, bitorder="little")[:experts]).tolist())


small_traces = st.builds(
    lambda lengths, layers, experts, top_k, seed, start: make_trace(
        lengths, layers, experts, min(top_k, experts), seed, start
    ),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(2, 11),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.integers(0, 1),
)


@settings(max_examples=examples(150))
@given(small_traces, st.integers(1, 8), st.integers(0, 5), st.integers(1, 6), st.booleans())
def test_agrees_with_the_oracle(trace, batch, decode_steps, dies, by_fraction):
    predictor = TopFraction(0.3) if by_fraction else TopPositive(2)
    demand = build_run_demand(trace, batch, decode_steps, 3, origin_dies=dies, predictor=predictor)
    steps, has_prefill = oracle_demand(trace, draw_requests(trace.requests, batch, 3), decode_steps, dies)
    assert demand.steps == len(steps)
    assert demand.has_prefill == has_prefill
    for t, step in enumerate(steps):
        assert _nonzero(demand.tokens[t]) == dict(step["tokens"])
        assert _nonzero(demand.origins[t]) == dict(step["origins"])
        for layer in range(demand.layers):
            order = step["first_seen"][layer]
            assert demand.first_seen[t, layer].tolist() == order + [-1] * (demand.experts - len(order))
            for i in range(demand.experts):
                counts = [step["heat"].get((layer, i, j), 0) for j in range(demand.experts)]
                expected = (
                    oracle_top_fraction(counts, Fraction(3, 10)) if by_fraction else oracle_top_positive(counts, 2)
                )
                assert bits(demand.predicted_rows[t, layer, i], demand.experts) == (expected if t else set())


def _nonzero(array):
    return {tuple(map(int, index)): int(array[tuple(index)]) for index in np.argwhere(array)}


@settings(max_examples=examples(200))
@given(st.data(), st.integers(1, 40))
def test_predictors_agree_with_sorting(data, experts):
    large = data.draw(st.sampled_from([1, 3, 2**32 - 1]))
    counts = data.draw(st.lists(st.integers(0, large), min_size=experts, max_size=experts))
    n = data.draw(st.integers(1, 45))
    heat = np.zeros((1, experts, experts), np.uint32)
    heat[0, -1] = counts
    changed = np.zeros((1, experts), bool)
    changed[0, -1] = True
    for predictor, expected in (
        (TopFraction(0.2), oracle_top_fraction(counts, Fraction(1, 5))),
        (TopFraction(1.0), set(range(experts))),
        (TopPositive(n), oracle_top_positive(counts, n)),
    ):
        hot = np.full((1, experts, (experts + 7) // 8), 255, np.uint8)
        predictor(heat, changed, hot)
        assert bits(hot[0, -1], experts) == expected
        assert (hot[0, :-1] == 255).all(), "a row that did not change was written"


@pytest.mark.parametrize(("predictor", "value"), [(TopFraction, 0), (TopFraction, 1.01), (TopPositive, 0)])
def test_predictors_refuse_useless_parameters(predictor, value):
    with pytest.raises(ValueError, match="expected"):
        predictor(value)


@pytest.fixture(params=["generated", *[name for name, _ in SHARED_TRACES]])
def source(request):
    if request.param == "generated":
        return SyntheticTraffic(load_model("olmoe-1b-7b"), SyntheticSpec(prompt_tokens=3), 40)
    shared = request.getfixturevalue("shared")
    return open_trace(shared / "data/traces" / request.param, load_model(dict(SHARED_TRACES)[request.param]))


def test_selections_are_top_k_a_token(source):
    demand = build_run_demand(source, 40, 12, 0)
    routed = np.zeros(demand.steps, np.int64)
    for piece in source.steps(np.arange(40), 12):
        routed[piece.iteration] += len(piece.request)
    assert routed.sum() > 0
    assert (demand.tokens.sum(axis=2) == source.top_k * routed[:, None]).all()


def test_origins_sum_to_tokens(source):
    demand = build_run_demand(source, 40, 12, 0, origin_dies=7)
    assert demand.origins.dtype == np.uint16
    assert (demand.origins.sum(axis=2) == demand.tokens).all()


def test_first_seen_holds_every_active_expert_once(source):
    demand = build_run_demand(source, 40, 12, 0)
    orders, counts = (array.reshape(-1, demand.experts) for array in (demand.first_seen, demand.tokens))
    assert len(orders) > 0 and demand.tokens.sum() > 0
    for order, tokens in zip(orders, counts, strict=True):
        active = np.count_nonzero(tokens)
        assert sorted(order[:active]) == np.flatnonzero(tokens).tolist()
        assert (order[active:] == -1).all()


def test_hot_rows_have_the_same_number_of_experts(source):
    demand = build_run_demand(source, 40, 12, 0, predictor=TopFraction(0.2))
    marked = np.unpackbits(demand.predicted_rows, axis=3, bitorder="little").sum(axis=3)
    assert (marked[1:] == -(-demand.experts // 5)).all()
    assert not demand.predicted_rows[:1].any()


def test_a_batch_is_the_sum_of_its_requests():
    trace = make_trace([(3, 2), (0, 4), (1, 1), (2, 0)], layers=2, experts=6, top_k=2)
    demand = build_run_demand(trace, 3, 9, 0)
    total = np.zeros_like(demand.tokens)
    for request in range(3):
        alone = build_run_demand(one_request(trace, request), 1, 9, 0)
        total[: alone.steps] += alone.tokens
    assert (total == demand.tokens).all()


def test_pieces_do_not_matter(source, monkeypatch):
    def build():
        return build_run_demand(source, 50, 6, 0, origin_dies=4, predictor=TopFraction())

    whole = build()
    monkeypatch.setattr(trace_module, "CHUNK_BYTES", 7 * 2 * len(source.layer_ids) * source.top_k)
    pieces = list(source.steps(np.arange(source.requests)[:50], 6))
    assert max(len(piece.request) for piece in pieces) == 7
    _assert_equal(whole, build())


@settings(max_examples=examples(60))
@given(small_traces, st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(0, 5))
def test_batches_summed_in_the_pass_of_the_largest_are_as_alone(trace, batches, decode_steps):
    parts = {"origin_dies": 3, "predictor": TopFraction(0.3)}
    possible = [batch for batch in batches if is_first_of(trace, batch, trace, max(batches), 3)]
    sums = [RunSum(trace, batch, decode_steps, 3, **parts) for batch in possible]
    sum_together(sums)
    for batch, each in zip(possible, sums, strict=True):
        alone, together = build_run_demand(trace, batch, decode_steps, 3, **parts), each.demand()
        assert (alone.steps, alone.has_prefill) == (together.steps, together.has_prefill)
        _assert_equal(alone, together)


def test_generated_batches_are_the_beginning_of_larger_ones():
    spec = SyntheticSpec(prompt_tokens=2, drift=0.1, switch_step=3)
    parts = {"origin_dies": 4, "predictor": TopPositive(2)}
    sums = [RunSum(SyntheticTraffic(GPT_OSS, spec, batch), batch, 5, 0, **parts) for batch in (7, 40, 23)]
    sum_together(sums)
    for each in sums:
        alone = build_run_demand(SyntheticTraffic(GPT_OSS, spec, each.batch), each.batch, 5, 0, **parts)
        _assert_equal(alone, each.demand())


def test_other_requests_are_not_summed_together():
    few, more = (make_trace([(2, 3)] * requests) for requests in (3, 9))
    with pytest.raises(ValueError, match=r"\b4\b.*\b9\b"):
        sum_together([RunSum(more, 9, 3, 0), RunSum(few, 4, 3, 0)])
    assert not is_first_of(few, 3, few, 9, 0), "the larger batch is drawn, the smaller one is not"


@pytest.mark.parametrize("held_bytes", [0, 1000])
def test_columns_in_files_are_those_in_memory(source, tmp_path, monkeypatch, held_bytes):
    parts = {"origin_dies": 4, "predictor": TopFraction()}
    whole = build_run_demand(source, 50, 6, 0, **parts)
    monkeypatch.setattr(stacked, "HELD_BYTES", held_bytes)
    mapped = build_run_demand(source, 50, 6, 0, **parts, folder=tmp_path)
    assert isinstance(mapped.predicted_rows.base, mmap.mmap) and mapped.predicted_rows.flags.writeable
    _assert_equal(whole, mapped)
    for _ in mapped:  # gives pages back
        pass
    _assert_equal(whole, mapped)


def test_wider_steps_widen_those_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stacked, "HELD_BYTES", 0)
    steps = stacked.Stacked((2,), np.uint16, tmp_path / "steps")
    for value in (1, 1 << 20, 3):
        steps.append(np.full(2, value, np.int32 if value >> 16 else np.uint16))
    found = steps.take()
    assert found.dtype == np.int32 and found.tolist() == [[1, 1], [1 << 20, 1 << 20], [3, 3]]


def _assert_equal(one, other):
    assert one.digest == other.digest
    for name in ("tokens", "first_seen", "origins", "predicted_rows"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_same_arguments_same_demand_in_another_process(tmp_path):
    program = (
        "from archsim.specs.library import load_model; from archsim.specs.workload import SyntheticSpec\n"
        "from archsim.traffic.synthetic import SyntheticTraffic; from archsim.engine.demand import "
        "build_run_demand\n"
        "d = build_run_demand(SyntheticTraffic(load_model('olmoe-1b-7b'), SyntheticSpec(), 9), 12, 5, 1)\n"
        "import zlib; print(zlib.crc32(d.tokens.tobytes() + d.first_seen.tobytes()), d.digest)"
    )
    with redirect_stdout(io.StringIO()) as here:
        exec(program, {})
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "2"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert here.getvalue() == there and len(there) > 64


def test_requests_beyond_the_trace_are_drawn_with_replacement():
    drawn = draw_requests(5, 200, 7)
    assert (drawn == np.random.default_rng(7).integers(5, size=200)).all()
    assert set(drawn) == set(range(5))
    assert draw_requests(5, 5, 7).tolist() == [0, 1, 2, 3, 4]
    assert draw_requests(5, 2, 7).tolist() == [0, 1]
    trace = make_trace([(2, 1), (1, 2)])
    assert (build_run_demand(trace, 9, 5, 0).tokens != build_run_demand(trace, 9, 5, 1).tokens).any()


def test_digest_tells_batches_apart():
    trace = make_trace([(2, 3), (2, 3), (2, 3)])
    digests = [
        build_run_demand(trace, *which).digest for which in ((2, 3, 0), (3, 3, 0), (3, 2, 0), (9, 3, 0), (9, 3, 1))
    ]
    assert len(set(digests)) == 5
    assert build_run_demand(trace, 3, 3, 0).digest == build_run_demand(trace, 3, 3, 1).digest, (
        "the seed draws nothing here"
    )


@pytest.mark.parametrize(("lengths", "expected"), [
    ([(2, 1)], True),
    ([(1, 1)], False),
    ([(0, 1)], False),
    ([(5, 1), (1, 1)], True),
    ([(1, 1), (5, 1), (0, 4)], True),
])  # fmt: skip
def test_a_prompt_of_several_rows_makes_step_0_a_prefill_wherever_it_stands(lengths, expected):
    assert build_run_demand(make_trace(lengths), len(lengths), 9, 0).has_prefill is expected


def test_decode_only_trace_keeps_its_numbering(shared):
    trace = open_trace(shared / "data/traces/gpt-oss-20b/mmlu_decode.npz", GPT_OSS)
    demand = build_run_demand(trace, 112, 20, 0, predictor=TopPositive(4))
    assert demand.steps == 21
    assert not demand.has_prefill
    assert not demand.tokens[0].any() and not demand.predicted_rows[:2].any()
    assert (demand.tokens[1].sum(axis=1) == 4 * 112).all()


def test_prompt_only_trace_is_one_step(shared):
    trace = open_trace(shared / "data/traces/deepseek-v2-lite/moe_beyond_prompts.npz", load_model("deepseek-v2-lite"))
    demand = build_run_demand(trace, trace.requests, 127, 0)
    assert demand.steps == 1
    assert demand.has_prefill
    counts = np.stack([np.bincount(trace.experts[:, layer].ravel(), minlength=64) for layer in range(26)])
    assert (demand.tokens[0] == counts).all()


def test_heatmap_pairs_do_not_cross_a_gap_nor_the_first_decode_step():
    trace = make_trace([(0, 6)], experts=4)
    trace.experts[:, 0, 0] = [0, 1, 2, 3, 0, 1]
    trace.iteration[:] = [0, 1, 2, 3, 5, 6]
    hot = build_run_demand(trace, 1, 9, 0, predictor=TopPositive(4)).predicted_rows[:, 0]
    pairs = [{(i, j) for i in range(4) for j in bits(hot[t, i], 4)} for t in range(7)]
    assert pairs[1] == set()
    assert pairs[2] == {(1, 2)}
    assert pairs[3] == pairs[4] == pairs[5] == {(1, 2), (2, 3)}
    assert pairs[6] == {(1, 2), (2, 3), (0, 1)}


def test_origins_grow_beyond_16_bits_where_they_must():
    trace = make_trace([(70_000, 1)], experts=2)
    trace.experts[:] = 1
    demand = build_run_demand(trace, 1, 1, 0, origin_dies=2)
    assert demand.origins.dtype == np.int32
    assert demand.origins[0, 0, 0].tolist() == [0, 70_000]


def test_requests_live_on_dies_in_contiguous_blocks():
    trace = make_trace([(1, 0)] * 10, experts=2)
    demand = build_run_demand(trace, 10, 0, 0, origin_dies=4)
    assert demand.origins[0, 0].sum(axis=1).tolist() == [3, 2, 3, 2]


def test_memory_does_not_grow_with_the_number_of_tokens():
    import tracemalloc

    traffic = SyntheticTraffic(load_model("qwen3-235b-a22b"), SyntheticSpec(prompt_tokens=2), 200)
    build_run_demand(traffic, 200, 1, 0)
    peaks = []
    for decode_steps in (10, 60):
        tracemalloc.start()
        demand = build_run_demand(traffic, 200, decode_steps, 0)
        peaks.append(tracemalloc.get_traced_memory()[1] - demand.tokens.nbytes * 2 - demand.first_seen.nbytes * 2)
        tracemalloc.stop()
    tokens_bytes = 200 * 50 * 94 * 8 * 2
    assert peaks[1] - peaks[0] < tokens_bytes / 10


# ---- What a step is asked for: prompts, origins and predictions.


def test_a_run_is_a_stream_of_steps_with_tokens():
    model, system, spec = small_model(), small_system(), policy("allo+pred")
    demand = demand_of(model, system, spec)
    steps = list(demand)
    assert [(step.step, layer) for layer, step in steps] == [
        tuple(at) for at in np.argwhere(demand.tokens.any(axis=2)).tolist()
    ]
    assert len(steps) == demand.steps * demand.layers > 0
    for layer, step in steps:
        assert (step.tokens == demand.tokens[step.step, layer]).all()
        assert (step.origins.sum(axis=0) == step.tokens).all()
        assert (step.prefill_tokens == (step.tokens if step.step == 0 else 0)).all()
        assert (step.predicted.rows == demand.predicted_rows[step.step, layer]).all()
        assert step.predicted.rows.any() == (step.step > 0)


# ---- Batches larger than their trace: shifted copies do what was recorded, at other steps; fitted ones look like it.


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
    source = extend_trace(trace, batch, "shifted", 0)
    found = build_run_demand(source, batch, 20, 0).tokens
    of_one = np.stack([build_run_demand(trace, trace.requests, 20, 0).tokens])[0]
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
    pieces = list(extend_trace(trace, 2, "shifted", 0).steps(np.arange(2), 4))
    assert [piece.iteration for piece in pieces] == [0, 1, 2, 3, 4]
    assert [piece.experts[1, 0, 0] for piece in pieces] == [0, 4, 6, 0, 2]
    assert [piece.experts[0, 0, 0] for piece in pieces] == [0, 0, 2, 4, 6]


def test_shifted_and_fitted_batches_have_more_active_experts_than_redrawn_ones():
    trace = random_trace([40] * 6, 1, experts=64)
    active = {}
    for how in ("redraw", "shifted", "fitted"):
        source = extend_trace(trace, 96, how, 0)
        demand = build_run_demand(source, 96, 30, 0)
        active[how] = (demand.tokens[1:] > 0).sum(axis=2).mean()
    assert active["redraw"] < 13 and active["shifted"] > 40 and active["fitted"] > 40
    assert len({extend_trace(trace, 96, how, 0).digest for how in active}) == 3


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


# ---- `workload.layers`: some of the MoE layers run, and they do what they do among all.

SEVEN = ("models.0.layers=8", "models.0.moe_layers={first: 1, last: 7}")
ENGINES = ("event", "analytical")


def one_run(folder, *overrides, policy="pred"):
    experiment = tiny(folder, *SEVEN, "workload.batch=[12]", *overrides)
    return next(run for run in prepare(experiment).runs if run.policy.name == policy)


def record(run, traces=None):
    return {name: part for name, part in Simulator(traces).record(run).items() if name not in ("run", "host")}


def unequal_shares(layers=40, experts=32, phases=1):
    """Layers that are the more unequal the deeper they are."""
    logs = np.random.default_rng(5).standard_normal((phases, layers, experts))
    shares = np.exp(np.linspace(0.2, 1.5, layers)[:, None] * logs)
    return shares / shares.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("choose", [lambda shares, n: spread_layers(shares.shape[1], n), representative_layers])
def test_every_number_of_layers_gives_so_many_different_ones(choose):
    for available in (1, 2, 7, 40):
        shares = unequal_shares(available, phases=2)
        numbers = range(1, available + 1)
        assert [np.unique(choose(shares, n)).tolist() == choose(shares, n).tolist() for n in numbers] == [
            True
        ] * available
        assert [len(choose(shares, n)) for n in numbers] == list(numbers)


@pytest.mark.parametrize("layers", [2, 3, 6, 10])
@pytest.mark.parametrize("dies", [5, 8, 32])
def test_the_fullest_die_of_chosen_layers_is_as_full_as_that_of_all(layers, dies):
    """Whatever the number of dies, which the choice does not know."""
    shares = unequal_shares()
    fullest = np.stack([part.sum(axis=1) for part in np.array_split(shares[0], dies, axis=1)]).max(axis=0)
    assert fullest[representative_layers(shares, layers)].mean() == pytest.approx(fullest.mean(), rel=0.06)


def test_layers_of_equal_loads_are_taken_from_every_depth():
    assert representative_layers(np.full((1, 10, 8), 1 / 8), 2).tolist() == [2, 7]


def test_recorded_layers_are_chosen_by_shares_of_prompts_and_decode_steps(tmp_path):
    trace = open_trace(save_npz(tmp_path / "toy.npz", toy_requests(["a/1", "a/2", "b/1"]), [1, 2, 3, 4]), TOY)
    shares = seen_shares(trace)
    assert shares.shape == (2, 4, trace.num_experts)
    assert shares.sum(axis=2) == pytest.approx(np.ones((2, 4)))


def test_the_standard_error_covers_what_the_layers_left_out_would_change(tmp_path):
    whole = record(one_run(tmp_path, "engine=analytical", policy="ep"))["row"]
    assert whole["layers_error"] == 0 and whole["model_layers"] == 7
    one = record(one_run(tmp_path, "engine=analytical", "workload.layers=1", policy="ep"))["row"]
    assert one["layers_error"] is None
    for layers in (4, 5, 6):
        run = one_run(tmp_path, "engine=analytical", f"workload.layers={layers}", policy="ep")
        row = record(run)["row"]
        assert run.summary(row).endswith(f" ms of {layers} of 7 layers") and run.summary(whole).endswith(" ms")
        off = row["decode_step_ns"] / whole["decode_step_ns"] - 1
        assert abs(off) <= 3 * row["layers_error"] and row["model_layers"] == 7


def test_fewer_layers_are_told_wherever_results_are(tmp_path):
    rows = [
        {"system": "dojo", "model": "toy", "policy": policy, "layers": layers, "model_layers": 7, "layers_error": error}
        for policy, layers, error in (("ep", 2, 0.05), ("base", 2, 0.01), ("ep", 1, None), ("ep", 7, 0.0))
    ]
    two, one = result_notes(rows, [])
    assert two.startswith("Only 2 of the 7 MoE layers of toy ran. The throughput and the times of a step are scaled ")
    assert "error is 1.0% (policy base) to 5.0% (policy ep)" in two and two.endswith("uncertain, as only 2 layers ran.")
    assert one.startswith("Only 1 of the 7 MoE layers of toy ran. ") and "One layer cannot tell" in one


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["allo", "pred"])
def test_all_layers_are_the_default_to_the_bit(tmp_path, engine, policy):
    whole = one_run(tmp_path, f"engine={engine}", policy=policy)
    told = one_run(tmp_path, f"engine={engine}", "workload.layers=7", policy=policy)
    assert record(whole) == record(told)
    assert record(whole)["row"]["layers"] == 7


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["allo", "pred"])
def test_some_layers_are_those_of_a_model_that_has_no_others(tmp_path, engine, policy):
    """Two of seven; with room for copies unbounded, as memory counts every layer of the model."""
    free = (f"engine={engine}", "assumptions={set: published, capacity: unbounded}")
    run = one_run(tmp_path, *free, "workload.layers=2", policy=policy)
    some, (first, last) = record(run), Simulator().replay(run).demands.layer_ids
    two = f"models.0.moe_layers={{first: {first}, last: {last}, every: {last - first}}}"
    by_hand = record(one_run(tmp_path, *free, two, policy=policy))
    whole = record(one_run(tmp_path, *free, policy=policy))
    energy = ("energy_per_token_j", "energy_per_token_j_low", "energy_per_token_j_high")
    of_model = (
        *energy,
        "model_layers",
        "layers_error",
        "decode_step_ns",
        "decode_batch_token_ns",
        "tokens_per_s",
    )  # through all layers of the model
    assert {name: value for name, value in some["row"].items() if name not in of_model} == {
        name: value for name, value in by_hand["row"].items() if name not in of_model
    }
    for name in ("decode_step_ns", "decode_batch_token_ns"):
        assert some["row"][name] == pytest.approx(by_hand["row"][name] * 7 / 2)
    assert some["row"]["tokens_per_s"] == pytest.approx(by_hand["row"]["tokens_per_s"] * 2 / 7)
    assert some["dies"] == by_hand["dies"] and some["links"] == by_hand["links"]
    assert some["row"]["layers"] == 2 and some["row"]["decode_ns"] < whole["row"]["decode_ns"]
    assert some["row"]["energy_per_token_j"] == pytest.approx(by_hand["row"]["energy_per_token_j"] * 7 / 2)


@pytest.mark.parametrize("like", [None, "deepseek-v3"])
def test_generated_layers_have_the_routing_that_they_have_among_all(like):
    model = load_model("deepseek-v3")
    spec = SyntheticSpec(like=like, prompt_tokens=2)
    whole, some = generated_traffic(model, spec, 6), generated_traffic(model, spec, 6, layers=4)
    columns = some.layer_ids - 3
    assert len(columns) == 4
    for ours, theirs in zip(
        some.steps(np.arange(6), 3), SomeLayers(whole, columns).steps(np.arange(6), 3), strict=True
    ):
        assert (ours.experts == theirs.experts).all() and ours.iteration == theirs.iteration
    assert some.digest != whole.digest


def test_recorded_layers_are_columns_of_the_demand_of_all(tmp_path):
    file = save_npz(tmp_path / "toy.npz", toy_requests(["a/1", "a/2", "b/1"]), [1, 2, 3, 4])
    trace = open_trace(file, TOY)
    some = some_layers(trace, 2)
    whole, part = build_run_demand(trace, 3, 8, 0, origin_dies=2), build_run_demand(some, 3, 8, 0, origin_dies=2)
    chosen = representative_layers(seen_shares(trace), 2)
    for name in ("tokens", "first_seen", "origins"):
        assert (getattr(part, name) == getattr(whole, name)[:, chosen]).all(), name
    assert part.layer_ids.tolist() == (1 + chosen).tolist() and part.has_prefill == whole.has_prefill
    assert some.digest != trace.digest and some_layers(trace, 4).digest != some.digest
    with pytest.raises(TraceError, match=r"workload\.layers: 5 .*\b4 layers"):
        some_layers(trace, 5)


def test_more_layers_than_the_model_has_are_refused_with_both_numbers(tmp_path):
    with pytest.raises(SpecError, match=r"tiny.yaml.*workload\.layers: 9 .*\btoy\b.* 2 MoE layers"):
        file = tiny_file(tmp_path)
        file.write_text(file.read_text().replace("decode_steps: 4", "decode_steps: 4, layers: 9"))
        load_experiment(file)


def test_a_point_with_more_layers_than_its_model_is_refused_before_anything_runs(tmp_path):
    file = tiny_file(tmp_path)
    file.write_text(f"{file.read_text()}sweep: {{grid: {{workload.layers: [1, 2, 3]}}}}\n")
    with pytest.raises(ArchsimError, match=r"workload\.layers: 3 .*\btoy\b.* 2 MoE layers"):
        select(load_planned(file))


def test_keys_tell_the_layers_and_are_as_before_without(tmp_path):
    whole, some = one_run(tmp_path), one_run(tmp_path, "workload.layers=3")
    assert len({whole.key, some.key, one_run(tmp_path, "workload.layers=4").key}) == 3
    assert whole.demand.key != some.demand.key
    assert "layers" not in whole.demand.key[1]
    told = replace(whole, workload=whole.workload.model_copy(update={"layers": None}))
    assert told.key == whole.key


def test_memory_holds_every_layer_of_the_model(tmp_path):
    whole, some = one_run(tmp_path), one_run(tmp_path, "workload.layers=1")
    fits = [room.fit.demand_bytes.tolist() for room in rooms([whole, some])]
    assert fits[0] == fits[1]


def test_throughput_is_that_of_the_layers_that_ran(tmp_path):
    experiment = tiny(tmp_path, *SEVEN, "workload.batch=[12]", "workload.layers=2")
    row = ar.run(experiment, policy="ep").runs.rows[0]
    assert row["layers"] == 2 and row["decode_steps"] == 4
    assert row["expert_tokens"] == 12 * 2 * 2 * (3 + 4)  # requests · top_k · layers · tokens


# ---- First steps: where answers begin with a template, few experts are active.


def answers(template, steps, requests=40, experts=32, top_k=4):
    """A recorded trace of answers whose first ``template`` steps choose the same experts for all requests."""
    rng = np.random.default_rng(1)
    chosen = rng.permuted(np.tile(np.arange(experts), (requests * (steps + 1), 2, 1)), axis=2)[:, :, :top_k]
    iteration = np.tile(np.arange(steps + 1), requests)
    fixed = (iteration > 0) & (iteration <= template)
    chosen[fixed] = (np.arange(top_k) + iteration[fixed, None, None]) % experts
    offsets = np.arange(requests + 1) * (steps + 1)
    return Trace(
        chosen.astype(np.int16), offsets, iteration.astype(np.int16), np.arange(2, dtype=np.int32), experts, top_k,
        "olmoe-1b-7b", "hand", np.zeros(requests, np.int16), ("hand",),
    )  # fmt: skip


@pytest.mark.parametrize("template", [0, 1, 5, 12])
@pytest.mark.parametrize("counted", [3, 40])
@pytest.mark.parametrize("warmup", [0, 2])
def test_first_steps_of_a_template_are_told_and_no_others(template, counted, warmup):
    source = answers(template, 48)
    active = active_by_step(source, np.arange(40))
    assert len(active) == LOOKED and unsettled_steps(active) == template
    demand = build_run_demand(source, 40, counted, 0)
    workload = WorkloadSpec(trace="hand", batch=40, decode_steps=counted, warmup_steps=warmup)
    run = SimpleNamespace(
        run=SimpleNamespace(workload=workload, batch=40, model=SimpleNamespace(name="a model")), source=source
    )
    said = _first_steps(run, demand.tokens[1:])
    unlike = min(template, counted) - warmup
    assert said.startswith(f"{unlike} of {counted - warmup} decode steps") if unlike > 0 else said == ""
    plain = workload.model_copy(update={"trace": SyntheticTrace(synthetic={"prompt_tokens": 0})})
    run.run.workload = plain
    assert _first_steps(run, demand.tokens[1:]) == ""


def test_too_few_steps_tell_nothing():
    assert unsettled_steps(np.array([4.0, 30.0, 30.0])) == 0 and unsettled_steps(np.zeros(0)) == 0
    assert unsettled_steps(np.full(LOOKED, 8.0)) == 0

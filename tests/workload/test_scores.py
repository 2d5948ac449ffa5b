"""Gate scores in traces: read from every format that carries them, kept by stores, and what routing then uses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.stores import LAYERS, imported
from support.trace_files import TOY, save_npz, toy_requests

from archsim.base.errors import TraceError
from archsim.engine.demand import build_run_demand
from archsim.policies import routing
from archsim.policies.routing import Pass
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.workload import open_trace
from archsim.workload.store import open_store, verify
from archsim.workload.store_writer import merge, slice_entries, write_selection
from archsim.workload.trace import some_layers

NAMES = ["a/0", "a/1", "b/2"]


@pytest.fixture
def requests():
    return toy_requests(NAMES)


@pytest.fixture
def scores(requests):
    """float32[token, layer, k] of all requests, falling by rank."""
    experts = np.concatenate([experts for experts, _ in requests.values()])
    return -np.sort(-np.random.default_rng(1).random(experts.shape, np.float32), axis=2)


@pytest.fixture
def npz(tmp_path, requests, scores):
    return save_npz(tmp_path / "scored.npz", requests, LAYERS, scores=scores, model="toy")


def test_npz_lines_and_stores_carry_scores(tmp_path, npz, requests, scores):
    lines, first = [], 0
    for experts, iteration in requests.values():
        own = scores[first : first + len(experts)]
        first += len(experts)
        prompt = int((iteration == 0).sum())
        line = {"topk_ids": experts.tolist(), "topk_weights": own.tolist(), "prompt_tokens": prompt}
        lines.append(json.dumps(line))
    (tmp_path / "scored.jsonl").write_text("\n".join(lines))
    imported(npz, tmp_path / "store")
    verify(open_store(tmp_path / "store"))
    for source in (npz, tmp_path / "scored.jsonl", tmp_path / "store"):
        trace = open_trace(source, TOY)
        assert np.array_equal(trace.scores, scores) and trace.scores.dtype == np.float32, source


def test_parts_and_merged_stores_keep_scores(tmp_path, npz, scores):
    imported(npz, tmp_path / "store")
    store = open_store(tmp_path / "store")
    write_selection(store, slice_entries(store, 0, 1, []), tmp_path / "one", 1)
    write_selection(store, slice_entries(store, 1, None, []), tmp_path / "others", 1)
    merge([tmp_path / "one", tmp_path / "others"], tmp_path / "both", 1)
    assert np.array_equal(open_trace(tmp_path / "both", TOY).scores, scores)


def test_stores_with_and_without_scores_do_not_mix(tmp_path, npz):
    imported(npz, tmp_path / "scored")
    imported(save_npz(tmp_path / "plain.npz", toy_requests(["c/7"]), LAYERS, request_id=[7]), tmp_path / "plain")
    with pytest.raises(TraceError, match="scores"):
        merge([tmp_path / "scored", tmp_path / "plain"], tmp_path / "both", 1)


def test_scores_are_part_of_a_traces_identity(tmp_path, npz, requests, scores):
    plain = open_trace(save_npz(tmp_path / "plain.npz", requests, LAYERS), TOY)
    other = open_trace(save_npz(tmp_path / "other.npz", requests, LAYERS, scores=scores / 2), TOY)
    assert len({plain.digest, other.digest, open_trace(npz, TOY).digest}) == 3
    assert plain.scores is None


def test_some_layers_have_their_scores(npz, scores):
    some = some_layers(open_trace(npz, TOY), 2)
    (piece,) = some.steps(np.array([0]), 0)
    assert np.array_equal(piece.scores, scores[: len(piece.request), some.columns])


@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda s: s[..., :1], "shape"), (lambda s: -s, "finite scores"), (lambda s: s * np.nan, "finite scores")],
)
def test_bad_scores_are_refused(tmp_path, requests, scores, change, told):
    file = save_npz(tmp_path / "bad.npz", requests, LAYERS, scores=change(scores))
    with pytest.raises(TraceError, match=f"bad.npz: scores: .*{told}"):
        open_trace(file, TOY)


@pytest.mark.parametrize(("name", "rule"), [
    ("capacity_drop", {"name": "drop", "gamma": 0.5}), ("capacity_reroute", {"name": "reroute", "gamma": 0.5}),
    ("expert_drop", {"name": "expert_drop", "share": 0.5}),
])
def test_lost_mass_is_that_of_recorded_scores(npz, name, rule):
    """Scores of 1 for rank 0 and 0 for others: what is lost is the share of tokens that lose their first expert."""
    recorded = open_trace(npz, TOY)
    first_only = np.zeros_like(recorded.scores)
    first_only[:, :, 0] = 1.0
    trace = replace(recorded, scores=first_only)
    spec = PolicySpec(name="own", **(dict(PRESETS[name]) | {"routing": rule | {"pass_tokens": 100}}))
    demand = build_run_demand(trace, 3, 3, 0, shaped_by=spec)
    assert demand.lost_mass.max() > 0
    tokens = demand.tokens_of_step
    whole = demand.lost_mass * tokens[:, None]
    assert whole == pytest.approx(np.rint(whole))


@given(seed=st.integers(0, 2**16), tokens=st.integers(1, 60), gamma=st.floats(0.3, 2.0))
@settings(max_examples=examples(40))
def test_no_rule_executes_more_than_was_chosen_or_a_worse_pair_first(seed, tokens, gamma):
    rng = np.random.default_rng(seed)
    experts = rng.random((tokens, 8)).argsort(axis=1)[:, :3].astype(np.int16)
    scores = rng.random((tokens, 3))
    batch = Pass(experts, 8, (0, 0, seed), scores)
    dropped = routing.drop_rule(batch, gamma)
    assert dropped.chosen_mass == pytest.approx(scores.sum())
    assert dropped.executed_mass == pytest.approx(scores[dropped.experts >= 0].sum())
    for expert in range(8):
        chosen, kept = experts == expert, dropped.experts == expert
        lost = chosen & ~kept
        assert not lost.any() or scores[kept].min(initial=np.inf) >= scores[lost].max()
    again = routing.reroute_rule(batch, gamma, rounds=2)
    assert again.executed_mass <= again.chosen_mass * (1 + 1e-12)
    ids = np.sort(again.experts, axis=1)
    assert not ((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)).any()

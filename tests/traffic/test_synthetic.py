"""Generated traffic: a function of its parameters alone, and statistics like those of recorded routing."""

import numpy as np
import pytest
from pydantic import ValidationError
from support.examples import sampled

from archsim.base.errors import TraceError
from archsim.specs.library import load_model
from archsim.specs.serving import RoutingSpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic import statistics
from archsim.traffic.imbalance import measure
from archsim.traffic.synthetic import SyntheticTraffic, alias_table, popularity, skew_of_layers, turn_shares
from archsim.traffic.traffic_presets import generated_traffic


def traffic(model="olmoe-1b-7b", largest_batch=64, **parameters):
    return SyntheticTraffic(load_model(model), SyntheticSpec(**parameters), largest_batch)


def routing(source, requests, decode_steps):
    """int16[request, token, layer, k] of requests (a list), prompt and decode tokens in one row."""
    tokens = [[] for _ in requests]
    for piece in source.steps(np.array(requests, np.int64), decode_steps):
        for position, experts in zip(piece.request, piece.experts, strict=True):
            tokens[position].append(experts)
    return np.array(tokens)


def shared_fraction(one, other):
    """Mean fraction of the experts of a token that another token has too. Arrays [..., k]."""
    return (one[..., :, None] == other[..., None, :]).any(axis=-1).mean()


def test_seeds_requests_layers_and_tokens_differ():
    tokens = routing(traffic(stickiness=0), range(6), 6)
    assert (tokens != routing(traffic(seed=1, stickiness=0), range(6), 6)).mean() > 0.9
    for axis in range(3):
        assert (np.diff(tokens, axis=axis) != 0).mean() > 0.9


def test_lengths():
    source = traffic(prompt_tokens=3, decode_steps=5)
    assert [(piece.iteration, len(piece.request)) for piece in source.steps(np.arange(4), 9)] == [
        (0, 12),
        *((t, 4) for t in range(1, 6)),
    ]
    assert [piece.iteration for piece in source.steps(np.arange(4), 2)] == [0, 1, 2]
    assert [piece.iteration for piece in traffic(prompt_tokens=0).steps(np.arange(4), 2)] == [1, 2]


def test_number_of_requests():
    assert traffic(largest_batch=64).requests == 64
    assert traffic(largest_batch=64, requests=7).requests == 7


def test_digest_and_label_tell_parameters_apart():
    changes = [
        {},
        {"seed": 1},
        {"prompt_tokens": 2},
        {"popularity_skew": 0.5},
        {"request_taste": 0.5},
        {"stickiness": 0.5},
        {"decode_steps": 3},
        {"requests": 9},
        {"model": "mixtral-8x7b"},
    ]
    assert len({traffic(**change).digest for change in changes}) == len(changes)
    assert traffic().digest == traffic().digest
    assert len({traffic(**change).label for change in changes[:6]}) == 6


def test_alias_table_draws_the_popularity():
    shares = popularity(3, np.arange(5, dtype=np.int32), 60, 1.5)
    assert shares.sum(axis=1) == pytest.approx(1)
    table = alias_table(shares)
    limit, other = table >> np.uint64(16), (table & np.uint64(0xFFFF)).astype(int)
    for layer in range(5):
        drawn = limit[layer].astype(float)
        np.add.at(drawn, other[layer], (1 << 20) - limit[layer].astype(float))
        assert drawn / (60 << 20) == pytest.approx(shares[layer], abs=1e-6)


def test_popularity_is_log_normal_and_differs_between_layers():
    log = np.log(popularity(0, np.arange(40, dtype=np.int32), 512, 0.7))
    assert log.std(axis=1).mean() == pytest.approx(0.7, rel=0.02)
    assert abs(np.corrcoef(log)[np.triu_indices(40, 1)]).mean() < 0.05
    assert (popularity(0, np.arange(3, dtype=np.int32), 64, 0.0) == 1 / 64).all()


@pytest.fixture(scope="module")
def deepseek():
    """int16[request, token, layer, k]: 1500 requests of DeepSeek-V3, 2 prompt tokens, 38 decode steps, 10 layers."""
    model = load_model("deepseek-v3")
    model = model.model_copy(update={"moe_layers": model.moe_layers.model_copy(update={"last": 12})})
    return routing(SyntheticTraffic(model, SyntheticSpec(prompt_tokens=2), 1500), range(1500), 38)


def test_load_is_as_skewed_as_recorded(deepseek, shared):
    with np.load(shared / "data/traces/deepseek-v3-r1/sglang_logical_count.npz") as recorded:
        decode = recorded["counts"][recorded["phase"] == 1]
    generated = np.stack([np.bincount(deepseek[:, :, layer].ravel(), minlength=256) for layer in range(10)])
    for statistic in (_largest_over_mean, _variation):
        assert statistic(decode).min() < statistic(generated).min()
        assert statistic(generated).max() < statistic(decode).max()
        assert np.median(statistic(generated)) == pytest.approx(np.median(statistic(decode)), rel=0.15)


def _largest_over_mean(counts):
    return counts.max(axis=-1) / counts.mean(axis=-1)


def _variation(counts):
    return counts.std(axis=-1) / counts.mean(axis=-1)


def test_requests_have_tastes(deepseek):
    far = shared_fraction(deepseek[:, 0], deepseek[:, 39])
    other = shared_fraction(deepseek[:-1, 0], deepseek[1:, 39])
    assert far / other == pytest.approx(1.5, rel=0.05)
    plain = routing(traffic(request_taste=0, prompt_tokens=1, stickiness=0), range(400), 9)
    assert shared_fraction(plain[:, 0], plain[:, 9]) == pytest.approx(
        shared_fraction(plain[:-1, 0], plain[1:, 9]), rel=0.05
    )


def test_experts_stay(deepseek):
    far = shared_fraction(deepseek[:, 0], deepseek[:, 39])
    near = shared_fraction(deepseek[:, 20], deepseek[:, 21])
    assert (near - far) / (1 - far) == pytest.approx(0.15, abs=0.02)
    fixed = routing(traffic(stickiness=1), range(5), 4)
    assert (fixed == fixed[:, :1]).all()


def decode_loads(source, step, layer=0):
    """Tokens of every expert at a decode step."""
    (piece,) = (each for each in source.steps(np.arange(source.requests), step) if each.iteration == step)
    return np.bincount(piece.experts[:, layer].ravel(), minlength=source.num_experts)


def test_popularity_drifts_and_keeps_its_spread():
    shape = {"prompt_tokens": 0, "popularity_skew": 1.0, "request_taste": 0.0, "stickiness": 0.0}
    still, moving = (traffic(largest_batch=3000, drift=drift, **shape) for drift in (0, 0.3))
    begin = decode_loads(still, 1)
    assert (decode_loads(moving, 1) != begin).any()
    agreement = [np.corrcoef(begin, decode_loads(each, 5))[0, 1] for each in (still, moving)]
    assert agreement[0] > 0.9 > 0.5 > agreement[1]  # cos(1.5) = 0.07
    one, other = (np.random.default_rng(seed).dirichlet(np.ones(64), 3) for seed in (1, 2))
    assert turn_shares(one, other, 0.0) == pytest.approx(one) and turn_shares(one, other, np.pi / 2) == pytest.approx(
        other
    )


def test_a_switch_of_subject_changes_all_from_then_on_and_nothing_before():
    shape = {"prompt_tokens": 0, "popularity_skew": 1.0, "stickiness": 0.0}
    plain, switched = (traffic(largest_batch=2000, switch_step=step, **shape) for step in (None, 3))
    every, other = (routing(each, range(50), 5) for each in (plain, switched))
    assert (every[:, :2] == other[:, :2]).all() and shared_fraction(every[:, 2:], other[:, 2:]) < 0.4
    before, after = decode_loads(switched, 2), decode_loads(switched, 3)
    assert np.corrcoef(before, after)[0, 1] < 0.5 < 0.9 < np.corrcoef(after, decode_loads(switched, 5))[0, 1]
    assert "switch=3" in switched.label and plain.digest != switched.digest


def test_layers_of_other_depth_may_be_skewed_otherwise():
    """Parts of equal depth; some evenly spread layers have the skews that they have among all."""
    ids = np.arange(3, 61)
    skews = skew_of_layers((0.0, 2.0), ids)[:, 0]
    assert skews[:29].max() == 0 and skews[29:].min() == 2
    assert skew_of_layers((0.0, 2.0), ids[[0, 19, 38, 57]])[:, 0].tolist() == [0, 0, 2, 2]
    shares = popularity(0, ids, 64, skew_of_layers((0.0, 2.0), ids))
    assert np.allclose(shares[:29], 1 / 64) and shares[29:].max(axis=1).min() > 3 / 64
    assert SyntheticSpec(popularity_skew=[0.3, 1.5]).popularity_skew == (0.3, 1.5)


@pytest.mark.parametrize(("imbalance", "wanted"), sampled([
    ({"max_over_mean": 1.3, "ranks": 8}, (1.3, 1.3)),
    ({"max_over_min": 1.5, "ranks": 4}, (1.5, 1.5)),
    ({"hottest_expert": (2.5, 7)}, (2.5, 7.0)),
    ({"eplb_gain": 1.2, "ranks": 8, "slots": 1}, (1.2, 1.2)),
], lambda case: {"hottest_expert", "eplb_gain"} & set(case[0])))  # fmt: skip
def test_popularity_is_fitted_to_a_published_imbalance(imbalance, wanted):
    """Of other tokens than those of the fit, within 2 %; every layer within 8 %. Its parts may differ by depth."""
    source = generated_traffic(load_model("olmoe-1b-7b"), SyntheticSpec(imbalance=imbalance, prompt_tokens=0), 16384)
    loads = np.zeros((16, 64))
    for piece in source.steps(np.arange(16384), 3):
        if piece.iteration == 3:
            loads += statistics.loads_of(piece.experts, 64)
    (kind, *_), ranks = imbalance, imbalance.get("ranks", 1)
    found = measure(loads, kind, ranks, 64 + ranks * imbalance.get("slots", 0))
    for half, value in zip((found[:8], found[8:]), wanted, strict=True):
        assert half.mean() == pytest.approx(value, rel=0.02) and half == pytest.approx([value] * 8, rel=0.08)
    assert kind in source.label


@pytest.mark.parametrize(("imbalance", "problem"), [
    ({"max_over_mean": 1.3}, "is missing"),
    ({"hottest_expert": 3, "ranks": 8}, "not of hottest_expert"),
    ({"max_over_mean": 2, "max_over_min": 3, "ranks": 8}, "expected one of"),
    ({"max_over_min": 3, "ranks": 8, "slots": 1}, "are those of eplb_gain"),
])  # fmt: skip
def test_an_imbalance_has_one_figure(imbalance, problem):
    with pytest.raises(ValidationError, match=problem):
        SyntheticSpec(imbalance=imbalance)


def test_what_cannot_be_fitted_is_refused():
    """Top-8 of 64: an expert in every token has 8 times the mean."""
    model = load_model("olmoe-1b-7b")
    with pytest.raises(TraceError, match="hottest_expert 9 in layer 0: .*64 experts.*top-8"):
        generated_traffic(model, SyntheticSpec(imbalance={"hottest_expert": 9}), 8)
    with pytest.raises(TraceError, match="64 experts .*7 ranks"):
        generated_traffic(model, SyntheticSpec(imbalance={"max_over_mean": 2, "ranks": 7}), 8)
    with pytest.raises(ValidationError, match="Give one of them"):
        SyntheticSpec(imbalance={"hottest_expert": 3}, popularity_skew=0.7)


def test_a_specification_that_is_written_out_is_read_again():
    """As a sweep of deployments hands it to the process of a run: a default must not become a second choice."""
    for given in ({}, {"imbalance": {"max_over_mean": 1.5, "ranks": 8}}, {"like": "model", "phase": "start"}):
        spec = SyntheticSpec(**given)
        assert SyntheticSpec.model_validate(spec.model_dump(mode="json")) == spec


def rank_loads(source, ranks, step=2):
    """Pairs [rank, layer, expert] of a step; ranks have equal parts of the batch, in its order."""
    found = np.zeros((ranks, len(source.layer_ids), source.num_experts))
    for piece in source.steps(np.arange(source.requests), step):
        for rank in range(ranks if piece.iteration == step else 0):
            own = piece.experts[piece.request * ranks // source.requests == rank]
            found[rank] += statistics.loads_of(own, source.num_experts)
    return found


CHUNKED = {"prompt_tokens": 0, "largest_batch": 4096}


def test_ranks_that_hold_fewer_prompts_differ_more_and_many_prompts_are_as_requests_that_decode():
    def spread(loads):
        return (loads.std(axis=0) / loads.mean(axis=0).clip(1)).mean()

    loads = {chunk: rank_loads(traffic(chunk_tokens=chunk, **CHUNKED), 8) for chunk in (None, 1, 16, 256, 512)}
    assert all(each.sum(axis=(0, 2)) == pytest.approx(4096 * 8) for each in loads.values())  # every token has top_k
    spreads = {chunk: spread(each) for chunk, each in loads.items()}
    assert spreads[1] < spreads[16] < spreads[256] < spreads[512] and spreads[512] > 4 * spreads[1]
    assert spreads[1] == pytest.approx(spreads[None], rel=0.1)
    assert np.corrcoef(loads[1].sum(axis=0).ravel(), loads[None].sum(axis=0).ravel())[0, 1] > 0.98


def test_every_step_has_prompts_of_its_own_whatever_batch_they_are_drawn_in():
    source = traffic(chunk_tokens=8, request_taste=1, **CHUNKED)
    tokens = routing(source, range(40), 2)
    assert (tokens[:20] == routing(source, range(20), 2)).all()
    assert (tokens[:, 0] != tokens[:, 1]).mean() > 0.8
    begins = np.arange(0, 32, 8)
    same, other = (shared_fraction(tokens[at, 0], tokens[at + 4, 0]) for at in (begins, begins + 4))
    assert same > 1.5 * other  # 4 tokens on in one prompt, and in the next
    assert source.digest != traffic(chunk_tokens=16, request_taste=1, **CHUNKED).digest


@pytest.mark.parametrize(("given", "problem"), [
    ({}, "prompts, as many as the batch"),
    ({"prompt_tokens": 0, "requests": 9}, "prompts, as many as the batch"),
    ({"prompt_tokens": 0, "like": "model"}, "the preset has its own"),
])  # fmt: skip
def test_chunks_are_of_prompts_that_fill_the_batch(given, problem):
    with pytest.raises(ValidationError, match=problem):
        SyntheticSpec(chunk_tokens=8, **given)
    with pytest.raises(ValidationError, match="are themselves prompts"):
        RoutingSpec(synthetic={"chunk_tokens": 8, "prompt_tokens": 0})
    assert "chunk_tokens" not in SyntheticSpec(**given).model_dump()  # runs of before keep their names

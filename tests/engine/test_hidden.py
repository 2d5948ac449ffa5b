"""How many hidden vectors are sent: laws, and the expected number against random routing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_runs import engine_of, policy, small_model, small_system, traffic

from archsim.engine import demand as run_demand
from archsim.engine.demand import build_run_demand
from archsim.engine.moves import Sizes, expected_ranks, send_once, send_selections, send_tokens, vector_bytes
from archsim.policies.allocation import Plan
from archsim.specs.library import load_assumptions
from archsim.workload.demand import Routing

NO_HOPS = 1 - np.eye(4, dtype=np.int64)


def drawn(seed, tokens, experts, top_k, dies, split):
    """(plan, origins, routing) of random tokens; ``split``: an expert's tokens may run on several dies."""
    rng = np.random.default_rng(seed)
    routed = np.argsort(rng.random((tokens, experts)) ** rng.uniform(1, 3, experts), axis=1)[:, :top_k].astype(np.int16)
    die = rng.integers(0, dies, tokens).astype(np.int32)
    origins = np.zeros((dies, experts), np.int32)
    np.add.at(origins, (die[:, None], routed), 1)
    rows = []
    for expert, total in enumerate(origins.sum(axis=0)):
        cut = int(rng.integers(0, total + 1)) if split else 0
        places = rng.permutation(dies)[:2]
        rows += [(expert, place, part) for place, part in zip(places, (total - cut, cut), strict=True) if part]
    plan = Plan(*(np.array(column, np.int32) for column in zip(*rows, strict=True)))
    return plan, origins, Routing(routed, die)


def token_by_token(routing, target, dies):
    """int64[die, target]: tokens that a die sends to a target if each is sent once."""
    sent = np.zeros((dies, dies), np.int64)
    for experts, die in zip(routing.experts, routing.die, strict=True):
        sent[die, np.unique(target[experts])] += 1
    return sent


CASES = st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6), st.integers(2, 4)


@settings(max_examples=examples(60))
@given(*CASES)
def test_each_die_is_sent_a_vector_once(seed, tokens, top_k, dies):
    """Where every expert runs on one die, as counted token by token."""
    plan, origins, routing = drawn(seed, tokens, 8, top_k, dies, split=False)
    sizes, hops = Sizes(8, top_k), NO_HOPS[:dies, :dies]
    target = np.zeros(8, np.int64)
    target[plan.expert] = plan.die
    assert (send_once(plan, origins, routing, sizes, hops) == token_by_token(routing, target, dies)).all()


@settings(max_examples=examples(100))
@given(*CASES, st.booleans(), st.sampled_from([(1, 1), (4, 2)]))
def test_fewer_are_sent_once_than_for_every_expert(seed, tokens, top_k, dies, known, groups):
    plan, origins, routing = drawn(seed, tokens, 8, top_k, dies, split=True)
    sizes, hops = Sizes(8, top_k, *(groups if known else (1, 1))), NO_HOPS[:dies, :dies]
    every = send_selections(plan, origins, routing, sizes, hops)
    once = send_once(plan, origins, routing if known else None, sizes, hops)
    assert every.sum() == origins.sum()
    assert (once <= every + 1e-9).all() and (once * top_k >= every - 1e-9).all()
    if top_k == 1:
        assert once == pytest.approx(every)


def test_the_expected_number_is_the_mean_of_random_routing():
    for sizes, ranks, published in (
        (Sizes(256, 8), 25, 1.13), (Sizes(256, 8), 8, 1.51), (Sizes(256, 8, groups=8, top_groups=4), 8, 2.20)
    ):
        rng = np.random.default_rng(ranks)
        score = rng.random((20_000, sizes.experts))
        chosen = rng.random((20_000, sizes.groups)).argsort(axis=1)[:, : sizes.top_groups]
        taken = np.zeros((20_000, sizes.groups), bool)
        np.put_along_axis(taken, chosen, True, axis=1)
        score[~np.repeat(taken, sizes.experts // sizes.groups, axis=1)] = 2.0
        ranks_of = score.argpartition(sizes.top_k, axis=1)[:, : sizes.top_k] * ranks // sizes.experts
        ranks_of.sort(axis=1)
        distinct = 1 + np.count_nonzero(np.diff(ranks_of, axis=1), axis=1)
        assert expected_ranks(sizes, ranks) == pytest.approx(distinct.mean(), rel=0.005)
        assert sizes.top_k / expected_ranks(sizes, ranks) == pytest.approx(published, abs=0.01)


def test_skewed_experts_are_sent_less_often():
    """Counts of skewed routing alone: within 3 % of the count, token by token."""
    plan, origins, routing = drawn(3, 20_000, 32, 6, 4, split=False)
    assert origins.sum(axis=0).max() > 3 * origins.sum(axis=0).min()
    sizes = Sizes(32, 6)
    known, expected = (send_once(plan, origins, each, sizes, NO_HOPS) for each in (routing, None))
    assert expected.sum() == pytest.approx(known.sum(), rel=0.03)
    assert known.sum() < 0.7 * send_tokens(plan.expert, plan.die, plan.tokens, origins, NO_HOPS).sum()


@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_bytes_are_those_of_the_vectors(contention):
    """What a run moves is its (token, die) pairs times the bytes of a vector, there and back."""
    assumptions = load_assumptions("physical", dispatch="per_rank", combine="bf16", contention=contention)
    system, model, spec = small_system(), small_model(), policy("ep")
    run = engine_of(system, model, spec, assumptions)
    run.demands = demand = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    home, pairs = run.engine.placement.home, 0
    for layer, step in demand:
        sent = token_by_token(step.routing, home[run.engine.rows[layer]], system.dies)
        pairs += sent.sum() - np.trace(sent)
    n_bytes = vector_bytes(model.hidden, system.compute.dtype, "bf16")
    assert run.run().tally.moved_bytes.tolist() == [pairs * n_bytes.dispatch, pairs * n_bytes.combine]
    assert pairs > 0


def test_single_tokens_are_kept_where_they_are_asked_for(monkeypatch):
    model, system = small_model(), small_system()
    unasked = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies)
    assert all(step.routing is None for _, step in unasked)
    demand = build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    for _, step in demand:
        counted = np.zeros_like(step.origins)
        np.add.at(counted, (step.routing.die[:, None], step.routing.experts), 1)
        assert (counted == step.origins).all()
    monkeypatch.setattr(run_demand, "MOST_ROUTED", 700)  # between the prefill's 1,200 tokens and the 600 of decode
    known = {
        step.step: step.routing is not None
        for _, step in build_run_demand(traffic(model), 600, 3, 0, origin_dies=system.dies, routing=True)
    }
    assert known[0] is False and known[1] is True

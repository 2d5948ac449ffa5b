"""Laws of every preset, on random demands and placements: what is conserved, and no load beats its ceilings."""

import itertools
import pickle
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.small_runs import (
    BATCH,
    DOJO_COSTS,
    SMALL_COSTS,
    demand_of,
    engine_of,
    policy,
    replay,
    small_model,
    small_system,
    step_view,
    traffic,
)

from archsim import balancers
from archsim.base.errors import ArchsimError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.ceilings import ceilings
from archsim.policies.allocation import (
    ChargedRates,
    Plan,
    StepView,
    even,
    home,
    isca26,
    lplb,
    nearest,
    paper,
    static,
    take_by_hash,
)
from archsim.policies.capacity import drop_pairs, reroute_pairs
from archsim.policies.copy_aware import copy_aware
from archsim.policies.libra import harmoeny, libra
from archsim.policies.linear_programme import lp
from archsim.policies.placement import Placement, linear, moves_between
from archsim.policies.rebalancing import History
from archsim.policies.registry import build_policy
from archsim.policies.replication import LayerView, look_ahead
from archsim.policies.routing import Pass
from archsim.policies.seen_routing import SeenRouting
from archsim.policies.waterfill import _drawn_of_visited, waterfill_rule
from archsim.specs.library import load_assumptions
from archsim.specs.policies import NEUTRAL, PRESETS
from microarch.fabric.grid import build_mesh

MESH = build_mesh(3, 2)
DIES, EXPERTS, LAYERS = 6, 14, 3
seeds = st.integers(0, 10**6)


def random_holders(rng):
    holds = rng.random((EXPERTS, DIES)) < rng.uniform(0, 0.6)
    holds[np.arange(EXPERTS), rng.integers(DIES, size=EXPERTS)] = True
    return Placement.of_holds(holds[None], holds.argmax(axis=1)[None])


def random_view(rng, placement=None):
    """A step of tokens that live on dies; popularity is skewed, and some experts have none."""
    popularity = rng.dirichlet(np.full(EXPERTS, 0.4))
    origins = rng.multinomial(rng.integers(0, 400, DIES), popularity).astype(np.int32)
    tokens = origins.sum(axis=0, dtype=np.int32)
    order = rng.permutation(np.flatnonzero(tokens)).astype(np.int16)
    first_seen = np.concatenate([order, np.full(EXPERTS - len(order), -1, np.int16)])
    copied = np.zeros((EXPERTS, DIES), np.int8)
    placement = placement or random_holders(rng)
    return step_view(tokens, first_seen, None, copied, MESH.hops, SMALL_COSTS, placement)._replace(origins=origins)


def random_tokens(rng, layers):
    """60 tokens of two subjects, top-2."""
    experts = np.argsort(rng.random((60, layers, EXPERTS)), axis=2)[:, :, :2].astype(np.int16)
    die, zeros = rng.integers(DIES, size=60), np.zeros(60, np.int32)
    request = np.arange(60, dtype=np.int32) % 4
    return SeenRouting(
        experts, die, request, zeros, zeros > 0, DIES, EXPERTS, np.array([0, 1, 0, 1], np.int16), ("a", "b")
    )


def loads(plan):
    given = np.zeros((EXPERTS, DIES), np.int64)
    np.add.at(given, (plan.expert, plan.die), plan.tokens)
    return given


class Rule(NamedTuple):
    """An allocation; ``holders``: to holders of an expert alone."""

    allocate: Callable[[StepView], Plan]
    holders: bool = False


AMONG_HOLDERS = {"home", "even", "nearest", "static", "lplb", "libra"}
RULES = {name: Rule(build_policy(policy(name)).allocate, parts["allocation"] in AMONG_HOLDERS)
         for name, parts in PRESETS.items()}  # fmt: skip
RULES |= {
    f"rule {rule.__name__}": Rule(rule, holders=True) for rule in (home, even, nearest, static, lplb, take_by_hash)
}
RULES |= {f"rule {rule.__name__}": Rule(rule) for rule in (isca26, paper, lp, harmoeny, copy_aware)}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=examples(15, 4))
@given(seed=seeds)
def test_every_pair_is_executed_once_and_no_load_beats_its_ceilings(rule, seed):
    """Every allocation joins by a row of ``RULES``. Experts are in order, no die twice, and again it is the same."""
    view = random_view(np.random.default_rng(seed))
    plan, again = rule.allocate(view), rule.allocate(view)
    given = loads(plan)
    assert (given.sum(axis=1) == view.tokens).all() and (plan.tokens > 0).all()
    assert (np.diff(plan.expert) >= 0).all() and plan.expert.dtype == plan.die.dtype == plan.tokens.dtype == np.int32
    assert len(set(zip(plan.expert.tolist(), plan.die.tolist(), strict=True))) == len(plan.expert)
    assert all((one == other).all() for one, other in zip(plan[:3], again[:3], strict=True))
    assert plan.effort.operations == again.effort.operations
    least = ceilings(view.tokens, view.holders, int(view.holders.sum()))
    most = given.sum(axis=0).max()
    slack = 1e-9 * max(1.0, most)
    assert least.perfect <= least.slots + slack and least.slots <= least.placement + slack
    assert least.perfect <= most + slack
    if rule.holders:
        assert not given[~view.holders].any()
        assert least.placement <= most + slack


@pytest.mark.parametrize("name", [name for name, parts in PRESETS.items() if parts["rebalancing"] != "none"])
@settings(max_examples=10)
@given(seed=seeds)
def test_rebalancing_conserves_experts_slots_and_bytes(name, seed):
    rng = np.random.default_rng(seed)
    built = build_policy(policy(name))
    placement = built.place(LAYERS, EXPERTS, DIES)
    rows = np.sort(rng.choice(LAYERS, 2, replace=False))
    tokens = rng.multinomial(500, rng.dirichlet(np.full(EXPERTS, 0.3)), (4, len(rows))).astype(np.int32)
    history = History(
        rows, tokens, np.zeros((4, len(rows), DIES), np.int64), np.zeros((4, len(rows))), SMALL_COSTS,
        seen=random_tokens(rng, len(rows)),
    )  # fmt: skip
    new, effort = built.rebalancing.rule(history, placement)
    assert new.holds.any(axis=2).all()
    others = np.setdiff1d(np.arange(LAYERS), rows)
    assert (new.holds[others] == placement.holds[others]).all()
    assert effort.operations > 0 and effort.statistics_bytes > 0
    if PRESETS[name]["rebalancing"] == "eplb":
        assert (new.layer_slots == placement.layer_slots).all()
    if PRESETS[name]["rebalancing"] in ("remap", "separate", "affine", "by_task"):
        assert (new.holds.sum(axis=2) == 1).all()
    if PRESETS[name]["rebalancing"] == "craft":
        assert new.layer_slots.sum() <= LAYERS * EXPERTS + 8 * DIES
    moves = moves_between(placement, new, 7, MESH.hops)
    kept = np.count_nonzero(placement.holds & new.holds)
    assert moves["bytes"].sum() == 7 * (np.count_nonzero(new.holds) - kept)


@settings(max_examples=15)
@given(seeds)
def test_eplb_places_as_the_public_function(seed):
    rng = np.random.default_rng(seed)
    built = build_policy(policy("eplb"))
    placement = built.place(1, EXPERTS, DIES)
    tokens = rng.multinomial(900, rng.dirichlet(np.full(EXPERTS, 0.5)), (2, 1)).astype(np.int32)
    history = History(np.arange(1), tokens, np.zeros((2, 1, DIES), np.int64), np.zeros((2, 1)))
    new = built.rebalancing.rule(history, placement).placement
    slots = int(placement.layer_slots.sum())
    known = balancers.eplb(tokens.sum(axis=0), slots, 1, 1, DIES).physical_to_logical[0]
    holds = np.zeros((EXPERTS, DIES), bool)
    holds[known, np.arange(slots) // (slots // DIES)] = True
    assert slots % DIES == 0 and (new.holds[0] == holds).all()


@settings(max_examples=15)
@given(seeds)
def test_shares_among_holders(seed):
    """LPLB is at its bound but for rounding; even splits differ by one token; no die passes by a nearer holder."""
    rng = np.random.default_rng(seed)
    view = random_view(rng)
    bound = balancers.lplb(view.tokens, [np.flatnonzero(row).tolist() for row in view.holders], DIES).max_load
    assert loads(lplb(view)).sum(axis=0).max() <= bound + EXPERTS
    shared = loads(even(view))
    assert all(np.ptp(shared[e][view.holders[e]]) <= 1 for e in range(EXPERTS))
    own = np.where(view.holders, view.origins.T, 0)
    assert all((loads(rule(view)) >= own).all() for rule in (nearest, static))


def test_a_hash_spreads_tokens_as_chance_does():
    """No holder of 9,000 tokens is 5 deviations from its share, and another iteration draws anew."""
    view = random_view(np.random.default_rng(0))
    everywhere = np.ones(view.holders.shape, bool)
    view = view._replace(tokens=np.full(EXPERTS, 9_000, np.int32), holders=everywhere)
    first, then = (loads(take_by_hash(view._replace(step=step))) for step in (1, 2))
    deviation = np.sqrt(9_000 * (DIES - 1)) / DIES
    assert np.abs(first - 9_000 / DIES).max() < 5 * deviation and (first != then).any()
    assert first.std() == pytest.approx(deviation, rel=0.3)


@settings(max_examples=15)
@given(seeds)
def test_moves_of_libra_and_harmoeny_are_those_of_the_public_functions(seed):
    rng = np.random.default_rng(seed)
    view = random_view(rng, Placement.of_homes(np.arange(EXPERTS) % DIES, 1, DIES))
    wanted = view.origins.astype(np.int64)
    known = balancers.harmoeny(wanted, DIES, 20, home=view.home).load
    assert (loads(harmoeny(view, threshold=20)).sum(axis=0) == known).all()
    assert (loads(libra(view)).sum(axis=0) == np.bincount(view.home, view.tokens, DIES)).all()  # no other holder


@pytest.mark.parametrize("name", [name for name, parts in PRESETS.items() if parts["replication"] != "none"])
@settings(max_examples=10)
@given(seed=seeds)
def test_replicas_fit_their_slots(name, seed):
    rng = np.random.default_rng(seed)
    view, built = random_view(rng), build_policy(policy(name))
    expected = rng.integers(0, 50, EXPERTS).astype(np.float32)
    layer = LayerView(view.origins, expected, view.home, view.holders, 1, 2)
    replicas = built.replication.rule(layer)
    assert not (replicas.holds & view.holders).any()
    assert replicas.holds.sum(axis=0).max() <= built.replication.slots
    plain, with_room = (build_policy(policy("ep")), built)
    more = with_room.place(LAYERS, EXPERTS, DIES).slots - plain.place(LAYERS, EXPERTS, DIES).slots
    assert (more == 2 * built.replication.slots).all()


@settings(max_examples=10)
@given(seeds, st.sampled_from([0.0, 0.5, 1.0]))
def test_a_look_ahead_is_as_accurate_as_it_says(seed, accuracy):
    rng = np.random.default_rng(seed)
    origins = rng.multinomial(4000, rng.dirichlet(np.ones(EXPERTS)), DIES)
    predicted = look_ahead(origins, accuracy, np.random.default_rng(seed))
    assert (predicted.sum(axis=1) == origins.sum(axis=1)).all()
    if accuracy == 1.0:
        assert (predicted == origins).all()


def _pass(rng, tokens=60, top_k=3):
    keys = rng.random((tokens, EXPERTS)) * rng.random(EXPERTS)
    return Pass(np.argsort(-keys, axis=1)[:, :top_k].astype(np.int16), EXPERTS, (1, 0, 0))


@pytest.mark.parametrize("name", [name for name, parts in PRESETS.items() if parts["routing"] != NEUTRAL["routing"]])
@settings(max_examples=10)
@given(seed=seeds)
def test_routing_executes_each_pair_once_and_within_capacity(name, seed):
    rng = np.random.default_rng(seed)
    batch, rule = _pass(rng), build_policy(policy(name)).routing.rule
    done = rule(batch)
    executed = [row[row >= 0].tolist() for row in done.experts]
    assert all(len(set(row)) == len(row) <= 3 for row in executed) and executed
    assert 0 <= done.executed_mass <= done.chosen_mass * (1 + 1e-12)
    load = np.bincount(done.experts[done.experts >= 0], minlength=EXPERTS)
    if name.startswith("capacity"):
        assert load.max() <= balancers.expert_capacity(1.5, 60, 3, EXPERTS)
    else:
        chosen = np.bincount(batch.experts.ravel(), minlength=EXPERTS)
        assert (np.flatnonzero(load != chosen) == [e for e in balancers.drop_experts(chosen, 1) if chosen[e]]).all()


@settings(max_examples=25)
@given(seeds)
def test_pairs_are_dropped_and_rerouted_as_by_the_public_functions(seed):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(EXPERTS, 0.3), 40)
    order = np.argsort(-scores, axis=1, kind="stable")
    top, capacity = order[:, :3], int(rng.integers(1, 12))
    for keep, rank_by in (("score", -np.take_along_axis(scores, top, 1)), ("order", np.arange(40)[:, None] + 0 * top)):
        kept = drop_pairs(top.astype(np.int16), rank_by, capacity)
        dense = np.zeros(scores.shape, bool)
        np.put_along_axis(dense, top, kept, axis=1)
        assert (dense == balancers.drop(scores, 3, capacity, keep)).all()
    kept = reroute_pairs(order, np.take_along_axis(scores, order, 1), 3, capacity, 3)
    dense = np.zeros(scores.shape, bool)
    np.put_along_axis(dense, order, kept, axis=1)
    assert (dense == balancers.reroute(scores, 3, capacity, 3)).all()


@settings(max_examples=25)
@given(seeds, st.sampled_from(["all", "own"]))
def test_shared_experts_fill_up_to_the_waterline(seed, loads):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 200, DIES)
    load = np.stack([rng.multinomial(4 * count, rng.dirichlet(np.full(DIES, 0.5))) for count in tokens]).astype(float)
    sent = waterfill_rule(tokens, load, loads=loads)
    assert (sent.sum(axis=1) == tokens).all() and (sent >= 0).all()
    assert (sent[tokens < 64] == np.diag(tokens)[tokens < 64]).all()
    away = sent - np.diag(np.diag(sent))
    if loads == "all":
        score = load.sum(axis=0) + tokens  # of a die: all pairs that it runs, and its own tokens
        waterline = -(-int(score.sum() + tokens.sum()) // DIES)
        assert not away[:, score >= waterline].any() and not away[load == 0].any()
    else:
        waterlines = -(-(load.sum(axis=1) + tokens) // DIES)  # each die's own
        assert not away[load >= waterlines[:, None]].any()


@settings(max_examples=25)
@given(seeds)
def test_shared_experts_go_where_tokens_are_in_proportion_to_slack(seed):
    """Against all 2**n sets of dies that a token may visit."""
    rng = np.random.default_rng(seed)
    weights, experts, tokens = rng.integers(0, 50, 5), 3, 1000
    weights[0] = 10
    pairs = rng.multinomial(experts * tokens, rng.dirichlet(np.ones(5))).astype(float)
    chance = 1 - (1 - pairs / pairs.sum()) ** experts
    chance[0] = 1
    expected = np.zeros(5)
    for visited in itertools.product((0, 1), repeat=5):
        there = weights * visited
        if there.any():
            expected += np.where(visited, chance, 1 - chance).prod() * there / there.sum()
    assert _drawn_of_visited(weights, pairs, tokens, 0) == pytest.approx(expected, abs=2e-3)


def test_executed_pairs_add_up():
    """Passes of any size see all tokens; what is lost and what is executed are what was chosen."""
    from support.small_runs import BATCH, traffic

    from archsim.engine.demand import build_run_demand

    model = small_model()
    plain = build_run_demand(traffic(model), BATCH, 2, 0, origin_dies=DIES)
    spec = policy("capacity_drop", routing={"name": "drop", "params": {"pass_tokens": 500}})
    shaped = build_run_demand(traffic(model), BATCH, 2, 0, origin_dies=DIES, shaped_by=spec)
    assert (shaped.tokens.sum(axis=2) + shaped.lost_pairs == plain.tokens.sum(axis=2)).all()
    assert (shaped.origins.sum(axis=2) == shaped.tokens).all() and shaped.lost_pairs.sum() > 0
    assert (shaped.residents == plain.origins[:, 0].sum(axis=2) // model.top_k).all()
    assert (shaped.tokens_of_step == plain.tokens_of_step).all()
    assert (shaped.lost_mass >= 0).all() and shaped.lost_mass.max() < 1
    everything = policy("capacity_drop", routing={"name": "drop", "params": {"gamma": 1e6}})
    same = build_run_demand(traffic(model), BATCH, 2, 0, origin_dies=DIES, shaped_by=everything)
    assert (same.tokens == plain.tokens).all() and (same.first_seen == plain.first_seen).all()
    assert (same.origins == plain.origins).all() and not same.lost_mass.any()


# ---- Laws of what the engine tells allocations: a plan takes what was told, asking changes nothing, and a rule that
# weighs plans by it is never dearer than the plan of ``home``.


class Fixed:
    """Charges ``row_ns`` for a token, and ``hop_ns`` for a token and hop."""

    rates = ChargedRates(10.0, 100.0, 200.0)

    def __init__(self, step, hop_ns=0.0):
        self._step, self._hop_ns = step, hop_ns

    def plan_ns(self, plan):
        compute_ns = np.bincount(plan.die, self.rates.row_ns * plan.tokens + self.rates.expert_ns, len(self._step.hops))
        away = self._step.hops[self._step.home[plan.expert], plan.die]
        return compute_ns.max() + self._hop_ns * float((away * plan.tokens).sum())

    def decision_ns(self, plan):
        return 0.0


def step_of(seed, mesh=(3, 3), experts=40, most=400, **charges):
    rng = np.random.default_rng(seed)
    dies = mesh[0] * mesh[1]
    tokens = (rng.pareto(1.0, experts) * most / 8).astype(np.int32).clip(0, most * 8)
    seen, copied = np.full(experts, -1, np.int16), np.zeros((experts, dies), np.int8)
    step = step_view(tokens, seen, linear(experts, dies), copied, build_mesh(*mesh).hops, DOJO_COSTS)
    return step._replace(charged=Fixed(step, **charges))


@settings(max_examples=examples(40), derandomize=True)
@given(
    st.integers(0, 999),
    st.sampled_from([(1, 1), (2, 1), (3, 3), (5, 5)]),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.01, 10.0]),
)
def test_a_rule_that_weighs_plans_costs_no_more_than_home(seed, mesh, experts, hop_ns):
    step = step_of(seed, mesh, experts, hop_ns=hop_ns)
    plan = lp(step)
    assert step.charged.plan_ns(plan) <= step.charged.plan_ns(home(step))


def watch_plans(engine, see):
    """Call ``see(view)`` with what the policy sees of every step."""
    decide = engine.decision.decide

    def seen(allocate, view):
        see(view)
        return decide(allocate, view)

    engine.decision.decide = seen


@pytest.mark.parametrize(("known", "changes"), sampled([
    (False, {}),
    (False, {"contention": "reserved"}),
    (False, {"execution": "expert_parallel"}),
    (False, {"dispatch": "per_token_expert"}),
    (True, {"dispatch": "per_token_expert", "reads": "together", "gemm": "calibrated"}),
], lambda case: "dispatch" in case[1]), ids=str)  # fmt: skip
def test_a_plan_takes_what_the_policy_was_told_and_telling_changes_nothing(known, changes):
    """Where counts say all: only they are known, or every vector is sent by itself and no product depends on how many
    distinct tokens a die receives.
    """
    assumptions = load_assumptions("physical", decision_cost="free", **changes)
    system, model, spec = small_system(), small_model(), policy("ep")
    demand, routing = demand_of(model, system, spec, routing=known), traffic(model).steps(np.arange(BATCH), 3)
    run = replay(system, model, spec, assumptions, demand, routing, AnalyticalEngine)
    told, engine = [], run.engine

    def state():
        return [*engine.memory, *engine.tally, engine.execution.gemm_time()]

    def ask(view):
        before = pickle.dumps(state())
        told.append(view.charged.plan_ns(home(view)))
        assert view.charged.plan_ns(home(view)) == told[-1] and view.charged.rates.row_ns >= 0
        assert before == pickle.dumps(state()) and told[-1] > 0

    watch_plans(engine, ask)
    step_ns = run.run().step_ns
    assert told == pytest.approx(step_ns[step_ns > 0], rel=1e-9)


def test_copies_of_a_die_are_read_there_and_stay_as_they_are():
    run = engine_of(small_system(), small_model(), policy("pred"), load_assumptions("physical", decision_cost="free"))
    found = []

    def ask(view):
        copies = run.engine.memory.copies
        order = copies.ring.tobytes(), copies.room.tobytes()
        plan = home(view)
        there = np.argwhere(view.copied_slices[plan.expert] == 3)
        if len(there):
            entry, die = there[0]
            moved = plan._replace(die=np.where(np.arange(len(plan.die)) == entry, die, plan.die).astype(np.int32))
            found.append(view.charged.plan_ns(moved))
        assert (copies.ring.tobytes(), copies.room.tobytes()) == order

    watch_plans(run.engine, ask)
    run.run()
    assert found and min(found) > 0


class Silent:
    """An execution that cannot say what a plan takes."""

    def __init__(self, setup):
        self._setup = setup

    def step(self, order, now_ns):
        return now_ns + 1.0


def test_an_execution_that_cannot_tell_is_named():
    assumptions = load_assumptions("physical", execution=f"{__name__}:Silent")
    run = engine_of(small_system(), small_model(), policy("allo-lp"), assumptions)
    with pytest.raises(ArchsimError, match="execution Silent has no method 'time_of'.*weighs plans"):
        run.run()

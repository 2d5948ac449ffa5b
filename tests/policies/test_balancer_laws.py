"""Laws of the balancers on random inputs: what is conserved, what bounds hold, what no other choice can beat."""

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.examples import examples
from support.small_runs import DOJO_COSTS, step_view

from archsim import balancers
from archsim.base.compiled import GOLDEN, mix_bits
from archsim.machine.decision import FirmwareSpec, FsmSpec
from archsim.policies import allocation
from archsim.policies.allocation import NO_ORIGINS, Costs, StepView, home, plan_of
from archsim.policies.copy_aware import copy_aware
from archsim.policies.lina import uniform_split
from archsim.policies.linear_programme import lp
from archsim.policies.placement import linear
from archsim.policies.prediction import rates
from archsim.specs.policies import PolicySpec
from microarch.blocks.global_cp import DecisionWork, State, firmware_ns, fsm_ns
from microarch.fabric.grid import build_mesh

quick = settings(max_examples=examples(60), derandomize=True)
small = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


def loads(*shape, most=200):
    """float64[shape]: whole numbers with many ties and zeros, or any fractions."""
    return st.one_of(
        arrays(np.float64, shape, elements=st.integers(0, 3).map(float)),
        arrays(np.float64, shape, elements=st.integers(0, most).map(float)),
        arrays(np.float64, shape, elements=st.floats(0, most, allow_subnormal=False)),
    )


def tokens(*shape, most=50):
    return arrays(np.int64, shape, elements=st.integers(0, most))


@st.composite
def eplb_inputs(draw):
    nodes, gpus_per_node, groups_per_node, group = draw(st.tuples(*[st.integers(1, 4)] * 4))
    gpus, groups = nodes * gpus_per_node, nodes * groups_per_node
    experts = groups * group
    replicas = -(-experts // gpus) * gpus + gpus * draw(st.integers(0, 3))
    return (
        draw(loads(draw(st.integers(1, 3)), experts)),
        replicas,
        groups,
        nodes,
        gpus,
        draw(st.sampled_from([None, True, False])),
    )


@quick
@given(eplb_inputs())
def test_eplb_fills_every_slot_and_agrees_with_itself(given):
    load, replicas, groups, nodes, gpus, hierarchical = given
    plan = balancers.eplb(*given)
    layers, experts = load.shape
    assert (plan.copies >= 1).all() and (plan.copies.sum(axis=1) == replicas).all()
    for layer in range(layers):
        held = plan.physical_to_logical[layer]
        assert (np.bincount(held, minlength=experts) == plan.copies[layer]).all()
        for expert in range(experts):
            slots = plan.logical_to_physical[layer, expert]
            assert (np.sort(slots[slots >= 0]) == np.flatnonzero(held == expert)).all()
            if hierarchical is not False:
                mates = np.arange(experts) // (experts // groups) == expert // (experts // groups)
                assert len(set(np.flatnonzero(np.isin(held, np.flatnonzero(mates))) // (replicas // nodes))) == 1


@quick
@given(eplb_inputs())
def test_eplb_gives_the_next_copy_to_the_largest_load_per_copy(given):
    """No expert could hand a copy to another and leave the largest load per copy lower."""
    load, replicas, groups, nodes, gpus, _ = given
    copies = balancers.eplb(load, replicas, groups, nodes, gpus, False).copies
    had = np.where(copies > 1, load / np.maximum(copies - 1, 1), np.inf)  # before its last copy came
    assert (had.min(axis=1) >= (load / copies).max(axis=1) * (1 - 1e-12)).all()


@quick
@given(eplb_inputs(), st.integers(1, 5))
def test_eplb_works_layer_by_layer_and_on_ratios_alone(given, power):
    load, *sizes = given
    plan = balancers.eplb(load, *sizes)
    scaled = balancers.eplb(load * 2.0**power, *sizes)
    assert (plan.physical_to_logical == scaled.physical_to_logical).all()
    for layer in range(len(load)):
        assert (
            balancers.eplb(load[layer : layer + 1], *sizes).physical_to_logical[0] == plan.physical_to_logical[layer]
        ).all()


def test_eplb_of_a_layer_without_load_gives_redundant_slots_to_the_first_expert():
    assert balancers.eplb(np.zeros((1, 4)), 8, 1, 1, 2).copies.tolist() == [[5, 1, 1, 1]]


@st.composite
def shared_experts(draw):
    gpus, experts = draw(small), draw(st.integers(1, 10))
    holders = draw(
        st.lists(st.lists(st.integers(0, gpus - 1), min_size=1, max_size=4), min_size=experts, max_size=experts)
    )
    return draw(loads(experts)), holders, gpus


def tightest_set(load, holders, gpus):
    """The largest load a GPU of any set of GPUs that alone hold some experts (the dual of the linear programme)."""
    sets = chain.from_iterable(combinations(range(gpus), size) for size in range(1, gpus + 1))
    return max(sum(load[e] for e, held in enumerate(holders) if set(held) <= set(group)) / len(group) for group in sets)


@settings(quick, max_examples=examples(200))
@given(shared_experts(), seeds)
@example((np.array([1e-9, 1e9, 3.0]), [[0], [0, 1], [1, 2]], 3), 0)
def test_lplb_is_the_optimum_and_its_shares_reach_it(given, seed):
    load, holders, gpus = given
    shares = balancers.lplb(load, holders, gpus)
    used, drawn = np.zeros((2, gpus))
    generator = np.random.default_rng(seed)
    for expert, held in enumerate(holders):
        assert (shares.split[expert] >= 0).all()
        assert shares.split[expert].sum() == pytest.approx(load[expert], rel=1e-9, abs=1e-9 * load.sum())
        np.add.at(used, held, shares.split[expert])
        np.add.at(drawn, held, load[expert] * generator.dirichlet(np.ones(len(held))))
    assert used.max() == pytest.approx(shares.max_load, rel=1e-12)
    assert shares.max_load == pytest.approx(tightest_set(load, holders, gpus), rel=1e-9)
    assert load.sum() / gpus * (1 - 1e-9) <= shares.max_load <= drawn.max() * (1 + 1e-9)


@quick
@given(seeds, st.integers(2, 64), st.integers(1, 300))
def test_lplb_agrees_with_a_general_solver(seed, gpus, experts):
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    generator = np.random.default_rng(seed)
    load = generator.lognormal(0, 1.5, experts) * (generator.random(experts) < 0.9)
    holders = [
        generator.choice(gpus, min(gpus, generator.integers(1, 4)), replace=False).tolist() for _ in range(experts)
    ]
    gpu, expert = np.concatenate(holders), np.repeat(np.arange(experts), list(map(len, holders)))
    copies = np.arange(len(gpu))
    above = csc_array(
        (
            np.append(np.ones(len(gpu)), -np.ones(gpus)),
            (np.append(gpu, np.arange(gpus)), np.append(copies, np.full(gpus, len(gpu)))),
        )
    )
    once = csc_array((np.ones(len(gpu)), (expert, copies)), shape=(experts, len(gpu) + 1))
    solved = linprog(np.append(np.zeros(len(gpu)), 1.0), above, np.zeros(gpus), once, load, method="highs")
    assert balancers.lplb(load, holders, gpus).max_load == pytest.approx(solved.fun, rel=1e-6, abs=1e-9)


def gains(layers):
    row = st.lists(st.integers(-20, 100).map(lambda x: x / 100), min_size=layers, max_size=layers)
    return st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), row, min_size=1, max_size=3)


@quick
@given(
    st.integers(1, 4).flatmap(gains),
    st.integers(0, 14),
    st.sampled_from(["gain", "replicas_times_gain"]),
    st.booleans(),
)
def test_craft_budget_is_best_of_all_plans(gain, capacity, objective, exactly):
    layers = len(next(iter(gain.values())))

    def worth(plan):
        return sum(
            gain[r][layer] * (r if objective == "replicas_times_gain" else 1) for layer, r in enumerate(plan) if r
        )

    plans = [
        plan
        for plan in product((0, *gain), repeat=layers)
        if (sum(plan) == capacity if exactly else sum(plan) <= capacity)
    ]
    budget = "exactly" if exactly else "at_most"
    if not plans:
        with pytest.raises(ValueError, match="exactly"):
            balancers.craft_budget(gain, capacity, objective, budget)
        return
    chosen = tuple(balancers.craft_budget(gain, capacity, objective, budget).tolist())
    assert chosen in plans
    assert worth(chosen) == pytest.approx(max(map(worth, plans)), rel=1e-9, abs=1e-12)


def test_craft_budget_replicates_nothing_that_gains_nothing():
    assert balancers.craft_budget({1: [0.0, -0.1], 2: [0.0, -0.2]}, 4).tolist() == [0, 0]


@quick
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), small, st.integers(1, 4))
def test_craft_assign_keeps_running_totals_within_one(experts, nodes, per_node):
    gpus = nodes * per_node
    assigned = balancers.craft_assign(experts, gpus, nodes)
    assert assigned.sum(axis=1).tolist() == experts
    assert (np.ptp(assigned, axis=1) <= 1).all() and (np.ptp(assigned.cumsum(axis=0), axis=1) <= 1).all()
    assert sum(experts) % gpus or np.ptp(assigned.sum(axis=0)) == 0


@quick
@given(small, st.integers(1, 12), st.integers(0, 8), st.data())
def test_greedy_placement_keeps_capacities(gpus, experts, extra, data):
    capacity = balancers.craft_assign([experts + extra + data.draw(st.integers(0, 5))], gpus, 1)[0]
    load = data.draw(loads(experts))
    plan = balancers.greedy_placement(load, gpus, extra, capacity)
    assert (plan.copies >= 1).all() and plan.copies.sum() == experts + extra
    assert all(len(held) <= most for held, most in zip(plan.experts, capacity, strict=True))
    assert (np.bincount(np.concatenate(plan.experts), minlength=experts) == plan.copies).all()
    by_batch = balancers.craft_balancedness(load[None, None], [plan.experts])
    assert by_batch.shape == (1, 1) and 0 < by_batch[0, 0] <= 1 + 1e-12


@st.composite
def routings(draw):
    ranks, each = draw(small), draw(st.integers(1, 4))
    k = draw(st.integers(1, min(3, ranks * each)))
    ids = [
        draw(arrays(np.int64, (draw(st.integers(0, 12)), k), elements=st.integers(-1, ranks * each - 1)))
        for _ in range(ranks)
    ]
    return ids, ranks, each


@quick
@given(
    routings(),
    st.sampled_from(["routed", "routed_plus_local"]),
    st.sampled_from(["visited", "all", "sglang_dynamic"]),
    seeds,
)
def test_waterfill_gives_each_token_one_open_rank(given, score, candidates, seed):
    ids, ranks, each = given
    plan = balancers.waterfill(ids, ranks, each, score, candidates, seed)
    valid = [table[table >= 0] // each for table in ids]
    assert (plan.routed_load == np.bincount(np.concatenate(valid), minlength=ranks)).all()
    for source, table in enumerate(ids):
        assert len(plan.destination[source]) == len(table)
        for token, rank in zip(table, plan.destination[source], strict=True):
            visited = {*(token[token >= 0] // each).tolist(), source}
            assert (rank == -1) == (token < 0).all()
            if rank >= 0:
                assert 0 <= rank < ranks and (candidates != "visited" or rank in visited)
                assert plan.weights[source, rank] > 0 or not plan.weights[source, list(visited)].any()
    again = balancers.waterfill(ids, ranks, each, score, candidates, seed)
    assert all((a == b).all() for a, b in zip(plan.destination, again.destination, strict=True))


@quick
@given(
    st.data(),
    st.integers(1, 20),
    small,
    st.integers(1, 8),
    st.integers(0, 12),
    st.sampled_from(["score", "order", "reverse_order", "random"]),
)
def test_drop_keeps_exactly_what_fits(data, count, experts, top_k, capacity, keep):
    scores = data.draw(loads(count, experts)) + 0.5
    chosen = balancers.drop(scores, top_k, count)
    assert (chosen.sum(axis=1) == min(top_k, experts)).all()
    kept = balancers.drop(scores, top_k, capacity, keep)
    assert (kept <= chosen).all()
    assert (kept.sum(axis=0) == np.minimum(chosen.sum(axis=0), capacity)).all()
    if keep == "score":
        least_kept = np.where(kept, scores, np.inf).min(axis=0)
        assert (np.where(chosen & ~kept, scores, -np.inf).max(axis=0) <= least_kept).all()


@quick
@given(st.data(), st.integers(1, 20), small, st.integers(1, 8), st.integers(1, 12), st.integers(1, 5))
def test_reroute_keeps_capacity_and_top_k(data, count, experts, top_k, capacity, rounds):
    scores = data.draw(loads(count, experts)) + 0.5
    kept = balancers.reroute(scores, top_k, capacity, rounds)
    assert kept.sum(axis=0).max() <= capacity
    assert kept.sum(axis=1).max() <= top_k
    assert (balancers.reroute(scores, top_k, count, rounds) == balancers.drop(scores, top_k, count)).all()


@quick
@given(seeds, st.integers(1, 30), small, st.integers(1, 8), st.integers(1, 12))
def test_one_round_of_reroute_is_drop_where_scores_differ(seed, count, experts, top_k, capacity):
    scores = np.random.default_rng(seed).permutation(count * experts).reshape(count, experts) + 1.0
    assert (balancers.reroute(scores, top_k, capacity, 1) == balancers.drop(scores, top_k, capacity)).all()


@quick
@given(st.integers(1, 999), st.integers(0, 5000), st.integers(1, 8), st.integers(1, 256))
def test_expert_capacity_holds_all_tokens_of_an_even_load(hundredths, count, top_k, experts):
    capacity = balancers.expert_capacity(hundredths / 100, count, top_k, experts)
    assert capacity == max(1, -(-hundredths * count * top_k // (100 * experts)))
    assert balancers.expert_capacity(
        hundredths / 100, count, top_k, experts, "floor"
    ) == hundredths * count * top_k // (100 * experts)


@quick
@given(loads(7), st.integers(0, 7))
def test_drop_experts_takes_the_least_loaded(load, count):
    ids = balancers.drop_experts(load, count)
    assert len(set(ids.tolist())) == count
    assert count in (0, 7) or load[ids].max() <= np.delete(load, ids).min()


@st.composite
def libra_inputs(draw):
    gpus, each = draw(small), draw(st.integers(1, 5))
    slots = draw(st.integers(0, 4))
    return draw(tokens(gpus, gpus * each)), np.repeat(np.arange(gpus), each), slots, draw(st.integers(0, slots))


def start_of(load, home, holds):
    """(local_load[gpu], remote_load[gpu, expert]) of tokens that stay where the expert is held, else go home."""
    away = np.where(holds, 0, load).sum(axis=0)
    return np.where(holds, load, 0).sum(axis=1), away * (home == np.arange(len(load))[:, None])


@quick
@given(libra_inputs(), st.sampled_from(["literal", "prose"]))
def test_libra_plan_keeps_homes_and_slots(given, rule):
    load, home, slots, local = given
    plan = balancers.libra_plan(load, home, slots, local, rule)
    gpus, experts = load.shape
    assert (plan.holds[home, np.arange(experts)] == 1).all()
    assert (plan.holds.sum(axis=1) - np.bincount(home, minlength=gpus) <= slots).all()
    stay, away = start_of(load, home, plan.holds)
    assert (plan.load == stay + away.sum(axis=1)).all() and plan.load.sum() == load.sum()
    if rule == "literal":
        assert plan.load.max() <= balancers.libra_plan(load, home, local, local).load.max()


@quick
@given(
    libra_inputs(),
    st.sampled_from(["literal", "restart", "literal_integer_tokens", "restart_integer_tokens"]),
    st.sampled_from([0.0, 0.01]),
)
def test_libra_shard_conserves_tokens_and_never_loads_more(given, rule, epsilon):
    load, home, slots, local = given
    holds = balancers.libra_plan(load, home, slots, local).holds
    stay, remote = start_of(load, home, holds)
    bound = load.sum() / len(load)
    plan = balancers.libra_shard(holds, stay, remote, bound, epsilon, rule)
    moved = remote.astype(float)
    for origin, expert, gpu, amount in plan.moves:
        assert amount > 0 and holds[int(gpu), int(expert)] and gpu != origin
        assert "integer" not in rule or amount == int(amount)
        moved[int(origin), int(expert)] -= amount
        moved[int(gpu), int(expert)] += amount
        assert moved[int(origin), int(expert)] >= -1e-9
    assert plan.load == pytest.approx(stay + moved.sum(axis=1), abs=1e-9)
    assert moved.sum(axis=0) == pytest.approx(remote.sum(axis=0), abs=1e-9)
    assert bound * (1 - 1e-9) <= plan.load.max() <= (stay + remote.sum(axis=1)).max() + 1e-9


@quick
@given(st.data(), small, st.integers(1, 4), small, st.integers(0, 30), st.sampled_from(["released", "paper"]))
def test_harmoeny_conserves_tokens_and_never_loads_more(data, gpus, each, sources, threshold, rule):
    count = data.draw(tokens(sources, gpus * each))
    plan = balancers.harmoeny(count, gpus, threshold, rule)
    home = np.arange(gpus * each) // each
    on = np.zeros((gpus, *count.shape), np.int64)
    on[home, :, np.arange(gpus * each)] = count.T
    start, average = on.sum(axis=(1, 2)), count.sum() // gpus
    for source, expert, origin, gpu, moved in plan.moves:
        assert moved > 0
        on[origin, source, expert] -= moved
        on[gpu, source, expert] += moved
    assert (on >= 0).all() and (on.sum(axis=0) == count).all()
    assert (on.sum(axis=(1, 2)) == plan.load).all()
    assert (plan.load <= np.maximum(start, average)).all()
    received = np.unique(plan.moves[:, 3])
    assert (plan.load[received] <= average).all()


@quick
@given(st.data(), st.integers(1, 20), small)
def test_remap_places_every_expert_once(data, experts, gpus):
    cost = data.draw(loads(experts))
    plan = balancers.remap(cost, gpus)
    assert sorted(np.concatenate(plan.experts).tolist()) == list(range(experts))
    assert max(map(len, plan.experts)) <= -(-experts // gpus)
    assert plan.load == pytest.approx([cost[held].sum() for held in plan.experts])
    assert plan.steps[-1, 3] == pytest.approx(plan.load.max())


@quick
@given(st.data(), st.integers(1, 12), st.integers(1, 5), st.integers(0, 3), st.sampled_from([0.0, 20.0]))
def test_dup_takes_the_best_of_all_copies_at_each_step(data, experts, gpus, slots, least):
    load = data.draw(loads(experts))

    def cost(count):
        return max(least, count) if count else 0.0

    def loads_of(holds):
        each = np.array([cost(count / copies) for count, copies in zip(load, holds.sum(axis=1), strict=True)])
        return (holds * each[:, None]).sum(axis=0)

    plan = balancers.dup(load, gpus, slots, cost)
    holds = np.arange(experts)[:, None] // -(-experts // gpus) == np.arange(gpus)
    own = holds.sum(axis=0)
    for expert, gpu, change, most in plan.steps:
        feasible = [
            (e, g)
            for e in range(experts)
            for g in range(gpus)
            if not holds[e, g] and holds[:, g].sum() < own[g] + slots
        ]
        after = []
        for e, g in feasible:
            tried = holds.copy()
            tried[e, g] = True
            after.append(loads_of(tried).max())
        assert most == pytest.approx(min(after), rel=1e-9, abs=1e-9)
        assert change == pytest.approx(min(after) - loads_of(holds).max(), rel=1e-9, abs=1e-9)
        assert (int(expert), int(gpu)) in feasible
        holds[int(expert), int(gpu)] = True
    assert plan.load == pytest.approx(loads_of(holds), rel=1e-9, abs=1e-9)
    assert all((np.flatnonzero(holds[:, gpu]) == held).all() for gpu, held in enumerate(plan.experts))
    assert len(plan.steps) == sum(min(slots, experts - count) for count in own)


@quick
@given(st.data(), st.integers(1, 5), st.integers(1, 30), st.integers(1, 4), st.integers(1, 6))
def test_lina_predicts_distinct_experts_of_the_longest_known_path(data, layers, count, length, experts):
    seen = data.draw(arrays(np.int64, (layers, count), elements=st.integers(0, experts - 1)))
    asked = data.draw(arrays(np.int64, (layers, 5), elements=st.integers(0, experts - 1)))
    predicted = balancers.lina_fit(seen, length, experts).predict(asked, experts)
    assert predicted.shape == (layers, 5, experts) and (predicted[0] == -1).all()
    assert (np.sort(predicted[1:], axis=2) == np.arange(experts)).all()
    for layer, token in product(range(1, layers), range(5)):
        for reach in range(min(layer, length), -1, -1):
            same = (seen[layer - reach : layer] == asked[layer - reach : layer, token, None]).all(axis=0)
            if same.any():
                break
        follows = np.bincount(seen[layer, same], minlength=experts)
        ranked = sorted(np.flatnonzero(follows).tolist(), key=lambda expert: (-follows[expert], expert))
        assert predicted[layer, token, : len(ranked)].tolist() == ranked


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_uniform_split_is_even_and_whole(count, copies):
    split = balancers.uniform_split(count, copies)
    assert split.sum() == count and np.ptp(split) <= 1 and (np.diff(split) <= 0).all()


@quick
@given(loads(3, 5))
def test_balancedness_is_one_over_imbalance(load):
    assume(load.max() == 0 or load[load > 0].min() > 1e-100)
    ratio = balancers.balancedness(load)
    assert ratio * balancers.imbalance(load) == pytest.approx(np.ones(3))
    assert ((ratio > 0) & (ratio <= 1 + 1e-12)).all()
    assert balancers.balancedness(np.zeros(4)) == balancers.imbalance(np.zeros(4)) == 1.0


# ---- Allocations among holders against the same rules token by token and expert by expert.


def drawn_step(seed, experts=40, dies=12):
    """A step of random loads, some 0, on random holders, one or more."""
    rng = np.random.default_rng(seed)
    held = rng.random((experts, dies)) < 0.3
    held[np.arange(experts), rng.integers(dies, size=experts)] = True
    tokens = rng.integers(0, 50, experts) * (rng.random(experts) < 0.7)
    known = dict.fromkeys(StepView._fields) | {"layer": 3, "step": 5, "origins": NO_ORIGINS}
    return StepView(**known | {"tokens": tokens.astype(np.int32), "holders": held})


def evenly(step):
    given = np.zeros(step.holders.shape, np.int64)
    for expert in np.flatnonzero(step.tokens):
        dies = np.flatnonzero(step.holders[expert])
        given[expert, dies] = uniform_split(int(step.tokens[expert]), len(dies))
    return given


def by_hash(step):
    given, token = np.zeros(step.holders.shape, np.int64), 0
    place = mix_bits(np.array([step.step << 32 | step.layer], np.uint64))
    for expert, tokens in enumerate(step.tokens):
        dies = np.flatnonzero(step.holders[expert])
        for _ in range(tokens):
            drawn = mix_bits(np.array([token], np.uint64) * GOLDEN + place) >> np.uint64(32)
            given[expert, dies[int(drawn[0]) % len(dies)]] += 1
            token += 1
    return given


@pytest.mark.parametrize("rule, slowly", [(allocation.even, evenly), (allocation.take_by_hash, by_hash)])
@pytest.mark.parametrize("seed", range(4))
def test_a_rule_is_that_of_single_experts(rule, slowly, seed):
    step = drawn_step(seed)
    expected, found = plan_of(slowly(step)), rule(step)
    assert len(found.expert) > 20
    for name in ("expert", "die", "tokens"):
        one, other = getattr(expected, name), getattr(found, name)
        assert one.dtype == other.dtype == np.int32 and one.tolist() == other.tolist()


# ---- Laws of the allocation by linear programming: every token once, the same plan again, no worse than home, an
# honest price.


def step_of(seed, mesh, experts, most, copies):
    rng = np.random.default_rng(seed)
    dies = mesh[0] * mesh[1]
    tokens = rng.integers(0, most + 1, experts).astype(np.int32)
    copied = (rng.integers(0, 4, (experts, dies)) * (rng.random((experts, dies)) < 0.2) * copies).astype(np.int8)
    seen = np.full(experts, -1, np.int16)
    return step_view(tokens, seen, linear(experts, dies), copied, build_mesh(*mesh).hops, DOJO_COSTS)


def arrays_ns(step, plan):
    """Compute time of every die."""
    return np.bincount(plan.die, plan.tokens, len(step.hops)) * DOJO_COSTS.flop_per_token / DOJO_COSTS.flop_per_ns


@settings(max_examples=examples(40), derandomize=True)
@given(
    st.integers(0, 999),
    st.sampled_from([(1, 1), (2, 1), (3, 3), (5, 5)]),
    st.integers(1, 40),
    st.sampled_from([0, 1, 7, 3000]),
    st.booleans(),
)
def test_tokens_go_to_neighbours_of_their_home_and_to_complete_copies(seed, mesh, experts, most, copies):
    step = step_of(seed, mesh, experts, most, copies)
    plan = lp(step)
    assert (np.bincount(plan.expert, plan.tokens, experts) == step.tokens).all()
    near = step.hops[step.home[plan.expert], plan.die] <= 1
    assert (near | (step.copied_slices[plan.expert, plan.die] == 3)).all()


@pytest.mark.parametrize("seed", range(3))
def test_where_compute_decides_the_fullest_die_has_less_to_do_than_at_home(seed):
    step = step_of(seed, (5, 5), 256, 1200, False)
    at_home, planned = arrays_ns(step, home(step)), arrays_ns(step, lp(step))
    assert planned.max() < at_home.max() * 0.9
    assert planned.max() >= planned.mean()


def test_light_steps_stay_at_home():
    """HBM reads of the homes bound the step whatever is done: nothing is fetched for nothing."""
    step = step_of(1, (5, 5), 250, 8, False)
    assert (lp(step).die == home(step).die).all()


def test_the_solver_is_charged():
    effort = lp(step_of(1, (5, 5), 256, 1200, False)).effort
    counts = DecisionWork(25, 256, True, 256, 256, effort.candidates, effort.blocks, 256, 0, 0)
    solved = counts._replace(operations=effort.operations)
    fsm, firmware = FsmSpec(), FirmwareSpec.model_validate({})
    assert effort.operations > 1_000_000
    more_ns = fsm_ns(solved, fsm) - fsm_ns(counts, fsm)
    assert more_ns[State.EVALUATE] == pytest.approx(effort.operations / fsm.lanes / fsm.clock_hz * 1e9, rel=1e-6)
    more_ns = firmware_ns(solved, firmware) - firmware_ns(counts, firmware)
    assert more_ns[State.EVALUATE] == pytest.approx(
        effort.operations * firmware.per_operation / (firmware.ipc * firmware.clock_hz) * 1e9
    )


# ---- The allocation that uses copies, and the rates from which admission expects reads.

DIES, EXPERTS = 6, 18
COPIES_COSTS = Costs(2**20, 6e6, 1000.0, 2000.0, 1000.0, 300.0, 200.0)
HOPS = np.abs(np.arange(DIES)[:, None] - np.arange(DIES)).astype(np.int32)
HOME = (np.arange(EXPERTS) % DIES).astype(np.int32)


def view(tokens, copied=None):
    copied = np.zeros((EXPERTS, DIES), np.int8) if copied is None else copied
    return step_view(np.asarray(tokens, np.int32), np.arange(EXPERTS, dtype=np.int16), HOME, copied, HOPS, COPIES_COSTS)


def remote(step, plan):
    """Entries whose die neither holds the expert by placement nor has a complete copy."""
    whole = step.holders | (step.copied_slices == 3)
    return int(np.count_nonzero(~whole[plan.expert, plan.die]))


def test_balanced_experts_stay_at_home():
    step = view(np.full(EXPERTS, 40))
    plan, at_home = copy_aware(step), home(step)
    assert (plan.die == at_home.die).all() and (plan.tokens == at_home.tokens).all()
    assert len(plan.effort.blocks) == EXPERTS and remote(step, plan) == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_fullest_die_is_not_fuller_than_at_home(seed):
    rng = np.random.default_rng(seed)
    step = view(rng.integers(0, 2000, EXPERTS) * (rng.random(EXPERTS) < 0.8))
    loads = [np.bincount(each.die, each.tokens, DIES).max() for each in (copy_aware(step), home(step))]
    assert loads[0] <= loads[1]


def test_a_hot_expert_runs_where_its_copies_are():
    """Without copies its tokens are fetched elsewhere; dies with a complete copy take them without a fetch."""
    tokens = np.full(EXPERTS, 20)
    tokens[7] = 4000
    bare = view(tokens)
    copied = np.zeros((EXPERTS, DIES), np.int8)
    copied[7, 3:] = 3
    held = view(tokens, copied)
    assert remote(bare, copy_aware(bare)) > 0
    plan = copy_aware(held)
    assert set(plan.die[plan.expert == 7]) >= {3, 4, 5} and remote(held, plan) < remote(bare, copy_aware(bare))


def test_where_every_die_holds_everything_nothing_is_fetched():
    step = view(np.arange(EXPERTS) * 100, np.full((EXPERTS, DIES), 3, np.int8))
    assert remote(step, copy_aware(step)) == 0


def test_rates_are_drawn_to_the_mean_as_far_as_chance_explains_differences():
    same = np.random.default_rng(0).binomial(32, 0.2, (40, 10)).astype(float)
    alike = rates(same, 32.0)
    mean = same.mean(axis=1, keepdims=True) / 32
    assert np.ptp(alike - mean) < np.ptp(same / 32 - mean) / 10
    apart = np.zeros((40, 10))
    apart[:, 0] = 32
    assert rates(apart, 32.0)[:, 0] == pytest.approx(1.0, abs=0.15) and rates(apart, 32.0)[:, 1:].max() < 0.05
    for ran in (same, apart):
        assert (rates(ran, 32.0) >= 0).all() and (rates(ran, 32.0) <= 1).all()


def test_an_unknown_admission_is_refused_with_the_known_ones():
    spec = {"name": "x", "allocation": "first_seen", "prediction": {"name": "heatmap", "admission": "rereads"}}
    with pytest.raises(ValueError, match="'rereads'.*'reread'"):
        PolicySpec.model_validate(spec)
    with pytest.raises(ValueError, match=r"reread.*\b3\b"):
        PolicySpec.model_validate(spec | {"prediction": {"name": "heatmap", "admission": 3}})

# ruff: noqa: E501  (one row a case: a table is read across)

"""Every reference vector of the balancers, by the checks of its kind (``shared/reference/policies/README.md``)."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.small_runs import DOJO_COSTS
from support.tables import table_of
from support.vectors import FOLDER, vectors

from archsim import balancers
from archsim.model.spec import SLICES
from archsim.policies.allocation import StepView, paper
from archsim.policies.heatmap import TopPositive, copy_bits
from microarch.fabric.grid import build_mesh


def lists(arrays):
    return [np.asarray(array).tolist() for array in arrays]


def pairs(mask):
    return np.argwhere(mask).tolist()


def run_eplb(case):
    given = case["input"]
    return balancers.eplb(
        given["weight"], given["num_replicas"], given["num_groups"], given["num_nodes"], given["num_gpus"]
    )


@vectors("eplb")
def test_eplb(case):
    given, expected, robust = case["input"], case["expected"], case["robust"]
    plan = run_eplb(case)
    assert plan.copies.tolist() == expected["logcnt"]
    if case["kind"] == "exact" or robust["equals_lowest_index_ties"]:
        assert plan.physical_to_logical.tolist() == expected["phy2log"]
        rows = [[sorted(row) for row in layer] for layer in expected["log2phy"]]
        assert np.sort(plan.logical_to_physical, axis=2).tolist() == rows
        if robust["log2phy_order_equals_stable"]:
            assert plan.logical_to_physical.tolist() == expected["log2phy"]
    layer = np.arange(len(plan.copies))[:, None]
    each = np.array(given["weight"]) / plan.copies
    load = each[layer, plan.physical_to_logical].reshape(len(layer), given["num_gpus"], -1).sum(axis=2)
    assert balancers.balancedness(load) == pytest.approx(np.array(expected["balancedness"]), rel=1e-9)


@vectors("eplb", kinds=("error",))
def test_eplb_refuses(case):
    with pytest.raises(ValueError, match="do not divide among|cannot hold"):
        run_eplb(case)


@vectors("lplb")
def test_lplb(case):
    given, expected = case["input"], case["expected"]
    shares = balancers.lplb(given["load"], given["copies_gpu"], given["num_gpus"])
    assert shares.max_load == pytest.approx(expected["min_max_load"], rel=1e-9)
    assert [len(share) for share in shares.split] == [len(gpus) for gpus in given["copies_gpu"]]
    used = np.zeros(given["num_gpus"])
    np.add.at(used, np.concatenate(given["copies_gpu"]).astype(int), np.concatenate(shares.split))
    assert used.max() <= expected["min_max_load"] * (1 + 1e-6)
    assert np.concatenate(shares.split).min() >= 0
    assert [share.sum() for share in shares.split] == pytest.approx(given["load"])


@pytest.mark.parametrize("objective, named", [("gain", "sum_gain"), ("replicas_times_gain", "sum_r_times_gain")])
@pytest.mark.parametrize("budget", ["at_most", "exactly"])
@vectors("craft", "mckp")
def test_craft_budget(case, budget, objective, named):
    given, expected = case["input"], case["expected"][f"{named}__{budget}"]
    if expected["optimum"] is None:
        with pytest.raises(ValueError, match="exactly"):
            balancers.craft_budget(given["T"], given["capacity"], objective, budget)
        return
    replicas = balancers.craft_budget(given["T"], given["capacity"], objective, budget).tolist()
    reached = sum(
        given["T"][str(r)][layer] * (1 if objective == "gain" else r) for layer, r in enumerate(replicas) if r
    )
    assert reached == pytest.approx(expected["optimum"], rel=1e-9)
    assert len(replicas) == given["num_layers"] and {str(r) for r in replicas} <= {"0", *given["T"]}
    assert sum(replicas) == given["capacity"] if budget == "exactly" else sum(replicas) <= given["capacity"]


@vectors("craft", "benefit_replay")
def test_craft_balancedness(case):
    given, expected = case["input"], case["expected"]
    reached = {r: balancers.craft_balancedness(given["W"], plan) for r, plan in given["plans"].items()}
    assert reached and expected["gain_T"]
    for r, by_batch in reached.items():
        assert by_batch.T == pytest.approx(np.array(expected["per_layer_batch"][r]), rel=1e-9)
        assert by_batch.mean(axis=0) == pytest.approx(np.array(expected["balancedness"][r]), rel=1e-9)
    for r, gain in expected["gain_T"].items():
        assert (reached[r] - reached["0"]).mean(axis=0) == pytest.approx(np.array(gain), rel=1e-9, abs=1e-12)


@vectors("craft", "assignment")
def test_craft_assign(case):
    given, expected = case["input"], case["expected"]
    assigned = balancers.craft_assign(given["experts_per_layer"], given["num_gpus"], given["num_nodes"])
    assert assigned.sum(axis=1).tolist() == expected["row_sums"]
    assert np.stack([assigned.min(axis=1), assigned.max(axis=1)], axis=1).tolist() == expected["per_layer_min_max"]
    running = assigned.cumsum(axis=0)
    assert np.ptp(running, axis=1).max() <= expected["running_remainder_spread_max"]
    assert np.ptp(running[-1]) == expected["final_total_spread"]
    assert assigned.tolist() == expected["example_results"]["figure7"]["A"]


@vectors("craft", "greedy_placement")
def test_greedy_placement(case):
    given, expected = case["input"], case["expected"]
    plan = balancers.greedy_placement(given["load"], given["num_gpus"], given["extra_replicas"], given["capacity"])
    assert plan.copies.tolist() == expected["copies"]
    assert lists(plan.experts) == expected["gpu_experts_in_assignment_order"]
    load = [np.sum(np.array(given["load"])[held] / plan.copies[held]) for held in plan.experts]
    assert load == pytest.approx(expected["gpu_load"], rel=1e-9)
    assert balancers.balancedness(load) == pytest.approx(expected["balancedness"], rel=1e-9)


def candidates_of(case, token, source):
    """Ranks open to a token, by the mode that the case says was used."""
    given = case["input"]
    if case["expected"]["candidate_mode_used"] == "all":
        return set(range(given["world_size"]))
    return {source} | {expert // given["experts_per_rank"] for expert in token if expert >= 0}


@vectors("waterfill")
def test_waterfill(case):
    given, expected = case["input"], case["expected"]
    ranks = given["world_size"]
    arguments = given["topk_ids"], ranks, given["experts_per_rank"], given["load_score"], given["candidates"]
    draws = [balancers.waterfill(*arguments, seed=seed) for seed in range(64)]
    plan = draws[0]
    assert plan.routed_load.tolist() == expected["routed_load"]
    assert (plan.waterline, plan.slack.tolist()) == (expected["waterline_H"], expected["slack"])
    if expected["weights_by_source"]:
        weights = [[expected["weights_by_source"][str(s)][str(r)] for r in range(ranks)] for s in range(ranks)]
        assert plan.weights.tolist() == weights
    for source, tokens in enumerate(given["topk_ids"]):
        for token, rank in zip(tokens, plan.destination[source], strict=True):
            open_to = candidates_of(case, token, source)
            assert rank == -1 if max(token) < 0 else rank in open_to
            if rank >= 0 and plan.weights[source, rank] == 0:
                assert not plan.weights[source, sorted(open_to)].any()
    given_out = np.array([np.bincount(np.concatenate(draw.destination) + 1, minlength=ranks + 1)[1:] for draw in draws])
    assert (given_out.sum(axis=1) == expected["tokens_placed"]).all()
    assert (given_out + plan.routed_load).max(axis=1).min() >= expected["min_max_final_load_with_these_candidates"]
    mean = np.array(expected["expected_shared_per_rank"])
    assert (np.abs(given_out.mean(axis=0) - mean) <= 4 * np.sqrt(mean / len(draws)) + 1e-9).all()


@vectors("capacity_aware", "drop_reroute", ("exact", "exact_with_ties"))
def test_drop_and_reroute(case):
    given, expected = case["input"], case["expected"]
    limits = np.array(given["scores"]), given["top_k"], given["capacity_C"]
    for keep in ("score", "order", "reverse_order"):
        kept = balancers.drop(*limits, keep)
        assert pairs(kept) == expected[f"drop_{keep}"]["kept"]
        assert kept.sum(axis=0).tolist() == expected[f"drop_{keep}"]["load"]
    assert balancers.drop(*limits, "random").sum(axis=0).tolist() == expected["drop_random"]["kept_per_expert"]
    chosen = sum(expected["load_before"])
    dropped = 1 - balancers.drop(*limits).sum() / chosen
    assert dropped == pytest.approx(expected["drop_ratio_with_integer_C"], rel=1e-9, abs=1e-12)
    for rounds, result in expected["reroute"].items():
        kept = balancers.reroute(*limits, int(rounds))
        assert pairs(kept) == result["kept"]
        assert chosen - kept.sum() == result["dropped_slots"]
    if given["gamma"] is not None:
        assert (
            balancers.expert_capacity(given["gamma"], len(limits[0]), given["top_k"], limits[0].shape[1])
            == given["capacity_C"]
        )


@vectors("capacity_aware", "capacity")
def test_expert_capacity(case):
    assert balancers.expert_capacity(**case["input"]) == case["expected"]["reference_C"]
    assert balancers.expert_capacity(**case["input"], rounding="floor") == case["expected"]["C_floor"]


@vectors("capacity_aware", "expert_drop")
def test_drop_experts(case):
    load, count = case["input"]["load"], case["input"]["drop_count"]
    ids = balancers.drop_experts(load, count)
    assert ids.tolist() == case["expected"]["dropped_experts"]
    assert np.sum(np.take(load, ids)) / np.sum(load) == pytest.approx(
        case["expected"]["dropped_load_fraction"], rel=1e-9
    )
    assert np.delete(load, ids).max() == case["expected"]["max_load_after"]


@pytest.mark.parametrize("rule, named", [("literal", "literal"), ("prose", "prose_without_B_test")])
@vectors("libra", "replication_planning")
def test_libra_plan(case, rule, named):
    given, expected = case["input"], case["expected"][named]
    plan = balancers.libra_plan(given["expert_load"], given["home_gpu"], given["N"], given["L"], rule)
    assert plan.holds.T.tolist() == expected["M"]
    assert plan.load.tolist() == pytest.approx(expected["load_after"], rel=1e-9)
    assert (plan.holds.sum(axis=1) - np.bincount(given["home_gpu"], minlength=len(plan.holds))).tolist() == expected[
        "extras_per_gpu"
    ]
    first = balancers.libra_plan(given["expert_load"], given["home_gpu"], given["L"], given["L"], rule)
    assert first.load.tolist() == expected["load_before_phase2"]


@vectors("libra", "token_sharding")
def test_libra_shard(case):
    given = case["input"]
    assert {"literal", "restart"} <= set(case["expected"]["variants"])
    for rule, expected in case["expected"]["variants"].items():
        plan = balancers.libra_shard(
            np.transpose(given["M"]), given["local_load"], given["remote_load"], given["B"], given["epsilon"], rule
        )
        assert plan.load == pytest.approx(np.array(expected["final_load"]), rel=1e-9)
        assert plan.moves == pytest.approx(np.array(expected["moves"]).reshape(-1, 4), rel=1e-9)
        assert plan.load.max() >= case["expected"]["min_max_lower_bound"] * (1 - 1e-9)


@vectors("lina", "path_table")
def test_lina(case):
    given, expected = case["input"], case["expected"]
    table = balancers.lina_fit(np.transpose(given["train_top1"]), given["path_length"], given["num_experts"])
    top1 = np.transpose(given["test_top1"])
    predicted = table.predict(top1, given["top_k"])
    assert (predicted[0] == -1).all()
    assert predicted[1:].tolist() == expected["predictions"]
    popularity = [np.bincount(layer[:, 0], minlength=given["num_experts"]).tolist() for layer in predicted[1:]]
    assert popularity == expected["predicted_popularity"]
    found = (predicted[1:] == top1[1:, :, None]).any(axis=2)
    assert found.mean() == pytest.approx(expected["top1_in_prediction_rate"], rel=1e-9)


@vectors("lina", "uniform_split")
def test_uniform_split(case):
    assert balancers.uniform_split(**case["input"]).tolist() == case["expected"]["integer"]


@vectors("lina", "device_share")
def test_device_share(case):
    share = balancers.device_share(case["input"]["popularity"], case["input"]["num_devices"])
    assert share.tolist() == pytest.approx(case["expected"]["n_e"], rel=1e-9)


@vectors("lina", "prediction_accuracy")
def test_prediction_accuracy(case):
    mean, whole = balancers.prediction_accuracy(**case["input"])
    assert mean == pytest.approx(case["expected"]["mean_fraction_of_experts"], rel=1e-9)
    assert whole == pytest.approx(case["expected"]["fraction_of_tokens_all_correct"], rel=1e-9)


def test_accuracy_of_tables_of_other_sizes():
    assert balancers.prediction_accuracy([[1, 2, 3]], [[3, 4]]) == (0.5, 0.0)
    assert balancers.prediction_accuracy(np.zeros((0, 2)), np.zeros((0, 2))) == (1.0, 1.0)
    with pytest.raises(ValueError, match=r"\b2 tokens.*\b1\b"):
        balancers.prediction_accuracy([[1], [2]], [[1]])


def test_every_part_of_the_vectors_has_a_test():
    written = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*vectors.py"))
    for file in FOLDER.glob("*.json"):
        for part in {case.get("part") for case in json.loads(file.read_text(encoding="utf-8"))["cases"]}:
            assert f'@vectors("{file.stem}"' + (f', "{part}"' if part else "") in written, f"{file.name}: {part}"


@pytest.mark.parametrize("rule, named", [("released", "released_code"), ("paper", "paper_algorithm2")])
@vectors("harmoeny")
def test_harmoeny(case, rule, named):
    given, expected = case["input"], case["expected"][named]
    plan = balancers.harmoeny(given["tokens"], given["num_gpus"], given["q"], rule)
    assert plan.load.tolist() == expected["final_load"]
    assert plan.moves.tolist() == expected["moves"]
    assert balancers.imbalance(plan.load) == pytest.approx(expected["imbalance"], rel=1e-9)
    assert (
        balancers.harmoeny(given["tokens"], given["num_gpus"], 10**9, rule).load.tolist()
        == case["expected"]["start_load"]
    )


COSTS = {"linear": lambda tokens: tokens, "roofline": lambda tokens: max(40, tokens) if tokens else 0}


@pytest.mark.parametrize("named", COSTS)
@vectors("prefill_placement")
def test_remap_and_dup(case, named):
    given, expected, cost = case["input"], case["expected"][named], COSTS[named]
    moved = balancers.remap([cost(tokens) for tokens in given["freq"]], given["num_gpus"])
    assert lists(moved.experts) == expected["remap"]["experts_per_gpu"]
    assert moved.load == pytest.approx(np.array(expected["remap"]["load"]), rel=1e-9)
    copied = balancers.dup(given["freq"], given["num_gpus"], given["extra_slots_per_gpu"], cost)
    assert copied.steps == pytest.approx(np.array(expected["dup"]["steps"]), rel=1e-9, abs=1e-9)
    assert lists(copied.experts) == expected["dup"]["experts_per_gpu"]
    assert copied.load == pytest.approx(np.array(expected["dup"]["load"]), rel=1e-9)


@vectors("metrics")
def test_metrics(case):
    load, expected = case["input"]["loads"], case["expected"]
    assert balancers.balancedness(load) == pytest.approx(expected["balancedness_avg_over_max"], rel=1e-9)
    assert balancers.imbalance(load) == pytest.approx(expected["imbalance_ratio_max_over_avg"], rel=1e-9)
    eps = 1e-5  # SGLang's utilization is the balancedness of loads that are each a little larger
    assert balancers.balancedness(np.array(load) + eps) == pytest.approx(expected["sglang_utilization"], rel=1e-9)
    assert balancers.imbalance(load) == pytest.approx(expected["straggler_factor"], rel=1e-9)


# ---- Reference vectors of the wafer's allocation by the paper's text, and of its heatmap predictor.


def step_of(given):
    """The case as a step: the first host of an expert is its home, the others hold copies of all its slices."""
    hosts = {int(expert): dies for expert, dies in given["expert_die_map"].items()}
    experts, mesh = max(hosts, default=0) + 1, build_mesh(given["mesh_x"], given["mesh_y"])
    tokens, home = np.zeros((2, experts), np.int32)
    copied = np.zeros((experts, mesh.dies), np.int8)
    for expert, count in given["reqs"]:
        tokens[expert] = count
    for expert, dies in hosts.items():
        home[expert] = dies[0]
        copied[expert, dies[1:]] = SLICES
    known = {
        "tokens": tokens,
        "first_seen": np.full(experts, -1, np.int16),
        "home": home,
        "copied_slices": copied,
        "hops": mesh.hops,
        "costs": DOJO_COSTS,
        "layer": 0,
        "step": 0,
        "holders": (copied > 0) | (home[:, None] == np.arange(mesh.dies)),
        "pair_ns": mesh.hops.astype(float),
        "pair_bytes_per_ns": np.ones(mesh.hops.shape),
    }
    return StepView(**{field: known[field] for field in StepView._fields if field in known})


@vectors("wafer_alloc", "task_allocation")
def test_allocation_by_the_papers_text(case):
    given, expected = case["input"], case["expected"]
    plan = paper(step_of(given), block_tokens=given["block"], distance=given["dis"])
    entries = list(zip(plan.expert.tolist(), plan.die.tolist(), plan.tokens.tolist(), strict=True))
    assert sum(tokens for _, _, tokens in entries) == expected["total_requests"]
    assert len({(expert, die) for expert, die, _ in entries}) == len(entries)
    for expert, total in expected["total_per_expert"].items():
        mine = [(die, tokens) for e, die, tokens in entries if e == int(expert)]
        assert sum(tokens for _, tokens in mine) == total
        assert {die for die, _ in mine} <= set(expected["candidates"][expert])
        assert len([tokens for _, tokens in mine if tokens % given["block"]]) <= 1
        assert len(mine) <= expected["max_blocks_per_expert"][expert]


@vectors("wafer_alloc", "heatmap_predictor")
def test_heatmap_predictor(case):
    given, expected = case["input"], case["expected"]
    heat = np.array(given["heatmap"], np.uint32)[None]
    experts, dies = heat.shape[1], len(given["experts_computed_per_die"])
    hot = np.zeros((1, experts, (experts + 7) // 8), np.uint8)
    TopPositive(given["top_n"])(heat, np.ones((1, experts), np.bool_), hot)
    plan = sorted((expert, die) for die, mine in enumerate(given["experts_computed_per_die"]) for expert in mine)
    expert, die = np.array(plan, np.int32).reshape(-1, 2).T.copy()
    bits = copy_bits(expert, die, hot[0], dies, experts, False)
    assert [np.flatnonzero(row).tolist() for row in bits] == expected["predicted_next_per_die"]


@vectors("wafer_alloc", "heatmap_update")
def test_heatmap_update(case):
    from archsim.policies.free_heatmap import _count_pairs

    experts, selections = (
        case["input"]["num_experts"],
        np.array(case["input"]["selections"], np.int16),
    )  # [token, request, k]
    length, requests, top_k = selections.shape
    tokens = selections.transpose(1, 0, 2).reshape(-1, 1, top_k)
    request = np.repeat(np.arange(requests, dtype=np.int32), length)
    same = np.concatenate([[False], request[1:] == request[:-1]])
    heat, changed = np.zeros((1, experts, experts), np.uint32), np.zeros((1, experts), np.bool_)
    last = np.zeros((requests, 1, top_k), np.int16)
    _count_pairs(tokens, 0, 1, request, same, same, last, heat, changed)
    assert heat[0].tolist() == case["expected"]["heatmap"]
    assert heat.sum() == case["expected"]["total"]


# ---- What balancers refuse, with what is wrong and what would fit; and the least inputs that they take.


@table_of(__file__, "refused")
def test_refuses(function, given, named, said):
    with pytest.raises(ValueError, match=said):
        getattr(balancers, function)(*given, **named)


def test_refuses_what_is_of_another_fit_and_negative_costs():
    fitted = balancers.lina_fit([[0], [1]], 1, 2)
    with pytest.raises(ValueError, match=r"\b1 layers.*\b2\b"):
        fitted.predict([[0]], 1)
    with pytest.raises(ValueError, match=r"\b2\b.*experts"):
        fitted.predict([[0], [0]], 3)
    with pytest.raises(ValueError, match="cost of tokens has negative"):
        balancers.dup([1.0], 1, 1, lambda tokens: -tokens)


def test_one_gpu_and_one_expert_are_enough():
    assert balancers.eplb([[5.0]], 1, 1, 1, 1).physical_to_logical.tolist() == [[0]]
    assert balancers.eplb([[5.0]], 3, 1, 1, 1).logical_to_physical.tolist() == [[[0, 1, 2]]]
    assert balancers.lplb([5.0], [[0, 0]]).max_load == 5.0
    assert balancers.greedy_placement([5.0], 1, 0, [1]).experts[0].tolist() == [0]
    assert balancers.remap([5.0], 1).load.tolist() == [5.0]
    assert balancers.dup([5.0], 1, 2, float).steps.shape == (0, 4)
    assert balancers.harmoeny([[5]], 1, 1).load.tolist() == [5]
    assert balancers.libra_plan([[5]], [0], 2, 1).load.tolist() == [5]
    assert balancers.waterfill([[[0]]], 1, 1).destination[0].tolist() == [0]


def test_more_gpus_than_experts():
    """Every slot is filled; nobody's share is lost."""
    assert np.bincount(balancers.eplb([[3.0, 1.0]], 4, 1, 1, 4).physical_to_logical[0]).tolist() == [3, 1]
    assert [held.tolist() for held in balancers.dup([4.0, 2.0], 3, 1, float).experts] == [[0, 1], [0, 1], [0]]
    assert [held.tolist() for held in balancers.remap([1.0, 2.0], 3).experts] == [[1], [0], []]


def test_nothing_to_do():
    assert balancers.eplb(np.zeros((0, 4)), 4, 1, 1, 2).logical_to_physical.shape == (0, 4, 1)
    assert balancers.lplb([], []).split == []
    assert balancers.lplb([0.0, 0.0], [[0, 1], [1]], 2).max_load == 0.0
    assert balancers.craft_balancedness(np.zeros((2, 1, 2)), [[[0], [1]]]).tolist() == [[1.0], [1.0]]
    assert balancers.craft_budget({1: [1.0]}, 0).tolist() == [0]
    assert balancers.waterfill([[], []], 2, 2).waterline == 0
    assert balancers.drop(np.zeros((0, 4)), 2, 1).shape == (0, 4)
    assert balancers.reroute(np.zeros((0, 4)), 2, 1, 3).shape == (0, 4)
    assert balancers.drop_experts([1.0], 0).tolist() == []
    assert balancers.libra_shard([[1], [0]], [0, 0], [[0], [0]], 0).moves.shape == (0, 4)
    assert balancers.harmoeny([[0, 0]], 2, 1).moves.shape == (0, 5)
    assert balancers.uniform_split(0, 3).tolist() == [0, 0, 0]
    assert balancers.expert_capacity(1.0, 0, 2, 4) == 1


def test_padding_takes_no_shared_slot():
    plan = balancers.waterfill([[[-1, -1], [0, -1]], [[2, 3]]], 2, 2)
    assert plan.routed_load.tolist() == [1, 2]
    assert plan.destination[0][0] == -1 and plan.destination[0][1] >= 0

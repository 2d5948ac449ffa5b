"""Reference vectors of the wafer's allocation by the paper's text, and of its heatmap predictor."""

import numpy as np
from support.vectors import vectors

from archsim.engine.machine import policy_costs
from archsim.policies.allocation import StepView, paper
from archsim.policies.heatmap import TopPositive, copy_bits
from archsim.specs.library import load_model, load_system
from archsim.specs.model import SLICES
from microarch.fabric.topology import build_mesh


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
        "tokens": tokens, "first_seen": np.full(experts, -1, np.int16), "home": home, "copied_slices": copied,
        "hops": mesh.hops, "costs": policy_costs(load_system("dojo"), load_model("deepseek-v3")), "layer": 0, "step": 0,
        "holders": (copied > 0) | (home[:, None] == np.arange(mesh.dies)), "pair_ns": mesh.hops.astype(float),
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
    from archsim.policies.heatmap import _count_pairs

    experts, selections = (
        case["input"]["num_experts"], np.array(case["input"]["selections"], np.int16)
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

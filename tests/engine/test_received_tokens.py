"""A die pays for the tokens that it receives, however many dies there are (physics: `gemm: grouped`)."""

import numpy as np
import pytest

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import RunDemand
from archsim.engine.engine import EventEngine
from archsim.engine.gemm import law_of_ranks
from archsim.engine.loop import Replay
from archsim.engine.moves import Sizes, received_of_experts
from archsim.specs.library import load_assumptions, load_model
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.system import SystemSpec
from tests.support.small_runs import scenario_of

EP = PolicySpec(name="ep", **PRESETS["ep"])
ENGINES = [EventEngine, AnalyticalEngine]
ACTIVE = 2  # experts of every die that get tokens
TOP_K = 8


def switched(dies, launch="local_cp"):
    return SystemSpec.model_validate(
        {
            "name": "switched", "source": "test", "fabric": {"levels": [{"switch": dies}]}, "launch": launch,
            "hbm": {"bandwidth": "3.35 TB/s", "capacity": "80 GB"}, "d2d": {"bandwidth": "1 TB/s"},
            "llc": {"capacity": "44 MiB"},
            "compute": {"peak": "1979 TFLOP/s", "dtype": "fp8", "calibration": "h100"},
        }
    )  # fmt: skip


def model_of(name):
    return load_model(name).model_copy(update={"layers": 4, "shared_experts": 0, "attention": None})


def demand_of(model, dies, tokens, routed):
    """``tokens`` of every die, each with eight experts on as many dies; every die runs ACTIVE experts."""
    home = np.repeat(np.arange(dies), tokens)
    local = model.experts // dies
    visited = (home[:, None] + np.arange(TOP_K)) % dies
    experts = visited * local + (np.arange(len(home)) % ACTIVE)[:, None]
    origins = np.zeros((1, 1, dies, model.experts), np.int32)
    np.add.at(origins[0, 0], (home[:, None], experts), 1)
    counts = origins.sum(axis=2)
    routing = {
        "routed": experts[:, None, :].astype(np.int16), "routed_die": home.astype(np.int32),
        "routed_from": np.array([0, len(home)]),
    }
    return RunDemand(
        tokens=counts.astype(np.int32), first_seen=np.argsort(-counts[0], axis=1).astype(np.int16)[None],
        has_prefill=False, layer_ids=np.array(model.moe_layer_ids[:1], np.int32), top_k=TOP_K, batch=len(home),
        digest="", origins=origins, **(routing if routed else {}),
    )  # fmt: skip


def step_ns(name, dies, tokens, engine, execution, routed, **changes):
    model = model_of(name)
    assumptions = load_assumptions(
        "physical", execution=execution, memory="experts", decision_cost="free", tables="unbounded",
        transfer_software="free", **changes,
    )  # fmt: skip
    demand = demand_of(model, dies, tokens, routed)
    scenario = scenario_of(switched(dies), model, EP, assumptions, demand.batch)
    return Replay(engine(scenario, demand.layer_ids), demand).run().decode_ns


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("execution", ["weight_streaming", "expert_parallel"])
@pytest.mark.parametrize("routed", [True, False], ids=["routing", "counts"])
@pytest.mark.parametrize("name, tokens", [("qwen3-235b-a22b", 64), ("qwen3-235b-a22b", 512), ("deepseek-v3", 128)])
def test_a_step_does_not_grow_with_the_number_of_dies(name, tokens, engine, execution, routed):
    """Pairs, distinct tokens and active experts of a die held fixed."""
    found = [step_ns(name, dies, tokens, engine, execution, routed) for dies in (16, 32, 64)]
    assert max(found) / min(found) < 1.02


@pytest.mark.parametrize("execution", ["weight_streaming", "expert_parallel"])
def test_where_every_die_has_all_tokens_nothing_moves_and_more_dies_cost_more(execution):
    changed = {"activations": "replicated"}
    few, many = (step_ns("qwen3-235b-a22b", dies, 512, EventEngine, execution, True, **changed) for dies in (16, 64))
    assert many > 1.2 * few


@pytest.mark.parametrize("experts, tokens, top_k", [(1, 10, 8), (4, 32, 8), (256, 8, 8), (300, 8, 8), (64, 5, 1)])
def test_an_even_share_of_experts_receives_what_the_hypergeometric_law_expects(experts, tokens, top_k):
    sizes, absent = Sizes(256, top_k), 1.0
    for chosen in range(top_k):  # none of the experts among the k selections
        absent *= max(256 - min(experts, 256) - chosen, 0) / (256 - chosen)
    of_group = tokens * 256 / top_k  # so many give every expert its tokens
    assert received_of_experts(sizes, experts, tokens) == pytest.approx(of_group * (1 - absent), rel=1e-9)


def test_fewer_distinct_tokens_cost_less_and_other_dies_cost_nothing():
    law = law_of_ranks(switched(16), model_of("qwen3-235b-a22b"), 16, dispatched=True)
    pairs, active = np.full(4, 2048.0), np.full(4, 8.0)
    few, some, many, same = law.times(pairs, active, np.array([256.0, 1024.0, 2048.0, 2048.0])).ns
    assert few < some < many == same
    with pytest.raises(ValueError, match="needs the tokens that it receives"):
        law.times(pairs, active)


@pytest.mark.parametrize("launch", ["gpu", "local_cp"])
def test_a_rank_without_pairs_takes_its_launch(launch):
    law = law_of_ranks(switched(16, launch), model_of("qwen3-235b-a22b"), 16, dispatched=True)
    one = law.times(np.ones(1), np.ones(1), np.ones(1))
    assert (law.idle_ns > 5_000) == (launch == "gpu")
    assert law.idle_ns <= one.ns[0]


def test_parts_of_a_time_sum_to_it():
    law = law_of_ranks(switched(16, "gpu"), model_of("deepseek-v3"), 16, dispatched=True)
    pairs = np.array([1.0, 8.0, 512.0, 50_000.0])
    times = law.times(pairs, np.minimum(pairs, 16.0), pairs)
    parts = (
        times.launch_ns, times.multiply_ns, times.inefficiency_ns, times.permute_ns, times.expert_ns, times.excess_ns,
    )  # fmt: skip
    assert sum(parts) == pytest.approx(times.ns)
    assert all((part >= 0).all() for part in parts)
    least_ns = pairs * 6 * 7168 * 2048 / 1979e12 * 1e9
    assert (times.multiply_ns <= least_ns * (1 + 1e-12)).all()

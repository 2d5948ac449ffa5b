"""`workload.layers`: some of the MoE layers run, and they do what they do among all."""

from dataclasses import replace

import numpy as np
import pytest
from support.tiny import tiny, tiny_file
from support.trace_files import TOY, save_npz, toy_requests

import archsim as ar
from archsim.base.errors import ArchsimError, SpecError, TraceError
from archsim.engine.demand import build_run_demand
from archsim.runs.feasibility import rooms
from archsim.runs.notes import result_notes
from archsim.runs.plan import prepare, select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment, load_model, load_planned
from archsim.specs.workload import SyntheticSpec
from archsim.workload import open_trace
from archsim.workload.trace import SomeLayers, representative_layers, seen_shares, some_layers, spread_layers
from archsim.workload.traffic_presets import generated_traffic

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
    assert two.startswith("2 of the 7 MoE layers of toy ran; tokens_per_s and times of a step are scaled to all")
    assert "a standard error of 1.0% (base) to 5.0% (ep), which 2 layers know badly" in two
    assert one.startswith("1 of the 7 MoE layers of toy ran; ") and "one layer does not tell" in one


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
    with pytest.raises(TraceError, match="workload.layers: 5 is out of range; the trace has 4 layers"):
        some_layers(trace, 5)


def test_more_layers_than_the_model_has_are_refused_with_both_numbers(tmp_path):
    with pytest.raises(SpecError, match=r"tiny.yaml.*workload\.layers: 9 is out of range; toy has 2 MoE layers"):
        file = tiny_file(tmp_path)
        file.write_text(file.read_text().replace("decode_steps: 4", "decode_steps: 4, layers: 9"))
        load_experiment(file)


def test_a_point_with_more_layers_than_its_model_is_refused_before_anything_runs(tmp_path):
    file = tiny_file(tmp_path)
    file.write_text(f"{file.read_text()}sweep: {{grid: {{workload.layers: [1, 2, 3]}}}}\n")
    with pytest.raises(ArchsimError, match="workload.layers: 3 is out of range; toy has 2 MoE layers"):
        select(load_planned(file))


def test_keys_tell_the_layers_and_are_as_before_without(tmp_path):
    whole, some = one_run(tmp_path), one_run(tmp_path, "workload.layers=3")
    assert len({whole.key, some.key, one_run(tmp_path, "workload.layers=4").key}) == 3
    assert whole.demand.key != some.demand.key
    assert "layers" not in whole.demand.key[1]
    scenario = replace(whole.scenario, workload=whole.workload.model_copy(update={"layers": None}))
    told = replace(whole, scenario=scenario)
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

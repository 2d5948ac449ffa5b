"""Rows of papers' numbers that no sweep gives."""

import pytest

from archsim.specs.library import load_model
from archsim.studies import claim_tables
from archsim.workload import statistics
from archsim.workload.generated import collect, traffic_of
from archsim.workload.traffic_presets import load_traffic, of_layers


def test_the_published_parts_cost_what_archsim_area_prints():
    parts = {each["part"]: each for each in claim_tables.decision_hardware("scaled")}
    assert parts["heatmap"]["mib"] == 50 and parts["heatmap cache"]["mib"] == 0.5
    rest = [each for name, each in parts.items() if name != "total"]
    assert parts["total"]["power_mw"] == pytest.approx(sum(each["power_mw"] for each in rest))
    dense = {each["part"]: each for each in claim_tables.decision_hardware()}
    assert parts["ATU"]["area_mm2"] < dense["ATU"]["area_mm2"] / 5  # cells shrunk by the node's name


def test_statistics_of_a_preset_are_shares_and_correlations():
    (row,) = claim_tables.routing_statistics(["deepseek-v3"], requests=20, layers=2)
    shares = [value for name, value in row.items() if name.startswith(("pairs", "following", "together", "prefill"))]
    assert len(shares) == 8 and all(0 < each <= 100 for each in shares)
    assert -1 <= row["heatmap_rank"] <= 1 and row["hottest_most"] >= row["hottest_least"] > 1 and row["bright"] > 1


def test_heatmaps_of_prefill_and_decode_agree_as_far_as_halves_of_the_requests_do():
    traffic = load_traffic("deepseek-v3", load_model("deepseek-v3"))
    trace = collect(traffic_of(of_layers(traffic, traffic.layer_ids[4:6], "deepseek-v3"), 40, 1))
    agreed, most = statistics.heatmap_agreement(trace), statistics.heatmap_ceiling(trace)
    assert agreed["cross_layer"].shape == (1,) and agreed["cross_token"].shape == (2,)
    assert (most["cross_token"] > agreed["cross_token"] - 0.2).all()
    prompts = statistics.rows_of(trace, trace.iteration == 0)
    assert statistics.heatmap_agreement(prompts) == {}


def test_paths_tell_more_than_chance():
    (row,) = claim_tables.path_tables(["glm-4.5"], tokens=2000)
    assert 5 < row["accuracy"] < 50 and 5 < row["popular"] < 50


def test_the_worst_placement_is_worse_than_the_default_which_is_worse_than_remap():
    rows = claim_tables.placed_by_load("qwen3-235b-a22b", 8, {"max_over_min": 1.3}, layers=2)
    found = {each["placement"]: each["max_over_mean"] for each in rows}
    assert found["worst"] > found["default"] > found["remap"] >= found["best"] == 1


def test_a_larger_skew_drops_more():
    small, large = claim_tables.skewed_loads("olmoe-1b-7b", [0.5, 1.0])
    assert small["hottest"] < large["hottest"] and small["dropped"] < large["dropped"] and small["two"] < large["two"]


def test_lplb_balances_its_graphs_and_eplb_its_vector():
    for row in claim_tables.shared_by_graph(draws=3):
        assert 1 <= row["max_over_mean"] < row["before"]
    load = [600, 560, 120, 120, 20, 10, 10, 10]
    assert claim_tables.replicated(load, 8, 2) == [{"most": 232.0, "mean": 181.25}]


def test_parts_of_a_layer_grow_with_tokens_and_stages_share_all_pairs():
    small, large = (
        {each["part"]: each["ns"] for each in claim_tables.parts_of_layer("qwen3-235b-a22b", "h200", tokens, 8)}
        for tokens in (4096, 32768)
    )
    assert all(large[part] > small[part] for part in ("dispatch", "combine", "broadcast", "predict", "to_host"))
    assert large["to_gpu"] == small["to_gpu"]  # tokens of every expert, however many there are
    (row,) = claim_tables.two_stages("qwen3-235b-a22b", 8, 4096, 0.88, layers=1)
    assert 1 / 8 < row["local"] < 1 and row["imbalance"] > 1
    (alone,) = claim_tables.two_stages("qwen3-235b-a22b", 8, 4096, 0.88, slots=0, layers=1)
    assert alone["local"] == pytest.approx(1 / 8, abs=0.05)  # nothing but its own experts

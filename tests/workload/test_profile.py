"""The profile of a trace as a page, a table and commands."""

import csv
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest

from archsim.cli.main import main
from archsim.report.profile_page import _by_layer
from archsim.specs.config_files import named_files
from archsim.specs.library import load_model
from archsim.workload import open_trace
from archsim.workload.profile import DEFINITIONS, insights, profile
from archsim.workload.statistics import gini, loads
from archsim.workload.traffic_fit import simulate
from archsim.workload.traffic_presets import load_traffic, model_of

LLAMA = "data/traces/llama4-maverick/mmlu_abstract_algebra_anatomy.npz"


@pytest.fixture(scope="module")
def llama(shared):
    trace = open_trace(shared / LLAMA, load_model("llama-4-maverick"))
    return profile(trace)


def test_insights_have_measured_support(llama):
    found = insights(llama)
    assert [each.number for each in found] == [1, 2, 3, 4, 5, 6]
    # Insight 1 is of heatmaps, and those of the two halves of this trace do not agree with each other.
    verdicts = ["not measurable", *["supported"] * 3, "not measurable", "supported"]
    assert [each.verdict for each in found] == verdicts
    assert f"{llama.mean('max_over_mean'):.1f}" in found[3].measured


def test_popularity_predicts_less_than_the_heatmap_at_its_best(llama):
    assert (llama.layers["predictable_load"] <= llama.layers["predictable_ceiling"] + 1e-12).all()
    assert (llama.layers["predictable_unseen"] <= 1).all() and llama.mean("predictable_unseen") > 0.3


def test_the_command_writes_a_page_and_a_table(shared, tmp_path, capsys):
    source = str(shared / "data/traces/gpt-oss-20b/mmlu_decode.npz")
    assert main(["trace", "profile", source, "--model", "gpt-oss-20b", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "coactivation_top20       0.75" in printed and "insight 1: not measurable" in printed
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    with (tmp_path / "profile.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    means = {row["statistic"]: float(row["value"]) for row in rows if row["of"] == "mean of layers"}
    for name in means:
        assert DEFINITIONS[name] in unescape(page)
    assert page.count('class="plot"') == 4 and page.count("<img") > 8 and 'src="http' not in page
    assert page.count('class="heat"') == page.count('class="scalebar"') == page.count('class="ends"')
    assert "layer of the model" in page
    layers = [float(row["value"]) for row in rows if row["statistic"] == "gini" and row["of"] == "layer"]
    assert np.mean(layers) == pytest.approx(means["gini"], rel=1e-4) and len(layers) == 24


def test_curves_of_layers_are_over_the_layers_of_the_model(shared):
    """Llama 4's MoE layers are every second; statistics of two layers have one value less."""
    trace = open_trace(shared / "data/traces/gpt-oss-20b/mmlu_decode.npz", load_model("gpt-oss-20b"))
    some = replace(trace, layer_ids=trace.layer_ids * 2 + 1)
    found = SimpleNamespace(trace=some, layers={"gini": np.arange(24.0), "cross_layer_top20": np.arange(23.0)})
    assert _by_layer(found, "gini") == [(2 * at + 1, float(at)) for at in range(24)]
    assert [layer for layer, _ in _by_layer(found, "cross_layer_top20")] == list(range(1, 46, 2))


def test_synth_writes_a_trace_that_opens(tmp_path, capsys):
    out = tmp_path / "made.npz"
    arguments = ["--model", "olmoe-1b-7b", "--requests", "5", "--seed", "3", "--out", str(out)]
    assert main(["trace", "synth", "olmoe-1b-7b", *arguments]) == 0
    assert "5 requests" in capsys.readouterr().out
    assert open_trace(out, load_model("olmoe-1b-7b")).requests == 5


def test_presets_know_their_model(tmp_path, capsys):
    out = str(tmp_path / "made.npz")
    for name in named_files("traffic"):
        assert model_of(name) == name
    assert main(["trace", "synth", "--like", "deepseek-v3", "--requests", "2", "--out", out]) == 0
    assert open_trace(out, load_model("deepseek-v3")).requests == 2
    (tmp_path / "mine.yaml").write_text("name: mine\nsource: x\n")
    assert main(["trace", "synth", str(tmp_path / "mine.yaml"), "--out", out]) == 2
    assert "mine.yaml:1: does not name its model; give --model" in capsys.readouterr().err


def test_unknown_presets_are_named(tmp_path, capsys):
    arguments = ["--model", "olmoe-1b-7b", "--out", str(tmp_path / "x.npz")]
    assert main(["trace", "synth", "olmo-1b-7b", *arguments]) == 2
    assert "no traffic preset 'olmo-1b-7b'; did you mean 'olmoe-1b-7b'?" in capsys.readouterr().err


def test_fit_makes_a_preset_of_loads(tmp_path, capsys):
    model = load_model("mixtral-8x7b")
    counts = np.random.default_rng(1).integers(50, 400, size=(32, 8))
    np.savez(tmp_path / "loads.npz", counts=counts, layer_ids=np.arange(32))
    out = tmp_path / "mine.yaml"
    assert main(["trace", "fit", str(tmp_path / "loads.npz"), "--model", "mixtral-8x7b", "--out", str(out)]) == 0
    traffic = load_traffic(str(out), model)
    assert model_of(str(out)) == "mixtral-8x7b"
    assert traffic.popularity[1] == pytest.approx(counts / counts.sum(axis=1, keepdims=True), rel=0.01)
    made = loads(simulate(traffic, np.tile([[30, 30]], (300, 1)), np.zeros(300), seed=1))
    assert gini(made) == pytest.approx(gini(counts), rel=0.15)

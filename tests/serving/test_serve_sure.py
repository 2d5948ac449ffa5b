"""Served requests in many worlds: laws of the draws, the words of the answer, its files, and resuming."""

import json

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.runs.sweep import Unwatched
from archsim.serving.hosts import residual_of
from archsim.serving.serving import host_for
from archsim.specs.serving_files import load_serving
from archsim.specs.uncertainty import load_widths
from archsim.studies.serving.sure import off_of

FILE = {
    "system": "h200_node", "model": "qwen3-30b-a3b", "parallel": {"attention": {"tp": 4}}, "engine": "vllm",
    "requests": {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 12}, "count": 12},
}  # fmt: skip
LAWS = FILE | {"engine": "none"}
TWO = {
    "system": "dojo", "model": "qwen3-30b-a3b", "engine": "none", "policies": ["ep", "allo"],
    "parallel": {"attention": {"tp": 1, "dp": 25}, "experts": {"ep": 25}},
    "routing": {"synthetic": {"popularity_skew": 0.5}, "requests": 4, "steps": 4, "layers": 1},
    "requests": {"concurrency": 25, "input": {"fixed": 100}, "output": {"fixed": 4}, "count": 50},
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))


def test_a_measured_engine_has_the_residuals_of_its_measurements(tmp_path):
    found = ar.serve_sure(FILE, 32, out=tmp_path / "one")
    (option,) = found.options
    assert {each.key.rpartition(".")[2] for each in found.quantities} == {"tpot", "ttft"}
    low, high = residual_of("vllm", load_serving(FILE).model, "h200", "bf16", "bf16").tpot
    tpot = option.intervals["tpot_mean_ms"]
    value = option.values["tpot_mean_ms"]
    assert tpot.p05 < low * value * 1.1 and tpot.p95 > high * value * 0.9
    assert "TPOT" in found.sentence and "90 %" in found.sentence
    row = json.loads((tmp_path / "one" / "sure.json").read_text())["options"][0]
    assert row["tpot_mean_ms_p05"] == tpot.p05 <= row["tpot_mean_ms_p50"] <= row["tpot_mean_ms_p95"]
    assert found.sentence in (tmp_path / "one" / "sure.html").read_text()
    assert list(found.to_pandas().columns)[:3] == ["option", "ttft_mean_ms", "ttft_mean_ms_p05"]


def test_laws_without_a_measured_engine_are_drawn_table_by_table():
    found = ar.serve_sure(LAWS, 16)
    tables = {each.key.split(".")[1] for each in found.quantities if each.key.startswith("measured")}
    assert tables == {"gemm", "moe", "attention", "collectives"}
    assert found.options[0].intervals["tpot_mean_ms"].width > 0


def test_a_factor_of_one_gives_the_numbers_to_the_bit():
    serving = load_serving(LAWS)
    ones = {"": {name: 1.0 for name in ("products", "experts", "attention", "moves", "decodes", "iteration_ns")}}
    from archsim.serving.serving import serve

    assert serve(serving).measures == serve(serving._replace(off=ones)).measures
    assert host_for(serving._replace(off={"": {"products": 2.0}})).products == 2


def test_policies_on_a_wafer_share_their_worlds():
    found = ar.serve_sure(TWO, 16)
    (pair,) = found.pairs
    assert {each.key.split(".")[0] for each in found.quantities} >= {"system", "measured"}
    assert pair.probability + pair.reverse <= 1
    assert ("are a tie" in found.sentence) == (pair.probability < 0.9)
    widths = [interval.p95 / interval.p05 for interval in (each.intervals["tpot_mean_ms"] for each in found.options)]
    assert pair.ratio.p95 / pair.ratio.p05 < max(widths)


def test_an_interrupted_one_goes_on_and_gives_the_same_bytes(tmp_path, monkeypatch):
    class Stops(Unwatched):
        def at(self, text, share):
            if share > 0.5:
                raise KeyboardInterrupt

    shares = []

    class Counts(Unwatched):
        def at(self, text, share):
            shares.append(share)

    monkeypatch.setenv("ARCHSIM_CACHE", "off")
    with pytest.raises(KeyboardInterrupt):
        ar.serve_sure(FILE, 16, out=tmp_path / "out", watcher=Stops())
    ar.serve_sure(FILE, 16, out=tmp_path / "out", watcher=Counts())
    assert shares[0] > 0.4
    ar.serve_sure(FILE, 16, out=tmp_path / "whole")
    for name in ("sure.json", "sure.csv", "sure.html"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_sides_apart_draw_what_is_known_of_each():
    apart = LAWS | {"disaggregated": {"prefill": {"parallel": {"attention": {"tp": 4}}},
                                      "decode": {"parallel": {"attention": {"tp": 4}}}}}  # fmt: skip
    del apart["parallel"]
    found = ar.serve_sure(apart, 16)
    assert found.options[0].intervals["ttft_mean_ms"].width > 0
    serving = load_serving(apart)
    sides = {side: off_of(serving.on(side), load_widths()).factors for side in ("prefill", "decode")}
    names = {side: {name for name, _ in factors} for side, factors in sides.items()}
    assert names == {"prefill": {"decodes", "prompts", "ttft"}, "decode": {"decodes", "prompts"}}  # ttft: once


def test_few_samples_are_refused_and_the_command_says_the_sentence(capsys, tmp_path):
    with pytest.raises(ArchsimError, match="at least 16"):
        ar.serve_sure(FILE, 15)
    import yaml

    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump(FILE))
    assert main(["serve", str(file), "--samples", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "90 %" in found["sure"]["sentence"] and np.isfinite(found["sure"]["options"][0]["tpot_mean_ms_p95"])
    assert main(["serve", str(file), "--samples", "16", "--search"]) == 2

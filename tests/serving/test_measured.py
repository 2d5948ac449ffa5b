"""Serving against what was measured on GPUs; skipped without the data. docs/measurements.md has the whole table."""

import csv

import numpy as np
import pytest

from archsim.base.units import NS_PER_MS
from archsim.serving.hosts import host_file
from archsim.serving.measures import times_ns
from archsim.serving.requests import without_hashes
from archsim.serving.serving import deploy, serve_requests
from archsim.specs.loading.serving import load_serving
from archsim.studies.serving.accuracy import judged_rows, median_errors, simulated

RUN = "qwen3-30b-a3b_rtxpro6000_dp2ep2"


def rows(path):
    if not path.is_file():
        pytest.skip(f"{path} not found")
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_means_of_single_requests_are_those_measured(shared):
    folder = shared / "data" / "serving"
    asked = [row for row in rows(folder / "llmservingsim_workloads.csv") if row["workload"] == "qwen3"]
    measured = [row for row in rows(folder / "llmservingsim_measured_first_half.csv") if row["run"] == RUN]
    columns = (np.array([float(row[key]) for row in asked]) for key in ("arrival_ms", "input_tokens", "output_tokens"))
    arrival, prompt, output = columns
    serving = load_serving("configs/serve_rtx_pro_6000.yaml")
    found = serve_requests(serving, deploy(serving), without_hashes(arrival * NS_PER_MS, prompt, output))
    times = {name: ns[: len(measured)] / NS_PER_MS for name, ns in times_ns(found.served).items()}
    for name, bound in (("ttft", 0.30), ("tpot", 0.05)):
        real = np.array([float(row[f"{name}_ms"]) for row in measured])
        assert times[name].mean() == pytest.approx(real.mean(), rel=0.10)
        assert np.abs(times[name] / real - 1).mean() < bound


def test_constants_are_fitted_on_at_most_a_fifth_of_the_groups(shared):
    path = shared / "data" / "serving" / "silicon_agg.csv"
    if not path.is_file():
        pytest.skip(f"{path} not found")
    groups = {row["group"] for row in judged_rows(path)}
    fitted = set(host_file().fitted_on)
    assert 0 < len(fitted & groups) <= len(groups) / 5


@pytest.mark.parametrize(("model", "most_tpot"), [("Llama-3.1-70B", 0.20), ("gpt-oss-120b", 0.25)])
def test_held_out_points_are_met(shared, model, most_tpot):
    """Some groups that constants were not fitted on, on H200."""
    path = shared / "data" / "serving" / "silicon_agg.csv"
    if not path.is_file():
        pytest.skip(f"{path} not found")
    fitted = host_file().fitted_on
    chosen = [
        row
        for row in judged_rows(path)
        if row["model"] == model
        and row["system"].startswith("H200")
        and row["group"] not in fitted
        and row["concurrency"] <= 16
        and row["backend"] == "vllm"
    ]
    tpot, _, _, points = median_errors(simulated(chosen))
    assert points >= 5 and tpot < most_tpot

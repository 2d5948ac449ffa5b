"""Serving against what was measured on GPUs; skipped without the data. docs/measurements.md has the whole table."""

import csv

import numpy as np
import pytest
from measured_serving.accuracy import MODELS, SYSTEMS, cases_of, judged_rows, median_errors, points_of
from measured_serving.recipes import precision_of, scheduler_of

from archsim.base.units import NS_PER_MS
from archsim.serving.hosts import host_file
from archsim.serving.measures import times_ns
from archsim.serving.requests import without_hashes
from archsim.serving.serving import deploy, serve_requests
from archsim.serving.simulate import Scheduler
from archsim.specs.serving_files import load_serving

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


@pytest.mark.parametrize(
    ("model", "most_tpot", "most_ttft"), [("Llama-3.1-70B", 0.08, 0.2), ("gpt-oss-120b", 0.15, 0.3)]
)
def test_closed_loops_are_met(shared, model, most_tpot, most_ttft):
    """vLLM on H200 by the shipped constants, whose errors on groups left out are in docs/accuracy.md."""
    path = shared / "data" / "serving" / "silicon_agg.csv"
    if not path.is_file():
        pytest.skip(f"{path} not found")
    asked = (model, "vllm", "H200-SXM-141GB")
    rows = [row for row in judged_rows(path) if (row["model"], row["backend"], row["system"]) == asked]
    cases, refused = cases_of(row for row in rows if row["concurrency"] <= 16)
    tpot, ttft, _, points = median_errors(point for case in cases for point in points_of(case, host_file()))
    assert points >= 5 and not refused and tpot < most_tpot and ttft < most_ttft


def test_what_a_file_leaves_open_is_as_the_measured_engines_were_started(shared):
    """The schedulers and the KV of a plain file are those of the scripts behind the measured points, but for a few."""
    table = shared / "data" / "serving" / "silicon_agg.csv"
    if not table.is_file():
        pytest.skip(f"{table} not found")
    asked, others = judged_rows(table)[::25], 0
    for row in asked:
        gpu, precision, wanted = SYSTEMS[row["system"]][0], precision_of(row), scheduler_of(row)
        parallel = {"attention": {"tp": int(row["tp"]), "dp": int(row["attention_dp"])}}
        if row["is_moe"]:
            parallel["experts"] = {"ep": int(row["moe_ep"]), "tp": int(row["moe_tp"])}
        found = load_serving(
            {
                "system": f"{gpu}_nvl72" if gpu.startswith("gb") else f"{gpu}_node", "model": MODELS[row["model"]],
                "engine": row["backend"], "precision": {"products": precision.products, "experts": precision.experts},
                "parallel": parallel,
                "requests": {
                    "concurrency": int(row["concurrency"]), "input": {"fixed": int(row["isl_tokens"])},
                    "output": {"fixed": int(row["osl_tokens"])},
                },
            }
        ).spec  # fmt: skip
        own = Scheduler.of(found.scheduler)
        same = own[:4] == wanted[:4] and own.params.get("poll_every", 1) == wanted.params.get("poll_every", 1)
        others += not same or found.precision.dtypes("bf16").kv != precision.kv
    assert others <= 0.1 * len(asked), f"{others} of {len(asked)}"

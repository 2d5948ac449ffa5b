"""``archsim calibrate --validate --served``: every format is read by its keys, and errors are those of cells."""

import csv
import json
from functools import partial

import numpy as np
import pytest
from measured_serving import cells as cells_told
from measured_serving.accuracy import Point as Cell
from measured_serving.accuracy import (
    case_of,
    cases_of,
    host_of_case,
    judged_rows,
    median_errors,
    points_of,
    pool_of,
    serve_point,
)
from measured_serving.cells import cells, nearest_errors, read_cells, write_cells
from measured_serving.cells import page as cells_page
from measured_serving.cells import worse as cells_worse
from measured_serving.fitting import FOLDS, HOST, PARTS, Means, fitted, fold_of, means_of
from measured_serving.recipes import precision_of, scheduler_of
from measured_serving.residuals import residual_rows
from support.examples import sampled
from support.shared import shared_path

from archsim.base.errors import SpecError, TraceError
from archsim.base.units import NS_PER_MS
from archsim.cli.main import main
from archsim.evidence.serving.accuracy import JudgedPoint, ServedAccuracy, cells_of, table_of, worse
from archsim.evidence.serving.load_results import read_served
from archsim.evidence.serving.measured_points import MeasuredPoint
from archsim.evidence.serving.measured_run import read_measured, under_load
from archsim.iteration.constants import ANY, host_file, host_of, residual_of, shape_of
from archsim.serving.measures import times_ns
from archsim.serving.requests import without_hashes
from archsim.serving.serving import deploy, serve_requests
from archsim.serving.simulate import Scheduler
from archsim.specs.library import load_model, load_system
from archsim.specs.serving_files import load_serving

DEPLOYMENT = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"}, "engine": "vllm",
    "requests": {"concurrency": 1, "input": {"fixed": 100}, "output": {"fixed": 100}},
}  # fmt: skip
ROW = {
    "point": "agg_1", "group": "A", "system": "H200-SXM-141GB", "gpus": 1, "model": "Llama-3.1-8B", "is_moe": 0,
    "backend": "vllm", "backend_version": "0.11", "precision": "fp8", "gemm_quant": "fp8", "moe_quant": "fp8",
    "isl_tokens": 1000, "osl_tokens": 100, "concurrency": 2, "tp": 1, "attention_dp": 1, "moe_tp": "", "moe_ep": "",
    "ttft_ms": 30.0, "tpot_ms": 4.0, "origin": "inferencex_db",
}  # fmt: skip
VLLM = {
    "model_id": "x", "max_concurrency": 4, "request_rate": "inf", "completed": 40, "total_input_tokens": 4000,
    "total_output_tokens": 800, "mean_ttft_ms": 20.0, "mean_tpot_ms": 5.0, "output_throughput": 700.0,
}  # fmt: skip
SGLANG = VLLM | {"random_input_len": 1000, "random_output_len": 50, "random_range_ratio": 0.5, "request_rate": 2.0}
AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 21.0}, "inter_token_latency": {"unit": "ms", "avg": 6.0},
    "request_throughput": {"unit": "requests/sec", "avg": 2.0}, "request_count": {"avg": 40},
}  # fmt: skip
GUIDELLM = {"benchmarks": [{
    "config": {"strategy": {"type_": "concurrent", "streams": 8}},
    "metrics": {
        "time_to_first_token_ms": {"successful": {"mean": 22.0}},
        "inter_token_latency_ms": {"successful": {"mean": 7.0}},
        "output_tokens_per_second": {"successful": {"mean": 900.0}},
        "prompt_token_count": {"successful": {"mean": 256.0}}, "output_token_count": {"successful": {"mean": 64.0}},
    },
}]}  # fmt: skip
INFERENCEX = {
    "hw": "b200-trt", "tp": 8, "ep": 8, "dp_attention": "true", "conc": 16, "model": "dsr1", "framework": "trt",
    "precision": "fp4", "isl": 1024, "osl": 1024, "mean_ttft": 0.5, "mean_tpot": 0.01, "output_tput_per_gpu": 100.0,
}  # fmt: skip


def written(folder, name, found):
    path = folder / name
    if name.endswith(".csv"):
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    else:
        path.write_text("\n".join(map(json.dumps, found)) if isinstance(found, list) else json.dumps(found))
    return path


@pytest.mark.parametrize(
    ("name", "found", "title", "requests", "times"),
    [
        ("bench.json", VLLM, "`vllm bench serve`", {"concurrency": 4, "input": {"mean": 100.0}, "count": 40}, (20, 5)),
        ("out.jsonl", [SGLANG, SGLANG], "SGLang", {"input": {"uniform": [500, 1000]}, "count": 40}, (20, 5)),
        ("aiperf.json", AIPERF, "AIPerf", {"concurrency": 1, "count": 40}, (21, 6)),
        ("report.json", GUIDELLM, "GuideLLM", {"concurrency": 8, "output": {"mean": 64.0}}, (22, 7)),
    ],
)
def test_results_of_load_generators_are_told_by_their_keys(tmp_path, name, found, title, requests, times):
    path = written(tmp_path, name, found)
    read = read_served(path, DEPLOYMENT)
    first = read.points[0]
    assert title in read.read_as and " by its keys " in read.read_as
    assert len(read.points) == (len(found) if isinstance(found, list) else 1)
    assert requests.items() <= first.given["requests"].items()
    assert (first.ttft, first.tpot) == times
    load_serving(first.given)
    with pytest.raises(SpecError, match="give --deployment FILE"):
        read_served(path)


def test_an_open_loop_replaces_the_closed_one_of_the_deployment(tmp_path):
    given = read_served(written(tmp_path, "out.jsonl", [SGLANG]), DEPLOYMENT).points[0].given["requests"]
    assert "concurrency" not in given and given["arrivals"]["rate"] == "2/s"


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        ({"request_rate": "inf", "max_concurrency": None, "num_prompts": 40}, {"concurrency": 40}),
        ({"request_rate": float("inf"), "max_concurrency": 16}, {"concurrency": 16}),
        ({"request_rate": 100.0, "max_concurrency": 4}, {"concurrency": 4}),  # 11.5 would be in flight
        ({"request_rate": 30.0, "max_concurrency": 4}, {"arrivals": {"rate": "30/s", "burstiness": 1.0}}),  # 3.5 would
    ],
)
@pytest.mark.parametrize("own", [{"concurrency": 1}, {"arrivals": {"rate": "2/s"}}])
def test_the_load_is_that_of_the_result(tmp_path, load, requests, own):
    """Whatever the load of the deployment is; at both doors."""
    deployment = DEPLOYMENT | {"requests": {"input": {"fixed": 100}, "output": {"fixed": 100}, **own}}
    path = written(tmp_path, "bench.json", VLLM | load | {"output_throughput": 100.0, "mean_tpot_ms": 5.0})
    given = read_served(path, deployment).points[0].given["requests"]
    assert {key: given[key] for key in ("concurrency", "arrivals") if key in given} == requests
    assert under_load(deployment, read_measured(path))["requests"] == given


WHOLE = VLLM | {"num_prompts": 40, "duration": 2.0, "output_throughput": 400.0, "request_throughput": 20.0,
                "mean_e2el_ms": 115.0, "median_ttft_ms": 19.0, "p99_ttft_ms": 30.0}  # fmt: skip
LISTED = {"input_lens": [100] * 40, "output_lens": [20] * 40, "ttfts": [0.02] * 40}
NEGATIVE = {"benchmarks": [GUIDELLM["benchmarks"][0] | {"metrics": GUIDELLM["benchmarks"][0]["metrics"] | {
    "time_to_first_token_ms": {"successful": {"mean": -1.7e12}}}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (NEGATIVE, "mean_ttft_ms: -1,700,000,000,000 ms; expected at least 0 ms"),
        (WHOLE | {"mean_ttft_ms": float("nan")}, "mean_ttft_ms: nan ms; expected at least 0"),
        (WHOLE | {"mean_tpot_ms": -1.0}, "mean_tpot_ms: -1 ms; expected at least 0 ms"),
        (WHOLE | {"mean_ttft_ms": 200.0}, "mean_ttft_ms: 200 ms; expected at most 115 ms"),
        (WHOLE | {"median_ttft_ms": 31.0}, "median_ttft_ms: 31 ms; expected at most 30 ms"),
        ({**WHOLE, "mean_ttft_ms": 2500.0, "mean_e2el_ms": None}, "TTFT: 2,500 ms; expected at most 2,000 ms"),
        (WHOLE | {"num_prompts": 30}, "completed: 40; expected at most 30"),
        (WHOLE | {"num_prompts": 64}, "completed: 40; expected at least 60.8"),
        (WHOLE | {"failed": 3}, "completed and failed: 43; expected 40"),
        (WHOLE | {"output_throughput": 800.0}, "output_throughput: 800; expected at most 420"),
        (WHOLE | {"request_throughput": 2.0}, "request_throughput: 2; expected at least 19"),
        (WHOLE | {"request_rate": -1.0}, "request_rate: -1; expected more than 0"),
        (WHOLE | {"max_concurrency": 0}, "max_concurrency: 0; expected more than 0"),
        (WHOLE | LISTED | {"ttfts": [20.0] * 40}, "mean of ttfts: 20,000; expected at most 21"),
        (WHOLE | LISTED | {"ttfts": [-0.02] + [0.02] * 39}, "least of ttfts: -20; expected at least 0"),
        (WHOLE | LISTED | {"total_input_tokens": 8000}, "sum of input_lens: 4,000; expected at least 7,600"),
        (
            {key: (each[:20] if isinstance(each, list) else each) for key, each in (WHOLE | LISTED).items()},
            "requests in lists: 20; expected at least 38",
        ),
    ],
)
def test_a_result_that_cannot_be_is_refused_with_both_numbers(tmp_path, found, said):
    for given in (found, WHOLE | LISTED if "benchmarks" not in found else GUIDELLM):  # the second can be
        path = written(tmp_path, "x.json", given)
        for read in (read_measured, partial(read_served, deployment=DEPLOYMENT)):
            if given is not found:
                read(path)
                continue
            with pytest.raises(TraceError, match=f"x.json.*: {said}"):
                read(path)


def test_both_doors_read_the_same_files(tmp_path):
    """GuideLLM, lines and lists; a comparison is of one run."""
    report = written(tmp_path, "report.json", GUIDELLM)
    run = read_measured(report)
    assert (run.values["mean_ttft_ms"], run.values["mean_tpot_ms"], run.values["max_concurrency"]) == (22.0, 7.0, 8)
    assert read_measured(written(tmp_path, "one.jsonl", [SGLANG])).values["completed"] == 40
    with pytest.raises(TraceError, match="two.jsonl: has 2 runs; expected one"):
        read_measured(written(tmp_path, "two.jsonl", [SGLANG, SGLANG]))


def test_the_load_of_aiperf_and_genai_perf(tmp_path):
    for config in ({"loadgen": {"concurrency": 6}}, {"perf_analyzer": {"stimulus": {"concurrency": 6}}}):
        given = AIPERF | {"input_config": config, "input_sequence_length": {"avg": 300.0}}
        requests = read_served(written(tmp_path, "x.json", given), DEPLOYMENT).points[0].given["requests"]
        assert (requests["concurrency"], requests["input"]) == (6, {"mean": 300.0})


def test_rows_of_inferencex_say_on_what_they_were_measured(tmp_path):
    read = read_served(written(tmp_path, "rows.csv", [ROW, ROW | {"backend": "mlc"}, ROW | {"system": "TPU"}]))
    one, other, unknown = read.points
    assert one.given["scheduler"]["name"] == "vllm_v1" and one.given["requests"]["concurrency"] == 2
    assert one.given["requests"]["input"] == {"uniform": [800, 1000]}  # InferenceX draws from 0.8 of it on
    assert load_serving(one.given).system.name == "h200_node"
    assert "mlc is not simulated" in other.refused and "TPU is not known" in unknown.refused


def test_a_json_of_inferencex_is_in_seconds_and_a_gpu(tmp_path):
    point = read_served(written(tmp_path, "agg_x.json", INFERENCEX)).points[0]
    assert (point.engine, point.gpu, point.model) == ("trtllm", "b200", "deepseek-v3")
    assert (point.ttft, point.tpot, point.output_per_s) == (500.0, 10.0, 800.0)
    assert point.given["parallel"] == {"attention": {"tp": 1, "dp": 8}, "experts": {"ep": 8, "tp": 1}}
    assert point.given["precision"] == {"products": "nvfp4", "experts": "nvfp4", "kv": "fp8"}
    load_serving(point.given)


@pytest.mark.parametrize(
    ("found", "name", "said"),
    [
        ({"hello": 1}, None, "none of inferencex"),
        (VLLM | AIPERF, None, "its keys are those of aiperf"),
        (VLLM, "guidellm", "it lacks what shows that format: key benchmarks"),
        (VLLM, "vlm", "did you mean 'vllm'"),
        ({"benchmarks": [{}]}, None, "row 1 of GuideLLM: it lacks 'metrics'"),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path, found, name, said):
    with pytest.raises((SpecError, TraceError), match=said):
        read_served(written(tmp_path, "x.json", found), DEPLOYMENT, name)


def test_the_unit_of_times_is_told_and_checked_by_rates(tmp_path):
    # 700 tokens/s of 4 clients are 175 each, and 5 ms a token are 200: 0.88 tokens in a time per output token.
    path = written(tmp_path, "bench.json", VLLM)
    assert "times in ms, by its keys, and its clients' tokens per second agree" in read_served(path, DEPLOYMENT).read_as
    in_s = written(tmp_path, "s.json", VLLM | {"mean_ttft_ms": 0.02, "mean_tpot_ms": 0.005})
    with pytest.raises(TraceError, match="in s it would have 0.88. Name the unit: --time-unit"):
        read_served(in_s, DEPLOYMENT)
    named = read_served(in_s, DEPLOYMENT, unit="s")
    assert (named.points[0].ttft, named.points[0].tpot) == (20.0, 5.0) and "as --time-unit says" in named.read_as
    with pytest.raises(SpecError, match="unknown 'min'"):
        read_served(path, DEPLOYMENT, unit="min")


def test_a_format_that_is_named_decides_between_two(tmp_path):
    read = read_served(written(tmp_path, "x.json", VLLM | AIPERF), DEPLOYMENT, "vllm")
    assert "by --format vllm" in read.read_as and read.points[0].ttft == 21.0  # its times are AIPerf's, read as such


def judged(tpot, real=10.0, engine="vllm", ranges=((0.0, 1e3), (9.0, 11.0))):
    point = MeasuredPoint("f:1", engine, "h200", "llama-3.1-8b", "fp8", {}, 100.0, real, None)
    return JudgedPoint(point, 110.0, tpot, 1.0, ranges)


def test_cells_have_medians_of_errors_and_the_share_in_range():
    found = [judged(11.0), judged(12.0), judged(13.0, real=20.0), judged(9.0, engine="sglang", ranges=None)]
    vllm = next(each for each in cells_of(found) if each.key == ("vllm", "h200", "llama-3.1-8b", "fp8"))
    assert vllm.errors[:2] == (pytest.approx(0.2), pytest.approx(0.1)) and vllm.errors[2] is None
    assert vllm.biases[0] == pytest.approx(0.1)
    assert vllm.hits == pytest.approx(5 / 6)  # 20 ms lie out of 9 to 11
    assert cells_of(found)[-1].points == 4
    text = ServedAccuracy(tuple(found), ("x: read as y",)).evidence.markdown()
    assert "| vllm h200 llama-3.1-8b fp8 | 3 | 20.0 (+10.0) | 10.0 (+10.0) | – | 83% |" in text


@pytest.mark.parametrize(("then", "now", "fails"), [(0.10, 0.13, True), (0.10, 0.119, False), (0.30, 0.325, False)])
def test_a_cell_has_worsened_by_two_points_and_ten_percent(tmp_path, then, now, fails):
    table_of(cells_of([judged(10 * (1 + then))])).write_csv(tmp_path / "before.csv")
    assert bool(worse(tmp_path / "before.csv", cells_of([judged(10 * (1 + now))]))) == fails


def test_cells_are_compared_with_the_page_of_the_benchmark_by_its_labels(tmp_path):
    """docs/accuracy.csv names systems and models as aiconfigurator's table does."""
    row = {"model": "Llama-3.1-8B", "system": "H200-SXM-141GB", "backend": "vllm", "precision": "fp8", "points": 1,
           "tpot": 0.1, "ttft": 0.1}  # fmt: skip
    table = written(tmp_path, "before.csv", [row, row | {"model": "all", "system": "all", "backend": "all"}])
    assert worse(table, cells_of([judged(13.0)])) == ["vllm, h200, llama-3.1-8b, fp8: TPOT 10.0% before, 30.0% now"]
    assert worse(table, cells_of([judged(11.1)])) == []
    other = written(tmp_path, "other.csv", [row | {"model": "Qwen3-32B"}])
    with pytest.raises(TraceError, match="has none of these cells, such as vllm, h200, llama-3.1-8b, fp8"):
        worse(other, cells_of([judged(13.0)]))


def test_pools_are_read_as_they_were_deployed(tmp_path):
    """Machines of several nodes, the recipes' largest batch, and the sizes that SGLang's first labels mean."""
    row = {
        "point": "dis_1", "group": "D", "system": "B200-SXM", "gpus": 16, "model": "DeepSeek-R1/V3", "is_moe": 1,
        "backend": "trtllm", "backend_version": "0.8", "precision": "fp4", "gemm_quant": "nvfp4",
        "moe_quant": "nvfp4", "isl_tokens": 1024, "osl_tokens": 1024, "ttft_ms": 100.0, "tpot_ms": 7.0,
    }  # fmt: skip
    sizes = {"workers": 1, "tp": 8, "attention_dp": 1, "moe_tp": 1, "moe_ep": 8}
    both = {f"{side}_{name}": size for side in ("prefill", "decode") for name, size in sizes.items()}
    rows = [row | both | {"concurrency": clients} for clients in (1, 12, 20)]
    points = read_served(written(tmp_path, "pools.csv", rows)).points
    assert [each.given["disaggregated"]["decode"]["max_num_seqs"] for each in points] == [1, 16, 16]
    assert points[0].engine == "trtllm, disaggregated"
    serving = load_serving(points[0].given)
    assert (serving.system.name, serving.system.dies) == ("b200_cluster", 16)
    odd = {"tp": 1, "attention_dp": 4, "moe_tp": 4, "moe_ep": 1}
    sglang = row | both | {"system": "GB200", "backend": "sglang", "concurrency": 8}
    sglang |= {f"decode_{name}": size for name, size in odd.items()}
    low, wide = read_served(
        written(tmp_path, "sglang.csv", [sglang | {"decode_workers": 4}, sglang | {"decode_workers": 1}])
    ).points
    sides = [each.given["disaggregated"]["decode"]["parallel"] for each in (low, wide)]
    assert sides[0] == {"attention": {"tp": 4, "dp": 1}, "experts": {"ep": 1, "tp": 4}}
    assert sides[1] == {"attention": {"tp": 1, "dp": 4}, "experts": {"ep": 4, "tp": 1}}


def test_the_command_simulates_says_how_far_and_fails_where_it_worsened(tmp_path, capsys):
    rows = written(tmp_path, "rows.csv", [ROW, ROW | {"backend": "mlc"}])
    at = tmp_path / "accuracy.md"
    assert main(["validate", "--served", str(rows), "--out", str(at), "--jobs", "1"]) == 0
    both = capsys.readouterr()
    said = both.out
    assert (
        "read as InferenceX rows, by its keys" in both.err and "Of 1 of 2 measured points the simulation misses" in said
    )
    assert "1 point was not simulated: the engine mlc is not simulated" in said and at.is_file()
    before = at.with_suffix(".csv")
    better = list(csv.DictReader(before.open()))
    for row in better:
        row["tpot"] = float(row["tpot"]) / 2  # 7 % now
    written(tmp_path, "accuracy.csv", better)
    assert main(["validate", "--served", str(rows), "--against", str(before), "--jobs", "1"]) == 1
    assert "worse: vllm, h200, llama-3.1-8b, fp8: TPOT" in capsys.readouterr().out


def test_rows_of_the_shared_table_are_read(tmp_path):
    table = shared_path() / "data" / "serving" / "silicon_agg.csv"
    if not table.is_file():
        pytest.skip("the shared measurements of serving are not beside this checkout")
    read = read_served(table)
    known = [each for each in read.points if each.given is not None]
    assert len(read.points) > 1000 and len(known) > 0.9 * len(read.points)
    load_serving(known[0].given)
    apart = read_served(table.with_name("silicon_disagg.csv")).points[0]
    assert load_serving(apart.given).spec.disaggregated != "none"


# ---- The public accuracy page: cells by a rule, a look-up beside them, an alert, and the range that residuals say.


def row(group="A", clients=4, tpot=10.0, ttft=100.0, **more):
    found = {
        "model": "Llama-3.1-70B", "system": "H100-SXM5-80GB", "backend": "vllm", "precision": "fp8", "group": group,
        "concurrency": clients, "isl_tokens": 1024, "osl_tokens": 1024, "gpus": 4, "tp": 4, "is_moe": 0,
        "tpot_ms": tpot, "ttft_ms": ttft, "gemm_quant": "fp8", "moe_quant": "", "origin": "", "warmed_up": "no",
    }  # fmt: skip
    return found | more


def points(off=1.1):
    """Two groups; what is simulated is ``off`` times what was measured."""
    rows = [row(), row(clients=8, tpot=12.0), row("B", 4, 11.0), row("B", 16, 20.0, system="H200-SXM-141GB")]
    return [Cell(each, off * each["ttft_ms"], off * each["tpot_ms"]) for each in rows]


def test_cells_are_of_a_model_on_a_system():
    one, other, every = cells(points())
    assert one.key == ("Llama-3.1-70B", "H100-SXM5-80GB", "vllm", "fp8")
    assert (one.points, other.points, every.points) == (3, 1, 4)
    assert (one.tpot, one.ttft_bias) == (pytest.approx(0.1), pytest.approx(0.1))


def test_the_page_says_how_many_points_the_rule_has():
    text = cells_page(cells(points()), 5, 128, "4 of 6 points are simulated.")
    assert "| all | 4 | 10.0 (+10.0) |" in text and "4 of 6 points are simulated.\n" in text


def test_a_look_up_takes_the_most_alike_point_of_another_group():
    """B's four clients on the same system, not its sixteen on another, nor A's own."""
    off = nearest_errors([point.row for point in points()])
    assert off[:2, 0] == pytest.approx([11 / 10 - 1, 11 / 12 - 1])


def test_a_cell_that_worsens_by_2_points_and_10_percent_is_told(tmp_path):
    write_cells(cells(points(1.10)), tmp_path / "before.csv")
    before = read_cells(tmp_path / "before.csv")
    assert not list(cells_worse(before, cells(points(1.115)))) and not list(cells_worse(before, cells(points(1.0))))
    told = list(cells_worse(before, cells(points(1.13))))
    assert len(told) == 6 and told[0].endswith("vllm, fp8: TPOT 10.0% before, 13.0% now")
    assert cells_told.WORSE_POINTS == 0.02


def test_residuals_are_drawn_to_the_engine():
    found = list(residual_rows(points()))
    assert found[0].startswith("{engine: vllm, experts: false, gpu: any, dtype: any, groups: 2")
    assert [each.split("gpu: ")[1].split(",")[0] for each in found] == ["any", "h100", "h200"]
    assert all("tpot: [0.91, 0.91]" in each for each in found)


@pytest.mark.parametrize("model", ["gpt-oss-120b", "llama-3.1-70b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_what_nobody_measured_has_no_range_of_a_measured_cell(engine, model):
    """Within a source, a pair without a cell has the engine's on a GPU left out; a version without measurements has
    that of another source, and where nobody measured the pair either, that of a GPU left out of it: the widest.
    """
    asked = partial(residual_of, engine, load_model(model))
    cells = {(row.gpu, row.dtype) for row in host_file().residuals
             if (row.engine, row.experts, row.pools) == (engine, model == "gpt-oss-120b", False)}  # fmt: skip
    left_out = asked("mi355x", "fp8", "fp8")
    assert left_out.gpu == ANY and ("b200", "mxfp4") not in cells
    for version in host_file().versions[engine]:
        assert asked("mi355x", "fp8", "fp8", version=version) == left_out
    for version in (None, "0.0.1", "99.1"):
        lab, nobody = (asked(gpu, "bf16", "bf16", version=version) for gpu in ("a100", "mi355x"))
        assert lab.unseen and nobody.unseen and nobody.unmeasured and not lab.unmeasured
        for gpu, dtype in cells - {(ANY, ANY)}:
            assert asked(gpu, dtype, dtype, version=version).tpot == lab.tpot
        tpot = [high / low for low, high in (each.tpot for each in (left_out, lab, nobody))]
        assert tpot == sorted(set(tpot)) and nobody.ttft[1] / nobody.ttft[0] > lab.ttft[1] / lab.ttft[0]


LAB = {
    "case": "random2000", "ok": "500", "duration_s": "60", "input": "998393",
    "output": "50000", "out_tps": "843", "ttft": "28911", "tpot": "237",
    "versions": "{'vLLM': '0.11.0', 'SGLang': '0.5.3.post3'}",
}  # fmt: skip


def lab_points(folder, *rows):
    with (folder / "lab.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*LAB, "file", "command"])
        writer.writeheader()
        writer.writerows(LAB | {"file": page, "command": command} for page, command in rows)
    return read_served(folder / "lab.csv").points


@pytest.mark.parametrize(
    ("page", "command", "expected"),
    [
        ("glm-4.5-air/h100.md",
         "vllm serve zai-org/GLM-4.5-Air -tp 4 --max-num-batched-tokens 8192 --max-num-batched-tokens 4096",
         ("vllm", "0.11.0", {"ep": 1, "tp": 4}, "bf16", 4096)),
        ("glm-4.x/h100.md",
         "python3 -m sglang.launch_server --model-path zai-org/GLM-4.5-Air-FP8 --tp-size=4 --ep-size 4",
         ("sglang", "0.5.3", {"ep": 4, "tp": 1}, "fp8", 8192)),
        ("deepseek-r1/h200.md", "trtllm-serve /workspace/DeepSeek-R1-0528 --tp_size 8 --ep_size 8",
         ("trtllm", None, {"ep": 8, "tp": 1}, "fp8_block", 8192)),
    ],
)  # fmt: skip
def test_rows_of_a_lab_are_served_as_their_command_starts_the_engine(tmp_path, page, command, expected):
    served, refused = lab_points(
        tmp_path, *((page, each) for each in (command, f"{command} --speculative-algorithm EAGLE"))
    )
    found = load_serving(served.given).spec
    assert (
        found.engine, found.engine_version, served.given["parallel"]["experts"], found.precision.experts,
        found.scheduler.max_num_batched_tokens,
    ) == expected  # fmt: skip
    assert (found.requests.concurrency, found.requests.input.fixed, served.tpot) == (500, 1997, 237)
    assert refused.given is None and "speculative-algorithm" in refused.refused


def test_rows_of_a_lab_run_on_the_gpu_that_their_page_shows(tmp_path):
    glm, qwen, other = lab_points(
        tmp_path, ("glm-4.5-air/h100.md", "vllm serve zai-org/GLM-4.5-Air -tp 4"),
        ("qwen3-32b/h100.md", "vllm serve Qwen/Qwen3-32B"), ("gpt-oss-20b/h100.md", "vllm serve openai/gpt-oss-120b"),
    )  # fmt: skip
    assert [each.gpu for each in (glm, qwen)] == ["a100", "h100_pcie"]
    # A token of one request of 32,000 took 43.4 ms there: as long as its reads take on this machine at least.
    hbm = load_system(qwen.given["system"]).hbm
    assert (65.5e9 + 32_050 * 262_144) / (hbm.bandwidth_bytes_per_s * hbm.efficiency) == pytest.approx(
        43.4e-3, rel=0.05
    )
    assert other.given is None and "gpt-oss-120b is not the model of gpt-oss-20b" in other.refused


# ---- Constants of engines from measured means: parts of a simulation, folds, and what a fit finds again.

FITTING_ROW = {
    "model": "Llama-3.1-8B", "system": "H100-SXM5-80GB", "backend": "sglang", "precision": "bf16", "group": "A",
    "concurrency": 6, "isl_tokens": 1024, "osl_tokens": 32, "gpus": 1, "tp": 1, "attention_dp": 1, "is_moe": 0,
    "tpot_ms": 10.0, "ttft_ms": 100.0, "gemm_quant": "", "moe_quant": "", "origin": "inferencex_db", "warmed_up": "no",
}  # fmt: skip
KEYS = {
    "engine": "vllm", "experts": True, "gpu": "h200", "dtype": "fp8_block",
    "shape": shape_of(load_model("qwen3-235b-a22b")),
}  # fmt: skip


def constants(host, known=None):
    """In the order of PARTS, where experts are none."""
    row = next(each for each in (known or host_file()).hosts if (each.engine, each.experts) == ("sglang", False))
    laws = [host.decodes, host.prompts, 1.0, 1.0]
    return np.array([*laws, *(getattr(row, name) / NS_PER_MS for name in HOST), 1.0])


def test_parts_of_a_point_sum_to_what_is_simulated_and_tell_derivatives():
    case = case_of([FITTING_ROW])
    # Parts know no token that is seen while the engine has nothing to run, as behind longer requests: 1.1 % at 24 ms.
    hosts = tuple(row.model_copy(update={"request": 16.79 * NS_PER_MS}) for row in host_file().hosts)
    known = host_file().model_copy(update={"hosts": hosts})
    host = host_of_case(case, known)
    found = next(means_of(case, known)).parts @ constants(host, known)

    def means(pool):
        times = times_ns(serve_point(pool, host, FITTING_ROW))
        return np.array([times[name].mean() / NS_PER_MS for name in ("ttft", "tpot")])

    pool = pool_of(case, host)
    simulated = means(pool)
    assert found == pytest.approx(simulated, rel=0.01)
    more = pool.table.host.copy()
    more[0] += 0.1 * NS_PER_MS
    slopes = (means(pool._replace(table=pool.table._replace(host=more))) - simulated) / 0.1
    tpot = next(means_of(case, known)).parts[1, PARTS.index("iteration")]
    assert tpot == pytest.approx(slopes[1], rel=0.1)  # that of TTFT is less smooth: the schedule moves, too


def measured(rng, groups, factor):
    """Points whose times are those of the starting constants, with prompts ``factor`` times as long."""
    unit = np.array([1, factor, 1, factor, 0.6, 0.005, 0.015, 0.35, 20, 0.6, 1])
    for group in groups:
        for _ in range(3):
            parts = rng.uniform(0.1, 1.0, (2, len(PARTS))) * np.array([30, 200, 30, 200, 20, 900, 500, 900, 1, 1, 10])
            yield Means(KEYS, group, parts, parts @ unit)


def test_a_fit_finds_what_prompts_take():
    found = fitted(list(measured(np.random.default_rng(0), map(str, range(24)), 1.2)))
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", found)
    assert (host.decodes, host.prompts) == (pytest.approx(1.0, abs=0.05), pytest.approx(1.2, abs=0.07))
    assert found.groups == 24
    other = host_of("trtllm", load_model("llama-3.1-8b"), "h100", "bf16", "bf16", found)
    assert (other.decodes, other.prompts, other.experts) == (1.0, 1.0, 1.0)


def test_a_group_that_is_far_off_hardly_counts():
    rng = np.random.default_rng(1)
    many = [*measured(rng, map(str, range(12)), 1.0), *measured(rng, ["odd"], 20.0)]
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", fitted(many))
    assert host.prompts == pytest.approx(1.0, abs=0.05)


def test_folds_part_groups_evenly_and_whole():
    found = fold_of(["b", "a", "a", "c", *map(str, range(12))])
    assert sorted(found.values()) == sorted(at % FOLDS for at in range(15))


# ---- Serving against what was measured on GPUs; skipped without the data. docs/measurements.md has the whole table.

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
    ("model", "most_tpot", "most_ttft"),
    sampled([("Llama-3.1-70B", 0.08, 0.2), ("gpt-oss-120b", 0.15, 0.3)], lambda case: case[1] > 0.1),
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


def test_rows_of_the_table_are_served_as_they_were_started(shared, tmp_path):
    """The scheduler and the KV are those of the scripts behind the measured points, whatever engines take today."""
    table = shared / "data" / "serving" / "silicon_agg.csv"
    if not table.is_file():
        pytest.skip(f"{table} not found")
    asked = judged_rows(table)[::25]
    with (tmp_path / "rows.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, asked[0])
        writer.writeheader()
        writer.writerows(asked)
    for row, point in zip(asked, read_served(tmp_path / "rows.csv").points, strict=True):
        serving, wanted = load_serving(point.given), scheduler_of(row)
        found = serving.spec
        own = Scheduler.of(found.scheduler)
        same = own[:4] == wanted[:4] and own.params.get("poll_every", 1) == wanted.params.get("poll_every", 1)
        assert same and found.precision.dtypes("bf16", serving.model).kv == precision_of(row).kv, row["point"]

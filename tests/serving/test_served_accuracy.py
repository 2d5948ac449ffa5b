"""``archsim calibrate --validate --served``: every format is read by its keys, and errors are those of cells."""

import csv
import json

import pytest
from support.shared import shared_path

from archsim.base.errors import SpecError, TraceError
from archsim.cli.main import main
from archsim.specs.serving_files import load_serving
from archsim.studies.serving.accuracy import Judged, Point, ServedAccuracy, cells_of, page, read_served, table_of, worse

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
    assert title in read.told and " by its keys " in read.told
    assert len(read.points) == (len(found) if isinstance(found, list) else 1)
    assert requests.items() <= first.given["requests"].items()
    assert (first.ttft, first.tpot) == times
    load_serving(first.given)
    with pytest.raises(SpecError, match="give --deployment FILE"):
        read_served(path)


def test_an_open_loop_replaces_the_closed_one_of_the_deployment(tmp_path):
    given = read_served(written(tmp_path, "out.jsonl", [SGLANG]), DEPLOYMENT).points[0].given["requests"]
    assert "concurrency" not in given and given["arrivals"]["rate"] == "2/s"


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
    assert "times in ms, by its keys, and its clients' tokens a second agree" in read_served(path, DEPLOYMENT).told
    in_s = written(tmp_path, "s.json", VLLM | {"mean_ttft_ms": 0.02, "mean_tpot_ms": 0.005})
    with pytest.raises(TraceError, match="in s it would have 0.88. Name the unit: --time-unit"):
        read_served(in_s, DEPLOYMENT)
    named = read_served(in_s, DEPLOYMENT, unit="s")
    assert (named.points[0].ttft, named.points[0].tpot) == (20.0, 5.0) and "as --time-unit says" in named.told
    with pytest.raises(SpecError, match="unknown 'min'"):
        read_served(path, DEPLOYMENT, unit="min")


def test_a_format_that_is_named_decides_between_two(tmp_path):
    read = read_served(written(tmp_path, "x.json", VLLM | AIPERF), DEPLOYMENT, "vllm")
    assert "by --format vllm" in read.told and read.points[0].ttft == 21.0  # its times are AIPerf's, read as such


def judged(tpot, real=10.0, engine="vllm", ranges=((0.0, 1e3), (9.0, 11.0))):
    point = Point("f:1", engine, "h200", "llama-3.1-8b", "fp8", {}, 100.0, real, None)
    return Judged(point, 110.0, tpot, 1.0, ranges)


def test_cells_have_medians_of_errors_and_the_share_in_range():
    found = [judged(11.0), judged(12.0), judged(13.0, real=20.0), judged(9.0, engine="sglang", ranges=None)]
    vllm = next(each for each in cells_of(found) if each.key == ("vllm", "h200", "llama-3.1-8b", "fp8"))
    assert vllm.errors[:2] == (pytest.approx(0.2), pytest.approx(0.1)) and vllm.errors[2] is None
    assert vllm.biases[0] == pytest.approx(0.1)
    assert vllm.hits == pytest.approx(5 / 6)  # 20 ms lie out of 9 to 11
    assert cells_of(found)[-1].points == 4
    text = page(ServedAccuracy(tuple(found), ("x: read as y",)))
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
    assert main(["validate", "--served", str(rows), "--page", str(at), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "read as InferenceX rows, by its keys" in said and "Of 1 of 2 measured points the simulation misses" in said
    assert "1 points not simulated: the engine mlc is not simulated" in said and at.is_file()
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

"""The public accuracy page: cells by a rule, a look-up beside them, an alert, and the range that residuals say."""

import pytest
from measured_serving import cells as cells_of
from measured_serving.accuracy import Point
from measured_serving.cells import cells, nearest_errors, page, read_cells, worse, write_cells
from measured_serving.residuals import residual_rows

from archsim.serving.hosts import ResidualRow, host_file
from archsim.serving.serving import range_of, serve
from archsim.specs.serving_files import load_serving


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
    return [Point(each, off * each["ttft_ms"], off * each["tpot_ms"]) for each in rows]


def test_cells_are_of_a_model_on_a_system():
    one, other, every = cells(points())
    assert one.key == ("Llama-3.1-70B", "H100-SXM5-80GB", "vllm", "fp8")
    assert (one.points, other.points, every.points) == (3, 1, 4)
    assert (one.tpot, one.ttft_bias) == (pytest.approx(0.1), pytest.approx(0.1))


def test_the_page_says_how_many_points_the_rule_has():
    text = page(cells(points()), 5, 128, "4 of 6 points are simulated.")
    assert "| all | 4 | 10.0 (+10.0) |" in text and "4 of 6 points are simulated.\n" in text


def test_a_look_up_takes_the_most_alike_point_of_another_group():
    """B's four clients on the same system, not its sixteen on another, nor A's own."""
    off = nearest_errors([point.row for point in points()])
    assert off[:2, 0] == pytest.approx([11 / 10 - 1, 11 / 12 - 1])


def test_a_cell_that_worsens_by_2_points_and_10_percent_is_told(tmp_path):
    write_cells(cells(points(1.10)), tmp_path / "before.csv")
    before = read_cells(tmp_path / "before.csv")
    assert not list(worse(before, cells(points(1.115)))) and not list(worse(before, cells(points(1.0))))
    told = list(worse(before, cells(points(1.13))))
    assert len(told) == 6 and told[0].endswith("vllm, fp8: TPOT 10.0% before, 13.0% now")
    assert cells_of.WORSE_POINTS == 0.02


def test_residuals_are_drawn_to_the_engine():
    found = list(residual_rows(points()))
    assert found[0].startswith("{engine: vllm, experts: false, gpu: any, dtype: any, groups: 2")
    assert [each.split("gpu: ")[1].split(",")[0] for each in found] == ["any", "h100", "h200"]
    assert all("tpot: [0.91, 0.91]" in each for each in found)


def test_every_run_says_the_range_of_its_times():
    file = {
        "system": "h100_node", "model": "gpt-oss-120b", "parallel": {"attention": {"tp": 8}}, "engine": "vllm",
        "requests": {"concurrency": 2, "count": 4, "input": {"fixed": 64}, "output": {"fixed": 4}},
    }  # fmt: skip
    serving = load_serving(file)
    outcome = serve(serving)
    assert any(note.startswith("80 % range of means: TTFT") for note in outcome.notes)
    assert range_of(load_serving(file | {"host": {"iteration": "1 ms"}}), outcome.measures) == ""
    rows = host_file().residuals
    assert all(isinstance(each, ResidualRow) and each.tpot[0] < each.tpot[1] for each in rows) and rows

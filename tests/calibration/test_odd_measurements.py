"""Measurements that pass every check of a row and are wrong as a whole: units, throttled runs, and what is lost."""

import pytest
from support.made_up_measurements import gemm, written

from archsim.cli.main import main
from archsim.specs.calibration_files import read_calibration
from calibration.fit.parameters import write_calibration
from calibration.measurements.reading import CalibrationError, read_measurements
from calibration.measurements.schema import DATASHEETS

SHAPES = [(n, k) for n in (2048, 4096, 8192) for k in (2048, 7168)]
SIZES = (1, 16, 64, 256, 1024, 4096)


def on(gpu, factor=1.0, run="1", efficiency=0.7):
    """Rows of GEMMs near the roofline of a GPU's datasheet."""
    sheet = DATASHEETS[gpu]
    peak, memory = sheet.peak_flop_per_s["bf16"] / 1e6, sheet.hbm_bytes_per_s / 1e6

    def us(m, n, k):
        return 4 + max(2 * m * n * k / peak, 2 * (n * k + m * k + m * n) / memory) / efficiency

    return [
        f"{run},NVIDIA {gpu.upper()},torch,2.8,bf16,0,1,{m},{n},{k},{factor * us(m, n, k):.9f}"
        for n, k in SHAPES
        for m in SIZES
    ]


def of_runs(factors):
    return [row for run, factor in factors.items() for row in on("h100", factor, run)]


def copies(sizes, factor=1.0, gpu="NVIDIA H100", bytes_per_us=2e5):
    return [
        f"1,{gpu},nccl,2.25,intra_node,0,1,nccl,uni,1,{int(size * factor)},{10 + size / bytes_per_us:.4f}"
        for size in sizes
    ]


POWERS = [2**power for power in range(10, 28)]


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b200", "h20", "mi300x"])
def test_a_whole_file_in_another_unit_is_refused(tmp_path, gpu):
    assert read_measurements(written(tmp_path / "good", gemm=on(gpu))).problems == []
    for name, factor in {"ns": 1e3, "ms": 1e-3}.items():
        found = read_measurements(written(tmp_path / name, gemm=on(gpu, factor)))
        assert not found.tables and found.problems[0].kind == "refused"
        assert "another unit" in found.problems[1].reason


@pytest.mark.parametrize("factor", [1e3, 1e-3], ids=["ns", "ms"])
@pytest.mark.parametrize("runs", [2, 3])
def test_a_run_in_another_unit_leaves_the_others(tmp_path, factor, runs):
    odd = {str(run): factor if run == 1 else 1.0 for run in range(runs)}
    found = read_measurements(written(tmp_path / "one", gemm=of_runs(odd)))
    assert set(found.table("gemm")["run_id"]) == set(odd) - {"1"}
    assert len(found.problems) == len(on("h100")) and "run '1' is far from the other runs" in found.problems[0].reason


def test_a_run_in_another_unit_is_found_among_files_and_on_gpus_without_datasheet(tmp_path):
    good, odd = (
        [row.replace("H100", "X900") for row in on("h100", factor, run)] for factor, run in ((1, "1"), (200, "2"))
    )
    found = read_measurements(written(tmp_path, gemm_1=good, gemm_2=odd))
    assert set(found.table("gemm")["run_id"]) == {"1"}
    assert [(each.file, each.line) for each in found.problems] == [("gemm_2.csv", 2)]


@pytest.mark.parametrize("gpu", ["NVIDIA H100", "NVIDIA B200", "X900"])
def test_copies_in_kib_are_refused(tmp_path, gpu):
    fast = 8e5 if "B200" in gpu else 2e5
    assert read_measurements(written(tmp_path / "good", p2p=copies(POWERS, 1, gpu, fast))).problems == []
    found = read_measurements(written(tmp_path / "kib", p2p=copies(POWERS, 1 / 1024, gpu, fast)))
    assert not found.tables and "time rises with size as on no link of a node" in found.problems[1].reason


def test_copies_of_small_sizes_and_slow_links_stay(tmp_path):
    for name, rows in {"small": copies(POWERS[:6]), "slow": copies(POWERS, 1, "X900", 1e3)}.items():
        assert read_measurements(written(tmp_path / name, p2p=rows)).problems == []


def test_one_throttled_run_of_five_is_not_used(tmp_path):
    runs = {str(run): 1.4 if run == 0 else 1 + run / 200 for run in range(5)}
    found = read_measurements(written(tmp_path, gemm=of_runs(runs)))
    assert set(found.table("gemm")["run_id"]) == {"1", "2", "3", "4"}
    (problem,) = found.problems
    assert "run '0' takes 1.38 times as long as the 4 others of its kind, which agree" in problem.reason


@pytest.mark.parametrize("slow", [0, 1], ids=["older", "newer"])
def test_of_two_runs_that_differ_the_faster_one_is_the_table(tmp_path, capsys, slow):
    runs = {str(run): 1.4 if run == slow else 1.0 for run in range(2)}
    out = tmp_path / "h100.yaml"
    assert main(["calibrate", str(written(tmp_path / "2", gemm=of_runs(runs))), "--out", str(out)]) == 0
    told = f"NVIDIA H100, torch 2.8: run '{slow}' takes 1.40 times as long as run '{1 - slow}', at 36 points: not used"
    assert told in capsys.readouterr().err
    (table,) = read_calibration(out).gemm
    assert table.sweeps == (f"2.8/{1 - slow}",)


def test_of_runs_that_all_differ_the_fastest_counts_and_a_majority_counts_before_it(tmp_path):
    found = read_measurements(written(tmp_path / "all", gemm=of_runs({"0": 1.4, "1": 1, "2": 2})))
    assert set(found.table("gemm")["run_id"]) == {"1"} and len(found.problems) == 2
    found = read_measurements(written(tmp_path / "one", gemm=of_runs({"0": 1.0, "1": 1.01, "2": 0.8})))
    assert set(found.table("gemm")["run_id"]) == {"0", "1"}
    (problem,) = found.problems
    assert "run '2' takes 0.80 times as long as the 2 others" in problem.reason


def test_versions_that_differ_are_both_kept(tmp_path):
    new = [row.replace(",2.8,", ",2.9,") for row in on("h100", 1.4, "1")]
    found = read_measurements(written(tmp_path, gemm=on("h100", 1, "0") + new))
    assert set(found.table("gemm")["library_version"]) == {"2.8", "2.9"} and found.problems == []


def test_many_rows_faster_than_the_peak_refuse_a_file(tmp_path, capsys):
    own = [row.replace("NVIDIA H100", "X900") for row in on("h100", 0.5)]
    good, fast = written(tmp_path / "good", gemm=on("h100")), written(tmp_path / "fast", gemm=own)
    assert main(["calibrate", str(good), "--out", str(tmp_path / "h100.yaml")]) == 0
    assert "faster than its peak" not in capsys.readouterr().err
    asked = ["calibrate", str(fast), "--peak", "bf16=989TFLOP/s", "--out", str(tmp_path / "x900.yaml")]
    assert main(asked) == 2
    told = "refused: 13 of 36 rows of x900 in bf16 are faster than its peak of 989 TFLOP/s, up to 1.4 times"
    assert told in capsys.readouterr().err


def test_a_single_row_faster_than_the_peak_is_left_out(tmp_path):
    rows = on("h100")
    rows[35] = f"{rows[35].rpartition(',')[0]},100"
    found = read_measurements(written(tmp_path, gemm=rows))
    assert len(found.table("gemm")) == 35
    (problem,) = found.problems
    assert (problem.line, problem.kind) == (37, "quarantined") and "times its peak (1 of 36 rows" in problem.reason


def test_a_layer_faster_than_the_peak_is_left_out(tmp_path):
    """24 layers at 0.7 of the peak, and one at 1.1 of it."""
    peak_us = [6 * 2**size * 8 * 4096 * 1536 / 989e6 for size in range(25)]
    times = [us / 0.7 + 20 for us in peak_us[:-1]] + [peak_us[-1] / 1.1]
    rows = [
        f"1,NVIDIA H100,torch,2.8,own,bf16,4096,1536,128,8,1,1,balanced,{2**size},{us:.4f}"
        for size, us in enumerate(times)
    ]
    found = read_measurements(written(tmp_path, moe=rows))
    assert len(found.table("moe")) == 24
    (problem,) = found.problems
    assert (problem.line, problem.kind) == (26, "quarantined")
    assert "1.1 times its peak (1 of 25 rows of h100 in bf16" in problem.reason


def memory(share, op="read"):
    head = "run_id,gpu_name,library,library_version,level,op,working_set_bytes,quantity,value"
    rows = [f"1,NVIDIA H100,torch,2.8,any,{op},{2**size},bytes_per_s,{share * 3.35e12}" for size in range(20, 33)]
    return "\n".join([head, *rows]) + "\n"


def test_memory_is_compared_with_the_datasheet(tmp_path):
    found = {}
    for share in (0.9, 0.3, 1.2):
        (tmp_path / "memory.csv").write_text(memory(share))
        found[share] = read_measurements(tmp_path)
    assert found[0.9].problems == [] and len(found[0.3].table("memory")) == 13 and not found[1.2].tables
    (slow,), (fast,) = found[0.3].problems, found[1.2].problems
    assert slow.kind == "warning" and "HBM of h100: read at 30% of its 3.35 TB/s" in slow.reason
    assert fast.kind == "refused" and "3 of 3 rows of h100, read, are faster than its HBM of 3.35 TB/s" in fast.reason


def test_swapped_columns_are_refused(tmp_path):
    def swapped(row):
        *head, m, n, k, us = row.split(",")
        return ",".join([*head, n, m, k, us])

    found = read_measurements(written(tmp_path, gemm=[swapped(row) for row in on("h100")]))
    assert not found.tables and found.problems[0].kind == "refused"
    assert "are the columns m (rows, tokens) and n (output features) swapped?" in found.problems[0].reason


@pytest.mark.parametrize("rows", [gemm(m=(1, 64), shapes=[(4096, 7168)]), gemm(m=(1,)), gemm(m=(1, 4096))])
def test_too_few_points_for_a_law_are_refused(tmp_path, capsys, rows):
    folder, out = written(tmp_path, gemm=rows, p2p=copies(POWERS)), tmp_path / "h100.yaml"
    assert main(["calibrate", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "no law can be judged" in said and "python -m calibration.measure gemm" in said
    assert "not complete: gemm.csv refused" in said and not read_calibration(out).gemm
    assert len(read_measurements(folder).table("gemm")) == len(rows)  # validation may compare few points


def test_shapes_with_few_sizes_are_told(tmp_path, capsys):
    rows = gemm(m=(1, 16, 256, 4096), shapes=[(4096, 7168)]) + gemm(shapes=[(512, 1024), (2048, 1024)])
    assert main(["calibrate", str(written(tmp_path, gemm=rows)), "--out", str(tmp_path / "h100.yaml")]) == 0
    assert "1 of 3 shapes have fewer than 5 sizes of m (n 4096, k 7168 has 4)" in capsys.readouterr().err


def test_a_refused_file_fails_and_never_takes_a_table_away(tmp_path, capsys):
    out, folder = tmp_path / "h100.yaml", tmp_path / "measured"
    written(folder, gemm=gemm(), p2p=copies(POWERS))
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    before = out.read_bytes()
    written(folder, gemm=[row.replace(",torch,", ",torch,", 1).rpartition(",")[0] + ",5 us" for row in gemm()])
    assert main(["calibrate", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "h100.yaml: is kept, as these measurements cover less (gemm torch bf16 apart: no table)" in said
    assert out.read_bytes() == before
    assert main(["calibrate", str(folder), "--out", str(tmp_path / "other.yaml"), "--gpu", "h100"]) == 2
    said = capsys.readouterr().err
    assert "not complete: gemm.csv refused" in said and (tmp_path / "other.yaml").is_file()
    with pytest.raises(CalibrationError, match="no such file"):
        read_measurements(tmp_path / "nothing")


def test_a_second_table_of_one_name_is_no_loss_and_fewer_points_are(tmp_path, capsys):
    out, data = tmp_path / "h100.yaml", tmp_path / "measured"
    assert main(["calibrate", str(written(data, gemm=on("h100"))), "--out", str(out)]) == 0
    before = read_calibration(out)
    write_calibration(before.model_copy(update={"gemm": before.gemm * 2}), out)
    assert main(["calibrate", str(data), "--out", str(out)]) == 0
    assert len(read_calibration(out).gemm) == 1
    capsys.readouterr()
    fewer = [row for row in on("h100") if ",2048,7168," not in row and ",4096,4096,7168" not in row]
    assert main(["calibrate", str(written(data, gemm=fewer)), "--out", str(out)]) == 2
    assert "cover less (gemm torch bf16 apart: without 2048x7168)" in capsys.readouterr().err
    fewer = [row for row in on("h100") if int(row.split(",")[-4]) < 4096]
    assert main(["calibrate", str(written(data, gemm=fewer)), "--out", str(out)]) == 2
    assert "m 1 to 1024 instead of 1 to 4096" in capsys.readouterr().err
    other = [row.replace(",2.8,", ",2.9,") for row in on("h100")]
    assert main(["calibrate", str(written(data, gemm=other)), "--out", str(out)]) == 0


def test_a_shape_that_is_slow_in_one_run_is_told_and_not_averaged(tmp_path, capsys):
    def slow(row):
        head, _, us = row.rpartition(",")
        return f"{head},{10 * float(us)}" if ",2048,7168," in row else row

    out, good = tmp_path / "h100.yaml", on("h100", 1, "0")
    folder = written(tmp_path / "two", gemm=good + [slow(row) for row in on("h100", 1, "1")])
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    told = "note: h100 gemm torch bf16 apart, version 2.8: sweeps are over 1.5 times apart at 6 of 36 points"
    assert told in capsys.readouterr().err
    fast = tmp_path / "fast.yaml"
    assert main(["calibrate", str(written(tmp_path / "one", gemm=good)), "--out", str(fast), "--gpu", "h100"]) == 0
    assert read_calibration(out).gemm[0].shapes == read_calibration(fast).gemm[0].shapes


def test_fits_are_written_with_six_digits_and_exact_sizes(tmp_path):
    folder, out = written(tmp_path / "measured", gemm=gemm(), p2p=copies(POWERS)), tmp_path / "h100.yaml"
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    found = read_calibration(out)
    laws = [value for table in found.gemm for value in dict(table.law).values()]
    slopes = [slope for table in found.p2p for slope in table.ns_per_byte]
    assert laws and slopes and all(float(f"{value:.6g}") == value for value in laws + slopes)
    assert found.p2p[0].last_bytes == POWERS[-1]

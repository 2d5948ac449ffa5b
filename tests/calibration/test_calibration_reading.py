"""Measurements: the schema, the public layouts, and bad rows and files, reported with file and line."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import sampled
from support.made_up_measurements import P2P, gemm
from support.made_up_measurements import written as set_in
from support.tables import table_of

from archsim.base.units import WEIGHT_BYTES
from archsim.cli.main import main
from archsim.laws.attention import AttentionSizes, work_of
from archsim.laws.calibration_files import load_calibration, read_calibration
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes, moe_ns
from archsim.laws.rank_load import BY_CHANCE
from archsim.laws.transfers import law_of
from archsim.machine.system import SystemSpec
from calibration.fit.calibration_file import write_calibration
from calibration.fit.moe import fit_moe
from calibration.fit.quantisation import without_quantisation
from calibration.fit.transfers import fit_transfers
from calibration.measurements.adapters.not_fitted import ATTENTION
from calibration.measurements.consensus import MOST_APART, PLAINLY_SLOWER, consensus, note_of
from calibration.measurements.datasheets import DATASHEETS
from calibration.measurements.fingerprints import fingerprints, in_fit
from calibration.measurements.reading import UNKNOWN_LAYOUT, CalibrationError, kinds_of, read_measurements
from calibration.measurements.schema import DTYPES, GEMM, TABLES, describe, gpu_key

HEAD = "run_id,gpu_name,library,library_version,dtype,quant_included,groups,m,n,k,latency_us_median"
ROWS = [
    f"1,H100,torch,2.8,bf16,0,1,{m},{n},4096,{5 + m / 50:.3f}" for n in (512, 1024, 2048) for m in (1, 2, 4, 8, 16, 32)
]


def written(folder, *lines, name="gemm.csv", end="\n"):
    (folder / name).write_text("\n".join(lines) + end, encoding="utf-8")
    return folder


def changed(line: int, old: str, new: str) -> list[str]:
    """The good file with one line changed; line 1 is the header."""
    lines = [HEAD, *ROWS]
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    return lines


def test_good_file_has_all_rows_and_no_problem(tmp_path):
    found = read_measurements(written(tmp_path, HEAD, *ROWS))
    assert found.problems == [] and found.skipped == {}
    rows = found.table("gemm", "h100")
    assert list(rows["line"]) == list(range(2, 2 + len(ROWS)))
    assert set(rows["file"]) == {"gemm.csv"} and rows["m"].sum() == 3 * 63


@table_of(__file__, "bad_rows", every=4)
def test_bad_row_is_quarantined(tmp_path, line, old, new, said):
    found = read_measurements(written(tmp_path, *changed(line, old, new)))
    assert [(problem.file, problem.line, problem.kind) for problem in found.problems] == [
        ("gemm.csv", line, "quarantined")
    ]
    assert said in found.problems[0].reason
    assert sorted(set(range(2, 2 + len(ROWS))) - set(found.table("gemm")["line"])) == [line]


def test_copies_that_disagree_are_all_quarantined(tmp_path):
    found = read_measurements(written(tmp_path, HEAD, *ROWS, ROWS[3].replace("5.160", "9.5")))
    assert [problem.line for problem in found.problems] == [5, 2 + len(ROWS)]
    assert all("disagrees" in problem.reason for problem in found.problems)
    assert not set(found.table("gemm")["line"]) & {5, 2 + len(ROWS)}


def test_copies_that_agree_count_once(tmp_path):
    found = read_measurements(written(tmp_path, HEAD, *ROWS, ROWS[3]))
    assert found.problems == [] and len(found.table("gemm")) == len(ROWS)


def test_copies_that_nearly_agree_count_once_with_their_median_and_a_word(tmp_path):
    """Of one file, and of two; below 3 % without the word."""
    copies = [ROWS[3].replace("5.160", time) for time in ("5.500", "5.400")]
    found = read_measurements(written(tmp_path, HEAD, *ROWS, *copies, ROWS[4].replace("5.320", "5.400")))
    assert [str(problem) for problem in found.problems] == [
        "gemm.csv:5: warning: 3 rows for this point, 5.16 to 5.5: their median, 5.4, is used"
    ]
    rows = found.table("gemm").set_index("line")["latency_us_median"]
    assert len(rows) == len(ROWS) and rows[5] == 5.4 and rows[6] == pytest.approx(5.36)
    found = read_measurements(written(tmp_path, HEAD, ROWS[3].replace("5.160", "6.000"), name="other.csv"))
    assert [(problem.file, problem.line, problem.kind) for problem in found.problems] == [
        ("gemm.csv", 5, "warning")
    ] * 2
    assert found.table("gemm").set_index("line")["latency_us_median"][5] == pytest.approx(5.7)


@pytest.mark.parametrize("last", [ROWS[-1][:-3], ROWS[-1][:20]], ids=["in the last cell", "in the middle"])
def test_file_cut_off_in_a_line(tmp_path, last):
    found = read_measurements(written(tmp_path, HEAD, *ROWS[:-1], last, end=""))
    assert [problem.line for problem in found.problems] == [1 + len(ROWS)]
    assert "truncated" in found.problems[0].reason
    assert len(found.table("gemm")) == len(ROWS) - 1


def test_sweep_cut_off_at_a_line_end(tmp_path):
    found = read_measurements(written(tmp_path, HEAD, *ROWS[:-4]))
    assert [(problem.line, problem.kind) for problem in found.problems] == [(1 + len(ROWS) - 4, "warning")]
    assert "truncated" in found.problems[0].reason


BAD_FILES = {
    "missing column": (
        [HEAD.replace(",groups", ""), *(row.replace(",0,1,", ",0,") for row in ROWS)],
        1,
        "groups is missing",
    ),
    "other unit in the header": ([HEAD.replace("_us_", "_ms_"), *ROWS], 1, "it has latency_ms_median"),
    "two GPUs": (changed(7, "H100", "A100"), 7, "two GPUs"),
    "column twice": ([HEAD.replace("n,k", "n,n"), *ROWS], 1, "twice"),
}


@pytest.mark.parametrize(("lines", "line", "reason"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_is_refused(tmp_path, lines, line, reason):
    found = read_measurements(written(tmp_path, *lines))
    assert [(problem.line, problem.kind) for problem in found.problems] == [(line, "refused")]
    assert reason in found.problems[0].reason
    assert not found.tables


def test_bad_file_leaves_the_others(tmp_path):
    written(tmp_path, *BAD_FILES["two GPUs"][0], name="bad.csv")
    found = read_measurements(written(tmp_path, HEAD, *ROWS))
    assert set(found.table("gemm")["file"]) == {"gemm.csv"}


def test_command_reports_file_and_line_and_returns_2(tmp_path, capsys):
    written(tmp_path, *BAD_FILES["two GPUs"][0])
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "h100.yaml")]) == 2
    assert "gemm.csv:7: refused: two GPUs in one file: 'H100' and 'A100'" in capsys.readouterr().err
    assert not (tmp_path / "h100.yaml").exists()


def test_nothing_to_fit_and_an_output_of_another_kind_are_reported(tmp_path, capsys):
    written(tmp_path, *BAD_FILES["two GPUs"][0])
    for out in (["x.yaml"], ["fits", "--gpu", "h100"]):
        assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / out[0]), *out[1:]]) == 2
        assert "no usable measurements" in capsys.readouterr().err
    written(tmp_path, HEAD, *ROWS)
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "y.json")]) == 2
    assert "y.json: a calibration is a .yaml file, not .json" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gemm.csv"]
    for folder in ("fits-1.2", "fits.new/"):
        assert main(["calibrate", str(tmp_path), "--out", f"{tmp_path}/{folder}"]) == 0
        assert (tmp_path / folder / "h100.yaml").is_file()


def test_a_whole_series_in_another_unit_is_quarantined(tmp_path):
    """Its neighbours in size are as far off as it is, so other series, and what any GPU takes, have to tell."""
    slow = [row for row in ROWS if ",1024,4096," in row]
    other = [f"{row.rpartition(',')[0]},{float(row.rpartition(',')[2]) / 1000:.5f}" for row in slow]
    found = read_measurements(written(tmp_path, HEAD, *(row for row in ROWS if row not in slow), *other))
    assert [problem.line for problem in found.problems] == list(range(14, 20))
    assert all("another unit" in problem.reason for problem in found.problems) and set(found.table("gemm")["n"]) == {
        512,
        2048,
    }


def test_a_correct_row_among_those_in_another_unit_stays(tmp_path):
    """Of one series all rows but one are in milliseconds, so that its neighbours speak against the correct one."""
    mixed = [
        row
        if ",8,1024," in row or ",1024,4096," not in row
        else f"{row.rpartition(',')[0]},{float(row.rpartition(',')[2]) / 1000:.5f}"
        for row in ROWS
    ]
    found = read_measurements(written(tmp_path, HEAD, *mixed))
    assert [problem.line for problem in found.problems] == [8, 9, 10, 12, 13]
    assert set(range(2, 20)) - set(found.table("gemm")["line"]) == {8, 9, 10, 12, 13}


@pytest.mark.parametrize("factor", [1e-3, 1e3], ids=["milliseconds", "nanoseconds"])
def test_a_file_in_another_unit_is_quarantined(tmp_path, factor):
    rows = [f"{row.rpartition(',')[0]},{float(row.rpartition(',')[2]) * factor:.6f}" for row in ROWS]
    found = read_measurements(written(tmp_path, HEAD, *rows))
    assert len(found.problems) == len(ROWS) + 1 and not found.tables
    assert "no row of this file can be used" in str(found.problems[0])


def test_files_that_disagree_on_a_point_lose_it_and_one_point_in_two_counts_once(tmp_path):
    written(tmp_path, HEAD, *ROWS, name="a.csv")
    found = read_measurements(written(tmp_path, *changed(5, "5.160", "9.5"), name="b.csv"))
    assert [(problem.file, problem.line) for problem in found.problems] == [("a.csv", 5), ("b.csv", 5)]
    assert all("another file" in problem.reason for problem in found.problems)
    assert len(found.table("gemm")) == len(ROWS) - 1


MOE = "run_id,gpu_name,library,library_version,model,dtype,hidden,ffn,experts,top_k,ep,tp,distribution,tokens_total,latency_us_median"  # noqa: E501


def test_columns_that_contradict_each_other(tmp_path):
    row = "1,H100,lib,1.0,own,bf16,2048,768,64,{},{},1,balanced,64,80"
    written(tmp_path, MOE, *(row.format(*pair) for pair in ((8, 4), (65, 4), (8, 65))), name="moe.csv")
    times = [f"{row},{p10}" for row, p10 in ((ROWS[0], 5.0), (ROWS[1], 5039.0))]
    found = read_measurements(written(tmp_path, f"{HEAD},latency_us_p10", *times))
    assert [(problem.file, problem.line, problem.reason) for problem in found.problems] == [
        ("gemm.csv", 3, "latency_us_p10: 5039 is more than latency_us_median, 5.04"),
        ("moe.csv", 3, "top_k: 65 is more than experts, 64"),
        ("moe.csv", 4, "ep: 65 is more than experts, 64"),
    ]


def test_other_ways_to_write_the_same_file(tmp_path):
    """Line ends, a byte order mark, quotation marks, capitals in the suffix, gzip."""
    text = "\n".join([HEAD, *ROWS, ""])
    quoted = "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()) + "\n"
    files = {
        "a.CSV": text.encode("utf-8-sig"), "b.csv": text.replace("\n", "\r\n").encode(),
        "c.csv": text.replace("\n", "\r").encode(), "d.csv": quoted.encode(),
        "e.csv.gz": gzip.compress(text.encode(), mtime=0), "f.csv": text.replace("\n", "\n\n").encode(),
    }  # fmt: skip
    plain = read_measurements(written(tmp_path, HEAD, *ROWS)).table("gemm")
    for name, data in files.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(data)
        found = read_measurements(folder)
        assert found.problems == []
        assert found.table("gemm").drop(columns=["file", "line"]).equals(plain.drop(columns=["file", "line"]))


def test_what_is_no_table_is_told_once(tmp_path):
    (tmp_path / "broken.csv.gz").write_bytes(b"no archive")
    written(tmp_path, HEAD, name="nothing.csv")
    found = read_measurements(written(tmp_path, "# mine", HEAD, *ROWS, name="remark.csv"))
    assert [(problem.file, problem.line, problem.kind) for problem in found.problems] == [
        ("broken.csv.gz", 1, "refused"),
        ("nothing.csv", 1, "warning"),
    ]
    assert list(found.skipped) == ["remark.csv"] and not found.tables


def test_unknown_layout_is_skipped_and_nothing_at_all_is_an_error(tmp_path):
    found = read_measurements(written(tmp_path, "a,b", "1,2", name="other.csv"))
    assert found.skipped == {"other.csv": UNKNOWN_LAYOUT} and not found.tables
    with pytest.raises(CalibrationError, match="no such file"):
        read_measurements(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD.replace(",", ";"), "columns are not separated by commas"),
        (HEAD.upper(), "expected the column 'run_id', not 'RUN_ID'"),
        (HEAD.replace(",m,", ", m,"), "expected the column 'm', not ' m'"),
    ],
)
def test_headers_written_in_another_way_are_refused(tmp_path, capsys, head, why):
    written(tmp_path, head, *ROWS)
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "gemm.csv:1: refused: " in message and why in message and "no usable measurements" in message


MOE_HEAD = "gpu,model,phase,dtype,kernel_source,distribution,ep,num_tokens,latency_us"


def test_grouped_products_after_dispatch_and_models_of_unknown_size(tmp_path):
    lines = [f"H200,{model},generation,fp8_block,deepepmoe,uniform,8,64,90" for model in ("DeepSeek-V3", "Mine")]
    found = read_measurements(written(tmp_path, MOE_HEAD, *lines, name="any.csv"))
    (row,) = found.table("moe", "h200").to_dict("records")
    assert (row["kernel"], row["distribution"], row["ep"], row["tp"]) == ("deepepmoe-generation", "balanced", 8, 1)
    (problem,) = found.problems
    assert (problem.line, problem.kind) == (3, "warning") and "models of unknown sizes" in problem.reason


def test_batched_products_are_grouped_and_fp8_of_that_source_is_left_out(tmp_path):
    head = "gpu,dtype,batch,m,n,k,flop_per_s,latency_us_derived"
    lines = [f"H100,{dtype},{batch},256,512,1024,1e12,9" for dtype in ("bfloat16", "fp8_e4m3") for batch in (1, 2, 4)]
    rows = read_measurements(written(tmp_path, head, *lines, name="any.csv")).table("gemm", "h100")
    assert list(rows["groups"]) == [2, 4] and set(rows["dtype"]) == {"bf16"}


class TestQuantisation:
    GEMM = "gpu,dtype,framework,framework_version,kernel_source,m,n,k,latency_us"
    OVERHEAD = "gpu,op,framework,framework_version,m,k,latency_us"

    def rows(self, folder):
        times = [f"H100,fp8,lib,1.0rc2,x,{m},512,{k},{t}" for m, k, t in ((1, 1024, 10), (2, 3072, 12), (64, 1024, 40))]
        took = [
            f"H100,{op},lib,1.0rc{version},{m},{k},{us * m}"
            for op, us in (("compute_scale", 2), ("scale_matrix", 1))
            for version in (1, 2)
            for m in (1, 4)
            for k in (1024, 4096)
        ]
        written(folder, self.GEMM, *times, name="times.csv")
        found = read_measurements(written(folder, self.OVERHEAD, *took, name="took.csv"))
        assert found.problems == []
        return without_quantisation(found.table("gemm", "h100"), found.table("quantisation", "h100"))

    def test_is_subtracted_between_measured_sizes_and_not_beyond(self, tmp_path):
        rows = self.rows(tmp_path)
        assert list(rows["m"]) == [1, 2] and set(rows["quant_included"]) == {"0"}
        assert list(rows["latency_us_median"]) == pytest.approx([10 - 3, 12 - 6])
        assert set(rows["file"]) == {"times.csv less took.csv"}

    def test_alone_it_calibrates_nothing(self, tmp_path, capsys):
        took = "H100,compute_scale,lib,1.0,1,1024,2"
        written(tmp_path, self.OVERHEAD, took, name="took.csv")
        assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
        assert "alone cannot determine any table" in capsys.readouterr().err


def test_public_layout_in_other_folders_and_names(tmp_path):
    head = "gpu,dtype,framework,framework_version,kernel_source,m,n,k,latency_us"
    lines = [f"H200-SXM,{dtype},trtllm,1.4.0,x,{m},2048,7168,9" for dtype in ("bfloat16", "fp8") for m in (0, 1, 2)]
    (tmp_path / "deep").mkdir()
    rows = read_measurements(written(tmp_path, head, *lines, name="deep/any.csv")).table("gemm", "h200")
    assert list(rows["dtype"]) == ["bf16", "bf16", "fp8", "fp8"]
    assert list(rows["quant_included"]) == ["0", "0", "1", "1"]
    assert list(rows["line"]) == [3, 4, 6, 7]


@table_of(__file__, "gpu_names")
def test_short_names_of_gpus(name, key):
    assert gpu_key(name) == key and gpu_key("x" * 99) == "x" * 64


def test_schema_describes_every_column():
    text = describe()
    assert all(f"`{column.name}`" in text for table in TABLES.values() for column in table.columns)
    assert {"m", "n", "k", "latency_us_median"} <= set(GEMM.required)


DISPATCH = "gpu,{}num_gpus,hidden_size,topk,num_experts,tokens_per_rank,dispatch_us,combine_us"


def test_ranks_of_one_node_and_of_two_and_their_builds_are_never_pooled(tmp_path):
    """As many ranks in one node and in two, and one node by two builds, at the same sizes."""
    points = [(tokens, 10 + tokens / 10) for tokens in (1, 8, 64, 256)]
    written(
        tmp_path,
        DISPATCH.format(""),
        *(f"H100,8,7168,8,256,{tokens},{time},{time}" for tokens, time in points),
        name="a.csv",
    )
    between = [
        f"H100,{nodes},8,7168,8,256,{tokens},{time * (nodes + 1)},{time}" for nodes in (1, 2) for tokens, time in points
    ]
    found = read_measurements(written(tmp_path, DISPATCH.format("nodes,"), *between, name="b.csv"))
    assert found.problems == []
    tables = [table for table in fit_transfers(found.table("collective"), "collective") if table.of["op"] == "dispatch"]
    named = {
        (table.version, table.of["nodes"]): law_of(table).time_ns(256 * 8 * 7168 * (1 + 4 / 128)) for table in tables
    }
    assert named == {
        ("sglang-0.5.12", "1"): pytest.approx(35.6e3),
        ("sglang-0.5.6.post2", "1"): pytest.approx(71.2e3),
        ("sglang-0.5.6.post2", "2"): pytest.approx(106.8e3),
    }


@pytest.mark.parametrize(
    ("nodes", "ranks", "times"),
    [
        (1, 8, {"dispatch": 30, "combine": 50}),  # a node has no notify: 0 in its 23 public rows
        (2, 16, {"dispatch": 30, "dispatch_notify": 12, "combine": 50}),
    ],
)
def test_a_notify_is_a_time_of_its_own_between_nodes(tmp_path, nodes, ranks, times):
    parts = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us")
    head = (
        f"gpu,also_published_as,nodes,num_gpus,hidden_size,topk,num_experts,comm_sms,tokens_per_rank,{','.join(parts)}"
    )
    rows = read_measurements(
        written(tmp_path, head, f"H100,H200,{nodes},{ranks},7168,8,256,20,1,30,{12 * (nodes - 1)},50,0", name="any.csv")
    ).table("collective")
    assert dict(zip(rows["op"], rows["latency_us_median"], strict=True)) == times
    assert set(rows["nodes"]) == {nodes} and set(rows["variant"]) == {"normal"}


def test_what_an_all_to_all_sends_is_what_its_layer_computes_in_but_for_the_combine(tmp_path):
    head = "gpu,op,kernel_source,dtype,distribution,hidden_size,topk,num_experts,ep,num_tokens,latency_us"
    ops = ("prepare", "dispatch", "combine")
    lines = [
        f"GB200,alltoall_{op},NVLinkTwoSided,{dtype},balanced,7168,8,256,64,1,{9 + len(dtype)}"
        for op in ops
        for dtype in ("bfloat16", "nvfp4")
    ]
    rows = read_measurements(written(tmp_path, head, *lines, name="any.csv")).table("collective", "gb200")
    tables = fit_transfers(rows, "collective")
    assert sorted((table.of["op"], table.of["dtype"], len(table.sweeps)) for table in tables) == [
        ("combine", "bf16", 2), ("dispatch", "bf16", 1), ("dispatch", "nvfp4", 1), ("prepare", "bf16", 2),
    ]  # fmt: skip


def test_a_sweep_whose_file_names_its_version_is_apart(tmp_path):
    line = "H200,DeepSeek-V3,generation,fp8_block,deepepmoe,uniform,8,{},{}"
    written(tmp_path, MOE_HEAD, *(line.format(tokens, 90) for tokens in (8, 64)), name="sweep.csv")
    found = read_measurements(
        written(tmp_path, MOE_HEAD, *(line.format(tokens, 200) for tokens in (8, 64)), name="sweep_sglang056.csv")
    )
    assert found.problems == []
    tables = fit_moe(found.table("moe"))
    assert [(table.version, table.source) for table in tables] == [
        ("0.5.10", "sweep.csv"),
        ("0.5.6.post2", "sweep_sglang056.csv"),
    ]


FUSED = "gpu,model,dtype,framework,framework_version,kernel_source,distribution,tp,ep,num_tokens,latency_us"


def test_a_layer_measured_twice_is_two_runs_and_a_name_may_be_its_sizes(tmp_path):
    lines = [f"A100,{model},bfloat16,sglang,0.5.10,x,balanced,1,8,64,{time}" for model, time in
             (("Kimi-K2", 90), ("Kimi-K2", 130), ("h6144_i2560_k8_e160", 80), ("MiniMax-M2", 70))]  # fmt: skip
    found = read_measurements(written(tmp_path, FUSED, *lines, name="any.csv"))
    rows = found.table("moe", "a100")
    assert found.problems == [] and list(rows["run_id"]) == ["0.5.10", "0.5.10 run 2", "0.5.10", "0.5.10"]
    assert rows[["hidden", "ffn", "top_k", "experts"]].iloc[2].tolist() == [6144, 2560, 8, 160]


def test_a_rank_that_skewed_routing_fills_is_in_no_other_unit(tmp_path):
    """It has up to all tokens, where a balanced one has its share: here 32 times as many, at a slow kernel. On a rank
    alone the kernel reaches three quarters of the peak.
    """
    tokens = (1, 64, 1024, 4096, 16384)
    rows = [
        f"A100,DeepSeek-V3,bfloat16,sglang,0.5.10,x,power_law_1.2,1,{ep},{t},{90 + 3 * t / ep + t * ep / 64}"
        for ep in (1, 8, 64, 256)
        for t in tokens
    ]
    found = read_measurements(written(tmp_path, FUSED, *rows, name="any.csv"))
    assert found.problems == [] and len(found.table("moe")) == len(rows)


def test_experts_with_eplb_and_without_are_apart(tmp_path):
    head = (
        "gpu,model,hidden_size,inter_size,topk,num_experts,num_slots,ep,dtype,kernel_source,distribution,eplb,num_tokens,"
        "tokens_per_dp_rank,tokens_on_measured_rank,latency_us"
    )
    ways = ((256, 0, 400), (256, 1, 300), (288, 1, 250))
    lines = [
        f"H100,GLM-5,6144,2048,8,256,{slots},{ep},fp8_block,x,power_law_1.2,{eplb},512,64,200,{time}"
        for slots, eplb, time in ways
        for ep in (8, 16)
    ]
    found = read_measurements(written(tmp_path, head, *lines, name="any.csv"))
    assert found.problems == []
    tables = fit_moe(found.table("moe", "h100"))
    assert {table.eplb_slots: float(moe_ns(table, [8.0], [1.0], [512.0])[0]) for table in tables} == {
        slots if eplb else 0: pytest.approx(time * 1e3, rel=1e-3) for slots, eplb, time in ways
    }
    assert {table.eplb_slots: table.routing for table in tables}[288] == BY_CHANCE


def test_dense_projections_are_a_library_of_their_own(tmp_path):
    head = "gpu,framework_version,dtype,n,k,m,latency_us"
    rows = read_measurements(written(tmp_path, head, "H100,1.3.0rc20,fp8,32,4096,1,6", name="any.csv")).table(
        "gemm", "h100"
    )
    assert rows[["library", "library_version", "quant_included"]].iloc[0].tolist() == ["trtllm-dense", "1.3.0rc20", "1"]


def test_a_layout_that_no_law_is_fitted_to_is_skipped_with_the_reason(tmp_path, capsys):
    head = "profile,prefill_chunk,kv_prefill,n_decode,kv_decode,latency_us"
    written(tmp_path, head, "llama_a6000_tp1,0,0,1,16,7.69", name="attention.csv")
    found = read_measurements(tmp_path)
    assert found.skipped == {"attention.csv": ATTENTION} and found.problems == [] and not found.tables
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"attention.csv:1: skipped: {ATTENTION}" in capsys.readouterr().err


FIRST_SETS = ("attention", "gemm", "moe", "serving_gpu_profiles")  # of others: test_calibration_comm.py


@pytest.mark.nightly
def test_shared_measurements_are_read_without_a_problem(shared):
    """The first two sets; those of Blackwell and of attention kinds have two million rows, and tests of their own."""
    folders = [each for each in (shared / "data" / "calibration").iterdir() if each.name in FIRST_SETS]
    found = [read_measurements(folder) for folder in folders]
    problems = [problem for each in found for problem in each.problems]
    assert {(problem.file, problem.kind) for problem in problems} <= {
        ("xla_matmul.csv", "warning"),
        ("aic_gqa_context.csv", "warning"),  # its last series is short
        ("aic_mla_trtllm.csv", "quarantined"),  # single points a hundred times off
    }
    assert len([each for each in problems if each.kind == "quarantined"]) < 15
    assert not any(UNKNOWN_LAYOUT in each.skipped.values() for each in found)
    kinds = {kind for each in found for kind in each.tables}
    assert kinds == {"gemm", "moe", "quantisation", "attention"}


# Layouts of the Blackwell set: a few rows of each, read into the schema; dtypes of four bits; siblings.

FILES = {
    "gemm/aic_gemm_grid_b200.csv": (
        "gpu,dtype,n,k,m,latency_us_trtllm_1_3_0rc20,latency_us_trtllm_1_3_0rc10,latency_us_vllm_0_24_0,latency_us_vllm_0_19_0",
        "B200-SXM,nvfp4,4096,4096,1,13.735,13.073,9.088,8.359",
        "B200-SXM,fp8_block,4096,4096,1,9.338,13.292,,17.2",
    ),
    "moe/aic_moe_fused_b200.csv": (
        "gpu,model,dtype,framework,framework_version,kernel_source,distribution,tp,ep,num_tokens,repeat,suspect,latency_us",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,64,0,0,50",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,64,1,0,51",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,128,0,1,50",
        "B200-SXM,Kimi-K2,int4_wo,sglang,0.5.14,sglang_marlin_moe,balanced,1,8,64,0,0,150",
    ),
    "attention/aic_gqa_context_b200.csv": (
        "gpu,framework,framework_version,kernel_source,attn_dtype,kv_dtype,q_heads,kv_heads,head_dim,window,batch,input_tokens,latency_us",
        "B200-SXM,sglang,0.5.9,flashinfer,bfloat16,bfloat16,4,1,128,0,1,1,14.48",
    ),
    "attention/aic_mla_module_blackwell.csv": (
        "gpu,framework,framework_version,kernel_source,scope,model,phase,mla_dtype,kv_cache_dtype,gemm_type,num_heads,tp_size,batch_size,isl,step,repeat,latency_us",
        "B200-SXM,sglang,0.5.10,trtllm_mla,wideep_module,DeepSeek-V3,context,fp8_block,fp8,fp8_block,16,1,1,64,0,0,554.6",
        "B200-SXM,trtllm,1.3.0rc20,default,module,DeepSeek-V3,generation,bfloat16,fp8,nvfp4,16,1,4,1,1024,0,60.6",
    ),
    "attention/aic_mla_kernels_blackwell.csv": (
        "gpu,framework,framework_version,kernel_source,phase,mla_dtype,kv_cache_dtype,num_heads,tp_size,batch_size,isl,step,repeat,latency_us",
        "B200-SXM,sglang,0.5.10,trtllm_mla,context,bfloat16,bfloat16,1,64,1,16,0,0,13.056",
    ),
    "attention/aic_mla_bmm_blackwell.csv": (
        "gpu,framework,framework_version,op,kernel_source,dtype,num_heads,num_tokens,latency_us",
        "B200-SXM,trtllm,1.3.0rc20,mla_gen_pre,trtllm_bmm_out,bfloat16,128,64,6.685",
    ),
    "comm/aic_nccl_collectives_blackwell.csv": (
        "gpu,nccl_version,nccl_version_in_file,op,dtype,num_gpus,message_bytes,repeat,latency_us",
        "GB300-NVL72,2.27,2.29.2,alltoall,half,2,512,0,8.41",
        "GB300-NVL72,2.27,2.29.2,alltoall,half,2,512,1,8.51",
    ),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blackwell")
    for name, lines in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder, read_measurements(folder)


def test_products_of_engines_are_the_newest_version_that_has_the_dtype(read):
    rows = read[1].table("gemm", "b200")
    found = set(zip(rows["library"], rows["library_version"], rows["dtype"], rows["latency_us_median"], strict=True))
    assert found == {
        ("trtllm", "1.3.0rc20", "nvfp4", 13.735), ("trtllm", "1.3.0rc20", "fp8_block", 9.338),
        ("vllm", "0.24.0", "nvfp4", 9.088), ("vllm", "0.19.0", "fp8_block", 17.2),
    }  # fmt: skip
    assert set(rows["quant_included"]) == {"1"}


def test_suspect_layers_are_left_out_and_repeats_are_runs(read):
    rows = read[1].table("moe", "b200")
    assert set(zip(rows["model"], rows["dtype"], rows["run_id"], rows["tokens_total"], strict=True)) == {
        ("gpt-oss-120b", "mxfp4", "1.3.0rc20", 64), ("gpt-oss-120b", "mxfp4", "1.3.0rc20 run 2", 64),
        ("Kimi-K2", "int4", "0.5.14", 64),
    }  # fmt: skip
    assert any("1 rows from this line on are not used: marked suspect" in each.reason for each in read[1].problems)


def test_attention_has_versions_and_blocks_their_projections(read):
    rows = read[1].table("attention", "b200").set_index("kind").sort_index()
    assert rows.loc["gqa", "library_version"] == "0.5.9" and rows.loc["mla", "library"] == "sglang"
    blocks = rows.loc["mla_block"].set_index("library")
    assert blocks["products"].to_dict() == {"sglang-wideep": "fp8_block", "trtllm": "nvfp4"}
    assert blocks.loc["trtllm", ["tokens", "batch", "kv_dtype"]].tolist() == [1025, 4, "fp8"]
    assert rows.loc["mla_pre", ["heads", "batch", "phase"]].tolist() == [128, 64, "decode"]


def test_one_section_reads_the_files_of_its_kind_alone(read):
    found = read_measurements(read[0], kinds=kinds_of(["collectives"]))
    assert set(found.tables) == {"collective"} and len(found.table("collective", "gb300")) == 2


def test_the_work_of_a_block_is_that_of_attention_and_of_its_projections():
    kernel, block = (AttentionSizes(16, 1, 576, kind=kind) for kind in ("mla", "mla_block"))
    (flop, moved), (all_flop, all_moved) = (
        work_of("decode", sizes, 4, 1, 1000, "bf16", products) for sizes, products in ((kernel, ""), (block, "nvfp4"))
    )
    weights = 7168 * 2112 + 16 * (1536 * 192 + 512 * 256 + 128 * 7168)
    assert all_flop - flop == 2 * 4 * weights and all_moved - moved == pytest.approx(weights * 0.5625)
    twice = [work_of("decode", AttentionSizes(h, 1, 576, kind="mla_pre"), 8, 1, 1, "bf16") for h in (4, 8)]
    assert np.allclose(np.array(twice[1]), 2 * np.array(twice[0]))


@pytest.mark.parametrize("gpu", sampled(["b200", "gb200", "b300", "gb300"], lambda gpu: gpu == "gb200"))
def test_blackwell_has_its_own_tables(gpu):
    laws = Laws(load_calibration(gpu))
    for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
        assert not laws.gemm(64, 4096, 7168, dtype=dtype).extrapolated
        layer = laws.fused_moe(4096, 8, dtype=dtype, model="Qwen3.5-397B-A17B")
        assert not layer.extrapolated and not layer.table.scaled_from
    for kind, products in (("mla", ""), ("mla_block", "nvfp4")):
        how = {"heads": 16, "kv_heads": 1, "head_dim": 576, "kind": kind, "products": products}
        assert not laws.attention(1, 4096, 32, dtype="bf16", kv_dtype="fp8", **how).table.scaled_from
    assert laws.collective("all_gather", 2**20, ranks=4).ns > 0 and laws.collective("all_to_all", 2**20, ranks=4).ns > 0
    own = MoeSizes(5120, 1536, 160, 8)  # of no measured model: the nearest one's law, flagged
    times = laws.fused_moe([64, 4096], 8, dtype="fp8_block", sizes=own, library="trtllm")
    assert times.extrapolated.all() and 0 < times.ns[0] < times.ns[1] and times.table.hidden == 5120


@pytest.mark.parametrize("dtype", DTYPES)
def test_systems_take_every_dtype_and_count_its_bytes(dtype):
    system = SystemSpec.model_validate(
        {"name": "x", "source": "x", "mesh": {"x": 1, "y": 1}, "compute": {"peak": "9 PFLOP/s", "dtype": dtype},
         "hbm": {"bandwidth": "8 TB/s", "capacity": "180 GB"}, "d2d": {"bandwidth": "1 TB/s"}},
        by_alias=True, by_name=False,
    )  # fmt: skip
    assert system.compute.bytes_of(1024) == 1024 * WEIGHT_BYTES[dtype]
    assert all(dtype == "fp16" or dtype in DATASHEETS[gpu].peak_flop_per_s for gpu in ("b200", "gb300"))


# Measurements that pass every check of a row and are wrong as a whole: units, throttled runs, and what is lost.

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


@pytest.mark.parametrize("gpu", sampled(["a100", "h100", "h200", "b200", "h20", "mi300x"], "mi300x".__eq__))
def test_a_whole_file_in_another_unit_is_refused(tmp_path, gpu):
    assert read_measurements(set_in(tmp_path / "good", gemm=on(gpu))).problems == []
    for name, factor in {"ns": 1e3, "ms": 1e-3}.items():
        found = read_measurements(set_in(tmp_path / name, gemm=on(gpu, factor)))
        assert not found.tables and found.problems[0].kind == "refused"
        assert "another unit" in found.problems[1].reason


@pytest.mark.parametrize("factor", [1e3, 1e-3], ids=["ns", "ms"])
@pytest.mark.parametrize("runs", [2, 3])
def test_a_run_in_another_unit_leaves_the_others(tmp_path, factor, runs):
    odd = {str(run): factor if run == 1 else 1.0 for run in range(runs)}
    found = read_measurements(set_in(tmp_path / "one", gemm=of_runs(odd)))
    assert set(found.table("gemm")["run_id"]) == set(odd) - {"1"}
    assert len(found.problems) == len(on("h100")) and "run '1' is far from the other runs" in found.problems[0].reason


def test_a_run_in_another_unit_is_found_among_files_and_on_gpus_without_datasheet(tmp_path):
    good, odd = (
        [row.replace("H100", "X900") for row in on("h100", factor, run)] for factor, run in ((1, "1"), (200, "2"))
    )
    found = read_measurements(set_in(tmp_path, gemm_1=good, gemm_2=odd))
    assert set(found.table("gemm")["run_id"]) == {"1"}
    assert [(each.file, each.line) for each in found.problems] == [("gemm_2.csv", 2)]


@pytest.mark.parametrize("gpu", ["NVIDIA H100", "NVIDIA B200", "X900"])
def test_copies_in_kib_are_refused(tmp_path, gpu):
    fast = 8e5 if "B200" in gpu else 2e5
    assert read_measurements(set_in(tmp_path / "good", p2p=copies(POWERS, 1, gpu, fast))).problems == []
    found = read_measurements(set_in(tmp_path / "kib", p2p=copies(POWERS, 1 / 1024, gpu, fast)))
    assert not found.tables and "time rises with size as on no link of a node" in found.problems[1].reason


def test_copies_of_small_sizes_and_slow_links_stay(tmp_path):
    for name, rows in {"small": copies(POWERS[:6]), "slow": copies(POWERS, 1, "X900", 1e3)}.items():
        assert read_measurements(set_in(tmp_path / name, p2p=rows)).problems == []


def test_one_throttled_run_of_five_is_not_used(tmp_path):
    runs = {str(run): 1.4 if run == 0 else 1 + run / 200 for run in range(5)}
    found = read_measurements(set_in(tmp_path, gemm=of_runs(runs)))
    assert set(found.table("gemm")["run_id"]) == {"1", "2", "3", "4"}
    (problem,) = found.problems
    assert "run '0' takes 1.38 times as long as the 4 others of its kind, which agree" in problem.reason


@pytest.mark.parametrize("slow", [0, 1], ids=["older", "newer"])
def test_of_two_runs_that_differ_the_faster_one_is_the_table(tmp_path, capsys, slow):
    runs = {str(run): 1.4 if run == slow else 1.0 for run in range(2)}
    out = tmp_path / "h100.yaml"
    assert main(["calibrate", str(set_in(tmp_path / "2", gemm=of_runs(runs))), "--out", str(out)]) == 0
    message = (
        f"NVIDIA H100, torch 2.8: run '{slow}' takes 1.40 times as long as run '{1 - slow}', at 36 points: not used"
    )
    assert message in capsys.readouterr().err
    (table,) = read_calibration(out).gemm
    assert table.sweeps == (f"2.8/{1 - slow}",)


def test_of_runs_that_all_differ_the_fastest_counts_and_a_majority_counts_before_it(tmp_path):
    found = read_measurements(set_in(tmp_path / "all", gemm=of_runs({"0": 1.4, "1": 1, "2": 2})))
    assert set(found.table("gemm")["run_id"]) == {"1"} and len(found.problems) == 2
    found = read_measurements(set_in(tmp_path / "one", gemm=of_runs({"0": 1.0, "1": 1.01, "2": 0.8})))
    assert set(found.table("gemm")["run_id"]) == {"0", "1"}
    (problem,) = found.problems
    assert "run '2' takes 0.80 times as long as the 2 others" in problem.reason


def test_versions_that_differ_are_both_kept(tmp_path):
    new = [row.replace(",2.8,", ",2.9,") for row in on("h100", 1.4, "1")]
    found = read_measurements(set_in(tmp_path, gemm=on("h100", 1, "0") + new))
    assert set(found.table("gemm")["library_version"]) == {"2.8", "2.9"} and found.problems == []


def test_many_rows_faster_than_the_peak_refuse_a_file(tmp_path, capsys):
    own = [row.replace("NVIDIA H100", "X900") for row in on("h100", 0.5)]
    good, fast = set_in(tmp_path / "good", gemm=on("h100")), set_in(tmp_path / "fast", gemm=own)
    assert main(["calibrate", str(good), "--out", str(tmp_path / "h100.yaml")]) == 0
    assert "faster than its peak" not in capsys.readouterr().err
    asked = ["calibrate", str(fast), "--peak", "bf16=989TFLOP/s", "--out", str(tmp_path / "x900.yaml")]
    assert main(asked) == 2
    message = "refused: 13 of 36 rows of x900 in bf16 are faster than its peak of 989 TFLOP/s, up to 1.4 times"
    assert message in capsys.readouterr().err


def test_a_single_row_faster_than_the_peak_is_left_out(tmp_path):
    rows = on("h100")
    rows[35] = f"{rows[35].rpartition(',')[0]},100"
    found = read_measurements(set_in(tmp_path, gemm=rows))
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
    found = read_measurements(set_in(tmp_path, moe=rows))
    assert len(found.table("moe")) == 24
    (problem,) = found.problems
    assert (problem.line, problem.kind) == (26, "quarantined")
    assert "1.1 times its peak (1 of 25 rows of h100 in bf16" in problem.reason


WHO = "run_id,gpu_name,library,library_version"
COLLECTIVE = f"{WHO},op,num_gpus,nodes,bytes,top_k,experts,latency_us_median"
HOST = f"{WHO},direction,pinned,method,bytes,latency_us_median"
KERNELS = f"{WHO},phase,kind,dtype,kv_dtype,heads,kv_heads,head_dim,window,batch,tokens,latency_us_median"
# Table, its header, cells of a size, GPU, the least us of one (byte or token), and what is said.
BOUNDED = [
    ("p2p", P2P, "intra_node,0,1,ce,uni,1,{}", "NVIDIA H100", 1 / 450e3, "link of 450 GB/s"),
    ("p2p", P2P, "inter_node,0,1,nccl,uni,1,{}", "NVIDIA A100", 1 / 300e3, "link of 300 GB/s"),
    ("collective", COLLECTIVE, "all_to_all,8,1,{},,", "NVIDIA H100", 7 / 8 / 450e3, "link of 450 GB/s"),
    ("collective", COLLECTIVE, "all_gather,4,1,{},,", "NVIDIA B200", 3 / 4 / 900e3, "link of 900 GB/s"),
    ("collective", COLLECTIVE, "reduce_scatter,8,1,{},,", "L40", 7 / 8 / 31.5e3, "link of 31.5 GB/s"),
    ("collective", COLLECTIVE, "all_reduce,2,1,{},,", "X900", 1 / 1.8e6, "link of 1.8 TB/s"),
    ("collective", COLLECTIVE, "broadcast,8,1,{},,", "NVIDIA H200", 1 / 450e3, "link of 450 GB/s"),
    ("collective", COLLECTIVE, "all_to_all,16,2,{},,", "NVIDIA H100", 1 / 2 / 50e3, "port to other nodes of 50 GB/s"),
    ("collective", COLLECTIVE, "all_reduce,16,2,{},,", "NVIDIA H100", 1 / 8 / 50e3, "port to other nodes of 50 GB/s"),
    ("collective", COLLECTIVE, "dispatch,2,1,{},1,256", "NVIDIA H100", 1 / 2 / 450e3, "link of 450 GB/s"),
    ("hostpath", HOST, "h2d,1,ce,{}", "NVIDIA H100", 1 / 63e3, "path to the host of 63 GB/s"),
    ("hostpath", HOST, "d2h,1,ce,{}", "NVIDIA GB200", 1 / 450e3, "path to the host of 450 GB/s"),
    ("attention", KERNELS, "decode,gqa,bf16,bf16,32,8,128,0,1,{}", "NVIDIA H100", 4096 / 3.35e6, "HBM of 3.35 TB/s"),
]


@pytest.mark.parametrize(
    ("kind", "head", "cells", "gpu", "us", "message"),
    sampled(BOUNDED, lambda case: case[3] in ("X900", "NVIDIA A100", "NVIDIA GB200") or case[0] == "attention"),
)
def test_what_is_faster_than_its_gpu_is_left_out(tmp_path, kind, head, cells, gpu, us, message):
    """At nine tenths of what can be all is used; twice as fast the file is refused; a single row goes alone."""
    sizes = [2**power for power in range(16, 31)]
    found = {}
    for name, times in {
        "fast": [us * size / 2 for size in sizes],
        "one": [4 + us * size / 0.9 for size in sizes[:-1]] + [4 + us * sizes[-2] / 0.9],
    }.items():  # fmt: skip
        rows = [f"1,{gpu},lib,1,{cells.format(size)},{time:.6g}" for size, time in zip(sizes, times, strict=True)]
        (tmp_path / f"{kind}.csv").write_text("\n".join([head, *rows]) + "\n")
        read = read_measurements(tmp_path)
        found[name] = len(read.table(kind)), [each for each in read.problems if "faster than" in each.reason]
    assert found["fast"][0] == 0 and {each.kind for each in found["fast"][1]} == {"refused"}
    (one,) = found["one"][1]
    alone = (len(sizes) - 1, "quarantined") if kind != "attention" else (0, "refused")  # kernels by a twentieth
    assert (found["one"][0], one.kind, one.line) == (*alone, len(sizes) + 1)
    assert message in one.reason and message in found["fast"][1][0].reason


LOG = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes {most} step: 16(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid  1001 on    node-a device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid  1001 on    node-a device  7 [0xdb] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw {wrong}     time   algbw   busbw {wrong}
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    52.10   20.13   {small}      0     0.51  2056.0  3598.0    N/A
  1073741824     268435456     float     sum      -1   4021.5   267.0   {bus}      0     0.50  2147.0  3758.0    N/A
# Out of bounds values : 0 OK
"""
REDUCED, GATHERED = {"small": 35.22, "bus": 467.3}, {"small": 17.61, "bus": 233.6}


def test_output_of_nccl_tests(tmp_path):
    """Of two runs in one file, of another program, and of an older version; times out of place."""
    good, older = LOG.format(most=2**30, wrong="#wrong", **REDUCED), LOG.format(most=2**30, wrong="error", **REDUCED)
    (tmp_path / "all_reduce_perf.txt").write_text(good + older.replace("4021.5   267.0", "4010.0   267.8"))
    other = LOG.format(most=2**30, wrong="#wrong", **GATHERED)
    (tmp_path / "job.log").write_text(f"$ mpirun ./all_gather_perf -b 1M\n{other}")
    found = read_measurements(tmp_path)
    rows = found.table("collective", "h100")
    assert found.problems == []
    assert list(rows[["op", "run_id", "line", "latency_us_median"]].itertuples(index=False, name=None)) == [
        ("all_reduce", "1", 7, 52.1), ("all_reduce", "1", 8, 4021.5), ("all_reduce", "2", 16, 52.1),
        ("all_reduce", "2", 17, 4010.0), ("all_gather", "1", 8, 52.1), ("all_gather", "1", 9, 4021.5),
    ]  # fmt: skip
    assert set(rows["num_gpus"]) == {8} and set(rows["nodes"]) == {1}


@pytest.mark.parametrize(("name", "old", "new", "line", "kind", "message"), sampled([
    ("all_gather_perf.txt", "x", "x", 7, "quarantined", "busbw is 1.75 times algbw; expected 0.875, of all_g"),
    ("all_reduce_perf.txt", "4021.5   267.0", "4.0215   267.0", 8, "quarantined", "267 GB/s; 1,073,741,824 bytes"),
    ("all_reduce_perf.txt", "467.3      0", "467.3    262", 8, "quarantined", "#wrong: 262 values"),
    ("all_reduce_perf.txt", "maxBytes 1073741824", "maxBytes 8589934592", 10, "warning", "at 1,073,741,824 of 8,589"),
    ("all_reduce_perf.txt", "3758.0    N/A", "3758.0", 8, "quarantined", "12 of 13 cells: the file is truncated here"),
    ("all_reduce_perf.txt", "[0xdb] NVIDIA H100", "[0xdb] NVIDIA H200", 1, "refused", "ranks on two GPUs"),
    ("run.txt", "x", "x", 5, "refused", "no line names the program"),
], lambda case: case[4] != "quarantined" or case[3] == 7))  # fmt: skip
def test_output_of_nccl_tests_that_contradicts_itself(tmp_path, name, old, new, line, kind, message):
    (tmp_path / name).write_text(LOG.format(most=2**30, wrong="#wrong", **REDUCED).replace(old, new))
    problem = next(each for each in read_measurements(tmp_path).problems if message in each.reason)
    assert (problem.file, problem.line, problem.kind) == (name, line, kind)


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

    found = read_measurements(set_in(tmp_path, gemm=[swapped(row) for row in on("h100")]))
    assert not found.tables and found.problems[0].kind == "refused"
    assert "are the columns m (rows, tokens) and n (output features) swapped?" in found.problems[0].reason


@pytest.mark.parametrize("rows", [
    gemm(m=(1, 4096)),
    *(pytest.param(each, marks=pytest.mark.nightly) for each in (gemm(m=(1, 64), shapes=[(4096, 7168)]), gemm(m=(1,)))),
])  # fmt: skip
def test_too_few_points_for_a_law_are_refused(tmp_path, capsys, rows):
    folder, out = set_in(tmp_path, gemm=rows, p2p=copies(POWERS)), tmp_path / "h100.yaml"
    assert main(["calibrate", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "no curve can be tested" in said and "python -m calibration.measure gemm" in said
    assert "not complete: gemm.csv refused" in said and not read_calibration(out).gemm
    assert len(read_measurements(folder).table("gemm")) == len(rows)  # validation may compare few points


def test_shapes_with_few_sizes_are_told(tmp_path, capsys):
    rows = gemm(m=(1, 16, 256, 4096), shapes=[(4096, 7168)]) + gemm(shapes=[(512, 1024), (2048, 1024)])
    assert main(["calibrate", str(set_in(tmp_path, gemm=rows)), "--out", str(tmp_path / "h100.yaml")]) == 0
    assert "1 of 3 shapes have fewer than 5 sizes of m (n 4096, k 7168 has 4)" in capsys.readouterr().err


def test_a_refused_file_fails_and_never_takes_a_table_away(tmp_path, capsys):
    out, folder = tmp_path / "h100.yaml", tmp_path / "measured"
    set_in(folder, gemm=gemm(), p2p=copies(POWERS))
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    before = out.read_bytes()
    set_in(folder, gemm=[row.replace(",torch,", ",torch,", 1).rpartition(",")[0] + ",5 us" for row in gemm()])
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
    assert main(["calibrate", str(set_in(data, gemm=on("h100"))), "--out", str(out)]) == 0
    before = read_calibration(out)
    write_calibration(before.model_copy(update={"gemm": before.gemm * 2}), out)
    assert main(["calibrate", str(data), "--out", str(out)]) == 0
    assert len(read_calibration(out).gemm) == 1
    capsys.readouterr()
    fewer = [row for row in on("h100") if ",2048,7168," not in row and ",4096,4096,7168" not in row]
    assert main(["calibrate", str(set_in(data, gemm=fewer)), "--out", str(out)]) == 2
    assert "cover less (gemm torch bf16 apart: without 2048x7168)" in capsys.readouterr().err
    fewer = [row for row in on("h100") if int(row.split(",")[-4]) < 4096]
    assert main(["calibrate", str(set_in(data, gemm=fewer)), "--out", str(out)]) == 2
    assert "m 1 to 1024 instead of 1 to 4096" in capsys.readouterr().err
    other = [row.replace(",2.8,", ",2.9,") for row in on("h100")]
    assert main(["calibrate", str(set_in(data, gemm=other)), "--out", str(out)]) == 0


def test_a_shape_that_is_slow_in_one_run_is_told_and_not_averaged(tmp_path, capsys):
    def slow(row):
        head, _, us = row.rpartition(",")
        return f"{head},{10 * float(us)}" if ",2048,7168," in row else row

    out, good = tmp_path / "h100.yaml", on("h100", 1, "0")
    folder = set_in(tmp_path / "two", gemm=good + [slow(row) for row in on("h100", 1, "1")])
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    message = "note: h100 gemm torch bf16 apart, version 2.8: sweeps are over 1.5 times apart at 6 of 36 points"
    assert message in capsys.readouterr().err
    fast = tmp_path / "fast.yaml"
    assert main(["calibrate", str(set_in(tmp_path / "one", gemm=good)), "--out", str(fast), "--gpu", "h100"]) == 0
    assert read_calibration(out).gemm[0].shapes == read_calibration(fast).gemm[0].shapes


def test_fits_are_written_with_six_digits_and_exact_sizes(tmp_path):
    folder, out = set_in(tmp_path / "measured", gemm=gemm(), p2p=copies(POWERS)), tmp_path / "h100.yaml"
    assert main(["calibrate", str(folder), "--out", str(out)]) == 0
    found = read_calibration(out)
    laws = [value for table in found.gemm for value in dict(table.law).values()]
    slopes = [slope for table in found.p2p for slope in table.ns_per_byte]
    assert laws and slopes and all(float(f"{value:.6g}") == value for value in laws + slopes)
    assert found.p2p[0].last_bytes == POWERS[-1]


# Sweeps of one release: what counts where they disagree, and which times a table is known to be fitted to.

TIMES = st.floats(1.0, 1e6)


def sweeps_of(*columns):
    """Sweeps of one row of cells: ln us, the newest first; None where not measured."""
    index = pd.MultiIndex.from_product([[1.0], range(len(columns[0]))], names=["ep", "tokens"])
    logs = [np.log(np.array(column, float)) for column in columns]
    return pd.DataFrame(dict(zip("cba", logs, strict=False)), index=index)


@given(st.lists(TIMES, min_size=1, max_size=3), st.floats(1.0, MOST_APART - 0.001))
def test_sweeps_that_agree_count_by_their_median(times, factor):
    sweeps = sweeps_of(times, [time * factor for time in times], [None] * len(times))
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time * factor**0.5 for time in times])
    assert note_of(sweeps) == ""


@given(TIMES, st.floats(MOST_APART + 0.001, 100))
def test_of_two_that_disagree_the_newer_counts(time, factor):
    for newest, other in ((time, time * factor), (time * factor, time)):
        sweeps = sweeps_of([newest, 1.0], [other, 1.0])
        assert np.exp(consensus(sweeps)).tolist() == pytest.approx([newest, 1.0])
        assert "apart at 1 of 2 points" in note_of(sweeps) and note_of(sweeps).endswith("as in c")


@given(TIMES, st.floats(PLAINLY_SLOWER + 0.001, 100), st.booleans())
def test_of_two_of_one_version_the_faster_counts_at_each_point(time, factor, swapped):
    columns = [time, time * factor, time], [time * factor, time, time]
    sweeps = sweeps_of(*columns[:: -1 if swapped else 1]).rename(columns={"c": "2.8/2", "b": "2.8/1"})
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time] * 3)
    assert "apart at 2 of 3 points" in note_of(sweeps)


@given(TIMES, st.floats(2.3, 100), st.permutations(range(3)))
def test_of_three_those_that_agree_count(time, factor, order):
    times = np.array([time, time * 1.01, time * factor])[list(order)]
    sweeps = sweeps_of(*([each] for each in times))
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time * 1.01**0.5])
    odd = "cba"[list(order).index(2)]
    assert note_of(sweeps).endswith("as in " + ", ".join(name for name in "cba" if name != odd))


@given(st.lists(st.one_of(st.none(), TIMES), min_size=1, max_size=20))
def test_a_fitted_time_is_known_and_a_missing_one_is_not(times):
    sweeps = sweeps_of(times, [None] * len(times))
    logs = np.log(np.array(times, float))
    at = np.arange(len(times))
    known = in_fit(fingerprints(sweeps), np.zeros(len(times), int), at, np.nan_to_num(logs))
    assert known.tolist() == [time is not None for time in times]
    assert not in_fit(fingerprints(sweeps), np.full(len(times), -1), at, logs).any()
    assert not in_fit((), np.zeros(len(times), int), at, logs).any()


def test_other_times_are_taken_for_fitted_ones_once_in_four_thousand():
    times = np.geomspace(1, 1e6, 4000)
    prints = fingerprints(sweeps_of(times))
    cells = np.zeros(len(times), int), np.arange(len(times))
    assert in_fit(prints, *cells, np.log(times)).all()
    mistaken = [in_fit(prints, *cells, np.log(times * factor)).sum() for factor in (1.0001, 1.01, 2.0)]
    assert max(mistaken) <= 6


def test_fingerprints_forgive_the_last_digits_of_a_logarithm():
    logs = sweeps_of(np.geomspace(1, 1e6, 1000))
    assert fingerprints(logs) == fingerprints(logs * (1 + 1e-15))

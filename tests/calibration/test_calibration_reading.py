"""Measurements: the schema, the public layouts, and bad rows and files, reported with file and line."""

import gzip

import pytest

from archsim.cli.main import main
from archsim.laws.moe import BY_CHANCE, moe_ns
from archsim.laws.transfers import law_of
from calibration.fit.gemm import without_quantisation
from calibration.fit.moe import fit_moe
from calibration.fit.transfers import fit_transfers
from calibration.measurements.adapters.not_fitted import ATTENTION
from calibration.measurements.reading import UNKNOWN_LAYOUT, CalibrationError, read_measurements
from calibration.measurements.schema import GEMM, TABLES, describe, gpu_key

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


BAD_ROWS = {
    "negative time": (5, "5.160", "-5.160", "out of range"),
    "no time": (5, "5.160", "0", "out of range"),
    "unit in a cell": (5, "5.160", "5.160 us", "not a plain number"),
    "milliseconds among microseconds": (5, "5.160", "0.00516", "another unit"),
    "nanoseconds among microseconds": (5, "5.160", "5160", "another unit"),
    "not a number": (5, "5.160", "nan", "not a plain number"),
    "infinite": (5, "5.160", "inf", "not a plain number"),
    "no rows": (5, ",8,512", ",0,512", "out of range"),
    "part of a row": (5, ",8,512", ",8.5,512", "out of range"),
    "unknown dtype": (5, "bf16", "bf17", "out of range"),
    "cell too few": (5, ",4096", "", "10 of 11 cells"),
    "cell too many": (5, ",4096", ",4096,7", "12 of 11 cells"),
    "more rows than there can be": (5, ",8,512", ",100000000000000000000,512", "out of range"),
    "quotation mark": (5, "H100", '"H100', "quotation mark"),
    "name without letters": (5, "H100", "!!!", "no letters or digits"),
}


@pytest.mark.parametrize(("line", "old", "new", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_row_is_quarantined(tmp_path, line, old, new, reason):
    found = read_measurements(written(tmp_path, *changed(line, old, new)))
    assert [(problem.file, problem.line, problem.kind) for problem in found.problems] == [
        ("gemm.csv", line, "quarantined")
    ]
    assert reason in found.problems[0].reason
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
        512, 2048
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
    }
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
        ("broken.csv.gz", 1, "refused"), ("nothing.csv", 1, "warning")
    ]
    assert list(found.skipped) == ["remark.csv"] and not found.tables


def test_unknown_layout_is_skipped_and_nothing_at_all_is_an_error(tmp_path):
    found = read_measurements(written(tmp_path, "a,b", "1,2", name="other.csv"))
    assert found.skipped == {"other.csv": UNKNOWN_LAYOUT} and not found.tables
    with pytest.raises(CalibrationError, match="no such file"):
        read_measurements(tmp_path / "nowhere")


@pytest.mark.parametrize(("head", "why"), [
    (HEAD.replace(",", ";"), "columns are not separated by commas"),
    (HEAD.upper(), "expected the column 'run_id', not 'RUN_ID'"),
    (HEAD.replace(",m,", ", m,"), "expected the column 'm', not ' m'"),
])
def test_headers_written_in_another_way_are_refused(tmp_path, capsys, head, why):
    written(tmp_path, head, *ROWS)
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "gemm.csv:1: refused: " in told and why in told and "no usable measurements" in told


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
        assert "alone determine no table" in capsys.readouterr().err


def test_public_layout_in_other_folders_and_names(tmp_path):
    head = "gpu,dtype,framework,framework_version,kernel_source,m,n,k,latency_us"
    lines = [f"H200-SXM,{dtype},trtllm,1.4.0,x,{m},2048,7168,9" for dtype in ("bfloat16", "fp8") for m in (0, 1, 2)]
    (tmp_path / "deep").mkdir()
    rows = read_measurements(written(tmp_path, head, *lines, name="deep/any.csv")).table("gemm", "h200")
    assert list(rows["dtype"]) == ["bf16", "bf16", "fp8", "fp8"]
    assert list(rows["quant_included"]) == ["0", "0", "1", "1"]
    assert list(rows["line"]) == [3, 4, 6, 7]


@pytest.mark.parametrize(("name", "key"), [
    ("NVIDIA H100 80GB HBM3", "h100"), ("H100-PCIe", "h100-pcie"), ("sm_90 (H100)", "h100"), ("A100 DGX", "a100"),
    ("MI300X", "mi300x"), ("NVIDIA GB200", "gb200"), ("NVIDIA GB200 NVL72", "gb200"),
    ("NVIDIA H100 NVL", "h100-nvl"), ("x" * 99, "x" * 64), ("My card 7", "my-card-7"),
])
def test_short_names_of_gpus(name, key):
    assert gpu_key(name) == key


def test_schema_describes_every_column():
    text = describe()
    assert all(f"`{column.name}`" in text for table in TABLES.values() for column in table.columns)
    assert {"m", "n", "k", "latency_us_median"} <= set(GEMM.required)


DISPATCH = "gpu,{}num_gpus,hidden_size,topk,num_experts,tokens_per_rank,dispatch_us,combine_us"


def test_ranks_of_one_node_and_of_two_and_their_builds_are_never_pooled(tmp_path):
    """As many ranks in one node and in two, and one node by two builds, at the same sizes."""
    points = [(tokens, 10 + tokens / 10) for tokens in (1, 8, 64, 256)]
    written(
        tmp_path, DISPATCH.format(""), *(f"H100,8,7168,8,256,{tokens},{time},{time}" for tokens, time in points),
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
        ("sglang-0.5.12", "1"): pytest.approx(35.6e3), ("sglang-0.5.6.post2", "1"): pytest.approx(71.2e3),
        ("sglang-0.5.6.post2", "2"): pytest.approx(106.8e3),
    }


@pytest.mark.parametrize(("nodes", "ranks", "times"), [
    (1, 8, {"dispatch": 30, "combine": 50}),  # a node has no notify: 0 in its 23 public rows
    (2, 16, {"dispatch": 30, "dispatch_notify": 12, "combine": 50}),
])
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
        ("0.5.10", "sweep.csv"), ("0.5.6.post2", "sweep_sglang056.csv")
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

"""Sweeps of a user's node in the layout that has no library version, and the GPU's name in one file only."""

import json

import numpy as np
import pandas as pd
import pytest

from archsim.cli.main import main
from archsim.laws.gemm import table_times
from archsim.laws.transfers import law_of
from archsim.specs.calibration_files import load_calibration
from calibration.measurements.adapters.dgx import LAYOUTS, dtype_of, library_and_version, sizes_of
from calibration.measurements.reading import read_measurements

HEADS = {
    "gemm": "run_id,gpu_name,driver,library,kernel,sm_clock_mhz,mem_clock_mhz,power_w,dtype_a,dtype_b,dtype_out,scaling,quant_included,"  # noqa: E501
    "groups,m,n,k,weight_copies,iters",
    "p2p": "run_id,src,dst,method,direction,concurrent_pairs,bytes,iters",
    "collective": "run_id,op,library,num_gpus,bytes_per_rank,dtype,sms",
    "moe": "run_id,model,dtype,kernel,ep,tp,distribution,tokens_total,tokens_rank,active_experts_rank,max_tokens_per_expert",  # noqa: E501
    "hostpath": "run_id,direction,pinned,method,bytes",
    "launch": "run_id,kind,kernel_bytes",
}
TIMES = "latency_us_median,latency_us_p10,latency_us_p90"
GPU, DRIVER = "NVIDIA H100 80GB HBM3", "550.54.15"
RUNS = (1, 2)
SIZES = [2**power for power in range(12, 33)]
M = [2**power for power in range(14)]
WAYS = {"bf16": ("bf16", "none"), "fp8": ("fp8_e4m3", "per_tensor"), "fp8_block": ("fp8_e4m3", "block")}
PEAK, BANDWIDTH = {"bf16": 800e6, "fp8": 1400e6, "fp8_block": 1200e6}, 3e6  # per us


def product_us(dtype, m, n, k):
    width = 2 if dtype == "bf16" else 1
    return 3 + 2 * m * n * k / PEAK[dtype] + (width * (n * k + m * k) + 2 * m * n) / BANDWIDTH


def copy_us(size, direction="uni"):
    return 2.5 + size / (380e3 if direction == "uni" else 340e3)


def points(kind, run):
    """(cells before the times, time in us) of every made-up point."""
    if kind == "gemm":
        for dtype, (element, scaling) in WAYS.items():
            for n, k in ((4096, 7168), (2048, 7168), (7168, 2048), (3072, 4096), (4096, 1536)):
                for m in M:
                    cells = (
                        f"{run},{GPU},{DRIVER},cublas "
                        f"12.4.5,nvjet,1980,2619,,{element},{element},bf16,{scaling},0,1,{m},{n},{k},8,100"
                    )
                    yield cells, product_us(dtype, m, n, k)
    elif kind == "p2p":
        for direction in ("uni", "bi"):
            yield from ((f"{run},0,1,ce,{direction},1,{size},20", copy_us(size, direction)) for size in SIZES)
        yield from ((f"{run},0,1,nccl,uni,1,{size},20", 8 + size / 360e3) for size in SIZES)
    elif kind == "collective":
        for op, sms in (("alltoall", ""), ("all_gather", "24")):
            yield from ((f"{run},{op},nccl 2.21.5,8,{size},bf16,{sms}", 12 + size / 200e3) for size in SIZES[:16])
    elif kind == "moe":
        for ep in (1, 8, 32):
            for tokens in M[4:]:
                pairs = tokens * 8 / ep
                yield (
                    f"{run},DeepSeek-V3,fp8_block,cutlass,{ep},1,balanced,{tokens},,,",
                    20 + min(pairs, 256 / ep) * 15 + pairs * 0.2,
                )
    elif kind == "hostpath":
        for direction in ("h2d", "d2h"):
            yield from ((f"{run},{direction},1,ce,{size}", 2.8 + size / 55e3) for size in SIZES)
    else:
        yield from (
            (f"{run},{name},8", us) for name, us in (("stream", 2.4), ("graph_node", 1.2), ("launch_to_sync", 7.0))
        )


def write(folder, kinds=tuple(HEADS)):
    folder.mkdir(exist_ok=True)
    for kind in kinds:
        noise = np.random.default_rng(list(HEADS).index(kind))
        lines = [f"{HEADS[kind]},{TIMES}"]
        for run in RUNS:
            for cells, us in points(kind, run):
                median = us * np.exp(0.003 * noise.standard_normal())
                lines.append(f"{cells},{median:.6g},{0.99 * median:.6g},{1.02 * median:.6g}")
        (folder / f"{kind}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    return write(tmp_path_factory.mktemp("node") / "measured")


@pytest.fixture(scope="module")
def fitted(node):
    file = node.parent / "h100.yaml"
    assert main(["calibrate", str(node), "--out", str(file)]) == 0
    return file


def test_all_six_files_are_read_whole(node):
    found = read_measurements(node)
    assert found.gpus() == ["h100"] and found.skipped == {}
    for kind in HEADS:
        assert len(found.table(kind, "h100")) == sum(1 for run in RUNS for _ in points(kind, run)), kind
    assert [(problem.file, problem.line, problem.kind) for problem in found.problems] == [
        ("moe.csv", 2, "warning"), ("p2p.csv", 2 + 2 * len(SIZES), "warning")
    ]
    assert all("no version of the library" in problem.reason for problem in found.problems)
    versions = {
        kind: set(zip(rows["library"], rows["library_version"], strict=True)) for kind, rows in found.tables.items()
    }
    assert versions == {
        "gemm": {("cublas", "12.4.5")}, "moe": {("cutlass", "unknown")}, "collective": {("nccl", "2.21.5")},
        "p2p": {("cuda", DRIVER), ("nccl", "unknown")}, "hostpath": {("cuda", DRIVER)}, "launch": {("cuda", DRIVER)},
    }
    layers = found.table("moe")[["model", "hidden", "ffn", "experts", "top_k"]].drop_duplicates()
    assert layers.values.tolist() == [["deepseek-v3", 7168, 2048, 256, 8]]
    gathered = found.table("collective").groupby("op")["bytes"].max()
    assert gathered["all_gather"] == 8 * gathered["all_to_all"] == 8 * SIZES[15]


def test_products_and_copies_are_fitted_as_they_were_made_up(fitted):
    calibration = load_calibration(fitted)
    assert {(table.library, table.version, table.dtype, table.groups) for table in calibration.gemm} == {
        ("cublas", "12.4.5", dtype, 1) for dtype in WAYS
    }
    for table in calibration.gemm:
        expected = [1e3 * product_us(table.dtype, m, 4096, 7168) for m in M]
        assert table_times(table, np.full(len(M), 4096), np.full(len(M), 7168), np.array(M), 132) == pytest.approx(
            expected, rel=0.01
        )
    laws = {(table.library, table.of["direction"]): law_of(table) for table in calibration.p2p}
    for direction in ("uni", "bi"):
        expected = [1e3 * copy_us(size, direction) for size in SIZES]
        assert laws["cuda", direction].time_ns(SIZES) == pytest.approx(expected, rel=0.015)
    assert {table.of["kind"]: table.value for table in calibration.launch} == pytest.approx(
        {"stream": 2400, "graph_node": 1200, "launch_to_sync": 7000}, rel=0.02
    )


def test_the_same_bytes_twice_and_a_page_that_judges_them(node, fitted, tmp_path):
    again = tmp_path / "h100.yaml"
    assert main(["calibrate", str(node), "--out", str(again)]) == 0
    assert again.read_bytes() == fitted.read_bytes()
    assert main(["validate", str(node), "--with", str(fitted), "--out", str(tmp_path / "page")]) == 0
    page = tmp_path / "page"
    summary, layers, transfers = (pd.read_csv(page / f"{name}.csv") for name in ("summary", "moe_groups", "transfers"))
    assert {"cublas", "cutlass"} == set(summary["library"]) and "sweep left out" in set(summary["kind"])
    assert list(layers["model"]) == ["DeepSeek-V3"] and list(layers["met"]) == ["yes"]
    assert (
        transfers["name"].str.contains(f"p2p cuda {DRIVER} intra_node ce uni").sum() == 2
        and transfers["mean"].max() < 0.01
    )
    assert (page / "index.html").is_file()


def test_the_gpu_is_the_folders(tmp_path):
    folder = write(tmp_path / "a", ("p2p", "launch"))
    found = read_measurements(folder)
    assert not found.tables and {(problem.line, problem.kind) for problem in found.problems} == {(1, "refused")}
    assert "no other file of the folder names the GPU" in found.problems[0].reason
    for manifest in (
        {"1": {"gpu_name": GPU, "gpus": 8, "driver": DRIVER}, "2": {"gpu_name": "H100", "driver": DRIVER}},
        {"gpu_name": "H100"},
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest))
        assert read_measurements(folder).gpus() == ["h100"]
        assert read_measurements(folder / "p2p.csv").gpus() == ["h100"]
    (folder / "manifest.json").write_text(json.dumps({"1": {"gpu_name": "H100"}, "2": {"gpu_name": "A100"}}))
    found = read_measurements(folder)
    assert not found.tables and "names several GPUs: 'A100', 'H100'" in found.problems[0].reason


BAD_ROWS = {
    "scaling": (
        "gemm",
        ",per_tensor,",
        ",rowwise,",
        "'fp8_e4m3 rowwise' is out of range (one of: bf16, fp16, fp8, fp8_block, nvfp4, mxfp4, mxfp4_mxfp8, int4)",
    ),
    "two dtypes": ("gemm", "bf16,bf16,bf16,none", "bf16,int4,bf16,none", "'bf16 x int4 none' is out of range"),
    "method": ("hostpath", ",ce,", ",memcpy,", "method: 'memcpy' is out of range (one of: ce, sm)"),
    "no size": ("p2p", ",4096,", ",,", "bytes: '' is not a plain number"),
    "model": ("moe", "DeepSeek-V3", "Mine-7B", "sizes are not known"),
}


@pytest.mark.parametrize(("kind", "old", "new", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_reported(tmp_path, kind, old, new, reason):
    folder = write(tmp_path / "a", ("gemm", kind))
    text = (folder / f"{kind}.csv").read_text().splitlines()
    line = next(at for at, row in enumerate(text) if old in row)
    text[line] = text[line].replace(old, new, 1)
    (folder / f"{kind}.csv").write_text("\n".join(text) + "\n")
    found = read_measurements(folder)
    assert any(reason in problem.reason and problem.line == line + 1 for problem in found.problems)
    assert line + 1 not in set(found.table(kind)["line"])


def test_a_header_of_the_schema_written_in_another_way_is_not_taken_for_one_of_this_layout(tmp_path):
    head = "run_id,gpu_name,library,Library_Version,kind,kernel_bytes,latency_us_median"
    (tmp_path / "launch.csv").write_text(f"{head}\n1,H100,cuda,550,stream,8,2.4\n")
    [problem] = read_measurements(tmp_path).problems
    assert problem.kind == "refused" and "expected the column 'library_version'" in problem.reason


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_a_header_alone_is_no_error(tmp_path, layout):
    write(tmp_path / "a", ("gemm",))
    (tmp_path / "a" / "b.csv").write_text(f"{HEADS[layout.kind]},{TIMES}\n")
    assert "b.csv:2" not in str(read_measurements(tmp_path / "a").problems)
    assert [str(problem) for problem in read_measurements(tmp_path / "a" / "b.csv").problems][0].endswith(
        "a header and no rows"
    )


def test_names():
    assert library_and_version("cublas 12.4") == ("cublas", "12.4")
    assert library_and_version("torch-2.8.0+cu128") == ("torch", "2.8.0+cu128")
    assert library_and_version("deepgemm-1d2d") == ("deepgemm-1d2d", "unknown")
    assert (
        dtype_of("float8_e4m3fn", "128x128") == "fp8_block"
        and dtype_of("BF16", "") == "bf16"
        and dtype_of("fp8", "") == "fp8"
    )
    assert (
        sizes_of("deepseek-ai/DeepSeek-R1")[0] == "deepseek-v3"
        and sizes_of("Mixtral-8x22B")[1] == 6144
        and sizes_of("V3") is None
    )

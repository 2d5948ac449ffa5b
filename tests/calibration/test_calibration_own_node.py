"""Sweeps of a user's node in the layout that has no library version, and the GPU's name in one file only."""

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
from support.examples import sampled
from support.made_up_measurements import GEMM
from support.made_up_measurements import gemm as products
from support.tables import table_of
from support.tiny import archsim

from archsim.base.errors import SpecError
from archsim.base.validation import validate
from archsim.base.yaml import Place, Tree
from archsim.cli.main import main
from archsim.evidence.engine_copies import copy_cases
from archsim.laws.calibration_files import load_calibration
from archsim.laws.gemm import ExpertGemm, Rates, choose_table, table_times
from archsim.laws.host_path import path_of
from archsim.laws.tables import CalibrationSpec, ReferenceRates, ResidualQuantiles, ScalarTable, TransferTable
from archsim.laws.transfers import fastest_bytes_per_s, law_of, link_table
from archsim.machine.system import D2DSpec, HbmSpec
from archsim.runs.calibration_notes import GemmSource, calibration_notes
from calibration.fit.calibration_file import write_calibration
from calibration.measurements.adapters.dgx import LAYOUTS, dtype_of, library_and_version, sizes_of
from calibration.measurements.datasheets import DATASHEETS
from calibration.measurements.reading import Measurements, read_measurements

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


SHAPES = ((4096, 7168), (2048, 7168), (7168, 2048), (3072, 4096), (4096, 1536))


def points(kind, run, shapes=SHAPES):
    """(cells before the times, time in us) of every made-up point."""
    if kind == "gemm":
        for dtype, (element, scaling) in WAYS.items():
            for n, k in shapes:
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
        for op, sms, rate in (("alltoall", "", 200e3), ("all_gather", "24", 50e3)):  # each receives those of all
            yield from ((f"{run},{op},nccl 2.21.5,8,{size},bf16,{sms}", 12 + size / rate) for size in SIZES[:16])
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


def write(folder, kinds=tuple(HEADS), shapes=SHAPES):
    folder.mkdir(exist_ok=True)
    for kind in kinds:
        noise = np.random.default_rng(list(HEADS).index(kind))
        lines = [f"{HEADS[kind]},{TIMES}"]
        for run in RUNS:
            for cells, us in points(kind, run, shapes):
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
        ("moe.csv", 2, "warning"),
        ("p2p.csv", 2 + 2 * len(SIZES), "warning"),
    ]
    assert all("no version of the library" in problem.reason for problem in found.problems)
    versions = {
        kind: set(zip(rows["library"], rows["library_version"], strict=True)) for kind, rows in found.tables.items()
    }
    assert versions == {
        "gemm": {("cublas", "12.4.5")}, "moe": {("cutlass", "unknown")}, "collective": {("nccl", "2.21.5")},
        "p2p": {("cuda", DRIVER), ("nccl", "unknown")}, "hostpath": {("cuda", DRIVER)},
        "launch": {("cuda", DRIVER)},
    }  # fmt: skip
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


@pytest.mark.nightly
def test_the_same_bytes_twice_and_a_page_that_judges_them(node, fitted, tmp_path):
    again = tmp_path / "h100.yaml"
    assert main(["calibrate", str(node), "--out", str(again)]) == 0
    assert again.read_bytes() == fitted.read_bytes()
    assert main(["validate", str(node), "--with", str(fitted), "--out", str(tmp_path / "page")]) == 0
    page = tmp_path / "page"
    cases, errors = pd.read_parquet(page / "cases.parquet"), pd.read_csv(page / "errors.csv")
    products = cases[cases["source"] == "GEMM"]
    assert {"cublas", "cutlass"} == set(products["library"]) and "sweep left out" in set(products["kind"])
    assert "the mean error of 1 of 1 groups" in (page / "evidence.json").read_text(encoding="utf-8")
    transfers = errors[errors["source"] == "transfers and memory"]
    assert transfers["group"].str.contains(f"p2p cuda {DRIVER} intra_node ce uni").any()
    assert transfers["mean"].max() < 0.01
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


@table_of(__file__, "bad_rows_of_a_node", every=3)
def test_bad_rows_are_reported(tmp_path, kind, old, new, said):
    folder = write(tmp_path / "a", ("gemm", kind), SHAPES[:1])
    text = (folder / f"{kind}.csv").read_text().splitlines()
    line = next(at for at, row in enumerate(text) if old in row)
    text[line] = text[line].replace(old, new, 1)
    (folder / f"{kind}.csv").write_text("\n".join(text) + "\n")
    found = read_measurements(folder)
    assert any(said in problem.reason and problem.line == line + 1 for problem in found.problems)
    assert line + 1 not in set(found.table(kind)["line"])


def test_a_header_of_the_schema_written_in_another_way_is_not_taken_for_one_of_this_layout(tmp_path):
    head = "run_id,gpu_name,library,Library_Version,kind,kernel_bytes,latency_us_median"
    (tmp_path / "launch.csv").write_text(f"{head}\n1,H100,cuda,550,stream,8,2.4\n")
    [problem] = read_measurements(tmp_path).problems
    assert problem.kind == "refused" and "expected the column 'library_version'" in problem.reason


@pytest.mark.parametrize(
    "layout", sampled(LAYOUTS, lambda layout: layout.kind in ("gemm", "moe")), ids=lambda layout: layout.kind
)
def test_a_header_alone_is_no_error(tmp_path, layout):
    write(tmp_path / "a", ("gemm",), SHAPES[:1])
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


# Systems and calibrations of a GPU without a datasheet, from made-up measurements.

MEMORY = "run_id,gpu_name,library,library_version,level,op,quantity,working_set_bytes,value"
UNI = {"placement": "intra_node", "method": "ce", "direction": "uni", "concurrent_pairs": "1"}


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


def law(*, library="torch", version="1", bytes_per_s=200e9, latency_ns=3000.0, first=4096, last=2**32, points=1, **of):
    return TransferTable(
        library=library, version=version, source="none", of=UNI | of, from_bytes=(first,), latency_ns=(latency_ns,),
        ns_per_byte=(1e9 / bytes_per_s,), first_bytes=first, last_bytes=last, residuals=ResidualQuantiles(p05=0, p50=0, p95=0, points=points),  # noqa: E501
    )  # fmt: skip


def scalar(value, version="1", **of):
    unit = "ns" if of["quantity"] == "latency_ns" else "ratio"
    return ScalarTable(
        library="torch",
        version=version,
        source="none",
        of={"level": "hbm"} | of,
        unit=unit,
        value=value,
        low=value,
        high=value,
    )


def calibration(gpu="own", gpu_fit=(), **tables):
    return CalibrationSpec(
        gpu=gpu, reference=ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=2e12, sms=1, fitted=gpu_fit), **tables
    )


@pytest.fixture
def links(tmp_path):
    """Links from some laws, and what a system gives."""

    def linked(laws, gpu="own", **keys):
        path = write_calibration(calibration(gpu, p2p=laws), tmp_path / "own.yaml")
        return read(D2DSpec, **{"bandwidth": "200 GB/s", "calibration": str(path)} | keys)

    return linked


def test_links_of_a_gpu_without_a_nominal_rate_are_shares_of_its_fastest_copy(links):
    """As much bandwidth as was measured: what was measured. Twice as much: half of the time but for the latency."""
    link = links([law(last=2**30)])
    assert "as a share of 199.9 GB/s: the fastest copy, as no nominal rate of own is known" in link.source
    measured_ns = 3000 + 2**24 / 200
    for times, expected in ((1, measured_ns), (2, 3000 + 2**24 / 400)):
        of_slices = links([law(last=2**30)], bandwidth=f"{times * 199.9} GB/s").of_slices(2**24)
        ns = 2 * of_slices.hop_latency_ns + 2**24 / (of_slices.bandwidth_bytes_per_s * of_slices.efficiency) * 1e9
        assert ns == pytest.approx(expected, rel=1e-3)
    assert len(copy_cases(calibration(p2p=[law()]), Measurements())) > 20


@pytest.mark.parametrize(("gpu", "nominal"), [("h20", 450e9), ("gb200", 900e9), ("b300", 900e9)])
def test_links_of_a_gpu_with_a_datasheet_are_shares_of_the_nominal_rate(links, gpu, nominal):
    link = links([law()], gpu)
    assert link.copies.bandwidth_bytes_per_s == nominal and link.source.endswith(": copies")


def test_the_fastest_copy_is_a_whole_one_and_not_a_short_steep_piece():
    noisy = law().model_copy(
        update={
            "from_bytes": (4096, 6144, 2**20),
            "latency_ns": (3000.0, 3010.0, 3000.0),
            "ns_per_byte": (0.0, 0.0, 0.005),
        }
    )
    assert fastest_bytes_per_s(noisy) == pytest.approx(200e9, rel=1e-3)


@pytest.mark.parametrize(("laws", "problem"), [
    ([], r"no measurements of copies between GPUs \(p2p.csv\)"),
    ([law(placement="inter_node")], "none within a node"),
    ([law(library="nccl-xla")], "none other than XLA's"),
    ([law(direction="bi")], "none one way"),
    ([law(concurrent_pairs="4")], "none of one pair at a time"),
    ([law(last=2**24), law(direction="bi")], "none from 1 MiB to 64 MiB; it has 4 KiB to 16 MiB"),
])  # fmt: skip
def test_why_no_law_is_taken_is_said(links, laws, problem):
    with pytest.raises(SpecError, match=problem):
        links(laws)
    assert not len(copy_cases(calibration(p2p=laws), Measurements()))


def test_the_newest_version_is_taken_everywhere():
    """2.10 follows 2.9, whatever has more points, smaller sizes or comes last."""
    laws = [law(version="2.10"), law(version="2.9", points=50)]
    for order in (laws, laws[::-1]):
        assert link_table(calibration(p2p=order)).version == "2.10"
        ways = [
            each.model_copy(update={"of": {"direction": way, "method": "ce", "pinned": "1"}})
            for each in order
            for way in ("d2h", "h2d")
        ]
        faster = [
            each.model_copy(update={"ns_per_byte": (0.01,), "from_bytes": (8192,), "first_bytes": 8192.0})
            if each.version == "2.10"
            else each
            for each in ways
        ]
        assert path_of(calibration(pcie=faster)).pcie_bandwidth_bytes_per_s == pytest.approx(100e9)


def test_hbm_is_of_the_newest_version_and_says_what_its_share_is_of(tmp_path):
    numbers = [scalar(value, version, op=op, quantity=quantity) for version, values in (("2.10", (500.0, 0.8)), ("2.9", (900.0, 0.5)))  # noqa: E501
               for value, op, quantity in zip(values, ("chase", "read"), ("latency_ns", "efficiency"), strict=True)]  # fmt: skip  # noqa: E501
    for gpu_fit, end in (((), "latency, efficiency"), (("hbm",), "latency, efficiency (of 2 TB/s, which was fitted)")):
        path = write_calibration(calibration(gpu_fit=gpu_fit, hbm=numbers), tmp_path / "own.yaml")
        hbm = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB", calibration=str(path))
        assert (hbm.latency_ns, hbm.efficiency) == (500.0, 0.8) and hbm.source.endswith(f": {end}")


@pytest.fixture(scope="module")
def gpu_fit(tmp_path_factory):
    """The calibration of some made-up products and reads of HBM, by the command, what it said on stderr, and its file;
    once for each set of options.
    """

    @cache
    def calibrated(*more, gpu="Own X900", versions=("2.9",)):
        folder = tmp_path_factory.mktemp("measured")
        rows = [
            row.replace("NVIDIA H100", gpu)
            for version in versions
            for row in products(version=version, factor=1 + (version != versions[-1]))
        ]
        (folder / "gemm.csv").write_text("\n".join([GEMM, *rows]) + "\n")
        (folder / "memory.csv").write_text(
            "\n".join([MEMORY, *(f"1,{gpu},torch,2.9,hbm,read,bytes_per_s,{2**30},1.8e12" for _ in range(2))]) + "\n"
        )
        out = folder / "fit" / "own.yaml"
        ended = archsim(folder, "calibrate", folder, "--out", out, *more)
        assert ended.returncode == 0
        return load_calibration(out), ended.stderr, str(out)

    return calibrated


def test_nominal_rates_that_are_named_are_the_reference(gpu_fit):
    found, said, _ = gpu_fit("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s")
    assert (
        found.reference == ReferenceRates(peak_flop_per_s={"bf16": 600e12}, hbm_bytes_per_s=2.4e12, sms=132)
        and said == ""
    )
    assert [table.value for table in found.hbm if table.unit == "ratio"] == [0.75]
    both, *_ = gpu_fit("--peak", "fp16=500TFLOP/s", "--peak", "fp8=1 PFLOP/s", "--hbm", "2.4 TB/s")
    assert (
        both.reference.peak_flop_per_s == {"fp16": 500e12, "fp8": 1e15, "bf16": 500e12} and both.reference.fitted == ()
    )


def test_without_them_the_fitted_rates_stand_and_it_is_said(gpu_fit):
    found, said, _ = gpu_fit()
    table = choose_table(found, "bf16")
    assert found.reference.peak_flop_per_s == {"bf16": table.law.flop_per_s} and found.reference.fitted == (
        "bf16",
        "hbm",
    )
    assert found.reference.hbm_bytes_per_s == 1.8e12 and [
        table.value for table in found.hbm if table.unit == "ratio"
    ] == [1.0]
    assert "note: own-x900: no nominal rate is known" in said and "give them with --peak bf16=... --hbm ..." in said
    assert load_calibration("h100").reference.fitted == ()
    known, said, _ = gpu_fit(gpu="NVIDIA H100")
    assert known.reference == DATASHEETS["h100"] and said == ""


def test_the_fitted_reference_is_that_of_the_table_that_systems_take(gpu_fit):
    """Of the newest version, 2.10, which is twice as fast and comes first by spelling."""
    found, *_ = gpu_fit(versions=("2.9", "2.10"))
    rates = {table.version: table.law.flop_per_s for table in found.gemm}
    assert choose_table(found, "bf16").version == "2.10" and [*rates] == ["2.10", "2.9"]
    assert found.reference.peak_flop_per_s["bf16"] == rates["2.10"] > 1.5 * rates["2.9"]


def test_a_die_with_the_nominal_rates_takes_what_was_measured(gpu_fit):
    """Rates that were named: a system that names the same ones. Fitted ones: a system that names those."""
    for more in (("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s"), ()):
        found, *_ = gpu_fit(*more)
        peak, hbm = found.reference.peak_flop_per_s["bf16"], found.reference.hbm_bytes_per_s
        mine, measured = (ExpertGemm(found, 2048, 1024, "bf16", rates) for rates in (Rates(peak, hbm), None))
        assert mine.gate.ns.tolist() == measured.gate.ns.tolist() and mine.down.ns.tolist() == measured.down.ns.tolist()


@pytest.mark.parametrize(("more", "problem"), [
    (("--peak", "bf17=600TFLOP/s"), "did you mean 'bf16'"),
    (("--peak", "600TFLOP/s"), "expected a dtype and its peak, such as bf16=600TFLOP/s"),
    (("--peak", "bf16=600"), "has no unit"),
    (("--peak", "bf16=0 TFLOP/s"), "must be positive"),
    (("--hbm", "2.4TFLOP/s"), "is a compute rate; expected a bandwidth"),
])  # fmt: skip
def test_rates_that_are_none_are_refused(capsys, more, problem):
    with pytest.raises(SystemExit):
        main(["calibrate", "nowhere", *more])
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(("more", "said"), sampled([
    (("--hbm", "2.4GB/s"), "--hbm 2.4 GB/s: these measurements reach "),
    (("--hbm", "24TB/s"), "--hbm 24 TB/s: these measurements reach 1.8 TB/s"),
    (("--peak", "bf16=6PFLOP/s"), "--peak bf16=6 PFLOP/s: these measurements reach "),
], lambda case: "24TB/s" in case[0]))  # fmt: skip
def test_a_rate_that_measurements_contradict_is_refused(tmp_path, capsys, more, said):
    rows = [each.replace("NVIDIA H100", "Own X900") for each in products()]
    (tmp_path / "gemm.csv").write_text("\n".join([GEMM, *rows]) + "\n")
    reads = [f"1,Own X900,torch,2.9,hbm,read,bytes_per_s,{2**30},1.8e12"] * 2
    (tmp_path / "memory.csv").write_text("\n".join([MEMORY, *reads]) + "\n")
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "own.yaml"), *more]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "own.yaml").exists()


def test_nominal_rates_are_of_one_gpu(tmp_path, capsys):
    rows = [
        row for gpu in ("Own X900", "Own X800") for row in (each.replace("NVIDIA H100", gpu) for each in products())
    ]
    for name, part in (("a", rows[: len(rows) // 2]), ("b", rows[len(rows) // 2 :])):
        (tmp_path / f"{name}.csv").write_text("\n".join([GEMM, *part]) + "\n")
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out"), "--hbm", "2.4TB/s"]) == 2
    assert (
        "--peak and --hbm are of one GPU, and there are own-x800, own-x900. Choose one with --gpu"
        in capsys.readouterr().err
    )


def test_a_die_that_is_scaled_from_fitted_rates_is_reported(gpu_fit):
    row = {"system": "mine", "gemm_extrapolated": 0.0}
    for more, said in (
        (("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s"), []),
        (
            (),
            [
                "bf16 peak: give one with `archsim calibrate --peak`.",
                "HBM bandwidth: give one with `archsim calibrate --hbm`.",
            ],
        ),
    ):
        found, _, path = gpu_fit(*more)
        reference = found.reference
        same = GemmSource(path, None, "bf16", reference.peak_flop_per_s["bf16"], reference.hbm_bytes_per_s)
        assert calibration_notes([row], [("mine", same)]) == []
        other = same._replace(peak_flop_per_s=900e12, hbm_bytes_per_s=3e12)
        notes = calibration_notes([row], [("mine", same), ("mine", other)])
        assert len(notes) == len(said) and all(
            f"calibration {path}, " in note and f"no nominal {each}" in note
            for note, each in zip(notes, said, strict=True)
        )
        assert all(note.startswith("On mine, GEMMs are scaled from the fitted ") for note in notes)

"""Calibrations as files: sections of their own, numbers stored once beside them, and refitting one section."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.examples import sampled
from support.made_up_measurements import gemm, written

import archsim as ar
from archsim.base.config_files import shipped_configs
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.laws import stored
from archsim.laws.calibration_files import calibration_digest, calibration_named, load_calibration, read_calibration
from archsim.laws.laws import Laws
from archsim.laws.scaling import KEYS, with_scaled
from calibration.fit.calibration_file import write_calibration
from calibration.measurements.datasheets import DATASHEETS, SCALED

SIZES = [2**e for e in range(12, 28)]


def copies(sizes):
    return [f"1,NVIDIA H100,cuda,12.8,intra_node,0,1,ce,uni,1,{size},{3 + size / 4e5:.4f}" for size in sizes]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sections")
    measured = written(folder / "measured", gemm=gemm(), p2p=copies(SIZES))
    assert main(["calibrate", str(measured), "--out", str(folder / "h100.yaml")]) == 0
    return folder


@pytest.fixture
def own(fitted, tmp_path) -> Path:
    shutil.copytree(fitted, tmp_path / "own")
    return tmp_path / "own" / "h100.yaml"


def files_below(folder) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*") if file.is_file()}


def test_a_file_names_its_sections_whose_laws_are_text_and_whose_numbers_are_not(own):
    assert "gemm: h100/gemm.yaml" in own.read_text()
    text = (own.parent / "h100" / "gemm.yaml").read_text()
    assert "law: {launch_ns: " in text and "numbers: {file: gemm.npz, sha256: " in text and "stored: {" in text
    assert max(map(len, text.splitlines())) < 200
    assert ar.load(own) == read_calibration(own) and ar.load(own).gemm[0].shapes


def test_a_file_in_the_current_folder_that_nobody_named_is_left_as_it_is(fitted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h100.yaml").write_text("mine")
    assert main(["calibrate", str(fitted / "measured")]) == 2
    assert "h100.yaml exists already and is left as it is" in capsys.readouterr().err
    assert (tmp_path / "h100.yaml").read_text() == "mine"


def test_one_section_is_refitted_and_the_others_are_left(own, capsys):
    before = files_below(own.parent / "h100")
    measured = written(own.parent / "measured", gemm=gemm(factor=2.0), p2p=copies(SIZES[:8]))
    assert main(["calibrate", str(measured), "--out", str(own), "--only", "gemm"]) == 0
    after = files_below(own.parent / "h100")
    assert {name for name in before if before[name] != after[name]} == {"gemm.yaml", "gemm.npz"}
    assert set(before) == set(after) and read_calibration(own).p2p
    assert main(["calibrate", str(measured), "--out", str(own)]) == 2
    assert "cover less" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["of_dicts", "of_rows", "of_texts", "empty"])
def test_numbers_come_back_as_they_were(shape, own):
    table = read_calibration(own).gemm[0]
    changed = {
        "of_dicts": {"ends": {f"{n}x64": (0.5, float(n)) for n in range(1, 20)}},
        "of_rows": {"m": tuple(float(m) for m in range(1, 2**31, 2**27))},
        "of_texts": {"prints": ("ab" * 200, "", "é" * 100)},
        "empty": {"prints": (), "ends": {}},
    }[shape]
    calibration = read_calibration(own)
    wanted = calibration.model_copy(update={"gemm": (table.model_copy(update=changed), table)})
    write_calibration(wanted, own)
    assert read_calibration(own) == wanted


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))


def other(path: Path) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    stored.save(path, arrays | {"0": arrays["0"] ^ np.uint8(1)})


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        ("gemm.npz", Path.unlink, r"gemm.yaml:2: numbers.file: no such file: .*gemm.npz; fit the section again"),
        ("gemm.npz", damaged, r"gemm.yaml:2: numbers.sha256: .*gemm.npz is damaged|holds other numbers"),
        ("gemm.npz", other, r"gemm.yaml:2: numbers.sha256: .*gemm.npz holds other numbers \(sha256 "),
        ("gemm.npz", lambda path: path.write_bytes(b""), r"gemm.npz is damaged"),
        ("gemm.yaml", Path.unlink, r"h100.yaml:\d+: gemm: no such file: .*gemm.yaml"),
        ("gemm.yaml", lambda path: path.write_text("tables: 3\n"), r"gemm.yaml:1: tables: expected a list, not"),
    ],
)
def test_what_is_missing_or_damaged_is_refused_with_file_and_reason(own, file, change, why):
    change(own.parent / "h100" / file)
    for load in (load_calibration, ar.load):
        with pytest.raises(SpecError, match=why):
            load(own)


def test_a_digest_follows_what_is_stored_beside_a_section(own):
    before = calibration_digest(str(own))
    calibration = read_calibration(own)
    table = calibration.gemm[0]
    shifted = {name: tuple(each + 1 for each in row) for name, row in table.shapes.items()}
    write_calibration(calibration.model_copy(update={"gemm": (table.model_copy(update={"shapes": shifted}),)}), own)
    assert calibration_digest(str(own)) != before


def test_a_calibration_may_take_a_section_of_another_and_have_one_itself(tmp_path):
    shipped = shipped_configs() / "calibrations"
    mine = tmp_path / "x900.yaml"
    mine.write_text(
        "gpu: x900\nreference: {peak_flop_per_s: {bf16: 1e15}, hbm_bytes_per_s: 2e12, sms: 100}\n"
        f"launch: {shipped / 'h100' / 'launch.yaml'}\n"
        "hbm:\n- {library: x, version: '1', source: x, of: {level: hbm, op: read, quantity: efficiency}, unit: ratio, "
        "value: 0.9, low: 0.9, high: 0.9}\n"
    )
    found = load_calibration(mine)
    assert found.launch == load_calibration("h100").launch and found.hbm[0].value == 0.9


# Tables scaled from another GPU: rates by nominal ratios, flagged, never in place of measured ones.

DECODE = {"heads": 64, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}


@pytest.fixture(scope="module")
def h20():
    return Laws(calibration_named("h20"))


@pytest.fixture(scope="module")
def h100():
    return Laws(calibration_named("h100"))


def test_what_is_bound_by_memory_or_compute_scales_with_its_rate(h20, h100):
    long = {"tokens": 1, "context_tokens": 16384, "requests": 64}
    assert h20.attention(**long, **DECODE).ns / h100.attention(**long, **DECODE).ns == pytest.approx(
        3.35 / 4.0, rel=0.05
    )
    large = {"m": 16384, "n": 8192, "k": 8192, "dtype": "bf16"}
    assert h20.gemm(**large).ns / h100.gemm(**large).ns == pytest.approx(989 / 148, rel=0.05)


def test_all_times_of_scaled_tables_are_flagged(h20):
    assert h20.calibration.gemm and {table.scaled_from for table in h20.calibration.gemm} == {"h100"}
    assert h20.gemm(64, 4096, 4096, dtype="bf16").extrapolated
    assert h20.attention(1, 1024, 8, **DECODE).extrapolated
    assert h20.fused_moe(64, 8, dtype="fp8_block", model="DeepSeek-V3").extrapolated
    assert h20.collective("all_reduce", 2**20, ranks=8).extrapolated


def test_collectives_within_a_node_scale_with_its_links_and_between_nodes_do_not():
    h800, h100 = Laws(calibration_named("h800")), Laws(calibration_named("h100"))
    large = 2**28
    ratio = h800.collective("all_gather", large, ranks=8).ns / h100.collective("all_gather", large, ranks=8).ns
    assert ratio == pytest.approx(450 / 200, rel=0.05)
    layer = {"kernel": "low_latency", "ranks": 64, "hidden": 7168, "top_k": 8, "experts": 256}
    assert h800.dispatch_combine("dispatch", 128, **layer).ns == h100.dispatch_combine("dispatch", 128, **layer).ns


def test_measured_tables_come_first():
    h800 = Laws(calibration_named("h800"))
    assert h800.gemm(64, 4096, 7168, dtype="fp8_block").table.library == "deepgemm-dense"
    assert h800.gemm(64, 4096, 7168, dtype="bf16").table.scaled_from == "h100"
    h200 = Laws(calibration_named("h200"))
    assert h200.fused_moe(64, 8, dtype="fp8_block", model="DeepSeek-V3").table.scaled_from == ""
    assert h200.fused_moe(64, 8, dtype="bf16", model="Qwen3-235B-A22B").table.scaled_from == "h100"


def test_a_gpu_scaled_to_itself_keeps_its_laws(h100):
    calibration = h100.calibration
    bare = calibration.model_copy(update={"moe": (), "attention": (), "gemm": (), "scaled": SCALED["h20"]})
    found = with_scaled(bare, calibration)
    assert [table.law for table in found.gemm] == [table.law for table in calibration.gemm]
    assert [table.law for table in found.attention] == [table.law for table in calibration.attention]
    assert found.collectives == calibration.collectives


@pytest.mark.parametrize("gpu", sampled(SCALED, lambda gpu: gpu == "a100"))
def test_files_name_what_they_take_and_a_digest_holds_both(gpu):
    found, scaled = load_calibration(gpu), SCALED[gpu]
    assert found.scaled == scaled and found.reference == DATASHEETS[gpu] and set(scaled.sections) <= set(KEYS)
    assert calibration_digest(gpu) != calibration_digest("h100")


@pytest.mark.nightly  # the laws of three GPUs
def test_kernels_that_the_host_starts_one_by_one_take_longer_beside_a_grace_cpu():
    """GB300 has vLLM's own, GB200 takes those of B200: 20 us on x86, 44 on Grace; a graph waits for no host."""
    times = {
        gpu: [
            float(Laws(calibration_named(gpu)).collective("all_reduce", 4096, ranks=2, library="vllm", variant=each).ns)
            for each in ("vllm_eager", "vllm_graph")
        ]
        for gpu in ("b200", "gb200", "gb300")
    }
    assert times["gb200"][0] == pytest.approx(times["gb300"][0], rel=0.2) and times["gb200"][0] > 2 * times["b200"][0]
    assert times["gb200"][1] == pytest.approx(times["b200"][1])

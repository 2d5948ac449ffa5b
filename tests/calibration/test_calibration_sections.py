"""Calibrations as files: sections of their own, numbers stored once beside them, and refitting one section."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.made_up_measurements import gemm, written

import archsim as ar
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.laws import stored
from archsim.specs.calibration_files import calibration_digest, load_calibration, read_calibration
from archsim.specs.config_files import shipped_configs
from calibration.fit.parameters import write_calibration

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
        "of_texts": {"prints": ("ab" * 200, "", "é" * 100)}, "empty": {"prints": (), "ends": {}},
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


@pytest.mark.parametrize(("file", "change", "why"), [
    ("gemm.npz", Path.unlink, r"gemm.yaml:2: numbers.file: no such file: .*gemm.npz; fit the section again"),
    ("gemm.npz", damaged, r"gemm.yaml:2: numbers.sha256: .*gemm.npz is damaged|holds other numbers"),
    ("gemm.npz", other, r"gemm.yaml:2: numbers.sha256: .*gemm.npz holds other numbers \(sha256 "),
    ("gemm.npz", lambda path: path.write_bytes(b""), r"gemm.npz is damaged"),
    ("gemm.yaml", Path.unlink, r"h100.yaml:\d+: gemm: no such file: .*gemm.yaml"),
    ("gemm.yaml", lambda path: path.write_text("tables: 3\n"), r"gemm.yaml:1: tables: expected a list, not"),
])
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

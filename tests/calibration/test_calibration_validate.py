"""What ``archsim calibrate --validate`` says of measurements that are seen, unseen, or of no table."""

import numpy as np
import pandas as pd
import pytest
from support.made_up_measurements import SHAPES, gemm, written

from archsim.cli.main import main
from archsim.laws.tables import CalibrationSpec, MoeTable
from archsim.studies.validation.errors import choice_notes
from calibration.measurements.reading import CASES, Measurements, read_measurements, release


def copies(sizes, version="12.8"):
    return [f"1,NVIDIA H100,cuda,{version},intra_node,0,1,ce,uni,1,{size},{3 + size / 4e5:.4f}" for size in sizes]


def layers(ep=(1, 2, 4, 8), tokens=(8, 64, 512), hidden=2048):
    return [
        f"1,NVIDIA H100,torch,2.8,own,bf16,{hidden},768,128,8,{size},1,balanced,{total},{20 + total * 8 / size * 0.05 + 300 / size:.4f}"  # noqa: E501
        for size in ep
        for total in tokens
    ]


@pytest.fixture
def judge(tmp_path, capsys):
    """Fit some tables, validate by others: (what was printed, notes, cases, page). ``code``: 3 if some are unread."""

    def judged(fitted: dict, tables: dict, *more, code=0):
        path = tmp_path / "fit" / "h100.yaml"
        assert main(["calibrate", str(written(tmp_path / "fitted", **fitted)), "--out", str(path)]) == 0
        capsys.readouterr()
        out = tmp_path / "page"
        assert (
            main(
                ["validate", *more, "--with", str(path), str(written(tmp_path / "judged", **tables)), "--out", str(out)]
            )
            == code
        )
        said = capsys.readouterr()
        return said.out, said.err, pd.read_parquet(out / CASES), (out / "index.html").read_text(encoding="utf-8")

    return judged


def test_what_is_judged_by_another_versions_table_is_reported(judge):
    _, notes, cases, page = judge({"gemm": gemm()}, {"gemm": gemm(version="2.9", factor=1.12)}, "--quick")
    note = "GEMM of torch 2.9 (bf16): the calibration has no table of it; judged by that of torch 2.8"
    assert f"note: {note}" in notes and note in page
    assert set(cases["version"]) == {"2.9"} and set(cases["table"]) == {"torch 2.8"}


def kinds(cases):
    return cases["kind"].value_counts().to_dict()


def test_a_case_is_in_the_fit_by_its_time_and_not_by_the_name_of_its_run(judge):
    """Other times of the same run are not, the same times of another run and version are, a cell filled in is not."""
    fitted = {"gemm": gemm()[:-1], "moe": layers()}
    again = [row.replace("1,NVIDIA H100,torch,2.8", "7,NVIDIA H100,torch,2.8.1") for row in gemm()]
    renamed = judge(fitted, {"gemm": again}, "--quick")[2]
    assert kinds(renamed) == {"file: in its fit": len(again) - 1, "file: not in its fit": 1}
    measured_again = judge(fitted, {"gemm": gemm(factor=1.02), "moe": layers()}, "--quick")[2]
    by_what = {what: kinds(cases) for what, cases in measured_again.groupby("what")}
    assert by_what == {"GEMM": {"file: not in its fit": len(gemm())}, "fused MoE": {"file: in its fit": len(layers())}}


def test_sweeps_that_disagree_somewhere_are_not_averaged_and_it_is_said(judge):
    twice = [*layers(tokens=range(8, 80, 8)), *(_slow_rank(row) for row in layers(tokens=range(8, 80, 8)))]
    _, notes, cases, page = judge({"moe": twice}, {"moe": layers(tokens=range(8, 80, 8))}, "--quick")
    said = "sweeps are over 1.5 times apart at 9 of 36 points (5.0 times at most): not averaged there, but as in 2.8/1"
    assert f"note: fused MoE of torch 2.8 (own bf16 balanced): {said}" in notes and said in page
    assert cases["error"].abs().max() < 0.01 and len(cases) == 36


def _slow_rank(row: str) -> str:
    """The same point in another run, five times slower on eight ranks."""
    words = row.split(",")
    time = float(words[-1]) * (5 if words[10] == "8" else 1.001)
    return ",".join(["2", *words[1:-1], f"{time:.4f}"])


def test_a_calibration_without_fingerprints_says_so():
    table = MoeTable.model_construct(library="torch", version="2.8", note="", prints=(), scaled_from="", sweeps=())
    calibration = CalibrationSpec.model_construct(gpu="h100", gemm=(), moe=(table,), attention=())
    (note,) = choice_notes(calibration, Measurements())
    assert note.startswith("1 of 1 tables do not say which measurements they were fitted to")


def test_what_no_table_judges_is_reported(judge):
    _, notes, cases, _ = judge(
        {"gemm": gemm()}, {"gemm": gemm(), "moe": layers(), "p2p": copies((4096, 65536))}, "--quick", code=3
    )
    assert "no law reads: fused MoE own bf16 balanced of torch 2.8 (12 points)" in notes
    assert "no law reads: p2p uni of cuda 12.8 (2 points)" in notes
    assert "fused MoE of torch 2.8 (own bf16 balanced): the calibration has no table for it; not judged" in notes
    assert "p2p of cuda 12.8 (intra_node ce uni 1): the calibration has no table for it; not judged" in notes
    assert set(cases["what"]) == {"GEMM"} and "GEMM of" not in notes


def test_a_layer_is_not_judged_by_a_model_of_the_same_name_and_other_sizes(judge):
    _, notes, cases, _ = judge({"gemm": gemm(), "moe": layers()}, {"moe": layers(hidden=4096)}, "--quick", code=3)
    assert not len(cases) and "own bf16 balanced): the calibration has no table for it" in notes


def test_sizes_that_were_left_out_are_not_in_the_fit_and_extrapolated_where_they_lie_outside(judge):
    fitted = {
        "gemm": gemm(m=(4, 16, 64), shapes=SHAPES[1:]), "moe": layers(ep=(1, 4, 8)),
        "p2p": copies(2**e for e in range(14, 24)),
    }
    everything = {"gemm": gemm(), "moe": layers(ep=(1, 2, 4, 8, 16)), "p2p": copies(2**e for e in range(12, 26))}
    out, _, cases, page = judge(fitted, everything, "--quick")
    products = cases[cases["what"] == "GEMM"]
    seen = products["m"].isin((4, 16, 64)) & ((products["n"] != 512) | (products["k"] != 1024))
    assert (products["kind"].eq("file: in its fit") == seen).all()
    assert (products["extrapolated"] == ~seen).all()  # the shape left out is an octave from its neighbours
    ranks = cases[cases["what"] == "fused MoE"]
    assert (ranks["kind"].eq("file: in its fit") == ranks["ep"].isin((1, 4, 8))).all()
    assert (ranks["extrapolated"] == (ranks["ep"] == 16)).all()
    row = next(line for line in out.splitlines() if line.startswith("p2p cuda 12.8"))
    assert row.split("cuda 12.8")[2].split()[:2] == ["14", "4"]
    assert '<th class="n">extrapolated</th>' in page


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("NVIDIA H100", "fp16"), ("NVIDIA A100-SXM4-80GB", "fp8"), ("Own GPU 7", "bf16")]
)
def test_dtypes_that_a_datasheet_does_not_have(tmp_path, gpu, dtype):
    """Through the engine, too: gate, up and down of one of its experts."""
    rows = [
        row.replace("NVIDIA H100", gpu) for row in gemm(shapes=[(768, 2048), (2048, 768), (1536, 2048)], dtype=dtype)
    ]
    folder = written(tmp_path / "mine", gemm=rows)
    for name in ("a", "b"):
        assert main(["calibrate", str(folder), "--out", str(tmp_path / name / "own.yaml")]) == 0
        assert (
            main([
                "validate", "--quick", "--with", str(tmp_path / name / "own.yaml"), str(folder), "--out",
                str(tmp_path / name / "page"),
            ])
            == 0
        )
        engine = pd.read_csv(tmp_path / name / "page" / "engine.csv")
        assert set(engine["dtype"]) == {dtype} and engine["law_error"].abs().max() < 0.005
    assert (tmp_path / "a" / "own.yaml").read_bytes() == (tmp_path / "b" / "own.yaml").read_bytes()


@pytest.mark.parametrize("table", ["launch", "one_copy", "ten_products", "one_layer"])
def test_very_few_measurements(tmp_path, capsys, table):
    """As few points as can be fitted, of one kind: validated with all left out that can be; no false word."""
    launch = (
        "run_id,gpu_name,library,library_version,kind,kernel_bytes,latency_us_median\n1,NVIDIA "
        "H100,cuda,12.8,stream,0,2.4\n"
    )
    one = {
        "one_copy": {"p2p": copies([65536])},
        "ten_products": {"gemm": gemm(m=(16, 32, 64, 128, 256), shapes=SHAPES[:2])},
        "one_layer": {"moe": layers((8,), (64,))},
    }
    folder = written(tmp_path / "mine", **one.get(table, {}))
    if table == "launch":
        (folder / "launch.csv").write_text(launch)
    path = tmp_path / "h100.yaml"
    assert main(["calibrate", str(folder), "--out", str(path)]) == 0
    for quick in ([], ["--quick"]):
        code = 3 if table == "launch" else 0
        assert main(["validate", *quick, "--with", str(path), str(folder), "--out", str(tmp_path / "page")]) == code
        said = capsys.readouterr()
        assert said.err == "" and "nan" not in said.out
        assert ("nothing to compare" in said.out) == (table == "launch")
        left_out = "copies between two dies by the event engine: none, as"
        assert (left_out in said.out) == (table == "one_copy") and ("none from 1 MiB to 64 MiB" in said.out) == (
            table == "one_copy"
        )


def test_copies_of_another_version_are_judged_by_the_law_there_is(judge):
    sizes = [2**e for e in range(12, 28)]
    out, notes, _, _ = judge({"p2p": copies(sizes)}, {"p2p": copies(sizes, version="13.0")}, "--quick")
    assert (
        "p2p of cuda 13.0 (intra_node ce uni 1): the calibration has no table of it; judged by that of cuda 12.8"
        in notes
    )
    assert "p2p cuda 13.0 intra_node ce uni  cuda 12.8" in out


def test_without_a_repetition_the_floor_is_a_dash_and_why(judge):
    out, _, _, page = judge({"gemm": gemm()}, {"gemm": gemm()}, "--quick")
    why = "–: unknown, as the release has only one sweep"
    assert f"floor {why}" in out and "nan" not in out and why in page
    out, *_ = judge({"gemm": gemm(("1", "2"))}, {"gemm": gemm(("1", "2"))}, "--quick")
    assert why not in out


def test_sweeps_that_the_fit_found_to_differ_are_no_repetitions_of_each_other(judge):
    """Release candidates that disagree are tables of their own; so are their floors."""
    m = tuple(range(1, 40))
    rows = gemm(("1", "2"), "3.0rc1", m) + gemm(("1",), "3.0rc2", m, factor=1.5)
    out, _, cases, _ = judge({"gemm": rows}, {"gemm": rows}, "--quick")
    floors = cases.groupby("version")["floor"].mean()
    assert floors["3.0rc1"] == pytest.approx(0.01, rel=0.05) and np.isnan(floors["3.0rc2"])
    assert cases.groupby("version")["table"].first().to_dict() == {"3.0rc1": "torch 3.0rc1", "3.0rc2": "torch 3.0rc2"}


def test_outputs_below_the_measurements_are_no_measurements(tmp_path, capsys):
    """Tables without rows are not written, and what was written is passed over."""
    folder = written(tmp_path / "mine", gemm=gemm())
    path, out = folder / "fit" / "h100.yaml", folder / "page"
    for quick in (["--quick"], []):
        assert main(["calibrate", str(folder), "--out", str(path)]) == 0
        assert main(["validate", *quick, "--with", str(path), str(folder), "--out", str(out)]) == 0
        assert capsys.readouterr().err == ""
        assert all(file.stat().st_size > 10 for file in out.glob("[!.]*")) and not (out / "moe_groups.csv").exists()
        assert 'href="moe_groups.csv"' not in (out / "index.html").read_text(encoding="utf-8")
    found = read_measurements(folder)
    assert found.problems == [] and found.skipped == {} and len(found.table("gemm")) == len(gemm())


def test_a_release_is_what_candidates_are_of():
    versions = ("1.3.0rc10", "1.3.0", "2.1-rc1", "0.5.10rc2.post1", "search-7", "arc")
    assert [release(version) for version in versions] == ["1.3.0", "1.3.0", "2.1", "0.5.10", "search-7", "arc"]
    assert np.all([release(version) == version for version in ("vidur", "unknown", "xla")])

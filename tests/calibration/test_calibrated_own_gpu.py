"""Systems and calibrations of a GPU without a datasheet, from made-up measurements."""

import pytest
from support.made_up_measurements import GEMM
from support.made_up_measurements import gemm as products

from archsim.base.errors import SpecError
from archsim.base.yaml import Place, Tree, validate
from archsim.cli.main import main
from archsim.laws.gemm import ExpertGemm, Rates, choose_table
from archsim.laws.host import path_of
from archsim.laws.tables import CalibrationSpec, Quantiles, Reference, ScalarTable, TransferTable
from archsim.laws.transfers import fastest_bytes_per_s, link_table
from archsim.runs.notes import Die, calibration_notes
from archsim.specs.calibration_files import load_calibration
from archsim.specs.system import D2DSpec, HbmSpec
from archsim.studies.validation.cases import copy_cases
from calibration.fit.parameters import write_calibration
from calibration.measurements.reading import Measurements
from calibration.measurements.schema import DATASHEETS

MEMORY = "run_id,gpu_name,library,library_version,level,op,quantity,working_set_bytes,value"
UNI = {"placement": "intra_node", "method": "ce", "direction": "uni", "concurrent_pairs": "1"}


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


def law(*, library="torch", version="1", bytes_per_s=200e9, latency_ns=3000.0, first=4096, last=2**32, points=1, **of):
    return TransferTable(
        library=library, version=version, source="none", of=UNI | of, from_bytes=(first,), latency_ns=(latency_ns,),
        ns_per_byte=(1e9 / bytes_per_s,), first_bytes=first, last_bytes=last, residuals=Quantiles(p05=0, p50=0, p95=0, points=points),  # noqa: E501
    )  # fmt: skip


def scalar(value, version="1", **of):
    unit = "ns" if of["quantity"] == "latency_ns" else "ratio"
    return ScalarTable(
        library="torch", version=version, source="none", of={"level": "hbm"} | of, unit=unit, value=value, low=value,
        high=value,
    )


def calibration(gpu="own", fitted=(), **tables):
    return CalibrationSpec(
        gpu=gpu, reference=Reference(peak_flop_per_s={}, hbm_bytes_per_s=2e12, sms=1, fitted=fitted), **tables
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
    noisy = law().model_copy(update={
        "from_bytes": (4096, 6144, 2**20), "latency_ns": (3000.0, 3010.0, 3000.0), "ns_per_byte": (0.0, 0.0, 0.005)
    })
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
    for fitted, told in (((), "latency, efficiency"), (("hbm",), "latency, efficiency (of 2 TB/s, which was fitted)")):
        path = write_calibration(calibration(hbm=numbers, fitted=fitted), tmp_path / "own.yaml")
        hbm = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB", calibration=str(path))
        assert (hbm.latency_ns, hbm.efficiency) == (500.0, 0.8) and hbm.source.endswith(f": {told}")


@pytest.fixture
def fitted(tmp_path, capsys):
    """The calibration of some made-up products and reads of HBM, by the command, and what it said on stderr."""

    def calibrated(*more, gpu="Own X900", versions=("2.9",)):
        folder = tmp_path / "measured"
        folder.mkdir(exist_ok=True)
        rows = [
            row.replace("NVIDIA H100", gpu)
            for version in versions
            for row in products(version=version, factor=1 + (version != versions[-1]))
        ]
        (folder / "gemm.csv").write_text("\n".join([GEMM, *rows]) + "\n")
        (folder / "memory.csv").write_text(
            "\n".join([MEMORY, *(f"1,{gpu},torch,2.9,hbm,read,bytes_per_s,{2**30},1.8e12" for _ in range(2))]) + "\n"
        )
        assert main(["calibrate", str(folder), "--out", str(tmp_path / "own.yaml"), *more]) == 0
        return load_calibration(tmp_path / "own.yaml"), capsys.readouterr().err

    return calibrated


def test_nominal_rates_that_are_named_are_the_reference(fitted):
    found, said = fitted("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s")
    assert (
        found.reference == Reference(peak_flop_per_s={"bf16": 600e12}, hbm_bytes_per_s=2.4e12, sms=132) and said == ""
    )
    assert [table.value for table in found.hbm if table.unit == "ratio"] == [0.75]
    both, _ = fitted("--peak", "fp16=500TFLOP/s", "--peak", "fp8=1 PFLOP/s", "--hbm", "2.4 TB/s")
    assert (
        both.reference.peak_flop_per_s == {"fp16": 500e12, "fp8": 1e15, "bf16": 500e12} and both.reference.fitted == ()
    )


def test_without_them_the_fitted_rates_stand_and_it_is_said(fitted):
    found, said = fitted()
    table = choose_table(found, "bf16")
    assert found.reference.peak_flop_per_s == {"bf16": table.law.flop_per_s} and found.reference.fitted == (
        "bf16", "hbm"
    )
    assert found.reference.hbm_bytes_per_s == 1.8e12 and [
        table.value for table in found.hbm if table.unit == "ratio"
    ] == [1.0]
    assert "note: own-x900: no nominal rate is known" in said and "give them with --peak bf16=... --hbm ..." in said
    assert load_calibration("h100").reference.fitted == ()
    known, said = fitted(gpu="NVIDIA H100")
    assert known.reference == DATASHEETS["h100"] and said == ""


def test_the_fitted_reference_is_that_of_the_table_that_systems_take(fitted):
    """Of the newest version, 2.10, which is twice as fast and comes first by spelling."""
    found, _ = fitted(versions=("2.9", "2.10"))
    rates = {table.version: table.law.flop_per_s for table in found.gemm}
    assert choose_table(found, "bf16").version == "2.10" and [*rates] == ["2.10", "2.9"]
    assert found.reference.peak_flop_per_s["bf16"] == rates["2.10"] > 1.5 * rates["2.9"]


def test_a_die_with_the_nominal_rates_takes_what_was_measured(fitted):
    """Rates that were named: a system that names the same ones. Fitted ones: a system that names those."""
    for more in (("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s"), ()):
        found, _ = fitted(*more)
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


def test_nominal_rates_are_of_one_gpu(tmp_path, capsys):
    rows = [
        row for gpu in ("Own X900", "Own X800") for row in (each.replace("NVIDIA H100", gpu) for each in products())
    ]
    for name, part in (("a", rows[: len(rows) // 2]), ("b", rows[len(rows) // 2 :])):
        (tmp_path / f"{name}.csv").write_text("\n".join([GEMM, *part]) + "\n")
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out"), "--hbm", "2.4TB/s"]) == 2
    assert (
        "--peak and --hbm are of one GPU, and there are own-x800, own-x900; choose one with --gpu"
        in capsys.readouterr().err
    )


def test_a_die_that_is_scaled_from_fitted_rates_is_reported(fitted, tmp_path):
    path = str(tmp_path / "own.yaml")
    row = {"system": "mine", "gemm_extrapolated": 0.0}
    for more, said in (
        (("--peak", "bf16=600TFLOP/s", "--hbm", "2.4 TB/s"), []),
        ((), ["bf16 peak (archsim calibrate --peak)", "HBM (archsim calibrate --hbm)"]),
    ):
        reference = fitted(*more)[0].reference
        same = Die(path, None, "bf16", reference.peak_flop_per_s["bf16"], reference.hbm_bytes_per_s)
        assert calibration_notes([row], [("mine", same)]) == []
        other = same._replace(peak_flop_per_s=900e12, hbm_bytes_per_s=3e12)
        notes = calibration_notes([row], [("mine", same), ("mine", other)])
        assert len(notes) == len(said) and all(
            f"calibration {path} has no nominal {each}" in note for note, each in zip(notes, said, strict=True)
        )
        assert all(note.endswith("to another one of the die (mine)") for note in notes)

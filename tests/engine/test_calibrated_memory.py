"""HBM and links whose latency and efficiency come from a calibration; the validation experiment through the event
engine.
"""

from pathlib import Path

import numpy as np
import pytest
from support.html_page import text_of_report

import archsim
from archsim.base.errors import SpecError
from archsim.base.yaml import Place, Tree, validate
from archsim.cli.main import main
from archsim.engine.demand import build_run_demand
from archsim.laws.transfers import law_of, link_table
from archsim.report.page import write_report
from archsim.specs.calibration_files import calibration_named
from archsim.specs.library import load_experiment
from archsim.specs.system import CopyLaw, D2DSpec, HbmSpec
from archsim.studies.validation.cases import (
    COPY_SIZES,
    EXPERT_COLUMNS,
    copies_table,
    copy_cases,
    engine_cases,
    engine_table,
)
from archsim.workload.generated import SyntheticTraffic
from calibration.measurements.reading import Measurements, read_measurements

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


def test_hbm_takes_latency_and_efficiency_of_a_calibration():
    hbm = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB", latency="300 ns", efficiency=0.9, calibration="h100")
    plain = read(HbmSpec, bandwidth="2 TB/s", capacity="80 GB")
    assert (hbm.latency_ns, hbm.efficiency) != (plain.latency_ns, plain.efficiency)
    assert 300 < hbm.latency_ns < 700 and 0.7 < hbm.efficiency < 1
    assert hbm.bandwidth_bytes_per_s == plain.bandwidth_bytes_per_s
    again = read(HbmSpec, **{key: value for key, value in hbm.model_dump(mode="json", by_alias=True).items()})
    assert again == hbm  # a manifest does not need the calibration


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_a_remote_read_over_calibrated_links_takes_what_a_copy_of_its_size_took(name):
    link, law = read(D2DSpec, bandwidth="450 GB/s", calibration=name), law_of(link_table(calibration_named(name)))
    nominal = link.copies.bandwidth_bytes_per_s
    for size in np.unique(np.geomspace(4096, 2**32, 200).astype(np.int64)):
        hop_ns, share = link.copies.link(int(size))
        assert hop_ns >= 0 and 0 < share <= 1
        assert 2 * hop_ns + size / (nominal * share) * 1e9 == pytest.approx(float(law.time_ns(size)), rel=1e-9)
        of_slices = link.of_slices(int(size))
        assert (of_slices.hop_latency_ns, of_slices.efficiency, of_slices.bandwidth_bytes_per_s) == (
            hop_ns, share, 450e9
        )
    again = read(D2DSpec, **link.model_dump(mode="json", by_alias=True))
    assert again == link  # a manifest does not need the calibration


def test_no_copy_is_faster_than_the_link_and_no_latency_negative():
    law = CopyLaw(
        from_bytes=(1.0, 1e6), latency_ns=(-50.0, 10.0), ns_per_byte=(0.5, 0.001), bandwidth_bytes_per_s=100e9
    )
    assert law.link(1000) == (0.0, pytest.approx(0.01 / 0.45))  # the rate of the whole copy: 450 ns
    assert law.link(10**6) == (0.0, 1.0)
    with pytest.raises(ValueError, match="equally many numbers"):
        CopyLaw(from_bytes=(1.0,), latency_ns=(1.0, 2.0), ns_per_byte=(1.0,), bandwidth_bytes_per_s=100e9)


def test_plain_links_do_not_depend_on_slices():
    plain = read(D2DSpec, bandwidth="450 GB/s")
    assert plain.of_slices(4096) is plain


@pytest.mark.parametrize(("kind", "name", "problem"), [
    (HbmSpec, "b200", "'b200' has no HBM measurements"),
    (D2DSpec, "b200", "'b200' has measurements of copies between GPUs, but none other than XLA's"),
    (D2DSpec, "h800", r"'h800' has no measurements of copies between GPUs \(p2p.csv\)"),
    (D2DSpec, "h10", "unknown calibration 'h10'; did you mean 'h100'"),
])
def test_what_was_not_measured_is_refused(kind, name, problem):
    keys = {"bandwidth": "2 TB/s", "calibration": name} | ({"capacity": "80 GB"} if kind is HbmSpec else {})
    with pytest.raises(SpecError, match=problem) as refused:
        read(kind, **keys)
    assert "calibration" in str(refused.value)


def test_the_shipped_validation_experiments_are_one_expert_on_one_die_and_a_copy_between_two():
    experts, copies = (load_experiment(CONFIGS / f"{name}.yaml") for name in ("validate_h100", "validate_h100_copies"))
    assert {system.dies for system in experts.systems} == {1} and {system.dies for system in copies.systems} == {2}
    assert {system.compute.calibration for system in experts.systems} == {"h100"} and copies.systems[
        0
    ].d2d.copies is not None
    assert {each.gemm for each in experts.assumptions} == {"calibrated"}
    assert {model.slice_weights for model in copies.models} == set(COPY_SIZES[::2])
    for experiment in (experts, copies):
        model, synthetic = experiment.models[0], experiment.workload.trace.synthetic
        assert {each.experts for each in experiment.models} == {1}
        demand = build_run_demand(SyntheticTraffic(model, synthetic, 2), 2, 1, 0, origin_dies=None, predictor=None)
        assert demand.has_prefill and demand.tokens[1:].ravel().tolist() == [2]  # decode_ns is one step


def test_runs_whose_slices_are_outside_of_the_measured_copies_say_so(tmp_path, capsys):
    """In the results, on the page, and on the terminal: for copies of an experiment, and for points of a sweep."""
    copies = load_experiment(CONFIGS / "validate_h100_copies.yaml")
    some = copies.model_copy(update={
        "models": tuple(model for model in copies.models if model.name in ("copy_of_64_MiB", "copy_of_256_MiB"))
    })
    rows = archsim.sweep(some, tmp_path).runs.rows
    assert [(row["model"], row["copies_extrapolated"]) for row in rows] == [
        ("copy_of_64_MiB", 0.0), ("copy_of_256_MiB", 1.0)
    ]
    said = "1 of 2 runs read slices of a size at which the copies of the calibration in d2d were not measured"
    write_report(tmp_path)
    assert said in text_of_report(tmp_path)

    text = (CONFIGS / "validate_h100_copies.yaml").read_text() + "sweep: {grid: {system.hbm.latency: [0 ns, 1 ns]}}\n"
    kept = [line for line in text.splitlines() if "{name: copy_of_" not in line or "256_MiB" in line]
    (tmp_path / "points.yaml").write_text("\n".join(kept))
    assert main(["sweep", str(tmp_path / "points.yaml"), "--out", str(tmp_path / "points"), "--jobs", "1"]) == 0
    said = said.replace("1 of 2", "2 of 2")
    assert said in text_of_report(tmp_path / "points")
    assert f"note: {said}" in capsys.readouterr().err


def test_links_of_older_manifests_do_not_say_what_was_measured():
    law = {"from_bytes": "1024", "latency_ns": "10", "ns_per_byte": "1", "bandwidth": "450 GB/s"}
    assert read(CopyLaw, **law).extrapolates(4096) is None
    sizes = read(CopyLaw, **law, first_bytes=2048, last_bytes=4096)
    assert [sizes.extrapolates(size) for size in (2047, 2048, 4096, 4097)] == [True, False, False, True]


def test_a_copy_through_the_event_engine_takes_what_the_law_says_of_it(shared):
    """4 KiB to 4 GiB: one remote read, two dies."""
    measurements = read_measurements(shared / "data" / "calibration" / "comm" / "vidur_nccl_send_recv.csv")
    for name in ("h100", "a100"):
        cases = copy_cases(calibration_named(name), measurements)
        assert set(COPY_SIZES) <= set(cases["bytes"]) and cases["law_error"].abs().max() < 0.005
        measured = cases.dropna(subset="measured_us")
        assert len(measured) > 600 and measured["error"].abs().mean() < 0.03
        assert cases["extrapolated"].sum() == sum(size > 2**26 for size in COPY_SIZES)
        names, rows = copies_table(cases)
        assert len(rows) == 3 and {len(row) for row in rows} == {len(names)}
    assert not len(copy_cases(calibration_named("b200"), Measurements()))


def test_the_event_engine_takes_what_the_law_says_and_what_was_measured(shared):
    """Within 0.5 % of the law; of measurements, what is left is the law's error."""
    measurements = read_measurements(shared / "data" / "calibration" / "gemm" / "aic_gemm_expert_shapes.csv")
    cases = engine_cases(calibration_named("h100"), "h100", measurements)
    assert len(cases) > 200
    assert cases["law_error"].abs().max() < 0.005
    assert cases["error"].abs().mean() < 0.02 and (cases["error"].abs() < 0.05).mean() > 0.97
    names, rows = engine_table(cases)
    assert len(rows) == cases.groupby(["model", "dtype"]).ngroups and {len(row) for row in rows} == {len(names)}


def test_without_measurements_of_experts_there_are_no_cases():
    cases = engine_cases(calibration_named("a100"), "a100", Measurements())
    assert list(cases.columns) == EXPERT_COLUMNS and not len(cases) and np.all(cases["error"] == [])

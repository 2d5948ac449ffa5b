"""The path to a host from a calibration: what is taken of its laws, and what is said where it lacks something."""

import pytest
from support.tiny import tiny_file

from archsim.base.errors import SpecError
from archsim.base.yaml import dump_yaml
from archsim.laws.host import path_of
from archsim.laws.tables import CalibrationSpec, Quantiles, Reference, ScalarTable, TransferTable
from archsim.specs.decision import HostSpec
from archsim.specs.library import load_experiment

FITTED = {"library": "made up", "version": "1", "source": "none"}


def transfer(
    direction, *, latency_ns=2000.0, bytes_per_s=50e9, first=64, last=2**30, method="ce", pinned="1", law=None
):
    law = law or {"from_bytes": (first,), "latency_ns": (latency_ns,), "ns_per_byte": (1e9 / bytes_per_s,)}
    return TransferTable(
        **FITTED, of={"direction": direction, "method": method, "pinned": pinned}, **law, first_bytes=first, last_bytes=last,  # noqa: E501
        residuals=Quantiles(p05=0, p50=0, p95=0, points=1),
    )  # fmt: skip


def launch(kind, value):
    return ScalarTable(**FITTED, of={"kind": kind}, unit="ns", value=value, low=value, high=value)


def calibration(pcie, launches=(("stream", 2500.0),)):
    reference = Reference(peak_flop_per_s={}, hbm_bytes_per_s=1e12, sms=1)
    return CalibrationSpec(gpu="mine", reference=reference, pcie=pcie, launch=[launch(*each) for each in launches])


def test_a_straight_law_gives_its_own_latency_and_bandwidth():
    path = path_of(
        calibration(
            [transfer("d2h"), transfer("h2d", latency_ns=3000.0)], [("stream", 2500.0), ("launch_to_sync", 6000.0)]
        )
    )
    assert path.pcie_latency_ns == pytest.approx(2500) and path.pcie_bandwidth_bytes_per_s == pytest.approx(50e9)
    assert (path.launch_ns, path.sync_ns) == (2500.0, 3500.0) and path.missing == {}


def test_noticing_takes_another_launch_where_it_was_not_measured():
    assert path_of(calibration([transfer("d2h"), transfer("h2d")])).sync_ns == 2500.0


def test_small_messages_decide_and_large_ones_do_not():
    """Up to 1 MiB the law is another than above."""
    pieces = {"from_bytes": (64, 2**21), "latency_ns": (2000.0, 9000.0), "ns_per_byte": (0.02, 0.5)}
    path = path_of(calibration([transfer("d2h", law=pieces), transfer("h2d", law=pieces)]))
    assert path.pcie_latency_ns == pytest.approx(2000) and path.pcie_bandwidth_bytes_per_s == pytest.approx(50e9)


def test_the_best_of_several_laws_is_taken():
    slow = [
        transfer(way, bytes_per_s=1e9, **other)
        for way in ("d2h", "h2d")
        for other in ({"method": "sm"}, {"pinned": "0"}, {"first": 2**20})
    ]
    path = path_of(calibration([*slow, transfer("d2h"), transfer("h2d")]))
    assert path.pcie_bandwidth_bytes_per_s == pytest.approx(50e9)


@pytest.mark.parametrize("pcie, launches, lacks", [
    ([transfer("d2h")], [("stream", 1.0)], {"pcie_latency", "pcie_bandwidth"}),
    ([transfer("d2h", first=2**29, last=2**29), transfer("h2d")], [("stream", 1.0)], {"pcie_latency"}),
    ([transfer("d2h"), transfer("h2d")], [("graph_node", 1.0)], {"launch", "sync"}),
])
def test_what_a_calibration_does_not_have_is_not_made_up(pcie, launches, lacks):
    path = path_of(calibration(pcie, launches))
    assert set(path.missing) == lacks
    values = {
        "pcie_latency": path.pcie_latency_ns, "pcie_bandwidth": path.pcie_bandwidth_bytes_per_s,
        "launch": path.launch_ns, "sync": path.sync_ns,
    }
    assert {key for key, value in values.items() if value is None} == lacks


def test_a_manifest_has_the_numbers_and_where_they_are_from(tmp_path):
    text = "{executor: host, host: {calibration: h100, pcie_latency: 2.1 us}}"
    tiny_file(tmp_path)
    experiment = load_experiment(tmp_path / "tiny.yaml", [f"systems.0.decision={text}"])
    host = experiment.systems[0].decision.host
    assert host.calibration is None and host.pcie_latency_ns == 2100.0 and host.launch_ns == 2534.0
    assert host.source.startswith("calibration h100: d2h sm by nvbandwidth") and host.source.endswith(
        "; given: pcie_latency"
    )
    assert host.pcie_bandwidth_bytes_per_s == 42.24e9  # of both directions
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(dump_yaml(experiment.resolved()))
    assert load_experiment(manifest).systems[0].decision.host == host


@pytest.mark.parametrize("host, problem", [
    ("{calibration: h10}", "unknown calibration 'h10'; did you mean 'h100'?"),
    ("{calibration: nowhere.yaml}", "no such file: 'nowhere.yaml' (searched the current directory, "),
    (
        "{calibration: h100}",
        "'h100' has no transfers of at most 64 KiB (hostpath.csv); the smallest is 512 MiB; give pcie_latency here",
    ),
    (
        "{calibration: a100, pcie_latency: 2 us, pcie_bandwidth: 50 GB/s}",
        "'a100' has no launch on a stream (launch.csv); it has grid_sync; give launch and sync here",
    ),
    (
        "{calibration: h100, pcie_latency: 2 us, pcie_bandwidth: 1 GB/s, launch: 2 us, sync: 2 us}",
        "are all given; omit",
    ),
    ("{calibration: 100}", "expected text, not the number 100"),
    ("{calibraton: h100}", "unknown key; did you mean 'calibration'?"),
])
def test_a_calibration_that_cannot_be_used_is_told_with_its_place(tmp_path, host, problem):
    tiny_file(tmp_path)
    with pytest.raises(SpecError) as told:
        load_experiment(tmp_path / "tiny.yaml", [f"systems.0.decision={{executor: host, host: {host}}}"])
    assert problem in str(told.value) and "host.calibrat" in str(told.value)


def test_python_may_name_a_calibration_too():
    assert HostSpec(calibration="h200", pcie_latency_ns=2000.0, pcie_bandwidth_bytes_per_s=50e9).launch_ns == 2534.0

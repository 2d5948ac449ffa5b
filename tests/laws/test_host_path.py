"""The path to a host and back: time of a transfer over PCIe, of a launch and of its synchronisation."""

import pytest

from archsim.laws.host_path import path_of
from archsim.laws.tables import CalibrationSpec, ReferenceRates, ResidualQuantiles, ScalarTable, TransferTable

FITTED = {"library": "made up", "version": "1", "source": "none"}


def transfer(
    direction, *, latency_ns=2000.0, bytes_per_s=50e9, first=64, last=2**30, method="ce", pinned="1", law=None
):
    law = law or {"from_bytes": (first,), "latency_ns": (latency_ns,), "ns_per_byte": (1e9 / bytes_per_s,)}
    return TransferTable(
        **FITTED, of={"direction": direction, "method": method, "pinned": pinned}, **law, first_bytes=first, last_bytes=last,  # noqa: E501
        residuals=ResidualQuantiles(p05=0, p50=0, p95=0, points=1),
    )  # fmt: skip


def launch(kind, value):
    return ScalarTable(**FITTED, of={"kind": kind}, unit="ns", value=value, low=value, high=value)


def calibration(pcie, launches=(("stream", 2500.0),)):
    reference = ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1e12, sms=1)
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
])  # fmt: skip
def test_what_a_calibration_does_not_have_is_not_made_up(pcie, launches, lacks):
    path = path_of(calibration(pcie, launches))
    assert set(path.missing) == lacks
    values = {
        "pcie_latency": path.pcie_latency_ns,
        "pcie_bandwidth": path.pcie_bandwidth_bytes_per_s,
        "launch": path.launch_ns,
        "sync": path.sync_ns,
    }
    assert {key for key, value in values.items() if value is None} == lacks

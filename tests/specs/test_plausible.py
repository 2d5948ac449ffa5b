"""Values of machines that a mistyped unit explains are told by check, run and serve; shipped machines have none."""

from pathlib import Path

import pytest

from archsim.cli.main import main
from archsim.specs.library import load_system
from archsim.specs.plausible import plausibility_notes

SYSTEMS = sorted((Path(__file__).resolve().parents[2] / "configs" / "systems").glob("*.yaml"))


def test_shipped_machines_are_plausible():
    for file in SYSTEMS:
        system = load_system(file)
        assert plausibility_notes(system.name, system.model_dump(by_alias=True)) == []


@pytest.mark.parametrize("changes", [
    {"systems.0.hbm.capacity": "80 TB"}, {"systems.0.d2d.bandwidth": "2 GB/s", "systems.0.d2d.hop_latency": "200 us"},
    {"systems.0.hbm.bandwidth": "3.35 GB/s"}, {"systems.0.llc.hit": "100 us"},
    {"systems.0.compute.peak": "989 GFLOP/s"},
])  # fmt: skip
def test_check_tells_values_that_are_far_from_machines(changes, capsys):
    overrides = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert main(["check", "dojo", "--set", "workload.batch=[64]", *overrides]) == 0
    told = capsys.readouterr()
    for key, value in changes.items():
        assert f"{key.removeprefix('systems.0.')}: {value} is taken as given" in told.err + told.out


def test_a_deployment_tells_them_too(capsys):
    slow = "system={name: odd, like: h200_node, hbm: {bandwidth: 4.8 GB/s}}"
    assert main(["check", "serve_h200", "--set", slow]) == 0
    told = capsys.readouterr()
    assert "hbm.bandwidth: 4.8 GB/s is taken as given" in told.err + told.out

"""Topologies and fabrics of levels, as YAML has them, and small systems with each."""

import yaml

from archsim.machine.system import SystemSpec

LISTED = (
    "{name: edges, edges: [[0, 1], {dies: [1, 2], bandwidth: 400 GB/s}, [2, 3], [3, 4], {dies: [4, 5], hop_latency: "
    "900 ns}, [5, 0]]}"
)
TOPOLOGIES = [
    "torus",
    "ring",
    "fully_connected",
    "switch",
    LISTED,
    "{name: mesh, vertical: {bandwidth: 300 GB/s, hop_latency: 700 ns}}",
]
NODE = "{switch: 4, bandwidth: 450 GB/s, hop_latency: 300 ns}"
RAILS = f"{{levels: [{NODE}, {{switch: 2, per: gpu, bandwidth: 50 GB/s, hop_latency: 2 us}}]}}"
LEVELS = {
    "8 switch": "{levels: [{switch: 8}]}",
    "2 × 4 switch": RAILS,
    "2 × 2 × 2 switch": "{levels: [{switch: 2}, {switch: 2, per: gpu}, {switch: 2, bandwidth: 100 GB/s}]}",
    "2 × 1 mesh of 2 × 2 mesh": "{levels: [{mesh: [2, 2]}, {mesh: 2x1, bandwidth: 100 GB/s, hop_latency: 1 us}]}",
    "2 switch of 4 ring": "{levels: [{ring: 4}, {switch: 2, per: group}]}",
    "2 fully_connected of 2 × 2 torus": "{levels: [{torus: {x: 2, y: 2}}, {fully_connected: 2, per: gpu}]}",
}
FABRICS = {each: {"mesh": "3x2", "topology": yaml.safe_load(each)} for each in TOPOLOGIES} | {
    name: {"fabric": yaml.safe_load(each)} for name, each in LEVELS.items()
}


def system_on(fabric: str) -> SystemSpec:
    """A small system with one of ``FABRICS``."""
    plain = {
        "name": "small", "source": "made up", "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
        "d2d": {"bandwidth": "1 TB/s"}, "compute": {"peak": "300 TFLOP/s", "dtype": "fp16"},
    }  # fmt: skip
    return SystemSpec.model_validate(plain | FABRICS[fabric], context={"from_yaml": True})

"""Dies in rows and columns: the place of each, and meshes and tori over them with XY routes."""

import numpy as np
from support.tiny import tiny

from archsim.engine.fabrics import build_fabric
from microarch.fabric.grid import HORIZONTAL_WRAP, VERTICAL, VERTICAL_WRAP


def test_classes_of_links_have_their_own_bandwidth_and_latency(tmp_path):
    topology = "{name: torus, vertical: {bandwidth: 250 GB/s}, wrap: {hop_latency: 1 us}}"
    system = tiny(tmp_path, "systems.0.mesh=4x3", f"systems.0.topology={topology}").systems[0]
    mesh = build_fabric(system, "row_major")
    rates, latencies = mesh.link_bytes_per_ns, mesh.link_ns
    wraps = np.isin(mesh.link_class, [HORIZONTAL_WRAP, VERTICAL_WRAP])
    narrow = mesh.link_class == VERTICAL
    assert wraps.sum() == 2 * (4 + 3) and narrow.sum() == 2 * 4 * 2
    assert set(rates[narrow]) == {250 * 0.9} and set(rates[~narrow]) == {1000 * 0.9}
    assert set(latencies[wraps]) == {1000.0} and set(latencies[~wraps]) == {200.0}

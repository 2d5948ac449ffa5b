"""Maps of clusters: every GPU, port and NIC is drawn once, with the utilisation of its fuller direction."""

import pytest
from support.clusters import cluster

from archsim.engine.machine import build_fabric
from archsim.report.data import Die, Link, nodes_of
from archsim.report.maps import Placed, die_map, port_utilisation


def drawn(nodes, per="gpu"):
    fabric = build_fabric(cluster(nodes, per), "row_major")
    dies = tuple(Die(each, None, None, 0.5, 0.1, 0.0) for each in range(fabric.dies))
    ends = zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True)
    links = tuple(Link(src, dst, None, None, False, src / fabric.nodes) for src, dst in ends)
    return fabric, dies, links


@pytest.mark.parametrize(
    ("nodes", "per", "nics", "shared"), [(2, "gpu", 16, 0), (64, "gpu", 512, 0), (8, "group", 0, 8)]
)
def test_every_port_is_there_once(nodes, per, nics, shared):
    _, dies, links = drawn(nodes, per)
    found = port_utilisation(links, len(dies), nodes)
    assert [len(each) for each in found] == [8 * nodes, nics, shared]
    rows = die_map("map", [Placed({}, dies, links)], nodes=nodes).rows
    assert len({(row["x_at"], row["y_at"]) for row in rows}) == 8 * nodes == len({row["die"] for row in rows})
    assert {row["node"] for row in rows} == set(range(nodes)) and all("nic" in row and "port" in row for row in rows)


def test_a_port_has_the_colour_of_its_fuller_direction():
    fabric, dies, links = drawn(2)
    inner, nics, _ = port_utilisation(links, len(dies), 2)
    assert inner[0] == 16 / fabric.nodes  # the switch of node 0 sends to it
    assert nics[9] == (18 + 1) / fabric.nodes  # rail 1


def test_which_systems_are_nodes_of_gpus():
    level = {"switch": 8, "bandwidth": "1 GB/s"}
    assert nodes_of({"fabric": {"levels": [level]}}) == 1
    assert nodes_of({"fabric": {"levels": [level, {"switch": 3}]}}) == 3
    assert nodes_of({"fabric": {"levels": [{"ring": 8}]}}) is None
    assert nodes_of({"mesh": {"x": 5, "y": 5}}) is None

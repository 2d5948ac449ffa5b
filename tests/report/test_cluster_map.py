"""Maps of clusters: every GPU, port and NIC is drawn once, with the utilisation of its fuller direction."""

from dataclasses import replace

import pytest
from support.clusters import cluster

from archsim.engine.machine import build_fabric
from archsim.report.data import Die, Link, die_of_row, nodes_of
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


def test_a_die_tells_its_own_clock():
    """As built, and as limits lower it in decode; what is alike for all dies is told, but has no colours."""
    dies = [
        Die(at, at, 0, 0.5, 0.5, 0.0, clock=clock, prefill_clock=0.9, speeds=(speed, 1.0))
        for at, (speed, clock) in enumerate([(1.0, 0.8), (0.5, 0.9)])
    ]
    found = die_map("map", [Placed({}, dies, [])])
    assert [row["clock"] for row in found.rows] == pytest.approx([80, 45])
    assert [row["prefill_clock"] for row in found.rows] == pytest.approx([90, 45])
    alike = die_map("map", [Placed({}, [replace(die, speeds=(1.0, 0.9), clock=0.8) for die in dies], [])])
    tips = {field for field, _ in alike.tips}
    assert {"clock", "prefill_clock", "speed"} <= tips
    assert not {"clock", "prefill_clock", "speed"} & {each.field for each in alike.metrics}
    perfect = [replace(die, speeds=(1.0, 1.0), clock=None, prefill_clock=None) for die in dies]
    nominal = die_map("map", [Placed({}, perfect, [])])
    assert not {"clock", "prefill_clock", "speed"} & {field for field, _ in nominal.tips}


def test_the_table_of_dies_gives_every_die_its_clock():
    row = {
        "die": 3, "x": 1, "y": 0, "hbm_utilisation": 0.5, "compute_utilisation": 0.25, "activation_bytes": 0,
        "clock": 0.8, "prefill_clock": None, "array_speed": 0.9, "hbm_speed": 0.95,
    }  # fmt: skip
    die = die_of_row(row)
    assert (die.clock, die.prefill_clock, die.speeds) == (0.8, None, (0.9, 0.95))

"""Fabrics composed of levels: devices in groups, groups in groups, each level with its own links.

Level 0 connects ``count`` dies. Level i connects ``count`` groups formed by the levels below it, so counts multiply
from the innermost level outwards. Die r of group k has the number r + k · (dies of a group). ``per`` says how a level
connects to a group:

============  =================================================  =====================================================
``per``       links of the level                                 route to die r of another group
============  =================================================  =====================================================
``gpu``       one network per *rail*: die r of every group, for    inside its own group to die r (by the levels
below),
              every r (rail-optimised)                           then along rail r
``group``     one network of the groups' shared ports; every     up to its group's port, over the network, down from
              die of a group is linked to the port               the port of the other group
``edge``      grids of grids (wafers): dies that face each       XY over all rows and columns, as in one large grid
              other on the edges of neighbouring groups
============  =================================================  =====================================================

The network of a level is one of the topologies above. Links of level i are of class i; those between dies and the
shared port of level i of class ``levels + i``. Routes do not depend on traffic.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from microarch.fabric.fabric import Graph, Wiring, assemble
from microarch.fabric.grid import die_places, grid_wiring
from microarch.fabric.topology import BUILDERS, Site

GRIDS = ("mesh", "torus")


class Level(NamedTuple):
    """One level. ``sides``: (x, y) of a mesh or torus, (count, 1) of the others; ``per`` of level 0 is ignored."""

    kind: str
    sides: tuple[int, int]
    per: str = "group"

    @property
    def members(self) -> int:
        return prod(self.sides)


class _Group(NamedTuple):
    """A group formed by the levels so far. sides, places: of a grid of dies, else None."""

    dies: int
    wiring: Wiring
    sides: tuple[int, int] | None
    places: tuple[np.ndarray, np.ndarray] | None


@lru_cache(maxsize=64)
def build_levels(levels: tuple[Level, ...]) -> Graph:
    """Build the graph of ``levels``, innermost first. Raises ValueError for an unknown kind or ``per``, a side below 1,
    or ``per: edge`` that is not a grid of meshes.
    """
    group = _innermost(levels[0])
    for number, level in enumerate(levels[1:], 1):
        if level.per not in JOINS:
            raise ValueError(f"level {number}: per {level.per!r}: expected one of {', '.join(JOINS)}")
        group = _join(group, levels[: number + 1], number, len(levels))
    if len(levels) == 1 and levels[0].kind in GRIDS:
        return assemble(levels[0].kind, group.dies, group.wiring, group.places)
    return assemble("levels", group.dies, group.wiring, group.places)


def _join(group: _Group, levels: tuple[Level, ...], number: int, of: int) -> _Group:
    """With the further routes of some dies: those of the groups and of the network that joins them, at once."""
    join, network, inner = JOINS[levels[-1].per], _network(levels[-1]), group.wiring.others
    found = join(group, levels, network, number, of)
    if levels[-1].per == "edge" or inner is network.others is None:
        return found
    if inner is not None:
        dies = np.tile(inner[1], levels[-1].members)
        group = group._replace(wiring=replace(group.wiring, following=inner[0]))
    if network.others is not None:
        dies = dies if inner is not None else np.repeat(network.others[1], group.dies)
        network = replace(network, following=network.others[0])
    further = join(group, levels, network, number, of).wiring.following
    return found._replace(wiring=replace(found.wiring, others=(further, dies)))


def _innermost(level: Level) -> _Group:
    network = _network(level)
    if level.kind in GRIDS:
        return _Group(level.members, network, level.sides, die_places(*level.sides))
    return _Group(level.members, network, None, None)


def _network(level: Level) -> Wiring:
    """The network that connects the members of a level, all links of one class."""
    if level.kind not in BUILDERS or level.kind == "edges":
        raise ValueError(
            f"level kind {level.kind!r}: expected one of {', '.join(kind for kind in BUILDERS if kind != 'edges')}"
        )
    wiring = BUILDERS[level.kind](Site(*level.sides, die_places(*level.sides)))
    return Wiring(wiring.edges, np.zeros(len(wiring.edges), np.int64), wiring.following, wiring.others)


def _inside(group: _Group, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(edges, classes, following) of ``count`` instances; to others' dies a node leads to itself."""
    wiring, dies = group.wiring, group.dies
    number = _numbers(group, count)
    edges = number[:, wiring.edges].reshape(-1, 2)
    following = np.repeat(np.arange(count * wiring.nodes)[:, None], count * dies, axis=1)
    for copy in range(count):
        following[number[copy], copy * dies : (copy + 1) * dies] = number[copy][wiring.following]
    return edges, np.tile(wiring.classes, count), following


def _numbers(group: _Group, count: int) -> np.ndarray:
    """int64[instance, node]: first the dies of all instances, then other nodes."""
    dies, others = group.dies, group.wiring.nodes - group.dies
    copy = np.arange(count)[:, None]
    return np.concatenate([copy * dies + np.arange(dies), count * dies + copy * others + np.arange(others)], axis=1)


def _per_gpu(group: _Group, levels: tuple[Level, ...], network: Wiring, number: int, _: int) -> _Group:
    """A network for die r of all groups, for every r."""
    count, dies = levels[-1].members, group.dies
    edges, classes, inside = _inside(group, count)
    middles, nodes = network.nodes - count, len(inside)
    rails = np.arange(dies)[:, None]
    # Node of every member of a rail's network: int64[rail, member].
    member = np.concatenate([np.arange(count) * dies + rails, nodes + rails * middles + np.arange(middles)], axis=1)
    target = np.arange(count * dies)
    group_of, rail_of = target // dies, target % dies
    following = np.concatenate([inside, np.empty((dies * middles, count * dies), np.int64)])
    # First to the target's rail inside the source's group, then along the rail.
    for node, copy in zip(_numbers(group, count).ravel(), np.repeat(np.arange(count), group.wiring.nodes), strict=True):
        away = group_of != copy
        following[node, away] = inside[node, copy * dies + rail_of[away]]
    for rail in range(dies):
        on_rail = member[rail][network.following]  # int64[member, group]
        for own, node in enumerate(member[rail]):
            there = (rail_of == rail) & (group_of != own) if own < count else slice(None)
            following[node, there] = on_rail[own][group_of[there]]
    own_edges = member[:, network.edges].reshape(-1, 2)
    wiring = Wiring(np.concatenate([edges, own_edges]), _more(classes, own_edges, number), following)
    return _Group(count * dies, wiring, None, None)


def _per_group(group: _Group, levels: tuple[Level, ...], network: Wiring, number: int, of: int) -> _Group:
    """A network of shared ports, one per group, to which all dies of the group are linked."""
    count, dies = levels[-1].members, group.dies
    edges, classes, inside = _inside(group, count)
    nodes, total = len(inside), count * dies
    member = nodes + np.arange(network.nodes)  # ports first, then the network's other nodes
    target = np.arange(total)
    following = np.concatenate([inside, member[network.following][:, target // dies]])
    following[member[target // dies], target] = target
    copy_of = np.concatenate([target // dies, np.repeat(np.arange(count), group.wiring.nodes - dies)])
    away = copy_of[:, None] != (target // dies)[None, :]
    # Nodes of a group other than its dies send nothing out of the group: messages go from a die to the port.
    to_port = np.where(np.arange(nodes)[:, None] < total, member[copy_of][:, None], np.arange(nodes)[:, None])
    following[:nodes] = np.where(away, to_port, inside)
    to_ports = np.stack([target, member[target // dies]], axis=1)
    own_edges = member[network.edges]
    classes = _more(_more(classes, own_edges, number), to_ports, of + number)
    return _Group(total, Wiring(np.concatenate([edges, own_edges, to_ports]), classes, following), None, None)


def _per_edge(group: _Group, levels: tuple[Level, ...], _: Wiring, number: int, __: int) -> _Group:
    """One large grid; links between groups belong to the level."""
    level, inner = levels[-1], levels[:-1]
    meshes = all(each.kind == "mesh" for each in inner)
    if level.kind not in GRIDS or group.sides is None or group.places is None or not meshes:
        raise ValueError(f"level {number}: per edge: only a mesh or torus of meshes has edges that face each other")
    die = np.arange(group.dies * level.members)
    of_group = tuple(place[die // group.dies] for place in die_places(*level.sides))
    x, y = (
        side * outer + own[die % group.dies]
        for side, outer, own in zip(group.sides, of_group, group.places, strict=True)
    )
    places = x, y
    sides = group.sides[0] * level.sides[0], group.sides[1] * level.sides[1]
    wiring = grid_wiring(*sides, places, wrapped=(level.kind == "torus",) * 2)
    sizes = np.cumprod([1, *(each.members for each in inner)])  # dies of a group of every level
    crosses = wiring.edges[:, :1] // sizes != wiring.edges[:, 1:] // sizes
    classes = crosses.shape[1] - 1 - crosses[:, ::-1].argmax(axis=1)
    return _Group(len(die), Wiring(wiring.edges, classes, wiring.following, wiring.others), sides, places)


def _more(classes: np.ndarray, edges: np.ndarray, number: int) -> np.ndarray:
    return np.concatenate([classes, np.full(len(edges), number)])


JOINS = {"gpu": _per_gpu, "group": _per_group, "edge": _per_edge}

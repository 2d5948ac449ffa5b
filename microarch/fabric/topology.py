"""Topologies by name over X × Y dies: their links, and the route from every die to every other.

All of them become the same arrays (:class:`microarch.fabric.fabric.Graph`), so that engines, policies and reports do
not depend on the topology. Routes are fixed and shortest, and do not depend on traffic:

================== ======================================= =============================================================
name               links                                   route, and how ties of equal length are broken
================== ======================================= =============================================================
``mesh``           to the neighbours along x and y         along x first, then along y (XY)
``torus``          and from the last of a row or column    the same; the shorter way round, towards higher columns and
                   to its first                            rows where both are equal
``torus_x``, ``_y`` as torus, with rings along one axis     the same; a mesh's way along the other axis
``ring``           die i to i + 1, the last to die 0       the shorter way round, towards higher numbers if equal
``fully_connected`` every die to every other               the link itself
``switch``         every die to a node that is not a die   up and down; its ports (the links) block, the switch never
``edges``          as listed                               fewest links; then least latency; then, from die to die, the
                                                           lowest next number
================== ======================================= =============================================================

Classes of links, which may have their own bandwidth and latency: horizontal, vertical and each wrapped around for
mesh and torus; the listed edges, one class each; one class for all other topologies. A ring of two dies has one edge,
and so has a side of two dies of a torus.
"""

import math
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.own_code import import_function
from microarch.fabric.fabric import Graph, LinkClass, Wiring, assemble, shortest_paths

# ---- grid
# Dies in rows and columns: the place of each, and meshes and tori over them with XY routes.

ROW_MAJOR = "row_major"
COLUMN_MAJOR = "column_major"
HORIZONTAL, VERTICAL, HORIZONTAL_WRAP, VERTICAL_WRAP = range(4)  # classes of links of a mesh or torus


@lru_cache(maxsize=64)
def build_mesh(x: int, y: int, numbering: str = ROW_MAJOR) -> Graph:
    """The X × Y mesh with dies numbered x + X·y (``row_major``) or y + Y·x (``column_major``, published simulator).

    Routes are XY: along x first, then along y. Raises ValueError for a side below 1 or an unknown numbering.
    """
    places = die_places(x, y, numbering)
    return assemble("mesh", x * y, grid_wiring(x, y, places, wrapped=(False, False)), places)


def die_places(x: int, y: int, numbering: str = ROW_MAJOR) -> tuple[np.ndarray, np.ndarray]:
    """(column, row), int64[die] each. Raises ValueError for a side below 1 or an unknown numbering."""
    if x < 1 or y < 1:
        raise ValueError(f"mesh {x} x {y}: both sides must be at least 1")
    if numbering not in (ROW_MAJOR, COLUMN_MAJOR):
        raise ValueError(f"numbering {numbering!r}: expected {ROW_MAJOR!r} or {COLUMN_MAJOR!r}")
    die = np.arange(x * y)
    return (die % x, die // x) if numbering == ROW_MAJOR else (die // y, die % y)


def grid_wiring(x: int, y: int, places: tuple[np.ndarray, np.ndarray], *, wrapped: tuple[bool, bool]) -> Wiring:
    """Links along x and y, where an axis is ``wrapped`` (x, y) between first and last, too; routes along x first, then
    along y.

    A wrapped route goes the shorter way round; if both are equally long, towards the higher column or row.
    """
    x_of, y_of = places
    die_at = np.zeros((x, y), np.int64)
    die_at[x_of, y_of] = np.arange(x * y)
    step_x = _step(x_of, x, wrapped[0])
    step_y = np.where(step_x == 0, _step(y_of, y, wrapped[1]), 0)
    following = die_at[(x_of[:, None] + step_x) % x, (y_of[:, None] + step_y) % y]
    edges = _neighbours(die_at, wrapped)
    apart_x, apart_y = (np.abs(of[edges[:, 0]] - of[edges[:, 1]]) for of in (x_of, y_of))
    along_x = np.where(apart_x > 1, HORIZONTAL_WRAP, HORIZONTAL)
    return Wiring(edges, np.where(apart_x > 0, along_x, np.where(apart_y > 1, VERTICAL_WRAP, VERTICAL)), following)


def _neighbours(die_at: np.ndarray, wrapped: tuple[bool, bool]) -> np.ndarray:
    """int64[edge, 2], sorted, of ``die_at: int64[column, row]``."""
    pairs = []
    for at, around in zip((die_at, die_at.T), wrapped, strict=True):
        last = None if around else -1
        pairs.append(np.stack([at[:last], np.roll(at, -1, 0)[:last]], axis=-1).reshape(-1, 2))
    edges = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    return edges[edges[:, 0] != edges[:, 1]]


def _step(place: np.ndarray, side: int, wrapped: bool) -> np.ndarray:
    """-1, 0 or 1, int64[node, die]: which way along one axis."""
    apart = place[None, :] - place[:, None]
    if not wrapped:
        return np.sign(apart)
    around = apart % side
    return np.where(around == 0, 0, np.where(2 * around <= side, 1, -1))


# ---- topology


class Edge(NamedTuple):
    """An edge of a list: two dies and the latency of its links in ns."""

    a: int
    b: int
    latency_ns: float


class Site(NamedTuple):
    """What a topology is built on: X × Y dies with their places (column, row), and the listed edges if any."""

    x: int
    y: int
    places: tuple[np.ndarray, np.ndarray]
    edges: tuple[Edge, ...] = ()

    @property
    def dies(self) -> int:
        return self.x * self.y


def _mesh(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=(False, False))


def _torus(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=(True, True))


def _torus_x(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=(True, False))


def _torus_y(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=(False, True))


def _ring(site: Site) -> Wiring:
    # A ring is a torus of one row, in the order of the dies' numbers.
    row = np.arange(site.dies), np.zeros(site.dies, np.int64)
    wiring = grid_wiring(site.dies, 1, row, wrapped=(True, True))
    return _of_one_class(wiring.edges, wiring.following)


def _fully_connected(site: Site) -> Wiring:
    edges = np.stack(np.triu_indices(site.dies, 1), axis=1)
    return _of_one_class(edges, np.tile(np.arange(site.dies), (site.dies, 1)))


def _switch(site: Site) -> Wiring:
    dies = np.arange(site.dies)
    following = np.concatenate([np.full((site.dies, site.dies), site.dies), dies[None, :]])
    edges = np.stack([dies, np.full(site.dies, site.dies)], axis=1)
    return _of_one_class(edges[:0] if site.dies == 1 else edges, following)


def _listed(site: Site) -> Wiring:
    ends = np.array([(edge.a, edge.b) for edge in site.edges], np.int64).reshape(-1, 2)
    latency_ns = np.array([edge.latency_ns for edge in site.edges], np.float64)
    return Wiring(ends, np.arange(len(ends)), shortest_paths(site.dies, site.dies, ends, latency_ns))


def _of_one_class(edges: np.ndarray, following: np.ndarray) -> Wiring:
    return Wiring(edges, np.zeros(len(edges), np.int64), following)


BUILDERS: MappingProxyType[str, Callable[[Site], Wiring]] = MappingProxyType(
    {
        "mesh": _mesh,
        "torus": _torus,
        "torus_x": _torus_x,
        "torus_y": _torus_y,
        "ring": _ring,
        "fully_connected": _fully_connected,
        "switch": _switch,
        "edges": _listed,
    }
)


@lru_cache(maxsize=64)
def build_topology(name: str, x: int, y: int, numbering: str, edges: tuple[Edge, ...] = ()) -> Graph:
    """Dies, links and routes of a topology over X × Y dies; without bandwidths, so that designs can share it.

    edges: of the topology ``edges``, each pair of dies once. Raises ValueError for an unknown name or numbering, a side
    below 1, or edges that leave a die without a route.
    """
    if name not in BUILDERS:
        raise ValueError(f"topology {name!r}: expected one of {', '.join(BUILDERS)}")
    if name == "mesh":
        return build_mesh(x, y, numbering)
    places = die_places(x, y, numbering)
    wiring = BUILDERS[name](Site(x, y, places, edges))
    if wiring.nodes > x * y:  # a switch is drawn below the dies
        places = np.append(places[0], x // 2), np.append(places[1], y)
    return assemble(name, x * y, wiring, places)


# ---- levels
# Fabrics composed of levels: devices in groups, groups in groups, each level with its own links.
#
# Level 0 connects ``count`` dies. Level i connects ``count`` groups formed by the levels below it, so counts multiply
# from the innermost level outwards. Die r of group k has the number r + k · (dies of a group). ``per`` says how a level
# connects to a group:
#
# ============  =================================================  =====================================================
# ``per``       links of the level                                 route to die r of another group
# ============  =================================================  =====================================================
# ``gpu``       one network per *rail*: die r of every group, for    inside its own group to die r (by the levels
# below),
#               every r (rail-optimised)                           then along rail r
# ``group``     one network of the groups' shared ports; every     up to its group's port, over the network, down from
#               die of a group is linked to the port               the port of the other group
# ``edge``      grids of grids (wafers): dies that face each       XY over all rows and columns, as in one large grid
#               other on the edges of neighbouring groups
# ============  =================================================  =====================================================
#
# The network of a level is one of the topologies above. Links of level i are of class i; those between dies and the
# shared port of level i of class ``levels + i``. Routes do not depend on traffic.

GRIDS = ("mesh", "torus")


class Level(NamedTuple):
    """One level. ``sides``: (x, y) of a mesh or torus, (count, 1) of the others; ``per`` of level 0 is ignored."""

    kind: str
    sides: tuple[int, int]
    per: str = "group"

    @property
    def members(self) -> int:
        """Number of dies or groups that it connects."""
        return prod(self.sides)


class _Group(NamedTuple):
    """A group formed by the levels so far. sides, places: of a grid of dies, else None."""

    dies: int
    wiring: Wiring
    sides: tuple[int, int] | None
    places: tuple[np.ndarray, np.ndarray] | None


@lru_cache(maxsize=64)
def build_levels(levels: tuple[Level, ...]) -> Graph:
    """Build the graph of ``levels``, innermost first.

    Raises ValueError for an unknown kind or ``per``, a side below 1, or ``per: edge`` that is not a grid of meshes.
    """
    group = _innermost(levels[0])
    for number, level in enumerate(levels[1:], 1):
        if level.per not in JOINS:
            raise ValueError(f"level {number}: per {level.per!r}: expected one of {', '.join(JOINS)}")
        group = JOINS[level.per](group, levels[: number + 1], number, len(levels))
    if len(levels) == 1 and levels[0].kind in GRIDS:
        return assemble(levels[0].kind, group.dies, group.wiring, group.places)
    return assemble("levels", group.dies, group.wiring, group.places)


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
    return Wiring(wiring.edges, np.zeros(len(wiring.edges), np.int64), wiring.following)


def _inside(group: _Group, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(edges, classes, following) of ``count`` instances of a group; towards dies of other instances a node leads to
    itself.
    """
    wiring, dies = group.wiring, group.dies
    number = _numbers(group, count)
    edges = number[:, wiring.edges].reshape(-1, 2)
    following = np.repeat(np.arange(count * wiring.nodes)[:, None], count * dies, axis=1)
    for copy in range(count):
        following[number[copy], copy * dies : (copy + 1) * dies] = number[copy][wiring.following]
    return edges, np.tile(wiring.classes, count), following


def _numbers(group: _Group, count: int) -> np.ndarray:
    """Number of every node of every instance, int64[instance, node]: the dies of all instances, then their other
    nodes.
    """
    dies, others = group.dies, group.wiring.nodes - group.dies
    copy = np.arange(count)[:, None]
    return np.concatenate([copy * dies + np.arange(dies), count * dies + copy * others + np.arange(others)], axis=1)


def _per_gpu(group: _Group, levels: tuple[Level, ...], number: int, _: int) -> _Group:
    """A network for die r of all groups, for every r."""
    count, dies = levels[-1].members, group.dies
    network = _network(levels[-1])
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


def _per_group(group: _Group, levels: tuple[Level, ...], number: int, of: int) -> _Group:
    """A network of shared ports, one per group, to which all dies of the group are linked."""
    count, dies = levels[-1].members, group.dies
    network = _network(levels[-1])
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


def _per_edge(group: _Group, levels: tuple[Level, ...], number: int, _: int) -> _Group:
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
    return _Group(len(die), Wiring(wiring.edges, classes, wiring.following), sides, places)


def _more(classes: np.ndarray, edges: np.ndarray, number: int) -> np.ndarray:
    return np.concatenate([classes, np.full(len(edges), number)])


JOINS = {"gpu": _per_gpu, "group": _per_group, "edge": _per_edge}


# ---- own
# Fabrics that a user's function builds: what it returns, and the checks on it.
#
# ``topology: package.module:function`` names a function ``(dies, **params)`` that returns a :class:`FabricDescription`,
# or any named tuple with its fields::
#
#     def dragonfly(dies, radix=4):
#         edges = [(0, 1), (1, 2), ...]
#         return FabricDescription(nodes=dies, edges=edges, classes=[LinkClass("local", 100e9, 500.0)])

NEEDED = ("nodes", "edges", "classes")


class FabricDescription(NamedTuple):
    """Nodes, links and, if given, routes and places.

    nodes: their number, the dies (0 to dies - 1) included. edges: (node, node), each pair once; every edge is a link
    each way. classes: of links; the effective share of a bandwidth is ``d2d.efficiency`` of the system. edge_class:
    int[edge], an index of ``classes``; None: all are of the first class. following: int[node, die], the next node on
    the way from a node to a die; None: shortest paths (fewest links, then least latency, then the lowest next number).
    places: int[node, 2], column and row for maps; None: a map in an automatic layout.
    """

    nodes: int
    edges: Sequence[tuple[int, int]]
    classes: Sequence[LinkClass]
    edge_class: Sequence[int] | None = None
    following: Any = None
    places: Any = None


def build_own(target: str, dies: int, params: dict[str, Any]) -> tuple[Graph, tuple[LinkClass, ...]]:
    """The graph and classes of the function ``package.module:function``.

    Raises ArchsimError, which names the function, for a function that fails or returns no valid fabric.
    """
    try:
        given = import_function(target)(dies, **params)
    except ArchsimError:
        raise
    except Exception as error:  # a user's function may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if place.filename == __file__ else f" ({place.filename}:{place.lineno})"
        raise ArchsimError(f"{target}: {type(error).__name__}: {error}{where}") from error
    try:
        return _checked(dies, given)
    except ValueError as error:
        raise ArchsimError(f"{target}: {error}") from None


def _checked(dies: int, given: Any) -> tuple[Graph, tuple[LinkClass, ...]]:
    missing = [field for field in NEEDED if not hasattr(given, field)]
    if missing:
        raise ValueError(
            f"returns {type(given).__name__} without {missing[0]!r}; expected "
            "microarch.fabric.topology.FabricDescription, "
            f"or a named tuple with {', '.join(FabricDescription._fields)}"
        )
    if isinstance(given.nodes, bool) or not isinstance(given.nodes, int | np.integer) or given.nodes < dies:
        raise ValueError(f"nodes {given.nodes!r}: expected an integer of at least {dies}, the number of dies")
    nodes = int(given.nodes)
    classes = tuple(_link_class(index, each) for index, each in enumerate(given.classes))
    if not classes:
        raise ValueError("classes: expected at least one class of links")
    edges = _edges(given.edges, nodes)
    of_edge = getattr(given, "edge_class", None)
    edge_class = (
        np.zeros(len(edges), np.int64)
        if of_edge is None
        else _integers("edge_class", of_edge, (len(edges),), len(classes))
    )
    following = getattr(given, "following", None)
    if following is None:
        latency_ns = np.array([each.latency_ns for each in classes], np.float64)[edge_class]
        following = shortest_paths(nodes, dies, edges, latency_ns)
    else:
        following = _integers("following", following, (nodes, dies), nodes)
    places = getattr(given, "places", None)
    if places is not None:
        places = tuple(_integers("places", places, (nodes, 2), None).T)
    graph = assemble("own", dies, Wiring(edges, edge_class, following), places)
    graph.routes.refuse_lost()
    return graph, classes


def _link_class(index: int, given: Any) -> LinkClass:
    try:
        found = LinkClass(*given)
    except TypeError:
        raise ValueError(f"classes[{index}]: expected microarch.fabric.fabric.LinkClass, not {given!r}") from None
    if not _is_number(found.bandwidth_bytes_per_s) or found.bandwidth_bytes_per_s <= 0:
        raise ValueError(
            f"classes[{index}].bandwidth_bytes_per_s {found.bandwidth_bytes_per_s!r}: "
            "expected a positive, finite number"
        )
    if not _is_number(found.latency_ns) or found.latency_ns < 0:
        raise ValueError(
            f"classes[{index}].latency_ns {found.latency_ns!r}: expected a finite number that is not negative"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _edges(given: Any, nodes: int) -> np.ndarray:
    edges = np.asarray(list(given))
    if not edges.size:
        return np.zeros((0, 2), np.int64)
    edges = _integers("edges", edges, (len(edges), 2), nodes)
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if len(loops):
        raise ValueError(f"edges[{loops[0]}]: links node {edges[loops[0], 0]} to itself")
    pairs, first, counts = np.unique(np.sort(edges, axis=1), axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        a, b = pairs[counts > 1][0]
        raise ValueError(
            f"edges[{first[counts > 1][0]}]: nodes {a} and {b} are linked more than once; an edge is a link each way"
        )
    return edges


def _integers(what: str, given: Any, shape: tuple[int, ...], below: int | None) -> np.ndarray:
    """``given`` as int64 of that shape, from 0 to ``below`` - 1."""
    values = np.asarray(given)
    if values.shape != shape or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{what}: expected integers of shape {shape}, not {values.dtype} of shape {values.shape}")
    outside = np.argwhere((values < 0) | (values >= (np.inf if below is None else below)))
    if len(outside):
        at = tuple(int(index) for index in outside[0])
        expected = "at least 0" if below is None else f"0 to {below - 1}"
        raise ValueError(f"{what}[{', '.join(map(str, at))}]: {values[at]}; expected {expected}")
    return values.astype(np.int64)


# ---- extent
# Links of a fabric and on all its routes by formula: what building it takes, before it is built.


def _row(x: int) -> float:
    """Mean distance of two places in a row, over all ordered pairs with those of a place and itself."""
    return (x * x - 1) / (3 * x)


def _circle(x: int) -> float:
    return x * x // 4 / x


def _around(x: int) -> int:
    """Edges around a row whose ends are joined; two places have one edge."""
    return x if x > 2 else x - 1


# Mean links of a route over all ordered pairs of dies, those of a die and itself with none; routes are shortest.
MEAN_LINKS: MappingProxyType[str, Callable[[int, int], float]] = MappingProxyType(
    {
        "mesh": lambda x, y: _row(x) + _row(y),
        "torus": lambda x, y: _circle(x) + _circle(y),
        "torus_x": lambda x, y: _circle(x) + _row(y),
        "torus_y": lambda x, y: _row(x) + _circle(y),
        "ring": lambda x, y: _circle(x * y),
        "fully_connected": lambda x, y: 1 - 1 / (x * y),
        "switch": lambda x, y: 2 * (1 - 1 / (x * y)),
    }
)


# Edges between X × Y dies, each of them a link in both directions.
EDGES: MappingProxyType[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "mesh": lambda x, y: (x - 1) * y + x * (y - 1),
        "torus": lambda x, y: _around(x) * y + x * _around(y),
        "torus_x": lambda x, y: _around(x) * y + x * (y - 1),
        "torus_y": lambda x, y: (x - 1) * y + x * _around(y),
        "ring": lambda x, y: _around(x * y),
        "fully_connected": lambda x, y: x * y * (x * y - 1) // 2,
        "switch": lambda x, y: x * y if x * y > 1 else 0,
    }
)


class Extent(NamedTuple):
    """The extent of a fabric: the number of its links (an edge has two), and of the links on the routes of all pairs of
    dies.
    """

    links: int
    route_links: float


def extent(kind: str, x: int, y: int) -> Extent:
    """The extent of a topology of X × Y dies. For one without a formula (``edges``, a user's function), it is the least
    that it can have: edges that reach every die, and one link a pair.
    """
    dies = x * y
    edges = EDGES[kind](x, y) if kind in EDGES else dies - 1
    return Extent(2 * edges, dies**2 * MEAN_LINKS.get(kind, MEAN_LINKS["fully_connected"])(x, y))


def extent_of_levels(levels: tuple[Level, ...]) -> Extent:
    """The extent of levels, given innermost first. Their edges and routes are described above."""
    sides, dies, mean = levels[0].sides, levels[0].members, MEAN_LINKS[levels[0].kind](*levels[0].sides)
    edges = EDGES[levels[0].kind](*sides)
    for level in levels[1:]:
        own, own_edges = MEAN_LINKS[level.kind](*level.sides), EDGES[level.kind](*level.sides)
        if level.per == "edge":
            sides = sides[0] * level.sides[0], sides[1] * level.sides[1]
            mean, edges = MEAN_LINKS[level.kind](*sides), EDGES[level.kind](*sides)
        elif level.per == "gpu":
            mean, edges = mean + own, edges * level.members + own_edges * dies
        else:  # up to the group's port and down from the other's
            mean = mean / level.members + 2 * (1 - 1 / level.members) + own
            edges = (edges + dies) * level.members + own_edges
        dies *= level.members
    return Extent(2 * edges, dies**2 * mean)

"""Fabrics that a user's function builds: what it returns, and the checks on it.

``topology: package.module:function`` names a function ``(dies, **params)`` that returns a :class:`FabricDescription`,
or any named tuple with its fields::

    def dragonfly(dies, radix=4):
        edges = [(0, 1), (1, 2), ...]
        return FabricDescription(nodes=dies, edges=edges, classes=[LinkClass("local", 100e9, 500.0)])
"""

import math
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, own_code
from microarch.fabric.fabric import Graph, LinkClass, Wiring, assemble
from microarch.fabric.shortest_paths import shortest_paths

NEEDED = ("nodes", "edges", "classes")


class FabricDescription(NamedTuple):
    """Nodes, links and, if given, routes and places."""

    nodes: int  # their number, the dies (0 to dies - 1) included
    edges: Sequence[tuple[int, int]]  # (node, node), each pair once; every edge is a link each way
    classes: Sequence[LinkClass]  # of links; the effective share of a bandwidth is ``d2d.efficiency`` of the system
    edge_class: Sequence[int] | None = None  # int[edge], an index of ``classes``; None: all are of the first
    # int[node, die], the next node on the way from a node to a die; None: shortest paths (fewest links, then least
    # latency, then the lowest next number)
    following: Any = None
    places: Any = None  # int[node, 2], column and row for maps; None: a map in an automatic layout


def build_own(target: str, dies: int, params: dict[str, Any]) -> tuple[Graph, tuple[LinkClass, ...]]:
    """The graph and classes of the function ``package.module:function``.

    Raises ArchsimError, which names the function, for a function that fails or returns no valid fabric.
    """
    try:
        given = own_code.import_function(target)(dies, **params)
    except errors.ArchsimError:
        raise
    except Exception as error:  # a user's function may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if place.filename == __file__ else f" ({place.filename}:{place.lineno})"
        raise errors.ArchsimError(f"{target}: {type(error).__name__}: {error}{where}") from error
    try:
        return _check_description(dies, given)
    except ValueError as error:
        raise errors.ArchsimError(f"{target}: {error}") from None


def _check_description(dies: int, given: Any) -> tuple[Graph, tuple[LinkClass, ...]]:
    missing = [field for field in NEEDED if not hasattr(given, field)]
    if missing:
        raise ValueError(
            f"returns {type(given).__name__} without {missing[0]!r}; expected "
            "microarch.fabric.described.FabricDescription, "
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

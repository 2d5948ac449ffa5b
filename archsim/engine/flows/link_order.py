"""An order of a fabric's links along which every route rises, or most of it where routes wait in a cycle."""

import numpy as np

from archsim.base import errors
from archsim.engine.flows.ports import UNCOUPLED
from microarch.fabric.fabric import Fabric, Graph, link_rank


def rank_links(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links along which every route rises, from 0; ValueError where there is none."""
    ports = getattr(graph, "ports", 0)
    if not ports:
        return xy_rank(graph) if graph.kind == "mesh" else link_rank(graph)
    if graph.kind != "mesh":
        return link_rank(graph)
    rank = xy_rank(graph)[:-ports] + 1
    out, into = np.zeros(ports // 2, np.int32), np.full(ports // 2, rank.max(initial=0) + 1, np.int32)
    return np.concatenate([rank, out, into])


def xy_rank(mesh: Graph) -> np.ndarray:
    """int32[link]: an order of a mesh's links along which every XY route rises, from 0."""
    if mesh.x_of is None or mesh.y_of is None:
        raise ValueError(f"a {mesh.kind} has no columns and rows")
    x, y = int(mesh.x_of.max()) + 1, int(mesh.y_of.max()) + 1
    from_x, from_y = mesh.x_of[mesh.link_src], mesh.y_of[mesh.link_src]
    step_x, step_y = mesh.x_of[mesh.link_dst] - from_x, mesh.y_of[mesh.link_dst] - from_y
    along_x = np.where(step_x > 0, from_x, x - 1 - from_x)
    along_y = x + np.where(step_y > 0, from_y, y - 1 - from_y)
    return np.where(step_x != 0, along_x, along_y).astype(np.int32)


def ranks_in_cycles(graph: Graph) -> np.ndarray:
    """int32[link]: as `rank_links`, but cycles are cut: where all links left wait, the lowest comes first."""
    first, same = graph.route_links[:-1], np.ones(max(0, len(graph.route_links) - 1), bool)
    same[graph.route_ptr[(graph.route_ptr > 0) & (graph.route_ptr < len(graph.route_links))] - 1] = False
    pairs = np.unique(np.stack([first[same], graph.route_links[1:][same]], axis=1).astype(np.int64), axis=0)
    waits = np.bincount(pairs[:, 1], minlength=graph.links)
    ptr = np.searchsorted(pairs[:, 0], np.arange(graph.links + 1))
    rank, left = np.full(graph.links, -1, np.int32), np.ones(graph.links, bool)
    for place in range(graph.links):
        free = np.flatnonzero(left & (waits == 0))
        link = int(free[0] if len(free) else np.flatnonzero(left)[0])
        rank[link], left[link] = place, False
        waits[pairs[ptr[link] : ptr[link + 1], 1]] -= 1
    return rank


def port_ranks(fabric: Fabric, cycles: bool = False) -> np.ndarray:
    """int32[resource]: HBMs are uncoupled, links rise along every route, or with ``cycles`` along most. Raises
    ArchsimError for cycles: rates of round-robin routers then depend on buffers, which are not modelled.
    """
    try:
        links = ranks_in_cycles(fabric) if cycles else rank_links(fabric)
    except ValueError:
        raise errors.ArchsimError(
            f"arbitration: round_robin has no steady state on a fabric of {fabric.name}, whose routes wait for each "
            f"other in a cycle. Use arbitration: fair, or head_of_line"
        ) from None
    return np.concatenate([np.full(fabric.dies, UNCOUPLED), links]).astype(np.int32)

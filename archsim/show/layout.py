"""Positions of the nodes of a fabric without coordinates: one row per group of dies; switches beside and below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from archsim.machine.system import SystemSpec
from archsim.runs.results import Row

At = tuple[int, int]  # column and row


def map_width(system: SystemSpec) -> int | None:
    """Dies per row of a system without coordinates: as many as the innermost group of several has; else None."""
    levels = system.fabric.levels if system.fabric else ()
    return levels[0].size if len(levels) > 1 else None


def nodes_of(system: SystemSpec) -> int | None:
    """Nodes of GPUs behind switches, in one or two levels; None: another fabric."""
    levels = system.fabric.levels if system.fabric else ()
    if system.built is not None:
        return None
    if not 1 <= len(levels) <= 2 or any(level.kind != "switch" for level in levels):
        return None
    return levels[1].size if len(levels) > 1 else 1


def arrange(dies: Sequence[Row], links: Sequence[Row], width: int) -> tuple[Sequence[Row], Sequence[Row]]:
    """The same dies and links with positions, ``width`` dies per row."""
    at = places(len(dies), [(link["src"], link["dst"]) for link in links], width)
    placed_dies = [{**die, **dict(zip(("x", "y"), at[die["die"]], strict=True))} for die in dies]
    placed_links = []
    for link in links:
        (src_x, src_y), (dst_x, dst_y) = at[link["src"]], at[link["dst"]]
        placed_links.append({**link, "src_x": src_x, "src_y": src_y, "dst_x": dst_x, "dst_y": dst_y})
    return placed_dies, placed_links


def places(dies: int, links: Iterable[tuple[int, int]], width: int) -> dict[int, At]:
    """(column, row) of every node. Dies fill rows by number; another node is right of its linked dies if they form a
    row, below them if they form a column, else below all dies, at the next free place to the right.
    """
    at = {die: (die % width, die // width) for die in range(dies)}
    around: dict[int, set[int]] = {}
    for src, dst in links:
        around.setdefault(src, set()).add(dst)
        around.setdefault(dst, set()).add(src)
    rows = -(-dies // width)
    taken = set(at.values())
    for node in sorted(around.keys() - at.keys()):
        near = [at[other] for other in around[node] if other < dies]
        columns, lines = ({place[axis] for place in near} for axis in (0, 1))
        if len(lines) == 1 and rows > 1:
            x, y = width, lines.pop()
        elif len(columns) == 1:
            x, y = columns.pop(), rows
        else:
            x, y = width // 2, rows if near else rows + 1
        while (x, y) in taken:
            x += 1
        at[node] = x, y
        taken.add((x, y))
    return at

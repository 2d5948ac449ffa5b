"""Positions of the nodes of a fabric without coordinates: one row per group of dies; switches beside and below."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from archsim.report.data import Die, Link

Place = tuple[int, int]


def arranged(dies: Sequence[Die], links: Sequence[Link], width: int) -> tuple[tuple[Die, ...], tuple[Link, ...]]:
    """The same dies and links with positions, ``width`` dies per row."""
    at = places(len(dies), [(link.src, link.dst) for link in links], width)
    placed_dies = tuple(replace(die, x=at[die.die][0], y=at[die.die][1]) for die in dies)
    return placed_dies, tuple(replace(link, src_at=at[link.src], dst_at=at[link.dst]) for link in links)


def places(dies: int, links: Iterable[tuple[int, int]], width: int) -> dict[int, Place]:
    """(column, row) of every node. Dies fill rows in order of number.

    A node that is not a die is placed to the right of its linked dies if they form one row, below them if they form one
    column, else below all dies; if the position is taken, at the next free one to the right.
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

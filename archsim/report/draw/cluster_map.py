"""Maps of nodes of GPUs: every node is a frame around its GPUs, every port a bar at its GPU or its node.

A GPU is a square as in ``archsim.report.draw.fabric_map``: upper half HBM, lower half compute array. The bar to its
right is its port to the switch of its node, the bar below it is its NIC; a NIC that the GPUs of a node share is a bar
under the frame. A bar has the colour of the fuller direction. Lines to switches would hide what they connect: of 64
nodes of 8 there are 2,048.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, sqrt

from archsim.report.data import Die, Link
from archsim.report.draw.fabric_map import level
from archsim.report.draw.svg import element, number, picture, text

SIDE, BAR, GAP = 30.0, 5.0, 3.0  # of a GPU, width of a bar, px
CELL = SIDE + BAR + 2 * GAP
FRAME, LABEL, BETWEEN = 5.0, 12.0, 10.0  # inside a frame, above it, between frames
MOST_NUMBERED = 8  # nodes; of more, GPUs have no numbers inside


def cluster_map(dies: tuple[Die, ...], links: Iterable[Link], nodes: int, spoken: str) -> str:
    """An SVG of ``nodes`` nodes with equally many GPUs each, in order of die."""
    size = len(dies) // nodes
    inner, nics, shared = port_utilisation(links, len(dies), nodes)
    across = ceil(sqrt(2 * size)) if size > 2 else size
    down = -(-size // across)
    wide, high = across * CELL + 2 * FRAME, down * CELL + 2 * FRAME + (BAR + GAP if shared else 0.0)
    columns = ceil(sqrt(nodes * high / wide))
    rows = -(-nodes // columns)
    bars: dict[int, list[str]] = defaultdict(list)
    parts = []
    for node in range(nodes):
        left, top = (node % columns) * (wide + BETWEEN) + 2, (node // columns) * (high + LABEL + BETWEEN) + LABEL + 2
        frame = f"M{number(left)} {number(top)}h{number(wide)}v{number(high)}h{number(-wide)}z"
        parts += [element("path", class_="l0", d=frame, fill="none"), text(left, top - 3, f"node {node}", "m")]
        for each in range(size):
            x, y = left + FRAME + each % across * CELL, top + FRAME + each // across * CELL
            die = dies[node * size + each]
            _square(bars, die, x, y)
            _bar(bars, inner.get(die.die), x + SIDE + GAP, y, BAR, SIDE)
            _bar(bars, nics.get(die.die), x, y + SIDE + GAP, SIDE, BAR)
            if nodes <= MOST_NUMBERED:
                parts.append(_values(die, x, y))
        _bar(bars, shared.get(node), left + FRAME, top + high - BAR - GAP, wide - 2 * FRAME, BAR)
    shapes = "".join(element("path", class_=f"u{step}", d="".join(bars[step])) for step in sorted(bars))
    width, height = columns * (wide + BETWEEN) + 4, rows * (high + LABEL + BETWEEN) + LABEL + 8
    of_nics = "; below: its NIC" if nics else "; below a node: its NIC" if shared else ""
    words = f"right of a GPU: its port to the switch of the node{of_nics}"
    return picture(width, height, spoken, [shapes, *parts, text(2, height - 4, words, "m")])


def port_utilisation(
    links: Iterable[Link], dies: int, nodes: int
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """(GPU → port inside its node, GPU → own NIC, node → shared NIC): utilisation of the fuller direction.

    Switches of nodes have the numbers after the dies; then come those of rails, or the shared ports of nodes.
    """
    inner: dict[int, float] = {}
    nics: dict[int, float] = {}
    shared: dict[int, float] = {}
    ports = range(dies + nodes, dies + 2 * nodes)
    found = list(links)
    shares = any(link.src in ports and link.dst >= dies + 2 * nodes for link in found)
    for link in found:
        low, high = sorted((link.src, link.dst))
        if low < dies:
            if high < dies + nodes:
                inner[low] = max(inner.get(low, 0.0), link.utilisation)
            elif not shares:
                nics[low] = max(nics.get(low, 0.0), link.utilisation)
        elif shares and low in ports:
            shared[low - dies - nodes] = max(shared.get(low - dies - nodes, 0.0), link.utilisation)
    return inner, nics, shared


def _square(bars: dict[int, list[str]], die: Die, x: float, y: float) -> None:
    for row, use in enumerate((die.hbm, die.compute)):
        _bar(bars, use, x, y + row * SIDE / 2, SIDE, SIDE / 2)


def _bar(bars: dict[int, list[str]], use: float | None, x: float, y: float, width: float, height: float) -> None:
    if use is not None:
        bars[level(use)].append(f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z")


def _values(die: Die, x: float, y: float) -> str:
    return "".join(
        text(x + SIDE / 2, y + SIDE / 4 + row * SIDE / 2 + 4, f"{100 * use:.0f}", f"d n{level(use)}", "middle")
        for row, use in enumerate((die.hbm, die.compute))
    )

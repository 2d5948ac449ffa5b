"""Maps of a system of any topology: utilisation of every die and link over a run.

Links between neighbours are straight. Others bow aside, which separates the two directions and leaves the dies in
between visible. A node that is not a die, such as a switch, is a ring. Where there are too many links to distinguish,
only those between neighbours are drawn, and the map says so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, hypot, log10, sqrt
from typing import NamedTuple

import numpy as np

from archsim.report.charts import element, number, picture, text, title
from archsim.report.data import Die, Link, Steps
from archsim.report.units import percent

# ---- layout
# Positions of the nodes of a fabric without coordinates: one row per group of dies; switches beside and below.

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


# ---- fabric_map

LEVELS = 20  # steps of the colour scale
PITCH, SIDE = 51.0, 38.0  # distance of dies and size of one, px
LANE = 5.0  # distance of the two directions of an edge from its middle
MOST_LABELLED = 12  # dies per side; larger maps have no utilisation numbers
MOST_NAMED = 10  # dies per side; larger maps outline the busiest die in place of die numbers
MOST_CLICKED = 144  # dies; larger maps tell no numbers of single dies and links
WIDEST = 640.0
BOW = 0.25  # sideways bow of a link between dies that are not neighbours, as a share of its length
MOST_BOWED = 1200

_LIGHT = ((238, 241, 245), (254, 222, 150), (251, 160, 88), (222, 76, 48), (140, 8, 40))
_DARK = ((40, 45, 53), (92, 42, 92), (178, 56, 78), (240, 122, 44), (252, 226, 128))
_IDLE_LINK = (150, 158, 168)  # visible on light and dark pages


class Idle(NamedTuple):
    """A die of a wafer that the machine does not use: its number as made, its place, and why (``dead``, ``spare``)."""

    site: int
    x: int
    y: int
    why: str


def fabric_map(
    dies: tuple[Die, ...], links: tuple[Link, ...], spoken: str, width: int | None = None, idle: Sequence[Idle] = ()
) -> str:
    """An SVG. Upper half of a die: HBM; lower half: compute array; both in percent of run time. Links by colour and
    width.

    ``width``: dies per row where dies have no coordinates; None: about as many as there are rows. ``idle``: dies that
    are crossed out. A line under a die whose array is not nominal is as long as the die at its nominal clock.
    """
    if dies and dies[0].x is None:
        dies, links = arranged(dies, links, width or ceil(sqrt(len(dies))))
        idle = ()
    places = [(die.x, die.y) for die in dies]
    middle = sorted({end for link in links for end in (link.src_at, link.dst_at)} - set(places))
    unused = [(each.x, each.y) for each in idle]
    middle = [at for at in middle if at not in unused]
    columns, rows = (1 + max(at[axis] for at in (*places, *middle, *unused)) for axis in (0, 1))
    bowed = [link for link in links if not _neighbours(link)]
    shown = bowed if len(bowed) <= MOST_BOWED else []
    straight = [link for link in links if _neighbours(link)]
    parts = [_links(shown, _bow, fill="none"), _links(straight, _line), _halves(dies), *map(_ring, middle)]
    parts += map(_crossed, idle)
    parts += [_speed(die) for die in dies if die.speeds[0] != 1]
    if max(columns, rows) <= MOST_LABELLED:
        parts += [_numbers(die) for die in dies]
    if max(columns, rows) <= MOST_NAMED:
        parts += [_name(die) for die in dies]
    elif dies:
        parts.append(_outline(max(dies, key=lambda die: die.use)))
    if len(dies) <= MOST_CLICKED:
        parts += [_clickable_link(link) for link in straight] + [_clickable_die(die) for die in dies]
    gap = PITCH - SIDE
    width, height = columns * PITCH - gap + 4, rows * PITCH - gap + 4
    pad = max(
        (BOW / 2 * PITCH * hypot(link.dst_at[0] - link.src_at[0], link.dst_at[1] - link.src_at[1]) for link in shown),
        default=0.0,
    )
    if pad:  # links bow out of the rows and columns
        parts = [element("g", "".join(parts), transform=f"translate({number(pad)} {number(pad)})")]
        width, height = width + 2 * pad, height + 2 * pad
    if len(shown) < len(bowed):
        height += 16
        parts.append(
            text(2, height - 4, f"{len(bowed):,} links between dies that are not neighbours are not drawn", "m")
        )
    picture_of_true_size = picture(width, height, spoken, parts)
    if width <= WIDEST:
        return picture_of_true_size
    return picture_of_true_size.replace(f"width:{number(width)}px", f"width:{number(WIDEST)}px")


def level(utilisation: float) -> int:
    """0 to LEVELS; 0 only for an idle unit, LEVELS only for one that is (nearly) always busy."""
    if utilisation <= 0:
        return 0
    return min(max(round(utilisation * LEVELS), 1), LEVELS)


def scale_css(dark: bool) -> str:
    """Rules of the classes ``u0`` … (fill of a die), ``n0`` … (text on it), ``l0`` … (stroke of a link)."""
    stops = _DARK if dark else _LIGHT
    rules = []
    for step in range(LEVELS + 1):
        red, green, blue = fill = _colour(step / LEVELS, stops)
        ink = "#111" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#fff"
        stroke = _hex(_colour(step / LEVELS, (_IDLE_LINK, *stops[1:])))
        rules.append(
            f".u{step}{{fill:{_hex(fill)}}}.n{step}{{fill:{ink}}}.l{step}{{stroke:{stroke};stroke-width:{_thickness(step)}}}"
        )
    return "".join(rules)


def colour_bar(width: float = 260.0) -> str:
    """The colour scale of dies and links in all maps."""
    step = (width - 40) / (LEVELS + 1)
    parts = []
    for index in range(LEVELS + 1):
        x = 20 + step * index
        parts.append(element("rect", class_=f"u{index}", x=x, y=0.0, width=step + 0.3, height=12.0))
        parts.append(element("path", class_=f"l{index}", d=f"M{number(x)} 20h{number(step + 0.3)}"))
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = 20 + step / 2 + (width - 40 - step) * share
        parts.append(text(x, 38, f"{100 * share:.0f} %", "m", "middle"))
    return picture(width, 42, "Colour scale of utilisation, 0 to 100 %", parts)


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _thickness(step: int) -> str:
    return f"{1 + 5 * step / LEVELS:.2f}"


def _colour(share: float, stops: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    at = share * (len(stops) - 1)
    begin = min(int(at), len(stops) - 2)
    return tuple(round(a + (b - a) * (at - begin)) for a, b in zip(stops[begin], stops[begin + 1], strict=True))


def _corner(place: int) -> float:
    return 2 + PITCH * place


def _neighbours(link: Link) -> bool:
    return sum(abs(a - b) for a, b in zip(link.src_at, link.dst_at, strict=True)) == 1


def _links(links: Iterable[Link], draw: Callable[[Link], str], **style: str) -> str:
    """One path per level, so that a map of thousands of links stays small."""
    lines: dict[int, list[str]] = {}
    for link in links:
        lines.setdefault(level(link.utilisation), []).append(draw(link))
    return "".join(element("path", class_=f"l{step}", d="".join(lines[step]), **style) for step in sorted(lines))


def _bow(link: Link) -> str:
    """From centre to centre, behind the dies, bowed to one side of its direction."""
    (x, y), (to_x, to_y) = ((_corner(at[0]) + SIDE / 2, _corner(at[1]) + SIDE / 2) for at in (link.src_at, link.dst_at))
    by_x, by_y = (x + to_x) / 2 - (to_y - y) * BOW, (y + to_y) / 2 + (to_x - x) * BOW
    return f"M{number(x)} {number(y)}Q{number(by_x)} {number(by_y)} {number(to_x)} {number(to_y)}"


def _ring(at: tuple[int, int]) -> str:
    x, y = (_corner(place) + SIDE / 2 for place in at)
    return element("circle", class_="u0 l0", cx=x, cy=y, r=SIDE / 3)


def _line(link: Link) -> str:
    """From border to border of two neighbours; each of two directions keeps to its right."""
    (x, y), (to_x, to_y) = link.src_at, link.dst_at
    dx, dy = to_x - x, to_y - y
    aside = 0.0 if link.both_ways else LANE
    middle = SIDE / 2
    begin_x = _corner(x) + middle + dx * middle - dy * aside
    begin_y = _corner(y) + middle + dy * middle + dx * aside
    length = number((PITCH - SIDE) * (dx + dy))
    return f"M{number(begin_x)} {number(begin_y)}{'h' if dx else 'v'}{length}"


def _halves(dies: tuple[Die, ...]) -> str:
    shapes: dict[int, list[str]] = {}
    for die in dies:
        for row, use in enumerate((die.hbm, die.compute)):
            x, y = _corner(die.x), _corner(die.y) + row * SIDE / 2
            shape = f"M{number(x)} {number(y)}h{number(SIDE)}v{number(SIDE / 2)}h{number(-SIDE)}z"
            shapes.setdefault(level(use), []).append(shape)
    return "".join(element("path", class_=f"u{step}", d="".join(shapes[step])) for step in sorted(shapes))


def _name(die: Die) -> str:
    number_ = die.die if die.site is None else die.site
    return text(_corner(die.x) + 2, _corner(die.y) + 10, f"{number_}", f"id n{level(die.hbm)}")


def _crossed(idle: Idle) -> str:
    """A die that is not used: its outline, a cross if it is dead, its number, and why."""
    x, y = _corner(idle.x), _corner(idle.y)
    cross = f"M{number(x)} {number(y)}l{number(SIDE)} {number(SIDE)}m{number(-SIDE)} 0l{number(SIDE)} {number(-SIDE)}"
    frame = f"M{number(x)} {number(y)}h{number(SIDE)}v{number(SIDE)}h{number(-SIDE)}z"
    told = title(f"die {idle.site}: {idle.why}")
    drawn = element("path", told, class_="l0", d=frame + (cross if idle.why == "dead" else ""), fill="none")
    return drawn + text(x + 2, y + 10, f"{idle.site}", "m")


def _speed(die: Die) -> str:
    """A line at the foot of a die, as long as the die at its nominal clock."""
    share = min(die.speeds[0], 1.0)
    foot = f"M{number(_corner(die.x))} {number(_corner(die.y) + SIDE)}h{number(SIDE * share)}"
    return element("path", class_="mark", d=foot)


def _clickable_die(die: Die) -> str:
    """An invisible square over it, with its numbers."""
    tip = f"die {die.die}: HBM at {percent(die.hbm)} of its bandwidth, compute array busy {percent(die.compute)}"
    if die.site is not None:
        tip = tip.replace(f"die {die.die}:", f"die {die.site} (number {die.die} of the machine):")
        pairs = sum(tokens for tokens, _ in die.phases.values())
        tip += f", {pairs:,.0f} pairs of token and expert, array at {percent(die.speeds[0], 1)} of its clock"
        tip += f", HBM at {percent(die.speeds[1], 1)} of its bandwidth"
    at = {"x": _corner(die.x), "y": _corner(die.y), "width": SIDE, "height": SIDE}
    return element("rect", title(tip), class_="hit", **at)


def _clickable_link(link: Link) -> str:
    arrow = "↔" if link.both_ways else "→"
    return element(
        "path", title(f"link {link.src} {arrow} {link.dst}: busy {percent(link.utilisation)} of the run"),
        class_="hit", d=_line(link),
    )  # fmt: skip


def _outline(die: Die) -> str:
    return element("rect", class_="hot", x=_corner(die.x), y=_corner(die.y), width=SIDE, height=SIDE)


def _numbers(die: Die) -> str:
    x, y = _corner(die.x) + SIDE - 3, _corner(die.y)  # the number of the die is on the left
    return "".join(
        text(x, y + SIDE / 4 + row * SIDE / 2 + 4, f"{100 * use:.0f}", f"d n{level(use)}", "end")
        for row, use in enumerate((die.hbm, die.compute))
    )


# ---- heat_map

def heat_map(dies: tuple[Die, ...], spoken: str, clock: str, limit_c: float | None, width: int | None = None) -> str:
    """An SVG of what dies draw and how hot they are: W above, C below; colours by C from the coolest die to the limit,
    else by W. ``clock``: of all dies, in words; ``width``: as of `fabric_map`.
    """
    if dies[0].x is None:
        dies, _ = arranged(dies, (), width or ceil(sqrt(len(dies))))
    hot = all(die.temperature_c is not None for die in dies)
    values = [float((die.temperature_c if hot else die.power_w) or 0.0) for die in dies]
    low, high = (min(values) if hot else 0.0), max(values)
    high = max(high, limit_c) if hot and limit_c is not None else high
    columns, rows = (1 + max(each.x if axis == "x" else each.y for each in dies) for axis in "xy")
    shapes: dict[int, list[str]] = {}
    words, hits = [], []
    for die, value in zip(dies, values, strict=True):
        x, y, step = _corner(die.x), _corner(die.y), level((value - low) / (high - low) if high > low else 0.0)
        square = f"M{number(x)} {number(y)}h{number(SIDE)}v{number(SIDE)}h{number(-SIDE)}z"
        shapes.setdefault(step, []).append(square)
        told = [f"{die.power_w or 0.0:.0f} W"] + ([f"{die.temperature_c:.0f} C"] if hot else [])
        if max(columns, rows) <= MOST_LABELLED:
            words += [text(x + SIDE - 3, y + 14 + 16 * at, each, f"d n{step}", "end") for at, each in enumerate(told)]
        if len(dies) <= MOST_CLICKED:
            hbm = "" if die.hbm_temperature_c is None else f", its HBM {die.hbm_temperature_c:.1f} C"
            tip = f"die {die.die}: {', '.join(told)}{hbm}; {clock}"
            hits.append(element("rect", title(tip), class_="hit", x=x, y=y, width=SIDE, height=SIDE))
    drawn = [element("path", class_=f"u{step}", d="".join(shapes[step])) for step in sorted(shapes)]
    gap = PITCH - SIDE
    return picture(columns * PITCH - gap + 4, rows * PITCH - gap + 4, spoken, [*drawn, *words, *hits])


# ---- cluster_map
# Maps of nodes of GPUs: every node is a frame around its GPUs, every port a bar at its GPU or its node.
#
# A GPU is a square as in ``archsim.report.maps``: upper half HBM, lower half compute array. The bar to its
# right is its port to the switch of its node, the bar below it is its NIC; a NIC that the GPUs of a node share is a bar
# under the frame. A bar has the colour of the fuller direction. Lines to switches would hide what they connect: of 64
# nodes of 8 there are 2,048.

CLUSTER_SIDE, BAR, GAP = 30.0, 5.0, 3.0  # of a GPU, width of a bar, px
CELL = CLUSTER_SIDE + BAR + 2 * GAP
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
            _bar(bars, inner.get(die.die), x + CLUSTER_SIDE + GAP, y, BAR, CLUSTER_SIDE)
            _bar(bars, nics.get(die.die), x, y + CLUSTER_SIDE + GAP, CLUSTER_SIDE, BAR)
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
        _bar(bars, use, x, y + row * CLUSTER_SIDE / 2, CLUSTER_SIDE, CLUSTER_SIDE / 2)


def _bar(bars: dict[int, list[str]], use: float | None, x: float, y: float, width: float, height: float) -> None:
    if use is not None:
        bars[level(use)].append(f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z")


def _values(die: Die, x: float, y: float) -> str:
    return "".join(
        text(
            x + CLUSTER_SIDE / 2, y + CLUSTER_SIDE / 4 + row * CLUSTER_SIDE / 2 + 4, f"{100 * use:.0f}",
            f"d n{level(use)}", "middle",
        )
        for row, use in enumerate((die.hbm, die.compute))
    )


# ---- matrix
# A matrix of bytes between pairs of dies: rows send, columns receive.

MATRIX_SIDE = 8.0  # of a cell, px
EDGE = 20.0  # for the numbers of dies
DECADES = 3  # below the largest value, drawn as the faintest level


def traffic_matrix(sent: Mapping[tuple[int, int], float], dies: int, largest: float, spoken: str) -> str:
    """An SVG. ``sent``: (from, to) → bytes; colours are logarithmic over DECADES below ``largest``."""
    shapes: dict[int, list[str]] = {}
    for (src, dst), n_bytes in sorted(sent.items()):
        shape = (
            f"M{number(EDGE + dst * MATRIX_SIDE)} {number(EDGE + src * MATRIX_SIDE)}"
            f"h{number(MATRIX_SIDE)}v{number(MATRIX_SIDE)}h{number(-MATRIX_SIDE)}z"
        )
        shapes.setdefault(shade(n_bytes, largest), []).append(shape)
    size = EDGE + dies * MATRIX_SIDE
    parts = [element("rect", class_="u0", x=EDGE, y=EDGE, width=dies * MATRIX_SIDE, height=dies * MATRIX_SIDE)]
    parts += [element("path", class_=f"u{step}", d="".join(shapes[step])) for step in sorted(shapes) if step]
    for die in range(0, dies, 5):
        middle = EDGE + (die + 0.5) * MATRIX_SIDE
        parts += [text(middle, EDGE - 4, str(die), "id", "middle"), text(EDGE - 3, middle + 3, str(die), "id", "end")]
    return picture(size, size, spoken, parts)


def shade(n_bytes: float, largest: float) -> int:
    """0 to LEVELS; 0 only for nothing."""
    if n_bytes <= 0 or largest <= 0:
        return 0
    return max(1, min(LEVELS, round(LEVELS * (1 + log10(n_bytes / largest) / DECADES))))


# ---- steps
# Time of every layer (row) in every iteration (column).

STEPS_WIDTH, STEPS_LEFT, STEPS_TOP, STEPS_BOTTOM = 240.0, 34.0, 4.0, 34.0
TALLEST, HIGHEST_ROW, WIDEST_COLUMN = 220.0, 9.0, 26.0
MOST_COLUMNS = 40  # more iterations share a column, which has their mean


class Grid(NamedTuple):
    """Where the cells of a chart are, and the steps behind them: int64[step] each."""

    layers: np.ndarray
    iterations: np.ndarray
    row_of: np.ndarray
    column_of: np.ndarray
    shared: int  # iterations of a column
    width: float  # of a cell, in px
    height: float

    @property
    def columns(self) -> int:
        return -(-len(self.iterations) // self.shared)

    def slowest(self, time_ns: np.ndarray) -> np.ndarray:
        """The step that took longest in each cell, int64[layer · column]; -1 where there is none."""
        found = np.full(len(self.layers) * self.columns, -1)
        order = np.argsort(time_ns, kind="stable")
        found[(self.row_of * self.columns + self.column_of)[order]] = order
        return found


def grid_of(steps: Steps) -> Grid:
    layers, row_of = np.unique(steps.layer, return_inverse=True)
    iterations, column_of = np.unique(steps.step, return_inverse=True)
    shared = -(-len(iterations) // MOST_COLUMNS)
    across, height = -(-len(iterations) // shared), min(TALLEST, HIGHEST_ROW * len(layers)) / len(layers)
    width = min(WIDEST_COLUMN, (STEPS_WIDTH - STEPS_LEFT) / across)
    return Grid(layers, iterations, row_of, column_of // shared, shared, width, height)


def step_chart(steps: Steps, longest_ns: float, spoken: str) -> str:
    """An SVG; colours are shares of ``longest_ns``."""
    grid = grid_of(steps)
    layers, iterations, width, row, shared = grid.layers, grid.iterations, grid.width, grid.height, grid.shared
    means, across, height = _means(grid.row_of, grid.column_of, steps.time_ns), grid.columns, row * len(layers)
    shapes: dict[int, list[str]] = {}
    for (layer, column), mean in np.ndenumerate(means):
        level = max(1, round(LEVELS * mean / longest_ns)) if mean else 0
        x, y = STEPS_LEFT + width * column, STEPS_TOP + row * layer
        shapes.setdefault(level, []).append(f"M{x:.1f} {y:.1f}h{width + 0.1:.1f}v{row + 0.1:.1f}h{-width - 0.1:.1f}z")
    cells = "".join(element("path", class_=f"u{level}", d="".join(shapes[level])) for level in sorted(shapes))
    parts = [element("g", cells, shape_rendering="crispEdges")]
    for at in sorted({0, len(layers) - 1}):
        parts.append(text(STEPS_LEFT - 5, STEPS_TOP + row * at + min(11.0, row + 3), str(layers[at]), "m", "end"))
    for at in sorted({0, across - 1}):
        middle = STEPS_LEFT + width * (at + 0.5)
        parts.append(text(middle, STEPS_TOP + height + 13, str(iterations[at * shared]), "m", "middle"))
    several = f" (means of {shared})" if shared > 1 else ""
    parts.append(text(0, STEPS_TOP + height + 28, f"iteration →{several}, layer ↓", "m"))
    return picture(STEPS_WIDTH, height + STEPS_TOP + STEPS_BOTTOM, spoken, parts)


def _means(row_of: np.ndarray, column_of: np.ndarray, values: np.ndarray) -> np.ndarray:
    """float64[row, column]; 0 where there is none."""
    shape = int(row_of.max()) + 1, int(column_of.max()) + 1
    totals, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (row_of, column_of), values)
    np.add.at(counts, (row_of, column_of), 1)
    return np.divide(totals, counts, out=totals, where=counts > 0)

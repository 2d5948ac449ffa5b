"""Maps of a system of any topology: utilisation of every die and link over a run.

Links between neighbours are straight. Others bow aside, which separates the two directions and leaves the dies in
between visible. A node that is not a die, such as a switch, is a ring. Where there are too many links to distinguish,
only those between neighbours are drawn, and the map says so.
"""

from collections.abc import Callable, Iterable
from math import ceil, hypot, sqrt

from archsim.report.data import Die, Link
from archsim.report.draw.layout import arranged
from archsim.report.draw.svg import element, number, picture, text, title
from archsim.report.units import percent

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


def fabric_map(dies: tuple[Die, ...], links: tuple[Link, ...], spoken: str, width: int | None = None) -> str:
    """An SVG. Upper half of a die: HBM; lower half: compute array; both in percent of run time. Links by colour and
    width.

    ``width``: dies per row where dies have no coordinates; None: about as many as there are rows.
    """
    if dies and dies[0].x is None:
        dies, links = arranged(dies, links, width or ceil(sqrt(len(dies))))
    places = [(die.x, die.y) for die in dies]
    middle = sorted({end for link in links for end in (link.src_at, link.dst_at)} - set(places))
    columns, rows = (1 + max(at[axis] for at in (*places, *middle)) for axis in (0, 1))
    bowed = [link for link in links if not _neighbours(link)]
    shown = bowed if len(bowed) <= MOST_BOWED else []
    straight = [link for link in links if _neighbours(link)]
    parts = [_links(shown, _bow, fill="none"), _links(straight, _line), _halves(dies), *map(_ring, middle)]
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
    return text(_corner(die.x) + 2, _corner(die.y) + 10, f"{die.die}", f"id n{level(die.hbm)}")


def _clickable_die(die: Die) -> str:
    """An invisible square over it, with its numbers."""
    tip = f"die {die.die}: HBM at {percent(die.hbm)} of its bandwidth, compute array busy {percent(die.compute)}"
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

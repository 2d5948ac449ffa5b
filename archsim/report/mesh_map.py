"""Maps of a mesh: how busy every die and every link was over a run."""

from archsim.report.data import Die, Link
from archsim.report.svg import element, number, picture, text

LEVELS = 20  # steps of the colour scale
PITCH, SIDE = 54.0, 38.0  # distance of dies and size of one, px
LANE = 5.0  # distance of the two directions of a mesh edge from its middle
MOST_LABELLED = 12  # dies along a side up to which numbers are written
WIDEST = 640.0

_LIGHT = ((238, 241, 245), (254, 222, 150), (251, 160, 88), (222, 76, 48), (140, 8, 40))
_DARK = ((40, 45, 53), (92, 42, 92), (178, 56, 78), (240, 122, 44), (252, 226, 128))
_IDLE_LINK = (150, 158, 168)  # seen on either page


def mesh_map(dies: tuple[Die, ...], links: tuple[Link, ...], spoken: str) -> str:
    """An SVG. Upper half of a die: HBM; lower half: compute array; both in percent of the run. Links by colour and width."""
    columns = 1 + max(die.x for die in dies)
    rows = 1 + max(die.y for die in dies)
    parts = [_links(links), _halves(dies)]
    if max(columns, rows) <= MOST_LABELLED:
        parts += [_numbers(die) for die in dies]
    gap = PITCH - SIDE
    width, height = columns * PITCH - gap + 4, rows * PITCH - gap + 4
    picture_of_true_size = picture(width, height, spoken, parts)
    if width <= WIDEST:
        return picture_of_true_size
    return picture_of_true_size.replace(f"max-width:{number(width)}px", f"max-width:{number(WIDEST)}px")


def level(utilisation: float) -> int:
    """0 to LEVELS; only nothing is 0, only (nearly) everything is LEVELS."""
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
    """The scale that dies and links of all maps share."""
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


def _links(links: tuple[Link, ...]) -> str:
    """One path a level: a mesh of thousands of links stays small."""
    lines: dict[int, list[str]] = {}
    for link in links:
        lines.setdefault(level(link.utilisation), []).append(_line(link))
    return "".join(element("path", class_=f"l{step}", d="".join(lines[step])) for step in sorted(lines))


def _line(link: Link) -> str:
    """From border to border of two neighbours; each direction keeps to its right if there are two."""
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


def _numbers(die: Die) -> str:
    x, y = _corner(die.x) + SIDE / 2, _corner(die.y)
    return "".join(
        text(x, y + SIDE / 4 + row * SIDE / 2 + 4, f"{100 * use:.0f}", f"d n{level(use)}", "middle")
        for row, use in enumerate((die.hbm, die.compute))
    )

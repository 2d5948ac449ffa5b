"""State diagrams of transition tables, as self-contained SVG.

States and transitions are both boxes: the box of a transition stands between its states and holds event, action and
latency. Layered layout from top to bottom (Sugiyama, Tagawa, Toda 1981): rows by longest path, a bend where an edge
crosses a row, order within a row by barycentres, then x positions pulled towards neighbours as far as boxes leave
room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import Any

from microarch.blocks.block import TransitionTable

CHARACTER, LINE, PADDING = 7.3, 15.0, 9.0  # of 12 px text, in px
GAP_X, GAP_Y, MARGIN, BEND = 22.0, 30.0, 16.0, 10.0
SWEEPS, PULLS = 8, 60
STYLE = """
text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1c2733}.state{fill:#e3edf7;stroke:#3c6e9f}.outside{fill:#fff;stroke:#9fb0c0;stroke-dasharray:4 3}
.final{fill:#eee;stroke:#777}.event{font-weight:bold;fill:#8a3b12}.small{fill:#566573}.edge{fill:none;stroke:#566573}.spawn{stroke-dasharray:5 4}
.paper{fill:#fff}.step{fill:#fdf6ef;stroke:#e6cdb5}.initial{stroke-width:2.5}#arrow path{fill:#566573}
"""  # noqa: E501
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
)


@dataclass(eq=False)
class Box:
    """A state, a transition, or a bend of an edge (no lines)."""

    lines: tuple[tuple[str, str], ...] = ()  # (text, class)
    kind: str = "bend"
    row: int = 0
    x: float = 0.0  # of the centre
    y: float = 0.0  # of the top edge
    span: float = 0.0  # of a bend: the height of its row; the edge crosses it straight
    before: list[Box] = field(default_factory=list)
    after: list[Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(len(line) for line, _ in self.lines) * CHARACTER + 2 * PADDING if self.lines else BEND

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PADDING if self.lines else self.span


@dataclass(eq=False)
class DrawnEdge:
    """From box to box; ``path`` includes the bends. ``turned``: the edge runs upwards and is laid out reversed."""

    start: Box
    end: Box
    kind: str = ""
    turned: bool = False
    path: list[Box] = field(default_factory=list)


def state_diagram(table: TransitionTable, owners: Mapping[Any, str] | None = None) -> str:
    """The diagram of a table. ``owners``: the owner of each state that the table leads to but does not handle."""
    boxes, edges = _graph(table, owners or {})
    _turn_back_edges(boxes, edges)
    _assign_rows(boxes, edges)
    rows = _rows_with_bends(boxes, edges)
    _order(rows)
    _place(rows)
    return _draw(table.name, rows, edges)


def _graph(table: TransitionTable, owners: Mapping[object, str]) -> tuple[list[Box], list[DrawnEdge]]:
    own = {state for state, _ in table.steps}
    states: dict[object, Box] = {}

    def box_of(state) -> Box:
        if state not in states:
            kind = "state" if state in own else "final" if state == table.final else "outside"
            kind += " initial" if state in table.initial else ""
            owner = ((f"({owners[state]})", "small"),) if kind == "outside" and state in owners else ()
            states[state] = Box(((state.name, ""), *owner), kind)
        return states[state]

    steps, edges = [], []
    for (state, event), step in table.steps.items():
        parts = [(event.name, "event"), (step.action, ""), (step.latency, "small")]
        box = Box(tuple(line for line in parts if line[0]), "step")
        steps.append(box)
        edges += [DrawnEdge(box_of(state), box), DrawnEdge(box, box_of(step.next))]
        if step.spawn is not None:
            edges.append(DrawnEdge(box, box_of(step.spawn), "spawn"))
    return [*states.values(), *steps], edges


def _turn_back_edges(boxes: list[Box], edges: list[DrawnEdge]) -> None:
    leaving = {box: [edge for edge in edges if edge.start is box] for box in boxes}
    done: set[Box] = set()

    def visit(box: Box, way: tuple[Box, ...]) -> None:
        for edge in leaving[box]:
            if edge.end in way or edge.end is box:
                edge.turned = True
            elif edge.end not in done:
                visit(edge.end, (*way, box))
        done.add(box)

    for box in sorted(boxes, key=lambda box: "initial" not in box.kind):
        if box not in done:
            visit(box, ())


def _ends(edge: DrawnEdge) -> tuple[Box, Box]:
    return (edge.end, edge.start) if edge.turned else (edge.start, edge.end)


def _assign_rows(boxes: list[Box], edges: list[DrawnEdge]) -> None:
    """Rows by the longest path from the top."""
    for _ in boxes:
        for edge in edges:
            upper, lower = _ends(edge)
            lower.row = max(lower.row, upper.row + 1)


def _rows_with_bends(boxes: list[Box], edges: list[DrawnEdge]) -> list[list[Box]]:
    rows: list[list[Box]] = [[] for _ in range(max(box.row for box in boxes) + 1)]
    for box in boxes:
        rows[box.row].append(box)
    for edge in edges:
        upper, lower = _ends(edge)
        bends = [Box(row=row) for row in range(upper.row + 1, lower.row)]
        for bend in bends:
            rows[bend.row].append(bend)
        edge.path = [upper, *bends, lower]
        for one, other in zip(edge.path, edge.path[1:], strict=False):
            one.after.append(other)
            other.before.append(one)
    return rows


def _order(rows: list[list[Box]]) -> None:
    """Sort every row by the positions of its neighbours above, then below, and so on."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row, beside in zip(rows[1:] if down else rows[-2::-1], rows if down else rows[:0:-1], strict=False):
            at = {box: place for place, box in enumerate(beside)}
            here = {box: place for place, box in enumerate(row)}
            near = {box: [at[other] for other in (box.before if down else box.after)] for box in row}
            row.sort(key=lambda box: fmean(near[box]) if near[box] else here[box])


def _place(rows: list[list[Box]]) -> None:
    for row in rows:
        x = 0.0
        for box in row:
            box.x = x + box.width / 2
            x += box.width + GAP_X
    for pull in range(PULLS):
        for row in rows if pull % 2 == 0 else reversed(rows):
            for box in row:
                neighbours = box.before + box.after
                if neighbours:
                    box.x = fmean(other.x for other in neighbours)
            _push_apart(row)
    left = min(box.x - box.width / 2 for row in rows for box in row)
    y = MARGIN
    for row in rows:
        height = max(box.height for box in row)
        for box in row:
            box.x += MARGIN - left
            box.span = height
            box.y = y + (height - box.height) / 2
        y += height + GAP_Y


def _push_apart(row: list[Box]) -> None:
    """Move overlapping boxes as little as possible: least squares under minimum distances (pool adjacent violators)."""
    offsets = [0.0]
    for left, right in zip(row, row[1:], strict=False):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP_X)
    pools: list[list[float]] = []
    for box, offset in zip(row, offsets, strict=True):
        pools.append([box.x - offset])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    places = [fmean(pool) for pool in pools for _ in pool]
    for box, place, offset in zip(row, places, offsets, strict=True):
        box.x = place + offset


def _draw(name: str, rows: list[list[Box]], edges: list[DrawnEdge]) -> str:
    boxes = [box for row in rows for box in row]
    width = max(box.x + box.width / 2 for box in boxes) + MARGIN
    height = max(box.y + box.height for box in boxes) + MARGIN
    parts = [element("style", STYLE), ARROW, element("rect", class_="paper", width=width, height=height)]
    parts += [_draw_edge(edge) for edge in edges]
    parts += [_draw_box(box) for box in boxes if box.lines]
    view = f"0 0 {width:.0f} {height:.0f}"
    label = f"state diagram of {name}"
    return (
        element(
            "svg",
            "\n".join(parts),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=view,
            width=width,
            height=height,
            role="img",
            aria_label=label,
        )  # fmt: skip
        + "\n"
    )


def _draw_edge(edge: DrawnEdge) -> str:
    upper, *bends, lower = edge.path
    points = [
        (upper.x, upper.y + upper.height),
        *((bend.x, y) for bend in bends for y in (bend.y, bend.y + bend.span)),
        (lower.x, lower.y),
    ]
    if edge.turned:
        points.reverse()
    path = "M{:.1f} {:.1f}".format(*points[0])
    for (x, y), (to_x, to_y) in zip(points, points[1:], strict=False):
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    return element("path", d=path, class_=f"edge {edge.kind}".strip(), marker_end="url(#arrow)")


def _draw_box(box: Box) -> str:
    round_by = 4.0 if box.kind == "step" else 11.0
    frame = element(
        "rect", class_=box.kind, x=box.x - box.width / 2, y=box.y, width=box.width, height=box.height, rx=round_by
    )
    lines = [text(box.x, box.y + LINE * (i + 1) - 1, line, kind, "middle") for i, (line, kind) in enumerate(box.lines)]
    return frame + "".join(lines)


def element(name: str, content: str = "", **attributes: object) -> str:
    """``<name a="1">content</name>``; a trailing underscore of an attribute name is dropped, others become hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, kind: str = "t", anchor: str = "start") -> str:
    return element("text", escape(content), class_=kind, x=float(x), y=float(y), text_anchor=anchor)


def number(value: float) -> str:
    """A coordinate with at most one decimal place."""
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written

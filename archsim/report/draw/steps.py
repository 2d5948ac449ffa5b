"""Time of every layer (row) in every iteration (column)."""

from __future__ import annotations

from collections.abc import Sequence

from archsim.report.data import Step
from archsim.report.draw.fabric_map import LEVELS
from archsim.report.draw.svg import element, number, picture, text

WIDTH, LEFT, TOP, BOTTOM = 240.0, 34.0, 4.0, 34.0
TALLEST, HIGHEST_ROW, WIDEST_COLUMN = 220.0, 9.0, 26.0


def step_chart(steps: Sequence[Step], longest_ns: float, spoken: str) -> str:
    """An SVG; colours are shares of ``longest_ns``."""
    layers = sorted({each.layer for each in steps})
    iterations = sorted({each.step for each in steps})
    height = min(TALLEST, HIGHEST_ROW * len(layers))
    column = min(WIDEST_COLUMN, (WIDTH - LEFT) / len(iterations))
    row = height / len(layers)
    rows, columns = ({each: at for at, each in enumerate(every)} for every in (layers, iterations))
    shapes: dict[int, list[str]] = {}
    for each in steps:
        level = max(1, round(LEVELS * each.time_ns / longest_ns)) if each.time_ns else 0
        x, y = LEFT + column * columns[each.step], TOP + row * rows[each.layer]
        shapes.setdefault(level, []).append(
            f"M{number(x)} {y:.2f}h{column + 0.1:.2f}v{row + 0.1:.2f}h{-column - 0.1:.2f}z"
        )
    parts = [element("path", class_=f"u{level}", d="".join(shapes[level])) for level in sorted(shapes)]
    for layer in (layers[0], layers[-1]) if len(layers) > 1 else layers:
        parts.append(text(LEFT - 5, TOP + row * rows[layer] + min(11.0, row + 3), str(layer), "m", "end"))
    for step in dict.fromkeys((iterations[0], iterations[-1])):
        parts.append(text(LEFT + column * (columns[step] + 0.5), TOP + height + 13, str(step), "m", "middle"))
    parts.append(text(LEFT, TOP + height + 28, "iteration across, MoE layer down", "m"))
    return picture(WIDTH, height + TOP + BOTTOM, spoken, parts)

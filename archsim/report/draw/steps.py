"""Time of every layer (row) in every iteration (column)."""

from typing import NamedTuple

import numpy as np

from archsim.report.data import Steps
from archsim.report.draw.fabric_map import LEVELS
from archsim.report.draw.svg import element, picture, text

WIDTH, LEFT, TOP, BOTTOM = 240.0, 34.0, 4.0, 34.0
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
    width = min(WIDEST_COLUMN, (WIDTH - LEFT) / across)
    return Grid(layers, iterations, row_of, column_of // shared, shared, width, height)


def step_chart(steps: Steps, longest_ns: float, spoken: str) -> str:
    """An SVG; colours are shares of ``longest_ns``."""
    grid = grid_of(steps)
    layers, iterations, width, row, shared = grid.layers, grid.iterations, grid.width, grid.height, grid.shared
    means, across, height = _means(grid.row_of, grid.column_of, steps.time_ns), grid.columns, row * len(layers)
    shapes: dict[int, list[str]] = {}
    for (layer, column), mean in np.ndenumerate(means):
        level = max(1, round(LEVELS * mean / longest_ns)) if mean else 0
        x, y = LEFT + width * column, TOP + row * layer
        shapes.setdefault(level, []).append(f"M{x:.1f} {y:.1f}h{width + 0.1:.1f}v{row + 0.1:.1f}h{-width - 0.1:.1f}z")
    cells = "".join(element("path", class_=f"u{level}", d="".join(shapes[level])) for level in sorted(shapes))
    parts = [element("g", cells, shape_rendering="crispEdges")]
    for at in sorted({0, len(layers) - 1}):
        parts.append(text(LEFT - 5, TOP + row * at + min(11.0, row + 3), str(layers[at]), "m", "end"))
    for at in sorted({0, across - 1}):
        middle = LEFT + width * (at + 0.5)
        parts.append(text(middle, TOP + height + 13, str(iterations[at * shared]), "m", "middle"))
    several = f" (means of {shared})" if shared > 1 else ""
    parts.append(text(0, TOP + height + 28, f"iteration →{several}, layer ↓", "m"))
    return picture(WIDTH, height + TOP + BOTTOM, spoken, parts)


def _means(row_of: np.ndarray, column_of: np.ndarray, values: np.ndarray) -> np.ndarray:
    """float64[row, column]; 0 where there is none."""
    shape = int(row_of.max()) + 1, int(column_of.max()) + 1
    totals, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (row_of, column_of), values)
    np.add.at(counts, (row_of, column_of), 1)
    return np.divide(totals, counts, out=totals, where=counts > 0)

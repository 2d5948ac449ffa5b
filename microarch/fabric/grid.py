"""Dies in rows and columns: the place of each, and meshes and tori over them with XY routes."""

from functools import lru_cache

import numpy as np

from microarch.fabric.fabric import Graph, Wiring, assemble

ROW_MAJOR = "row_major"
COLUMN_MAJOR = "column_major"
HORIZONTAL, VERTICAL, HORIZONTAL_WRAP, VERTICAL_WRAP = range(4)  # classes of links of a mesh or torus


@lru_cache(maxsize=64)
def build_mesh(x: int, y: int, numbering: str = ROW_MAJOR) -> Graph:
    """The X × Y mesh with dies numbered x + X·y (``row_major``) or y + Y·x (``column_major``, published simulator).

    Routes are XY: along x first, then along y. Raises ValueError for a side below 1 or an unknown numbering.
    """
    places = die_places(x, y, numbering)
    return assemble("mesh", x * y, grid_wiring(x, y, places, wrapped=(False, False)), places)


def die_places(x: int, y: int, numbering: str = ROW_MAJOR) -> tuple[np.ndarray, np.ndarray]:
    """(column, row), int64[die] each. Raises ValueError for a side below 1 or an unknown numbering."""
    if x < 1 or y < 1:
        raise ValueError(f"mesh {x} x {y}: both sides must be at least 1")
    if numbering not in (ROW_MAJOR, COLUMN_MAJOR):
        raise ValueError(f"numbering {numbering!r}: expected {ROW_MAJOR!r} or {COLUMN_MAJOR!r}")
    die = np.arange(x * y)
    return (die % x, die // x) if numbering == ROW_MAJOR else (die // y, die % y)


def grid_wiring(x: int, y: int, places: tuple[np.ndarray, np.ndarray], *, wrapped: tuple[bool, bool]) -> Wiring:
    """Links along x and y, where an axis is ``wrapped`` (x, y) between first and last, too; routes along x first, then
    along y.

    A wrapped route goes the shorter way round; if both are equally long, towards the higher column or row from even
    ones, and the other way from odd ones, so that half-way pairs load both ways alike. Around sides of 6, 10, 14, …
    every other link would have one more of each line: there, that is so along x towards even rows, and along y from
    even columns; the other way round towards and from odd ones.
    """
    x_of, y_of = places
    die_at = np.zeros((x, y), np.int64)
    die_at[x_of, y_of] = np.arange(x * y)
    step_x = _step(x_of, x, wrapped[0], y_of[None, :] if x % 4 == 2 else 0)

    def along(first: int) -> np.ndarray:
        step_y = np.where(step_x == 0, _step(y_of, y, wrapped[1], first), 0)
        return die_at[(x_of[:, None] + step_x) % x, (y_of[:, None] + step_y) % y]

    others = (along(1), x_of % 2 == 1) if wrapped[1] and y % 4 == 2 and y > 2 and x > 1 else None
    edges = _neighbours(die_at, wrapped)
    apart_x, apart_y = (np.abs(of[edges[:, 0]] - of[edges[:, 1]]) for of in (x_of, y_of))
    along_x = np.where(apart_x > 1, HORIZONTAL_WRAP, HORIZONTAL)
    return Wiring(
        edges, np.where(apart_x > 0, along_x, np.where(apart_y > 1, VERTICAL_WRAP, VERTICAL)), along(0), others
    )


def _neighbours(die_at: np.ndarray, wrapped: tuple[bool, bool]) -> np.ndarray:
    """int64[edge, 2], sorted, of ``die_at: int64[column, row]``."""
    pairs = []
    for at, around in zip((die_at, die_at.T), wrapped, strict=True):
        last = None if around else -1
        pairs.append(np.stack([at[:last], np.roll(at, -1, 0)[:last]], axis=-1).reshape(-1, 2))
    edges = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    return edges[edges[:, 0] != edges[:, 1]]


def _step(place: np.ndarray, side: int, wrapped: bool, first: np.ndarray | int) -> np.ndarray:
    """-1, 0, 1, int64[node, die]: way along an axis; of equal ones upwards where place + ``first`` is even."""
    apart = place[None, :] - place[:, None]
    if not wrapped:
        return np.sign(apart)
    around = apart % side
    up = (2 * around < side) | ((2 * around == side) & ((place[:, None] + first) % 2 == 0))
    return np.where(around == 0, 0, np.where(up, 1, -1))

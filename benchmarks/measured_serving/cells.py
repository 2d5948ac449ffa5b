"""Errors of simulated serving by cell, beside those of a look-up, and which cells have worsened.

A cell is all points of a model, system, engine and precision that are fit to be judged on (`accuracy.judged_rows`), by
constants of other groups: a rule, and no choice.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.evidence.serving.accuracy import WORSE_POINTS, WORSE_SHARE
from measured_serving.accuracy import LONG, MOST_OF_LONG, Point

KEYS = ("model", "system", "backend", "precision")
# Doublings of a size that count as much as another model, system, engine or precision.
APART = (8.0, 3.0, 3.0, 1.0)
SIZES = ("concurrency", "isl_tokens", "osl_tokens", "gpus", "tp")
FAR_TPOT, FAR_TTFT = 0.1, 0.2  # of a cell on the page


class Cell(NamedTuple):
    """``key``: of KEYS; medians: of absolute errors, of TPOT and TTFT; ``bias``: of signed ones; ``nearest``: of the
    nearest measured point of another group in place of the simulation.
    """

    key: tuple[str, ...]
    points: int
    tpot: float
    ttft: float
    tpot_bias: float
    ttft_bias: float
    tpot_nearest: float
    ttft_nearest: float


def cells(points: Iterable[Point], whole: str = "all") -> list[Cell]:
    """The last one is of all points, under the name ``whole``."""
    every = list(points)
    chosen = list(zip(every, nearest_errors([point.row for point in every]), strict=True))
    groups: dict[tuple[str, ...], list] = {}
    for point, off in chosen:
        groups.setdefault(tuple(str(point.row[key]) for key in KEYS), []).append((point, off))
    last = [((whole, "all", "all", "all"), chosen)] if chosen else []
    return [_cell(key, found) for key, found in [*sorted(groups.items()), *last]]


def _cell(key: tuple[str, ...], found: Sequence[tuple[Point, np.ndarray]]) -> Cell:
    errors = np.array([(point.errors[1], point.errors[0]) for point, _ in found])
    nearest = np.median(np.abs([off for _, off in found]), axis=0)
    medians = (*np.median(np.abs(errors), axis=0), *np.median(errors, axis=0), *nearest)
    return Cell(key, len(found), *map(float, medians))


def nearest_errors(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """float64[row, 2]: (TPOT, TTFT) of the measured point that is most like each, of another group, / its own - 1."""
    sizes = np.log2([[max(float(row[key]), 1.0) for key in SIZES] for row in rows])
    times = np.array([(float(row["tpot_ms"]), float(row["ttft_ms"])) for row in rows])
    names = np.array([[str(row[key]) for key in (*KEYS, "group")] for row in rows])
    found = np.empty_like(times)
    for at in range(len(rows)):
        apart = np.abs(sizes - sizes[at]).sum(axis=1)
        apart += ((names[:, :-1] != names[at, :-1]) * APART).sum(axis=1)
        apart[names[:, -1] == names[at, -1]] = np.inf
        found[at] = times[apart.argmin()] / times[at] - 1
    return found


def write_cells(found: Iterable[Cell], file: Path) -> None:
    """A CSV table that ``worse`` compares with."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*KEYS, *Cell._fields[1:]])
        writer.writerows([*cell.key, cell.points, *(f"{value:.4f}" for value in cell[2:])] for cell in found)


def read_cells(file: Path) -> list[Cell]:
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    values = Cell._fields[2:]
    return [
        Cell(tuple(row[key] for key in KEYS), int(row["points"]), *(float(row[name]) for name in values))
        for row in rows
    ]


def worse(before: Iterable[Cell], now: Iterable[Cell]) -> Iterator[str]:
    """Cells whose error of TPOT or TTFT grew by more than 2 points and by more than 10 %, in words."""
    known = {cell.key: cell for cell in before}
    for cell in now:
        for name in ("tpot", "ttft") if cell.key in known else ():
            then, error = getattr(known[cell.key], name), getattr(cell, name)
            if error - then > WORSE_POINTS and error > (1 + WORSE_SHARE) * then:
                yield f"{', '.join(cell.key)}: {name.upper()} {then:.1%} before, {error:.1%} now"


def page(found: Sequence[Cell], folds: int, most_clients: int, rest: str) -> str:
    """Markdown: cells that are far off, and all points. ``rest``: what of the rule's points has none, in words."""
    lines = [
        "# Accuracy of serving",
        "",
        "How far is `archsim serve` from measured deployments? This page is written by `python "
        "benchmarks/serving_accuracy.py DATA --page docs/accuracy.md`, and all cells are in the CSV beside it. The "
        "measurements are closed loops of InferenceX and NVIDIA, as aiconfigurator samples them.",
        "",
        "- A *cell* has all points of one model, GPU, engine and precision with up to "
        f"{most_clients} clients ({MOST_OF_LONG} where outputs have {LONG:,} tokens or more). Points that are marked "
        "as host-bound or not monotone are left out.",
        f"- *Cross-validation*: configurations are divided into {folds} folds. Each is simulated with host constants "
        "that were fitted to the other folds.",
        "- *Errors* are medians of absolute errors, in percent. The signed median stands in parentheses.",
        f"- The table has the cells that are off by {FAR_TPOT:.0%} of TPOT or {FAR_TTFT:.0%} of TTFT, and all points.",
        "- *Disaggregated* points take the constants of engines that do both, and the factors `pools` of other folds.",
        "- `--against docs/accuracy.csv` fails if the error of a cell grew by more than 2 points and by more than "
        "10 %.",
        "",
        f"{rest}",
        "",
        "| cell | points | TPOT | TTFT |",
        "|---|---|---|---|",
    ]
    for cell in found:
        if cell.tpot < FAR_TPOT and cell.ttft < FAR_TTFT and set(cell.key[1:]) != {"all"}:
            continue
        name = " ".join(dict.fromkeys(cell.key))
        tpot = f"{100 * cell.tpot:.1f} ({100 * cell.tpot_bias:+.1f})"
        ttft = f"{100 * cell.ttft:.1f} ({100 * cell.ttft_bias:+.1f})"
        lines.append(f"| {name} | {cell.points} | {tpot} | {ttft} |")
    return "\n".join([*lines, ""])

"""How far laws are off where no fit saw the measurement, and whether stated intervals are true.

    python -m calibration.fit.coverage DIR [--write configs/uncertainty/widths.yaml] [--page docs/measurements.md]

A residual is ln(measured / predicted) of one measured point. Its prediction never saw the point:

============= =========================================================================================================
way           what the law had instead
============= =========================================================================================================
fit           every other number of rows, tokens or bytes of the same shape
nearest_shape other shapes of the table: a third of the shapes is left out at a time (of MoE layers: a model at a time)
sibling_gpu   the tables of another GPU of the same generation, scaled by nominal rates (`archsim.laws.scaling`)
scaled        those of a GPU of another generation
roofline      no kernel: FLOP over the peak or bytes over the bandwidth of the datasheet, whichever takes longer
============= =========================================================================================================

From them come widths of two levels (`archsim.specs.uncertainty.LevelsSpec`): what all points of a table have in common,
and what one shape has of its own. Both levels together have the quantiles of all residuals; the share of the first is
that of the spread of the tables' medians. Tables count equally, however many points they have.

Coverage is judged by cross-validation: the tables are divided into `FOLDS`, and the intervals that a part of them is
judged by were learned from the others. Kinds of kernels with widths of their own leave out a whole GPU at a time.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.host import use_one_blas_thread
from archsim.base.uncertain import Quantiles
from archsim.specs.uncertainty import BY_QUANTILES, KINDS_OF_KERNELS
from calibration.fit.residuals import KINDS, TableResiduals, residuals
from calibration.fit.widths import DRAWS, bounds, levels_of, pool_residuals
from calibration.measurements.reading import read_measurements

FOLDS = 4  # of the tables, for the judgement
LEAST_TABLES = 4  # with fewer, the points of a table are divided instead
WIDEST = 30.0  # upper over lower end of a width that is written
LEVELS = (0.5, 0.9)  # intervals that are judged
BEGIN, END, DIAGRAM = "<!-- coverage -->", "<!-- end of coverage -->", "img/coverage.svg"  # of the page


class Coverage(NamedTuple):
    """The coverage of one section and one way to predict it."""

    section: str  # of a calibration: gemm, moe, attention, collectives, copies
    how: str  # the way, see the module
    tables: int  # how many were predicted
    points: int  # of these tables
    within: tuple[float, ...]  # share of points inside the interval of each of `LEVELS`, tables counting equally
    width: float  # upper over lower end of the 90 % interval, the median of the tables
    pit: np.ndarray  # float64[point]: where in its distribution each point lies, 0 to 1
    weights: np.ndarray  # float64[point]: by which tables count equally


def coverage_of(tables: list[TableResiduals]) -> Coverage:
    """Coverage of intervals by tables they did not see. ValueError: a GPU is left out and only one was measured."""
    parts = _folds_of(tables)
    if len(parts) < 2:
        raise ValueError(f"{tables[0].section}, {tables[0].how}: measured on one GPU alone; leaving it out takes two")
    within, widths, pits, weights = [[] for _ in LEVELS], [], [], []  # type: ignore[var-annotated]
    for fold in range(len(parts)):
        others = [each for at, part in enumerate(parts) if at != fold for each in part]
        if not others or not parts[fold]:
            continue
        common, own = levels_of(others)
        shares = (np.arange(DRAWS) + 0.5) / DRAWS
        one, other = (np.log(Quantiles.of(each).at(shares)) for each in (common, own))
        every = np.sort((one[:, None] + other[None]).ravel())
        for at, level in enumerate(LEVELS):
            low, high = bounds(common, own, level)
            within[at] += [np.mean((each.of >= low) & (each.of <= high)) for each in parts[fold]]
        widths += [np.exp(high - low)] * len(parts[fold])
        points, weight = pool_residuals(parts[fold])
        pits.append(np.searchsorted(every, points) / len(every))
        weights.append(weight)
    first = tables[0]
    return Coverage(
        section=first.section, how=first.how, tables=len(tables), points=sum(len(each.of) for each in tables),
        within=tuple(float(np.mean(each)) for each in within), width=float(np.median(widths)), pit=np.concatenate(pits),
        weights=np.concatenate(weights),
    )  # fmt: skip


def _folds_of(tables: list[TableResiduals]) -> list[list[TableResiduals]]:
    """The tables in `FOLDS` parts, or by GPU; the points of each, where they are few."""
    if tables[0].section in KINDS_OF_KERNELS:
        gpus = dict.fromkeys(each.table.split()[0] for each in tables)
        return [[each for each in tables if each.table.split()[0] == gpu] for gpu in gpus]
    if len(tables) >= LEAST_TABLES:
        order = sorted(tables, key=lambda each: zlib.crc32(each.table.encode()))
        return [order[fold::FOLDS] for fold in range(FOLDS)]
    large = [each for each in tables if len(each.of) > FOLDS]
    return [[each._replace(of=each.of[fold::FOLDS]) for each in large] for fold in range(FOLDS)]


def _may_be_covered(tables: list[TableResiduals]) -> bool:
    """Whether there are enough points, of more GPUs than one where one is left out, and no mere quantiles of tables."""
    points = sum(len(each.of) for each in tables)
    return tables[0].section not in BY_QUANTILES and points > 2 * FOLDS and len(_folds_of(tables)) > 1


def by_way(found: list[TableResiduals]) -> dict[tuple[str, str], list[TableResiduals]]:
    groups: dict[tuple[str, str], list[TableResiduals]] = {}
    for each in found:
        groups.setdefault((each.section, each.how), []).append(each)
        if each.how == "fit" and KINDS_OF_KERNELS.get(each.section) == "collectives":  # of all kinds together, too
            groups.setdefault(("collectives", "fit"), []).append(each._replace(section="collectives"))
    return groups


def table_of(found: list[Coverage]) -> str:
    """The judgement as a Markdown table."""
    lines = ["| law of | had from | tables | points | in 90 % | in 50 % | upper over lower end of 90 % |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    lines += [
        f"| {each.section} | {each.how.replace('_', ' ')} | {each.tables} | {each.points:,} | {each.within[1]:.0%} | "
        f"{each.within[0]:.0%} | {each.width:.2f} |"
        for each in found
    ]
    return "\n".join(lines)


def with_table(page: str, found: list[Coverage]) -> str:
    """The page with the judgement between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table_of(found)}\n\n{END}{after}"


def reliability(found: list[Coverage]) -> str:
    """SVG: how often a central interval holds over how often it should, by section and way, and the diagonal."""
    side, edge = 360, 40
    levels = np.linspace(0.05, 0.95, 19)
    lines = []
    for each in found:
        inside = [np.average(np.abs(each.pit - 0.5) <= level / 2, weights=each.weights) for level in levels]
        both = zip(levels, inside, strict=True)
        points = " ".join(f"{edge + side * x:.1f},{edge + side * (1 - y):.1f}" for x, y in both)
        said = f"<title>{each.section}, {each.how.replace('_', ' ')}</title>"
        style = 'fill="none" stroke="#2563a8" opacity="0.6"'
        lines.append(f'<polyline points="{points}" {style}>{said}</polyline>')
    marks = [
        f'<text x="{edge + side * at:.0f}" y="{edge + side + 16}" text-anchor="middle">{at:.0%}</text>'
        f'<text x="{edge - 6}" y="{edge + side * (1 - at) + 4:.0f}" text-anchor="end">{at:.0%}</text>'
        for at in (0.0, 0.5, 0.9)
    ]
    whole = side + 2 * edge
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole + 10}" font-family="sans-serif" '
            'font-size="11">',
            f'<rect x="{edge}" y="{edge}" width="{side}" height="{side}" fill="none" stroke="#999"/>',
            f'<line x1="{edge}" y1="{edge + side}" x2="{edge + side}" y2="{edge}" stroke="#999" stroke-dasharray="4"/>',
            *lines,
            *marks,
            f'<text x="{edge + side / 2}" y="{whole}" text-anchor="middle">stated interval</text>',
            f'<text x="{edge}" y="{edge - 10}">measured points inside it</text>',
            "</svg>\n",
        ]
    )


def with_widths(text: str, groups: Mapping[tuple[str, str], list[TableResiduals]]) -> str:
    """The text of a file of widths (`archsim.specs.uncertainty`) with those learned from all residuals."""
    section, lines = "", []
    for line in text.splitlines():
        at = len(line) - len(line.lstrip())
        key = line.strip().partition(":")[0]
        if at <= 2:
            section = key if at == 2 else ""
        tables = groups.get((section, key), []) if at == 4 else []
        if len(tables) >= LEAST_TABLES or sum(len(each.of) for each in tables) > 2 * FOLDS * LEAST_TABLES:
            levels = levels_of(tables)
            if max(np.ptp(np.log(level)) for level in levels) > np.log(WIDEST):  # says nothing
                lines.append(line)
                continue
            common, own = (", ".join(f"{each:.4g}" for each in level) for level in levels)
            points = 0 if section in BY_QUANTILES else sum(len(each.of) for each in tables)
            by = ", by their 5, 50 and 95 % quantiles" if section in BY_QUANTILES else ""
            said = f"fitted to {len(tables)} tables{by}: python -m calibration.fit.coverage"
            line = f'    {key}: {{common: [{common}], shape: [{own}], points: {points}, source: "{said}"}}'
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", metavar="DIR", type=Path, help="folder of CSV files")
    parser.add_argument("--kind", choices=KINDS, help="of measurements; all by default")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the widths into this file, such as widths.yaml")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the judgement into this page, with its diagram")
    parser.add_argument(
        "--keep", metavar="FILE", type=Path, nargs="+", default=[], help="read residuals from these files, or keep them"
    )
    args = parser.parse_args(arguments)
    use_one_blas_thread()
    kinds = [args.kind] if args.kind else KINDS
    found = [each for file in args.keep for each in _read_residuals(file)] or list(
        residuals(read_measurements(args.measurements, kinds=kinds), lambda text: print(text, flush=True))
    )
    if args.keep and not args.keep[0].exists():
        pd.DataFrame(
            [(*each[:3], value) for each in found for value in each.of], columns=["section", "how", "table", "of"]
        ).to_parquet(args.keep[0])
    groups = by_way(found)
    judgement = [coverage_of(tables) for tables in groups.values() if _may_be_covered(tables)]
    print(table_of(judgement))
    if args.write:
        args.write.write_text(with_widths(args.write.read_text(encoding="utf-8"), groups), encoding="utf-8")
    if args.page:
        args.page.write_text(with_table(args.page.read_text(encoding="utf-8"), judgement), encoding="utf-8")
        (args.page.parent / DIAGRAM).write_text(reliability(judgement), encoding="utf-8")
    return 0


def _read_residuals(file: Path) -> list[TableResiduals]:
    if not file.exists():
        return []
    rows = pd.read_parquet(file)
    tables = rows.groupby(["section", "how", "table"], sort=False)
    return [TableResiduals(section, how, table, own["of"].to_numpy()) for (section, how, table), own in tables]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

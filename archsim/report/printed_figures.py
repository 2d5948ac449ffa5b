"""Figures of a report for print: which ones the files of its folder allow, drawn by `archsim.report.plots`."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from archsim.base import errors, units
from archsim.report.figures import OF_RUNS, shares_below
from archsim.report.plot_parts import FONT_PT
from archsim.report.plots import Bars, Colours, Figure, PlotAxis, Points
from archsim.runs.results import PARQUET, Results

MOST_BARS = 120  # of a model on a system that can be read in print

ABOUT: Mapping[str, str] = MappingProxyType({
    "iteration": "time of a whole decode iteration, part after part",
    "gain": "decode throughput over ep",
    "speedup": "decode throughput over base",
    "throughput": "tokens per second",
    "limits": "share of time by cause",
    "critical_path": "time of a decode step, cause after cause",
    "load": "tokens of the busiest die over the mean",
    "traffic": "bytes that HBM reads and writes",
    "hops": "hops of base over those of each policy",
    "copies": "bytes of copies on the die with most of them",
    "energy": "energy per token, estimated, with its range",
})  # fmt: skip


class Printed(NamedTuple):
    """A figure of a study: ``about``: one line for lists; ``file`` of its folder that it is drawn from, and a
    ``column`` that it must have.
    """

    about: str
    file: str
    column: str
    draw: Callable[[Path], Figure]


def write_figure(folder: Path, name: str, out: Path, columns: int | None = None, font_pt: float = FONT_PT) -> Path:
    """Draw a figure of the report in ``folder``, as `Figure.save` does. Raises ArchsimError for a name or a format that
    is not there, with those that are, and where matplotlib is missing.
    """
    known = names_of(folder)
    if not known:
        raise errors.ArchsimError(
            f"{folder}: there is nothing to plot. Figures come from the folder of a sweep, an exploration, a "
            "comparison or a serve run"
        )
    if name not in known:
        listed = "\n".join(f"  {each:<12} {about}" for each, about in known.items())
        raise errors.ArchsimError(f"{folder}: no figure {name!r}{errors.did_you_mean(name, known)}; it has:\n{listed}")
    drawn = _of_runs(name, folder) if name in OF_RUNS else OF_STUDIES[name].draw(folder)
    return drawn.save(out, columns, font_pt)


def names_of(folder: Path) -> dict[str, str]:
    """Name → what it shows, of the figures that a report's files allow."""
    found: dict[str, str] = {}
    if (folder / PARQUET).is_file():
        rows = Results.load(folder).runs.rows
        found = {name: ABOUT[name] for name, drawn in OF_RUNS.items() if drawn(rows) is not None}
    for name, each in OF_STUDIES.items():
        if (folder / each.file).is_file():
            with (folder / each.file).open(encoding="utf-8", newline="") as stream:
                found |= {name: each.about} if each.column in next(csv.reader(stream), []) else {}
    return found


def _of_runs(name: str, folder: Path) -> Figure:
    drawn = OF_RUNS[name](Results.load(folder).runs.rows)
    assert drawn is not None, "is one of names_of"
    if isinstance(drawn, Bars) and not drawn.begin:
        names = ("assumptions", "system", "model")
        bars = {(tuple(row[name] for name in names), row["place"], row["name"]) for row in drawn.rows}
        runs = max(Counter(of for of, _, _ in bars).values())
        if runs > MOST_BARS:
            raise errors.ArchsimError(
                f"{folder}: {runs} runs of one model and system, of which up to {MOST_BARS} can be read. Of a "
                "`sweep:` take its front, or draw results.parquet yourself"
            )
    return drawn


def _front(folder: Path) -> Figure:
    """Every design that the event engine ran by the first two objectives of the front."""
    rows = _csv(folder / "front.csv")
    names = [name for name in rows[0] if name.endswith(")") and " (" in name]
    up = names[0]
    across = next((name for name in names if name.startswith("cost")), names[1])
    kinds = {"0": "dominated", "1": "on the front"}
    return Points(
        question="Which designs are on the front?", x=PlotAxis("x", across, log=True), y=PlotAxis("y", up, log=True),
        rows=[{"x": float(row[across]), "y": float(row[up]), "kind": kinds[row["front"]]} for row in rows],
        colours=Colours("kind", {"dominated": "--p0", "on the front": "--p4"}), zero=False,
    )  # fmt: skip


def _requests(column: str, title: str, folder: Path) -> Figure:
    """The shares of requests below a time of ``requests.csv``; a line for each policy's folder."""
    times_ms: dict[str, list[float]] = {}
    for file in [folder / "requests.csv", *sorted(folder.glob("*/requests.csv"))]:
        name = file.parent.name if file.parent != folder else "first"
        if values := [float(row[column]) / units.NS_PER_MS for row in _csv(file) if row[column]]:
            times_ms[name] = values
    if not times_ms:
        raise errors.ArchsimError(f"{folder}: no request has a {title.partition(',')[0]}; nothing to draw")
    return shares_below(f"How many requests are below a {title}?", title, times_ms)


def _comparison(folder: Path) -> Figure:
    """How much more of each quantity the second design has."""
    rows = [
        {"name": f"{row['name']} ({row['group']})", "begin": 1.0, "value": ratio, "label": f"{ratio:.3g}×"}
        for row in _csv(folder / "comparison.csv")
        if row["ratio"] and (ratio := float(row["ratio"])) > 0
    ]
    if not rows:
        raise errors.ArchsimError(
            f"{folder / 'comparison.csv'}: no quantity has a value of both designs; nothing to draw"
        )
    return Bars(
        question="How much more of each quantity has the second design?", rows=rows, y="name", begin="begin",
        x=PlotAxis("value", "B over A, ×", log=True), reference=1.0,
    )  # fmt: skip


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise errors.ArchsimError(f"{path}: no rows; nothing to draw")
    return rows


OF_STUDIES: Mapping[str, Printed] = MappingProxyType({
    "front": Printed(
        "designs by throughput and price: the front, and what it dominates", "front.csv", "front", _front
    ),
    "ratios": Printed("the second design over the first, by quantity", "comparison.csv", "ratio", _comparison),
    "ttft": Printed(
        "time to first token", "requests.csv", "ttft_ns", partial(_requests, "ttft_ns", "time to first token, ms")
    ),
    "tpot": Printed(
        "time per output token", "requests.csv", "tpot_ns", partial(_requests, "tpot_ns", "time per output token, ms")
    ),
})  # fmt: skip

"""Figures of a report for print: which ones the files of its folder allow, drawn by `archsim.report.plots`."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.base.tables import parquet_columns
from archsim.base.units import NS_PER_MS
from archsim.report.figures import BOUND_NAMES, OF_RUNS
from archsim.report.plots import KINDS, Axis, Bars, Colours, Figure, Points
from archsim.runs.results import Results

MOST_BARS = 120  # of a panel that can be read in print


@dataclass(frozen=True)
class Printed:
    """``about``: one line for lists; ``file`` of a report that it is drawn from, and a ``column`` that it must have."""

    about: str
    file: str
    column: str
    draw: Callable[[Path], Figure]


def write_figure(folder: Path, name: str, out: Path) -> Path:
    """Draw a figure of the report in ``folder``. Raises ArchsimError for a name or a format that is not there, with
    those that are, and where matplotlib is missing.
    """
    known = names_of(folder)
    if not known:
        raise ArchsimError(
            f"{folder}: there is nothing to draw. Figures are drawn of the folder of a sweep, an exploration, a "
            "comparison or a serve run"
        )
    if name not in known:
        listed = "\n".join(f"  {each:<12} {about}" for each, about in known.items())
        raise ArchsimError(f"{folder}: no figure {name!r}{did_you_mean(name, known)}; it has:\n{listed}")
    return FIGURES[name].draw(folder).save(out)


def names_of(folder: Path) -> dict[str, str]:
    """Name → what it shows, of the figures that a report's files allow."""
    found = {}
    for name, each in FIGURES.items():
        path = folder / each.file
        if path.is_file():
            columns = parquet_columns(path) if path.suffix == ".parquet" else _header(path)
            found |= {name: each.about} if each.column in columns else {}
    return found


def _of_runs(name: str, folder: Path) -> Figure:
    drawn = OF_RUNS[name](Results.load(folder).runs.rows)
    if drawn is None:
        raise ArchsimError(f"{folder}: no run has the numbers of {name!r}; nothing to draw")
    if isinstance(drawn, Bars) and not drawn.begin:
        panels = Counter(place for place, _ in {(row["place"], row["name"]) for row in drawn.rows})
        if max(panels.values()) > MOST_BARS:
            raise ArchsimError(
                f"{folder}: {max(panels.values())} runs in one panel, of which up to {MOST_BARS} can be read. Of a "
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
        question="Which designs are on the front?", x=Axis("x", across, log=True), y=Axis("y", up, log=True),
        rows=[{"x": float(row[across]), "y": float(row[up]), "kind": kinds[row["front"]]} for row in rows],
        colours=Colours("kind", {"dominated": "--p0", "on the front": "--p4"}), zero=False,
    )  # fmt: skip


def _requests(column: str, title: str, folder: Path) -> Figure:
    """Cumulative share of requests by a time of ``requests.csv``; a line for each policy's folder."""
    rows, files = [], [folder / "requests.csv", *sorted(folder.glob("*/requests.csv"))]
    for file in files:
        values = sorted(float(row[column]) / NS_PER_MS for row in _csv(file) if row[column])
        name = file.parent.name if file.parent != folder else "first"
        rows += [{"line": name, "x": ms, "y": 100 * (rank + 1) / len(values)} for rank, ms in enumerate(values)]
    colours = {name: KINDS[(at + 2) % len(KINDS)] for at, name in enumerate(dict.fromkeys(row["line"] for row in rows))}
    return Points(
        question=f"How many requests are below a {title}?", rows=rows, x=Axis("x", title), lines=True,
        y=Axis("y", "share of requests, %"), colours=Colours("line", colours),
    )  # fmt: skip


def _comparison(folder: Path) -> Figure:
    """What two designs spend their time on, or how much better one is in each quantity."""
    rows = []
    for row in _csv(folder / "comparison.csv"):
        try:
            ratio = float(row["b"]) / float(row["a"])
        except (ValueError, ZeroDivisionError):
            continue
        if ratio > 0:
            name = f"{row['name']} ({row['group']})"
            rows.append({"name": name, "begin": 1.0, "value": ratio, "label": f"{ratio:.3g}×"})
    if not rows:
        raise ArchsimError(f"{folder / 'comparison.csv'}: no quantity has a value of both designs; nothing to draw")
    return Bars(
        question="How much more of each quantity has the second design?", rows=rows, y="name", begin="begin",
        x=Axis("value", "B over A, ×", log=True), reference=1.0,
    )  # fmt: skip


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as stream:
        return next(csv.reader(stream), [])


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise ArchsimError(f"{path}: no rows; nothing to draw")
    return rows


_FIRST_CAUSE = next(iter(BOUND_NAMES))
_COLUMNS = (
    ("gain", "speedup_vs_ep", "decode throughput over ep"),
    ("speedup", "speedup_vs_base", "decode throughput over base"),
    ("throughput", "tokens_per_s", "tokens a second"),
    ("limits", _FIRST_CAUSE, "share of time by cause"),
    ("critical_path", _FIRST_CAUSE, "time of a decode step, cause after cause"),
    ("load", "load_max_over_mean", "tokens of the busiest die over the mean"),
    ("traffic", "local_hbm_read_bytes", "bytes that HBM reads and writes"),
    ("energy", "energy_per_token_j", "energy a token, estimated, with its range"),
)  # fmt: skip
FIGURES: Mapping[str, Printed] = MappingProxyType(
    {name: Printed(about, "results.parquet", column, partial(_of_runs, name)) for name, column, about in _COLUMNS}
    | {
        "front": Printed(
            "designs by throughput and price: the front, and what it dominates", "front.csv", "front", _front
        ),
        "ratios": Printed("the second design over the first, by quantity", "comparison.csv", "b", _comparison),
        "ttft": Printed(
            "time to first token", "requests.csv", "ttft_ns", partial(_requests, "ttft_ns", "time to first token, ms")
        ),
        "tpot": Printed(
            "time per output token",
            "requests.csv",
            "tpot_ns",
            partial(_requests, "tpot_ns", "time per output token, ms"),
        ),
    }
)

"""The page of a sweep over points: front, effect of each axis, best points; one self-contained HTML file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.report import balancers, engines
from archsim.report.rendering import rendered
from archsim.specs.sweeps.plan import SweepPlan
from archsim.studies.exploration.figures import value
from archsim.studies.exploration.outcome import Exploration
from archsim.studies.exploration.page import figures_of, rows_of
from archsim.studies.exploration.sweep_view import view_of

MOST_ROWS = 200  # of the table: the front, then the fastest other points


def write_points_page(
    plan: SweepPlan, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int], folder: Path
) -> tuple[Path, tuple[str, ...]]:
    """Write ``index.html`` beside the results; returns its path and the notes. Equal results give equal bytes.

    rows: rows of the results, with ``point``.
    """
    rows = list(rows)
    found = view_of(plan, rows, dropped)
    write_text(folder / "index.html", render(found, rows, folder))
    return folder / "index.html", found.notes


def render(found: Exploration, rows: list[Mapping[str, Any]], folder: Path) -> str:
    """The page as text. ``rows``: of the results. ``folder``: may contain a comparison of both engines."""
    first = found.spec.objectives[0]
    others = sorted((point for point in found.points if not point.front), key=lambda point: -point.values[first])
    context = figures_of(found) | {
        "asked": False,
        "engine_names": sorted({point.engine for point in found.points}),
        "engines": engines.section(folder),
        "balancers": balancers.section(rows),
        "rows": rows_of(found, others)[:MOST_ROWS],
    }
    return rendered("points.html.j2", context, {"shown": value})

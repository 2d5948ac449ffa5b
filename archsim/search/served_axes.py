"""Files of `archsim serve` with a ``sweep:``: every point, and how sure the order of those in question is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.report import units
from archsim.runs import sweep
from archsim.search import deployments
from archsim.studies.serving import page
from archsim.studies.serving.runs import ServePlan
from archsim.studies.serving.sure import judged_by, write_sure

MOST_RUNS = 8  # that have ranges where nobody asks for samples, each 16 of them


def serve_axes(
    plan: ServePlan, folder: Path | None, samples: int | None, jobs: int | None = None,
    watcher: sweep.Watcher | None = None,
) -> page.ServedPlan:  # fmt: skip
    """Serve a plan with axes, and its runs in worlds: ``samples`` of all runs, or None: a few of those in question; 0:
    none. With a folder, its page has the answer and ranges. Raises as `page.serve_into`.
    """
    served = page.serve_all(plan, watcher) if folder is None else page.serve_into(plan, folder, watcher, jobs=jobs)
    rows, names, runs = served.table.rows, plan.names(), plan.runs()
    judged, higher = judged_by(plan.first)
    asked = in_question(rows, judged, higher, len(rows) if samples else MOST_RUNS)
    if samples == 0 or not asked:
        return served
    points = [runs[at].serving._replace(policies=(runs[at].serving.policy,), axes=MappingProxyType({})) for at in asked]
    found = deployments.compare_points(
        points, [names[at] for at in asked], samples=samples or deployments.SAMPLES, folder=folder, jobs=jobs,
        watcher=watcher,
    )  # fmt: skip
    why = [(names[at], row["refused"]) for at, row in enumerate(rows) if row["refused"]]
    found = replace(found, refused=(*found.refused, *why))
    sure = replace(found.sure, sentence=found.sentence.rstrip("."))
    answer = found.sentence + _left_out(len(rows) - len(why) - len(asked))
    if folder is not None:
        write_sure(sure, folder)
        page.write_points_page(plan, served.table, folder, answer, sure)
    return replace(served, answer=answer, sampled=sure)


def in_question(rows: Sequence[Mapping[str, Any]], judged: str, higher: bool, most: int) -> list[int]:
    """Positions of the runs that get ranges: all that were served, or of more than ``most`` the first and the best."""
    served = [at for at, row in enumerate(rows) if not row["refused"] and row[judged] is not None]
    if len(served) <= most:
        return served
    best = sorted(served[1:], key=lambda at: -rows[at][judged] if higher else rows[at][judged])
    return sorted([served[0], *best[: most - 1]])


def _left_out(count: int) -> str:
    if not count:
        return ""
    return f" {units.significant(count)} runs that are not near the best were not sampled (--samples N samples all)."

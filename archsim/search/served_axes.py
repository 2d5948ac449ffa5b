"""Files of `archsim serve`: points of a ``sweep:`` and how sure their order is, one deployment, or its policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.base import host, tables
from archsim.runs import sweep
from archsim.search import deployments
from archsim.serving.answers import page
from archsim.serving.answers.load_answer import load_sentence, offered_requests, sustains, with_medians
from archsim.serving.answers.runs import ServePlan
from archsim.serving.answers.sure import find_sure, judged_by, write_sure
from archsim.serving.answers.sustained import sustained_rate
from archsim.show import units

MOST_TOKENS = 16e6  # of all runs in samples of a plain file, where nobody asks for samples: about 5 s of one core
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
        points, [names[at] for at in asked], samples=samples, folder=folder, jobs=jobs,
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


def serve_load(
    plan: ServePlan, folder: Path | None, samples: int | None, jobs: int | None = None,
    watcher: sweep.Watcher | None = None, around: bool = True,
) -> page.ServedPlan:  # fmt: skip
    """Serve a plan without axes, and its policies in worlds: ``samples`` of them, or None: `deployments.SAMPLES`, with
    no more than MOST_TOKENS where requests do not wait for each other (`sure.shorten`); 0: none. ``around``: as of
    `page.serve_into`. With a folder, its page begins with the answer. Raises as `page.serve_into`.
    """
    watching, runs, found = watcher or sweep.Unwatched(), plan.runs(), None
    if samples != 0:
        most = MOST_TOKENS if samples is None else math.inf
        found = find_sure(plan, samples or deployments.SAMPLES, folder, watching, jobs, most_tokens=most)

    def answer(table: tables.Table) -> str:
        if len(runs) > 1:
            return deployments.policies_sentence(plan, found) if found is not None else ""
        run, ranges = runs[0], {} if found is None else found.options[0].intervals
        row = table.rows[0]
        offered = offered_requests(run)
        rate = None
        if not sustains(run.serving, with_medians(row, ranges), offered):
            cores = jobs or host.available_cores()
            rate = sustained_rate(run, found.samples if found is not None else 0, cores, watching.phase)
        return load_sentence(run.serving, row, offered, ranges, found.samples if found is not None else 0, rate)

    sentences: list[str] = []

    def tell(table: tables.Table) -> str:
        sentences.append(answer(table))
        nonlocal found
        if found is not None:
            found = replace(found, sentence=sentences[0].removesuffix("."))
            if folder is not None:
                write_sure(found, folder)
        return sentences[0]

    if folder is None:
        served = page.serve_all(plan, watcher)
        tell(served.table)
    else:
        served = page.serve_into(plan, folder, watcher, around, jobs, tell)
    return replace(served, answer=sentences[0], sampled=found)


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

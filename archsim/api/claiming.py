"""``ar.claims``: the published numbers of papers beside runs of their experiments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.runs.sweep import Watcher
    from archsim.studies.claims.study import Claims


def claims(
    papers: Sequence[str | os.PathLike[str]] = (), out: str | os.PathLike[str] = "reports/claims",
    jobs: int | None = None, watcher: Watcher | None = None,
) -> list[Claims]:
    """Run what is missing of the papers' experiments, judge every row of their files, and write their pages.

    Returns a `Claims` a paper: ``.judged`` (published, simulated under the paper's rules and under ``physical``, met or
    not), ``.answers``, ``.numbers``. papers: names of configs/papers, or paths; none: all of them, and then a page over
    all. out: folder of the pages; runs kept there are not simulated again. jobs: parallel processes.

    Raises SpecError, TraceError and CapacityError before anything is simulated; FailedRuns at the end if runs failed.
    """
    from archsim.base.files import own_folder
    from archsim.runs.sweep import Unwatched
    from archsim.specs.loading.papers import load_paper, paper_names
    from archsim.studies.claims.page import write_claims, write_summary
    from archsim.studies.claims.study import judge_paper

    folder, found = Path(out), []
    own_folder(folder)
    read = [load_paper(each) for each in papers or paper_names()]
    for paper in read:
        own_folder(folder / paper.paper)
        found.append(judge_paper(paper, folder / paper.paper, jobs, watcher or Unwatched()))
        write_claims(found[-1], folder / paper.paper)
    if not papers:
        write_summary(found, folder)
    return found

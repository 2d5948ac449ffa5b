"""An exploration and its report: the page, and a report of every recommended design."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from archsim.base.files import sole_writer
from archsim.report.page import write_report
from archsim.runs.manifest import seal, write_manifest
from archsim.runs.sweep import Watcher, sweep
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.sweeps.explore import EXPLORE_KEY, ExploreSpec
from archsim.specs.sweeps.plan import SweepPlan
from archsim.studies.exploration.answers import wanted
from archsim.studies.exploration.explore import explore
from archsim.studies.exploration.outcome import Exploration
from archsim.studies.exploration.page import write_exploration


def explore_to_report(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """As ``explore``, with ``index.html`` and a report for each recommended design in ``folder``."""
    with sole_writer(folder):
        functions = plan.experiment.all_columns
        write_manifest(folder, given(plan, spec), {"points": plan.combinations}, functions)
        found = explore(plan, spec, folder, jobs, watching)
        designs = {
            point.index: plan.resolved(plan.point(point.index)._replace(engine="event"))
            for point in wanted(found).values()
        }
        pages: dict[int, str] = {}
        with watching() as watcher:
            for index, tree in designs.items():
                watcher.phase(f"report {len(pages) + 1} of {len(designs)}: point {index}")
                pages[index] = _report(tree, index, folder, jobs, watcher)
            watcher.phase("writing the page")
            write_exploration(found, designs, pages, folder)
        seal(folder, "front.csv")
    return found


def given(plan: SweepPlan, spec: ExploreSpec) -> dict[str, Any]:
    """The experiment with its ``sweep:`` and ``explore:``, references expanded: ``archsim explore`` reproduces it."""
    return plan.given() | {EXPLORE_KEY: spec.model_dump(mode="json")}


def _report(tree: Mapping[str, Any], index: int, folder: Path, jobs: int | None, watcher: Watcher) -> str:
    """The page of one design, from its own small sweep; returns its path, relative to the folder."""
    own = folder / "reports" / f"point-{index}"
    sweep(ExperimentSpec.model_validate(tree), own, jobs, watcher)
    return write_report(own).relative_to(folder).as_posix()

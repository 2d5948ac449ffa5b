"""``ar.serve``: requests over time on a deployment; a search of configurations; a measurement beside the simulation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# numpy and numba are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.runs.sweep import Watcher
    from archsim.serving.serving import Outcome
    from archsim.specs.loading.library import Source
    from archsim.studies.serving.calibrating import Calibrated
    from archsim.studies.serving.comparison import Comparison
    from archsim.studies.serving.search import Searched
    from archsim.studies.serving.served import ServedPlan


def serve(
    source: Source, overrides: Sequence[str] = (), *, out: str | os.PathLike[str] | None = None, around: bool = True,
    timeline: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Serve the requests of a file (or mapping) on its deployment, under the first of its policies.

    Returns an `Outcome`: ``.measures`` (TTFT, TPOT, ITL, E2E in ms; requests, goodput and tokens a second; KV use),
    ``.served`` (times of every request), ``.notes``. out: folder, as of ``serve_plan``. around: for the page, also
    serve the file's ``loads``, or shares of the traffic. timeline: file for Perfetto, of iterations, requests and use
    of KV. Of a file with ``sweep:``, its first point is served.

    Raises SpecError, TraceError, CapacityError; LawMissing for what no calibration has.
    """
    from archsim.report.serving_timeline import MOST_ITERATIONS
    from archsim.serving.serving import serve as served
    from archsim.specs.loading.serving import load_serving

    serving = load_serving(source, overrides)
    if timeline is not None:
        found = served(serving, MOST_ITERATIONS)
        _draw(found, Path(timeline))
    if out is None:
        return found if timeline is not None else served(serving)
    return serve_plan(source, overrides, out=out, around=around, first=True).outcomes[0]


def serve_policies(
    source: Source, overrides: Sequence[str] = (), *, out: str | os.PathLike[str] | None = None, around: bool = True
) -> list[Outcome]:
    """As ``serve``, under every policy of the file's ``policies:``, with the same requests; not for files with axes."""
    return list(serve_plan(source, overrides, out=out, around=around).outcomes)


def serve_plan(
    source: Source, overrides: Sequence[str] = (), *, out: str | os.PathLike[str] | None = None, around: bool = True,
    first: bool = False, watcher: Watcher | None = None,
) -> ServedPlan:
    """Serve every point of a file's ``sweep:`` (or the file) under every policy.

    out: folder of ``manifest.yaml``, ``results.csv``, ``results.parquet`` and ``index.html``; of a file without axes
    also ``bench.json`` (keys of ``vllm bench serve``), ``requests.csv``, and a folder of these for every further
    policy. Runs that are kept there, or in the cache, are not served again. first: under the first policy alone, and
    the first point. watcher: as of ``ar.sweep``.

    Raises as ``serve``; points of a file with axes that cannot run are rows that say why.
    """
    from archsim.studies.serving.plan import serve_plan as planned
    from archsim.studies.serving.served import serve_all, serve_into

    plan = planned(source, overrides, first=first)
    return serve_all(plan, watcher) if out is None else serve_into(plan, Path(out), watcher, around)


def search_serving(source: Source, overrides: Sequence[str] = ()) -> Searched:
    """Parallel sizes and batch limits of a file's ``search:``, most goodput first. Raises as ``serve``."""
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.search import Searched, search

    return Searched(search(load_serving(source, overrides)))


def compare_serving(source: Source, measured: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Comparison:
    """A JSON of ``vllm bench serve`` beside the simulation of a file. Raises as ``serve``."""
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.comparison import compare_bench

    return compare_bench(load_serving(source, overrides), Path(measured))


def calibrate_serving(
    source: Source, measured: str | os.PathLike[str], overrides: Sequence[str] = (), *,
    told: Callable[[str], None] = lambda text: None,
) -> Calibrated:
    """The host's constants that a measured run implies (JSON of ``vllm bench serve``, AIPerf or InferenceX), and how
    far the half that was not fitted is off. told: which simulation is next. Raises as ``serve``.
    """
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.calibrating import calibrate_host

    return calibrate_host(load_serving(source, overrides), Path(measured), told)


def _draw(outcome: Outcome, path: Path) -> None:
    from archsim.report.serving_timeline import write_serving_timeline

    write_serving_timeline(outcome.served, path, f"{outcome.serving.model.name} on {outcome.serving.system.name}")

"""``ar.serve`` and ``ar.recommend``: requests over time, a search, a measurement beside the simulation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.api import files
from archsim.base import verbs
from archsim.base.verbs import verb

if TYPE_CHECKING:
    from archsim.evidence.serving.accuracy import ServedAccuracy
    from archsim.evidence.serving.calibrate import FittedConstants
    from archsim.evidence.serving.calibrate import ServingComparison as ServedComparison
    from archsim.runs.sweep import Watcher
    from archsim.serving.answers.page import ServedPlan
    from archsim.serving.answers.recommendation import Recommendation
    from archsim.serving.answers.results import Searched
    from archsim.serving.answers.sure import ServedSure
    from archsim.serving.outcome import Outcome
    from archsim.specs.library import Source


# numpy and numba are imported where they are used, so that importing this module is fast.


def serve(
    source: Source,
    overrides: files.Overrides = (),
    *,
    out: str | os.PathLike[str] | None = None,
    around: bool = True,
    timeline: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Serve the requests of a file (or mapping) on its deployment, under the first of its policies.

    Returns an `Outcome`: ``.measures`` (TTFT, TPOT, ITL, E2E in ms; requests, goodput and tokens a second; KV use),
    ``.served`` (times of every request), ``.notes``. out: folder, as of ``serve_plan``. around: for the page, also
    serve the file's ``loads``, or shares of the traffic. timeline: file for Perfetto, of iterations, requests and use
    of KV. Of a file with ``sweep:``, its first point is served.

    Raises SpecError, TraceError, CapacityError; LawMissing for what no calibration has.

    >>> ar.serve("serve_olmoe").measures  # takes seconds  # doctest: +SKIP
    """
    from archsim.serving.answers.timeline import MOST_ITERATIONS, write_serving_timeline
    from archsim.serving.serving import serve as served
    from archsim.specs.serving_files import load_serving

    serving = load_serving(source, files.override_texts(overrides))
    if timeline is not None:
        found = served(serving, MOST_ITERATIONS)
        write_serving_timeline(found.served, Path(timeline), f"{serving.model.name} on {serving.system.name}")
    if out is None:
        return found if timeline is not None else served(serving)
    return serve_plan(source, overrides, out=out, around=around, first=True, samples=0).outcomes[0]


def serve_policies(
    source: Source, overrides: files.Overrides = (), *, out: str | os.PathLike[str] | None = None, around: bool = True
) -> list[Outcome]:
    """Serve the same requests under every policy of the file's ``policies:``. Files with axes are not supported.

    >>> [each.measures for each in ar.serve_policies("serve_olmoe")]  # takes seconds  # doctest: +SKIP
    """
    return list(serve_plan(source, overrides, out=out, around=around, samples=0).outcomes)


def serve_plan(
    source: Source,
    overrides: files.Overrides = (),
    *,
    out: str | os.PathLike[str] | None = None,
    around: bool = True,
    first: bool = False,
    watcher: Watcher | None = None,
    jobs: int | None = None,
    samples: int | None = None,
) -> ServedPlan:
    """Serve every point of a file's ``sweep:`` (or the file) under every policy.

    out: folder of ``manifest.yaml``, ``results.csv``, ``results.parquet`` and ``index.html``; of a file without axes
    also ``bench.json`` (keys of ``vllm bench serve``), ``requests.csv``, and a folder of these for every further
    policy. Runs that are kept there, or in the cache, are not served again. first: under the first policy alone, and
    the first point. watcher, jobs: as of ``ar.sweep``; without ``out``, runs are served one after the other. samples:
    as of ``serve_sure``, for the ranges of all runs (None: 16, of a file with axes of at most 8 runs; 0: none).
    ``.answer`` has the best point or policy with its range, or p99 of one and the rate that it sustains; ``.sampled``
    the `ServedSure`.

    Raises as ``serve``; points of a file with axes that cannot run are rows that say why.

    >>> ar.serve_plan("serve_olmoe", out="report").outcomes  # takes seconds  # doctest: +SKIP
    """
    from archsim.search.served_axes import serve_axes, serve_load
    from archsim.serving.answers.runs import serve_plan as planned

    plan, folder = planned(source, files.override_texts(overrides), first=first), None if out is None else Path(out)
    if plan.has_axes:
        return serve_axes(plan, folder, samples, jobs, watcher)
    return serve_load(plan, folder, samples, jobs, watcher, around)


def serve_sure(
    source: Source,
    samples: int = 64,
    overrides: files.Overrides = (),
    *,
    out: str | os.PathLike[str] | None = None,
    watcher: Watcher | None = None,
    jobs: int | None = None,
) -> ServedSure:
    """How sure the numbers of a served file are: its runs in ``samples`` worlds, in which what its laws are off is
    drawn, the same for all policies and points.

    Returns a `ServedSure`: ``.sentence`` has the headlines with their intervals and the probability of the order;
    ``.to_pandas()`` one row for each run, with columns ``_p05``, ``_p50`` and ``_p95``.

    samples: 16 or more. out: folder of ``sure.html``, ``sure.csv`` and ``sure.json``; worlds kept there are not served
    again. watcher, jobs: as of ``ar.sweep``.

    Raises ArchsimError for too few samples; otherwise as ``serve``.

    >>> print(ar.serve_sure("serve_olmoe", 16).sentence)  # takes minutes  # doctest: +SKIP
    """
    from archsim.serving.answers.runs import serve_plan as planned
    from archsim.serving.answers.sure import find_sure, write_sure

    found = find_sure(
        planned(source, files.override_texts(overrides)), samples, None if out is None else Path(out), watcher, jobs
    )
    if out is not None:
        write_sure(found, Path(out))
    return found


def search_serving(
    source: Source, overrides: files.Overrides = (), *, jobs: int = 1, report: Callable[[str], None] = lambda text: None
) -> Searched:
    """Parallel sizes and batch limits of a file's ``search:``, most goodput first. jobs: processes. report: how far it
    is. Raises as ``serve``.

    >>> ar.search_serving("serve_h200", jobs=2)  # takes minutes  # doctest: +SKIP
    """
    from archsim.serving.answers.results import Searched
    from archsim.serving.answers.search import search
    from archsim.specs.serving_files import load_serving

    return Searched(search(load_serving(source, files.override_texts(overrides)), report, jobs=jobs))


@verb(verbs.RECOMMEND)
def recommend(
    model: Source,
    on: str | Sequence[str],
    *,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
    out: str | os.PathLike[str] | None = None,
    loads: Sequence[str | os.PathLike[str]] = (),
    **asked: Any,
) -> Recommendation:
    """What to serve a model with: engine, GPU, parallel sizes, precision, batch limits and pools.

    spread: coefficient of variation of lengths. Texts have units, such as ``50ms``.

    Returns a `Recommendation`: ``.best`` and ``.others`` (each with ``.choice``, ``.rate_per_s`` and its 80 % range,
    ``.probability`` that it is the best, ``.usd_per_million``, ``.upkeep``), ``.measures`` of the best under load,
    ``.started``; ``.to_pandas()`` has one row a configuration. Raises SpecError, also where nothing is within the
    limits.

    >>> ar.recommend("olmoe-1b-7b", "h200:8", tpot="20ms").best  # takes minutes  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.serving.answers.question import asked_of
    from archsim.serving.answers.recommend import recommend as recommended
    from archsim.serving.answers.recommendation import write_recommendation

    question = asked_of(model, [on] if isinstance(on, str) else on, **asked)
    found = recommended(question, report, jobs or available_cores(), None if out is None else Path(out))
    if out is not None:
        write_recommendation(found, Path(out), [Path(each) for each in loads])
    return found


def compare_serving(
    source: Source, measured: str | os.PathLike[str], overrides: files.Overrides = ()
) -> ServedComparison:
    """A JSON of ``vllm bench serve`` beside the simulation of a file. Raises as ``serve``.

    >>> ar.compare_serving("serve_olmoe", "bench.json")  # needs a measurement  # doctest: +SKIP
    """
    from archsim.evidence.serving.calibrate import compare_bench
    from archsim.specs.serving_files import load_serving

    return compare_bench(load_serving(source, files.override_texts(overrides)), Path(measured))


def calibrate_serving(
    source: Source,
    measured: str | os.PathLike[str],
    overrides: files.Overrides = (),
    *,
    report: Callable[[str], None] = lambda text: None,
) -> FittedConstants:
    """The host's constants that a measured run implies (JSON of ``vllm bench serve``, AIPerf or InferenceX), and how
    far the half that was not fitted is off. report: which simulation is next. Raises as ``serve``.

    >>> ar.calibrate_serving("serve_olmoe", "bench.json")  # needs a measurement  # doctest: +SKIP
    """
    from archsim.evidence.serving.calibrate import calibrate_host
    from archsim.specs.serving_files import load_serving

    return calibrate_host(load_serving(source, files.override_texts(overrides)), Path(measured), report)


def validate_served(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    deployment: Source | None = None,
    *,
    format: str | None = None,
    time_unit: str | None = None,
    most_clients: int | None = None,
    against: str | os.PathLike[str] | None = None,
    page: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> ServedAccuracy:
    """Results of InferenceX, AIPerf, GuideLLM, ``vllm bench serve`` or SGLang's bench_serving, each simulated.

    files: of results. deployment: a file (or mapping) of ``archsim serve`` on which they were measured, for results
    that do not say it. format: ``inferencex``, ``inferencex-json``, ``aiperf``, ``guidellm``, ``vllm`` or ``sglang``;
    None: known by their keys. time_unit: of their times, ``s``, ``ms``, ``us`` or ``ns``; None: that of the format.
    most_clients: leave closed loops of more out. against: table of an earlier ``page``. page: Markdown file to write,
    with a table (.csv) beside it. jobs: processes (None: all cores).

    Returns a `ServedAccuracy`: ``.judged`` (every point, measured and simulated), ``.cells`` (medians of errors by
    engine, GPU, model and precision), ``.refused``, ``.worsened``. Raises TraceError for files of no format, SpecError.

    >>> ar.validate_served("results", page="served.md").cells  # needs measurements  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.evidence.serving.accuracy import validate_served as validated
    from archsim.evidence.serving.accuracy import write_page

    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    found = validated(
        [Path(each) for each in paths], deployment, name=format, unit=time_unit, most_clients=most_clients,
        against=Path(against) if against else None, jobs=jobs or available_cores(), report=report,
    )  # fmt: skip
    if page is not None:
        write_page(found, Path(page))
    return found

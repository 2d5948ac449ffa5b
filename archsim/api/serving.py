"""``ar.serve``: requests over time on a deployment; a search of configurations; a measurement beside the simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# numpy and numba are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.serving.serving import Outcome
    from archsim.serving.tables import Host
    from archsim.specs.loading.library import Source
    from archsim.studies.serving.comparison import Comparison
    from archsim.studies.serving.page import Loaded
    from archsim.studies.serving.search import Found


def serve(
    source: Source,
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    around: bool = True,
    timeline: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Serve the requests of a file (or mapping) on its deployment.

    Returns an `Outcome`: ``.measures`` (TTFT, TPOT, ITL, E2E in ms; requests, goodput and tokens a second; KV use),
    ``.served`` (times of every request), ``.notes``. out: folder of ``index.html``, ``bench.json`` (keys of ``vllm
    bench serve``) and ``requests.csv``. around: for the page, also serve the file's ``loads``, or
    shares of the traffic. timeline: file for
    Perfetto, of iterations, requests and use of KV.

    Raises SpecError, TraceError, CapacityError; LawMissing for what no calibration has.
    """
    from archsim.report.serving_timeline import MOST_ITERATIONS
    from archsim.serving.serving import serve as served
    from archsim.specs.loading.serving import load_serving

    outcome = served(load_serving(source, overrides), MOST_ITERATIONS if timeline is not None else 0)
    if timeline is not None:
        _draw(outcome, Path(timeline))
    return outcome if out is None else _written(outcome, Path(out), _loaded([outcome], around))


def serve_policies(
    source: Source, overrides: Sequence[str] = (), *, out: str | os.PathLike[str] | None = None, around: bool = True
) -> list[Outcome]:
    """As ``serve``, under every policy of the file's ``policies:``, with the same requests.

    out: folder of the files of ``serve`` for the first policy, with all of them compared, and of a folder with them for
    each of the others.
    """
    from archsim.serving.serving import serve_policies as served
    from archsim.specs.loading.serving import load_serving

    found = served(load_serving(source, overrides))
    if out is not None:
        loaded = _loaded(found, around)
        for at, outcome in enumerate(found[1:], 1):
            _written(outcome, Path(out) / outcome.serving.policy.name, loaded[at : at + 1])
        _written(found[0], Path(out), loaded, found)
    return found


def search_serving(source: Source, overrides: Sequence[str] = ()) -> list[Found]:
    """Parallel sizes and batch limits of a file's ``search:``, most goodput first. Raises as ``serve``."""
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.search import search

    return search(load_serving(source, overrides))


def compare_serving(source: Source, measured: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Comparison:
    """A JSON of ``vllm bench serve`` beside the simulation of a file. Raises as ``serve``."""
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.comparison import compare_bench

    return compare_bench(load_serving(source, overrides), Path(measured))


def calibrate_serving(
    source: Source, measured: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> tuple[Host, Comparison]:
    """The host's time an iteration and a request that a JSON of ``vllm bench serve`` implies. Raises as ``serve``."""
    from archsim.specs.loading.serving import load_serving
    from archsim.studies.serving.comparison import calibrate_host

    return calibrate_host(load_serving(source, overrides), Path(measured))


def _draw(outcome: Outcome, path: Path) -> None:
    from archsim.report.serving_timeline import write_serving_timeline

    write_serving_timeline(outcome.served, path, f"{outcome.serving.model.name} on {outcome.serving.system.name}")


def _loaded(outcomes: Sequence[Outcome], around: bool) -> list[Loaded]:
    """Of each outcome: what its page shows of other loads."""
    from archsim.studies.serving.loads import by_input, loads
    from archsim.studies.serving.page import Loaded

    return [Loaded(each.serving.policy.name, loads(each), by_input(each)) for each in outcomes] if around else []


def _written(outcome: Outcome, folder: Path, loaded: Sequence[Loaded], policies: Sequence[Outcome] = ()) -> Outcome:
    from archsim.base.files import write_text
    from archsim.base.tables import Table
    from archsim.studies.serving.bench_json import REQUEST_COLUMNS, bench, request_rows
    from archsim.studies.serving.page import write_page

    folder.mkdir(parents=True, exist_ok=True)
    Table(REQUEST_COLUMNS, tuple(request_rows(outcome))).write_csv(folder / "requests.csv")
    write_text(folder / "bench.json", json.dumps(bench(outcome)) + "\n")
    write_page(outcome, loaded, folder, policies)
    return outcome

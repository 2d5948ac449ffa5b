"""Runs of a plan, one after the other, those of equal deployments together: each is built once."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.runs.pool.worker import Failure
from archsim.runs.results import NO_DETAILS, Record
from archsim.serving.progress import SILENT, Progress
from archsim.serving.serving import Deployment, Outcome, deploy, requests_of, serve_requests
from archsim.studies.serving.runs import ServeRun

_OF_REQUESTS = {"requests", "slo", "loads", "search", "policies"}


class Simulator:
    """Serves runs; the last deployment is kept. ``refuse``: whether what cannot run raises, or has a row that says
    why. ``whole``: called with the outcome of every run that is kept whole.
    """

    def __init__(
        self, refuse: bool, progress: Progress = SILENT, whole: Callable[[ServeRun, Outcome], None] = lambda *_: None
    ):
        self._refuse, self._progress, self._whole = refuse, progress, whole
        self._built: tuple[str, Deployment] | None = None

    def __call__(self, runs: Iterable[ServeRun]) -> Iterator[tuple[ServeRun, Record | Failure]]:
        for run in sorted(runs, key=_deployment_key):
            began = perf_counter()
            row = self._row(run)
            host: dict[str, Any] = {"wall_s": perf_counter() - began}
            yield run, {"run": run.key, "row": row, "host": host, **NO_DETAILS}

    def serve(self, run: ServeRun) -> Outcome:
        """The outcome of one run. Raises ArchsimError."""
        self._progress(f"{run.name}: requests", 0.0)
        requests, deployment = requests_of(run.serving), self._deployment(run)
        return serve_requests(run.serving, deployment, requests, progress=self._progress.of(run.name))

    def _row(self, run: ServeRun) -> dict[str, Any]:
        try:
            outcome = self.serve(run)
        except ArchsimError as error:
            if self._refuse:
                raise
            return run.row(None, None, str(error))
        if run.whole:
            self._whole(run, outcome)
        return run.row(outcome.measures, outcome.deployment)

    def _deployment(self, run: ServeRun) -> Deployment:
        key = _deployment_key(run)
        if self._built is None or self._built[0] != key:
            self._progress(f"{run.name}: laws of an iteration", 0.0)
            self._built = key, deploy(run.serving)
        return self._built[1]


def _deployment_key(run: ServeRun) -> str:
    """What its engines are built from: all but requests, and what only pages show."""
    serving = run.serving
    return f"{serving.spec.model_dump_json(exclude=_OF_REQUESTS | {'sweep'})} {serving.policy.model_dump_json()}"

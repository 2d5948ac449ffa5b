"""The folder of a report while it is being made: finished runs are kept there, and are found again by a later sweep."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from archsim.base.files import DRAFT_SUFFIX, write_text
from archsim.runs.results import Record
from archsim.runs.run import Run
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY
from archsim.specs.text.yaml import dump_yaml

PAGE = "index.html"
# Made of all runs, once the last has finished; they go when that is no longer so.
_MADE_LAST = ("results.parquet", "dies.csv", "links.csv", "timings.csv", "comparison.json", PAGE)


def made_by() -> dict[str, str]:
    """What every manifest says of the program that wrote it."""
    libraries = {library: version(library) for library in ("numpy", "numba")}
    return {"version": version("archsim"), "python": platform.python_version(), **libraries}


class RunStore:
    """``runs/<key>.json``: the record of a run and the code that it is a result of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)
        for draft in (*folder.glob(f".*{DRAFT_SUFFIX}"), *self._runs.glob(f".*{DRAFT_SUFFIX}")):
            draft.unlink(missing_ok=True)  # of a sweep that was killed

    def load(self, run: Run) -> Record | None:
        """The record of a run if it is there, complete, and a result of the present code."""
        try:
            kept = json.loads(self._file(run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(kept, dict) and kept.get("code") == run.code and kept.get("record", {}).get("run") == run.key
        return kept["record"] if whole else None

    def save(self, run: Run, record: Record) -> None:
        """Keep a record; it is on the disk when this returns."""
        text = json.dumps({"name": run.name, "code": run.code, "record": record}, allow_nan=False)
        write_text(self._file(run), text, durable=True)

    def forget(self, run: Run) -> None:
        """Remove a record that is kept elsewhere now."""
        self._file(run).unlink(missing_ok=True)

    def remove_outdated(self) -> None:
        """Remove what was made of all runs, before one of them is missing or another."""
        for name in _MADE_LAST:
            (self.folder / name).unlink(missing_ok=True)

    def write_manifest(self, experiment: ExperimentSpec, runs: Iterable[Run], digests: Mapping[str, str]) -> None:
        """What the results are results of; ``archsim sweep manifest.yaml`` makes them again."""
        about = {
            **made_by(),
            "code": sorted({run.code for run in runs}),
            "runs": len(tuple(runs)),
            "traces": dict(digests),
        }
        write_text(self.folder / MANIFEST, dump_yaml({MANIFEST_KEY: about, **experiment.resolved()}))

    def _file(self, run: Run) -> Path:
        return self._runs / f"{run.key}.json"

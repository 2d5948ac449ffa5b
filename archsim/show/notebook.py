"""The figures of a report in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archsim.base import errors
from archsim.runs.results import Results
from archsim.show.die_figures import maps
from archsim.show.die_map import DieMap
from archsim.show.figures import OF_RUNS, of_runs
from archsim.show.maps import MappedRun, die_map
from archsim.show.plots import Figure
from archsim.show.report import Report
from archsim.specs.library import MANIFEST


class Plots:
    """``results.plot``: figures that show themselves in a notebook; ``.save("x.pdf")``, ``.vega()`` (Vega-Lite)."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def __repr__(self) -> str:
        return f"Plots({', '.join(self.names())})"

    def names(self) -> list[str]:
        rows = self._results.runs.rows
        return [*(name for name, drawn in OF_RUNS.items() if drawn(rows) is not None), "dies"]

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name not in OF_RUNS:
            raise AttributeError(f"there is no figure {name!r}; there are {', '.join((*OF_RUNS, 'dies'))}")

        def drawn() -> Figure:
            found = of_runs(name, self._results.runs.rows)
            if found is None:
                raise errors.ArchsimError(
                    f"these results have nothing to show as {name!r}; they have {', '.join(self.names())}"
                )
            return found

        drawn.__doc__ = OF_RUNS[name].__doc__
        return drawn

    def __dir__(self) -> list[str]:
        return [*OF_RUNS, "dies", "names"]

    def dies(self) -> DieMap:
        """Every die and link of the first system; in a report's folder, of that system as it is built."""
        folder = self._results.folder
        if folder is not None and (Path(folder) / MANIFEST).is_file():
            return maps(Report(Path(folder)))[0]
        first = self._results.runs.rows[0]["system"]
        dies, links = self._results.dies.by("run"), self._results.links.by("run")
        placed = []
        for run in self._results.runs.where(system=first):
            chosen = {name: run[name] for name in ("assumptions", "model", "batch", "policy")}
            own = [{**die, "site": None} for die in dies[run["run"]]]
            placed.append(MappedRun(chosen, own, links[run["run"]].rows if run["run"] in links else ()))
        return die_map(f"Where is {first} busy?", placed)

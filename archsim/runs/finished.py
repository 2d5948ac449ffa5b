"""What measures of a run share: the run that has ended, a column of results, shares of a die's units."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from archsim.engine.demand import RunDemand
    from archsim.engine.loop import RunOutcome
    from archsim.runs.run import Run
    from archsim.traffic import TokenSource


class Finished:
    """A run that has ended. ``decode``: int64[n] iterations that have tokens and count: not the prefill, nor the
    warm-up. ``counted``: with the prefill, where no warm-up follows it.
    """

    def __init__(self, run: Run, demand: RunDemand, source: TokenSource | None, outcome: RunOutcome) -> None:
        self.run, self.demand, self.source, self.outcome = run, demand, source, outcome
        routed = np.flatnonzero(demand.tokens.any(axis=(1, 2)))
        self.decode = (routed[routed > 0] if demand.has_prefill else routed)[run.workload.warmup_steps :]
        self.counted = self.decode if run.workload.warmup_steps else routed


def plain(value: Any) -> Any:
    """A Python value instead of a NumPy scalar."""
    return value.item() if isinstance(value, np.generic) else value


class Column(NamedTuple):
    """A column of the results."""

    name: str
    kind: str  # INTEGER, REAL or TEXT
    unit: str  # as in names: ns, bytes, share (of 1), percent, …; "" for a number or a text without one
    meaning: str  # as the reference prints it; says where the cell is empty
    header: str = ""  # what tables of the page and the terminal call it; "": they leave it out
    optional: bool = False  # whether the cell may be empty
    after: str = ""  # name of the column behind which tables show it; "": in its place
    # Of a user's own, its value for a finished run; the others' are in `columns.TOPICS`, or follow from other rows
    measure: Callable[[Finished], Any] | None = None


class Topic(NamedTuple):
    """Columns of one subject, and the function that measures them."""

    columns: tuple[Column, ...]
    measure: Callable[..., dict[str, Any]]  # of a finished run (some: and its row so far) → value of each column

    def __call__(self, *of: Any) -> dict[str, Any]:
        return self.measure(*of)


def measures(columns: tuple[Column, ...]) -> Callable[[Callable[..., dict[str, Any]]], Topic]:
    """Decorates the function that measures these columns."""
    return lambda measure: Topic(columns, measure)


LLC_PORTS, HBM, ARRAYS = range(3)  # archsim.engine.state.UNITS, which loads numba


def per_die(outcome: RunOutcome, unit: int) -> np.ndarray:
    """RESOURCE[die]: LLC ports (0), HBM (1) or compute arrays (2)."""
    return outcome.tally.resources[unit * outcome.fabric.dies : (unit + 1) * outcome.fabric.dies]


def untimed_bytes(outcome: RunOutcome) -> np.ndarray:
    """int64[resource]: of weights whose moves take no time (``migration: free``)."""
    return np.broadcast_to(np.asarray(outcome.balancing.untimed_bytes), len(outcome.tally.resources))


def share_of_time(busy_ns: np.ndarray, total_ns: float) -> np.ndarray:
    return busy_ns / total_ns if total_ns else np.zeros(len(busy_ns))
